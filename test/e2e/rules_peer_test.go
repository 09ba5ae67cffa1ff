package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/app"
)

// recorder forwards to an Alertmanager and keeps the order in which alerts change.
type recorder struct {
	*httptest.Server
	mu      sync.Mutex
	state   map[string]bool // of alerts by their labels: true if firing
	changes []string        // names and instances
	firings []posted        // in the order in which they came
}

// startRecorded runs an Alertmanager behind a recorder and returns both addresses.
func startRecorded(t *testing.T, binary string) (r *recorder, alertmanager string) {
	t.Helper()
	dir := t.TempDir()
	config := writeFile(t, filepath.Join(dir, "alertmanager.yml"), "route: {receiver: none, group_wait: 1s}\nreceivers: [{name: none}]\n")
	alertmanager = fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
	startPeer(t, alertmanager+"/-/ready", binary, "--config.file="+config, "--storage.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+strings.TrimPrefix(alertmanager, "http://"), "--cluster.listen-address=")
	to, err := url.Parse(alertmanager)
	if err != nil {
		t.Fatal(err)
	}
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
	var changes []string
	for _, a := range alerts {
		key, firing := fmt.Sprint(a.Labels), a.EndsAt.After(time.Now())
		if was, known := r.state[key]; !known || was != firing {
			r.state[key] = firing
			changes = append(changes, fmt.Sprintf("%s %s %v", a.Labels["alertname"], a.Labels["instance"], firing))
			if firing {
				r.firings = append(r.firings, a)
			}
		}
	}
	// The alerts of one rule come out of a map, in both servers.
	slices.Sort(changes)
	r.changes = append(r.changes, changes...)
}

func (r *recorder) order() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.changes)
}

// fingerprints returns the alerts that an Alertmanager shows, as fingerprints with labels.
func fingerprints(t *testing.T, alertmanager string) []string {
	t.Helper()
	var alerts []struct {
		Fingerprint string
		Labels      map[string]string
		Annotations map[string]string
	}
	if err := json.Unmarshal([]byte(fetch(t, alertmanager+"/api/v2/alerts")), &alerts); err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, a := range alerts {
		list = append(list, fmt.Sprint(a.Fingerprint, a.Labels, a.Annotations))
	}
	slices.Sort(list)
	return list
}

// An Alertmanager receives the same alerts from ferula as from Prometheus.
func TestPeerAlertmanager_AlertsEqualThoseOfPrometheus(t *testing.T) {
	prometheus := peerBinary(t, "prometheus")
	path, err := exec.LookPath("prometheus-alertmanager")
	needsPeer(t, "prometheus-alertmanager", err == nil)
	var faults atomic.Int64
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := faults.Load()
		fmt.Fprintf(w, "fault{instance=\"one\"} %d\nfault{instance=\"two\"} %d\n", n&1, n>>1&1)
	}))
	t.Cleanup(target.Close)
	const rules = `groups:
- name: faults
  rules:
  - {record: "instance:fault", expr: "fault == 1"}
  - {alert: Fault, expr: "instance:fault", labels: {severity: page, where: "{{ $labels.instance }}"}, annotations: {summary: "{{ $value | humanize }} at {{ $labels.instance }} of {{ $externalLabels.cluster }}"}}
  - {alert: Lasting, expr: "instance:fault", for: 3s, labels: {severity: ticket}}
- name: later
  rules:
  - {alert: Many, expr: "count(fault == 1) > 1", keep_firing_for: 1s}
`
	start := func() (dir string, r *recorder, alertmanager string) {
		r, alertmanager = startRecorded(t, path)
		dir = t.TempDir()
		writeFile(t, filepath.Join(dir, "rules.yml"), rules)
		writeFile(t, filepath.Join(dir, "prometheus.yml"), fmt.Sprintf(`
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s, external_labels: {cluster: north}}
rule_files: [rules.yml]
alerting: {alertmanagers: [{static_configs: [{targets: ['%s']}]}]}
scrape_configs: [{job_name: faults, honor_labels: true, static_configs: [{targets: ['%s']}]}]
`, strings.TrimPrefix(r.URL, "http://"), strings.TrimPrefix(target.URL, "http://")))
		return dir, r, alertmanager
	}
	dir, theirs, theirAlertmanager := start()
	reference := fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
	startPeer(t, reference+"/-/ready", prometheus, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+strings.TrimPrefix(reference, "http://"), "--rules.alert.resend-delay=1s")
	dir, ours, ourAlertmanager := start()
	s := startServe(t, func(o *app.ServeOptions) {
		o.ConfigFile = filepath.Join(dir, "prometheus.yml")
		o.Rules.ResendDelay = time.Second
	})
	for _, base := range []string{reference, s.base} {
		eventually(t, 60*time.Second, "the Alertmanager to be found", func() bool {
			return strings.Contains(fetch(t, base+"/api/v1/alertmanagers"), `"activeAlertmanagers":[{`)
		})
	}
	var want []string
	for _, step := range []struct {
		faults  int64
		changes []string
	}{
		{1, []string{"Fault one true", "Lasting one true"}},
		{3, []string{"Fault two true", "Lasting two true", "Many  true"}},
		{2, []string{"Fault one false", "Lasting one false", "Many  false"}},
		{0, []string{"Fault two false", "Lasting two false"}},
	} {
		faults.Store(step.faults)
		want = append(want, step.changes...)
		eventually(t, 60*time.Second, fmt.Sprintf("the changes %q", step.changes), func() bool { return len(ours.order()) >= len(want) && len(theirs.order()) >= len(want) })
		if step.faults == 3 {
			a, b := fingerprints(t, ourAlertmanager), fingerprints(t, theirAlertmanager)
			if !slices.Equal(a, b) || len(a) != 5 {
				t.Errorf("alerts are\n%s\nwant\n%s", strings.Join(a, "\n"), strings.Join(b, "\n"))
			}
		}
	}
	// Groups are evaluated at times of their own, so that the order is that within a group.
	for _, group := range [][]string{{"Fault", "Lasting"}, {"Many"}} {
		of := func(changes []string) (list []string) {
			for _, c := range changes {
				if name, _, _ := strings.Cut(c, " "); slices.Contains(group, name) {
					list = append(list, c)
				}
			}
			return list
		}
		if a, b := of(ours.order()), of(theirs.order()); !slices.Equal(a, b) || !slices.Equal(a, of(want)) {
			t.Errorf("the order of changes is %q, want %q as of Prometheus, %q as expected", a, b, of(want))
		}
	}
}
