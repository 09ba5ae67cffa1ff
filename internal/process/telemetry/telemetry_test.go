package telemetry

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/ferula-io/ferula/internal/process"
)

func TestRegistry_AbortedResponsesHaveTheirOwnCode(t *testing.T) {
	reg := New()
	mux := http.NewServeMux()
	mux.HandleFunc("/half", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("half"))
		panic(http.ErrAbortHandler)
	})
	mux.HandleFunc("/none", func(http.ResponseWriter, *http.Request) { panic("a bug") })
	mux.HandleFunc("/whole", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("whole")) })
	server := httptest.NewUnstartedServer(reg.Instrumented(mux))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Start()
	defer server.Close()
	for path, code := range map[string]string{"/half": Aborted, "/none": Aborted, "/whole": "200"} {
		resp, err := server.Client().Get(server.URL + path)
		if err == nil {
			_, err = io.ReadAll(resp.Body)
			_ = resp.Body.Close()
		}
		if (err == nil) != (code == "200") {
			t.Errorf("%s: %v", path, err)
		}
		server.CloseClientConnections() // waits for the handler, which may still count
		for _, of := range []string{Aborted, "200", "500"} {
			want := uint64(0)
			if of == code {
				want = 1
			}
			if got := reg.requests.With(path, "GET", of).Get(); got != want {
				t.Errorf("%s: %d requests of code %s, want %d", path, got, of, want)
			}
		}
	}
	if n := process.Panics(reg.Own, "http").Get(); n != 1 {
		t.Errorf("%d panics are counted, want that of /none", n)
	}
}

func TestRegistry_APartialResponseNeverLooksComplete(t *testing.T) {
	half := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, 64<<10))
		panic(http.ErrAbortHandler)
	})
	for _, secure := range []bool{false, true} {
		server, dial := httptest.NewUnstartedServer(New().Instrumented(half)), net.Dial
		defer server.Close()
		if secure {
			server.StartTLS()
			dial = func(network, address string) (net.Conn, error) {
				return tls.Dial(network, address, server.Client().Transport.(*http.Transport).TLSClientConfig)
			}
		} else {
			server.Start()
		}
		for _, version := range []string{"HTTP/1.0", "HTTP/1.1"} {
			conn, err := dial("tcp", server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := fmt.Fprintf(conn, "GET / %s\r\nHost: a\r\n\r\n", version); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err == nil {
				_, err = io.ReadAll(resp.Body)
			}
			if err == nil {
				t.Errorf("%s, TLS %v: a partial response looks complete", version, secure)
			}
		}
	}
}

// page returns the metrics page in the format of an Accept header.
func page(t *testing.T, reg *Registry, accept string) string {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	reg.Handler(slog.New(slog.DiscardHandler)).ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

const openMetrics = "application/openmetrics-text; version=1.0.0"

func TestRegistry_OnePageHasBothKindsOfMetrics(t *testing.T) {
	reg := New()
	reg.Counter("own_total", "Ours.").Inc()
	reg.Gauge("own_gauge", "Ours too.").Set(2)
	foreign := prometheus.NewCounter(prometheus.CounterOpts{Name: "foreign_total", Help: "Theirs."})
	reg.MustRegister(foreign)
	for _, accept := range []string{"", openMetrics} {
		text := page(t, reg, accept)
		for _, want := range []string{"own_total 1", "own_gauge 2", "foreign_total 0", "ferula_build_info{"} {
			if !strings.Contains(text, want) {
				t.Errorf("%q: no %s", accept, want)
			}
		}
		if eof := strings.Count(text, "# EOF\n"); eof > 1 || accept == openMetrics && eof != 1 {
			t.Errorf("%q: %d ends of the page", accept, eof)
		}
	}
}

func TestRegistry_OwnFamilyReplacesAForeignOne(t *testing.T) {
	reg := New()
	reg.Counter("twice_total", "Ours.").Add(7)
	reg.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "twice_total", Help: "Theirs."}))
	if text := page(t, reg, ""); strings.Count(text, "# TYPE twice_total") != 1 || !strings.Contains(text, "twice_total 7\n") {
		t.Errorf("%s", text)
	}
}

// Prometheus has prometheus_sd_x and prometheus_sd_x_total, which are one family in
// OpenMetrics.
func TestRegistry_OpenMetricsKeepsFamiliesOfOneBaseNameApart(t *testing.T) {
	reg := New()
	reg.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "x", Help: "A gauge."}), prometheus.NewCounter(prometheus.CounterOpts{Name: "x_total", Help: "A counter."}),
		prometheus.NewCounter(prometheus.CounterOpts{Name: "y_total", Help: "A counter."}))
	text := page(t, reg, openMetrics)
	for _, want := range []string{"# TYPE x gauge\n", "# TYPE x_total unknown\n", "x_total 0", "# TYPE y counter\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if text = page(t, reg, ""); !strings.Contains(text, "# TYPE x_total counter\n") {
		t.Errorf("the text format has no such names:\n%s", text)
	}
}

type failingCollector struct{ desc *prometheus.Desc }

func (f failingCollector) Describe(ch chan<- *prometheus.Desc) { ch <- f.desc }
func (f failingCollector) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.NewInvalidMetric(f.desc, io.ErrUnexpectedEOF)
}

func TestRegistry_AFailedCollectorDoesNotHideTheOthers(t *testing.T) {
	reg := New()
	reg.MustRegister(failingCollector{prometheus.NewDesc("broken", "Fails.", nil, nil)}, prometheus.NewGauge(prometheus.GaugeOpts{Name: "whole", Help: "Works."}))
	if text := page(t, reg, ""); !strings.Contains(text, "whole 0\n") || !strings.Contains(text, "ferula_build_info{") {
		t.Errorf("%s", text)
	}
}

func TestTraceLabels_ReadsTheTraceparentHeader(t *testing.T) {
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	for header, want := range map[string]string{
		"00-" + id + "-00f067aa0ba902b7-01": id,
		"":                                  "",
		"00-" + id:                          "",
		"00-" + strings.ToUpper(id) + "-00f067aa0ba902b7-01":     "",
		"00-" + strings.Repeat("0", 32) + "-00f067aa0ba902b7-01": "",
		"00-" + id + "00-00f067aa0ba902b7-01":                    "",
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Traceparent", header)
		got := TraceLabels(r)
		if want == "" && got != nil || want != "" && !slices.Equal(got, []string{"trace_id", want}) {
			t.Errorf("%q: %v", header, got)
		}
	}
}

func TestTraceLabels_PrefersTheSpanOfTheRequest(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	for flags, want := range map[trace.TraceFlags]string{trace.FlagsSampled: "00000000000000000000000000000001", 0: "4bf92f3577b34da6a3ce929d0e0e4736"} {
		span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{15: 1}, SpanID: trace.SpanID{1}, TraceFlags: flags})
		if got := TraceLabels(r.WithContext(trace.ContextWithSpanContext(r.Context(), span))); !slices.Equal(got, []string{"trace_id", want}) {
			t.Errorf("flags %s: %v", flags, got)
		}
	}
}

func TestRegistry_InstrumentedBoundsLabelsAndKeepsFlush(t *testing.T) {
	reg := New()
	mux := http.NewServeMux()
	mux.HandleFunc("/known/{id}", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "four")
		w.(http.Flusher).Flush()
	})
	w := httptest.NewRecorder()
	reg.Instrumented(mux).ServeHTTP(w, httptest.NewRequest("BREW", "/known/1", nil))
	reg.Instrumented(mux).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/unknown/1", nil))
	if !w.Flushed {
		t.Error("not flushed")
	}
	if got := reg.requests.With("/known/{id}", "other", "418").Get(); got != 1 {
		t.Errorf("%d requests of the pattern", got)
	}
	if got := reg.bytes.With("/known/{id}").Get(); got != 4 {
		t.Errorf("%d bytes", got)
	}
	if got := reg.requests.With("none", "GET", "404").Get(); got != 1 {
		t.Errorf("%d requests without a pattern", got)
	}
}

func TestRegistry_PrometheusNamesCountTheSameRequests(t *testing.T) {
	reg := New()
	reg.ExposePrometheusHTTP("/prefix")
	mux := http.NewServeMux()
	mux.HandleFunc("GET /prefix/api/v1/query", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "four") })
	mux.HandleFunc("/prefix/half", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	server := reg.Instrumented(mux)
	for _, path := range []string{"/prefix/api/v1/query", "/prefix/api/v1/query", "/elsewhere", "/prefix/half"} {
		func() {
			defer func() { _ = recover() }() // of /half
			server.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil))
		}()
	}
	text := page(t, reg, "")
	for _, want := range []string{
		`prometheus_http_requests_total{handler="/api/v1/query",code="200"} 2`,
		`prometheus_http_requests_total{handler="none",code="404"} 1`,
		`prometheus_http_request_duration_seconds_bucket{handler="/api/v1/query",le="0.1"} 2`,
		`prometheus_http_response_size_bytes_sum{handler="/api/v1/query"} 8`,
		`prometheus_http_response_size_bytes_bucket{handler="/api/v1/query",le="100"} 2`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if strings.Contains(text, `prometheus_http_requests_total{handler="/half"`) {
		t.Error("a response that was cut off is counted; Prometheus does not count it")
	}
	if strings.Contains(page(t, New(), ""), "prometheus_http_") {
		t.Error("exposed without ExposePrometheusHTTP")
	}
}

func TestRegistry_PackageMetricsDoNotReplaceItsOwn(t *testing.T) {
	packages := prometheus.NewRegistry()
	for _, name := range []string{"prometheus_theirs", "net_conntrack_theirs", "prometheus_both", "go_theirs", "other"} {
		packages.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: "Theirs."}))
	}
	reg := New()
	both := prometheus.NewGauge(prometheus.GaugeOpts{Name: "prometheus_both", Help: "Ours."})
	both.Set(7)
	reg.MustRegister(both)
	reg.packages = packages
	text := page(t, reg, "")
	for _, want := range []string{"prometheus_theirs 0\n", "net_conntrack_theirs 0\n", "prometheus_both 7\n"} {
		if strings.Count(text, want) != 1 {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "go_theirs") || strings.Contains(text, "\nother") || strings.Contains(text, "prometheus_both 0") {
		t.Errorf("%s", text)
	}
}
