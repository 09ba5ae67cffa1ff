package metrics_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	"github.com/ferula-io/ferula/metrics"
)

// The metrics of an exporter: the values belong to another program, and are read at each scrape.
func ExampleSink() {
	temperature := metrics.NewDesc("room_celsius", "Temperature of a room.", "room")
	opened := metrics.NewDesc("door_opened_total", "Times that a door was opened.", "room")

	s := metrics.NewSet()
	s.RegisterCollector(func(sink *metrics.Sink) error {
		for _, room := range []string{"kitchen", "hall"} {
			sink.Gauge(temperature, 21.5, room)
			sink.Counter(opened, 7, room)
		}
		return nil // an error fails the scrape
	})
	s.WritePrometheus(os.Stdout)
	// Output:
	// door_opened_total{room="hall"} 7
	// door_opened_total{room="kitchen"} 7
	// room_celsius{room="hall"} 21.5
	// room_celsius{room="kitchen"} 21.5
}

// Errors, and metrics that are not valid, fail the scrape of a handler.
func ExampleDesc() {
	reads := metrics.NewDesc("disk_reads_total", "Reads.", "device")
	s := metrics.NewSet()
	s.RegisterCollector(func(sink *metrics.Sink) error {
		sink.Counter(reads, 1, "sda")
		sink.Counter(reads, 2, "sda")
		return errors.New("sdb is gone")
	})
	page := httptest.NewRecorder()
	s.Handler().ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	fmt.Print(page.Code, " ", page.Body)
	// Output:
	// 500 metrics: errors of collectors: metric disk_reads_total{device="sda"} was collected before with the same name and label values
	// sdb is gone
}

func ExampleConstMetric() {
	requests := metrics.NewDesc("requests_total", "Requests.", "method")
	s := metrics.NewSet()
	s.RegisterCollector(func(sink *metrics.Sink) error {
		at := time.UnixMilli(1_700_000_000_000)
		sink.Counter(requests, 17, "GET").Created(at).Exemplar(1, at, "trace_id", "4bf92f35")
		return nil
	})
	page := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", "application/openmetrics-text;version=1.0.0")
	s.Handler().ServeHTTP(page, r)
	fmt.Print(page.Body)
	// Output:
	// # HELP requests Requests.
	// # TYPE requests counter
	// requests_total{method="GET"} 17.0 # {trace_id="4bf92f35"} 1.0 1.7e+09
	// # EOF
}

func ExampleBucket() {
	wait := metrics.NewDesc("wait_seconds", "Time waited.")
	s := metrics.NewSet()
	s.RegisterCollector(func(sink *metrics.Sink) error {
		sink.Histogram(wait, 10, 4.5, []metrics.Bucket{{Upper: 0.5, Count: 7}, {Upper: 1, Count: 9}})
		return nil
	})
	s.WritePrometheus(os.Stdout)
	// Output:
	// wait_seconds_bucket{le="0.5"} 7
	// wait_seconds_bucket{le="1"} 9
	// wait_seconds_bucket{le="+Inf"} 10
	// wait_seconds_sum 4.5
	// wait_seconds_count 10
}

func ExampleQuantile() {
	wait := metrics.NewDesc("wait_seconds", "Time waited.")
	s := metrics.NewSet()
	s.RegisterCollector(func(sink *metrics.Sink) error {
		sink.Summary(wait, 10, 4.5, []metrics.Quantile{{Phi: 0.5, Value: 0.4}, {Phi: 0.99, Value: 1.1}})
		return nil
	})
	s.WritePrometheus(os.Stdout)
	// Output:
	// wait_seconds{quantile="0.5"} 0.4
	// wait_seconds{quantile="0.99"} 1.1
	// wait_seconds_sum 4.5
	// wait_seconds_count 10
}

// Native buckets are exposed in protobuf only. Text has classic buckets, if there are
// any.
func ExampleNativeBuckets() {
	wait := metrics.NewDesc("wait_seconds", "Time waited.")
	s := metrics.NewSet()
	s.RegisterCollector(func(sink *metrics.Sink) error {
		sink.Histogram(wait, 5, 6.5, nil).Native(metrics.NativeBuckets{
			Schema:        0, // each bound is twice the one before
			ZeroThreshold: 0.001,
			ZeroCount:     1,
			Positive:      []metrics.NativeBucket{{Index: 0, Count: 1}, {Index: 2, Count: 3}}, // (0.5, 1] and (2, 4]
		})
		return nil
	})
	s.WritePrometheus(os.Stdout)
	// Output:
	// wait_seconds_bucket{le="+Inf"} 5
	// wait_seconds_sum 6.5
	// wait_seconds_count 5
}

func ExampleNativeBucket() {
	size := metrics.NewDesc("size_ratio", "Sizes.")
	s := metrics.NewSet()
	s.RegisterCollector(func(sink *metrics.Sink) error {
		sink.Histogram(size, 1, 3, nil).Native(metrics.NativeBuckets{
			Positive: []metrics.NativeBucket{{Index: 2, Count: 2}}, // more than the histogram has
		})
		return nil
	})
	page := httptest.NewRecorder()
	s.Handler().ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	fmt.Print(page.Body)
	// Output:
	// metrics: errors of collectors: metric size_ratio has fewer values than its native buckets
}
