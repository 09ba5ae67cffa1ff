package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/prompb"

	role "github.com/ferula-io/ferula/internal/app"
)

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
	if err := json.Unmarshal([]byte(body), &response); err != nil {
		t.Fatal(err)
	}
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
	prometheus := peerBinary(t, "prometheus")
	path, err := exec.LookPath("prometheus-alertmanager")
	needsPeer(t, "prometheus-alertmanager", err == nil)
	rules, err := os.ReadFile("testdata/bundle.yml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir() // of both, because the time at which a group is evaluated depends on its file
	if err := os.Mkdir(filepath.Join(dir, "rules"), 0o700); err != nil {
		t.Fatal(err)
	}
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
		base := fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
		startPeer(t, base+"/-/ready", prometheus, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+strings.TrimPrefix(base, "http://"),
			"--web.enable-remote-write-receiver", "--rules.alert.resend-delay=1s")
		return &server{t: t, base: base}
	})
	ours := start("ours", func(config string) *server {
		return startServe(t, func(o *role.ServeOptions) { o.ConfigFile, o.Rules.ResendDelay = config, time.Second })
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
