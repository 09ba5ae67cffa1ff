package e2e

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// process is a running ferula binary.
type process struct {
	*server
	cmd  *exec.Cmd
	done chan error
	log  *logTail
	line chan struct{} // has an element if the log has a new line
}

type logTail struct {
	mu    sync.Mutex
	lines []string
}

func (l *logTail) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
}

func (l *logTail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

var readyURL = regexp.MustCompile(`msg=Ready url=(https?://[^ /]+)`)

// startProcess runs the binary and waits until its log reports that it is ready, with its
// URL. `ferula serve` gets a free gRPC port unless args set one.
func startProcess(t *testing.T, path string, args ...string) *process {
	t.Helper()
	isGRPCFlag := func(arg string) bool { return strings.HasPrefix(arg, "--grpc-address") }
	if args[0] == "serve" && !slices.ContainsFunc(args, isGRPCFlag) {
		args = append(slices.Clone(args), "--grpc-address=127.0.0.1:0")
	}
	p := launch(t, path, args...)
	p.server = &server{t: t, base: p.logged(t, readyURL)}
	return p
}

// launch runs the binary. It does not wait until it is ready.
func launch(t *testing.T, path string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(path, args...), done: make(chan error, 1), log: &logTail{}, line: make(chan struct{}, 1)}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill() }) // if the test failed before it stopped the process
	go func() {
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			p.log.add(lines.Text())
			select {
			case p.line <- struct{}{}:
			default:
			}
		}
		p.done <- p.cmd.Wait()
	}()
	return p
}

// logged waits until the log has a line that matches, and returns the first group of it.
func (p *process) logged(t *testing.T, line *regexp.Regexp) string {
	t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		if m := line.FindStringSubmatch(p.log.String()); m != nil {
			return m[min(1, len(m)-1)]
		}
		select {
		case <-p.line:
		case <-timeout:
			_ = p.cmd.Process.Kill()
			t.Fatalf("no line %s in the log:\n%s", line, p.log)
		}
	}
}

func (p *process) signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil {
		return err
	}
	select {
	case err := <-p.done:
		return err
	case <-time.After(30 * time.Second):
		_ = p.cmd.Process.Kill()
		return fmt.Errorf("the process did not end:\n%s", p.log)
	}
}

// writeUntilGone writes samples of one series, one per request, until the server no
// longer responds. It returns the number of acknowledged samples. It calls first after
// the first acknowledgement.
func (p *process) writeUntilGone(t *testing.T, writer int, fromMS int64, first func()) int {
	client := &http.Client{Timeout: 10 * time.Second}
	for n := 0; ; n++ {
		body := encoded(t, v1(v1Series(fromMS+int64(n), float64(n), "__name__", "acknowledged", "writer", fmt.Sprint(writer))))
		req, err := http.NewRequest(http.MethodPost, p.base+"/api/v1/write", strings.NewReader(string(body)))
		if err != nil {
			t.Error(err)
			return n
		}
		req.Header.Set("Content-Type", v1Type)
		req.Header.Set("Content-Encoding", "snappy")
		resp, err := client.Do(req)
		if err != nil {
			return n
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusNoContent {
			t.Errorf("writer %d: status %d", writer, resp.StatusCode)
			return n
		}
		if n == 0 {
			first()
		}
	}
}

func TestServe_KillLosesNoAcknowledgedSample(t *testing.T) {
	t.Parallel()
	rounds := 10
	if testing.Short() {
		rounds = 2
	}
	path, dir := binary(t), t.TempDir()
	config := writeFile(t, filepath.Join(dir, "prometheus.yml"), "scrape_configs: []\n")
	args := []string{"serve", "--config.file=" + config, "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:0"}
	total := map[int]int{}
	const writers = 4
	// Each round writes into another minute of the past, one sample per millisecond,
	// so that no sample is in the future or in the minute of the next round.
	start := time.Now().Add(-20 * time.Minute).UnixMilli()
	for round := range rounds {
		p := startProcess(t, path, args...)
		checkAcknowledged(t, p, total, round)
		fromMS := start + int64(round)*60_000
		counts := make([]int, writers)
		var wg, begun sync.WaitGroup
		begun.Add(writers)
		for w := range writers {
			first := sync.OnceFunc(begun.Done)
			wg.Go(func() {
				defer first()
				counts[w] = p.writeUntilGone(t, w, fromMS, first)
			})
		}
		begun.Wait()
		time.Sleep(time.Duration(50+round*20) * time.Millisecond)
		_ = p.signal(syscall.SIGKILL)
		wg.Wait()
		for w, n := range counts {
			total[w] += n
			if n == 0 {
				t.Errorf("round %d: writer %d wrote nothing before the kill", round, w)
			}
		}
	}
	p := startProcess(t, path, args...)
	checkAcknowledged(t, p, total, rounds)
	if err := p.signal(syscall.SIGTERM); err != nil {
		t.Errorf("SIGTERM: %v\n%s", err, p.log)
	}
}

// checkAcknowledged counts the stored samples of each writer. All acknowledged ones must
// be stored. For each kill one more may be stored, whose response was lost.
func checkAcknowledged(t *testing.T, p *process, want map[int]int, kills int) {
	t.Helper()
	for w, n := range want {
		got := p.value(fmt.Sprintf(`count_over_time(acknowledged{writer="%d"}[1h])`, w))
		var found int
		if _, err := fmt.Sscan(got, &found); err != nil || found < n || found > n+kills {
			t.Fatalf("after %d kills writer %d has %q samples, %d were acknowledged", kills, w, got, n)
		}
	}
}

func TestServe_SIGHUPReloadsAndSIGTERMStops(t *testing.T) {
	path, dir := binary(t), t.TempDir()
	config := writeFile(t, filepath.Join(dir, "prometheus.yml"), "scrape_configs: [{job_name: before}]\n")
	p := startProcess(t, path, "serve", "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:0")
	writeFile(t, config, "scrape_configs: [{job_name: after}]\n")
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	eventually(t, 60*time.Second, "the reloaded configuration", func() bool {
		_, body := p.get("/api/v1/status/config")
		return strings.Contains(body, "job_name: after")
	})
	if err := p.signal(syscall.SIGTERM); err != nil {
		t.Errorf("SIGTERM: %v\n%s", err, p.log)
	}
	for _, args := range [][]string{
		{"serve", "--nonsense"},
		{"serve", "--query.timeout=soon"},
		{"serve", "--enable-feature=st-storage"},
		{"serve", "--auto-gomemlimit.ratio=2"},
		{"fly"},
	} {
		out := refusedBy(t, path, dir, args...)
		last := args[len(args)-1]
		name := strings.TrimPrefix(strings.SplitN(last, "=", 2)[0], "--")
		if !strings.Contains(out, name) {
			t.Errorf("%v: the error does not name the argument: %s", args, out)
		}
	}
}

// refusedBy runs a command that is expected to end with an error by itself, and returns its
// output.
func refusedBy(t *testing.T, path, dir string, args ...string) string {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err == nil || ctx.Err() != nil {
		t.Fatalf("%v: accepted (%v): %s", args, err, out)
	}
	return string(out)
}

// commandOf returns a command whose process is killed when the test ends.
func commandOf(t *testing.T, path string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(path, args...)
	t.Cleanup(func() {
		if cmd.Process != nil {
			_ = cmd.Process.Kill()
		}
	})
	return cmd
}
