package columns

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
)

// Plan describes how an expression is evaluated.
type Plan struct {
	Operator string // its kind in brackets and what it does: `[aggregate] sum by (job)`
	Operands []Plan
}

// PlanOf returns the plan of a query of any engine. If this engine leaves the whole query to Prometheus' engine,
// before or during the evaluation, the plan has one operator: the query, with the reason.
func PlanOf(q promql.Query) Plan {
	own, ok := q.(*query)
	switch {
	case !ok:
		return Plan{Operator: "[prometheus] " + q.String()}
	case own.root == nil:
		return Plan{Operator: "[prometheus: " + own.reason + "] " + q.String()}
	}
	return planner{q.String()}.plan(own.root)
}

// planner describes the nodes of one query.
type planner struct{ text string } // text of the query

func (p planner) plan(n node) Plan {
	operator, operands := p.describe(n)
	plan := Plan{Operator: operator}
	for _, o := range operands {
		if o != nil { // nil is a string argument
			plan.Operands = append(plan.Operands, p.plan(o))
		}
	}
	return plan
}

// describe returns the operator of a node and its operands, in the order of the expression. The text of an operator
// does not contain its operands. Otherwise the plan of a deep expression would be much longer than the expression.
func (p planner) describe(n node) (operator string, operands []node) {
	switch n := n.(type) {
	case textNode:
		return "[string] " + p.text, nil
	case numberNode:
		return "[number] " + strconv.FormatFloat(float64(n), 'g', -1, 64), nil
	case timeNode:
		return "[function] time", nil
	case piNode:
		return "[function] pi", nil
	case scalarNode:
		return "[function] scalar", []node{n.child}
	case vectorNode:
		return "[function] vector", []node{n.child}
	case negateNode:
		return "[negate]", []node{n.child}
	case onceNode:
		return "[stepInvariant]", []node{n.child}
	case *selector:
		return "[vectorSelector] " + n.vs.String(), nil
	case smoothedNode:
		return "[vectorSelector] " + n.vs.String(), nil
	case timestampNode:
		if n.starts {
			return "[function] start_timestamp", []node{n.selector}
		}
		return "[function] timestamp", []node{n.selector}
	case *infoNode:
		return "[function] info", []node{n.child}
	case *windowNode:
		return n.describe()
	case absentNode:
		return n.describe()
	case *pointwiseNode:
		return "[function] " + n.name, append([]node{n.child}, n.scalars...)
	case *relabelNode:
		return "[function] " + n.call.Func.Name, []node{n.child}
	case *stepsNode:
		return "[function] " + n.call.Func.Name, n.args
	case *countValuesNode:
		return "[aggregate] " + aggregation(n.expr) + " as " + n.expr.Param.String(), []node{n.child}
	case *aggregateNode:
		return "[aggregate] " + aggregation(n.expr), []node{n.child}
	case *fusedNode:
		return "[fusedAggregate] " + aggregation(n.expr), []node{n.child}
	case *quantileNode:
		return "[aggregate] " + aggregation(n.expr), []node{n.param, n.child}
	case *topNode:
		return "[aggregate] " + aggregation(n.expr), []node{n.param, n.child}
	case *sharedNode:
		return "[shared]", []node{n.node}
	case *setNode:
		return "[vectorBinary] " + operation(n.expr), []node{n.a, n.b}
	case *matchNode:
		return "[vectorBinary] " + operation(n.expr), []node{n.a, n.b}
	case *scalarsNode:
		return "[scalarBinary] " + n.op.String(), []node{n.a, n.b}
	case *vectorScalarNode:
		return n.describe()
	case *foreignNode:
		return "[prometheus: " + n.reason + "] " + p.source(n.expr), nil
	}
	return fmt.Sprintf("[%T]", n), nil
}

// source returns the text of an expression in the query.
func (p planner) source(e parser.Expr) string {
	at := e.PositionRange()
	if at.Start < 0 || at.End < at.Start || int(at.End) > len(p.text) {
		return ""
	}
	return p.text[at.Start:at.End]
}

func (v *vectorScalarNode) describe() (operator string, operands []node) {
	operator = "[vectorScalarBinary] " + v.op.String()
	if v.bool {
		operator += " bool"
	}
	if v.swap {
		return operator, []node{v.scalar, v.vector}
	}
	return operator, []node{v.vector, v.scalar}
}

func (w *windowNode) describe() (operator string, operands []node) {
	name := w.call.Func.Name
	if w.subquery == nil {
		for _, arg := range w.call.Args {
			if m, ok := arg.(*parser.MatrixSelector); ok {
				return "[matrixSelector] " + name + "(" + m.String() + ")", w.scalars
			}
		}
		return "[matrixSelector] " + name, w.scalars
	}
	e := w.subquery.expr
	var b strings.Builder
	fmt.Fprintf(&b, "[subquery] %s[%s:%s]", name, model.Duration(e.Range),
		model.Duration(time.Duration(w.subquery.step)*time.Millisecond))
	if e.Timestamp != nil {
		fmt.Fprintf(&b, " @ %.3f", float64(*e.Timestamp)/1000)
	}
	if e.OriginalOffset != 0 {
		b.WriteString(" offset ")
		if e.OriginalOffset < 0 {
			b.WriteString("-")
		}
		b.WriteString(model.Duration(e.OriginalOffset.Abs()).String())
	}
	return b.String(), append([]node{w.subquery.child}, w.scalars...)
}

// aggregation returns the text of an aggregation without its operands.
func aggregation(e *parser.AggregateExpr) string {
	switch grouping := " " + labelList(e.Grouping); {
	case e.Without:
		return e.Op.String() + " without" + grouping
	case len(e.Grouping) > 0:
		return e.Op.String() + " by" + grouping
	}
	return e.Op.String()
}

// labelList returns label names in parentheses. It quotes the names that need quotes in PromQL.
func labelList(names []string) string {
	var b strings.Builder
	for i, name := range names {
		if i > 0 {
			b.WriteString(", ")
		}
		if !model.LegacyValidation.IsValidLabelName(name) {
			name = strconv.Quote(name)
		}
		b.WriteString(name)
	}
	return "(" + b.String() + ")"
}

// operation returns the text of a binary operator between vectors without its operands.
func operation(e *parser.BinaryExpr) string {
	text, m := e.Op.String(), e.VectorMatching
	if e.ReturnBool {
		text += " bool"
	}
	if m.On {
		text += " on " + labelList(m.MatchingLabels)
	} else if len(m.MatchingLabels) > 0 {
		text += " ignoring " + labelList(m.MatchingLabels)
	}
	switch include := " " + labelList(m.Include); m.Card {
	case parser.CardManyToOne:
		text += " group_left" + include
	case parser.CardOneToMany:
		text += " group_right" + include
	}
	return text
}
