package fanout

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/series"
)

// iterated reads a series as Prometheus' engine does.
func iterated(from series.Floats, mint, maxt int64) (points []promql.FPoint, ok bool, err error) {
	it := from.Iterator(nil)
	for kind := it.Seek(mint); kind != chunkenc.ValNone && it.AtT() <= maxt; kind = it.Next() {
		if kind != chunkenc.ValFloat {
			return nil, false, nil
		}
		t, f := it.At()
		points = append(points, promql.FPoint{T: t, F: f})
	}
	return points, true, it.Err()
}

// AppendFloats returns the same points as the iterators of random series: of one store and of replicas, with gaps,
// histograms and broken chunks, decoded by several goroutines at the same time.
func TestAppendFloats_ReturnsWhatTheIteratorDoes(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	direct, merged, broken, withHistograms := 0, 0, 0, 0
	for range 300 {
		f, _ := newTestFanout(t, Options{}, randomStore(t, rng, 0), randomStore(t, rng, 1))
		r := Request{}
		if rng.IntN(2) == 0 {
			r.ReplicaLabels = []string{"r"}
		}
		from, to := rng.Int64N(5000), 10_000+rng.Int64N(40_000)
		q, err := f.Queryable(r).Querier(from, to)
		if err != nil {
			t.Fatal(err)
		}
		var hints *storage.SelectHints
		if rng.IntN(2) == 0 {
			hints = &storage.SelectHints{Start: from, End: to, Func: "rate"}
		}
		set := q.Select(t.Context(), false, hints, labels.MustNewMatcher(labels.MatchEqual, "__name__", "m")).(series.FloatsSet)
		mint, maxt := rng.Int64N(9000), 9000+rng.Int64N(40_000)
		var all sync.WaitGroup
		for set.Next() {
			from := set.AtFloats()
			want, floats, wantErr := iterated(from, mint, maxt)
			switch {
			case wantErr != nil:
				broken++
			case !floats:
				withHistograms++
			case !overlap(from.(*storedSeries).chunks) && len(want) > 0:
				direct++
			case len(want) > 0:
				if _, ok := from.(*storedSeries).appendReplicas(nil); ok {
					merged++
				}
			}
			for range 2 {
				all.Go(func() {
					before := []promql.FPoint{{T: math.MinInt64, F: 7}}
					got, ok, err := from.AppendFloats(before, mint, maxt)
					if (err == nil) != (wantErr == nil) || err != nil && err.Error() != wantErr.Error() || ok != floats {
						t.Errorf("%s: %v %v, want %v %v", from.Labels(), ok, err, floats, wantErr)
					}
					if err != nil || !ok {
						return
					}
					if got[0] != before[0] {
						t.Errorf("%s: the points before were changed", from.Labels())
					}
					got = slices.DeleteFunc(got[1:], func(p promql.FPoint) bool { return p.T < mint || p.T > maxt })
					if !slices.Equal(got, want) {
						t.Errorf("%s from %d to %d: %v, want %v", from.Labels(), mint, maxt, got, want)
					}
				})
			}
		}
		all.Wait()
		if err := set.Err(); err != nil {
			t.Error(err)
		}
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	}
	if direct < 100 || merged < 50 || broken < 10 || withHistograms < 10 {
		t.Errorf("%d series without an iterator, %d of two replicas, %d broken, %d with histograms", direct, merged, broken, withHistograms)
	}
}

// randomStore returns a store with three series of one replica; some have histograms, or a chunk that
// is truncated or whose range is too short.
func randomStore(t *testing.T, rng *rand.Rand, replica int) *fakeStore {
	t.Helper()
	f := &fakeStore{}
	for i := range 3 {
		histograms := rng.IntN(6) == 0
		chunks := randomSeries(t, rng, func(int64) (float64, bool) { return rng.Float64(), histograms && rng.IntN(8) == 0 }, rng.IntN(2) == 0)
		if len(chunks) > 0 && rng.IntN(6) == 0 {
			switch c := &chunks[rng.IntN(len(chunks))]; rng.IntN(2) {
			case 0:
				c.Data = c.Data[:len(c.Data)/2]
			default:
				c.MaxMS = c.MinMS
			}
		}
		f.series = append(f.series, one{labels: labels.FromStrings("__name__", "m", "i", string(rune('a'+i)), "r", string(rune('0'+replica))), chunks: chunks})
	}
	return f
}
