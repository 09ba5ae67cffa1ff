package frontend

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"
	"go.uber.org/goleak"

	"github.com/ferula-io/ferula/internal/frontend/cache"
	"github.com/ferula-io/ferula/internal/frontend/downstream"
	"github.com/ferula-io/ferula/internal/httpapi"
	"github.com/ferula-io/ferula/internal/invariant"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func check(t *testing.T, ok bool, format string, args ...any) {
	t.Helper()
	if !ok {
		t.Fatalf(format, args...)
	}
}

// testEnv is a real downstream: the Prometheus API over a PromQL engine and a storage.
type testEnv struct {
	t        *testing.T
	server   *httptest.Server
	requests atomic.Int64
	mu       sync.Mutex
	queries  []url.Values
	break_   func(w http.ResponseWriter, r *http.Request) bool // true: has responded
}

const loadScript = `
load 30s
  requests_total{job="a",code="200"} 0+3x400
  requests_total{job="a",code="500"} 0+1x100 _x50 7+2x250
  requests_total{job="b<&>",code="200"} 5+0.37x400
  temperature{room="kitchen"} 20-0.013x400
  temperature{room="cellar"} _x200 4+0.5x200
  onlyonce{} _x333 42 _x66
  nh{job="h"} {{schema:0 sum:5 count:4 buckets:[1 2 1]}}+{{schema:0 sum:1 count:2 buckets:[1 0 1]}}x400
`

func newTestEnv(t *testing.T) *testEnv {
	t.Helper()
	store := promqltest.LoadedStorage(t, loadScript)
	t.Cleanup(func() { _ = store.Close() })
	return newTestEnvWith(t, newAPI(store))
}

// newTestEnvWith returns a downstream that calls break_, and then handler.
func newTestEnvWith(t *testing.T, handler http.Handler) *testEnv {
	t.Helper()
	w := &testEnv{t: t}
	w.server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.requests.Add(1)
		_ = r.ParseForm()
		w.mu.Lock()
		w.queries = append(w.queries, r.Form)
		broken := w.break_
		w.mu.Unlock()
		if broken != nil && broken(rw, r) {
			return
		}
		handler.ServeHTTP(rw, r)
	}))
	t.Cleanup(w.server.Close)
	return w
}

func newAPI(store storage.Queryable) http.Handler {
	p := parser.NewParser(parser.Options{EnableExperimentalFunctions: true})
	mux := http.NewServeMux()
	httpapi.New(httpapi.Options{
		Engine: promql.NewEngine(promql.EngineOpts{MaxSamples: 1e7, Timeout: time.Minute, EnableAtModifier: true, EnableNegativeOffset: true, LookbackDelta: 5 * time.Minute,
			NoStepSubqueryIntervalFn: func(int64) int64 { return 60_000 }, Parser: p}),
		Parser: p, Queryable: store,
	}).Register(mux, "/api/v1")
	return mux
}

// front starts a frontend in front of the downstream.
func (w *testEnv) front(change func(*Options)) *httptest.Server {
	w.t.Helper()
	client, err := downstream.New(downstream.Options{URL: w.server.URL, BackoffMin: time.Millisecond, BackoffMax: 2 * time.Millisecond}, nil, nil)
	check(w.t, err == nil, "%v", err)
	w.t.Cleanup(client.Close)
	o := Options{
		Downstream: client, Split: SplitOptions{Interval: time.Hour}, Logger: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return time.Unix(400*30+3600, 0) },
	}
	if change != nil {
		change(&o)
	}
	f, err := New(o)
	check(w.t, err == nil, "%v", err)
	var handler http.Handler = f
	if o.Cache != nil || o.LabelCache != nil {
		// A response ends after its writes to the cache, so that the next request finds them.
		handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			f.ServeHTTP(rw, r)
			for _, c := range []*cache.Cache{o.Cache, o.LabelCache} {
				if c != nil {
					_ = c.Flush(context.Background())
				}
			}
		})
	}
	s := httptest.NewServer(handler)
	for _, c := range []*cache.Cache{o.Cache, o.LabelCache} {
		if c != nil {
			w.t.Cleanup(func() { _ = c.Close() })
		}
	}
	w.t.Cleanup(s.Close)
	return s
}

func get(t *testing.T, address string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, address, nil)
	check(t, err == nil, "%v", err)
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := http.DefaultTransport.(*http.Transport).RoundTrip(req)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return resp.StatusCode, err.Error(), nil
	}
	return resp.StatusCode, string(b), resp.Header
}

func rangePath(query string, start, end, step float64) string {
	n := func(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
	return "/api/v1/query_range?" + url.Values{"query": {query}, "start": {n(start)}, "end": {n(end)}, "step": {n(step)}}.Encode()
}

var rangeQueries = []string{
	`requests_total`, `rate(requests_total[5m])`, `sum by (job) (rate(requests_total[2m]))`, `temperature`, `onlyonce`, `nh`, `rate(nh[5m])`,
	`histogram_quantile(0.9, nh)`, `1`, `time()`, `vector(0)`, `absent(nothing)`, `absent_over_time(onlyonce[5m])`, `nothing or vector(0)`, `requests_total or vector(0)`,
	`topk(1, requests_total)`, `bottomk(1, temperature)`, `count_values("v", onlyonce)`, `{__name__=~"temperature|nh"}`, `requests_total offset 7m`, `requests_total @ 3000`,
	`max_over_time(temperature[10m:1m])`, `label_replace(temperature, "b!", "$1", "room", "(.).*")`, `label_replace(temperature, "b", "x", "room", ".*")`, `requests_total @ end()`,
	`requests_total @ start() + 0`, `nosuchfunction(x)`, `sum(`, `requests_total offset -10m`, `rate(temperature[5m])`, `sort_desc(requests_total)`, `-requests_total`,
	`increase(requests_total[5m]) / step()`,
}

func TestFrontend_SplitAndCachedResponsesEqualTheUnsplitByteForByte(t *testing.T) {
	w := newTestEnv(t)
	r := rand.New(rand.NewPCG(11, 12))
	rounds := 250
	switch { // TestSplice_EqualsTheWholeResponseByteForByte has the hard cases
	case testing.Short():
		rounds = 8
	case invariant.Enabled:
		rounds = 80
	}
	for _, interval := range []time.Duration{time.Hour, 17 * time.Minute, 4 * time.Minute} {
		cached := newTestCache()
		plain := w.front(func(o *Options) { o.Split.Interval = interval })
		caching := w.front(func(o *Options) { o.Split.Interval, o.Cache = interval, cached.Cache })
		remote, err := cache.New(&losingStore{values: map[string][]byte{}}, cache.Options{Merge: joinResponses, PartBytes: 4096, LookupTimeout: time.Minute, WholeTimeout: time.Minute},
			slog.New(slog.DiscardHandler), nil)
		check(t, err == nil, "%v", err)
		compressing := w.front(func(o *Options) { o.Split.Interval, o.Cache = interval, remote })
		narrow := w.front(func(o *Options) { o.Split.Interval, o.Parallelism, o.Cache = interval, 2, newMemoryCache() })
		for range rounds {
			query := rangeQueries[r.IntN(len(rangeQueries))]
			step := []float64{1, 15, 30, 60, 7.5, 333}[r.IntN(6)]
			start := float64(r.IntN(12000)) + []float64{0, 0.5, 0.123}[r.IntN(3)]
			end := start + float64(r.IntN(9000))
			if (end-start)/step > 3000 {
				end = start + 3000*step
			}
			path := rangePath(query, start, end, step)
			wantStatus, want, _ := get(t, w.server.URL+path)
			for name, front := range map[string]*httptest.Server{"plain": plain, "caching": caching, "compressing": compressing, "narrow": narrow} {
				status, got, _ := get(t, front.URL+path)
				check(t, status == wantStatus && got == want, "%s, interval %s: %s\nstatus %d, want %d\ngot  %.2000s\nwant %.2000s", name, interval, path, status, wantStatus, got, want)
			}
		}
		check(t, cached.values() > 0, "nothing was cached")
	}
}

func TestFrontend_QueryIsSplitAndThenServedFromCache(t *testing.T) {
	w := newTestEnv(t)
	front := w.front(func(o *Options) { o.Cache = newMemoryCache() })
	path := rangePath("requests_total", 0, 3*3600-1, 30)
	_, first, h := get(t, front.URL+path)
	check(t, w.requests.Load() == 3 && h.Get("X-Ferula-Cache") == "miss", "%d requests, cache %q", w.requests.Load(), h.Get("X-Ferula-Cache"))
	_, again, h := get(t, front.URL+path)
	check(t, w.requests.Load() == 3 && h.Get("X-Ferula-Cache") == "hit" && again == first, "%d requests, cache %q", w.requests.Load(), h.Get("X-Ferula-Cache"))
	_, _, h = get(t, front.URL+rangePath("requests_total", 1800, 3*3600+1800-1, 30))
	check(t, w.requests.Load() == 4 && h.Get("X-Ferula-Cache") == "partial", "%d requests, cache %q", w.requests.Load(), h.Get("X-Ferula-Cache"))
	check(t, strings.Contains(h.Get("Server-Timing"), ", splice;dur="), "Server-Timing: %q", h.Get("Server-Timing"))
}

func TestFrontend_StreamedResponseHasTheTimeOfItsSpliceInATrailer(t *testing.T) {
	w := newTestEnv(t)
	long := strings.Repeat("x", sharedResponseMaxBytes+100<<10) // more than is gathered before the first byte is sent
	w.break_ = func(rw http.ResponseWriter, r *http.Request) bool {
		_, _ = fmt.Fprintf(rw, `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"a":%q},"values":[[%s,"1"]]}]}}`, long, r.Form.Get("end"))
		return true
	}
	req, _ := http.NewRequest(http.MethodGet, w.front(nil).URL+rangePath("x", 0, 7170, 30), nil)
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := http.DefaultTransport.RoundTrip(req)
	check(t, err == nil, "%v", err)
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	check(t, err == nil && strings.Contains(resp.Header.Get("Server-Timing"), ", splice;dur="), "%v %v", err, resp.Header)
	check(t, strings.Contains(resp.Trailer.Get("Server-Timing"), ", splice;dur="), "trailer %v", resp.Trailer)
}

// "From midnight until now": each request fetches the steps since the last one only, and the cached response grows.
func TestFrontend_GrowingRangeFetchesItsNewStepsOnly(t *testing.T) {
	w := newTestEnv(t)
	cached := newTestCache()
	front := w.front(func(o *Options) { o.Cache = cached.Cache })
	for i := range 20 {
		end := float64(600 + 120*i)
		w.mu.Lock()
		w.queries = nil
		w.mu.Unlock()
		path := rangePath("requests_total", 0, end, 30)
		_, got, h := get(t, front.URL+path)
		w.mu.Lock()
		queries := w.queries
		w.mu.Unlock()
		state := []string{"miss", "partial"}[min(i, 1)]
		check(t, h.Get("X-Ferula-Cache") == state && len(queries) == 1, "request %d: %s, %d calls", i, h.Get("X-Ferula-Cache"), len(queries))
		if i > 0 {
			check(t, queries[0].Get("start") == strconv.Itoa(int(end)-90) && queries[0].Get("end") == strconv.Itoa(int(end)), "request %d: %v", i, queries[0])
		}
		_, want, _ := get(t, w.server.URL+path)
		check(t, got == want, "request %d\ngot  %.1000s\nwant %.1000s", i, got, want)
	}
	check(t, cached.values() == 1, "%d values", cached.values())
}

func TestPlan_PartsAreAtMostParallelism(t *testing.T) {
	w := newTestEnv(t)
	front := w.front(func(o *Options) { o.Split.Interval, o.Parallelism = time.Minute, 5 })
	_, _, _ = get(t, front.URL+rangePath("requests_total", 0, 12000, 30))
	check(t, w.requests.Load() >= 2 && w.requests.Load() <= 5, "%d requests at once", w.requests.Load())
}

func TestFrontend_UncacheableResponsesAreNotCached(t *testing.T) {
	for name, tt := range map[string]struct {
		query  string
		end    float64
		header http.Header
		break_ func(http.ResponseWriter, *http.Request) bool
		change func(*Options)
	}{
		"recent data":           {query: "requests_total", end: 3599, change: func(o *Options) { o.MaxFreshness = 100 * time.Hour }},
		"@ in the recent past":  {query: "requests_total @ 15590", end: 3599},
		"a far negative offset": {query: "requests_total offset -1000h", end: 3599},
		"no-store in the response": {query: "requests_total", end: 3599, break_: func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Cache-Control", "no-store")
			return false
		}},
		"no-store in the request": {query: "requests_total", end: 3599, header: http.Header{"Cache-Control": {"no-store"}}},
		"a partial response": {query: "requests_total", end: 3599, break_: func(w http.ResponseWriter, _ *http.Request) bool {
			_, _ = io.WriteString(w, `{"status":"success","data":{"resultType":"matrix","result":[]},"warnings":["store 10.0.0.1:10901 is unreachable"]}`)
			return true
		}},
		"an empty response without stores": {query: "requests_total", end: 3599, break_: func(w http.ResponseWriter, _ *http.Request) bool {
			_, _ = io.WriteString(w, `{"status":"success","data":{"resultType":"matrix","result":[]},"warnings":["No StoreAPIs matched for this query"]}`)
			return true
		}},
		"a response with isPartial": {query: "requests_total", end: 3599, break_: func(w http.ResponseWriter, _ *http.Request) bool {
			_, _ = io.WriteString(w, `{"status":"success","isPartial":true,"data":{"resultType":"matrix","result":[]}}`)
			return true
		}},
		"@ with an offset into the future": {query: "requests_total @ 15000 offset -1h", end: 3599},
		"an error": {query: "requests_total", end: 3599, break_: func(w http.ResponseWriter, _ *http.Request) bool {
			_, _ = io.WriteString(w, `{"status":"error","errorType":"execution","error":"no"}`)
			return true
		}},
	} {
		w := newTestEnv(t)
		cached := newTestCache()
		w.break_ = tt.break_
		front := w.front(func(o *Options) {
			o.Cache = cached.Cache
			if tt.change != nil {
				tt.change(o)
			}
		})
		req, _ := http.NewRequest(http.MethodGet, front.URL+rangePath(tt.query, 0, tt.end, 30), nil)
		for k, v := range tt.header {
			req.Header[k] = v
		}
		resp, err := http.DefaultTransport.RoundTrip(req)
		check(t, err == nil, "%s: %v", name, err)
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		check(t, cached.values() == 0, "%s is cached", name)
	}
}

func TestFrontend_DownstreamFailuresMapToStatus(t *testing.T) {
	respond := func(status int, body string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
			return true
		}
	}
	for name, tt := range map[string]struct {
		break_ func(http.ResponseWriter, *http.Request) bool
		status int
		text   string
	}{
		"bad_data":            {respond(400, `{"status":"error","errorType":"bad_data","error":"no such thing"}`), 400, "no such thing"},
		"execution":           {respond(422, `{"status":"error","errorType":"execution","error":"many-to-many"}`), 422, "many-to-many"},
		"200 with an error":   {respond(200, `{"status":"error","errorType":"execution","error":"hidden"}`), 422, "hidden"},
		"permanent 5xx":       {respond(503, `{"status":"error","errorType":"timeout","error":"slow"}`), 503, "slow"},
		"429":                 {respond(429, `too many`), 429, "too many"},
		"no JSON":             {respond(200, `<html>login</html>`), 502, "status"},
		"JSON that is cut":    {respond(200, `{"status":"success","data":{"resultType":"matrix","result":[`), 502, "status"},
		"a vector":            {respond(200, `{"status":"success","data":{"resultType":"vector","result":[]}}`), 502, "matrix"},
		"nothing":             {respond(200, ``), 502, "status"},
		"connections dropped": {func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }, 502, "unavailable"},
	} {
		w := newTestEnv(t)
		w.break_ = tt.break_
		front := w.front(nil)
		status, body, _ := get(t, front.URL+rangePath("requests_total", 0, 9000, 30))
		check(t, status == tt.status && strings.Contains(body, tt.text), "%s: %d %s, want %d and %q", name, status, body, tt.status, tt.text)
	}
}

func TestFrontend_UnsortedResponseIsPassedThrough(t *testing.T) {
	w := newTestEnv(t)
	unsorted := `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"a":"2"},"values":[[%d,"1"]]},{"metric":{"a":"1"},"values":[[%d,"1"]]}]}}`
	w.break_ = func(rw http.ResponseWriter, r *http.Request) bool {
		at, _ := strconv.ParseFloat(r.Form.Get("start"), 64)
		fmt.Fprintf(rw, unsorted, int(at), int(at))
		return true
	}
	front := w.front(nil)
	for i, wantRequests := range []int64{3, 4} { // two parts and then the whole query; later the whole query only
		status, body, _ := get(t, front.URL+rangePath("x", 0, 7199, 30))
		check(t, status == 200 && body == fmt.Sprintf(unsorted, 0, 0), "%d: %d %s", i, status, body)
		check(t, w.requests.Load() == wantRequests, "%d: %d requests", i, w.requests.Load())
	}
}

func TestFrontend_ResponsesThatCannotBeJoinedAreNotSplitAgain(t *testing.T) {
	series := func(at int, label, fill string) string {
		return fmt.Sprintf(`{"metric":{"a":"%s","b":"%s"},"values":[[%d,"1"]]}`, label, fill, at)
	}
	long := strings.Repeat("x", sharedResponseMaxBytes+100<<10) // more than is gathered before the first byte is sent
	for name, tt := range map[string]struct {
		series func(start, end int) string
		cut    bool // the first response
	}{
		"points outside the range":          {func(_, end int) string { return series(7199, "1", "") }, false},
		"points outside the range, at last": {func(_, end int) string { return series(end, "1", long) + "," + series(7199, "2", "") }, true},
		"unsorted at last": {func(_, end int) string {
			return series(end, "3", long) + "," + series(end, "4", "") + "," + series(end, "2", "")
		}, true},
	} {
		w := newTestEnv(t)
		body := func(start, end int) string {
			return `{"status":"success","data":{"resultType":"matrix","result":[` + tt.series(start, end) + `]}}`
		}
		w.break_ = func(rw http.ResponseWriter, r *http.Request) bool {
			start, _ := strconv.ParseFloat(r.Form.Get("start"), 64)
			end, _ := strconv.ParseFloat(r.Form.Get("end"), 64)
			_, _ = io.WriteString(rw, body(int(start), int(end)))
			return true
		}
		front := w.front(nil)
		path := rangePath("x", 0, 7199, 30)
		for i := range 2 {
			before := w.requests.Load()
			status, got, _ := get(t, front.URL+path)
			calls := w.requests.Load() - before
			if complete := status == 200 && got == body(0, 7199); complete == (tt.cut && i == 0) {
				t.Errorf("%s, request %d: %d, %d bytes: %.200s", name, i, status, len(got), got)
			}
			check(t, (calls == 1) == (i == 1), "%s, request %d: %d calls", name, i, calls)
		}
	}
}

func TestFrontend_ResponseThatBreaksIsAborted(t *testing.T) {
	w := newTestEnv(t)
	long := strings.Repeat(`[1,"1"],`, 100_000)
	w.break_ = func(rw http.ResponseWriter, r *http.Request) bool {
		// A long valid prefix, then invalid JSON, which a retry does not mend.
		_, _ = io.WriteString(rw, `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"a":"1"},"values":[`+strings.ReplaceAll(long, "[1,", "["+r.Form.Get("start")+",")+`!!!`)
		return true
	}
	front := w.front(nil)
	resp, err := http.Get(front.URL + rangePath("x", 1, 7201, 30))
	if err != nil {
		return // aborted before the header
	}
	defer resp.Body.Close()
	_, err = io.ReadAll(resp.Body)
	check(t, err != nil || resp.StatusCode != 200, "a broken response ended like a complete one")
}

func TestSingleFlight_IdenticalRequestsShareOneCall(t *testing.T) {
	w := newTestEnv(t)
	arrived, release := make(chan struct{}, 100), make(chan struct{})
	w.break_ = func(http.ResponseWriter, *http.Request) bool {
		arrived <- struct{}{}
		<-release
		return false
	}
	front := w.front(nil)
	for _, path := range []string{"/api/v1/query?query=requests_total&time=3000", rangePath("requests_total", 0, 3000, 30)} {
		before := w.requests.Load()
		bodies := make(chan string, 8)
		for range 8 {
			go func() {
				_, body, _ := get(t, front.URL+path)
				bodies <- body
			}()
		}
		<-arrived
		waitForClients(t, front.Config.Handler.(*Frontend), 8)
		close(release)
		first := <-bodies
		for range 7 {
			check(t, <-bodies == first && strings.Contains(first, "success"), "different responses")
		}
		check(t, w.requests.Load() == before+1, "%d calls for 8 identical requests", w.requests.Load()-before)
		w.mu.Lock()
		w.break_ = nil
		w.mu.Unlock()
		release = make(chan struct{})
		if path[len("/api/v1/")] == 'q' {
			w.mu.Lock()
			w.break_ = func(http.ResponseWriter, *http.Request) bool { arrived <- struct{}{}; <-release; return false }
			w.mu.Unlock()
		}
	}
}

func TestMetadata_UnionOfPartsEqualsTheWhole(t *testing.T) {
	w := newTestEnv(t)
	cached := newMemoryCache()
	front := w.front(func(o *Options) { o.Labels.Interval, o.LabelCache = time.Hour, cached })
	for _, path := range []string{
		"/api/v1/labels?start=0&end=12000", "/api/v1/label/room/values?start=0&end=12000", "/api/v1/labels?start=0&end=12000&match[]=temperature",
		"/api/v1/series?start=0&end=12000&match[]={__name__=~%22temperature|requests_total%22}&match[]=nh", "/api/v1/label/nothing/values?start=0&end=12000",
	} {
		_, want, _ := get(t, w.server.URL+path)
		for range 2 {
			status, got, _ := get(t, front.URL+path)
			check(t, status == 200 && got == want, "%s\ngot  %s\nwant %s", path, got, want)
		}
	}
	before := w.requests.Load()
	_, _, h := get(t, front.URL+"/api/v1/labels?start=0&end=12000")
	check(t, h.Get("X-Ferula-Cache") == "hit" && w.requests.Load() == before, "%s, %d calls", h.Get("X-Ferula-Cache"), w.requests.Load()-before)
	status, body, _ := get(t, front.URL+"/api/v1/series?start=0&end=12000")
	check(t, status == 400 && strings.Contains(body, "no match[] parameter provided"), "%d %s", status, body)
}

func TestFrontend_OtherRequestsPassThrough(t *testing.T) {
	w := newTestEnv(t)
	front := w.front(nil)
	for _, path := range []string{
		"/api/v1/query?query=requests_total&time=3000", "/api/v1/query?query=sum(", "/api/v1/format_query?query=a%2bb", "/api/v1/nothing", "/api/v1/status/buildinfo", "/",
		"/api/v1/query_range?query=1&start=2&end=1&step=1", "/api/v1/query_range?query=1&start=x&end=1&step=1", "/api/v1/query_range?query=1&start=1&end=2&step=0",
		"/api/v1/query_range?query=1&start=0&end=999999&step=1", rangePath("requests_total", 0, 9000, 30) + "&limit=1", rangePath("requests_total", 0, 9000, 0.0001),
	} {
		wantStatus, want, wantHeader := get(t, w.server.URL+path)
		status, got, h := get(t, front.URL+path)
		check(t, status == wantStatus && got == want, "%s: %d %s, want %d %s", path, status, got, wantStatus, want)
		check(t, h.Get("Content-Type") == wantHeader.Get("Content-Type"), "%s: type %s, want %s", path, h.Get("Content-Type"), wantHeader.Get("Content-Type"))
	}
	resp, err := http.PostForm(front.URL+"/api/v1/query", url.Values{"query": {"requests_total"}, "time": {"3000"}})
	check(t, err == nil, "%v", err)
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	_, want, _ := get(t, w.server.URL+"/api/v1/query?query=requests_total&time=3000")
	check(t, string(body) == want, "POST: %s", body)

	var seen atomic.Value
	w.mu.Lock()
	w.break_ = func(_ http.ResponseWriter, r *http.Request) bool {
		seen.Store(r.Method + " " + r.Form.Get("match[]"))
		return false
	}
	w.mu.Unlock()
	resp, err = http.PostForm(front.URL+"/api/v1/admin/tsdb/delete_series", url.Values{"match[]": {"up"}})
	check(t, err == nil, "%v", err)
	resp.Body.Close()
	check(t, seen.Load() == "POST up", "a POST that is not a query arrives as %v", seen.Load())
}

func TestFrontend_LostExtentIsFetched(t *testing.T) {
	w := newTestEnv(t)
	cached := newTestCache()
	front := w.front(func(o *Options) { o.Cache = cached.Cache })
	path := rangePath("requests_total", 0, 7199, 30)
	_, want, _ := get(t, front.URL+path)
	cached.lose("")
	status, got, _ := get(t, front.URL+path)
	check(t, status == 200 && got == want, "%d %s", status, got)
}

func TestFrontend_AlignsWithStep(t *testing.T) {
	w := newTestEnv(t)
	front := w.front(func(o *Options) { o.AlignWithStep = true })
	_, got, _ := get(t, front.URL+rangePath("time()", 1007, 3611, 30))
	_, want, _ := get(t, w.server.URL+rangePath("time()", 990, 3600, 30))
	check(t, got == want, "got  ...%s\nwant ...%s", got[len(got)-60:], want[len(want)-60:])
}

func TestQueryKey_DiffersByEveryParameter(t *testing.T) {
	seen := map[string]string{}
	for _, raw := range []string{"query=a", "query=b", "query=a&x=1", "query=a&x=2", "query=a&x=1&x=2", "query=ax&=1", "query=a&dedup=true", "query=a&step=1", "query=a%26step%3D1"} {
		params, err := url.ParseQuery(raw)
		check(t, err == nil, "%v", err)
		for _, tenant := range []string{"", "t", "tq"} {
			key := query{path: "/p", params: params, tenant: tenant}.key()
			check(t, seen[key] == "", "%s and %s share a key", raw, seen[key])
			seen[key] = raw + tenant
		}
	}
	a := query{path: "/p", params: url.Values{"query": {"a"}, "start": {"1"}, "end": {"2"}}}
	b := query{path: "/p", params: url.Values{"query": {"a"}, "start": {"3"}, "end": {"4"}}}
	check(t, a.key() == b.key(), "start and end are part of the key")
}

func TestSeconds_AreExact(t *testing.T) {
	for _, ms := range []int64{0, 1, -1, 999, 1000, -1500, 1_700_000_000_123, -62135596800000, 253402300799999} {
		got, err := parseTime(seconds(ms))
		check(t, err == nil && got == ms, "%d: %s is read as %d, %v", ms, seconds(ms), got, err)
	}
}
