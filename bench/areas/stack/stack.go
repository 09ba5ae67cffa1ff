// Package stack measures a whole read path, from the client to the blocks: goals stack/*, the ratio of the cost of ferula's
// components to that of Thanos'. It measures the cost in each process and the latency.
//
// There are two layouts. In the first, one Prometheus serves all blocks to a sidecar, which serves a querier, which serves a
// query frontend. Stacks have the three components of Thanos, those of ferula, or one of ferula and two of Thanos. In the
// second, the older half of the blocks is in a bucket, which a store gateway serves to the querier; Prometheus has the other
// half. Each component is a process of Thanos or of ferula, with the same flags. Before the measurement the responses of
// every stack must equal those of a Prometheus with all blocks. The bytes of a hop are those that the process nearer to the
// blocks writes. A goal's figure is the worse of the two layouts' ratios.
package stack

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	"github.com/prometheus/prometheus/promql"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
)

// Area is the entry of this area in the list of cmd/bench.
var Area = area.Area{
	Name: "stack", About: "sidecar, store gateway, querier and query frontend of Thanos and ferula, together and mixed, as processes", Run: run,
}

const (
	series = 10_000
	hours  = 8
	stepMS = 15_000
	points = 161
	config = "global: {external_labels: {prometheus: bench, replica: a}}\nscrape_configs: []\n"

	queryStepMS  = 180_000
	queryStartMS = blocks.QuietStartMS + 60_000
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

func queries() []rangeQuery { return []rangeQuery{whole, few, sums} }

func (q rangeQuery) request() proc.Request {
	seconds := func(ms int64) string { return strconv.FormatFloat(float64(ms)/1000, 'f', -1, 64) }
	return proc.Request{Path: "/api/v1/query_range", Query: url.Values{
		"query": {q.expr}, "start": {seconds(queryStartMS)}, "end": {seconds(queryStartMS + (points-1)*queryStepMS)}, "step": {seconds(queryStepMS)},
	}}
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
	bucket string // directory of the older half of the blocks; "" if Prometheus has all blocks
	stacks []*stack
}

// stack is one combination of programs.
type stack struct {
	name    string
	ferula  [parts]bool
	servers [parts]*proc.Server // nil while it does not run, and without a bucket that of the store
}

const (
	allThanos = "Thanos"
	allFerula = "ferula"

	withStore = "with a store: "
)

var everyPart = [parts]bool{true, true, true, true}

func layouts(bucket string) []layout {
	return []layout{{stacks: []*stack{
		{name: allThanos},
		{name: "ferula sidecar", ferula: [parts]bool{sidecar: true}},
		{name: "ferula query", ferula: [parts]bool{querier: true}},
		{name: "ferula frontend", ferula: [parts]bool{frontend: true}},
		{name: allFerula, ferula: everyPart},
	}}, {prefix: withStore, bucket: bucket, stacks: []*stack{{name: allThanos}, {name: allFerula, ferula: everyPart}}}}
}

// bench is one run of the area.
type bench struct {
	env                        area.Env
	dir                        string
	thanos, ferula, prometheus peer.Program
	data                       string       // Prometheus' directory of blocks
	server                     *proc.Server // Prometheus
	want                       map[string]promql.Matrix
	out                        *area.Outcome
}

func run(ctx context.Context, env area.Env) (*area.Outcome, error) {
	b := &bench{
		env: env, dir: filepath.Join(env.Cache, "run", "stack"), want: map[string]promql.Matrix{},
		out: &area.Outcome{Sides: []string{allThanos, "ferula sidecar", "ferula query", "ferula frontend", allFerula}},
	}
	from, err := blocks.Ensure(ctx, env.Cache, spec)
	if err != nil {
		return nil, err
	}
	var errs [3]error
	b.prometheus, errs[0] = env.Programs.Get(ctx, peer.Prometheus)
	b.thanos, errs[1] = env.Programs.Get(ctx, peer.Thanos)
	b.ferula, errs[2] = env.Programs.Ferula(ctx, peer.Thanos)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	b.out.Versions = []string{b.prometheus.Version, b.thanos.Version, b.ferula.Version}
	b.data = filepath.Join(b.dir, "prometheus", "data")
	for _, l := range layouts(filepath.Join(b.dir, "bucket")) {
		if err := b.layout(ctx, from, l); err != nil {
			return nil, fmt.Errorf("%s%w", l.prefix, err)
		}
	}
	b.conclude()
	b.out.Notes = notes()
	return b.out, nil
}

func notes() []string {
	return []string{
		fmt.Sprintf("%d series x %d h of 15-digit floats every 15 s in blocks of 2 h, behind one Prometheus with external labels; range queries of %d steps of 3 min to the frontend, which has a split interval of one day and no cache. The ratio compares the last column with the first.", series, hours, points),
		"Rows with \"" + withStore + "\": the older half of the blocks is in a bucket (a directory), which a store gateway serves; Prometheus has the newer half, and a query of 8 h reads both. Mixed stacks are not measured there. No block is in both. Where sidecar and store have the same blocks, ferula's stores send more chunks: what remains of them at the steps of a query is not joined. That is not measured. \"All\" is the sum of a stack's processes without Prometheus. A goal takes the worse of the two ratios, with and without a store.",
		"CPU is that of a process for one query, with the garbage collection after it. Peak is RssAnon during the first large query of new processes. Bytes are those a process writes by system calls during a query: the response to the component above it and a few log lines.",
		fmt.Sprintf("Latency is the mean over all queries of the given number of clients. Each client sends the same query %d times, one after the other. The response is longer than those that ferula's frontend shares between identical requests.", queriesPerClient),
		"Every round starts the processes of each stack again, one stack after the other.",
		"The responses of every stack equal those of a Prometheus with all blocks, compared series by series and point by point.",
	}
}

// layout distributes the blocks, starts Prometheus and measures the stacks of a layout.
func (b *bench) layout(ctx context.Context, from string, l layout) (err error) {
	if err := b.distribute(from, l.bucket); err != nil {
		return err
	}
	file := filepath.Join(b.dir, "prometheus", "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return err
	}
	b.server, err = proc.Start(ctx, b.prometheus.Serve(peer.TSDB{Dir: b.data, Config: file, Log: filepath.Join(b.dir, "prometheus", "log")}))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.server.Stop()) }()
	if l.bucket == "" {
		if err := b.expect(ctx); err != nil {
			return err
		}
	}
	for round := 1; round <= b.env.Rounds; round++ {
		for _, s := range l.stacks {
			if err := b.measure(ctx, round, l, s); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			b.env.Logf("round %d of %d: %s%s: CPU %.4g s", round, b.env.Rounds, l.prefix, s.name, b.out.Recorder.Median(s.name, l.prefix+cpuOfAll(whole)))
		}
	}
	return nil
}

// distribute gives Prometheus all blocks, or the newer half if there is a bucket for the others.
func (b *bench) distribute(from, bucket string) error {
	if err := blocks.Copy(from, b.data); err != nil || bucket == "" {
		return err
	}
	if err := os.RemoveAll(bucket); err != nil {
		return err
	}
	all, err := blocks.List(b.data)
	if err != nil {
		return err
	}
	for _, block := range all[:len(all)/2] {
		// The external labels are those of Prometheus' configuration.
		err := blocks.LinkToBucket(block, bucket, filepath.Base(block), map[string]string{"prometheus": "bench", "replica": "a"})
		if err := errors.Join(err, os.RemoveAll(block)); err != nil {
			return err
		}
	}
	return nil
}

const peakOfAll = "peak RssAnon: all"

func cpuOfAll(q rangeQuery) string { return "CPU: " + q.what + ": all" }

func latencyOf(clients int) string {
	return fmt.Sprintf("latency: %s, %d clients", few.what, clients)
}

// conclude computes the figures of the goals: the cost of ferula's components divided by that of Thanos', in the layout where
// that is worse.
func (b *bench) conclude() {
	for _, m := range []struct{ goal, what string }{
		{"stack/every-point", cpuOfAll(whole)}, {"stack/sum-by", cpuOfAll(sums)}, {"stack/anon", peakOfAll}, {"stack/latency-16", latencyOf(clientsMax)},
	} {
		rec := &b.out.Recorder
		worst := area.Worst(rec.Over(allFerula, allThanos, m.what), rec.Over(allFerula, allThanos, withStore+m.what))
		b.out.Measure(m.goal, worst, m.what, withStore+m.what)
	}
}
