package process

import "github.com/ferula-io/ferula/metrics"

const panicFamily = "ferula_panics_recovered_total"

// Panics returns the counter of panics that the process has recovered from at a place, such as "grpc". Call it at the
// start: an alert sees only an increase from 0. Each panic is a bug. A library's panic at bad input, which becomes an
// error of that input, does not count.
func Panics(set *metrics.Set, place string) *metrics.Counter {
	set.Describe(panicFamily, "Panics that ended a request or a reader of a store, but not the process.", "")
	return set.GetOrCreateCounter(panicFamily + `{place="` + place + `"}`)
}
