package columns_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
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
	"github.com/prometheus/prometheus/tsdb/tsdbutil"
	"go.uber.org/goleak"

	"github.com/ferula-io/ferula/internal/promql/columns"
	"github.com/ferula-io/ferula/internal/tsdb"
	"github.com/ferula-io/ferula/metrics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// begin is a multiple of 2 h.
const (
	hourMS  = int64(3600_000)
	beginMS = 1767225600_000 - 1767225600_000%(2*hourMS)
)

// appendSamples appends samples of one series.
func appendSamples(t testing.TB, db storage.Appendable, metric string, from, to, step int64, value func(i int, ts int64) (float64, bool)) {
	t.Helper()
	lset, err := parser.NewParser(parser.Options{}).ParseMetric(metric)
	if err != nil {
		t.Fatal(err)
	}
	app := db.Appender(context.Background())
	for i, ts := 0, from; ts < to; i, ts = i+1, ts+step {
		v, ok := value(i, ts)
		if !ok {
			continue
		}
		if _, err := app.Append(0, lset, ts, v); err != nil {
			t.Fatal(err)
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
}

// writeWorld writes hours of samples with everything that floats and timestamps can be.
func writeWorld(t testing.TB, db *promtsdb.DB, from, to int64) {
	rng := rand.New(rand.NewPCG(1, uint64(from)))
	odd := []float64{0, math.Copysign(0, -1), math.NaN(), math.Inf(1), math.Inf(-1), 1e308, -1e308, 5e-324, 1}
	for i := 15; i >= 0; i-- { // created in another order than that of the labels
		sum, last := rng.Float64()*1e6, 0
		appendSamples(t, db, fmt.Sprintf(`c_total{ns="%d",i="%d"}`, i%7, i), from+int64(i*137), to, 15_000, func(n int, _ int64) (float64, bool) {
			switch x := rng.IntN(400); {
			case x == 0:
				sum = rng.Float64()
			case x == 1:
				last = n + rng.IntN(60) // a gap
			case x == 2:
				return math.Float64frombits(value.StaleNaN), true
			}
			sum += rng.Float64() * 100
			return sum, n >= last
		})
		appendSamples(t, db, fmt.Sprintf(`g{ns="%d",i="%d"}`, i%5, i), from+int64(i*211), to, 10_000+int64(i*1000), func(n int, _ int64) (float64, bool) {
			switch x := rng.IntN(50); {
			case x == 0 && i%4 == 0:
				return odd[rng.IntN(len(odd))], true
			case x == 1:
				return math.Float64frombits(value.StaleNaN), true
			}
			return (rng.Float64() - 0.5) * math.Pow(10, float64(rng.IntN(12))), rng.IntN(30) > 0
		})
	}
	for i, le := range []string{"1", "5", "25", "+Inf"} {
		n := 0.0
		appendSamples(t, db, fmt.Sprintf(`b_bucket{le="%s",ns="1"}`, le), from, to, 30_000, func(int, int64) (float64, bool) {
			n += float64(i+1) * rng.Float64() * 10
			return math.Floor(n), true
		})
	}
	third := (to - from) / 3
	appendSamples(t, db, `part_a{x="1"}`, from, from+third, 30_000, func(n int, _ int64) (float64, bool) { return float64(n), true })
	appendSamples(t, db, `part_b{x="1"}`, from+third*2, to, 30_000, func(n int, _ int64) (float64, bool) { return float64(-n), true })
	appendSamples(t, db, `both_a{x="1"}`, from, to, 60_000, func(n int, _ int64) (float64, bool) { return float64(n), true })
	appendSamples(t, db, `both_b{x="1"}`, from, to, 60_000, func(n int, _ int64) (float64, bool) { return float64(n), true })
	for i := range 4 {
		appendSamples(t, db, fmt.Sprintf(`node{instance="%d",job="j"}`, i), from, to, 60_000, func(n int, _ int64) (float64, bool) { return float64(n * i), n%17 > 2 })
		appendSamples(t, db, fmt.Sprintf(`target_info{instance="%d",job="j",data="d%d"}`, i, i), from+int64(i*7000), to, 60_000, func(n int, _ int64) (float64, bool) { return 1, n%41 > i*3 })
		appendSamples(t, db, fmt.Sprintf(`target_info{instance="%d",data="x%d"}`, i, i), from, to, 60_000, func(int, int64) (float64, bool) { return 1, true })
		appendSamples(t, db, fmt.Sprintf(`build_info{instance="%d",job="j",version="v%d"}`, i, i%2), from, to, 60_000, func(n int, _ int64) (float64, bool) { return 1, n%29 > 5 })
	}
	writeHistograms(t, db, from, to)
}

// writeHistograms writes native histograms of both kinds, with resets, gaps, stale markers
// and floats in between.
func writeHistograms(t testing.TB, db *promtsdb.DB, from, to int64) {
	app := db.Appender(context.Background())
	kind := func(kind string) labels.Labels { return labels.FromStrings(labels.MetricName, "h", "kind", kind) }
	mixed := labels.FromStrings(labels.MetricName, "mixed")
	check := func(_ storage.SeriesRef, err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	for ts := from; ts < to; ts += 60_000 {
		n := ts / 60_000 % 50
		switch {
		case n == 20:
			stale := tsdbutil.GenerateTestHistogram(1)
			stale.Sum = math.Float64frombits(value.StaleNaN)
			check(app.AppendHistogram(0, kind("int"), ts, stale, nil))
		case n < 33 || n > 40:
			check(app.AppendHistogram(0, kind("int"), ts, tsdbutil.GenerateTestHistogram(n), nil))
		}
		check(app.AppendHistogram(0, kind("float"), ts+7, nil, tsdbutil.GenerateTestFloatHistogram(n)))
		check(app.AppendHistogram(0, kind("gauge"), ts, tsdbutil.GenerateTestGaugeHistogram(n), nil))
		check(app.AppendHistogram(0, kind("custom"), ts, tsdbutil.GenerateTestCustomBucketsHistogram(n), nil))
		if n%9 < 5 {
			check(app.AppendHistogram(0, mixed, ts, tsdbutil.GenerateTestHistogram(n), nil))
		} else {
			check(app.Append(0, mixed, ts, float64(n)))
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
}

// newWorld returns a store with two blocks and a head. With late, the head has samples that
// came out of order and overlap a block.
func newWorld(t testing.TB, late bool) *tsdb.Store {
	t.Helper()
	dir := t.TempDir()
	opts := promtsdb.DefaultOptions()
	opts.OutOfOrderTimeWindow = 10 * hourMS
	opts.NoLockfile = true
	db, err := promtsdb.Open(dir, slog.New(slog.DiscardHandler), nil, opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	db.DisableCompactions()
	writeWorld(t, db, beginMS, beginMS+5*hourMS)
	for i := range int64(2) {
		if err := db.CompactHead(promtsdb.NewRangeHead(db.Head(), beginMS+i*2*hourMS, beginMS+(i+1)*2*hourMS-1)); err != nil {
			t.Fatal(err)
		}
	}
	if late {
		appendSamples(t, db, `c_total{ns="1",i="1"}`, beginMS+hourMS, beginMS+5*hourMS, 47_000, func(n int, _ int64) (float64, bool) { return float64(n), true })
		appendSamples(t, db, `late{ns="1",i="1"}`, beginMS+4*hourMS+1, beginMS+5*hourMS, 47_000, func(n int, _ int64) (float64, bool) { return float64(n), true })
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return openStore(t, dir)
}

func openStore(t testing.TB, dir string) *tsdb.Store {
	t.Helper()
	s, err := tsdb.New(tsdb.Options{Dir: dir, Retention: -1, OutOfOrderWindow: 10 * time.Hour, NoLockfile: true}, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), metrics.NewSet())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// samplesOnly hides the raw interface of a storage.
type samplesOnly struct{ from storage.Queryable }

func (s samplesOnly) Querier(mint, maxt int64) (storage.Querier, error) {
	return s.from.Querier(mint, maxt)
}

func engineOpts(maxSamples int) promql.EngineOpts {
	return promql.EngineOpts{
		Logger: slog.New(slog.DiscardHandler), MaxSamples: maxSamples, Timeout: time.Minute, LookbackDelta: 5 * time.Minute,
		NoStepSubqueryIntervalFn: func(int64) int64 { return 60_000 }, EnableAtModifier: true, EnableNegativeOffset: true, EnablePerStepStats: true,
		Parser: parser.NewParser(parser.Options{EnableExperimentalFunctions: true, EnableBinopFillModifiers: true, EnableExtendedRangeSelectors: true, ExperimentalDurationExpr: true}),
	}
}

// newEngines returns Prometheus' engine and this one, with the same limit.
func newEngines(maxSamples int) (*promql.Engine, *columns.Engine) {
	return enginesOf(engineOpts(maxSamples))
}

// enginesOf returns Prometheus' engine and this one, with the same options.
func enginesOf(opts promql.EngineOpts) (*promql.Engine, *columns.Engine) {
	return promql.NewEngine(opts), columns.New(optionsOf(opts))
}

func optionsOf(opts promql.EngineOpts) columns.Options {
	return columns.Options{
		Engine: promql.NewEngine(opts), MaxSamples: opts.MaxSamples, SubqueryStep: opts.NoStepSubqueryIntervalFn,
		DelayedNameRemoval: opts.EnableDelayedNameRemoval, UseStartTimestamps: opts.UseStartTimestamps, TypeAndUnitLabels: opts.EnableTypeAndUnitLabels,
		Bare: func(maxSamples int) *promql.Engine {
			bare := opts
			bare.MaxSamples = maxSamples
			return promql.NewEngine(bare)
		},
	}
}

// request is a query over a range, or at start if step is 0.
type request struct {
	query      string
	start, end int64 // ms
	step       time.Duration
	perStep    bool
}

func (r request) String() string {
	return fmt.Sprintf("%s from %d to %d step %s", r.query, r.start-beginMS, r.end-beginMS, r.step)
}

func (r request) open(e promql.QueryEngine, from storage.Queryable) (promql.Query, error) {
	opts := promql.NewPrometheusQueryOpts(r.perStep, 0)
	if r.step == 0 {
		return e.NewInstantQuery(context.Background(), from, opts, r.query, time.UnixMilli(r.start))
	}
	return e.NewRangeQuery(context.Background(), from, opts, r.query, time.UnixMilli(r.start), time.UnixMilli(r.end), r.step)
}

// run returns everything that a client can see of a query, floats as bits, and the engine
// that evaluated it.
func (r request) run(t testing.TB, e promql.QueryEngine, from storage.Queryable) (result, engine string) {
	t.Helper()
	q, err := r.open(e, from)
	if err != nil {
		return "invalid: " + err.Error(), ""
	}
	defer q.Close()
	res := q.Exec(context.Background())
	var b strings.Builder
	if res.Err != nil {
		fmt.Fprintf(&b, "error %v\n", res.Err)
	} else {
		write(&b, res.Value)
		samples := q.Stats().Samples
		fmt.Fprintf(&b, "samples %d read %d peak %d\n", samples.TotalSamples, samples.SamplesRead, samples.PeakSamples)
		if r.perStep {
			fmt.Fprintf(&b, "per step %v read %v\n", samples.TotalSamplesPerStep, samples.SamplesReadPerStep)
		}
	}
	warnings, infos := res.Warnings.AsStrings(r.query, 0, 0)
	slices.Sort(warnings) // they are in the random order of a map
	slices.Sort(infos)
	fmt.Fprintf(&b, "warnings %q infos %q\n", warnings, infos)
	if by, ok := q.(interface{ EvaluatedBy() (string, string) }); ok {
		name, reason := by.EvaluatedBy()
		engine = strings.TrimSpace(name + " " + reason)
	}
	return b.String(), engine
}

func bitsOf(f float64) string {
	return string(appendBits(nil, f))
}

// appendBits appends a number and its bits. Tests format millions of them, for which fmt is slow.
func appendBits(to []byte, f float64) []byte {
	if math.IsNaN(f) {
		return append(to, "NaN"...)
	}
	to = append(strconv.AppendFloat(to, f, 'g', -1, 64), '/')
	return strconv.AppendUint(to, math.Float64bits(f), 16)
}

func write(b *strings.Builder, v parser.Value) {
	fmt.Fprintf(b, "type %s\n", v.Type())
	switch v := v.(type) {
	case promql.Matrix:
		var point []byte
		for _, s := range v {
			fmt.Fprintf(b, "%s", s.Metric)
			for _, p := range s.Floats {
				point = append(appendBits(append(point[:0], ' '), p.F), '@')
				b.Write(strconv.AppendInt(point, p.T, 10))
			}
			for _, p := range s.Histograms {
				fmt.Fprintf(b, " %s@%d", p.H, p.T)
			}
			b.WriteString("\n")
		}
	case promql.Vector:
		for _, s := range v {
			fmt.Fprintf(b, "%s %s@%d %v\n", s.Metric, bitsOf(s.F), s.T, s.H)
		}
	case promql.Scalar:
		fmt.Fprintf(b, "%s@%d\n", bitsOf(v.V), v.T)
	default:
		fmt.Fprintf(b, "%s\n", v)
	}
}

// difference returns the first line in which two results differ.
func difference(got, want string) string {
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			at := 0
			for at < min(len(a[i]), len(b[i])) && a[i][at] == b[i][at] {
				at++
			}
			from := max(0, at-100)
			return fmt.Sprintf("line %d at %d:\n got %.300s\nwant %.300s", i, at, a[i][from:], b[i][from:])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(a), len(b))
}
