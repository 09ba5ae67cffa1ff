package downstream

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of a client; they count whether or not anybody collects them.
type metrics struct {
	tries     *prometheus.CounterVec
	repeats   *prometheus.CounterVec
	refused   *prometheus.CounterVec
	resumes   *prometheus.CounterVec
	bytes     *prometheus.CounterVec
	firstByte prometheus.Histogram
	inFlight  prometheus.Gauge

	wire, decoded prometheus.Counter // of bytes, found once
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		tries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ferula_frontend_downstream_tries_total", Help: "Requests sent to the downstream, repetitions included, by outcome.",
		}, []string{"outcome"}),
		repeats: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ferula_frontend_downstream_retries_total", Help: "Requests sent to the downstream again, by why.",
		}, []string{"reason"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ferula_frontend_downstream_retries_refused_total", Help: "Requests that failed and were not sent again, by what forbade it.",
		}, []string{"reason"}),
		resumes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ferula_frontend_downstream_resumes_total", Help: "Answers that broke off after some bytes and were asked for again, by outcome.",
		}, []string{"outcome"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ferula_frontend_downstream_bytes_total", Help: "Bytes of answers: received on the wire, and handed on after decoding.",
		}, []string{"kind"}),
		firstByte: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "ferula_frontend_downstream_first_byte_seconds", Help: "From sending a request to the first byte of its answer.",
			Buckets: []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 120},
		}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "ferula_frontend_downstream_in_flight", Help: "Requests whose answer is awaited or being read.",
		}),
	}
	m.wire, m.decoded = m.bytes.WithLabelValues("wire"), m.bytes.WithLabelValues("decoded")
	if reg == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.tries, m.repeats, m.refused, m.resumes, m.bytes, m.firstByte, m.inFlight} {
		errs = append(errs, reg.Register(c))
	}
	return m, errors.Join(errs...)
}

// tried counts one try that got an answer.
func (m *metrics) tried(status int, took time.Duration) {
	m.firstByte.Observe(took.Seconds())
	switch {
	case status < 400:
		m.tries.WithLabelValues("success").Inc()
	case status < 500:
		m.tries.WithLabelValues("4xx").Inc()
	default:
		m.tries.WithLabelValues("5xx").Inc()
	}
}

// failed counts one try that got none.
func (m *metrics) failed(err error) {
	switch {
	case errors.Is(err, ErrTimeout):
		m.tries.WithLabelValues("timeout").Inc()
	case errors.Is(err, ErrUnavailable):
		m.tries.WithLabelValues("unavailable").Inc()
	default:
		m.tries.WithLabelValues("canceled").Inc()
	}
}
