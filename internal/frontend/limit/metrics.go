package limit

import (
	"cmp"
	"strings"

	"github.com/ferula-io/ferula/internal/process"
	instruments "github.com/ferula-io/ferula/metrics"
)

// metrics are the metrics of a Limiter. The tenant is not a label, since the number of tenants is unbounded.
type metrics struct {
	running *instruments.Gauge
	queued  *instruments.Gauge
	wait    *instruments.PrometheusHistogram

	queueFull, tenantsFull, canceled, timedOut *instruments.Counter // of rejected
}

// names are the metric names of a Limiter, and the noun of their help texts.
type names struct{ running, queued, wait, rejected, noun string }

// newMetrics registers the metrics in set. With a nil set they are not exposed.
func newMetrics(set *instruments.Set, downstream bool) *metrics {
	set = cmp.Or(set, instruments.NewSet())
	n := names{"ferula_frontend_requests_running", "ferula_frontend_queue_length", "ferula_frontend_queue_wait_seconds",
		"ferula_frontend_rejected_total", "Requests"}
	running := "Admitted requests in progress."
	if downstream {
		n = names{"ferula_frontend_downstream_slots_held", "ferula_frontend_downstream_queue_length",
			"ferula_frontend_downstream_queue_wait_seconds",
			"ferula_frontend_downstream_rejected_total", "Groups of downstream calls"}
		running = "Downstream calls whose response is not yet read to its end."
	}
	set.Describe(n.wait, "Time that "+strings.ToLower(n.noun)+" waited before admission, in seconds.", "")
	rejected := set.NewCounterVec(n.rejected, n.noun+" that were rejected, by reason.", "reason")
	return &metrics{
		running:     process.Gauge(set, n.running, running, nil),
		queued:      process.Gauge(set, n.queued, n.noun+" waiting in queues, of all tenants.", nil),
		wait:        set.NewPrometheusHistogramExt(n.wait, []float64{.001, .01, .1, .5, 1, 5, 10, 30, 60, 120}),
		queueFull:   rejected.With("queue_full"),
		tenantsFull: rejected.With("tenants"),
		canceled:    rejected.With("canceled"),
		timedOut:    rejected.With("timeout"),
	}
}
