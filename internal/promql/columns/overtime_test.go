package columns

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/prometheus/prometheus/promql"
)

// sumFinite returns the same bits as plus of each point, also near the largest floats. If it reports false, the sum is
// not finite, or almost so.
func TestSumFinite_IsPlusOfEachPoint(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	ulp := math.MaxFloat64 - math.Nextafter(math.MaxFloat64, 0)
	odd := []float64{0, math.Copysign(0, -1), math.MaxFloat64, -math.MaxFloat64, math.MaxFloat64 / 2, ulp / 2, -ulp / 2, ulp, -ulp, -3 * ulp / 2, math.SmallestNonzeroFloat64, -math.SmallestNonzeroFloat64, 0x1p-1022, 1, 1e100, -1e100, math.Inf(1), math.NaN()}
	exact, left := 0, 0
	for range 200_000 {
		points := make([]promql.FPoint, 1+rng.IntN(6))
		for i := range points {
			switch rng.IntN(3) {
			case 0:
				points[i].F = odd[rng.IntN(len(odd))]
			case 1:
				points[i].F = math.Float64frombits(rng.Uint64())
			default:
				points[i].F = (rng.Float64() - 0.5) * math.Pow(10, float64(rng.IntN(40)-20))
			}
		}
		sum, c := points[0].F, 0.0
		for _, p := range points[1:] {
			sum, c = plus(sum, c, p.F)
		}
		got, gotC, ok := sumFinite(points[0].F, points[1:])
		if !ok {
			left++
			continue
		}
		exact++
		if math.Float64bits(got) != math.Float64bits(sum) || math.Float64bits(gotC) != math.Float64bits(c) {
			t.Fatalf("%v: %v and %v, want %v and %v", points, got, gotC, sum, c)
		}
	}
	if exact < 50_000 || left < 1000 {
		t.Errorf("%d exact sums, %d that are left to plus", exact, left)
	}
}
