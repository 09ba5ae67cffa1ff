package columns

import "github.com/prometheus/prometheus/promql"

// rateWindows computes rate, increase or delta of floats. Counter resets are looked for
// once, not in each window.
func rateWindows(w *windows, r *row, points []promql.FPoint) error {
	var resets []int32 // indexes of points that are lower than the one before
	if w.counter {
		resets = w.findResets(points)
	}
	for i, s := range w.spans {
		if s.to-s.from < 2 {
			continue
		}
		for len(resets) > 0 && int(resets[0]) <= s.from {
			resets = resets[1:]
		}
		result := points[s.to-1].F - points[s.from].F
		for _, at := range resets {
			if int(at) >= s.to {
				break
			}
			result += points[at-1].F
		}
		r.values[i] = w.extrapolate(result, points[s.from:s.to], s)
		r.has.set(i)
	}
	return nil
}

// findResets returns the indexes of points that are lower than the one before. Its loop has no
// branch that depends on the data.
func (w *windows) findResets(points []promql.FPoint) []int32 {
	if cap(w.resets) < len(points) {
		w.resets = make([]int32, len(points)+len(points)/4)
	}
	resets, n := w.resets[:len(points)], 0
	last := points[0].F
	for i := range points {
		v := points[i].F
		resets[n] = int32(i)
		if v < last {
			n++
		}
		last = v
	}
	return resets[:n]
}

// extrapolate extends a difference between the first and the last point of a window to the
// limits of the window. The order of operations is that of Prometheus.
func (w *windowNode) extrapolate(result float64, points []promql.FPoint, s span) float64 {
	first, last, intervals := points[0], points[len(points)-1], len(points)-1
	toStart := float64(first.T-s.start) / 1000
	toEnd := float64(s.end-last.T) / 1000
	sampled := float64(last.T-first.T) / 1000
	average := sampled / float64(intervals)
	threshold := average * 1.1
	if toStart >= threshold {
		toStart = average / 2
	}
	if w.counter {
		toZero := toStart
		if result > 0 && first.F >= 0 {
			toZero = sampled * (first.F / result)
		}
		if toZero < toStart {
			toStart = toZero
		}
	}
	if toEnd >= threshold {
		toEnd = average / 2
	}
	factor := 1.0
	if sampled != 0 {
		factor = (sampled + toStart + toEnd) / sampled
	}
	if w.perSecond {
		factor /= w.seconds
	}
	return result * factor
}
