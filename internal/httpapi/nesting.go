package httpapi

import (
	"math"
	"net/http"

	"github.com/prometheus/prometheus/promql/parser"

	"github.com/ferula-io/ferula/internal/precheck"
)

// Formatting converts the expression of each level to a string, to check whether it fits
// into a line. Every conversion copies the strings of all levels below. So the time of
// formatting grows with the length of the query and with the square of its levels.
// prettyNestingMax is the maximum number of levels of a query of up to prettyBytes; a
// longer query may have fewer levels. The same limits apply to the syntax tree of a query:
// Prometheus' JSON encoder has a copy of everything below each level in memory.
const (
	prettyNestingMax = 200
	prettyBytes      = 8 << 10
)

// prettyLevels returns the maximum of levels for formatting a query of n bytes. For longer queries,
// n times the square of the levels stays constant, and so does the time of formatting.
func prettyLevels(n int) int {
	if n <= prettyBytes {
		return prettyNestingMax
	}
	return max(2, int(prettyNestingMax*math.Sqrt(float64(prettyBytes)/float64(n))))
}

// parseExpr parses `query`. Nesting deeper than levelsMax is an error.
func (a *API) parseExpr(r *http.Request, levelsMax int) (parser.Expr, error) {
	query := r.FormValue("query")
	if err := precheck.Query(query, levelsMax); err != nil {
		return nil, err
	}
	return a.opts.Parser.ParseExpr(query)
}
