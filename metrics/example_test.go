package metrics_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	"github.com/ferula-io/ferula/metrics"
)

func Example() {
	served := metrics.NewCounter(`example_requests_total{path="/api"}`)
	http.Handle("/metrics", metrics.Handler(true))
	served.Inc()
	fmt.Println(served.Get())
	// Output: 1
}

func ExampleCounter() {
	s := metrics.NewSet()
	for _, code := range []int{200, 404, 200} {
		s.GetOrCreateCounter(fmt.Sprintf(`requests_total{code="%d"}`, code)).Inc()
	}
	s.WritePrometheus(os.Stdout)
	// Output:
	// requests_total{code="200"} 2
	// requests_total{code="404"} 1
}

func ExampleFloatCounter() {
	s := metrics.NewSet()
	s.NewFloatCounter("spent_seconds_total").Add(1.5)
	s.WritePrometheus(os.Stdout)
	// Output: spent_seconds_total 1.5
}

func ExampleGauge() {
	s := metrics.NewSet()
	queue := make(chan int, 8)
	s.NewGauge("queue_length", func() float64 { return float64(len(queue)) })
	s.NewGauge("temperature_celsius", nil).Set(21.5)
	queue <- 1
	s.WritePrometheus(os.Stdout)
	// Output:
	// queue_length 1
	// temperature_celsius 21.5
}

func ExampleHistogram() {
	s := metrics.NewSet()
	h := s.NewHistogram("response_bytes")
	h.Update(1500)
	h.Update(1500)
	s.WritePrometheus(os.Stdout)
	// Output:
	// response_bytes_bucket{vmrange="1.468e+03...1.668e+03"} 2
	// response_bytes_sum 3000
	// response_bytes_count 2
}

func ExamplePrometheusHistogram() {
	s := metrics.NewSet()
	h := s.NewPrometheusHistogramExt(`wait_seconds{queue="in"}`, []float64{0.1, 1})
	h.Update(0.25)
	s.WritePrometheus(os.Stdout)
	// Output:
	// wait_seconds_bucket{queue="in",le="0.1"} 0
	// wait_seconds_bucket{queue="in",le="1"} 1
	// wait_seconds_bucket{queue="in",le="+Inf"} 1
	// wait_seconds_sum{queue="in"} 0.25
	// wait_seconds_count{queue="in"} 1
}

func ExampleSummary() {
	s := metrics.NewSet()
	sm := s.NewSummaryExt("latency_seconds", time.Minute, []float64{0.5, 1})
	for _, v := range []float64{1, 2, 3} {
		sm.Update(v)
	}
	s.WritePrometheus(os.Stdout)
	// Output:
	// latency_seconds{quantile="0.5"} 2
	// latency_seconds{quantile="1"} 3
	// latency_seconds_sum 6
	// latency_seconds_count 3
}

func ExampleSet() {
	plugin := metrics.NewSet()
	plugin.NewCounter("plugin_calls_total")
	metrics.RegisterSet(plugin)
	metrics.UnregisterSet(plugin, true)
	fmt.Println(plugin.ListMetricNames())
	// Output: []
}

func ExampleCounterVec() {
	s := metrics.NewSet()
	served := s.NewCounterVec("requests_total", "Requests served.", "method", "code")
	served.With("GET", "200").Inc()
	served.With("PUT", "500").Add(2)
	s.WritePrometheus(os.Stdout)
	// Output:
	// requests_total{method="GET",code="200"} 1
	// requests_total{method="PUT",code="500"} 2
}

func ExampleSet_NewNativeHistogram() {
	s := metrics.NewSet()
	h := s.NewNativeHistogram("wait_seconds", metrics.NativeHistogramOptions{BucketFactor: 1.1, UpperBounds: []float64{1}})
	h.Update(0.25)
	h.Update(7)
	s.WritePrometheus(os.Stdout) // protobuf has the exact buckets
	// Output:
	// wait_seconds_bucket{le="1"} 1
	// wait_seconds_bucket{le="+Inf"} 2
	// wait_seconds_sum 7.25
	// wait_seconds_count 2
}

func ExampleNewHandler() {
	s := metrics.NewSet()
	s.Describe("requests_total", "Requests served.", "")
	s.NewCounter("requests_total").Inc()
	server := httptest.NewServer(metrics.NewHandler(metrics.HandlerOptions{Sets: []*metrics.Set{s}}))
	defer server.Close()
	req, _ := http.NewRequest(http.MethodGet, server.URL, nil)
	req.Header.Set("Accept", "application/openmetrics-text;version=1.0.0")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	page, _ := io.ReadAll(resp.Body)
	fmt.Print(string(page))
	// Output:
	// # HELP requests Requests served.
	// # TYPE requests counter
	// requests_total 1.0
	// # EOF
}

func ExamplePushOptions() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page, _ := io.ReadAll(r.Body)
		fmt.Print(string(page))
	}))
	defer server.Close()
	s := metrics.NewSet()
	s.NewCounter("jobs_total").Inc()
	err := s.PushMetrics(context.Background(), server.URL, &metrics.PushOptions{
		ExtraLabels: `job="backup"`, Method: http.MethodPost, DisableCompression: true, MaxRetries: 3,
	})
	fmt.Println(err)
	// Output:
	// jobs_total{job="backup"} 1
	// <nil>
}

func ExampleNewSetWithOptions() {
	s := metrics.NewSetWithOptions(metrics.SetOptions{Prefix: "billing_", Labels: map[string]string{"env": "prod"}})
	s.NewCounter(`invoices_total{kind="monthly"}`).Inc()
	s.WritePrometheus(os.Stdout)
	// Output: billing_invoices_total{env="prod",kind="monthly"} 1
}
