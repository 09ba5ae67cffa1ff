package columns

import (
	"math"
	"slices"
	"sort"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/parser/posrange"
	"github.com/prometheus/prometheus/util/annotations"
)

// topNode is an aggregation that returns some of its input series: topk, bottomk, limitk or
// limit_ratio.
type topNode struct {
	expr         *parser.AggregateExpr
	child, param node
}

func (n *topNode) eval(ev *evaluation, sink func(*row) error) error {
	before := ev.acct.current
	p, err := ev.param(n.param, n.expr.Param)
	if err != nil {
		return err
	}
	run := &topRun{ev: ev, pos: n.expr.PosRange, op: n.expr.Op, param: p, steps: ev.steps, groups: newGrouping(n.expr)}
	if err := n.child.eval(ev, run.add); err != nil {
		return err
	}
	if err := contextError(ev.ctx); err != nil {
		return err
	}
	ev.acct.current = before
	if run.op == parser.LIMIT_RATIO {
		if p.max == 0 && p.min == 0 {
			return nil
		}
		if err := p.checkRatio(ev, n.expr); err != nil {
			return err
		}
	} else {
		if p.max < 1 {
			return nil
		}
		if err := p.checkCount(); err != nil {
			return err
		}
	}
	if err := ev.acct.add(run.size()); err != nil {
		return err
	}
	return run.emit(ev, sink)
}

// size returns how many samples Prometheus counts for the result.
func (t *topRun) size() int {
	total := 0
	for _, steps := range t.heaps {
		for i, h := range steps {
			total += len(h)
			if t.hists == nil {
				continue
			}
			for _, c := range h {
				if at := t.histogram(c, i); at != nil {
					total += pointSize(at) - 1
				}
			}
		}
	}
	return total
}

// histogram returns the histogram of a sample, nil if it is a float.
func (t *topRun) histogram(c chosen, step int) *histogram.FloatHistogram {
	if hists := t.hists[c.series]; hists != nil {
		return hists[step]
	}
	return nil
}

// chosen is a sample of the input that may be in the result.
type chosen struct {
	f      float64
	series int32
}

// topRun is one evaluation of a topNode.
type topRun struct {
	ev     *evaluation
	pos    posrange.PositionRange
	op     parser.ItemType
	param  *param
	steps  int
	groups *grouping
	labels []labels.Labels                       // by series
	drop   []bool                                // row.dropName, by series
	hists  map[int32][]*histogram.FloatHistogram // by series that has histograms
	heaps  [][][]chosen                          // by group and step
}

// add offers the samples of a row to the heaps of its group.
func (t *topRun) add(r *row) error {
	g, fresh := t.groups.of(r.metric)
	if fresh {
		if err := t.ev.hold(4 * t.steps); err != nil {
			return err
		}
		t.heaps = append(t.heaps, make([][]chosen, t.steps))
	}
	heaps, series := t.heaps[g], int32(len(t.labels))
	switch limit := t.op != parser.TOPK && t.op != parser.BOTTOMK; {
	case r.hists != nil && limit:
		if err := t.ev.hold(t.steps); err != nil {
			return err
		}
		if t.hists == nil {
			t.hists = map[int32][]*histogram.FloatHistogram{}
		}
		t.hists[series] = slices.Clone(r.hists)
	case r.hists != nil:
		if r.dropHistograms() && t.param.max >= 1 {
			t.ev.warnings.Add(annotations.NewHistogramIgnoredInAggregationInfo(t.op.String(), t.pos))
		}
	}
	t.labels, t.drop = append(t.labels, r.metric), append(t.drop, r.dropName)
	offset := 0.0
	if t.op == parser.LIMIT_RATIO {
		offset = promql.NewHashRatioSampler().SampleOffset(&r.metric)
	}
	for i, f := range r.values {
		if r.has.get(i) {
			heaps[i] = t.offer(heaps[i], chosen{f, series}, t.param.values[i], offset)
		}
	}
	return nil
}

// offer adds a sample to the heap of a group and step, if the sample may be in the result. It returns the heap.
// param is the parameter of the aggregation at the step, and offset the position of the series for limit_ratio.
func (t *topRun) offer(h []chosen, c chosen, param, offset float64) []chosen {
	if t.op == parser.LIMIT_RATIO {
		if param != 0 && promql.NewHashRatioSampler().AddRatioSampleWithOffset(math.Max(-1, math.Min(1, param)), offset) {
			return t.push(h, c)
		}
		return h
	}
	if !(param >= 1 && param < greatestInt) { // NaN and overflows are errors, which are returned after the input was read
		return h
	}
	if int64(len(h)) < int64(param) {
		return t.push(h, c)
	}
	least := h[0].f
	switch t.op {
	case parser.TOPK:
		if !(least < c.f) && !(math.IsNaN(least) && !math.IsNaN(c.f)) {
			return h
		}
	case parser.BOTTOMK:
		if !(least > c.f) && !(math.IsNaN(least) && !math.IsNaN(c.f)) {
			return h
		}
	default:
		return h
	}
	h[0] = c
	t.down(h)
	return h
}

// less orders a heap, whose least sample is replaced first: the smallest value for topk and limitk, the greatest for
// bottomk, and NaN before all others.
func (t *topRun) less(a, b float64) bool {
	if math.IsNaN(a) {
		return true
	}
	if t.op == parser.BOTTOMK {
		return a > b
	}
	return a < b
}

// push is heap.Push.
func (t *topRun) push(h []chosen, c chosen) []chosen {
	h = append(h, c)
	for j := len(h) - 1; j > 0; {
		i := (j - 1) / 2
		if !t.less(h[j].f, h[i].f) {
			break
		}
		h[i], h[j] = h[j], h[i]
		j = i
	}
	return h
}

// down is heap.Fix of the first element.
func (t *topRun) down(h []chosen) {
	for i := 0; ; {
		j := 2*i + 1
		if j >= len(h) {
			return
		}
		if right := j + 1; right < len(h) && t.less(h[right].f, h[j].f) {
			j = right
		}
		if !t.less(h[j].f, h[i].f) {
			return
		}
		h[i], h[j] = h[j], h[i]
		i = j
	}
}

type heapOrder struct {
	*topRun
	h []chosen
}

func (o heapOrder) Len() int           { return len(o.h) }
func (o heapOrder) Swap(i, j int)      { o.h[i], o.h[j] = o.h[j], o.h[i] }
func (o heapOrder) Less(i, j int) bool { return o.less(o.h[i].f, o.h[j].f) }

// emit emits the result. The series are in the order of the first step that chose them; series of the same step are in
// the order of their groups, and those of topk and bottomk sorted within their group. Prometheus adds the series to a Go
// map in this order, and returns them in the order of an iteration over the map. If the map has at most eight series,
// this is the same order, rotated at random.
func (t *topRun) emit(ev *evaluation, sink func(*row) error) error {
	rows := make([]*row, len(t.labels))
	var order []*row
	for i := range ev.steps {
		if err := contextError(ev.ctx); err != nil {
			return err
		}
		for _, steps := range t.heaps {
			h := steps[i]
			if t.severalNew(h, rows) {
				sort.Sort(sort.Reverse(heapOrder{t, h}))
			}
			for _, c := range h {
				r := rows[c.series]
				if r == nil {
					if err := ev.hold(ev.steps); err != nil {
						return err
					}
					fresh := newRow(ev.steps)
					fresh.metric, fresh.dropName = t.labels[c.series], t.drop[c.series]
					r, rows[c.series] = &fresh, &fresh
					order = append(order, r)
				}
				r.values[i] = c.f
				r.has.set(i)
				if hist := t.histogram(c, i); hist != nil {
					r.setHistogram(i, hist)
				}
			}
		}
	}
	for _, r := range order {
		if err := contextError(ev.ctx); err != nil {
			return err
		}
		if err := sink(r); err != nil {
			return err
		}
	}
	return nil
}

// severalNew reports whether a step of topk or bottomk chooses several series that no earlier step chose. emit must
// sort these series, because the result keeps their order.
func (t *topRun) severalNew(h []chosen, rows []*row) bool {
	if t.op != parser.TOPK && t.op != parser.BOTTOMK {
		return false
	}
	fresh := 0
	for _, c := range h {
		if rows[c.series] == nil {
			fresh++
		}
	}
	return fresh > 1
}
