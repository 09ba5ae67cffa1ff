package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
