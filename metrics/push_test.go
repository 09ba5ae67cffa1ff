package metrics

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
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
		if err := s.PushMetrics(context.Background(), server.URL, opts); err != nil {
			t.Fatal(err)
		}
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
	if err := InitPushExtWithOptions(ctx, server.URL, time.Millisecond, func(w io.Writer) { WriteGaugeUint64(w, "x", 1) }, &PushOptions{WaitGroup: &wg}); err != nil {
		t.Fatal(err)
	}
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

func TestPushMetrics_RetriesRetryableErrors(t *testing.T) {
	for _, c := range []struct {
		statuses []int // of the tries, the last one for all further ones
		retries  int
		pushes   int
		ok       bool
	}{
		{[]int{503, 429, 200}, 5, 3, true},
		{[]int{500}, 2, 3, false},
		{[]int{400}, 5, 1, false},
		{[]int{500}, 0, 1, false},
	} {
		pushes := 0
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(c.statuses[min(pushes, len(c.statuses)-1)])
			pushes++
		}))
		err := NewSet().PushMetrics(context.Background(), server.URL, &PushOptions{MaxRetries: c.retries, MinBackoff: time.Millisecond})
		server.Close()
		if (err == nil) != c.ok || pushes != c.pushes {
			t.Errorf("%v: %d pushes, want %d; %v", c.statuses, pushes, c.pushes, err)
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

// A push that did not reach the receiver is never reported as done.
func TestPushMetrics_CancelledPushIsAnError(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // net/http notices that a client disconnects only after its body
		cancel()
		<-r.Context().Done()
	}))
	defer server.Close()
	if err := NewSet().PushMetrics(ctx, server.URL, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}
