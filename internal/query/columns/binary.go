package columns

import (
	"math"

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

// compare returns a op b.
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

// eval implements node.
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
			if compare(s.op, a[i], b[i]) {
				r.values[i] = 1
			}
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
	pos            posrange.PositionRange
}

// eval implements node.
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
	err = after.vector(v.vector, func(r *row) error {
		counts.read(r)
		v.apply(ev, r, scalar)
		if r.hists != nil {
			v.histogramsOf(ev, r, scalar)
		}
		if r.has.empty() {
			return nil
		}
		counts.returned(r)
		if dropName {
			ev.drop(r)
			if err := sets.addUnless(r.distinct, r); err != nil {
				return err
			}
		}
		return sink(r)
	})
	if err != nil {
		return err
	}
	if err := ev.acct.replay(&after.account); err != nil {
		return err
	}
	ev.repeats = ev.repeats || sets.repeated
	return counts.finish(&ev.acct, ev.dup(sets), errSameLabels)
}

// operand evaluates the scalar. If it is the right operand, Prometheus evaluates it after
// the vector.
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

// apply applies the operator to a row.
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
		case v.bool && keep:
			r.values[i] = 1
		case v.bool:
			r.values[i] = 0
		case !keep:
			r.has[i>>6] &^= 1 << (i & 63)
		}
	}
}
