package promql_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"

	"github.com/ferula-io/ferula/internal/promql/columns"
)

// engineOptions are the options of Prometheus' scripts, except those with which the engine
// of columns leaves evaluations to Prometheus' engine.
func engineOptions(maxSamples int) promql.EngineOpts {
	return promql.EngineOpts{
		Logger: slog.New(slog.DiscardHandler), MaxSamples: maxSamples, Timeout: 100 * time.Second, LookbackDelta: 5 * time.Minute,
		NoStepSubqueryIntervalFn: func(int64) int64 { return 60_000 }, EnableAtModifier: true, EnableNegativeOffset: true, EnablePerStepStats: true,
		Parser: parser.NewParser(promqltest.TestParserOpts),
	}
}

func newOracle(t testing.TB, opts promql.EngineOpts) *promql.Engine {
	t.Helper()
	e := promql.NewEngine(opts)
	t.Cleanup(func() { _ = e.Close() })
	return e
}

func newColumns(t testing.TB, opts promql.EngineOpts) *columns.Engine {
	t.Helper()
	return columns.New(columns.Options{
		Engine: newOracle(t, opts), MaxSamples: opts.MaxSamples, SubqueryStep: opts.NoStepSubqueryIntervalFn,
		DelayedNameRemoval: opts.EnableDelayedNameRemoval, UseStartTimestamps: opts.UseStartTimestamps,
		Workers: columns.NewWorkers(1), // operands are evaluated at the same time
		Bare: func(maxSamples int) *promql.Engine {
			part := opts
			part.MaxSamples = maxSamples
			return promql.NewEngine(part)
		},
	})
}

// judge is an engine that evaluates each query by the engine of columns and by Prometheus'
// engine. It fails if any bit of the results differs. It returns the result of the engine
// that has all options of the scripts.
type judge struct {
	columns promql.QueryEngine
	oracle  promql.QueryEngine                        // with the options of columns
	wanted  promql.QueryEngine                        // with the options of the scripts
	source  func(storage.Queryable) storage.Queryable // from which columns reads

	// anyPeak ignores the peak of samples. Prometheus does not subtract the scalar
	// arguments of some functions. A query that both engines evaluate in parts may not
	// count them.
	anyPeak bool

	mu          sync.Mutex
	evaluations int
	reasons     map[string]map[string]bool // of what Prometheus' engine evaluated, with the queries
	fallbacks   int
	undecided   int // evaluations for which Prometheus' engine never returned the same result twice
}

// newJudge returns a judge. With all, both engines have the options of the scripts, too.
func newJudge(t testing.TB, all bool) *judge {
	t.Helper()
	const maxSamples = 50_000
	full := engineOptions(maxSamples)
	full.EnableDelayedNameRemoval, full.UseStartTimestamps = true, true
	compared := engineOptions(maxSamples)
	if all {
		compared = full
	}
	return &judge{
		columns: newColumns(t, compared), oracle: newOracle(t, compared), wanted: newOracle(t, full),
		reasons: map[string]map[string]bool{},
	}
}

// NewInstantQuery implements promql.QueryEngine.
func (j *judge) NewInstantQuery(ctx context.Context, from storage.Queryable, opts promql.QueryOpts, qs string, ts time.Time) (promql.Query, error) {
	return j.query(from, qs, func(e promql.QueryEngine, from storage.Queryable) (promql.Query, error) {
		return e.NewInstantQuery(ctx, from, opts, qs, ts)
	})
}

// NewRangeQuery implements promql.QueryEngine.
func (j *judge) NewRangeQuery(ctx context.Context, from storage.Queryable, opts promql.QueryOpts, qs string, start, end time.Time, interval time.Duration) (promql.Query, error) {
	return j.query(from, qs, func(e promql.QueryEngine, from storage.Queryable) (promql.Query, error) {
		return e.NewRangeQuery(ctx, from, opts, qs, start, end, interval)
	})
}

type openFunc func(promql.QueryEngine, storage.Queryable) (promql.Query, error)

func (j *judge) query(from storage.Queryable, text string, open openFunc) (promql.Query, error) {
	direct := from
	if r, ok := from.(remote); ok {
		direct = r.Storage // chunks that were cut have lost hints of counter resets
	}
	q, err := open(j.wanted, direct)
	if err != nil {
		if _, other := open(j.columns, from); other == nil || other.Error() != err.Error() {
			return nil, fmt.Errorf("columns: %v, want %v", other, err)
		}
		return nil, err
	}
	return &judged{Query: q, judge: j, from: from, text: text, open: open}, nil
}

type judged struct {
	promql.Query
	judge *judge
	from  storage.Queryable
	text  string
	open  openFunc
}

// Exec implements promql.Query.
func (q *judged) Exec(ctx context.Context) *promql.Result {
	if err := q.compare(ctx); err != nil {
		return &promql.Result{Err: err}
	}
	return q.Query.Exec(ctx)
}

// compare evaluates the query by both engines. Prometheus returns the series of some
// operators in random order, and a few orders may change the last bit of a sum. So
// Prometheus' engine gets many tries, and if its own results differ, only the order of
// lines may differ.
func (q *judged) compare(ctx context.Context) error {
	mine, err := q.open(q.judge.columns, q.from)
	if err != nil {
		return err
	}
	got := q.judge.outcome(ctx, mine, q.text)
	q.judge.count(mine, q.text)
	mine.Close()
	first, contradicts := "", false
	for try := range 200 {
		theirs, err := q.open(q.judge.oracle, q.from)
		if err != nil {
			return err
		}
		want := q.judge.outcome(ctx, theirs, q.text)
		theirs.Close()
		if got == want {
			return nil
		}
		if try == 0 {
			first = want
		}
		contradicts = contradicts || want != first
		if contradicts && inOrder(got) == inOrder(want) {
			return nil
		}
	}
	if contradicts { // sums of series in random order
		q.judge.undecided++
		return nil
	}
	return fmt.Errorf("%s: %s", q.text, difference(got, first))
}

// inOrder sorts the lines of an outcome.
func inOrder(outcome string) string {
	lines := strings.Split(outcome, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (j *judge) count(q promql.Query, text string) {
	by := q.(interface{ EvaluatedBy() (string, string) })
	j.mu.Lock()
	defer j.mu.Unlock()
	j.evaluations++
	if name, reason := by.EvaluatedBy(); name != columns.Columns {
		j.fallbacks++
		if j.reasons[reason] == nil {
			j.reasons[reason] = map[string]bool{}
		}
		j.reasons[reason][text] = true
	}
}

// share returns the percentage of evaluations by columns.
func (j *judge) share() float64 {
	return 100 * float64(j.evaluations-j.fallbacks) / float64(max(1, j.evaluations))
}

// outcome runs a query and returns all its results that a client can see as text, with
// floats as bits.
func (j *judge) outcome(ctx context.Context, q promql.Query, text string) string {
	res := q.Exec(ctx)
	var b strings.Builder
	if res.Err != nil {
		text := res.Err.Error()
		if j.anyPeak {
			// The order of duplicate series determines which two of them the error names.
			text, _, _ = strings.Cut(text, " on the left hand-side of the operation: [")
			text, _, _ = strings.Cut(text, " on the right hand-side of the operation: [")
		}
		fmt.Fprintf(&b, "error %s\n", text)
	} else {
		write(&b, res.Value)
		samples := q.Stats().Samples
		fmt.Fprintf(&b, "samples %d read %d\n", samples.TotalSamples, samples.SamplesRead)
		if !j.anyPeak {
			fmt.Fprintf(&b, "peak %d\n", samples.PeakSamples)
		}
		fmt.Fprintf(&b, "per step %v read %v\n", samples.TotalSamplesPerStep, samples.SamplesReadPerStep)
	}
	warnings, infos := res.Warnings.AsStrings(text, 0, 0)
	for i, w := range warnings {
		// If there are several sorts, one is named. It depends on the order in which
		// annotations are merged.
		if text, _, ok := strings.Cut(w, " are always ordered by labels ("); ok && j.anyPeak {
			warnings[i] = text
		}
	}
	slices.Sort(warnings) // Prometheus returns them in random order
	slices.Sort(infos)
	fmt.Fprintf(&b, "warnings %q infos %q\n", warnings, infos)
	return b.String()
}

func bitsOf(f float64) string {
	if math.IsNaN(f) {
		return "NaN"
	}
	return fmt.Sprintf("%v/%x", f, math.Float64bits(f))
}

func bitsOfAll(all []float64) string {
	var b strings.Builder
	for _, f := range all {
		b.WriteString(bitsOf(f) + " ")
	}
	return b.String()
}

func histogramBits(h *histogram.FloatHistogram) string {
	if h == nil {
		return "none"
	}
	return fmt.Sprintf("{schema %d hint %d zero %s %s count %s sum %s positive %v %s negative %v %s custom %s}", h.Schema, h.CounterResetHint, bitsOf(h.ZeroThreshold), bitsOf(h.ZeroCount),
		bitsOf(h.Count), bitsOf(h.Sum), h.PositiveSpans, bitsOfAll(h.PositiveBuckets), h.NegativeSpans, bitsOfAll(h.NegativeBuckets), bitsOfAll(h.CustomValues))
}

func write(b *strings.Builder, v parser.Value) {
	fmt.Fprintf(b, "type %s\n", v.Type())
	switch v := v.(type) {
	case promql.Matrix:
		for _, s := range v {
			fmt.Fprintf(b, "%s", s.Metric)
			for _, p := range s.Floats {
				fmt.Fprintf(b, " %s@%d", bitsOf(p.F), p.T)
			}
			for _, p := range s.Histograms {
				fmt.Fprintf(b, " %s@%d", histogramBits(p.H), p.T)
			}
			b.WriteString("\n")
		}
	case promql.Vector:
		for _, s := range v {
			fmt.Fprintf(b, "%s %s@%d %s\n", s.Metric, bitsOf(s.F), s.T, histogramBits(s.H))
		}
	case promql.Scalar:
		fmt.Fprintf(b, "%s@%d\n", bitsOf(v.V), v.T)
	default:
		fmt.Fprintf(b, "%s\n", v)
	}
}

// difference returns the first line in which two outcomes differ.
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
