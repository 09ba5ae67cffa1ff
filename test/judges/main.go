// Program judges runs test suites of others against a ferula binary, and writes the scores to a page of docs.
//
// judges.sh installs what it needs and runs it.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
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
)

const suite = "github.com/prometheus/compliance/remotewrite"

// row is a line of the page.
type row struct {
	judge, version string
	passed, all    int
	failed         []string
}

func main() {
	ferula := flag.String("ferula", "../../bin/ferula", "the program to judge")
	prometheus := flag.String("prometheus", "", "a real Prometheus")
	clients := flag.String("clients", "", "directory with clients.js, its packages, and a virtual environment python")
	out := flag.String("out", "", "page to write; empty: standard output")
	flag.Parse()
	rows, err := judge(*ferula, *prometheus, *clients)
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

func judge(ferula, prometheus, clients string) ([]row, error) {
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
	if err := senders.run("./sender", "FERULA_BINARY="+ferula); err != nil {
		return nil, err
	}
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
		"scrape_interval: 1s, scrape_timeout: 1s, static_configs: [{targets: [%q]}]}]\n", strings.TrimPrefix(page.URL, "http://"))
	if err := os.WriteFile(scraping, []byte(text), 0o600); err != nil {
		return nil, err
	}
	server, err := start(ferula, "serve", "--storage.tsdb.path="+filepath.Join(dir, "ferula"), "--config.file="+scraping,
		"--grpc-address=127.0.0.1:0", "--profiles.self.interval=2s")
	if err != nil {
		return nil, err
	}
	defer server.stop()
	theirs, err := start(prometheus, "--storage.tsdb.path="+filepath.Join(dir, "prometheus"), "--config.file="+scraping)
	if err != nil {
		return nil, err
	}
	defer theirs.stop()
	plugins := row{judge: "clients of @perses-dev/prometheus-plugin and pyroscope-plugin", version: "0.53.4, 0.4.0"}
	if err := plugins.verdicts("node", filepath.Join(clients, "clients.js"), server.url, theirs.url,
		fmt.Sprint(begun.Unix())); err != nil {
		return nil, err
	}
	query, err := start(ferula, "query", "--grpc-address=127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer query.stop()
	frontend, err := start(ferula, "query-frontend", "--query-frontend.downstream-url="+query.url)
	if err != nil {
		return nil, err
	}
	defer frontend.stop()
	sidecar, err := start(ferula, "sidecar", "--prometheus.url="+theirs.url, "--grpc-address=127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer sidecar.stop()
	pages := row{judge: "prometheus_client.openmetrics.parser: /metrics of serve, query, query-frontend and sidecar",
		version: "0.26.0"}
	return []row{senders, plugins, pages}, pages.verdicts(filepath.Join(clients, "python/bin/python"), "strict.py",
		server.url+"/metrics", query.url+"/metrics", frontend.url+"/metrics", sidecar.url+"/metrics")
}

// verdicts runs a program that prints a line for each verdict: pass or fail, and what was judged.
func (r *row) verdicts(program string, args ...string) error {
	out, err := exec.Command(program, args...).Output()
	if err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	for line := range strings.Lines(string(out)) {
		verdict, what, _ := strings.Cut(strings.TrimSpace(line), " ")
		if r.all++; verdict == "pass" {
			r.passed++
		} else {
			r.failed = append(r.failed, what)
		}
	}
	return nil
}

// run runs a package of tests, and counts the tests that have no tests of their own.
func (r *row) run(pkg, env string) error {
	cmd := exec.Command("go", "test", "-vet=off", "-json", "-count=1", pkg)
	cmd.Env, cmd.Stderr = append(os.Environ(), env), os.Stderr
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return err
	}
	actions := map[string]string{}
	for line := range bytes.Lines(out) {
		var event struct{ Action, Test, Output string }
		if err := json.Unmarshal(line, &event); err != nil {
			return fmt.Errorf("output of %s: %w", pkg, err)
		}
		if event.Test != "" && slices.Contains([]string{"pass", "fail", "skip"}, event.Action) {
			actions[event.Test] = event.Action
		}
	}
	parents := map[string]bool{}
	for name := range actions {
		for i := strings.LastIndexByte(name, '/'); i > 0; i = strings.LastIndexByte(name[:i], '/') {
			parents[name[:i]] = true
		}
	}
	for name, action := range actions {
		if parents[name] || action == "skip" {
			continue
		}
		if r.all++; action == "pass" {
			r.passed++
		} else {
			r.failed = append(r.failed, name)
		}
	}
	slices.Sort(r.failed)
	if r.all == 0 {
		return fmt.Errorf("%s ran no tests: %s", pkg, out[max(0, len(out)-2000):])
	}
	return nil
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
	if slices.Contains([]string{"query", "query-frontend", "sidecar"}, args[0]) {
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
	b.WriteString("# Judged by others' tests\n\n`make judges` runs these suites and writes this page.\n\n" +
		"The suite's receiver tests are left out: at this version they do not compile.\n\n" +
		"| suite | version | passed | not passed |\n|---|---|---:|---|\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s | %s | %d of %d | %s |\n", r.judge, r.version, r.passed, r.all, strings.Join(r.failed, ", "))
	}
	return b.String()
}
