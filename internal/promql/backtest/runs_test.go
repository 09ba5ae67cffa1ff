package backtest_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	promtsdb "github.com/prometheus/prometheus/tsdb"

	"github.com/ferula-io/ferula/internal/promql/columns"
	"github.com/ferula-io/ferula/internal/tsdb"
	"github.com/ferula-io/ferula/metrics"
)

// forgetful reads only the values of range queries that it must, and some others.
type forgetful struct {
	promql.QueryEngine
	rnd  *rand.Rand
	join bool
	most int // steps of a range query; 0: no limit
}

func (f forgetful) NewRangeQuery(ctx context.Context, from storage.Queryable, opts promql.QueryOpts, expr string,
	start, end time.Time, step time.Duration) (promql.Query, error) {
	q, err := f.QueryEngine.NewRangeQuery(ctx, from, opts, expr, start, end, step)
	return forgetfulQuery{q, f, step.Milliseconds(), int(end.Sub(start) / step)}, err
}

type forgetfulQuery struct {
	promql.Query
	of     forgetful
	stepMS int64
	steps  int
}

func (f forgetfulQuery) Exec(ctx context.Context) *promql.Result {
	if f.of.most > 0 && f.steps >= f.of.most {
		return &promql.Result{Err: promql.ErrTooManySamples("a test")}
	}
	res := f.Query.Exec(ctx)
	runs := columns.RunsOf(ctx)
	rows, isMatrix := res.Value.(promql.Matrix)
	if runs == nil || !isMatrix {
		return res
	}
	if f.of.join {
		runs.Steps = max(1, f.of.most)
	}
	for i, row := range rows {
		begun, read, left := int64(0), false, 0
		var kept []promql.FPoint
		for k, p := range row.Floats {
			if left--; left < 0 { // as chunks are read
				read, left = f.of.rnd.IntN(4) == 0, f.of.rnd.IntN(20)
			}
			if k == 0 || p.T-row.Floats[k-1].T > f.stepMS {
				begun = p.T
			}
			if !read && p.T-begun > runs.Lead.Milliseconds() && k+1 < len(row.Floats) && row.Floats[k+1].T-p.T == f.stepMS {
				p.F = columns.UnreadValue
				if f.of.join && columns.Unread(kept[len(kept)-1].F) {
					continue
				}
			}
			kept = append(kept, p)
		}
		rows[i].Floats = kept
	}
	return res
}

// pieces is an engine whose range queries have few steps. It counts the points that stand for several steps.
type pieces struct {
	promql.QueryEngine
	most   int
	joined *int
}

func (p pieces) NewRangeQuery(ctx context.Context, from storage.Queryable, opts promql.QueryOpts, expr string,
	start, end time.Time, step time.Duration) (promql.Query, error) {
	q, err := p.QueryEngine.NewRangeQuery(ctx, from, opts, expr, start, end, step)
	return counting{q, p, step.Milliseconds(), int(end.Sub(start)/step) >= p.most}, err
}

type counting struct {
	promql.Query
	of      pieces
	stepMS  int64
	tooMany bool
}

func (c counting) Exec(ctx context.Context) *promql.Result {
	if c.tooMany {
		return &promql.Result{Err: promql.ErrTooManySamples("a test")}
	}
	res := c.Query.Exec(ctx)
	if runs := columns.RunsOf(ctx); res.Err == nil && runs != nil && runs.Steps > 0 {
		for _, row := range res.Value.(promql.Matrix) {
			for i, p := range row.Floats {
				if columns.Unread(p.F) && row.Floats[i+1].T-p.T > c.stepMS {
					*c.of.joined++
				}
			}
		}
	}
	return res
}

// runsWorld has the samples of a world in blocks with summaries, of series that are above 10 or below 10 for whole chunks
// and for parts of them, with gaps and staleness markers.
func runsWorld(t *testing.T, rnd *rand.Rand, samples, samplesOfChunk int) (*world, *tsdb.Store) {
	t.Helper()
	w := newWorld(t, 1_000_000)
	opts := promtsdb.DefaultOptions()
	opts.NoLockfile, opts.SamplesPerChunk = true, samplesOfChunk
	dir := t.TempDir()
	db, err := promtsdb.Open(dir, quiet, nil, opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	db.DisableCompactions()
	app := db.Appender(t.Context())
	for i := range 4 {
		lset := labels.FromStrings(labels.MetricName, "x", "instance", fmt.Sprint("i", i), "zone", fmt.Sprint("z", i/2))
		above, left, gap := false, 0, false
		at := func() (float64, bool) {
			if left--; left < 0 {
				above, gap = !above, rnd.IntN(5) == 0
				left = []int{0, rnd.IntN(5), rnd.IntN(30), samplesOfChunk * (1 + rnd.IntN(9)), 150 + rnd.IntN(300)}[rnd.IntN(5)]
				if gap {
					left = []int{1, 18, 19, 20, 21, 22, 60}[rnd.IntN(7)] // the lookback delta is 20 samples
				}
				if rnd.IntN(4) == 0 {
					return math.Float64frombits(value.StaleNaN), true
				}
			}
			v := float64(rnd.IntN(10_000)) / 1000
			if above {
				v = []float64{10, 10.5, 50.25}[rnd.IntN(3)] + v + 1e-3
			}
			return v, !gap
		}
		w.append(t, lset, func(n int) (float64, bool) {
			v, ok := at()
			if ok {
				if _, err := app.Append(0, lset, begin.UnixMilli()+int64(n)*15_000, v); err != nil {
					t.Fatal(err)
				}
			}
			return v, ok
		}, samples)
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	const blockMS = 2 * 3600_000
	first := begin.UnixMilli() / blockMS * blockMS
	for from := first; from <= begin.UnixMilli()+int64(samples)*15_000; from += blockMS {
		if err := db.CompactHead(promtsdb.NewRangeHead(db.Head(), from, from+blockMS-1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	store, err := tsdb.New(tsdb.Options{Dir: dir, Retention: -1, NoLockfile: true}, quiet, prometheus.NewRegistry(), metrics.NewSet())
	if err == nil {
		err = store.Open()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	if err := store.Summarize(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w, store
}

// rulesOfRuns are alerts that compare a selector, and others beside and around such a comparison.
func rulesOfRuns(rnd *rand.Rand) string {
	pick := func(of ...string) string { return of[rnd.IntN(len(of))] }
	var b strings.Builder
	fmt.Fprintf(&b, "groups:\n- name: g\n  interval: %s\n  rules:\n", pick("15s", "15s", "30s", "10s", "40s"))
	exprs := []string{"x > 10", "10 < x", "x >= 10", "(x) < 10", "x != 4.5", "x < 10", "x == 4.5", "x offset 7m > 10",
		"x > 10 unless x > 55", "x > 10 and on (zone) x > 50", "(x > 10) * 2", "x - 1 > 10", "sum by (zone) (x > 10) > 30",
		"-(x < 10)", "x > 10 or x < 0.5"}
	for i, n := range append(rnd.Perm(8)[:4], rnd.Perm(len(exprs))[:3]...) {
		expr := exprs[n]
		fmt.Fprintf(&b, "  - alert: A%d\n    expr: '%s'\n    for: %s\n    keep_firing_for: %s\n", i, expr,
			pick("0s", "15s", "1m", "5m", "17m"), pick("0s", "0s", "1m", "20m"))
		fmt.Fprintf(&b, "    labels: {rule: r%d, %s}\n", i, pick("severity: page", "severity: page", "severity: page", "zone: all",
			"instance: ''", "level: '{{ $value | printf \"%.0f\" }}'"))
		fmt.Fprintf(&b, "    annotations: {summary: '%s'}\n", pick("{{ $labels.instance }} has {{ $value }}", "{{ $value | humanize }}", "plain"))
	}
	return b.String() + "  - {record: 'zone:x', expr: 'x > 10', labels: {by: rule}}\n"
}

// Alerts are the same if a block's summaries say that whole chunks pass a comparison, so that their samples are not read.
func TestRun_OverSummariesEqualsTheRuleManager(t *testing.T) {
	const samples = 1000
	seeds, joined := 2, 0 // more with the variable
	if n, err := strconv.Atoi(os.Getenv("FERULA_BACKTEST_SEEDS")); err == nil {
		seeds = n
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(uint64(seed), 8))
			w, store := runsWorld(t, rnd, samples, []int{15, 4, 40}[seed%3])
			content := rulesOfRuns(rnd)
			o := w.options(samples * 15 * time.Second)
			listed := run(t, content, o)
			o.Resends = false
			all := run(t, content, o)
			engine := columns.New(columns.Options{Engine: w.engine, MaxSamples: 1_000_000,
				SubqueryStep: func(int64) int64 { return 60_000 }, Workers: columns.NewWorkers(2),
				Bare: func(maxSamples int) *promql.Engine {
					return promql.NewEngine(promql.EngineOpts{Logger: quiet, MaxSamples: maxSamples, Timeout: time.Minute,
						Parser: parser.NewParser(parser.Options{}), EnableAtModifier: true, EnableNegativeOffset: true})
				}})
			for _, most := range []int{100_000, 5 + rnd.IntN(200)} {
				ours := o
				ours.Engine, ours.Queryable = pieces{engine, most, &joined}, store
				got := run(t, content, ours)
				if got, want := transcribed(got), transcribed(all); !reflect.DeepEqual(got, want) {
					t.Errorf("pieces of %d steps: %s\n%s", most, differences(got, want), content)
				}
				sameResends(t, content, listed, got)
			}
			if got, want := transcribed(listed), w.wanted(t, content, w.options(samples*15*time.Second)); !reflect.DeepEqual(got, want) {
				t.Errorf("%s\n%s", differences(got, want), content)
			}
		})
	}
	if joined < 10*seeds {
		t.Errorf("only %d points stand for several steps", joined)
	}
	t.Logf("%d points stand for several steps", joined)
}

// differences returns the first lines that differ, by rule.
func differences(got, want map[string]transcript) string {
	var b strings.Builder
	for rule := range want {
		for i := range max(len(got[rule]), len(want[rule])) {
			x, y := append(got[rule], "")[min(i, len(got[rule]))], append(want[rule], "")[min(i, len(want[rule]))]
			if x != y {
				fmt.Fprintf(&b, "rule %s, line %d:\ngot  %s\nwant %s\n", rule, i, x, y)
				break
			}
		}
	}
	return b.String()
}
