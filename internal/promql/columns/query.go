package columns

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
	"github.com/prometheus/prometheus/util/stats"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// query is a query of Prometheus' engine whose evaluation is replaced. While it runs, an empty selector replaces the
// real expression. Prometheus' engine selects the series of that selector from the hook, which evaluates the real
// expression. So Prometheus' engine still queues, times out, logs and counts the query. The
// evaluation fills in the statistics.
type query struct {
	promql.Query
	engine    *Engine
	hook      *hook
	stmt      *parser.EvalStmt
	selectors []selector // of all nodes
	root      node       // of the compiled expression; nil: Prometheus' engine evaluates the query
	reason    string     // why Prometheus' engine evaluates the query

	points *pointsPool  // of the result
	runs   *Runs        // nil: the result has a point for each step
	whole  promql.Query // the query of Prometheus' engine after this engine gave up; nil: none
}

// EvaluatedBy returns the name of the engine that evaluated the query. reason is empty unless that is Prometheus'
// engine.
func (q *query) EvaluatedBy() (engine, reason string) {
	if q.root == nil {
		return Prometheus, q.reason
	}
	return Columns, ""
}

// Statement implements promql.Query. It returns the real statement even while the query runs.
func (q *query) Statement() parser.Statement {
	if q.root == nil {
		return q.Query.Statement()
	}
	real := *q.stmt
	if q.hook.expr != nil {
		real.Expr = q.hook.expr
	}
	return &real
}

// Exec implements promql.Query.
func (q *query) Exec(ctx context.Context) *promql.Result {
	if q.root == nil {
		q.engine.count(q.EvaluatedBy())
		return q.Query.Exec(ctx)
	}
	var res *promql.Result // of the evaluation, if it was begun
	q.hook.expr = q.stmt.Expr
	span := startSpan(ctx, q.hook.expr)
	q.hook.run = func(ctx context.Context) {
		res = &promql.Result{}
		if span != nil {
			ctx = trace.ContextWithSpan(ctx, span)
		}
		res.Value, res.Warnings, res.Err = q.evaluate(ctx)
		if res.Err != nil {
			panic(res.Err) // ends Prometheus' evaluator, which recovers and logs the error
		}
	}
	q.stmt.Expr = &parser.VectorSelector{}
	outer := q.Query.Exec(ctx)
	endSpan(span, outer.Err)
	q.stmt.Expr, q.hook.run = q.hook.expr, nil
	q.engine.count(q.EvaluatedBy())
	if res == nil || outer.Err != nil {
		if res != nil {
			outer.Warnings = res.Warnings
		}
		return outer
	}
	return res
}

// startSpan starts the span of an evaluation with the tracer of the request's span. It returns nil if the request is
// not traced. The span has the expression of the query; the spans of Prometheus' engine have an empty selector instead.
func startSpan(ctx context.Context, expr parser.Expr) trace.Span {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return nil
	}
	_, span := parent.TracerProvider().Tracer("ferula/columns").Start(ctx, "columnsEval",
		trace.WithAttributes(attribute.String("expr", expr.String())))
	return span
}

func endSpan(span trace.Span, err error) {
	if span == nil {
		return
	}
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}

// Close implements promql.Query.
func (q *query) Close() {
	q.points.release()
	q.points = nil
	if q.whole != nil {
		q.whole.Close()
		q.whole = nil
	}
	q.Query.Close()
}

// hook is the storage that Prometheus' engine gets for a query. It forwards to the real storage, unless run replaces
// the evaluation.
type hook struct {
	from storage.Queryable
	run  func(context.Context)
	expr parser.Expr // the real expression
}

// Querier implements storage.Queryable.
func (h *hook) Querier(mint, maxt int64) (storage.Querier, error) {
	if h.run == nil {
		return h.from.Querier(mint, maxt)
	}
	return &hookQuerier{Querier: storage.NoopQuerier(), run: h.run}, nil
}

type hookQuerier struct {
	storage.Querier
	run func(context.Context)
}

// Select implements storage.Querier.
func (h *hookQuerier) Select(ctx context.Context, _ bool, _ *storage.SelectHints,
	_ ...*labels.Matcher) storage.SeriesSet {
	return &hookSet{SeriesSet: storage.EmptySeriesSet(), run: func() { h.run(ctx) }}
}

type hookSet struct {
	storage.SeriesSet
	run func()
}

// Next implements storage.SeriesSet.
func (h *hookSet) Next() bool {
	h.run()
	return false
}

// evaluation is the state of one evaluation.
type evaluation struct {
	ctx        context.Context
	engine     *Engine
	stmt       *parser.EvalStmt
	start, end int64 // of the steps, in ms
	interval   int64 // step in ms; 1 for an instant query
	steps      int
	lookback   int64             // ms
	from       storage.Queryable // storage of the query, for expressions that Prometheus' engine evaluates
	source     source            // of the series that the nodes select
	shared     *shared

	acct     account
	samples  *stats.QuerySamples
	perStep  bool // statistics of each step are wanted
	warnings annotations.Annotations
	repeats  bool // several series of the result may have the same labels
	late     bool // the error came after the evaluation of the root: annotations are returned, too
}

// shared is the state that an evaluation shares with the evaluations of its subqueries, branches and repeated
// expressions. A branch changes cells only.
type shared struct {
	mint, maxt int64
	samples    storage.Querier             // see samplesQuerier; opened on demand
	results    map[sharedKey]*sharedResult // of sharedNodes and fusedNodes
	cells      atomic.Int64                // values in memory; see hold
	labelBytes int                         // that label_replace and label_join have added to labels
}

// cellsMin is the number of values that every query may hold.
const cellsMin = 1 << 20

// hold counts n values that stay in memory until the end of the query. A row has a value for every step, so a series
// with few samples takes more memory here than in Prometheus' engine. Beyond the limit hold returns errGiveUp, and
// Prometheus' engine evaluates the query.
func (ev *evaluation) hold(n int) error {
	if ev.shared.cells.Add(int64(n)) > int64(max(cellsMin, 2*ev.engine.opts.MaxSamples)) {
		return errGiveUp("memory")
	}
	return nil
}

// samplesQuerier returns the storage for expressions that Prometheus' engine evaluates. Its queriers cover the range of
// the whole query, because the replica that deduplication chooses depends on the start of the range. If the evaluation
// reads encoded chunks, all these expressions share one querier of samples. If the evaluation itself reads samples,
// each expression opens a querier of its own, because a samplesSource has made all its selections already.
func (ev *evaluation) samplesQuerier() (storage.Queryable, error) {
	if _, ok := ev.source.(samplesSource); ok {
		return wholeRange{ev.from, ev.shared.mint, ev.shared.maxt}, nil
	}
	if ev.shared.samples == nil {
		q, err := ev.from.Querier(ev.shared.mint, ev.shared.maxt)
		if err != nil {
			return nil, err
		}
		ev.shared.samples = q
	}
	return oneView{ev.shared.samples}, nil
}

// wholeRange is a storage whose queriers have the range of a whole query.
type wholeRange struct {
	storage.Queryable
	mint, maxt int64
}

// Querier implements storage.Queryable.
func (w wholeRange) Querier(int64, int64) (storage.Querier, error) {
	return w.Queryable.Querier(w.mint, w.maxt)
}

// oneView is a storage with one querier, which stays open when its users close it.
type oneView struct{ querier storage.Querier }

// Querier implements storage.Queryable.
func (o oneView) Querier(int64, int64) (storage.Querier, error) { return kept{o.querier}, nil }

// kept is a querier whose Close does nothing, because several users share the querier. evaluateFrom closes it.
type kept struct{ storage.Querier }

// Close implements storage.Querier.
func (kept) Close() error { return nil }

// evaluate evaluates the query from encoded chunks. If the storage or the data do not allow
// this, it evaluates the query from samples. If this engine gives up, Prometheus' engine
// evaluates the query.
func (q *query) evaluate(ctx context.Context) (parser.Value, annotations.Annotations, error) {
	stmt := *q.stmt
	stmt.Expr = q.hook.expr
	if v, ok := q.root.(*vectorScalarNode); ok && stmt.Interval > 0 && v.filters() {
		if runs := RunsOf(ctx); runs != nil { // a run begins at most one step after its first sample
			v.leadMS = (runs.Lead + stmt.Interval).Milliseconds()
			if v.op != parser.NEQ { // which keeps NaN, of which one could look like an Unread value
				q.runs = runs
			}
		}
	}
	mint, maxt := promql.FindMinMaxTime(&stmt)
	raw, err := openRaw(ctx, q.hook.from, mint, maxt)
	if err != nil {
		return nil, nil, err
	}
	if raw != nil {
		value, warnings, err := q.evaluateFrom(ctx, &stmt, raw, mint, maxt)
		if !errors.Is(err, errNeedSamples) {
			return q.orGiveUp(ctx, &stmt, value, warnings, err)
		}
	}
	querier, err := q.hook.from.Querier(mint, maxt)
	if err != nil {
		return nil, nil, err
	}
	value, warnings, err := q.evaluateFrom(ctx, &stmt, newSamplesSource(q.newEvaluation(ctx, &stmt), querier, q.selectors), mint, maxt)
	return q.orGiveUp(ctx, &stmt, value, warnings, err)
}

// evaluateFrom evaluates the query from a source, which it closes.
func (q *query) evaluateFrom(ctx context.Context, stmt *parser.EvalStmt, from source, mint,
	maxt int64) (_ parser.Value, _ annotations.Annotations, err error) {
	ev := q.newEvaluation(ctx, stmt)
	ev.source, ev.shared = from, &shared{mint: mint, maxt: maxt, results: map[sharedKey]*sharedResult{}}
	defer func() {
		err = errors.Join(err, from.close())
		if ev.shared.samples != nil {
			err = errors.Join(err, ev.shared.samples.Close())
		}
	}()
	value, err := q.result(ev)
	ev.samples.UpdatePeak(ev.acct.peak)
	if err != nil && !ev.late {
		return nil, nil, err // Prometheus' engine returns no annotations with an error
	}
	return value, ev.warnings, err
}

func (q *query) newEvaluation(ctx context.Context, stmt *parser.EvalStmt) *evaluation {
	ev := &evaluation{
		ctx: ctx, engine: q.engine, stmt: stmt, from: q.hook.from,
		start: milliseconds(stmt.Start), end: milliseconds(stmt.End), interval: stmt.Interval.Milliseconds(), steps: 1,
		lookback: stmt.LookbackDelta.Milliseconds(),
		acct:     account{limit: q.engine.opts.MaxSamples},
		samples:  q.Query.Stats().Samples,
		warnings: annotations.Annotations{}, // shared by copies of the evaluation
	}
	if ev.isInstant() {
		ev.interval = 1
	} else {
		ev.steps = int((ev.end-ev.start)/ev.interval) + 1
	}
	ev.perStep = ev.samples.StepTrackingEnabled()
	*ev.samples = stats.QuerySamples{EnablePerStepStats: ev.perStep}
	ev.samples.InitStepTracking(ev.start, ev.end, ev.interval)
	return ev
}

// isInstant reports whether the query is an instant query, whose result is a vector, a scalar or a string.
func (ev *evaluation) isInstant() bool {
	return ev.stmt.Interval == 0 && ev.stmt.Start.Equal(ev.stmt.End)
}

// orGiveUp returns value, warnings and err, the result of an evaluation by this engine. If err is errGiveUp,
// Prometheus' engine evaluates the query, and orGiveUp returns its result.
func (q *query) orGiveUp(ctx context.Context, stmt *parser.EvalStmt, value parser.Value,
	warnings annotations.Annotations, err error) (parser.Value, annotations.Annotations, error) {
	var gaveUp errGiveUp
	if !errors.As(err, &gaveUp) {
		return value, warnings, err
	}
	q.root, q.reason = nil, string(gaveUp)
	ev := q.newEvaluation(ctx, stmt)
	res, whole, err := q.engine.evaluate(ev, q.hook.from, stmt.Expr, ev.isInstant(), ev.acct.limit)
	if whole != nil {
		*ev.samples = *whole.Stats().Samples
	}
	q.whole = whole
	if res == nil {
		return nil, nil, err
	}
	return res.Value, res.Warnings, err
}
