package api

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// requestMetrics count and time the requests of each endpoint.
type requestMetrics struct {
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
	size     *prometheus.CounterVec
}

func newRequestMetrics(reg prometheus.Registerer) *requestMetrics {
	if reg == nil {
		return nil
	}
	m := &requestMetrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ferula_http_requests_total", Help: "HTTP requests answered, by endpoint and status.",
		}, []string{"handler", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "ferula_http_request_duration_seconds", Help: "How long requests took, by endpoint.",
			Buckets: []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 120},
		}, []string{"handler"}),
		size: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ferula_http_response_bytes_total", Help: "Bytes of answers written, after compression, by endpoint.",
		}, []string{"handler"}),
	}
	reg.MustRegister(m.total, m.duration, m.size)
	return m
}

func (m *requestMetrics) instrument(handler string, next http.Handler) http.Handler {
	if m == nil {
		return next
	}
	labels := prometheus.Labels{"handler": handler}
	bytes := m.size.With(labels)
	counted := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &countingWriter{ResponseWriter: w}
		defer func() { bytes.Add(float64(c.written)) }()
		next.ServeHTTP(c, r)
	})
	return promhttp.InstrumentHandlerDuration(m.duration.MustCurryWith(labels),
		promhttp.InstrumentHandlerCounter(m.total.MustCurryWith(labels), counted))
}

// countingWriter counts the bytes of an answer.
type countingWriter struct {
	http.ResponseWriter
	written int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.written += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController reach flushing and deadlines.
func (c *countingWriter) Unwrap() http.ResponseWriter { return c.ResponseWriter }
