package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/app"
)

// kubernetes is an API server that lists and watches a few resources.
type kubernetes struct {
	*httptest.Server
	token   string // that requests must have; "": none
	mu      sync.Mutex
	objects map[string][]any // by resource
	changed chan struct{}    // closed at a change
}

func newKubernetes(t *testing.T) *kubernetes {
	t.Helper()
	k := &kubernetes{objects: map[string][]any{}, changed: make(chan struct{})}
	k.Server = httptest.NewServer(k)
	t.Cleanup(k.Close)
	return k
}

// add adds an object to a resource, such as "pods", and ends the watches, so that clients
// list again.
func (k *kubernetes) add(resource string, object any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.objects[resource] = append(k.objects[resource], object)
	close(k.changed)
	k.changed = make(chan struct{})
}

var kinds = map[string][2]string{"pods": {"v1", "Pod"}, "services": {"v1", "Service"}, "endpoints": {"v1", "Endpoints"}, "endpointslices": {"discovery.k8s.io/v1", "EndpointSlice"}}

// ServeHTTP implements http.Handler.
func (k *kubernetes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	kind, ok := kinds[resource]
	if !ok {
		http.NotFound(w, r)
		return
	}
	if k.token != "" && r.Header.Get("Authorization") != "Bearer "+k.token {
		http.Error(w, "the token is missing", http.StatusUnauthorized)
		return
	}
	k.mu.Lock()
	items, changed := append([]any{}, k.objects[resource]...), k.changed
	k.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	if r.FormValue("watch") != "true" && r.FormValue("watch") != "1" {
		_ = encoder.Encode(map[string]any{"apiVersion": kind[0], "kind": kind[1] + "List", "metadata": map[string]string{"resourceVersion": "1"}, "items": items})
		return
	}
	if r.FormValue("sendInitialEvents") == "true" {
		for _, item := range items {
			_ = encoder.Encode(map[string]any{"type": "ADDED", "object": item})
		}
		_ = encoder.Encode(map[string]any{"type": "BOOKMARK", "object": map[string]any{"apiVersion": kind[0], "kind": kind[1], "metadata": map[string]any{
			"resourceVersion": "1", "annotations": map[string]string{"k8s.io/initial-events-end": "true"},
		}}})
	}
	_ = http.NewResponseController(w).Flush()
	select {
	case <-r.Context().Done():
		return
	case <-changed:
	}
	// A watch that has expired makes the client list again.
	_ = encoder.Encode(map[string]any{"type": "ERROR", "object": map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "Expired", "code": 410}})
}

func meta(name string, labels map[string]string) map[string]any {
	return map[string]any{"name": name, "namespace": "monitoring", "uid": name, "resourceVersion": "1", "labels": labels}
}

// pod returns a running pod with a port named metrics at a loopback address.
func pod(name, app string, port int) any {
	return map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": meta(name, map[string]string{"app": app}),
		"spec": map[string]any{"nodeName": "node-1", "containers": []any{map[string]any{
			"name": "main", "image": "app:1", "ports": []any{map[string]any{"name": "metrics", "containerPort": port, "protocol": "TCP"}},
		}}},
		"status": map[string]any{"phase": "Running", "podIP": "127.0.0.1", "hostIP": "127.0.0.1", "conditions": []any{map[string]string{"type": "Ready", "status": "True"}}},
	}
}

// kubePrometheus is a file as prometheus-operator writes it for kube-prometheus. PLACE is the
// directory of rules and of the service account, API the address of the API server.
const kubePrometheus = `
global:
  evaluation_interval: 200ms
  scrape_interval: 200ms
  scrape_timeout: 200ms
  external_labels: {prometheus: monitoring/k8s, prometheus_replica: prometheus-k8s-0}
rule_files: [PLACE/rules/*.yaml]
scrape_configs:
- job_name: podMonitor/monitoring/shop/0
  honor_timestamps: true
  kubernetes_sd_configs:
  - role: pod
    api_server: API
    authorization: {type: Bearer, credentials_file: PLACE/token}
    namespaces: {own_namespace: false, names: [monitoring]}
  relabel_configs:
  - {source_labels: [__meta_kubernetes_pod_phase], regex: (Failed|Succeeded), action: drop}
  - {action: keep, source_labels: [__meta_kubernetes_pod_label_app, __meta_kubernetes_pod_labelpresent_app], regex: (shop);true}
  - {action: keep, source_labels: [__meta_kubernetes_pod_container_port_name], regex: metrics}
  - {source_labels: [__meta_kubernetes_namespace], target_label: namespace}
  - {source_labels: [__meta_kubernetes_pod_container_name], target_label: container}
  - {source_labels: [__meta_kubernetes_pod_name], target_label: pod}
  - {target_label: job, replacement: monitoring/shop}
  - {target_label: endpoint, replacement: metrics}
  - {source_labels: [__address__, __tmp_hash], target_label: __tmp_hash, regex: (.+);, replacement: $1, action: replace}
  - {source_labels: [__tmp_hash], target_label: __tmp_hash, modulus: 1, action: hashmod}
  - {source_labels: [__tmp_hash, __tmp_disable_sharding], regex: 0;|.+;.+, action: keep}
- job_name: serviceMonitor/monitoring/desk/0
  honor_labels: true
  honor_timestamps: true
  track_timestamps_staleness: false
  scheme: http
  metrics_path: /metrics
  scrape_protocols: [OpenMetricsText1.0.0, OpenMetricsText0.0.1, PrometheusText0.0.4]
  sample_limit: 100
  kubernetes_sd_configs:
  - role: endpointslice
    api_server: API
    authorization: {type: Bearer, credentials_file: PLACE/token}
    namespaces: {own_namespace: false, names: [monitoring]}
  authorization: {credentials_file: PLACE/token}
  tls_config: {insecure_skip_verify: true}
  relabel_configs:
  - {source_labels: [job], target_label: __tmp_prometheus_job_name}
  - {action: keep, source_labels: [__meta_kubernetes_service_label_app, __meta_kubernetes_service_labelpresent_app], regex: (desk);true}
  - {action: keep, source_labels: [__meta_kubernetes_endpointslice_port_name], regex: metrics}
  - {source_labels: [__meta_kubernetes_endpointslice_address_target_kind, __meta_kubernetes_endpointslice_address_target_name], separator: ;, regex: Node;(.*), replacement: '${1}', target_label: node}
  - {source_labels: [__meta_kubernetes_endpointslice_address_target_kind, __meta_kubernetes_endpointslice_address_target_name], separator: ;, regex: Pod;(.*), replacement: '${1}', target_label: pod}
  - {action: drop, source_labels: [__meta_kubernetes_pod_phase], regex: (Failed|Succeeded)}
  - {source_labels: [__meta_kubernetes_namespace], target_label: namespace}
  - {source_labels: [__meta_kubernetes_service_name], target_label: job, replacement: '${1}'}
  - {target_label: endpoint, replacement: metrics}
  - {source_labels: [__address__], target_label: __tmp_hash, modulus: 1, action: hashmod}
  - {source_labels: [__tmp_hash], regex: '0', action: keep}
  metric_relabel_configs:
  - {source_labels: [__name__], regex: dropped_.*, action: drop}
alerting:
  alert_relabel_configs: [{action: labeldrop, regex: prometheus_replica}]
  alertmanagers:
  - path_prefix: /am
    scheme: http
    api_version: v2
    timeout: 10s
    basic_auth: {username: eve, password_file: PLACE/password}
    kubernetes_sd_configs:
    - role: endpoints
      api_server: API
      authorization: {type: Bearer, credentials_file: PLACE/token}
      namespaces: {own_namespace: false, names: [monitoring]}
    relabel_configs:
    - {action: keep, source_labels: [__meta_kubernetes_service_name], regex: alertmanager-main}
    - {action: keep, source_labels: [__meta_kubernetes_endpoint_port_name], regex: web}
remote_write:
- url: FAR/api/v1/write
  name: far
  remote_timeout: 30s
  send_exemplars: true
  write_relabel_configs: [{source_labels: [__name__], regex: 'orders|namespace:.*|ALERTS', action: keep}]
  queue_config: {capacity: 1000, max_shards: 4, batch_send_deadline: 100ms, min_backoff: 30ms, max_backoff: 5s}
  metadata_config: {send: true, send_interval: 1m}
storage:
  tsdb: {out_of_order_time_window: 10m}
  exemplars: {max_exemplars: 1000}
`

func TestServe_KubePrometheusFileScrapesRecordsAlertsAndSends(t *testing.T) {
	am, far := startAlertmanager(t), startServe(t, idle(t))
	portOf := func(address string) (port int) {
		t.Helper()
		try(fmt.Sscanf(strings.TrimPrefix(address, "http://"), "127.0.0.1:%d", &port)).must(t)
		return port
	}
	target := exposition(t, "# TYPE orders gauge\norders 7\n# TYPE dropped_orders gauge\ndropped_orders 1\n# EOF\n")
	k := newKubernetes(t)
	k.token = "sesame"
	service := func(name string) any {
		return map[string]any{"apiVersion": "v1", "kind": "Service", "metadata": meta(name, map[string]string{"app": name})}
	}
	k.add("services", service("desk"))
	k.add("pods", pod("shop-0", "shop", portOf(target)))
	k.add("pods", pod("other-0", "other", portOf(target)))
	k.add("services", service("alertmanager-main"))
	k.add("endpointslices", map[string]any{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta("desk-abc", map[string]string{"kubernetes.io/service-name": "desk"}), "addressType": "IPv4",
		"endpoints": []any{map[string]any{"addresses": []string{"127.0.0.1"}, "conditions": map[string]bool{"ready": true}, "targetRef": map[string]string{"kind": "Pod", "name": "desk-0", "namespace": "monitoring"}}},
		"ports":     []any{map[string]any{"name": "metrics", "port": portOf(target), "protocol": "TCP"}},
	})
	k.add("endpoints", map[string]any{
		"apiVersion": "v1", "kind": "Endpoints", "metadata": meta("alertmanager-main", map[string]string{"app": "alertmanager-main"}),
		"subsets": []any{map[string]any{
			"addresses": []any{map[string]any{"ip": "127.0.0.1", "targetRef": map[string]string{"kind": "Pod", "name": "alertmanager-main-0", "namespace": "monitoring"}}},
			"ports":     []any{map[string]any{"name": "web", "port": portOf(am.URL), "protocol": "TCP"}, map[string]any{"name": "reloader", "port": 1, "protocol": "TCP"}},
		}},
	})
	dir := t.TempDir()
	noError(t, os.Mkdir(filepath.Join(dir, "rules"), 0o700))
	writeFile(t, filepath.Join(dir, "token"), k.token+"\n")
	writeFile(t, filepath.Join(dir, "password"), "apple\n")
	writeFile(t, filepath.Join(dir, "rules", "monitoring-desk.yaml"), `groups:
- name: desk.rules
  rules:
  - {record: "namespace:orders:sum", expr: "sum by (namespace) (orders{job='desk'})"}
  - {alert: TooMany, expr: "namespace:orders:sum > 5", labels: {severity: warning}, annotations: {runbook_url: "https://runbooks.example.com/toomany"}}
`)
	file := writeFile(t, filepath.Join(dir, "prometheus.yml"), strings.NewReplacer("PLACE", dir, "API", k.URL, "FAR", far.base).Replace(kubePrometheus))
	bundle := try(os.ReadFile("testdata/bundle.yml")).must(t)
	writeFile(t, filepath.Join(dir, "rules", "monitoring-bundle.yaml"), string(bundle))
	s := startServe(t, func(o *app.ServeOptions) {
		o.ConfigFile = file
		o.Scrape.DiscoveryReloadInterval, o.Rules.DiscoveryInterval = 100*time.Millisecond, 100*time.Millisecond
	})
	eventually(t, 60*time.Second, "a scraped sample", func() bool {
		return s.value(`orders{job="desk",pod="desk-0",namespace="monitoring",endpoint="metrics"}`) == "7"
	})
	s.waitValue(`orders{job="monitoring/shop",namespace="monitoring",pod="shop-0",container="main",endpoint="metrics"}`, "7")
	s.waitValue("count(up)", "2")
	k.add("pods", pod("shop-1", "shop", portOf(target))) // later
	s.waitValue(`orders{pod="shop-1"}`, "7")
	if got := s.instant(`{__name__=~"dropped_.*",pod=~"desk.*"}`); len(got) != 0 {
		t.Errorf("metric_relabel_configs keep %v", got)
	}
	eventually(t, 60*time.Second, "the alert", func() bool {
		return slices.ContainsFunc(am.all(), func(a posted) bool {
			return fmt.Sprint(a.Labels) == "map[alertname:TooMany namespace:monitoring prometheus:monitoring/k8s severity:warning]"
		})
	})
	for _, query := range []string{
		`namespace:orders:sum{prometheus="monitoring/k8s",prometheus_replica="prometheus-k8s-0"} == 7`, `orders{pod="desk-0"}`, `ALERTS{alertname="TooMany",alertstate="firing"}`,
	} {
		eventually(t, 60*time.Second, "the receiver to have "+query, func() bool { return far.value(query) != "" })
	}
	if got := far.instant(`up`); len(got) != 0 {
		t.Errorf("write_relabel_configs send %v", got)
	}
	rules := strings.Count(string(bundle), "- record:") + strings.Count(string(bundle), "- alert:") + 2
	eventually(t, 60*time.Second, "every rule of the bundle to be evaluated", func() bool {
		_, body := s.get("/api/v1/rules")
		return strings.Count(body, `"health":"ok"`) == rules
	})
}
