package metrics_test

import (
	"fmt"
	"net/http"
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
