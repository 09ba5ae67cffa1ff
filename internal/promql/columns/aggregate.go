package columns

import (
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"

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
type fold struct {
	c, mean, count bool // the arrays of a group that it needs
	// add adds the values of a row to the group at up to 64 steps. Bit b of fresh and of more stands for step 64*w+b.
	// fresh has the steps at which the row has the first value of the group, more the steps at which the group already
	// has a value.
	add    func(g *group, r *row, w int, fresh, more uint64)
	finish func(g *group) // nil: the values of the group are the result
}

func (f fold) begin(steps int) *group {
	g := &group{row: newRow(steps)}
	for _, one := range []struct {
		needed bool
		values *[]float64
	}{{f.c, &g.c}, {f.mean, &g.mean}, {f.count, &g.count}} {
		if one.needed {
			*one.values = make([]float64, steps)
		}
	}
	return g
}

// group is one output series while its input is read. The values of the row are sums, minima,
// maxima, counts or sums of squared deviations, depending on the operator.
type group struct {
	row
	// by step: Kahan compensation, incremental mean, number of samples; nil if the operator needs none
	c, mean, count []float64
	incremental    bitmap            // steps at which avg uses mean, because the sum would overflow
	groups         []*histogramGroup // native histograms, by step; nil: none
	drop           bitmap            // steps at which a series of the group has row.dropName; nil: none
}

// addDrop returns drop with the steps of a row that has dropName. drop may be nil.
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

// dropLast reports whether the name of a group is to be removed: whether drop has the last step that is in has.
func dropLast(drop, has bitmap) bool {
	for w := len(drop) - 1; w >= 0; w-- {
		if has[w] != 0 {
			return drop[w]>>(63-bits.LeadingZeros64(has[w]))&1 == 1
		}
	}
	return false
}

var folds = map[parser.ItemType]fold{
	parser.SUM:    {c: true, add: addSum, finish: finishSum},
	parser.AVG:    {c: true, count: true, add: addAverage, finish: finishAverage},
	parser.COUNT:  {add: addCount},
	parser.GROUP:  {add: addOne},
	parser.MIN:    {add: addMin},
	parser.MAX:    {add: addMax},
	parser.STDVAR: {mean: true, count: true, add: addDeviation, finish: finishVariance},
	parser.STDDEV: {mean: true, count: true, add: addDeviation, finish: func(g *group) {
		finishVariance(g)
		for i, v := range g.values {
			g.values[i] = math.Sqrt(v)
		}
	}},
}

func (a *aggregateNode) eval(ev *evaluation, sink func(*row) error) error {
	run, before := aggregateRun{aggregateNode: a, groups: newGrouping(a.expr)}, ev.acct.current
	child := a.child
	valued := a.expr.Op != parser.COUNT && a.expr.Op != parser.GROUP
	if s, ok := child.(*selector); ok && s.vs.Timestamp == nil && !valued {
		child = filteredNode{s, nothing}
	}
	if err := child.eval(ev, func(r *row) error { return run.add(ev, r) }); err != nil {
		return err
	}
	if err := contextError(ev.ctx); err != nil {
		return err
	}
	ev.acct.current = before
	if err := run.finish(ev); err != nil {
		return err
	}
	for _, g := range run.all {
		if err := contextError(ev.ctx); err != nil {
			return err
		}
		if g.has.empty() {
			continue
		}
		if err := sink(&g.row); err != nil {
			return err
		}
	}
	return nil
}

// aggregateRun is one evaluation of an aggregation.
type aggregateRun struct {
	*aggregateNode
	groups *grouping
	all    []*group // by number
}

// add adds a row to its group. It may change the histograms of the row.
func (a *aggregateRun) add(ev *evaluation, r *row) error {
	i, fresh := a.groups.of(r.metric)
	if fresh {
		if err := ev.hold(3 * ev.steps); err != nil {
			return err
		}
		g := a.fold.begin(ev.steps)
		g.metric = a.groups.labels(r.metric)
		a.all = append(a.all, g)
	}
	g := a.all[i]
	if r.hists != nil || g.groups != nil {
		a.foldHistograms(ev, g, r)
	}
	g.drop = addDrop(g.drop, r)
	for w, word := range r.has {
		seen := g.has[w]
		a.fold.add(g, r, w, word&^seen, word&seen)
		g.has[w] = seen | word
	}
	return nil
}

// finish computes the results of the groups and adds their samples to the account. The caller has removed the
// samples of the operand from the account.
func (a *aggregateRun) finish(ev *evaluation) error {
	total := 0
	for _, g := range a.all {
		if err := contextError(ev.ctx); err != nil {
			return err
		}
		if a.fold.finish != nil {
			a.fold.finish(g)
		}
		a.finishHistograms(ev, g)
		g.dropName = dropLast(g.drop, g.has)
		total += g.size()
	}
	_ = ev.acct.add(total) // cannot fail: the operand had at least as many samples
	return nil
}

// grouping numbers the groups of an aggregation, in order of their first series.
type grouping struct {
	names   []string // labels of by or without, sorted
	without bool
	index   map[uint64]int // number of a group, by the hash of its labels
	buf     []byte
	builder *labels.Builder
}

func newGrouping(e *parser.AggregateExpr) *grouping {
	names := slices.Clone(e.Grouping)
	slices.Sort(names)
	return &grouping{names: names, without: e.Without, index: map[uint64]int{},
		builder: labels.NewBuilder(labels.EmptyLabels())}
}

// of returns the number of the group of a series, and whether the group is new.
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
	return g.builder.Labels().Copy() // without a change the builder returns the labels of the series itself
}

const allBits = ^uint64(0)

// copyBits copies the values of the steps 64*w+b for which bit b of word is set.
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

func addSum(g *group, r *row, w int, fresh, more uint64) {
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

func finishSum(g *group) {
	for i := range g.values {
		g.values[i] += g.c[i]
	}
}

func addAverage(g *group, r *row, w int, fresh, more uint64) {
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

func finishAverage(g *group) {
	for i := range g.values {
		if g.incremental != nil && g.incremental.get(i) {
			g.values[i] = g.mean[i] + g.c[i]
		} else {
			g.values[i] = g.values[i]/g.count[i] + g.c[i]/g.count[i]
		}
	}
}

func addCount(g *group, _ *row, w int, fresh, more uint64) {
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

func addOne(g *group, _ *row, w int, fresh, _ uint64) {
	for ; fresh != 0; fresh &= fresh - 1 {
		g.values[w*64+bits.TrailingZeros64(fresh)] = 1
	}
}

// addMin and addMax are two functions because a sign, or a function that compares, makes them three times slower.
func addMin(g *group, r *row, w int, fresh, more uint64) {
	copyBits(g.values, r.values, w, fresh)
	for ; more != 0; more &= more - 1 {
		i := w*64 + bits.TrailingZeros64(more)
		if r.values[i] < g.values[i] || math.IsNaN(g.values[i]) {
			g.values[i] = r.values[i]
		}
	}
}

func addMax(g *group, r *row, w int, fresh, more uint64) {
	copyBits(g.values, r.values, w, fresh)
	for ; more != 0; more &= more - 1 {
		i := w*64 + bits.TrailingZeros64(more)
		if r.values[i] > g.values[i] || math.IsNaN(g.values[i]) {
			g.values[i] = r.values[i]
		}
	}
}

func addDeviation(g *group, r *row, w int, fresh, more uint64) {
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

func finishVariance(g *group) {
	for i := range g.values {
		g.values[i] /= g.count[i]
	}
}

// sharedMax limits the number of expressions that are compared in search of equal ones. With more expressions none is
// compared.
const sharedMax = 64

// printedMax limits the bytes that are copied to print the compared expressions. Beyond the limit none is compared.
const printedMax = 64 << 20

// printing estimates the bytes that are copied to print expressions. Each level of an expression copies the text of
// its operands, and a query may have thousands of levels around a text of megabytes.
func printing[E parser.Expr](all []E) (bytes int) {
	for _, e := range all {
		levels := 0
		parser.Inspect(e, func(_ parser.Node, path []parser.Node) error {
			levels = max(levels, 1+len(path))
			return nil
		})
		pos := e.PositionRange()
		bytes += levels * int(pos.End-pos.Start)
	}
	return bytes
}

// repeatedExpressions returns the aggregations, and the operands of operators between vectors, that occur several times
// in an expression, with their texts.
func repeatedExpressions(e parser.Expr) map[parser.Expr]string {
	var all []parser.Expr
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		switch n := n.(type) {
		case *parser.AggregateExpr:
			all = append(all, n)
		case *parser.BinaryExpr:
			if n.LHS.Type() == parser.ValueTypeVector && n.RHS.Type() == parser.ValueTypeVector && !n.Op.IsSetOperator() {
				all = appendPlain(appendPlain(all, n.LHS), n.RHS)
			}
		}
		return nil
	})
	if len(all) < 2 || len(all) > sharedMax || printing(all) > printedMax {
		return nil
	}
	texts, times := map[parser.Expr]string{}, map[string]int{}
	for _, e := range all {
		texts[e] = textOf(e)
		times[texts[e]]++
	}
	for e, text := range texts {
		if times[text] == 1 {
			delete(texts, e)
		}
	}
	return texts
}

// textOf returns a text that is equal for two expressions only if their results are equal. In addition to the text
// of the expression it has, for each selector, whether the buckets of native histograms are skipped. This depends on
// the functions around the expression, so it is not in the text of the expression.
func textOf(e parser.Expr) string {
	text := []byte(e.String() + "\n")
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		if vs, ok := n.(*parser.VectorSelector); ok {
			text = strconv.AppendBool(text, vs.SkipHistogramBuckets)
		}
		return nil
	})
	return string(text)
}

// appendPlain appends e if it is a selector or a function of a range selector. An operator holds all series of its
// operands in memory anyway, so sharing them takes no more memory.
func appendPlain(all []parser.Expr, e parser.Expr) []parser.Expr {
	switch e := e.(type) {
	case *parser.ParenExpr:
		return appendPlain(all, e.Expr)
	case *parser.VectorSelector:
		return append(all, e)
	case *parser.Call:
		windows := 0
		for _, arg := range e.Args {
			switch arg.(type) {
			case *parser.MatrixSelector:
				windows++
			case *parser.NumberLiteral:
			default:
				return all
			}
		}
		if windows > 0 {
			return append(all, e)
		}
	}
	return all
}

// sharedNode is an expression that occurs several times in a query. It is evaluated once for the same steps, and each
// occurrence emits copies of the resulting rows. An occurrence counts all samples of the expression before it emits the
// first row. The peak is nevertheless the same as in Prometheus: an aggregation also counts its samples before it emits a
// row, and an operator between vectors reads its operands completely before it counts samples of its own.
//
// If the first evaluation has annotations, the expression is evaluated each time, because annotations contain the
// position of the expression.
type sharedNode struct {
	text string
	node node
}

// share returns a sharedNode if the expression is repeated, else n. It returns n in a subquery, because
// equal selectors there may read different ranges.
func (c *compiler) share(e parser.Expr, n node) node {
	if text, repeated := c.repeated[e]; repeated && c.subqueries == 0 {
		return &sharedNode{text, n}
	}
	return n
}

// sharedKey identifies an expression and the steps at which it is evaluated.
type sharedKey struct {
	of                   any // the text of a sharedNode, or an *aggregateNode of a fusion
	start, end, interval int64
	steps                int
	perStep              bool // with statistics of each step
}

// sharedResult has the rows and the counts of one evaluation.
type sharedResult struct {
	rows               []row
	acct               account
	samples            *stats.QuerySamples
	repeats, annotated bool                    // as evaluation.repeats; the evaluation has annotations
	warnings           annotations.Annotations // of the fused aggregations; unused by sharedNode
}

func (ev *evaluation) key(of any) sharedKey {
	return sharedKey{of, ev.start, ev.end, ev.interval, ev.steps, ev.perStep}
}

// result returns the rows of an expression, and adds its counts to ev. The first call evaluates the
// expression. A later call returns nil if the result has annotations: the caller must evaluate the expression again.
func (ev *evaluation) result(of any, evaluate func(*evaluation) (*sharedResult, error)) (*sharedResult, error) {
	result := ev.shared.results[ev.key(of)]
	if result != nil && result.annotated {
		return nil, nil
	}
	if result == nil {
		var err error
		if result, err = evaluate(ev); err != nil {
			return nil, err
		}
		ev.shared.results[ev.key(of)] = result
	}
	return result, ev.use(result)
}

// use adds the counts and annotations of a result to ev.
func (ev *evaluation) use(result *sharedResult) error {
	if err := ev.acct.replay(&result.acct); err != nil {
		return err
	}
	addSamples(ev.samples, result.samples)
	ev.repeats = ev.repeats || result.repeats
	ev.warnings.Merge(result.warnings)
	return nil
}

func (s *sharedNode) eval(ev *evaluation, sink func(*row) error) error {
	return ev.emitCopies(s.text, s.evaluate, s.node, sink)
}

// emitCopies passes copies of the rows of a result to a sink, which may change them. Without a result, it evaluates the
// node.
func (ev *evaluation) emitCopies(of any, evaluate func(*evaluation) (*sharedResult, error), n node,
	sink func(*row) error) error {
	result, err := ev.result(of, evaluate)
	if err != nil {
		return err
	}
	if result == nil {
		return n.eval(ev, sink)
	}
	rows := result.rows
	for i := range rows {
		if err := contextError(ev.ctx); err != nil {
			return err
		}
		r := rows[i].deepClone()
		if err := sink(&r); err != nil {
			return err
		}
	}
	return nil
}

// evaluate evaluates the expression with counts of its own.
func (s *sharedNode) evaluate(ev *evaluation) (*sharedResult, error) {
	own := ev.child()
	result := &sharedResult{samples: own.samples}
	err := s.node.eval(&own, func(r *row) error {
		result.rows = append(result.rows, r.clone())
		return ev.hold(ev.steps)
	})
	result.acct, result.repeats, result.annotated = own.acct, own.repeats, len(own.warnings) > 0
	ev.warnings.Merge(own.warnings)
	return result, err
}

// child returns an evaluation of the same steps that has counts and annotations of its own.
func (ev *evaluation) child() evaluation {
	own := *ev
	own.acct = account{limit: ev.acct.limit - ev.acct.current}
	own.warnings, own.repeats = annotations.Annotations{}, false
	if own.samples = ev.samples.NewChild(); ev.perStep {
		own.samples = stats.NewChildWithStepTracking(ev.start, max(ev.start, ev.end), ev.interval)
	}
	return own
}

// fusion is several aggregations of the same operand. The operand is evaluated once, and its series are added to the
// groups of all these aggregations.
type fusion struct{ nodes []*aggregateNode }

// fusions returns the fusion of each aggregation whose operand occurs in another aggregation, too, and is selected with
// the same hints there.
func (c *compiler) fusions(e parser.Expr) map[*parser.AggregateExpr]*fusion {
	var all []*parser.AggregateExpr
	parser.Inspect(e, func(n parser.Node, path []parser.Node) error {
		a, ok := n.(*parser.AggregateExpr)
		if !ok || folds[a.Op].add == nil {
			return nil
		}
		inSubquery := slices.ContainsFunc(path, func(n parser.Node) bool { _, ok := n.(*parser.SubqueryExpr); return ok })
		if _, repeated := c.repeated[a]; !repeated && !inSubquery {
			all = append(all, a)
		}
		return nil
	})
	if len(all) < 2 || len(all) > sharedMax || printing(all) > printedMax {
		return nil
	}
	found, of := map[string]*fusion{}, map[*parser.AggregateExpr]*fusion{} // by operand and hints; by aggregation
	times := map[*fusion]int{}                                             // number of aggregations
	for _, a := range all {
		key := textOf(a.Expr) + c.hintsIn(a.Expr)
		if found[key] == nil {
			found[key] = &fusion{}
		}
		of[a] = found[key]
		times[of[a]]++
	}
	maps.DeleteFunc(of, func(_ *parser.AggregateExpr, f *fusion) bool { return times[f] == 1 })
	return of
}

// hintsIn returns a text of the hints of all selectors in an expression.
func (c *compiler) hintsIn(e parser.Expr) string {
	var b strings.Builder
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		if vs, ok := n.(*parser.VectorSelector); ok && c.hints[vs] != nil {
			fmt.Fprintf(&b, "\n%+v", *c.hints[vs])
		}
		return nil
	})
	return b.String()
}

// fuse returns an aggregation that may be evaluated together with others.
func (c *compiler) fuse(a *aggregateNode) node {
	f := c.fused[a.expr]
	if f == nil || c.subqueries > 0 {
		return a
	}
	f.nodes = append(f.nodes, a)
	return &fusedNode{a, f}
}

// fusedNode is an aggregation of a fusion. The first aggregation that is evaluated evaluates all of them. Each
// aggregation counts the samples of the operand. If the operand has annotations, each aggregation is evaluated alone,
// because annotations contain the position of the operand.
type fusedNode struct {
	*aggregateNode
	fusion *fusion
}

func (f *fusedNode) eval(ev *evaluation, sink func(*row) error) error {
	return ev.emitCopies(f.aggregateNode, f.evaluate, f.aggregateNode, sink)
}

// evaluate evaluates the operand and all aggregations of the fusion, and returns the result of this aggregation. If the
// operand has annotations, only this aggregation gets a result.
func (f *fusedNode) evaluate(ev *evaluation) (*sharedResult, error) {
	own := ev.child()
	nodes, runs, evs := f.fusion.nodes, make([]aggregateRun, len(f.fusion.nodes)), make([]evaluation, len(f.fusion.nodes))
	for i, n := range nodes {
		runs[i], evs[i] = aggregateRun{aggregateNode: n, groups: newGrouping(n.expr)}, own
		evs[i].warnings = annotations.Annotations{}
	}
	// An aggregation may change the histograms of a row. From the first row with histograms on, all aggregations but the
	// last therefore get copies.
	copies := false
	err := f.child.eval(&own, func(r *row) error {
		copies = copies || r.hists != nil
		for i := range runs {
			one := r
			if copies && i < len(runs)-1 {
				c := r.deepClone()
				one = &c
			}
			if err := runs[i].add(&evs[i], one); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		err = contextError(ev.ctx)
	}
	if err != nil {
		return nil, err
	}
	for i, n := range nodes {
		if len(own.warnings) > 0 && n != f.aggregateNode {
			ev.shared.results[ev.key(n)] = &sharedResult{annotated: true}
			continue
		}
		at := &evs[i]
		at.acct = own.acct
		at.acct.current = 0
		if err := runs[i].finish(at); err != nil {
			return nil, err
		}
		at.warnings.Merge(own.warnings)
		result := &sharedResult{acct: at.acct, samples: own.samples, repeats: own.repeats, warnings: at.warnings}
		for _, g := range runs[i].all {
			if !g.has.empty() {
				result.rows = append(result.rows, g.row)
			}
		}
		ev.shared.results[ev.key(n)] = result
	}
	return ev.shared.results[ev.key(f.aggregateNode)], nil
}

// addSamples adds the statistics from to the statistics to, of another evaluation of the same steps.
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
