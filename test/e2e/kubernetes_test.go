package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/role"
)

// kubernetes is an API server that lists and watches a few resources.
type kubernetes struct {
	*httptest.Server
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

// add adds an object to a resource, such as "pods", and ends the watches, after which
// clients list again.
func (k *kubernetes) add(resource string, object any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.objects[resource] = append(k.objects[resource], object)
	close(k.changed)
	k.changed = make(chan struct{})
}

var kinds = map[string][2]string{"pods": {"v1", "Pod"}, "services": {"v1", "Service"}, "endpointslices": {"discovery.k8s.io/v1", "EndpointSlice"}}

// ServeHTTP implements http.Handler.
func (k *kubernetes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	kind, ok := kinds[resource]
	if !ok {
		http.NotFound(w, r)
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

// The jobs are as prometheus-operator writes them for a PodMonitor and a ServiceMonitor.
const kubernetesJobs = `
global: {scrape_interval: 200ms, scrape_timeout: 200ms}
scrape_configs:
- job_name: podMonitor/monitoring/shop/0
  honor_timestamps: true
  kubernetes_sd_configs: [{role: pod, api_server: API, namespaces: {own_namespace: false, names: [monitoring]}}]
  relabel_configs:
  - {source_labels: [job], target_label: __tmp_prometheus_job_name}
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
  kubernetes_sd_configs: [{role: endpointslice, api_server: API, namespaces: {own_namespace: false, names: [monitoring]}}]
  relabel_configs:
  - {action: keep, source_labels: [__meta_kubernetes_service_label_app, __meta_kubernetes_service_labelpresent_app], regex: (desk);true}
  - {action: keep, source_labels: [__meta_kubernetes_endpointslice_port_name], regex: metrics}
  - {source_labels: [__meta_kubernetes_endpointslice_address_target_kind, __meta_kubernetes_endpointslice_address_target_name], separator: ;, regex: Pod;(.*), replacement: '${1}', target_label: pod}
  - {source_labels: [__meta_kubernetes_namespace], target_label: namespace}
  - {source_labels: [__meta_kubernetes_service_name], target_label: service}
  - {source_labels: [__meta_kubernetes_service_name], target_label: job, replacement: '${1}'}
`

func TestServe_KubernetesPodsAreDiscoveredAndScraped(t *testing.T) {
	target := exposition(t, "# TYPE orders gauge\norders 7\n# EOF\n")
	var port int
	if _, err := fmt.Sscanf(target, "127.0.0.1:%d", &port); err != nil {
		t.Fatal(err)
	}
	k := newKubernetes(t)
	k.add("pods", pod("shop-0", "shop", port))
	k.add("pods", pod("other-0", "other", port))
	k.add("pods", pod("desk-0", "back-office", port))
	k.add("services", map[string]any{"apiVersion": "v1", "kind": "Service", "metadata": meta("desk", map[string]string{"app": "desk"})})
	k.add("endpointslices", map[string]any{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta("desk-abc", map[string]string{"kubernetes.io/service-name": "desk"}), "addressType": "IPv4",
		"endpoints": []any{map[string]any{"addresses": []string{"127.0.0.1"}, "conditions": map[string]bool{"ready": true}, "targetRef": map[string]string{"kind": "Pod", "name": "desk-0", "namespace": "monitoring"}}},
		"ports":     []any{map[string]any{"name": "metrics", "port": port, "protocol": "TCP"}},
	})
	file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), strings.ReplaceAll(kubernetesJobs, "API", k.URL))
	s := startServe(t, func(o *role.ServeOptions) {
		o.ConfigFile = file
		o.Scrape.DiscoveryReloadInterval = 100 * time.Millisecond
	})
	for query, want := range map[string]string{
		`orders{job="monitoring/shop",namespace="monitoring",pod="shop-0",container="main",endpoint="metrics"}`: "7",
		`orders{job="desk",service="desk",pod="desk-0",namespace="monitoring"}`:                                 "7",
		`count(up)`: "2",
	} {
		eventually(t, 30*time.Second, query, func() bool { return s.value(query) == want })
	}
	k.add("pods", pod("shop-1", "shop", port))
	eventually(t, 60*time.Second, "a pod that was created later", func() bool { return s.value(`orders{pod="shop-1"}`) == "7" })
}
