package e2e

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/app"
)

// queryWith returns the body of an instant query and the engine that evaluated it.
func (s *server) queryWith(query, at string) (body, engine string) {
	s.t.Helper()
	resp, err := http.Get(s.base + "/api/v1/query?" + url.Values{"query": {query}, "time": {at}}.Encode())
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		s.t.Fatalf("%s: status %d, %v: %s", query, resp.StatusCode, err, raw)
	}
	return string(raw), resp.Header.Get("X-Ferula-Query-Engine")
}

func TestServe_BothEnginesReturnTheSame(t *testing.T) {
	dir := t.TempDir()
	queries := map[string]string{
		`sum by (job) (scrape_samples_scraped)`:                "columns",
		`count({__name__=~".+"}) * 2`:                          "columns",
		`rate(ferula_http_request_duration_seconds_count[1m])`: "columns",
		`sum(scrape_samples_scraped) / count(up)`:              "columns",
		`sum by (job) (rate(ferula_http_request_duration_seconds_count[1m])) / on () group_left () sum(rate(ferula_http_request_duration_seconds_count[1m]))`: "columns",
		`up[1m]`: "prometheus; reason=type_matrix",
	}
	first := startServe(t, func(o *app.ServeOptions) { o.Store.Dir = dir })
	eventually(t, 60*time.Second, "two scrapes", func() bool { return first.value("count_over_time(up[1m])") > "1" })
	at := first.instant("timestamp(up)")[0].Value[1].(string)
	want := map[string]string{}
	for query, by := range queries {
		body, engine := first.queryWith(query, at)
		if want[query] = body; engine != by {
			t.Errorf("%s evaluated by %q, want %q", query, engine, by)
		}
	}
	if n := first.metric(`ferula_query_engine_queries_total{engine="prometheus",reason="type_matrix"}`); n < 1 {
		t.Errorf("%g queries by Prometheus' engine", n)
	}
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	second := startServe(t, func(o *app.ServeOptions) { o.Store.Dir, o.Engine.Name = dir, "prometheus" })
	for query := range queries {
		body, engine := second.queryWith(query, at)
		if body != want[query] || engine != "" {
			t.Errorf("%s: engine %q\n got %s\nwant %s", query, engine, want[query], body)
		}
	}
}

func TestServe_AnUnknownEngineIsAnError(t *testing.T) {
	if err := newServe(t, func(o *app.ServeOptions) { o.Engine.Name = "rows" }); err == nil {
		t.Fatal("no error")
	}
}

// TestProcesses_RefuseQueriesWithoutABound sends queries whose evaluation would allocate memory
// although there are hardly any samples.
func TestProcesses_RefuseQueriesWithoutABound(t *testing.T) {
	t.Parallel()
	serve := startProcess(t, binary(t), "serve", "--storage.tsdb.path="+t.TempDir(), "--web.listen-address=127.0.0.1:0")
	old := startProcess(t, binary(t), "serve", "--storage.tsdb.path="+t.TempDir(), "--web.listen-address=127.0.0.1:0", "--query.engine=prometheus")
	query := startProcess(t, binary(t), "query", "--http-address=127.0.0.1:0", "--grpc-address=127.0.0.1:0", "--endpoint=127.0.0.1:1")
	nested := strings.Repeat("label_replace(", 40) + "vector(1)" + strings.Repeat(`,"a","x$1$1","a","(.*)")`, 40)
	for text, want := range map[string]string{
		`sum_over_time(vector(1)[100y:1ms])`:     "more than 50000000 steps together (--query.max-samples)",
		`sum_over_time((up + up)[30d:1ms])`:      "--query.max-samples",
		`sum(sum_over_time(up[30d:1ms]) or up)`:  "--query.max-samples",
		`sum_over_time(` + nested + `[1h:1h])`:   "label_replace and the calls around it may make a label value more than 65536 times longer",
		`label_join(` + nested + `,"b","","a")`:  "65536 times longer",
		`max_over_time((vector(1) > 2)[1y:10s])`: "", // no samples: what is allocated is bounded
	} {
		for name, p := range map[string]*process{"serve": serve, "serve --query.engine=prometheus": old, "query": query} {
			status, body := p.get("/api/v1/query?partial_response=true&query=" + url.QueryEscape(text))
			if want == "" && status != http.StatusOK || want != "" && (status != http.StatusBadRequest || !strings.Contains(body, want)) {
				t.Errorf("%s: %.60s: %d %s, want %q", name, text, status, body, want)
			}
		}
	}
	for _, p := range []*process{serve, old, query} {
		if err := p.signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
	}
}
