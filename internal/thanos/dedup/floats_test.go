package dedup

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// Two replicas in memory have the same result as the iterators, which are compared with Thanos' elsewhere: with gaps,
// resets, NaN, -0, replicas that begin or end early, and ranges that cut them.
func TestPenaltyFloats_EqualsTheIterators(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 22))
	returned, switched := 0, 0
	for range 20_000 {
		var replicas [2][]sample
		for i := range replicas {
			if rng.IntN(12) == 0 {
				continue // this replica has no sample here
			}
			at, v := rng.Int64N(4000)-2000, 0.0
			for range rng.IntN(60) {
				at += 1 + rng.Int64N(300)
				if rng.IntN(10) == 0 {
					at += rng.Int64N(5000)
				}
				switch v += float64(rng.IntN(100)); rng.IntN(20) {
				case 0:
					v = float64(rng.IntN(50))
				case 1:
					replicas[i] = append(replicas[i], sample{t: at, v: math.NaN()})
					continue
				case 2:
					replicas[i] = append(replicas[i], sample{t: at, v: math.Copysign(0, -1)})
					continue
				}
				replicas[i] = append(replicas[i], sample{t: at, v: v})
			}
		}
		function := []string{"rate", "avg_over_time", "increase", ""}[rng.IntN(4)]
		mint := rng.Int64N(3000) - 2500
		maxt := mint + rng.Int64N(30_000)
		var its []chunkenc.Iterator
		var arrays [2][]promql.FPoint
		for i, r := range replicas {
			for _, s := range r {
				arrays[i] = append(arrays[i], promql.FPoint{T: s.t, F: s.v})
			}
			if IsCounter(function) {
				r = read(Counter(&samples{all: r}))
			}
			r = slices.DeleteFunc(slices.Clone(r), func(s sample) bool { return s.t < mint || s.t > maxt })
			its = append(its, &samples{all: r})
		}
		want := read(Penalty(its, function))
		before := promql.FPoint{T: 7, F: 8}
		got := PenaltyFloats([]promql.FPoint{before}, arrays[0], arrays[1], function, mint, maxt)
		same := func(p promql.FPoint, s sample) bool {
			return p.T == s.t && math.Float64bits(p.F) == math.Float64bits(s.v)
		}
		if got[0] != before || !slices.EqualFunc(got[1:], want, same) {
			t.Fatalf("%q of %v from %d to %d:\ngot  %v\nwant %v", function, replicas, mint, maxt, got, want)
		}
		returned += len(want)
		for _, s := range want {
			if slices.ContainsFunc(replicas[1], func(b sample) bool { return b.t == s.t }) {
				switched++
			}
		}
	}
	if returned < 100_000 || switched < 20_000 {
		t.Errorf("%d samples, %d of the second replica", returned, switched)
	}
}
