package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	tracesdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/ferula-io/ferula/internal/httpapi"
)

// recordingEngine is a stubEngine that records the latest query.
type recordingEngine struct {
	stubEngine
	ctx      context.Context
	lookback time.Duration
	times    string // of the query
	err      error  // of creating a query
}

func newRecordingEngine() *recordingEngine {
	return &recordingEngine{stubEngine: stubEngine{result: &promql.Result{Value: promql.Vector{}}}}
}

func (e *recordingEngine) NewInstantQuery(ctx context.Context, from storage.Queryable, opts promql.QueryOpts, query string, at time.Time) (promql.Query, error) {
	e.ctx, e.lookback, e.times = ctx, opts.LookbackDelta(), fmt.Sprint(at.Unix())
	if e.err != nil {
		return nil, e.err
	}
	return e.evaluated(from, at, at, func() (promql.Query, error) { return e.stubEngine.NewInstantQuery(ctx, from, opts, query, at) })
}

func (e *recordingEngine) NewRangeQuery(ctx context.Context, from storage.Queryable, opts promql.QueryOpts, query string, start, end time.Time, step time.Duration) (promql.Query, error) {
	e.ctx, e.lookback, e.times = ctx, opts.LookbackDelta(), fmt.Sprint(start.Unix(), end.Unix(), step)
	if e.err != nil {
		return nil, e.err
	}
	return e.evaluated(from, start, end, func() (promql.Query, error) {
		return e.stubEngine.NewRangeQuery(ctx, from, opts, query, start, end, step)
	})
}

// evaluated returns a query that knows its engine. It opens a querier, as an engine does.
func (e *recordingEngine) evaluated(from storage.Queryable, start, end time.Time, open func() (promql.Query, error)) (promql.Query, error) {
	if from != nil {
		if _, err := from.Querier(start.UnixMilli(), end.UnixMilli()); err != nil {
			return nil, err
		}
	}
	q, err := open()
	return evaluatedQuery{q}, err
}

type evaluatedQuery struct{ promql.Query }

func (evaluatedQuery) EvaluatedBy() (engine, reason string) { return "stub", "a test" }

func TestAPI_StepOfARangeQueryOfStoresHasADefault(t *testing.T) {
	engine := newRecordingEngine()
	o := httpapi.Options{Engine: engine, Stores: &recordingStores{}, StoreDefaults: httpapi.StoreDefaults{Step: 10 * time.Second}}
	for query, want := range map[string]string{
		"start=0&end=25000": "0 25000 1m40s", "start=0&end=2500": "0 2500 10s", "start=0&end=2600": "0 2600 10s", "start=0&end=2750": "0 2750 11s", "start=0&end=2749": "0 2749 10s",
		"start=0&end=60": "0 60 10s", "start=0&end=60&step=7": "0 60 7s", "start=5&end=5": "5 5 10s",
	} {
		if w := responseOf(o, "/query_range?query=up&"+query); w.Code != http.StatusOK || engine.times != want {
			t.Errorf("%s: %d, %s, want %s", query, w.Code, engine.times, want)
		}
	}
	o.StoreDefaults.Step = 0
	checkResponse(t, o, "/query_range?query=up&start=0&end=60", http.StatusBadRequest, `"error":"invalid parameter \"step\": cannot parse \"\" to a valid duration"}`)
}

func TestAPI_StepsOfARangeQueryAreLimited(t *testing.T) {
	engine := newRecordingEngine()
	o := httpapi.Options{Engine: engine, Queryable: empty{}}
	for query, want := range map[string]string{
		"start=0&end=11000&step=1": "", "start=0&end=11000.999&step=1": "", "start=0&end=11001&step=1": "exceeded maximum resolution of 11,000 points",
		"start=0&end=1&step=0.001": "", "start=0&end=1&step=0.0009": "is less than 1ms", "start=0&end=1&step=0": "zero or negative", "start=0&end=1&step=-1": "zero or negative", "start=1&end=1&step=1": "", "start=1&end=0.999&step=1": "end timestamp must not be before start time",
	} {
		w := responseOf(o, "/query_range?query=up&"+query)
		if want == "" && w.Code != http.StatusOK || want != "" && (w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), want)) {
			t.Errorf("%s: %d %s", query, w.Code, w.Body)
		}
	}
}

func TestAPI_LookbackIsAtLeastTheResolution(t *testing.T) {
	for _, c := range []struct {
		defaults httpapi.StoreDefaults
		path     string
		want     time.Duration // 0: that of the engine
	}{
		{httpapi.StoreDefaults{Lookback: time.Minute, DynamicLookback: true}, "/query?query=up&max_source_resolution=1m", 0},
		{httpapi.StoreDefaults{Lookback: time.Minute, DynamicLookback: true}, "/query?query=up&max_source_resolution=61s", 5 * time.Minute},
		{httpapi.StoreDefaults{Lookback: time.Minute, DynamicLookback: true}, "/query?query=up&max_source_resolution=5m", 5 * time.Minute},
		{httpapi.StoreDefaults{Lookback: time.Minute, DynamicLookback: true}, "/query?query=up&max_source_resolution=301s", time.Hour},
		{httpapi.StoreDefaults{Lookback: 10 * time.Minute, DynamicLookback: true}, "/query?query=up&max_source_resolution=10m", 0},
		{httpapi.StoreDefaults{Lookback: 10 * time.Minute, DynamicLookback: true}, "/query?query=up&max_source_resolution=601s", time.Hour},
		{httpapi.StoreDefaults{Lookback: 2 * time.Hour, DynamicLookback: true}, "/query?query=up&max_source_resolution=3h", 0},
		{httpapi.StoreDefaults{Lookback: time.Minute}, "/query?query=up&max_source_resolution=1h", 0},
		{httpapi.StoreDefaults{Lookback: time.Minute, DynamicLookback: true}, "/query?query=up&max_source_resolution=1h&lookback_delta=30s", 30 * time.Second},
		{httpapi.StoreDefaults{Lookback: time.Minute, DynamicLookback: true, AutoDownsampling: true, InstantResolution: time.Hour}, "/query?query=up", time.Hour},
		{httpapi.StoreDefaults{Lookback: time.Minute, DynamicLookback: true, AutoDownsampling: true}, "/query_range?query=up&start=0&end=9000&step=1000", 5 * time.Minute},
		{httpapi.StoreDefaults{Lookback: time.Minute, DynamicLookback: true, AutoDownsampling: true}, "/query_range?query=up&start=0&end=9000&step=300", 0},
	} {
		engine := newRecordingEngine()
		if w := responseOf(httpapi.Options{Engine: engine, Stores: &recordingStores{}, StoreDefaults: c.defaults}, c.path); w.Code != http.StatusOK || engine.lookback != c.want {
			t.Errorf("%s of %s: %d, %s, want %s", c.path, c.defaults.Lookback, w.Code, engine.lookback, c.want)
		}
	}
}

func TestAPI_ResolutionOfAQueryReachesTheStores(t *testing.T) {
	for path, want := range map[string]string{
		"/query?query=up&time=7":                              "[] 3m0s 7000 7000",
		"/query_range?query=up&start=0&end=900&step=100":      "[] 20s 0 900000",
		"/query?query=up&time=7&max_source_resolution=5m":     "[] 5m0s 7000 7000",
		"/query_explain?query=up&time=7&replicaLabels[]=a":    "[a] 3m0s 7000 7000",
		"/query_range_explain?query=up&start=0&end=9&step=10": "[] 2s 0 9000",
	} {
		stores := &recordingStores{}
		o := httpapi.Options{Engine: newRecordingEngine(), Stores: stores, StoreDefaults: httpapi.StoreDefaults{AutoDownsampling: true, InstantResolution: 3 * time.Minute}}
		if w := responseOf(o, path); w.Code != http.StatusOK || stores.call != want {
			t.Errorf("%s: %d, %s, want %s", path, w.Code, stores.call, want)
		}
	}
}

// A context whose timer runs on would hold the query's memory until the timeout.
func TestAPI_TimeoutOfAQueryIsReleasedWithTheQuery(t *testing.T) {
	for _, path := range []string{"/query?query=up", "/query_range?query=up&start=0&end=1&step=1", "/query_explain?query=up"} {
		for _, err := range []error{nil, errors.New("refused")} {
			engine := newRecordingEngine()
			engine.err = err
			responseOf(httpapi.Options{Engine: engine, Queryable: empty{}}, path+"&timeout=1h")
			if _, ok := engine.ctx.Deadline(); !ok || !errors.Is(engine.ctx.Err(), context.Canceled) {
				t.Errorf("%s: deadline %v, %v after the query", path, ok, engine.ctx.Err())
			}
		}
	}
	for _, path := range []string{"/query?query=up", "/query_explain?query=up"} {
		checkResponse(t, httpapi.Options{Engine: newRecordingEngine(), Queryable: empty{}}, path+"&timeout=x", http.StatusBadRequest, `invalid parameter \"timeout\": cannot parse \"x\" to a valid duration"}`)
	}
}

func TestAPI_FailedQueryIsClosed(t *testing.T) {
	engine := newRecordingEngine()
	engine.result = &promql.Result{Err: errors.New("broken")}
	checkResponse(t, httpapi.Options{Engine: engine, Queryable: empty{}}, "/query?query=up", http.StatusUnprocessableEntity, `"error":"broken"}`)
	if engine.opened.Load() != 0 || engine.closed.Load() != 1 {
		t.Errorf("%d open, %d closed", engine.opened.Load(), engine.closed.Load())
	}
}

// In the queue the engine returns the bare error of the context.
func TestAPI_EndInTheQueryQueue(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
		text   string
	}{
		{context.Canceled, 499, `"errorType":"canceled","error":"query was canceled in query queue"}`},
		{context.DeadlineExceeded, http.StatusServiceUnavailable, `"errorType":"timeout","error":"query timed out in query queue"}`},
	} {
		inExec, inOpen := newRecordingEngine(), newRecordingEngine()
		inExec.result, inOpen.err = &promql.Result{Err: c.err}, c.err
		for _, engine := range []*recordingEngine{inExec, inOpen} {
			checkResponse(t, httpapi.Options{Engine: engine, Queryable: empty{}}, "/query?query=up", c.status, c.text)
		}
	}
	wrapped := newRecordingEngine()
	wrapped.result = &promql.Result{Err: fmt.Errorf("expanding series: %w", context.DeadlineExceeded)}
	checkResponse(t, httpapi.Options{Engine: wrapped, Queryable: empty{}}, "/query?query=up", http.StatusUnprocessableEntity, `"errorType":"execution","error":"expanding series: context deadline exceeded"}`)
	checkResponse(t, httpapi.Options{Engine: wrapped, Stores: &recordingStores{}}, "/query?query=up", http.StatusServiceUnavailable, `"errorType":"timeout","error":"expanding series: context deadline exceeded"}`)
}

func TestAPI_EngineOfAQueryIsInTheHeader(t *testing.T) {
	o := httpapi.Options{Engine: newRecordingEngine(), Queryable: empty{}}
	if got := responseOf(o, "/query?query=up").Header().Get("X-Ferula-Query-Engine"); got != "stub; reason=a test" {
		t.Errorf("%q", got)
	}
	if got := responseOf(o, "/labels").Header().Values("X-Ferula-Query-Engine"); len(got) > 0 {
		t.Errorf("%q without a query", got)
	}
}

func TestAPI_SpansOfQueries(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	tracer := tracesdk.NewTracerProvider(tracesdk.WithSpanProcessor(recorder)).Tracer("test")
	good, failed, refused := newRecordingEngine(), newRecordingEngine(), newRecordingEngine()
	failed.result, refused.err = &promql.Result{Err: errors.New("broken")}, errors.New("refused")
	for _, c := range []struct {
		engine *recordingEngine
		path   string
		want   []string
	}{
		{good, "/query?query=up&time=7&timeout=1m", []string{"promqlInstantQuery", "engine=stub; reason=a test", "query=up", "time=7", "timeout=1m"}},
		{good, "/query_range?query=up&start=1&end=3&step=2", []string{"promqlRangeQuery", "end=3", "engine=stub; reason=a test", "query=up", "start=1", "step=2"}},
		{failed, "/query?query=up", []string{"promqlInstantQuery", "engine=stub; reason=a test", "query=up", "error=broken", "event=exception"}},
		{refused, "/query?query=up", []string{"promqlInstantQuery", "engine=", "query=up", "error=refused", "event=exception"}},
	} {
		mux := http.NewServeMux()
		httpapi.New(httpapi.Options{Engine: c.engine, Queryable: empty{}, Parser: parser.NewParser(parser.Options{})}).Register(mux, prefix)
		ctx, root := tracer.Start(t.Context(), "request")
		mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, prefix+c.path, nil))
		root.End()
		spans := recorder.Ended()
		recorder.Reset()
		if len(spans) != 2 {
			t.Fatalf("%s: %d spans", c.path, len(spans))
		}
		got := []string{}
		for _, a := range spans[0].Attributes() {
			got = append(got, string(a.Key)+"="+a.Value.String())
		}
		slices.Sort(got)
		if text := spans[0].Status().Description; text != "" {
			got = append(got, "error="+text)
		}
		for _, e := range spans[0].Events() {
			got = append(got, "event="+e.Name)
		}
		if got = append([]string{spans[0].Name()}, got...); !slices.Equal(got, c.want) || spans[0].Parent().SpanID() != root.SpanContext().SpanID() {
			t.Errorf("%s: %q, want %q", c.path, got, c.want)
		}
	}
}
