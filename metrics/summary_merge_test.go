package metrics

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// After any number of values between two scrapes, sorted has the values of the sample in
// order.
func TestReservoir_SortedAfterAnyNumberOfChanges(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	special := []float64{math.Inf(1), math.Inf(-1), 0, 1, 1, 2, math.NaN()}
	for turn, distinct := range []int{3, 50, 1 << 30, 3, 1 << 30} {
		for _, burst := range []int{1, 15, 16, 17, 18, 60, 200, 256, 257, 400, 1000, 3000} {
			sample := newReservoir()
			for scrape := range 60 {
				for range burst {
					v := float64(r.IntN(distinct)) - 1
					if r.IntN(20) == 0 {
						v = special[r.IntN(len(special)-1+turn/3)] // NaN in the last turns only
					}
					sample.add(v)
				}
				sample.sort()
				want := slices.Clone(sample.values)
				slices.Sort(want)
				if fmt.Sprint(sample.sorted) != fmt.Sprint(want) {
					t.Fatalf("%d distinct values, bursts of %d, scrape %d: not sorted", distinct, burst, scrape)
				}
			}
		}
	}
}

func BenchmarkReservoir_ThousandUpdatesBetweenScrapes(b *testing.B) {
	r := rand.New(rand.NewPCG(3, 4))
	values := make([]float64, 1<<14)
	for i := range values {
		values[i] = r.ExpFloat64()
	}
	wanted := defaultSummarySpec.sorted
	dst := make([]float64, len(wanted))
	b.ReportAllocs()
	sample, at := newReservoir(), 0
	for i := 0; b.Loop(); i++ {
		if i%20 == 0 { // two turns of a window
			b.StopTimer()
			sample.reset()
			for range 10_000 {
				sample.add(values[at&(len(values)-1)])
				at++
			}
			b.StartTimer()
		}
		b.StopTimer()
		for range 1000 {
			sample.add(values[at&(len(values)-1)])
			at++
		}
		b.StartTimer()
		sample.quantiles(dst, wanted)
	}
}
