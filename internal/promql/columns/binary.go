package columns

import (
	"math"
	"slices"

	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/parser/posrange"
)

// arithmetic computes to[i] = a[i] op b[i] for all steps.
func arithmetic(op parser.ItemType, to, a, b []float64) {
	b, to = b[:len(a)], to[:len(a)]
	switch op {
	case parser.ADD:
		for i := range a {
			to[i] = a[i] + b[i]
		}
	case parser.SUB:
		for i := range a {
			to[i] = a[i] - b[i]
		}
	case parser.MUL:
		for i := range a {
			to[i] = a[i] * b[i]
		}
	case parser.DIV:
		for i := range a {
			to[i] = a[i] / b[i]
		}
	case parser.POW:
		for i := range a {
			to[i] = math.Pow(a[i], b[i])
		}
	case parser.MOD:
		for i := range a {
			to[i] = math.Mod(a[i], b[i])
		}
	case parser.ATAN2:
		for i := range a {
			to[i] = math.Atan2(a[i], b[i])
		}
	}
}

func compare(op parser.ItemType, a, b float64) bool {
	switch op {
	case parser.EQLC:
		return a == b
	case parser.NEQ:
		return a != b
	case parser.GTR:
		return a > b
	case parser.LSS:
		return a < b
	case parser.GTE:
		return a >= b
	default:
		return a <= b
	}
}

func isArithmetic(op parser.ItemType) bool {
	switch op {
	case parser.ADD, parser.SUB, parser.MUL, parser.DIV, parser.POW, parser.MOD, parser.ATAN2:
		return true
	}
	return false
}

// keepsName reports whether a binary operator keeps the metric name.
func keepsName(op parser.ItemType) bool { return op.IsComparisonOperator() || isTrim(op) }

// isTrim reports whether an operator removes buckets of native histograms.
func isTrim(op parser.ItemType) bool { return op == parser.TRIM_UPPER || op == parser.TRIM_LOWER }

// scalarsNode is an operator between scalars.
type scalarsNode struct {
	op   parser.ItemType
	a, b node
}

func (s *scalarsNode) eval(ev *evaluation, sink func(*row) error) error {
	counts := ev.newStepCounts()
	a, err := ev.scalar(s.a)
	if err != nil {
		return err
	}
	b, err := ev.scalar(s.b)
	if err != nil {
		return err
	}
	r := newRow(ev.steps)
	r.has.fill(ev.steps)
	counts.fullIn += 2
	counts.returned(&r)
	if isArithmetic(s.op) {
		arithmetic(s.op, r.values, a, b)
	} else {
		for i := range a {
			r.values[i] = truth(compare(s.op, a[i], b[i]))
		}
	}
	if err := counts.finish(&ev.acct, -1, nil); err != nil {
		return err
	}
	return sink(&r)
}

// vectorScalarNode is an operator between a vector and a scalar.
type vectorScalarNode struct {
	op             parser.ItemType
	vector, scalar node
	swap           bool // the scalar is the left operand
	bool           bool
	leadMS         int64 // see filter
	pos            posrange.PositionRange
}

func (v *vectorScalarNode) eval(ev *evaluation, sink func(*row) error) error {
	counts := ev.newStepCounts()
	scalar, after, err := v.operand(ev)
	if err != nil {
		if v.swap {
			return err
		}
		return ev.errorOf(v.vector, err)
	}
	dropName := v.bool || !keepsName(v.op)
	sets := ev.newLabelsets()
	counts.fullIn++
	vector := v.vector
	if f := v.filterOf(scalar); f != nil {
		vector = filteredNode{vector.(*selector), f}
	}
	err = after.vector(vector, func(r *row) error {
		counts.read(r)
		if r.filtered {
			r.has, r.kept, r.filtered = r.kept, r.has, false
		} else {
			v.apply(ev, r, scalar)
		}
		if r.hists != nil {
			v.histogramsOf(ev, r, scalar)
		}
		if r.has.empty() {
			return nil
		}
		counts.returned(r)
		if dropName {
			ev.drop(r)
		}
		return sets.pass(!dropName || r.distinct, r, sink)
	})
	if err != nil {
		return err
	}
	if err := ev.acct.replay(&after.account); err != nil {
		return err
	}
	return ev.finish(counts, sets)
}

// operand evaluates the scalar. If the scalar is the right operand, Prometheus evaluates it
// after the vector, so its counts and annotations are in after.
func (v *vectorScalarNode) operand(ev *evaluation) (values []float64, after *aside, err error) {
	if v.swap {
		values, err = ev.scalar(v.scalar)
		return values, &aside{account: account{limit: ev.acct.limit}, ev: ev}, err
	}
	after, err = ev.aside(func() (err error) {
		values, err = ev.scalar(v.scalar)
		return err
	})
	return values, after, err
}

func (v *vectorScalarNode) apply(ev *evaluation, r *row, scalar []float64) {
	if isArithmetic(v.op) {
		if v.swap {
			arithmetic(v.op, r.values, scalar, r.values)
		} else {
			arithmetic(v.op, r.values, r.values, scalar)
		}
		return
	}
	if isTrim(v.op) {
		v.refuseFloats(ev, r)
		return
	}
	for i, value := range r.values {
		if r.histogram(i) != nil {
			continue
		}
		a, b := value, scalar[i]
		if v.swap {
			a, b = b, a
		}
		keep := compare(v.op, a, b)
		switch {
		case v.bool:
			r.values[i] = truth(keep)
		case !keep:
			r.has[i>>6] &^= 1 << (i & 63)
		}
	}
}

// numberNode is a number.
type numberNode float64

func (n numberNode) eval(ev *evaluation, sink func(*row) error) error {
	return ev.emitScalar(func(int, int64) float64 { return float64(n) }, sink)
}

// timeNode is time().
type timeNode struct{}

func (timeNode) eval(ev *evaluation, sink func(*row) error) error {
	return ev.emitScalar(func(_ int, ts int64) float64 { return float64(ts) / 1000 }, sink)
}

// emitScalar emits a scalar that has no operands.
func (ev *evaluation) emitScalar(value func(step int, ts int64) float64, sink func(*row) error) error {
	// A large query may have a million scalars, and no other node that checks the context.
	if err := contextError(ev.ctx); err != nil {
		return err
	}
	r := newRow(ev.steps)
	r.has.fill(ev.steps)
	for i := range r.values {
		r.values[i] = value(i, ev.start+int64(i)*ev.interval)
	}
	if err := ev.acct.add(ev.steps); err != nil {
		return err
	}
	return sink(&r)
}

// negateNode is the unary minus.
type negateNode struct{ child node }

func (n negateNode) eval(ev *evaluation, sink func(*row) error) error {
	sets, mixed := ev.newLabelsets(), false
	err := n.child.eval(ev, func(r *row) error {
		mixed = mixed || r.hists != nil
		for i := range r.values {
			r.values[i] = -r.values[i]
		}
		for i, h := range r.hists {
			if h != nil {
				r.hists[i] = h.Copy().Mul(-1)
			}
		}
		ev.drop(r)
		return sets.pass(r.distinct, r, sink)
	})
	if err != nil {
		return err
	}
	return ev.checkDistinct(sets, mixed, ev.engine.opts.DelayedNameRemoval)
}

// onceNode is an expression that has the same value at every step.
type onceNode struct{ child node }

func (o onceNode) eval(ev *evaluation, sink func(*row) error) error {
	once := *ev
	once.steps, once.end, once.perStep = 1, ev.start, false
	once.samples = ev.samples.NewChild()
	added, r := 0, newRow(ev.steps) // added: samples of the row at the steps after the first
	err := o.child.eval(&once, func(one *row) error {
		if !one.has.get(0) {
			return nil
		}
		r.clear()
		r.metric, r.dropName = one.metric, one.dropName
		for i := range r.values {
			r.values[i] = one.values[0]
			if h := one.histogram(0); h != nil {
				r.setHistogram(i, h)
			}
		}
		r.has.fill(ev.steps)
		added += (ev.steps - 1) * one.size()
		return sink(&r)
	})
	ev.acct, ev.repeats = once.acct, ev.repeats || once.repeats
	if err != nil {
		return err
	}
	for i := range ev.steps {
		ev.samples.IncrementSamplesAtStep(i, once.samples.TotalSamples)
	}
	ev.samples.IncrementSamplesReadAtStep(0, once.samples.SamplesRead)
	return ev.acct.add(added)
}

// scalar evaluates a node of type scalar.
func (ev *evaluation) scalar(n node) ([]float64, error) {
	var values []float64
	err := n.eval(ev, func(r *row) error {
		values = slices.Clone(r.values)
		return nil
	})
	return values, err
}
