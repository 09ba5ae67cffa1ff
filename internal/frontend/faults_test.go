package frontend

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// The tests of this file cover faults that other query frontends had.

// same sends a query to a frontend and to its downstream, and compares the bytes.
func (w *testEnv) same(t *testing.T, front *httptest.Server, query string, start, end, step float64) {
	t.Helper()
	path := rangePath(query, start, end, step)
	_, want, _ := get(t, w.server.URL+path)
	status, got, h := get(t, front.URL+path)
	check(t, status == 200 && got == want, "%s (cache %s)\ngot  %.1500s\nwant %.1500s", path, h.Get("X-Ferula-Cache"), got, want)
}

func TestFrontend_CacheHitLeavesNoGaps(t *testing.T) {
	w := newTestEnv(t)
	front := w.front(func(o *Options) { o.Cache = newMemoryCache() })
	w.same(t, front, "requests_total", 600, 5400, 30)
	for _, r := range [][2]float64{{0, 9000}, {3000, 4200}, {5370, 5430}, {5400, 12000}, {0, 12000}, {3570, 3630}} {
		w.same(t, front, "requests_total", r[0], r[1], 30)
	}
}

func TestFrontend_CachedEmptyResultDoesNotHideAdjacentData(t *testing.T) {
	w := newTestEnv(t)
	front := w.front(func(o *Options) { o.Cache = newMemoryCache() })
	w.same(t, front, "onlyonce", 0, 3000, 30) // no samples in this range
	w.same(t, front, "onlyonce", 0, 12000, 30)
	w.same(t, front, "temperature{room=\"cellar\"}", 0, 5970, 30)
	w.same(t, front, "temperature{room=\"cellar\"}", 0, 7200, 30)
}

func TestFrontend_CacheIsNotReusedForOtherSteps(t *testing.T) {
	w := newTestEnv(t)
	front := w.front(func(o *Options) { o.Cache = newMemoryCache() })
	for _, start := range []float64{0, 7, 7.5, 29.999, 30, 0.001} {
		w.same(t, front, "time()", start, start+7200, 30)
		w.same(t, front, "requests_total", start, start+7200, 30)
	}
	for _, step := range []float64{15, 30, 60, 31} {
		w.same(t, front, "requests_total", 0, 7200, step)
	}
}

func TestFrontend_FillersAreRightOnBothSidesOfASplit(t *testing.T) {
	w := newTestEnv(t)
	front := w.front(func(o *Options) { o.Cache = newMemoryCache() })
	for range 2 {
		for _, query := range []string{`onlyonce or vector(0)`, `sum(onlyonce) or vector(0)`, `absent_over_time(onlyonce[5m])`, `absent(onlyonce)`, `requests_total{code="500"} or on() vector(-1)`} {
			w.same(t, front, query, 0, 12000, 30)
			w.same(t, front, query, 1800, 10000, 30)
		}
	}
}

func TestFrontend_ResponseWithAPartialPartIsNotCached(t *testing.T) {
	w := newTestEnv(t)
	cached := newMemoryCache()
	front := w.front(func(o *Options) { o.Cache = cached })
	w.mu.Lock()
	w.break_ = func(rw http.ResponseWriter, r *http.Request) bool {
		if r.Form.Get("start") != "0" {
			return false
		}
		_, _ = io.WriteString(rw, `{"status":"success","data":{"resultType":"matrix","result":[]},"warnings":["store is down"]}`)
		return true
	}
	w.mu.Unlock()
	_, got, _ := get(t, front.URL+rangePath("requests_total", 0, 7199, 30))
	check(t, strings.Contains(got, "store is down"), "the warning is lost: %.200s", got)
	w.mu.Lock()
	w.break_ = nil
	w.mu.Unlock()
	w.same(t, front, "requests_total", 0, 7199, 30)
}

func TestFrontend_PointsOffTheStepsAreNotCached(t *testing.T) {
	w := newTestEnv(t)
	cached := newTestCache()
	w.break_ = func(rw http.ResponseWriter, _ *http.Request) bool {
		_, _ = io.WriteString(rw, `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"a":"1"},"values":[[60,"1"],[90,"2"]]}]}}`)
		return true
	}
	front := w.front(func(o *Options) { o.Cache = cached.Cache })
	_, _, _ = get(t, front.URL+rangePath("requests_total", 7, 3000, 30))
	check(t, cached.values() == 0, "points off the query's steps are cached")
}

func TestFrontend_DisconnectedClientCancelsDownstreamCalls(t *testing.T) {
	w := newTestEnv(t)
	ended := make(chan struct{}, 10)
	arrived := make(chan struct{}, 10)
	w.break_ = func(_ http.ResponseWriter, r *http.Request) bool {
		arrived <- struct{}{}
		<-r.Context().Done()
		ended <- struct{}{}
		return true
	}
	front := w.front(nil)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, front.URL+rangePath("requests_total", 0, 7199, 30), nil)
		if err == nil {
			_, err = http.DefaultTransport.RoundTrip(req)
		}
		done <- err
	}()
	<-arrived
	<-arrived
	cancel()
	check(t, <-done != nil, "a response came")
	for range 2 {
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Fatal("the downstream call of a disconnected client is not canceled")
		}
	}
}

func TestFrontend_TransientFailureOfAPartIsRetried(t *testing.T) {
	w := newTestEnv(t)
	failed := false
	path := rangePath("requests_total", 0, 7199, 30)
	_, want, _ := get(t, w.server.URL+path)
	w.mu.Lock()
	w.break_ = func(rw http.ResponseWriter, r *http.Request) bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		if failed || r.Form.Get("start") == "0" {
			return false
		}
		failed = true
		rw.WriteHeader(http.StatusServiceUnavailable)
		return true
	}
	w.mu.Unlock()
	front := w.front(nil)
	status, got, _ := get(t, front.URL+path)
	check(t, status == 200 && got == want && failed, "%d %.300s", status, got)
}
