// Package dedup merges the series of several replicas into one.
//
// The input is one iterator per replica over the samples of one series, in time order.
//
// Penalty returns the samples of one replica and switches to another only at a gap. It does not mix two replicas: they
// scrape at different times, so a mixture would have twice the samples, and counters would decrease. The algorithm is
// Thanos' penalty algorithm, so that both programs return the same samples. Chain returns the samples of all replicas.
// The samples of each iterator must be in time order, without duplicates.
//
// Penalty chooses between replicas a and b as follows. T is the timestamp of the last returned sample, in ms:
//
//	candidate of a   first sample of a at or after T + 1 + penalty of a
//	candidate of b   first sample of b at or after T + 1 + penalty of b
//	returned         the earlier candidate; of a if both have the same timestamp
//	penalties        0 for the replica of the returned sample; for the other replica twice the
//	                 time from T to the returned sample
//
// Example: a and b scrape every 15 s, a at 0, 15, 30 s, b at 5, 20, 35 s. After the sample of a at 15 s the penalty
// of b is 30 s. The candidates are 30 s of a and 50 s of b, so the samples of a continue. If a has no sample between
// 15 and 60 s, b is chosen at 50 s.
//
// Three or more replicas are merged in pairs: the first two, then the result with the third, and so
// on.
package dedup

import (
	"math"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// firstPenaltyMS is the penalty after the first returned sample, when the distance of two samples
// is not known yet.
const firstPenaltyMS = 5000

// milliseconds is a timestamp. Without this alias vet would report that Seek has another signature than that of
// io.Seeker.
type milliseconds = int64

// IsCounter reports whether a function, by its PromQL name, adjusts counter resets of its
// argument.
//
// It is false for resets, unlike in Thanos: adjusted samples have no resets to count, so resets()
// must read the samples as scraped.
func IsCounter(function string) bool {
	return function == "rate" || function == "irate" || function == "increase"
}

// Penalty merges the iterators of one or more replicas. function is the PromQL function that will read the result. If
// IsCounter(function) is true, the caller must have wrapped each iterator by Counter. The result owns the iterators.
func Penalty(replicas []chunkenc.Iterator, function string) chunkenc.Iterator {
	if len(replicas) == 1 {
		return replicas[0]
	}
	counter := IsCounter(function)
	leaf := func(it chunkenc.Iterator) replica {
		if counter {
			return &counterAdjuster{Iterator: it}
		}
		return plain{it}
	}
	merged := leaf(replicas[0])
	for _, it := range replicas[1:] {
		merged = newPair(merged, leaf(it))
	}
	return merged
}

// Chain merges iterators by timestamp. Each timestamp is returned once.
func Chain(replicas []chunkenc.Iterator) chunkenc.Iterator {
	if len(replicas) == 1 {
		return replicas[0]
	}
	return storage.ChainSampleIteratorFromIterators(nil, replicas)
}

// replica is an iterator whose counter can be raised.
type replica interface {
	chunkenc.Iterator
	// raise is called when the next sample comes from another replica than the last returned sample. last is the value of
	// that sample.
	raise(last float64)
}

type plain struct{ chunkenc.Iterator }

func (plain) raise(float64) {}

// counterAdjuster keeps a counter from decreasing at a switch between replicas. If the last sample of the old
// replica had the value 110 and the next sample of the new replica has 100, it adds 10 to this and all later samples
// of the new replica.
type counterAdjuster struct {
	chunkenc.Iterator
	by float64 // sum of the differences
}

func (r *counterAdjuster) raise(last float64) {
	if _, v := r.At(); last > v {
		r.by += last - v
	}
}

// At implements chunkenc.Iterator.
func (r *counterAdjuster) At() (int64, float64) {
	t, v := r.Iterator.At()
	return t, v + r.by
}

// pair merges two replicas by the penalty algorithm.
type pair struct {
	a, b            replica
	typeA, typeB    chunkenc.ValueType // value types of the candidates of a and b
	penaltyA        int64              // ms; see the comment of the package
	penaltyB        int64
	shown           replica // a or b: the replica of the current sample
	shownType       chunkenc.ValueType
	lastMS          int64 // timestamp of the current sample
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
		// For raise, the first value of a counts as returned, even if b begins earlier. Thanos does the same.
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

// choose makes the earlier of the two candidates the current sample, and sets the penalties.
func (p *pair) choose() chunkenc.ValueType {
	switch {
	case p.typeA == chunkenc.ValNone && p.typeB == chunkenc.ValNone:
		// The last sample remains current; no value is raised.
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

// Seek implements chunkenc.Iterator. It reads all samples up to t, because the choice of a replica depends on all
// earlier choices.
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
