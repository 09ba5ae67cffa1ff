package columns

import (
	"context"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"

	"github.com/ferula-io/ferula/internal/hint"
)

// Names of the engines, as they are reported.
const (
	Columns    = "columns"
	Prometheus = "prometheus"
)

// Options of an Engine.
type Options struct {
	// Engine parses, queues, limits and logs all queries, and evaluates those that this engine does not support.
	Engine promql.QueryEngine
	// Bare returns an engine with the options of Engine except the limit of samples, and without queue, log and metrics.
	// It evaluates parts of queries, and whole queries at which this engine gave up.
	Bare func(maxSamples int) *promql.Engine
	// MaxSamples is the limit of samples of Engine.
	MaxSamples int
	// Flags are the command-line flags that raise the limits, by the names of options.
	Flags hint.Flags
	// SubqueryStep returns the default step of subqueries, in ms. It is the same as in Engine.
	SubqueryStep func(rangeMS int64) int64
	// Feature flags of Engine that change results.
	DelayedNameRemoval, UseStartTimestamps, TypeAndUnitLabels bool
	// Workers help queries to read and compute their series; nil: each query runs on one goroutine.
	Workers *Workers
	// Count is called for each evaluated query, with the engine that evaluated it. reason is why
	// Prometheus' engine evaluated it; "" for this engine.
	Count func(engine, reason string)
}

// Engine is a promql.QueryEngine that returns the same results as Prometheus' engine.
type Engine struct {
	opts Options
	// A selection uses workers after it has read alone series and computed stepsAlone steps on the goroutine of the
	// query. together is the limit of series in a batch of a worker. Tests change these values.
	alone, stepsAlone, together int
	gapLeastMS                  int64
}

var _ promql.QueryEngine = (*Engine)(nil)

// New returns an engine.
func New(opts Options) *Engine {
	return &Engine{opts, seriesAlone, stepsAlone, batchSeries, gapLeastMS}
}

// NewInstantQuery implements promql.QueryEngine.
func (e *Engine) NewInstantQuery(ctx context.Context, from storage.Queryable, opts promql.QueryOpts, qs string,
	ts time.Time) (promql.Query, error) {
	h := &hook{from: from}
	q, err := e.opts.Engine.NewInstantQuery(ctx, h, opts, qs, ts)
	return e.query(h, q, err)
}

// NewRangeQuery implements promql.QueryEngine.
func (e *Engine) NewRangeQuery(ctx context.Context, from storage.Queryable, opts promql.QueryOpts, qs string, start,
	end time.Time, interval time.Duration) (promql.Query, error) {
	h := &hook{from: from}
	q, err := e.opts.Engine.NewRangeQuery(ctx, h, opts, qs, start, end, interval)
	return e.query(h, q, err)
}

func (e *Engine) query(h *hook, inner promql.Query, err error) (promql.Query, error) {
	if err != nil {
		return nil, err
	}
	q := &query{Query: inner, engine: e, hook: h}
	if stmt, ok := inner.Statement().(*parser.EvalStmt); ok {
		q.stmt = stmt
		q.root, q.selectors, q.reason = compile(stmt, e.opts)
	}
	return q, nil
}

func (e *Engine) count(engine, reason string) {
	if e.opts.Count != nil {
		e.opts.Count(engine, reason)
	}
}
