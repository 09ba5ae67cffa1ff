package promql

import (
	"context"
	"fmt"
	"regexp/syntax"
	"strings"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"

	"github.com/ferula-io/ferula/internal/hint"
)

// growthMax limits the factor by which nested calls of label_replace and label_join may make a label value longer.
// Factors of nested calls multiply: thirty calls that double a value of one byte make a gigabyte.
const growthMax = 1 << 16

const (
	// storedValue is the assumed length of stored label values.
	storedValue = 1 << 10
	// valueMax is the longest value that label_replace and label_join make.
	valueMax = 1 << 20
	// matchMax limits the steps of a match in label_replace: the number of instructions of the regular expression times
	// the length of the label value. No timeout interrupts a match.
	matchMax = 1 << 27
)

// subqueryStepsMin is the least limit of the steps of all subqueries of a query. The limit is MaxSamples if that is
// greater.
const subqueryStepsMin = 1_000_000

// NewInstantQuery implements promql.QueryEngine.
func (e *Engine) NewInstantQuery(ctx context.Context, from storage.Queryable, opts promql.QueryOpts, qs string,
	ts time.Time) (promql.Query, error) {
	q, err := e.Engine.NewInstantQuery(ctx, from, opts, qs, ts)
	return e.bounded(q, err)
}

// NewRangeQuery implements promql.QueryEngine.
func (e *Engine) NewRangeQuery(ctx context.Context, from storage.Queryable, opts promql.QueryOpts, qs string, start,
	end time.Time, interval time.Duration) (promql.Query, error) {
	q, err := e.Engine.NewRangeQuery(ctx, from, opts, qs, start, end, interval)
	return e.bounded(q, err)
}

// bounded returns q, or an error if the evaluation of q could take much memory that MaxSamples does not count, or
// much time in a match that no timeout interrupts.
func (e *Engine) bounded(q promql.Query, err error) (promql.Query, error) {
	if err != nil {
		return nil, err
	}
	if stmt, ok := q.Statement().(*parser.EvalStmt); ok {
		c := complexity{stepsMax: int64(max(subqueryStepsMin, e.opts.MaxSamples)), step: e.SubqueryStep, flags: e.flags}
		err := c.check(stmt.Expr, stmt.End.Sub(stmt.Start).Milliseconds(), 1)
		if err == nil {
			_, err = longestValue(stmt.Expr)
		}
		if err != nil {
			q.Close()
			return nil, err
		}
	}
	if e.panicked != nil {
		q = watched{q, e.panicked}
	}
	return q, nil
}

// complexity adds up the steps of all subqueries of a query. A step takes memory even if it has no
// samples.
type complexity struct {
	steps, stepsMax int64 // of all subqueries
	step            func(rangeMS int64) int64
	flags           hint.Flags
}

// check returns an error if an expression exceeds stepsMax or growthMax. span is the duration in ms over which the
// expression is evaluated; 0 means one step. growth is the factor by which the calls around the expression may make
// a label value longer.
func (c *complexity) check(n parser.Node, span int64, growth int) error {
	switch n := n.(type) {
	case *parser.StepInvariantExpr:
		span = 0
	case *parser.SubqueryExpr:
		if n.Timestamp != nil {
			span = 0
		}
		length, step := n.Range.Milliseconds(), n.Step.Milliseconds()
		if step == 0 {
			step = max(1, c.step(length))
		}
		span += length
		if c.steps += span/step + 1; c.steps > c.stepsMax {
			return fmt.Errorf("the subqueries have more than %d steps together%s: use a longer step than %s or a shorter range than %s",
				c.stepsMax, c.flags.Of("MaxSamples"), time.Duration(step)*time.Millisecond, n.Range)
		}
	case *parser.Call:
		if growth *= labelGrowth(n); growth > growthMax {
			return fmt.Errorf("%s and the calls around it may make a label value more than %d times longer",
				n.Func.Name, growthMax)
		}
	}
	for child := range parser.ChildrenIter(n) {
		if err := c.check(child, span, growth); err != nil {
			return err
		}
	}
	return nil
}

// longestValue returns an estimate of the greatest length in bytes of the label values in the result of an
// expression. It returns an error if a label_replace in the expression could exceed matchMax.
func longestValue(n parser.Node) (length int, err error) {
	length = storedValue
	for child := range parser.ChildrenIter(n) {
		ofChild, err := longestValue(child)
		if err != nil {
			return 0, err
		}
		length = max(length, ofChild)
	}
	call, ok := n.(*parser.Call)
	if !ok || len(call.Args) < 3 {
		return length, nil
	}
	literal := func(i int) string {
		if text, ok := unwrap(call.Args[i]).(*parser.StringLiteral); ok {
			return text.Val
		}
		return ""
	}
	switch name := call.Func.Name; {
	case name == "label_join":
		return min(max(length, (len(call.Args)-3)*(length+len(literal(2)))), valueMax), nil
	case name == "label_replace" && len(call.Args) == 5:
		if size := programSize(literal(4)); size > matchMax/length {
			return 0, fmt.Errorf("the regular expression of label_replace() has %d instructions, too many for label values of up to %d bytes", size, length)
		}
		return min(max(length, len(literal(2))+strings.Count(literal(2), "$")*length), valueMax), nil
	}
	return length, nil
}

// programSize returns the number of instructions of a regular expression; 0 if it is not valid.
func programSize(expression string) int {
	parsed, err := syntax.Parse("^(?s:"+expression+")$", syntax.Perl)
	if err != nil {
		return 0
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return 0
	}
	return len(program.Inst)
}

// labelGrowth returns how many times longer a call may make a label value. It returns at most growthMax+1, so that
// products do not overflow.
func labelGrowth(call *parser.Call) int {
	n := 1
	switch call.Func.Name {
	case "label_replace":
		if len(call.Args) > 2 {
			if replacement, ok := unwrap(call.Args[2]).(*parser.StringLiteral); ok {
				n = strings.Count(replacement.Val, "$")
			}
		}
	case "label_join":
		n = len(call.Args) - 3
	}
	return min(max(1, n), growthMax+1)
}

func unwrap(e parser.Expr) parser.Expr {
	for {
		switch inner := e.(type) {
		case *parser.ParenExpr:
			e = inner.Expr
		case *parser.StepInvariantExpr:
			e = inner.Expr
		default:
			return e
		}
	}
}
