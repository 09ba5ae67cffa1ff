package sources

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// responses of Prometheus 3.15, by path; any other path is 404.
var responses = map[string]string{
	"/p/api/v1/status/config":             `{"status":"success","data":{"yaml":"global:\n  scrape_interval: 15s\n  external_labels:\n    replica: r1\n    cluster: \"e\\u00fc\"\nscrape_configs: []\nsome_newer_section: {a: b}\n"}}`,
	"/p/api/v1/status/flags":              `{"status":"success","data":{"storage.tsdb.min-block-duration":"2h","web.enable-lifecycle":"true"}}`,
	"/p/metrics":                          "# TYPE prometheus_tsdb_lowest_timestamp_seconds gauge\nprometheus_tsdb_lowest_timestamp 1\nprometheus_tsdb_lowest_timestamp_seconds 1.7e+09\nx 2\n",
	"/p/api/v1/labels":                    `{"status":"success","data":["__name__","a"],"warnings":["cut short"]}`,
	"/p/api/v1/label/a/values":            `{"status":"success","data":["1","\u00fc"]}`,
	"/p/api/v1/label/U__a_2e_b__c/values": `{"status":"success","data":["dotted"]}`,
	"/p/api/v1/query_exemplars":           `{"status":"success","data":[{"seriesLabels":{"__name__":"x","job":"a"},"exemplars":[{"labels":{"trace_id":"7"},"value":"0.5","timestamp":1700000000.123}]}]}`,
	"/p/api/v1/rules": `{"status":"success","data":{"groups":[{"name":"g","file":"f.yml","interval":15,"limit":3,"evaluationTime":0.5,"lastEvaluation":"2026-01-02T03:04:05.6Z","rules":[
		{"type":"recording","name":"r","query":"q","labels":{"a":"1","cluster":"own"},"health":"ok","evaluationTime":0.1,"lastEvaluation":"2026-01-02T03:04:05Z"},
		{"type":"alerting","state":"firing","name":"A","query":"up == 0","duration":60,"keepFiringFor":30,"labels":{"s":"c"},"annotations":{"t":"x"},"alerts":[{"labels":{"alertname":"A"},"annotations":{},"state":"firing","activeAt":"2026-01-02T03:04:05Z","value":"0e+00"}],"health":"err","lastError":"e"}]}]}}`,
	"/p/api/v1/targets":     `{"status":"success","data":{"activeTargets":[{"discoveredLabels":{"__address__":"x:1"},"labels":{"job":"j"},"scrapePool":"p","scrapeUrl":"http://x:1/metrics","globalUrl":"http://y:1/metrics","lastError":"","lastScrape":"2026-01-02T03:04:05.6Z","lastScrapeDuration":0.25,"health":"up"}],"droppedTargets":[{"discoveredLabels":{"__address__":"z:1"}}],"droppedTargetCounts":{"p":1}}}`,
	"/p/api/v1/status/tsdb": `{"status":"success","data":{"headStats":{"numSeries":5,"numLabelPairs":6,"chunkCount":7,"minTime":-8,"maxTime":9},"seriesCountByMetricName":[{"name":"up","value":1}],"labelValueCountByLabelName":[{"name":"job","value":2}],"memoryInBytesByLabelName":[{"name":"job","value":3}],"seriesCountByLabelValuePair":[{"name":"job=a","value":4}]}}`,
	"/p/api/v1/metadata":    `{"status":"success","data":{"up":[{"type":"gauge","help":"h","unit":""}]}}`,
}

// fake is a Prometheus that records the query parameters.
type fake struct {
	*httptest.Server
	query  url.Values
	status int
	text   string // "": responses
}

func newFake(t *testing.T) (*fake, *client) {
	t.Helper()
	f := &fake{}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.query = r.URL.Query()
		text, ok := responses[r.URL.Path]
		switch {
		case f.status != 0:
			w.WriteHeader(f.status)
			fmt.Fprint(w, f.text)
		case f.text != "":
			fmt.Fprint(w, f.text)
		case !ok:
			http.NotFound(w, r)
		default:
			fmt.Fprint(w, text)
		}
	}))
	t.Cleanup(f.Close)
	u, err := url.Parse(f.URL + "/p/")
	if err != nil {
		t.Fatal(err)
	}
	return f, &client{u, f.Client(), 1 << 16}
}

func TestClient_ReadsResponsesOfPrometheus(t *testing.T) {
	f, c := newFake(t)
	ctx := context.Background()
	if got, others, err := c.Config(ctx); err != nil || others || got.String() != `{cluster="eü", replica="r1"}` {
		t.Errorf("external labels %s, %v", got, err)
	}
	if got, err := c.Flags(ctx); err != nil || got["storage.tsdb.min-block-duration"] != "2h" {
		t.Errorf("flags %v, %v", got, err)
	}
	if got, err := c.Extent(ctx); err != nil || got != (extent{1_700_000_000_000, math.MaxInt64, math.MaxInt64, -1}) {
		t.Errorf("extent %+v, %v", got, err)
	}
	matchers := []*labels.Matcher{labels.MustNewMatcher(labels.MatchRegexp, "a.b", `x"|`)}
	names, warnings, err := c.LabelNames(ctx, matchers, math.MinInt64, math.MaxInt64, 3)
	if err != nil || strings.Join(names, " ") != "__name__ a" || len(warnings) != 1 || f.query.Get("limit") != "3" || f.query.Get("match[]") != `{"a.b"=~"x\"|",__name__!=""}` || f.query.Get("end") != "9000000000000.000" {
		t.Errorf("%q, %q, %v; query %v", names, warnings, err, f.query)
	}
	values, _, err := c.LabelValues(ctx, "a", nil, 1500, 2500, 0)
	if err != nil || strings.Join(values, " ") != "1 ü" || f.query.Get("start") != "1.500" || f.query.Has("match[]") || f.query.Has("limit") {
		t.Errorf("%q, %v; query %v", values, err, f.query)
	}
	if values, _, err = c.LabelValues(ctx, "a.b_c", nil, 0, 1, 0); err != nil || len(values) != 1 {
		t.Errorf("%q, %v", values, err)
	}
	results, _, err := c.Exemplars(ctx, "x", 0, 1)
	if err != nil || len(results) != 1 || results[0].Exemplars[0].Ts != 1700000000123 || results[0].Exemplars[0].Value != 0.5 || results[0].SeriesLabels.Get("job") != "a" {
		t.Errorf("%+v, %v", results, err)
	}
}

func TestClient_InvalidResponsesAreErrors(t *testing.T) {
	f, c := newFake(t)
	ctx := context.Background()
	for _, wrong := range []struct {
		status int
		text   string
		want   error
	}{
		{400, `{"status":"error","error":"bad matcher"}`, errRefused}, {422, "no", errRefused}, {503, "starting", errUnavailable}, {429, "", errUnavailable}, {500, "{", errUnavailable},
		{0, `{"status":"success","data":`, errBadResponse}, {0, "<html>", errBadResponse}, {0, `{"status":"error"}`, errBadResponse}, {0, `"` + strings.Repeat("x", 1<<17) + `"`, errBadResponse},
	} {
		f.status, f.text = wrong.status, wrong.text
		if _, _, err := c.LabelNames(ctx, nil, 0, 1, 0); !errors.Is(err, wrong.want) {
			t.Errorf("%d %.40s: %v, want %v", wrong.status, wrong.text, err, wrong.want)
		}
	}
	for text, want := range map[string]error{"x 1\n": errBadResponse, "prometheus_tsdb_lowest_timestamp_seconds soon\n": errBadResponse, "prometheus_tsdb_head_min_time 5\n": errBadResponse} {
		f.status, f.text = 0, text
		if _, err := c.Extent(ctx); !errors.Is(err, want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	f.text = "prometheus_tsdb_lowest_timestamp_seconds 9.223372036854776e+15\n"
	if got, err := c.Extent(ctx); err != nil || got != (extent{math.MinInt64, math.MaxInt64, math.MaxInt64, -1}) {
		t.Errorf("an empty head: %+v, %v", got, err)
	} else if from, err := c.AcceptsMS(ctx, got); err != nil || from != math.MinInt64 { // any sample may be its first
		t.Errorf("an empty head accepts samples from %d, %v", from, err)
	}
	f.text = "prometheus_tsdb_head_max_time 1.700000000456e+12\nprometheus_tsdb_head_min_time 1.700000000123e+12\nprometheus_tsdb_lowest_timestamp_seconds 1.6e+9\nprometheus_tsdb_storage_blocks_bytes 1.234567e+06\n"
	if got, err := c.Extent(ctx); err != nil || got != (extent{1_600_000_000_000, 1_700_000_000_123, 1_700_000_000_456, 1234567}) {
		t.Errorf("%+v, %v", got, err)
	}
	f.text = `{"status":"success","data":{"yaml":"remote_read: [{url: 'http://x'}]\n"}}`
	if _, others, err := c.Config(ctx); err != nil || !others {
		t.Error(others, err)
	}
	f.text = `{"status":"success","data":{"yaml":"global: [\n"}}`
	if _, _, err := c.Config(ctx); !errors.Is(err, errBadResponse) {
		t.Error(err)
	}
	f.Close()
	if _, err := c.Flags(ctx); !errors.Is(err, errUnavailable) {
		t.Error(err)
	}
}

func TestClient_ReadsRulesTargetsMetadataAndStatistics(t *testing.T) {
	f, c := newFake(t)
	ctx := t.Context()
	groups, _, err := c.Rules(ctx, storeapi.RulesRequest{Type: "alert", Names: []string{"A"}})
	if err != nil || f.query.Get("type") != "alert" || f.query.Get("rule_name[]") != "A" || len(groups) != 1 {
		t.Fatalf("query %v: %v, %v", f.query, groups, err)
	}
	g := groups[0]
	if g.Name != "g" || g.File != "f.yml" || g.Limit != 3 || g.IntervalSeconds != 15 || g.EvaluationSeconds != 0.5 || g.LastEvaluation.Nanosecond() != 600_000_000 || len(g.Rules) != 2 {
		t.Fatalf("%+v", g)
	}
	recording, alert := g.Rules[0], g.Rules[1]
	if recording.Alerting || recording.Name != "r" || recording.Query != "q" || recording.Labels.Get("cluster") != "own" || recording.Health != "ok" || recording.EvaluationSeconds != 0.1 || recording.LastEvaluation.IsZero() {
		t.Errorf("%+v", recording)
	}
	if !alert.Alerting || alert.State != "firing" || alert.DurationSeconds != 60 || alert.KeepFiringSeconds != 30 || alert.LastError != "e" || alert.Annotations.Get("t") != "x" || len(alert.Alerts) != 1 {
		t.Fatalf("%+v", alert)
	}
	if a := alert.Alerts[0]; a.State != "firing" || a.Value != "0e+00" || a.ActiveAt.IsZero() || a.Labels.Len() != 1 {
		t.Errorf("%+v", a)
	}
	if _, _, err := c.Rules(ctx, storeapi.RulesRequest{Type: "all"}); err != nil || f.query.Has("type") {
		t.Errorf("query %v: %v", f.query, err)
	}
	targets, _, err := c.Targets(ctx, storeapi.TargetsRequest{State: "active"})
	if err != nil || f.query.Get("state") != "active" || len(targets.Active) != 1 || len(targets.Dropped) != 1 || targets.Dropped[0].Get("__address__") != "z:1" {
		t.Fatalf("query %v: %+v, %v", f.query, targets, err)
	}
	if a := targets.Active[0]; a.Health != "up" || a.Labels.Get("job") != "j" || a.Discovered.Len() != 1 || a.ScrapePool != "p" || a.ScrapeURL != "http://x:1/metrics" || a.GlobalURL != "http://y:1/metrics" || a.LastScrapeSeconds != 0.25 || a.LastScrape.IsZero() {
		t.Errorf("%+v", a)
	}
	if _, _, err := c.Targets(ctx, storeapi.TargetsRequest{State: "any"}); err != nil || f.query.Has("state") {
		t.Errorf("query %v: %v", f.query, err)
	}
	found, _, err := c.MetricMetadata(ctx, storeapi.MetadataRequest{Metric: "up", Limit: -1})
	if err != nil || f.query.Get("metric") != "up" || f.query.Has("limit") || len(found["up"]) != 1 || found["up"][0].Help != "h" || found["up"][0].Type != "gauge" {
		t.Errorf("query %v: %v, %v", f.query, found, err)
	}
	s, _, err := c.TSDBStatistics(ctx, 3)
	if err != nil || f.query.Get("limit") != "3" || fmt.Sprint(s.Series, s.LabelPairs, s.Chunks, s.MinMS, s.MaxMS) != "5 6 7 -8 9" {
		t.Errorf("query %v: %+v, %v", f.query, s, err)
	}
	if fmt.Sprint(s.SeriesByMetric, s.ValuesByLabel, s.BytesByLabel, s.SeriesByPair) != "[{up 1}] [{job 2}] [{job 3}] [{job=a 4}]" {
		t.Errorf("%+v", s)
	}
	f.text = `{"status":"success","data":{"groups":[{"rules":[{"type":"new"}]}]}}`
	if _, _, err := c.Rules(ctx, storeapi.RulesRequest{}); !errors.Is(err, errBadResponse) {
		t.Error(err)
	}
}

// The server reads a name that begins with U__ as an escaped one.
func TestEscapedName_IsTheNameToTheServer(t *testing.T) {
	for name, want := range map[string]string{
		"a": "a", "a_b1": "a_b1", "a.b_c": "U__a_2e_b__c", "1a": "U___31_a", "ü": "U___fc_", "U__a": "U__U____a", "U__ü": "U__U_____fc_", "U_": "U_",
	} {
		got := escapedName(name)
		if read := model.UnescapeName(got, model.ValueEncodingEscaping); got != want || strings.HasPrefix(got, "U__") && read != name {
			t.Errorf("%s is sent as %s, want %s; read as %s", name, got, want, read)
		}
	}
}
