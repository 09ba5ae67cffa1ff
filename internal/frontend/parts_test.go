package frontend

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sync/semaphore"

	"github.com/ferula-io/ferula/internal/frontend/downstream"
	"github.com/ferula-io/ferula/internal/frontend/limit"
	"github.com/ferula-io/ferula/internal/httpbody"
	instruments "github.com/ferula-io/ferula/metrics"
)

// source is a body that counts how often it is closed.
type source struct {
	io.Reader
	closed int
}

func (s *source) Close() error { s.closed++; return io.ErrNoProgress }

func TestReadAheadBody_ReadsWhatItsBuffersHold(t *testing.T) {
	text := strings.Repeat("0123456789abcdef", 3<<20/16)
	for name, tt := range map[string]struct {
		bytes, budget int64
		ahead         int // bytes read before the barrier
	}{
		"short":                      {100, 1 << 30, 100},
		"as long as the buffer":      {readAheadBytes, 0, readAheadBytes},
		"longer, without a budget":   {readAheadBytes + 1, 0, readAheadBytes},
		"longer":                     {readAheadBytes + 1, 2 * readAheadBytes, readAheadBytes + 1},
		"longer than the limit":      {3 << 20, 1 << 30, readAheadPartBytes},
		"a budget of two buffers":    {3 << 20, 2 * readAheadBytes, 2 * readAheadBytes},
		"a budget of six buffers":    {3 << 20, 6 * readAheadBytes, 4 * readAheadBytes},
		"a budget of almost two":     {3 << 20, 2*readAheadBytes - 1, readAheadBytes},
		"as long as the limit":       {readAheadPartBytes, 1 << 30, readAheadPartBytes},
		"nothing":                    {0, 1 << 30, 0},
		"as long as the second one":  {2 * readAheadBytes, 1 << 30, 2 * readAheadBytes},
		"a byte more than this":      {2*readAheadBytes + 1, 1 << 30, 2*readAheadBytes + 1},
		"a byte more than the limit": {readAheadPartBytes + 1, 1 << 30, readAheadPartBytes},
	} {
		t.Run(name, func(t *testing.T) {
			src := &source{Reader: strings.NewReader(text[:tt.bytes])}
			budget := semaphore.NewWeighted(tt.budget)
			ended := 0
			b := newReadAheadBody(src, budget, func() { ended++ })
			b.fill(make(chan struct{}))
			check(t, len(b.data) == tt.ahead, "%d bytes were read ahead, want %d", len(b.data), tt.ahead)
			check(t, tt.ahead <= readAheadBytes || !budget.TryAcquire(tt.budget), "the budget is not used")
			got, err := io.ReadAll(b)
			check(t, err == nil && string(got) == text[:tt.bytes], "%d bytes, %v", len(got), err)
			check(t, ended == 1, "ended %d times", ended)
			check(t, budget.TryAcquire(tt.budget), "the budget is still used")
			budget.Release(tt.budget)
			_, err = b.Read(make([]byte, 1))
			check(t, errors.Is(err, io.EOF), "after the end: %v", err)
			check(t, errors.Is(b.Close(), io.ErrNoProgress) && src.closed == 1 && ended == 1, "closed %d times, ended %d times", src.closed, ended)
			_, err = b.Read(make([]byte, 1))
			check(t, errors.Is(err, io.ErrClosedPipe), "after Close: %v", err)
		})
	}
}

func TestReadAheadBody_CloseReleasesItsShare(t *testing.T) {
	budget := semaphore.NewWeighted(1 << 20)
	src := &source{Reader: bytes.NewReader(make([]byte, 3<<20))}
	ended := 0
	b := newReadAheadBody(src, budget, func() { ended++ })
	b.fill(make(chan struct{}))
	check(t, !budget.TryAcquire(1<<20), "the budget is not used")
	check(t, errors.Is(b.Close(), io.ErrNoProgress), "the error of the body is lost")
	check(t, budget.TryAcquire(1<<20) && ended == 1 && src.closed == 1 && b.buffer == nil, "after Close: ended %d times, closed %d times", ended, src.closed)
}

func TestReadAheadBody_StopsAtTheBarrier(t *testing.T) {
	barrier := make(chan struct{})
	close(barrier)
	b := newReadAheadBody(&source{Reader: strings.NewReader("text")}, semaphore.NewWeighted(0), nil)
	b.fill(barrier)
	check(t, len(b.data) == 0, "%d bytes were read ahead", len(b.data))
	got, err := io.ReadAll(b)
	check(t, err == nil && string(got) == "text", "%q, %v", got, err)
	broken := newReadAheadBody(&source{Reader: io.MultiReader(strings.NewReader("te"), failingReader{})}, semaphore.NewWeighted(0), nil)
	broken.fill(make(chan struct{}))
	got, err = io.ReadAll(broken)
	check(t, errors.Is(err, io.ErrNoProgress) && string(got) == "te", "%q, %v", got, err)
}

func TestByteBudget_HoldsForAllParts(t *testing.T) {
	b := &byteBudget{flag: " (--flag)", max: 10}
	got, err := b.readAll(strings.NewReader("0123"))
	check(t, err == nil && string(got) == "0123" && b.used.Load() == 4, "%q, %v", got, err)
	got, err = b.readAll(strings.NewReader("012345"))
	check(t, err == nil && string(got) == "012345" && b.used.Load() == 10, "at the limit: %q, %v", got, err)
	_, err = b.readAll(strings.NewReader("0"))
	check(t, errors.Is(err, limit.ErrLimit) && strings.Contains(err.Error(), "at most 10 bytes (--flag)"), "one more: %v", err)
	b = &byteBudget{max: 1 << 20}
	_, err = b.readAll(failingReader{})
	check(t, errors.Is(err, io.ErrNoProgress), "%v", err)
	long := strings.Repeat("x", 500_000)
	got, err = b.readAll(strings.NewReader(long))
	check(t, err == nil && string(got) == long, "%d bytes, %v", len(got), err)
}

func TestSingleFlight_JoinLeaveAndFinish(t *testing.T) {
	f := newSingleFlight()
	client, gone := context.WithCancel(context.Background())
	c, work := f.join(client, "k")
	check(t, work != nil && work.Err() == nil, "the first does not work")
	again, none := f.join(context.Background(), "k")
	check(t, again == c && none == nil && c.waiters == 2, "%d clients", c.waiters)
	other, otherWork := f.join(context.Background(), "other")
	check(t, other != c && otherWork != nil, "another key has the same call")
	gone()
	f.leave("k", c)
	check(t, work.Err() == nil && f.calls["k"] == c, "the work ended although a client waits")
	f.leave("k", c)
	check(t, work.Err() != nil && f.calls["k"] == nil && otherWork.Err() == nil, "the work has not ended with its last client")
	next, work := f.join(context.Background(), "k")
	check(t, next != c && work != nil, "a client joins a call that was left")
	f.finish("k", c) // late
	check(t, f.calls["k"] == next, "the end of a call removes the next one")
	f.finish("k", next)
	f.finish("k", next)
	check(t, f.calls["k"] == nil && work.Err() == nil, "the call can still be joined")
	<-next.done
	f.leave("k", next)
	check(t, work.Err() != nil, "the work's context is kept")
	f.leave("other", other)
	check(t, len(f.calls) == 0, "%d calls", len(f.calls))
}

// serve sends one request to a frontend whose downstream has this response.
func serve(t *testing.T, body string, change func(*Options), request func(*http.Request)) *httptest.ResponseRecorder {
	t.Helper()
	w := newTestEnvWith(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }))
	o := Options{Downstream: clientOf(t, w.server.URL, downstream.Transport{}), Logger: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&o)
	}
	f, err := New(o)
	check(t, err == nil, "%v", err)
	r := httptest.NewRequest(http.MethodGet, "/api/v1/query?query=up", nil)
	if request != nil {
		request(r)
	}
	out := httptest.NewRecorder()
	f.ServeHTTP(out, r)
	return out
}

func TestLimits_ResponseOfTheLimitIsComplete(t *testing.T) {
	const body = `{"status":"success","data":{"resultType":"vector","result":[]}}`
	for n, want := range map[int64]int{0: 200, int64(len(body)): 200, int64(len(body)) - 1: 422} {
		for _, path := range []string{"/api/v1/query?query=up", "/api/v1/rules"} { // the first shares its response
			got := serve(t, body, func(o *Options) { o.Limits.ResponseBytesMax = n }, func(r *http.Request) { *r = *httptest.NewRequest(http.MethodGet, path, nil) })
			check(t, got.Code == want && (want != 200 || got.Body.String() == body), "%s, %d bytes: %d %s", path, n, got.Code, got.Body)
		}
	}
}

func TestSlowQueryLog_HasQueriesThatTakeAsLong(t *testing.T) {
	for name, tt := range map[string]struct {
		slower time.Duration
		path   string
		user   string // of basic authentication
		want   []string
		never  []string
	}{
		"none":           {0, "/api/v1/query?query=up", "", nil, []string{"slow"}},
		"as long":        {6 * time.Second, "/api/v1/query?query=up&time=5", "", []string{"slow query detected", "path=/api/v1/query", "took=6s", "param_time=5", "tenant=anonymous", "bytes=2"}, []string{"remote_user", "cache="}},
		"longer":         {6*time.Second + 1, "/api/v1/query?query=up", "", nil, []string{"slow"}},
		"no query":       {-1, "/api/v1/rules", "", nil, []string{"slow"}},
		"another query":  {-1, "/prefix/query", "", []string{"slow query detected"}, nil},
		"authenticated":  {-1, "/api/v1/labels?start=5&end=6", "eve", []string{"remote_user=eve", "param_start=5", "param_end=6", "fetch="}, []string{"param_time", "param_step"}},
		"only one field": {-1, "/api/v1/query?query=up", "", []string{"param_query=up"}, []string{"param_start", "param_step"}},
	} {
		var log lockedBuffer
		var mu sync.Mutex
		now := time.Unix(0, 0)
		serve(t, "{}", func(o *Options) {
			o.SlowerThan, o.Logger = tt.slower, slog.New(slog.NewTextHandler(&log, nil))
			o.Now = func() time.Time { // a clock that advances with each look
				mu.Lock()
				defer mu.Unlock()
				now = now.Add(2 * time.Second)
				return now
			}
		}, func(r *http.Request) {
			r.URL, _ = url.Parse(tt.path)
			if tt.user != "" {
				r.SetBasicAuth(tt.user, "password")
			}
		})
		for _, want := range tt.want {
			check(t, strings.Contains(log.String(), want), "%s: no %q in %s", name, want, log.String())
		}
		for _, never := range tt.never {
			check(t, !strings.Contains(log.String(), never), "%s: %q in %s", name, never, log.String())
		}
	}
}

// spans counts spans that are not ended.
type spans struct {
	noop.Tracer
	mu    sync.Mutex
	open  int
	names []string
}

func (s *spans) Start(ctx context.Context, name string, _ ...trace.SpanStartOption) (context.Context, trace.Span) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open++
	s.names = append(s.names, name)
	return ctx, &countedSpan{of: s}
}

type countedSpan struct {
	noop.Span
	of *spans
}

func (c *countedSpan) End(...trace.SpanEndOption) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.of.open--
}

func TestTracing_EverySpanEnds(t *testing.T) {
	for path, names := range map[string]string{
		"/api/v1/query?query=up": "/api/v1/query queue slots fetch", "/api/v1/query?%zz": "/api/v1/query", "/api/v1/query?query=toolong": "/api/v1/query",
	} {
		s := &spans{}
		slots := slotsOf(t, 3)
		admission, err := limit.New(limit.Options{}, nil)
		check(t, err == nil, "%v", err)
		serve(t, "{}", func(o *Options) {
			o.Tracer, o.Slots, o.Admission, o.Limits.QueryBytesMax = s, slots, admission, 5
		}, func(r *http.Request) { *r = *httptest.NewRequest(http.MethodGet, path, nil) })
		check(t, s.open == 0 && strings.Join(s.names, " ") == names, "%s: %d spans are open of %q", path, s.open, s.names)
	}
}

// The responses of a split query stream through the frontend for most of its time.
func TestTracing_SplicingHasASpan(t *testing.T) {
	w := newTestEnv(t)
	s := &spans{}
	front := w.front(func(o *Options) { o.Tracer = s })
	resp, err := http.Get(front.URL + rangePath("up", 0, 3*86400, 3600))
	check(t, err == nil, "%v", err)
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	check(t, resp.StatusCode == 200 && strings.HasSuffix(strings.Join(s.names, " "), "fetch splice"), "%d, spans %q", resp.StatusCode, s.names)
}

func TestMetrics_OfOneRequest(t *testing.T) {
	set := instruments.NewSet()
	var during string
	serve(t, "{}", func(o *Options) {
		o.Metrics = set
		o.Tracer = &duringFetch{do: func() {
			var page strings.Builder
			set.WritePrometheus(&page)
			during = page.String()
		}}
	}, nil)
	check(t, strings.Contains(during, "ferula_frontend_requests_in_flight 1\n"), "while it runs:\n%s", during)
	var page strings.Builder
	set.WritePrometheus(&page)
	for _, line := range []string{
		`ferula_frontend_requests_in_flight 0`, `ferula_frontend_requests_total{kind="instant",code="200",cache=""} 1`, `ferula_frontend_response_bytes_total 2`,
		`ferula_frontend_request_duration_seconds_count{kind="instant"} 1`, `ferula_frontend_stage_duration_seconds_count{stage="fetch"} 1`, `ferula_frontend_shared_responses_total 0`,
	} {
		check(t, strings.Contains(page.String(), line+"\n"), "no %s in\n%s", line, page.String())
	}
	for _, f := range set.Families() {
		check(t, f.Help != "", "%s has no help", f.Name)
	}
}

// duringFetch calls do when the span of the stage fetch begins.
type duringFetch struct {
	noop.Tracer
	do func()
}

func (d *duringFetch) Start(ctx context.Context, name string, _ ...trace.SpanStartOption) (context.Context, trace.Span) {
	if name == "fetch" {
		d.do()
	}
	return ctx, noop.Span{}
}

func TestServe_ServerTimingHasEachStage(t *testing.T) {
	now := time.Unix(0, 0)
	got := serve(t, "{}", func(o *Options) {
		o.Slots = slotsOf(t, 3)
		o.Now = func() time.Time { now = now.Add(1500 * time.Microsecond); return now }
	}, func(r *http.Request) { *r = *httptest.NewRequest(http.MethodGet, "/api/v1/rules", nil) })
	check(t, got.Header().Get("Server-Timing") == "slots;dur=1.500, fetch;dur=1.500", "%q", got.Header().Get("Server-Timing"))
	check(t, got.Header().Get("Vary") == "Accept-Encoding" && got.Header().Get("X-Ferula-Cache") == "", "%v", got.Header())
}

func TestServe_CompressionCanBeSwitchedOff(t *testing.T) {
	body := `{"status":"success","data":"` + strings.Repeat("x", 100_000) + `"}`
	for off, want := range map[bool]string{false: "gzip", true: ""} {
		got := serve(t, body, func(o *Options) { o.NoCompression = off }, func(r *http.Request) { r.Header.Set("Accept-Encoding", "gzip") })
		check(t, got.Header().Get("Content-Encoding") == want && got.Code == 200, "off: %v, %v", off, got.Header())
	}
}

func TestForwarded_HeadersOfTheDownstreamRequest(t *testing.T) {
	in := http.Header{"X-Team": {"a"}, "Accept": {"b"}, "Cookie": {"c"}, "X-Own": {"d", "e"}, "Thanos-Tenant": {"f"}}
	f := &Frontend{opts: Options{ForwardHeaders: []string{"x-own", "x-missing", "x-team"}}}
	got := f.forwarded(in)
	check(t, len(got) == 4 && len(got["X-Own"]) == 2 && got.Get("Accept") == "b" && got.Get(limit.ThanosHeader) == "f" && got.Get("X-Team") == "a", "%v", got)
	f.opts.TenantHeader = "X-Team"
	got = f.forwarded(in)
	check(t, len(got) == 3 && got.Get(limit.ThanosHeader) == "a" && got.Get("X-Team") == "", "%v", got)
	f.opts.TenantHeader = "X-Missing"
	got = f.forwarded(in)
	check(t, got.Get(limit.ThanosHeader) == "f" && got.Get("X-Team") == "a", "%v", got)
}

// A body that is refused frees its memory, and one that was processed, too.
func TestServe_BodiesAreReleased(t *testing.T) {
	bodies := httpbody.NewReader(httpbody.Options{BytesMax: 1000, Wait: time.Millisecond})
	w := newTestEnvWith(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }))
	f, err := New(Options{Downstream: clientOf(t, w.server.URL, downstream.Transport{}), Bodies: bodies, Limits: limit.Query{QueryBytesMax: 500}})
	check(t, err == nil, "%v", err)
	for i := range 20 {
		for want, body := range map[int]string{200: "query=" + strings.Repeat("a", 400), 422: "query=" + strings.Repeat("a", 501), 400: "query=%zz" + strings.Repeat("a", 500)} {
			r := httptest.NewRequest(http.MethodPost, "/api/v1/query", strings.NewReader(body))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			out := httptest.NewRecorder()
			f.ServeHTTP(out, r)
			check(t, out.Code == want, "request %d: %d %s, want %d", i, out.Code, out.Body, want)
		}
	}
}

// The limit of time ends a request that waits for the downstream.
func TestServe_TimeLimitIsThatOfTheRequest(t *testing.T) {
	w := newTestEnvWith(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	f, err := New(Options{Downstream: clientOf(t, w.server.URL, downstream.Transport{}), Limits: limit.Query{TimeMax: 50 * time.Millisecond}})
	check(t, err == nil, "%v", err)
	out := httptest.NewRecorder()
	f.ServeHTTP(out, httptest.NewRequest(http.MethodGet, "/api/v1/rules", nil))
	check(t, out.Code == http.StatusGatewayTimeout, "%d %s", out.Code, out.Body)
}

func TestShareable_RequestsThatOnlyRead(t *testing.T) {
	for _, tt := range []struct {
		method, path string
		body         []byte
		want         bool
	}{
		{"GET", "/api/v1/query", nil, true}, {"GET", "/p/api/v1/labels", nil, true}, {"GET", "/api/v1/metadata", nil, true}, {"GET", "/api/v1/query_exemplars", nil, true},
		{"GET", "/api/v1/rules", nil, false}, {"GET", "/graph", nil, false}, {"HEAD", "/api/v1/query", nil, false}, {"POST", "/api/v1/query", []byte{}, false},
	} {
		x := &requestContext{r: httptest.NewRequest(tt.method, tt.path, nil), kind: kindOf(tt.path), query: query{path: tt.path}, body: tt.body}
		check(t, x.shareable() == tt.want, "%+v", tt)
	}
}

func TestDeduplicate_ClientThatLeavesGetsItsOwnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &Frontend{opts: Options{}.withDefaults(), calls: newSingleFlight()}
		request := func(ctx context.Context) *requestContext {
			r := httptest.NewRequest(http.MethodGet, "/api/v1/query?query=up", nil).WithContext(ctx)
			return &requestContext{f: f, r: r, kind: kindInstant, query: query{path: "/api/v1/query", params: url.Values{"query": {"up"}}}}
		}
		first := request(context.Background())
		c, work := f.calls.join(first.r.Context(), first.callKey())
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			done <- f.deduplicate(request(ctx), func() error { t.Error("a second call"); return nil })
		}()
		synctest.Wait()
		check(t, c.waiters == 2, "%d clients", c.waiters)
		cancel()
		err := <-done
		check(t, errors.Is(err, context.Canceled) && c.waiters == 1 && work.Err() == nil, "%v, %d clients", err, c.waiters)
		f.calls.leave(first.callKey(), c)
	})
}
