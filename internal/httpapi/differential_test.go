package httpapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// instants are the times of instant queries in the formats of clients.
var instants = []string{
	"600", "600.123", "-600.5", "1700000900.123", "1700000900", "1970-01-01T00:10:00Z", "2023-11-14T23:13:20.623+01:00", "1.7000009e9", "0", "-0.001", "1699999999.9999", "1700003585.1235",
}

// spans are start, end and step of range queries.
var spans = [][3]string{
	{"0", "900", "15"}, {"-300.5", "300", "1m30s"}, {"1700000000.123", "1700000600.123", "30"}, {"1700000000", "1700000010", "0.5"}, {"600", "600", "1"}, {"1700000000.123", "1700003600", "1m"}, {"1970-01-01T00:00:00Z", "1970-01-01T00:05:00.999Z", "7.001"},
	{"600", "600.02", "0.001"}, {"-900", "-30", "1.5"}, {"1.7e9", "1.700001e9", "99.999"}, {"0", "1800", "0x1p7"}, {"3500", "7200", "5m"},
}

func instant(pair, expr, at string) request {
	return request{pair: pair, path: "/query", form: form("query", expr, "time", at)}
}

func ranged(pair, expr string, span [3]string) request {
	return request{pair: pair, path: "/query_range", form: form("query", expr, "start", span[0], "end", span[1], "step", span[2])}
}

// everyQuery returns all requests of the differential test for queries: each expression as
// an instant and a range query in each era, so that block and head are read.
func everyQuery() []request {
	var all []request
	n := 0
	add := func(pair string, exprs []string) {
		for _, expr := range exprs {
			all = append(all, instant(pair, expr, instants[n%len(instants)]), ranged(pair, expr, spans[n%len(spans)]))
			n++
		}
	}
	for _, exprs := range [][]string{selectorExprs, wholeExprs, matrixExprs, binaryExprs, functionExprs, aggregationExprs(), operatorExprs(), callExprs(false), brokenExprs} {
		add("default", exprs)
	}
	for _, exprs := range [][]string{featureExprs, callExprs(true), wholeExprs, binaryExprs, brokenExprs} {
		add("features", exprs)
	}
	// The second round uses other times and ranges.
	n += 5
	for _, exprs := range [][]string{selectorExprs, matrixExprs, functionExprs, aggregationExprs(), callExprs(false)} {
		add("default", exprs)
	}
	for _, expr := range []string{`special_value`, `native_integer`, `demo_gauge`, `odd_label`, `stale_metric`, `mixed_metric`, `sum(demo_gauge)`, `rate(demo_requests_total[1m])`} {
		for _, at := range instants {
			all = append(all, instant("default", expr, at))
		}
		for _, span := range spans {
			all = append(all, ranged("default", expr, span))
		}
	}
	return append(all, parameterRequests()...)
}

// parameterRequests vary every parameter but the expression, alone and in pairs.
func parameterRequests() []request {
	values := map[string][]string{
		"time":           {"x", "1e999", "-1e999", "NaN", "Inf", "1700000900.12349", "9223372036.854", "1e18", "-1e18", "2023-11-14", "2023-11-14T23:13:20", "292277025-08-18T07:12:54.999999999Z", "-292273086-05-16T16:47:06Z", "0x10", "1_000", " 600", "600 "},
		"start":          {"", "x", "NaN", "1e30", "300", "901", "-1e18", "Inf", "1970-01-01T00:00:00.0005Z"},
		"end":            {"", "x", "NaN", "1e30", "-1", "299", "1e18", "0.0004", "-0.0001"},
		"step":           {"", "0", "-1", "NaN", "Inf", "-Inf", "1e30", "x", "1y", "0.0001", "0.0005", "0.001", "1e-10", "1h30m", "0.0819", "0.082", "1ms", "-5m", "0.08181", "5mm", "9223372036", "9223372037"},
		"limit":          {"", "0", "1", "2", "5", "149", "150", "151", "-1", "x", "1.5", "9223372036854775807", "9223372036854775808", "+3", "0x2", " 1"},
		"timeout":        {"", "1m", "30", "0.5", "x", "1e30", "5 m", "1h", "-1x"},
		"lookback_delta": {"", "0", "1s", "0.015", "16s", "1h", "-1s", "x", "1e30", "NaN", "1ms"},
		"stats":          {"", "true", "all", "false", "1", "<b>&"},
	}
	var all []request
	exprs := []string{"many", "demo_gauge", "1", "native_integer", `"s"`, "nothing", "sum(many)"}
	n := 0
	add := func(extra ...string) {
		for _, name := range []string{"default", "features"} {
			i := form("query", exprs[n%len(exprs)], "time", "600")
			r := form("query", exprs[n%len(exprs)], "start", "0", "end", "900", "step", "15")
			for j := 0; j < len(extra); j += 2 {
				i.Set(extra[j], extra[j+1])
				r.Set(extra[j], extra[j+1])
			}
			all = append(all, request{pair: name, path: "/query", form: i}, request{pair: name, path: "/query_range", form: r})
		}
		n++
	}
	names := []string{"time", "start", "end", "step", "limit", "timeout", "lookback_delta", "stats"}
	for k, name := range names {
		for i, v := range values[name] {
			add(name, v)
			other := names[(k+1+i%(len(names)-1))%len(names)]
			add(name, v, other, values[other][i%len(values[other])])
		}
	}
	for _, end := range []string{"10999", "11000", "11000.999", "11001"} { // around the maximum of points
		all = append(all, ranged("default", "1", [3]string{"0", end, "1"}))
	}
	all = append(all, request{path: "/query"}, request{path: "/query_range"}, request{path: "/query_range", form: form("start", "0")}, request{path: "/query_range", form: form("start", "0", "end", "1")}, request{path: "/query_range", form: form("start", "0", "end", "1", "step", "1")})
	return all
}

func TestAPI_QueriesEqualPrometheus(t *testing.T) {
	const atLeast = 400
	w, requests := shared(t), sampled(everyQuery())
	if len(requests) < atLeast {
		t.Fatalf("%d requests, want at least %d", len(requests), atLeast)
	}
	kinds := map[string]int{}
	for i, a := range requests {
		carry(&a, i)
		var loosen func(string) string
		if a.path == "/query" && fromMaps.MatchString(a.form.Get("query")) {
			loosen = sortElements
		}
		got := w.compare(t, a, loosen)
		kinds[fmt.Sprint(a.path, " ", got.status)]++
	}
	t.Logf("%d requests compared: %v", len(requests), kinds)
	for _, kind := range []string{"/query 200", "/query_range 200", "/query 400", "/query_range 400", "/query 422", "/query_range 422"} {
		if kinds[kind] < 5 {
			t.Errorf("only %d responses are %s", kinds[kind], kind)
		}
	}
}

// carry varies the encoding of the form by index: URL, body, multipart, and URL and body.
func carry(a *request, i int) {
	switch i % 4 {
	case 1:
		a.method, a.encoding = http.MethodPost, formInBody
	case 2:
		a.method, a.encoding = http.MethodPost, formInMultipart
	case 3:
		a.method, a.encoding = http.MethodPost, formInBody
		a.query = url.Values{"query": {"overridden_by_the_body"}, "limit": {"100"}}.Encode()
	}
}

func TestCallExprs_ContainEveryFunction(t *testing.T) {
	seen := slices.Concat(callExprs(false), callExprs(true))
	for _, name := range []string{"label_replace(", "label_join(", "rate(", "info(", "time("} {
		if !slices.ContainsFunc(seen, func(expr string) bool { return len(expr) > len(name) && expr[:len(name)] == name }) {
			t.Errorf("no call of %s", strconv.Quote(name))
		}
	}
}

func TestAPI_MoreThanTenInfosAreCounted(t *testing.T) {
	w := shared(t)
	var rates []string
	for _, name := range []string{"demo_gauge", "many", "special_value", "odd_label", "target_info", "mixed_metric", "utf8.metric-name", "метрика", `quo\"te`, "<&>", "sparse_metric", "stale_metric", `new\nline`} {
		rates = append(rates, `rate({"`+name+`"}[20m])`)
	}
	a := instant("default", strings.Join(rates, " or "), "600")
	type infos struct {
		Infos []string `json:"infos"`
	}
	var got, want infos
	for body, n := range map[string]*infos{send(w.pairs["default"].ours, a.request(t)).body: &got, send(w.pairs["default"].oracle, a.request(t)).body: &want} {
		if err := json.Unmarshal([]byte(body), n); err != nil {
			t.Fatal(err)
		}
	}
	if len(want.Infos) != 11 || len(got.Infos) != 11 || got.Infos[10] != want.Infos[10] {
		t.Errorf("got %q, Prometheus has %q", got.Infos, want.Infos)
	}
}
