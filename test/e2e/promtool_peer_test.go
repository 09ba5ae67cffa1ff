package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/tsdb"
)

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
	promtool, prometheus := peerBinary(t, "promtool"), peerBinary(t, "prometheus")
	dir, folders := t.TempDir(), [2]string{t.TempDir(), t.TempDir()}
	config := writeFile(t, filepath.Join(dir, "prometheus.yml"), "storage: {tsdb: {out_of_order_time_window: 1h}}\n")
	theirs := &server{t: t, base: fmt.Sprintf("http://127.0.0.1:%d", freePort(t))}
	startPeer(t, theirs.base+"/-/ready", prometheus, "--config.file="+config, "--storage.tsdb.path="+folders[0], "--web.listen-address="+strings.TrimPrefix(theirs.base, "http://"),
		"--web.enable-remote-write-receiver", "--web.enable-admin-api", "--log.level=warn")
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
		if err := os.Mkdir(filepath.Join(snapshot, "wal"), 0o700); err != nil { // promtool dumps no directory without a log
			t.Fatal(err)
		}
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
	if err := ours.stop(); err != nil {
		t.Fatal(err)
	}
	tool(t, dir, promtool, "tsdb", "create-blocks-from", "openmetrics", text, folders[1])
	if out := tool(t, dir, promtool, "tsdb", "dump", "--match=temperature", folders[1]); strings.Count(out, "\n") != len(samples) {
		t.Errorf("promtool dumps %d samples of the folder, want %d", strings.Count(out, "\n"), len(samples))
	}
	again := startServe(t, func(o *app.ServeOptions) { o.ConfigFile, o.Store = config, tsdb.Options{Dir: folders[1]} })
	if got := again.value(`sum(sum_over_time(imported{a="b"}[4h]))`, "time", at); got != "3" {
		t.Errorf("the imported samples sum to %q", got)
	}
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
