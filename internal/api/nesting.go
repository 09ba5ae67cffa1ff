package api

import (
	"math"
	"net/http"

	"github.com/prometheus/prometheus/promql/parser"

	"github.com/ferula-io/ferula/internal/nesting"
)

// Formatting spells each level's text to see whether it fits into a line, and spelling
// copies each level's text: it takes time by the square of the levels and by the
// length. prettyNestingMax is how many levels a text of up to prettyBytes may have;
// longer texts may have fewer.
const (
	prettyNestingMax = 200
	prettyBytes      = 8 << 10
)

// prettyLevels is how many levels a query of n bytes may have to be formatted.
func prettyLevels(n int) int {
	if n <= prettyBytes {
		return prettyNestingMax
	}
	return max(2, int(prettyNestingMax*math.Sqrt(float64(prettyBytes)/float64(n))))
}

// parseExpr parses `query` unless it is deeper than levelsMax.
func (a *API) parseExpr(r *http.Request, levelsMax int) (parser.Expr, error) {
	query := r.FormValue("query")
	if err := nesting.Check(query, levelsMax); err != nil {
		return nil, err
	}
	return a.opts.Parser.ParseExpr(query)
}
