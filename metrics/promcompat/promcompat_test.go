package promcompat_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/graphite"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/push"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/ferula-io/ferula/metrics"
	"github.com/ferula-io/ferula/metrics/promcompat"
)

var formats = map[string]string{
	"text":        "",
	"text 1.0.0":  "text/plain;version=1.0.0;escaping=allow-utf-8",
	"OpenMetrics": "application/openmetrics-text;version=1.0.0",
	"protobuf":    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited",
}

func get(t *testing.T, h http.Handler, accept string) (page, contentType string) {
	t.Helper()
	req := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	req.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return w.Body.String(), w.Header().Get("Content-Type")
}

// ours returns a set with a metric of every type.
func ours() *metrics.Set {
	s := metrics.NewSet()
	s.NewCounterVec("ours_total", "Help.", "code").With("200").AddWithExemplar(3, "trace_id", "abc")
	s.NewGauge("gauge", nil).Set(-2.5)
	s.NewSummary("summary").Update(2)
	s.NewHistogram(`ranges{a="b"}`).Update(1.5)
	s.NewPrometheusHistogramExt("classic", []float64{1, 2}).Update(1.5)
	s.NewNativeHistogram("native", metrics.NativeHistogramOptions{}).Update(7)
	s.NewGauge(`{"dotted.name",l="x"}`, nil).Set(4)
	return s
}

func theirs() *prometheus.Registry {
	r := prometheus.NewRegistry()
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "theirs_total", Help: "Theirs."}, []string{"a"})
	r.MustRegister(c, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "theirs"}, func() float64 { return 5 }))
	c.WithLabelValues("x").Inc()
	return r
}

// The response of each format has the families of both libraries once, and Prometheus' parser
// reads it.
func TestHandler_OnePageOfBoth(t *testing.T) {
	h := promcompat.Handler(theirs(), metrics.HandlerOptions{Sets: []*metrics.Set{ours()}, Metadata: true})
	for name, accept := range formats {
		page, contentType := get(t, h, accept)
		seen := familiesOnce(t, name, page, contentType)
		if name == "OpenMetrics" && strings.Count(page, "# EOF\n") != 1 {
			t.Errorf("the page does not end once:\n%s", page)
		}
		for _, want := range []string{"theirs", "gauge", "summary", "classic"} {
			if seen[want] != 1 {
				t.Errorf("%s: no family %s in\n%s", name, want, page)
			}
		}
	}
}

// familiesOnce returns the families of a page, each of which must occur once.
func familiesOnce(t *testing.T, format, page, contentType string) map[string]int {
	t.Helper()
	seen := map[string]int{}
	if format == "protobuf" {
		d := expfmt.NewDecoder(strings.NewReader(page), expfmt.Format(contentType))
		for {
			var f dto.MetricFamily
			if err := d.Decode(&f); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			seen[f.GetName()]++
		}
	} else {
		for line := range strings.Lines(page) {
			if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
				family, _, _ := strings.Cut(rest, " ")
				seen[family]++
			}
		}
	}
	for family, n := range seen {
		if n != 1 {
			t.Errorf("%s: family %s occurs %d times", format, family, n)
		}
	}
	return seen
}

// With CreatedLines the metrics of both libraries have _created lines in OpenMetrics, and otherwise none has them.
func TestHandler_CreatedLinesOfBoth(t *testing.T) {
	for _, created := range []bool{true, false} {
		r := prometheus.NewRegistry()
		r.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "theirs_total", Help: "Theirs."}))
		h := promcompat.Handler(r, metrics.HandlerOptions{Sets: []*metrics.Set{ours()}, CreatedLines: created})
		page, _ := get(t, h, formats["OpenMetrics"])
		for _, line := range []string{"\nours_created{", "\ntheirs_created "} {
			if strings.Contains(page, line) != created {
				t.Errorf("CreatedLines %v: %q in\n%s", created, line, page)
			}
		}
	}
}

// client_golang pushes the metrics of a set to a Pushgateway and to Graphite.
func TestGatherer_IsPushedByClientGolang(t *testing.T) {
	var pushed, contentType string
	gateway := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		pushed, contentType = string(body), r.Header.Get("Content-Type")
	}))
	defer gateway.Close()
	set := metrics.NewSet()
	set.NewCounter(`jobs_total{queue="mail"}`).Add(3)
	noError(t, push.New(gateway.URL, "backup").Gatherer(promcompat.NewGatherer(set)).Push())
	var f dto.MetricFamily
	if err := expfmt.NewDecoder(strings.NewReader(pushed), expfmt.Format(contentType)).Decode(&f); err != nil || f.GetName() != "jobs_total" || f.Metric[0].Counter.GetValue() != 3 {
		t.Errorf("%v, %s", err, &f)
	}

	listener := try(net.Listen("tcp", "127.0.0.1:0")).must(t)
	defer func() { _ = listener.Close() }()
	lines := make(chan string, 1)
	go func() {
		defer close(lines)
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		text, _ := io.ReadAll(conn)
		lines <- string(text)
	}()
	bridge := try(graphite.NewBridge(&graphite.Config{URL: listener.Addr().String(), Gatherer: promcompat.NewGatherer(set), Prefix: "app"})).must(t)
	noError(t, bridge.Push())
	if got := <-lines; !strings.HasPrefix(got, "app.jobs_total.queue.mail 3") {
		t.Errorf("got %q", got)
	}
}

func TestHandler_FamilyOfBothFails(t *testing.T) {
	s := metrics.NewSet()
	s.NewCounter(`theirs_total{b="1"}`)
	w := httptest.NewRecorder()
	promcompat.Handler(theirs(), metrics.HandlerOptions{Sets: []*metrics.Set{s}}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "theirs_total") {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
}

func TestHandler_ErrorOfTheGathererFails(t *testing.T) {
	g := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return nil, errors.New("broken collector") })
	w := httptest.NewRecorder()
	promcompat.Handler(g, metrics.HandlerOptions{Sets: []*metrics.Set{ours()}}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "broken collector") {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
}

// A registry with our set as a collector has the same families as the gatherer.
func TestCollector_IsWhatTheGathererHas(t *testing.T) {
	s := ours()
	r := prometheus.NewPedanticRegistry()
	noError(t, r.Register(promcompat.NewCollector(s)))
	got := try(r.Gather()).must(t)
	want := try(promcompat.NewGatherer(s).Gather()).must(t)
	if len(got) != len(want) || len(got) != 7 {
		t.Fatalf("%d families, want %d", len(got), len(want))
	}
	for i := range got {
		if g, w := fmt.Sprint(got[i].Metric), fmt.Sprint(want[i].Metric); got[i].GetName() != want[i].GetName() || got[i].GetType() != want[i].GetType() || g != w {
			t.Errorf("got %s %s, want %s %s", got[i].GetName(), g, want[i].GetName(), w)
		}
	}
	page, _ := get(t, promhttp.HandlerFor(r, promhttp.HandlerOpts{}), "")
	for _, line := range []string{`ours_total{code="200"} 3`, `ranges_bucket{a="b",le="2.154"} 1`, "classic_count 1", "summary_sum 2"} {
		if !strings.Contains(page, line+"\n") {
			t.Errorf("no %q in\n%s", line, page)
		}
	}
}

// client_golang's testutil reads our sets.
func TestGatherer_WorksWithTestutil(t *testing.T) {
	s := metrics.NewSet()
	s.NewCounterVec("jobs_total", "Jobs.", "kind").With("a").Add(2)
	err := testutil.GatherAndCompare(promcompat.NewGatherer(s), strings.NewReader("# HELP jobs_total Jobs.\n# TYPE jobs_total counter\njobs_total{kind=\"a\"} 2\n"))
	if err != nil {
		t.Error(err)
	}
	if n, err := testutil.GatherAndCount(promcompat.NewGatherer(s)); n != 1 || err != nil {
		t.Error(n, err)
	}
}

// Metrics that are registered later are collected, and names are kept.
func TestGatherer_SeesLaterMetrics(t *testing.T) {
	s := metrics.NewSet()
	g := promcompat.NewGatherer(s)
	for i := range 3 {
		s.NewGauge(fmt.Sprintf("g%d", i), nil)
		if families, err := g.Gather(); err != nil || len(families) != i+1 {
			t.Fatal(families, err)
		}
	}
}

func ExampleHandler() {
	requests := metrics.NewSet().NewCounterVec("requests_total", "Requests.", "code")
	requests.With("200").Inc()
	http.Handle("/metrics", promcompat.Handler(prometheus.DefaultGatherer, metrics.HandlerOptions{}))
	// Output:
}

// A decompressed response equals the uncompressed one, also in a second scrape, which reuses the
// encoder.
func TestZstd_PageIsThePage(t *testing.T) {
	s := metrics.NewSet()
	for i := range 5000 {
		s.NewCounter(fmt.Sprintf(`requests_total{path="/api/v1/%d"}`, i)).Add(i)
	}
	h := metrics.NewHandler(metrics.HandlerOptions{Sets: []*metrics.Set{s}, Compressors: []metrics.Compressor{promcompat.Zstd()}})
	want, _ := get(t, h, "")
	decoder := try(zstd.NewReader(nil)).must(t)
	defer decoder.Close()
	for range 2 {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.Header.Set("Accept-Encoding", "gzip, zstd")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		got, err := decoder.DecodeAll(w.Body.Bytes(), nil)
		if err != nil || w.Header().Get("Content-Encoding") != "zstd" || string(got) != want || w.Body.Len() > len(want)/4 {
			t.Errorf("coding %q, %d bytes, decoded %d, want %d: %v", w.Header().Get("Content-Encoding"), w.Body.Len(), len(got), len(want), err)
		}
	}
}

func ExampleZstd() {
	h := metrics.NewHandler(metrics.HandlerOptions{Compressors: []metrics.Compressor{promcompat.Zstd()}})
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept-Encoding", "zstd")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	fmt.Println(w.Header().Get("Content-Encoding"))
	// Output: zstd
}

// exporter is a collector of client_golang with a constant metric of every type.
type exporter struct{}

var at = time.UnixMilli(1_700_000_000_500)

func desc(name string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, "Help of "+name+".", labels, nil)
}

// Describe implements prometheus.Collector.
func (exporter) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (exporter) Collect(to chan<- prometheus.Metric) {
	exemplar := prometheus.Exemplar{Value: 1.5, Labels: prometheus.Labels{"trace_id": "abc"}, Timestamp: at}
	counter := prometheus.MustNewConstMetricWithCreatedTimestamp(desc("reads_total", "device"), prometheus.CounterValue, 17, at, "sda")
	to <- prometheus.MustNewMetricWithExemplars(counter, exemplar)
	to <- prometheus.MustNewConstMetric(desc("reads_total", "device"), prometheus.CounterValue, 1, "a\"b\\c\nd é")
	to <- prometheus.MustNewConstMetric(desc("room_celsius"), prometheus.GaugeValue, -3.5)
	to <- prometheus.NewMetricWithTimestamp(at, prometheus.MustNewConstMetric(desc("old", "l"), prometheus.UntypedValue, 1, "x"))
	to <- prometheus.MustNewConstMetric(desc("http.requests", "http.method"), prometheus.GaugeValue, 4, "GET")
	to <- prometheus.MustNewConstSummary(desc("wait_seconds", "q"), 4, 2.5, map[float64]float64{0.5: 0.25, 0.99: 2}, "mail")
	histogram := prometheus.MustNewConstHistogram(desc("size_bytes", "q"), 5, 12, map[float64]uint64{1: 2, 10: 4}, "mail")
	to <- prometheus.MustNewMetricWithExemplars(histogram, exemplar)
	to <- prometheus.MustNewConstNativeHistogram(desc("native", "q"), 20, 1.5,
		map[int]int64{-3: 1, -2: 2, 1: 3, 40: 4}, map[int]int64{2: 5, 5: 2}, 3, 3, 0.001, at, "mail")
	to <- prometheus.MustNewConstNativeHistogram(desc("native", "q"), 0, 0, nil, nil, 0, 0, 0, at, "empty")
}

// Metrics that are collected from client_golang by a set, and from the set by client_golang, are
// unchanged.
func TestFromGatherer_MetricsOfEveryTypeReturnUnchanged(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(exporter{})
	want := try(registry.Gather()).must(t)
	s := metrics.NewSet()
	s.RegisterCollector(promcompat.FromGatherer(registry))
	for range 2 { // the second scrape uses descriptions of the first
		got := try(promcompat.NewGatherer(s).Gather()).must(t)
		if len(got) != len(want) || len(want) != 7 {
			t.Fatalf("%d families, want %d", len(got), len(want))
		}
		for i := range want {
			if g, w := got[i].String(), want[i].String(); g != w {
				t.Errorf("got  %s\nwant %s", g, w)
			}
		}
	}
	again := prometheus.NewPedanticRegistry() // and as a collector of another registry
	again.MustRegister(promcompat.NewCollector(s))
	got, err := again.Gather()
	if err != nil || len(got) != len(want) {
		t.Fatal(len(got), err)
	}
	for i := range want {
		if g, w := got[i].String(), want[i].String(); g != w {
			t.Errorf("got  %s\nwant %s", g, w)
		}
	}
}

// Errors of the gatherer, and families that no set can have, are named.
func TestFromGatherer_ErrorsFailTheScrape(t *testing.T) {
	name, floats := "x", 1.5
	gauge := &dto.MetricFamily{Name: &name, Type: dto.MetricType_GAUGE.Enum(), Metric: []*dto.Metric{{Gauge: &dto.Gauge{Value: &floats}}}}
	histogram := func(h *dto.Histogram) []*dto.MetricFamily {
		return []*dto.MetricFamily{{Name: &name, Type: dto.MetricType_HISTOGRAM.Enum(), Metric: []*dto.Metric{{Histogram: h}}}}
	}
	schema, length := int32(0), uint32(1<<31)
	for want, g := range map[string]prometheus.GathererFunc{
		"broken collector": func() ([]*dto.MetricFamily, error) { return []*dto.MetricFamily{gauge}, errors.New("broken collector") },
		"metric x was collected before": func() ([]*dto.MetricFamily, error) {
			return []*dto.MetricFamily{gauge, gauge}, nil
		},
		"histograms with float counts are not supported": func() ([]*dto.MetricFamily, error) {
			return histogram(&dto.Histogram{SampleCountFloat: &floats}), nil
		},
		"the type HISTOGRAM is not supported, or a metric has no value of this type": func() ([]*dto.MetricFamily, error) { return histogram(nil), nil },
		"spans and deltas of a native histogram do not agree": func() ([]*dto.MetricFamily, error) {
			return histogram(&dto.Histogram{Schema: &schema, PositiveSpan: []*dto.BucketSpan{{Length: &length}}, PositiveDelta: []int64{1}}), nil
		},
	} {
		s := metrics.NewSet()
		s.RegisterCollector(promcompat.FromGatherer(g))
		if _, err := promcompat.NewGatherer(s).Gather(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// A mistake in a collector of a set is an error of client_golang's Gather, too.
func TestCollector_MistakesAreErrorsOfGather(t *testing.T) {
	s := metrics.NewSet()
	d := metrics.NewDesc("x", "")
	s.RegisterCollector(func(sink *metrics.Sink) error {
		sink.Gauge(d, 1)
		sink.Gauge(d, 2)
		return nil
	})
	r := prometheus.NewRegistry()
	r.MustRegister(promcompat.NewCollector(s))
	if _, err := r.Gather(); err == nil || !strings.Contains(err.Error(), "metric x was collected before") {
		t.Error(err)
	}
}

// Families of collectors, of the default set and of the process count like those of the
// sets.
func TestHandler_EveryFamilyOfBothFails(t *testing.T) {
	collected, utf8 := metrics.NewSet(), metrics.NewSet()
	collected.RegisterCollector(func(sink *metrics.Sink) error {
		sink.Gauge(metrics.NewDesc("theirs", ""), 1)
		return nil
	})
	utf8.NewGauge(`{"theirs.dotted"}`, nil)
	registered := metrics.NewSet()
	registered.NewGauge("theirs", nil)
	metrics.RegisterSet(registered)
	defer metrics.UnregisterSet(registered, true)
	for want, opts := range map[string]metrics.HandlerOptions{
		"family theirs is":        {Sets: []*metrics.Set{collected}},
		"family theirs.dotted is": {Sets: []*metrics.Set{utf8}},
		"theirs is in a set":      {},
		"family go_goroutines is in the gatherer and in ProcessMetrics": {Sets: []*metrics.Set{metrics.NewSet()}, ProcessMetrics: true},
	} {
		r := prometheus.NewRegistry()
		r.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "theirs.dotted"}))
		if opts.ProcessMetrics {
			r.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "go_goroutines"}))
		} else {
			r.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "theirs"}))
		}
		w := httptest.NewRecorder()
		promcompat.Handler(r, opts).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		if w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), want) {
			t.Errorf("status %d, want an error with %q: %s", w.Code, want, w.Body)
		}
	}
}

// A set with client_golang's collectors of the process and of the Go runtime has their families, and the other ones
// of ProcessMetrics, each once in every format.
func TestFromGatherer_CollectorsOfTheProcessReplaceProcessMetrics(t *testing.T) {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	s := metrics.NewSet()
	s.RegisterCollector(promcompat.FromGatherer(r))
	h := metrics.NewHandler(metrics.HandlerOptions{Sets: []*metrics.Set{s}, ProcessMetrics: true, OpenFiles: true, Metadata: true})
	theirs := try(r.Gather()).must(t)
	for name, accept := range formats {
		page, contentType := get(t, h, accept)
		seen := familiesOnce(t, name, page, contentType)
		for _, f := range theirs {
			want := f.GetName()
			if name == "OpenMetrics" && f.GetType() == dto.MetricType_COUNTER {
				want = strings.TrimSuffix(want, "_total")
			}
			if seen[want] != 1 {
				t.Errorf("%s: family %s of the collectors is missing", name, f.GetName())
			}
		}
		if seen["go_gomaxprocs"] != 1 {
			t.Errorf("%s: go_gomaxprocs of ProcessMetrics is missing", name)
		}
	}
}

func ExampleFromGatherer() {
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "theirs", ConstLabels: prometheus.Labels{"a": "b"}}, func() float64 { return 5 }))

	s := metrics.NewSetWithOptions(metrics.SetOptions{Labels: map[string]string{"env": "prod"}})
	s.RegisterCollector(promcompat.FromGatherer(registry))
	s.WritePrometheus(os.Stdout)
	// Output: theirs{env="prod",a="b"} 5
}

type tried[T any] struct {
	value T
	err   error
}

func try[T any](value T, err error) tried[T] { return tried[T]{value, err} }

// must returns the value. An error ends the test.
func (r tried[T]) must(t testing.TB) T {
	t.Helper()
	noError(t, r.err)
	return r.value
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
