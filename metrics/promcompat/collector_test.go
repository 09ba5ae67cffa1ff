package promcompat_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/ferula-io/ferula/metrics"
	"github.com/ferula-io/ferula/metrics/promcompat"
)

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
	want, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	s := metrics.NewSet()
	s.RegisterCollector(promcompat.FromGatherer(registry))
	for range 2 { // the second scrape uses descriptions of the first
		got, err := promcompat.NewGatherer(s).Gather()
		if err != nil {
			t.Fatal(err)
		}
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
	theirs, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for name, accept := range formats {
		page, contentType := get(t, h, accept)
		seen := map[string]int{}
		if name == "protobuf" {
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
		}
		for line := range strings.Lines(page) {
			if rest, ok := strings.CutPrefix(line, "# TYPE "); ok && name != "protobuf" {
				family, kind, _ := strings.Cut(rest, " ")
				if name == "OpenMetrics" && kind == "counter\n" {
					family += "_total"
				}
				seen[family]++
			}
		}
		for family, n := range seen {
			if n != 1 {
				t.Errorf("%s: family %s occurs %d times", name, family, n)
			}
		}
		for _, f := range theirs {
			if seen[f.GetName()] != 1 {
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
