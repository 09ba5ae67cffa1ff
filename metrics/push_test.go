package metrics

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	runtimemetrics "runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// receiver keeps the last pushed request.
type receiver struct {
	mu     sync.Mutex
	body   string
	header http.Header
	method string
	pushes int
	status int
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var body io.Reader = req.Body
	if req.Header.Get("Content-Encoding") == "gzip" {
		body, _ = gzip.NewReader(req.Body)
	}
	text, _ := io.ReadAll(body)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.body, r.header, r.method, r.pushes = string(text), req.Header, req.Method, r.pushes+1
	w.WriteHeader(r.status)
}

func TestPushMetrics_SendsLabelsHeadersAndText(t *testing.T) {
	r := &receiver{status: http.StatusNoContent}
	server := httptest.NewServer(r)
	defer server.Close()
	s := NewSet()
	s.NewCounter("a").Inc()
	s.NewCounter(`b{c="d"}`)
	for _, plain := range []bool{false, true} {
		opts := &PushOptions{ExtraLabels: `job="x",i="1"`, Headers: []string{"X-Key: secret"}, Method: http.MethodPost, DisableCompression: plain}
		noError(t, s.PushMetrics(context.Background(), server.URL, opts))
		check(t, "body", r.body, "a{job=\"x\",i=\"1\"} 1\nb{job=\"x\",i=\"1\",c=\"d\"} 0\n")
		if r.header.Get("X-Key") != "secret" || r.method != http.MethodPost || r.header.Get("Content-Type") != "text/plain" {
			t.Errorf("%s with %v", r.method, r.header)
		}
	}
	r.status = http.StatusTeapot
	if err := s.PushMetrics(context.Background(), server.URL, nil); err == nil || !strings.Contains(err.Error(), "418") {
		t.Errorf("got %v", err)
	}
	var b strings.Builder
	WritePushMetrics(&b)
	if want := `metrics_push_errors_total{url="` + server.URL + `"} 1`; !strings.Contains(b.String(), want) {
		t.Errorf("no %s in\n%s", want, b.String())
	}
}

func TestInitPush_StopsWithItsContext(t *testing.T) {
	r := &receiver{status: http.StatusOK}
	server := httptest.NewServer(r)
	defer server.Close()
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	noError(t, InitPushExtWithOptions(ctx, server.URL, time.Millisecond, func(w io.Writer) { WriteGaugeUint64(w, "x", 1) }, &PushOptions{WaitGroup: &wg}))
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		r.mu.Lock()
		n := r.pushes
		r.mu.Unlock()
		if n > 2 {
			break
		}
	}
	cancel()
	wg.Wait()
	server.Close() // a handler may still run for a client that has disconnected
	check(t, "body", r.body, "x 1\n")
}

func TestInitPush_RejectsInvalidOptions(t *testing.T) {
	for _, c := range []struct {
		url      string
		interval time.Duration
		opts     PushOptions
	}{
		{"ftp://a", time.Second, PushOptions{}},
		{"http://", time.Second, PushOptions{}},
		{"http://a%zz", time.Second, PushOptions{}},
		{"http://a", 0, PushOptions{}},
		{"http://a", time.Second, PushOptions{ExtraLabels: "a=b"}},
		{"http://a", time.Second, PushOptions{Headers: []string{"none"}}},
	} {
		if err := InitPushWithOptions(context.Background(), c.url, c.interval, false, &c.opts); err == nil {
			t.Errorf("%+v was taken", c)
		}
		if err := NewSet().InitPushWithOptions(context.Background(), c.url, c.interval, &c.opts); err == nil {
			t.Errorf("%+v was taken by a set", c)
		}
	}
}

func TestPushMetrics_BackoffStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(503)
		time.AfterFunc(20*time.Millisecond, cancel) // in the backoff, or while the response is read
	}))
	defer server.Close()
	start := time.Now()
	err := NewSet().PushMetrics(ctx, server.URL, &PushOptions{MaxRetries: 100, MinBackoff: time.Hour})
	if err == nil || time.Since(start) > 10*time.Second {
		t.Errorf("%v after %s", err, time.Since(start))
	}
}

func TestRuntimeHistogram_HasAboutThirtyBuckets(t *testing.T) {
	p := &page{}
	p.runtimeHistogram("wait_seconds", &runtimemetrics.Float64Histogram{Counts: []uint64{1, 2, 3, 4}, Buckets: []float64{math.Inf(-1), 0.5, 1, 2, math.Inf(1)}})
	check(t, "up to a second", string(p.b), "wait_seconds_bucket{le=\"0.5\"} 1\nwait_seconds_bucket{le=\"1\"} 3\nwait_seconds_bucket{le=\"+Inf\"} 10\n")
	p.b = p.b[:0]
	p.runtimeHistogram("sizes", &runtimemetrics.Float64Histogram{Counts: []uint64{1, 2, 3}, Buckets: []float64{0, 1, 2, math.Inf(1)}})
	check(t, "of another unit", string(p.b), "sizes_bucket{le=\"1\"} 1\nsizes_bucket{le=\"2\"} 3\nsizes_bucket{le=\"+Inf\"} 6\n")
	h := &runtimemetrics.Float64Histogram{Buckets: []float64{0}}
	for i := range 89 {
		h.Counts, h.Buckets = append(h.Counts, 1), append(h.Buckets, float64(i+1))
	}
	p.b = p.b[:0]
	p.runtimeHistogram("many", h) // 90 bounds: every third
	lines := strings.Split(strings.TrimSpace(string(p.b)), "\n")
	if len(lines) != 31 || lines[0] != `many_bucket{le="1"} 1` || lines[1] != `many_bucket{le="4"} 4` || lines[29] != `many_bucket{le="88"} 88` || lines[30] != `many_bucket{le="+Inf"} 89` {
		t.Errorf("%d lines: %q", len(lines), lines)
	}
}

// scriptedReceiver responds with these statuses, the last one again and again, and notes when it was called.
type scriptedReceiver struct {
	statuses []int // 0: no response
	at       []time.Time
	open     int
	requests []*http.Request
	bodies   []string
}

func (r *scriptedReceiver) RoundTrip(req *http.Request) (*http.Response, error) {
	status := r.statuses[min(len(r.at), len(r.statuses)-1)]
	body, _ := io.ReadAll(req.Body)
	r.at, r.requests, r.bodies = append(r.at, time.Now()), append(r.requests, req), append(r.bodies, string(body))
	if status == 0 {
		return nil, errors.New("connection refused")
	}
	r.open++
	return &http.Response{StatusCode: status, Body: &countedBody{strings.NewReader("excerpt"), r}}, nil
}

type countedBody struct {
	io.Reader
	of *scriptedReceiver
}

func (b *countedBody) Close() error { b.of.open--; return nil }

func TestBackoff_DoublesUpToItsLimit(t *testing.T) {
	for _, tt := range []struct{ wait, longest, next time.Duration }{
		{0, 100 * time.Millisecond, 200 * time.Millisecond}, {-1, 100 * time.Millisecond, 200 * time.Millisecond}, {1, 1, 2},
		{30 * time.Second, 30 * time.Second, time.Minute}, {time.Minute, 30 * time.Second, time.Minute},
	} {
		shortest, longest := time.Hour, time.Duration(0)
		for range 500 {
			delay, next := backoff(tt.wait)
			if delay < tt.longest/2 || delay > tt.longest || next != tt.next {
				t.Fatalf("%s: %s, then %s", tt.wait, delay, next)
			}
			shortest, longest = min(shortest, delay), max(longest, delay)
		}
		if longest-shortest < tt.longest/4 {
			t.Errorf("%s: delays of %s to %s are not random", tt.wait, shortest, longest)
		}
	}
}

// pushPage returns the metrics about pushes to a URL.
func pushPage(url string) map[string]string {
	var b strings.Builder
	WritePushMetrics(&b)
	found := map[string]string{}
	for line := range strings.Lines(b.String()) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if family, labels, ok := strings.Cut(name, "{"); ok && strings.HasPrefix(labels, "url="+strconv.Quote(url)) && !strings.HasSuffix(family, "_bucket") {
			found[family] = value
		}
	}
	return found
}

func TestPush_IsCounted(t *testing.T) {
	s := NewSet()
	s.NewCounter("a").Inc()
	r := &scriptedReceiver{statuses: []int{500, 0, 204, 400}}
	opts := &PushOptions{Client: &http.Client{Transport: r}, MaxRetries: 5, MinBackoff: 1, DisableCompression: true, Headers: []string{" X-Key :  secret "}}
	noError(t, s.PushMetrics(t.Context(), "http://user:password@counted.invalid/", opts))
	err := s.PushMetrics(t.Context(), "http://user:password@counted.invalid/", opts)
	if err == nil || !strings.Contains(err.Error(), `: 400; expecting 2xx; response body: "excerpt"`) || strings.Contains(err.Error(), "password") {
		t.Error(err)
	}
	got := pushPage("http://user:xxxxx@counted.invalid/")
	for name, want := range map[string]string{"metrics_push_total": "2", "metrics_push_bytes_pushed_total": "8", "metrics_push_errors_total": "3", "metrics_push_retries_total": "2", "metrics_push_block_size_bytes_sum": "8", "metrics_push_block_size_bytes_count": "2", "metrics_push_duration_seconds_count": "4"} {
		if got[name] != want {
			t.Errorf("%s is %q, want %s", name, got[name], want)
		}
	}
	for i, req := range r.requests {
		if req.Method != http.MethodGet || req.Header.Get("X-Key") != "secret" || req.Header.Get("Content-Encoding") != "" || r.bodies[i] != "a 1\n" {
			t.Errorf("%s %v %q", req.Method, req.Header, r.bodies[i])
		}
	}
	if r.open != 0 {
		t.Errorf("%d responses are open", r.open)
	}
}

// A push that the caller cancels is no failure of the receiver; one that takes too long is, but is not repeated.
func TestPush_EndOfItsContext(t *testing.T) {
	for what, tt := range map[string]struct {
		err    error
		errors string
	}{"canceled": {context.Canceled, "0"}, "late": {context.DeadlineExceeded, "1"}} {
		calls := 0
		client := &http.Client{Transport: tripper(func(req *http.Request) (*http.Response, error) {
			calls++
			<-req.Context().Done()
			return nil, req.Context().Err()
		})}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if what == "canceled" {
			cancel()
			ctx, cancel = context.WithCancel(t.Context())
			cancel()
		}
		err := NewSet().PushMetrics(ctx, "http://"+what+".invalid/", &PushOptions{Client: client, MaxRetries: 3, MinBackoff: 1})
		cancel()
		if got := pushPage("http://" + what + ".invalid/")["metrics_push_errors_total"]; !errors.Is(err, tt.err) || calls > 1 || got != tt.errors {
			t.Errorf("%s: %v, %d calls, %s errors", what, err, calls, got)
		}
	}
}

type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func TestPush_RemoteWriteIsPostedInItsOwnCompression(t *testing.T) {
	s := NewSet()
	s.NewCounter("a").Inc()
	for method, want := range map[string]string{"": http.MethodPost, http.MethodPut: http.MethodPut} {
		r := &scriptedReceiver{statuses: []int{204}}
		noError(t, s.PushMetrics(t.Context(), "http://remote.invalid/", &PushOptions{Client: &http.Client{Transport: r}, RemoteWrite: true, Method: method}))
		if len(r.requests) != 1 || r.requests[0].Method != want || r.requests[0].Header.Get("Content-Encoding") != "snappy" || !strings.Contains(r.bodies[0], "__name__") {
			t.Errorf("%d requests, %+v", len(r.requests), r.requests[0])
		}
	}
	for n, want := range map[int]int{remoteWriteSeriesMax: 1, remoteWriteSeriesMax + 1: 2} {
		s := NewSet()
		v := s.NewCounterVec("c", "", "i")
		for i := range n {
			v.With(strconv.Itoa(i)).Inc()
		}
		r := &scriptedReceiver{statuses: []int{204}}
		if err := s.PushMetrics(t.Context(), "http://remote.invalid/", &PushOptions{Client: &http.Client{Transport: r}, RemoteWrite: true}); err != nil || len(r.requests) != want {
			t.Errorf("%d series: %d requests, %v", n, len(r.requests), err)
		}
		r = &scriptedReceiver{statuses: []int{400}}
		if err := s.PushMetrics(t.Context(), "http://remote.invalid/", &PushOptions{Client: &http.Client{Transport: r}, RemoteWrite: true}); err == nil || len(r.requests) != 1 {
			t.Errorf("%d series, refused: %d requests, %v", n, len(r.requests), err)
		}
	}
}

func TestInitPush_FailuresAreLoggedAndTheIntervalIsExposed(t *testing.T) {
	var logged bytes.Buffer
	log.SetOutput(&logged)
	defer log.SetOutput(os.Stderr)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, wait := &scriptedReceiver{statuses: []int{204, 400, 204}}, sync.WaitGroup{}
	client := &http.Client{Transport: tripper(func(req *http.Request) (*http.Response, error) {
		if len(r.at) == 3 {
			cancel() // the push that it ends is no failure
			return nil, errors.New("the context has ended")
		}
		return r.RoundTrip(req)
	})}
	noError(t, NewSet().InitPushWithOptions(ctx, "http://interval.invalid/", 2*time.Millisecond, &PushOptions{Client: client, WaitGroup: &wait}))
	wait.Wait()
	if text := logged.String(); strings.Count(text, "ERROR: ") != 1 || !strings.Contains(text, "ERROR: metrics.push: unexpected status code") || len(r.at) != 3 {
		t.Errorf("%d requests: %s", len(r.at), text)
	}
	if got := pushPage("http://interval.invalid/")["metrics_push_interval_seconds"]; got != "0.002" {
		t.Errorf("interval %q", got)
	}
}

func TestSink_NativeBucketsAtTheirLimits(t *testing.T) {
	d := NewDesc("h", "")
	one := func(index int32) []NativeBucket { return []NativeBucket{{index, 1}} }
	for name, tt := range map[string]struct {
		b  NativeBuckets
		ok bool
	}{
		"coarsest": {NativeBuckets{Schema: -4}, true}, "coarser": {NativeBuckets{Schema: -5}, false}, "finest": {NativeBuckets{Schema: 8}, true}, "finer": {NativeBuckets{Schema: 9}, false},
		"no threshold": {NativeBuckets{ZeroThreshold: math.NaN()}, false}, "negative threshold": {NativeBuckets{ZeroThreshold: -1}, false}, "threshold": {NativeBuckets{ZeroThreshold: 1}, true},
		"all zeros": {NativeBuckets{ZeroCount: 3}, true}, "more zeros": {NativeBuckets{ZeroCount: 4}, false},
		"last index": {NativeBuckets{Positive: one(nativeIndexMax)}, true}, "beyond it": {NativeBuckets{Positive: one(nativeIndexMax + 1)}, false},
		"first index": {NativeBuckets{Negative: one(-nativeIndexMax)}, true}, "before it": {NativeBuckets{Negative: one(-nativeIndexMax - 1)}, false},
		"all values":  {NativeBuckets{ZeroCount: 1, Positive: one(1), Negative: one(1)}, true},
		"more values": {NativeBuckets{ZeroCount: 1, Positive: one(1), Negative: []NativeBucket{{1, 1}, {2, 1}}}, false},
		"ascending":   {NativeBuckets{Positive: []NativeBucket{{1, 1}, {2, 1}}}, true}, "descending": {NativeBuckets{Positive: []NativeBucket{{2, 1}, {1, 1}}}, false},
	} {
		s := NewSet()
		s.RegisterCollector(func(sink *Sink) error { sink.Histogram(d, 3, 1, nil).Native(tt.b); return nil })
		if status, page := scraped(s, acceptProtobuf); (status == http.StatusOK) != tt.ok {
			t.Errorf("%s: %d %s", name, status, page)
		}
	}
	(&ConstMetric{}).Native(NativeBuckets{Schema: 99}) // its error is already reported
}

func TestSink_BucketsAndQuantilesAtTheirLimits(t *testing.T) {
	inf := math.Inf(1)
	for name, tt := range map[string]struct {
		collect func(*Sink)
		ok      bool
	}{
		"all values":            {func(s *Sink) { s.Histogram(NewDesc("h", ""), 2, 1, []Bucket{{1, 2}}) }, true},
		"equal counts":          {func(s *Sink) { s.Histogram(NewDesc("h", ""), 2, 1, []Bucket{{1, 1}, {2, 1}}) }, true},
		"the last bucket":       {func(s *Sink) { s.Histogram(NewDesc("h", ""), 2, 1, []Bucket{{1, 1}, {inf, 2}}) }, true},
		"too few in it":         {func(s *Sink) { s.Histogram(NewDesc("h", ""), 2, 1, []Bucket{{1, 1}, {inf, 1}}) }, false},
		"equal bounds":          {func(s *Sink) { s.Histogram(NewDesc("h", ""), 2, 1, []Bucket{{1, 1}, {1, 2}}) }, false},
		"quantiles 0 and 1":     {func(s *Sink) { s.Summary(NewDesc("h", ""), 2, 1, []Quantile{{0, 1}, {1, 2}}) }, true},
		"a quantile below 0":    {func(s *Sink) { s.Summary(NewDesc("h", ""), 2, 1, []Quantile{{-0.1, 1}}) }, false},
		"no quantile":           {func(s *Sink) { s.Summary(NewDesc("h", ""), 2, 1, []Quantile{{math.NaN(), 1}}) }, false},
		"le of a summary":       {func(s *Sink) { s.Summary(NewDesc("h", "", "le"), 2, 1, nil, "a") }, true},
		"quantile of a summary": {func(s *Sink) { s.Summary(NewDesc("h", "", "quantile"), 2, 1, nil, "a") }, false},
		"__name__":              {func(s *Sink) { s.Gauge(NewDesc("h", "", "__name__"), 2, "a") }, false},
		"no error":              {func(s *Sink) { s.Error(nil) }, true},
	} {
		s := NewSet()
		s.RegisterCollector(func(sink *Sink) error { tt.collect(sink); return nil })
		if status, page := scraped(s, ""); (status == http.StatusOK) != tt.ok {
			t.Errorf("%s: %d %s", name, status, page)
		}
	}
}

// An exemplar belongs to the first bucket with its value; gauges and summaries have none.
func TestConstMetric_ExemplarsOfBuckets(t *testing.T) {
	at := time.UnixMilli(5_000)
	for value, want := range map[float64]string{1: `h_bucket{le="1.0"} 1 # {a="b"} 1.0 5.0`, 1.5: `h_bucket{le="2.0"} 2 # {a="b"} 1.5 5.0`, 3: `h_bucket{le="+Inf"} 3 # {a="b"} 3.0 5.0`} {
		s := NewSet()
		s.RegisterCollector(func(sink *Sink) error {
			sink.Histogram(NewDesc("h", ""), 3, 1, []Bucket{{1, 1}, {2, 2}}).Exemplar(value, at, "a", "b")
			sink.Gauge(NewDesc("g", ""), 1).Exemplar(1, at, "a", "b")
			sink.Counter(NewDesc("c_total", ""), 1).Exemplar(1, at, "not valid", "b")
			return nil
		})
		if _, page := scraped(s, acceptOpenMetrics); !strings.Contains(page, want+"\n") || strings.Count(page, " # {") != 1 {
			t.Errorf("%v: %s", value, page)
		}
	}
}

func TestRegisterCollector_OfTheDefaultSet(t *testing.T) {
	unregister := RegisterCollector(func(sink *Sink) error { sink.Gauge(NewDesc("edges_collected", ""), 1); return nil })
	for _, want := range []bool{true, false} {
		var b bytes.Buffer
		if WritePrometheus(&b, false); strings.Contains(b.String(), "edges_collected 1\n") != want {
			t.Errorf("want %v: %s", want, &b)
		}
		unregister()
	}
}

func TestSummary_UpdateDurationIsInSeconds(t *testing.T) {
	s := NewSet()
	sm := s.NewSummary("wait_seconds")
	sm.UpdateDuration(time.Now().Add(-time.Hour))
	if page := text(s); !strings.Contains(page, "wait_seconds_sum 3600.") || !strings.Contains(page, "wait_seconds_count 1\n") {
		t.Error(page)
	}
}

func TestVec_DeleteOfAnotherNumberOfValuesPanics(t *testing.T) {
	v := NewSet().NewCounterVec("c", "", "a", "b")
	v.With("1", "2").Inc()
	mustPanic(t, "", func() { v.Delete("1") })
	if v.Delete("1", "3") || !v.Delete("1", "2") || v.Delete("1", "2") {
		t.Error("other members are deleted")
	}
}

func TestNewSetWithOptions_OfNothingIsAPlainSet(t *testing.T) {
	s := NewSetWithOptions(SetOptions{})
	s.NewCounter(`{"a.b",c="d"}`).Inc()
	if page := text(s); !strings.Contains(page, `{"a.b",c="d"} 1`) {
		t.Error(page)
	}
}
