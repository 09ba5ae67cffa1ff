// Package engine measures the cost of PromQL: goals engine/*.
//
// Prometheus and ferula serve run as processes on copies of the same blocks, with the same flags, and get the same range queries
// in turn. The responses are compared byte for byte before anything is measured. If VictoriaMetrics of Debian is installed, it
// imports the same samples and gets three of the queries. Its responses must equal Prometheus' within 1e-9, except those of
// functions that it defines differently.
package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
)

// Area is the entry of this area in the list of cmd/bench.
var Area = area.Area{Name: "engine", About: "PromQL of Prometheus, ferula serve and VictoriaMetrics, as processes", Run: run}

const (
	series  = 10_000
	stepMS  = 15_000
	hourMS  = 3600_000
	hours   = 8
	startMS = blocks.QuietStartMS

	manySeries = 100_000 // of engine/growth, over manyHours
	manyHours  = 2

	histograms = 1000
	buckets    = 12

	smallQueries = 1000
)

var (
	spec = blocks.Spec{Metric: "bench_metric", Values: blocks.Floats15, Series: series, Samples: hours * hourMS / stepMS,
		StepMS: stepMS, StartMS: startMS, Seed: 1}
	histogramSpec = blocks.Spec{Metric: "bench_bucket", Values: blocks.Buckets, Series: histograms * buckets, Samples: hours * hourMS / stepMS,
		StepMS: stepMS, StartMS: startMS, Seed: 1, PerPod: buckets, Buckets: buckets}
	fewSpec  = blocks.Spec{Metric: "bench_metric", Values: blocks.Floats15, Series: series, Samples: manyHours * hourMS / stepMS, StepMS: stepMS, StartMS: startMS, Seed: 1}
	manySpec = blocks.Spec{Metric: "bench_metric", Values: blocks.Floats15, Series: manySeries, Samples: manyHours * hourMS / stepMS, StepMS: stepMS, StartMS: startMS, Seed: 1}
)

// query is one range query.
type query struct {
	goal    string // the goal's name, empty for none
	what    string
	expr    string
	startMS int64
	stepMS  int64
	points  int64
	repeats int // consecutive queries for one measurement
}

// A query over 8 h with a step of 3 min. Its steps coincide neither with timestamps of samples nor with ends of blocks.
const (
	longStartMS = startMS + 60_000
	longStepMS  = 180_000
	longPoints  = 160
)

var (
	count       = query{"engine/count-8h", "count(x), 8 h", "count(bench_metric)", longStartMS, longStepMS, longPoints, 2}
	sumRate     = query{"engine/sum-rate-8h", "sum by (rate), 8 h", "sum by (namespace) (rate(bench_metric[5m]))", longStartMS, longStepMS, longPoints, 2}
	sumOverTime = query{"engine/sum-over-time-8h", "sum by (avg_over_time), 8 h", "sum by (namespace) (avg_over_time(bench_metric[5m]))", longStartMS, longStepMS, longPoints, 2}
	rate        = query{"engine/rate-every-point-8h", "rate, every point, 8 h", "rate(bench_metric[5m])", longStartMS, longStepMS, longPoints, 1}
	every       = query{"", "every point, 8 h", "bench_metric", longStartMS, longStepMS, longPoints, 1}
	short       = query{"engine/sum-rate-40m", "sum by (rate), 40 min, step 15 s", "sum by (namespace) (rate(bench_metric[5m]))", startMS + 5*hourMS + 60_000, 15_000, 161, 2}
	topk        = query{"engine/topk-8h", "topk(5, rate), 8 h", "topk(5, rate(bench_metric[5m]))", longStartMS, longStepMS, longPoints, 1}
	quantile    = query{"engine/quantile-8h", "quantile by (0.9, rate), 8 h", "quantile by (namespace) (0.9, rate(bench_metric[5m]))", longStartMS, longStepMS, longPoints, 1}
	binary      = query{"", "rate / rate, 8 h", "rate(bench_metric[5m]) / rate(bench_metric[10m])", longStartMS, longStepMS, longPoints, 1}
	small       = query{"engine/small", "10 series x 1 h, a thousand", `bench_metric{instance="10.32.0.5:9100"}`, startMS + 4*hourMS, 15_000, 241, smallQueries}
	quantiles   = query{"engine/histogram-quantile", "histogram_quantile, 8 h", "histogram_quantile(0.99, sum by (le) (rate(bench_bucket[5m])))", longStartMS, longStepMS, longPoints, 1}

	queries = []query{count, sumRate, sumOverTime, rate, every, short, topk, quantile, binary, small}
	third   = []query{count, sumRate, sumOverTime} // also sent to VictoriaMetrics
)

const (
	growth     = "growth of RssAnon: sum by (rate), 8 h"
	growthFew  = "growth of RssAnon: sum by (rate), 2 h, 10,000 series"
	growthMany = "growth of RssAnon: sum by (rate), 2 h, 100,000 series"
)

func (q query) request() proc.Request {
	return proc.Request{Path: "/api/v1/query_range", Query: url.Values{
		"query": {q.expr}, "start": {seconds(q.startMS)}, "end": {seconds(q.startMS + (q.points-1)*q.stepMS)}, "step": {seconds(q.stepMS)},
		"nocache": {"1"}, // VictoriaMetrics then keeps start and end
	}}
}

func seconds(ms int64) string { return strconv.FormatFloat(float64(ms)/1000, 'f', -1, 64) }

// side is one of the servers under test.
type side struct {
	name    string
	program peer.Program
	dir     string // of this side's copy of the data and its log
	server  *proc.Server
}

type bench struct {
	env   area.Env
	out   *area.Outcome
	sides []side // Prometheus and ferula
}

func run(ctx context.Context, env area.Env) (*area.Outcome, error) {
	b := &bench{env: env, out: &area.Outcome{Sides: []string{prometheus, victoria, ferula}}}
	for _, p := range []struct {
		name string
		get  func() (peer.Program, error)
	}{
		{prometheus, func() (peer.Program, error) { return env.Programs.Get(ctx, peer.Prometheus) }},
		{ferula, func() (peer.Program, error) { return env.Programs.Ferula(ctx, peer.Prometheus) }},
	} {
		program, err := p.get()
		if err != nil {
			return nil, err
		}
		b.sides = append(b.sides, side{name: p.name, program: program, dir: filepath.Join(env.Cache, "run", "engine", program.Name)})
		b.out.Versions = append(b.out.Versions, program.Version)
	}
	for _, part := range []func(context.Context) error{b.floats, b.histograms, b.head, b.memory, b.victoria, b.fallback} {
		if err := part(ctx); err != nil {
			return nil, err
		}
	}
	b.conclude()
	return b.out, nil
}

const (
	prometheus = "Prometheus"
	victoria   = "VictoriaMetrics"
	ferula     = "ferula"
)

// floats measures all queries over the floats.
func (b *bench) floats(ctx context.Context) error { return b.measureAll(ctx, spec, queries) }

func (b *bench) histograms(ctx context.Context) error {
	return b.measureAll(ctx, histogramSpec, []query{quantiles})
}

// measureAll runs both servers on the data at the same time, compares their responses and measures.
func (b *bench) measureAll(ctx context.Context, data blocks.Spec, queries []query) (err error) {
	for i := range b.sides {
		s := &b.sides[i]
		if err := b.start(ctx, s, data); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.stop()) }()
	}
	return b.measureRunning(ctx, data, queries)
}

// measureRunning compares the responses of servers that run, and measures.
func (b *bench) measureRunning(ctx context.Context, data blocks.Spec, queries []query) error {
	for _, q := range queries {
		if err := b.compare(ctx, q); err != nil {
			return err
		}
	}
	for round := 1; round <= b.env.Rounds; round++ {
		for _, q := range queries {
			for i := range b.sides {
				if err := b.measure(ctx, round, b.sides[i].name, b.sides[i].server, q); err != nil {
					return err
				}
			}
		}
		b.env.Logf("round %d of %d: %s", round, b.env.Rounds, data.Metric)
	}
	return nil
}

// compare queries both servers. It returns an error unless both return the same response, with series.
func (b *bench) compare(ctx context.Context, q query) error {
	var bodies [2][]byte
	engine := ""
	for i, s := range b.sides {
		body, a, err := s.server.Fetch(ctx, q.request())
		if err != nil {
			return fmt.Errorf("%s: %s: %w", s.name, q.what, err)
		}
		bodies[i], engine = body, a.Header.Get("X-Ferula-Query-Engine")
	}
	m, err := parse(bodies[0])
	if err != nil {
		return fmt.Errorf("%s: %w", q.what, err)
	}
	if m.points() == 0 {
		return fmt.Errorf("%s: %w", q.what, area.ErrEmpty)
	}
	if err := area.SameBytes(q.what, bodies[0], bodies[1]); err != nil {
		return err
	}
	b.env.Logf("responses are equal: %s, %d series, %d bytes, engine %s", q.what, len(m.Data.Result), len(bodies[0]), engine)
	return nil
}

// measure measures CPU and time of a query once.
func (b *bench) measure(ctx context.Context, round int, name string, server *proc.Server, q query) error {
	elapsed := 0.0
	cpu, err := server.CPUDuring(ctx, func() error {
		for range q.repeats {
			a, err := server.Get(ctx, q.request(), io.Discard)
			if err != nil {
				return fmt.Errorf("%s: %s: %w", name, q.what, err)
			}
			if a.Bytes == 0 {
				return fmt.Errorf("%s: %s: %w", name, q.what, area.ErrEmpty)
			}
			elapsed += a.Elapsed.Seconds()
		}
		return nil
	})
	if err != nil {
		return err
	}
	rec, n := &b.out.Recorder, float64(q.repeats)
	rec.Add(round, name, "CPU: "+q.what, area.Seconds, cpu.Seconds()/n)
	rec.Add(round, name, "last byte: "+q.what, area.Seconds, elapsed/n)
	return nil
}

// memory measures growth of memory, each time of a new process.
func (b *bench) memory(ctx context.Context) error {
	few := sumRate
	few.points = (manyHours*hourMS - 60_000) / few.stepMS
	for _, m := range []struct {
		what string
		data blocks.Spec
		q    query
	}{{growth, spec, sumRate}, {growthFew, fewSpec, few}, {growthMany, manySpec, few}} {
		for round := 1; round <= b.env.Rounds; round++ {
			for i := range b.sides {
				if err := b.grow(ctx, round, &b.sides[i], m.what, m.data, m.q); err != nil {
					return err
				}
			}
		}
		b.env.Logf("measured: %s", m.what)
	}
	return nil
}

func (b *bench) grow(ctx context.Context, round int, s *side, what string, data blocks.Spec, q query) (err error) {
	if err := b.start(ctx, s, data); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	g, err := s.server.GrowthDuring(ctx, func() error {
		a, err := s.server.Get(ctx, q.request(), io.Discard)
		if err == nil && a.Bytes == 0 {
			err = area.ErrEmpty
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %s: %w", s.name, what, err)
	}
	b.out.Recorder.Add(round, s.name, what, area.Bytes, float64(g.Bytes()))
	return nil
}

func (b *bench) start(ctx context.Context, s *side, data blocks.Spec) error {
	from, err := blocks.Ensure(ctx, b.env.Cache, data)
	if err != nil {
		return err
	}
	dir, config := filepath.Join(s.dir, "data"), filepath.Join(s.dir, "prometheus.yml")
	if err := blocks.Copy(from, dir); err != nil {
		return err
	}
	if err := os.WriteFile(config, []byte("scrape_configs: []\n"), 0o644); err != nil {
		return err
	}
	s.server, err = proc.Start(ctx, s.program.Serve(peer.TSDB{Dir: dir, Config: config, Log: filepath.Join(s.dir, "log")}))
	return err
}

func (s *side) stop() error {
	server := s.server
	s.server = nil
	return server.Stop()
}

// conclude computes the measures of the goals.
func (b *bench) conclude() {
	rec, out := &b.out.Recorder, b.out
	for _, q := range append(queries[:len(queries):len(queries)], quantiles, lastHour) {
		if q.goal != "" {
			out.Measure(q.goal, rec.Over(ferula, prometheus, "CPU: "+q.what), "CPU: "+q.what)
		}
	}
	wall := "last byte: " + sumRate.what
	out.Measure("engine/wall-sum-rate-8h", rec.Over(ferula, prometheus, wall), wall)
	out.Measure("engine/anon-mib", rec.Median(ferula, growth)/(1<<20), growth)
	// Growth below a megabyte is noise of the runtime.
	out.Measure("engine/growth", max(rec.Median(ferula, growthMany), 1<<20)/max(rec.Median(ferula, growthFew), 1<<20), growthMany, growthFew)
	out.Measure("engine/fallback", rec.Median(ferula, fallbackShare), fallbackShare)
	worst, from := 0.0, []string(nil)
	for _, q := range third {
		worst = max(worst, rec.Over(ferula, victoria, "CPU: "+q.what)) // NaN if VictoriaMetrics is not installed
		from = append(from, "CPU: "+q.what)
	}
	out.Measure("engine/vs-victoriametrics", worst, from...)
	out.Notes = append(out.Notes,
		fmt.Sprintf("%d series of 15-digit floats, %d h at an interval of 15 s in four blocks; 8 h are read with a step of 3 min. Values are random, so that rate() sees a counter reset in every second sample.", series, hours),
		"CPU is that of the server process per query, with the garbage collection that follows. Responses of Prometheus and ferula are equal byte by byte; identity encoding.",
		fmt.Sprintf("Small queries select ten series; %d in a row are one reading.", smallQueries),
		"engine/growth compares 2 h of 100,000 series with 2 h of 10,000; growth below 1 MiB counts as 1 MiB.",
		fmt.Sprintf("The head has %d series of %d samples that both sides received by remote write; the last hour is read with a step of 15 s.", recentSpec.Series, recentSpec.Samples),
		"engine/fallback is the share of the evaluations of Prometheus' own scripts that go test ./test/promql reports.",
		"VictoriaMetrics runs with -search.disableCache on the same samples, sent to /api/v1/import. Its count() equals Prometheus', avg_over_time() within 1e-9; its rate() does not extrapolate and is only checked for its number of series and points.",
	)
}
