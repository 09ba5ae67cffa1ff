package tsdb

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Failures of Prometheus' logs are read from its counters. The log does not return every failed write: the appender
// logs it, and Commit succeeds. Nor does Open return whether it repaired a log. Both would be lost samples that were
// acknowledged: see writeGuard and openDatabase. So the database gets a Registerer that keeps its counters.
//
// This file can go once Commit returns the error of every write to both logs, and Open returns what it repaired.
// TestWatchedRegisterer_TheDatabaseHasTheCounters fails if the counters get other names.
const (
	// failedWrites is the end of the names of two counters: failed writes to the write-ahead log,
	// and to the log of out-of-order samples.
	failedWrites = `writes_failed_total"`
	// logRepairs is part of the description of a counter: the logs that were found damaged
	// while the database opened.
	logRepairs = `"prometheus_tsdb_wal_corruptions_total"`
)

// registerer returns a Registerer that passes registrations to next, which may be nil, and
// keeps the counters of failed log writes.
func (g *writeGuard) registerer(next prometheus.Registerer) *watchedRegisterer {
	return &watchedRegisterer{Registerer: next, guard: g}
}

// watchedRegisterer is the Registerer of one database.
type watchedRegisterer struct {
	prometheus.Registerer
	guard      *writeGuard
	registered []prometheus.Collector // all collectors of the database
}

// Register implements prometheus.Registerer.
func (r *watchedRegisterer) Register(c prometheus.Collector) error {
	r.guard.mu.Lock()
	r.registered = append(r.registered, c)
	if described(c, failedWrites) {
		r.guard.failures = append(r.guard.failures, c)
	}
	r.guard.mu.Unlock()
	if r.Registerer == nil {
		return nil
	}
	return r.Registerer.Register(c)
}

// Unregister implements prometheus.Registerer.
func (r *watchedRegisterer) Unregister(c prometheus.Collector) bool {
	return r.Registerer != nil && r.Registerer.Unregister(c)
}

// MustRegister implements prometheus.Registerer.
func (r *watchedRegisterer) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if err := r.Register(c); err != nil {
			panic(err) // as every Registerer does
		}
	}
}

// counted reports whether the counter whose description contains text is above 0.
func (r *watchedRegisterer) counted(text string) bool {
	for _, c := range r.registered {
		if described(c, text) && aboveZero(c) {
			return true
		}
	}
	return false
}

// add adds n to the counter whose description contains text.
func (r *watchedRegisterer) add(text string, n int) {
	for _, c := range r.registered {
		if counter, ok := c.(prometheus.Counter); ok && n > 0 && described(c, text) {
			counter.Add(float64(n))
		}
	}
}

// unregisterAll unregisters everything that was registered through r.
func (r *watchedRegisterer) unregisterAll() {
	for _, c := range r.registered {
		r.Unregister(c)
	}
	r.registered = nil
	r.guard.forget()
}

// described reports whether a description of c contains text.
func described(c prometheus.Collector, text string) (found bool) {
	descs := make(chan *prometheus.Desc, 64)
	go func() {
		c.Describe(descs)
		close(descs)
	}()
	for desc := range descs {
		found = found || strings.Contains(desc.String(), text)
	}
	return found
}

// aboveZero reports whether a counter of a collector is above 0. A single counter, as the
// logs have, is read without a goroutine: every commit reads it.
func aboveZero(c prometheus.Collector) (above bool) {
	if counter, ok := c.(prometheus.Counter); ok {
		return metricAboveZero(counter)
	}
	metrics := make(chan prometheus.Metric, 4)
	go func() {
		c.Collect(metrics)
		close(metrics)
	}()
	for m := range metrics {
		above = above || metricAboveZero(m)
	}
	return above
}

func metricAboveZero(m prometheus.Metric) bool {
	var value dto.Metric
	return m.Write(&value) == nil && value.GetCounter().GetValue() > 0
}
