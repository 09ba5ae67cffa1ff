package role

import (
	"fmt"

	prompromql "github.com/prometheus/prometheus/promql"

	"github.com/ferula-io/ferula/internal/query/columns"
	"github.com/ferula-io/ferula/internal/query/promql"
	"github.com/ferula-io/ferula/metrics"
)

// newQueryEngine returns the engine of queries: the one of columns unless chosen is that of
// Prometheus, which evaluates what the other does not know.
func newQueryEngine(chosen string, opts promql.Options, engine *promql.Engine, set *metrics.Set) (prompromql.QueryEngine, error) {
	switch chosen {
	case "", columns.Columns:
	case columns.Prometheus:
		return engine, nil
	default:
		return nil, fmt.Errorf("query.engine %q is neither %s nor %s", chosen, columns.Columns, columns.Prometheus)
	}
	queries := set.NewCounterVec("ferula_query_engine_queries_total", "Queries that ran, by the engine that evaluated them, and the reason if it is not the one of columns.", "engine", "reason")
	return columns.New(columns.Options{
		Engine: engine, Bare: engine.Bare, MaxSamples: engine.MaxSamples(), Flags: opts.Flags, SubqueryStep: engine.SubqueryStep,
		DelayedNameRemoval: opts.DelayedNameRemoval, UseStartTimestamps: opts.UseStartTimestamps, TypeAndUnitLabels: opts.TypeAndUnitLabels,
		Count: func(engine, reason string) { queries.With(engine, reason).Inc() },
	}), nil
}
