package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/prompb"

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
	noError(t, os.Mkdir(filepath.Join(dir, "rules"), 0o700))
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
	s.must(v1Type, encoded(s.t, v1(v1Series(time.Now().UnixMilli(), v, labels...))))
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
	s.waitFor("/api/v1/alertmanagers", `"activeAlertmanagers":[{"url":"http://`+address+`/am/api/v2/alerts"}],"droppedAlertmanagers":[{"url":"http://127.0.0.1:1/am/api/v2/alerts"}]`)
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
	s.waitValue(`ALERTS{alertstate="firing",alertname="Fault",secret="hidden"}`, "1")
	s.writeSample(0, "__name__", "fault", "instance", "one")
	eventually(t, 30*time.Second, "the alert to be resolved", func() bool {
		alerts := am.all()
		return len(alerts) == 1 && !alerts[0].EndsAt.After(time.Now()) && alerts[0].EndsAt.After(alerts[0].StartsAt)
	})
}

// A reload changes everything or nothing.
func TestRules_ReloadWithAFaultChangesNothing(t *testing.T) {
	s, dir := startRules(t, rulesConfig, "groups: [{name: old, rules: [{record: old, expr: vector(1)}]}]\n", nil)
	s.waitValue("old", "1")
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
		status, body := s.reload()
		if status != http.StatusInternalServerError || !strings.Contains(body, c.want) {
			t.Errorf("%s: %d %s", name, status, body)
		}
		s.expect("/metrics", 0, "prometheus_config_last_reload_successful 0\n")
		if _, groups := s.get("/api/v1/rules"); !strings.Contains(groups, `"name":"old"`) || strings.Contains(groups, `"name":"new"`) {
			t.Errorf("%s: groups are %s", name, groups)
		}
		s.expect("/api/v1/status/config", 0, "north")
	}
	writeFile(t, filepath.Join(dir, "prometheus.yml"), rulesConfig)
	writeFile(t, filepath.Join(dir, "rules", "one.yml"), goodRules)
	s.mustReload()
	s.waitValue("new", "2")
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
	p.waitValue(`count_over_time(ALERTS_FOR_STATE{alertname="Slow"}[1m]) >= bool 3`, "1") // for two seconds
	active := p.activeAt()
	p.kill()
	p = startProcess(t, binary(t), args...)
	started := time.Now()
	// The time during which the server was down does not count, so that the alert is
	// active for a little less than if there had been no kill.
	eventually(t, 60*time.Second, "the state to be restored", func() bool { at := p.activeAt(); return !at.IsZero() && at.Before(started.Add(-time.Millisecond)) })
	if at := p.activeAt(); at.Before(active.Add(-2 * time.Second)) {
		t.Errorf("the alert is active since %s, before %s", at, active)
	}
	noError(t, p.signal(os.Interrupt))
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
		return strings.Contains(body, `"name":"one","query":"vector(1)"`) && strings.Contains(body, `"labels":{"cluster":"north","kind":"recorded"}`) &&
			strings.Contains(body, `"state":"firing","name":"Always"`) && strings.Contains(body, `"value":"2e+00"`)
	})
	if _, body := q.get("/api/v1/rules?type=record"); strings.Contains(body, "Always") {
		t.Error(body)
	}
	q.expect("/api/v1/alerts", 0, `"alertname":"Always"`)
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
	s.waitFor("/api/v1/rules?rule_group[]=limited", `"health":"err","lastError":"exceeded limit of 1 with 2 series"`)
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

// recorder forwards to an Alertmanager and keeps the alerts that began to fire.
type recorder struct {
	*httptest.Server
	mu      sync.Mutex
	state   map[string]bool // of alerts by their labels: true if firing
	firings []posted        // in the order in which they came
}

// startRecorded runs an Alertmanager behind a recorder and returns both addresses.
func startRecorded(t *testing.T, binary string) (r *recorder, alertmanager string) {
	t.Helper()
	dir := t.TempDir()
	config := writeFile(t, filepath.Join(dir, "alertmanager.yml"), "route: {receiver: none, group_wait: 1s}\nreceivers: [{name: none}]\n")
	alertmanager = "http://" + freeAddress(t)
	startPeer(t, alertmanager+"/-/ready", binary, "--config.file="+config, "--storage.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+strings.TrimPrefix(alertmanager, "http://"), "--cluster.listen-address=")
	to := try(url.Parse(alertmanager)).must(t)
	forward := httputil.NewSingleHostReverseProxy(to)
	r = &recorder{state: map[string]bool{}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		var alerts []posted
		if err == nil {
			err = json.Unmarshal(body, &alerts)
		}
		if err != nil {
			t.Errorf("%s: %v", q.URL, err)
		}
		r.record(alerts)
		q.Body = io.NopCloser(bytes.NewReader(body))
		forward.ServeHTTP(w, q)
	}))
	t.Cleanup(r.Close)
	return r, alertmanager
}

func (r *recorder) record(alerts []posted) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range alerts {
		key, firing := fmt.Sprint(a.Labels), a.EndsAt.After(time.Now())
		if firing && !r.state[key] {
			r.firings = append(r.firings, a)
		}
		r.state[key] = firing
	}
}

// fingerprints returns the alerts that an Alertmanager shows, as fingerprints with labels.
func fingerprints(t *testing.T, alertmanager string) []string {
	t.Helper()
	var alerts []struct {
		Fingerprint string
		Labels      map[string]string
		Annotations map[string]string
	}
	noError(t, json.Unmarshal([]byte(fetch(t, alertmanager+"/api/v2/alerts")), &alerts))
	var list []string
	for _, a := range alerts {
		list = append(list, fmt.Sprint(a.Fingerprint, a.Labels, a.Annotations))
	}
	slices.Sort(list)
	return list
}

// bundleSamples are samples of the metrics that the bundle of rules reads: of a cluster
// with a fault in some time range, every 5 s.
type bundleSamples struct{ faultMS, healedMS int64 }

// appendAt appends the samples at a timestamp.
func (b bundleSamples) appendAt(to map[string]*prompb.TimeSeries, ms int64) {
	fault := ms >= b.faultMS && ms < b.healedMS
	var broken float64 // seconds of the fault until then
	if ms >= b.faultMS {
		broken = float64(min(ms, b.healedMS)-b.faultMS) / 1000
	}
	n := float64(ms-b.faultMS)/1000 + 3600
	pick := func(healthy, faulty float64) float64 {
		if fault {
			return faulty
		}
		return healthy
	}
	put := func(v float64, name string, pairs ...string) {
		pairs = append([]string{"__name__", name, "cluster", "north"}, pairs...)
		key := strings.Join(pairs, "\x00")
		if to[key] == nil {
			ts := v1Series(ms, v, pairs...)
			to[key] = &ts
			return
		}
		to[key].Samples = append(to[key].Samples, prompb.Sample{Timestamp: ms, Value: v})
	}
	put(pick(1, 0), "up", "job", "kubelet", "namespace", "kube-system", "instance", "k0")
	put(1, "up", "job", "api", "namespace", "kube-system", "instance", "a0")
	for i, pod := range []string{"shop-0", "shop-1", "desk-0"} {
		app, node := pod[:4], fmt.Sprint("node-", i%2)
		in := []string{"namespace", app, "pod", pod}
		for j, container := range []string{"main", "side"} {
			put(n*(0.37+float64(i)/3+float64(j)/7), "container_cpu_usage_seconds_total", append([]string{"job", "kubelet", "container", container}, in...)...)
			put(pick(0.5, 1.75), "kube_pod_container_resource_requests", append([]string{"job", "ksm", "resource", "cpu", "container", container}, in...)...)
			put(pick(0, float64(i%2)), "kube_pod_container_status_waiting_reason", append([]string{"reason", "CrashLoopBackOff", "container", container}, in...)...)
		}
		put(1, "kube_pod_info", append([]string{"node", node}, in...)...)
		put(pick(1, float64(i%2)), "kube_pod_status_phase", append([]string{"phase", "Running"}, in...)...)
		put(pick(0, float64((i+1)%2)), "kube_pod_status_phase", append([]string{"phase", "Pending"}, in...)...)
		put(1, "kube_pod_owner", append([]string{"owner_kind", "ReplicaSet", "owner_name", app + "-abc"}, in...)...)
		put(1, "kube_replicaset_owner", "namespace", app, "replicaset", app+"-abc", "owner_kind", "Deployment", "owner_name", app)
		put(3, "kube_deployment_spec_replicas", "namespace", app, "deployment", app)
		put(pick(3, 1), "kube_deployment_status_replicas_available", "namespace", app, "deployment", app)
		put(3, "kube_deployment_status_replicas_updated", "namespace", app, "deployment", app)
		put(float64(b.faultMS/1000-300), "kube_job_status_start_time", "namespace", "batch", "job_name", "report")
		put(pick(0, 1), "kube_job_status_active", "namespace", "batch", "job_name", "report")
		put(4, "kube_node_status_allocatable", "node", node, "resource", "cpu")
	}
	for i, verb := range []string{"GET", "LIST", "POST"} {
		put(n*float64(7+i), "apiserver_request_total", "verb", verb, "code", "200")
		put(n*0.01+broken*30, "apiserver_request_total", "verb", verb, "code", "503")
		for j, le := range []string{"0.1", "1", "5", "+Inf"} {
			slow := 0.0
			if j > 1 {
				slow = broken * 20
			}
			put(n*float64(j+1)+slow, "apiserver_request_duration_seconds_bucket", "verb", verb, "le", le)
		}
		put(n*4+broken*20, "apiserver_request_duration_seconds_count", "verb", verb)
		put(n*11/float64(i+1), "rest_client_requests_total", "job", "api", "namespace", "kube-system", "instance", "a0", "code", "200")
		put(broken*3, "rest_client_requests_total", "job", "api", "namespace", "kube-system", "instance", "a0", "code", "500")
	}
	for i, instance := range []string{"node-0", "node-1"} {
		of := []string{"job", "node", "instance", instance}
		for cpu := range 3 {
			for j, mode := range []string{"idle", "iowait", "steal", "user"} {
				put(n*(0.6/float64(j+1)+float64(cpu)/50+float64(i)/70), "node_cpu_seconds_total", append([]string{"cpu", fmt.Sprint(cpu), "mode", mode}, of...)...)
			}
		}
		put(1.7+float64(i), "node_load1", of...)
		disk := append([]string{"device", "/dev/vda", "fstype", "ext4", "mountpoint", "/"}, of...)
		put(100e9, "node_filesystem_size_bytes", disk...)
		put(pick(50e9, 3e9-broken*1e7), "node_filesystem_avail_bytes", disk...)
		put(0, "node_filesystem_readonly", disk...)
		put(pick(0.001, 0.06+broken/1000)*float64(1-2*i), "node_timex_offset_seconds", of...)
		put(1, "kubernetes_build_info", "job", "kubelet", "instance", instance, "git_version", []string{"v1.33.1+a", "v1.33.2"}[i])
	}
	if fault {
		put(1, "kubernetes_build_info", "job", "kubelet", "instance", "node-1", "git_version", "v1.34.0-rc1")
	}
}

// request returns a write request with the samples from a timestamp to another one.
func (b bundleSamples) request(t *testing.T, fromMS, toMS int64) []byte {
	t.Helper()
	series := map[string]*prompb.TimeSeries{}
	for ms := fromMS; ms < toMS; ms += 5000 {
		b.appendAt(series, ms)
	}
	var list []prompb.TimeSeries
	for _, key := range slices.Sorted(maps.Keys(series)) {
		ts := series[key]
		kept := ts.Samples[:0]
		for _, s := range ts.Samples { // several pods have one deployment
			if len(kept) == 0 || kept[len(kept)-1].Timestamp < s.Timestamp {
				kept = append(kept, s)
			}
		}
		ts.Samples = kept
		list = append(list, *ts)
	}
	return encoded(t, v1(list...))
}

// bundleAlerts are the alerts that the fault raises.
var bundleAlerts = []string{
	"ClientErrors", "ClockSkew", "CrashLooping", "ErrorBudgetBurn", "FilesystemAlmostFull", "FilesystemWillFill", "InfoInhibitor", "JobNotCompleted", "KubeletDown",
	"LatencyHigh", "Overcommit", "PodNotReady", "ReplicasMismatch", "TargetDown", "VersionMismatch", "Watchdog",
}

// bundleRun is a server that evaluates the bundle.
type bundleRun struct {
	*server
	posts        *recorder
	alertmanager string
}

// firings returns the alerts that began to fire in [from, to), sorted, with the times if
// exact. It also returns their names, each once, in the order of arrival.
func (r bundleRun) firings(from, to time.Time, exact bool) (alerts, names []string) {
	r.posts.mu.Lock()
	defer r.posts.mu.Unlock()
	for _, a := range r.posts.firings {
		if a.StartsAt.Before(from) || !a.StartsAt.Before(to) {
			continue
		}
		if name := a.Labels["alertname"]; !slices.Contains(names, name) {
			names = append(names, name)
		}
		text := fmt.Sprint(a.Labels, a.Annotations)
		if exact {
			text += " since " + a.StartsAt.UTC().Format(time.RFC3339Nano)
		}
		alerts = append(alerts, text)
	}
	slices.Sort(alerts)
	return alerts, names
}

// recorded returns the samples that the rules of the bundle have appended in (from, to].
func (r bundleRun) recorded(t *testing.T, from, to time.Time) string {
	t.Helper()
	form := url.Values{"query": {fmt.Sprintf(`{__name__=~".+:.+|ALERTS|ALERTS_FOR_STATE", alertname!="Watchdog"}[%ds]`, int(to.Sub(from).Seconds()))}, "time": {fmt.Sprint(to.Unix())}}
	status, body := r.get("/api/v1/query?" + form.Encode())
	if status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	var response struct {
		Data struct{ Result []json.RawMessage }
	}
	noError(t, json.Unmarshal([]byte(body), &response))
	var series []string
	for _, raw := range response.Data.Result {
		series = append(series, string(raw))
	}
	slices.Sort(series)
	return strings.Join(series, "\n")
}

// missed reports whether an evaluation did not happen.
func (r bundleRun) missed() bool {
	_, page := r.get("/metrics")
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "prometheus_rule_group_iterations_missed_total{") && !strings.HasSuffix(strings.TrimSpace(line), " 0") {
			return true
		}
	}
	return false
}

// evaluated reports whether every rule has been evaluated without an error.
func (r bundleRun) evaluated(rules int) bool {
	_, body := r.get("/api/v1/rules")
	return strings.Count(body, `"health":"ok"`) == rules
}

// Rules as in the public bundles for Kubernetes have the same results in ferula and in
// Prometheus: the same recorded samples, and the same alerts, with the same fingerprints
// and start times, in the same order. Both evaluate a group of the same file at the same
// times, and have the same earlier samples.
func TestPeerPrometheus_RulesOfABundleHaveTheSameResults(t *testing.T) {
	path, err := exec.LookPath("prometheus-alertmanager")
	needsPeer(t, "prometheus-alertmanager", err == nil)
	rules := try(os.ReadFile("testdata/bundle.yml")).must(t)
	dir := t.TempDir() // of both, because the time at which a group is evaluated depends on its file
	noError(t, os.Mkdir(filepath.Join(dir, "rules"), 0o700))
	writeFile(t, filepath.Join(dir, "rules", "bundle.yaml"), string(rules))
	start := func(name string, run func(config string) *server) bundleRun {
		posts, alertmanager := startRecorded(t, path)
		config := writeFile(t, filepath.Join(dir, name+".yml"), fmt.Sprintf(`
global: {evaluation_interval: 2s, external_labels: {prometheus: monitoring/k8s, prometheus_replica: prometheus-k8s-0}}
rule_files: [rules/*.yaml]
alerting:
  alert_relabel_configs: [{regex: prometheus_replica, action: labeldrop}]
  alertmanagers: [{static_configs: [{targets: ['%s']}], api_version: v2}]
`, strings.TrimPrefix(posts.URL, "http://")))
		return bundleRun{run(config), posts, alertmanager}
	}
	theirs := start("theirs", func(config string) *server {
		return prometheusOf(t, config, filepath.Join(dir, "data"), "--rules.alert.resend-delay=1s")
	})
	ours := start("ours", func(config string) *server {
		return startServe(t, func(o *app.ServeOptions) { o.ConfigFile, o.Rules.ResendDelay = config, time.Second })
	})
	count := strings.Count(string(rules), "- record:") + strings.Count(string(rules), "- alert:")
	for _, r := range []bundleRun{theirs, ours} {
		eventually(t, 60*time.Second, "every rule to be evaluated", func() bool { return r.evaluated(count) })
	}
	fault := time.Now().Truncate(5 * time.Second).Add(20 * time.Second)
	data := bundleSamples{fault.UnixMilli(), fault.Add(24 * time.Second).UnixMilli()}
	body := data.request(t, fault.Add(-10*time.Minute).UnixMilli(), fault.Add(2*time.Minute).UnixMilli())
	for _, r := range []bundleRun{theirs, ours} {
		r.writeAll([][]byte{body})
	}
	onTime := time.Now().Add(2 * time.Second).Before(fault)
	until := fault.Add(20 * time.Second)
	time.Sleep(time.Until(until))
	for _, r := range []bundleRun{theirs, ours} {
		eventually(t, 60*time.Second, "the alerts of the fault", func() bool {
			shown := strings.Join(fingerprints(t, r.alertmanager), "\n")
			return !slices.ContainsFunc(bundleAlerts, func(name string) bool { return !strings.Contains(shown, "alertname:"+name+" ") })
		})
	}
	exact := onTime && !theirs.missed() && !ours.missed()
	if !exact {
		t.Log("an evaluation was missed: the times of alerts and the recorded samples are not compared")
	}
	a, b := fingerprints(t, ours.alertmanager), fingerprints(t, theirs.alertmanager)
	if !slices.Equal(a, b) {
		t.Errorf("Alertmanager shows\n%s\nwant\n%s", strings.Join(a, "\n"), strings.Join(b, "\n"))
	}
	got, gotNames := ours.firings(fault, until, exact)
	want, wantNames := theirs.firings(fault, until, exact)
	if !slices.Equal(got, want) || len(want) < len(bundleAlerts)-1 {
		t.Errorf("alerts are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if exact {
		if got, want := ours.recorded(t, fault, until), theirs.recorded(t, fault, until); got != want {
			t.Errorf("recorded samples are\n%s\nwant\n%s", got, want)
		}
		if !slices.Equal(gotNames, wantNames) {
			t.Errorf("alerts came in the order %q, want %q", gotNames, wantNames)
		}
	}
}
