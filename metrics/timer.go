package metrics

import "time"

// Updater is a metric that observes values, as Prometheus' Observer does: Histogram,
// PrometheusHistogram and Summary.
type Updater interface{ Update(v float64) }

// UpdaterFunc is an Updater that calls a function, such as the Set of a gauge.
type UpdaterFunc func(v float64)

// Update implements Updater.
func (f UpdaterFunc) Update(v float64) { f(v) }

// Timer measures a duration in seconds:
//
//	timer := metrics.NewTimer(seconds)
//	defer timer.ObserveDuration()
//
// A metric with the method UpdateDuration needs no Timer: defer seconds.UpdateDuration(time.Now()).
// A copy of a timer has the same start time.
type Timer struct {
	start  time.Time
	metric Updater
}

// NewTimer returns a timer that starts now and updates m.
func NewTimer(m Updater) Timer { return Timer{time.Now(), m} }

// ObserveDuration updates the metric with the seconds since the start, and returns this duration.
func (t Timer) ObserveDuration() time.Duration {
	d := time.Since(t.start)
	t.metric.Update(d.Seconds())
	return d
}

// ObserveDurationWithExemplar is ObserveDuration with an exemplar if the metric can have one, see
// PrometheusHistogram.UpdateWithExemplar.
func (t Timer) ObserveDurationWithExemplar(labels ...string) time.Duration {
	m, ok := t.metric.(interface {
		UpdateWithExemplar(v float64, labels ...string)
	})
	if !ok {
		return t.ObserveDuration()
	}
	d := time.Since(t.start)
	m.UpdateWithExemplar(d.Seconds(), labels...)
	return d
}
