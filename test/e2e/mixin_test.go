package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// ruleState is a rule of /api/v1/rules.
type ruleState struct {
	Name, Health, LastError, State string
	Alerts                         []struct{ Labels map[string]string }
}

func (s *server) rules() (all []ruleState) {
	s.t.Helper()
	_, body := s.get("/api/v1/rules")
	var response struct {
		Data struct{ Groups []struct{ Rules []ruleState } }
	}
	if err := json.Unmarshal([]byte(body), &response); err != nil {
		s.t.Fatalf("%v in %s", err, body)
	}
	for _, g := range response.Data.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// panels returns the expressions of a dashboard, with values for its variables.
func panels(t *testing.T, file string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	variables := strings.NewReplacer("$job", "ferula.*", "$instance", ".*", "$__rate_interval", "5m")
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			all = append(all, variables.Replace(target.Expr))
		}
	}
	return all
}

// One ferula serve scrapes every part and has the rules of the mixin. The rules are evaluated without an error, the only alert is that of
// a target that does not exist, and every dashboard has data.
func TestMixin_OnALiveServer(t *testing.T) {
	dir := t.TempDir()
	folder, err := filepath.Abs("../../mixin")
	if err != nil {
		t.Fatal(err)
	}
	targets := filepath.Join(dir, "targets.json")
	writeFile(t, targets, "[]")
	s, store := grpcServe(t, fmt.Sprintf(`
global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms, external_labels: {server: one}}
rule_files: ['%[1]s/rules.yml', '%[1]s/alerts.yml']
scrape_configs: [{job_name: ferula, file_sd_configs: [{files: ['%[2]s']}]}]
`, folder, targets), nil)
	q := startQuery(t, []string{store}, nil)
	front := startFrontend(t, q.base, nil)
	side := startSidecar(t, s.base, nil)
	gateway := startGateway(t, filesystem(t.TempDir()))
	type group struct {
		Targets []string          `json:"targets"`
		Labels  map[string]string `json:"labels"`
	}
	var groups []group
	for job, base := range map[string]string{
		"ferula-serve": s.base, "ferula-query": q.base, "ferula-query-frontend": front.base, "ferula-sidecar": side.base,
		"ferula-store": "http://" + gateway.Addr().String(), "ferula-gone": "http://127.0.0.1:1",
	} {
		groups = append(groups, group{[]string{strings.TrimPrefix(base, "http://")}, map[string]string{"job": job}})
	}
	text, err := json.Marshal(groups)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, targets, string(text))

	eventually(t, 60*time.Second, "five targets that are up", func() bool { return s.value("sum(up)") == "5" })
	now := time.Now().Unix()
	query := "/api/v1/query_range?query=" + url.QueryEscape("sum(up)") + fmt.Sprintf("&start=%d&end=%d&step=5", now-300, now)
	eventually(t, 60*time.Second, "rates of requests of the querier", func() bool {
		front.get(query)
		return s.value(`sum(job_handler_code:ferula_http_requests:rate5m{job="ferula-query"}) > 0`) != ""
	})
	eventually(t, 60*time.Second, "every rule to be evaluated", func() bool {
		all := s.rules()
		return len(all) > 40 && !slices.ContainsFunc(all, func(r ruleState) bool { return r.Health == "unknown" })
	})
	alerts := map[string]string{}
	for _, r := range s.rules() {
		if r.Health != "ok" {
			t.Errorf("rule %s: %s %s", r.Name, r.Health, r.LastError)
		}
		for _, a := range r.Alerts {
			alerts[r.Name+" of "+a.Labels["job"]] = r.State
		}
	}
	if want := map[string]string{"FerulaDown of ferula-gone": "pending"}; !maps.Equal(alerts, want) {
		t.Errorf("alerts %v, want %v", alerts, want)
	}
	files, err := filepath.Glob(filepath.Join(folder, "dashboards", "*.json"))
	if err != nil || len(files) < 5 {
		t.Fatalf("%d dashboards, %v", len(files), err)
	}
	for _, file := range files {
		for _, expr := range panels(t, file) {
			if slices.ContainsFunc(notMeasured, func(name string) bool { return strings.Contains(expr, name) }) {
				if status, body := s.get("/api/v1/query?query=" + url.QueryEscape(expr)); status != http.StatusOK {
					t.Errorf("%s: %s: %d %s", file, expr, status, body)
				}
				continue
			}
			eventually(t, 60*time.Second, filepath.Base(file)+": a result of "+expr, func() bool { return len(s.instant(expr)) > 0 })
		}
	}
}

// notMeasured are parts of the names of metrics that the processes of the test do not have: they have no Alertmanager, remote write, bucket to ship
// to, or cache, and nothing fails.
var notMeasured = []string{
	"prometheus_notifications_", "prometheus_remote_storage_", "_shipper_", "ferula_frontend_cache_", "ferula_profiles_discarded_total",
	"ferula_query_store_errors_total", "ferula_query_partial_responses_total", "ferula_frontend_downstream_retries_total", "ferula_frontend_downstream_resumes_total",
}
