package limit

import (
	instruments "github.com/ferula-io/ferula/metrics"
)

// metrics of a limiter; no label is a tenant's name, of which there is no end.
type metrics struct {
	running *instruments.Gauge
	queued  *instruments.Gauge
	wait    *instruments.PrometheusHistogram

	queueFull, tenantsFull, canceled *instruments.Counter // of rejected
}

// newMetrics makes them in the set; set may be nil, then nobody sees them.
func newMetrics(set *instruments.Set) *metrics {
	if set == nil {
		set = instruments.NewSet()
	}
	set.Describe("ferula_frontend_requests_running", "Requests let in and not yet ended.", "")
	set.Describe("ferula_frontend_queue_length", "Requests that wait to be let in, of all tenants.", "")
	set.Describe("ferula_frontend_queue_wait_seconds", "How long requests waited before they were let in.", "")
	rejected := set.NewCounterVec("ferula_frontend_rejected_total", "Requests that were not let in, by reason.", "reason")
	return &metrics{
		running:     set.NewGauge("ferula_frontend_requests_running", nil),
		queued:      set.NewGauge("ferula_frontend_queue_length", nil),
		wait:        set.NewPrometheusHistogramExt("ferula_frontend_queue_wait_seconds", []float64{.001, .01, .1, .5, 1, 5, 10, 30, 60, 120}),
		queueFull:   rejected.With("queue_full"),
		tenantsFull: rejected.With("tenants"),
		canceled:    rejected.With("canceled"),
	}
}
