package e2e

import (
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/version"
)

func TestServe_ScrapesItselfWithoutAConfiguration(t *testing.T) {
	s := startServe(t, nil)
	eventually(t, 60*time.Second, "its own up to be 1", func() bool { return s.value("up") == "1" })
	if got := s.instant(`ferula_build_info`); len(got) != 1 || got[0].Metric["version"] != version.Current().Version {
		t.Fatalf("ferula_build_info is %v", got)
	}
	if status, body := s.get("/api/v1/metadata?metric=go_goroutines"); status != 200 || !strings.Contains(body, `"type":"gauge"`) {
		t.Fatalf("metadata: %d %s", status, body)
	}
	for path, want := range map[string]string{
		"/-/healthy":                   "healthy",
		"/":                            "<html",
		"/metrics":                     "prometheus_tsdb_head_series",
		"/debug/pprof/":                "goroutine",
		"/debug/pprof/cmdline":         "e2e",
		"/api/v1/targets":              `"health":"up"`,
		"/api/v1/scrape_pools":         `["ferula"]`,
		"/api/v1/status/config":        "job_name: ferula",
		"/api/v1/status/tsdb":          `"seriesCountByMetricName":[{"name":"`,
		"/api/v1/status/runtimeinfo":   `"reloadConfigSuccess":true`,
		"/api/v1/status/buildinfo":     `"program":"ferula `,
		"/api/v1/status/walreplay":     `"current":`,
		"/api/v1/label/job/values":     `["ferula"]`,
		"/api/v1/rules":                `{"groups":[]}`,
		"/api/v1/format_query?query=1": `"1"`,
	} {
		if status, body := s.get(path); status != 200 || !strings.Contains(body, want) {
			t.Errorf("GET %s: %d, wants %q in %.200s", path, status, want, body)
		}
	}
	for path, want := range map[string]int{
		"/api/v1/nothing": 404, "/api/v2/query": 404, "/-/nothing": 404, "/assets/nothing.js": 404,
	} {
		if status, _ := s.get(path); status != want {
			t.Errorf("GET %s: %d, want %d", path, status, want)
		}
	}
}

func TestServe_DataSurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	first := startServe(t, func(o *app.ServeOptions) { o.Store.Dir = dir })
	eventually(t, 60*time.Second, "a first scrape", func() bool { return first.value("up") == "1" })
	at := first.instant("timestamp(up)")[0].Value[1].(string)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	second := startServe(t, func(o *app.ServeOptions) { o.Store.Dir = dir })
	if got := second.value(`up`, "time", at); got != "1" {
		t.Fatalf("up at %s is %q after a restart", at, got)
	}
}

func TestServe_ExternalURLPrefixesEveryRoute(t *testing.T) {
	s := startServe(t, func(o *app.ServeOptions) { o.Web.ExternalURL = "http://metrics.example/ferula/" })
	for path, want := range map[string]int{
		"/ferula/": 200, "/ferula/-/healthy": 200, "/ferula/metrics": 200, "/ferula/api/v1/labels": 200,
		"/ferula/debug/pprof/goroutine?debug=1": 200, "/api/v1/labels": 404, "/metrics": 404,
	} {
		if status, body := s.get(path); status != want {
			t.Errorf("GET %s: %d, want %d: %.100s", path, status, want, body)
		}
	}
	eventually(t, 60*time.Second, "the own target below the prefix", func() bool {
		status, body := s.get("/ferula/api/v1/query?query=up")
		return status == 200 && strings.Contains(body, `"1"]`)
	})
}

func TestServe_TargetsAreDiscoveredRelabelledAndAuthenticated(t *testing.T) {
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "eve" || password != "apple" {
			http.Error(w, "wrong account", http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = io.WriteString(w, "# HELP apples_total Apples.\n# TYPE apples_total counter\napples_total{kind=\"red\"} 3\napples_total{kind=\"rotten\"} 4\n")
	}))
	defer target.Close()
	address := strings.TrimPrefix(target.URL, "http://")
	discovery := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `[{"targets":["`+address+`"],"labels":{"found_by":"http"}}]`)
	}))
	defer discovery.Close()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "targets.json"), `[{"targets":["`+address+`"],"labels":{"found_by":"file"}}]`)
	config := writeFile(t, filepath.Join(dir, "prometheus.yml"), `
global: {scrape_interval: 500ms, scrape_timeout: 400ms, external_labels: {site: here}}
scrape_configs:
- job_name: file
  file_sd_configs: [{files: [targets.json]}]
  basic_auth: {username: eve, password: apple}
  relabel_configs: [{target_label: garden, replacement: east}]
  metric_relabel_configs: [{source_labels: [kind], regex: rotten, action: drop}]
- job_name: http
  http_sd_configs: [{url: "`+discovery.URL+`"}]
  basic_auth: {username: eve, password: wrong}
- job_name: dns
  dns_sd_configs: [{names: [_metrics._tcp.invalid], refresh_interval: 1h}]
`)
	s := startServe(t, func(o *app.ServeOptions) {
		o.ConfigFile = config
		o.Scrape.DiscoveryReloadInterval = 200 * time.Millisecond
	})
	eventually(t, 60*time.Second, "the authenticated scrape", func() bool {
		return s.value(`apples_total{job="file",garden="east",kind="red",found_by="file"}`) == "3"
	})
	if got := s.instant(`apples_total{kind="rotten"}`); len(got) != 0 {
		t.Errorf("a sample that relabelling drops was stored: %v", got)
	}
	eventually(t, 60*time.Second, "the refused scrape", func() bool { return s.value(`up{job="http"}`) == "0" })
	if _, body := s.get("/api/v1/targets?scrapePool=http"); !strings.Contains(body, "401 Unauthorized") {
		t.Errorf("the target has no last error: %s", body)
	}
}
