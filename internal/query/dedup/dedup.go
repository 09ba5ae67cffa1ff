// Package dedup makes one series of what several replicas measured of it.
//
// Iterators over the samples of each replica come in, of one series and each in
// order of time; one iterator comes out, which shows the samples of one replica and
// goes over to another only where the first has a gap. It never mixes two: replicas
// scrape at different moments, so that a mixture would have twice the samples, and
// counters that fall. The choice is Thanos' penalty algorithm, sample by sample, so
// that either program answers the same. What overlaps within one replica is
// untangled before; labels, chunks and requests are not known here.
//
// Between two replicas it is decided so, from the last sample shown, at time T:
//
//	next of a     first of a at or after T+1+penalty of a
//	next of b     first of b at or after T+1+penalty of b
//	shown         the earlier one, a if they are equally early
//	penalties     of the shown one 0, of the other one twice the time since T
//
// Further replicas are added as a tree that leans to the left.
package dedup

import (
	"math"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// firstPenaltyMS is the penalty before the distance of two samples is known.
const firstPenaltyMS = 5000

// milliseconds is a time; by this name vet does not take an iterator's Seek for
// that of an io.Seeker.
type milliseconds = int64

// IsCounter says whether a function, by its PromQL name, sees its argument as a
// counter whose resets it makes good.
//
// resets, which Thanos counts among them, is not: samples whose resets are made
// good have none to count, so it is answered from what the replicas have.
func IsCounter(function string) bool {
	return function == "rate" || function == "irate" || function == "increase"
}

// Penalty makes one iterator of those of the replicas, whose samples are asked for
// by the named function; if IsCounter says so they have been made good by Counter.
// There must be one replica at least. The iterators belong to the result.
func Penalty(replicas []chunkenc.Iterator, function string) chunkenc.Iterator {
	if len(replicas) == 1 {
		return replicas[0]
	}
	counter := IsCounter(function)
	leaf := func(it chunkenc.Iterator) replica {
		if counter {
			return &raised{Iterator: it}
		}
		return plain{it}
	}
	merged := leaf(replicas[0])
	for _, it := range replicas[1:] {
		merged = newPair(merged, leaf(it))
	}
	return merged
}

// Chain makes one iterator that shows the samples of all, each timestamp once.
func Chain(replicas []chunkenc.Iterator, _ string) chunkenc.Iterator {
	if len(replicas) == 1 {
		return replicas[0]
	}
	return storage.ChainSampleIteratorFromIterators(nil, replicas)
}

// replica is an iterator that can be told what a counter had come to.
type replica interface {
	chunkenc.Iterator
	// raise is told the value last shown, when another replica's sample than before
	// is shown next.
	raise(last float64)
}

type plain struct{ chunkenc.Iterator }

func (plain) raise(float64) {}

// raised is a counter that does not fall when it takes over from a replica that
// had counted further: it is lifted by the difference from then on.
type raised struct {
	chunkenc.Iterator
	by float64
}

func (r *raised) raise(last float64) {
	if _, v := r.At(); last > v {
		r.by += last - v
	}
}

// At implements chunkenc.Iterator.
func (r *raised) At() (int64, float64) {
	t, v := r.Iterator.At()
	return t, v + r.by
}

// pair chooses between two replicas.
type pair struct {
	a, b            replica
	typeA, typeB    chunkenc.ValueType // of their next samples
	penaltyA        int64
	penaltyB        int64
	shown           replica
	shownType       chunkenc.ValueType
	lastMS          int64
	shownIsA, begun bool
}

var _ replica = (*pair)(nil)

func newPair(a, b replica) *pair {
	return &pair{a: a, b: b, shown: a, shownIsA: true, lastMS: math.MinInt64}
}

// Next implements chunkenc.Iterator.
func (p *pair) Next() chunkenc.ValueType {
	if !p.begun {
		p.begun = true
		p.typeA, p.typeB = p.a.Next(), p.b.Next()
		// The first replica's first value counts as shown, whichever begins.
		p.shownType = p.typeA
		if p.typeA == chunkenc.ValNone {
			return p.choose()
		}
	}
	if p.shownType == chunkenc.ValNone {
		return chunkenc.ValNone
	}
	wasA, wasFloat := p.shownIsA, p.shownType == chunkenc.ValFloat
	var last float64
	if wasFloat {
		_, last = p.shown.At()
	}
	if p.typeA != chunkenc.ValNone {
		p.typeA = p.a.Seek(p.lastMS + 1 + p.penaltyA)
	}
	if p.typeB != chunkenc.ValNone {
		p.typeB = p.b.Seek(p.lastMS + 1 + p.penaltyB)
	}
	t := p.choose()
	if wasFloat && wasA != p.shownIsA {
		p.raise(last)
	}
	return t
}

// choose shows the earlier of the two next samples and sets the penalties.
func (p *pair) choose() chunkenc.ValueType {
	switch {
	case p.typeA == chunkenc.ValNone && p.typeB == chunkenc.ValNone:
		// What was shown last stays where it is; there is nothing to be raised.
		p.shownType = chunkenc.ValNone
	case p.typeA == chunkenc.ValNone:
		p.show(p.b, p.typeB, false)
		p.penaltyB = 0
	case p.typeB == chunkenc.ValNone:
		p.show(p.a, p.typeA, true)
		p.penaltyA = 0
	default:
		since := int64(firstPenaltyMS)
		if tA, tB := p.a.AtT(), p.b.AtT(); tA <= tB {
			if p.lastMS != math.MinInt64 {
				since = 2 * (tA - p.lastMS)
			}
			p.penaltyA, p.penaltyB = 0, since
			p.show(p.a, p.typeA, true)
		} else {
			if p.lastMS != math.MinInt64 {
				since = 2 * (tB - p.lastMS)
			}
			p.penaltyA, p.penaltyB = since, 0
			p.show(p.b, p.typeB, false)
		}
	}
	return p.shownType
}

func (p *pair) show(r replica, t chunkenc.ValueType, isA bool) {
	p.shown, p.shownType, p.shownIsA, p.lastMS = r, t, isA, r.AtT()
}

func (p *pair) raise(last float64) {
	if p.typeA == chunkenc.ValFloat {
		p.a.raise(last)
	}
	if p.typeB == chunkenc.ValFloat {
		p.b.raise(last)
	}
}

// Seek implements chunkenc.Iterator. It goes through all samples on the way: which
// replica is shown depends on what was shown before.
func (p *pair) Seek(t milliseconds) chunkenc.ValueType {
	if p.begun && (p.shownType == chunkenc.ValNone || p.lastMS >= t) {
		return p.shownType
	}
	for {
		if vt := p.Next(); vt == chunkenc.ValNone || p.lastMS >= t {
			return vt
		}
	}
}

// At implements chunkenc.Iterator.
func (p *pair) At() (int64, float64) { return p.shown.At() }

// AtHistogram implements chunkenc.Iterator.
func (p *pair) AtHistogram(h *histogram.Histogram) (int64, *histogram.Histogram) {
	return p.shown.AtHistogram(h)
}

// AtFloatHistogram implements chunkenc.Iterator.
func (p *pair) AtFloatHistogram(h *histogram.FloatHistogram) (int64, *histogram.FloatHistogram) {
	return p.shown.AtFloatHistogram(h)
}

// AtT implements chunkenc.Iterator.
func (p *pair) AtT() int64 { return p.lastMS }

// AtST implements chunkenc.Iterator.
func (p *pair) AtST() int64 { return p.shown.AtST() }

// Err implements chunkenc.Iterator.
func (p *pair) Err() error {
	if err := p.a.Err(); err != nil {
		return err
	}
	return p.b.Err()
}
