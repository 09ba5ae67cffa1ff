// Package precheck refuses what would cost too much to parse or decode, before it is: queries that are nested too
// deeply or too long, and messages with too many elements.
package precheck

import (
	"fmt"

	"github.com/prometheus/prometheus/promql/parser"
)

// LevelsMax is the maximum of levels of a query: more than users write, and few enough to
// be parsed without a noticeable delay.
const LevelsMax = 5_000

const (
	// tokensMax is the limit of tokens of a query. A parsed query takes about 700 bytes for each token.
	tokensMax = 300_000
	// workMax limits tokens times levels: the engine prepares every selector together with all
	// expressions around it. A chain of 4,800 selectors such as x{a="b",c="d"} is within the limit.
	workMax = 1 << 28
)

// Query returns an error if the syntax tree of query would have more than levelsMax levels, or so many
// nodes that parsing takes seconds or much memory. The length of strings does not matter.
//
// The parser recurses and its time grows with the square of the levels: ten thousand levels take seconds that no
// timeout interrupts, and half a megabyte of `abs(abs(...` overflows the stack, which ends the process and not only the
// query. Code that parses queries of clients must call Query first.
//
// Query builds no tree. It counts an upper bound of the levels from the tokens. An expression has one level for each of
// its operators, in addition to the levels of its deepest pair of brackets. A pair of brackets has one level more than
// the expression inside. For example, `b - c` has 1 level, so `(b - c)` has 2 and `a + (b - c)` has 3. The parser
// reports syntax errors.
func Query(query string, levelsMax int) error {
	if len(query) <= levelsMax {
		return nil // a level takes at least one byte
	}
	var (
		lexer = parser.Lex(query)
		item  parser.Item
		open  = make([]level, 1, 16)
	)
	for tokens := 1; ; tokens++ {
		lexer.NextItem(&item)
		if tokens > tokensMax {
			return fmt.Errorf("the query has more than %d tokens", tokensMax)
		}
		top := &open[len(open)-1]
		switch {
		case item.Typ == parser.EOF || item.Typ == parser.ERROR:
			for len(open) > 1 {
				open = closeLevel(open)
			}
			depth := open[0].depth()
			if depth > levelsMax {
				return fmt.Errorf("the query is nested deeper than %d levels", levelsMax)
			}
			if depth > workMax/tokens {
				return fmt.Errorf("the query is nested deeper than %d levels, which is the limit for %d tokens",
					workMax/tokens, tokens)
			}
			return nil
		case item.Typ == parser.LEFT_PAREN || item.Typ == parser.LEFT_BRACE:
			open = append(open, level{})
		case item.Typ == parser.LEFT_BRACKET: // the range or subquery is a level above the expression before it
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

// level counts the levels of one argument, whose tokens begin after an opening bracket or a comma. operators is the
// number of operators, which add a level each. within is the number of levels of the deepest brackets in the argument.
// deepest is the number of levels of the deepest argument before this one within the same brackets.
type level struct{ operators, within, deepest int }

// depth returns the maximum of levels.
func (l level) depth() int { return max(l.deepest, l.operators+l.within) }

func closeLevel(open []level) []level {
	depth := open[len(open)-1].depth() + 1
	open = open[:len(open)-1]
	top := &open[len(open)-1]
	top.within = max(top.within, depth)
	return open
}
