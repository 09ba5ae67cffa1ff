// Package telemetry exposes the metrics of a process, counts its HTTP requests, and sends its spans.
//
// ferula's metrics are in a metrics.Set, the metrics of Prometheus' packages in a prometheus.Registry.
// One scrape returns the metrics of both.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/felixge/httpsnoop"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/internal/version"
	"github.com/ferula-io/ferula/metrics"
)

// Registry holds the metrics of this process: ferula's in a metrics.Set, those of
// Prometheus' packages in a prometheus.Registry. Both are exposed together.
type Registry struct {
	*prometheus.Registry
	Own *metrics.Set // ferula's

	// Exemplar returns the exemplar labels of a served request as alternating names and
	// values; nil for no exemplar.
	Exemplar func(r *http.Request) []string

	requests *metrics.CounterVec
	bytes    *metrics.CounterVec
	duration *metrics.PrometheusHistogramVec
	panics   *metrics.Counter

	prometheus *prometheusHTTP     // nil unless ExposePrometheusHTTP was called
	packages   prometheus.Gatherer // nil unless ExposePackageMetrics was called
}

// New creates the registry with the metrics of every role.
func New() *Registry {
	reg := &Registry{Registry: prometheus.NewRegistry(), Own: metrics.NewSet(), Exemplar: TraceLabels}
	build := version.Current()
	reg.Own.NewGaugeVec("ferula_build_info", "Always 1; the labels identify the running version.", "version", "revision",
		"goversion").
		With(build.Version, build.Revision, runtime.Version()).Set(1)
	reg.Own.RegisterMetricsWriter(metrics.WriteFDMetrics)
	reg.panics = process.Panics(reg.Own, "http")
	labels := []string{"handler", "method", "code"}
	reg.requests = reg.Own.NewCounterVec("ferula_http_requests_total",
		"HTTP requests served, by path pattern, method and status; code \"aborted\" is a response that was cut off.",
		labels...)
	reg.bytes = reg.Own.NewCounterVec("ferula_http_response_bytes_total",
		"Bytes of response bodies written, after compression.", labels[:1]...)
	reg.duration = reg.Own.NewPrometheusHistogramVec("ferula_http_request_duration_seconds",
		"Duration of HTTP requests, by path pattern, method and status.",
		[]float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 120}, labels...)
	return reg
}

// Counter registers a counter in ferula's set.
func (reg *Registry) Counter(name, help string) *metrics.Counter {
	return process.Counter(reg.Own, name, help)
}

// Gauge registers a gauge in ferula's set.
func (reg *Registry) Gauge(name, help string) *metrics.Gauge {
	return process.Gauge(reg.Own, name, help, nil)
}

// Handler exposes the metrics of this process in the negotiated format.
func (reg *Registry) Handler(logger *slog.Logger) http.Handler {
	return metrics.NewHandler(metrics.HandlerOptions{
		Sets: []*metrics.Set{reg.Own}, ProcessMetrics: true, Metadata: true,
		WriteExtra: func(w io.Writer, contentType string) error {
			return reg.writeForeign(w, expfmt.Format(contentType), logger)
		},
	})
}

// writeForeign writes the metric families of Prometheus' packages. The error of a
// collector is logged and the families of the others are written.
func (reg *Registry) writeForeign(w io.Writer, format expfmt.Format, logger *slog.Logger) error {
	families, err := reg.Gather()
	if err != nil {
		logger.Error("Failed to gather some metrics", "err", err)
	}
	if strings.HasPrefix(string(format), "text/plain") {
		// expfmt knows version 0.0.4 of the text format only. With the negotiated escaping scheme it
		// writes the lines of version 1.0.0, too.
		format = expfmt.NewFormat(expfmt.TypeTextPlain).WithEscapingScheme(format.ToEscapingScheme())
	}
	openMetrics := format.FormatType() == expfmt.TypeOpenMetrics
	encoder := expfmt.NewEncoder(w, format)
	for _, family := range families {
		if reg.Own.HasFamily(family.GetName()) {
			logger.Error("Duplicate metric family, dropping one", "name", family.GetName())
			continue
		}
		if openMetrics {
			asOpenMetrics(family, families)
		}
		if err := encoder.Encode(family); err != nil {
			return fmt.Errorf("family %s: %w", family.GetName(), err)
		}
	}
	return nil // the handler writes "# EOF"
}

// asOpenMetrics makes a counter untyped if its name without _total is the name of another
// family: in OpenMetrics both families would have the same name.
func asOpenMetrics(family *dto.MetricFamily, among []*dto.MetricFamily) {
	base, ok := strings.CutSuffix(family.GetName(), "_total")
	if !ok || family.GetType() != dto.MetricType_COUNTER || !slices.ContainsFunc(among, func(f *dto.MetricFamily) bool {
		return f.GetName() == base
	}) {
		return
	}
	family.Type = dto.MetricType_UNTYPED.Enum()
	for _, m := range family.Metric {
		m.Untyped, m.Counter = &dto.Untyped{Value: m.Counter.Value}, nil
	}
}

// Instrumented counts and times the requests of a role's handler. The label "handler" is
// the pattern of the innermost mux, which bounds its number of values.
func (reg *Registry) Instrumented(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		served, finished := httpsnoop.Metrics{Code: http.StatusOK}, false
		defer func() {
			reg.observe(r, served, finished)
			if p := recover(); p != nil {
				if err, _ := p.(error); !errors.Is(err, http.ErrAbortHandler) {
					reg.panics.Inc()
				}
				if !r.ProtoAtLeast(1, 1) {
					reset(w)
				}
				panic(p) // the server logs it and cuts the connection
			}
		}()
		served.CaptureMetrics(w, func(w http.ResponseWriter) { next.ServeHTTP(w, r) })
		finished = true
	})
}

// reset makes a partial response over HTTP/1.0 fail at the client. Such a response has no length, and ends when its
// connection is closed, so that it would look complete.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	if secure, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = secure.NetConn()
	}
	if c, ok := conn.(interface{ SetLinger(sec int) error }); ok {
		_ = c.SetLinger(0)
	}
	_ = conn.Close()
}

// Aborted is the label value "code" of a response that was cut off, either on purpose, so
// that a partial body does not look complete, or because a handler panicked.
const Aborted = "aborted"

func (reg *Registry) observe(r *http.Request, served httpsnoop.Metrics, finished bool) {
	handler, took := "none", served.Duration
	if r.Pattern != "" {
		handler = r.Pattern[strings.IndexByte(r.Pattern, ' ')+1:]
	}
	method, code := knownMethod(r.Method), strconv.Itoa(served.Code)
	if !finished {
		code = Aborted
	}
	reg.requests.With(handler, method, code).Inc()
	reg.bytes.With(handler).AddInt64(served.Written)
	h := reg.duration.With(handler, method, code)
	if labels := reg.Exemplar(r); len(labels) > 0 {
		h.UpdateWithExemplar(took.Seconds(), labels...)
	} else {
		h.Update(took.Seconds())
	}
	if reg.prometheus != nil && finished {
		reg.prometheus.observe(handler, code, took, served.Written)
	}
}

// knownMethod bounds the number of values of the label "method".
func knownMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions:
		return method
	}
	return "other"
}

// TraceLabels returns the exemplar label trace_id: of the request's span, if it is sampled, or of
// the W3C header Traceparent.
func TraceLabels(r *http.Request) []string {
	if span := trace.SpanContextFromContext(r.Context()); span.IsSampled() {
		return []string{"trace_id", span.TraceID().String()}
	}
	id := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(),
		propagation.HeaderCarrier(r.Header))).TraceID()
	if !id.IsValid() {
		return nil
	}
	return []string{"trace_id", id.String()}
}

// prometheusHTTP counts requests under the names and labels of a Prometheus, which its
// mixin and other dashboards query. Prometheus' web package has the same names.
type prometheusHTTP struct {
	prefix   string
	requests *metrics.CounterVec
	duration *metrics.PrometheusHistogramVec
	size     *metrics.PrometheusHistogramVec
}

// ExposePrometheusHTTP exposes prometheus_http_requests_total,
// prometheus_http_request_duration_seconds and prometheus_http_response_size_bytes in
// addition to ferula's own metrics. The label "handler" is the path pattern without
// routePrefix. As in Prometheus, responses that were cut off are not counted. Call it before
// the first request.
func (reg *Registry) ExposePrometheusHTTP(routePrefix string) {
	reg.prometheus = &prometheusHTTP{
		prefix: routePrefix,
		requests: reg.Own.NewCounterVec("prometheus_http_requests_total",
			"HTTP requests served, by path pattern and status.", "handler", "code"),
		duration: reg.Own.NewPrometheusHistogramVec("prometheus_http_request_duration_seconds",
			"Duration of HTTP requests, by path pattern.",
			[]float64{.1, .2, .4, 1, 3, 8, 20, 60, 120}, "handler"),
		size: reg.Own.NewPrometheusHistogramVec("prometheus_http_response_size_bytes",
			"Bytes of response bodies, by path pattern, after compression.",
			[]float64{1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9}, "handler"),
	}
}

func (p *prometheusHTTP) observe(handler, code string, took time.Duration, bytes int64) {
	handler = strings.TrimPrefix(handler, p.prefix)
	p.requests.With(handler, code).Inc()
	p.duration.With(handler).Update(took.Seconds())
	p.size.With(handler).Update(float64(bytes))
}

// ExposePackageMetrics also exposes the metrics that packages of Prometheus registered in
// client_golang's default registry when they were imported, such as
// prometheus_remote_storage_samples_in_total. Metrics of Go's runtime and of the process are
// not taken from that registry. Families of reg itself are not replaced.
func (reg *Registry) ExposePackageMetrics() { reg.packages = prometheus.DefaultGatherer }

// Gather implements prometheus.Gatherer.
func (reg *Registry) Gather() ([]*dto.MetricFamily, error) {
	families, err := reg.Registry.Gather()
	if reg.packages == nil {
		return families, err
	}
	others, otherErr := reg.packages.Gather()
	known := len(families)
	for _, f := range others {
		name := f.GetName()
		wanted := strings.HasPrefix(name, "prometheus_") || strings.HasPrefix(name, "net_conntrack_")
		if _, taken := slices.BinarySearchFunc(families[:known], name, func(f *dto.MetricFamily, name string) int {
			return strings.Compare(f.GetName(), name)
		}); wanted && !taken {
			families = append(families, f)
		}
	}
	slices.SortFunc(families, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	return families, errors.Join(err, otherErr)
}
