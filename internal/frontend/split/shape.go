package split

import (
	"math"
	"time"

	"github.com/prometheus/prometheus/promql/parser"

	"github.com/ferula-io/ferula/internal/nesting"
)

// Shape is what an expression says about cutting and keeping its answers.
type Traits struct {
	// Whole tells that the answer at a step depends on the whole range, through
	// @ start(), @ end(), or the functions of these names and range(): it must be asked for in one piece.
	Unsplittable bool
	// LatestMS is the latest time that an expression names by @, whatever its step:
	// math.MinInt64 where there is none.
	LatestMS int64
	// AheadMS is how far after its own step, or after a time named by @, an
	// expression reads, by negative offsets.
	LookAheadMS int64
	// Smoothed selectors read as far ahead again as the lookback goes back.
	Smoothed bool
}

// lookbackUnknown is what is assumed of a downstream's lookback where the request
// does not name one. It is a setting of the downstream, 5 min if nobody set it;
// more only means that the response to a smoothed query is cached later.
const lookbackUnknown = time.Hour

// aheadMax stands for an expression that reads who knows how far ahead.
const aheadMax = math.MaxInt64 / 4

// SettledUntil is the last step whose value can no longer change, where data up to
// settledMS cannot; math.MinInt64 where every step may. lookback is what the
// request says of it, 0 where it says nothing.
func (s Traits) LastImmutableStep(settledMS int64, lookback time.Duration) int64 {
	ahead := s.LookAheadMS
	if s.Smoothed {
		if lookback <= 0 {
			lookback = lookbackUnknown
		}
		ahead += lookback.Milliseconds()
	}
	until := settledMS - ahead
	if s.LatestMS > until {
		return math.MinInt64
	}
	return until
}

// ShapeOf looks at an expression. ok is false where it cannot be parsed, which
// the downstream will tell in its own words.
func TraitsOf(p parser.Parser, query string) (shape Traits, ok bool) {
	if nesting.Check(query, nesting.LevelsMax) != nil {
		return Traits{}, false
	}
	expr, err := p.ParseExpr(query)
	if err != nil {
		return Traits{}, false
	}
	shape = Traits{LatestMS: math.MinInt64}
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		shape.look(node)
		return nil
	})
	return shape, true
}

func (s *Traits) look(node parser.Node) {
	switch n := node.(type) {
	case *parser.VectorSelector:
		s.at(n.Timestamp, n.StartOrEnd)
		s.offset(n.OriginalOffset, n.OriginalOffsetExpr)
		s.Smoothed = s.Smoothed || n.Smoothed
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
			s.Unsplittable = true
		case "sort", "sort_desc", "sort_by_label", "sort_by_label_desc":
			// They do nothing over a range, and say so; over a part of one step they
			// would do something and say nothing.
			s.Unsplittable = true
		}
	}
}

func (s *Traits) at(timestampMS *int64, startOrEnd parser.ItemType) {
	if startOrEnd != 0 {
		s.Unsplittable = true
	}
	if timestampMS != nil {
		s.LatestMS = max(s.LatestMS, *timestampMS)
	}
}

// offset counts negative offsets, which add up through subqueries.
func (s *Traits) offset(offset time.Duration, expr *parser.DurationExpr) {
	if offset < 0 {
		s.LookAheadMS = min(s.LookAheadMS+(-offset+time.Millisecond-1).Milliseconds(), aheadMax)
	}
	if expr != nil {
		// Only an evaluation knows its value.
		s.LookAheadMS = aheadMax
		s.duration(expr)
	}
}

// duration looks for range() in an expression in place of a duration.
func (s *Traits) duration(expr parser.Expr) {
	switch n := expr.(type) {
	case *parser.DurationExpr:
		if n == nil {
			return
		}
		if n.Op == parser.RANGE {
			s.Unsplittable = true
		}
		s.duration(n.LHS)
		s.duration(n.RHS)
	default:
	}
}
