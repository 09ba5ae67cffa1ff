package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/app"
)

// freePort returns a loopback port on which no process listens.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// startPeer runs another program until the test ends, and waits until the URL ready
// returns 200.
func startPeer(t *testing.T, ready string, path string, args ...string) {
	t.Helper()
	cmd := exec.Command(path, args...)
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			_ = cmd.Process.Kill()
			<-done
		}
		if t.Failed() {
			t.Logf("output of %s:\n%s", filepath.Base(path), log.String())
		}
	})
	eventually(t, 60*time.Second, filepath.Base(path)+" to be ready", func() bool {
		resp, err := http.Get(ready)
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
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
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	startPeer(t, "http://"+address+"/metrics", path, "--web.listen-address="+address, "--no-collector.systemd")
	config := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), `
global: {scrape_interval: 1s, scrape_timeout: 1s}
scrape_configs: [{job_name: node, static_configs: [{targets: ['`+address+`']}]}]
`)
	s := startServe(t, func(o *app.ServeOptions) { o.ConfigFile = config })
	eventually(t, 60*time.Second, "node_exporter to be up", func() bool { return s.value("up") == "1" })
	exposed := fetch(t, "http://"+address+"/metrics")
	checkFamilies(t, s, exposed)
	if got := s.value(`count(count by (cpu) (node_cpu_seconds_total{mode="idle"}))`); got == "" || got == "0" {
		t.Errorf("CPUs counted: %q", got)
	}
}

func fetch(t *testing.T, address string) string {
	t.Helper()
	resp, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
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
	if err := json.Unmarshal([]byte(body), &metadata); err != nil {
		t.Fatal(err)
	}
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
	path := peerBinary(t, "prometheus")
	dir := t.TempDir()
	config := writeFile(t, filepath.Join(dir, "prometheus.yml"), "scrape_configs: []\n")
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	startPeer(t, "http://"+address+"/-/ready", path, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "prometheus"),
		"--web.listen-address="+address, "--web.enable-remote-write-receiver", "--log.level=warn")
	ours := startServe(t, idle(t))
	peer := &server{t: t, base: "http://" + address}
	end := time.Now().Truncate(time.Minute)
	for _, body := range sharedSamples(t, end) {
		for _, s := range []*server{ours, peer} {
			if status, text, _ := s.write(v1Type, "snappy", body); status != http.StatusNoContent {
				t.Fatalf("%s: %d %s", s.base, status, text)
			}
		}
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
