package api

import (
	"math"
	"net/http"

	"github.com/prometheus/prometheus/promql/parser"

	"github.com/ferula-io/ferula/internal/nesting"
)

// Formatting converts the expression of each level to a string to check whether it fits
// into a line, and every conversion copies the strings of all levels below. Its time grows
// with the square of the levels and with the length. prettyNestingMax is the maximum of
// levels for a query of up to prettyBytes; it is lower for longer queries.
const (
	prettyNestingMax = 200
	prettyBytes      = 8 << 10
)

// prettyLevels returns the maximum of levels for formatting a query of n bytes.
func prettyLevels(n int) int {
	if n <= prettyBytes {
		return prettyNestingMax
	}
	return max(2, int(prettyNestingMax*math.Sqrt(float64(prettyBytes)/float64(n))))
}

// parseExpr parses `query`. Nesting deeper than levelsMax is an error.
func (a *API) parseExpr(r *http.Request, levelsMax int) (parser.Expr, error) {
	query := r.FormValue("query")
	if err := nesting.Check(query, levelsMax); err != nil {
		return nil, err
	}
	return a.opts.Parser.ParseExpr(query)
}
