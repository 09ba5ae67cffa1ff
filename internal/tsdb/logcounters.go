package tsdb

import (
	"slices"
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
	// exemplarsMax is part of the description of a gauge, see exemplarRing.
	exemplarsMax = `"prometheus_tsdb_exemplar_max_exemplars"`
)

// watchedRegisterer is the Registerer of one database. It passes registrations to the embedded Registerer, which may be
// nil.
type watchedRegisterer struct {
	prometheus.Registerer
	guard      *writeGuard
	registered []prometheus.Collector // all collectors of the database
}

// Register implements prometheus.Registerer.
func (r *watchedRegisterer) Register(c prometheus.Collector) error {
	r.registered = append(r.registered, c)
	if described(c, failedWrites) {
		r.guard.mu.Lock()
		// A collected metric is the counter itself, whose value changes.
		r.guard.failures = append(r.guard.failures, drained(c.Collect)...)
		r.guard.mu.Unlock()
	}
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

// repairs returns the counters of repaired logs.
func (r *watchedRegisterer) repairs() []prometheus.Counter {
	return metricsOf[prometheus.Counter](r, logRepairs)
}

// metricsOf returns the metrics of a type whose description contains text.
func metricsOf[M prometheus.Collector](r *watchedRegisterer, text string) (all []M) {
	for _, c := range r.registered {
		if m, ok := c.(M); ok && described(c, text) {
			all = append(all, m)
		}
	}
	return all
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
func described(c prometheus.Collector, text string) bool {
	contains := func(d *prometheus.Desc) bool { return strings.Contains(d.String(), text) }
	return slices.ContainsFunc(drained(c.Describe), contains)
}

// drained returns what f sends.
func drained[T any](f func(chan<- T)) (all []T) {
	sent := make(chan T)
	go func() {
		f(sent)
		close(sent)
	}()
	for one := range sent {
		all = append(all, one)
	}
	return all
}

func aboveZero[M prometheus.Metric](m M) bool {
	var value dto.Metric
	return m.Write(&value) == nil && value.GetCounter().GetValue() > 0
}
