package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/parser"

	"github.com/ferula-io/ferula/internal/app"
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
	text := try(os.ReadFile(file)).must(t)
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
	folder := try(filepath.Abs("../../mixin")).must(t)
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
	text := try(json.Marshal(groups)).must(t)
	writeFile(t, targets, string(text))

	s.waitValue("sum(up)", "5")
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
				s.expect("/api/v1/query?query="+url.QueryEscape(expr), http.StatusOK)
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

var (
	mixinAlert = regexp.MustCompile(`(?s)expr: \|\|\|\n(.*?)\|\|\|`)
	mixinPanel = regexp.MustCompile(`(?s)prometheus\.new\(\s*'\$datasource',\s*(?:'([^']*)'|\|\|\|(.*?)\|\|\|)`)
)

// compares reports whether an expression has a comparison. If it has, its values determine
// whether the result is empty.
func compares(e parser.Expr) (found bool) {
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		b, ok := n.(*parser.BinaryExpr)
		found = found || ok && b.Op.IsComparisonOperator()
		return nil
	})
	return found
}

// mixinExpressions returns the expressions of Prometheus' own mixin, from the sources of
// the linked release, and their parts that have a vector as result. Expressions with a
// comparison are left out: their operands are parts.
func mixinExpressions(t *testing.T) []string {
	t.Helper()
	dir := try(exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/prometheus/prometheus").Output()).must(t)
	fill := strings.NewReplacer("%(prometheusSelector)s", `job="prometheus"`, "%(nonNotifyingAlertmanagerRegEx)s", "", "%(prometheusHAGroupLabels)s", "job",
		"%(clusterLabel)s", "cluster", "$cluster", ".+", "$job", ".+", "$instance", ".+", "$url", ".+", "%%", "%")
	whole, parts := 0, map[string]bool{}
	for file, pattern := range map[string]*regexp.Regexp{"alerts.libsonnet": mixinAlert, "dashboards.libsonnet": mixinPanel} {
		text := try(os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "documentation", "prometheus-mixin", file))).must(t)
		for _, m := range pattern.FindAllStringSubmatch(string(text), -1) {
			whole++
			expr, err := parser.NewParser(parser.Options{}).ParseExpr(fill.Replace(strings.Join(m[1:], "")))
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
				if e, ok := n.(parser.Expr); ok && e.Type() == parser.ValueTypeVector && !compares(e) {
					parts[e.String()] = true
				}
				return nil
			})
		}
	}
	if whole < 60 {
		t.Fatalf("only %d expressions found", whole)
	}
	return slices.Sorted(maps.Keys(parts))
}

// labelNames returns the names of the labels of a query's result; none if it is empty.
func (s *server) labelNames(query string) []string {
	names := map[string]bool{}
	for _, one := range s.instant(query) {
		names["(a series)"] = true
		for name := range one.Metric {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// An expression of Prometheus' own mixin, or a part of one, that has a result over a
// Prometheus also has a result over ferula with the same configuration, and the series have
// the same labels. Each server scrapes itself.
func TestPeerPrometheus_TheMixinHasTheSameSeries(t *testing.T) {
	far, k := startServe(t, idle(t)), newKubernetes(t)
	alertmanager := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(alertmanager.Close)
	targets := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`[{"targets": ["127.0.0.1:1"]}]`))
	}))
	t.Cleanup(targets.Close)
	config := func(dir, name, address, more string) string {
		writeFile(t, filepath.Join(dir, "rules.yml"), "groups: [{name: a, rules: [{record: one, expr: vector(1)}, {alert: Always, expr: vector(1)}]}]\n")
		return writeFile(t, filepath.Join(dir, "prometheus.yml"), fmt.Sprintf(`
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s, external_labels: {server: %s}}
rule_files: [rules.yml]
alerting: {alertmanagers: [{static_configs: [{targets: ['%s']}]}]}
remote_write: [{url: '%s/api/v1/write', name: far}]
scrape_configs:
- {job_name: prometheus, static_configs: [{targets: ['%s'], labels: {cluster: north}}]}
- {job_name: listed, http_sd_configs: [{url: '%s'}]}
%s`, name, strings.TrimPrefix(alertmanager.URL, "http://"), far.base, address, targets.URL, more))
	}
	dir, address := t.TempDir(), freeAddress(t)
	theirs := prometheusOf(t, config(dir, "theirs", address, ""), filepath.Join(dir, "data"), "--web.listen-address="+address, "--rules.alert.resend-delay=1s")
	address = freeAddress(t)
	// The peer is built without the discovery of Kubernetes.
	file := config(t.TempDir(), "ours", address, "- {job_name: pods, kubernetes_sd_configs: [{role: pod, api_server: '"+k.URL+"'}]}\n")
	ours := startServe(t, func(o *app.ServeOptions) {
		o.ConfigFile, o.Web.ListenAddress, o.Rules.ResendDelay = file, address, time.Second
	})
	for _, s := range []*server{theirs, ours} {
		for _, query := range []string{
			`rate(prometheus_notifications_sent_total[5m]) > 0`, `rate(prometheus_remote_storage_samples_total[5m]) > 0`, `rate(prometheus_rule_evaluations_total[5m]) > 0`,
			`prometheus_engine_query_duration_seconds{quantile="0.9", slice="inner_eval"} > 0`, `prometheus_sd_discovered_targets{config="listed"} > 0`,
		} {
			eventually(t, 60*time.Second, query, func() bool { return len(s.instant(query)) > 0 })
		}
	}
	const listWatch = `increase(prometheus_sd_kubernetes_failures_total{job="prometheus"}[5m])`
	eventually(t, 60*time.Second, listWatch, func() bool { return len(ours.instant(listWatch)) > 0 })
	expressions := mixinExpressions(t)
	if !slices.Contains(expressions, listWatch) {
		t.Errorf("the mixin has no %s", listWatch)
	}
	wanted := map[string][]string{}
	for _, e := range expressions {
		if names := theirs.labelNames(e); len(names) > 0 {
			wanted[e] = names
		}
	}
	if len(wanted) < 60 {
		t.Fatalf("only %d of %d expressions are not empty on Prometheus", len(wanted), len(expressions))
	}
	t.Logf("%d of %d expressions are not empty on Prometheus", len(wanted), len(expressions))
	for e, want := range wanted {
		var got []string
		for end := time.Now().Add(30 * time.Second); !slices.Equal(got, want) && time.Now().Before(end); {
			if got = ours.labelNames(e); slices.Equal(got, want) || t.Failed() {
				break // after the first difference it does not wait for the others
			}
			time.Sleep(200 * time.Millisecond)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s\nhas %q, want %q as of Prometheus", e, got, want)
		}
	}
}
