package downstream

import (
	"errors"
	"time"

	instruments "github.com/ferula-io/ferula/metrics"
)

// metrics of a client; they count whether or not anybody sees them.
type metrics struct {
	tries     *instruments.CounterVec
	repeats   *instruments.CounterVec
	refused   *instruments.CounterVec
	resumes   *instruments.CounterVec
	firstByte *instruments.PrometheusHistogram
	inFlight  *instruments.Gauge

	wire, decoded *instruments.Counter // of bytes, found once
}

// newMetrics makes them in the set, or in one of their own if it is nil.
func newMetrics(set *instruments.Set) *metrics {
	if set == nil {
		set = instruments.NewSet()
	}
	bytes := set.NewCounterVec("ferula_frontend_downstream_bytes_total", "Bytes of answers: received on the wire, and handed on after decoding.", "kind")
	set.Describe("ferula_frontend_downstream_first_byte_seconds", "From sending a request to the first byte of its answer.", "")
	set.Describe("ferula_frontend_downstream_in_flight", "Requests whose answer is awaited or being read.", "")
	return &metrics{
		tries:   set.NewCounterVec("ferula_frontend_downstream_tries_total", "Requests sent to the downstream, repetitions included, by outcome.", "outcome"),
		repeats: set.NewCounterVec("ferula_frontend_downstream_retries_total", "Requests sent to the downstream again, by why.", "reason"),
		refused: set.NewCounterVec("ferula_frontend_downstream_retries_refused_total", "Requests that failed and were not sent again, by what forbade it.", "reason"),
		resumes: set.NewCounterVec("ferula_frontend_downstream_resumes_total", "Answers that broke off after some bytes and were asked for again, by outcome.", "outcome"),
		firstByte: set.NewPrometheusHistogramExt("ferula_frontend_downstream_first_byte_seconds",
			[]float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 120}),
		inFlight: set.NewGauge("ferula_frontend_downstream_in_flight", nil),
		wire:     bytes.With("wire"),
		decoded:  bytes.With("decoded"),
	}
}

// tried counts one try that got an answer.
func (m *metrics) tried(status int, took time.Duration) {
	m.firstByte.Update(took.Seconds())
	switch {
	case status < 400:
		m.tries.With("success").Inc()
	case status < 500:
		m.tries.With("4xx").Inc()
	default:
		m.tries.With("5xx").Inc()
	}
}

// failed counts one try that got none.
func (m *metrics) failed(err error) {
	switch {
	case errors.Is(err, ErrTimeout):
		m.tries.With("timeout").Inc()
	case errors.Is(err, ErrUnavailable):
		m.tries.With("unavailable").Inc()
	default:
		m.tries.With("canceled").Inc()
	}
}
