package frontend

import (
	"cmp"
	"strconv"
	"time"

	"github.com/ferula-io/ferula/internal/process"
	instruments "github.com/ferula-io/ferula/metrics"
)

// metrics are the metrics of the frontend.
type metrics struct {
	requests *instruments.CounterVec
	duration *instruments.PrometheusHistogramVec
	stages   *instruments.PrometheusHistogramVec
	bytes    *instruments.Counter
	shared   *instruments.Counter
	running  *instruments.Gauge
}

func newMetrics(set *instruments.Set) *metrics {
	set = cmp.Or(set, instruments.NewSet())
	bounds := []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 120}
	return &metrics{
		requests: set.NewCounterVec("ferula_frontend_requests_total",
			"Total requests, by kind, status code and result cache state (hit, partial, miss).", "kind", "code", "cache"),
		duration: set.NewPrometheusHistogramVec("ferula_frontend_request_duration_seconds", "Duration of requests, by kind.",
			bounds, "kind"),
		stages: set.NewPrometheusHistogramVec("ferula_frontend_stage_duration_seconds",
			"Duration of the stages of requests (queue, slots, cache, fetch, splice).", bounds, "stage"),
		bytes: process.Counter(set, "ferula_frontend_response_bytes_total", "Total bytes of responses, before compression."),
		shared: process.Counter(set, "ferula_frontend_shared_responses_total",
			"Total requests that got the response of an identical concurrent request."),
		running: process.Gauge(set, "ferula_frontend_requests_in_flight", "Requests in progress.", nil),
	}
}

func (m *metrics) request(x *requestContext, took time.Duration) {
	kind := x.kind.String()
	m.requests.With(kind, strconv.Itoa(x.status), x.cache).Inc()
	m.duration.With(kind).Update(took.Seconds())
	m.bytes.AddInt64(int64(x.response.written))
}
