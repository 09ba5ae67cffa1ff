// Package main is the command judges, which runs test suites of others against ferula.
//
// In: the paths of a ferula and a Prometheus binary, and of the folder where judges.sh has installed the clients of npm and
// PyPI. Both programs run on loopback; the suites of Go modules come from the module cache. Out: a page of docs with the
// score of each suite, its version, and what neither or only one of the two passes. Not here: prometheus-operator
// (test/operator), and tests against peers that decide whether a change is right (test/e2e).
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ferula-io/ferula/metrics"
)

const suite = "github.com/prometheus/compliance/remotewrite"

// row is a line of the page.
type row struct {
	judge, version string
	passed, all    int
	failed         []string // that a real Prometheus passes, or that it was not asked
	shared         []string // that a real Prometheus fails, too
}

// count adds verdicts by name. theirs is what a real Prometheus got, if it was asked.
func (r *row) count(ours, theirs map[string]bool) {
	for _, name := range slices.Sorted(maps.Keys(ours)) {
		passes, asked := theirs[name]
		switch r.all++; {
		case ours[name]:
			r.passed++
		case asked && !passes:
			r.shared = append(r.shared, name)
		default:
			r.failed = append(r.failed, name)
		}
	}
}

func main() {
	ferula := flag.String("ferula", "../../bin/ferula", "the program to judge")
	prometheus := flag.String("prometheus", "", "a real Prometheus")
	clients := flag.String("clients", "", "directory with clients.js, its packages, and a virtual environment python")
	remote := flag.String("remote", "", "directory of a copy of "+suite+" whose receiver tests compile")
	out := flag.String("out", "", "page to write; empty: standard output")
	flag.Parse()
	rows, err := judge(*ferula, *prometheus, *clients, *remote)
	page := write(rows)
	if *out == "" {
		fmt.Print(page)
	} else if err == nil {
		err = os.WriteFile(*out, []byte(page), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func judge(ferula, prometheus, clients, remote string) ([]row, error) {
	ferula, err := filepath.Abs(ferula)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "judges")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", suite).Output()
	if err != nil {
		return nil, fmt.Errorf("version of %s: %w", suite, err)
	}
	v := strings.TrimSpace(string(module))
	senders := row{judge: suite + ": senders", version: v}
	verdicts, err := run(".", "./sender", "FERULA_BINARY="+ferula)
	if err != nil {
		return nil, err
	}
	senders.count(verdicts, nil)
	// Both servers scrape the same page, whose samples have times.
	begun := time.Now().Add(-time.Minute)
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for i := range 3 {
			fmt.Fprintf(w, "judged_total{path=\"/%d\"} %d %d\n", i, i*i+2, begun.UnixMilli())
		}
	}))
	defer page.Close()
	scraping := filepath.Join(dir, "scraping.yml")
	text := fmt.Sprintf("global: {external_labels: {replica: a}}\nscrape_configs: [{job_name: judged, "+
		"scrape_interval: 1s, scrape_timeout: 1s, static_configs: [{targets: [%q]}]}]\n",
		strings.TrimPrefix(page.URL, "http://"))
	if err := os.WriteFile(scraping, []byte(text), 0o600); err != nil {
		return nil, err
	}
	server, err := start(ferula, "serve", "--storage.tsdb.path="+filepath.Join(dir, "ferula"), "--config.file="+scraping,
		"--grpc-address=127.0.0.1:0", "--profiles.self.interval=2s", "--web.enable-remote-write-receiver")
	if err != nil {
		return nil, err
	}
	defer server.stop()
	theirs, err := start(prometheus, "--storage.tsdb.path="+filepath.Join(dir, "prometheus"), "--config.file="+scraping,
		"--web.enable-remote-write-receiver")
	if err != nil {
		return nil, err
	}
	defer theirs.stop()
	plugins := row{judge: "clients of @perses-dev/prometheus-plugin and pyroscope-plugin", version: "0.53.4, 0.4.0"}
	verdicts, err = programVerdicts("node", filepath.Join(clients, "clients.js"), server.url, theirs.url,
		fmt.Sprint(begun.Unix()))
	if err != nil {
		return nil, err
	}
	plugins.count(verdicts, nil)
	receivers := row{judge: suite + ": receivers, remote write 1.0 and 2.0", version: v}
	if err := receivers.receivers(remote, filepath.Join(dir, "receivers.yml"), server.url, theirs.url); err != nil {
		return nil, err
	}
	cases, same, err := openMetrics(ferula, prometheus, filepath.Join(dir, "cases"))
	if err != nil {
		return nil, err
	}
	pages, err := parsePages(ferula, clients, dir, server.url, theirs.url)
	return []row{senders, receivers, same, cases, plugins, pages}, err
}

// parsePages lets the strict parser read /metrics of every command, and a page of the library.
func parsePages(ferula, clients, dir, serve, prometheus string) (row, error) {
	r := row{judge: "prometheus_client.openmetrics.parser: /metrics of serve, query, query-frontend, sidecar, store and " +
		"profiles compact, pages of metrics/", version: "0.26.0"}
	query, err := start(ferula, "query", "--grpc-address=127.0.0.1:0")
	if err != nil {
		return r, err
	}
	defer query.stop()
	bucket := filepath.Join(dir, "bucket")
	if err := os.Mkdir(bucket, 0o700); err != nil {
		return r, err
	}
	storage := fmt.Sprintf("--objstore.config={type: FILESYSTEM, config: {directory: %q}}", bucket)
	args := []string{"strict.py", "serve=" + serve + "/metrics", "query=" + query.url + "/metrics"}
	for _, command := range [][]string{
		{"query-frontend", "--query-frontend.downstream-url=" + query.url},
		{"sidecar", "--prometheus.url=" + prometheus, "--grpc-address=127.0.0.1:0"},
		{"store", storage, "--data-dir=" + filepath.Join(dir, "store"), "--grpc-address=127.0.0.1:0"},
		{"profiles", "compact", "--wait", storage, "--data-dir=" + filepath.Join(dir, "compact")},
	} {
		s, err := start(ferula, command...)
		if err != nil {
			return r, err
		}
		defer s.stop()
		args = append(args, command[0]+"="+s.url+"/metrics")
	}
	set := libraryPage()
	for name, options := range map[string]metrics.HandlerOptions{
		"metrics/":                      {Sets: []*metrics.Set{set}, ProcessMetrics: true, OpenFiles: true},
		"metrics/ with le and _created": {Sets: []*metrics.Set{set}, LeBuckets: true, CreatedLines: true},
	} {
		library := httptest.NewServer(metrics.NewHandler(options))
		defer library.Close()
		args = append(args, name+"="+library.URL)
	}
	verdicts, err := programVerdicts(filepath.Join(clients, "python/bin/python"), args...)
	r.count(verdicts, nil)
	return r, err
}

// receivers runs the suite's tests for receivers, in directory remote, against both servers.
func (r *row) receivers(remote, file, ours, theirs string) error {
	yaml := fmt.Sprintf("remote_write:\n- {name: ferula, url: %s/api/v1/write}\n"+
		"- {name: prometheus, url: %s/api/v1/write}\n", ours, theirs)
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		return err
	}
	verdicts, err := run(remote, "./receiver", "PROMETHEUS_RW2_COMPLIANCE_CONFIG_FILE="+file)
	if err != nil {
		return err
	}
	sides := map[string]map[string]bool{"/ferula": {}, "/prometheus": {}}
	for name, passed := range verdicts {
		for suffix, side := range sides {
			if test, ok := strings.CutSuffix(name, suffix); ok {
				side[test] = passed
			}
		}
	}
	r.count(sides["/ferula"], sides["/prometheus"])
	if r.all == 0 {
		return errors.New("the receiver tests did not name ferula")
	}
	return nil
}

// programVerdicts runs a program that prints a line for each verdict: pass or fail, and what was judged.
func programVerdicts(program string, args ...string) (map[string]bool, error) {
	out, err := exec.Command(program, args...).Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", program, err)
	}
	verdicts := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		verdict, what, _ := strings.Cut(strings.TrimSpace(line), " ")
		verdicts[what] = verdict == "pass"
	}
	return verdicts, nil
}

// run runs a package of tests in a directory, and returns which passed of those that have no tests of their own.
func run(dir, pkg, env string) (map[string]bool, error) {
	cmd := exec.Command("go", "test", "-vet=off", "-json", "-count=1", pkg)
	cmd.Dir, cmd.Env, cmd.Stderr = dir, append(os.Environ(), env), os.Stderr
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return nil, err
	}
	verdicts, parents := map[string]bool{}, map[string]bool{}
	for line := range bytes.Lines(out) {
		var event struct{ Action, Test string }
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("output of %s: %w", pkg, err)
		}
		if event.Test != "" && (event.Action == "pass" || event.Action == "fail") {
			verdicts[event.Test] = event.Action == "pass"
		}
	}
	for name := range verdicts {
		for i := strings.LastIndexByte(name, '/'); i > 0; i = strings.LastIndexByte(name[:i], '/') {
			parents[name[:i]] = true
		}
	}
	maps.DeleteFunc(verdicts, func(name string, _ bool) bool { return parents[name] })
	if len(verdicts) == 0 {
		return nil, fmt.Errorf("%s ran no tests: %s", pkg, out[max(0, len(out)-2000):])
	}
	return verdicts, nil
}

type server struct {
	cmd *exec.Cmd
	url string
}

// start starts a server on a free port and waits until it is ready.
func start(program string, args ...string) (*server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		return nil, err
	}
	flag := "--web.listen-address="
	if slices.Contains([]string{"query", "query-frontend", "sidecar", "store", "profiles"}, args[0]) {
		flag = "--http-address="
	}
	s := &server{cmd: exec.Command(program, append(args, flag+address)...), url: "http://" + address}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	for range 600 {
		if response, err := http.Get(s.url + "/-/ready"); err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return s, nil
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	s.stop()
	return nil, fmt.Errorf("%s %q is not ready within a minute", program, args)
}

func (s *server) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	_ = s.cmd.Wait()
}

// write returns the page.
func write(rows []row) string {
	var b strings.Builder
	b.WriteString("# Judged by others' tests\n\n`make judges` runs these suites and writes this page. " +
		"A real Prometheus 3.15 runs beside ferula.\n\n" +
		"The sender tests run with the features `st-storage,metadata-wal-records`, one shard, exemplars and native " +
		"histograms. The receiver tests compile with github.com/prometheus/prometheus v0.307.3 only, not with the " +
		"version that the suite names.\n\n" +
		"| suite | version | passed | not passed |\n|---|---|---:|---|\n")
	for _, r := range rows {
		not := strings.Join(r.failed, ", ")
		if len(r.shared) > 0 {
			if not != "" {
				not += "; "
			}
			not += fmt.Sprintf("%d, which Prometheus does not pass either", len(r.shared))
			if len(r.shared) <= 5 {
				not += ": " + strings.Join(r.shared, ", ")
			}
		}
		fmt.Fprintf(&b, "| %s | %s | %d of %d | %s |\n", r.judge, r.version, r.passed, r.all, not)
	}
	return b.String()
}
