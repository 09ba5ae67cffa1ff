package frontend

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics count what the frontend does. A nil *metrics counts nothing.
type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	stages   *prometheus.HistogramVec
	bytes    prometheus.Counter
	shared   prometheus.Counter
	flying   prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	if reg == nil {
		return nil
	}
	buckets := []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 120}
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ferula_frontend_requests_total", Help: "Requests, by kind, status and what the result cache gave.",
		}, []string{"kind", "code", "cache"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "ferula_frontend_request_duration_seconds", Help: "How long requests took, by kind.", Buckets: buckets,
		}, []string{"kind"}),
		stages: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "ferula_frontend_stage_duration_seconds", Help: "How long stages of requests took.", Buckets: buckets,
		}, []string{"stage"}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ferula_frontend_answer_bytes_total", Help: "Bytes of answers, before compression.",
		}),
		shared: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ferula_frontend_shared_answers_total", Help: "Requests answered by the answer to an identical one.",
		}),
		flying: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "ferula_frontend_requests_in_flight", Help: "Requests being answered.",
		}),
	}
	reg.MustRegister(m.requests, m.duration, m.stages, m.bytes, m.shared, m.flying)
	return m
}

func (m *metrics) inFlight(delta float64) {
	if m != nil {
		m.flying.Add(delta)
	}
}

func (m *metrics) stage(name string, took time.Duration) {
	if m != nil {
		m.stages.WithLabelValues(name).Observe(took.Seconds())
	}
}

func (m *metrics) sharedAnswer() {
	if m != nil {
		m.shared.Inc()
	}
}

func (m *metrics) request(x *exchange, took time.Duration) {
	if m == nil {
		return
	}
	kind := [...]string{"other", "range", "labels"}[x.kind]
	m.requests.WithLabelValues(kind, strconv.Itoa(x.status), x.cache).Inc()
	m.duration.WithLabelValues(kind).Observe(took.Seconds())
	m.bytes.Add(float64(x.answer.written))
}
