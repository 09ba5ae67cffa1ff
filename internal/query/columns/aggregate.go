package columns

import (
	"math"
	"math/bits"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/annotations"
	"github.com/prometheus/prometheus/util/kahansum"
	"github.com/prometheus/prometheus/util/stats"
)

// aggregateNode folds series into groups.
type aggregateNode struct {
	expr  *parser.AggregateExpr
	child node
	fold  fold
}

// fold adds series to a group, step by step, and finishes the group.
type fold interface {
	begin(steps int) *group
	// add adds the values of a row at the steps of word w whose bits are set: those of
	// fresh are the first ones of the group.
	add(g *group, r *row, w int, fresh, more uint64)
	finish(g *group)
}

// group is one output series while its input is read. Which of the arrays are used depends
// on the operator.
type group struct {
	row
	c, mean, count []float64
	incremental    bitmap
	groups         []*histogramGroup // at each step; nil: there are no histograms
	drop           bitmap            // the steps at which a series has row.dropName; nil: none
}

// noteDrop notes the steps at which the name of a series of the group is to be removed.
func (g *group) noteDrop(r *row) { g.drop = addDrop(g.drop, r) }

func addDrop(drop bitmap, r *row) bitmap {
	if !r.dropName {
		return drop
	}
	if drop == nil {
		drop = newBitmap(len(r.values))
	}
	for w, word := range r.has {
		drop[w] |= word
	}
	return drop
}

// dropLast reports whether the name of a group is to be removed: as at its last step.
func dropLast(drop, has bitmap) bool {
	for w := len(drop) - 1; w >= 0; w-- {
		if has[w] != 0 {
			return drop[w]>>(63-bits.LeadingZeros64(has[w]))&1 == 1
		}
	}
	return false
}

var folds = map[parser.ItemType]fold{
	parser.SUM: sumFold{}, parser.AVG: avgFold{}, parser.COUNT: countFold{}, parser.GROUP: groupFold{},
	parser.MIN: minFold{}, parser.MAX: maxFold{}, parser.STDVAR: varFold{}, parser.STDDEV: varFold{root: true},
}

// eval implements node.
func (a *aggregateNode) eval(ev *evaluation, sink func(*row) error) error {
	groups, before := newGrouping(a.expr), ev.acct.current
	var all []*group
	err := a.child.eval(ev, func(r *row) error {
		i, fresh := groups.of(r.metric)
		if fresh {
			if err := ev.hold(3 * ev.steps); err != nil {
				return err
			}
			g := a.fold.begin(ev.steps)
			g.metric = groups.labels(r.metric)
			all = append(all, g)
		}
		g := all[i]
		if r.hists != nil || g.groups != nil {
			a.foldHistograms(ev, g, r)
		}
		g.noteDrop(r)
		for w, word := range r.has {
			seen := g.has[w]
			a.fold.add(g, r, w, word&^seen, word&seen)
			g.has[w] = seen | word
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := contextError(ev.ctx); err != nil {
		return err
	}
	ev.acct.current = before
	total := 0
	for _, g := range all {
		a.fold.finish(g)
		a.finishHistograms(ev, g)
		g.dropName = dropLast(g.drop, g.has)
		total += g.size()
	}
	_ = ev.acct.add(total) // at most the samples of the operand, which were counted
	for _, g := range all {
		if g.has.empty() {
			continue
		}
		if err := sink(&g.row); err != nil {
			return err
		}
	}
	return nil
}

// grouping numbers the groups of an aggregation, in order of their first series.
type grouping struct {
	names   []string
	without bool
	index   map[uint64]int
	buf     []byte
	builder *labels.Builder
}

func newGrouping(e *parser.AggregateExpr) *grouping {
	names := slices.Clone(e.Grouping)
	slices.Sort(names)
	return &grouping{names: names, without: e.Without, index: map[uint64]int{}, builder: labels.NewBuilder(labels.EmptyLabels())}
}

// of returns the number of a series' group, and whether it is a new one.
func (g *grouping) of(metric labels.Labels) (int, bool) {
	var key uint64
	switch {
	case g.without:
		key, g.buf = metric.HashWithoutLabels(g.buf, g.names...)
	case len(g.names) > 0:
		key, g.buf = metric.HashForLabels(g.buf, g.names...)
	}
	i, ok := g.index[key]
	if !ok {
		i = len(g.index)
		g.index[key] = i
	}
	return i, !ok
}

// labels returns a copy of the labels of the group of a series.
func (g *grouping) labels(metric labels.Labels) labels.Labels {
	if !g.without && len(g.names) == 0 {
		return labels.EmptyLabels()
	}
	g.builder.Reset(metric)
	if g.without {
		g.builder.Del(g.names...)
		g.builder.Del(labels.MetricName)
	} else {
		g.builder.Keep(g.names...)
	}
	return g.builder.Labels().Copy() // the builder returns the series' own if it has no others
}

const allBits = ^uint64(0)

func copyBits(to, from []float64, w int, word uint64) {
	if word == allBits {
		copy(to[w*64:w*64+64], from[w*64:w*64+64])
		return
	}
	for ; word != 0; word &= word - 1 {
		i := w*64 + bits.TrailingZeros64(word)
		to[i] = from[i]
	}
}

type sumFold struct{}

func (sumFold) begin(steps int) *group { return &group{row: newRow(steps), c: make([]float64, steps)} }

func (sumFold) add(g *group, r *row, w int, fresh, more uint64) {
	copyBits(g.values, r.values, w, fresh)
	if more == allBits {
		sums, cs, values := g.values[w*64:][:64], g.c[w*64:][:64], r.values[w*64:][:64]
		for i, v := range values {
			sums[i], cs[i] = plus(sums[i], cs[i], v)
		}
		return
	}
	for ; more != 0; more &= more - 1 {
		i := w*64 + bits.TrailingZeros64(more)
		g.values[i], g.c[i] = plus(g.values[i], g.c[i], r.values[i])
	}
}

func (sumFold) finish(g *group) {
	for i := range g.values {
		g.values[i] += g.c[i]
	}
}

type avgFold struct{}

func (avgFold) begin(steps int) *group {
	return &group{row: newRow(steps), c: make([]float64, steps), count: make([]float64, steps)}
}

func (avgFold) add(g *group, r *row, w int, fresh, more uint64) {
	copyBits(g.values, r.values, w, fresh)
	for ; fresh != 0; fresh &= fresh - 1 {
		g.count[w*64+bits.TrailingZeros64(fresh)] = 1
	}
	for ; more != 0; more &= more - 1 {
		i := w*64 + bits.TrailingZeros64(more)
		f := r.values[i]
		g.count[i]++
		if g.incremental == nil || !g.incremental.get(i) {
			sum, c := kahansum.Inc(f, g.values[i], g.c[i])
			if !math.IsInf(sum, 0) {
				g.values[i], g.c[i] = sum, c
				continue
			}
			if g.incremental == nil {
				g.incremental, g.mean = newBitmap(len(g.values)), make([]float64, len(g.values))
			}
			g.incremental.set(i)
			g.mean[i] = g.values[i] / (g.count[i] - 1)
			g.c[i] /= g.count[i] - 1
		}
		q := (g.count[i] - 1) / g.count[i]
		g.mean[i], g.c[i] = kahansum.Inc(f/g.count[i], q*g.mean[i], q*g.c[i])
	}
}

func (avgFold) finish(g *group) {
	for i := range g.values {
		if g.incremental != nil && g.incremental.get(i) {
			g.values[i] = g.mean[i] + g.c[i]
		} else {
			g.values[i] = g.values[i]/g.count[i] + g.c[i]/g.count[i]
		}
	}
}

type countFold struct{}

func (countFold) begin(steps int) *group { return &group{row: newRow(steps)} }

func (countFold) add(g *group, _ *row, w int, fresh, more uint64) {
	if fresh|more == allBits {
		counts := g.values[w*64:][:64]
		for i := range counts {
			counts[i]++
		}
		return
	}
	for all := fresh | more; all != 0; all &= all - 1 {
		g.values[w*64+bits.TrailingZeros64(all)]++
	}
}

func (countFold) finish(*group) {}

type groupFold struct{}

func (groupFold) begin(steps int) *group {
	g := &group{row: newRow(steps)}
	for i := range g.values {
		g.values[i] = 1
	}
	return g
}

func (groupFold) add(*group, *row, int, uint64, uint64) {}

func (groupFold) finish(*group) {}

type minFold struct{}

func (minFold) begin(steps int) *group { return &group{row: newRow(steps)} }

func (minFold) add(g *group, r *row, w int, fresh, more uint64) {
	copyBits(g.values, r.values, w, fresh)
	for ; more != 0; more &= more - 1 {
		i := w*64 + bits.TrailingZeros64(more)
		if g.values[i] > r.values[i] || math.IsNaN(g.values[i]) {
			g.values[i] = r.values[i]
		}
	}
}

func (minFold) finish(*group) {}

type maxFold struct{}

func (maxFold) begin(steps int) *group { return &group{row: newRow(steps)} }

func (maxFold) add(g *group, r *row, w int, fresh, more uint64) {
	copyBits(g.values, r.values, w, fresh)
	for ; more != 0; more &= more - 1 {
		i := w*64 + bits.TrailingZeros64(more)
		if g.values[i] < r.values[i] || math.IsNaN(g.values[i]) {
			g.values[i] = r.values[i]
		}
	}
}

func (maxFold) finish(*group) {}

// varFold is the variance, or its root.
type varFold struct{ root bool }

func (varFold) begin(steps int) *group {
	return &group{row: newRow(steps), mean: make([]float64, steps), count: make([]float64, steps)}
}

func (varFold) add(g *group, r *row, w int, fresh, more uint64) {
	for ; fresh != 0; fresh &= fresh - 1 {
		i := w*64 + bits.TrailingZeros64(fresh)
		f := r.values[i]
		g.mean[i], g.count[i], g.values[i] = f, 1, 0
		if math.IsNaN(f) || math.IsInf(f, 0) {
			g.values[i] = math.NaN()
		}
	}
	for ; more != 0; more &= more - 1 {
		i := w*64 + bits.TrailingZeros64(more)
		f := r.values[i]
		g.count[i]++
		delta := f - g.mean[i]
		g.mean[i] += delta / g.count[i]
		g.values[i] += delta * (f - g.mean[i])
	}
}

func (v varFold) finish(g *group) {
	for i := range g.values {
		g.values[i] /= g.count[i]
		if v.root {
			g.values[i] = math.Sqrt(g.values[i])
		}
	}
}

// sharedMax is the number of aggregations of an expression up to which equal ones are looked for.
const sharedMax = 64

// repeatedAggregations returns the texts of the aggregations that an expression has several times.
func repeatedAggregations(e parser.Expr) map[*parser.AggregateExpr]string {
	var all []*parser.AggregateExpr
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		if a, ok := n.(*parser.AggregateExpr); ok {
			all = append(all, a)
		}
		return nil
	})
	if len(all) < 2 || len(all) > sharedMax {
		return nil
	}
	texts, times := map[*parser.AggregateExpr]string{}, map[string]int{}
	for _, a := range all {
		texts[a] = a.String()
		times[texts[a]]++
	}
	for a, text := range texts {
		if times[text] == 1 {
			delete(texts, a)
		}
	}
	return texts
}

// sharedNode is an aggregation that an expression has several times: it is evaluated once for the same
// steps. An aggregation counts its samples before it emits its series, so the order of counting is the
// same if they are emitted from memory. One that has annotations, which have its position, is evaluated
// each time.
type sharedNode struct {
	text string
	node *aggregateNode
}

// sharedKey is an aggregation at some steps.
type sharedKey struct {
	text                 string
	start, end, interval int64
	steps                int
	perStep              bool
}

// sharedResult is what an evaluation returned and counted.
type sharedResult struct {
	rows               []row
	acct               account
	samples            *stats.QuerySamples
	repeats, annotated bool
}

// eval implements node.
func (s *sharedNode) eval(ev *evaluation, sink func(*row) error) error {
	key := sharedKey{s.text, ev.start, ev.end, ev.interval, ev.steps, ev.perStep}
	result := ev.shared.results[key]
	if result != nil && result.annotated {
		return s.node.eval(ev, sink)
	}
	if result == nil {
		var err error
		if result, err = s.evaluate(ev); err != nil {
			return err
		}
		if ev.shared.results == nil {
			ev.shared.results = map[sharedKey]*sharedResult{}
		}
		ev.shared.results[key] = result
	}
	if err := ev.acct.replay(&result.acct); err != nil {
		return err
	}
	addSamples(ev.samples, result.samples)
	ev.repeats = ev.repeats || result.repeats
	for i := range result.rows {
		r := result.rows[i].clone() // sink may change it
		for j, h := range r.hists {
			if h != nil {
				r.hists[j] = h.Copy()
			}
		}
		if err := sink(&r); err != nil {
			return err
		}
	}
	return nil
}

// evaluate evaluates the aggregation with counts of its own.
func (s *sharedNode) evaluate(ev *evaluation) (*sharedResult, error) {
	own := *ev
	own.acct = account{limit: ev.acct.limit - ev.acct.current}
	own.warnings, own.repeats = annotations.Annotations{}, false
	own.samples = ev.childSamples()
	result := &sharedResult{samples: own.samples}
	err := s.node.eval(&own, func(r *row) error {
		result.rows = append(result.rows, r.clone())
		return ev.hold(ev.steps)
	})
	result.acct, result.repeats, result.annotated = own.acct, own.repeats, len(own.warnings) > 0
	ev.warnings.Merge(own.warnings)
	return result, err
}

// childSamples returns empty statistics of the same steps.
func (ev *evaluation) childSamples() *stats.QuerySamples {
	if ev.perStep {
		return stats.NewChildWithStepTracking(ev.start, max(ev.start, ev.end), ev.interval)
	}
	return ev.samples.NewChild()
}

// addSamples adds counted samples to those of the same steps.
func addSamples(to, from *stats.QuerySamples) {
	to.TotalSamples += from.TotalSamples
	to.SamplesRead += from.SamplesRead
	for i, n := range from.TotalSamplesPerStep {
		to.TotalSamplesPerStep[i] += n
	}
	for i, n := range from.SamplesReadPerStep {
		to.SamplesReadPerStep[i] += n
	}
}
