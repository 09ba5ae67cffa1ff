package dedup

import (
	"math"

	"github.com/prometheus/prometheus/promql"

	"github.com/ferula-io/ferula/internal/series"
)

// PenaltyFloats appends the samples from mint to maxt, in ms, that Penalty returns for two replicas. a and b are the
// float samples of the replicas, sorted by time. PenaltyFloats overwrites a and b. If IsCounter(function) is true,
// PenaltyFloats adjusts their counter resets itself, and a and b must include the samples before mint, because these
// may have resets.
func PenaltyFloats(to, a, b []promql.FPoint, function string, mint, maxt int64) []promql.FPoint {
	counter := IsCounter(function)
	if counter {
		a, b = adjustResets(a), adjustResets(b)
	}
	m := pairOfFloats{a: floats{points: series.Within(a, mint, maxt)}, b: floats{points: series.Within(b, mint, maxt)},
		counter: counter, lastMS: math.MinInt64}
	return m.appendTo(to)
}

// adjustResets does what Counter does, in place.
func adjustResets(points []promql.FPoint) []promql.FPoint {
	c, adjusted := counter{atMS: math.MinInt64}, points[:0]
	for _, p := range points {
		if c.take(p.T, p.F) {
			adjusted = append(adjusted, promql.FPoint{T: c.atMS, F: c.value})
		}
	}
	return adjusted
}

// floats are the remaining samples of a replica. points[0] is the next one.
type floats struct {
	points  []promql.FPoint
	by      float64 // added to values, as counterAdjuster.by
	penalty int64   // ms
}

func (f *floats) ended() bool { return len(f.points) == 0 }

func (f *floats) seek(t int64) {
	for len(f.points) > 0 && f.points[0].T < t {
		f.points = f.points[1:]
	}
}

func (f *floats) raise(last float64) {
	if len(f.points) > 0 {
		if v := f.points[0].F + f.by; last > v {
			f.by += last - v
		}
	}
}

// pairOfFloats is a pair whose replicas are in memory.
type pairOfFloats struct {
	a, b    floats
	counter bool
	lastMS  int64 // timestamp of the last returned sample
}

// appendTo appends all samples of the merge, as repeated calls of pair.Next return them.
func (p *pairOfFloats) appendTo(to []promql.FPoint) []promql.FPoint {
	// For raise, the first value of a counts as returned, even if b begins earlier, as in pair.Next.
	shown, last, hasLast := &p.a, 0.0, !p.a.ended()
	if hasLast {
		last = p.a.points[0].F
	}
	for {
		next := p.choose()
		if next == nil {
			return to
		}
		if hasLast && next != shown && p.counter {
			p.a.raise(last)
			p.b.raise(last)
		}
		shown, hasLast = next, true
		p.lastMS, last = next.points[0].T, next.points[0].F
		if p.counter { // without this condition -0 would become 0, because by is 0
			last += next.by
		}
		to = append(to, promql.FPoint{T: p.lastMS, F: last})
		p.a.seek(p.lastMS + 1 + p.a.penalty)
		p.b.seek(p.lastMS + 1 + p.b.penalty)
	}
}

// choose returns the replica with the earlier candidate and sets the penalties. It returns nil if both replicas have
// ended.
func (p *pairOfFloats) choose() *floats {
	chosen, other := &p.a, &p.b
	switch {
	case p.a.ended() && p.b.ended():
		return nil
	case p.a.ended():
		chosen, other = other, nil
	case p.b.ended():
		other = nil
	case p.a.points[0].T > p.b.points[0].T:
		chosen, other = other, chosen
	}
	if chosen.penalty = 0; other != nil {
		if other.penalty = firstPenaltyMS; p.lastMS != math.MinInt64 {
			other.penalty = 2 * (chosen.points[0].T - p.lastMS)
		}
	}
	return chosen
}
