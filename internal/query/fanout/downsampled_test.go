package fanout

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/storage"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/wire/storeapi"
)

// aggregates makes the chunks of one downsampled span.
func aggregates(t *testing.T, of map[storeapi.Aggr][]sample) []storeapi.AggrChunk {
	t.Helper()
	var all []storeapi.AggrChunk
	minMS, maxMS := int64(math.MaxInt64), int64(math.MinInt64)
	for aggr := storeapi.Count; aggr <= storeapi.Counter; aggr++ {
		if samples := of[aggr]; samples != nil {
			c := encode(t, samples)
			minMS, maxMS = min(minMS, c.MinMS), max(maxMS, c.MaxMS)
			all = append(all, storeapi.AggrChunk{Aggr: aggr, Chunk: c})
		}
	}
	for i := range all {
		all[i].MinMS, all[i].MaxMS = minMS, maxMS
	}
	return all
}

func floats(pairs ...float64) []sample {
	var all []sample
	for i := 0; i < len(pairs); i += 2 {
		all = append(all, sample{int64(pairs[i]), pairs[i+1], false})
	}
	return all
}

// A store has a span of raw samples and after it two spans of downsampled ones, with a
// reset within each and between them.
func downsampledStore(t *testing.T) *fake {
	lset := named("m")
	f := &fake{series: []one{{labels: lset, chunks: []series.Chunk{encode(t, floats(10, 1, 20, 2))}}}}
	f.series[0].aggr = slices.Concat(
		aggregates(t, map[storeapi.Aggr][]sample{
			storeapi.Count: floats(300, 4, 600, 2), storeapi.Sum: floats(300, 10, 600, 5), storeapi.Min: floats(300, 1, 600, 2), storeapi.Max: floats(300, 9, 600, 8),
			storeapi.Counter: floats(250, 3, 300, 5, 600, 12, 600, 4),
		}),
		aggregates(t, map[storeapi.Aggr][]sample{
			storeapi.Count: floats(900, 5), storeapi.Sum: floats(900, 20), storeapi.Min: floats(900, 0), storeapi.Max: floats(900, 7),
			storeapi.Counter: floats(650, 1, 900, 6, 900, 6),
		}))
	return f
}

func TestOfDownsampledDataTheAggregateThatFitsTheFunctionIsRead(t *testing.T) {
	raw := floats(10, 1, 20, 2)
	for function, want := range map[string][]sample{
		"":                floats(300, 2.5, 600, 2.5, 900, 4),
		"avg_over_time":   floats(300, 2.5, 600, 2.5, 900, 4),
		"sum":             floats(300, 2.5, 600, 2.5, 900, 4),
		"sum_over_time":   floats(300, 10, 600, 5, 900, 20),
		"min_over_time":   floats(300, 1, 600, 2, 900, 0),
		"max":             floats(300, 9, 600, 8, 900, 7),
		"count_over_time": floats(300, 4, 600, 2, 900, 5),
		"rate":            floats(250, 3, 300, 5, 600, 12, 650, 13, 900, 18),
	} {
		s := downsampledStore(t)
		f, _ := world(t, Options{}, s)
		got, _, _, err := read(t, f.Queryable(Request{MaxResolutionMS: 300_000}), 0, 2000, &storage.SelectHints{Start: 0, End: 2000, Func: function})
		if all := slices.Concat(raw, want); err != nil || !slices.Equal(got[named("m").String()], all) {
			t.Errorf("%q: %v %v, want %v", function, err, got, all)
		}
		// A further querier is given the same.
		e := NewEndpoints(EndpointsOptions{Static: []Address{{Name: "near"}}, Dial: func(string, bool) (Client, error) { return sourceClient{f.Source()}, nil }})
		e.Update(t.Context())
		again, _, _, err := read(t, New(e, f.opts).Queryable(Request{MaxResolutionMS: 300_000}), 0, 2000, &storage.SelectHints{Start: 0, End: 2000, Func: function})
		if err != nil || !slices.Equal(again[named("m").String()], got[named("m").String()]) {
			t.Errorf("%q through another querier: %v %v", function, err, again)
		}
	}
}

func TestTheResolutionAskedForIsFineEnoughForTheFunction(t *testing.T) {
	s := downsampledStore(t)
	f, _ := world(t, Options{}, s)
	for _, c := range []struct {
		function string
		rangeMS  int64
		want     int64
	}{{"", 0, 300_000}, {"rate", 60_000, 30_000}, {"rate", 3_600_000, 300_000}, {"avg_over_time", 60_000, 300_000}, {"resets", 3_600_000, 0}} {
		s.asked = nil
		if _, _, _, err := read(t, f.Queryable(Request{MaxResolutionMS: 300_000}), 0, 2000, &storage.SelectHints{Start: 0, End: 2000, Func: c.function, Range: c.rangeMS}); err != nil {
			t.Error(err)
		}
		if got := s.asked[0].MaxResolutionMS; got != c.want {
			t.Errorf("%s over %d: %d, want %d", c.function, c.rangeMS, got, c.want)
		}
	}
}

func TestACountWithoutItsSumIsCorrupt(t *testing.T) {
	for _, of := range []map[storeapi.Aggr][]sample{
		{storeapi.Count: floats(300, 4)}, {storeapi.Sum: floats(300, 4)},
		{storeapi.Count: floats(300, 4), storeapi.Sum: floats(301, 4)}, {storeapi.Count: floats(300, 4, 600, 1), storeapi.Sum: floats(300, 4)},
	} {
		s := downsampledStore(t)
		s.series[0].aggr = aggregates(t, of)
		f, _ := world(t, Options{}, s)
		if got, _, _, err := read(t, f.Queryable(Request{MaxResolutionMS: 300_000}), 0, 2000, nil); !errors.Is(err, series.ErrCorrupt) {
			t.Errorf("%v: %v %v", of, got, err)
		}
	}
}
