package downstream

import (
	"cmp"
	"errors"
	"time"

	"github.com/ferula-io/ferula/internal/process"
	instruments "github.com/ferula-io/ferula/metrics"
)

// metrics of a client; they count whether or not they are exported.
type metrics struct {
	tries     *instruments.CounterVec
	repeats   *instruments.CounterVec
	refused   *instruments.CounterVec
	resumes   *instruments.CounterVec
	firstByte *instruments.PrometheusHistogram
	inFlight  *instruments.Gauge

	wire, decoded *instruments.Counter // counters of bytes
}

// newMetrics registers the metrics in the set, or in a private set if that is nil.
func newMetrics(set *instruments.Set) *metrics {
	set = cmp.Or(set, instruments.NewSet())
	bytes := set.NewCounterVec("ferula_frontend_downstream_bytes_total",
		"Bytes of response bodies: received on the wire, and after decoding.", "kind")
	set.Describe("ferula_frontend_downstream_first_byte_seconds",
		"Time from sending a request to the first byte of its response.", "")
	return &metrics{
		tries: set.NewCounterVec("ferula_frontend_downstream_tries_total",
			"Requests sent to the downstream, including retries, by outcome.", "outcome"),
		repeats: set.NewCounterVec("ferula_frontend_downstream_retries_total", "Retries sent to the downstream, by reason.",
			"reason"),
		refused: set.NewCounterVec("ferula_frontend_downstream_retries_rejected_total",
			"Failed requests that were not retried, by reason.", "reason"),
		resumes: set.NewCounterVec("ferula_frontend_downstream_resumes_total",
			"Responses that broke off after some bytes and were requested again, by outcome.", "outcome"),
		firstByte: set.NewPrometheusHistogramExt("ferula_frontend_downstream_first_byte_seconds",
			[]float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 120}),
		inFlight: process.Gauge(set, "ferula_frontend_downstream_in_flight",
			"Requests that wait for a response or read its body.", nil),
		wire:    bytes.With("wire"),
		decoded: bytes.With("decoded"),
	}
}

// tried counts one try that got a response.
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

// failed counts one try without a response.
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
