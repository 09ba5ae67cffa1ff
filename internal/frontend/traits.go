package frontend

import (
	"math"
	"time"

	"github.com/prometheus/prometheus/promql/parser"

	"github.com/ferula-io/ferula/internal/precheck"
)

// exprTraits are the properties of an expression that limit how its results may be split and
// cached.
type exprTraits struct {
	// Unsplittable means that the value at a step depends on the whole range of the query,
	// through @ start(), @ end(), or the functions start(), end(), range() and step().
	Unsplittable bool
	// LatestMS is the latest timestamp of an @ modifier, math.MinInt64 without any. The value at
	// every step depends on samples at that timestamp.
	LatestMS int64
	// LookAheadMS is how far after a step, or after the timestamp of an @ modifier, the expression
	// reads samples because of negative offsets.
	LookAheadMS int64
	// Smoothed means that a selector is smoothed: it reads the lookback delta ahead, in
	// addition to LookAheadMS.
	Smoothed bool
}

// lookbackUnknown is the assumed lookback delta of a request without lookback_delta. The actual one is a flag of the
// downstream, 5 min by default. If the assumed one is longer, responses of smoothed queries are cached later than
// possible, but never wrong.
const lookbackUnknown = time.Hour

// aheadMax is the LookAheadMS of an expression whose offset is not known before it is
// evaluated.
const aheadMax = math.MaxInt64 / 4

// LastImmutableStep returns the last time, in ms, at which the expression's value can no longer change, given that
// samples up to immutableMS cannot change. It returns math.MinInt64 if the value may change at every step. lookback is
// the request's lookback_delta, 0 if it has none.
func (s exprTraits) LastImmutableStep(immutableMS int64, lookback time.Duration) int64 {
	ahead := s.LookAheadMS
	if s.Smoothed {
		if lookback <= 0 {
			lookback = lookbackUnknown
		}
		ahead += lookback.Milliseconds()
	}
	until := immutableMS - ahead
	if s.LatestMS > until {
		return math.MinInt64
	}
	return until
}

// traitsOf returns the traits of an expression. ok is false if it cannot be parsed; the
// query must then be passed through, and the downstream returns the error.
func traitsOf(p parser.Parser, query string) (traits exprTraits, ok bool) {
	if precheck.Query(query, precheck.LevelsMax) != nil {
		return exprTraits{}, false
	}
	expr, err := p.ParseExpr(query)
	if err != nil {
		return exprTraits{}, false
	}
	traits = exprTraits{LatestMS: math.MinInt64}
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		traits.look(node)
		return nil
	})
	return traits, true
}

func (s *exprTraits) look(node parser.Node) {
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
		case "start", "end", "range": // these return the bounds of the query
			s.Unsplittable = true
		case "step": // step() is 0 in a query of a single step, and a part may have a single step
			s.Unsplittable = true
		case "sort", "sort_desc", "sort_by_label", "sort_by_label_desc":
			// They do not sort range queries and return a warning. Over a part of a single
			// step, which is evaluated like an instant query, they would sort without a warning.
			s.Unsplittable = true
		}
	}
}

func (s *exprTraits) at(timestampMS *int64, startOrEnd parser.ItemType) {
	if startOrEnd != 0 {
		s.Unsplittable = true
	}
	if timestampMS != nil {
		s.LatestMS = max(s.LatestMS, *timestampMS)
	}
}

// offset adds a negative offset to LookAheadMS. Negative offsets of nested subqueries add up. All
// other negative offsets are added, too: the sum is then larger than needed, so a step is cached
// later than possible, but never too early.
func (s *exprTraits) offset(offset time.Duration, expr *parser.DurationExpr) {
	if offset < 0 {
		s.LookAheadMS = min(s.LookAheadMS+(-offset+time.Millisecond-1).Milliseconds(), aheadMax)
	}
	if expr != nil {
		// The value of this offset is known only to an evaluation.
		s.LookAheadMS = aheadMax
		s.duration(expr)
	}
}

// duration searches a duration expression for range().
func (s *exprTraits) duration(expr parser.Expr) {
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
