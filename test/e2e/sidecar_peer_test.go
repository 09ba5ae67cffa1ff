package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// prometheusPeerServer is a real Prometheus with external labels, and the block
// durations that shipping by a sidecar requires.
type prometheusPeerServer struct {
	*server
	dir string
}

const peerPrometheusConfig = `
global: {scrape_interval: 1s, evaluation_interval: 1s, external_labels: {cluster: eu, replica: r1}}
rule_files: [rules.yml]
scrape_configs: [{job_name: self, static_configs: [{targets: ['%s']}]}]
`

const peerPrometheusRules = `
groups:
- name: some
  interval: 1s
  limit: 7
  rules:
  - {record: "job:up:sum", expr: "sum by (job) (up)", labels: {kind: sum}}
  - {alert: Always, expr: "vector(1)", for: 1h, keep_firing_for: 2m, labels: {severity: none}, annotations: {text: "it <is>"}}
`

// startPrometheusForSidecar runs one on a directory that may already have blocks.
func startPrometheusForSidecar(t *testing.T, dir string, args ...string) *prometheusPeerServer {
	t.Helper()
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	config := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), fmt.Sprintf(peerPrometheusConfig, address))
	writeFile(t, filepath.Join(filepath.Dir(config), "rules.yml"), peerPrometheusRules)
	args = append([]string{
		"--config.file=" + config, "--storage.tsdb.path=" + dir, "--storage.tsdb.retention.time=10y", "--enable-feature=exemplar-storage",
		"--storage.tsdb.min-block-duration=2h", "--storage.tsdb.max-block-duration=2h",
		"--web.listen-address=" + address, "--web.enable-remote-write-receiver", "--web.enable-lifecycle", "--log.level=warn",
	}, args...)
	startPeer(t, "http://"+address+"/-/ready", peerBinary(t, "prometheus"), args...)
	return &prometheusPeerServer{&server{t: t, base: "http://" + address}, dir}
}

// thanosSidecar runs a Thanos sidecar and returns the address of its StoreAPI.
func thanosSidecar(t *testing.T, prom *prometheusPeerServer, args ...string) string {
	t.Helper()
	http, address := fmt.Sprintf("127.0.0.1:%d", freePort(t)), fmt.Sprintf("127.0.0.1:%d", freePort(t))
	startPeer(t, "http://"+http+"/-/ready", peerBinary(t, "thanos"), append([]string{
		"sidecar", "--http-address=" + http, "--grpc-address=" + address, "--prometheus.url=" + prom.base, "--tsdb.path=" + prom.dir, "--log.level=warn",
	}, args...)...)
	return address
}

// writeSidecarBlocks writes blocks and returns their time range. Some series have a label
// with the name of an external one; the label set of some is a prefix of another.
func writeSidecarBlocks(t *testing.T, dir string, blocks int) (mint, maxt int64) {
	t.Helper()
	var series []labels.Labels
	for i := range 40 {
		series = append(series, labels.FromStrings("__name__", "blocks", "a", fmt.Sprint(i%7), "i", fmt.Sprint(i), "zone", "z"))
	}
	series = append(series, labels.FromStrings("__name__", "blocks"), labels.FromStrings("__name__", "blocks", "a", "1"), labels.FromStrings("__name__", "blocks", "a", "1", "b", "2"),
		labels.FromStrings("__name__", "own", "cluster", "eu", "x", "1"), labels.FromStrings("__name__", "own", "cluster", "us", "x", "2"), labels.FromStrings("__name__", "own", "x", "3"),
		labels.FromStrings("__name__", "own", "a", "1"), labels.FromStrings("__name__", "own", "a", "1", "cluster", "af", "x", "4"))
	slices.SortFunc(series, labels.Compare)
	for back := range blocks {
		writeBlock(t, dir, back+1, series...)
	}
	end := time.Now().Truncate(twoHours)
	return end.Add(-time.Duration(blocks+1) * twoHours).UnixMilli(), end.Add(-twoHours).UnixMilli() - 1
}

func TestPeerThanosSidecar_ResponsesEqualFerulaSidecars(t *testing.T) {
	dir := t.TempDir()
	mint, maxt := writeSidecarBlocks(t, dir, 3)
	prom := startPrometheusForSidecar(t, dir)
	peerAddress := thanosSidecar(t, prom)
	s := startSidecar(t, prom.base, nil)
	s.waitReady()
	conn, peer := storeClient(t, peerAddress)
	defer conn.Close()
	ctx := context.Background()
	mine, err := s.client.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := peer.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(mine.LabelSets) != fmt.Sprint(theirs.LabelSets) || mine.Component != theirs.Component || mine.Exemplars == nil || fmt.Sprint(*mine.Store) != fmt.Sprint(*theirs.Store) || mine.Rules != theirs.Rules || mine.Targets != theirs.Targets || mine.MetricMetadata != theirs.MetricMetadata {
		t.Errorf("info %+v %+v %+v, Thanos %+v %+v %+v", mine, mine.Store, mine.Exemplars, theirs, theirs.Store, theirs.Exemplars)
	}
	re := func(name, value string) *labels.Matcher {
		return labels.MustNewMatcher(labels.MatchRegexp, name, value)
	}
	compared := 0
	for what, r := range map[string]storeapi.SeriesRequest{
		"all blocks":           {Matchers: []*labels.Matcher{equalMatcher("__name__", "blocks")}},
		"own labels":           {Matchers: []*labels.Matcher{equalMatcher("__name__", "own")}},
		"both, by cluster":     {Matchers: []*labels.Matcher{re("__name__", "own|blocks"), equalMatcher("cluster", "eu")}},
		"another cluster":      {Matchers: []*labels.Matcher{re("__name__", "own|blocks"), equalMatcher("cluster", "us")}},
		"without replica":      {Matchers: []*labels.Matcher{re("__name__", "own|blocks")}, WithoutReplicaLabels: []string{"replica"}},
		"without cluster":      {Matchers: []*labels.Matcher{re("__name__", "own|blocks")}, WithoutReplicaLabels: []string{"cluster", "replica"}},
		"without an own label": {Matchers: []*labels.Matcher{equalMatcher("__name__", "blocks")}, WithoutReplicaLabels: []string{"i"}},
		"without chunks":       {Matchers: []*labels.Matcher{equalMatcher("__name__", "blocks"), equalMatcher("a", "1")}, SkipChunks: true},
		"nothing":              {Matchers: []*labels.Matcher{equalMatcher("__name__", "nothing")}},
		"a shard":              {Matchers: []*labels.Matcher{equalMatcher("__name__", "blocks")}, Shard: &storeapi.Shard{Index: 1, Total: 3, By: true, Labels: []string{"i"}}},
		"a range":              {Matchers: []*labels.Matcher{equalMatcher("__name__", "blocks")}, MinMS: mint + 600_000, MaxMS: mint + 7_000_000},
	} {
		if r.MaxMS == 0 {
			r.MinMS, r.MaxMS = mint, maxt
		}
		got, err := storeSeries(s.client, r)
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		want, err := storeSeries(peer, r)
		if err != nil {
			t.Errorf("%s: Thanos: %v", what, err)
		}
		// Where removed labels make series equal, Thanos sends each of them, ferula one.
		if strings.HasPrefix(what, "without an own") {
			if len(got) == 0 || !slices.IsSorted(names(got)) {
				t.Errorf("%s: %.600q", what, got)
			}
			continue
		}
		if compared++; !slices.Equal(got, want) {
			t.Errorf("%s: %d series, Thanos %d\n%.600q\nThanos\n%.600q", what, len(got), len(want), got, want)
		}
		if len(want) == 0 && what != "nothing" && what != "another cluster" {
			t.Errorf("%s: nothing compared", what)
		}
	}
	for what, r := range map[string]storeapi.LabelsRequest{
		"names": {}, "names of": {Matchers: []*labels.Matcher{equalMatcher("__name__", "own")}}, "names of nothing": {Matchers: []*labels.Matcher{equalMatcher("__name__", "nothing")}},
		"values a": {Label: "a"}, "values of": {Label: "x", Matchers: []*labels.Matcher{equalMatcher("__name__", "own")}}, "values cluster": {Label: "cluster"},
		"values cluster of": {Label: "cluster", Matchers: []*labels.Matcher{equalMatcher("__name__", "own")}}, "limited": {Label: "i", Limit: 3},
		"another cluster": {Label: "a", Matchers: []*labels.Matcher{equalMatcher("cluster", "us")}},
	} {
		r.MinMS, r.MaxMS = mint, maxt
		labelList := func(c *storeapi.Client) string {
			list, _, err := c.LabelNames(ctx, r)
			if r.Label != "" {
				list, _, err = c.LabelValues(ctx, r)
			}
			return fmt.Sprint(list, err)
		}
		if got, want := labelList(s.client), labelList(peer); slices.Compact(strings.Fields(got))[0] != slices.Compact(strings.Fields(want))[0] || strings.Join(slices.Compact(strings.Fields(got)), " ") != strings.Join(slices.Compact(strings.Fields(want)), " ") {
			t.Errorf("%s: %s, Thanos %s", what, got, want)
		}
	}
	if compared < 8 {
		t.Fatalf("only %d responses compared", compared)
	}
}

// names returns the label sets of series lines.
func names(lines []string) []string {
	sets := make([]string, len(lines))
	for i, line := range lines {
		sets[i], _, _ = strings.Cut(line, "}")
	}
	return sets
}

func TestPeerThanosQuery_ResultsOverTheSidecarEqualPrometheus(t *testing.T) {
	dir := t.TempDir()
	writeSidecarBlocks(t, dir, 2)
	prom := startPrometheusForSidecar(t, dir)
	end := time.Now().Truncate(time.Minute)
	prom.writeAll(storeSamples(t, end))
	s := startSidecar(t, prom.base, nil)
	s.waitReady()
	query := thanosQuery(t, []string{s.grpc}, "--query.replica-label=replica")
	other := thanosQuery(t, []string{thanosSidecar(t, prom)}, "--query.replica-label=replica")
	eventually(t, 60*time.Second, "rules and targets", func() bool {
		_, rules := prom.get("/api/v1/rules")
		_, targets := prom.get("/api/v1/targets")
		return strings.Contains(rules, `"state":"pending"`) && strings.Contains(targets, `"health":"up"`)
	})
	compared := 0
	for _, request := range storeRequests(end) {
		want, got := unchanged(t, other, query, request+"&dedup=true", request+"&dedup=true")
		if compared++; normalizedResponse(t, got) != normalizedResponse(t, want) {
			t.Errorf("%s\nthrough ferula's sidecar %.700s\nthrough Thanos' %.700s", request, got, want)
		}
		if strings.HasPrefix(request, "/api/v1/label") || strings.Contains(request, "sum by") || strings.Contains(request, "histogram_quantile") || strings.Contains(request, "absent") {
			continue
		}
		if strings.Contains(request, "rate%28") {
			continue // Thanos' older engine computes another rate at a counter reset
		}
		// Deduplication changes values at a counter reset even of a single replica.
		want, got = unchanged(t, prom.server, query, request, request+"&dedup=false")
		if compared++; normalizedResponse(t, got, "cluster", "replica") != normalizedResponse(t, want) {
			t.Errorf("%s\nthrough ferula's sidecar %.700s\nPrometheus %.700s", request, firstDifference(normalizedResponse(t, got, "cluster", "replica"), normalizedResponse(t, want)), firstDifference(normalizedResponse(t, want), normalizedResponse(t, got, "cluster", "replica")))
		}
	}
	if compared < 40 {
		t.Fatalf("only %d responses compared", compared)
	}
	blocks := fmt.Sprintf("/api/v1/query?query={__name__=~\"blocks|own\"}&time=%d", end.Truncate(twoHours).Add(-twoHours).Unix()-1)
	_, want := other.get(blocks)
	_, got := query.get(blocks)
	if normalizedResponse(t, got) != normalizedResponse(t, want) || strings.Count(got, `"metric"`) < 40 {
		t.Errorf("blocks through ferula's sidecar %.900s\nthrough Thanos' %.900s", got, want)
	}
	for _, path := range []string{"/api/v1/rules", "/api/v1/rules?type=alert", "/api/v1/rules?type=record", "/api/v1/targets", "/api/v1/targets?state=dropped", "/api/v1/metadata", "/api/v1/metadata?metric=up&limit=3"} {
		var mine, theirs string
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
			_, mine = query.get(path)
			_, theirs = other.get(path)
			if withoutVolatileFields(mine) == withoutVolatileFields(theirs) {
				break
			}
		}
		if compared++; withoutVolatileFields(mine) != withoutVolatileFields(theirs) || len(mine) < 20 {
			t.Errorf("%s\nthrough ferula's sidecar %s\nthrough Thanos' %s", path, mine, theirs)
		}
	}
	if _, body := query.get("/api/v1/rules"); !strings.Contains(body, `"cluster":"eu"`) || !strings.Contains(body, "it \\u003cis\\u003e") && !strings.Contains(body, "it <is>") {
		t.Errorf("rules: %s", body)
	}
}

// unchanged returns responses of two servers over one Prometheus, between which its series did not change: its scrapes of
// itself add labels and names, for example those of a path that was requested for the first time.
func unchanged(t *testing.T, peer, other *server, peerPath, otherPath string) (ofPeer, ofOther string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		_, before := peer.get(peerPath)
		_, ofOther = other.get(otherPath)
		_, ofPeer = peer.get(peerPath)
		if normalizedResponse(t, before) == normalizedResponse(t, ofPeer) {
			break
		}
	}
	return ofPeer, ofOther
}

// firstDifference returns text from 60 bytes before its first difference to other.
func firstDifference(text, other string) string {
	at := 0
	for at < len(text) && at < len(other) && text[at] == other[at] {
		at++
	}
	return text[max(0, at-60):]
}

// withoutVolatileFields removes the fields that change with every evaluation or scrape.
func withoutVolatileFields(body string) string {
	for _, name := range []string{"evaluationTime", "lastEvaluation", "lastScrape", "lastScrapeDuration"} {
		parts := strings.Split(body, `"`+name+`":`)
		for i := 1; i < len(parts); i++ {
			if cut := strings.IndexAny(parts[i], ",}"); cut >= 0 {
				parts[i] = parts[i][cut:]
			}
		}
		body = strings.Join(parts, "")
	}
	return body
}

// s3Gateway runs a real S3 server over a directory. It returns the object storage
// configuration for a bucket, and the bucket's directory.
func s3Gateway(t *testing.T) (config, dir string) {
	t.Helper()
	path, dir, port := peerBinary(t, "versitygw"), t.TempDir(), freePort(t)
	if err := os.Mkdir(filepath.Join(dir, "blocks"), 0o755); err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	cmd := exec.Command(path, "--port", address, "posix", dir)
	cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY=key", "ROOT_SECRET_KEY=secret")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	eventually(t, 60*time.Second, "versitygw to listen", func() bool {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return false
		}
		conn.Close()
		return true
	})
	return "type: S3\nconfig: {bucket: blocks, endpoint: '" + address + "', access_key: key, secret_key: secret, insecure: true, bucket_lookup_type: path, region: us-east-1}\n", filepath.Join(dir, "blocks")
}

func thanosTool(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(peerBinary(t, "thanos"), args...).CombinedOutput()
	if err != nil {
		t.Errorf("thanos %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestPeerThanosTools_AcceptBlocksShippedToS3(t *testing.T) {
	dir := t.TempDir()
	const blocks = 8 // enough that at any hour some fill a range of the compactor
	mint, maxt := writeSidecarBlocks(t, dir, blocks)
	prom := startPrometheusForSidecar(t, dir)
	bucket, folder := s3Gateway(t)
	file := writeFile(t, filepath.Join(t.TempDir(), "objstore.yml"), bucket)
	s := startSidecar(t, prom.base, func(o *app.SidecarOptions) {
		o.TSDBDir, o.Ship.Bucket, o.Ship.Shipper.Hashes = dir, bucket, true
	})
	eventually(t, 60*time.Second, "the blocks to be shipped", func() bool {
		_, body := s.get("/-/ready")
		return strings.Contains(body, "Shipping last succeeded")
	})
	if out := thanosTool(t, "tools", "bucket", "verify", "--objstore.config-file="+file, "--issues=overlapped_blocks", "--issues=duplicated_compaction", "--issues=index_known_issues", "--log.level=info"); strings.Contains(out, "level=error") || strings.Contains(out, "level=warn") {
		t.Errorf("verify: %s", out)
	}
	if out := thanosTool(t, "tools", "bucket", "inspect", "--objstore.config-file="+file, "--output=csv"); strings.Count(out, "cluster=eu") != blocks || !strings.Contains(out, "sidecar") {
		t.Errorf("inspect: %s", out)
	}
	profiles := filepath.Join(folder, "profiles", "anonymous", "01JAAAAAAAAAAAAAAAAAAAAAAA")
	if err := os.MkdirAll(profiles, 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(profiles, "meta.json"), `{"not": "a metrics block"}`)
	writeFile(t, filepath.Join(profiles, "profiles.parquet"), "columns")
	request := storeapi.SeriesRequest{MinMS: mint, MaxMS: maxt, Matchers: []*labels.Matcher{labels.MustNewMatcher(labels.MatchRegexp, "__name__", "blocks|own")}}
	want, err := storeSeries(s.client, request)
	if err != nil || len(want) < 40 {
		t.Fatal(len(want), err)
	}
	served := func() {
		t.Helper()
		http, address := fmt.Sprintf("127.0.0.1:%d", freePort(t)), fmt.Sprintf("127.0.0.1:%d", freePort(t))
		startPeer(t, "http://"+http+"/-/ready", peerBinary(t, "thanos"), "store", "--data-dir="+t.TempDir(), "--objstore.config-file="+file, "--http-address="+http, "--grpc-address="+address, "--log.level=warn")
		conn, client := storeClient(t, address)
		defer conn.Close()
		got, err := storeSeries(client, request)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("the store gateway returns %d series, %v, the sidecar %d\n%.300q\n%.300q", len(got), err, len(want), got, want)
		}
	}
	served()
	out := thanosTool(t, "compact", "--data-dir="+t.TempDir(), "--objstore.config-file="+file, "--consistency-delay=0s", "--delete-delay=0s", fmt.Sprintf("--http-address=127.0.0.1:%d", freePort(t)))
	if !strings.Contains(out, "compacted blocks") {
		t.Errorf("the compactor had nothing to do: %s", out)
	}
	for name, want := range map[string]string{"meta.json": `{"not": "a metrics block"}`, "profiles.parquet": "columns"} {
		if text, err := os.ReadFile(filepath.Join(profiles, name)); err != nil || string(text) != want {
			t.Errorf("the compactor changed profiles: %s: %q, %v", name, text, err)
		}
	}
	served()
	// Compacted blocks are not shipped again.
	before, _ := os.ReadDir(folder)
	eventually(t, 60*time.Second, "another look", func() bool { _, body := s.get("/-/ready"); return strings.Contains(body, "Shipping last succeeded") })
	if after, _ := os.ReadDir(folder); len(after) != len(before) {
		t.Errorf("%d folders in the bucket, %d after another look", len(before), len(after))
	}
}
