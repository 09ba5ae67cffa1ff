package columns

import (
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
)

// span is a window: points[from:to], the number of their samples, and its time range in ms, start exclusive and end
// inclusive.
type span struct {
	from, to, samples int
	start, end        int64
}

// windowFunc computes the values of a series at all steps whose windows have points, and sets them in the row.
type windowFunc func(w *windows, r *row, points []promql.FPoint) error

// fastWindows are the functions that are computed without a call of Prometheus' implementation for each window.
var fastWindows = map[string]windowFunc{
	"rate":              rateWindows,
	"increase":          rateWindows,
	"delta":             rateWindows,
	"sum_over_time":     eachWindow(sum),
	"avg_over_time":     eachWindow(average),
	"min_over_time":     eachWindow(least),
	"max_over_time":     eachWindow(greatest),
	"count_over_time":   countWindows,
	"changes":           changesWindows,
	"last_over_time":    eachWindow(func(points []promql.FPoint) float64 { return points[len(points)-1].F }),
	"first_over_time":   eachWindow(func(points []promql.FPoint) float64 { return points[0].F }),
	"present_over_time": eachWindow(func([]promql.FPoint) float64 { return 1 }),
	"absent_over_time":  eachWindow(func([]promql.FPoint) float64 { return 1 }),
}

// windowFunctions are the supported functions of range vectors that are not in fastWindows. Prometheus'
// implementation is called with each window.
var windowFunctions = map[string]bool{
	"resets": true, "irate": true, "idelta": true, "deriv": true,
	"stddev_over_time": true, "stdvar_over_time": true, "quantile_over_time": true, "mad_over_time": true,
	"predict_linear": true, "double_exponential_smoothing": true,
	"ts_of_first_over_time": true, "ts_of_last_over_time": true, "ts_of_max_over_time": true, "ts_of_min_over_time": true,
}

// windowNode is a function of a range selector or of a subquery.
type windowNode struct {
	selector
	subquery *subquery // nil: none
	call     *parser.Call
	rangeMS  int64      // length of a window
	ahead    int64      // how many ms a window ends after the range; see extend
	refused  error      // the modifier of the range selector does not suit the function
	scalars  []node     // the other arguments
	fast     windowFunc // nil: Prometheus' implementation is called with each window

	counter, perSecond bool    // set for rate and increase; set for rate
	seconds            float64 // length of the range
	keepName           bool    // the function keeps the metric name
}

func (w *windowNode) eval(ev *evaluation, sink func(*row) error) error {
	return w.run(ev, true, sink)
}

// run passes the series of the result to sink. unique means that no two of them may have the same labels.
func (w *windowNode) run(ev *evaluation, unique bool, sink func(*row) error) error {
	run := &windowRun{windowNode: w, ev: ev, acct: &ev.acct}
	if !w.distinct(ev) {
		run.sets = ev.newLabelsets()
	}
	if w.subquery != nil {
		if err := run.overSubquery(sink); err != nil {
			return err
		}
	} else {
		if err := run.scalarArgs(); err != nil {
			return err
		}
		if w.refused != nil {
			return w.refused
		}
		work := w.perSeries(ev)
		run.offset = work.offset
		work.compute = func() func(*item, decoded) { return run.windows().compute }
		work.apply = func(it *item) error { return run.apply(it, sink) }
		work.histograms = func(r *row, from storage.Series) error { return run.histograms(r, from, sink) }
		if err := w.each(ev, work); err != nil {
			return err
		}
		ev.acct.current -= run.held
	}
	if unique && run.sets != nil && run.sets.repeated && !ev.engine.opts.DelayedNameRemoval {
		return errSameLabels
	}
	return nil
}

// perSeries returns what is known of the work before it begins.
func (w *windowNode) perSeries(ev *evaluation) perSeries {
	return perSeries{use: w.use(), rangeMS: w.rangeMS, offset: w.windowOffset(ev), fixed: w.fixed()}
}

// distinct reports whether the results have distinct labels because the series have distinct labels. This is true if
// the results keep their names. It is also true if all series have the same name, unless a series has the label
// __type__ or __unit__, which are removed together with the name. noteLabels checks for these two labels.
func (w *windowNode) distinct(ev *evaluation) bool {
	if _, ok := ev.source.(rawSource); !ok || w.subquery != nil {
		return false
	}
	return w.keepName || slices.ContainsFunc(w.vs.LabelMatchers, func(m *labels.Matcher) bool {
		return m.Name == labels.MetricName && m.Type == labels.MatchEqual && m.Value != ""
	})
}

// noteLabels adds the labels of a result to w.sets, which finds results with the same labels. metric has the labels of
// the series before the name was removed.
func (w *windowRun) noteLabels(r *row, metric labels.Labels) error {
	if w.sets == nil && !w.keepName && (metric.Has("__type__") || metric.Has("__unit__")) {
		if w.emitted {
			return errGiveUp("series of which some have a type or a unit")
		}
		w.sets = w.ev.newLabelsets()
	}
	w.emitted = true
	if w.sets != nil {
		if err := w.sets.add(r); err != nil {
			return err
		}
	}
	return nil
}

// windowRun is one evaluation of a windowNode.
type windowRun struct {
	*windowNode
	ev     *evaluation
	acct   *account
	offset int64
	args   [][]float64
	sets   *labelsets // nil: the results have distinct labels because the series do
	held   int        // samples of the last window, counted in acct
	warned string     // the metric name that warnNonCounter has checked last

	emitted   bool // a row was emitted
	inputDrop bool // the name of the input series is to be removed

	helper promql.EvalNodeHelper
}

// windows computes the windows of one series after the other. It does not change the evaluation, so each goroutine
// may have its own, with one exception: if the query has statistics of each step, find counts them in the evaluation,
// and only one goroutine may run.
type windows struct {
	*windowNode
	decoded // the points of the series
	ev      *evaluation
	offset  int64
	args    [][]float64
	spans   []span
	resets  resets // of a counter

	helper   promql.EvalNodeHelper
	vectors  []promql.Vector
	in       promql.Matrix
	warnings annotations.Annotations
}

func (w *windowRun) windows() *windows {
	return &windows{windowNode: w.windowNode, ev: w.ev, offset: w.offset, args: w.args, spans: make([]span, w.ev.steps)}
}

// scalarArgs evaluates the scalar arguments of the function.
func (w *windowRun) scalarArgs() error {
	for _, arg := range w.scalars {
		values, err := w.ev.scalar(arg)
		if err != nil {
			return err
		}
		w.args = append(w.args, values)
	}
	return nil
}

// compute computes the item of a series. It may change the points.
func (w *windows) compute(it *item, of decoded) {
	if w.decoded = w.prepare(of); len(w.points) == 0 {
		return
	}
	w.find(it, w.points)
	w.warnings = nil
	if len(w.stretches) > 0 && w.use().lasts && !w.hasLasts() {
		it.err = errNeedSamples
	} else if w.fast != nil {
		it.err = w.fast(w, &it.row, w.points)
	} else {
		it.err = w.generic(&it.row, w.points)
	}
	it.warnings = w.warnings
}

// prepare removes stale markers, in place, and finds the resets of a counter.
func (w *windows) prepare(of decoded) decoded {
	if !w.counter {
		return of.withoutStale()
	}
	for len(of.points) > 0 && w.resets.find(of.points) {
		of = of.withoutStale()
	}
	return of
}

// apply counts the samples of an item, and passes its row to sink.
func (w *windowRun) apply(it *item, sink func(*row) error) error {
	w.acct.current -= w.held
	w.held = 0
	if !w.ev.perStep {
		w.ev.samples.TotalSamples += it.total
		w.ev.samples.SamplesRead += it.read
	}
	if err := w.acct.touch(it.most); err != nil {
		return err
	}
	w.held = it.held
	w.acct.current += w.held
	w.ev.warnings.Merge(it.warnings)
	if it.err != nil {
		return it.err
	}
	return w.emit(&it.row, sink)
}

// emit passes a computed row to sink, unless it is empty.
func (w *windowRun) emit(r *row, sink func(*row) error) error {
	if r.has.empty() {
		return nil
	}
	if err := w.acct.add(r.size()); err != nil {
		return err
	}
	if w.counter && r.hasFloats() {
		w.warnNonCounter(r.metric)
	}
	metric := r.metric
	if !w.keepName || w.inputDrop {
		w.ev.drop(r)
	}
	if err := w.noteLabels(r, metric); err != nil {
		return err
	}
	r.distinct = w.sets == nil && !w.keepName
	return sink(r)
}

// fixed reports whether all steps have the same window because the selector or the subquery has @.
func (w *windowNode) fixed() bool {
	if w.subquery != nil {
		return w.subquery.expr.Timestamp != nil
	}
	return w.vs.Timestamp != nil
}

// find finds the windows of all steps, and counts their samples. Most steps move the window by as many points as the
// previous step did, so this number is tried first.
func (w *windows) find(it *item, points []promql.FPoint) {
	ev := w.ev
	var from, to, most, fromStep, toStep, known, n int // known: samples before the end of the last window
	var total, read int64
	starts, ends := counter{stretches: w.stretches}, counter{stretches: w.stretches}
	end, fixed := ev.start-w.offset, w.fixed()
	for i := range w.spans {
		if before := to; i == 0 || !fixed {
			was := from
			to = after(points, to, toStep, end)
			from = min(after(points, from, fromStep, end-w.rangeMS), to)
			fromStep, toStep = from-was, to-before
		}
		// A window that begins within a stretch has only its last point; one that ends within has only the first.
		first, next := starts.before(from+1)-1, ends.before(to)
		n = next - first
		s := &w.spans[i] // a composite literal would be copied from the stack, which has to wait for its fields
		s.from, s.to, s.samples, s.start, s.end = from, to, n, end-w.rangeMS, end
		fresh := next - max(first, known) // samples that no earlier window contained
		known = next
		if w.subquery != nil {
			fresh = 0 // counted by the subquery
		}
		if n > 0 {
			total, read, most = total+int64(n), read+int64(fresh), max(most, n)
			if ev.perStep {
				ev.samples.IncrementSamplesAtStep(i, int64(n))
				ev.samples.IncrementSamplesReadAtStep(i, int64(fresh))
			}
		}
		end += ev.interval
	}
	it.total, it.read, it.most, it.held = total, read, most, n
}

// after returns the index of the first point after a time, at or after index i. It tries index i+n first.
func after(points []promql.FPoint, i, n int, ts int64) int {
	if at := i + n; at <= len(points) && (at == i || points[at-1].T <= ts) {
		i = at
	}
	for i < len(points) && points[i].T <= ts {
		i++
	}
	return i
}

// largeWindow is the number of points from which a function of one window takes some microseconds.
const largeWindow = 4096

// check returns an error if the context of the query has ended. It checks the context at one of 64 steps, and for each
// large window.
func (w *windows) check(step int, s span) error {
	if step&63 != 0 && s.to-s.from < largeWindow {
		return nil
	}
	return contextError(w.ev.ctx)
}

// warnNonCounter adds an annotation if a metric has no name of a counter. With Options.TypeAndUnitLabels
// the type label decides, not the name.
func (w *windowRun) warnNonCounter(metric labels.Labels) {
	name := metric.Get(labels.MetricName)
	if name == "" {
		return
	}
	if w.ev.engine.opts.TypeAndUnitLabels {
		if kind := metric.Get("__type__"); kind != string(model.MetricTypeCounter) &&
			kind != string(model.MetricTypeHistogram) {
			w.ev.warnings.Add(annotations.NewPossibleNonCounterLabelInfo(name, kind, w.call.Args[0].PositionRange()))
		}
		return
	}
	if name == w.warned {
		return
	}
	w.warned = strings.Clone(name)
	for _, suffix := range []string{"_total", "_sum", "_count", "_bucket"} {
		if strings.HasSuffix(name, suffix) {
			return
		}
	}
	w.ev.warnings.Add(annotations.NewPossibleNonCounterInfo(name, w.call.Args[0].PositionRange()))
}

// generic calls Prometheus' implementation with each window.
func (w *windows) generic(r *row, points []promql.FPoint) error {
	call := promql.FunctionCalls[w.call.Func.Name]
	if w.in == nil {
		w.in = make(promql.Matrix, 1)
		w.vectors = make([]promql.Vector, len(w.args))
		for i := range w.vectors {
			w.vectors[i] = make(promql.Vector, 1)
		}
	}
	w.in[0].Metric = r.metric
	ts := w.ev.start
	for i, s := range w.spans {
		if s.from < s.to {
			if err := contextError(w.ev.ctx); err != nil {
				return err
			}
			for j, values := range w.args {
				w.vectors[j][0] = promql.Sample{F: values[i]}
			}
			w.in[0].Floats = points[s.from:s.to:s.to]
			w.helper.Ts = ts
			out, annos := call(w.vectors, w.in, w.call.Args, &w.helper)
			w.warnings.Merge(annos)
			w.helper.Out = out[:0]
			if len(out) > 0 {
				if out[0].H != nil {
					return errGiveUp("histograms")
				}
				r.values[i] = out[0].F
				r.has.set(i)
			}
		}
		ts += w.ev.interval
	}
	return nil
}
