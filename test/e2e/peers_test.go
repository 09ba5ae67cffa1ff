package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/prompb"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/tsdb"
)

// startPeer runs another program until the test ends, and waits until the URL ready
// returns 200.
func startPeer(t *testing.T, ready string, path string, args ...string) *server {
	t.Helper()
	base, page, _ := strings.Cut(ready, "/-/")
	s := &server{t: t, base: base, ready: "/-/" + page}
	launch(t, path, args...)
	s.waitReady()
	return s
}

// listening waits until a program listens on a loopback port.
func listening(t *testing.T, address string) {
	t.Helper()
	eventually(t, 60*time.Second, address+" to listen", func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

// startPrometheus runs a real Prometheus with a remote write receiver and these sections
// in its configuration. An empty data is a new directory.
func startPrometheus(t *testing.T, sections, data string, more ...string) *server {
	t.Helper()
	dir := t.TempDir()
	if data == "" {
		data = filepath.Join(dir, "data")
	}
	return prometheusOf(t, writeFile(t, filepath.Join(dir, "prometheus.yml"), sections), data, more...)
}

// prometheusOf runs one with a configuration file.
func prometheusOf(t *testing.T, file, data string, more ...string) *server {
	t.Helper()
	address := freeAddress(t)
	if i := slices.IndexFunc(more, func(arg string) bool { return strings.HasPrefix(arg, "--web.listen-address=") }); i >= 0 {
		_, address, _ = strings.Cut(more[i], "=")
	} else {
		more = append(slices.Clone(more), "--web.listen-address="+address)
	}
	return startPeer(t, "http://"+address+"/-/ready", peerBinary(t, "prometheus"), append([]string{
		"--config.file=" + file, "--storage.tsdb.path=" + data, "--web.enable-remote-write-receiver", "--log.level=warn",
	}, more...)...)
}

// startThanos runs a part of Thanos until the test ends, and waits until it is ready.
func startThanos(t *testing.T, args ...string) *server {
	t.Helper()
	web, grpc, ready := freeAddress(t), freeAddress(t), "/-/ready"
	switch args[0] {
	case "tools":
		ready = "/-/healthy"
	case "query-frontend":
	default:
		args = append(slices.Clone(args), "--grpc-address="+grpc)
	}
	s := startPeer(t, "http://"+web+ready, peerBinary(t, "thanos"), append(slices.Clone(args), "--http-address="+web, "--log.level=warn")...)
	s.grpc = grpc
	return s
}

// peerBinary returns the path of a peer's binary. If peersWanted, it builds a missing
// one by test/peers/build.sh, which pins its release.
func peerBinary(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("../peers/build.sh", "-n", name).Output()
	path := strings.TrimSpace(string(out))
	if err != nil || path == "" {
		if peersWanted() {
			out, err = exec.Command("../peers/build.sh", name).Output()
			path = strings.TrimSpace(string(out))
		}
	}
	needsPeer(t, name, err == nil && path != "")
	return path
}

func TestPeerNodeExporter_AllFamiliesAreScraped(t *testing.T) {
	path, err := exec.LookPath("prometheus-node-exporter")
	needsPeer(t, "prometheus-node-exporter", err == nil)
	address := freeAddress(t)
	launch(t, path, "--web.listen-address="+address, "--no-collector.systemd")
	listening(t, address)
	config := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), `
global: {scrape_interval: 1s, scrape_timeout: 1s}
scrape_configs: [{job_name: node, static_configs: [{targets: ['`+address+`']}]}]
`)
	s := startServe(t, func(o *app.ServeOptions) { o.ConfigFile = config })
	s.waitValue("up", "1")
	checkFamilies(t, s, fetch(t, "http://"+address+"/metrics"))
	if got := s.value(`count(count by (cpu) (node_cpu_seconds_total{mode="idle"}))`); got == "" || got == "0" {
		t.Errorf("CPUs counted: %q", got)
	}
}

func fetch(t *testing.T, address string) string {
	t.Helper()
	_, text, _ := (&server{t: t, base: address}).request("GET", "", "")
	return text
}

var (
	helpLine   = regexp.MustCompile(`(?m)^# HELP (\S+) (.*)$`)
	typeLine   = regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`)
	sampleLine = regexp.MustCompile(`(?m)^([a-zA-Z_:][a-zA-Z0-9_:]*)`)
)

// checkFamilies compares an exposition with the server that scraped it: type and help
// of each family in its metadata, and a series for each metric name.
func checkFamilies(t *testing.T, s *server, exposed string) {
	t.Helper()
	var metadata struct {
		Data map[string][]struct{ Type, Help string } `json:"data"`
	}
	_, body := s.get("/api/v1/metadata")
	noError(t, json.Unmarshal([]byte(body), &metadata))
	// The scraper negotiates OpenMetrics, whose counter families have no suffix _total.
	known := func(family string) (typ, help string) {
		for _, name := range []string{family, strings.TrimSuffix(family, "_total")} {
			if md := metadata.Data[name]; len(md) > 0 {
				return md[0].Type, md[0].Help
			}
		}
		return "", ""
	}
	unescape := strings.NewReplacer(`\\`, `\`, `\n`, "\n")
	families := 0
	for _, m := range helpLine.FindAllStringSubmatch(exposed, -1) {
		families++
		if _, help := known(m[1]); help != unescape.Replace(m[2]) {
			t.Errorf("help of %s is %q, exposed %q", m[1], help, m[2])
		}
	}
	for _, m := range typeLine.FindAllStringSubmatch(exposed, -1) {
		if typ, _ := known(m[1]); typ != m[2] && !(typ == "unknown" && m[2] == "untyped") {
			t.Errorf("type of %s is %q, exposed %q", m[1], typ, m[2])
		}
	}
	if families < 100 {
		t.Errorf("only %d families were exposed", families)
	}
	_, values := s.get("/api/v1/label/__name__/values")
	seen := map[string]bool{}
	for _, m := range sampleLine.FindAllStringSubmatch(exposed, -1) {
		if name := m[1]; !seen[name] {
			seen[name] = true
			if !strings.Contains(values, `"`+name+`"`) {
				t.Errorf("no series of %s", name)
			}
		}
	}
}

// Both servers get the same samples and then the same requests.
func TestPeerPrometheus_SameRequestsHaveTheSameResponses(t *testing.T) {
	ours, peer := startServe(t, idle(t)), startPrometheus(t, "", "")
	end := time.Now().Truncate(time.Minute)
	for _, s := range []*server{ours, peer} {
		s.writeAll(sharedSamples(t, end))
	}
	compared := 0
	for _, request := range sharedRequests(end) {
		gotStatus, got := ours.get(request)
		wantStatus, want := peer.get(request)
		compared++
		if gotStatus != wantStatus || got != want {
			t.Errorf("%s\nferula     %d %.500s\nPrometheus %d %.500s", request, gotStatus, got, wantStatus, want)
		}
	}
	if compared < 60 {
		t.Fatalf("only %d requests compared", compared)
	}
}

// sharedSamples returns remote write requests with half an hour of a few series, whose
// values are counters, tiny, huge and of a classic histogram.
func sharedSamples(t *testing.T, end time.Time) [][]byte {
	t.Helper()
	var bodies [][]byte
	for at := end.Add(-30 * time.Minute); !at.After(end); at = at.Add(15 * time.Second) {
		ms, i := at.UnixMilli(), float64(at.Unix()%1800)
		req := v1(
			v1Series(ms, i*3, "__name__", "requests_total", "job", "a", "code", "200"),
			v1Series(ms, i/7, "__name__", "requests_total", "job", "a", "code", "500"),
			v1Series(ms, i*i*1e17, "__name__", "requests_total", "job", "b<&>", "code", "200"),
			v1Series(ms, -i*1e-9, "__name__", "temperature", "room", `"kitchen"\`),
			v1Series(ms, i, "__name__", "size_bucket", "le", "1"),
			v1Series(ms, 2*i, "__name__", "size_bucket", "le", "+Inf"),
		)
		bodies = append(bodies, encoded(t, req))
	}
	return bodies
}

func sharedRequests(end time.Time) []string {
	queries := []string{
		"requests_total", "rate(requests_total[5m])", "sum by (job) (rate(requests_total[5m]))", "temperature", "1", `"text<>"`, "vector(0)/0",
		"topk(2, requests_total)", "quantile_over_time(0.5, temperature[10m])", "histogram_quantile(0.9, size_bucket)", "absent(nothing)",
		`requests_total{code=~"5.."}`, "requests_total offset 10m", "requests_total @ start()", "max_over_time(rate(requests_total[1m])[10m:30s])",
		"requests_total / ignoring(code) group_left requests_total", "sum(", "rate(requests_total)", "nofunction(x)", "requests_total{", "-temperature", "sort_desc(requests_total)",
		`label_replace(requests_total, "x", "$1", "job", "(.).*")`, "count_values(\"v\", temperature)", "time()", "stddev(requests_total)",
	}
	var requests []string
	for _, q := range queries {
		form := url.Values{"query": {q}, "time": {fmt.Sprint(end.Unix())}}
		requests = append(requests, "/api/v1/query?"+form.Encode())
		form = url.Values{"query": {q}, "start": {fmt.Sprint(end.Add(-20 * time.Minute).Unix())}, "end": {fmt.Sprint(end.Unix())}, "step": {"37.5"}}
		requests = append(requests, "/api/v1/query_range?"+form.Encode())
	}
	return append(requests,
		"/api/v1/query_range?query=1&start=2&end=1&step=1", "/api/v1/query_range?query=1&start=1&end=2&step=0", "/api/v1/query_range?query=1&start=1&end=99999&step=1",
		"/api/v1/query?query=1&time=nonsense", "/api/v1/query?query=1&timeout=nonsense", "/api/v1/query?query=requests_total&limit=1&time="+fmt.Sprint(end.Unix()),
		"/api/v1/labels", "/api/v1/labels?match[]=temperature", "/api/v1/label/job/values", "/api/v1/label/code/values?limit=1", "/api/v1/series?match[]=requests_total", "/api/v1/series",
		"/api/v1/series?match[]={}", "/api/v1/format_query?query=sum(a)by(b)", "/api/v1/parse_query?query=sum(a)by(b)", "/api/v1/query_exemplars?query=requests_total", "/api/v1/rules", "/api/v1/alerts",
		"/api/v1/targets", "/api/v1/metadata", "/api/v1/scrape_pools",
	)
}

const migrationConfig = "storage: {tsdb: {out_of_order_time_window: 6h}}\n"

// writeLate writes a new sample of a series and then 30 late ones.
func writeLate(t *testing.T, s *server, name string, now time.Time) {
	t.Helper()
	for _, minutes := range []int{0, 180} {
		ts := v1Series(0, 0, "__name__", name)
		ts.Samples = nil
		for i := range max(1, minutes/6) {
			at := now.Add(time.Duration(i-minutes) * time.Minute)
			ts.Samples = append(ts.Samples, prompb.Sample{Timestamp: at.UnixMilli(), Value: float64(i + minutes)})
		}
		s.must(v1Type, encoded(t, v1(ts)))
	}
}

func TestPeerPrometheus_DataFolderGoesThereAndBack(t *testing.T) {
	dataFolderGoesThereAndBack(t, "prometheus")
}

// Its build takes minutes, so that only `make judges` builds it.
func TestPeerPrometheus_DataFolderOfTheLongTermReleaseGoesThereAndBack(t *testing.T) {
	if err := exec.Command("../peers/build.sh", "-n", "prometheus-3.5").Run(); err != nil {
		t.Skip("needs prometheus-3.5: run `make judges`")
	}
	dataFolderGoesThereAndBack(t, "prometheus-3.5")
}

// dataFolderGoesThereAndBack lets ferula serve open a data directory of a Prometheus (write-ahead log, log of late samples,
// mapped chunks, a snapshot of the head), write to it and be killed. Then the Prometheus opens it again.
func dataFolderGoesThereAndBack(t *testing.T, prometheus string) {
	peer := peerBinary(t, prometheus) // skips the whole test, not only the parts that run Prometheus
	path := binary(t)
	dir := t.TempDir()
	data, config := filepath.Join(dir, "data"), writeFile(t, filepath.Join(dir, "prometheus.yml"), migrationConfig)
	args := []string{"--config.file=" + config, "--storage.tsdb.path=" + data, "--enable-feature=memory-snapshot-on-shutdown"}
	run := func(t *testing.T) *server {
		address := freeAddress(t)
		return startPeer(t, "http://"+address+"/-/ready", peer, append(slices.Clone(args), "--web.listen-address="+address,
			"--web.enable-remote-write-receiver", "--log.level=warn")...)
	}
	now := time.Now()
	var start, end int64
	var count int
	var sum float64
	check := func(t *testing.T, s *server, late ...string) {
		t.Helper()
		if c, v := s.promQLTotals(start, end); c != count || v != sum {
			t.Errorf("%d samples of sum %g, want %d of %g", c, v, count, sum)
		}
		for _, name := range late {
			s.expectValue("31", "count_over_time("+name+"[6h])", "time", fmt.Sprint(now.Unix()+1))
		}
	}
	t.Run("Prometheus writes", func(t *testing.T) {
		s := run(t)
		start, end = writeReadable(t, 5, s)
		count, sum = s.promQLTotals(start, end)
		writeLate(t, s, "late_there", now)
		check(t, s, "late_there")
	})
	if snapshots, err := filepath.Glob(filepath.Join(data, "chunk_snapshot.*")); err != nil || len(snapshots) != 1 || count == 0 {
		t.Fatalf("snapshots of the head: %q, %v; %d samples", snapshots, err, count)
	}
	t.Run("ferula serve reads and writes", func(t *testing.T) {
		p := startProcess(t, path, append([]string{"serve", "--web.listen-address=127.0.0.1:0"}, args...)...)
		check(t, p.server, "late_there")
		writeLate(t, p.server, "late_back", now)
		check(t, p.server, "late_there", "late_back")
		p.kill()
	})
	t.Run("Prometheus reads again", func(t *testing.T) {
		check(t, run(t), "late_there", "late_back")
	})
}

// tool runs a command in a directory and returns what it writes to standard output.
func tool(t *testing.T, dir, path string, args ...string) string {
	t.Helper()
	cmd := exec.Command(path, args...)
	cmd.Dir = dir
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Errorf("%s %s: %v\n%s", filepath.Base(path), strings.Join(args, " "), err, errs.String())
	}
	return out.String()
}

// snapshot makes a snapshot of a server's data and returns its directory.
func (s *server) snapshot(dir string) string {
	s.t.Helper()
	status, body := s.post("/api/v1/admin/tsdb/snapshot", "", "")
	var response struct{ Data struct{ Name string } }
	if err := json.Unmarshal([]byte(body), &response); err != nil || status != http.StatusOK || response.Data.Name == "" {
		s.t.Fatalf("%d %s %v", status, body, err)
	}
	return filepath.Join(dir, "snapshots", response.Data.Name)
}

// promtool's commands about a server and about a directory have the same output for
// ferula as for a Prometheus with the same samples.
func TestPeerPromtool_CommandsWorkAsWithPrometheus(t *testing.T) {
	promtool := peerBinary(t, "promtool")
	dir, folders := t.TempDir(), [2]string{t.TempDir(), t.TempDir()}
	config := writeFile(t, filepath.Join(dir, "prometheus.yml"), "storage: {tsdb: {out_of_order_time_window: 1h}}\n")
	theirs := prometheusOf(t, config, folders[0], "--web.enable-admin-api")
	ours := startServe(t, func(o *app.ServeOptions) { o.ConfigFile, o.Store.Dir, o.Peer.Admin = config, folders[1], true })
	servers := [2]*server{theirs, ours}
	end := time.Now().Truncate(time.Minute)
	pushed := writeFile(t, filepath.Join(dir, "pushed.prom"), "# HELP pushed What was pushed.\n# TYPE pushed gauge\npushed{a=\"b\"} 7\n# TYPE pushes_total counter\npushes_total 3\n")
	samples := sharedSamples(t, end)
	for _, s := range servers {
		s.writeAll(samples)
		for _, message := range []string{"prometheus.WriteRequest", "io.prometheus.write.v2.Request"} {
			tool(t, dir, promtool, "push", "metrics", s.base, "--protobuf_message="+message, "--label=message="+message, pushed)
		}
		tool(t, dir, promtool, "check", "healthy", "--url="+s.base)
		tool(t, dir, promtool, "check", "ready", "--url="+s.base)
		tool(t, dir, promtool, "debug", "metrics", s.base)
	}
	at, from := fmt.Sprint(end.Unix()), fmt.Sprint(end.Add(-20*time.Minute).Unix())
	for _, args := range [][]string{
		{"query", "instant", "--time=" + at, "SERVER", "sum by (job) (rate(requests_total[5m]))"},
		{"query", "instant", "--time=" + at, "SERVER", "requests_total[1m]"},
		{"query", "instant", "SERVER", `pushed * 2`},
		{"query", "instant", "-o", "json", "--time=" + at, "SERVER", "histogram_quantile(0.9, size_bucket)"},
		{"query", "instant", "--time=" + at, "SERVER", "scalar(vector(4))"},
		{"query", "range", "--start=" + from, "--end=" + at, "--step=37s", "SERVER", "rate(requests_total[1m])"},
		{"query", "range", "-o", "json", "--start=" + from, "--end=" + at, "--step=1m", "SERVER", "temperature"},
		{"query", "series", "--match=requests_total", "--match=pushed", "SERVER"},
		{"query", "series", "-o", "json", "--start=" + from, "--end=" + at, "--match={__name__=~\".+\"}", "SERVER"},
		{"query", "labels", "SERVER", "job"},
		{"query", "labels", "-o", "json", "--start=" + from, "--end=" + at, "--match=requests_total", "SERVER", "code"},
		{"query", "analyze", "--server=SERVER", "--type=histogram", "--time=" + at, "--duration=15m", "--match=size_bucket"},
	} {
		var got [2]string
		for i, s := range servers {
			filled := slices.Clone(args)
			for j := range filled {
				filled[j] = strings.ReplaceAll(filled[j], "SERVER", s.base)
			}
			got[i] = tool(t, dir, promtool, filled...)
		}
		if strings.Contains(strings.Join(args, " "), "pushed") && args[1] == "instant" { // the time of the push is in it
			for i := range got {
				got[i] = withoutTimes(got[i])
			}
		}
		if got[0] != got[1] || len(got[0]) < 3 {
			t.Errorf("promtool %s writes\n%.2000s\nwant as of Prometheus\n%.2000s", strings.Join(args, " "), got[1], got[0])
		}
	}
	rules := writeFile(t, filepath.Join(dir, "rules.yml"), "groups: [{name: a, interval: 1m, rules: [{record: 'job:requests:rate5m', expr: 'sum by (job) (rate(requests_total[5m]))'}]}]\n")
	text := writeFile(t, filepath.Join(dir, "imported.om"), fmt.Sprintf("# TYPE imported gauge\nimported{a=\"b\"} 1 %d\nimported{a=\"b\"} 2 %d\n# EOF\n", end.Unix()-10_000, end.Unix()-9_940))
	var dumps [2][]string
	for i, s := range servers {
		snapshot := s.snapshot(folders[i])
		noError(t, os.Mkdir(filepath.Join(snapshot, "wal"), 0o700)) // promtool dumps no directory without a log
		tool(t, dir, promtool, "tsdb", "create-blocks-from", "openmetrics", text, snapshot)
		tool(t, dir, promtool, "tsdb", "create-blocks-from", "rules", "--url="+s.base, "--start="+from, "--end="+at, "--output-dir="+snapshot, "--eval-interval=1m", rules)
		matched := `--match={__name__!~"pushe.*"}`
		for _, args := range [][]string{
			{"tsdb", "dump", matched}, {"tsdb", "dump", "--format=seriesjson", matched}, {"tsdb", "dump-openmetrics", matched}, {"tsdb", "dump", "--match=job:requests:rate5m"},
			{"tsdb", "dump", "--match=imported"},
		} {
			dump := strings.Split(tool(t, dir, promtool, append(args, snapshot)...), "\n")
			if len(dump) < 3 {
				t.Errorf("promtool %s writes %d lines", strings.Join(args, " "), len(dump))
			}
			dumps[i] = append(dumps[i], dump...)
		}
		if list := tool(t, dir, promtool, "tsdb", "list", "-r", snapshot); strings.Count(list, "\n") < 4 {
			t.Errorf("promtool tsdb list writes %s", list)
		}
		for _, more := range [][]string{nil, {"--extended"}, {"--match=requests_total"}} {
			if out := tool(t, dir, promtool, append(append([]string{"tsdb", "analyze"}, more...), snapshot)...); !strings.Contains(out, "Block ID: ") {
				t.Errorf("promtool tsdb analyze writes %s", out)
			}
		}
	}
	if !slices.Equal(dumps[0], dumps[1]) {
		t.Errorf("the snapshots hold %d lines, want the %d of Prometheus", len(dumps[1]), len(dumps[0]))
	}
	// Blocks that promtool has written to the data directory are served after a restart.
	noError(t, ours.stop())
	tool(t, dir, promtool, "tsdb", "create-blocks-from", "openmetrics", text, folders[1])
	if out := tool(t, dir, promtool, "tsdb", "dump", "--match=temperature", folders[1]); strings.Count(out, "\n") != len(samples) {
		t.Errorf("promtool dumps %d samples of the folder, want %d", strings.Count(out, "\n"), len(samples))
	}
	again := startServe(t, func(o *app.ServeOptions) { o.ConfigFile, o.Store = config, tsdb.Options{Dir: folders[1]} })
	again.expectValue("3", `sum(sum_over_time(imported{a="b"}[4h]))`, "time", at)
}

// withoutTimes removes the timestamps that promtool writes after values.
func withoutTimes(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, " @[")
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// amtool shows and silences the alerts that an Alertmanager has from ferula.
func TestPeerAmtool_ShowsAndSilencesAlertsOfServe(t *testing.T) {
	alertmanager, err := exec.LookPath("prometheus-alertmanager")
	needsPeer(t, "prometheus-alertmanager", err == nil)
	amtool, err := exec.LookPath("amtool")
	needsPeer(t, "amtool", err == nil)
	posts, base := startRecorded(t, alertmanager)
	_, dir := startRules(t, rulesConfig+"alerting: {alertmanagers: [{static_configs: [{targets: ['"+strings.TrimPrefix(posts.URL, "http://")+"']}]}]}\n", `groups:
- name: a
  rules:
  - {alert: Always, expr: vector(1), labels: {severity: page}, annotations: {summary: "{{ $value }} of {{ $externalLabels.cluster }}"}}
  - {alert: Other, expr: vector(2)}
`, func(o *app.ServeOptions) { o.Rules.ResendDelay = 100 * time.Millisecond })
	query := func(more ...string) (names []string) {
		t.Helper()
		var alerts []struct {
			Labels, Annotations map[string]string
			GeneratorURL        string
		}
		out := tool(t, dir, amtool, append([]string{"--alertmanager.url=" + base, "alert", "query", "-o", "json"}, more...)...)
		if err := json.Unmarshal([]byte(out), &alerts); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		for _, a := range alerts {
			names = append(names, fmt.Sprint(a.Labels, a.Annotations["summary"]))
			if !strings.Contains(a.GeneratorURL, "/graph?g0.expr=vector") {
				t.Errorf("the source of %s is %s", a.Labels, a.GeneratorURL)
			}
		}
		slices.Sort(names)
		return names
	}
	always, other := "map[alertname:Always cluster:north severity:page]1 of north", "map[alertname:Other cluster:north]"
	eventually(t, 60*time.Second, "both alerts", func() bool { return slices.Equal(query(), []string{always, other}) })
	if got := query("severity=page"); !slices.Equal(got, []string{always}) {
		t.Errorf("alerts with a severity: %q", got)
	}
	tool(t, dir, amtool, "--alertmanager.url="+base, "silence", "add", "--author=me", "--comment=test", "--duration=1h", "alertname=Other")
	eventually(t, 60*time.Second, "the silence", func() bool {
		return slices.Equal(query("--silenced"), []string{other}) && slices.Equal(query("--active"), []string{always})
	})
}

// shape is a query of testdata/promql_shapes.txt.
type shape struct {
	query string
	fails bool
}

// promQLShapes returns the queries of the file. Names in them are replaced by every combination of their values.
func promQLShapes(t *testing.T) []shape {
	t.Helper()
	text := try(os.ReadFile(filepath.Join("testdata", "promql_shapes.txt"))).must(t)
	values := map[string][]string{}
	var shapes []shape
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "# ") {
			continue
		}
		if name, list, ok := strings.Cut(line, " = "); ok && !strings.ContainsAny(name, " (<") {
			values[name] = strings.Fields(list)
			continue
		}
		query, fails := strings.CutPrefix(line, "fails: ")
		combined := []string{query}
		for name, list := range values {
			if !strings.Contains(query, "<"+name+">") {
				continue
			}
			var next []string
			for _, q := range combined {
				for _, v := range list {
					next = append(next, strings.ReplaceAll(q, "<"+name+">", v))
				}
			}
			combined = next
		}
		slices.Sort(combined)
		for _, q := range combined {
			shapes = append(shapes, shape{q, fails})
		}
	}
	return shapes
}

// shopSamples returns remote write requests with 70 minutes of three instances: gauges, counters with a
// reset, a classic histogram and a series that ends with a stale marker and begins again.
func shopSamples(t *testing.T, end time.Time) [][]byte {
	t.Helper()
	const stepsMax, stepsEach = 280, 40
	stale := math.Float64frombits(value.StaleNaN)
	var bodies [][]byte
	for first := 0; first < stepsMax; first += stepsEach {
		series := map[string]*prompb.TimeSeries{}
		for step := first; step < first+stepsEach; step++ {
			at := end.Add(time.Duration(step-stepsMax) * 15 * time.Second)
			add := func(v float64, pairs ...string) {
				key := strings.Join(pairs, "\xff")
				if series[key] == nil {
					ts := v1Series(0, 0, pairs...)
					ts.Samples = nil
					series[key] = &ts
				}
				series[key].Samples = append(series[key].Samples, prompb.Sample{Timestamp: at.UnixMilli(), Value: v})
			}
			for instance := range 3 {
				shopStep(add, fmt.Sprintf("shop.example:%d", 10000+instance), instance, step, at)
				if state := step / 7 % 3; state < 2 {
					add(float64(step), "__name__", "shop_sometimes", "instance", fmt.Sprint(instance))
				} else if step%7 == 0 {
					add(stale, "__name__", "shop_sometimes", "instance", fmt.Sprint(instance))
				}
			}
		}
		req := v1()
		for _, ts := range series {
			req.Timeseries = append(req.Timeseries, *ts)
		}
		bodies = append(bodies, encoded(t, req))
	}
	return bodies
}

// shopStep adds one sample of every series of an instance.
func shopStep(add func(v float64, pairs ...string), instance string, n, step int, at time.Time) {
	i, k := float64(step), float64(n+1)
	labels := func(name string, pairs ...string) []string {
		return append([]string{"__name__", name, "instance", instance, "job", "demo"}, pairs...)
	}
	for j, typ := range []string{"buffers", "cached", "free", "used"} {
		add(1e9*k+float64(j)*3.7e8+1e7*math.Sin(i/9+float64(j)), labels("shop_memory_bytes", "type", typ)...)
	}
	for j, mode := range []string{"idle", "system", "user"} {
		// The counter begins again at step 200 less ten per instance.
		add(float64((step+10*n)%200)*0.1*float64(j+1)*k, labels("shop_cpu_seconds_total", "mode", mode)...)
	}
	add(math.Pow(2, k+1), labels("shop_cpus")...)
	add(1e10+i*12345.678*k+1e5*math.Cos(i), labels("shop_disk_bytes")...)
	add(float64(at.Unix()/600*600)-k, labels("shop_batch_timestamp_seconds")...)
	add(float64(step%5)*k, labels("shop_handler_in_flight")...)
	for j, code := range []string{"200", "500", "503"} {
		add(i*float64(3-j)*k, "__name__", "shop_handler_requests_total", "code", code, "instance", instance, "job", "demo")
	}
	for j, le := range []string{"0.1", "0.5", "1", "5", "+Inf"} {
		add(math.Floor(i*float64(j+1)*k*1.5), labels("shop_request_duration_seconds_bucket", "le", le)...)
	}
	add(math.Floor(i*5*k*1.5), labels("shop_request_duration_seconds_count")...)
	add(i*k*2.25, labels("shop_request_duration_seconds_sum")...)
}

// promQLResponse is a response of the query endpoints; Data is compared as bytes.
type promQLResponse struct {
	Status, ErrorType, Error string
	Data                     json.RawMessage
	Warnings, Infos          []string
}

func (a promQLResponse) equal(b promQLResponse) bool {
	for _, list := range [][]string{a.Warnings, a.Infos, b.Warnings, b.Infos} {
		slices.Sort(list) // Prometheus keeps annotations in a map
	}
	return a.Status == b.Status && a.ErrorType == b.ErrorType && a.Error == b.Error && bytes.Equal(a.Data, b.Data) &&
		slices.Equal(a.Warnings, b.Warnings) && slices.Equal(a.Infos, b.Infos)
}

// sortVector sorts the elements of an instant vector.
func (a *promQLResponse) sortVector(t *testing.T) {
	t.Helper()
	var data struct {
		ResultType string            `json:"resultType"`
		Result     []json.RawMessage `json:"result"`
	}
	if err := json.Unmarshal(a.Data, &data); err != nil {
		t.Fatalf("%v in %.500s", err, a.Data)
	}
	if data.ResultType == "vector" {
		slices.SortFunc(data.Result, func(a, b json.RawMessage) int { return bytes.Compare(a, b) })
		sorted := try(json.Marshal(data)).must(t)
		a.Data = sorted
	}
}

func (s *server) evaluate(path string) (int, promQLResponse) {
	s.t.Helper()
	status, body := s.get(path)
	var a promQLResponse
	if err := json.Unmarshal([]byte(body), &a); err != nil {
		s.t.Fatalf("%s: %v in %.500s", path, err, body)
	}
	return status, a
}

// unordered are the functions whose instant vectors have the order of a map, in both engines.
var unordered = []string{"histogram_quantile(", "count_values("}

// The responses to every instant and range query of the PromQL compliance tester have the same bytes as Prometheus'.
// Queries that must fail have the same error. The tester itself tolerates small differences of floats; this test does
// not.
func TestPeerPrometheus_QueriesOfThePromQLComplianceTesterAreTheSame(t *testing.T) {
	peer, none := startPrometheus(t, "", "", "--enable-feature=promql-experimental-functions"), idle(t)
	ours := startServe(t, func(o *app.ServeOptions) {
		none(o)
		o.Query.ExperimentalFunctions = true
	})
	end := time.Now().Truncate(time.Minute)
	bodies := shopSamples(t, end)
	ours.writeAll(bodies)
	peer.writeAll(bodies)
	end = end.Add(-10 * time.Minute) // negative offsets look into the future
	shapes, results := promQLShapes(t), 0
	for _, shape := range shapes {
		instant := url.Values{"query": {shape.query}, "time": {fmt.Sprint(end.Unix())}}
		spread := url.Values{"query": {shape.query}, "start": {fmt.Sprint(end.Add(-10 * time.Minute).Unix())}, "end": {fmt.Sprint(end.Unix())}, "step": {"10"}}
		for _, request := range []string{"/api/v1/query?" + instant.Encode(), "/api/v1/query_range?" + spread.Encode()} {
			gotStatus, got := ours.evaluate(request)
			wantStatus, want := peer.evaluate(request)
			if slices.ContainsFunc(unordered, func(name string) bool { return strings.HasPrefix(shape.query, name) }) && wantStatus == http.StatusOK && gotStatus == wantStatus {
				got.sortVector(t)
				want.sortVector(t)
			}
			if gotStatus != wantStatus || !got.equal(want) {
				t.Errorf("%s\n%s\nferula     %d %.600s\nPrometheus %d %.600s", shape.query, request, gotStatus, fmt.Sprintf("%s", got), wantStatus, fmt.Sprintf("%s", want))
			}
			if shape.fails != (wantStatus != http.StatusOK) {
				t.Errorf("%s: Prometheus' status is %d", shape.query, wantStatus)
			}
			if bytes.Contains(want.Data, []byte(`"value`)) {
				results++
			}
		}
	}
	if len(shapes) < 500 || results < len(shapes) {
		t.Errorf("%d queries had %d results that are not empty", len(shapes), results)
	}
}
