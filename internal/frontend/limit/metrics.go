package limit

import (
	"strings"

	instruments "github.com/ferula-io/ferula/metrics"
)

// metrics of a limiter; no label is a tenant's name, of which there is no end.
type metrics struct {
	running *instruments.Gauge
	queued  *instruments.Gauge
	wait    *instruments.PrometheusHistogram

	queueFull, tenantsFull, canceled, timedOut *instruments.Counter // of rejected
}

// names are those of a limiter's metrics, and what they are about.
type names struct{ running, queued, wait, rejected, of, begun string }

// newMetrics makes them in the set; set may be nil, then nobody sees them.
func newMetrics(set *instruments.Set, downstream bool) *metrics {
	if set == nil {
		set = instruments.NewSet()
	}
	n := names{"ferula_frontend_requests_running", "ferula_frontend_queue_length", "ferula_frontend_queue_wait_seconds", "ferula_frontend_rejected_total", "Requests", "let in"}
	if downstream {
		n = names{"ferula_frontend_downstream_slots_held", "ferula_frontend_downstream_queue_length", "ferula_frontend_downstream_queue_wait_seconds",
			"ferula_frontend_downstream_rejected_total", "Groups of downstream calls", "begun"}
	}
	if downstream {
		set.Describe(n.running, "Downstream calls begun and not yet read to their end.", "")
	} else {
		set.Describe(n.running, "Requests let in and not yet ended.", "")
	}
	set.Describe(n.queued, n.of+" that wait to be "+n.begun+", of all tenants.", "")
	set.Describe(n.wait, "How long "+strings.ToLower(n.of[:1])+n.of[1:]+" waited before they were "+n.begun+".", "")
	rejected := set.NewCounterVec(n.rejected, n.of+" that were not "+n.begun+", by reason.", "reason")
	return &metrics{
		running:     set.NewGauge(n.running, nil),
		queued:      set.NewGauge(n.queued, nil),
		wait:        set.NewPrometheusHistogramExt(n.wait, []float64{.001, .01, .1, .5, 1, 5, 10, 30, 60, 120}),
		queueFull:   rejected.With("queue_full"),
		tenantsFull: rejected.With("tenants"),
		canceled:    rejected.With("canceled"),
		timedOut:        rejected.With("timeout"),
	}
}
