package httpmetrics_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/ferula-io/ferula/metrics"
	"github.com/ferula-io/ferula/metrics/httpmetrics"
	"github.com/ferula-io/ferula/metrics/metricstest"
)

func ExampleServer() {
	set := metrics.NewSet()
	measured := httpmetrics.NewServer(set, httpmetrics.Options{})
	mux := http.NewServeMux()
	mux.Handle("/api/", measured.Handler("/api/", http.NotFoundHandler()))
	mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/api/x", nil))
	fmt.Println(metricstest.Value(set, `http_requests_total{handler="/api/",method="GET",code="404"}`))
	// Output: 1 true
}

func ExampleClient() {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	set := metrics.NewSet()
	measured := httpmetrics.NewClient(set, httpmetrics.Options{})
	client := &http.Client{Transport: measured.RoundTripper("directory", http.DefaultTransport)}
	resp, err := client.Get(server.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = resp.Body.Close()
	fmt.Println(metricstest.Value(set, `http_client_requests_total{target="directory",method="GET",code="404"}`))
	// Output: 1 true
}

func ExampleOptions() {
	set := metrics.NewSet()
	measured := httpmetrics.NewServer(set, httpmetrics.Options{
		Prefix:      "shop_http_",
		UpperBounds: []float64{0.1, 1, 3600},
		TraceID:     func(r *http.Request) string { return r.Header.Get("X-Trace") },
	})
	measured.Handler("/", http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	fmt.Println(metricstest.Value(set, `shop_http_request_duration_seconds_bucket{handler="/",method="GET",le="3600"}`))
	// Output: 1 true
}
