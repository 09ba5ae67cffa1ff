package columns

import (
	"slices"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
)

// foreignNode is an expression that Prometheus' engine evaluates.
type foreignNode struct {
	expr   parser.Expr
	reason string
}

// orderKept reports whether rows of a foreignNode are in an order in which Prometheus' operators could get the
// series of the expression. In an instant query Prometheus' engine does not sort the series of a result. In a range
// query it sorts them by labels, which most of its operators do not. Operators that Prometheus evaluates step by
// step take their series from a Go map, in random order, so for them every order is possible.
func (c *compiler) orderKept(e parser.Expr) bool {
	if c.stmt.Interval == 0 && c.subqueries == 0 {
		return true
	}
	switch e := e.(type) {
	case *parser.ParenExpr:
		return c.orderKept(e.Expr)
	case *parser.BinaryExpr:
		return true
	case *parser.AggregateExpr:
		return e.Op == parser.TOPK || e.Op == parser.BOTTOMK || e.Op == parser.LIMITK || e.Op == parser.LIMIT_RATIO ||
			e.Op == parser.COUNT_VALUES
	}
	return false
}

func (f *foreignNode) eval(ev *evaluation, sink func(*row) error) error {
	samples, err := ev.samplesQuerier()
	if err != nil {
		return err
	}
	return f.evalFrom(ev, samples, nil, sink)
}

// evalFrom evaluates the expression from a storage. given, if not nil, is for an expression that reads samples which
// this engine has counted in memory and in the statistics: the number of these samples at each step.
func (f *foreignNode) evalFrom(ev *evaluation, from storage.Queryable, given []int64, sink func(*row) error) error {
	size := 0
	for _, n := range given {
		size += int(n)
	}
	ev.acct.current -= size
	res, q, err := ev.engine.evaluate(ev, from, f.expr, ev.steps == 1, ev.acct.limit-ev.acct.current)
	if q != nil {
		defer q.Close()
	}
	if err != nil {
		return err
	}
	inner := q.Stats().Samples
	for i, n := range given {
		inner.IncrementSamplesAtStep(i, -n)
		inner.IncrementSamplesReadAtStep(i, -n)
	}
	for i, n := range inner.TotalSamplesPerStep {
		ev.samples.IncrementSamplesAtStep(i, n)
		ev.samples.IncrementSamplesReadAtStep(i, inner.SamplesReadPerStep[i])
	}
	if inner.TotalSamplesPerStep == nil {
		ev.samples.TotalSamples += inner.TotalSamples
		ev.samples.SamplesRead += inner.SamplesRead
	}
	ev.warnings.Merge(res.Warnings)
	if err := ev.acct.touch(inner.PeakSamples); err != nil {
		return err
	}
	if given != nil { // Prometheus counts all that info() has selected until the end of the query
		ev.acct.current += size + int(inner.TotalSamples)
	}
	return f.emit(ev, res.Value, given != nil, sink)
}

// emit emits the series of a result of Prometheus' engine. hists means that it counts the sizes of histograms as the
// operator of the result does.
func (f *foreignNode) emit(ev *evaluation, value parser.Value, hists bool, sink func(*row) error) error {
	r := newRow(ev.steps)
	var series promql.Matrix
	switch v := value.(type) {
	case promql.Scalar:
		r.values[0] = v.V
		r.has.set(0)
		ev.acct.current++
		return sink(&r)
	case promql.Vector:
		for _, s := range v {
			one := promql.Series{Metric: s.Metric, Floats: []promql.FPoint{{T: ev.start, F: s.F}}}
			if s.H != nil {
				one.Floats, one.Histograms = nil, []promql.HPoint{{T: ev.start, H: s.H}}
			}
			series = append(series, one)
		}
	case promql.Matrix:
		series = v
	default:
		return errGiveUp("type")
	}
	for _, s := range series {
		if len(s.Histograms) > 0 && !hists {
			return errGiveUp(f.reason) // the size of histograms is counted differently
		}
		ev.acct.current += len(s.Floats)
		for _, p := range s.Histograms {
			ev.acct.current += pointSize(p.H)
		}
	}
	for _, s := range series {
		r.clear()
		r.metric = s.Metric
		for _, p := range s.Floats {
			i := int((p.T - ev.start) / ev.interval)
			r.values[i] = p.F
			r.has.set(i)
		}
		for _, p := range s.Histograms {
			r.setHistogram(int((p.T-ev.start)/ev.interval), p.H)
		}
		if err := sink(&r); err != nil {
			return err
		}
	}
	return nil
}

// evaluate evaluates an expression with Prometheus' engine at the steps of an evaluation. It
// creates a query for vector(0) and replaces this expression, so that expr is not parsed again.
// The caller closes the query.
func (e *Engine) evaluate(ev *evaluation, from storage.Queryable, expr parser.Expr, instant bool,
	limit int) (*promql.Result, promql.Query, error) {
	bare := e.opts.Bare(max(1, limit))
	opts := promql.NewPrometheusQueryOpts(ev.perStep, ev.stmt.LookbackDelta)
	var q promql.Query
	var err error
	if instant {
		q, err = bare.NewInstantQuery(ev.ctx, from, opts, "vector(0)", time.UnixMilli(ev.start))
	} else {
		q, err = bare.NewRangeQuery(ev.ctx, from, opts, "vector(0)", time.UnixMilli(ev.start), time.UnixMilli(ev.end),
			time.Duration(ev.interval)*time.Millisecond)
	}
	if err != nil {
		return nil, q, err
	}
	defer keepExpr(expr)()
	q.Statement().(*parser.EvalStmt).Expr = expr
	res := q.Exec(ev.ctx)
	return res, q, res.Err
}

// keepExpr prepares an expression for an evaluation by Prometheus' engine: it removes the series of an earlier
// evaluation from the selectors, because their querier is closed. The returned function undoes the changes of the
// evaluation: Prometheus' engine replaces subqueries in the arguments of calls by their results.
func keepExpr(expr parser.Expr) func() {
	args := map[*parser.Call]parser.Expressions{}
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		switch n := n.(type) {
		case *parser.Call:
			args[n] = slices.Clone(n.Args)
		case *parser.VectorSelector:
			n.Series, n.UnexpandedSeriesSet = nil, nil
		}
		return nil
	})
	return func() {
		for call, before := range args {
			copy(call.Args, before)
		}
	}
}
