package fanout

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// aggregates returns the chunks of one downsampled span.
func aggregates(t *testing.T, of map[series.Aggr][]sample) []aggrChunk {
	t.Helper()
	var all []aggrChunk
	minMS, maxMS := int64(math.MaxInt64), int64(math.MinInt64)
	for aggr := series.Count; aggr <= series.Counter; aggr++ {
		if samples := of[aggr]; samples != nil {
			c := encode(t, samples)
			minMS, maxMS = min(minMS, c.MinMS), max(maxMS, c.MaxMS)
			all = append(all, aggrChunk{Aggr: aggr, Chunk: c})
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

// later moves samples to the 5m window after the window of the raw samples.
func later(samples []sample) []sample {
	for i := range samples {
		samples[i].t += fineMS
	}
	return samples
}

// downsampledStore returns a store with a span of raw samples and two later spans of downsampled samples. There is a
// reset within each span and between them.
func downsampledStore(t *testing.T) *fakeStore {
	lset := named("m")
	f := &fakeStore{series: []one{{labels: lset, chunks: []series.Chunk{encode(t, floats(10, 1, 20, 2))}}}}
	f.series[0].aggr = slices.Concat(
		aggregates(t, map[series.Aggr][]sample{
			series.Count: later(floats(300, 4, 600, 2)), series.Sum: later(floats(300, 10, 600, 5)), series.Min: later(floats(300, 1, 600, 2)), series.Max: later(floats(300, 9, 600, 8)),
			series.Counter: later(floats(250, 3, 300, 5, 600, 12, 600, 4)),
		}),
		aggregates(t, map[series.Aggr][]sample{
			series.Count: later(floats(900, 5)), series.Sum: later(floats(900, 20)), series.Min: later(floats(900, 0)), series.Max: later(floats(900, 7)),
			series.Counter: later(floats(650, 1, 900, 6, 900, 6)),
		}))
	return f
}

func TestAggregatesFor_SelectsByFunction(t *testing.T) {
	raw := floats(10, 1, 20, 2)
	for function, want := range map[string][]sample{
		"":                later(floats(300, 2.5, 600, 2.5, 900, 4)),
		"avg_over_time":   later(floats(300, 2.5, 600, 2.5, 900, 4)),
		"sum":             later(floats(300, 2.5, 600, 2.5, 900, 4)),
		"sum_over_time":   later(floats(300, 10, 600, 5, 900, 20)),
		"min_over_time":   later(floats(300, 1, 600, 2, 900, 0)),
		"max":             later(floats(300, 9, 600, 8, 900, 7)),
		"count_over_time": later(floats(300, 4, 600, 2, 900, 5)),
		"rate":            later(floats(250, 3, 300, 5, 600, 12, 650, 13, 900, 18)),
	} {
		s := downsampledStore(t)
		f, _ := newTestFanout(t, Options{}, s)
		got, _, _, err := read(t, f.Queryable(Request{MaxResolutionMS: 300_000}), 0, 302_000, &storage.SelectHints{Start: 0, End: 302_000, Func: function})
		if all := slices.Concat(raw, want); err != nil || !slices.Equal(got[named("m").String()], all) {
			t.Errorf("%q: %v %v, want %v", function, err, got, all)
		}
		// Another querier gets the same.
		e := NewEndpoints(EndpointsOptions{Static: []Address{{Name: "near"}}, Dial: func(Address) (Client, error) { return sourceClient{f.Source()}, nil }})
		e.Update(t.Context())
		again, _, _, err := read(t, New(e, f.opts).Queryable(Request{MaxResolutionMS: 300_000}), 0, 302_000, &storage.SelectHints{Start: 0, End: 302_000, Func: function})
		if err != nil || !slices.Equal(again[named("m").String()], got[named("m").String()]) {
			t.Errorf("%q through another querier: %v %v", function, err, again)
		}
	}
}

// replicasOfASpan are two stores with the same span of one replica each, as recording rules
// of two Prometheus servers write them: equal timestamps, different values.
func replicasOfASpan(t *testing.T, countB float64) (a, b *fakeStore) {
	t.Helper()
	of := func(replica string, count, sum float64) *fakeStore {
		return &fakeStore{series: []one{{labels: labels.FromStrings("__name__", "m", "r", replica), aggr: slices.Concat(
			aggregates(t, map[series.Aggr][]sample{
				series.Count: floats(300, 5, 600, count), series.Sum: floats(300, 50, 600, sum), series.Min: floats(300, sum, 600, sum), series.Max: floats(300, sum, 600, sum),
				series.Counter: floats(300, sum, 600, 10*sum, 600, 10*sum),
			}),
			aggregates(t, map[series.Aggr][]sample{
				series.Count: floats(900, count), series.Sum: floats(900, 2*sum), series.Min: floats(900, sum), series.Max: floats(900, sum),
				series.Counter: floats(900, 20*sum, 900, 20*sum),
			}))}}}
	}
	return of("1", 5, 50), of("2", countB, 60)
}

// The sum of one replica is never divided by the count of the other, whether or not their
// counts have equal bytes, with and without another querier between.
func TestQuerier_DownsampledSpansOfReplicasAreNotMixed(t *testing.T) {
	for _, countB := range []float64{5, 6} {
		for function, want := range map[string][2][]sample{ // of either replica: the bytes decide which one is returned
			"":                {floats(300, 10, 600, 10, 900, 20), floats(300, 10, 600, 60/countB, 900, 120/countB)},
			"sum_over_time":   {floats(300, 50, 600, 50, 900, 100), floats(300, 50, 600, 60, 900, 120)},
			"count_over_time": {floats(300, 5, 600, 5, 900, 5), floats(300, 5, 600, countB, 900, countB)},
			"min_over_time":   {floats(300, 50, 600, 50, 900, 50), floats(300, 60, 600, 60, 900, 60)},
			"rate":            {floats(300, 50, 600, 500, 900, 1000), floats(300, 60, 600, 600, 900, 1200)},
		} {
			a, b := replicasOfASpan(t, countB)
			near, _ := newTestFanout(t, Options{}, a, b)
			e := NewEndpoints(EndpointsOptions{Static: []Address{{Name: "near"}}, Dial: func(Address) (Client, error) { return sourceClient{near.Source()}, nil }})
			e.Update(t.Context())
			for _, f := range []*Fanout{near, New(e, near.opts)} {
				r := Request{MaxResolutionMS: 300_000, ReplicaLabels: []string{"r"}}
				got, _, warnings, err := read(t, f.Queryable(r), 0, 2000, &storage.SelectHints{Start: 0, End: 2000, Func: function})
				if s := got[named("m").String()]; err != nil || len(warnings) > 0 || !slices.Equal(s, want[0]) && !slices.Equal(s, want[1]) {
					t.Errorf("%q, counts 5 and %g, through Source %v: %v %q %v, want one of %v", function, countB, f != near, err, warnings, s, want)
				}
			}
		}
	}
}

// Every chunk sent to another querier is complete: all requested aggregates, of one replica.
func TestSource_DownsampledSpansAreComplete(t *testing.T) {
	for _, countB := range []float64{5, 6} {
		a, b := replicasOfASpan(t, countB)
		f, _ := newTestFanout(t, Options{}, a, b)
		set := f.Source().Series(t.Context(), storeapi.SeriesRequest{
			MaxMS: 2000, MaxResolutionMS: 300_000, Aggregates: []series.Aggr{series.Sum, series.Count}, WithoutReplicaLabels: []string{"r"},
			Matchers: []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "__name__", "m")},
		})
		if !set.Next() {
			t.Fatal(set.Err())
		}
		spans, sums := 0, map[string]bool{}
		for _, c := range set.Chunks() {
			parts, err := c.AppendParts(nil)
			if err != nil || len(parts) != 2 || parts[0].Aggr != series.Count || parts[1].Aggr != series.Sum {
				t.Fatalf("counts 5 and %g: a chunk has %v, %v", countB, parts, err)
			}
			part := func(i int) []series.Chunk {
				return []series.Chunk{{MinMS: c.MinMS, MaxMS: c.MaxMS, Encoding: parts[i].Encoding, Data: parts[i].Data}}
			}
			sums[fmt.Sprint(decode(t, part(0), 0, 2000), decode(t, part(1), 0, 2000))] = true
			spans++
		}
		for _, f := range []*fakeStore{a, b} {
			for i := 0; i < len(f.series[0].aggr); i += 5 {
				pair := fmt.Sprint(decode(t, []series.Chunk{f.series[0].aggr[i].Chunk}, 0, 2000), decode(t, []series.Chunk{f.series[0].aggr[i+1].Chunk}, 0, 2000))
				if !sums[pair] {
					t.Errorf("counts 5 and %g: %s is missing in %v", countB, pair, sums)
				}
			}
		}
		if spans != 4 || set.Next() {
			t.Errorf("%d spans, more: %v", spans, set.Err())
		}
		if err := set.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A sidecar has the raw samples of a series, and the bucket has its downsampled samples. Without deduplication, too, each
// timestamp is counted once, and the adjusted values of a counter that was reset do not jump between the two stores.
func TestQuerier_RawAndDownsampledDataAreNotAdded(t *testing.T) {
	var samples, counts, sums, counter []sample
	for at := int64(0); at < 6000; at += 10 {
		samples = append(samples, sample{at, float64(at % 1000), false})
	}
	for end := int64(290); end < 3000; end += 300 { // the coarse data ends before the raw
		n, sum := 0.0, 0.0
		for _, s := range samples {
			if s.t > end-300 && s.t <= end {
				n, sum = n+1, sum+s.v
			}
		}
		counts, sums = append(counts, sample{end, n, false}), append(sums, sample{end, sum, false})
	}
	total, last := 0.0, 0.0
	for _, s := range samples[:300] {
		if total += s.v - last; s.v < last {
			total += last
		}
		if last = s.v; s.t%300 == 290 {
			counter = append(counter, sample{s.t, total, false})
		}
	}
	counter = append(counter, sample{2990, last, false})
	coarse := &fakeStore{series: []one{{labels: named("m"), aggr: aggregates(t, map[series.Aggr][]sample{series.Count: counts, series.Sum: sums, series.Counter: counter})}}}
	fine := &fakeStore{series: []one{{labels: named("m")}}}
	for i := 0; i < len(samples); i += 50 {
		fine.series[0].chunks = append(fine.series[0].chunks, encode(t, samples[i:i+50]))
	}
	fine.series[0].chunks = fine.series[0].chunks[2:] // it begins at 1000
	f, _ := newTestFanout(t, Options{}, coarse, fine)
	for _, function := range []string{"sum_over_time", "count_over_time", "rate", ""} {
		got, _, _, err := read(t, f.Queryable(Request{MaxResolutionMS: 300_000}), 0, 6000, &storage.SelectHints{Start: 0, End: 6000, Func: function})
		s := got[named("m").String()]
		if want := len(counts) + 300; err != nil || len(s) != want {
			t.Fatalf("%q: %v, %d samples, want %d", function, err, len(s), want)
		}
		for i := 1; i < len(s); i++ {
			if s[i].t <= s[i-1].t || function == "rate" && (s[i].v < s[i-1].v || s[i].v > s[i-1].v+300) {
				t.Fatalf("%q: %v after %v", function, s[i], s[i-1])
			}
		}
	}
}

func TestResolution_SuitsTheFunction(t *testing.T) {
	s := downsampledStore(t)
	f, _ := newTestFanout(t, Options{}, s)
	for _, c := range []struct {
		function string
		rangeMS  int64
		want     int64
	}{{"", 0, 300_000}, {"rate", 60_000, 30_000}, {"rate", 3_600_000, 300_000}, {"avg_over_time", 60_000, 300_000}, {"resets", 3_600_000, 0}} {
		s.requests = nil
		if _, _, _, err := read(t, f.Queryable(Request{MaxResolutionMS: 300_000}), 0, 2000, &storage.SelectHints{Start: 0, End: 2000, Func: c.function, Range: c.rangeMS}); err != nil {
			t.Error(err)
		}
		if got := s.requests[0].MaxResolutionMS; got != c.want {
			t.Errorf("%s over %d: %d, want %d", c.function, c.rangeMS, got, c.want)
		}
	}
}

// Labels of a series are returned at any resolution.
func TestQuerier_ListsDownsampledSeries(t *testing.T) {
	s := downsampledStore(t)
	f, _ := newTestFanout(t, Options{}, s)
	got, _, _, err := read(t, f.Queryable(Request{}), 0, 2000, &storage.SelectHints{Start: 0, End: 2000, Func: forSeries})
	if _, found := got[named("m").String()]; err != nil || !found || s.requests[0].MaxResolutionMS != math.MaxInt64 || !s.requests[0].SkipChunks {
		t.Errorf("%v %v, requested with %+v", err, got, s.requests[0])
	}
}

// Resets of downsampled counters are adjusted with and without deduplication.
func TestQuerier_DownsampledCountersNeverFall(t *testing.T) {
	s := downsampledStore(t)
	_, e := newTestFanout(t, Options{}, s)
	f := New(e, Options{Chain: true})
	got, _, _, err := read(t, f.Queryable(Request{MaxResolutionMS: 300_000, ReplicaLabels: []string{"r"}}), 0, 302_000, &storage.SelectHints{Start: 0, End: 302_000, Func: "rate"})
	if want := append(floats(10, 1, 20, 2), later(floats(250, 3, 300, 5, 600, 12, 650, 13, 900, 18))...); err != nil || !slices.Equal(got[named("m").String()], want) {
		t.Errorf("%v %v, want %v", err, got, want)
	}
}

func TestQuerier_CountWithoutSumIsCorrupt(t *testing.T) {
	for _, of := range []map[series.Aggr][]sample{
		{series.Count: floats(300, 4)}, {series.Sum: floats(300, 4)},
		{series.Count: floats(300, 4), series.Sum: floats(301, 4)}, {series.Count: floats(300, 4, 600, 1), series.Sum: floats(300, 4)},
	} {
		s := downsampledStore(t)
		s.series[0].aggr = aggregates(t, of)
		f, _ := newTestFanout(t, Options{}, s)
		if got, _, _, err := read(t, f.Queryable(Request{MaxResolutionMS: 300_000}), 0, 2000, nil); !errors.Is(err, series.ErrCorrupt) {
			t.Errorf("%v: %v %v", of, got, err)
		}
	}
}
