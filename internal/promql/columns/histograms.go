package columns

import (
	"errors"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"
)

// errHistograms is returned for the points of a series that has native histograms, or more than pointsMax points.
// Such a series is read with Prometheus' iterators, with the same seeks as in Prometheus' engine, because counter
// reset hints depend on the seeks.
var errHistograms = errors.New("series with histograms")

// pointSize returns how many samples Prometheus counts for a histogram of a matrix.
func pointSize(h *histogram.FloatHistogram) int { return (h.Size() + 8) / 16 }

// vectorSize returns how many samples Prometheus counts for a histogram of a vector.
func vectorSize(h *histogram.FloatHistogram) int { return 1 + h.Size()/16 }

func (r *row) setHistogram(step int, h *histogram.FloatHistogram) {
	if r.hists == nil {
		r.hists = make([]*histogram.FloatHistogram, len(r.values))
	}
	r.hists[step], r.values[step] = h, 0
	r.has.set(step)
}

// histogram returns the histogram of a step, nil for none.
func (r *row) histogram(step int) *histogram.FloatHistogram {
	if r.hists == nil {
		return nil
	}
	return r.hists[step]
}

func (r *row) clear() {
	r.has.clear()
	r.notRead.clear()
	r.hists, r.dropName, r.filtered = nil, false, false
}

// hasFloats reports whether the value of some step is a float.
func (r *row) hasFloats() bool {
	for i := range r.values {
		if r.has.get(i) && r.histogram(i) == nil {
			return true
		}
	}
	return false
}

// size returns how many samples Prometheus counts for a row of a matrix.
func (r *row) size() int {
	n := r.has.count()
	for i, h := range r.hists {
		if h != nil && r.has.get(i) {
			n += pointSize(h) - 1
		}
	}
	return n
}

// dropHistograms removes all histograms, and reports whether there were any.
func (r *row) dropHistograms() bool {
	found := false
	for i, h := range r.hists {
		if h != nil && r.has.get(i) {
			r.has[i>>6] &^= 1 << (i & 63)
			found = true
		}
	}
	r.hists = nil
	return found
}

// iterator returns an iterator over a series. The histograms have no buckets if the selector needs none.
func (s *selector) iterator(from storage.Series) chunkenc.Iterator {
	if s.vs.SkipHistogramBuckets {
		return promql.NewHistogramStatsIterator(from.Iterator(nil))
	}
	return from.Iterator(nil)
}

// histograms fills a row with the values of an instant selector, or with their timestamps.
func (s *selector) histograms(ev *evaluation, r *row, from storage.Series, timestamps bool) error {
	memory := ev.lookback
	if timestamps {
		memory-- // as in Prometheus' implementation of timestamp()
	}
	it := storage.NewMemoizedIterator(s.iterator(from), memory)
	at, interval := s.times(ev, timestamps)
	for i := range ev.steps {
		t, f, h, ok, err := seek(it, at, ev.lookback)
		at += interval
		switch {
		case err != nil:
			return err
		case !ok:
			continue
		case timestamps:
			r.values[i] = float64(t) / 1000
			r.has.set(i)
		case h != nil:
			r.setHistogram(i, h)
		default:
			r.values[i] = f
			r.has.set(i)
		}
	}
	return nil
}

// seek returns the last sample at or before a time. It returns ok false if there is none, or if it is stale or too old.
func seek(it *storage.MemoizedSeriesIterator, at,
	lookback int64) (t int64, f float64, h *histogram.FloatHistogram, ok bool, err error) {
	kind := it.Seek(at)
	switch kind {
	case chunkenc.ValNone:
		if it.Err() != nil {
			return 0, 0, nil, false, it.Err()
		}
	case chunkenc.ValFloat:
		t, f = it.At()
	default:
		t, h = it.AtFloatHistogram()
	}
	if kind == chunkenc.ValNone || t > at {
		if _, t, f, h, ok = it.PeekPrev(); !ok || t <= at-lookback {
			return 0, 0, nil, false, nil
		}
	}
	if value.IsStaleNaN(f) || h != nil && value.IsStaleNaN(h.Sum) {
		return 0, 0, nil, false, nil
	}
	return t, f, h, true, nil
}

// window has the samples of a series in a time range that moves forward.
type window struct {
	it     *storage.BufferedSeriesIterator
	floats []promql.FPoint
	hists  []promql.HPoint
}

// size returns how many samples Prometheus counts for the window.
func (w *window) size() int { return w.newer(w.floats, w.hists, -1<<62) }

// newer returns how many samples Prometheus counts for the points after a time.
func (*window) newer(floats []promql.FPoint, hists []promql.HPoint, after int64) int {
	n := 0
	for i := len(floats) - 1; i >= 0 && floats[i].T > after; i-- {
		n++
	}
	for i := len(hists) - 1; i >= 0 && hists[i].T > after; i-- {
		n += pointSize(hists[i].H)
	}
	return n
}

// move moves the window to the samples after mint, up to maxt.
func (w *window) move(mint, maxt int64) error {
	for len(w.floats) > 0 && w.floats[0].T <= mint {
		w.floats = w.floats[1:]
	}
	for len(w.hists) > 0 && w.hists[0].T <= mint {
		w.hists = w.hists[1:]
	}
	afterFloat, afterHist := mint, mint
	if n := len(w.floats); n > 0 {
		afterFloat = w.floats[n-1].T
	}
	if n := len(w.hists); n > 0 {
		afterHist = w.hists[n-1].T
	}
	if mint == maxt {
		return nil
	}
	sought := w.it.Seek(maxt)
	if sought == chunkenc.ValNone && w.it.Err() != nil {
		return w.it.Err()
	}
	for buffered := w.it.Buffer(); ; {
		switch buffered.Next() {
		case chunkenc.ValNone:
			w.last(sought, maxt)
			return nil
		case chunkenc.ValFloat:
			if t, f := buffered.At(); t > afterFloat && !value.IsStaleNaN(f) {
				w.floats = append(w.floats, promql.FPoint{T: t, F: f})
			}
		default:
			if t := buffered.AtT(); t > afterHist {
				_, h := buffered.AtFloatHistogram(&histogram.FloatHistogram{})
				w.append(t, h)
			}
		}
	}
}

// last adds the sample at maxt, if there is one. sought is the result of the iterator's Seek.
func (w *window) last(sought chunkenc.ValueType, maxt int64) {
	switch sought {
	case chunkenc.ValNone:
	case chunkenc.ValFloat:
		if t, f := w.it.At(); t == maxt && !value.IsStaleNaN(f) {
			w.floats = append(w.floats, promql.FPoint{T: t, F: f})
		}
	default:
		if w.it.AtT() == maxt {
			t, h := w.it.AtFloatHistogram(&histogram.FloatHistogram{})
			w.append(t, h)
		}
	}
}

func (w *window) append(t int64, h *histogram.FloatHistogram) {
	if !value.IsStaleNaN(h.Sum) {
		w.hists = append(w.hists, promql.HPoint{T: t, H: h})
	}
}

// histograms computes the row of a series with histograms, and passes the row to sink.
func (w *windowRun) histograms(r *row, from storage.Series, sink func(*row) error) error {
	ev := w.ev
	w.acct.current -= w.held
	w.held = 0
	win := &window{it: storage.NewBufferIterator(w.iterator(from), w.rangeMS)}
	w.vs.Offset = time.Duration(w.offset+w.ahead) * time.Millisecond
	r.clear()
	end, ts := ev.start-w.offset, ev.start // end of the window of a step, and timestamp of the step
	for i := range ev.steps {
		if err := contextError(ev.ctx); err != nil {
			return err
		}
		fetch := i == 0 || !w.fixed()
		if fetch {
			if err := win.move(end-w.rangeMS, end); err != nil {
				return err
			}
			if err := w.acct.touch(win.size()); err != nil {
				return err
			}
		}
		if n := win.size(); n > 0 {
			ev.samples.IncrementSamplesAtStep(i, int64(n))
			switch {
			case w.subquery != nil: // counted by the subquery
			case fetch && i == 0:
				ev.samples.IncrementSamplesReadAtStep(i, int64(n))
			case fetch:
				ev.samples.IncrementSamplesReadAtStep(i, int64(win.newer(win.floats, win.hists, end-ev.interval)))
			}
			if err := w.one(i, ts, r, win); err != nil {
				return err
			}
		}
		win.it.ReduceDelta(min(w.rangeMS, ev.interval))
		end += ev.interval
		ts += ev.interval
	}
	w.held = win.size()
	w.acct.current += w.held
	return w.emit(r, sink)
}

// one calls the function with the window of one step, and sets the result in the row.
func (w *windowRun) one(step int, ts int64, r *row, win *window) error {
	vectors := make([]promql.Vector, len(w.args))
	for j, values := range w.args {
		vectors[j] = promql.Vector{{F: values[step]}}
	}
	w.helper.Ts = ts
	in := promql.Matrix{{Metric: r.metric, Floats: win.floats, Histograms: win.hists}}
	out, annos := promql.FunctionCalls[w.call.Func.Name](vectors, in, w.call.Args, &w.helper)
	w.ev.warnings.Merge(annos)
	w.helper.Out = out[:0]
	if len(out) == 0 {
		return nil
	}
	if out[0].H != nil {
		r.setHistogram(step, out[0].H)
		return nil
	}
	r.values[step] = out[0].F
	r.has.set(step)
	return nil
}

// histogramsOf applies an operator with a scalar to the histograms of a row.
func (v *vectorScalarNode) histogramsOf(ev *evaluation, r *row, scalar []float64) {
	for i, h := range r.hists {
		if h == nil || !r.has.get(i) {
			continue
		}
		var result *histogram.FloatHistogram
		switch {
		case v.op == parser.MUL:
			result = h.Copy().Mul(scalar[i]).Compact(0)
		case v.op == parser.DIV && !v.swap:
			result = h.Copy().Div(scalar[i]).Compact(0)
		case isTrim(v.op) && !v.swap:
			result = h.Copy().TrimBuckets(scalar[i], v.op == parser.TRIM_UPPER)
		default:
			r.has[i>>6] &^= 1 << (i & 63)
			left, right := "histogram", "float"
			if v.swap {
				left, right = right, left
			}
			ev.warnings.Add(annotations.NewIncompatibleTypesInBinOpInfo(left, parser.ItemTypeStr[v.op], right, v.pos))
		}
		// The value of a step with a histogram is 0. apply may have set NaN, which topk and bottomk would sort first.
		r.hists[i], r.values[i] = result, 0
	}
}

// refuseFloats removes the floats of a row, with an annotation: the trim operators apply to histograms only.
func (v *vectorScalarNode) refuseFloats(ev *evaluation, r *row) {
	for i := range r.values {
		if r.has.get(i) && r.histogram(i) == nil {
			r.has[i>>6] &^= 1 << (i & 63)
			ev.warnings.Add(annotations.NewIncompatibleTypesInBinOpInfo("float", parser.ItemTypeStr[v.op], "float", v.pos))
		}
	}
}

// compute applies the operator to two samples. keep is false if a comparison is false. If err is not nil there is no
// result. info is an annotation in addition to the result.
func (m *matchRun) compute(left, right sample) (result sample, keep bool, info, err error) {
	op := m.expr.Op
	switch {
	case left.h != nil && right.h != nil && (op == parser.ADD || op == parser.SUB):
		result, info, err = m.add(left.h, right.h)
		return result, true, info, err
	case left.h != nil && right.h != nil && op == parser.EQLC:
		return left, left.h.Equals(right.h), nil, nil
	case left.h != nil && right.h != nil && op == parser.NEQ:
		return left, !left.h.Equals(right.h), nil, nil
	case left.h == nil && right.h != nil && op == parser.MUL:
		return sample{h: right.h.Copy().Mul(left.f).Compact(0)}, true, nil, nil
	case left.h != nil && right.h == nil && op == parser.MUL:
		return sample{h: left.h.Copy().Mul(right.f).Compact(0)}, true, nil, nil
	case left.h != nil && right.h == nil && op == parser.DIV:
		return sample{h: left.h.Copy().Div(right.f).Compact(0)}, true, nil, nil
	case left.h != nil && right.h == nil && isTrim(op):
		return sample{h: left.h.Copy().TrimBuckets(right.f, op == parser.TRIM_UPPER)}, true, nil, nil
	case left.h != nil || right.h != nil || isTrim(op):
		return sample{}, false, nil, annotations.NewIncompatibleTypesInBinOpInfo(left.kind(), parser.ItemTypeStr[op],
			right.kind(), m.expr.PositionRange())
	case isArithmetic(op):
		v := []float64{left.f}
		arithmetic(op, v, v, []float64{right.f})
		return sample{f: v[0]}, true, nil, nil
	}
	return left, compare(op, left.f, right.f), nil, nil
}

// kind is the name of a sample's type in annotations.
func (s sample) kind() string {
	if s.h != nil {
		return "histogram"
	}
	return "float"
}

// add adds or subtracts histograms.
func (m *matchRun) add(a, b *histogram.FloatHistogram) (result sample, info, err error) {
	operation, operator := a.Copy().Add, annotations.HistogramAdd
	if m.expr.Op == parser.SUB {
		operation, operator = a.Copy().Sub, annotations.HistogramSub
	}
	sum, collision, reconciled, err := operation(b)
	if err != nil {
		return sample{}, nil, err
	}
	if m.expr.Op == parser.SUB {
		sum.CounterResetHint = histogram.GaugeType
	}
	pos := m.expr.PositionRange()
	if collision {
		return sample{}, nil, annotations.NewHistogramCounterResetCollisionWarning(pos, operator)
	}
	if reconciled {
		info = annotations.NewMismatchedCustomBucketsHistogramsInfo(pos, operator)
	}
	return sample{h: sum.Compact(0)}, info, nil
}

// annotate adds the annotation of the current step to the annotations of the query.
func (m *matchRun) annotate() {
	switch err := m.refused; {
	case err == nil:
	case errors.Is(err, annotations.PromQLInfo), errors.Is(err, annotations.PromQLWarning):
		m.ev.warnings.Add(err)
	case errors.Is(err, histogram.ErrHistogramsIncompatibleSchema):
		m.ev.warnings.Add(annotations.NewIncompatibleBucketLayoutInBinOpWarning(parser.ItemTypeStr[m.expr.Op],
			m.expr.PositionRange()))
	}
}

func metricName(metric labels.Labels) string { return metric.Get(labels.MetricName) }
