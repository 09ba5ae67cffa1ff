package fanout

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

var everything = labels.MustNewMatcher(labels.MatchRegexp, "__name__", ".*")

// passOn reads all series through Source, with a timeout.
func passOn(t *testing.T, f *Fanout, r storeapi.SeriesRequest) (names []string, warnings []string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r.MaxMS, r.Matchers = 1<<40, []*labels.Matcher{everything}
	set := f.Source().Series(ctx, r)
	builder := labels.NewScratchBuilder(4)
	for set.Next() {
		lset, err := labelenc.Labels(set.Labels(), &builder)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, lset.String())
	}
	for w := range set.Warnings() {
		warnings = append(warnings, w)
	}
	return names, warnings, errors.Join(set.Err(), set.Close())
}

// No store responds before all are queried: querying one after the other would never end.
func TestQuerier_ReadsStoresConcurrently(t *testing.T) {
	for name, run := range map[string]func(f *Fanout) (int, error){
		"for PromQL": func(f *Fanout) (int, error) {
			got, _, _, err := read(t, f.Queryable(Request{AbortOnPartial: true}), 0, 10, nil)
			return len(got), err
		},
		"for a querier": func(f *Fanout) (int, error) {
			got, _, err := passOn(t, f, storeapi.SeriesRequest{AbortOnPartial: true})
			return len(got), err
		},
	} {
		t.Run(name, func(t *testing.T) {
			const n = 8
			var called sync.WaitGroup
			called.Add(n)
			all := make(chan struct{})
			go func() { called.Wait(); close(all) }()
			var stores []*fakeStore
			for i := range n {
				s := holding(t, fmt.Sprintf("m%d", i))
				first := sync.OnceFunc(called.Done)
				s.onNext = func(ctx context.Context, _ storeapi.SeriesRequest, _ int) {
					first()
					select {
					case <-all:
					case <-ctx.Done():
					}
				}
				stores = append(stores, s)
			}
			f, _ := newTestFanout(t, Options{}, stores...)
			if got, err := run(f); err != nil || got != n {
				t.Errorf("%d series, %v", got, err)
			}
		})
	}
}

// However many stores stall, also during connect, the query waits for one response timeout,
// and each store is named.
func TestQuerier_ResponseTimeoutsRunConcurrently(t *testing.T) {
	const n, limit = 20, time.Second
	stores := []*fakeStore{holding(t, "x")}
	for i := range n {
		s := &fakeStore{stall: true}
		if i%2 == 0 {
			s = &fakeStore{onOpen: func(ctx context.Context) { <-ctx.Done() }}
		}
		stores = append(stores, s)
	}
	f, _ := newTestFanout(t, Options{ResponseTimeout: limit}, stores...)
	begun := time.Now()
	got, _, warnings, err := read(t, f.Queryable(Request{}), 0, 10, nil)
	if err != nil || len(got) != 1 || len(warnings) != n {
		t.Errorf("%v: %d series, %d warnings", err, len(got), len(warnings))
	}
	names, warnings, err := passOn(t, f, storeapi.SeriesRequest{})
	if err != nil || len(names) != 1 || len(warnings) != n {
		t.Errorf("for a querier: %v: %d series, %d warnings", err, len(names), len(warnings))
	}
	if took := time.Since(begun); took > n*limit/2 {
		t.Errorf("it took %s", took)
	}
}

// Two stores have one slot each, held until a response has been read. Query x has the slot of the first store, and query
// y the slot of the second. Both queries end.
func TestQuerier_HoldsNoSlotWhileWaitingForAnotherStore(t *testing.T) {
	freed := map[string]chan struct{}{"0x": make(chan struct{}), "1y": make(chan struct{})}
	var stores []*fakeStore
	for i := range 2 {
		s := &fakeStore{}
		for _, name := range []string{"x", "y"} {
			for j := range 50 {
				one := holding(t, name).series[0]
				one.labels = labels.FromStrings("__name__", name, "i", fmt.Sprint(i), "j", fmt.Sprintf("%02d", j))
				s.series = append(s.series, one)
			}
		}
		s.onNext = func(ctx context.Context, r storeapi.SeriesRequest, left int) {
			query := r.Matchers[0].Value
			if mine := freed[fmt.Sprint(i, query)]; mine != nil {
				if left == 0 {
					close(mine)
				}
				return
			}
			for key, other := range freed { // the other query has the slot
				if key[0] == byte('0'+i) {
					select {
					case <-other:
					case <-ctx.Done():
					}
				}
			}
		}
		stores = append(stores, s)
	}
	f, _ := newTestFanout(t, Options{}, stores...)
	var running sync.WaitGroup
	for _, name := range []string{"x", "y"} {
		running.Go(func() {
			got, _, warnings, err := read(t, f.Queryable(Request{}), 0, 10, nil, labels.MustNewMatcher(labels.MatchEqual, "__name__", name))
			if err != nil || len(got) != 100 || len(warnings) > 0 {
				t.Errorf("%s: %v, %d series, %q", name, err, len(got), warnings)
			}
		})
	}
	running.Wait()
}

func TestBudget_LimitsAllQueriesTogether(t *testing.T) {
	f, _ := newTestFanout(t, Options{TotalBytesMax: budgetStep, TotalWait: 50 * time.Millisecond}, holding(t, "x"))
	open := func() (func(), error) {
		q, err := f.Queryable(Request{}).Querier(0, 10)
		if err != nil {
			t.Fatal(err)
		}
		set := q.Select(t.Context(), true, nil, everything)
		for set.Next() {
		}
		return func() { _ = q.Close() }, set.Err()
	}
	first, err := open()
	if err != nil {
		t.Fatal(err)
	}
	second, err := open()
	if !errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), "store s0") {
		t.Errorf("a second query: %v", err)
	}
	second()
	f.budget.wait = 20 * time.Second
	waited := make(chan error)
	go func() {
		third, err := open()
		third()
		waited <- err
	}()
	for waits := false; !waits; {
		f.budget.mu.Lock()
		waits = f.budget.freed != nil
		f.budget.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	first()
	if err := <-waited; err != nil {
		t.Errorf("a query that waited: %v", err)
	}
	if f.budget.used != 0 {
		t.Errorf("%d bytes are held at the end", f.budget.used)
	}
}

func TestQuerier_PanicFailsItsQueryOnly(t *testing.T) {
	bad := holding(t, "y")
	bad.onNext = func(context.Context, storeapi.SeriesRequest, int) { panic("index out of range") }
	f, _ := newTestFanout(t, Options{}, holding(t, "x"), bad)
	if _, _, _, err := read(t, f.Queryable(Request{}), 0, 10, nil); !errors.Is(err, errPanicked) || !strings.Contains(err.Error(), "store s1") {
		t.Errorf("for PromQL: %v", err)
	}
	if _, _, err := passOn(t, f, storeapi.SeriesRequest{}); !errors.Is(err, errPanicked) || !strings.Contains(err.Error(), "store s1") {
		t.Errorf("for a querier: %v", err)
	}
	if n := f.endpoints.metrics.panics.Get(); n != 2 {
		t.Errorf("%d panics are counted, want 2", n)
	}
	bad.onNext = nil
	if got, _, _, err := read(t, f.Queryable(Request{}), 0, 10, nil); err != nil || len(got) != 2 {
		t.Errorf("afterwards: %v %v", err, got)
	}
}

func TestQuerier_StoreWarningsFailWithAbortOnPartial(t *testing.T) {
	s := holding(t, "x")
	s.warning = "a part of me is missing"
	f, _ := newTestFanout(t, Options{}, s, holding(t, "y"))
	if _, _, _, err := read(t, f.Queryable(Request{AbortOnPartial: true}), 0, 10, nil); err == nil || !strings.Contains(err.Error(), "store s0: "+s.warning) {
		t.Errorf("for PromQL: %v", err)
	}
	if _, _, err := passOn(t, f, storeapi.SeriesRequest{AbortOnPartial: true}); err == nil || !strings.Contains(err.Error(), "store s0: "+s.warning) {
		t.Errorf("for a querier: %v", err)
	}
	if _, warnings, err := passOn(t, f, storeapi.SeriesRequest{}); err != nil || len(warnings) != 1 {
		t.Errorf("with warnings: %v %q", err, warnings)
	}
}

// big is a store of many series, which take many pages.
func big(t *testing.T, first, n, step int) *fakeStore {
	f := &fakeStore{}
	chunk := encode(t, []sample{{1, 1, false}})
	for i := first; i < first+n*step; i += step {
		c := chunk
		c.MinMS, c.MaxMS, c.Data = int64(i), int64(i), fmt.Appendf(slices.Clone(chunk.Data), "%0500d", i)
		f.series = append(f.series, one{labels: labels.FromStrings("__name__", "m", "i", fmt.Sprintf("%06d", i)), chunks: []series.Chunk{c}})
	}
	return f
}

func TestSource_ForwardsReadAheadSeriesUnchanged(t *testing.T) {
	f, _ := newTestFanout(t, Options{}, big(t, 0, 3000, 3), big(t, 1, 3000, 3), big(t, 0, 1000, 9))
	set := f.Source().Series(t.Context(), storeapi.SeriesRequest{MaxMS: 1 << 40, Matchers: []*labels.Matcher{everything}})
	want := 0
	for set.Next() {
		if want%3 == 2 {
			want++
		}
		lset := labelenc.Append(nil, labels.FromStrings("__name__", "m", "i", fmt.Sprintf("%06d", want)))
		chunks := set.Chunks()
		if !slices.Equal(set.Labels(), lset) || len(chunks) != 1 || chunks[0].MinMS != int64(want) || !strings.HasSuffix(string(chunks[0].Data), fmt.Sprintf("%0500d", want)) {
			t.Fatalf("%q has %v, want series %d", set.Labels(), chunks, want)
		}
		want++
	}
	if err := errors.Join(set.Err(), set.Close()); err != nil || want != 8999 {
		t.Errorf("%v after %d", err, want)
	}
}

// A querier of many stores must not allocate several times the bytes that it forwards. (It did, when each page grew from
// nothing.)
func TestSource_ReusesThePagesOfEarlierResponses(t *testing.T) {
	const stores, number, size, times = 8, 100, 1100, 20
	f := encodedFanout(t, stores, number, size)
	forwardAll(t, f, stores*number)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range times {
		forwardAll(t, f, stores*number)
	}
	runtime.ReadMemStats(&after)
	if per := (after.TotalAlloc - before.TotalAlloc) / times; per > stores*number*size*3/4 { // with -race a pool drops some of its pages
		t.Errorf("a response of %d bytes allocates %d", stores*number*size, per)
	}
}

// A client that does not read makes the querier hold a few megabytes of each store. It may disconnect at any time.
func TestSource_ReadAheadIsBounded(t *testing.T) {
	endless := big(t, 0, 20_000, 1)
	var taken atomic.Int64
	endless.onNext = func(context.Context, storeapi.SeriesRequest, int) { taken.Add(1) }
	f, _ := newTestFanout(t, Options{}, endless, holding(t, "z"))
	set := f.Source().Series(t.Context(), storeapi.SeriesRequest{MaxMS: 1 << 40, Matchers: []*labels.Matcher{everything}})
	if !set.Next() {
		t.Fatal(set.Err())
	}
	perPage := int64(aheadPageBytes/540 + 2)
	for end := time.Now().Add(30 * time.Second); len(set.(forwardedStream).ahead[0].pages) < aheadPages; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("only %d series are read ahead", taken.Load())
		}
	}
	if warnings := set.Warnings(); len(warnings) > 0 || set.Err() != nil {
		t.Error(warnings, set.Err())
	}
	if err := set.Close(); err != nil {
		t.Error(err)
	}
	if n := taken.Load(); n > (aheadPages+4)*perPage {
		t.Errorf("%d series were read ahead", n)
	}
}

func TestQuerier_RequestsEqualSelectionsOnce(t *testing.T) {
	store := holding(t, "x")
	store.warning = "half of it"
	store.series = append(store.series, holding(t, "y").series...)
	f, _ := newTestFanout(t, Options{SeriesMax: 2}, store)
	querier, err := f.Queryable(Request{}).Querier(0, 10)
	if err != nil {
		t.Fatal(err)
	}
	defer querier.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	rate := storage.SelectHints{Start: 0, End: 10, Func: "rate", Range: 5}
	sets := []storage.SeriesSet{querier.Select(ctx, true, &rate, everything), querier.Select(ctx, true, &rate, everything), querier.Select(ctx, false, &rate, everything)}
	for _, want := range []string{`{__name__="x"}`, `{__name__="y"}`} { // in turn
		for i, set := range sets {
			if !set.Next() || set.At().Labels().String() != want {
				t.Fatalf("set %d ended before %s: %v", i, want, set.Err())
			}
			if it := set.At().Iterator(nil); it.Next() != chunkenc.ValFloat || it.AtT() != 1 || it.Next() != chunkenc.ValNone {
				t.Errorf("set %d: the samples of %s are not those of the store", i, want)
			}
		}
	}
	for i, set := range sets {
		if set.Next() || set.Err() != nil || len(set.Warnings()) != 1 {
			t.Errorf("set %d: %v, %v", i, set.Err(), set.Warnings())
		}
	}
	if n := len(store.requests); n != 1 {
		t.Errorf("%d requests for equal selections", n)
	}
}

// Selections with other hints are requested separately, because stores may respond differently. A selection that ended
// with its own context is not shared with another context.
func TestQuerier_RequestsSelectionsThatDiffer(t *testing.T) {
	store := holding(t, "x")
	f, _ := newTestFanout(t, Options{}, store)
	querier, err := f.Queryable(Request{}).Querier(0, 10)
	if err != nil {
		t.Fatal(err)
	}
	defer querier.Close()
	ended, end := context.WithCancel(t.Context())
	end()
	x := labels.MustNewMatcher(labels.MatchEqual, "__name__", "x")
	one := storage.SelectHints{Start: 0, End: 10, Func: "rate", Range: 5}
	two, three, four, five := one, one, one, one
	two.Func, three.Range, four.Start, five.Limit = "increase", 6, 1, 1
	refused := querier.Select(ended, true, &one, everything)
	sets := []storage.SeriesSet{
		querier.Select(t.Context(), true, &one, everything), querier.Select(t.Context(), true, &two, everything), querier.Select(t.Context(), true, &three, everything),
		querier.Select(t.Context(), true, &four, everything), querier.Select(t.Context(), true, &five, everything), querier.Select(t.Context(), true, &one, x), querier.Select(t.Context(), true, nil, everything),
	}
	for i, set := range sets {
		if !set.Next() || set.Next() || set.Err() != nil {
			t.Errorf("set %d: %v", i, set.Err())
		}
	}
	if refused.Next() || !errors.Is(refused.Err(), context.Canceled) {
		t.Errorf("a canceled selection: %v", refused.Err())
	}
	if n := len(store.requests); n < len(sets) { // the canceled one may have been sent
		t.Errorf("%d requests for %d selections that differ", n, len(sets))
	}
}

// A store that cannot remove replica labels may send a million series. They must be sorted again once the labels are
// removed here, and the end of the context must end this sorting.
func TestCollected_SortEndsWithTheContext(t *testing.T) {
	k := &collected{}
	for i := range 1000 {
		k.read = append(k.read, rawSeries{labels: labelenc.Append(nil, labels.FromStrings("i", fmt.Sprintf("%04d", 1000-i)))})
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(ErrStalled)
	if err := k.sort(ctx); !errors.Is(err, ErrStalled) {
		t.Errorf("%v", err)
	}
	if err := k.sort(t.Context()); err != nil || !slices.IsSortedFunc(k.read, func(a, b rawSeries) int { return labelenc.Compare(a.labels, b.labels) }) {
		t.Errorf("%v, or not sorted", err)
	}
}
