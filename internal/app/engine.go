package app

import (
	"fmt"
	"runtime"

	prompromql "github.com/prometheus/prometheus/promql"

	"github.com/ferula-io/ferula/internal/hint"
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
	if chosen.Parallelism == 0 {
		chosen.Parallelism = runtime.GOMAXPROCS(0)
	}
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
