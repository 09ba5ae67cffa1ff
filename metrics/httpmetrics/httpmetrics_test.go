package httpmetrics_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ferula-io/ferula/metrics"
	"github.com/ferula-io/ferula/metrics/httpmetrics"
	"github.com/ferula-io/ferula/metrics/metricstest"
)

const trace = "4bf92f3577b34da6a3ce929d0e0e4736"

func send(t *testing.T, h http.Handler, method, traceparent string) {
	t.Helper()
	defer func() { _ = recover() }()
	r := httptest.NewRequest(method, "/items/17", nil)
	r.Header.Set("Traceparent", traceparent)
	h.ServeHTTP(httptest.NewRecorder(), r)
}

func TestServer_CountsRequests(t *testing.T) {
	set := metrics.NewSet()
	m := httpmetrics.NewServer(set, httpmetrics.Options{UpperBounds: []float64{1000}})
	ok := m.Handler("/items/:id", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if v, _ := metricstest.Value(set, "http_requests_in_flight"); v != 1 {
			t.Errorf("%v requests in flight", v)
		}
		_, _ = io.WriteString(w, "12345")
		w.(http.Flusher).Flush()
	}))
	missing := m.Handler("/items/:id", http.NotFoundHandler())
	panics := m.Handler("/items/:id", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("no") }))
	for _, method := range []string{"GET", "GET", "POST", "ODD", "ODDER"} {
		send(t, ok, method, "")
	}
	send(t, missing, "GET", "")
	send(t, panics, "GET", "")
	metricstest.Expect(t, set, map[string]float64{
		`http_requests_total{handler="/items/:id",method="GET",code="200"}`:                 2,
		`http_requests_total{handler="/items/:id",method="POST",code="200"}`:                1,
		`http_requests_total{handler="/items/:id",method="other",code="200"}`:               2,
		`http_requests_total{handler="/items/:id",method="GET",code="404"}`:                 1,
		`http_requests_total{handler="/items/:id",method="GET",code="500"}`:                 1,
		`http_request_duration_seconds_count{handler="/items/:id",method="GET"}`:            4,
		`http_request_duration_seconds_bucket{handler="/items/:id",method="GET",le="1000"}`: 4,
		`http_response_size_bytes_total{handler="/items/:id"}`:                              5*5 + float64(len("404 page not found\n")),
		`http_requests_in_flight`: 0,
	})
}

// The status of an informational response is not counted.
func TestServer_EarlyHintsAreNotTheStatus(t *testing.T) {
	set := metrics.NewSet()
	m := httpmetrics.NewServer(set, httpmetrics.Options{})
	server := httptest.NewServer(m.Handler("/", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusTeapot)
	})))
	resp, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	server.Close()
	metricstest.Expect(t, set, map[string]float64{`http_requests_total{handler="/",method="GET",code="418"}`: 1})
}

// Only a sampled and valid trace is an exemplar.
func TestServer_ExemplarOfTheTrace(t *testing.T) {
	for traceparent, want := range map[string]bool{
		"00-" + trace + "-00f067aa0ba902b7-01":                    true,
		"00-" + trace + "-00f067aa0ba902b7-00":                    false,
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01": false,
		"00-" + strings.ToUpper(trace) + "-00f067aa0ba902b7-01":   false,
		"00-" + trace + "-00f067aa0ba902b7-zz":                    false,
		"garbage":                                                 false, "": false,
	} {
		set := metrics.NewSet()
		m := httpmetrics.NewServer(set, httpmetrics.Options{})
		send(t, m.Handler("/", http.NotFoundHandler()), "GET", traceparent)
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Accept", "application/openmetrics-text;version=1.0.0")
		w := httptest.NewRecorder()
		set.Handler().ServeHTTP(w, r)
		if got := strings.Count(w.Body.String(), `# {trace_id="`+trace+`"}`); (got == 2) != want || got != 0 && got != 2 {
			t.Errorf("%q: %d exemplars, want some: %v\n%s", traceparent, got, want, w.Body)
		}
	}
}

type failing struct{}

func (failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, errors.New("refused") }

func TestClient_CountsRequestsAndErrors(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	set := metrics.NewSet()
	m := httpmetrics.NewClient(set, httpmetrics.Options{Native: true})
	for _, next := range []http.RoundTripper{nil, failing{}} {
		client := http.Client{Transport: m.RoundTripper("items", next)}
		resp, err := client.Get(server.URL)
		if err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
	}
	metricstest.Expect(t, set, map[string]float64{
		`http_client_requests_total{target="items",method="GET",code="404"}`:      1,
		`http_client_requests_total{target="items",method="GET",code="error"}`:    1,
		`http_client_request_duration_seconds_count{target="items",method="GET"}`: 2,
		`http_client_requests_in_flight`:                                          0,
	})
}

func ExampleServer_Handler() {
	m := httpmetrics.NewServer(metrics.GetDefaultSet(), httpmetrics.Options{})
	mux := http.NewServeMux()
	mux.Handle("/api", m.Handler("/api", http.NotFoundHandler()))
	mux.Handle("/metrics", metrics.Handler(true))
	// Output:
}
