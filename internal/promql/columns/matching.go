package columns

import (
	"errors"
	"fmt"
	"slices"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/schema"
)

// collect evaluates a node and returns copies of all rows.
func (ev *evaluation) collect(n node, counts *stepCounts) ([]row, error) {
	var rows []row
	err := n.eval(ev, func(r *row) error {
		if counts != nil {
			counts.read(r)
		}
		if err := ev.hold(ev.steps); err != nil {
			return err
		}
		rows = append(rows, r.clone())
		return nil
	})
	return rows, err
}

// borrow evaluates a node and returns its rows. The rows must not be changed, because other users of a shared node get
// the same rows.
func (ev *evaluation) borrow(n node, counts *stepCounts) ([]row, error) {
	s, ok := n.(*sharedNode)
	if !ok {
		return ev.collect(n, counts)
	}
	result, err := ev.result(s.text, s.evaluate)
	if err != nil {
		return nil, err
	}
	if result == nil {
		return ev.collect(s.node, counts)
	}
	for i := range result.rows {
		counts.read(&result.rows[i])
	}
	return result.rows, nil
}

// signatures assigns numbers to the sets of matching labels of two operands.
type signatures struct {
	names   []string
	on      bool
	numbers map[string]int // by encoded labels
	buf     []byte
}

func newSignatures(m *parser.VectorMatching) *signatures {
	s := &signatures{on: m.On, numbers: map[string]int{}, names: slices.Clone(m.MatchingLabels)}
	if !m.On {
		s.names = append(s.names, labels.MetricName)
	}
	slices.Sort(s.names)
	return s
}

// of returns the number of the matching labels of a series. Series match if they have the same number.
func (s *signatures) of(metric labels.Labels) int {
	if s.on {
		s.buf = metric.BytesWithLabels(s.buf, s.names...)
	} else {
		s.buf = metric.BytesWithoutLabels(s.buf, s.names...)
	}
	n, ok := s.numbers[string(s.buf)]
	if !ok {
		n = len(s.numbers)
		s.numbers[string(s.buf)] = n
	}
	return n
}

// setNode is one of the operators and, or, unless.
type setNode struct {
	expr *parser.BinaryExpr
	a, b node
}

func (n *setNode) eval(ev *evaluation, sink func(*row) error) error {
	counts, sets := ev.newStepCounts(), ev.newLabelsets()
	left, right, err := ev.operands(n.a, n.b, counts, ev.collect)
	if err != nil {
		return err
	}
	emit := func(r *row) error {
		if err := contextError(ev.ctx); err != nil {
			return err
		}
		if r.has.empty() {
			return nil
		}
		counts.returned(r)
		return sets.pass(false, r, sink)
	}
	// The samples of decides determine which samples of follows are returned. For "and" and "unless", right decides
	// about left, and only samples of left are returned. For "or", left is returned, and decides about right.
	signatures := newSignatures(n.expr.VectorMatching)
	present := map[int]bitmap{} // by signature: the steps at which a series of decides has a sample
	decides, follows := right, left
	if n.expr.Op == parser.LOR {
		decides, follows = left, right
	}
	for i := range decides {
		if err := ev.check(i); err != nil {
			return err
		}
		sig := signatures.of(decides[i].metric)
		if present[sig] == nil { // no more bitmaps than rows, so hold need not count them
			present[sig] = newBitmap(ev.steps)
		}
		for w, word := range decides[i].has {
			present[sig][w] |= word
		}
	}
	if n.expr.Op == parser.LOR {
		for i := range left {
			if err := emit(&left[i]); err != nil {
				return err
			}
		}
	}
	for i := range follows {
		r := &follows[i]
		has := present[signatures.of(r.metric)]
		for w := range r.has {
			switch {
			case n.expr.Op == parser.LAND && has == nil:
				r.has[w] = 0
			case n.expr.Op == parser.LAND:
				r.has[w] &= has[w]
			case has != nil:
				r.has[w] &^= has[w]
			}
		}
		if err := emit(r); err != nil {
			return err
		}
	}
	return ev.finish(counts, sets)
}

// matchNode is an arithmetic or comparison operator between two vectors.
type matchNode struct {
	expr *parser.BinaryExpr
	a, b node
}

func (n *matchNode) eval(ev *evaluation, sink func(*row) error) error {
	counts := ev.newStepCounts()
	left, right, err := ev.operands(n.a, n.b, counts, ev.borrow)
	if err != nil {
		return err
	}
	byStep := isTrim(n.expr.Op)
	for _, side := range [][]row{left, right} {
		byStep = byStep || slices.ContainsFunc(side, func(r row) bool { return r.hists != nil })
	}
	m := &matchRun{matchNode: n, ev: ev, matching: n.expr.VectorMatching, counts: counts, sets: ev.newLabelsets(),
		builder: labels.NewBuilder(labels.EmptyLabels())}
	m.swap = m.matching.Card == parser.CardOneToMany
	m.many, m.one = left, right
	if m.swap {
		m.many, m.one = right, left
	}
	if err := m.sign(); err != nil {
		return err
	}
	if pairs, metrics, ok := m.pairs(); ok && !byStep {
		err = m.rows(pairs, metrics, sink)
	} else {
		err = m.stepwise(sink)
	}
	if err != nil {
		return err
	}
	ev.repeats = ev.repeats || m.sets.repeated
	if m.failed != nil {
		return counts.finishBefore(&ev.acct, m.failAt, m.failed)
	}
	return counts.finish(&ev.acct, ev.dup(m.sets), errSameLabels)
}

// matchRun is one evaluation of a matchNode.
type matchRun struct {
	*matchNode
	ev       *evaluation
	matching *parser.VectorMatching
	// many and one are the operands; with one-to-many matching (swap) the right operand is many.
	many, one         []row
	manySigs, oneSigs []int // signature of each row of many and one
	sigs              int   // number of signatures
	swap              bool
	counts            *stepCounts
	sets              *labelsets
	builder           *labels.Builder
	failAt            int   // step at which the operator failed; used only if failed is set
	failed            error // the error of the operator at step failAt
	refused           error // the last annotation of the current step; Prometheus returns only the last of a step
}

// sample is a float or a histogram.
type sample struct {
	f float64
	h *histogram.FloatHistogram
}

func (r *row) sample(step int) sample { return sample{r.values[step], r.histogram(step)} }

// sign sets the signatures of all series.
func (m *matchRun) sign() error {
	signatures := newSignatures(m.matching)
	for _, side := range []struct {
		rows []row
		sigs *[]int
	}{{m.many, &m.manySigs}, {m.one, &m.oneSigs}} {
		*side.sigs = make([]int, len(side.rows))
		for i := range side.rows {
			if err := m.ev.check(i); err != nil {
				return err
			}
			(*side.sigs)[i] = signatures.of(side.rows[i].metric)
		}
	}
	m.sigs = len(signatures.numbers)
	return nil
}

// metric returns the labels of the result of two series.
func (m *matchRun) metric(many, one labels.Labels) labels.Labels {
	m.builder.Reset(many)
	if m.expr.ReturnBool && !m.ev.engine.opts.DelayedNameRemoval || !keepsName(m.expr.Op) {
		schema.Metadata{}.SetToLabels(m.builder)
	}
	if m.matching.Card == parser.CardOneToOne {
		if m.matching.On {
			m.builder.Keep(m.matching.MatchingLabels...)
		} else {
			m.builder.Del(m.matching.MatchingLabels...)
		}
	}
	for _, name := range m.matching.Include {
		if v := one.Get(name); v != "" {
			m.builder.Set(name, v)
		} else {
			m.builder.Del(name)
		}
	}
	return m.builder.Labels()
}

// pairs returns for each series of many the index of the matching series of one, or -1 if there is none, and the
// labels of the result. ok is false if there are fill values, if the query has ended, or if a series has several
// possible matches. Several matches are an error only if they have samples at the same step; stepwise finds this step.
func (m *matchRun) pairs() (pairs []int, metrics []labels.Labels, ok bool) {
	if m.matching.FillValues.LHS != nil || m.matching.FillValues.RHS != nil {
		return nil, nil, false
	}
	of := make([]int, m.sigs) // by signature: index of the series in m.one; -1: none
	for i := range of {
		of[i] = -1
	}
	for i, sig := range m.oneSigs {
		if of[sig] >= 0 {
			return nil, nil, false
		}
		of[sig] = i
	}
	used := make([]bool, m.sigs)
	type result struct {
		sig  int
		hash uint64
	}
	seen := map[result]bool{}
	for i, sig := range m.manySigs {
		if m.matching.Card == parser.CardOneToOne && used[sig] && of[sig] >= 0 || m.ev.check(i) != nil {
			return nil, nil, false
		}
		used[sig] = true
		pairs = append(pairs, of[sig])
		var metric labels.Labels
		if of[sig] >= 0 {
			metric = m.metric(m.many[i].metric, m.one[of[sig]].metric)
			key := result{sig, metric.Hash()}
			if seen[key] {
				return nil, nil, false
			}
			seen[key] = true
		}
		metrics = append(metrics, metric)
	}
	return pairs, metrics, true
}

// rows computes the results pair by pair, each for all steps.
func (m *matchRun) rows(pairs []int, metrics []labels.Labels, sink func(*row) error) error {
	out := newRow(m.ev.steps)
	for i, j := range pairs {
		if j < 0 {
			if err := m.ev.check(i); err != nil {
				return err
			}
			continue
		}
		if err := contextError(m.ev.ctx); err != nil {
			return err
		}
		many, one := &m.many[i], &m.one[j]
		out.metric, out.dropName = metrics[i], m.expr.ReturnBool
		for w := range out.has {
			out.has[w] = many.has[w] & one.has[w]
		}
		left, right := many.values, one.values
		if m.swap {
			left, right = right, left
		}
		m.apply(&out, left, right)
		if out.has.empty() {
			continue
		}
		m.counts.returned(&out)
		if err := m.sets.pass(false, &out, sink); err != nil {
			return err
		}
	}
	return nil
}

func (m *matchRun) apply(out *row, left, right []float64) {
	if isArithmetic(m.expr.Op) {
		arithmetic(m.expr.Op, out.values, left, right)
		return
	}
	for i, a := range left {
		keep := compare(m.expr.Op, a, right[i])
		out.values[i] = a
		if m.expr.ReturnBool {
			out.values[i] = truth(keep)
		} else if !keep {
			out.has[i>>6] &^= 1 << (i & 63)
		}
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// pair is two series that match: indexes, or -1 for a fill value.
type pair struct{ many, one int }

// stepwise computes the results step by step, as Prometheus does. It is slower than rows, and is used if the
// operator may fail at a step, if there are fill values, or if there are histograms.
func (m *matchRun) stepwise(sink func(*row) error) error {
	var order []pair
	results := map[pair]*row{}
	add := func(p pair, step int, value sample) error {
		r := results[p]
		if r == nil {
			if err := m.ev.hold(m.ev.steps); err != nil { // the number of pairs may be the product of the numbers of series
				return err
			}
			fresh := newRow(m.ev.steps)
			fresh.metric, fresh.dropName = m.metricOf(p), m.expr.ReturnBool
			r = &fresh
			results[p], order = r, append(order, p)
		}
		if value.h != nil {
			r.setHistogram(step, value.h)
			return nil
		}
		r.values[step] = value.f
		r.has.set(step)
		return nil
	}
	for step := range m.ev.steps {
		if err := contextError(m.ev.ctx); err != nil {
			return err
		}
		m.refused = nil
		err := m.step(step, add)
		m.annotate()
		if errors.As(err, new(errGiveUp)) {
			return err
		}
		if err != nil {
			m.failAt, m.failed = step, err
			break
		}
	}
	for _, p := range order {
		if err := contextError(m.ev.ctx); err != nil {
			return err
		}
		r := results[p]
		m.counts.returned(r)
		if err := m.sets.add(r); err != nil {
			return err
		}
		if m.failed != nil {
			continue
		}
		if err := sink(r); err != nil {
			return err
		}
	}
	return nil
}

// metricOf returns the labels of the result of a pair.
func (m *matchRun) metricOf(p pair) labels.Labels {
	matched := func(other labels.Labels) labels.Labels {
		return other.MatchLabels(m.matching.On, m.matching.MatchingLabels...)
	}
	switch {
	case p.one < 0:
		return m.metric(m.many[p.many].metric, matched(m.many[p.many].metric))
	case p.many < 0:
		return m.metric(matched(m.one[p.one].metric), m.one[p.one].metric)
	}
	return m.metric(m.many[p.many].metric, m.one[p.one].metric)
}

// step matches the samples of one step.
func (m *matchRun) step(step int, add func(pair, int, sample) error) error {
	one := make([]int, m.sigs) // by signature: index of the series in m.one that has a sample at the step; -1: none
	for i := range one {
		one[i] = -1
	}
	for i := range m.one {
		if !m.one[i].has.get(step) {
			continue
		}
		sig := m.oneSigs[i]
		if one[sig] < 0 {
			one[sig] = i
			continue
		}
		if m.matching.FillValues.LHS == nil && m.matching.FillValues.RHS == nil &&
			!slices.ContainsFunc(m.many, func(r row) bool { return r.has.get(step) }) {
			return nil // nothing is matched with an empty operand
		}
		return m.duplicate(m.one[i].metric, m.one[one[sig]].metric)
	}
	// By signature, for the errors of several matches: whether there was a match, and the hashes of the results' labels.
	matched, inserted := make([]bool, m.sigs), make([]map[uint64]bool, m.sigs)
	for i := range m.many {
		if !m.many[i].has.get(step) {
			continue
		}
		sig := m.manySigs[i]
		p, value := pair{i, one[sig]}, sample{}
		if p.one >= 0 {
			value = m.one[p.one].sample(step)
		} else {
			if m.matching.FillValues.RHS == nil {
				continue
			}
			value.f = *m.matching.FillValues.RHS
		}
		if err := m.result(p, sig, step, m.many[i].sample(step), value, matched, inserted, add); err != nil {
			return err
		}
	}
	f := m.matching.FillValues.LHS
	if f == nil {
		return nil
	}
	for i := range m.one {
		if !m.one[i].has.get(step) || matched[m.oneSigs[i]] || len(inserted[m.oneSigs[i]]) > 0 {
			continue
		}
		if err := m.result(pair{-1, i}, m.oneSigs[i], step, sample{f: *f}, m.one[i].sample(step), matched, inserted,
			add); err != nil {
			return err
		}
	}
	return nil
}

// result adds the result of a pair at one step.
func (m *matchRun) result(p pair, sig, step int, many, one sample, matched []bool, inserted []map[uint64]bool,
	add func(pair, int, sample) error) error {
	left, right := many, one
	if m.swap {
		left, right = right, left
	}
	value, keep, info, err := m.compute(left, right)
	if err != nil {
		m.refused = err
		return nil
	}
	if info != nil {
		m.refused = info
	}
	if m.expr.ReturnBool {
		value = sample{f: truth(keep)}
	}
	if m.matching.Card == parser.CardOneToOne {
		if matched[sig] {
			return errors.New("multiple matches for labels: many-to-one matching must be explicit (group_left/group_right)")
		}
		matched[sig] = true
	} else {
		hash := m.metricOf(p).Hash()
		if inserted[sig] == nil {
			inserted[sig] = map[uint64]bool{}
		}
		if inserted[sig][hash] {
			return errors.New("multiple matches for labels: grouping labels must ensure unique matches")
		}
		inserted[sig][hash] = true
	}
	if keep || m.expr.ReturnBool {
		return add(p, step, value)
	}
	return nil
}

// duplicate returns Prometheus' error for two series of m.one that have the same matching labels.
func (m *matchRun) duplicate(a, b labels.Labels) error {
	side := "right"
	if m.swap {
		side = "left"
	}
	first, second := a.String(), b.String()
	if first > second {
		first, second = second, first
	}
	return fmt.Errorf("found duplicate series for the match group %s on the %s hand-side of the operation: [%s, %s];many-to-many matching not allowed: matching labels must be unique on one side",
		a.MatchLabels(m.matching.On, m.matching.MatchingLabels...).String(), side, first, second)
}
