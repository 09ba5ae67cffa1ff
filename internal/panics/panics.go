// Package panics has the one metric of panics that the process has recovered from. An alert watches it, because
// each of them is a bug. A library's panic at bad input, which becomes an error of that input, does not count.
package panics

import "github.com/ferula-io/ferula/metrics"

const family = "ferula_panics_recovered_total"

// Counter returns the counter of a place, such as "grpc". Call it at the start: an alert sees only an increase from 0.
func Counter(set *metrics.Set, place string) *metrics.Counter {
	set.Describe(family, "Panics that ended a request or a reader of a store, but not the process.", "")
	return set.GetOrCreateCounter(family + `{place="` + place + `"}`)
}
