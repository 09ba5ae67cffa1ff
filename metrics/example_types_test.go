package metrics_test

import (
	"compress/zlib"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"time"

	"github.com/ferula-io/ferula/metrics"
)

func ExampleCounterFunc() {
	s := metrics.NewSet()
	var parsed float64 // what another library counts
	s.NewCounterFunc("lines_parsed_total", func() float64 { return parsed })
	parsed = 12
	s.WritePrometheus(os.Stdout)
	// Output: lines_parsed_total 12
}

func ExampleFamily() {
	s := metrics.NewSet()
	s.NewCounterVec("requests_total", "Requests served.", "code").With("200").Inc()
	s.NewPrometheusHistogram("request_seconds").Update(1)
	for _, f := range s.Families() {
		fmt.Printf("%s is a %s: %q\n", f.Name, f.Type, f.Help)
	}
	// Output:
	// request_seconds is a histogram: ""
	// requests_total is a counter: "Requests served."
}

func ExampleFloatCounterVec() {
	s := metrics.NewSet()
	spent := s.NewFloatCounterVec("spent_seconds_total", "Time spent.", "stage")
	spent.With("parse").Add(0.25)
	s.WritePrometheus(os.Stdout)
	// Output: spent_seconds_total{stage="parse"} 0.25
}

func ExampleGaugeVec() {
	s := metrics.NewSet()
	queued := s.NewGaugeVec("queued_jobs", "Jobs that wait.", "queue")
	queued.With("mail").Set(3)
	queued.With("mail").Dec()
	s.WritePrometheus(os.Stdout)
	// Output: queued_jobs{queue="mail"} 2
}

func ExampleHandlerOptions() {
	s := metrics.NewSet()
	s.NewCounterVec("requests_total", "Requests served.", "code").With("200").Inc()
	page := httptest.NewRecorder()
	metrics.NewHandler(metrics.HandlerOptions{
		Sets:     []*metrics.Set{s},
		Metadata: true, // HELP and TYPE lines
	}).ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	fmt.Print(page.Body)
	// Output:
	// # HELP requests_total Requests served.
	// # TYPE requests_total counter
	// requests_total{code="200"} 1
}

func ExampleHistogramVec() {
	s := metrics.NewSet()
	s.NewHistogramVec("response_bytes", "Size of responses.", "path").With("/").Update(1500)
	s.WritePrometheus(os.Stdout)
	// Output:
	// response_bytes_bucket{path="/",vmrange="1.468e+03...1.668e+03"} 1
	// response_bytes_sum{path="/"} 1500
	// response_bytes_count{path="/"} 1
}

func ExampleNativeHistogramOptions() {
	s := metrics.NewSet()
	wait := s.NewNativeHistogramVec("wait_seconds", "Time waited.", metrics.NativeHistogramOptions{
		BucketFactor: 1.1,                // each native bucket is at most 10 % wider than the one before
		MaxBuckets:   160,                // fewer, wider buckets beyond that
		UpperBounds:  []float64{0.1, 10}, // of the classic buckets, for scrapers that request text
	}, "queue")
	wait.With("mail").Update(0.25)
	s.WritePrometheus(os.Stdout)
	// Output:
	// wait_seconds_bucket{queue="mail",le="0.1"} 0
	// wait_seconds_bucket{queue="mail",le="10"} 1
	// wait_seconds_bucket{queue="mail",le="+Inf"} 1
	// wait_seconds_sum{queue="mail"} 0.25
	// wait_seconds_count{queue="mail"} 1
}

func ExamplePrometheusHistogramVec() {
	s := metrics.NewSet()
	seconds := s.NewPrometheusHistogramVec("request_seconds", "Duration of requests.", []float64{0.5}, "path")
	seconds.With("/").Update(0.25)
	s.WritePrometheus(os.Stdout)
	// Output:
	// request_seconds_bucket{path="/",le="0.5"} 1
	// request_seconds_bucket{path="/",le="+Inf"} 1
	// request_seconds_sum{path="/"} 0.25
	// request_seconds_count{path="/"} 1
}

// A push by remote write to Prometheus with --web.enable-remote-write-receiver, Mimir, Thanos
// or ferula.
func ExamplePushOptions_remoteWrite() {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		fmt.Println(r.Method, r.URL.Path, r.Header.Get("Content-Encoding"))
	}))
	defer server.Close()
	s := metrics.NewSet()
	s.NewCounter("jobs_total").Inc()
	err := s.PushMetrics(context.Background(), server.URL+"/api/v1/write", &metrics.PushOptions{RemoteWrite: true, ExtraLabels: `job="backup"`})
	fmt.Println(err)
	// Output:
	// POST /api/v1/write snappy
	// <nil>
}

func ExampleSetOptions() {
	shards := []*metrics.Set{}
	for _, shard := range []string{"1", "2"} {
		s := metrics.NewSetWithOptions(metrics.SetOptions{Prefix: "db_", Labels: map[string]string{"shard": shard}})
		s.NewCounter("reads_total").Inc()
		shards = append(shards, s)
	}
	for _, s := range shards {
		s.WritePrometheus(os.Stdout)
	}
	// Output:
	// db_reads_total{shard="1"} 1
	// db_reads_total{shard="2"} 1
}

func ExampleSummaryVec() {
	s := metrics.NewSet()
	latency := s.NewSummaryVecExt("latency_seconds", "Latency.", time.Minute, []float64{0.5}, "path")
	latency.With("/").Update(2)
	s.WritePrometheus(os.Stdout)
	// Output:
	// latency_seconds{path="/",quantile="0.5"} 2
	// latency_seconds_sum{path="/"} 2
	// latency_seconds_count{path="/"} 1
}

func ExampleVecFamily() {
	s := metrics.NewSet()
	s.NewCounterVec("requests_total", "Requests served.", "method", "code") // no member yet
	for _, f := range s.Vectors() {
		fmt.Println(f.Name, f.Type, f.Labels)
	}
	// Output: requests_total counter [method code]
}

func ExampleCounterFuncVec() {
	s := metrics.NewSet()
	parsed := s.NewCounterFuncVec("lines_parsed_total", "Lines that a parser counts.", "parser")
	parsed.With("csv").SetFunc(func() float64 { return 12 })
	s.WritePrometheus(os.Stdout)
	// Output: lines_parsed_total{parser="csv"} 12
}

func ExampleGaugeFuncVec() {
	s := metrics.NewSet()
	queued := s.NewGaugeFuncVec("queued_jobs", "Jobs that wait.", "queue")
	mail := make(chan string, 10)
	queued.With("mail").SetFunc(func() float64 { return float64(len(mail)) })
	mail <- "hello"
	s.WritePrometheus(os.Stdout)
	queued.Delete("mail") // when the queue ends
	// Output: queued_jobs{queue="mail"} 1
}

func ExampleGaugeFunc() {
	s := metrics.NewSet()
	open := s.NewGaugeFuncVec("open_files", "Files that are open.", "kind").With("log") // a *metrics.GaugeFunc
	open.SetFunc(func() float64 { return 3 })
	fmt.Println(open.Get())
	// Output: 3
}

func ExampleTimer() {
	s := metrics.NewSet()
	seconds := s.NewPrometheusHistogramExt("job_seconds", []float64{60})
	func() {
		timer := metrics.NewTimer(seconds)
		defer timer.ObserveDuration()
		// the job
	}()
	page := httptest.NewRecorder()
	s.WritePrometheus(page)
	fmt.Println(strings.Contains(page.Body.String(), `job_seconds_bucket{le="60"} 1`))
	// Output: true
}

func ExampleUpdater() {
	s := metrics.NewSet()
	for _, m := range []metrics.Updater{s.NewHistogram("a"), s.NewSummary("b")} {
		m.Update(2)
	}
	s.WritePrometheus(os.Stdout)
	// Output:
	// a_bucket{vmrange="1.896e+00...2.154e+00"} 1
	// a_sum 2
	// a_count 1
	// b{quantile="0.5"} 2
	// b{quantile="0.9"} 2
	// b{quantile="0.97"} 2
	// b{quantile="0.99"} 2
	// b{quantile="1"} 2
	// b_sum 2
	// b_count 1
}

// The duration of the last run, as a gauge.
func ExampleUpdaterFunc() {
	s := metrics.NewSet()
	last := s.NewGauge("last_run_seconds", nil)
	metrics.NewTimer(metrics.UpdaterFunc(last.Set)).ObserveDuration()
	fmt.Println(last.Get() > 0)
	// Output: true
}

// A content coding of another module: promcompat.Zstd has zstd.
func ExampleCompressor() {
	deflate := metrics.Compressor{Coding: "deflate", New: func() metrics.CompressWriter { return zlib.NewWriter(nil) }}
	s := metrics.NewSet()
	h := metrics.NewHandler(metrics.HandlerOptions{Sets: []*metrics.Set{s}, Compressors: []metrics.Compressor{deflate}})
	page := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept-Encoding", "gzip, deflate")
	h.ServeHTTP(page, r)
	fmt.Println(page.Header().Get("Content-Encoding"))
	// Output: deflate
}

func ExampleCompressWriter() {
	var w metrics.CompressWriter = zlib.NewWriter(nil) // and those of compress/gzip, and of zstd encoders
	w.Reset(io.Discard)
	fmt.Println(w.Close())
	// Output: <nil>
}
