package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/app"
)

// rulesConfig is a configuration with rule files and without targets.
const rulesConfig = `global: {evaluation_interval: 100ms, external_labels: {cluster: north}}
rule_files: [rules/*.yml]
`

// startRules runs a server with one rule file.
func startRules(t *testing.T, config, rules string, change func(*app.ServeOptions)) (s *server, dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "rules"), 0o700); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "rules", "one.yml"), rules)
	file := writeFile(t, filepath.Join(dir, "prometheus.yml"), config)
	s = startServe(t, func(o *app.ServeOptions) {
		o.ConfigFile, o.Web.EnableLifecycle = file, true
		o.Rules.DiscoveryInterval = 100 * time.Millisecond
		if change != nil {
			change(o)
		}
	})
	return s, dir
}

func TestRules_RecordedSeriesAreQueried(t *testing.T) {
	s, _ := startRules(t, rulesConfig, `groups:
- name: numbers
  rules:
  - {record: one, expr: vector(1), labels: {kind: recorded}}
  - {record: two, expr: one + 1}
`, nil)
	eventually(t, 30*time.Second, "the second rule to have a result", func() bool { return s.value("two") == "2" })
	if got := s.instant("one"); len(got) != 1 || got[0].Metric["kind"] != "recorded" {
		t.Errorf("the first rule: %v", got)
	}
}

// posted is an alert as an Alertmanager receives it.
type posted struct {
	Labels, Annotations map[string]string
	StartsAt, EndsAt    time.Time
	GeneratorURL        string
}

// alertmanager is a stub that keeps the last state of every alert, by its labels.
type alertmanager struct {
	*httptest.Server
	mu     sync.Mutex
	alerts map[string]posted
}

func startAlertmanager(t *testing.T) *alertmanager {
	t.Helper()
	a := &alertmanager{alerts: map[string]posted{}}
	a.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		var alerts []posted
		if err := json.NewDecoder(r.Body).Decode(&alerts); err != nil || user != "eve" || password != "apple" || r.URL.Path != "/am/api/v2/alerts" {
			t.Errorf("%s %s %v", r.URL, user, err)
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, one := range alerts {
			a.alerts[fmt.Sprint(one.Labels)] = one
		}
	}))
	t.Cleanup(a.Close)
	return a
}

func (a *alertmanager) all() []posted {
	a.mu.Lock()
	defer a.mu.Unlock()
	var list []posted
	for _, one := range a.alerts {
		list = append(list, one)
	}
	return list
}

func (s *server) writeSample(v float64, labels ...string) {
	s.t.Helper()
	if status, text, _ := s.write(v1Type, "snappy", encoded(s.t, v1(v1Series(time.Now().UnixMilli(), v, labels...)))); status != http.StatusNoContent {
		s.t.Fatalf("%d %s", status, text)
	}
}

func TestRules_AlertsReachTheAlertmanagersThatRelabellingKeeps(t *testing.T) {
	am := startAlertmanager(t)
	address := strings.TrimPrefix(am.URL, "http://")
	s, _ := startRules(t, rulesConfig+`
alerting:
  alert_relabel_configs:
  - {regex: secret, action: labeldrop}
  alertmanagers:
  - path_prefix: /am
    basic_auth: {username: eve, password: apple}
    static_configs: [{targets: ['`+address+`', '127.0.0.1:1'], labels: {__scheme__: http}}]
    relabel_configs:
    - {source_labels: [__address__], regex: '127\.0\.0\.1:1', action: drop}
`, `groups:
- name: faults
  rules:
  - alert: Fault
    expr: last_over_time(fault[1h]) == 1
    labels: {severity: page, secret: hidden}
    annotations: {summary: '{{ $labels.instance }} of {{ $externalLabels.cluster }} has {{ $value }}', link: '{{ externalURL }}'}
`, func(o *app.ServeOptions) { o.Web.ExternalURL = "https://metrics.example.com/" })
	eventually(t, 30*time.Second, "the Alertmanager to be found", func() bool {
		_, body := s.get("/api/v1/alertmanagers")
		return strings.Contains(body, `"activeAlertmanagers":[{"url":"http://`+address+`/am/api/v2/alerts"}],"droppedAlertmanagers":[{"url":"http://127.0.0.1:1/am/api/v2/alerts"}]`)
	})
	s.writeSample(1, "__name__", "fault", "instance", "one")
	eventually(t, 30*time.Second, "the alert", func() bool { return len(am.all()) == 1 })
	alert := am.all()[0]
	if got := fmt.Sprint(alert.Labels); got != "map[alertname:Fault cluster:north instance:one severity:page]" {
		t.Errorf("labels are %s", got)
	}
	if alert.Annotations["summary"] != "one of north has 1" || alert.Annotations["link"] != "https://metrics.example.com" {
		t.Errorf("annotations are %v", alert.Annotations)
	}
	if !strings.HasPrefix(alert.GeneratorURL, "https://metrics.example.com/graph?g0.expr=last_over_time") || !alert.EndsAt.After(alert.StartsAt) {
		t.Errorf("%+v", alert)
	}
	eventually(t, 30*time.Second, "the series of the alert", func() bool { return s.value(`ALERTS{alertstate="firing",alertname="Fault",secret="hidden"}`) == "1" })
	s.writeSample(0, "__name__", "fault", "instance", "one")
	eventually(t, 30*time.Second, "the alert to be resolved", func() bool {
		alerts := am.all()
		return len(alerts) == 1 && !alerts[0].EndsAt.After(time.Now()) && alerts[0].EndsAt.After(alerts[0].StartsAt)
	})
}

// A reload changes everything or nothing.
func TestRules_ReloadWithAFaultChangesNothing(t *testing.T) {
	s, dir := startRules(t, rulesConfig, "groups: [{name: old, rules: [{record: old, expr: vector(1)}]}]\n", nil)
	eventually(t, 30*time.Second, "the old rule to have a result", func() bool { return s.value("old") == "1" })
	const goodRules = "groups: [{name: new, rules: [{record: new, expr: vector(2)}]}]\n"
	for name, c := range map[string]struct{ config, rules, want string }{
		"an expression":   {rulesConfig, "groups:\n- name: new\n  rules:\n  - {record: new, expr: vector(1}\n", "one.yml: 4:"},
		"a template":      {rulesConfig, "groups:\n- name: new\n  rules:\n  - {alert: new, expr: vector(1), labels: {a: '{{'}}\n", `one.yml: 4:5: group "new", rule 1, "new": label "a": template`},
		"an unknown key":  {rulesConfig, "groups:\n- name: new\n  nonsense: 1\n", "one.yml: yaml: unmarshal errors:\n  line 3: field nonsense not found"},
		"a certificate":   {rulesConfig + "alerting: {alertmanagers: [{tls_config: {ca_file: missing.pem}, static_configs: [{targets: [x]}]}]}\n", goodRules, "alerting: section 1 of alertmanagers"},
		"a nested one":    {rulesConfig, "groups: [{name: new, rules: [{record: new, expr: '" + strings.Repeat("(", 6000) + "1" + strings.Repeat(")", 6000) + "'}]}]\n", "nested deeper than"},
		"a scrape job":    {rulesConfig + "scrape_configs: [{job_name: a, tls_config: {ca_file: missing.pem}}]\n", goodRules, "missing.pem"},
		"a remote writer": {rulesConfig + "remote_write: [{url: 'http://127.0.0.1:1/', tls_config: {ca_file: missing.pem}}]\n", goodRules, "missing.pem"},
	} {
		writeFile(t, filepath.Join(dir, "prometheus.yml"), strings.Replace(c.config, "north", "south", 1))
		writeFile(t, filepath.Join(dir, "rules", "one.yml"), c.rules)
		status, body := s.post("/-/reload", "", "")
		if status != http.StatusInternalServerError || !strings.Contains(body, c.want) {
			t.Errorf("%s: %d %s", name, status, body)
		}
		if _, metrics := s.get("/metrics"); !strings.Contains(metrics, "prometheus_config_last_reload_successful 0\n") {
			t.Errorf("%s: the reload counts as successful", name)
		}
		if _, groups := s.get("/api/v1/rules"); !strings.Contains(groups, `"name":"old"`) || strings.Contains(groups, `"name":"new"`) {
			t.Errorf("%s: groups are %s", name, groups)
		}
		if _, config := s.get("/api/v1/status/config"); !strings.Contains(config, "north") {
			t.Errorf("%s: the configuration is %s", name, config)
		}
	}
	writeFile(t, filepath.Join(dir, "prometheus.yml"), rulesConfig)
	writeFile(t, filepath.Join(dir, "rules", "one.yml"), goodRules)
	if status, body := s.post("/-/reload", "", ""); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	eventually(t, 30*time.Second, "the new rule to have a result", func() bool { return s.value("new") == "2" })
	if _, groups := s.get("/api/v1/rules"); strings.Contains(groups, `"name":"old"`) {
		t.Errorf("groups are %s", groups)
	}
}

func TestRules_FaultyFileEndsTheStart(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "rules.yml"), "groups: [{name: a}, {name: a}]\n")
	file := writeFile(t, filepath.Join(dir, "prometheus.yml"), "rule_files: [rules.yml]\n")
	_, err := app.NewServe(serveOptions(t, func(o *app.ServeOptions) { o.ConfigFile = file }))
	if err == nil || !strings.Contains(err.Error(), "rules.yml: ") || !strings.Contains(err.Error(), "repeated in the same file") {
		t.Error(err)
	}
}

// activeAt returns since when the only alert is active; zero if there is none.
func (s *server) activeAt() time.Time {
	s.t.Helper()
	var response struct {
		Data struct {
			Alerts []struct{ ActiveAt time.Time }
		}
	}
	if _, body := s.get("/api/v1/alerts"); json.Unmarshal([]byte(body), &response) != nil || len(response.Data.Alerts) != 1 {
		return time.Time{}
	}
	return response.Data.Alerts[0].ActiveAt
}

func TestRules_KillResetsNoPendingAlert(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "rules.yml"), "groups: [{name: a, rules: [{alert: Slow, expr: vector(1), for: 1h}]}]\n")
	file := writeFile(t, filepath.Join(dir, "prometheus.yml"), "global: {evaluation_interval: 1s}\nrule_files: [rules.yml]\n")
	args := []string{"serve", "--config.file=" + file, "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:0", "--rules.alert.for-grace-period=0s"}
	p := startProcess(t, binary(t), args...)
	eventually(t, 30*time.Second, "the alert to be pending", func() bool { return p.value(`ALERTS_FOR_STATE{alertname="Slow"}`) != "" })
	active := p.activeAt()
	if err := p.signal(syscall.SIGKILL); err == nil {
		t.Fatal("the process was not killed")
	}
	p = startProcess(t, binary(t), args...)
	started := time.Now()
	// The time during which the server was down does not count, so that the alert is
	// active for a little less than if there had been no kill.
	eventually(t, 60*time.Second, "the state to be restored", func() bool { at := p.activeAt(); return !at.IsZero() && at.Before(started.Add(-time.Millisecond)) })
	if at := p.activeAt(); at.Before(active.Add(-2 * time.Second)) {
		t.Errorf("the alert is active since %s, before %s", at, active)
	}
	if err := p.signal(os.Interrupt); err != nil {
		t.Error(err)
	}
}

func TestRules_AQuerierListsThem(t *testing.T) {
	s, _ := startRules(t, rulesConfig, `groups:
- name: both
  rules:
  - {record: one, expr: vector(1), labels: {kind: recorded}}
  - {alert: Always, expr: vector(2) > 1, annotations: {summary: all}}
`, func(o *app.ServeOptions) { o.GRPC.ListenAddress = "127.0.0.1:0" })
	q := startQuery(t, []string{s.grpc}, nil)
	eventually(t, 30*time.Second, "the rules of the store", func() bool {
		_, body := q.get("/api/v1/rules")
		return strings.Contains(body, `"name":"one","query":"vector(1)","labels":{"cluster":"north","kind":"recorded"}`) &&
			strings.Contains(body, `"state":"firing","name":"Always"`) && strings.Contains(body, `"value":"2e+00"`)
	})
	if _, body := q.get("/api/v1/rules?type=record"); strings.Contains(body, "Always") {
		t.Error(body)
	}
	if _, body := q.get("/api/v1/alerts"); !strings.Contains(body, `"alertname":"Always"`) {
		t.Error(body)
	}
}

func TestRules_LimitAndQueryOffset(t *testing.T) {
	s, _ := startRules(t, rulesConfig, `groups:
- name: limited
  limit: 1
  rules:
  - {record: both, expr: 'label_replace(vector(1), "a", "b", "", "") or vector(1)'}
- name: late
  query_offset: 1h
  rules:
  - {record: late, expr: vector(time())}
`, nil)
	eventually(t, 30*time.Second, "the group to exceed its limit", func() bool {
		_, body := s.get("/api/v1/rules?rule_group[]=limited")
		return strings.Contains(body, `"health":"err","lastError":"exceeded limit of 1 with 2 series"`)
	})
	if got := s.instant("last_over_time(both[1h])"); len(got) != 0 {
		t.Errorf("a group that exceeds its limit has recorded %v", got)
	}
	eventually(t, 30*time.Second, "a result of an hour ago", func() bool {
		return s.value("(time() - last_over_time(late[2h])) >= bool 3600") == "1" && s.value("last_over_time(late[30m]) or vector(-1)") == "-1"
	})
	eventually(t, 30*time.Second, "the metrics of the mixin", func() bool {
		_, metrics := s.get("/metrics")
		for _, name := range []string{
			"prometheus_rule_evaluation_failures_total{", "prometheus_rule_group_iterations_missed_total{", "prometheus_rule_group_last_duration_seconds{", "prometheus_rule_group_rules{",
			"prometheus_notifications_queue_capacity ", "prometheus_notifications_alertmanagers_discovered ", "prometheus_config_last_reload_success_timestamp_seconds ",
			`prometheus_build_info{branch="",goarch="`, "prometheus_engine_queries_concurrent_max ",
		} {
			if !strings.Contains(metrics, "\n"+name) {
				t.Logf("there is no %s", name)
				return false
			}
		}
		return true
	})
}
