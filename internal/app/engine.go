package app

import (
	"cmp"
	"fmt"
	"runtime"
	"time"

	prompromql "github.com/prometheus/prometheus/promql"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/internal/promql/columns"

	"github.com/ferula-io/ferula/internal/promql"
	"github.com/ferula-io/ferula/metrics"
)

// EngineOptions choose the engine that evaluates queries. The zero value is the default.
type EngineOptions struct {
	Name        string // "columns" or "prometheus"; "": columns
	Parallelism int    // goroutines of one query of columns; 0: GOMAXPROCS
}

// newQueryEngine returns engine, which is Prometheus' engine, if chosen names it. Otherwise
// newQueryEngine returns the engine of package columns. That engine passes expressions that it
// does not support to engine.
func newQueryEngine(chosen EngineOptions, opts promql.Options, engine *promql.Engine,
	set *metrics.Set) (prompromql.QueryEngine, error) {
	if chosen.Parallelism < 0 {
		return nil, hint.Invalid("query.parallelism", fmt.Errorf("%d is negative", chosen.Parallelism))
	}
	chosen.Parallelism = cmp.Or(chosen.Parallelism, runtime.GOMAXPROCS(0))
	switch chosen.Name {
	case "", columns.Columns:
	case columns.Prometheus:
		return engine, nil
	default:
		return nil, hint.Invalid("query.engine", fmt.Errorf("%q is neither %s nor %s", chosen.Name, columns.Columns,
			columns.Prometheus))
	}
	queries := set.NewCounterVec("ferula_query_engine_queries_total",
		"Number of queries, by the engine that evaluated them, and the reason why columns did not.", "engine", "reason")
	return columns.New(columns.Options{
		Engine: engine, Bare: engine.Bare, MaxSamples: engine.MaxSamples(), Flags: opts.Flags,
		SubqueryStep:       engine.SubqueryStep,
		DelayedNameRemoval: opts.DelayedNameRemoval, UseStartTimestamps: opts.UseStartTimestamps,
		TypeAndUnitLabels: opts.TypeAndUnitLabels,
		Workers:           columns.NewWorkers(chosen.Parallelism - 1),
		Count:             func(engine, reason string) { queries.With(engine, reason).Inc() },
	}), nil
}

// newSlotMetric returns a function that observes how long a query waited for a slot, under Thanos' name.
func newSlotMetric(set *metrics.Set) func(time.Duration) {
	const waited = "thanos_query_concurrent_gate_duration_seconds"
	set.Describe(waited, "How long a query waited for a slot.", "")
	histogram := set.NewPrometheusHistogramExt(waited,
		[]float64{0.01, 0.1, 0.3, 0.6, 1, 3, 6, 9, 20, 30, 60, 90, 120, 240, 360, 720})
	return func(d time.Duration) { histogram.Update(d.Seconds()) }
}

// exposeSlots exposes the query slots under Thanos' names.
func exposeSlots(set *metrics.Set, engine *promql.Engine) {
	process.Gauge(set, "thanos_query_concurrent_gate_queries_in_flight", "Number of query slots in use.",
		func() float64 { n, _ := engine.SlotsInUse(); return float64(n) })
	process.Gauge(set, "thanos_query_concurrent_gate_queries_max", "Number of query slots.",
		func() float64 { _, n := engine.SlotsInUse(); return float64(n) })
}
