package fanout

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/metadata"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// observed is a store that offers everything, and keeps the contexts of its requests.
type observed struct {
	*fakeStore
	mu       sync.Mutex
	contexts map[string]context.Context // of the latest request of a kind
}

func (o *observed) keep(ctx context.Context, kind string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.contexts[kind] = ctx
}

func (o *observed) of(kind string) context.Context {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.contexts[kind]
}

func (o *observed) Info(ctx context.Context) (storeapi.Info, error) {
	o.keep(ctx, "info")
	info, err := o.fakeStore.Info(ctx)
	info.LabelSets = []labels.Labels{labels.FromStrings("region", "eu")}
	info.Exemplars, info.Rules, info.Targets, info.MetricMetadata, info.Status = &anyTime, true, true, true, true
	return info, err
}

func (o *observed) Series(ctx context.Context, r storeapi.SeriesRequest) storeapi.Stream {
	o.keep(ctx, "series")
	return o.fakeStore.Series(ctx, r)
}

func (o *observed) LabelNames(ctx context.Context, r storeapi.LabelsRequest) (names, warnings []string, err error) {
	o.keep(ctx, "names")
	return o.fakeStore.LabelNames(ctx, r)
}

func (o *observed) Exemplars(ctx context.Context, r storeapi.ExemplarsRequest) ([]exemplar.QueryResult, []string, error) {
	o.keep(ctx, "exemplars")
	return o.fakeStore.Exemplars(ctx, r)
}

func (o *observed) MetricMetadata(ctx context.Context, _ storeapi.MetadataRequest) (map[string][]metadata.Metadata, []string, error) {
	o.keep(ctx, "metadata")
	return nil, nil, o.openErr
}

func (o *observed) Targets(ctx context.Context, _ storeapi.TargetsRequest) (storeapi.Targets, []string, error) {
	o.keep(ctx, "targets")
	return storeapi.Targets{}, nil, o.openErr
}

func (o *observed) Rules(ctx context.Context, _ storeapi.RulesRequest) ([]storeapi.RuleGroup, []string, error) {
	o.keep(ctx, "rules")
	return nil, nil, o.openErr
}

func (o *observed) TSDBStatistics(ctx context.Context, _ storeapi.StatusRequest) ([]storeapi.TSDBStatistics, []string, error) {
	o.keep(ctx, "status")
	return nil, nil, o.openErr
}

// observe returns a fanout over one store, and the function that removes the store.
func observe(t *testing.T, opts Options) (*Fanout, *observed, func()) {
	t.Helper()
	o := &observed{fakeStore: holding(t, "x"), contexts: map[string]context.Context{}}
	e := NewEndpoints(EndpointsOptions{Static: []Address{{Name: "s0"}}, Dial: func(Address) (Client, error) { return o, nil }, InfoTimeout: time.Hour})
	e.Update(t.Context())
	return New(e, opts), o, func() { e.replace(nil) }
}

// A request must release its stores and cancel its contexts. A removed store keeps its connection until the last request has
// released the store, and a context keeps its timer until it is canceled.
func TestFanout_EveryRequestReleasesItsStoreAndItsContext(t *testing.T) {
	everywhere := [][]*labels.Matcher{{everything}}
	for kind, call := range map[string]func(t *testing.T, f *Fanout) error{
		"series": func(t *testing.T, f *Fanout) error {
			_, _, _, err := read(t, f.Queryable(Request{}), 0, 10, nil)
			return err
		},
		"names": func(t *testing.T, f *Fanout) error {
			q, err := f.Queryable(Request{}).Querier(0, 10)
			if err != nil {
				return err
			}
			_, _, err = q.LabelNames(t.Context(), nil)
			return errors.Join(err, q.Close())
		},
		"exemplars": func(t *testing.T, f *Fanout) error {
			_, _, err := f.Queryable(Request{}).Exemplars(t.Context(), 0, 9, everywhere)
			return err
		},
		"metadata": func(t *testing.T, f *Fanout) error {
			_, _, err := f.Queryable(Request{}).MetricMetadata(t.Context(), "", -1)
			return err
		},
		"targets": func(t *testing.T, f *Fanout) error {
			_, _, err := f.Queryable(Request{}).Targets(t.Context(), "any")
			return err
		},
		"rules": func(t *testing.T, f *Fanout) error {
			_, _, err := f.Queryable(Request{}).Rules(t.Context(), "all", nil)
			return err
		},
		"status": func(t *testing.T, f *Fanout) error {
			_, _, err := f.Queryable(Request{}).TSDBStatistics(t.Context(), nil, 1)
			return err
		},
	} {
		for _, timeout := range []time.Duration{0, time.Hour} {
			for _, failing := range []error{nil, errBroken} {
				f, o, remove := observe(t, Options{ResponseTimeout: timeout})
				if o.of("info").Err() == nil {
					t.Error("the context of a request for Info outlives it")
				}
				o.openErr, o.err = failing, failing
				if err := call(t, f); err != nil {
					t.Errorf("%s: %v", kind, err)
				}
				ctx := o.of(kind)
				if ctx == nil {
					t.Fatalf("no request for %s", kind)
				}
				if ctx.Err() == nil {
					t.Errorf("%s, timeout %s: its context outlives it", kind, timeout)
				}
				if _, ok := ctx.Deadline(); kind != "series" && ok != (timeout > 0) {
					t.Errorf("%s, timeout %s: a deadline: %v", kind, timeout, ok)
				}
				if remove(); !o.closed || o.open != 0 {
					t.Errorf("%s: the store is not released: closed %v, %d streams are open", kind, o.closed, o.open)
				}
			}
		}
	}
}

// A selection that ends releases its slot and its context before the querier is closed.
func TestQuerier_SelectionsReleaseTheirSlotAndContext(t *testing.T) {
	f, o, remove := observe(t, Options{SelectsMax: 1})
	defer remove()
	q, err := f.Queryable(Request{}).Querier(0, 10)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		set := q.Select(t.Context(), true, nil, labels.MustNewMatcher(labels.MatchRegexp, "__name__", strings.Repeat(".*", i+1)))
		if !set.Next() || set.Next() || set.Err() != nil {
			t.Errorf("selection %d: %v", i, set.Err())
		}
		if o.of("series").Err() == nil {
			t.Errorf("selection %d: its context outlives it", i)
		}
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
}

// A fault of the querier itself fails the query, not the process.
func TestQuerier_PanicOfASelectionIsItsError(t *testing.T) {
	f, _, remove := observe(t, Options{})
	defer remove()
	q, err := f.Queryable(Request{}).Querier(0, 10)
	if err != nil {
		t.Fatal(err)
	}
	set := q.Select(t.Context(), true, nil, nil) // a matcher that is nil
	if set.Next() || !errors.Is(set.Err(), errPanicked) || !strings.Contains(set.Err().Error(), "store all: ") {
		t.Errorf("%v", set.Err())
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
}

func TestReadAhead_PagesEndAtTheirSize(t *testing.T) {
	lset := func(n int) []byte { return make([]byte, n) }
	for name, tt := range map[string]struct {
		labels []int  // bytes of the labels of each series
		want   string // series of each page
	}{
		"the first series alone": {[]int{10, 10, 10}, "1 2"},
		"pages of full size":     {[]int{10, aheadPageBytes, 10, 10}, "1 1 2"},
		"one byte less":          {[]int{10, aheadPageBytes - 1, 1, 10}, "1 2 1"},
		"nothing":                {nil, ""},
		"one":                    {[]int{10}, "1"},
	} {
		var sets [][]byte
		for _, n := range tt.labels {
			sets = append(sets, lset(n))
		}
		b := &budget{max: 1 << 30, wait: time.Second}
		a := readAhead(t.Context(), &labelSets{sets: sets}, b, func(err error) error { return err }, nil)
		<-a.done
		var pages []string
		for p := range a.pages {
			pages = append(pages, fmt.Sprint(len(p.series)))
		}
		if got := strings.Join(pages, " "); got != tt.want {
			t.Errorf("%s: pages of %s series, want %s", name, got, tt.want)
		}
		if a.close(); b.held() != 0 {
			t.Errorf("%s: %d bytes are held", name, b.held())
		}
	}
}

// Chunks without data do not fill the bytes of a page.
func TestReadAhead_ChunksWithoutDataFillPages(t *testing.T) {
	b := &budget{max: 1 << 30, wait: time.Second}
	a := readAhead(t.Context(), &emptyChunks{n: 100, each: 5 * aheadChunks}, b, func(err error) error { return err }, nil)
	pages := 0
	for a.Next() {
		if len(a.page.series) > 1 || len(a.Chunks()) != 5*aheadChunks {
			t.Fatalf("a page of %d series, of %d chunks", len(a.page.series), len(a.Chunks()))
		}
		pages++
	}
	if kept := len(a.free); pages != 100 || kept > 1 {
		t.Errorf("%d pages, %d are kept", pages, kept)
	}
	if a.close(); b.held() != 0 {
		t.Errorf("%d bytes are held", b.held())
	}
	large := &page{pooled: true, chunks: make([]series.Chunk, 1, 4*aheadChunks+1)}
	if large.release(); len(large.chunks) == 0 {
		t.Error("a page with many chunks is kept for other requests")
	}
}

// emptyChunks is a set of n series with chunks without data.
type emptyChunks struct {
	series.Set
	n, each int
}

func (e *emptyChunks) Next() bool             { e.n--; return e.n >= 0 }
func (e *emptyChunks) Labels() []byte         { return nil }
func (e *emptyChunks) Chunks() []series.Chunk { return make([]series.Chunk, e.each) }
func (e *emptyChunks) Err() error             { return nil }

func TestReadAhead_ErrorsAreNamedAndTheRestIsPassedOn(t *testing.T) {
	named := func(err error) error { return fmt.Errorf("store x: %w", err) }
	sets := [][]byte{[]byte("a"), []byte("b"), []byte("c")}
	a := readAhead(t.Context(), &labelSets{sets: sets, err: errBroken}, &budget{}, named, nil)
	n := 0
	for ; a.Next(); n++ {
		if string(a.Labels()) != string(sets[n]) || a.Err() != nil {
			t.Errorf("series %d: %q, %v", n, a.Labels(), a.Err())
		}
	}
	if n != 3 || !errors.Is(a.Err(), errBroken) { // the stream names its store itself
		t.Errorf("%d series, %v", n, a.Err())
	}
	a.close()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(ErrStalled)
	many := make([][]byte, 2*aheadPages*aheadSeries)
	a = readAhead(ctx, &labelSets{sets: many}, &budget{}, named, nil)
	<-a.done
	for a.Next() {
	}
	if !errors.Is(a.Err(), ErrStalled) {
		t.Errorf("a context that has ended: %v", a.Err())
	}
	a.close()
}

// The timer of a store may fire after its last series arrived. The caller must not take what it got then for everything.
func TestReadAhead_ALostLastPageIsAnError(t *testing.T) {
	for range 200 {
		ctx, cancel := context.WithCancelCause(t.Context())
		set := &labelSets{sets: [][]byte{[]byte("a"), []byte("b"), []byte("c")}, atEnd: func() { cancel(ErrStalled) }}
		a := readAhead(ctx, set, &budget{}, func(err error) error { return fmt.Errorf("store x: %w", err) }, nil)
		n := 0
		for a.Next() {
			n++
		}
		err := a.Err()
		if n != 3 && (!errors.Is(err, ErrStalled) || !strings.Contains(err.Error(), "store x")) || n == 3 && err != nil {
			t.Fatalf("%d of 3 series, %v", n, err)
		}
		a.close()
		cancel(nil)
	}
}

// labelSets is a set of series without chunks.
type labelSets struct {
	series.Set
	sets  [][]byte
	at    int
	err   error
	atEnd func()
}

func (s *labelSets) Next() bool {
	if s.at++; s.at > len(s.sets) && s.atEnd != nil {
		s.atEnd()
	}
	return s.at <= len(s.sets)
}
func (s *labelSets) Labels() []byte         { return s.sets[s.at-1] }
func (s *labelSets) Chunks() []series.Chunk { return nil }
func (s *labelSets) Err() error             { return s.err }

// Labels and data are copied into slabs; what does not fit gets the next one.
func TestCollected_SlabsAreFilledToTheirEnd(t *testing.T) {
	k := &collected{budget: &budget{}}
	k.ownLabels(make([]byte, labelSlabBytes-3))
	first := &k.labels[0]
	if k.ownLabels(make([]byte, 3)); &k.labels[0] != first || len(k.labels) != labelSlabBytes {
		t.Error("labels that fit got another slab")
	}
	if k.ownLabels(make([]byte, 1)); &k.labels[0] == first || len(k.labels) != 1 || cap(k.labels) != labelSlabBytes {
		t.Errorf("%d bytes of %d", len(k.labels), cap(k.labels))
	}
	if set := k.ownLabels(make([]byte, labelSlabBytes+1)); len(set) != labelSlabBytes+1 {
		t.Errorf("%d bytes", len(set))
	}
	if k.ownData(make([]byte, slabBytes)); len(k.lent) != 1 || len(k.data) != slabBytes {
		t.Errorf("%d slabs, %d bytes", len(k.lent), len(k.data))
	}
	if data := k.ownData(make([]byte, slabBytes+1)); len(k.lent) != 1 || len(data) != slabBytes+1 || len(k.data) != slabBytes {
		t.Errorf("a chunk longer than a slab: %d slabs, %d bytes", len(k.lent), len(data))
	}
	if k.ownData(nil); len(k.lent) != 1 {
		t.Error("nothing got a slab")
	}
	if k.ownData([]byte("x")); len(k.lent) != 2 || string(k.data) != "x" {
		t.Errorf("%d slabs, %q", len(k.lent), k.data)
	}
	k.release()
	if k.lent != nil || k.data != nil || k.read != nil || k.series != nil {
		t.Error("slabs are kept")
	}
}

func TestCollected_AddCountsSeriesAndBytes(t *testing.T) {
	k := &collected{budget: &budget{}}
	chunk := func(text string) series.Chunk { return series.Chunk{Data: []byte(text)} }
	a, b := labelenc.AppendLabel(nil, "a", "1"), labelenc.AppendLabel(nil, "b", "22")
	for i, tt := range []struct {
		lset        []byte
		chunks      []series.Chunk
		added, size int64
		held        int // chunks of the last series
	}{
		{a, nil, 1, int64(len(a)), 0}, {a, []series.Chunk{chunk("abc")}, 0, 3 + chunkBytes, 1}, {a, []series.Chunk{chunk("d"), chunk("")}, 0, 1 + 2*chunkBytes, 3},
		{b, []series.Chunk{chunk("xy")}, 1, int64(len(b)) + 2 + chunkBytes, 1}, {a, nil, 1, int64(len(a)), 0},
	} {
		added, size := k.add(tt.lset, tt.chunks)
		if last := k.read[len(k.read)-1]; added != tt.added || size != tt.size || len(last.chunks) != tt.held {
			t.Errorf("series %d: %d added, %d bytes, %d chunks", i, added, size, len(last.chunks))
		}
	}
	var data []string
	for _, c := range k.read[0].chunks {
		data = append(data, string(c.Data))
	}
	if len(k.read) != 3 || fmt.Sprintf("%q", data) != `["abc" "d" ""]` {
		t.Errorf("%d series, %q", len(k.read), data)
	}
	k.release()
}

func TestQuery_ResolutionSuitsTheFunction(t *testing.T) {
	q := &Query{r: Request{MaxResolutionMS: 1000}}
	for _, tt := range []struct {
		function string
		rangeMS  int64
		want     int64
	}{
		{"", 0, 1000}, {"sum_over_time", 100, 1000}, {"rate", 0, 1000}, {"rate", 100, 50}, {"rate", 2000, 1000}, {"rate", 1999, 999}, {"rate", 1, 0}, {"deriv", 10, 5}, {"resets", 5000, 0}, {"resets", 0, 0},
	} {
		if got := q.resolution(tt.function, tt.rangeMS); got != tt.want {
			t.Errorf("%+v: %d", tt, got)
		}
	}
	for function, want := range map[string]string{
		"": "[COUNT SUM]", "min": "[MIN]", "min_over_time": "[MIN]", "minute": "[COUNT SUM]", "max": "[MAX]", "max_over_time": "[MAX]", "count": "[COUNT]", "count_over_time": "[COUNT]", "sum": "[COUNT SUM]", "sum_over_time": "[SUM]",
		"rate": "[COUNTER]", "irate": "[COUNTER]", "increase": "[COUNTER]", "delta": "[COUNT SUM]", "avg_over_time": "[COUNT SUM]",
	} {
		names := map[series.Aggr]string{series.Count: "COUNT", series.Sum: "SUM", series.Min: "MIN", series.Max: "MAX", series.Counter: "COUNTER"}
		var got []string
		for _, a := range aggregatesFor(function) {
			got = append(got, names[a])
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%s: %v, want %s", function, got, want)
		}
	}
}
