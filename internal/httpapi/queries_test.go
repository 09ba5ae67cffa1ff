package httpapi_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/promql/parser"
)

// The expressions of the differential test: tables of common queries, and combinations of
// everything in the language.

// selectorExprs are selectors with every matcher type, offset and @.
var selectorExprs = []string{
	`demo_requests_total`, `{__name__="demo_gauge"}`, `demo_requests_total{job="api"}`, `demo_requests_total{job!="api"}`, `demo_requests_total{job=~"a.*"}`,
	`demo_requests_total{job!~"a.*|nothing"}`, `demo_requests_total{job="api",instance=~"[ab]:.",code!="500"}`, `demo_requests_total{job=""}`, `demo_requests_total{nosuch=""}`,
	`demo_requests_total{job=~""}`, `demo_requests_total{job=~".+"}`, `{__name__=~"demo_.*_(sum|count)"}`, `{job="api"}`, `{__name__!="",job="web"}`, `nothing`, `{nosuch="x"}`,
	`stale_metric`, `sparse_metric`, `many`, `many{i=~"1.."}`, `target_info`, `typed_total`, `mixed_metric`, `{__name__=~"native_.*"}`, `native_integer`, `native_tiny`, `native_empty`, `native_nan`, `native_custom`,
	`special_value`, `special_value{kind="-zero"}`, `special_value{kind=~".*inf"}`, `special_value{kind="changing"}`,
	`odd_label`, `odd_label{v="\""}`, `odd_label{v="\\"}`, `odd_label{v="\n"}`, `odd_label{v=~"<.*>"}`, `odd_label{v="\u2028"}`, `odd_label{v="\x00"}`, "odd_label{v=`\\\"`}", `odd_label{v='日本語'}`,
	`{"utf8.metric-name"}`, `{"utf8.metric-name","label.with.dots"="v"}`, `{"метрика"}`, `{"quo\"te"}`, `{"new\nline","le<>"=~".*"}`, `{"<&>"}`, `{__name__=~"метр.*"}`, `{"日本"="x"}`, `{__name__="broken\xff"}`,
	`demo_gauge offset 1m`, `demo_gauge offset -1m`, `demo_gauge offset 90s`, `demo_gauge offset 1h30m`, `demo_gauge offset 15ms`, `demo_gauge @ 0`, `demo_gauge @ 600.123`, `demo_gauge @ -300`,
	`demo_gauge @ 1700000300`, `demo_gauge @ start()`, `demo_gauge @ end()`, `demo_gauge @ end() offset 2m`, `demo_gauge offset 2m @ start()`, `demo_gauge @ 1e3`, `demo_gauge @ 99999999999`,
}

// wholeExprs return scalars, strings and matrices, or calculate with them.
var wholeExprs = []string{
	`1`, `-1`, `0`, `-0`, `+1.5`, `0.1`, `1e21`, `1e-7`, `1e300`, `5e-324`, `NaN`, `Inf`, `-Inf`, `0x1F`, `0b101`, `0o17`, `1_000_000`, `1h30m`, `-5m`, `1/3`, `2^63`, `1e308*10`, `0/0`,
	`9007199254740993`, `123456789012345678901234567890`, `time()`, `time() - 0.001`, `vector(1)`, `vector(time())`, `scalar(vector(3))`, `scalar(demo_gauge)`, `scalar(nothing)`, `pi()`,
	`"text"`, `""`, `'quo"te'`, `"\b\f\n\r\t\\"`, "`raw \\ <&>`", `"\u2028\u2029"`, `"日本語 😀"`, `"\x00\x1f\x7f"`, `"<script>&amp;</script>"`, `"\xff\xfe"`,
	`(1)`, `((demo_gauge))`, `-demo_gauge`, `--demo_gauge`, `+demo_gauge`, `-(demo_gauge + 1)`, `# comment
	demo_gauge # another`, `1 # <`, `5 % 3`, `-5 % 3`, `5 atan2 3`, `2 ^ 3 ^ 2`, `1 - 2 - 3`, `1 == bool 1`, `1 < bool 0`, `1 != bool NaN`, `bool`, `time() > bool 0`,
}

// matrixExprs are valid for instant queries only.
var matrixExprs = []string{
	`demo_gauge[2m]`, `demo_requests_total{job="api"}[1m] offset 1m`, `stale_metric[15m]`, `special_value[4m]`, `native_integer[1m]`, `mixed_metric[3m]`, `nothing[1m]`, `odd_label[2m]`, `demo_gauge[1m:15s]`,
	`demo_gauge[2m:]`, `rate(demo_requests_total[1m])[5m:1m]`, `demo_gauge[100ms]`, `demo_gauge[1ms]`, `demo_gauge[30s] @ 600`, `demo_gauge[1m:7s] @ end() offset 30s`, `mixed_metric[3m:20s]`, `{"日本"="x"}[4m]`, `many[5m]`,
	`vector(1)[1m:20s]`, `1[1m:20s]`, `time()[1m:333ms]`,
}

// binaryExprs are operators between vectors and their errors.
var binaryExprs = []string{
	`demo_gauge + on(job, instance) group_right demo_requests_total`, `demo_requests_total * on(job, instance) group_left demo_gauge`, `demo_requests_total / ignoring(code) group_left demo_gauge`,
	`demo_requests_total{code="500"} / ignoring(code) demo_requests_total{code="200"}`, `demo_requests_total{code="500"} / on(job, instance) demo_requests_total{code="200"}`,
	`demo_gauge * on(job, instance) group_left(version) target_info`, `demo_gauge + on(instance) group_left(version) target_info`, `demo_gauge + on(nosuch) demo_gauge`, `demo_gauge == demo_gauge`, `demo_gauge != demo_gauge`,
	`demo_gauge > bool 0`, `demo_gauge > 0`, `0 < demo_gauge`, `demo_gauge >= bool demo_gauge`, `demo_gauge <= -demo_gauge`, `demo_gauge and demo_gauge{job="api"}`, `demo_gauge and on(job) target_info`, `demo_gauge unless demo_gauge{job="api"}`,
	`demo_gauge unless ignoring(instance, job) demo_gauge`, `demo_gauge{job="api"} or demo_gauge{job="web"}`, `demo_gauge or on(job) many`, `nothing or vector(0)`, `vector(1) and nothing`, `demo_gauge{job="api"} or demo_requests_total`,
	`demo_gauge ^ 2`, `2 ^ demo_gauge`, `demo_gauge % 0`, `demo_gauge / 0`, `0 / demo_gauge`, `demo_gauge atan2 2`, `demo_gauge atan2 demo_gauge`, `special_value + 1`, `special_value * special_value`, `special_value / special_value`,
	`special_value == special_value`, `special_value > bool 0`, `special_value % 7`, `special_value ^ 0.5`, `-special_value`, `special_value - 0`, `odd_label * 2`, `odd_label + on(n) group_left odd_label`, `{"метрика"} + 1`,
	`native_integer + native_integer`, `native_integer - native_integer offset 1m`, `native_integer * 2`, `2 * native_float`, `native_float / 3`, `native_float / 0`, `native_integer > 1`, `native_integer == native_integer`, `native_integer + 1`,
	`native_integer + demo_gauge`, `native_custom + on(job) native_integer`, `native_gauge + native_gauge`, `-native_integer`, `native_integer and native_integer`, `native_integer != bool native_integer`, `mixed_metric + mixed_metric`, `mixed_metric * 2`, `mixed_metric / mixed_metric`,
	`demo_requests_total + on(job) demo_gauge`, `demo_gauge + on(job) demo_gauge`, `demo_gauge + on(job) group_left demo_gauge`, `demo_requests_total / ignoring(code) demo_requests_total`, `demo_gauge + on(job) group_right demo_gauge`,
	`{__name__=~"demo_latency_seconds_(sum|count)"} + 1`, `-{__name__=~"demo_latency_seconds_(sum|count)"}`, `rate({__name__=~"demo_latency_seconds_(sum|count)"}[1m])`,
	`label_replace(demo_gauge, "job", "same", "", "") + 1`, `label_replace(demo_gauge, "instance", "", "", "")`, `abs({__name__=~"native_.*"} or demo_gauge)`,
}

// functionExprs contain the calls that the combinations below omit.
var functionExprs = []string{
	`rate(demo_requests_total[5m])`, `irate(demo_requests_total[1m])`, `increase(demo_requests_total[333s])`, `delta(demo_gauge[3m])`, `idelta(demo_gauge[1m])`, `deriv(demo_gauge[2m])`, `rate(demo_gauge[2m])`, `rate(mixed_metric[5m])`, `increase(native_gauge[2m])`,
	`delta(native_gauge[2m])`, `delta(native_integer[2m])`, `irate(native_integer[1m])`, `idelta(native_gauge[1m])`, `irate(mixed_metric[1m])`, `rate(native_custom[2m])`, `rate(stale_metric[10m])`, `rate(nothing[1m])`, `rate(demo_requests_total[1ms])`, `rate(typed_total[2m])`, `resets(native_integer[20m])`,
	`rate(demo_requests_total[5m] offset 3m)`, `rate(demo_requests_total[5m] @ 600)`, `rate(demo_requests_total[5m] @ end())`, `sum by (job) (rate(demo_requests_total[2m]))`, `sum without (code, instance) (increase(demo_requests_total[2m]))`,
	`histogram_quantile(0.9, demo_latency_seconds_bucket)`, `histogram_quantile(0.5, rate(demo_latency_seconds_bucket[5m]))`, `histogram_quantile(0.9, sum by (le) (rate(demo_latency_seconds_bucket[5m])))`, `histogram_quantile(2, demo_latency_seconds_bucket)`,
	`histogram_quantile(-1, native_integer)`, `histogram_quantile(NaN, native_float)`, `histogram_quantile(0.99, native_custom)`, `histogram_quantile(0.9, native_nan)`, `histogram_quantile(0.9, native_tiny)`, `histogram_quantile(0.9, demo_gauge)`, `histogram_quantile(0.9, mixed_metric)`, `histogram_quantile(scalar(demo_gauge{job="api",instance="a:1"}), native_integer)`,
	`histogram_quantile(0.9, label_replace(demo_latency_seconds_bucket, "le", "bad", "le", "0.5"))`, `histogram_quantile(0.9, {__name__=~"demo_latency_seconds_bucket|native_integer"})`,
	`histogram_fraction(0, 0.2, native_integer)`, `histogram_fraction(-Inf, +Inf, native_nan)`, `histogram_fraction(1, 0, native_float)`, `histogram_fraction(0.1, 0.5, demo_latency_seconds_bucket)`, `histogram_fraction(0, 1, rate(native_custom[2m]))`,
	`label_replace(odd_label, "copy", "$1-\"<\\>", "v", "(.*)")`, `label_replace(demo_gauge, "日本語", "${1}\u2028", "job", "(.)(.*)")`, `label_replace(demo_gauge, "dst", "$name", "job", "(?P<name>.*)")`, `label_replace(demo_gauge, "job", "x", "nosuch", "y")`,
	`label_replace(demo_gauge, "bad\xff", "v", "job", ".*")`, `label_replace(demo_gauge, "a", "v", "job", "(")`, `label_replace(demo_gauge, "", "v", "job", ".*")`, `label_replace(demo_gauge, "instance", "one", "job", ".*")`, `label_replace(demo_gauge, "__name__", "renamed", "", "")`, `label_replace(native_integer, "job", "$1!", "job", "(.*)")`,
	`label_join(demo_gauge, "joined", "<&>", "job", "instance", "nosuch")`, `label_join(demo_gauge, "joined", "\x00", "job", "instance")`, `label_join(odd_label, "j", "|", "v", "n")`, `label_join(demo_gauge, "joined", ",")`, `label_join(demo_gauge, "bad\xff", ",", "job")`, `label_join(demo_gauge, "job", "", "nosuch")`, `label_join(demo_gauge, "x", ",", "bad\xff")`,
	`absent(nothing)`, `absent(nothing{job="a<\"\\",x!="y",z=~"w"})`, `absent(demo_gauge)`, `absent(sum(nothing))`, `absent_over_time(nothing{job="\u2028"}[1m])`, `absent_over_time(demo_gauge[1m])`, `absent_over_time(sparse_metric[2m])`, `absent(stale_metric)`,
	`quantile_over_time(0.5, demo_gauge[5m])`, `quantile_over_time(2, demo_gauge[5m])`, `quantile_over_time(-1, demo_gauge[5m])`, `quantile_over_time(0.3, mixed_metric[5m])`, `predict_linear(demo_gauge[5m], 3600)`, `predict_linear(mixed_metric[5m], -60)`,
	`round(demo_gauge, 0.01)`, `round(demo_gauge, 0)`, `round(special_value, 1e-7)`, `clamp(demo_gauge, 1, -1)`, `clamp(demo_gauge, -0.5, 0.5)`, `clamp_min(special_value, 0)`, `clamp_max(special_value, NaN)`, `sort(demo_gauge)`, `sort_desc(demo_gauge)`, `sort(many)`, `sort_desc(special_value)`,
	`day_of_week()`, `day_of_year(vector(0))`, `days_in_month(vector(-1))`, `hour(demo_requests_total)`, `minute()`, `month(vector(1e10))`, `year(vector(-1e12))`, `timestamp(demo_gauge)`, `timestamp(demo_gauge offset 1m)`, `timestamp(sum(demo_gauge))`, `timestamp(native_integer)`, `timestamp(demo_gauge @ 600)`,
	`avg_over_time(native_integer[2m])`, `sum_over_time(native_integer[2m])`, `sum_over_time(mixed_metric[2m])`, `avg_over_time(mixed_metric[2m])`, `last_over_time(mixed_metric[2m])`, `count_over_time(mixed_metric[2m])`, `present_over_time(mixed_metric[2m])`, `max_over_time(mixed_metric[2m])`, `stddev_over_time(mixed_metric[2m])`, `last_over_time(native_integer[1m])`,
	`max_over_time(rate(demo_requests_total[1m])[5m:30s])`, `avg_over_time(demo_gauge[5m:])`, `sum_over_time((demo_gauge > 0)[5m:45s] offset 1m)`, `min_over_time(max_over_time(demo_gauge[1m:15s])[5m:1m])`, `count_over_time(demo_gauge[5m:1m] @ 600)`, `avg_over_time(nothing[5m:1m])`, `quantile_over_time(0.9, (sum by (job) (demo_gauge))[5m:20s] @ start())`,
	`histogram_avg(rate(native_integer[1m]))`, `histogram_count(native_custom)`, `histogram_sum(native_nan)`, `histogram_stddev(native_tiny)`, `histogram_stdvar(native_gauge)`, `sum(rate(native_integer[1m]))`, `avg(native_float)`, `sum({__name__=~"native_(integer|custom)"})`, `sum({__name__=~"native_(integer|float)"})`,
	`avg by (job) ({__name__=~"native_integer|demo_gauge"})`, `sum by (job) (mixed_metric)`, `sum(mixed_metric)`, `max(mixed_metric)`, `count(mixed_metric)`, `stddev(native_integer)`, `topk(1, mixed_metric)`, `quantile(0.5, mixed_metric)`,
}

// aggregations are expanded with every grouping and operand.
var aggregations = []string{"sum(%s)", "avg(%s)", "min(%s)", "max(%s)", "count(%s)", "group(%s)", "stddev(%s)", "stdvar(%s)", "topk(3, %s)", "bottomk(2, %s)", "quantile(0.25, %s)", "count_values(\"value<>\", %s)"}

var groupings = []string{"", "by (job)", "without (instance, code, i)", "by (nosuch)", `by ("label.with.dots", "日本", job)`}

var operators = []string{"+", "-", "*", "/", "%", "^", "atan2", "==", "!=", "<", "<=", ">", ">=", "== bool", "!= bool", "< bool", "<= bool", "> bool", ">= bool", "and", "or", "unless"}

// aggregationExprs are every aggregation under every grouping.
func aggregationExprs() []string {
	operands := []string{"demo_gauge", "special_value", `{__name__=~"native_integer|mixed_metric"}`, "odd_label", "nothing", `{"日本"="x"}`}
	var all []string
	for i, aggregation := range aggregations {
		name, args, _ := strings.Cut(aggregation, "(")
		for j, grouping := range groupings {
			operand := operands[(i+j)%len(operands)]
			all = append(all, fmt.Sprintf("%s %s ("+args, name, grouping, operand))
		}
		all = append(all, fmt.Sprintf(aggregation, operands[i%len(operands)]))
	}
	return append(all, `topk(0, demo_gauge)`, `topk(-1, demo_gauge)`, `topk(1e30, demo_gauge)`, `topk(NaN, demo_gauge)`, `bottomk(scalar(nothing), demo_gauge)`, `quantile(NaN, demo_gauge)`, `quantile(1.5, demo_gauge)`, `quantile(-Inf, special_value)`,
		`count_values("bad\xff", demo_gauge)`, `count_values("", demo_gauge)`, `count_values("job", demo_gauge)`, `topk(time() % 5, demo_gauge)`, `quantile(demo_gauge, demo_gauge)`, `count_values(1, demo_gauge)`, `count_values("v", native_integer)`, `topk(2, special_value)`, `sum by (job, job) (demo_gauge)`)
}

// operatorExprs are every operator between vectors, and with a number.
func operatorExprs() []string {
	var all []string
	for _, op := range operators {
		all = append(all, "demo_gauge "+op+" on(job, instance) demo_gauge offset 1m", "native_integer "+op+" native_integer", "special_value "+op+" ignoring(nosuch) special_value", "demo_gauge "+op+" 0.5")
	}
	return all
}

// callExprs call every function with floats, native and classic histograms. Functions with
// string parameters are in functionExprs.
func callExprs(experimental bool) []string {
	arguments := map[parser.ValueType][]string{
		parser.ValueTypeVector: {"demo_gauge", "native_integer", "special_value", "{job=\"api\"}"},
		parser.ValueTypeMatrix: {"demo_requests_total[4m]", "native_float[90s]", "special_value[10m]", "mixed_metric[2m]"},
		parser.ValueTypeScalar: {"0.5", "1", "0.1", "2"},
		parser.ValueTypeString: {`"job"`, `"instance"`, `"<x>"`, `"job"`},
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(parser.Functions)) {
		f := parser.Functions[name]
		if f.Experimental != experimental {
			continue
		}
		for variant := range 4 {
			var args []string
			for _, t := range f.ArgTypes {
				args = append(args, arguments[t][variant])
			}
			if f.Variadic != 0 && variant == 3 {
				args = args[:len(args)-1]
			}
			all = append(all, name+"("+strings.Join(args, ", ")+")")
			if len(f.ArgTypes) == 0 {
				break
			}
		}
	}
	return all
}

// featureExprs need experimental features of the language.
var featureExprs = []string{
	`sort_by_label(demo_requests_total, "job", "code")`, `sort_by_label_desc(odd_label, "v")`, `limitk(2, demo_gauge)`, `limit_ratio(0.5, demo_gauge)`, `limit_ratio(-0.5, demo_gauge)`, `limit_ratio(2, demo_gauge)`, `limitk(0, demo_gauge)`, `limitk by (job) (1, native_integer)`,
	`info(demo_gauge)`, `info(demo_gauge, {version=~".+"})`, `info(rate(demo_requests_total[1m]), {__name__="target_info"})`, `mad_over_time(demo_gauge[2m])`, `ts_of_max_over_time(demo_gauge[2m])`, `ts_of_last_over_time(mixed_metric[2m])`, `first_over_time(mixed_metric[2m])`, `double_exponential_smoothing(demo_gauge[5m], 0.5, 0.5)`,
	`double_exponential_smoothing(demo_gauge[5m], 2, 0.5)`, `rate(demo_requests_total[2m] anchored)`, `rate(demo_requests_total[2m] smoothed)`, `demo_gauge smoothed`, `increase(demo_requests_total[1m] anchored) > 0`, `demo_gauge[1m] anchored`,
	`demo_gauge{job="api"} + on(instance) fill(0) demo_gauge{job="web",instance="a:1"}`, `demo_gauge{job="api"} + on(instance) fill_left(1e-7) fill_right(23) demo_gauge{instance!="a:1",job="web"}`, `demo_gauge + fill(NaN) nothing`,
	`demo_gauge[5m+30s]`, `rate(demo_requests_total[step()*4+1m])`, `demo_gauge offset (1m*2)`, `demo_gauge[max_of(step(),1m)]`, `demo_gauge[range()]`, `histogram_quantiles(demo_latency_seconds_bucket, "q", 0.1, 0.9)`, `typed_total + 1`, `sum(typed_total)`, `rate(typed_total[1m])`, `start()`, `end()`, `step()`, `range()`,
	`rate({__name__=~"demo_latency_seconds_(sum|count)"}[1m])`, `count by (__name__) (rate({__name__=~"demo_.*"}[1m]))`, `{__name__=~"demo_latency_seconds_(sum|count)"} * 2`, `histogram_quantile(0.5, native_custom) or native_float`,
}

// brokenExprs fail to parse or are rejected before evaluation.
var brokenExprs = []string{
	``, ` `, "\n\t", `#`, `demo_gauge{`, `demo_gauge}`, `demo_gauge{job}`, `demo_gauge{job=}`, `demo_gauge{job=x}`, `demo_gauge{job="x}`, `demo_gauge{job='x"}`, `demo_gauge{"x"=}`, `demo_gauge{,}`, `{}`, `{job=""}`, `{job=~".*"}`, `{job!="x"}`, `{__name__="a",__name__="b"}`, `a{__name__="b"}`,
	`demo_gauge[`, `demo_gauge[5`, `demo_gauge[5m`, `demo_gauge[]`, `demo_gauge[0s]`, `demo_gauge[-5m]`, `demo_gauge[5x]`, `demo_gauge[5m:0s]`, `demo_gauge[5m][5m]`, `demo_gauge[1m][1m:1s]`, `demo_gauge offset`, `demo_gauge offset x`, `demo_gauge @`, `demo_gauge @ x`, `demo_gauge @ NaN`, `demo_gauge @ Inf`, `demo_gauge @ 1 @ 2`, `demo_gauge offset 1m offset 1m`, `demo_gauge @ start`, `(demo_gauge) offset 1m`,
	`1 +`, `+`, `* 1`, `1 2`, `1 ++ `, `(1`, `1)`, `()`, `foo(1)`, `foo()`, `rate()`, `rate(1)`, `rate(demo_gauge)`, `rate(demo_gauge[1m], 1)`, `abs(demo_gauge[1m])`, `abs("x")`, `abs(1)`, `scalar(1)`, `vector(demo_gauge)`, `time(1)`, `round()`, `label_replace(demo_gauge)`, `label_join(demo_gauge, "a")`, `sum`, `sum()`, `sum(1)`, `sum(demo_gauge, 1)`, `sum by (demo_gauge)`, `sum by job (demo_gauge)`, `sum(demo_gauge) by`, `topk(demo_gauge)`, `topk("x", demo_gauge)`, `sum(demo_gauge[1m])`,
	`demo_gauge and 1`, `1 and 1`, `1 or demo_gauge`, `1 == 1`, `demo_gauge + bool 1`, `demo_gauge + "x"`, `"x" + "y"`, `"x" == "x"`, `demo_gauge[1m] + 1`, `demo_gauge + demo_gauge[1m]`, `demo_gauge + on(`, `demo_gauge + on(job) group_left(job) demo_gauge`, `demo_gauge and on(job) group_left demo_gauge`, `demo_gauge + group_left demo_gauge`, `1 + on(job) 1`, `-"x"`, `-demo_gauge[1m]`, `!demo_gauge`, `demo_gauge =~ 1`, `demo_gauge = 1`, `demo_gauge ! 1`, `demo_gauge & 1`, `demo_gauge | 1`,
	`"unterminated`, `'unterminated`, "`unterminated", `"bad \q escape"`, `"\x"`, `"\u12"`, `demo_gauge{job=~"("}`, `demo_gauge{job=~"[a"}`, `demo_gauge{job=~"a{99999}"}`, `0x`, `1e`, `1e+`, `08x`, `1.2.3`, `1__0`, `5m5h`, `99999999999999999999y`, `a:b:c d`, `:`, `a{b="c"} {`, "a\x00b", "\x00", "\xff\xfe", "demo_gauge{job=\"\xff\"}", `日本語`, `€`, `<script>`, `demo_gauge{job="` + "\n" + `"}`, `group_left`, `offset`, `and`, `by`, `on`, `sum by (1) (demo_gauge)`, `sum by ("bad` + "\xff" + `") (demo_gauge)`,
	`mad_over_time(demo_gauge[1m])`, `sort_by_label(demo_gauge, "job")`, `limitk(1, demo_gauge)`, `info(demo_gauge)`, `demo_gauge smoothed`, `rate(demo_gauge[1m] anchored)`, `demo_gauge + fill(0) demo_gauge`, `start()`, `step()`, `demo_gauge[5m+]`, `demo_gauge[(5m]`, `demo_gauge[step()-1h]`, `demo_gauge[1m/0]`, `demo_gauge{job="a"` + strings.Repeat(" ", 50) + `!`,
	`histogram_quantile("x", demo_gauge)`, `predict_linear(demo_gauge[1m])`, `quantile_over_time(demo_gauge[1m])`, `count_values("x")`, `demo_gauge[1m:1m`, `demo_gauge[:1m]`, `demo_gauge[1m::]`, `"a"[1m:1m]`, `demo_gauge offset 99999999999y`, `sum(demo_gauge) by (job) without (job)`,
}
