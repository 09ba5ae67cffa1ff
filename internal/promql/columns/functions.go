package columns

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/grafana/regexp"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/annotations"
)

// pointwise are the functions that map each float of a vector, by name. scalars are the other arguments, by step. The
// functions change the values in place, and clear the bits of steps that get no value.
var pointwise = map[string]func(values []float64, scalars [][]float64, has bitmap){
	"abs": each(math.Abs), "ceil": each(math.Ceil), "floor": each(math.Floor), "exp": each(math.Exp),
	"sqrt": each(math.Sqrt),
	"ln":   each(math.Log), "log2": each(math.Log2), "log10": each(math.Log10),
	"sin": each(math.Sin), "cos": each(math.Cos), "tan": each(math.Tan), "asin": each(math.Asin), "acos": each(math.Acos),
	"atan": each(math.Atan),
	"sinh": each(math.Sinh), "cosh": each(math.Cosh), "tanh": each(math.Tanh), "asinh": each(math.Asinh),
	"acosh": each(math.Acosh), "atanh": each(math.Atanh),
	"rad": each(func(v float64) float64 { return v * math.Pi / 180 }),
	"deg": each(func(v float64) float64 { return v * 180 / math.Pi }),
	"sgn": each(func(v float64) float64 {
		switch {
		case v < 0:
			return -1
		case v > 0:
			return 1
		}
		return v
	}),
	"round": round,
	"clamp": func(values []float64, scalars [][]float64, has bitmap) { clamp(values, scalars[0], scalars[1], has) },
	"clamp_min": func(values []float64, scalars [][]float64, has bitmap) {
		clamp(values, scalars[0], constant(math.Inf(1), len(values)), has)
	},
	"clamp_max": func(values []float64, scalars [][]float64, has bitmap) {
		clamp(values, constant(math.Inf(-1), len(values)), scalars[0], has)
	},
}

func each(f func(float64) float64) func([]float64, [][]float64, bitmap) {
	return func(values []float64, _ [][]float64, has bitmap) {
		for i, v := range values {
			if has.get(i) {
				values[i] = f(v)
			}
		}
	}
}

func constant(v float64, n int) []float64 {
	values := make([]float64, n)
	for i := range values {
		values[i] = v
	}
	return values
}

func round(values []float64, scalars [][]float64, _ bitmap) {
	to := 1.0
	for i, v := range values {
		if len(scalars) > 0 {
			to = scalars[0][i]
		}
		inverse := 1.0 / to
		values[i] = math.Floor(v*inverse+0.5) / inverse
	}
}

func clamp(values, least, greatest []float64, has bitmap) {
	for i, v := range values {
		if greatest[i] < least[i] {
			has[i>>6] &^= 1 << (i & 63)
			continue
		}
		values[i] = math.Max(least[i], math.Min(greatest[i], v))
	}
}

// pointwiseNode is a function of each sample.
type pointwiseNode struct {
	name    string
	f       func(values []float64, scalars [][]float64, has bitmap)
	child   node
	scalars []node
}

func (p *pointwiseNode) eval(ev *evaluation, sink func(*row) error) error {
	counts, sets := ev.newStepCounts(), ev.newLabelsets()
	scalars, after, err := ev.scalarsAfter(p.scalars)
	if err != nil {
		return ev.errorOf(p.child, err)
	}
	counts.fullIn += len(scalars)
	err = after.vector(p.child, func(r *row) error {
		counts.read(r)
		r.dropHistograms()
		p.f(r.values, scalars, r.has)
		if r.has.empty() {
			return nil
		}
		counts.returned(r)
		ev.drop(r)
		return sets.pass(r.distinct, r, sink)
	})
	if err != nil {
		return err
	}
	if err := ev.acct.replay(&after.account); err != nil {
		return err
	}
	return ev.finish(counts, sets)
}

// scalarsAfter evaluates scalars that Prometheus evaluates after a vector.
func (ev *evaluation) scalarsAfter(nodes []node) ([][]float64, *aside, error) {
	var all [][]float64
	after, err := ev.aside(func() error {
		for _, n := range nodes {
			values, err := ev.scalar(n)
			if err != nil {
				return err
			}
			all = append(all, values)
		}
		return nil
	})
	return all, after, err
}

// aside has the counts and annotations of scalar operands that are evaluated before a vector here, but after the
// vector in Prometheus. The operator adds them after the vector's.
type aside struct {
	account
	ev              *evaluation
	warnings        annotations.Annotations
	before, sinking annotations.Annotations // annotations of the evaluation before the vector; annotations of the sink
}

// aside calls evaluate with a new account and new annotations, and returns both. Before it returns,
// it restores the account and the annotations of ev.
func (ev *evaluation) aside(evaluate func() error) (*aside, error) {
	saved, warnings := ev.acct, ev.warnings
	ev.acct, ev.warnings = account{limit: saved.limit}, annotations.Annotations{}
	err := evaluate()
	after := &aside{account: ev.acct, ev: ev, warnings: ev.warnings}
	ev.acct, ev.warnings = saved, warnings
	return after, err
}

// vector evaluates the vector n, and merges annotations in Prometheus' order: first the vector's, then those in a, then
// the sink's. The order matters: if an annotation occurs twice, Prometheus keeps the
// later position.
func (a *aside) vector(n node, sink func(*row) error) error {
	ev := a.ev
	if len(a.warnings) == 0 {
		return n.eval(ev, sink)
	}
	a.before, a.sinking = ev.warnings, annotations.Annotations{}
	ev.warnings = annotations.Annotations{}
	err := n.eval(ev, func(r *row) error {
		own := ev.warnings
		ev.warnings = a.sinking
		err := sink(r)
		ev.warnings = own
		return err
	})
	own := ev.warnings
	ev.warnings = a.before
	for _, next := range []annotations.Annotations{own, a.warnings, a.sinking} {
		ev.warnings.Merge(next)
	}
	return err
}

// errorOf returns Prometheus' error for a failed scalar that Prometheus evaluates after a vector. If the vector fails,
// too, it returns the error of the vector.
func (ev *evaluation) errorOf(vector node, scalar error) error {
	var gaveUp errGiveUp
	if errors.As(scalar, &gaveUp) || errors.Is(scalar, errNeedSamples) {
		return scalar
	}
	if err := vector.eval(ev, func(*row) error { return nil }); err != nil {
		return err
	}
	return scalar
}

// piNode is pi().
type piNode struct{}

func (piNode) eval(ev *evaluation, sink func(*row) error) error {
	return ev.emitScalar(func(int, int64) float64 { return math.Pi }, sink)
}

// scalarNode is scalar(vector).
type scalarNode struct{ child node }

func (s scalarNode) eval(ev *evaluation, sink func(*row) error) error {
	counts, out := ev.newStepCounts(), newRow(ev.steps)
	found := make([]int32, ev.steps)
	err := s.child.eval(ev, func(r *row) error {
		counts.read(r)
		for i, v := range r.values {
			if r.has.get(i) && r.histogram(i) == nil {
				found[i]++
				out.values[i] = v
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i, n := range found {
		if n != 1 {
			out.values[i] = math.NaN()
		}
	}
	out.has.fill(ev.steps)
	counts.returned(&out)
	if err := counts.finish(&ev.acct, -1, nil); err != nil {
		return err
	}
	return sink(&out)
}

// vectorNode is vector(scalar).
type vectorNode struct{ child node }

func (v vectorNode) eval(ev *evaluation, sink func(*row) error) error {
	counts := ev.newStepCounts()
	counts.fullIn++
	err := v.child.eval(ev, func(r *row) error {
		counts.returned(r)
		r.metric = labels.EmptyLabels()
		return sink(r)
	})
	if err != nil {
		return err
	}
	return counts.finish(&ev.acct, -1, nil)
}

// changedLabelMax is the greatest length in bytes of a label value that label_replace and label_join may
// return. label_replace compares an estimate with it: the length of the replacement, plus the length of the
// source value for each $ in the replacement.
const changedLabelMax = 1 << 20

// bytesOfSample is how many bytes added to labels count as one sample.
const bytesOfSample = 16

func errLongLabel(function string, length int) error {
	return fmt.Errorf("%s() would make a label value of up to %d bytes: at most %d", function, length, changedLabelMax)
}

// grow counts the bytes that a function added to the labels of a series. It returns an error once the query has added
// more than bytesOfSample bytes for each sample of the limit, or of cellsMin if that is more.
func (ev *evaluation) grow(function string, after, before int) error {
	ev.shared.labelBytes += max(0, after-before)
	if most := bytesOfSample * max(cellsMin, ev.engine.opts.MaxSamples); ev.shared.labelBytes > most {
		return fmt.Errorf("%s() made the labels of all series longer by more than %d bytes%s", function, most,
			ev.engine.opts.Flags.Of("MaxSamples"))
	}
	return nil
}

// relabelNode is label_replace or label_join.
type relabelNode struct {
	call       *parser.Call
	child      node
	fixedNames bool // it changes names of series that are selected with @
}

func (n *relabelNode) eval(ev *evaluation, sink func(*row) error) error {
	change, err := n.change()
	if err != nil {
		return err
	}
	sets, mixed := ev.newLabelsets(), false
	err = n.child.eval(ev, func(r *row) error {
		mixed = mixed || r.hists != nil
		before := int(r.metric.ByteSize())
		metric, changed, err := change(r.metric)
		if err != nil {
			return err
		}
		if err := ev.grow(n.call.Func.Name, int(metric.ByteSize()), before); err != nil {
			return err
		}
		if changed {
			r.metric, r.dropName = metric, r.dropName && n.text(1) != labels.MetricName
		}
		r.distinct = false // another series may have the changed labels
		return sets.pass(false, r, sink)
	})
	if err != nil {
		return err
	}
	if sets.repeated && n.fixedNames {
		return errGiveUp("names_replaced_at") // Prometheus returns series with equal labels
	}
	return ev.checkDistinct(sets, mixed, false)
}

func (n *relabelNode) text(i int) string { return text(n.call.Args[i]) }

// change returns the function that changes the labels of a series, or an error if an argument is not valid.
func (n *relabelNode) change() (func(labels.Labels) (_ labels.Labels, changed bool, err error), error) {
	name, to := n.call.Func.Name, n.text(1)
	builder := labels.NewBuilder(labels.EmptyLabels())
	if name == "label_replace" {
		expression, err := regexp.Compile("^(?s:" + n.text(4) + ")$")
		if err != nil {
			return nil, fmt.Errorf("invalid regular expression in label_replace(): %s", n.text(4))
		}
		if !model.UTF8Validation.IsValidLabelName(to) {
			return nil, fmt.Errorf("invalid destination label name in label_replace(): %s", to)
		}
		template, from := n.text(2), n.text(3)
		references := strings.Count(template, "$")
		return func(metric labels.Labels) (labels.Labels, bool, error) {
			value := metric.Get(from)
			found := expression.FindStringSubmatchIndex(value)
			if found == nil {
				return metric, false, nil
			}
			if longest := len(template) + references*len(value); longest > changedLabelMax {
				return metric, false, errLongLabel(name, longest)
			}
			builder.Reset(metric)
			builder.Set(to, string(expression.ExpandString(nil, template, value, found)))
			return builder.Labels(), true, nil
		}, nil
	}
	separator := n.text(2)
	var names, values []string
	for i := 3; i < len(n.call.Args); i++ {
		if !model.UTF8Validation.IsValidLabelName(n.text(i)) {
			return nil, fmt.Errorf("invalid source label name in label_join(): %s", n.text(i))
		}
		names = append(names, n.text(i))
	}
	if !model.UTF8Validation.IsValidLabelName(to) {
		return nil, fmt.Errorf("invalid destination label name in label_join(): %s", to)
	}
	return func(metric labels.Labels) (labels.Labels, bool, error) {
		values = values[:0]
		length := len(names) * len(separator)
		for _, name := range names {
			value := metric.Get(name)
			values, length = append(values, value), length+len(value)
		}
		if length > changedLabelMax {
			return metric, false, errLongLabel(n.call.Func.Name, length)
		}
		builder.Reset(metric)
		builder.Set(to, strings.Join(values, separator))
		return builder.Labels(), true, nil
	}, nil
}

// stepFunctions are the functions that Prometheus calls once for each step, with all series.
var stepFunctions = map[string]bool{
	"histogram_quantile": true, "histogram_quantiles": true, "histogram_fraction": true, "absent": true,
	"sort": true, "sort_desc": true, "sort_by_label": true, "sort_by_label_desc": true,
	"days_in_month": true, "day_of_month": true, "day_of_week": true, "day_of_year": true, "hour": true, "minute": true,
	"month": true, "year": true,
	"max_of": true, "min_of": true, "start_timestamp": true,
	"histogram_count": true, "histogram_sum": true, "histogram_avg": true, "histogram_stddev": true,
	"histogram_stdvar": true,
}

// stepsNode calls Prometheus' implementation of a function at each step.
type stepsNode struct {
	call *parser.Call
	args []node // nil for strings
}

func (n *stepsNode) eval(ev *evaluation, sink func(*row) error) error {
	counts := ev.newStepCounts()
	inputs := make([][]row, len(n.args))
	for i, arg := range n.args {
		if arg == nil {
			continue
		}
		rows, err := ev.collect(arg, counts)
		if err != nil {
			return err
		}
		inputs[i] = rows
	}
	if name := n.call.Func.Name; strings.HasPrefix(name, "sort") && !ev.onlyStep() {
		ev.warnings.Add(annotations.NewSortInRangeQueryWarning(n.call.PositionRange()))
	}
	// At each step Prometheus merges the annotations of all steps so far into the result. Annotations of repaired buckets
	// contain counts, which it thereby adds several times. soFar makes the counts equal.
	var soFar annotations.Annotations
	return ev.callSteps(inputs, counts, func(vectors []promql.Vector,
		helper *promql.EvalNodeHelper) (promql.Vector, annotations.Annotations) {
		out, annos := promql.FunctionCalls[n.call.Func.Name](vectors, nil, n.call.Args, helper)
		return out, soFar.Merge(annos)
	}, sink)
}

// onlyStep reports whether the evaluation has a single step.
func (ev *evaluation) onlyStep() bool { return ev.start == ev.end }

// callSteps calls f with the samples of each step, and emits the series of the results. If f returns two samples
// with the same labels at a step, callSteps returns errSameLabels.
func (ev *evaluation) callSteps(inputs [][]row, counts *stepCounts,
	f func([]promql.Vector, *promql.EvalNodeHelper) (promql.Vector, annotations.Annotations),
	sink func(*row) error) error {
	helper := &promql.EvalNodeHelper{}
	vectors := make([]promql.Vector, len(inputs))
	at := map[uint64]int{} // by hash of labels: index in results
	var results []*row
	var warnings annotations.Annotations
	dupStep, ts := -1, ev.start
	for step := range ev.steps {
		if err := contextError(ev.ctx); err != nil {
			return err
		}
		for i, rows := range inputs {
			vectors[i] = vectors[i][:0]
			for j := range rows {
				if rows[j].has.get(step) {
					vectors[i] = append(vectors[i], promql.Sample{Metric: rows[j].metric, F: rows[j].values[step],
						H: rows[j].histogram(step), T: ts, DropName: rows[j].dropName})
				}
			}
		}
		helper.Ts = ts
		out, annos := f(vectors, helper)
		helper.Out = out[:0]
		warnings.Merge(annos)
		for _, s := range out {
			hash := s.Metric.Hash()
			i, ok := at[hash]
			if !ok {
				if err := ev.hold(ev.steps); err != nil {
					return err
				}
				r := newRow(ev.steps)
				r.metric, r.dropName = s.Metric, s.DropName
				i = len(results)
				at[hash], results = i, append(results, &r)
			}
			r := results[i]
			if r.has.get(step) && dupStep < 0 {
				dupStep = step
			}
			counts.out[step]++
			if s.H != nil {
				counts.out[step] += int32(vectorSize(s.H) - 1)
				counts.less += vectorSize(s.H) - pointSize(s.H)
				r.setHistogram(step, s.H)
				continue
			}
			r.values[step] = s.F
			r.has.set(step)
		}
		if dupStep >= 0 && !(ev.engine.opts.DelayedNameRemoval && ev.onlyStep()) {
			break
		}
		ts += ev.interval
	}
	ev.warnings.Merge(warnings)
	if ev.engine.opts.DelayedNameRemoval && ev.onlyStep() {
		dupStep = -1
	}
	if err := counts.finish(&ev.acct, dupStep, errSameLabels); err != nil {
		return err
	}
	for _, r := range results {
		if err := sink(r); err != nil {
			return err
		}
	}
	return nil
}

// countValuesNode is the aggregation count_values.
type countValuesNode struct {
	expr  *parser.AggregateExpr
	child node
}

func (n *countValuesNode) eval(ev *evaluation, sink func(*row) error) error {
	label := n.expr.Param.(*parser.StringLiteral)
	if !model.UTF8Validation.IsValidLabelName(label.Val) {
		return fmt.Errorf("invalid label name %s", label)
	}
	counts := ev.newStepCounts()
	names := slices.Clone(n.expr.Grouping)
	if !n.expr.Without {
		names = append(names, label.Val)
	}
	groups := newGrouping(&parser.AggregateExpr{Grouping: names, Without: n.expr.Without})
	builder := labels.NewBuilder(labels.EmptyLabels())
	var all []*row
	err := n.child.eval(ev, func(r *row) error {
		counts.read(r)
		for i, v := range r.values {
			if !r.has.get(i) {
				continue
			}
			builder.Reset(r.metric)
			if h := r.histogram(i); h != nil {
				builder.Set(label.Val, h.String())
			} else {
				builder.Set(label.Val, strconv.FormatFloat(v, 'f', -1, 64))
			}
			metric := builder.Labels()
			at, fresh := groups.of(metric)
			if fresh {
				if err := ev.hold(ev.steps); err != nil {
					return err
				}
				g := newRow(ev.steps)
				g.metric = groups.labels(metric)
				all = append(all, &g)
			}
			all[at].values[i]++
			all[at].has.set(i)
		}
		return nil
	})
	if err != nil {
		return err
	}
	sets := ev.newLabelsets()
	for _, r := range all {
		counts.returned(r)
		if err := sets.pass(false, r, sink); err != nil {
			return err
		}
	}
	return ev.finish(counts, sets)
}

// timestampNode is timestamp() or start_timestamp() of a selector.
type timestampNode struct {
	*selector
	starts bool
}

func (n timestampNode) eval(ev *evaluation, sink func(*row) error) error {
	counts, sets := ev.newStepCounts(), ev.newLabelsets()
	err := n.instant(ev, true, nil, func(r *row, _ int) error {
		if counts.read(r); n.starts {
			return nil
		}
		counts.returned(r)
		ev.drop(r)
		return sets.pass(false, r, sink)
	})
	if err != nil {
		return err
	}
	return ev.finish(counts, sets)
}

// absentNode is absent_over_time().
type absentNode struct{ *windowNode }

func (n absentNode) eval(ev *evaluation, sink func(*row) error) error {
	out := newRow(ev.steps)
	out.has.fill(ev.steps)
	err := n.run(ev, false, func(r *row) error {
		for w, word := range r.has {
			out.has[w] &^= word
		}
		return nil
	})
	if err != nil || out.has.empty() {
		return err
	}
	vector, _ := promql.FunctionCalls["absent"]([]promql.Vector{nil}, nil, n.call.Args, &promql.EvalNodeHelper{})
	out.metric = vector[0].Metric
	for i := range out.values {
		out.values[i] = 1
	}
	return sink(&out)
}
