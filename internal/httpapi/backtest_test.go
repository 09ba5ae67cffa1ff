package httpapi_test

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/httpapi"
)

// backtestServer serves a storage in which up is 1, except from the 300th to the 899th second.
func backtestServer(t *testing.T) *httptest.Server { return backtestServerWith(t, time.Minute) }

func backtestServerWith(t *testing.T, timeout time.Duration) *httptest.Server {
	t.Helper()
	db, err := openDB(t.TempDir(), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	app := db.Appender(t.Context())
	for second := int64(0); second < 3600; second += 30 {
		up := 1.0
		if second >= 300 && second < 900 {
			up = 0
		}
		if _, err := app.Append(0, labels.FromStrings("__name__", "up", "job", "a"), second*1000, up); err != nil {
			t.Fatal(err)
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	p := parser.NewParser(parser.Options{})
	engine := promql.NewEngine(promql.EngineOpts{Logger: slog.New(slog.DiscardHandler), MaxSamples: 1e6,
		Timeout: time.Minute, Parser: p})
	t.Cleanup(func() { _ = engine.Close() })
	mux := http.NewServeMux()
	httpapi.New(httpapi.Options{Engine: engine, Parser: p, Queryable: db,
		ExternalURL: &url.URL{Scheme: "http", Host: "prom.example"},
		BacktestMax: timeout, Flags: hint.Flags{"BacktestMax": "--query.timeout"},
		RuleOptions: func() httpapi.RuleOptions {
			return httpapi.RuleOptions{ExternalLabels: labels.FromStrings("region", "north"), Interval: 30 * time.Second}
		}}).Register(mux, prefix)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server
}

func backtestOf(t *testing.T, server *httptest.Server, params url.Values) (status int, body string) {
	t.Helper()
	for _, name := range []string{"start", "end"} {
		if !params.Has(name) {
			params.Set(name, map[string]string{"start": "0", "end": "3600"}[name])
		}
	}
	res, err := server.Client().PostForm(server.URL+prefix+"/rules/backtest", params)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	all, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(all)
}

func TestBacktest_OneExpression(t *testing.T) {
	status, body := backtestOf(t, backtestServer(t), url.Values{"expr": {"up == 0"}, "for": {"2m"},
		"keep_firing_for": {"1m"}, "alert": {"Down"}, "label": {"severity=page"},
		"annotation": {"summary={{ $labels.job }} is {{ $value }} in {{ $externalLabels.region }}: {{ $externalURL }}"}})
	want := `{"status":"success","data":{"start":0,"end":3600,"groups":[{"name":"","interval":30,"rules":[` +
		`{"name":"Down","query":"up == 0","labels":{"severity":"page"},"type":"alerting","for":120,"keepFiringFor":60,` +
		`"alerts":[{"labels":{"alertname":"Down","job":"a","severity":"page"},"intervals":[` +
		`{"state":"pending","start":300,"end":420,"value":"0"},{"state":"firing","start":420,"end":960,"value":"0"}]}],` +
		`"notifications":[{"at":420,"labels":{"alertname":"Down","job":"a","severity":"page"},` +
		`"annotations":{"summary":"a is 0 in north: http://prom.example"},"startsAt":"1970-01-01T00:07:00Z",` +
		`"endsAt":"1970-01-01T00:11:00Z","resolved":false,"resends":5},` +
		`{"at":960,"labels":{"alertname":"Down","job":"a","severity":"page"},` +
		`"annotations":{"summary":"a is 0 in north: http://prom.example"},"startsAt":"1970-01-01T00:07:00Z",` +
		`"endsAt":"1970-01-01T00:16:00Z","resolved":true,"resends":10}],"truncated":false,` +
		`"counts":{"alerts":1,"firings":1,"notifications":2,"resends":15}}]}]}}`
	if status != 200 || body != want {
		t.Errorf("%d %s\nwant %s", status, body, want)
	}
}

func TestBacktest_ARuleFileWithARecordingRule(t *testing.T) {
	status, body := backtestOf(t, backtestServer(t), url.Values{"resends": {"true"}, "rules": {`
groups:
- name: g
  interval: 1m
  rules:
  - {record: "job:up:min", expr: min by (job) (up), labels: {of: rule}}
  - {alert: Down, expr: 'job:up:min == 0'}
  - {alert: Broken, expr: 'label_replace(up, "x", "", "job", "(")'}
`}})
	for _, part := range []string{`"status":"success"`, `"name":"g","interval":60,"rules":[{"name":"job:up:min","query":"min by (job) (up)",` +
		`"labels":{"of":"rule"},"type":"recording","counts":{"samples":60}}`, `"resends":0}`, `{"name":"Down",`,
		`{"name":"Broken",`, `"errors":{"count":60,"firstAt":`, `invalid regular expression`, `,"resends":11}`} {
		if !strings.Contains(body, part) {
			t.Errorf("%d %s\nlacks %s", status, body, part)
		}
	}
}

// The time of all queries together is limited, by the server even if the client allows more.
func TestBacktest_HasTheTimeoutOfAQuery(t *testing.T) {
	server := backtestServerWith(t, time.Nanosecond)
	for _, params := range []url.Values{{"expr": {"up"}}, {"expr": {"up"}, "timeout": {"1h"}}} {
		status, body := backtestOf(t, server, params)
		if status != 503 || !strings.Contains(body, `"errorType":"timeout"`) ||
			!strings.Contains(body, "choose a shorter range, fewer rules, a longer interval or a greater timeout (--query.timeout)") {
			t.Errorf("%v: %d %s", params, status, body)
		}
	}
}

func TestBacktest_BadRequests(t *testing.T) {
	server := backtestServer(t)
	for _, c := range []struct {
		params url.Values
		status int
		want   string
	}{
		{url.Values{}, 400, "exactly one of the parameters rules and expr"},
		{url.Values{"expr": {"up"}, "rules": {"groups: []"}}, 400, "exactly one of the parameters rules and expr"},
		{url.Values{"expr": {"up ="}}, 400, `invalid parameter \"expr\": invalid rules: could not parse expression`},
		{url.Values{"expr": {"up[5m]"}}, 400, "the result is a range vector"},
		{url.Values{"expr": {"up"}, "for": {"-1m"}}, 400, `invalid parameter \"for\"`},
		{url.Values{"expr": {"up"}, "interval": {"0.0001"}}, 400, `invalid parameter \"interval\"`},
		{url.Values{"expr": {"up"}, "interval": {"0"}}, 400, `invalid parameter \"interval\"`},
		{url.Values{"expr": {"up"}, "resends": {"yes"}}, 400, `invalid parameter \"resends\"`},
		{url.Values{"expr": {"up"}, "label": {"severity"}}, 400, "is not name=value"},
		{url.Values{"expr": {"up"}, "annotation": {"a={{ $nope }}"}}, 400, "undefined variable"},
		{url.Values{"expr": {"up"}, "end": {"-1"}}, 400, "before start time"},
		{url.Values{"expr": {"up"}, "start": {"x"}}, 400, `invalid parameter \"start\"`},
		{url.Values{"rules": {"groups:\n- name: g\n  rules:\n  - alert: A\n    expr: 'sum('\n"}}, 400,
			`rule file rules: 5:11: group \"g\", rule 1, \"A\"`},
		{url.Values{"rules": {"groups: [\n"}}, 400, `invalid rules: rule file rules: yaml: line 1: did not find expected node content"`},
		{url.Values{"rules": {strings.Repeat(" ", 2<<20)}}, 400, "at most 1048576 are allowed"},
		{url.Values{"expr": {"up"}, "end": {"1e9"}, "interval": {"1s"}}, 422, "limit of a backtest"},
		{url.Values{"expr": {"up"}, "start": {"NaN"}}, 422, "the range must be between 1970 and 2106"},
		{url.Values{"expr": {"up"}, "start": {"-Inf"}}, 422, "the range must be between 1970 and 2106"},
		{url.Values{"expr": {"up"}, "end": {"1e10"}}, 422, "the range must be between 1970 and 2106"},
		{url.Values{"expr": {"up"}, "timeout": {"0.000000001"}}, 503, "timed out"},
	} {
		if status, body := backtestOf(t, server, c.params); status != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%v: %d %s", c.params, status, body)
		}
	}
}
