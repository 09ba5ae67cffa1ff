package columns

import (
	"errors"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/annotations"
)

// histogramGroup is the sum (sum) or the average (avg) of the histograms of a group at one step.
type histogramGroup struct {
	// value is the sum, and c its Kahan compensation. Once the sum overflows, avg sets incremental: then mean is the
	// incremental mean, and c its compensation.
	value, mean, c *histogram.FloatHistogram
	count          float64 // samples of the group, floats included
	// incompatible: histograms could not be added, so the step has no result.
	incremental, incompatible bool
	reset, notReset           bool // counter reset hints that were seen
	float                     bool // the group has floats, too
}

// noteHint records the counter reset hint of a histogram.
func (g *histogramGroup) noteHint(h *histogram.FloatHistogram) {
	switch h.CounterResetHint {
	case histogram.CounterReset:
		g.reset = true
	case histogram.NotCounterReset:
		g.notReset = true
	}
}

// foldHistograms adds the histograms of a row to its group and removes them from the row (sum, avg). For count and
// group it does nothing, because they count histograms like floats. For all other operators, which ignore
// histograms, it removes them from the row with an annotation.
func (a *aggregateNode) foldHistograms(ev *evaluation, g *group, r *row) {
	op := a.expr.Op
	if op == parser.COUNT || op == parser.GROUP {
		return
	}
	if op != parser.SUM && op != parser.AVG {
		if r.dropHistograms() {
			ev.warnings.Add(annotations.NewHistogramIgnoredInAggregationInfo(op.String(), a.expr.Expr.PositionRange()))
		}
		return
	}
	if g.hists == nil {
		g.hists, g.groups = make([]*histogram.FloatHistogram, ev.steps), make([]*histogramGroup, ev.steps)
	}
	for i := range ev.steps {
		if !r.has.get(i) {
			continue
		}
		h, at := r.histogram(i), g.groups[i]
		switch {
		case at != nil && at.incompatible:
			r.has[i>>6] &^= 1 << (i & 63)
		case h == nil:
			if at != nil {
				at.float = true
				at.count++
			}
		default:
			if at == nil {
				at = &histogramGroup{float: g.has.get(i)}
				g.groups[i] = at
			}
			a.foldHistogram(ev, at, r, h)
			r.has[i>>6] &^= 1 << (i & 63)
		}
	}
}

func (a *aggregateNode) foldHistogram(ev *evaluation, g *histogramGroup, r *row, h *histogram.FloatHistogram) {
	pos := a.expr.Expr.PositionRange()
	g.count++
	if g.float && g.value == nil {
		return // the step has no result, because the group has floats, too
	}
	g.noteHint(h)
	if g.value == nil {
		g.value = h.Copy()
		return
	}
	reconciled, err := g.add(h, a.expr.Op == parser.AVG)
	if err != nil {
		if errors.Is(err, histogram.ErrHistogramsIncompatibleSchema) {
			ev.warnings.Add(annotations.NewMixedExponentialCustomHistogramsWarning(metricName(r.metric), pos))
		}
		g.incompatible = true
	}
	if reconciled && (err == nil || a.expr.Op == parser.SUM) {
		ev.warnings.Add(annotations.NewMismatchedCustomBucketsHistogramsInfo(pos, annotations.HistogramAgg))
	}
}

// add adds a histogram to the sum, or to the mean once the sum has overflowed.
func (g *histogramGroup) add(h *histogram.FloatHistogram, average bool) (reconciled bool, err error) {
	if !average {
		g.c, _, reconciled, err = g.value.KahanAdd(h, g.c)
		return reconciled, err
	}
	if !g.incremental {
		v, c := g.value.Copy(), (*histogram.FloatHistogram)(nil)
		if g.c != nil {
			c = g.c.Copy()
		}
		if c, _, reconciled, err = v.KahanAdd(h, c); err != nil {
			return reconciled, err
		}
		if !v.HasOverflow() {
			g.value, g.c = v, c
			return reconciled, nil
		}
		g.incremental = true
		g.mean = g.value.Copy().Div(g.count - 1)
		if g.c != nil {
			g.c.Div(g.count - 1)
		}
	}
	q := (g.count - 1) / g.count
	if g.c != nil {
		g.c.Mul(q)
	}
	also := reconciled
	g.c, _, reconciled, err = g.mean.Mul(q).KahanAdd(h.Copy().Div(g.count), g.c)
	return reconciled || also, err
}

// finishHistograms sets the results of the steps that have histograms. A step that has floats, too,
// gets none.
func (a *aggregateNode) finishHistograms(ev *evaluation, g *group) {
	pos := a.expr.Expr.PositionRange()
	for i, at := range g.groups {
		switch {
		case at == nil:
			continue
		case at.float || g.has.get(i):
			ev.warnings.Add(annotations.NewMixedFloatsHistogramsAggWarning(pos))
			g.has[i>>6] &^= 1 << (i & 63)
			continue
		case at.incompatible:
			continue
		}
		g.setHistogram(i, at.finish(a.expr.Op == parser.AVG))
		if at.reset && at.notReset {
			ev.warnings.Add(annotations.NewHistogramCounterResetCollisionWarning(pos, annotations.HistogramAgg))
		}
	}
}

func (g *histogramGroup) finish(average bool) *histogram.FloatHistogram {
	switch {
	case !average && g.c != nil:
		g.value, _, _, _ = g.value.Add(g.c)
	case average && g.incremental:
		if g.value = g.mean; g.c != nil {
			g.value, _, _, _ = g.mean.Add(g.c)
		}
	case average:
		g.value.Div(g.count)
		if g.c != nil {
			g.value, _, _, _ = g.value.Add(g.c.Div(g.count))
		}
	}
	return g.value.Compact(0)
}
