package frontend

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"

	"github.com/ferula-io/ferula/internal/httpapi"
)

// Two versions of one database: equal up to changingAfterS, with different samples and
// series after it.
const (
	changingAfterS = 298 * 30
	changingNowS   = 300 * 30
	scriptBefore   = `
load 30s
  up{job="a"} 0+3x297 900+1x4
  up{job="b"} 5+0.5x298
  up{job="d"} 4+1x280 _x18 400x1
`
	scriptAfter = `
load 30s
  up{job="a"} 0+3x297 5+7x200
  up{job="b"} 5+0.5x297 77x200
  up{job="c"} _x299 1+1x200
  up{job="d"} 4+1x280 _x18 9000x1
`
)

// newChangingEnv returns a downstream, and a function that replaces its database. Its
// lookback delta is not Prometheus' default, and the frontend does not know it.
func newChangingEnv(t *testing.T) (w *testEnv, replace func()) {
	p := parser.NewParser(parser.Options{EnableExperimentalFunctions: true, EnableExtendedRangeSelectors: true, ExperimentalDurationExpr: true})
	handler := func(script string) http.Handler {
		store := promqltest.LoadedStorage(t, script)
		t.Cleanup(func() { _ = store.Close() })
		mux := http.NewServeMux()
		httpapi.New(httpapi.Options{
			Engine: promql.NewEngine(promql.EngineOpts{MaxSamples: 1e7, Timeout: time.Minute, EnableAtModifier: true, EnableNegativeOffset: true, LookbackDelta: 11 * time.Minute,
				NoStepSubqueryIntervalFn: func(int64) int64 { return 60_000 }, Parser: p}),
			Parser: p, Queryable: store,
		}).Register(mux, "/api/v1")
		return mux
	}
	before, after := handler(scriptBefore), handler(scriptAfter)
	var changed atomic.Bool
	w = newTestEnvWith(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if changed.Load() {
			after.ServeHTTP(rw, r)
			return
		}
		before.ServeHTTP(rw, r)
	}))
	return w, func() { changed.Store(true) }
}

// randomAhead generates expressions that read at, before and after their steps, with all
// modifiers of PromQL.
type randomAhead struct{ *rand.Rand }

func (r randomAhead) oneOf(texts ...string) string { return texts[r.IntN(len(texts))] }

func (r randomAhead) minutes() string { return fmt.Sprintf("%dm", 1+r.IntN(90)) }

func (r randomAhead) modifiers() string {
	var b strings.Builder
	if r.IntN(3) == 0 {
		fmt.Fprintf(&b, " @ %s", r.oneOf(fmt.Sprint(r.IntN(changingNowS+3600)), "start()", "end()"))
	}
	if r.IntN(2) == 0 {
		b.WriteString(" offset " + r.oneOf("-", "-", "") + r.minutes())
	}
	return b.String()
}

func (r randomAhead) expression(depth int) string {
	if depth > 0 {
		switch r.IntN(4) {
		case 0:
			return fmt.Sprintf("%s((%s)[%s:%s]%s)", r.oneOf("max_over_time", "last_over_time", "sum_over_time"), r.expression(depth-1), r.minutes(), r.oneOf("", "1m", "7m"), r.modifiers())
		case 1:
			return fmt.Sprintf("(%s) %s (%s)", r.expression(depth-1), r.oneOf("+", "or", "unless"), r.expression(depth-1))
		}
	}
	if r.IntN(2) == 0 {
		return fmt.Sprintf("%s(up[%s]%s%s)", r.oneOf("rate", "increase", "delta"), r.minutes(), r.oneOf("", "", " smoothed", " anchored"), r.modifiers())
	}
	return "up" + r.oneOf("", "", " smoothed") + r.modifiers()
}

func TestMaxFreshness_ResultsThatMayChangeAreNotCached(t *testing.T) {
	rounds := 1500
	if testing.Short() {
		rounds = 250
	}
	w, replace := newChangingEnv(t)
	var now atomic.Int64
	now.Store(changingNowS)
	front := w.front(func(o *Options) {
		o.Split.Interval, o.Cache = 20*time.Minute, newMemoryCache()
		o.MaxFreshness = (changingNowS - changingAfterS + 30) * time.Second
		o.Now = func() time.Time { return time.Unix(now.Load(), 0) }
	})
	r := randomAhead{rand.New(rand.NewPCG(31, 32))}
	var paths []string
	for range rounds {
		start := float64(r.IntN(changingNowS))
		path := rangePath(r.expression(2), start, start+float64(r.IntN(changingNowS-int(start)+1)), 60)
		if r.IntN(3) == 0 {
			path += "&lookback_delta=" + r.oneOf("1m", "25m", "400")
		}
		paths = append(paths, path)
		_, _, _ = get(t, front.URL+path)
	}
	replace()
	now.Store(changingNowS + 24*3600)
	hits := 0
	for _, path := range paths {
		wantStatus, want, _ := get(t, w.server.URL+path)
		status, got, h := get(t, front.URL+path)
		text, _ := url.QueryUnescape(path)
		// Infos depend on the samples read, which differ if the query is split.
		want, _, _ = strings.Cut(want, `,"infos":`)
		got, _, _ = strings.Cut(got, `,"infos":`)
		check(t, status == wantStatus && strings.TrimSuffix(got, "}") == strings.TrimSuffix(want, "}"), "%s (cache %s)\ngot  %.1500s\nwant %.1500s", text, h.Get("X-Ferula-Cache"), got, want)
		if state := h.Get("X-Ferula-Cache"); status == 200 && (state == "hit" || state == "partial") {
			hits++
		}
	}
	check(t, hits > rounds/4, "only %d of %d were cached", hits, rounds)
}

func TestFrontend_PartialResponseIsMarkedAndNotCached(t *testing.T) {
	for name, path := range sharedPaths {
		w := newTestEnvWith(t, http.NotFoundHandler())
		var partial atomic.Bool
		partial.Store(true)
		var mu sync.Mutex
		calls := 0
		w.break_ = func(rw http.ResponseWriter, r *http.Request) bool {
			mu.Lock()
			defer mu.Unlock()
			calls++
			data := `["a"]`
			if name == "range" {
				data = `{"resultType":"matrix","result":[]}`
			}
			// A storage node is missing for the second half of the range.
			_, _ = io.WriteString(rw, fmt.Sprintf(`{"status":"success","isPartial":%t,"stats":{"call":%d},"data":%s}`, partial.Load() && r.Form.Get("start") != "0", calls, data))
			return true
		}
		front := w.front(func(o *Options) {
			o.Cache, o.LabelCache, o.Labels.Interval = newMemoryCache(), newMemoryCache(), time.Hour
		})
		for i, want := range []string{`"isPartial":true`, `"isPartial":true`, `"isPartial":false`, `"isPartial":false`} {
			partial.Store(i < 2)
			status, body, h := get(t, front.URL+path)
			check(t, status == 200 && strings.Contains(body, want) && !strings.Contains(body, "stats"), "%s: %d: %d %s", name, i, status, body)
			check(t, (h.Get("X-Ferula-Cache") == "hit") == (i == 3), "%s: %d: cache %s", name, i, h.Get("X-Ferula-Cache"))
		}
	}
}

func TestMetadata_RecentListsAreNotCached(t *testing.T) {
	w := newTestEnv(t)
	cached := newMemoryCache()
	now := int64(12_000)
	front := w.front(func(o *Options) {
		o.Labels.Interval, o.LabelCache = time.Hour, cached
		o.Now = func() time.Time { return time.Unix(now, 0) }
	})
	for _, path := range []string{"/api/v1/labels?start=0&end=11999", "/api/v1/label/room/values?start=0&end=11999", "/api/v1/series?match[]=nh&start=0&end=11999"} {
		before := w.requests.Load()
		for range 3 {
			status, _, _ := get(t, front.URL+path)
			check(t, status == 200, "%d", status)
		}
		// Four parts; the last one is fetched again by each of two repetitions.
		check(t, w.requests.Load() == before+4+2, "%s: %d calls", path, w.requests.Load()-before)
	}
}

func TestFrontend_TooLargeBodyIsRejected(t *testing.T) {
	w := newTestEnv(t)
	front := w.front(nil)
	post := func(contentType, body string) (int, string) {
		resp, err := http.Post(front.URL+"/api/v1/query", contentType, strings.NewReader(body))
		check(t, err == nil, "%v", err)
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(text)
	}
	form := func(length int) string { return "query=1&x=" + strings.Repeat("a", length-len("query=1&x=")) }
	status, body := post("application/x-www-form-urlencoded", form(BodyBytesMax))
	check(t, status == 200, "at the limit: %d %.200s", status, body)
	before := w.requests.Load()
	for _, kind := range []string{"application/x-www-form-urlencoded", "application/octet-stream"} {
		status, body = post(kind, form(BodyBytesMax+1))
		check(t, status == 400 && strings.Contains(body, fmt.Sprint(BodyBytesMax)), "%s, one more: %d %.200s", kind, status, body)
	}
	check(t, w.requests.Load() == before, "the downstream got it")
}
