package columns

import (
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
)

// Selection is what one selector of a query reads. The times are inclusive, in ms.
type Selection struct {
	StartMS, EndMS int64
	Matchers       []*labels.Matcher
}

// SelectionsOf returns what the selectors of a query of any engine read. The query must not be running. The series that
// info() adds are not included.
func SelectionsOf(q promql.Query) (all []Selection) {
	stmt, ok := q.Statement().(*parser.EvalStmt)
	if !ok {
		return nil
	}
	var window time.Duration // range of the last range selector seen
	parser.Inspect(stmt.Expr, func(n parser.Node, path []parser.Node) error {
		switch n := n.(type) {
		case *parser.MatrixSelector:
			window = n.Range
		case *parser.VectorSelector:
			start, end := selectorRange(stmt, n, path, window)
			all, window = append(all, Selection{start, end, n.LabelMatchers}), 0
		}
		return nil
	})
	return all
}
