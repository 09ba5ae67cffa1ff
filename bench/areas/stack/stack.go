// Package stack measures a whole read path, from the client to the blocks: goals stack/*, the ratio of ferula's three
// components to Thanos' three. It measures the cost in each process and the latency. Stacks have the three components of
// Thanos, those of ferula, or one component of ferula and two of Thanos.
//
// One Prometheus serves the blocks to a sidecar, which serves a querier, which serves a query frontend. Each of the three is
// a process of Thanos or of ferula, with the same flags. Before the measurement the responses of every stack must equal those
// of Prometheus itself. The bytes of a hop are those that the process nearer to Prometheus writes.
package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
)

// Area is the entry of this area in the list of cmd/bench.
var Area = area.Area{
	Name: "stack", About: "sidecar, querier and query frontend of Thanos and ferula, together and mixed, as processes", Run: run,
}

const (
	series = 10_000
	hours  = 8
	stepMS = 15_000
	points = 161
	config = "global: {external_labels: {prometheus: bench, replica: a}}\nscrape_configs: []\n"

	clientsMax       = 16
	queriesPerClient = 2 // small queries per client
	roundsMax        = 2 // a round takes half a minute for each stack
)

var spec = blocks.Spec{
	Metric: "bench_metric", Values: blocks.Floats15, Series: series, Samples: hours * 3600_000 / stepMS,
	StepMS: stepMS, StartMS: blocks.QuietStartMS, Seed: 1,
}

// rangeQuery is one range query.
type rangeQuery struct {
	what, expr string
	series     int // number of series in the response
}

var (
	whole = rangeQuery{"10,000 series x 161 points", "bench_metric", series}
	few   = rangeQuery{"500 series x 161 points", `bench_metric{namespace="team-07"}`, 500}
	sums  = rangeQuery{"sum by (namespace) of 10,000", "sum by (namespace) (bench_metric)", 20}
)

func (q rangeQuery) request() proc.Request {
	seconds := func(ms int64) string { return strconv.FormatFloat(float64(ms)/1000, 'f', -1, 64) }
	const step = 180_000
	start := blocks.QuietStartMS + int64(60_000)
	return proc.Request{Path: "/api/v1/query_range", Query: url.Values{
		"query": {q.expr}, "start": {seconds(start)}, "end": {seconds(start + (points-1)*step)}, "step": {seconds(step)},
	}}
}

// Components, from the client to the blocks.
const (
	frontend = iota
	querier
	sidecar
	parts
)

var partNames = [parts]string{"query-frontend", "query", "sidecar"}

// stack is one combination of programs.
type stack struct {
	name    string
	ferula  [parts]bool
	servers [parts]*proc.Server
}

const (
	allThanos = "Thanos"
	allFerula = "ferula"
)

func stacks() []*stack {
	return []*stack{
		{name: allThanos},
		{name: "ferula sidecar", ferula: [parts]bool{sidecar: true}},
		{name: "ferula query", ferula: [parts]bool{querier: true}},
		{name: "ferula frontend", ferula: [parts]bool{frontend: true}},
		{name: allFerula, ferula: [parts]bool{true, true, true}},
	}
}

// bench is one run of the area.
type bench struct {
	env            area.Env
	dir            string
	thanos, ferula peer.Program
	prometheus     *proc.Server
	data           string
	out            *area.Outcome
}

func run(ctx context.Context, env area.Env) (_ *area.Outcome, err error) {
	b := &bench{env: env, dir: filepath.Join(env.Cache, "run", "stack"), out: &area.Outcome{}}
	from, err := blocks.Ensure(ctx, env.Cache, spec)
	if err != nil {
		return nil, err
	}
	prometheus, err := env.Programs.Get(ctx, peer.Prometheus)
	if err != nil {
		return nil, err
	}
	if b.thanos, err = env.Programs.Get(ctx, peer.Thanos); err != nil {
		return nil, err
	}
	if b.ferula, err = env.Programs.Ferula(ctx, peer.Thanos); err != nil {
		return nil, err
	}
	b.out.Versions = []string{prometheus.Version, b.thanos.Version, b.ferula.Version}
	b.data = filepath.Join(b.dir, "prometheus", "data")
	if err := blocks.Copy(from, b.data); err != nil {
		return nil, err
	}
	file := filepath.Join(b.dir, "prometheus", "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return nil, err
	}
	if b.prometheus, err = proc.Start(ctx, prometheus.Serve(peer.TSDB{Dir: b.data, Config: file, Log: filepath.Join(b.dir, "prometheus", "log")})); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.prometheus.Stop()) }()
	for _, s := range stacks() {
		b.out.Sides = append(b.out.Sides, s.name)
		if err := b.measure(ctx, s); err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		env.Logf("measured: %s", s.name)
	}
	b.conclude()
	b.out.Notes = []string{
		fmt.Sprintf("%d series x %d h of 15-digit floats every 15 s in blocks of 2 h, behind one Prometheus with external labels; range queries of %d steps of 3 min to the frontend, which has a split interval of one day and no cache. The ratio compares the last column with the first.", series, hours, points),
		"CPU is that of a process for one query, with the garbage collection after it. Peak is RssAnon during the first large query of new processes. Bytes are those a process writes by system calls during a query: the response to the component above it and a few log lines.",
		"Latency is the mean over all queries of the given number of clients. Each client sends the same query, one after the other.",
		"The responses of every stack equal those of Prometheus, compared series by series and point by point.",
	}
	return b.out, nil
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// start runs the components, the sidecar first. Both programs have the same flags.
func (b *bench) start(ctx context.Context, s *stack) error {
	below, err := freeAddress()
	if err != nil {
		return err
	}
	other, err := freeAddress()
	if err != nil {
		return err
	}
	for part := parts - 1; part >= 0; part-- {
		program := b.thanos
		if s.ferula[part] {
			program = b.ferula
		}
		s.servers[part], err = proc.Start(ctx, proc.Spec{
			Name: program.Name + " " + partNames[part], Path: program.Path, Env: peer.RuntimeEnv(), Ready: "/-/ready",
			Log: filepath.Join(b.dir, s.name, partNames[part]+".log"),
			Args: func(http string) []string {
				args := []string{partNames[part], "--http-address=" + http}
				switch part {
				case sidecar:
					return append(args, "--grpc-address="+below, "--prometheus.url="+b.prometheus.URL(), "--tsdb.path="+b.data)
				case querier:
					return append(args, "--grpc-address="+other, "--endpoint="+below, "--query.replica-label=replica")
				}
				return append(args, "--query-frontend.downstream-url="+s.servers[querier].URL(), "--query-range.split-interval=24h", "--no-query-range.align-range-with-step")
			},
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *stack) stop() error {
	var errs []error
	for i, server := range s.servers {
		if server != nil {
			errs = append(errs, server.Stop())
			s.servers[i] = nil
		}
	}
	return errors.Join(errs...)
}

// measure takes all readings of one stack.
func (b *bench) measure(ctx context.Context, s *stack) (err error) {
	defer func() { err = errors.Join(err, s.stop()) }()
	if err := b.start(ctx, s); err != nil {
		return err
	}
	if err := b.waitForStore(ctx, s); err != nil {
		return err
	}
	if err := b.peaks(ctx, s); err != nil {
		return err
	}
	for _, q := range []rangeQuery{whole, few, sums} {
		if err := b.compare(ctx, s, q); err != nil {
			return err
		}
	}
	for round := 1; round <= min(b.env.Rounds, roundsMax); round++ {
		for _, q := range []rangeQuery{whole, sums} {
			if err := b.costs(ctx, round, s, q); err != nil {
				return err
			}
		}
		for _, clients := range []int{1, 4, clientsMax} {
			if err := b.latency(ctx, round, s, clients); err != nil {
				return err
			}
		}
	}
	return nil
}

// waitForStore waits until the querier has discovered its store.
func (b *bench) waitForStore(ctx context.Context, s *stack) error {
	for range 100 {
		if body, _, err := s.servers[querier].Fetch(ctx, few.request()); err == nil && len(body) > 10_000 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
	return errors.New("the querier has not discovered its store")
}

// query sends a query to the frontend.
func (s *stack) query(ctx context.Context, q rangeQuery) (proc.Response, error) {
	a, err := s.servers[frontend].Get(ctx, q.request(), io.Discard)
	if err == nil && a.Bytes < int64(q.series)*points {
		err = fmt.Errorf("%s: %w: %d bytes", q.what, area.ErrEmpty, a.Bytes)
	}
	return a, err
}

// peaks measures the memory of all components during the first large query.
func (b *bench) peaks(ctx context.Context, s *stack) error {
	work := func() error { _, err := s.query(ctx, whole); return err }
	var total int64
	for part, server := range s.servers {
		below := work
		work = func() error {
			g, err := server.GrowthDuring(ctx, below)
			b.out.Recorder.Add(1, s.name, "peak RssAnon: "+partNames[part], area.Bytes, float64(g.Peak))
			total += g.Peak
			return err
		}
	}
	if err := work(); err != nil {
		return err
	}
	b.out.Recorder.Add(1, s.name, peakOfAll, area.Bytes, float64(total))
	return nil
}

// costs measures the CPU of each component and of Prometheus for one query, and the bytes that each writes.
func (b *bench) costs(ctx context.Context, round int, s *stack, q rangeQuery) error {
	type part struct {
		name   string
		server *proc.Server
	}
	all := []part{{"Prometheus", b.prometheus}}
	for i, server := range slices.Backward(s.servers[:]) {
		all = append(all, part{partNames[i], server})
	}
	var total time.Duration
	tape := &b.out.Recorder
	work := func() error { _, err := s.query(ctx, q); return err }
	for _, p := range all {
		below := work
		work = func() error {
			before, err := p.server.IO()
			if err != nil {
				return err
			}
			var wrote proc.IO
			cpu, err := p.server.CPUDuring(ctx, func() error {
				err := below()
				after, ioErr := p.server.IO()
				wrote = after.Sub(before)
				return errors.Join(err, ioErr)
			})
			tape.Add(round, s.name, "CPU: "+q.what+": "+p.name, area.Seconds, cpu.Seconds())
			tape.Add(round, s.name, "bytes written: "+q.what+": "+p.name, area.Bytes, float64(wrote.WriteBytes))
			if p.server != b.prometheus {
				total += cpu
			}
			return err
		}
	}
	if err := work(); err != nil {
		return err
	}
	tape.Add(round, s.name, cpuOfAll(q), area.Seconds, total.Seconds())
	return nil
}

// latency measures the duration of small queries with a number of concurrent clients.
func (b *bench) latency(ctx context.Context, round int, s *stack, clients int) error {
	var mu sync.Mutex
	var sum time.Duration
	var errs []error
	var wait sync.WaitGroup
	for range clients {
		wait.Go(func() {
			c := proc.NewClient(s.servers[frontend].URL())
			defer c.Close()
			for range queriesPerClient {
				a, err := c.Get(ctx, few.request(), io.Discard)
				if err == nil && a.Bytes < int64(few.series)*points {
					err = fmt.Errorf("%s: %w: %d bytes", few.what, area.ErrEmpty, a.Bytes)
				}
				mu.Lock()
				sum += a.Elapsed
				if err != nil {
					errs = append(errs, err)
				}
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	if len(errs) > 0 {
		return errs[0]
	}
	b.out.Recorder.Add(round, s.name, latencyOf(clients), area.Seconds, sum.Seconds()/float64(clients*queriesPerClient))
	return nil
}

const peakOfAll = "peak RssAnon: all three"

func cpuOfAll(q rangeQuery) string { return "CPU: " + q.what + ": all three" }

func latencyOf(clients int) string {
	return fmt.Sprintf("latency: %s, %d clients", few.what, clients)
}

// conclude computes the figures of the goals: the cost of ferula's three components divided by that of Thanos' three.
func (b *bench) conclude() {
	for goal, what := range map[string]string{
		"stack/every-point": cpuOfAll(whole), "stack/sum-by": cpuOfAll(sums), "stack/anon": peakOfAll, "stack/latency-16": latencyOf(clientsMax),
	} {
		b.out.Measure(goal, b.out.Recorder.Over(allFerula, allThanos, what), what)
	}
}
