package fanout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	tracesdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/metrics"
)

// measured is newTestFanout with metrics.
func measured(t *testing.T, opts Options, stores ...*fakeStore) (*Fanout, *Endpoints, *metrics.Set) {
	t.Helper()
	set := metrics.NewSet()
	eo := EndpointsOptions{Metrics: set}
	for i := range stores {
		eo.Static = append(eo.Static, Address{Name: fmt.Sprint("s", i)})
	}
	eo.Dial = func(a Address) (Client, error) {
		address := a.Name
		var i int
		_, err := fmt.Sscanf(address, "s%d", &i)
		return stores[i], err
	}
	e := NewEndpoints(eo)
	e.Update(t.Context())
	t.Cleanup(e.Close)
	return New(e, opts), e, set
}

func pageOf(set *metrics.Set) string {
	var page strings.Builder
	set.WritePrometheus(&page)
	return page.String()
}

func checkLines(t *testing.T, page string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains("\n"+page, "\n"+line+"\n") {
			t.Errorf("missing: %s", line)
		}
	}
	if t.Failed() {
		t.Log(page)
	}
}

func TestMetrics_CountWhatEachStoreSends(t *testing.T) {
	good, bad, stalled, warns := holding(t, "x"), holding(t, "y"), &fakeStore{stall: true}, holding(t, "z")
	bad.err, warns.warning = fmt.Errorf("%w: a bad varint", storeapi.ErrCorrupt), "a block is missing"
	f, e, set := measured(t, Options{ResponseTimeout: 50 * time.Millisecond}, good, bad, stalled, warns)
	if got, _, warnings, err := read(t, f.Queryable(Request{}), 0, 10, nil); err != nil || len(got) != 3 || len(warnings) != 3 {
		t.Fatal(got, warnings, err)
	}
	if _, _, err := passOn(t, f, storeapi.SeriesRequest{}); err != nil {
		t.Fatal(err)
	}
	page := pageOf(set)
	checkLines(t, page,
		`ferula_query_store_series_total{store="s0"} 2`, `ferula_query_store_chunks_total{store="s0"} 2`,
		`ferula_query_store_seconds_count{store="s0"} 2`, `ferula_query_store_first_series_seconds_count{store="s0"} 2`,
		`ferula_query_store_errors_total{store="s1",reason="corrupt"} 2`, `ferula_query_store_errors_total{store="s2",reason="stalled"} 2`,
		`ferula_query_store_seconds_count{store="s2"} 2`, `ferula_query_store_first_series_seconds_count{store="s2"} 0`,
		`ferula_query_partial_responses_total{request="select"} 1`, `ferula_query_partial_responses_total{request="forward"} 1`,
		`ferula_query_chunk_bytes 0`)
	if strings.Contains(page, `ferula_query_store_bytes_total{store="s0"} 0`) || strings.Contains(page, `errors_total{store="s0"`) {
		t.Error(page)
	}
	e.replace(nil)
	if page := pageOf(set); strings.Contains(page, `store="s`) {
		t.Errorf("removed stores have metrics:\n%s", page)
	}
}

// A client that disconnects, and a call that the error of another store cancels, are not counted as errors of a store.
func TestMetrics_AnEndThatTheStoreDidNotCauseIsNoError(t *testing.T) {
	waiting := make(chan struct{})
	slow := &fakeStore{onOpen: func(ctx context.Context) { close(waiting); <-ctx.Done() }}
	f, _, set := measured(t, Options{}, slow)
	q, err := f.Queryable(Request{}).Querier(0, 10)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	found := q.Select(ctx, true, nil, everything)
	<-waiting
	cancel()
	for found.Next() {
	}
	if err := q.Close(); err != nil || found.Err() == nil {
		t.Error(err, found.Err())
	}
	if page := pageOf(set); strings.Contains(page, "ferula_query_store_errors_total{") {
		t.Error(page)
	}
}

func TestBudget_CountsBuffersOfStreams(t *testing.T) {
	s := holding(t, "x")
	s.buffers = 10 * budgetStep
	f, _, set := measured(t, Options{TotalBytesMax: 4 * budgetStep, TotalWait: time.Millisecond}, s)
	if _, _, _, err := read(t, f.Queryable(Request{}), 0, 10, nil); !errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), "store s0") {
		t.Errorf("buffers beyond the budget: %v", err)
	}
	checkLines(t, pageOf(set), "ferula_query_chunk_bytes 0", fmt.Sprint("ferula_query_chunk_bytes_max ", 4*budgetStep),
		"ferula_query_chunk_bytes_waits_total 1", "ferula_query_chunk_bytes_rejected_total 1")
	s.buffers = budgetStep
	q, err := f.Queryable(Request{}).Querier(0, 10)
	if err != nil {
		t.Fatal(err)
	}
	found := q.Select(t.Context(), true, nil, everything)
	for found.Next() {
	}
	if held := f.budget.held(); found.Err() != nil || held <= 0 || held >= budgetStep {
		t.Errorf("after the stream %d bytes are held, %v", held, found.Err())
	}
	if err := q.Close(); err != nil || f.budget.held() != 0 {
		t.Error(err, f.budget.held())
	}
}

// The buffers of streams also count against the budget if series are forwarded, from one store and from several stores.
func TestBudget_CountsBuffersOfForwardedStreams(t *testing.T) {
	for stores := 1; stores <= 2; stores++ {
		var all []*fakeStore
		for i := range stores {
			all = append(all, big(t, i, 12_000, 2)) // more than is read ahead
			all[i].buffers = 100 * budgetStep
		}
		f, _, _ := measured(t, Options{TotalBytesMax: 80 * budgetStep, TotalWait: time.Millisecond}, all...)
		if _, _, err := passOn(t, f, storeapi.SeriesRequest{}); !errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), "store s") {
			t.Errorf("buffers of %d stores beyond the budget: %v", stores, err)
		}
		if held := f.budget.held(); held != 0 {
			t.Errorf("%d bytes are held after the error", held)
		}
		f.budget.max = 1000 * budgetStep
		set := f.Source().Series(t.Context(), storeapi.SeriesRequest{MaxMS: 1 << 40, Matchers: []*labels.Matcher{everything}})
		if !set.Next() {
			t.Fatal(set.Err())
		}
		if held := f.budget.held(); held < 100*budgetStep {
			t.Errorf("%d bytes of %d stores are held", held, stores)
		}
		for set.Next() {
		}
		if held := f.budget.held(); set.Err() != nil || held >= 100*budgetStep {
			t.Errorf("%d bytes are held after the end, %v", held, set.Err())
		}
		if err := set.Close(); err != nil || f.budget.held() != 0 {
			t.Errorf("after Close %d bytes are held, %v", f.budget.held(), err)
		}
	}
}

func TestBudget_CountsSeriesReadAhead(t *testing.T) {
	f, _, _ := measured(t, Options{TotalBytesMax: 1 << 30}, big(t, 0, 2000, 2), big(t, 1, 2000, 2))
	set := f.Source().Series(t.Context(), storeapi.SeriesRequest{MaxMS: 1 << 40, Matchers: []*labels.Matcher{everything}})
	n := 0
	for ; set.Next(); n++ {
	}
	if held := f.budget.held(); set.Err() != nil || n != 4000 || held < aheadPageBytes {
		t.Errorf("%d series, %d bytes, %v", n, held, set.Err())
	}
	if err := set.Close(); err != nil || f.budget.held() != 0 {
		t.Errorf("after Close %d bytes are held, %v", f.budget.held(), err)
	}
	f.budget.max, f.budget.wait = aheadPageBytes, time.Millisecond
	if _, _, err := passOn(t, f, storeapi.SeriesRequest{}); !errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), "store s") {
		t.Errorf("read ahead beyond the budget: %v", err)
	}
	if held := f.budget.held(); held != 0 {
		t.Errorf("%d bytes are held at the end", held)
	}
}

// If series that are forwarded exceed a limit, the error is ResourceExhausted, as that of a store at its limits. The code
// Internal would mean that this querier has a fault.
func TestBudget_ExceededByForwardedSeriesIsALimitForTheClient(t *testing.T) {
	f, _, _ := measured(t, Options{TotalBytesMax: aheadPageBytes, TotalWait: time.Millisecond}, big(t, 0, 2000, 2), big(t, 1, 2000, 2))
	client, err := dialStore(listen(t, f.Source()), storeapi.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	set := client.Series(t.Context(), storeapi.SeriesRequest{MaxMS: 1 << 40, Matchers: []*labels.Matcher{everything}})
	defer set.Close()
	for set.Next() {
	}
	if err := set.Err(); !errors.Is(err, storeapi.ErrLimit) || !strings.Contains(err.Error(), "query limit exceeded: all queries together") {
		t.Error(err)
	}
}

func TestSpans_OfSelectionsAndStores(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	provider := tracesdk.NewTracerProvider(tracesdk.WithSpanProcessor(recorder))
	bad := holding(t, "y")
	bad.err = errBroken
	f, _, _ := measured(t, Options{}, holding(t, "x"), bad)
	ctx, root := provider.Tracer("test").Start(t.Context(), "query")
	q, err := f.Queryable(Request{}).Querier(0, 10)
	if err != nil {
		t.Fatal(err)
	}
	set := q.Select(ctx, true, nil, everything)
	for set.Next() {
	}
	if err := errors.Join(set.Err(), q.Close()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := q.LabelNames(ctx, nil); err != nil {
		t.Fatal(err)
	}
	root.End()
	var names []string
	for _, span := range recorder.Ended() {
		name := span.Name()
		for _, a := range span.Attributes() {
			if a.Key == "store" || a.Key == "series" || a.Key == "warnings" {
				name += fmt.Sprintf(" %s=%s", a.Key, a.Value.String())
			}
		}
		names = append(names, name+" "+span.Status().Code.String())
		if span.SpanContext().TraceID() != root.SpanContext().TraceID() {
			t.Errorf("%s is in another trace", name)
		}
	}
	slices.Sort(names)
	want := []string{"query Unset", "select series=2 warnings=1 Unset", "store store=s0 Unset", "store store=s0 series=1 Unset", "store store=s1 Unset", "store store=s1 series=1 Error"}
	if !slices.Equal(names, want) {
		t.Errorf("spans %q\nwant %q", names, want)
	}
}

// Each store serves ten requests at once and holds a slot until its response is read.
func TestQuerier_FortySelectionsOverTwoStoresWithTenSlotsEach(t *testing.T) {
	var stores []*fakeStore
	for i := range 2 {
		slots := make(chan struct{}, 10)
		s := &fakeStore{}
		for j := range 300 {
			one := holding(t, "m").series[0]
			one.labels = labels.FromStrings("__name__", "m", "j", fmt.Sprintf("%03d", 2*j+i))
			s.series = append(s.series, one)
		}
		begun := len(s.series)
		s.onNext = func(ctx context.Context, _ storeapi.SeriesRequest, left int) {
			switch left {
			case begun:
				select {
				case slots <- struct{}{}:
				case <-ctx.Done():
				}
			case 0:
				<-slots
			}
		}
		stores = append(stores, s)
	}
	f, _ := newTestFanout(t, Options{}, stores...)
	var running sync.WaitGroup
	for range 40 {
		running.Go(func() {
			if got, _, warnings, err := read(t, f.Queryable(Request{}), 0, 1<<40, nil); err != nil || len(got) != 600 || len(warnings) > 0 {
				t.Errorf("%v, %d series, %q", err, len(got), warnings)
			}
		})
	}
	running.Wait()
}

func TestQuerier_TwoHundredStoresOfWhichSomeAreDown(t *testing.T) {
	var stores []*fakeStore
	for i := range 200 {
		s := holding(t, fmt.Sprintf("m%03d", i))
		if i%10 == 0 {
			s.infoErr = errBroken
		}
		stores = append(stores, s)
	}
	f, _ := newTestFanout(t, Options{}, stores...)
	got, order, warnings, err := read(t, f.Queryable(Request{}), 0, 10, nil)
	if err != nil || len(got) != 180 || len(warnings) != 20 || !slices.IsSorted(order) {
		t.Errorf("%v: %d series, %d warnings", err, len(got), len(warnings))
	}
	names, warnings, err := passOn(t, f, storeapi.SeriesRequest{})
	if err != nil || len(names) != 180 || len(warnings) != 20 || !slices.IsSorted(names) {
		t.Errorf("for a querier: %v: %d series, %d warnings", err, len(names), len(warnings))
	}
	if _, _, _, err := read(t, f.Queryable(Request{AbortOnPartial: true}), 0, 10, nil); !errors.Is(err, storeapi.ErrUnavailable) || !strings.Contains(err.Error(), "store s190") {
		t.Errorf("without partial responses: %v", err)
	}
}
