package columns

import (
	"slices"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"

	"github.com/ferula-io/ferula/internal/series"
)

// node is one operator of a compiled expression.
type node interface {
	// eval passes the series of the result to sink, in the order of Prometheus' engine. A
	// row is valid until sink returns, and sink may change it. The labels of the row stay
	// valid afterwards, unless lend was called for the node.
	eval(ev *evaluation, sink func(*row) error) error
}

// textNode is a string, which has no series.
type textNode struct{}

func (textNode) eval(*evaluation, func(*row) error) error { return nil }

// compiler compiles an expression that was preprocessed by Prometheus' engine.
type compiler struct {
	stmt       *parser.EvalStmt
	opts       Options
	hints      map[*parser.VectorSelector]*storage.SelectHints
	subqueries int                               // number of subqueries around the current expression
	repeated   map[parser.Expr]string            // see repeatedExpressions
	fused      map[*parser.AggregateExpr]*fusion // see fusions
	selectors  []selector                        // of the nodes so far
	reason     string                            // why the last examined expression is not supported
}

func milliseconds(t time.Time) int64 { return t.UnixNano() / int64(time.Millisecond) }

// compile compiles a statement, and returns the selectors of all nodes. If the root is not supported, it returns no
// node and the reason.
func compile(stmt *parser.EvalStmt, opts Options) (root node, selectors []selector, reason string) {
	if stmt.End.Before(stmt.Start) {
		return nil, nil, "range"
	}
	switch stmt.Expr.Type() {
	case parser.ValueTypeVector, parser.ValueTypeScalar:
	case parser.ValueTypeString:
		if stmt.Interval == 0 {
			return textNode{}, nil, ""
		}
		return nil, nil, "range"
	default:
		return nil, nil, "type_" + string(stmt.Expr.Type())
	}
	c := &compiler{stmt: stmt, opts: opts, repeated: repeatedExpressions(stmt.Expr)}
	c.hints = c.selectHints(stmt)
	c.fused = c.fusions(stmt.Expr)
	if n, ok := c.compile(stmt.Expr); ok {
		return n, c.selectors, ""
	}
	return nil, nil, c.reason
}

// unknown records why an expression is not supported, and returns no node.
func (c *compiler) unknown(reason string) (node, bool) {
	c.reason = reason
	return nil, false
}

// operand compiles an operand. If the operand is not supported, operand returns a node that lets Prometheus' engine
// evaluate it. ordered means that the result of the operator depends on the order of the operand's series. operand
// returns false in three cases, in which the result could be wrong: with ordered, if Prometheus' engine returns the
// series in another order; with delayed name removal, because the series that Prometheus' engine returns do not
// show which names are to be removed later; and if Prometheus' engine counts more samples than those of the result.
func (c *compiler) operand(e parser.Expr, ordered bool) (node, bool) {
	before := len(c.selectors)
	n, ok := c.compile(e)
	if ok {
		return n, true
	}
	c.selectors = c.selectors[:before] // Prometheus' engine selects the series of e
	if c.opts.DelayedNameRemoval || ordered && !c.orderKept(e) || countsMore(e) {
		return nil, false
	}
	return &foreignNode{expr: e, reason: c.reason}, true
}

// countsMore reports whether Prometheus' engine counts samples of an expression in memory after the evaluation, in
// addition to the samples of the result: samples of info series, and of the windows of smoothed selectors.
func countsMore(e parser.Expr) (found bool) {
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		switch n := n.(type) {
		case *parser.Call:
			found = found || n.Func.Name == "info"
		case *parser.VectorSelector:
			found = found || n.Smoothed
		}
		return nil
	})
	return found
}

// foreign reports whether Prometheus' engine evaluates a node.
func foreign(n node) bool {
	_, ok := n.(*foreignNode)
	return ok
}

// compile compiles an expression. It returns false if the expression is not supported.
func (c *compiler) compile(e parser.Expr) (node, bool) {
	switch e := e.(type) {
	case *parser.NumberLiteral:
		return numberNode(e.Val), true
	case *parser.ParenExpr:
		return c.compile(e.Expr)
	case *parser.StepInvariantExpr:
		if n, ok := c.compile(e.Expr); ok {
			return onceNode{n}, true
		}
		return nil, false
	case *parser.UnaryExpr:
		return c.unary(e)
	case *parser.VectorSelector:
		s := c.selector(e)
		if e.Smoothed {
			return c.share(e, smoothedNode{s}), true
		}
		return c.share(e, s), true
	case *parser.BinaryExpr:
		return c.binary(e)
	case *parser.AggregateExpr:
		return c.aggregate(e)
	case *parser.Call:
		if n, ok := c.call(e); ok {
			return c.share(e, n), true
		}
		return nil, false
	}
	return c.unknown("expression")
}

func (c *compiler) selector(vs *parser.VectorSelector) *selector {
	s := selector{vs: vs, hints: c.hints[vs], steps: c.evaluatedAt(vs)}
	c.selectors = append(c.selectors, s)
	return &s
}

// evaluatedAt returns the times at which a selector is evaluated, if only the last sample at or before each of them
// counts. It returns nil for range selectors, and for selectors that are not evaluated at the steps of the query.
func (c *compiler) evaluatedAt(vs *parser.VectorSelector) *series.Steps {
	if c.subqueries > 0 || vs.Timestamp != nil || c.hints[vs].Range > 0 || vs.Smoothed {
		return nil
	}
	offset := vs.OriginalOffset.Milliseconds()
	s := series.Steps{
		FirstMS: milliseconds(c.stmt.Start) - offset, LastMS: milliseconds(c.stmt.End) - offset,
		StepMS: max(1, c.stmt.Interval.Milliseconds()), // an instant query has the interval 0
	}
	if !s.Valid() {
		return nil
	}
	return &s
}

func (c *compiler) unary(e *parser.UnaryExpr) (node, bool) {
	child, ok := c.compile(e.Expr)
	if ok && e.Op == parser.SUB {
		return negateNode{child}, true
	}
	return child, ok
}

// binary compiles a binary operator. If Prometheus' engine had to evaluate both operands of an operator between
// vectors, or one operand of another operator, binary returns false: Prometheus' engine then evaluates the operator
// with its operands.
func (c *compiler) binary(e *parser.BinaryExpr) (node, bool) {
	scalarLeft, scalarRight := e.LHS.Type() == parser.ValueTypeScalar, e.RHS.Type() == parser.ValueTypeScalar
	trims := isTrim(e.Op) && !(scalarLeft && scalarRight)
	if !isArithmetic(e.Op) && !e.Op.IsComparisonOperator() && !e.Op.IsSetOperator() && !trims {
		return c.unknown("operator_" + parser.ItemTypeStr[e.Op])
	}
	a, ok := c.operand(e.LHS, false)
	if !ok {
		return nil, false
	}
	b, ok := c.operand(e.RHS, false)
	if !ok {
		return nil, false
	}
	if !scalarLeft && !scalarRight {
		if foreign(a) && foreign(b) {
			return nil, false
		}
		if e.Op == parser.LOR && c.opts.DelayedNameRemoval && !(keepsItsName(e.LHS) && keepsItsName(e.RHS)) {
			return c.unknown("operator_or_with_delayed_name_removal")
		}
		if e.Op.IsSetOperator() {
			return &setNode{expr: e, a: a, b: b}, true
		}
		return &matchNode{expr: e, a: a, b: b}, true
	}
	if foreign(a) || foreign(b) {
		return nil, false
	}
	switch {
	case scalarLeft && scalarRight:
		return &scalarsNode{op: e.Op, a: a, b: b}, true
	case scalarLeft:
		return &vectorScalarNode{op: e.Op, vector: b, scalar: a, swap: true, bool: e.ReturnBool, pos: e.PositionRange()}, true
	default:
		return &vectorScalarNode{op: e.Op, vector: a, scalar: b, bool: e.ReturnBool, pos: e.PositionRange()}, true
	}
}

// keepsItsName reports whether an operand removes no metric name: a selector keeps the name, and the series of an
// aggregation have none. With delayed name removal, "or" is supported only for such operands. The series of other
// operands still have the name that is removed at the end of the query, and Prometheus joins series of both operands
// that have the same name until then.
func keepsItsName(e parser.Expr) bool {
	switch e := e.(type) {
	case *parser.ParenExpr:
		return keepsItsName(e.Expr)
	case *parser.StepInvariantExpr:
		return keepsItsName(e.Expr)
	case *parser.VectorSelector:
		return true
	case *parser.AggregateExpr:
		return e.Op != parser.TOPK && e.Op != parser.BOTTOMK && e.Op != parser.LIMITK && e.Op != parser.LIMIT_RATIO
	default:
		return false
	}
}

func (c *compiler) aggregate(e *parser.AggregateExpr) (node, bool) {
	if c.opts.DelayedNameRemoval && slices.Contains(e.Grouping, labels.MetricName) {
		return c.unknown("name_in_grouping_with_delayed_name_removal")
	}
	// The results of these three aggregations do not depend on the order of the series. A sum of floats does.
	ordered := e.Op != parser.COUNT && e.Op != parser.GROUP && e.Op != parser.LIMIT_RATIO
	child, ok := c.operand(e.Expr, ordered)
	if !ok {
		return nil, false
	}
	if f, ok := folds[e.Op]; ok {
		lend(child)
		return c.share(e, c.fuse(&aggregateNode{expr: e, child: child, fold: f})), true
	}
	if e.Op == parser.COUNT_VALUES {
		return &countValuesNode{expr: e, child: child}, true
	}
	p, ok := c.operand(e.Param, false)
	if !ok {
		return nil, false
	}
	switch e.Op {
	case parser.QUANTILE:
		return &quantileNode{expr: e, child: child, param: p}, true
	case parser.TOPK, parser.BOTTOMK, parser.LIMITK, parser.LIMIT_RATIO:
		return &topNode{expr: e, child: child, param: p}, true
	}
	return c.unknown("aggregation_" + e.Op.String())
}

// lend makes the selectors of an operand emit rows whose labels are not copied and are valid only until the next
// row. The parent of the operand must not keep the labels of a row.
func lend(n node) {
	switch n := n.(type) {
	case *selector:
		n.lent = true
	case timestampNode:
		n.lent = true
	case smoothedNode:
		n.lent = true
	case *windowNode:
		if n.lent = true; n.subquery != nil {
			lend(n.subquery.child)
		}
	case *vectorScalarNode:
		lend(n.vector)
	case *pointwiseNode:
		lend(n.child)
	case negateNode:
		lend(n.child)
	}
}

func (c *compiler) call(e *parser.Call) (node, bool) {
	name := e.Func.Name
	switch name {
	case "time":
		return timeNode{}, true
	case "pi":
		return piNode{}, true
	case "label_replace", "label_join":
		return c.relabel(e)
	case "timestamp", "start_timestamp":
		return c.timestamp(e)
	case "info":
		return c.info(e)
	case "scalar", "vector":
		child, ok := c.compile(e.Args[0])
		if ok && name == "scalar" {
			return scalarNode{child}, true
		}
		return vectorNode{child}, ok
	}
	if _, ok := pointwise[name]; ok {
		return c.pointwise(e)
	}
	if stepFunctions[name] {
		return c.steps(e)
	}
	return c.window(e)
}

// startTimestampFunctions are the functions whose results depend on the start timestamps of samples.
var startTimestampFunctions = map[string]bool{"rate": true, "increase": true, "irate": true, "resets": true}

// nameless are the stepFunctions whose results are the same with delayed name removal.
var nameless = map[string]bool{"absent": true, "sort": true, "sort_desc": true, "sort_by_label": true,
	"sort_by_label_desc": true, "max_of": true, "min_of": true, "start_timestamp": true}

// window compiles a function of a range vector.
func (c *compiler) window(e *parser.Call) (node, bool) {
	name := e.Func.Name
	fast := fastWindows[name]
	if fast == nil && !windowFunctions[name] {
		return c.unknown("function_" + name)
	}
	if c.opts.UseStartTimestamps && startTimestampFunctions[name] {
		return c.unknown("function_" + name + "_with_start_timestamps")
	}
	w := &windowNode{call: e, fast: fast, counter: name == "rate" || name == "increase", perSecond: name == "rate"}
	w.keepName = name == "last_over_time" || name == "first_over_time"
	found := false
	for i, arg := range e.Args {
		switch arg := arg.(type) {
		case *parser.MatrixSelector:
			w.selector = *c.selector(arg.VectorSelector.(*parser.VectorSelector))
			if c.subqueries == 0 && w.vs.Timestamp == nil {
				c.selectors[len(c.selectors)-1].window = w
			}
			found, w.rangeMS, w.seconds = true, arg.Range.Milliseconds(), arg.Range.Seconds()
			w.extend(name, c.stmt.LookbackDelta)
			continue
		case *parser.SubqueryExpr:
			var ok bool
			if name == "predict_linear" && arg.Timestamp != nil {
				return c.unknown("predict_linear_of_subquery_at") // Prometheus counts the samples read differently
			}
			if w.subquery, ok = c.subquery(arg); !ok {
				return nil, false
			}
			found, w.rangeMS, w.seconds = true, arg.Range.Milliseconds(), arg.Range.Seconds()
			call := *e // Prometheus' functions get a range selector in place of the subquery
			call.Args = slices.Clone(e.Args)
			w.vs = &parser.VectorSelector{OriginalOffset: arg.OriginalOffset, Offset: arg.OriginalOffset}
			call.Args[i] = &parser.MatrixSelector{Range: arg.Range, VectorSelector: w.vs}
			w.call = &call
			continue
		}
		if arg.Type() != parser.ValueTypeScalar {
			return c.unknown("function_" + name)
		}
		n, ok := c.compile(arg)
		if !ok {
			return nil, false
		}
		w.scalars = append(w.scalars, n)
	}
	if !found {
		return c.unknown("function_" + name)
	}
	if name == "absent_over_time" {
		return absentNode{w}, true
	}
	return w, true
}

// pointwise compiles a function of each sample.
func (c *compiler) pointwise(e *parser.Call) (node, bool) {
	n := &pointwiseNode{name: e.Func.Name, f: pointwise[e.Func.Name]}
	for i, arg := range e.Args {
		child, ok := c.compile(arg)
		if !ok {
			return nil, false
		}
		if i == 0 {
			n.child = child
		} else {
			n.scalars = append(n.scalars, child)
		}
	}
	return n, n.child != nil
}

// relabel compiles a function that changes labels.
func (c *compiler) relabel(e *parser.Call) (node, bool) {
	child, ok := c.compile(e.Args[0])
	if !ok {
		return nil, false
	}
	to, named := e.Args[1].(*parser.StringLiteral)
	named = named && to.Val == labels.MetricName
	return &relabelNode{call: e, child: child, fixedNames: named && fixedInTime(e.Args[0])}, true
}

// fixedInTime reports whether an expression has a selector or a subquery with @.
func fixedInTime(e parser.Expr) bool {
	found := false
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		switch n := n.(type) {
		case *parser.VectorSelector:
			found = found || n.Timestamp != nil
		case *parser.SubqueryExpr:
			found = found || n.Timestamp != nil
		}
		return nil
	})
	return found
}

// steps compiles a function that Prometheus' implementation evaluates step by step.
func (c *compiler) steps(e *parser.Call) (node, bool) {
	if c.opts.DelayedNameRemoval && !nameless[e.Func.Name] {
		return c.unknown("function_" + e.Func.Name + "_with_delayed_name_removal")
	}
	n := &stepsNode{call: e}
	for _, arg := range e.Args {
		if arg.Type() == parser.ValueTypeString {
			n.args = append(n.args, nil)
			continue
		}
		child, ok := c.operand(arg, false)
		if !ok {
			return nil, false
		}
		n.args = append(n.args, child)
	}
	return n, true
}

// timestamp compiles timestamp() and start_timestamp(). For a selector timestamp returns the timestamps of the samples.
// start_timestamp returns nothing without the feature, but the samples are counted.
func (c *compiler) timestamp(e *parser.Call) (node, bool) {
	vs, ok := e.Args[0].(*parser.VectorSelector)
	if !ok {
		return c.steps(e)
	}
	starts := e.Func.Name == "start_timestamp"
	if starts && c.opts.UseStartTimestamps {
		return c.unknown("function_start_timestamp_with_start_timestamps")
	}
	return timestampNode{c.selector(vs), starts}, true
}

// selectHints returns the hints of all selectors, as Prometheus' engine gives them to the
// storage.
func (c *compiler) selectHints(stmt *parser.EvalStmt) map[*parser.VectorSelector]*storage.SelectHints {
	all := map[*parser.VectorSelector]*storage.SelectHints{}
	var window time.Duration // range of the last range selector seen
	parser.Inspect(stmt.Expr, func(n parser.Node, path []parser.Node) error {
		switch n := n.(type) {
		case *parser.MatrixSelector:
			window = n.Range
		case *parser.VectorSelector:
			h := &storage.SelectHints{Step: stmt.Interval.Milliseconds(), Range: window.Milliseconds(),
				Func: functionAround(path)}
			for _, outer := range path {
				if s, ok := outer.(*parser.SubqueryExpr); ok {
					h.Step = c.subqueryStep(s).Milliseconds()
				}
			}
			h.Start, h.End = selectorRange(stmt, n, path, window)
			if len(path) > 0 {
				if a, ok := path[len(path)-1].(*parser.AggregateExpr); ok {
					h.By, h.Grouping = !a.Without, a.Grouping
				}
			}
			all[n], window = h, 0
		}
		return nil
	})
	return all
}

// selectorRange returns the range of samples that a selector needs, inclusive, in ms.
func selectorRange(stmt *parser.EvalStmt, vs *parser.VectorSelector, path []parser.Node,
	window time.Duration) (start, end int64) {
	start, end = milliseconds(stmt.Start), milliseconds(stmt.End)
	var offset, length time.Duration // of the subqueries around the selector
	for _, outer := range path {
		if s, ok := outer.(*parser.SubqueryExpr); ok {
			offset, length = offset+s.OriginalOffset, length+s.Range
			if s.Timestamp != nil {
				offset, length = s.OriginalOffset, s.Range
				start, end = *s.Timestamp, *s.Timestamp
			}
		}
	}
	if vs.Timestamp != nil {
		start, end = *vs.Timestamp, *vs.Timestamp
	} else {
		start -= offset.Milliseconds() + length.Milliseconds()
		end -= offset.Milliseconds()
	}
	lookback := stmt.LookbackDelta.Milliseconds()
	if vs.Smoothed {
		end += lookback
	}
	if window == 0 {
		window = stmt.LookbackDelta
	} else if vs.Anchored || vs.Smoothed {
		start -= lookback
	}
	start -= window.Milliseconds() - 1
	own := vs.OriginalOffset.Milliseconds()
	return start - own, end - own
}

// functionAround returns the nearest function or aggregation around a selector.
func functionAround(path []parser.Node) string {
	for i := len(path) - 1; i >= 0; i-- {
		switch n := path[i].(type) {
		case *parser.AggregateExpr:
			return n.Op.String()
		case *parser.Call:
			return n.Func.Name
		case *parser.BinaryExpr:
			return ""
		}
	}
	return ""
}
