package e2e

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	pb "github.com/ferula-io/ferula/internal/thanos/storepb/apipb"
)

// sidecar is a running `ferula sidecar` in this process.
type sidecar struct {
	*server
	conn   *grpc.ClientConn
	client *storeapi.Client
}

// startSidecar runs a sidecar for the Prometheus of this URL until the test ends. It does
// not wait for readiness.
func startSidecar(t *testing.T, prometheus string, change func(*app.SidecarOptions)) *sidecar {
	t.Helper()
	opts := app.SidecarOptions{
		Web: app.WebOptions{ListenAddress: "127.0.0.1:0"}, GRPC: app.GRPCOptions{ListenAddress: "127.0.0.1:0"},
		PrometheusURL: prometheus, PollInterval: 50 * time.Millisecond, TSDBDir: t.TempDir(),
		Logger: testLogger(t),
	}
	if change != nil {
		change(&opts)
	}
	one := try(app.NewSidecar(opts)).must(t)
	s := &sidecar{server: &server{t: t, base: "http://" + one.Addr().String(), grpc: one.GRPCAddr().String(), ready: "/-/ready", stop: run(t, one.Run)}}
	s.conn, s.client = storeClient(t, s.grpc)
	t.Cleanup(func() { _ = s.conn.Close() })
	return s
}

func storeClient(t *testing.T, address string) (*grpc.ClientConn, *storeapi.Client) {
	t.Helper()
	conn := try(grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))).must(t)
	return conn, storeapi.NewClient(conn, storeapi.ClientOptions{})
}

// storeSeries returns one line per series of a response, with its samples in the range of the request, in the order of
// the response. Different samples have different text, also staleness markers and other NaN.
func storeSeries(client *storeapi.Client, r storeapi.SeriesRequest) ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	set := client.Series(ctx, r)
	defer set.Close()
	var lines []string
	builder := labels.NewScratchBuilder(8)
	for set.Next() {
		lset, err := labelenc.Labels(set.Labels(), &builder)
		if err != nil {
			return nil, err
		}
		line := lset.String()
		for _, c := range set.Chunks() {
			chunk, err := chunkenc.FromData(c.Encoding, append([]byte(nil), c.Data...))
			if err != nil {
				return nil, err
			}
			it := chunk.Iterator(nil)
			for kind := it.Next(); kind != chunkenc.ValNone; kind = it.Next() {
				at := it.AtT()
				if at < r.MinMS || at > r.MaxMS {
					continue
				}
				if kind != chunkenc.ValFloat {
					_, h := it.AtFloatHistogram(nil)
					line += fmt.Sprintf(" %d=%s", at, h)
				} else if _, v := it.At(); math.IsNaN(v) {
					line += fmt.Sprintf(" %d=NaN %x", at, math.Float64bits(v))
				} else {
					line += fmt.Sprintf(" %d=%g", at, v)
				}
			}
		}
		lines = append(lines, line)
	}
	return lines, set.Err()
}

func equalMatcher(name, value string) *labels.Matcher {
	return labels.MustNewMatcher(labels.MatchEqual, name, value)
}

// configFile writes a configuration with external labels.
func configFile(t *testing.T, external string) string {
	t.Helper()
	return writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "global: {external_labels: {"+external+"}}\nscrape_configs: []\n")
}

// writeNow writes one sample of each series with the current timestamp, and returns it.
func (s *server) writeNow(series ...labels.Labels) int64 {
	s.t.Helper()
	now := time.Now().UnixMilli()
	for i, lset := range series {
		var pairs []string
		lset.Range(func(l labels.Label) { pairs = append(pairs, l.Name, l.Value) })
		s.must(v1Type, encoded(s.t, v1(v1Series(now, float64(i), pairs...))))
	}
	return now
}

func TestSidecar_ServesItsPrometheus(t *testing.T) {
	prom := startServe(t, func(o *app.ServeOptions) { o.ConfigFile = configFile(t, "cluster: eu, replica: r1") })
	now := prom.writeNow(labels.FromStrings("__name__", "local", "a", "1"), labels.FromStrings("__name__", "local", "a", "2", "cluster", "own"))
	s := startSidecar(t, prom.base, nil)
	s.waitReady()
	ctx := context.Background()
	info := try(s.client.Info(ctx)).must(t)
	if info.Component != "sidecar" || len(info.LabelSets) != 1 || info.LabelSets[0].String() != `{cluster="eu", replica="r1"}` || info.Store == nil || info.Store.MaxMS != math.MaxInt64 || !info.Store.Sharding || !info.Rules || !info.Targets || !info.MetricMetadata || info.Exemplars == nil {
		t.Errorf("%+v, %+v", info, info.Store)
	}
	request := storeapi.SeriesRequest{MinMS: now - 1000, MaxMS: now + 1000, Matchers: []*labels.Matcher{equalMatcher("__name__", "local")}}
	want := []string{
		fmt.Sprintf(`{__name__="local", a="1", cluster="eu", replica="r1"} %d=0`, now),
		fmt.Sprintf(`{__name__="local", a="2", cluster="eu", replica="r1"} %d=1`, now),
	}
	if got, err := storeSeries(s.client, request); err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	request.WithoutReplicaLabels = []string{"replica"}
	if got, err := storeSeries(s.client, request); err != nil || len(got) != 2 || strings.Contains(got[0], "replica") {
		t.Errorf("without replica: %q, %v", got, err)
	}
	request.SkipChunks = true
	if got, err := storeSeries(s.client, request); err != nil || len(got) != 2 || strings.Contains(got[0], "=0") {
		t.Errorf("without chunks: %q, %v", got, err)
	}
	names, _, err := s.client.LabelNames(ctx, storeapi.LabelsRequest{MinMS: now - 1000, MaxMS: now + 1000, Matchers: []*labels.Matcher{equalMatcher("__name__", "local"), equalMatcher("cluster", "eu")}})
	if err != nil || strings.Join(names, " ") != "__name__ a cluster replica" {
		t.Errorf("%q, %v", names, err)
	}
	values, _, err := s.client.LabelValues(ctx, storeapi.LabelsRequest{Label: "a", MinMS: now - 1000, MaxMS: now + 1000, Matchers: []*labels.Matcher{labels.MustNewMatcher(labels.MatchNotEqual, "a", "")}})
	if err != nil || strings.Join(values, " ") != "1 2" {
		t.Errorf("%q, %v", values, err)
	}
	values, _, err = s.client.LabelValues(ctx, storeapi.LabelsRequest{Label: "a", MinMS: now - 9000, MaxMS: now - 8000})
	if err != nil || len(values) != 0 {
		t.Logf("values of another time: %q, %v (the head ignores the range)", values, err)
	}
	for _, wrong := range [][]*labels.Matcher{{equalMatcher("cluster", "eu")}, nil} {
		if _, err := storeSeries(s.client, storeapi.SeriesRequest{MinMS: now - 1000, MaxMS: now + 1000, Matchers: wrong}); !errors.Is(err, storeapi.ErrBadRequest) {
			t.Errorf("%v: %v", wrong, err)
		}
	}
	if got, err := storeSeries(s.client, storeapi.SeriesRequest{MinMS: now - 1000, MaxMS: now + 1000, Matchers: []*labels.Matcher{equalMatcher("__name__", "local"), equalMatcher("cluster", "us")}}); err != nil || len(got) != 0 {
		t.Errorf("another cluster: %q, %v", got, err)
	}
}

func TestSidecar_ForwardsTargetsAndMetadata(t *testing.T) {
	prom := startServe(t, func(o *app.ServeOptions) {
		o.ConfigFile = writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "global: {external_labels: {cluster: eu}}\nscrape_configs: [{job_name: none, static_configs: [{targets: ['127.0.0.1:1']}]}]\n")
	})
	s := startSidecar(t, prom.base, nil)
	s.waitReady()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var found *pb.TargetDiscovery
	eventually(t, 60*time.Second, "a target", func() bool {
		stream := try(s.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/thanos.Targets/Targets")).must(t)
		var out pb.TargetsResponse
		noError(t, errors.Join(stream.SendMsg(&pb.TargetsRequest{}), stream.CloseSend(), stream.RecvMsg(&out)))
		found = out.GetTargets()
		return len(found.GetActiveTargets()) == 1
	})
	if lset := fmt.Sprint(found.ActiveTargets[0].Labels.Labels); !strings.Contains(lset, `name:"cluster"`) || found.ActiveTargets[0].ScrapePool != "none" {
		t.Errorf("%v", found)
	}
	for method, in := range map[string]any{"/thanos.Metadata/MetricMetadata": &pb.MetricMetadataRequest{Limit: -1}, "/thanos.Rules/Rules": &pb.RulesRequest{}} {
		stream := try(s.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)).must(t)
		var out pb.MetricMetadataResponse
		err := errors.Join(stream.SendMsg(in), stream.CloseSend(), stream.RecvMsg(&out))
		if method == "/thanos.Metadata/MetricMetadata" && err != nil {
			t.Errorf("%s: %v", method, err)
		}
	}
}

func TestSidecar_WaitsForPrometheusAndFollowsRestartAndReload(t *testing.T) {
	address, dir := freeAddress(t), t.TempDir()
	s := startSidecar(t, "http://"+address, nil)
	s.expect("/-/ready", http.StatusServiceUnavailable)
	s.expect("/-/healthy", http.StatusOK)
	if _, err := s.client.Info(context.Background()); !errors.Is(err, storeapi.ErrUnavailable) {
		t.Errorf("info without a Prometheus: %v", err)
	}
	file := configFile(t, "cluster: eu")
	start := func() *server {
		return startServe(t, func(o *app.ServeOptions) {
			o.Web.ListenAddress, o.ConfigFile, o.Store.Dir, o.Web.EnableLifecycle = address, file, dir, true
		})
	}
	prom := start()
	s.waitReady()
	now := prom.writeNow(labels.FromStrings("__name__", "stays"))
	request := storeapi.SeriesRequest{MinMS: now - 1000, MaxMS: now + 1000, Matchers: []*labels.Matcher{equalMatcher("__name__", "stays")}}
	same := func(cluster string) bool {
		got, err := storeSeries(s.client, request)
		return err == nil && len(got) == 1 && got[0] == fmt.Sprintf(`{__name__="stays", cluster="%s"} %d=0`, cluster, now)
	}
	if !same("eu") {
		t.Error("the series is not served")
	}
	noError(t, prom.stop())
	eventually(t, 60*time.Second, "the sidecar to notice that Prometheus stopped", func() bool {
		status, _ := s.get("/-/ready")
		return status == http.StatusServiceUnavailable
	})
	if _, err := storeSeries(s.client, request); !errors.Is(err, storeapi.ErrUnavailable) {
		t.Errorf("series of a stopped Prometheus: %v", err)
	}
	start()
	s.waitReady()
	if !same("eu") {
		t.Error("after a restart the series is not served")
	}
	writeFile(t, file, "global: {external_labels: {cluster: us}}\nscrape_configs: []\n")
	resp, err := http.Post("http://"+address+"/-/reload", "", nil)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(err, resp)
	}
	resp.Body.Close()
	eventually(t, 60*time.Second, "the new external labels", func() bool { return same("us") })
}

func TestSidecar_ShipsTheBlocksOfItsPrometheus(t *testing.T) {
	dir, to := t.TempDir(), t.TempDir()
	id := writeBlock(t, dir, 1, labels.FromStrings("__name__", "shipped"))
	prom := startServe(t, func(o *app.ServeOptions) {
		o.ConfigFile, o.Store.Dir = configFile(t, "cluster: eu"), dir
		o.Flags = map[string]string{"storage.tsdb.min-block-duration": "2h", "storage.tsdb.max-block-duration": "2h"}
	})
	s := startSidecar(t, prom.base, func(o *app.SidecarOptions) {
		o.TSDBDir, o.Ship.Bucket = dir, "type: FILESYSTEM\nconfig: {directory: "+to+"}\n"
	})
	s.waitFor("/-/ready", "Shipping last succeeded")
	if text, err := os.ReadFile(filepath.Join(to, id, "meta.json")); err != nil || !strings.Contains(string(text), `"source": "sidecar"`) {
		t.Errorf("%s, %v", text, err)
	}
}

func TestSidecar_ReloadsPrometheusWhenFilesChange(t *testing.T) {
	dir := t.TempDir()
	from, to, rules := filepath.Join(dir, "in.yml"), filepath.Join(dir, "out.yml"), filepath.Join(dir, "rules")
	t.Setenv("FERULA_E2E_CLUSTER", "eu")
	noError(t, os.Mkdir(rules, 0o700))
	writeFile(t, from, "global: {external_labels: {cluster: $(FERULA_E2E_CLUSTER)}}\nscrape_configs: []\n")
	writeFile(t, to, "global: {external_labels: {cluster: first}}\nscrape_configs: []\n")
	prom := startServe(t, func(o *app.ServeOptions) { o.ConfigFile, o.Web.EnableLifecycle = to, true })
	s := startSidecar(t, prom.base, func(o *app.SidecarOptions) {
		o.Reload = app.ReloadOptions{ConfigFile: from, OutputFile: to, RuleDirs: []string{rules}, Every: 20 * time.Millisecond, Retry: 20 * time.Millisecond}
	})
	cluster := func(want string) {
		t.Helper()
		eventually(t, 60*time.Second, "cluster "+want, func() bool {
			info, err := s.client.Info(context.Background())
			return err == nil && info.LabelSets[0].Get("cluster") == want
		})
	}
	reloads := func(want string) {
		t.Helper()
		s.waitFor("/metrics", "thanos_sidecar_reloader_reloads_total "+want+"\n")
	}
	cluster("eu")
	reloads("1")
	writeFile(t, filepath.Join(rules, "a.yml"), "groups: []\n")
	reloads("2")
	writeFile(t, from, "global: {external_labels: {cluster: us}}\nscrape_configs: []\n")
	cluster("us")
	reloads("3")
	writeFile(t, from, "global: {external_labels: {cluster: $(FERULA_E2E_UNSET)}}\n")
	eventually(t, 60*time.Second, "a failure", func() bool {
		_, metrics := s.get("/metrics")
		return !strings.Contains(metrics, "thanos_sidecar_reloader_reloads_failed_total 0\n")
	})
}
