package columns

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/annotations"
)

// quantileNode is the aggregation quantile.
type quantileNode struct {
	expr         *parser.AggregateExpr
	child, param node
}

// quantileGroup has the values of all series of a group.
type quantileGroup struct {
	metric labels.Labels
	rows   []row  // of the group's series
	drop   bitmap // steps at which a series of the group has row.dropName; nil: none
}

func (n *quantileNode) eval(ev *evaluation, sink func(*row) error) error {
	before := ev.acct.current
	p, err := ev.param(n.param, n.expr.Param)
	if err != nil {
		return err
	}
	groups := newGrouping(n.expr)
	var all []*quantileGroup
	err = n.child.eval(ev, func(r *row) error {
		if r.dropHistograms() {
			ev.warnings.Add(annotations.NewHistogramIgnoredInAggregationInfo("quantile", n.expr.Expr.PositionRange()))
		}
		i, fresh := groups.of(r.metric)
		if fresh {
			all = append(all, &quantileGroup{metric: groups.labels(r.metric)})
		}
		if err := ev.hold(ev.steps); err != nil {
			return err
		}
		all[i].drop = addDrop(all[i].drop, r)
		all[i].rows = append(all[i].rows, r.clone())
		return nil
	})
	if err != nil {
		return err
	}
	p.warnQuantile(ev, n.expr)
	ev.acct.current = before
	out, total := newRow(ev.steps), 0
	var values []float64
	for _, g := range all {
		out.metric = g.metric
		out.has.clear()
		for step := range ev.steps {
			if err := contextError(ev.ctx); err != nil {
				return err
			}
			values = values[:0]
			for i := range g.rows {
				if g.rows[i].has.get(step) {
					values = append(values, g.rows[i].values[step])
				}
			}
			if len(values) > 0 {
				out.values[step] = quantile(p.values[step], values)
				out.has.set(step)
			}
		}
		g.rows = nil
		out.dropName = dropLast(g.drop, out.has)
		if out.has.empty() {
			continue
		}
		total += out.has.count()
		if err := sink(&out); err != nil {
			return err
		}
	}
	return ev.acct.add(total)
}

// quantile returns the quantile q of values, which it sorts.
func quantile(q float64, values []float64) float64 {
	switch {
	case math.IsNaN(q):
		return math.NaN()
	case q < 0:
		return math.Inf(-1)
	case q > 1:
		return math.Inf(1)
	}
	sortValues(values)
	n := float64(len(values))
	rank := q * (n - 1)
	lower := math.Max(0, math.Floor(rank))
	upper := math.Min(n-1, lower+1)
	weight := rank - math.Floor(rank)
	return values[int(lower)]*(1-weight) + values[int(upper)]*weight
}

// sortValues sorts values, NaN first, in the same order as Prometheus. slices.Sort is faster, but may order 0 and -0 in
// another way, so it is used only if there is no zero and no NaN.
func sortValues(values []float64) {
	for _, v := range values {
		if v != v || v == 0 {
			sort.Sort(byValue(values))
			return
		}
	}
	slices.Sort(values)
}

type byValue []float64

func (b byValue) Len() int           { return len(b) }
func (b byValue) Swap(i, j int)      { b[i], b[j] = b[j], b[i] }
func (b byValue) Less(i, j int) bool { return math.IsNaN(b[i]) || b[i] < b[j] }

// The parameter of topk, bottomk and limitk must be between leastInt and greatestInt, exclusive. These are the
// limits of Prometheus: the least int64, and the greatest float64 that can be converted to int64.
const (
	greatestInt = 9223372036854774784
	leastInt    = -9223372036854775808
)

// param is the parameter of an aggregation at each step.
type param struct {
	values   []float64
	min, max float64 // of values
	nan      bool    // one of the values is NaN
}

// param evaluates the parameter of an aggregation.
func (ev *evaluation) param(n node, e parser.Expr) (*param, error) {
	values, err := ev.scalar(n)
	if err != nil {
		return nil, err
	}
	p := &param{values: values, min: math.MaxFloat64, max: -math.MaxFloat64}
	if _, ok := e.(*parser.NumberLiteral); ok {
		p.min, p.max, p.nan = values[0], values[0], math.IsNaN(values[0])
		return p, nil
	}
	for _, v := range values {
		p.min, p.max = math.Min(p.min, v), math.Max(p.max, v)
		p.nan = p.nan || math.IsNaN(v)
	}
	return p, nil
}

// checkCount returns Prometheus' error for a parameter that is no valid number of series.
func (p *param) checkCount() error {
	switch {
	case p.nan:
		return errors.New("Parameter value is NaN") //nolint:staticcheck // Prometheus' text
	case p.min <= leastInt:
		return fmt.Errorf("Scalar value %v underflows int64", p.min) //nolint:staticcheck // Prometheus' text
	case p.max >= greatestInt:
		return fmt.Errorf("Scalar value %v overflows int64", p.max) //nolint:staticcheck // Prometheus' text
	}
	return nil
}

// checkRatio returns Prometheus' error for a parameter that is no valid ratio, and warns of ratios out of range.
func (p *param) checkRatio(ev *evaluation, e *parser.AggregateExpr) error {
	if p.nan {
		return errors.New("Ratio value is NaN") //nolint:staticcheck // Prometheus' text
	}
	if p.max > 1 {
		ev.warnings.Add(annotations.NewInvalidRatioWarning(p.max, 1, e.Param.PositionRange()))
	}
	if p.min < -1 {
		ev.warnings.Add(annotations.NewInvalidRatioWarning(p.min, -1, e.Param.PositionRange()))
	}
	return nil
}

// warnQuantile warns of quantiles that are out of range.
func (p *param) warnQuantile(ev *evaluation, e *parser.AggregateExpr) {
	pos := e.Param.PositionRange()
	if p.nan {
		ev.warnings.Add(annotations.NewInvalidQuantileWarning(math.NaN(), pos))
	}
	if p.max > 1 {
		ev.warnings.Add(annotations.NewInvalidQuantileWarning(p.max, pos))
	}
	if p.min < 0 {
		ev.warnings.Add(annotations.NewInvalidQuantileWarning(p.min, pos))
	}
}
