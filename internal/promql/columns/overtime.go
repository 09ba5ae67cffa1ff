package columns

import (
	"math"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/util/kahansum"
)

// plus is kahansum.Inc, small enough to be inlined. It has no product that could be fused with an addition.
func plus(sum, c, v float64) (float64, float64) {
	t := sum + v
	if t > math.MaxFloat64 || t < -math.MaxFloat64 {
		return t, 0
	}
	if math.Abs(sum) >= math.Abs(v) {
		return t, c + ((sum - t) + v)
	}
	return t, c + ((v - t) + sum)
}

// sumFinite adds the points to sum. It returns what plus, called for each point, returns. ok is false if the sum
// overflows or a value is not finite. Both functions compute the exact rounding error of each addition. plus
// compares the summands to choose a formula for the error, which is a branch that the CPU predicts badly. The
// formula of sumFinite needs no comparison.
func sumFinite(sum float64, points []promql.FPoint) (_, c float64, ok bool) {
	for _, p := range points {
		t := sum + p.F
		added := t - sum
		c += (sum - (t - added)) + (p.F - added)
		sum = t
	}
	// An overflow in any iteration leaves sum or c infinite or NaN.
	return sum, c, math.Abs(sum) <= math.MaxFloat64 && math.Abs(c) <= math.MaxFloat64
}

// eachWindow returns the windowFunc that calls f for each window with points.
func eachWindow(f func(points []promql.FPoint) float64) windowFunc {
	return func(w *windows, r *row, points []promql.FPoint) error {
		for i, s := range w.spans {
			if err := w.check(i, s); err != nil {
				return err
			}
			if s.from < s.to {
				r.values[i] = f(points[s.from:s.to])
				r.has.set(i)
			}
		}
		return nil
	}
}

func sum(points []promql.FPoint) float64 {
	sum, c, ok := sumFinite(0, points)
	if !ok {
		sum, c = 0, 0
		for _, p := range points {
			sum, c = plus(sum, c, p.F)
		}
	}
	if !math.IsInf(sum, 0) {
		sum += c
	}
	return sum
}

// average returns the sum divided by the count, or the incremental mean if the sum overflows.
func average(points []promql.FPoint) float64 {
	n := float64(len(points))
	sum, c, ok := sumFinite(points[0].F, points[1:])
	if ok {
		return sum/n + c/n
	}
	sum, c = points[0].F, 0
	for i, p := range points[1:] {
		next, nextC := plus(sum, c, p.F)
		if next > math.MaxFloat64 || next < -math.MaxFloat64 {
			return incremental(points, i+1, sum, c)
		}
		sum, c = next, nextC
	}
	return sum/n + c/n
}

// incremental continues an average at points[i] as an incremental mean. sum and c are the sum of
// the points before and its compensation.
func incremental(points []promql.FPoint, i int, sum, c float64) float64 {
	n := float64(i)
	mean := sum / n
	c /= n
	for ; i < len(points); i++ {
		n = float64(i + 1)
		q := (n - 1) / n
		mean, c = kahansum.Inc(points[i].F/n, q*mean, q*c)
	}
	return mean + c
}

// least and greatest are two functions because a sign, or a function that compares, makes them three times slower.
func least(points []promql.FPoint) float64 {
	found := points[0].F
	for _, p := range points {
		if p.F < found || math.IsNaN(found) {
			found = p.F
		}
	}
	return found
}

func greatest(points []promql.FPoint) float64 {
	found := points[0].F
	for _, p := range points {
		if p.F > found || math.IsNaN(found) {
			found = p.F
		}
	}
	return found
}
