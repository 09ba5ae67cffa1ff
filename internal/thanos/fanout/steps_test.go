package fanout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/xor"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

var someSteps = series.Steps{FirstMS: 1000, LastMS: 9000, StepMS: 4000}

// selectAtSteps returns the names and chunks' samples of a selection at steps.
func selectAtSteps(t *testing.T, f *Fanout, replicas ...string) (n int, err error) {
	t.Helper()
	q, err := f.Queryable(Request{ReplicaLabels: replicas}).Querier(0, 10_000)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	set := q.(series.FloatsSelector).SelectFloats(context.Background(), series.Needs{Steps: &someSteps}, &storage.SelectHints{Start: 0, End: 10_000}, labels.MustNewMatcher(labels.MatchEqual, "__name__", "m"))
	for set.Next() {
		n++
	}
	return n, set.Err()
}

func storeOf(t *testing.T, samples []sample, external ...string) *fakeStore {
	t.Helper()
	set := labels.FromStrings(external...)
	all := labels.NewBuilder(set)
	all.Set("__name__", "m")
	times := storeapi.TimeRange{MinMS: 0, MaxMS: 10_000}
	return &fakeStore{
		strips: true,
		info: storeapi.Info{LabelSets: []labels.Labels{set}, Store: &storeapi.StoreInfo{
			TimeRange: times, WithoutReplicaLabels: true, TSDBs: []storeapi.TSDBInfo{{Labels: set, TimeRange: times}},
		}},
		series: []one{{labels: all.Labels(), chunks: []series.Chunk{encode(t, samples)}}},
	}
}

// steps returns whether each request of a store had steps.
func (f *fakeStore) steps() (had []bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.requests {
		had = append(had, r.Steps != nil)
	}
	return had
}

func TestQuerier_SelectFloatsAtSteps(t *testing.T) {
	early, late := []sample{{t: 1000}, {t: 2000}}, []sample{{t: 5000}, {t: 6000}}
	for name, tt := range map[string]struct {
		stores   func() []*fakeStore
		replicas []string
		want     []bool // requests of the first store; three selections
	}{
		"one store": {func() []*fakeStore { return []*fakeStore{storeOf(t, early, "replica", "a")} }, []string{"replica"}, []bool{true, true, true}},
		"one replica in two stores": {func() []*fakeStore {
			return []*fakeStore{storeOf(t, early, "replica", "a"), storeOf(t, late, "replica", "a")}
		}, []string{"replica"}, []bool{true, true, true}},
		"equal chunks of one replica": {func() []*fakeStore {
			return []*fakeStore{storeOf(t, early, "replica", "a"), storeOf(t, early, "replica", "a")}
		}, []string{"replica"}, []bool{true, true, true}},
		"two replicas": {func() []*fakeStore {
			return []*fakeStore{storeOf(t, early, "replica", "a"), storeOf(t, early, "replica", "b")}
		}, []string{"replica"}, []bool{false, false, false}},
		"two replicas, no deduplication": {func() []*fakeStore {
			return []*fakeStore{storeOf(t, early, "replica", "a"), storeOf(t, early, "replica", "b")}
		}, nil, []bool{true, true, true}},
		"two clusters": {func() []*fakeStore {
			return []*fakeStore{storeOf(t, early, "cluster", "x", "replica", "a"), storeOf(t, early, "cluster", "y", "replica", "b")}
		}, []string{"replica"}, []bool{true, true, true}},
		"overlapping chunks": {func() []*fakeStore {
			return []*fakeStore{storeOf(t, early, "replica", "a"), storeOf(t, []sample{{t: 1500}, {t: 2500}}, "replica", "a")}
		}, []string{"replica"}, []bool{true, false, true, false, false}}, // repeated as a whole, first without joining, and then at once
	} {
		t.Run(name, func(t *testing.T) {
			stores := tt.stores()
			f, _ := newTestFanout(t, Options{}, stores...)
			for range 3 {
				if n, err := selectAtSteps(t, f, tt.replicas...); err != nil || n == 0 {
					t.Fatalf("%d series, %v", n, err)
				}
			}
			if got := stores[0].steps(); !slices.Equal(got, tt.want) {
				t.Errorf("requests with steps: %v, want %v", got, tt.want)
			}
			if held := f.budget.held(); held != 0 {
				t.Errorf("%d bytes are held", held)
			}
		})
	}
}

// A series with summaries beside histograms is read again without summaries, and later selections request none at once.
func TestQuerier_SummariesBesideHistogramsAreRequestedOnce(t *testing.T) {
	store := storeOf(t, []sample{{t: 5000, h: true}})
	summary := series.Chunk{MinMS: 1000, MaxMS: 2000, Encoding: series.Summarized, Data: series.AppendSummary(nil, series.Summary{Count: 2})}
	store.series[0].chunks = append([]series.Chunk{summary}, store.series[0].chunks...)
	f, _ := newTestFanout(t, Options{}, store)
	for range 3 {
		q, err := f.Queryable(Request{}).Querier(0, 10_000)
		if err != nil {
			t.Fatal(err)
		}
		needs := series.Needs{Summaries: &series.Summaries{Windows: series.Windows{Ends: someSteps, RangeMS: 4000, MaxMS: 10_000, Whole: true}}}
		for set := q.(series.FloatsSelector).SelectFloats(t.Context(), needs, &storage.SelectHints{End: 10_000}, labels.MustNewMatcher(labels.MatchEqual, "__name__", "m")); set.Next(); {
		}
		q.Close()
	}
	var had []bool
	for _, r := range store.requests {
		had = append(had, r.Summaries != nil)
	}
	if want := []bool{true, false, false, false}; !slices.Equal(had, want) {
		t.Errorf("requests with summaries: %v, want %v", had, want)
	}
}

// A store without Info may have any replicas.
func TestSeveralReplicas_OfUnknownStores(t *testing.T) {
	sr := storeapi.SeriesRequest{MaxMS: 100, WithoutReplicaLabels: []string{"replica"}}
	if !severalReplicas([]*storeapi.Info{nil}, sr) {
		t.Error("no Info: no replicas")
	}
	set := func(replica string, minMS, maxMS int64) *storeapi.Info {
		return &storeapi.Info{LabelSets: []labels.Labels{labels.FromStrings("replica", replica)}, Store: &storeapi.StoreInfo{TimeRange: storeapi.TimeRange{MinMS: minMS, MaxMS: maxMS}}}
	}
	for name, tt := range map[string]struct {
		infos []*storeapi.Info
		want  bool
	}{
		"overlapping":              {[]*storeapi.Info{set("a", 0, 50), set("b", 50, 90)}, true},
		"one after the other":      {[]*storeapi.Info{set("a", 0, 49), set("b", 50, 90)}, false},
		"outside the request":      {[]*storeapi.Info{set("a", 0, 500), set("b", 101, 900)}, false},
		"third overlaps the first": {[]*storeapi.Info{set("a", 0, 10), set("a", 20, 40), set("b", 30, 35)}, true},
	} {
		if got := severalReplicas(tt.infos, sr); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Chunks of several blocks are joined only if no two stores announce the same data.
func TestSameDataTwice(t *testing.T) {
	request := storeapi.SeriesRequest{MinMS: 0, MaxMS: 100, WithoutReplicaLabels: []string{"replica"}}
	type block struct {
		cluster      string
		minMS, maxMS int64
	}
	store := func(blocks ...block) *storeapi.Info {
		info := &storeapi.Info{Store: &storeapi.StoreInfo{}}
		for _, b := range blocks {
			info.Store.TSDBs = append(info.Store.TSDBs, storeapi.TSDBInfo{Labels: labels.FromStrings("cluster", b.cluster), TimeRange: storeapi.TimeRange{MinMS: b.minMS, MaxMS: b.maxMS}})
		}
		return info
	}
	replica := func(name string, times ...int64) *storeapi.Info {
		info := &storeapi.Info{Store: &storeapi.StoreInfo{}}
		for i := 0; i < len(times); i += 2 {
			info.Store.TSDBs = append(info.Store.TSDBs, storeapi.TSDBInfo{Labels: labels.FromStrings("cluster", "x", "replica", name), TimeRange: storeapi.TimeRange{MinMS: times[i], MaxMS: times[i+1]}})
		}
		return info
	}
	unnamed := func(minMS, maxMS int64) *storeapi.Info {
		return &storeapi.Info{Store: &storeapi.StoreInfo{TimeRange: storeapi.TimeRange{MinMS: minMS, MaxMS: maxMS}}}
	}
	sets := store(block{"x", 0, 50})
	sets.Store.TimeRange, sets.LabelSets, sets.Store.TSDBs = sets.Store.TSDBs[0].TimeRange, []labels.Labels{sets.Store.TSDBs[0].Labels}, nil
	for name, tt := range map[string]struct {
		infos []*storeapi.Info
		want  bool
	}{
		"one store":                      {[]*storeapi.Info{store(block{"x", 0, 50}, block{"x", 20, 70})}, false},
		"one store without Info":         {[]*storeapi.Info{nil}, false},
		"two stores, one without Info":   {[]*storeapi.Info{store(block{"x", 0, 50}), nil}, true},
		"one after the other":            {[]*storeapi.Info{store(block{"x", 0, 50}), store(block{"x", 50, 100})}, false},
		"overlapping":                    {[]*storeapi.Info{store(block{"x", 0, 51}), store(block{"x", 50, 100})}, true},
		"overlapping before the request": {[]*storeapi.Info{store(block{"x", -50, 20}), store(block{"x", -50, -10}, block{"x", 20, 40})}, false},
		"two clusters":                   {[]*storeapi.Info{store(block{"x", 0, 50}), store(block{"y", 0, 50})}, false},
		"a later block of several":       {[]*storeapi.Info{store(block{"x", 0, 50}), store(block{"y", 0, 50}, block{"x", 90, 100}), store(block{"x", 60, 95})}, true},
		"label sets and blocks":          {[]*storeapi.Info{sets, store(block{"x", 40, 60})}, true},
		"blocks that alternate":          {[]*storeapi.Info{store(block{"x", 0, 20}, block{"x", 40, 60}), store(block{"x", 20, 40})}, true},
		"no external labels":             {[]*storeapi.Info{store(block{"x", 40, 60}), unnamed(0, 50)}, true},
		"replicas one after the other":   {[]*storeapi.Info{replica("a", 0, 20), replica("b", 20, 40)}, false},
		"a replica that went on":         {[]*storeapi.Info{replica("a", 0, 20, 40, 60), replica("b", 20, 40)}, true},
	} {
		if got := sameDataTwice(tt.infos, request); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// An aggregate replaces the raw samples of its window. If a step follows within the window, its value is the last sample before
// the window, which stores do not keep for a chunk that goes on.
func TestQuerier_SelectFloatsAtStepsWithDownsampledData(t *testing.T) {
	counts := encode(t, []sample{{t: 3_899_999, v: 4}, {t: 4_199_999, v: 2}})
	for name, tt := range map[string]struct {
		untilMS int64
		want    []bool
	}{
		"raw samples end before the window": {3_599_000, []bool{true}},
		"raw samples in the window":         {3_780_000, []bool{true, false}},
	} {
		store := storeOf(t, []sample{{t: 3_000_000}, {t: tt.untilMS}}, "replica", "a")
		store.series[0].aggr = []aggrChunk{{Chunk: counts, Aggr: series.Count}, {Chunk: counts, Aggr: series.Sum}}
		f, _ := newTestFanout(t, Options{}, store)
		q, err := f.Queryable(Request{MaxResolutionMS: 300_000}).Querier(0, 5_000_000)
		if err != nil {
			t.Fatal(err)
		}
		steps := series.Steps{FirstMS: 3_720_000, LastMS: 4_320_000, StepMS: 300_000}
		set := q.(series.FloatsSelector).SelectFloats(t.Context(), series.Needs{Steps: &steps}, &storage.SelectHints{Start: 0, End: 5_000_000}, everything)
		if !set.Next() || set.Err() != nil {
			t.Errorf("%s: no series, %v", name, set.Err())
		}
		if got := store.steps(); !slices.Equal(got, tt.want) {
			t.Errorf("%s: requests with steps: %v, want %v", name, got, tt.want)
		}
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	}
}

// joins returns within which spans each request of a store may join chunks.
func (f *fakeStore) joins() (within []int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.requests {
		within = append(within, r.JoinMS)
	}
	return within
}

func TestQuerier_JoinsChunksOfOneBlockIfStoresHaveTheSameData(t *testing.T) {
	early, late := []sample{{t: 1000}, {t: 2000}}, []sample{{t: 5000}, {t: 6000}}
	for want, stores := range map[int64][]*fakeStore{
		storeapi.JoinAny: {storeOf(t, early, "cluster", "a"), storeOf(t, early, "cluster", "b")},
		blockMS:          {storeOf(t, early, "cluster", "a"), storeOf(t, late, "cluster", "a")},
	} {
		f, _ := newTestFanout(t, Options{}, stores...)
		if n, err := selectAtSteps(t, f); err != nil || n == 0 {
			t.Fatalf("%d series, %v", n, err)
		}
		read(t, f.Queryable(Request{}), 0, 10_000, nil, everything) // not at steps
		if got := stores[0].joins(); !slices.Equal(got, []int64{want, 0}) {
			t.Errorf("%v, want %d", got, want)
		}
	}
}

// The bytes and series of a selection that is repeated count once.
func TestQuerier_ARepeatedSelectionCountsOnce(t *testing.T) {
	stores := []*fakeStore{storeOf(t, []sample{{t: 1000}, {t: 2000}}), storeOf(t, []sample{{t: 1500}, {t: 2500}})}
	f, _ := newTestFanout(t, Options{SeriesMax: 1}, stores...)
	q := f.Queryable(Request{})
	querier, err := q.Querier(0, 10_000)
	if err != nil {
		t.Fatal(err)
	}
	defer querier.Close()
	set := querier.(series.FloatsSelector).SelectFloats(context.Background(), series.Needs{Steps: &someSteps}, nil, labels.MustNewMatcher(labels.MatchEqual, "__name__", "m"))
	n := 0
	for set.Next() {
		n++
	}
	if err := set.Err(); err != nil || n != 1 || errors.Is(err, ErrLimit) {
		t.Fatalf("%d series, %v", n, err)
	}
	if got := stores[0].steps(); !slices.Equal(got, []bool{true, false}) {
		t.Fatalf("requests with steps: %v", got)
	}
	bytes := q.bytes.Load()
	other := f.Queryable(Request{})
	again, err := other.Querier(0, 10_000)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	for set := again.Select(context.Background(), true, nil, labels.MustNewMatcher(labels.MatchEqual, "__name__", "m")); set.Next(); {
	}
	if want := other.bytes.Load(); bytes != want || q.series.Load() != 1 {
		t.Errorf("%d bytes and %d series count, want %d and 1", bytes, q.series.Load(), want)
	}
}

// sharedBlocks are the chunks of one series in blocks of two hours. Their lengths differ, as where a head was restarted.
func sharedBlocks(t *testing.T, rng *rand.Rand) (blocks [6][]series.Chunk) {
	t.Helper()
	for i := range blocks {
		from, n := int64(i)*blockMS, 40+rng.IntN(100)
		var samples []sample
		for at := from + rng.Int64N(15_000); at < from+blockMS; at += 14_000 + rng.Int64N(2000) {
			samples = append(samples, sample{t: at, v: rng.Float64()})
		}
		for chunk := range slices.Chunk(samples, n) {
			blocks[i] = append(blocks[i], encode(t, chunk))
		}
	}
	return blocks
}

// cutTo cuts chunks as Prometheus does for a sidecar.
func cutTo(chunks []series.Chunk, mint, maxt int64) (cut []series.Chunk) {
	for _, c := range chunks {
		if data, first, last, ok := xor.Trim(nil, c.Data, mint, maxt); ok {
			cut = append(cut, series.Chunk{MinMS: first, MaxMS: last, Encoding: c.Encoding, Data: data})
		}
	}
	return cut
}

// A sidecar and a store gateway have the same blocks for some hours. Their joined chunks are equal, so every query reads
// them once, and its samples at the steps are those of a store that has all blocks. The query can begin and end within
// chunks, which Prometheus then cuts.
func TestQuerier_JoinedChunksOfSharedBlocksAreEqual(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	set := labels.FromStrings("prometheus", "a")
	for range 30 {
		gateway := 1 + rng.IntN(6) // blocks of the gateway, the oldest
		sidecar := rng.IntN(gateway + 1)
		part := sidecar < gateway && rng.IntN(4) == 0 // the first block of the sidecar is not whole
		steps := series.Steps{FirstMS: 5*blockMS/2 + rng.Int64N(1e6), LastMS: 5 * blockMS, StepMS: 120_000 + rng.Int64N(400_000)}
		steps.FirstMS -= rng.Int64N(2 * blockMS)
		start, end := int64(0), int64(6*blockMS)
		if !part && rng.IntN(4) > 0 {
			start, end = steps.FirstMS-rng.Int64N(600_000), steps.LastMS+rng.Int64N(600_000)
		}
		all := make([]*fakeStore, 3)
		for i := range all {
			all[i] = &fakeStore{strips: true, info: storeapi.Info{LabelSets: []labels.Labels{set}, Store: &storeapi.StoreInfo{TimeRange: anyTime, WithoutReplicaLabels: true}}}
		}
		for i := range 5 {
			lset := labels.FromStrings("__name__", "m", "i", fmt.Sprint(i), "prometheus", "a")
			blocks := sharedBlocks(t, rng)
			inStore, local, whole := slices.Concat(blocks[:gateway]...), slices.Concat(blocks[sidecar:]...), slices.Concat(blocks[:]...)
			if part {
				local = local[1:]
			}
			local = cutTo(local, start, end)
			for k, chunks := range [][]series.Chunk{inStore, local, whole} {
				all[k].series = append(all[k].series, one{labels: lset, chunks: chunks})
			}
		}
		// values reads all series twice at the steps: the value at each, and how many chunks the stores sent.
		values := func(want []bool, stores ...*fakeStore) (values []float64, chunks int) {
			var addresses []Address
			for _, s := range stores {
				addresses = append(addresses, Address{Name: listen(t, served{s})})
				s.requests = nil
			}
			e := NewEndpoints(EndpointsOptions{Static: addresses, Dial: func(a Address) (Client, error) { return dialStore(a.Name, storeapi.ClientOptions{}) }})
			e.Update(t.Context())
			defer e.replace(nil)
			f := New(e, Options{})
			for range 2 {
				values, chunks = nil, 0
				q, err := f.Queryable(Request{}).Querier(0, 6*blockMS)
				if err != nil {
					t.Fatal(err)
				}
				selected := q.(series.FloatsSelector).SelectFloats(t.Context(), series.Needs{Steps: &steps}, &storage.SelectHints{Start: start, End: end}, everything)
				for selected.Next() {
					points, ok, err := selected.AtFloats().AppendFloats(nil, 0, 6*blockMS)
					if !ok || err != nil {
						t.Fatal(ok, err)
					}
					chunks += len(selected.At().(*storedSeries).chunks)
					for at := steps.FirstMS; at <= steps.LastMS; at += steps.StepMS {
						after, _ := slices.BinarySearchFunc(points, at+1, func(p promql.FPoint, ms int64) int { return cmp.Compare(p.T, ms) })
						if after > 0 {
							values = append(values, points[after-1].F)
						}
					}
				}
				if err := errors.Join(selected.Err(), q.Close()); err != nil {
					t.Fatal(err)
				}
			}
			if got := stores[0].steps(); !slices.Equal(got, want) {
				t.Errorf("requests with steps: %v, want %v", got, want)
			}
			return values, chunks
		}
		requests := []bool{true, true}
		if part {
			requests = []bool{true, false, true} // the second without joining
		}
		got, chunks := values(requests, all[0], all[1])
		want, _ := values([]bool{true, true}, all[2])
		if len(want) == 0 || !slices.Equal(got, want) {
			t.Fatalf("%d values differ from those of one store, %d", len(got), len(want))
		}
		if whole := len(all[2].series[0].chunks); !part && chunks > 5*whole/2 {
			t.Errorf("%d chunks of 5 series, without joining %d each", chunks, whole)
		}
	}
}
