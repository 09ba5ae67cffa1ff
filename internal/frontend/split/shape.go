package split

import (
	"math"
	"time"

	"github.com/prometheus/prometheus/promql/parser"

	"github.com/ferula-io/ferula/internal/nesting"
)

// Shape is what an expression says about cutting and keeping its answers.
type Shape struct {
	// Whole tells that the answer at a step depends on the whole range, through
	// @ start(), @ end(), or the functions of these names and range(): it must be asked for in one piece.
	Whole bool
	// LatestMS is the latest moment that an answer reads whatever its step, by @:
	// math.MinInt64 where there is none. What has not settled by then must not be
	// kept.
	LatestMS int64
	// AheadMS is how far after its own step an answer reads, by negative offsets.
	AheadMS int64
}

// ShapeOf looks at an expression. ok is false where it cannot be parsed, which
// the downstream will tell in its own words.
func ShapeOf(p parser.Parser, query string) (shape Shape, ok bool) {
	if nesting.Check(query, nesting.LevelsMax) != nil {
		return Shape{}, false
	}
	expr, err := p.ParseExpr(query)
	if err != nil {
		return Shape{}, false
	}
	shape = Shape{LatestMS: math.MinInt64}
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		shape.look(node)
		return nil
	})
	return shape, true
}

func (s *Shape) look(node parser.Node) {
	switch n := node.(type) {
	case *parser.VectorSelector:
		s.at(n.Timestamp, n.StartOrEnd)
		s.offset(n.OriginalOffset, n.OriginalOffsetExpr)
	case *parser.MatrixSelector:
		s.duration(n.RangeExpr)
	case *parser.SubqueryExpr:
		s.at(n.Timestamp, n.StartOrEnd)
		s.offset(n.OriginalOffset, n.OriginalOffsetExpr)
		s.duration(n.RangeExpr)
		s.duration(n.StepExpr)
	case *parser.Call:
		switch n.Func.Name {
		case "start", "end", "range": // functions that answer the query's own bounds
			s.Whole = true
		case "sort", "sort_desc", "sort_by_label", "sort_by_label_desc":
			// They do nothing over a range, and say so; over a part of one step they
			// would do something and say nothing.
			s.Whole = true
		}
	}
}

func (s *Shape) at(timestampMS *int64, startOrEnd parser.ItemType) {
	if startOrEnd != 0 {
		s.Whole = true
	}
	if timestampMS != nil {
		s.LatestMS = max(s.LatestMS, *timestampMS)
	}
}

// offset counts negative offsets, which add up through subqueries.
func (s *Shape) offset(offset time.Duration, expr *parser.DurationExpr) {
	if offset < 0 {
		s.AheadMS += -offset.Milliseconds()
	}
	if expr != nil {
		// Only an evaluation knows its value.
		s.AheadMS = math.MaxInt64 / 4
		s.duration(expr)
	}
}

// duration looks for range() in an expression in place of a duration.
func (s *Shape) duration(expr parser.Expr) {
	switch n := expr.(type) {
	case *parser.DurationExpr:
		if n == nil {
			return
		}
		if n.Op == parser.RANGE {
			s.Whole = true
		}
		s.duration(n.LHS)
		s.duration(n.RHS)
	default:
	}
}
