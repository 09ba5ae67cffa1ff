package limit

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of a limiter; no label is a tenant's name, of which there is no end.
type metrics struct {
	running  prometheus.Gauge
	queued   prometheus.Gauge
	wait     prometheus.Histogram
	rejected *prometheus.CounterVec

	queueFull, tenantsFull, canceled prometheus.Counter // of rejected
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		running: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "ferula_frontend_requests_running", Help: "Requests let in and not yet ended.",
		}),
		queued: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "ferula_frontend_queue_length", Help: "Requests that wait to be let in, of all tenants.",
		}),
		wait: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "ferula_frontend_queue_wait_seconds", Help: "How long requests waited before they were let in.",
			Buckets: []float64{.001, .01, .1, .5, 1, 5, 10, 30, 60, 120},
		}),
		rejected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ferula_frontend_rejected_total", Help: "Requests that were not let in, by reason.",
		}, []string{"reason"}),
	}
	m.queueFull = m.rejected.WithLabelValues("queue_full")
	m.tenantsFull = m.rejected.WithLabelValues("tenants")
	m.canceled = m.rejected.WithLabelValues("canceled")
	if reg == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.running, m.queued, m.wait, m.rejected} {
		errs = append(errs, reg.Register(c))
	}
	return m, errors.Join(errs...)
}
