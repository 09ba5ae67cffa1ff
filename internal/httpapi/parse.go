package httpapi

import (
	"fmt"
	"math"
	"net/http"
	"strconv"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/ferula-io/ferula/internal/nesting"
)

func (a *API) formatQuery(r *http.Request) (response, *apiError) {
	expr, err := a.parseExpr(r, prettyLevels(len(r.FormValue("query"))))
	if err != nil {
		return response{}, invalidParameter("query", err)
	}
	pretty := expr.Pretty(0)
	return response{write: func(s *stream) { s.str(pretty) }}, nil
}

func (a *API) parseQuery(r *http.Request) (response, *apiError) {
	expr, err := a.parseExpr(r, nesting.LevelsMax)
	if err != nil {
		return response{}, invalidParameter("query", err)
	}
	return response{write: func(s *stream) { s.expr(expr) }}, nil
}

// expr appends the syntax tree of a query for tree views: one object per node, keys in
// alphabetical order, durations in milliseconds.
func (s *stream) expr(node parser.Expr) {
	switch n := node.(type) {
	case nil:
		s.raw("null")
	case *parser.AggregateExpr:
		s.aggregate(n)
	case *parser.BinaryExpr:
		s.binary(n)
	case *parser.Call:
		s.call(n)
	case *parser.MatrixSelector:
		s.selector("matrixSelector", n.VectorSelector.(*parser.VectorSelector), n)
	case *parser.VectorSelector:
		s.selector("vectorSelector", n, nil)
	case *parser.SubqueryExpr:
		s.subquery(n)
	case *parser.DurationExpr:
		s.duration(n)
	case *parser.NumberLiteral:
		s.field(`{"type":`, "numberLiteral")
		s.field(`,"val":`, plain(n.Val))
		s.raw("}")
	case *parser.ParenExpr:
		s.raw(`{"expr":`)
		s.expr(n.Expr)
		s.raw(`,"type":"parenExpr"}`)
	case *parser.StringLiteral:
		s.raw(`{"type":"stringLiteral"`)
		s.field(`,"val":`, n.Val)
		s.raw("}")
	case *parser.UnaryExpr:
		s.raw(`{"expr":`)
		s.expr(n.Expr)
		s.field(`,"op":`, n.Op.String())
		s.raw(`,"type":"unaryExpr"}`)
	case *parser.StepInvariantExpr:
		s.expr(n.Expr)
	default:
		s.raw("null")
	}
	s.flushIfFull()
}

func plain(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

func (s *stream) aggregate(n *parser.AggregateExpr) {
	s.raw(`{"expr":`)
	s.expr(n.Expr)
	s.raw(`,"grouping":`)
	s.strings(n.Grouping)
	s.field(`,"op":`, n.Op.String())
	s.raw(`,"param":`)
	s.expr(n.Param)
	s.raw(`,"type":"aggregation","without":`)
	s.boolean(n.Without)
	s.raw("}")
}

func (s *stream) binary(n *parser.BinaryExpr) {
	s.raw(`{"bool":`)
	s.boolean(n.ReturnBool)
	s.raw(`,"lhs":`)
	s.expr(n.LHS)
	s.raw(`,"matching":`)
	s.matching(n.VectorMatching)
	s.field(`,"op":`, n.Op.String())
	s.raw(`,"rhs":`)
	s.expr(n.RHS)
	s.raw(`,"type":"binaryExpr"}`)
}

func (s *stream) matching(m *parser.VectorMatching) {
	if m == nil {
		s.raw("null")
		return
	}
	s.field(`{"card":`, m.Card.String())
	s.raw(`,"fillValues":{"lhs":`)
	s.optionalNumber(m.FillValues.LHS)
	s.raw(`,"rhs":`)
	s.optionalNumber(m.FillValues.RHS)
	s.raw(`},"include":`)
	s.strings(m.Include)
	s.raw(`,"labels":`)
	s.strings(m.MatchingLabels)
	s.raw(`,"on":`)
	s.boolean(m.On)
	s.raw("}")
}

func (s *stream) optionalNumber(v *float64) {
	if v == nil {
		s.raw("null")
		return
	}
	if math.IsNaN(*v) || math.IsInf(*v, 0) {
		s.fail(fmt.Errorf("fill value %v cannot be encoded as a JSON number", *v))
		return
	}
	s.number(*v)
}

func (s *stream) call(n *parser.Call) {
	s.raw(`{"args":[`)
	for i, arg := range n.Args {
		s.comma(i)
		s.expr(arg)
	}
	s.raw(`],"func":{"argTypes":[`)
	for i, t := range n.Func.ArgTypes {
		s.comma(i)
		s.str(string(t))
	}
	s.field(`],"name":`, n.Func.Name)
	s.field(`,"returnType":`, string(n.Func.ReturnType))
	s.raw(`,"variadic":`)
	s.integer(int64(n.Func.Variadic))
	s.raw(`},"type":"call"}`)
}

// selector appends the vector selector v or, if m is not nil, the matrix selector m.
func (s *stream) selector(kind string, v *parser.VectorSelector, m *parser.MatrixSelector) {
	s.raw(`{"anchored":`)
	s.boolean(v.Anchored)
	s.raw(`,"matchers":`)
	s.matchers(v.LabelMatchers)
	s.field(`,"name":`, v.Name)
	s.raw(`,"offset":`)
	s.integer(v.OriginalOffset.Milliseconds())
	s.raw(`,"offsetExpr":`)
	s.duration(v.OriginalOffsetExpr)
	if m != nil {
		s.raw(`,"range":`)
		s.integer(m.Range.Milliseconds())
		s.raw(`,"rangeExpr":`)
		s.duration(m.RangeExpr)
	}
	s.raw(`,"smoothed":`)
	s.boolean(v.Smoothed)
	s.raw(`,"startOrEnd":`)
	s.startOrEnd(v.StartOrEnd)
	s.raw(`,"timestamp":`)
	s.optionalInteger(v.Timestamp)
	s.field(`,"type":`, kind)
	s.raw("}")
}

// startOrEnd appends "start" or "end" for @ start() or @ end(), or null.
func (s *stream) startOrEnd(item parser.ItemType) {
	if item == 0 {
		s.raw("null")
		return
	}
	s.str(item.String())
}

func (s *stream) optionalInteger(n *int64) {
	if n == nil {
		s.raw("null")
		return
	}
	s.integer(*n)
}

func (s *stream) matchers(list []*labels.Matcher) {
	s.raw("[")
	for i, m := range list {
		s.comma(i)
		s.field(`{"name":`, m.Name)
		s.field(`,"type":`, m.Type.String())
		s.field(`,"value":`, m.Value)
		s.raw("}")
	}
	s.raw("]")
}

func (s *stream) subquery(n *parser.SubqueryExpr) {
	s.raw(`{"expr":`)
	s.expr(n.Expr)
	s.raw(`,"offset":`)
	s.integer(n.OriginalOffset.Milliseconds())
	s.raw(`,"offsetExpr":`)
	s.duration(n.OriginalOffsetExpr)
	s.raw(`,"range":`)
	s.integer(n.Range.Milliseconds())
	s.raw(`,"rangeExpr":`)
	s.duration(n.RangeExpr)
	s.raw(`,"startOrEnd":`)
	s.startOrEnd(n.StartOrEnd)
	s.raw(`,"step":`)
	s.integer(n.Step.Milliseconds())
	s.raw(`,"stepExpr":`)
	s.duration(n.StepExpr)
	s.raw(`,"timestamp":`)
	s.optionalInteger(n.Timestamp)
	s.raw(`,"type":"subquery"}`)
}

// duration appends a duration expression, or null for a literal duration.
func (s *stream) duration(node parser.Expr) {
	switch n := node.(type) {
	case *parser.DurationExpr:
		if n == nil {
			s.raw("null")
			return
		}
		s.raw(`{"lhs":`)
		s.duration(n.LHS)
		s.field(`,"op":`, n.Op.String())
		s.raw(`,"rhs":`)
		s.duration(n.RHS)
		s.raw(`,"type":"durationExpr","wrapped":`)
		s.boolean(n.Wrapped)
		s.raw("}")
	case *parser.NumberLiteral:
		if n == nil {
			s.raw("null")
			return
		}
		s.raw(`{"duration":`)
		s.boolean(n.Duration)
		s.raw(`,"type":"numberLiteral"`)
		s.field(`,"val":`, plain(n.Val))
		s.raw("}")
	default:
		s.expr(n)
	}
}
