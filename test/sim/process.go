package sim

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	startTimeout = 60 * time.Second
	stopTimeout  = 60 * time.Second
)

var readyLine = regexp.MustCompile(`msg=Ready .*`)

// process is a running ferula binary.
type process struct {
	name string
	cmd  *exec.Cmd
	exit chan error
	log  *logTail

	env   *environment // set by watch
	base  string       // URL
	begin footprint    // when the process became ready

	goroutinesMore int
}

// logTail holds the last logLinesMax lines of a log.
type logTail struct {
	mu    sync.Mutex
	lines []string
}

const logLinesMax = 60

func (l *logTail) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lines = append(l.lines, line); len(l.lines) > logLinesMax {
		l.lines = l.lines[1:]
	}
}

func (l *logTail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

// start runs the binary and waits until its log reports that it is ready. An error
// includes the end of the log.
func start(ctx context.Context, binary, name string, args ...string) (*process, error) {
	p := &process{name: name, cmd: exec.Command(binary, args...), exit: make(chan error, 1), log: &logTail{}}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	ready := make(chan struct{}, 1)
	go func() {
		lines := bufio.NewScanner(stderr)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			p.log.add(lines.Text())
			if readyLine.MatchString(lines.Text()) {
				select {
				case ready <- struct{}{}:
				default:
				}
			}
		}
		p.exit <- p.cmd.Wait()
	}()
	select {
	case <-ready:
		return p, nil
	case err := <-p.exit:
		p.exit <- err
		return nil, fmt.Errorf("%s exits before it is ready (%v): %s", name, err, p.log)
	case <-time.After(startTimeout):
		p.kill()
		return nil, fmt.Errorf("%s is not ready after %s: %s", name, startTimeout, p.log)
	case <-ctx.Done():
		p.kill()
		return nil, ctx.Err()
	}
}

// kill sends SIGKILL.
func (p *process) kill() {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	select {
	case <-p.exit:
	case <-time.After(stopTimeout):
	}
}

// stop checks the footprint of a watched process, sends SIGTERM, waits for the exit, and
// returns an error unless the status is 0.
func (p *process) stop() error {
	if p == nil {
		return nil
	}
	if p.base != "" {
		if err := p.unexpectedExit(); err != nil {
			return err
		}
		if err := p.returned(); err != nil {
			return err
		}
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("%s: %w: %s", p.name, err, p.log)
	}
	select {
	case err := <-p.exit:
		if err != nil {
			return fmt.Errorf("%s exits with %w: %s", p.name, err, p.log)
		}
		return nil
	case <-time.After(stopTimeout):
		p.kill()
		return fmt.Errorf("%s does not exit within %s: %s", p.name, stopTimeout, p.log)
	}
}

// reload sends SIGHUP.
func (p *process) reload() error { return p.cmd.Process.Signal(syscall.SIGHUP) }

// unexpectedExit returns an error if the process exited without kill or stop.
func (p *process) unexpectedExit() error {
	select {
	case err := <-p.exit:
		p.exit <- err
		return fmt.Errorf("%s exited by itself (%v): %s", p.name, err, p.log)
	default:
		return nil
	}
}

// rssAnonMiB returns the process' anonymous memory in MiB.
func (p *process) rssAnonMiB() (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kib, err := strconv.Atoi(strings.Fields(rest)[0])
			return kib / 1024, err
		}
	}
	return 0, errors.New("no RssAnon in /proc/PID/status")
}

// freeAddress returns a loopback address on which no process listens. Its port is below those that systems give to listeners on
// port 0 and to clients: one of these could take the port before the process of a scenario listens on it, or while it restarts.
func freeAddress() (string, error) {
	const lowest, ports, tries = 15_000, 15_000, 100
	var err error
	for range tries {
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", lowest+rand.IntN(ports))); err == nil {
			return l.Addr().String(), l.Close()
		}
	}
	return "", err
}

// newClient returns a client without idle connections, so that no request uses a
// connection to a process that was killed.
func newClient() *http.Client {
	return &http.Client{Timeout: 60 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}
}

// A process may have some goroutines and heapMoreMiB of live heap more than when it became
// ready. Reads and compactions of a directory take some goroutines, and idle connections of a
// frontend take more. Samples, profiles and cached responses of a scenario take some heap.
const (
	goroutinesMore         = 30
	goroutinesMoreFrontend = 80
	heapMoreMiB            = 96
	returnTimeout          = 30 * time.Second
)

var (
	goroutinesLine = regexp.MustCompile(`goroutine profile: total (\d+)`)
	heapLine       = regexp.MustCompile(`# HeapAlloc = (\d+)`)
)

// footprint is the number of goroutines and the live heap of a process after a garbage
// collection.
type footprint struct{ goroutines, heapMiB int }

// footprint reads the process' own profiles.
func (p *process) footprint() (footprint, error) {
	number := func(path string, line *regexp.Regexp) (int, error) {
		page, _, err := api(p.env.ctx, p.env.client, p.base+path, url.Values{"debug": {"1"}, "gc": {"1"}}, nil)
		if err != nil {
			return 0, err
		}
		found := line.FindSubmatch(page)
		if found == nil {
			return 0, fmt.Errorf("%s%s has no %s", p.base, path, line)
		}
		return strconv.Atoi(string(found[1]))
	}
	heap, err := number("/debug/pprof/heap", heapLine)
	if err != nil {
		return footprint{}, err
	}
	goroutines, err := number("/debug/pprof/goroutine", goroutinesLine)
	return footprint{goroutines, heap >> 20}, err
}

// watch records the footprint of a process that has just become ready. stop compares it.
func (p *process) watch(e *environment, base string) (err error) {
	p.env, p.base, p.goroutinesMore = e, base, goroutinesMore
	p.begin, err = p.footprint()
	return err
}

// returned waits until the process has at most goroutinesMore goroutines and heapMoreMiB of heap
// more than when it became ready. It returns an error if that takes too long.
func (p *process) returned() error {
	deadline := time.Now().Add(returnTimeout)
	for {
		now, err := p.footprint()
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		p.env.largest.goroutines = max(p.env.largest.goroutines, now.goroutines-p.begin.goroutines)
		p.env.largest.heapMiB = max(p.env.largest.heapMiB, now.heapMiB-p.begin.heapMiB)
		if now.goroutines <= p.begin.goroutines+p.goroutinesMore && now.heapMiB <= p.begin.heapMiB+heapMoreMiB {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s has %d goroutines and %d MiB of heap, but %d and %d when it started", p.name, now.goroutines, now.heapMiB, p.begin.goroutines, p.begin.heapMiB)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
