// Package metricsdiff holds ferula's metrics library against the one it replaces,
// VictoriaMetrics/metrics 1.44.0: its exported names and their types, and the bytes
// that the same operations lead to. There are tests and benchmarks only.
package metricsdiff
