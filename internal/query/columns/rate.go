package columns

import "github.com/prometheus/prometheus/promql"

// rateWindows computes rate, increase or delta of floats. Counter resets are looked for
// once, not in each window.
func rateWindows(w *windowRun, r *row, points []promql.FPoint) error {
	resets := w.resets[:0] // indexes of points that are lower than the one before
	if w.counter {
		for i := 1; i < len(points); i++ {
			if points[i].F < points[i-1].F {
				resets = append(resets, i)
			}
		}
		w.resets = resets
	}
	for i, s := range w.spans {
		if s.to-s.from < 2 {
			continue
		}
		for len(resets) > 0 && resets[0] <= s.from {
			resets = resets[1:]
		}
		result := points[s.to-1].F - points[s.from].F
		for _, at := range resets {
			if at >= s.to {
				break
			}
			result += points[at-1].F
		}
		r.values[i] = w.extrapolate(result, points[s.from:s.to], s)
		r.has.set(i)
	}
	return nil
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
