// Package stack measures a whole read path, from the client to the blocks: goals stack/*, the ratio of the cost of ferula's
// components to that of Thanos'. It measures the cost in each process and the latency.
//
// There are five layouts. In the first, one Prometheus serves all blocks to a sidecar, which serves a querier, which serves
// a query frontend. Stacks have the three components of Thanos, with either engine, those of ferula, or one of ferula and
// two of Thanos. In the second, the older half of the blocks is in a bucket, which a store gateway serves to the querier;
// Prometheus has the other half. In the third, Prometheus has all blocks, and the bucket all but the newest. The fourth is
// the first with native histograms. The fifth is the second with one more block, of late samples. Each component is a
// process of Thanos or of ferula, with the same flags. Before the measurement the responses of every stack must equal those
// of a Prometheus with all blocks, and where samples are late those of Thanos. The bytes of a hop are those that the process
// nearer to the blocks writes. A goal's figure is the worse of the ratios of the first two layouts; overlap-sum-by is the
// third one's.
package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/common/model"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
)

// Area is the entry of this area in the list of cmd/bench.
var Area = area.Area{
	Name: "stack", About: "sidecar, store gateway, querier and query frontend of Thanos and ferula, together and mixed, as processes",
	Sides: []string{allThanos, ownEngine, "ferula sidecar", "ferula query", "ferula frontend", remoteRead, allFerula}, Run: run,
}

const (
	clientsMax       = 16
	queriesPerClient = 2 // small queries per client

	tolerance = 1e-9 // the engine in Thanos' querier is of an older release than Prometheus'
)

func spec() blocks.Spec { return area.Floats(8) }

// natives are native histograms.
func natives() blocks.Spec {
	s := spec()
	s.Metric, s.Values, s.Series = "bench_native", blocks.Native, 200
	return s
}

func whole() area.Query {
	return area.EightHours("10,000 series x 161 points", "bench_metric", spec().Series)
}
func few() area.Query {
	return area.EightHours("500 series x 161 points", `bench_metric{namespace="team-07"}`, 500)
}
func sums() area.Query {
	return area.EightHours("sum by (namespace) of 10,000", "sum by (namespace) (bench_metric)", 20)
}

// sumsWithin begins and ends within chunks, as the queries of a dashboard.
func sumsWithin() area.Query {
	q := area.EightHours("sum by (namespace) of 10,000, 6 h within the blocks", sums().Expr, 20)
	q.StartMS, q.Points = q.StartMS+3600_000, 121
	return q
}

// late are samples for hours that other blocks have, too, with times between theirs.
func late() blocks.Spec {
	s := spec()
	s.StartMS, s.StepMS, s.Samples, s.Seed = s.StartMS+2*3600_000, 60_000, 120, 2
	return s
}

// queries are the queries of a layout.
type queries struct {
	large area.Query
	few   area.Query   // of few series: for the latency
	more  []area.Query // whose costs are measured, too
}

func (q queries) all() []area.Query { return append([]area.Query{q.few, q.large}, q.more...) }

func ofFloats() queries { return queries{whole(), few(), []area.Query{sums()}} }

func ofOverlap() queries {
	q := ofFloats()
	q.more = append(q.more, sumsWithin())
	return q
}

func ofNatives() queries {
	return queries{large: area.EightHours("200 native histograms x 161 points", "bench_native", natives().Series),
		few: area.EightHours("10 native histograms x 161 points", `bench_native{namespace="team-07"}`, 10)}
}

// Components, from the client to the blocks.
const (
	frontend = iota
	querier
	sidecar
	store
	parts
)

var partNames = [parts]string{"query-frontend", "query", "sidecar", "store"}

// layout is where the blocks are, and the stacks that read them.
type layout struct {
	prefix string // of the names of its readings
	data   blocks.Spec
	late   blocks.Spec // further blocks of the bucket; no series: none
	queries
	bucket string // directory of a bucket; "": there is no store
	remote int    // number of blocks in the bucket, the oldest
	gone   int    // number of these that Prometheus no longer has
	stacks []*stack
}

// stack is one combination of programs. A part that does not run has no server: the store without a bucket.
type stack struct {
	name   string
	ferula [parts]bool
	query  []string // flags of the querier
	parts  [parts]*area.Side
}

const (
	allThanos = "Thanos"
	ownEngine = "Thanos' engine"
	allFerula = "ferula"
	// the sidecar's directory is not that of Prometheus
	remoteRead = "ferula by remote read"

	withStore = "with a store: "
	overlap   = "store and sidecar with the same blocks: "
	native    = "native histograms: "
	lateOnes  = "late samples in a block of their own: "
)

var everyPart = [parts]bool{true, true, true, true}

func layouts(bucket string) []layout {
	programs := func() []*stack {
		return []*stack{{name: allThanos}, {name: ownEngine, query: []string{"--query.promql-engine=thanos"}},
			{name: allFerula, ferula: everyPart}}
	}
	return []layout{{data: spec(), queries: ofFloats(), stacks: slices.Insert(programs(), 2,
		&stack{name: "ferula sidecar", ferula: [parts]bool{sidecar: true}},
		&stack{name: "ferula query", ferula: [parts]bool{querier: true}},
		&stack{name: "ferula frontend", ferula: [parts]bool{frontend: true}},
		&stack{name: remoteRead, ferula: everyPart},
	)},
		{prefix: withStore, data: spec(), queries: ofFloats(), bucket: bucket, remote: 2, gone: 2, stacks: programs()},
		{prefix: overlap, data: spec(), queries: ofOverlap(), bucket: bucket, remote: 3, stacks: programs()},
		{prefix: native, data: natives(), queries: ofNatives(), stacks: programs()},
		{prefix: lateOnes, data: spec(), late: late(), queries: ofFloats(), bucket: bucket, remote: 2, gone: 2, stacks: programs()},
	}
}

// bench is one run of the area.
type bench struct {
	*area.Bench
	programs   []*area.Side // Thanos and ferula
	prometheus *area.Side
	want       map[string]model.Matrix
}

func run(ctx context.Context, of *area.Bench) (err error) {
	b := &bench{Bench: of, want: map[string]model.Matrix{}}
	if b.prometheus, err = b.SideOf(ctx, "Prometheus", peer.Prometheus, "prometheus"); err != nil {
		return err
	}
	if b.programs, err = b.Pair(ctx, peer.Thanos); err != nil {
		return err
	}
	for _, l := range layouts(filepath.Join(b.Dir, "bucket")) {
		from, err := blocks.Ensure(ctx, b.Cache, l.data)
		if err != nil {
			return err
		}
		if err := distribute(from, b.prometheus.TSDBDir(), l); err != nil {
			return err
		}
		if l.late.Series > 0 {
			if err := b.addLate(ctx, l); err != nil {
				return err
			}
		}
		launch := b.TSDB(ctx, area.TSDB{Keep: true, Config: area.Replica})
		if err := b.With(ctx, launch, func() error { return b.layout(ctx, l) }, b.prometheus); err != nil {
			return fmt.Errorf("%s%w", l.prefix, err)
		}
	}
	b.conclude()
	b.Note(
		fmt.Sprintf("%d series x 8 h of 15-digit floats every 15 s in blocks of 2 h, behind one Prometheus with external labels; range queries of %d steps of 3 min to the frontend, which has a split interval of one day and no cache. The ratio compares the last column with the first.", spec().Series, whole().Points),
		"Rows with \""+withStore+"\": the older half of the blocks is in a bucket (a directory), which a store gateway serves; Prometheus has the newer half, and a query of 8 h reads both. Mixed stacks are not measured there. Rows with \""+overlap+"\": Prometheus has all blocks and the bucket all but the newest, as where a sidecar uploads blocks that Prometheus keeps for a while. Rows with \""+lateOnes+"\": one block more in the bucket, of the same series, with a sample a minute for two of the eight hours, as of a client that was cut off; the responses are compared with Thanos'. Rows with \""+native+"\": "+fmt.Sprint(natives().Series)+" histograms of 20 buckets instead of the floats, in all four protocols: remote read, StoreAPI, JSON, and the frontend's. \"All\" is the sum of a stack's processes without Prometheus. A goal takes the worse of the two ratios, with and without a store, where no block is in both; overlap-sum-by is the worse of the ratios where the same blocks are in both, of all hours and of six within them. \""+ownEngine+"\": Thanos' three with --query.promql-engine=thanos, beside the default, which the ratios are computed from.",
		"CPU is that of a process for one query, with the garbage collection after it. Peak is RssAnon during the first large query of new processes. Bytes are those a process writes by system calls during a query: the response to the component above it and a few log lines.",
		fmt.Sprintf("Latency is the mean over all queries of the given number of clients. Each client sends the same query %d times, one after the other. The response is longer than those that ferula's frontend shares between identical requests.", queriesPerClient),
		"Every round starts the processes of each stack again, one stack after the other.",
		"The responses of every stack equal those of a Prometheus with all blocks, compared series by series and point by point.",
	)
	return nil
}

// external are the labels of area.Replica.
var external = map[string]string{"prometheus": "bench", "replica": "a"}

// addLate adds the blocks of late samples to the bucket.
func (b *bench) addLate(ctx context.Context, l layout) error {
	from, err := blocks.Ensure(ctx, b.Cache, l.late)
	if err != nil {
		return err
	}
	all, err := blocks.List(from)
	for _, block := range all {
		err = errors.Join(err, blocks.LinkToBucket(block, l.bucket, filepath.Base(block), external))
	}
	return err
}

// distribute gives Prometheus and the bucket the blocks of a layout.
func distribute(from, data string, l layout) error {
	if err := blocks.Copy(from, data); err != nil || l.bucket == "" {
		return err
	}
	all, err := blocks.List(data)
	if err := errors.Join(err, os.RemoveAll(l.bucket)); err != nil {
		return err
	}
	for i, block := range all[:l.remote] {
		err := blocks.LinkToBucket(block, l.bucket, filepath.Base(block), external)
		if err == nil && i < l.gone {
			err = os.RemoveAll(block)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// layout measures the stacks of a layout in front of Prometheus.
func (b *bench) layout(ctx context.Context, l layout) error {
	if l.late.Series > 0 {
		clear(b.want) // Thanos' responses are expected: it deduplicates what overlaps, Prometheus merges it
	} else if l.gone == 0 { // Prometheus has all blocks
		for _, q := range l.all() {
			m, err := matrixOf(ctx, b.prometheus.Server, q)
			if err != nil {
				return err
			}
			b.want[q.What] = m
		}
	}
	return b.EachRound(l.prefix+"stacks", func(round int) error {
		for _, s := range l.stacks {
			if err := b.measure(ctx, round, l, s); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
		return nil
	})
}

// matrixOf requests q and returns the response without the external label that the querier keeps, sorted by labels.
func matrixOf(ctx context.Context, from *proc.Server, q area.Query) (model.Matrix, error) {
	m, err := q.Result(ctx, from)
	for _, s := range m {
		delete(s.Metric, "prometheus")
	}
	return m, err
}

// compare queries a server. It returns an error unless the response has all series with all points, and the timestamps and
// values of b.want. If b.want has no response to the query, this one becomes it.
func (b *bench) compare(ctx context.Context, from *proc.Server, q area.Query) error {
	got, err := matrixOf(ctx, from, q)
	if want, known := b.want[q.What]; known && err == nil {
		err = area.SameMatrix(q.What, got, want, tolerance)
	}
	if err == nil {
		err = q.Complete(got)
	}
	if err == nil {
		b.want[q.What] = got
	}
	return err
}

// start starts the components, those nearest to the blocks first. Both programs have the same flags.
func (b *bench) start(ctx context.Context, l layout, s *stack) error {
	var endpoints []string
	for part := parts - 1; part >= 0; part-- {
		of := b.programs[0]
		if s.ferula[part] {
			of = b.programs[1]
		}
		side := b.Side(partNames[part], of.Program, filepath.Join(s.name, partNames[part]))
		s.parts[part] = side
		if part == store && l.bucket == "" {
			continue
		}
		err := side.Start(ctx, func(*area.Side) (proc.Spec, error) {
			address, err := proc.FreeAddress()
			switch part {
			case store:
				endpoints = append(endpoints, address)
				return of.Program.Store(side.Log(), address, l.bucket, side.TSDBDir()), err
			case sidecar:
				endpoints = append(endpoints, address)
				data := b.prometheus.TSDBDir()
				if s.name == remoteRead {
					data = side.TSDBDir()
				}
				return of.Program.Sidecar(side.Log(), address, b.prometheus.URL(), data), err
			case querier:
				return of.Program.Query(side.Log(), address, endpoints, append(s.query, "--query.replica-label=replica")...), err
			}
			return of.Program.Frontend(side.Log(), s.parts[querier].URL(), "24h"), err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *stack) stop() error {
	var errs []error
	for _, p := range s.parts {
		if p != nil {
			errs = append(errs, p.Stop())
		}
	}
	return errors.Join(errs...)
}

// running returns the parts that run, from the blocks to the client.
func (s *stack) running() (all []*area.Side) {
	for i := parts - 1; i >= 0; i-- {
		if s.parts[i].Server != nil {
			all = append(all, s.parts[i])
		}
	}
	return all
}

// measure takes one reading of everything of one stack, from new processes.
func (b *bench) measure(ctx context.Context, round int, l layout, s *stack) (err error) {
	defer func() { err = errors.Join(err, s.stop()) }()
	if err := b.start(ctx, l, s); err != nil {
		return err
	}
	err = proc.Until(ctx, 20*time.Second, 200*time.Millisecond, "the querier has discovered its stores", func() error {
		return b.compare(ctx, s.parts[querier].Server, l.few)
	})
	if err != nil {
		return err
	}
	if err := b.peaks(ctx, round, l, s); err != nil {
		return err
	}
	for _, q := range l.all() {
		if err := b.compare(ctx, s.parts[frontend].Server, q); err != nil {
			return err
		}
	}
	for _, q := range append(l.more, l.large) {
		if err := b.costs(ctx, round, l, s, q); err != nil {
			return err
		}
	}
	for _, clients := range []int{1, 4, clientsMax} {
		if err := b.latency(ctx, round, l, s, clients); err != nil {
			return err
		}
	}
	return nil
}

// send sends a query to the frontend.
func (b *bench) send(ctx context.Context, s *stack, q area.Query) (proc.Response, error) {
	a, err := s.parts[frontend].Get(ctx, q.Request(), io.Discard)
	if err == nil && a.Bytes < int64(q.Series*q.Points) {
		err = fmt.Errorf("%s: %w: %d bytes", q.What, area.ErrEmpty, a.Bytes)
	}
	return a, err
}

// peaks measures the memory of all components during the first large query.
func (b *bench) peaks(ctx context.Context, round int, l layout, s *stack) error {
	var total int64
	err := area.Around(s.running(), func(p *area.Side, work func() error) error {
		g, err := p.GrowthDuring(ctx, work)
		b.Add(round, s.name, l.prefix+"peak RssAnon: "+p.Name, area.Bytes, float64(g.Peak))
		total += g.Peak
		return err
	}, func() error { _, err := b.send(ctx, s, l.large); return err })
	b.Add(round, s.name, l.prefix+peakOfAll, area.Bytes, float64(total))
	return err
}

// costs measures the CPU of each component and of Prometheus for one query, and the bytes that each writes.
func (b *bench) costs(ctx context.Context, round int, l layout, s *stack, q area.Query) error {
	var total time.Duration
	err := area.Around(append([]*area.Side{b.prometheus}, s.running()...), func(p *area.Side, work func() error) error {
		before, err := p.IO()
		if err != nil {
			return err
		}
		var wrote proc.IO
		cpu, err := p.CPUDuring(ctx, func() error {
			err := work()
			after, ioErr := p.IO()
			wrote = after.Sub(before)
			return errors.Join(err, ioErr)
		})
		b.Add(round, s.name, l.prefix+"CPU: "+q.What+": "+p.Name, area.Seconds, cpu.Seconds())
		b.Add(round, s.name, l.prefix+"bytes written: "+q.What+": "+p.Name, area.Bytes, float64(wrote.WriteBytes))
		if p != b.prometheus {
			total += cpu
		}
		return err
	}, func() error { _, err := b.send(ctx, s, q); return err })
	b.Add(round, s.name, l.prefix+cpuOfAll(q), area.Seconds, total.Seconds())
	return err
}

// latency measures the mean duration of small queries with a number of concurrent clients.
func (b *bench) latency(ctx context.Context, round int, l layout, s *stack, clients int) error {
	took := make([]time.Duration, clients)
	err := proc.Parallel(clients, func(i int) error {
		for range queriesPerClient {
			a, err := b.send(ctx, s, l.few)
			if err != nil {
				return err
			}
			took[i] += a.Elapsed
		}
		return nil
	})
	var sum time.Duration
	for _, t := range took {
		sum += t
	}
	b.Add(round, s.name, l.prefix+latencyOf(l.few, clients), area.Seconds, sum.Seconds()/float64(clients*queriesPerClient))
	return err
}

const peakOfAll = "peak RssAnon: all"

func cpuOfAll(q area.Query) string { return "CPU: " + q.What + ": all" }

func latencyOf(q area.Query, clients int) string {
	return fmt.Sprintf("latency: %s, %d clients", q.What, clients)
}

// conclude computes the figures of the goals: the cost of ferula's components divided by that of Thanos', in the layout where
// that is worse.
func (b *bench) conclude() {
	for goal, what := range map[string]string{
		"every-point": cpuOfAll(whole()), "sum-by": cpuOfAll(sums()), "anon": peakOfAll, "latency-16": latencyOf(few(), clientsMax),
	} {
		b.Ratio("stack/"+goal, what, withStore+what)
	}
	b.Ratio("stack/overlap-sum-by", overlap+cpuOfAll(sums()), overlap+cpuOfAll(sumsWithin()))
}
