// Package nesting tells queries that are too deep to be parsed.
//
// A query's text comes in; out goes an error if its syntax tree would have more
// levels than a caller bears. Parsing recurses and takes time by the square of
// the levels: ten thousand cost seconds that no timeout ends, and half a megabyte
// of `abs(abs(...` overflows the stack, which ends the process and not only the
// query. So whoever parses what strangers send asks here first. Nothing is built
// here: tokens are counted.
package nesting

import (
	"fmt"

	"github.com/prometheus/prometheus/promql/parser"
)

// LevelsMax is how many levels a query may have: more than people write, and few
// enough to be parsed at once.
const LevelsMax = 5_000

// Check refuses a query that would be a tree of more than levelsMax
// levels. It counts tokens, so nothing is built yet: each operator puts one of
// its sides a level deeper, and so does each bracket. What is no query at all is
// left to the parser.
func Check(query string, levelsMax int) error {
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
