package columns

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
)

// extend makes the windows of an anchored or smoothed range selector longer, by the samples outside the range that
// the functions may need. Prometheus' functions find the range in such a window themselves.
func (w *windowNode) extend(function string, lookback time.Duration) {
	modifier, safe := "anchored", promql.AnchoredSafeFunctions
	switch {
	case w.vs.Smoothed:
		modifier, safe = "smoothed", promql.SmoothedSafeFunctions
		w.ahead = lookback.Milliseconds()
	case !w.vs.Anchored:
		return
	}
	w.fast, w.rangeMS = nil, w.rangeMS+lookback.Milliseconds()+w.ahead
	if _, ok := safe[function]; !ok {
		w.refused = fmt.Errorf("%s modifier can only be used with: %s - not with %s", modifier,
			strings.Join(slices.Sorted(maps.Keys(safe)), ", "), function)
	}
}

// windowOffset returns how many ms before a step its window ends. Prometheus' functions of extended windows find the
// range by the offset of the selector.
func (w *windowNode) windowOffset(ev *evaluation) int64 {
	offset := w.offset(ev)
	if w.vs.Anchored || w.vs.Smoothed {
		w.vs.Offset = time.Duration(offset) * time.Millisecond
	}
	return offset - w.ahead
}

// smoothedNode is a smoothed instant selector. The value of a step lies on the line between the samples around it.
type smoothedNode struct{ *selector }

func (n smoothedNode) eval(ev *evaluation, sink func(*row) error) error {
	// Prometheus counts the samples of the windows in memory until the end, and no others.
	emit := func(r *row, most, held int) error {
		if err := ev.acct.touch(most); err != nil {
			return err
		}
		if ev.acct.current += held; r.has.empty() {
			return nil
		}
		return sink(r)
	}
	return n.each(ev, perSeries{
		rangeMS: 2 * ev.lookback, offset: n.offset(ev) - ev.lookback,
		compute: func() func(*item, decoded) {
			return func(it *item, of decoded) { n.smooth(ev, it, of.withoutStale().points) }
		},
		apply: func(it *item) error { return emit(&it.row, it.most, it.held) },
		histograms: func(r *row, from storage.Series) error {
			most, held, err := n.smoothHistograms(ev, r, from)
			if err != nil {
				return err
			}
			return emit(r, most, held)
		},
	})
}

// smooth sets the values of the row of an item, and counts the samples of the windows.
func (n smoothedNode) smooth(ev *evaluation, it *item, points []promql.FPoint) {
	from, to, at := 0, 0, ev.start-n.offset(ev)
	for i := range ev.steps {
		from, to = after(points, from, 0, at-ev.lookback), after(points, to, 0, at+ev.lookback)
		it.held = to - from
		it.most = max(it.most, it.held)
		it.setSmoothed(i, points[from:to], at)
		at += ev.interval
	}
}

// setSmoothed sets the value of a step to the value at a time on the line between points, or to the value of the last
// point if all are earlier. It sets none if all points are later.
func (r *row) setSmoothed(step int, points []promql.FPoint, at int64) {
	next := sort.Search(len(points), func(i int) bool { return points[i].T >= at })
	switch {
	case next < len(points) && points[next].T == at:
		r.values[step] = points[next].F
	case next == 0:
		return
	case next < len(points):
		a, b := points[next-1], points[next]
		r.values[step] = a.F + (b.F-a.F)*float64(at-a.T)/float64(b.T-a.T)
	default:
		r.values[step] = points[next-1].F
	}
	r.has.set(step)
}

// smoothHistograms is smooth for a series with histograms.
func (n smoothedNode) smoothHistograms(ev *evaluation, r *row, from storage.Series) (most, held int, err error) {
	win := &window{it: storage.NewBufferIterator(n.iterator(from), ev.end-ev.start+2*ev.lookback)}
	at := ev.start - n.offset(ev)
	for i := range ev.steps {
		if err := win.move(at-ev.lookback, at+ev.lookback); err != nil {
			return 0, 0, err
		}
		held = win.size()
		most = max(most, held)
		switch {
		case len(win.hists) == 0:
			r.setSmoothed(i, win.floats, at)
		case len(win.floats) > 0:
			ev.warnings.Add(annotations.NewMixedFloatsHistogramsWarning(metricName(r.metric), n.vs.PositionRange()))
		default:
			if h := n.smoothedHistogram(ev, r, win.hists, at); h != nil {
				r.setHistogram(i, h)
			}
		}
		at += ev.interval
	}
	return most, held, nil
}

// smoothedHistogram is setSmoothed for histograms. It returns nil for none. Histograms are counters unless both are
// gauges; a counter that was reset grows from zero.
func (n smoothedNode) smoothedHistogram(ev *evaluation, r *row, points []promql.HPoint,
	at int64) *histogram.FloatHistogram {
	next := sort.Search(len(points), func(i int) bool { return points[i].T >= at })
	switch {
	case next < len(points) && points[next].T == at:
		return points[next].H.Copy()
	case next == 0:
		return nil
	case next == len(points):
		h := points[next-1].H.Copy()
		h.CounterResetHint = histogram.UnknownCounterReset // the hint is about the sample, not about the step
		return h
	}
	a, b, pos := points[next-1], points[next], n.vs.PositionRange()
	mixed := func(err error) {
		if errors.Is(err, histogram.ErrHistogramsIncompatibleSchema) {
			ev.warnings.Add(annotations.NewMixedExponentialCustomHistogramsWarning(metricName(r.metric), pos))
		}
	}
	if a.H.UsesCustomBuckets() != b.H.UsesCustomBuckets() {
		mixed(histogram.ErrHistogramsIncompatibleSchema)
		return nil
	}
	part, result := float64(at-a.T)/float64(b.T-a.T), b.H.Copy()
	gauge := a.H.CounterResetHint == histogram.GaugeType && b.H.CounterResetHint == histogram.GaugeType
	if !gauge && b.H.DetectReset(a.H) {
		return result.Mul(part)
	}
	_, _, reconciled, err := result.Sub(a.H)
	if err == nil {
		if reconciled {
			ev.warnings.Add(annotations.NewMismatchedCustomBucketsHistogramsInfo(pos, annotations.HistogramSub))
		}
		result.Mul(part)
		_, _, reconciled, err = result.Add(a.H)
	}
	if err != nil {
		mixed(err)
		return nil
	}
	if reconciled {
		ev.warnings.Add(annotations.NewMismatchedCustomBucketsHistogramsInfo(pos, annotations.HistogramAdd))
	}
	return result
}
