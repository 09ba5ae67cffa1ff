package columns

import "slices"

// numberNode is a number.
type numberNode float64

// eval implements node.
func (n numberNode) eval(ev *evaluation, sink func(*row) error) error {
	return ev.emitScalar(func(int, int64) float64 { return float64(n) }, sink)
}

// timeNode is time().
type timeNode struct{}

// eval implements node.
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

// eval implements node.
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
		if err := sets.addUnless(r.distinct, r); err != nil {
			return err
		}
		return sink(r)
	})
	if err != nil {
		return err
	}
	switch {
	case sets.dupStep < 0 || ev.engine.opts.DelayedNameRemoval:
	case mixed: // no error if one sample is a float and the other a histogram
		return errGiveUp("histograms and floats with the same labels")
	default:
		return errSameLabels
	}
	ev.repeats = ev.repeats || sets.repeated
	return nil
}

// onceNode is an expression that has the same value at every step.
type onceNode struct{ child node }

// eval implements node.
func (o onceNode) eval(ev *evaluation, sink func(*row) error) error {
	once := *ev
	once.steps, once.end, once.perStep = 1, ev.start, false
	once.samples = ev.samples.NewChild()
	added, r := 0, newRow(ev.steps)
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
