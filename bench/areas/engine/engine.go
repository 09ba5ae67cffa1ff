// Package engine measures the cost of PromQL: goals engine/*.
//
// Prometheus and ferula serve run as processes on copies of the same blocks, with the same flags, and get the same range queries
// in turn. The responses are compared byte for byte before anything is measured. VictoriaMetrics imports the same samples and
// gets three of the queries. Its responses must equal Prometheus' within 1e-9, except those of functions that it defines
// differently.
package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
	"github.com/ferula-io/ferula/bench/push"
)

// Area is the entry of this area in the list of cmd/bench.
var Area = area.Area{
	Name: "engine", About: "PromQL of Prometheus, ferula serve and VictoriaMetrics, as processes",
	Sides: []string{prometheus, victoria, ferula}, Run: run,
}

const (
	prometheus = "Prometheus"
	victoria   = "VictoriaMetrics"
	ferula     = "ferula"

	hourMS  = 3600_000
	startMS = blocks.QuietStartMS

	histograms   = 1000
	buckets      = 12
	smallQueries = 1000
)

var histogramSpec = blocks.Spec{
	Metric: "bench_bucket", Values: blocks.Buckets, Series: histograms * buckets, Samples: spec().Samples, StepMS: spec().StepMS,
	StartMS: startMS, Seed: 1, PerPod: buckets, Buckets: buckets,
}

func spec() blocks.Spec    { return area.Floats(8) }
func fewSpec() blocks.Spec { return area.Floats(2) }

func manySpec() blocks.Spec {
	s := fewSpec()
	s.Series = 100_000
	return s
}

// recentSpec is pushed to both sides by remote write and stays in their heads: it is less than 3 h.
func recentSpec() blocks.Spec {
	s := fewSpec()
	s.Samples, s.Seed = 75*4, 4
	return s
}

// query is a range query and the goal of its CPU, "" for none.
type query struct {
	area.Query
	goal    string
	repeats int
}

// long is a query over 8 h with a step of 3 min.
func long(goal string, repeats int, what, expr string) query {
	q := area.EightHours(what+", 8 h", expr, 0)
	q.Points = 160
	return query{q, goal, repeats}
}

const sumByRate = "sum by (namespace) (rate(bench_metric[5m]))"

func count() query   { return long("count-8h", 2, "count(x)", "count(bench_metric)") }
func sumRate() query { return long("sum-rate-8h", 2, "sum by (rate)", sumByRate) }

func sumOverTime() query {
	return long("sum-over-time-8h", 2, "sum by (avg_over_time)", "sum by (namespace) (avg_over_time(bench_metric[5m]))")
}

func quantiles() query {
	return long("histogram-quantile", 1, "histogram_quantile", "histogram_quantile(0.99, sum by (le) (rate(bench_bucket[5m])))")
}

func lastHour() query {
	return query{area.Query{
		What: "sum by (rate), the last hour, in the head", Expr: sumByRate, StartMS: recentSpec().EndMS() - hourMS, StepMS: 15_000, Points: 240,
	}, "head-1h", 2}
}

var (
	queries = []query{
		count(), sumRate(), sumOverTime(),
		long("rate-every-point-8h", 1, "rate, every point", "rate(bench_metric[5m])"),
		long("", 1, "every point", "bench_metric"),
		{area.Query{What: "sum by (rate), 40 min, step 15 s", Expr: sumByRate, StartMS: startMS + 5*hourMS + 60_000, StepMS: 15_000, Points: 161}, "sum-rate-40m", 2},
		long("topk-8h", 1, "topk(5, rate)", "topk(5, rate(bench_metric[5m]))"),
		long("quantile-8h", 1, "quantile by (0.9, rate)", "quantile by (namespace) (0.9, rate(bench_metric[5m]))"),
		long("", 1, "rate / rate", "rate(bench_metric[5m]) / rate(bench_metric[10m])"),
		{area.Query{
			What: "10 series x 1 h, a thousand", Expr: `bench_metric{instance="10.32.0.5:9100"}`, StartMS: startMS + 4*hourMS, StepMS: 15_000, Points: 241,
		}, "small", smallQueries},
	}
	third = []query{count(), sumRate(), sumOverTime()} // also sent to VictoriaMetrics
)

const (
	growth     = "sum by (rate), 8 h"
	growthFew  = "sum by (rate), 2 h, 10,000 series"
	growthMany = "sum by (rate), 2 h, 100,000 series"
)

func (q query) request() proc.Request {
	r := q.Request()
	r.Query.Set("nocache", "1") // VictoriaMetrics then keeps start and end
	return r
}

func run(ctx context.Context, b *area.Bench) error {
	sides, err := b.Pair(ctx, peer.Prometheus)
	if err != nil {
		return err
	}
	for _, of := range []struct {
		data    area.TSDB
		pushed  blocks.Spec
		queries []query
	}{
		{data: area.TSDB{Data: spec()}, queries: queries},
		{data: area.TSDB{Data: histogramSpec}, queries: []query{quantiles()}},
		{data: area.TSDB{Flags: []string{area.ReceiveWrites}}, pushed: recentSpec(), queries: []query{lastHour()}},
	} {
		err := b.With(ctx, b.TSDB(ctx, of.data), func() error {
			if _, err := untilSummarized(ctx, b, sides[1]); err != nil {
				return err
			}
			return measure(ctx, b, sides, of.pushed, of.queries)
		}, sides...)
		if err != nil {
			return err
		}
	}
	if err := memory(ctx, b, sides); err != nil {
		return err
	}
	if err := year(ctx, b, sides); err != nil {
		return err
	}
	if err := overVictoria(ctx, b, sides[0]); err != nil {
		return err
	}
	if err := fallback(ctx, b); err != nil {
		return err
	}
	if err := backtests(ctx, b, sides[1]); err != nil {
		return err
	}
	conclude(b)
	concludeBacktests(b)
	return nil
}

// measure pushes samples, compares the responses of the sides, and measures them.
func measure(ctx context.Context, b *area.Bench, sides []*area.Side, pushed blocks.Spec, queries []query) error {
	if err := push.All(ctx, pushed, sides...); err != nil {
		return err
	}
	for _, q := range queries {
		body, err := b.SameResponses(ctx, q.What, q.request(), sides...)
		if err == nil {
			err = q.Check(body)
		}
		if err != nil {
			return err
		}
	}
	return b.InTurn(queries[0].What, sides, func(round int, s *area.Side) error {
		for _, q := range queries {
			if err := measureOne(ctx, b, round, s, q); err != nil {
				return err
			}
		}
		if pushed.Series == 0 {
			return nil
		}
		last := queries[0]
		more := pushed // samples after the range of the query
		more.StartMS, more.Samples = pushed.EndMS()+int64(round-1)*morePushed*pushed.StepMS, morePushed
		return errors.Join(b.LatencyDuring(ctx, round, s, last.What, last.request(), func() error { return nil }),
			b.LatencyDuring(ctx, round, s, last.What+area.DuringPushes, last.request(), func() error {
				return push.Samples(ctx, s.Server, more)
			}))
	})
}

// morePushed is the number of samples of each series that are pushed during queries, in each round. All rounds stay in the head.
const morePushed = 60

func measureOne(ctx context.Context, b *area.Bench, round int, s *area.Side, q query) error {
	return b.Costs(ctx, round, s.Name, s.Server, area.Work{What: q.What, Repeats: q.repeats, Send: func() (proc.Response, error) {
		if s.Name != victoria {
			return b.Drain(ctx, s, q.What, q.request())
		}
		a, err := s.Get(ctx, q.request(), io.Discard) // it adds in a random order: the last digits differ
		if err == nil && a.Bytes == 0 {
			err = fmt.Errorf("%s: %w", q.What, area.ErrEmpty)
		}
		return a, err
	}})
}

// memory measures growth of memory, each time of a new process.
func memory(ctx context.Context, b *area.Bench, sides []*area.Side) error {
	few := sumRate()
	few.Points = int((2*hourMS - 60_000) / few.StepMS)
	for _, m := range []struct {
		what string
		data blocks.Spec
		q    query
	}{{growth, spec(), sumRate()}, {growthFew, fewSpec(), few}, {growthMany, manySpec(), few}} {
		err := b.InTurn(m.what, sides, func(round int, s *area.Side) error {
			_, err := b.Growth(ctx, round, s, b.TSDB(ctx, area.TSDB{Data: m.data}), m.what, func() error {
				a, err := s.Get(ctx, m.q.request(), io.Discard)
				if err == nil && a.Bytes == 0 {
					err = area.ErrEmpty
				}
				return err
			})
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

const fallbackShare = "evaluations of Prometheus' scripts that its own engine had to do, share"

// fallback runs Prometheus' test scripts through the engine of columns, and records the share of evaluations that this
// engine left to Prometheus' engine.
func fallback(ctx context.Context, b *area.Bench) error {
	test := exec.CommandContext(ctx, "go", "test", "-count=1", "-v", "-run", "PrometheusScripts/TSDB", "./test/promql")
	test.Dir = b.Programs.Root
	test.Env = append(os.Environ(), "GOWORK=") // the bench's own module is built without a workspace
	out, err := test.CombinedOutput()
	if err != nil {
		return fmt.Errorf("Prometheus' scripts: %w: %.1000s", err, out) //nolint:staticcheck // a name
	}
	share, err := parseShare(out)
	if err == nil {
		b.Add(1, ferula, fallbackShare, area.Count, share)
	}
	return err
}

var ownShare = regexp.MustCompile(`([0-9.]+) % of [0-9]+ evaluations without Prometheus' engine`)

var errNoShare = errors.New("the test of Prometheus' scripts reports no share")

// parseShare returns the share of the evaluations that Prometheus' engine did, from 0 to 1.
func parseShare(report []byte) (float64, error) {
	m := ownShare.FindSubmatch(report)
	if m == nil {
		return 0, errNoShare
	}
	percent, err := strconv.ParseFloat(string(m[1]), 64)
	return 1 - percent/100, err
}

// conclude computes the measures of the goals.
func conclude(b *area.Bench) {
	for _, q := range append(queries[:len(queries):len(queries)], quantiles(), lastHour()) {
		if q.goal != "" {
			b.Ratio("engine/"+q.goal, "CPU: "+q.What)
		}
	}
	b.Ratio("engine/wall-sum-rate-8h", "last byte: "+sumRate().What)
	b.Own("engine/anon-mib", area.MiB, area.GrowthOf+growth)
	// Growth below a megabyte is noise of the runtime.
	many, few := area.GrowthOf+growthMany, area.GrowthOf+growthFew
	b.Measure("engine/growth", max(b.Median(ferula, many), area.MiB)/max(b.Median(ferula, few), area.MiB), many, few)
	b.Own("engine/fallback", 1, fallbackShare)
	concludeYear(b)
	var whats []string
	for _, q := range third {
		whats = append(whats, "CPU: "+q.What)
	}
	b.RatioTo("engine/vs-victoriametrics", victoria, whats...)
	b.Note(
		fmt.Sprintf("%d series of 15-digit floats, 8 h at an interval of 15 s in four blocks; 8 h are read with a step of 3 min. Values are random, so that rate() sees a counter reset in every second sample. ferula has made its files with summaries of chunks before, of which only count() has a use here.", spec().Series),
		"CPU is that of the server process per query, with the garbage collection that follows. Responses of Prometheus and ferula are equal byte by byte; identity encoding.",
		fmt.Sprintf("Small queries select ten series; %d in a row are one reading.", smallQueries),
		"engine/growth compares 2 h of 100,000 series with 2 h of 10,000; growth below 1 MiB counts as 1 MiB.",
		fmt.Sprintf("The head has %d series of %d samples that both sides received by remote write; the last hour is read with a step of 15 s. During pushes: each side receives %d later samples of every series meanwhile; latency is the mean of all queries.", recentSpec().Series, recentSpec().Samples, morePushed),
		"engine/fallback is the share of the evaluations of Prometheus' own scripts that go test ./test/promql reports.",
		"VictoriaMetrics runs with -search.disableCache on the same samples, sent to /api/v1/import. Its count() equals Prometheus', avg_over_time() within 1e-9; its rate() does not extrapolate and is only checked for its number of series and points.",
	)
}
