package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
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
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/prometheus/prometheus").Output()
	if err != nil {
		t.Fatal(err)
	}
	fill := strings.NewReplacer("%(prometheusSelector)s", `job="prometheus"`, "%(nonNotifyingAlertmanagerRegEx)s", "", "%(prometheusHAGroupLabels)s", "job",
		"%(clusterLabel)s", "cluster", "$cluster", ".+", "$job", ".+", "$instance", ".+", "$url", ".+", "%%", "%")
	whole, parts := 0, map[string]bool{}
	for file, pattern := range map[string]*regexp.Regexp{"alerts.libsonnet": mixinAlert, "dashboards.libsonnet": mixinPanel} {
		text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "documentation", "prometheus-mixin", file))
		if err != nil {
			t.Fatal(err)
		}
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
	path := peerBinary(t, "prometheus")
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
	dir, address := t.TempDir(), fmt.Sprintf("127.0.0.1:%d", freePort(t))
	startPeer(t, "http://"+address+"/-/ready", path, "--config.file="+config(dir, "theirs", address, ""), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address,
		"--rules.alert.resend-delay=1s", "--log.level=warn")
	theirs := &server{t: t, base: "http://" + address}
	address = fmt.Sprintf("127.0.0.1:%d", freePort(t))
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
