package process

import "github.com/ferula-io/ferula/metrics"

// Counter returns a new counter in a set.
func Counter(set *metrics.Set, name, help string) *metrics.Counter {
	set.Describe(name, help, "")
	return set.NewCounter(name)
}

// Gauge returns a new gauge in a set. Its value is set if value is nil.
func Gauge(set *metrics.Set, name, help string, value func() float64) *metrics.Gauge {
	set.Describe(name, help, "")
	return set.NewGauge(name, value)
}

const panicFamily = "ferula_panics_recovered_total"

// Panics returns the counter of panics that the process has recovered from at a place, such as "grpc". Call it at the
// start: an alert sees only an increase from 0. Each panic is a bug. A library's panic at bad input, which becomes an
// error of that input, does not count.
func Panics(set *metrics.Set, place string) *metrics.Counter {
	set.Describe(panicFamily, "Panics that ended a request or a reader of a store, but not the process.", "")
	return set.GetOrCreateCounter(panicFamily + `{place="` + place + `"}`)
}
