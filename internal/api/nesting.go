package api

import (
	"net/http"

	"github.com/prometheus/prometheus/promql/parser"

	"github.com/ferula-io/ferula/internal/nesting"
)

// prettyNestingMax is nesting.LevelsMax for formatting, whose time grows by the
// cube: it is a second already here.
const prettyNestingMax = 1_000

// parseExpr parses `query` unless it is deeper than levelsMax.
func (a *API) parseExpr(r *http.Request, levelsMax int) (parser.Expr, error) {
	query := r.FormValue("query")
	if err := nesting.Check(query, levelsMax); err != nil {
		return nil, err
	}
	return a.opts.Parser.ParseExpr(query)
}
