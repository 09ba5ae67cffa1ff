package api

import (
	"fmt"
	"net/http"

	"github.com/prometheus/prometheus/promql/parser"
)

// nestingMax is how many levels a query's syntax tree may have. Parsing and
// evaluating recurse through them, and parsing takes time by their square: ten
// thousand levels cost seconds that no timeout ends, and half a megabyte of
// `abs(abs(...` overflows the stack, which ends the process and not only the
// query.
const nestingMax = 5_000

// prettyNestingMax is nestingMax for formatting, whose time grows by the cube:
// it is a second already here.
const prettyNestingMax = 1_000

// parseExpr parses `query` unless it is deeper than levelsMax.
func (a *API) parseExpr(r *http.Request, levelsMax int) (parser.Expr, error) {
	query := r.FormValue("query")
	if err := checkNesting(query, levelsMax); err != nil {
		return nil, err
	}
	return a.opts.Parser.ParseExpr(query)
}

// checkNesting refuses a query that would be a tree of more than levelsMax
// levels. It counts tokens, so nothing is built yet: each operator puts one of
// its sides a level deeper, and so does each bracket. What is no query at all is
// left to the parser.
func checkNesting(query string, levelsMax int) error {
	if len(query) <= levelsMax {
		return nil // a level takes a byte at least
	}
	var (
		lexer = parser.Lex(query)
		item  parser.Item
		open  = make([]level, 1, 16)
	)
	for {
		lexer.NextItem(&item)
		top := &open[len(open)-1]
		switch {
		case item.Typ == parser.EOF || item.Typ == parser.ERROR:
			for len(open) > 1 {
				open = closeLevel(open)
			}
			if open[0].depth() > levelsMax {
				return fmt.Errorf("the query is nested deeper than %d levels", levelsMax)
			}
			return nil
		case item.Typ == parser.LEFT_PAREN || item.Typ == parser.LEFT_BRACE:
			open = append(open, level{})
		case item.Typ == parser.LEFT_BRACKET: // stands behind what it makes deeper
			top.operators++
			open = append(open, level{})
		case item.Typ == parser.RIGHT_PAREN || item.Typ == parser.RIGHT_BRACE || item.Typ == parser.RIGHT_BRACKET:
			if len(open) > 1 {
				open = closeLevel(open)
			}
		case item.Typ == parser.COMMA:
			*top = level{deepest: top.depth()}
		case item.Typ.IsOperator():
			top.operators++
		}
	}
}

// level is what has been met since a bracket was opened, or since its last comma.
type level struct{ operators, within, deepest int }

// depth is how many levels it makes at most.
func (l level) depth() int { return max(l.deepest, l.operators+l.within) }

func closeLevel(open []level) []level {
	depth := open[len(open)-1].depth() + 1
	open = open[:len(open)-1]
	top := &open[len(open)-1]
	top.within = max(top.within, depth)
	return open
}
