package compare_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/compare"
)

// Lines as Prometheus 3.15 writes them to its query log.
const queryLog = `{"time":"2026-11-20T10:00:00.1Z","level":"INFO","source":"engine.go:757","msg":"promql query logged","params":{"end":"2026-11-20T10:00:00.000Z","query":"up == 0","start":"2026-11-20T10:00:00.000Z","step":0},"stats":{"timings":{"evalTotalTime":0.0001}},"httpRequest":{"clientIP":"127.0.0.1","method":"GET","path":"/api/v1/query"}}
{"time":"2026-11-20T10:00:01.1Z","level":"INFO","source":"engine.go:757","msg":"promql query logged","params":{"end":"2026-11-20T10:00:00.000Z","query":"rate(x[5m])","start":"2026-11-20T09:00:00.000Z","step":15}}
{"time":"2026-11-20T10:01:01.1Z","level":"INFO","source":"engine.go:757","msg":"promql query logged","params":{"end":"2026-11-20T10:01:00.000Z","query":"rate(x[5m])","start":"2026-11-20T09:01:00.000Z","step":15},"ruleGroup":{"file":"r.yml","name":"g"}}
not a line
`

// lines describes queries.
func lines(queries []compare.Query) (list []string) {
	for _, q := range queries {
		_, where, _ := strings.Cut(q.Source, "file")
		list = append(list, fmt.Sprintf("%s %s range=%t %d-%d/%d x%d", where, q.Expr, q.Range, q.StartMS/1000, q.EndMS/1000, q.StepMS, q.Times))
	}
	return list
}

func check(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestLoad_QueryLogIsReadOncePerQuery(t *testing.T) {
	queries, skipped := load(t, queryLog)
	check(t, lines(queries), ":1 up == 0 range=false 1795168800-1795168800/0 x1",
		":2 rate(x[5m]) range=true 1795165260-1795168860/15000 x2")
	if len(skipped) != 1 || !strings.HasSuffix(skipped[0].Source, ":4") {
		t.Errorf("skipped %+v", skipped)
	}
}

func TestCompare_QueryLogKeepsItsTimesWhileThereIsData(t *testing.T) {
	x := map[string]string{"rate(x[5m])": success("matrix", `[{"metric":{},"values":[[1,"1"]]}]`)}
	report := runBoth(t, serve(t, nil), serve(t, x), queryLog, nil)
	check(t, lines([]compare.Query{report.Results[0].Query, report.Results[1].Query}),
		":1 up == 0 range=false 1700000000-1700000000/0 x1",
		":2 rate(x[5m]) range=true 1795165260-1795168860/15000 x2")
}

func TestLoad_RuleFilesAndLists(t *testing.T) {
	const groups = "groups:\n- name: g\n  rules:\n  - {record: a:b, expr: sum(x)}\n  - alert: Down\n    expr: |\n      up\n      == 0\n    for: 5m\n"
	for _, text := range []string{groups,
		"apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nspec:\n  " + strings.ReplaceAll(groups, "\n", "\n  ")} {
		queries, _ := load(t, text)
		check(t, lines(queries), ": g / a:b sum(x) range=false 0-0/0 x0", ": g / Down up\n== 0\n range=false 0-0/0 x0")
	}
	queries, _ := load(t, "# all\nup\n\n  {job=\"x\"}\nsum by (a) (b)\n")
	check(t, lines(queries), ":2 up range=false 0-0/0 x0", ":4 {job=\"x\"} range=false 0-0/0 x0", ":5 sum by (a) (b) range=false 0-0/0 x0")
	queries, _ = load(t, "{job=\"x\"}\n{__name__=\"y\"}")
	if len(queries) != 2 {
		t.Errorf("a list that begins with a brace: %+v", queries)
	}
}

func TestLoad_FilesWithoutQueriesAreErrors(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct{ text, want string }{
		"empty":     {"# nothing\n", "no queries found"},
		"rules":     {"groups:\n- name: [\n", "yaml"},
		"dashboard": {"{\"panels\": [}", "invalid character"},
		"other":     {`{"a": 1}`, "no queries found"},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := compare.Load([]string{path}); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := compare.Load([]string{filepath.Join(dir, "absent")}); !os.IsNotExist(err) && (err == nil || !strings.Contains(err.Error(), "absent")) {
		t.Errorf("absent: %v", err)
	}
}

// A dashboard in the shape of Grafana's: rows of all generations, and variables of all types.
const dashboardJSON = `{"dashboard": {"title": "Shop", "templating": {"list": [null,
 {"name": "ds", "type": "datasource", "query": "prometheus"},
 {"name": "job", "type": "query", "query": {"query": "label_values(up, job)", "refId": "x"}, "current": {"value": "b"}},
 {"name": "node", "type": "query", "definition": "label_values(up{job=\"$job\"}, instance)", "regex": "/([^:]+):.*/", "multi": true, "includeAll": true, "current": {"value": ["$__all"]}},
 {"name": "all", "type": "query", "query": "label_values(env)", "includeAll": true, "allValue": ".+", "current": {"value": "$__all"}},
 {"name": "total", "type": "query", "query": "query_result(topk(1, x))", "regex": "/.*\\} (?<value>\\d+) .*/"},
 {"name": "names", "type": "query", "query": "metrics(http_)"},
 {"name": "fixed", "type": "constant", "query": "eu"},
 {"name": "level", "type": "custom", "query": "error : 5.., ok : 2..", "current": {"value": "2.."}},
 {"name": "every", "type": "interval", "query": "auto,5m,1h", "current": {"value": "gone"}},
 {"name": "loop", "type": "query", "query": "label_values(x{a=\"$loop\"}, a)"},
 {"name": "none", "type": "query", "query": "label_values(absent)"}
 ]},
 "rows": [{"title": "Old", "panels": [{"title": "P", "targets": [{"expr": "old{job=\"$job\"}", "refId": "A"}]}]}],
 "panels": [
 {"type": "row", "title": "Closed", "collapsed": true, "panels": [
   {"title": "Q", "datasource": {"type": "prometheus", "uid": "$ds"}, "targets": [
     {"refId": "A", "expr": "sum(rate(x{instance=~\"$node\", env=~\"[[all]]\"}[$__rate_interval]))"},
     {"refId": "B", "expr": "x > $total", "instant": true, "range": false},
     {"refId": "C", "expr": "hidden", "hide": true}]}]},
 {"title": "R", "targets": [
   {"refId": "A", "expr": "{__name__=\"$names\", region=\"${fixed}\", code=~\"${level:regex}\"}[$every]"},
   {"refId": "B", "expr": "label_replace(x, \"a\", \"$1\", \"b\", \"(.*)\") + $__range_s + $__interval_ms"},
   {"refId": "C", "expr": "x{a=\"$loop\"}"}, {"refId": "D", "expr": "x{a=\"$absent\"}"}, {"refId": "E", "expr": "x{a=\"$none\"}"},
   {"refId": "F", "expr": "x{a=~\"${node:pipe}\"}"}, {"refId": "G", "expr": "x{a=~\"${node:sqlstring}\"}"}]},
 {"title": "Logs", "datasource": {"type": "loki"}, "targets": [{"refId": "A", "expr": "{app=\"x\"}"}]}
 ]}}`

func TestCompare_DashboardsAreFilledFromTheLeftServer(t *testing.T) {
	list := func(values ...string) string {
		return `{"status":"success","data":["` + strings.Join(values, `","`) + `"]}`
	}
	left := serve(t, map[string]string{
		"/api/v1/label/job/values":      list("a", "b"),
		"/api/v1/label/instance/values": list("n1.x:9100", "n2:9100"),
		"/api/v1/label/env/values":      list("dev", "prod"),
		"/api/v1/label/__name__/values": list("http_requests"),
		"/api/v1/label/absent/values":   `{"status":"success","data":[]}`,
		"topk(1, x)":                    vector(`{"metric":{"__name__":"x","a":"b"},"value":[1700000000,"12"]}`),
	})
	report := runBoth(t, left, serve(t, nil), dashboardJSON, nil)
	var got []string
	for _, q := range report.Results {
		got = append(got, strings.TrimPrefix(lines([]compare.Query{q.Query})[0], ": Shop / "))
	}
	const ranged, at = " range=true 1699996400-1700000000/30000 x0", " range=false 0-1700000000/0 x0"
	check(t, got, `Closed / Q / A sum(rate(x{instance=~"(n1\\.x|n2)", env=~".+"}[1m]))`+ranged,
		`Closed / Q / B x > 12`+at,
		`R / A {__name__="http_requests", region="eu", code=~"2\.\."}[5m]`+ranged,
		`R / B label_replace(x, "a", "$1", "b", "(.*)") + 3600 + 30000`+ranged,
		`R / F x{a=~"n1.x|n2"}`+ranged,
		`Old / P / A old{job="b"}`+ranged)
	var skipped []string
	for _, s := range report.Skipped {
		skipped = append(skipped, s.Source[strings.Index(s.Source, "Shop"):]+": "+s.Why)
	}
	check(t, skipped, "Shop / Closed / Q / C: hidden", "Shop / Logs / A: its data source is loki",
		"Shop / R / C: the variable $loop refers to itself", "Shop / R / D: the variable $absent is not defined",
		"Shop / R / E: the variable $none has no values: label_values(absent)",
		`Shop / R / G: the format "sqlstring" of $node is not known`)
	if !slices.Contains(left.lookups, `/api/v1/label/instance/values up{job="b"}`) {
		t.Errorf("lookups %q", left.lookups)
	}
}

func TestCompare_ModesApplyToAllButQueryLogs(t *testing.T) {
	for mode, want := range map[compare.Mode]bool{compare.Auto: false, compare.Instant: false, compare.Range: true} {
		report := runBoth(t, serve(t, nil), serve(t, nil), "up", func(o *compare.Options) { o.Mode, o.Range = mode, time.Minute })
		if q := report.Results[0]; q.Range != want || q.EndMS != end.UnixMilli() || want && q.StartMS != end.UnixMilli()-60_000 {
			t.Errorf("%s: %+v", mode, q.Query)
		}
	}
}
