package role

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/ferula-io/ferula/metrics"
)

// registry holds a process' own metrics: ferula's in a set of its own library, those
// that Prometheus' packages register in the registry of theirs. They are one page.
type registry struct {
	*prometheus.Registry
	own *metrics.Set

	// exemplar tells where to learn more of a request that was answered, as names and
	// values in turn; nothing if nowhere.
	exemplar func(r *http.Request) []string

	requests *metrics.CounterVec
	bytes    *metrics.CounterVec
	duration *metrics.PrometheusHistogramVec
}

// newRegistry makes the process' registry with what every role exposes.
func newRegistry() *registry {
	reg := &registry{Registry: prometheus.NewRegistry(), own: metrics.NewSet(), exemplar: traceOf}
	build := buildInfo()
	reg.own.NewGaugeVec("ferula_build_info", "Always 1; the labels say which program runs.", "version", "revision", "goversion").
		With(Version, build.Revision, build.GoVersion).Set(1)
	reg.own.RegisterMetricsWriter(metrics.WriteFDMetrics)
	labels := []string{"handler", "method", "code"}
	reg.requests = reg.own.NewCounterVec("ferula_http_requests_total", "HTTP requests answered, by path pattern, method and status; code \"aborted\" is a response that was broken off.", labels...)
	reg.bytes = reg.own.NewCounterVec("ferula_http_response_bytes_total", "Bytes of answers written, after compression.", labels[:1]...)
	reg.duration = reg.own.NewPrometheusHistogramVec("ferula_http_request_duration_seconds", "How long requests took, by path pattern, method and status.",
		[]float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 120}, labels...)
	return reg
}

// counter makes a counter of ferula's own.
func (reg *registry) counter(name, help string) *metrics.Counter {
	reg.own.Describe(name, help, "")
	return reg.own.NewCounter(name)
}

// gauge makes a gauge of ferula's own.
func (reg *registry) gauge(name, help string) *metrics.Gauge {
	reg.own.Describe(name, help, "")
	return reg.own.NewGauge(name, nil)
}

// metricsHandler exposes a process' own metrics in the format that is asked for.
func metricsHandler(reg *registry, logger *slog.Logger) http.Handler {
	return metrics.NewHandler(metrics.HandlerOptions{
		Sets: []*metrics.Set{reg.own}, ProcessMetrics: true, Metadata: true,
		WriteExtra: func(w io.Writer, contentType string) error {
			return reg.writeForeign(w, expfmt.Format(contentType), logger)
		},
	})
}

// writeForeign writes the families of Prometheus' packages. What a collector cannot
// tell is logged, and the others are written.
func (reg *registry) writeForeign(w io.Writer, format expfmt.Format, logger *slog.Logger) error {
	families, err := reg.Gather()
	if err != nil {
		logger.Error("Some metrics of this process cannot be told", "err", err)
	}
	if strings.HasPrefix(string(format), "text/plain") {
		// expfmt writes the lines of version 1.0.0 under the name of 0.0.4.
		format = expfmt.NewFormat(expfmt.TypeTextPlain).WithEscapingScheme(format.ToEscapingScheme())
	}
	taken := reg.ownFamilies()
	openMetrics := format.FormatType() == expfmt.TypeOpenMetrics
	encoder := expfmt.NewEncoder(w, format)
	for _, family := range families {
		if taken[family.GetName()] {
			logger.Error("A family of metrics is registered twice; one is left out", "name", family.GetName())
			continue
		}
		if openMetrics {
			asOpenMetrics(family, families)
		}
		if err := encoder.Encode(family); err != nil {
			return fmt.Errorf("family %s: %w", family.GetName(), err)
		}
	}
	return nil // the end of the page is the handler's
}

func (reg *registry) ownFamilies() map[string]bool {
	names := map[string]bool{}
	for _, name := range reg.own.ListMetricNames() {
		family, _, _ := strings.Cut(name, "{")
		names[family] = true
	}
	return names
}

// asOpenMetrics makes a counter untyped whose name without _total is another family's:
// OpenMetrics would call both the same.
func asOpenMetrics(family *dto.MetricFamily, among []*dto.MetricFamily) {
	base, ok := strings.CutSuffix(family.GetName(), "_total")
	if !ok || family.GetType() != dto.MetricType_COUNTER || !slices.ContainsFunc(among, func(f *dto.MetricFamily) bool { return f.GetName() == base }) {
		return
	}
	family.Type = dto.MetricType_UNTYPED.Enum()
	for _, m := range family.Metric {
		m.Untyped, m.Counter = &dto.Untyped{Value: m.Counter.Value}, nil
	}
}

// observed counts and times the requests of a role's handler. The pattern is the one
// that the innermost mux found, which bounds how many there are.
func (reg *registry) observed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		o := &observedWriter{ResponseWriter: w}
		finished := false
		defer func() {
			reg.observe(r, o, time.Since(start), finished)
		}()
		next.ServeHTTP(o, r)
		finished = true
	})
}

// aborted is the code of a response that was broken off, since what had been written
// of it must not look complete; also where a handler panicked.
const aborted = "aborted"

func (reg *registry) observe(r *http.Request, o *observedWriter, took time.Duration, finished bool) {
	handler, status := "none", o.status
	if r.Pattern != "" {
		handler = r.Pattern[strings.IndexByte(r.Pattern, ' ')+1:]
	}
	if status == 0 {
		status = http.StatusOK
	}
	method, code := knownMethod(r.Method), strconv.Itoa(status)
	if !finished {
		code = aborted
	}
	reg.requests.With(handler, method, code).Inc()
	reg.bytes.With(handler).AddInt64(o.written)
	h := reg.duration.With(handler, method, code)
	if labels := reg.exemplar(r); len(labels) > 0 {
		h.UpdateWithExemplar(took.Seconds(), labels...)
	} else {
		h.Update(took.Seconds())
	}
}

// knownMethod keeps clients from making up labels.
func knownMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions:
		return method
	}
	return "other"
}

// traceOf reads the W3C header of the trace that a request belongs to:
// 00-<32 digits of the trace>-<16 of the span>-<2 of flags>.
func traceOf(r *http.Request) []string {
	parts := strings.Split(r.Header.Get("Traceparent"), "-")
	if len(parts) < 4 || len(parts[1]) != 32 || strings.Trim(parts[1], "0123456789abcdef") != "" || strings.Trim(parts[1], "0") == "" {
		return nil
	}
	return []string{"trace_id", parts[1]}
}

// observedWriter remembers the status and counts the bytes of an answer.
type observedWriter struct {
	http.ResponseWriter
	status  int
	written int64
}

// WriteHeader implements http.ResponseWriter. Informational ones are followed by
// another.
func (o *observedWriter) WriteHeader(status int) {
	if o.status < http.StatusOK {
		o.status = status
	}
	o.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (o *observedWriter) Write(p []byte) (int, error) {
	if o.status < http.StatusOK {
		o.status = http.StatusOK
	}
	n, err := o.ResponseWriter.Write(p)
	o.written += int64(n)
	return n, err
}

// Flush implements http.Flusher, which streams ask for.
func (o *observedWriter) Flush() {
	_ = http.NewResponseController(o.ResponseWriter).Flush() // there is nobody to tell
}

// Unwrap lets http.ResponseController reach deadlines.
func (o *observedWriter) Unwrap() http.ResponseWriter { return o.ResponseWriter }
