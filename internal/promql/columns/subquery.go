package columns

import (
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/annotations"
	"github.com/prometheus/prometheus/util/stats"
)

// subquery is an expression that is evaluated at steps of its own.
type subquery struct {
	expr  *parser.SubqueryExpr
	child node
	step  int64 // ms
	nodes int   // number of nodes of the child's expression
}

// offset returns how many ms before a step the window over the subquery ends.
func (s *subquery) offset(ev *evaluation) int64 {
	offset := s.expr.OriginalOffset.Milliseconds()
	if s.expr.Timestamp != nil {
		offset += ev.start - *s.expr.Timestamp
	}
	return offset
}

// evaluation returns the evaluation of the subquery's steps: the multiples of the subquery's step that are after the
// start of the first window and not after the end of the last window. The last window belongs to the last step of
// the query, which may be before the end of the query: with a step of 30 s from 0 to 100 s the last step is at 90 s.
// A row takes memory for every step, even without samples, so evaluation returns errGiveUp if there are too many steps.
func (s *subquery) evaluation(ev *evaluation) (*evaluation, error) {
	inner := *ev
	offset, length := s.offset(ev), s.expr.Range.Milliseconds()
	inner.interval = s.step
	inner.end = ev.start + int64(ev.steps-1)*ev.interval - offset
	first := ev.start - offset - length
	if inner.start = s.step * (first / s.step); inner.start <= first {
		inner.start += s.step
	}
	inner.steps = 0
	if inner.end >= inner.start {
		inner.steps = int((inner.end-inner.start)/inner.interval) + 1
	}
	if err := ev.hold(inner.steps * 2 * (1 + s.nodes)); err != nil { // estimated: two rows for each node
		return nil, err
	}
	inner.samples = stats.NewChildWithStepTracking(inner.start, max(inner.start, inner.end), inner.interval)
	inner.perStep, inner.repeats, inner.warnings = true, false, annotations.Annotations{}
	return &inner, nil
}

// overSubquery computes the windows over the series of a subquery. Here each series of the subquery is followed by its
// windows. Prometheus evaluates the whole subquery before the first window, so the samples of the windows are
// counted by an account of their own, which is added at the end.
func (w *windowRun) overSubquery(sink func(*row) error) error {
	ev := w.ev
	inner, err := w.subquery.evaluation(ev)
	if err != nil {
		return err
	}
	if inner.start == ev.start && (w.subquery.expr.OriginalOffset != 0 || w.subquery.offset(ev) != 0 &&
		fixedInTime(w.subquery.expr.Expr)) {
		// Prometheus shifts the timestamps of @ modifiers in the subquery
		return errGiveUp("subquery that begins where the query does")
	}
	// If an annotation occurs twice, Prometheus keeps the later position. So the annotations of the subquery are merged
	// first, then the annotations of its windows.
	earlier := ev.warnings
	ev.warnings = annotations.Annotations{}
	defer func() {
		ofWindows := ev.warnings
		ev.warnings = earlier
		ev.warnings.Merge(inner.warnings)
		ev.warnings.Merge(ofWindows)
	}()
	windowAcct := &account{limit: ev.acct.limit}
	w.acct, w.offset = windowAcct, w.subquery.offset(ev)
	saved := ev.acct
	ev.acct = *windowAcct
	if err := w.scalarArgs(); err != nil {
		if inner.steps == 0 {
			return err
		}
		return inner.errorOf(w.subquery.child, err) // Prometheus evaluates the subquery first
	}
	*windowAcct, ev.acct = ev.acct, saved
	it, windows, inputSize := &item{row: newRow(ev.steps)}, w.windows(), 0 // inputSize: samples of the subquery's series
	var points []promql.FPoint
	if inner.steps > 0 {
		err = w.subquery.child.eval(inner, func(in *row) error {
			inputSize += in.size()
			w.inputDrop = in.dropName
			it.reset()
			it.metric = in.metric
			if in.hists != nil {
				return w.histograms(&it.row, promql.NewStorageSeries(inner.seriesOf(in)), sink)
			}
			points = points[:0]
			ts := inner.start
			for i, f := range in.values {
				if in.has.get(i) {
					points = append(points, promql.FPoint{T: ts, F: f})
				}
				ts += inner.interval
			}
			windows.compute(it, decoded{points: points})
			return w.apply(it, sink)
		})
		if err != nil {
			return err
		}
	}
	if inner.repeats {
		return errGiveUp("subquery with series that have the same labels at different times")
	}
	windowAcct.current -= w.held
	ev.acct = inner.acct
	ev.samples.MergeSamplesReadFromSubquery(inner.samples, ev.start, ev.interval, ev.steps,
		w.subquery.expr.OriginalOffset.Milliseconds(), w.rangeMS)
	err = ev.acct.replay(windowAcct)
	ev.acct.current -= inputSize // Prometheus drops the series of the subquery after the last window
	return err
}

// seriesOf converts a row that has histograms to a series of Prometheus' engine. Known counter reset hints become
// unknown, because they refer to the samples of the original series, not to the previous step of the row.
func (ev *evaluation) seriesOf(r *row) promql.Series {
	s, ts := promql.Series{Metric: r.metric}, ev.start
	for i, f := range r.values {
		if r.has.get(i) {
			if h := r.histogram(i); h != nil {
				if h.CounterResetHint == histogram.NotCounterReset || h.CounterResetHint == histogram.CounterReset {
					unknown := *h
					unknown.CounterResetHint = histogram.UnknownCounterReset
					h = &unknown
				}
				s.Histograms = append(s.Histograms, promql.HPoint{T: ts, H: h})
			} else {
				s.Floats = append(s.Floats, promql.FPoint{T: ts, F: f})
			}
		}
		ts += ev.interval
	}
	return s
}

func (c *compiler) subquery(e *parser.SubqueryExpr) (*subquery, bool) {
	c.subqueries++
	child, ok := c.compile(e.Expr)
	c.subqueries--
	if !ok {
		return nil, false
	}
	nodes := 0
	parser.Inspect(e.Expr, func(n parser.Node, _ []parser.Node) error {
		if n != nil {
			nodes++
		}
		return nil
	})
	return &subquery{expr: e, child: child, step: c.subqueryStep(e).Milliseconds(), nodes: nodes}, true
}

func (c *compiler) subqueryStep(e *parser.SubqueryExpr) time.Duration {
	if e.Step != 0 {
		return e.Step
	}
	return time.Duration(c.opts.SubqueryStep(e.Range.Milliseconds())) * time.Millisecond
}
