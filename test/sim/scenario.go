package sim

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunks"

	"github.com/ferula-io/ferula/test/chunksample"
)

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// environment is shared by all scenarios of a run.
type environment struct {
	ctx    context.Context
	binary string
	client *http.Client
	logf   func(format string, args ...any)

	proofs  int       // number of compared samples and profiles, see proved
	largest footprint // largest growth of a process, over all scenarios
}

// proved counts the data of responses that were compared with the model. A scenario that
// compares no data fails, because it proves nothing.
func (e *environment) proved(n int) { e.proofs += n }

// A scenario is a set of processes with a model of their data. Its seed determines the
// configuration and the steps.
type scenario interface {
	// start creates directories and files and runs the processes.
	start() error
	// steps returns the scenario's steps in order. Each has its own random generator, so
	// that removing a step does not change the others.
	steps() []step
	// check compares every path with the model.
	check() error
	// stop stops the processes and returns an error if one does not exit with status 0.
	stop() error
}

// step is one action of a scenario.
type step struct {
	name string
	run  func() error
}

// plan collects the steps of a scenario.
type plan struct {
	rng  *rand.Rand
	list []step
}

// add adds a step with a generator of its own.
func (p *plan) add(name string, run func(rng *rand.Rand) error) {
	rng := rand.New(rand.NewPCG(p.rng.Uint64(), 0))
	p.list = append(p.list, step{name, func() error { return run(rng) }})
}

// do adds a step without random choices.
func (p *plan) do(name string, run func() error) {
	p.add(name, func(*rand.Rand) error { return run() })
}

// server is a `ferula serve` process with its configuration and its model.
type server struct {
	env     *environment
	dir     string // of the configuration file and the data directory
	http    string // listen address
	grpc    string
	proc    *process
	cfg     serveConfig
	model   *model
	mintMS  int64 // the smallest timestamp of all samples
	lostMS  int64 // samples before it may have been deleted by a shorter retention
	running bool
}

// serveConfig is a combination of flags and configuration file.
type serveConfig struct {
	retentionFile string            // storage.tsdb.retention.time of the file, "" omits it
	retentionFlag string            // --storage.tsdb.retention.time, "" omits it
	sizeFile      string            // storage.tsdb.retention.size of the file
	window        time.Duration     // out_of_order_time_window, 0 omits it
	external      map[string]string // external_labels
	remoteRead    []string          // base URLs of remote_read sections
	profileFlags  []string          // limits of profiles
	flags         []string          // further flags
	more          string            // further sections of the configuration file
}

// retention returns the retention in force, 0 for no limit.
func (c serveConfig) retention() time.Duration {
	switch {
	case c.retentionFile != "":
		return parseDays(c.retentionFile)
	case c.retentionFlag != "":
		return parseDays(c.retentionFlag)
	case c.sizeFile != "":
		return 0
	default:
		return 15 * 24 * time.Hour
	}
}

// parseDays parses a duration in days or years, the only units of the scenarios.
func parseDays(text string) time.Duration {
	n := 0
	unit := text[len(text)-1]
	if _, err := fmt.Sscanf(text[:len(text)-1], "%d", &n); err != nil {
		panic(err) // a constant of this package
	}
	if unit == 'y' {
		n *= 365
	}
	return time.Duration(n) * 24 * time.Hour
}

func (c serveConfig) yaml() string {
	var b strings.Builder
	b.WriteString("global:\n  scrape_interval: 1h\n")
	if len(c.external) > 0 {
		b.WriteString("  external_labels:\n")
		for _, name := range sortedKeys(c.external) {
			fmt.Fprintf(&b, "    %s: %s\n", name, c.external[name])
		}
	}
	b.WriteString("scrape_configs: []\n" + c.more)
	if len(c.remoteRead) > 0 {
		b.WriteString("remote_read:\n")
		for _, base := range c.remoteRead {
			fmt.Fprintf(&b, "  - url: %s/api/v1/read\n    read_recent: true\n", base)
		}
	}
	if c.retentionFile != "" || c.sizeFile != "" || c.window > 0 {
		b.WriteString("storage:\n  tsdb:\n")
		if c.window > 0 {
			fmt.Fprintf(&b, "    out_of_order_time_window: %s\n", c.window)
		}
		if c.retentionFile != "" || c.sizeFile != "" {
			b.WriteString("    retention:\n")
		}
		if c.retentionFile != "" {
			fmt.Fprintf(&b, "      time: %s\n", c.retentionFile)
		}
		if c.sizeFile != "" {
			fmt.Fprintf(&b, "      size: %s\n", c.sizeFile)
		}
	}
	return b.String()
}

func newServer(e *environment, dir string, cfg serveConfig) (*server, error) {
	s := &server{env: e, dir: dir, cfg: cfg, model: newModel()}
	var err error
	if s.http, err = freeAddress(); err != nil {
		return nil, err
	}
	if s.grpc, err = freeAddress(); err != nil {
		return nil, err
	}
	return s, os.MkdirAll(filepath.Join(dir, "data"), 0o755)
}

func (s *server) base() string { return "http://" + s.http }

func (s *server) configFile() string { return filepath.Join(s.dir, "prometheus.yml") }

// run starts the process with the current configuration.
func (s *server) run() error {
	if err := writeConfig(s); err != nil {
		return err
	}
	args := []string{"serve", "--config.file=" + s.configFile(), "--web.listen-address=" + s.http, "--grpc-address=" + s.grpc,
		"--storage.tsdb.path=" + filepath.Join(s.dir, "data"), "--no-profiles.self", "--storage.remote.read-sample-limit=0"}
	if s.cfg.retentionFlag != "" {
		args = append(args, "--storage.tsdb.retention.time="+s.cfg.retentionFlag)
	}
	args = append(append(args, s.cfg.profileFlags...), s.cfg.flags...)
	var err error
	if s.proc, err = start(s.env.ctx, s.env.binary, filepath.Base(s.dir), args...); err != nil {
		return err
	}
	s.running = true
	s.lostMS = max(s.lostMS, s.keepFromMS())
	return s.proc.watch(s.env, s.base())
}

func writeConfig(s *server) error { return os.WriteFile(s.configFile(), []byte(s.cfg.yaml()), 0o600) }

// reload writes the current configuration and sends SIGHUP.
func (s *server) reload() error {
	if err := writeConfig(s); err != nil {
		return err
	}
	s.lostMS = max(s.lostMS, s.keepFromMS())
	return s.proc.reload()
}

func (s *server) kill() {
	s.proc.kill()
	s.running = false
}

func (s *server) stop() error {
	if !s.running {
		return nil
	}
	s.running = false
	return s.proc.stop()
}

// keepFromMS returns the timestamp from which on samples must be retained. Older samples may be
// deleted: a block is deleted as a whole once all its samples are older than the retention.
func (s *server) keepFromMS() int64 {
	retention := s.cfg.retention()
	if retention == 0 {
		return s.lostMS
	}
	return max(s.lostMS, time.Now().Add(-retention).UnixMilli())
}

// put writes samples of one series of floats.
func (s *server) put(series map[string]string, points map[int64]float64) error {
	return s.putAll([]prompb.TimeSeries{floatSeries(metricName, series, points)})
}

// putAll writes series in one request, and records them in the model by the response.
func (s *server) putAll(list []prompb.TimeSeries) error {
	return s.record(list, send(s.env.ctx, s.env.client, s.base(), list))
}

// record records in the model the series that were sent, according to the result of send.
func (s *server) record(list []prompb.TimeSeries, err error) error {
	sent, into := samples{}, s.model.acked
	if err != nil {
		into = s.model.maybe
	}
	for _, ts := range list {
		sent.add(ts, nil)
	}
	for series, points := range sent {
		for ms, v := range points {
			into.put(series, ms, v)
			s.mintMS = min(s.mintMS, ms)
		}
	}
	if errors.Is(err, errRefused) {
		return err
	}
	return nil
}

// stall opens connections and sends the same request on each. It reads no response. The
// returned function closes the connections.
func (s *server) stall(connections int, header string, body []byte) (release func(), err error) {
	var open []net.Conn
	release = func() {
		for _, conn := range open {
			conn.Close()
		}
	}
	for range connections {
		conn, err := net.Dial("tcp", s.http)
		if err != nil {
			release()
			return nil, err
		}
		open = append(open, conn)
		if _, err := fmt.Fprintf(conn, "%s\r\nHost: %s\r\n\r\n%s", header, s.http, body); err != nil {
			release()
			return nil, err
		}
	}
	return release, nil
}

// writeBlocks writes a block of two hours per age into the data directory, before the first
// start.
func (s *server) writeBlocks(rng *rand.Rand, ages ...time.Duration) error {
	for i, age := range ages {
		from := time.Now().Add(-age).Truncate(2 * time.Hour)
		floats, natives := map[int64]float64{}, []chunks.Sample{}
		name := labels.FromStrings("__name__", nativeName, "age", fmt.Sprint(i))
		for n := range int64(20) {
			ms := from.UnixMilli() + n*60_000 + rng.Int64N(1000)
			floats[ms] = float64(rng.IntN(1000))
			h := randomHistogram(rng).ToFloat(nil)
			natives = append(natives, histogramSample{chunksample.Float{MS: ms}, h})
			s.model.acked.putHistogram(dataKey(name.Map(), nil), ms, h)
			s.mintMS = min(s.mintMS, ms)
		}
		series := map[string]string{"kind": "old", "age": fmt.Sprint(i)}
		for ms, v := range floats {
			s.model.acked.put(seriesKey(series), ms, v)
		}
		series["__name__"] = metricName
		list := []storage.Series{storage.NewListSeries(labels.FromMap(series), chunkSamples(floats)), storage.NewListSeries(name, natives)}
		if _, err := tsdb.CreateBlock(list, filepath.Join(s.dir, "data"), 2*time.Hour.Milliseconds(), slog.New(slog.DiscardHandler)); err != nil {
			return err
		}
	}
	return nil
}

// filesRange is the range of `ferula read` into files.
const filesRange = 26 * time.Hour

// compareAll reads all samples in every way that a server offers, `ferula read` in the
// given formats, and compares each result with the model. It removes external labels from
// results that have them. Offline, it reads only the data directory.
func (s *server) compareAll(formats []string, offline bool) error {
	drop := sortedKeys(s.cfg.external)
	minMS, maxMS := s.mintMS-1000, time.Now().Add(time.Hour).UnixMilli()
	ctx, e := s.env.ctx, s.env
	verify := func(path string, m *model, fromMS int64, got samples, err error) error {
		if err == nil {
			err = m.check(got, fromMS, maxMS, s.keepFromMS())
		}
		if err != nil {
			return fmt.Errorf("%s by %s: %w", filepath.Base(s.dir), path, err)
		}
		e.proved(got.count())
		return nil
	}
	if !offline {
		got, warnings, err := queryRaw(ctx, e.client, s.base(), everything, minMS, maxMS, nil, nil)
		if err == nil && len(warnings) > 0 {
			err = fmt.Errorf("unexpected warnings: %q", warnings)
		}
		if err := verify("PromQL", s.model, minMS, got, err); err != nil {
			return err
		}
		got, err = remoteReadSamples(ctx, e.client, s.base(), minMS, maxMS, drop)
		if err := verify("remote read SAMPLES", s.model, minMS, got, err); err != nil {
			again, errAgain := remoteReadSamples(ctx, e.client, s.base(), minMS, maxMS, drop)
			if errAgain = verify("remote read SAMPLES", s.model, minMS, again, errAgain); errAgain == nil {
				return fmt.Errorf("%w; the same request again returned all", err)
			}
			return err
		}
	}
	for _, format := range formats {
		m := s.model
		if format == "openmetrics" {
			m = m.withoutNative()
		}
		sources := []string{"--tsdb.path=" + filepath.Join(s.dir, "data")}
		if !offline {
			sources = append(sources, "--url="+s.base(), "--store="+s.grpc)
		}
		for i, source := range sources {
			remove := drop
			if i == 0 {
				remove = nil // a directory's samples have no external labels
			}
			fromMS := minMS
			if format == "blocks" || format == "parquet" { // each window of two hours takes a while
				fromMS = max(minMS, time.Now().Add(-filesRange).UnixMilli())
			}
			got, err := export(ctx, e.binary, source, format, fromMS, maxMS, remove)
			if err := verify("ferula read "+source+" "+format, m, fromMS, got, err); err != nil {
				return err
			}
		}
	}
	return nil
}

const (
	startTimeout = 60 * time.Second
	stopTimeout  = 60 * time.Second
	untilTimeout = 90 * time.Second // a failed upload is retried after 2, 4, 8 and 16 s
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

// until waits until a condition holds.
func (p *process) until(what string, ok func() (bool, error)) error {
	for deadline := time.Now().Add(untilTimeout); ; {
		done, err := ok()
		if err == nil && done {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waited %s for %s: %w: %s", untilTimeout, what, err, p.log)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-p.env.ctx.Done():
			return p.env.ctx.Err()
		}
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
