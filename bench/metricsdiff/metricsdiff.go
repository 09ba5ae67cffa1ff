// Package metricsdiff compares ferula's metrics library with the one that it replaces, VictoriaMetrics/metrics 1.44.0: the
// exported names and their types, and the bytes written after the same operations. It contains tests and benchmarks only.
package metricsdiff
