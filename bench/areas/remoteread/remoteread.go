// Package remoteread measures the cost of remote read, for the server and for the client: goals remoteread/*.
//
// Prometheus and ferula serve run as processes on copies of the same blocks. Both get the same requests in turn, for both
// response types of the protocol. Streams of chunks must be equal byte by byte. Responses with samples may differ, since
// Prometheus does not sort their series and omits zeros: ferula's own client must read the same labels, times and values
// from both servers and both response types. The bench then measures CPU, write calls and allocations of a running server,
// the memory of servers that have just started, and times of both response types.
package remoteread

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
)

// Area is the entry of this area in the list of cmd/bench.
var Area = area.Area{
	Name: "remoteread", About: "remote read of Prometheus and ferula serve, both response types", Run: run,
}

const (
	series  = 10_000
	hourMS  = 3600_000
	stepMS  = 15_000
	readers = 16
)

var (
	floats = blocks.Spec{
		Metric: "bench_metric", Values: blocks.Floats15, Series: series, Samples: 8 * hourMS / stepMS,
		StepMS: stepMS, StartMS: blocks.QuietStartMS, Seed: 1,
	}
	decimals = blocks.Spec{
		Metric: "bench_metric", Values: blocks.Decimals2, Series: 1000, Samples: 8 * hourMS / stepMS,
		StepMS: stepMS, StartMS: blocks.QuietStartMS, Seed: 2,
	}
)

// few and many are the blocks for the growth of memory by series.
func few() blocks.Spec  { return small(1_000) }
func many() blocks.Spec { return small(100_000) }

// small returns the spec of blocks with few samples a series.
func small(series int) blocks.Spec {
	return blocks.Spec{Metric: "bench_metric", Values: blocks.Integers, Series: series, Samples: 120, StepMS: 60_000, StartMS: blocks.QuietStartMS, Seed: 3}
}

// Range of the reads of the great blocks. One series in ten has the container of oneContainer.
const (
	from = blocks.QuietStartMS
	to   = from + 8*hourMS - 1
)

func chunks8h() read  { return of(floats, "8 h", chunks, from, to) }
func samples8h() read { return of(floats, "8 h", samples, from, to) }
func chunks2h() read  { return of(floats, "2 h", chunks, from+2*hourMS, from+4*hourMS-1) }
func samples2h() read { return of(floats, "2 h", samples, from+2*hourMS, from+4*hourMS-1) }

func chunksCut() read {
	return of(floats, "2 h that cut chunks", chunks, from+hourMS+7_777, from+3*hourMS+7_777)
}

func chunksTenth() read {
	return of(floats, "8 h, a tenth of the series", chunks, from, to, oneContainer())
}

func samplesTenth() read {
	return of(floats, "8 h, a tenth of the series", samples, from, to, oneContainer())
}

func oneContainer() *labels.Matcher {
	return labels.MustNewMatcher(labels.MatchEqual, "container", "container-0")
}

func compared() []read {
	return []read{chunks8h(), samples8h(), chunks2h(), samples2h(), chunksCut()}
}

func measuredAlive() []read { return []read{chunks8h(), samples8h(), chunksCut()} }

// Columns of the table. The floor has one of its own, because the spread of its readings decides whether a run is recorded.
const (
	prometheusSide = "Prometheus"
	floorSide      = "floor"
	ferulaSide     = "ferula"
)

// side is one of the two servers.
type side struct {
	name    string
	program peer.Program
	dir     string
	server  *proc.Server // nil while none runs
}

// bench is one run of the area.
type bench struct {
	env          area.Env
	sides        [2]side
	drain, floor peer.Program
	lengths      map[string]int64 // of a response in bytes, by side and name of the read
	lines        []line           // of the plot
	out          *area.Outcome
}

func run(ctx context.Context, env area.Env) (*area.Outcome, error) {
	b := &bench{env: env, lengths: map[string]int64{}, out: &area.Outcome{Sides: []string{prometheusSide, floorSide, ferulaSide}}}
	prometheus, err := env.Programs.Get(ctx, peer.Prometheus)
	if err != nil {
		return nil, err
	}
	ferula, err := env.Programs.Ferula(ctx, peer.Prometheus)
	if err != nil {
		return nil, err
	}
	for i, program := range []peer.Program{prometheus, ferula} {
		b.sides[i] = side{name: []string{prometheusSide, ferulaSide}[i], program: program, dir: filepath.Join(env.Cache, "run", "remoteread", program.Name)}
		b.out.Versions = append(b.out.Versions, program.Version)
	}
	if b.drain, err = b.build(ctx, "drain", env.Programs.Root, "./test/drain"); err != nil {
		return nil, err
	}
	if b.floor, err = b.build(ctx, "floor", filepath.Join(env.Programs.Root, "bench"), "./areas/remoteread/floor"); err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context) error{b.great, b.decimals, b.memory, b.many, b.growth, b.head} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	b.conclude()
	b.out.Files = []area.File{{Path: "docs/perf/remote-read-memory.svg", Text: svg(b.lines)}}
	return b.out, nil
}

// build compiles a small program that only this area runs.
func (b *bench) build(ctx context.Context, name, dir, pkg string) (peer.Program, error) {
	path := filepath.Join(b.env.Cache, name)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", path, pkg)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=")
	if filepath.Base(dir) == "bench" {
		cmd.Env = append(cmd.Env, "GOWORK=off")
	}
	if output, err := cmd.CombinedOutput(); err != nil {
		return peer.Program{}, fmt.Errorf("build %s: %w: %s", name, err, output)
	}
	return peer.Program{Name: name, Path: path, Version: name + ", built from this tree"}, nil
}

// start starts one of those programs.
func (b *bench) start(ctx context.Context, program peer.Program, args ...string) (*proc.Server, error) {
	return proc.Start(ctx, proc.Spec{
		Name: program.Name, Path: program.Path, Env: peer.RuntimeEnv(), Ready: "/-/ready", Log: filepath.Join(b.env.Cache, "run", "remoteread", program.Name+".log"),
		Args: func(addr string) []string { return append([]string{"-listen=" + addr}, args...) },
	})
}

// serve starts a side on its own copy of the blocks.
func (b *bench) serve(ctx context.Context, s *side, spec blocks.Spec) error {
	blocksDir, err := blocks.Ensure(ctx, b.env.Cache, spec)
	if err != nil {
		return err
	}
	data, config := filepath.Join(s.dir, "data"), filepath.Join(s.dir, "prometheus.yml")
	if err := errors.Join(blocks.Copy(blocksDir, data), os.WriteFile(config, []byte("scrape_configs: []\n"), 0o644)); err != nil {
		return err
	}
	s.server, err = proc.Start(ctx, s.program.Serve(peer.TSDB{Dir: data, Config: config, Log: filepath.Join(s.dir, "log")}))
	return err
}

func (s *side) stop() error {
	server := s.server
	s.server = nil
	client.CloseIdleConnections()
	return server.Stop()
}

// both calls work while both sides serve the blocks of a spec.
func (b *bench) both(ctx context.Context, spec blocks.Spec, work func() error) (err error) {
	for i := range b.sides {
		s := &b.sides[i]
		if err := b.serve(ctx, s, spec); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.stop()) }()
	}
	return work()
}

// compare returns an error unless both sides return the same data for every read.
func (b *bench) compare(ctx context.Context, spec blocks.Spec, reads []read) (err error) {
	drain, err := b.start(ctx, b.drain)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, drain.Stop()) }()
	reports := map[string]string{}
	for _, r := range reads {
		var responses [2]response
		for i, s := range b.sides {
			if responses[i], err = sendHashed(ctx, s.server.URL(), r); err != nil {
				return err
			}
			b.lengths[s.name+name(spec, r)] = responses[i].bytes
			b.out.Recorder.Add(1, s.name, "bytes: "+name(spec, r), area.Bytes, float64(responses[i].bytes))
			text, err := drained(ctx, drain, s.server.URL(), r)
			if err != nil {
				return fmt.Errorf("%s: %s: %w", s.name, r.what, err)
			}
			same := fmt.Sprint(r.mint, r.maxt)
			if reports[same] == "" {
				reports[same] = text
			}
			var nSeries, nSamples int
			if _, err := fmt.Sscanf(text, "%d series, %d samples", &nSeries, &nSamples); err != nil || nSeries != spec.Series || nSamples < spec.Series {
				return fmt.Errorf("%s: %s: %w: %q", s.name, r.what, area.ErrEmpty, text)
			}
			if text != reports[same] {
				return fmt.Errorf("%s: %s: %w: %s, elsewhere %s", s.name, r.what, area.ErrUnequal, text, reports[same])
			}
		}
		if r.form == chunks && !bytes.Equal(responses[0].hash, responses[1].hash) {
			return fmt.Errorf("%s: %w: streams of %d and %d bytes", r.what, area.ErrUnequal, responses[0].bytes, responses[1].bytes)
		}
		b.env.Logf("responses are equal: %s: %s", name(spec, r), reports[fmt.Sprint(r.mint, r.maxt)])
	}
	return nil
}

// name returns the name of a read in the table.
func name(spec blocks.Spec, r read) string {
	if spec == floats || spec == recent {
		return r.what
	}
	return fmt.Sprintf("%s, %s x %d", r.what, spec.Values, spec.Series)
}
