package columns

import (
	"math"

	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
)

// rateWindows computes rate, increase or delta of floats.
func rateWindows(w *windows, r *row, points []promql.FPoint) error {
	e := extrapolation{windowNode: w.windowNode}
	for i := range w.spans {
		s := &w.spans[i]
		if s.to-s.from < 2 {
			continue
		}
		result := points[s.to-1].F - points[s.from].F
		if w.counter {
			for _, before := range w.resets.within(s) {
				result += before
			}
		}
		r.values[i] = e.extend(result, points[s.from], points[s.to-1], s.samples-1, s)
		r.has.set(i)
	}
	return nil
}

// resets are the counter resets of a series: points with a lower value than the previous point. They are
// found once for all windows.
type resets struct {
	before []float64 // the values of the points before the resets
	upTo   []int32   // by point: the number of resets up to it
}

// within returns the values before the resets of a window.
func (r *resets) within(s *span) []float64 { return r.before[r.upTo[s.from]:r.upTo[s.to-1]] }

// find finds the resets of some points. It reports whether the points include stale markers; if so, the resets must not
// be used. The loop has no branch that depends on the data.
func (r *resets) find(points []promql.FPoint) (stale bool) {
	if len(r.upTo) < len(points) {
		n := len(points) + len(points)/4
		r.before, r.upTo = make([]float64, n), make([]int32, n)
	}
	before, upTo := r.before[:len(points)], r.upTo[:len(points)]
	n, markers := 0, 0
	last := points[0].F
	for i := range points {
		v := points[i].F
		before[n] = last
		if v < last {
			n++
		}
		if math.Float64bits(v) == value.StaleNaN {
			markers++
		}
		upTo[i] = int32(n)
		last = v
	}
	return markers > 0
}

// extrapolation extends the difference between the first and the last point of a window to the limits of the window. It
// keeps sampled, toStart, toEnd and factor of the previous window, because most windows have the same number of
// points at the same distances from the limits.
type extrapolation struct {
	*windowNode
	length, before, behind int64 // durations in ms: first to last point, gap before the first, gap after the last
	intervals              int   // number of samples less one
	// in seconds: first to last point, and how far the difference is extended to both sides
	sampled, toStart, toEnd float64
	factor                  float64 // extended difference divided by the difference
}

// extend extends a difference. The order of operations is the same as in Prometheus.
func (e *extrapolation) extend(result float64, first, last promql.FPoint, intervals int, s *span) float64 {
	if length, before, behind := last.T-first.T, first.T-s.start, s.end-last.T; length != e.length ||
		before != e.before || behind != e.behind || intervals != e.intervals {
		e.length, e.before, e.behind, e.intervals = length, before, behind, intervals
		e.measure()
	}
	if e.counter && result > 0 && first.F >= 0 {
		if toZero := e.sampled * (first.F / result); toZero < e.toStart {
			return result * e.factorFrom(toZero)
		}
	}
	return result * e.factor
}

// measure computes sampled, toStart, toEnd and factor, which depend on the timestamps alone.
func (e *extrapolation) measure() {
	e.sampled = float64(e.length) / 1000
	e.toStart, e.toEnd = float64(e.before)/1000, float64(e.behind)/1000
	average := e.sampled / float64(e.intervals)
	threshold := average * 1.1
	if e.toStart >= threshold {
		e.toStart = average / 2
	}
	if e.toEnd >= threshold {
		e.toEnd = average / 2
	}
	e.factor = e.factorFrom(e.toStart)
}

// factorFrom returns the factor by which a difference grows if it is extended by toStart seconds before the first
// point and by e.toEnd seconds after the last. For rate the factor includes the division by the range.
func (e *extrapolation) factorFrom(toStart float64) float64 {
	factor := 1.0
	if e.sampled != 0 {
		factor = (e.sampled + toStart + e.toEnd) / e.sampled
	}
	if e.perSecond {
		factor /= e.seconds
	}
	return factor
}
