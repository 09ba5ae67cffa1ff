// Package metrics measures a program and shows the figures to Prometheus and its
// kin, without allocating anything at a scrape. Three steps:
//
//  1. Make a metric, once, under its whole name, or a family of them:
//     var served = metrics.NewCounterVec("requests_total", "Requests served.", "path", "code")
//  2. Update it wherever something happens: served.With("/api", "200").Inc()
//  3. Show all of them: http.Handle("/metrics", metrics.Handler(true))
//
// What comes in are updates; every metric owns its figures and is safe for
// concurrent use. What goes out is text, OpenMetrics or protobuf, as the scraper
// likes it best: a [Set] keeps its metrics sorted, and a scrape appends them one after
// the other to a buffer that is used again. A metric knows two things about formats:
// its appendTo writes the text of version 0.0.4, its read tells its figures to all
// others, which internal/exposition writes. What is not here: a goroutine that nobody
// asked for, reflection, and dependencies.
//
// # Coming from VictoriaMetrics/metrics
//
// The exported names are those of github.com/VictoriaMetrics/metrics v1.44: change
// the import path and the program prints the same bytes. README.md has a table of what
// else is there, and what becomes of client_golang's names. Where the bytes differ, it
// is on purpose:
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
//   - Names in quotes, {"http.requests",code="200"}, are taken where metrics are made,
//     though ValidateMetric refuses them as it always did.
//
// # What is done with bad input
//
// Only a mistake of the programmer panics, and only where a metric is made, naming
// it: an invalid name, a name that is taken, a name that belongs to another type,
// bounds that do not rise, a quantile outside [0, 1], options of a native histogram
// that make no sense. Also Set, Inc, Dec and Add of a gauge that has a callback, and
// With and Delete of a vector with another number of values than labels. Updates never
// panic: histograms ignore NaN and negative values, the others take any float; an
// exemplar that is too long, not UTF-8 or of odd names is left out and its value
// counted. OpenMetrics forbids negative or NaN counts, sums and quantiles: such a
// sample is left out of it. A family has one type there and in protobuf, that of its
// first metric; metrics of another type are left out, and the log says so once. What a
// registered writer writes is read line by line for these formats; a line that is none
// is left out, and its families must be its own.
package metrics
