// Package sidecar measures what a StoreAPI over a Prometheus' remote read costs: goals sidecar/*.
//
// One Prometheus serves the blocks; Thanos' sidecar and ferula's run beside it as processes, with the same flags, and are
// asked for the same series in turn by one client that drains gRPC messages without looking into them. Before anything is
// measured both answers are read series by series and must be equal: labels, order, chunks. Prometheus' own cost is in no
// figure.
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

// Area is the table's entry.
var Area = area.Area{Name: "sidecar", About: "StoreAPI over Prometheus' remote read: sidecars of Thanos and ferula, as processes", Run: run}

const (
	series = 10_000
	hours  = 8
	stepMS = 15_000

	repeats = 3 // requests in a row for one reading
	config  = "global: {external_labels: {prometheus: bench, replica: a}}\nscrape_configs: []\n"
)

var spec = blocks.Spec{
	Metric: "bench_metric", Values: blocks.Floats15, Series: series, Samples: hours * 3600_000 / stepMS,
	StepMS: stepMS, StartMS: blocks.QuietStartMS, Seed: 1,
}

// question is one way to ask for all series.
type question struct {
	what    string
	without []string // replica labels to be taken away
}

var (
	plain       = question{what: "Series of 10,000 x 8 h"}
	withoutName = question{what: "Series of 10,000 x 8 h without replica label", without: []string{"replica"}}
)

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
	prometheus *proc.Server
	data       string
	sides      [2]side
	messages   map[string]answer // what an answer must be like, by side and question
	out        *area.Outcome
}

func run(ctx context.Context, env area.Env) (_ *area.Outcome, err error) {
	b := &bench{env: env, messages: map[string]answer{}, out: &area.Outcome{Sides: []string{"Thanos", "ferula"}}}
	env.Logf("blocks: %d series x %d samples", spec.Series, spec.Samples)
	from, err := blocks.Ensure(ctx, env.Cache, spec)
	if err != nil {
		return nil, err
	}
	prometheus, err := env.Programs.Get(ctx, peer.Prometheus)
	if err != nil {
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
	dir := filepath.Join(env.Cache, "run", "sidecar")
	b.out.Versions = append(b.out.Versions, prometheus.Version)
	for i, program := range []peer.Program{thanos, ferula} {
		b.sides[i] = side{name: b.out.Sides[i], program: program, dir: filepath.Join(dir, program.Name)}
		b.out.Versions = append(b.out.Versions, program.Version)
	}
	b.data = filepath.Join(dir, "prometheus", "data")
	if err := blocks.Copy(from, b.data); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "prometheus", "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return nil, err
	}
	if b.prometheus, err = proc.Start(ctx, prometheus.Serve(peer.TSDB{Dir: b.data, Config: file, Log: filepath.Join(dir, "prometheus", "log")})); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.prometheus.Stop()) }()
	if err := b.alive(ctx); err != nil {
		return nil, err
	}
	if err := b.fresh(ctx); err != nil {
		return nil, err
	}
	b.conclude()
	return b.out, nil
}

// start runs a sidecar. Both programs take the same flags.
func (b *bench) start(ctx context.Context, s *side) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	address := l.Addr().String()
	if err := errors.Join(l.Close(), os.MkdirAll(s.dir, 0o755)); err != nil {
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

func (s *side) stop() error {
	server, client := s.server, s.client
	s.server, s.client = nil, nil
	var err error
	if client != nil {
		err = client.conn.Close()
	}
	return errors.Join(err, server.Stop())
}

// alive runs both sidecars, compares their answers and measures what does not ask for a fresh process.
func (b *bench) alive(ctx context.Context) (err error) {
	for i := range b.sides {
		s := &b.sides[i]
		if err := b.start(ctx, s); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.stop()) }()
	}
	for _, q := range []question{plain, withoutName} {
		if err := b.compare(ctx, q); err != nil {
			return err
		}
	}
	for round := 1; round <= b.env.Rounds; round++ {
		for _, q := range []question{plain, withoutName} {
			for i := range b.sides {
				if err := b.measure(ctx, round, &b.sides[i], q); err != nil {
					return err
				}
			}
		}
		b.env.Logf("round %d of %d: CPU %v and %v s", round, b.env.Rounds, b.out.Tape.Best(b.sides[0].name, "CPU: "+plain.what), b.out.Tape.Best(b.sides[1].name, "CPU: "+plain.what))
	}
	return nil
}

// compare reads both answers and fails unless they hold the same series in the same order with the same chunks.
func (b *bench) compare(ctx context.Context, q question) error {
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
	if found[0].series != series || found[0].chunks < series*hours {
		return fmt.Errorf("%s: %w: %d series, %d chunks", q.what, area.ErrEmpty, found[0].series, found[0].chunks)
	}
	if found[0].sum != found[1].sum || found[0].series != found[1].series {
		return fmt.Errorf("%s: %w: %d series and %d chunks, %d and %d", q.what, area.ErrUnequal, found[0].series, found[0].chunks, found[1].series, found[1].chunks)
	}
	b.env.Logf("answers are equal: %s, %d series, %d chunks", q.what, found[0].series, found[0].chunks)
	return nil
}

// ask drains an answer and fails when it is not like the compared one.
func (b *bench) ask(ctx context.Context, s *side, q question) error {
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

func (b *bench) measure(ctx context.Context, round int, s *side, q question) error {
	cpu, err := s.server.CPUDuring(ctx, func() error {
		for range repeats {
			if err := b.ask(ctx, s, q); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	tape, last := &b.out.Tape, b.messages[s.name+q.what]
	tape.Add(round, s.name, "CPU: "+q.what, area.Seconds, cpu.Seconds()/repeats)
	tape.Add(round, s.name, "last message: "+q.what, area.Seconds, last.elapsed.Seconds())
	tape.Add(round, s.name, "messages: "+q.what, area.Count, float64(last.messages))
	tape.Add(round, s.name, "bytes of messages: "+q.what, area.Bytes, float64(last.bytes))
	if q.what != plain.what {
		return nil
	}
	mallocs, err := s.server.MallocsDuring(ctx, func() error { return b.ask(ctx, s, q) })
	if err != nil {
		return err
	}
	tape.Add(round, s.name, "mallocs: "+q.what, area.Count, float64(mallocs))
	return nil
}

const (
	idleAnon = "RssAnon, idle"
	growth   = "growth of RssAnon: "
)

// fresh measures memory, each time on a process that has just started.
func (b *bench) fresh(ctx context.Context) error {
	for round := 1; round <= b.env.Rounds; round++ {
		for i := range b.sides {
			for _, q := range []question{plain, withoutName} {
				if err := b.memory(ctx, round, &b.sides[i], q); err != nil {
					return err
				}
			}
		}
		b.env.Logf("round %d of %d: memory", round, b.env.Rounds)
	}
	return nil
}

func (b *bench) memory(ctx context.Context, round int, s *side, q question) (err error) {
	if err := b.start(ctx, s); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	one, err := s.server.GrowthDuring(ctx, func() error { return b.ask(ctx, s, q) })
	if err != nil {
		return err
	}
	b.out.Tape.Add(round, s.name, idleAnon, area.Bytes, float64(one.Idle))
	b.out.Tape.Add(round, s.name, growth+q.what, area.Bytes, float64(one.Bytes()))
	return nil
}

// conclude computes what the goals ask for.
func (b *bench) conclude() {
	tape, out := &b.out.Tape, b.out
	cpu := "CPU: " + plain.what
	out.Measure("sidecar/cpu", tape.Over("ferula", "Thanos", cpu), cpu)
	out.Measure("sidecar/anon-mib", tape.Best("ferula", growth+plain.what)/(1<<20), growth+plain.what, idleAnon)
	out.Notes = append(out.Notes,
		fmt.Sprintf("%d series x %d h of 15-digit floats every 15 s in blocks of 2 h, behind one Prometheus whose cost is in no figure. CPU is that of the sidecar's process per request, over %d in a row and the collection that follows them.", series, hours, repeats),
		"The client asks as Thanos' querier does, for batches of 64, and drops every message unread. Labels, order and chunks of both answers were compared before; ferula's messages are longer by what Thanos leaves out or shorter, as their bytes say.",
		"Prometheus has two external labels, as those have that have a twin. \"Without replica label\" is what a querier asks that de-duplicates.",
		"Growth is taken on a process that has just started: peak of RssAnon during its first request, less RssAnon after a collection before it.",
	)
}
