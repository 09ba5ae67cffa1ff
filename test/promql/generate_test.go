package promql_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// generator makes random expressions over the series of a world.
type generator struct{ rng *rand.Rand }

func (g generator) pick(from ...string) string { return from[g.rng.IntN(len(from))] }

// oneOf reports true once in n.
func (g generator) oneOf(n int) bool { return g.rng.IntN(n) == 0 }

func (g generator) duration() string {
	return g.pick("1m", "90s", "5m", "7m", "15s", "20m", "1h", "61s", "5m1ms")
}

func (g generator) selector() string {
	name := g.pick("c_total", "c_total", "g", "g", "b_bucket", "h", "mixed", "custom", "late", "part_a", "none")
	matchers := g.pick("", "", "", `{ns="1"}`, `{ns!="1"}`, `{i=~"1|2"}`, `{ns=~"[0-2]",i!=""}`, `{le!="+Inf"}`)
	if g.oneOf(12) {
		return fmt.Sprintf(`{__name__=~"%s"}`, g.pick("part_.*", "both_.*", "c_total|g", "h|g", "(part|both)_.*|g", "g|mixed"))
	}
	return name + matchers
}

// modifiers returns offset and @.
func (g generator) modifiers() string {
	text := ""
	if g.oneOf(5) {
		text += " offset " + g.pick("1m", "7m", "-3m", "1h", "13s")
	}
	if g.oneOf(7) {
		text += " @ " + g.pick("start()", "end()", fmt.Sprint(worldBeginMS/1000+int64(g.rng.IntN(4*3600))))
	}
	return text
}

func (g generator) number() string {
	return g.pick("0", "1", "2", "-1", "0.5", "0.9", "3", "1e300", "NaN", "Inf", "-Inf", "1e-5", "100", "0.1")
}

// scalar returns an expression of type scalar.
func (g generator) scalar(depth int) string {
	if depth <= 0 || g.oneOf(2) {
		return g.pick(g.number(), g.number(), g.number(), "time()", "pi()")
	}
	switch g.rng.IntN(4) {
	case 0:
		return "scalar(" + g.vector(depth-1) + ")"
	case 1:
		return "-" + g.scalar(depth-1)
	case 2:
		return fmt.Sprintf("(%s %s bool %s)", g.scalar(depth-1), g.pick(comparisons...), g.scalar(depth-1))
	}
	return fmt.Sprintf("(%s %s %s)", g.scalar(depth-1), g.pick(arithmetics...), g.scalar(depth-1))
}

var (
	arithmetics = []string{"+", "-", "*", "/", "%", "^", "atan2"}
	comparisons = []string{"==", "!=", ">", "<", ">=", "<="}
	onWindows   = []string{
		"rate", "increase", "delta", "irate", "idelta", "resets", "changes", "deriv", "sum_over_time", "avg_over_time", "min_over_time", "max_over_time",
		"count_over_time", "last_over_time", "first_over_time", "present_over_time", "absent_over_time", "stddev_over_time", "stdvar_over_time", "mad_over_time",
		"ts_of_first_over_time", "ts_of_last_over_time", "ts_of_max_over_time", "ts_of_min_over_time",
	}
	onVectors = []string{
		"abs", "ceil", "floor", "exp", "sqrt", "ln", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "rad", "deg", "sgn",
		"round", "absent", "sort", "sort_desc", "timestamp", "hour", "minute", "month", "year", "day_of_week", "day_of_month", "day_of_year", "days_in_month",
		"histogram_count", "histogram_sum", "histogram_avg", "histogram_stddev", "histogram_stdvar",
	}
	plainAggregations = []string{"sum", "avg", "count", "min", "max", "group", "stddev", "stdvar"}
	paramAggregations = []string{"topk", "bottomk", "limitk", "quantile", "limit_ratio"}
)

// matrix returns a range selector or a subquery.
func (g generator) matrix(depth int) string {
	if depth > 0 && g.oneOf(3) {
		return fmt.Sprintf("(%s)[%s:%s]%s", g.vector(depth-1), g.pick("5m", "10m", "31m", "2m"), g.pick("1m", "", "37s", "5m"), g.modifiers())
	}
	extended := ""
	if g.oneOf(25) {
		extended = g.pick(" anchored", " smoothed")
	}
	return fmt.Sprintf("%s[%s]%s%s", g.selector(), g.duration(), extended, g.modifiers())
}

func (g generator) grouping() string {
	if g.oneOf(3) {
		return ""
	}
	return fmt.Sprintf(" %s (%s) ", g.pick("by", "without"), g.pick("ns", "i", "ns, i", "le", "", "absent", "__name__"))
}

// vector returns an expression of type instant vector.
func (g generator) vector(depth int) string {
	if depth <= 0 {
		return g.selector() + g.modifiers()
	}
	switch g.rng.IntN(13) {
	case 0, 1:
		return fmt.Sprintf("%s%s(%s)", g.pick(plainAggregations...), g.grouping(), g.vector(depth-1))
	case 2:
		return fmt.Sprintf("%s%s(%s, %s)", g.pick(paramAggregations...), g.grouping(), g.scalar(depth-1), g.vector(depth-1))
	case 3:
		return fmt.Sprintf(`count_values%s("v", %s)`, g.grouping(), g.vector(depth-1))
	case 4, 5:
		return g.window(depth - 1)
	case 6:
		return fmt.Sprintf("%s(%s)", g.pick(onVectors...), g.vector(depth-1))
	case 7:
		return g.function(depth - 1)
	case 8, 9:
		return g.withScalar(depth - 1)
	case 10, 11:
		return g.withVector(depth - 1)
	}
	return g.pick("-", "+", "") + "(" + g.vector(depth-1) + ")"
}

func (g generator) window(depth int) string {
	switch g.rng.IntN(12) {
	case 0:
		return fmt.Sprintf("quantile_over_time(%s, %s)", g.scalar(depth), g.matrix(depth))
	case 1:
		return fmt.Sprintf("predict_linear(%s, %s)", g.matrix(depth), g.scalar(depth))
	case 2:
		return fmt.Sprintf("double_exponential_smoothing(%s, %s, %s)", g.matrix(depth), g.pick("0.3", "0.5"), g.pick("0.1", "0.9"))
	}
	return fmt.Sprintf("%s(%s)", g.pick(onWindows...), g.matrix(depth))
}

func (g generator) function(depth int) string {
	switch g.rng.IntN(11) {
	case 0:
		return fmt.Sprintf("histogram_quantile(%s, %s)", g.scalar(depth), g.vector(depth))
	case 1:
		return fmt.Sprintf("histogram_fraction(%s, %s, %s)", g.number(), g.number(), g.vector(depth))
	case 2:
		return fmt.Sprintf(`label_replace(%s, "%s", "%s", "%s", "%s")`, g.vector(depth), g.pick("a", "ns", "__name__", "i"), g.pick("$1", "x", "", "$1-y"), g.pick("ns", "i", "absent"), g.pick("(.*)", "1", "", "(.)"))
	case 3:
		return fmt.Sprintf(`label_join(%s, "%s", "%s", "ns", "i")`, g.vector(depth), g.pick("a", "ns", "le"), g.pick("-", ""))
	case 4:
		return fmt.Sprintf("clamp(%s, %s, %s)", g.vector(depth), g.scalar(depth), g.scalar(depth))
	case 5:
		return fmt.Sprintf("%s(%s, %s)", g.pick("clamp_min", "clamp_max", "round"), g.vector(depth), g.scalar(depth))
	case 6:
		return "vector(" + g.scalar(depth) + ")"
	case 7:
		return fmt.Sprintf(`sort_by_label(%s, "ns", "i")`, g.vector(depth))
	case 8:
		return fmt.Sprintf("histogram_quantile(%s, sum by (le) (rate(b_bucket[%s])))", g.number(), g.duration())
	case 9:
		return fmt.Sprintf("histogram_quantile(%s, sum%s(rate(h[%s])))", g.number(), g.grouping(), g.duration())
	}
	return g.pick("hour()", "month()", "vector(time())", "absent("+g.selector()+")")
}

func (g generator) withScalar(depth int) string {
	op := g.pick(arithmetics...)
	if g.oneOf(2) {
		op = g.pick(comparisons...) + g.pick("", " bool")
	}
	if g.oneOf(3) {
		return fmt.Sprintf("(%s) %s (%s)", g.scalar(depth), op, g.vector(depth))
	}
	return fmt.Sprintf("(%s) %s (%s)", g.vector(depth), op, g.scalar(depth))
}

func (g generator) withVector(depth int) string {
	matching := g.pick("", "", " on (ns, i)", " on (ns)", " ignoring (i)", " on ()", " ignoring (le)")
	left, right := g.vector(depth), g.vector(depth)
	switch g.rng.IntN(12) { // equal parts are evaluated once
	case 0, 1, 2:
		right = left
	case 3:
		right = fmt.Sprintf("%s%s(%s)", g.pick(plainAggregations...), g.grouping(), left)
		left = fmt.Sprintf("%s%s(%s)", g.pick(plainAggregations...), g.grouping(), left)
	case 4:
		left = fmt.Sprintf("(%s) %s%s (%s)", left, g.pick(arithmetics...), matching, right)
	case 5: // what a selector reads of histograms depends on the functions around it
		right = fmt.Sprintf("%s(%s)", g.pick(onVectors...), left)
	case 6:
		left, right = fmt.Sprintf("histogram_count(%s)", left), fmt.Sprintf("histogram_quantile(0.9, %s)", left)
	}
	if g.oneOf(3) {
		return fmt.Sprintf("(%s) %s%s (%s)", left, g.pick("and", "or", "unless"), matching, right)
	}
	op := g.pick(arithmetics...)
	if g.oneOf(3) {
		op = g.pick(comparisons...) + g.pick("", " bool")
	}
	if matching != "" && g.oneOf(2) {
		matching += g.pick(" group_left ()", " group_right ()", " group_left (le)", " group_right (le)")
		if strings.Contains(matching, "on (ns)") {
			right = "sum by (ns) (" + right + ")"
		}
	}
	if g.oneOf(6) {
		matching += g.pick(" fill (3)", " fill_left (0)", " fill_right (7)")
	}
	return fmt.Sprintf("(%s) %s%s (%s)", left, op, matching, right)
}
