// Package sidecar measures the cost of a StoreAPI over Prometheus' remote read: goals sidecar/*.
//
// One Prometheus serves the blocks. Thanos' and ferula's sidecars run as processes with the same flags. One client requests
// the same series from them in turn and drains the gRPC messages without decoding them. Before the measurement both
// responses are decoded and must be equal: labels, order, chunks. The cost of Prometheus itself is not counted.
//
// The same is done with samples in the head of Prometheus (head.go). There the cost of Prometheus is shown in a row of its own,
// next to that of a ferula serve, which serves StoreAPI from its head without a sidecar.
package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
)

// Area is the entry of this area in the list of cmd/bench.
var Area = area.Area{Name: "sidecar", About: "StoreAPI over Prometheus' remote read: sidecars of Thanos and ferula, as processes", Run: run}

const (
	metric = "bench_metric"
	series = 10_000
	hours  = 8
	hourMS = 3600_000
	stepMS = 15_000

	repeats = 3 // consecutive requests for one reading
	config  = "global: {external_labels: {prometheus: bench, replica: a}}\nscrape_configs: []\n"
)

var spec = blocks.Spec{
	Metric: metric, Values: blocks.Floats15, Series: series, Samples: hours * hourMS / stepMS,
	StepMS: stepMS, StartMS: blocks.QuietStartMS, Seed: 1,
}

// seriesRequest is one Series request for all series.
type seriesRequest struct {
	what         string
	fromMS, toMS int64    // inclusive
	without      []string // replica labels to remove
	labels       bool     // labels only (SkipChunks)
}

// The range of the blocks.
const (
	blocksFromMS = blocks.QuietStartMS
	blocksToMS   = blocksFromMS + hours*hourMS - 1
)

// Requests for the blocks.
var (
	plain       = seriesRequest{what: "Series of 10,000 x 8 h", fromMS: blocksFromMS, toMS: blocksToMS}
	plain2h     = seriesRequest{what: "Series of 10,000 x 2 h", fromMS: blocksFromMS + 2*hourMS, toMS: blocksFromMS + 4*hourMS - 1}
	withoutName = seriesRequest{what: "Series of 10,000 x 8 h without replica label", fromMS: blocksFromMS, toMS: blocksToMS, without: []string{"replica"}}
	labelsOnly  = seriesRequest{what: "Series of 10,000 x 8 h without chunks", fromMS: blocksFromMS, toMS: blocksToMS, labels: true}
)

// leastChunks returns how many chunks a response has at least: a chunk has an hour at most.
func (q seriesRequest) leastChunks() int {
	if q.labels {
		return 0
	}
	return series * int((q.toMS-q.fromMS+1)/hourMS)
}

// side is one of the two sidecars. server is nil while none runs.
type side struct {
	name    string
	program peer.Program
	dir     string
	server  *proc.Server
	client  *client
}

// bench is one run of the area.
type bench struct {
	env        area.Env
	dir        string
	program    peer.Program // Prometheus
	prometheus *proc.Server // the one that runs now
	data       string       // its directory
	sides      [2]side
	messages   map[string]responseStats // the expected response, by side and request
	out        *area.Outcome
}

func run(ctx context.Context, env area.Env) (_ *area.Outcome, err error) {
	b := &bench{env: env, messages: map[string]responseStats{}, out: &area.Outcome{Sides: []string{"Thanos", "ferula"}}}
	env.Logf("blocks: %d series x %d samples", spec.Series, spec.Samples)
	from, err := blocks.Ensure(ctx, env.Cache, spec)
	if err != nil {
		return nil, err
	}
	if b.program, err = env.Programs.Get(ctx, peer.Prometheus); err != nil {
		return nil, err
	}
	thanos, err := env.Programs.Get(ctx, peer.Thanos)
	if err != nil {
		return nil, err
	}
	ferula, err := env.Programs.Ferula(ctx, peer.Thanos)
	if err != nil {
		return nil, err
	}
	b.dir = filepath.Join(env.Cache, "run", "sidecar")
	b.out.Versions = append(b.out.Versions, b.program.Version)
	for i, program := range []peer.Program{thanos, ferula} {
		b.sides[i] = side{name: b.out.Sides[i], program: program, dir: filepath.Join(b.dir, program.Name)}
		b.out.Versions = append(b.out.Versions, program.Version)
	}
	if err := b.overBlocks(ctx, from); err != nil {
		return nil, err
	}
	if err := b.overHead(ctx); err != nil {
		return nil, fmt.Errorf("head: %w", err)
	}
	b.conclude()
	return b.out, nil
}

// overBlocks measures the sidecars of a Prometheus that has blocks.
func (b *bench) overBlocks(ctx context.Context, from string) (err error) {
	if err := blocks.Copy(from, filepath.Join(b.dir, "prometheus", "data")); err != nil {
		return err
	}
	if b.prometheus, err = b.serve(ctx, b.program, "prometheus"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.prometheus.Stop()) }()
	if err := b.measureRunning(ctx, plain, withoutName, labelsOnly, plain2h); err != nil {
		return err
	}
	return b.measureMemory(ctx, plain, withoutName)
}

// serve starts Prometheus or ferula serve in a directory, which may have data, for the sidecars.
func (b *bench) serve(ctx context.Context, program peer.Program, name string, flags ...string) (*proc.Server, error) {
	dir := filepath.Join(b.dir, name)
	b.data = filepath.Join(dir, "data")
	file := filepath.Join(dir, "prometheus.yml")
	if err := errors.Join(os.MkdirAll(b.data, 0o755), os.WriteFile(file, []byte(config), 0o644)); err != nil {
		return nil, err
	}
	return proc.Start(ctx, program.Serve(peer.TSDB{Dir: b.data, Config: file, Log: filepath.Join(dir, "log"), More: flags}))
}

// start runs a sidecar. Both programs take the same flags.
func (b *bench) start(ctx context.Context, s *side) error {
	address, err := freeAddress()
	if err != nil {
		return err
	}
	s.server, err = proc.Start(ctx, proc.Spec{
		Name: s.program.Name, Path: s.program.Path, Env: peer.RuntimeEnv(), Ready: "/-/ready", Log: filepath.Join(s.dir, "log"),
		Args: func(http string) []string {
			return []string{"sidecar", "--http-address=" + http, "--grpc-address=" + address, "--prometheus.url=" + b.prometheus.URL(), "--tsdb.path=" + b.data}
		},
	})
	if err != nil {
		return err
	}
	if s.client, err = dial(address); err != nil {
		return errors.Join(err, s.stop())
	}
	return nil
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

func (s *side) stop() error {
	server, client := s.server, s.client
	s.server, s.client = nil, nil
	var err error
	if client != nil {
		err = client.conn.Close()
	}
	return errors.Join(err, server.Stop())
}

// measureRunning runs both sidecars, compares their responses and takes the readings that do not need a new process.
func (b *bench) measureRunning(ctx context.Context, requests ...seriesRequest) (err error) {
	for i := range b.sides {
		s := &b.sides[i]
		if err := b.start(ctx, s); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.stop()) }()
	}
	for _, q := range requests {
		if err := b.compare(ctx, q); err != nil {
			return err
		}
	}
	for round := 1; round <= b.env.Rounds; round++ {
		for _, q := range requests {
			for i := range b.sides {
				if err := b.measure(ctx, round, &b.sides[i], q); err != nil {
					return err
				}
			}
		}
		for _, q := range requests {
			for i := range b.sides {
				if err := b.classic(ctx, round, &b.sides[i], q); err != nil {
					return err
				}
			}
		}
		cpu := "CPU: " + requests[0].what
		b.env.Logf("round %d of %d: %s %v and %v s", round, b.env.Rounds, cpu, b.out.Recorder.Median(b.sides[0].name, cpu), b.out.Recorder.Median(b.sides[1].name, cpu))
	}
	return nil
}

// compare reads both responses and returns an error unless they have the same series in the same order with the same chunks.
func (b *bench) compare(ctx context.Context, q seriesRequest) error {
	var found [2]contents
	for i := range b.sides {
		s := &b.sides[i]
		got, err := s.client.drain(ctx, q, found[i].read)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", s.name, q.what, err)
		}
		b.messages[s.name+q.what] = got
		found[i].finish()
	}
	if err := same(q, found[0], found[1]); err != nil {
		return err
	}
	b.env.Logf("responses are equal: %s, %d series, %d chunks", q.what, found[0].series, found[0].chunks)
	return nil
}

// same returns an error unless two responses are complete and equal.
func same(q seriesRequest, a, b contents) error {
	if least := q.leastChunks(); a.series != series || a.chunks < least || least == 0 && a.chunks > 0 {
		return fmt.Errorf("%s: %w: %d series, %d chunks", q.what, area.ErrEmpty, a.series, a.chunks)
	}
	if a.samplesOf != nil && a.samples != q.samples() {
		return fmt.Errorf("%s: %w: %d samples, want %d", q.what, area.ErrEmpty, a.samples, q.samples())
	}
	if a.sum != b.sum || a.series != b.series || a.samples != b.samples {
		return fmt.Errorf("%s: %w: %d series, %d chunks and %d samples; %d, %d and %d", q.what, area.ErrUnequal, a.series, a.chunks, a.samples, b.series, b.chunks, b.samples)
	}
	return nil
}

// samples returns the number of samples in the range of a request.
func (q seriesRequest) samples() int { return series * int((q.toMS-q.fromMS+1)/stepMS) }

// request drains a response and returns an error unless it has as many bytes as the compared one.
func (b *bench) request(ctx context.Context, s *side, q seriesRequest) error {
	got, err := s.client.drain(ctx, q, nil)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", s.name, q.what, err)
	}
	if want := b.messages[s.name+q.what]; got.bytes != want.bytes {
		return fmt.Errorf("%s: %s: %w: %d bytes, %d before", s.name, q.what, area.ErrUnequal, got.bytes, want.bytes)
	}
	b.messages[s.name+q.what] = got
	return nil
}

func (b *bench) measure(ctx context.Context, round int, s *side, q seriesRequest) error {
	cpu, err := s.server.CPUDuring(ctx, func() error {
		for range repeats {
			if err := b.request(ctx, s, q); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	tape, last := &b.out.Recorder, b.messages[s.name+q.what]
	tape.Add(round, s.name, "CPU: "+q.what, area.Seconds, cpu.Seconds()/repeats)
	tape.Add(round, s.name, "last message: "+q.what, area.Seconds, last.elapsed.Seconds())
	tape.Add(round, s.name, "messages: "+q.what, area.Count, float64(last.messages))
	tape.Add(round, s.name, "bytes of messages: "+q.what, area.Bytes, float64(last.bytes))
	if q.what != plain.what && q.what != recentSeries.what {
		return nil
	}
	mallocs, err := s.server.MallocsDuring(ctx, func() error { return b.request(ctx, s, q) })
	if err != nil {
		return err
	}
	tape.Add(round, s.name, "mallocs: "+q.what, area.Count, float64(mallocs))
	return nil
}

// classic measures real, user and system time of a request, as remote read's table has them for Prometheus.
func (b *bench) classic(ctx context.Context, round int, s *side, q seriesRequest) error {
	if q.labels || len(q.without) > 0 {
		return nil
	}
	user, sys, err := s.server.TimesDuring(ctx, func() error { return b.request(ctx, s, q) })
	if err != nil {
		return err
	}
	tape := &b.out.Recorder
	tape.Add(round, s.name, "real: "+q.what, area.Seconds, b.messages[s.name+q.what].elapsed.Seconds())
	tape.Add(round, s.name, "user: "+q.what, area.Seconds, user.Seconds())
	tape.Add(round, s.name, "sys: "+q.what, area.Seconds, sys.Seconds())
	return nil
}

const (
	idleAnon = "RssAnon, idle"
	growth   = "growth of RssAnon: "
)

// measureMemory measures memory, each time on a new process.
func (b *bench) measureMemory(ctx context.Context, requests ...seriesRequest) error {
	for round := 1; round <= b.env.Rounds; round++ {
		for i := range b.sides {
			for _, q := range requests {
				if err := b.memory(ctx, round, &b.sides[i], q); err != nil {
					return err
				}
			}
		}
		b.env.Logf("round %d of %d: memory", round, b.env.Rounds)
	}
	return nil
}

func (b *bench) memory(ctx context.Context, round int, s *side, q seriesRequest) (err error) {
	if err := b.start(ctx, s); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	one, err := s.server.GrowthDuring(ctx, func() error { return b.request(ctx, s, q) })
	if err != nil {
		return err
	}
	b.out.Recorder.Add(round, s.name, idleAnon, area.Bytes, float64(one.Idle))
	b.out.Recorder.Add(round, s.name, growth+q.what, area.Bytes, float64(one.Bytes()))
	return nil
}

// conclude computes the figures of the goals.
func (b *bench) conclude() {
	tape, out := &b.out.Recorder, b.out
	cpu := "CPU: " + plain.what
	out.Measure("sidecar/cpu", tape.Over("ferula", "Thanos", cpu), cpu)
	labels := "CPU: " + labelsOnly.what
	out.Measure("sidecar/labels-only", tape.Over("ferula", "Thanos", labels), labels)
	out.Measure("sidecar/anon-mib", tape.Median("ferula", growth+plain.what)/(1<<20), growth+plain.what, idleAnon)
	out.Notes = append(out.Notes,
		fmt.Sprintf("%d series x %d h of 15-digit floats every 15 s in blocks of 2 h, behind one Prometheus, whose cost is not counted. CPU is that of the sidecar process per request, over %d requests in a row and the garbage collection after them.", series, hours, repeats),
		"The client requests batches of 64, as Thanos' querier does, and drops every message unread. Labels, order and chunks of both responses are equal; the sizes of their messages differ and are reported as bytes.",
		"Prometheus has two external labels, as in an HA pair. \"Without replica label\" is the request of a querier that deduplicates.",
		"Growth is that of a new process: the peak of RssAnon during its first request less RssAnon after a garbage collection before it.",
		"Real is the client's time; user and sys are those of the sidecar process, in ticks of 10 ms.",
		fmt.Sprintf("In the head: %d samples of each series, received by Prometheus and by ferula serve from remote write, full chunks memory-mapped; the last 2 h are requested. Labels and samples of all responses in this range are equal.", recent.Samples),
		"Store: what serves StoreAPI from a head, all of its processes together. Thanos: Prometheus and Thanos' sidecar. ferula: ferula serve, which needs no sidecar. \"Prometheus and sidecar\" has Prometheus with each of the two sidecars. Growth of several processes is the sum of their peaks.",
	)
}
