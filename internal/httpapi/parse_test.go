package httpapi_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

// treeExprs contain every type of node and every field of the syntax tree.
var treeExprs = []string{
	`sum(demo)`, `sum by (a, b) (demo)`, `sum without () (demo)`, `sum by () (demo)`, `topk(5, demo)`, `quantile without (x) (0.9, demo)`, `count_values("<&>", demo)`,
	`a + b`, `a + on() b`, `a + on(x, y) b`, `a / ignoring(x) group_left(y, z) b`, `a * on(x) group_right() b`, `a and b`, `a or on(q) b`, `a unless ignoring() b`, `a == bool b`, `a > 1`, `1 > bool a`, `1 + 2`, `a ^ b ^ c`, `a atan2 b`,
	`rate(demo[5m])`, `time()`, `round(a)`, `round(a, 2)`, `label_join(a, "b", "c", "d", "e")`, `label_replace(a, "b", "$1", "c", "(.*)")`, `day_of_week()`, `vector(1)`, `absent(demo{x="y"})`,
	`demo`, `{__name__="demo"}`, `demo{a="b",c!="d",e=~"f.*",g!~"h|i"}`, `{"utf8.name","日本"="<&>\u2028\"\\\n"}`, `demo offset 5m`, `demo offset -1h30m`, `demo @ 1.5`, `demo @ -1e5`, `demo @ start()`, `demo @ end() offset 1ms`,
	`demo[5m]`, `demo[1h30m15s7ms]`, `demo{a=""}[5m] offset 1y`, `demo[5m] @ start()`, `demo[300]`, `demo[0x10]`, `demo[1.5]`,
	`demo[5m:]`, `demo[5m:30s]`, `sum(a)[1d:1h] offset 1w`, `a[5m:1m] @ 1609746000.123`, `(a + b)[5m:1m] @ end()`, `a[1h:1m][2h:]`, `rate(a[1m])[30m:1m] offset -5m`,
	`1`, `-1`, `+1`, `NaN`, `-Inf`, `1e300`, `5e-324`, `0x1f`, `1h`, `1e21`, `1e-7`, `0.1`, `123456789.123456789`, `"text"`, `"<\"&\\\u2028\x00\xff>"`, "`raw\\`", `""`, `(a)`, `((1))`, `-(a)`, `-a`, `+a`, `--a`, `-a[5m:1m]`,
	`sum by (job) (rate(http_requests_total{code=~"5.."}[5m])) / on(job) group_left() sum by (job) (rate(http_requests_total[5m])) > bool 0.1 and on() hour() < 9 or vector(0)`,
	`histogram_quantile(0.9, sum by (le) (rate(x_bucket[5m])))`, `# only a comment
a`, `a # b`, "a\n+\nb", strings.Repeat("(", 50) + "a" + strings.Repeat(")", 50), strings.Repeat("a + ", 100) + "a", `a{b="` + strings.Repeat("long", 500) + `"}`,
}

// durationExprs need the experimental duration expressions.
var durationExprs = []string{
	`demo[5m+1m]`, `demo[5m*2-30s]`, `demo[(5m+1m)*2]`, `demo[step()]`, `demo[step()+5]`, `demo[range()]`, `demo[-(-5m)]`, `demo[5m^2]`, `demo[10%3]`, `demo[min_of(step(),5m)]`, `demo[max_of(1m,range()/2)]`, `demo offset (5m/2)`, `demo offset -(1m)`, `demo offset step()`, `demo[5m:1m+30s]`, `demo[1h-1m:step()] offset (1m+1s)`, `sum(a)[(1h):(1m)]`,
	`demo smoothed`, `demo anchored`, `rate(demo[1m] anchored)`, `rate(demo[1m] smoothed)`, `a + fill(1.5) b`, `a + on(x) fill_left(0) b`, `a + ignoring(x) fill_right(1e-9) b`, `a * fill_left(1e21) fill_right(5e-324) b`, `a + group_left(x) fill(0) b`, `a + on(x) group_left fill_right(0) b`,
	`limitk(2, a)`, `limit_ratio(0.5, a)`, `info(a)`, `info(a, {x="y"})`, `sort_by_label(a, "x")`, `mad_over_time(a[1m])`, `start()`, `end()`, `a + start()`,
}

func TestAPI_ParsedAndFormattedQueriesEqualPrometheus(t *testing.T) {
	w := shared(t)
	n := 0
	for i, expr := range sampled(slices.Concat(treeExprs, durationExprs, brokenExprs, selectorExprs, wholeExprs, matrixExprs, binaryExprs, functionExprs, featureExprs, aggregationExprs(), callExprs(false), callExprs(true))) {
		for _, path := range []string{"/parse_query", "/format_query"} {
			for _, name := range []string{"default", "features"} {
				if strings.Contains(expr, "fill(NaN)") && path == "/parse_query" {
					continue // no JSON number: see the table of differences
				}
				a := request{pair: name, path: path, form: form("query", expr)}
				if i%2 == 1 {
					a.method, a.encoding = http.MethodPost, formEncoding(1+i/2%2)
				}
				w.compare(t, a, nil)
				n++
			}
		}
	}
	t.Logf("%d requests compared", n)
	for _, path := range []string{"/parse_query", "/format_query"} {
		w.compare(t, request{path: path}, nil)
	}
}

func TestTreeExprs_ContainEveryNodeType(t *testing.T) {
	w := shared(t)
	var all strings.Builder
	for _, expr := range slices.Concat(treeExprs, durationExprs) {
		all.WriteString(send(w.pairs["features"].ours, request{path: "/parse_query", form: form("query", expr)}.request(t)).body)
	}
	for _, kind := range []string{"aggregation", "binaryExpr", "call", "matrixSelector", "vectorSelector", "subquery", "durationExpr", "numberLiteral", "parenExpr", "stringLiteral", "unaryExpr"} {
		if !strings.Contains(all.String(), `"type":"`+kind+`"`) {
			t.Errorf("no %s among the queries", kind)
		}
	}
}
