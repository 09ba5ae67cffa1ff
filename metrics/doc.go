// Package metrics measures a program and shows the figures to Prometheus and its
// kin, without allocating anything at a scrape. Three steps:
//
//  1. Make a metric, once, under its whole name:
//     var served = metrics.NewCounter(`requests_total{path="/api"}`)
//  2. Update it wherever something happens: served.Inc()
//  3. Show all of them: http.Handle("/metrics", metrics.Handler(true))
//
// What comes in are updates; every metric owns its figures and is safe for
// concurrent use. What goes out is text: a [Set] keeps its metrics sorted, and a
// scrape appends them one after the other to a buffer that the set owns. A metric
// knows one thing about text, its appendTo. What is not here: a goroutine that
// nobody asked for, reflection, and dependencies.
//
// # Coming from VictoriaMetrics/metrics
//
// The exported names are those of github.com/VictoriaMetrics/metrics v1.44: change
// the import path and the program prints the same bytes. Where it does not, it is
// on purpose:
//
//   - Several sets are written in the order of their registration, and the metadata
//     of a family they share is written once.
//   - A set is written in pieces of about 32 KiB, and no more after the first error
//     of the writer.
//   - A callback of a gauge that panics at a scrape costs this gauge its line, not
//     the program its life. Get still panics, for it has a caller to tell.
//   - The windows of a summary are kept by a timer that runs only while there are
//     samples, and begin with the first of these; no goroutine stays behind.
//   - The lines of a summary's quantiles are not names: they cannot be looked up.
//   - process_start_time_seconds is when the kernel started the process, and
//     pressure (PSI) counts from the first scrape.
//   - process_* metrics exist on Linux only, and keep the few files they come from open.
//   - Histogram.Merge may be given the histogram itself, or two in a circle.
//
// # What is done with bad input
//
// Only a mistake of the programmer panics, and only where a metric is made, naming
// it: an invalid name, a name that is taken, a name that belongs to another type,
// bounds that do not rise, a quantile outside [0, 1]. Also Set, Inc, Dec and Add of
// a gauge that has a callback. Updates never panic: histograms ignore NaN and
// negative values, the others take any float.
package metrics
