package promcompat_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
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
		} else {
			for line := range strings.Lines(page) {
				if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
					family, _, _ := strings.Cut(rest, " ")
					seen[family]++
				}
			}
			if name == "OpenMetrics" && strings.Count(page, "# EOF\n") != 1 {
				t.Errorf("the page does not end once:\n%s", page)
			}
		}
		for family, n := range seen {
			if n != 1 {
				t.Errorf("%s: family %s occurs %d times", name, family, n)
			}
		}
		for _, want := range []string{"theirs", "gauge", "summary", "classic"} {
			if seen[want] != 1 {
				t.Errorf("%s: no family %s in\n%s", name, want, page)
			}
		}
	}
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
	if err := push.New(gateway.URL, "backup").Gatherer(promcompat.NewGatherer(set)).Push(); err != nil {
		t.Fatal(err)
	}
	var f dto.MetricFamily
	if err := expfmt.NewDecoder(strings.NewReader(pushed), expfmt.Format(contentType)).Decode(&f); err != nil || f.GetName() != "jobs_total" || f.Metric[0].Counter.GetValue() != 3 {
		t.Errorf("%v, %s", err, &f)
	}

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
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
	bridge, err := graphite.NewBridge(&graphite.Config{URL: listener.Addr().String(), Gatherer: promcompat.NewGatherer(set), Prefix: "app"})
	if err != nil {
		t.Fatal(err)
	}
	if err := bridge.Push(); err != nil {
		t.Fatal(err)
	}
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
	if err := r.Register(promcompat.NewCollector(s)); err != nil {
		t.Fatal(err)
	}
	got, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	want, err := promcompat.NewGatherer(s).Gather()
	if err != nil {
		t.Fatal(err)
	}
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
