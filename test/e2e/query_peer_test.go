package e2e

import (
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/app"
)

// queriedSidecar runs a Prometheus with external labels and a Thanos sidecar for it, and
// returns the sidecar's gRPC address.
func queriedSidecar(t *testing.T) (prometheus *server, store string) {
	t.Helper()
	dir, address := t.TempDir(), fmt.Sprintf("127.0.0.1:%d", freePort(t))
	config := writeFile(t, filepath.Join(dir, "prometheus.yml"), "global: {external_labels: {cluster: eu, replica: a}}\nscrape_configs: []\n")
	startPeer(t, "http://"+address+"/-/ready", peerBinary(t, "prometheus"), "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--enable-feature=exemplar-storage", "--web.listen-address="+address, "--web.enable-remote-write-receiver", "--log.level=warn")
	web := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	store = fmt.Sprintf("127.0.0.1:%d", freePort(t))
	startPeer(t, "http://"+web+"/-/ready", peerBinary(t, "thanos"), "sidecar", "--http-address="+web, "--grpc-address="+store,
		"--prometheus.url=http://"+address, "--tsdb.path="+filepath.Join(dir, "data"), "--log.level=warn")
	return &server{t: t, base: "http://" + address}, store
}

func TestPeerThanosSidecar_ResultsEqualPrometheus(t *testing.T) {
	prometheus, store := queriedSidecar(t)
	end := time.Now().Truncate(time.Minute)
	prometheus.writeAll(storeSamples(t, end))
	q := startQuery(t, []string{store}, func(o *app.QueryOptions) { o.Stores.ReplicaLabels = []string{"replica"} })
	eventually(t, 60*time.Second, "the sidecar to be known", func() bool {
		_, body := q.get("/api/v1/stores")
		return strings.Contains(body, `"sidecar":[{"name":"`+store) && strings.Contains(body, `"cluster":"eu"`)
	})
	compared := 0
	for _, request := range storeRequests(end) {
		if strings.HasPrefix(request, "/api/v1/label") || strings.Contains(request, "sum+by") || strings.Contains(request, "histogram_quantile") || strings.Contains(request, "absent") {
			continue // labels include the external ones, and these functions drop them
		}
		_, want := prometheus.get(request)
		for _, dedup := range []string{"true", "false"} {
			_, got := q.get(request + "&dedup=" + dedup)
			if compared++; normalizedResponse(t, got, "cluster", "replica") != normalizedResponse(t, want) {
				t.Errorf("%s dedup=%s\nferula     %.600s\nPrometheus %.600s", request, dedup, got, want)
			}
		}
	}
	if compared < 30 {
		t.Fatalf("only %d responses compared", compared)
	}
}

// Both queriers read the same two stores. Counter resets are not compared where Thanos
// differs from Prometheus, which ferula follows: Thanos adjusts counters for resets
// before the engine reads them, so the engine extrapolates a rate after a reset
// differently even with a single replica.
func TestPeerThanosQuery_SameDeduplicationOfReplicas(t *testing.T) {
	end := time.Now().Truncate(time.Minute)
	stores := replicas(t, end)
	theirs := thanosQuery(t, stores, "--query.replica-label=replica")
	ours := startQuery(t, stores, func(o *app.QueryOptions) { o.Stores.ReplicaLabels = []string{"replica"} })
	again := thanosQuery(t, []string{ours.grpc}, "--query.replica-label=replica")
	compared := 0
	for _, query := range []string{
		"level", "counted_total", "rate(counted_total[5m])", "increase(counted_total[10m])", "irate(counted_total[5m])", "sum(rate(counted_total[3m]))", "avg_over_time(level[7m])",
		"count_over_time(level[5m])", "changes(level[20m])", "max_over_time(level[1m])", "delta(level[5m])", "level offset 10m", "count(level)", `rate(counted_total{z="1"}[2m])`, "last_over_time(counted_total[1m])",
	} {
		form := url.Values{"query": {query}, "start": {fmt.Sprint(end.Add(-35 * time.Minute).Unix())}, "end": {fmt.Sprint(end.Unix())}, "step": {"13"}}
		for _, dedup := range []string{"&dedup=true", "&dedup=false", "&replicaLabels[]=cluster", "&replicaLabels[]=cluster&replicaLabels[]=replica"} {
			if restarts := strings.Contains(query, "rate(") || strings.Contains(query, "increase("); restarts && !strings.HasSuffix(dedup, "true") && !strings.HasSuffix(dedup, "=replica") {
				continue
			}
			request := "/api/v1/query_range?" + form.Encode() + dedup
			_, want := theirs.get(request)
			_, got := ours.get(request)
			if compared++; normalizedResponse(t, got) != normalizedResponse(t, want) {
				t.Errorf("%s\nferula %.900s\nThanos %.900s", request, got, want)
			}
			_, got = again.get(request)
			if compared++; normalizedResponse(t, got) != normalizedResponse(t, want) {
				t.Errorf("%s\nThanos over ferula %.900s\nThanos %.900s", request, got, want)
			}
		}
	}
	if compared < 90 {
		t.Fatalf("only %d responses compared", compared)
	}
	for _, path := range []string{"/api/v1/series?match[]=counted_total", "/api/v1/series?match[]=level&dedup=false", "/api/v1/labels", "/api/v1/label/replica/values", "/api/v1/label/job/values"} {
		_, want := theirs.get(path)
		_, got := ours.get(path)
		if normalizedResponse(t, got) != normalizedResponse(t, want) {
			t.Errorf("%s\nferula %s\nThanos %s", path, got, want)
		}
	}
}

func TestPeerThanosSidecar_MetricMetadataIsForwarded(t *testing.T) {
	dir, address := t.TempDir(), fmt.Sprintf("127.0.0.1:%d", freePort(t))
	config := writeFile(t, filepath.Join(dir, "prometheus.yml"), "global: {scrape_interval: 1s, external_labels: {replica: a}}\nscrape_configs: [{job_name: self, static_configs: [{targets: ['"+address+"']}]}]\n")
	startPeer(t, "http://"+address+"/-/ready", peerBinary(t, "prometheus"), "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address, "--log.level=warn")
	prometheus := &server{t: t, base: "http://" + address}
	eventually(t, 60*time.Second, "Prometheus to have scraped itself", func() bool {
		_, body := prometheus.get("/api/v1/metadata?metric=go_info")
		return strings.Contains(body, "go_info")
	})
	web, theirs := fmt.Sprintf("127.0.0.1:%d", freePort(t)), fmt.Sprintf("127.0.0.1:%d", freePort(t))
	startPeer(t, "http://"+web+"/-/ready", peerBinary(t, "thanos"), "sidecar", "--http-address="+web, "--grpc-address="+theirs, "--prometheus.url=http://"+address, "--tsdb.path="+filepath.Join(dir, "data"), "--log.level=warn")
	ours := startSidecar(t, "http://"+address, nil)
	ours.waitReady()
	for name, stores := range map[string][]string{"Thanos' sidecar": {theirs}, "ferula's sidecar": {ours.grpc}, "both": {theirs, ours.grpc}} {
		q := startQuery(t, stores, nil)
		eventually(t, 60*time.Second, name+" to be known", func() bool {
			_, body := q.get("/api/v1/stores")
			return strings.Count(body, `"replica":"a"`) == len(stores)
		})
		for _, path := range []string{"/api/v1/metadata", "/api/v1/metadata?metric=go_info", "/api/v1/metadata?metric=nothing"} {
			want, got := unchanged(t, prometheus, q.server, path, path)
			if normalizedResponse(t, got) != normalizedResponse(t, want) {
				t.Errorf("%s, %s\nferula     %.400s\nPrometheus %.400s", name, path, got, want)
			}
		}
		if _, body := q.get("/api/v1/metadata?limit=3"); strings.Count(body, `"type"`) != 3 {
			t.Errorf("%s: limit: %s", name, body)
		}
	}
}
