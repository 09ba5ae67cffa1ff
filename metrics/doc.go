// Package metrics provides counters, gauges, histograms and summaries, and exposes them
// to Prometheus and compatible scrapers. A scrape does not allocate. Usage:
//
//  1. Create a metric once, under its full name, or a vector of metrics with labels:
//     var served = metrics.NewCounterVec("requests_total", "Requests served.", "path", "code")
//  2. Update it: served.With("/api", "200").Inc()
//  3. Expose all metrics: http.Handle("/metrics", metrics.Handler(true))
//
// All metrics are safe for concurrent use. The handler negotiates the text format 0.0.4,
// text 1.0.0, OpenMetrics or protobuf with the scraper. A [Set] keeps its metrics sorted,
// and a scrape appends them one after the other to a reused buffer. Each metric type has
// two methods for exposition: appendTo writes the text formats, and read returns the values
// for OpenMetrics and protobuf, which internal/exposition writes. The package uses only the
// standard library and no reflection. It starts a goroutine only for InitPush.
//
// An exporter exposes values of another program. It registers a collector, which produces
// the metrics during each scrape, see [RegisterCollector].
//
// # Migrating from VictoriaMetrics/metrics
//
// The exported names are a superset of those of github.com/VictoriaMetrics/metrics v1.44:
// after a change of the import path the output is the same, byte for byte. README.md
// lists the additional names and the equivalents of client_golang's names. The output
// and behaviour differ on purpose in these points:
//
//   - WritePrometheus writes several sets in the order of their registration, and the
//     metadata of a family that several sets have once.
//   - WritePrometheus writes in pieces of about 32 KiB and stops at the first error of the
//     writer.
//   - If the callback of a gauge panics during a scrape, only this gauge is not exposed.
//     The panic does not end the program. Get still panics.
//   - A timer rotates the windows of a summary. It runs only while there are values in the
//     window, and needs no goroutine.
//   - The quantile lines of a summary are not registered names: lookups do not find them.
//   - process_start_time_seconds is the time at which the kernel started the process, and
//     pressure (PSI) counts from the first scrape.
//   - On Linux the few files of /proc that process_* metrics are read from stay open. On
//     other systems WriteProcMetrics writes fewer metrics.
//   - WritePrometheus omits those process metrics whose family a set has, such as
//     go_goroutines, because the text format allows each family only once.
//   - Histogram.Merge accepts the histogram itself, and concurrent merges of two histograms
//     into each other do not deadlock.
//   - Registration accepts UTF-8 names in quotes, {"http.requests",code="200"}, although
//     ValidateMetric rejects them as it does in VictoriaMetrics/metrics.
//
// # Invalid input
//
// Programming errors panic with the name of the metric. Registration panics for an invalid
// name, a name that is taken or belongs to another type, bounds that do not increase, a
// quantile outside [0, 1] and invalid options of a native histogram. Set, Inc, Dec and Add
// panic on a gauge with a callback. With and Delete of a vector panic if the number of values
// differs from the number of labels. No other update panics: histograms ignore NaN and
// negative values, other metrics accept any float. An exemplar that is too long, is not UTF-8
// or has invalid label names is dropped; the value is still counted.
//
// Metrics of collectors are checked at each scrape. An invalid metric fails the scrape,
// see [Sink].
//
// OpenMetrics forbids negative and NaN counts, sums and quantiles; such samples are
// omitted from it. In OpenMetrics and protobuf a family has the type of its first metric;
// metrics of another type are omitted, and this is logged once for each family. The output of
// registered writers is parsed for these formats; malformed lines are omitted. A registered
// writer must not write families that a set has.
package metrics
