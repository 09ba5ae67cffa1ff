package promql_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/storage"
	promtsdb "github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/teststorage"
	"go.uber.org/goleak"

	"github.com/ferula-io/ferula/internal/promql/columns"
	"github.com/ferula-io/ferula/internal/remoteread"
	"github.com/ferula-io/ferula/internal/thanos/fanout"
	"github.com/ferula-io/ferula/internal/tsdb"
	"github.com/ferula-io/ferula/metrics"
	"github.com/ferula-io/ferula/test/stores"
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
	oracle  promql.QueryEngine // with the options of columns
	wanted  promql.QueryEngine // with the options of the scripts

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

// wires are the ways in which the engine reads a store.
var wires = map[string]func(testing.TB) storage.Storage{
	"TSDB":         func(t testing.TB) storage.Storage { return newStore(t) },
	"all features": func(t testing.TB) storage.Storage { return newStore(t) },
	"samples":      func(t testing.TB) storage.Storage { s := newStore(t); return remote{s, s} },
	"StoreAPI":     func(t testing.TB) storage.Storage { s := newStore(t); return remote{s, overStoreAPI(t, s)} },
	"remote read":  func(t testing.TB) storage.Storage { s := newStore(t); return remote{s, overRemoteRead(t, s)} },
}

// newStore returns an empty store. If the test needs start timestamps, which ours does
// not keep, it returns Prometheus' own.
func newStore(t testing.TB) storage.Storage {
	t.Helper()
	if strings.Contains(t.Name(), "start_timestamps") {
		return teststorage.New(t, func(o *promtsdb.Options) {
			o.EnableSTStorage, o.EnableHistogramSTEncoding, o.FloatChunkEncoding = true, true, chunkenc.EncXOR2
		})
	}
	s, err := tsdb.New(tsdb.Options{
		Dir: t.TempDir(), Retention: -1, NoLockfile: true, FreeBytesMin: -1,
		MinBlockDuration: 24 * time.Hour, MaxBlockDuration: 24 * time.Hour,
	}, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), metrics.NewSet())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// remote is a store that is written directly and read over a wire. It has no raw interface.
type remote struct {
	storage.Storage
	from storage.Queryable
}

// Querier implements storage.Queryable.
func (r remote) Querier(mint, maxt int64) (storage.Querier, error) { return r.from.Querier(mint, maxt) }

// overRemoteRead serves a store by remote read, and returns a client.
func overRemoteRead(t testing.TB, s storage.Storage) storage.Queryable {
	t.Helper()
	server := httptest.NewServer(remoteread.NewServer(remoteread.Options{FrameBytesMax: 1 << 20, SamplesMax: 50_000_000}, s, slog.New(slog.DiscardHandler), nil))
	t.Cleanup(server.Close)
	f := remoteread.NewFanout(nothing{})
	f.SetEndpoints([]remoteread.Endpoint{{Client: remoteread.NewClient(remoteread.ClientOptions{URL: server.URL, HTTP: server.Client()})}})
	return f
}

// nothing is the local storage beside the endpoint.
type nothing struct{}

func (nothing) Querier(int64, int64) (storage.Querier, error) { return storage.NoopQuerier(), nil }
func (nothing) ChunkQuerier(int64, int64) (storage.ChunkQuerier, error) {
	return storage.NoopChunkedQuerier(), nil
}

func overStoreAPI(t testing.TB, s storage.Storage) storage.Queryable {
	t.Helper()
	if _, ok := s.(*tsdb.Store); !ok {
		return s
	}
	return queries{stores.Fanout(t, fanout.Options{}, stores.Raw{ChunkQueryable: s})}
}

// queries opens a storage for each query.
type queries struct{ fanout *fanout.Fanout }

// Querier implements storage.Queryable.
func (q queries) Querier(mint, maxt int64) (storage.Querier, error) {
	return q.fanout.Queryable(fanout.Request{AbortOnPartial: true}).Querier(mint, maxt)
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var updateFlag = flag.Bool("update", false, "write docs/promql-engine.md")

// The minimum share of evaluations that the engine of columns must do itself, in percent:
// with the default features, and with the features of the scripts.
const (
	leastShare    = 99
	leastShareAll = 55
)

// TestEngine_PassesPrometheusScripts runs the scripts with which Prometheus tests its
// engine.
func TestEngine_PassesPrometheusScripts(t *testing.T) {
	for wire, open := range wires {
		t.Run(wire, func(t *testing.T) {
			if testing.Short() && wire != "TSDB" && wire != "all features" {
				t.Skip("takes half a minute")
			}
			j := newJudge(t, wire == "all features")
			promqltest.RunBuiltinTestsWithStorage(t, j, open)
			least := float64(leastShare)
			if wire == "all features" {
				least = leastShareAll
			}
			t.Logf("%.1f %% of %d evaluations without Prometheus' engine", j.share(), j.evaluations)
			if share := j.share(); share < least || j.evaluations < 10_000 {
				t.Errorf("%.1f %% of %d evaluations by columns, want %g", share, j.evaluations, least)
			}
			if wire == "TSDB" && !t.Failed() {
				checkDocument(t, j.document())
			}
		})
	}
}

const documentPath = "../../docs/promql-engine.md"

// checkDocument checks that the list of queries that Prometheus' engine evaluates is
// current.
func checkDocument(t *testing.T, want string) {
	t.Helper()
	if *updateFlag {
		if err := os.WriteFile(documentPath, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(documentPath)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not current: run go test ./test/promql -run Scripts/TSDB -update", documentPath)
	}
}

const documentHead = `# What ferula's PromQL engine leaves to Prometheus' engine

` + "`go test ./test/promql -update`" + ` writes this list.
It runs Prometheus' own scripts (` + "`promql/promqltest/testdata`" + `) over the database, its samples, StoreAPI and remote read, and compares both engines bit by bit.
[The reasons](ops/query-engine.md#what-prometheus-engine-evaluates).

`

// queriesShown is the number of queries that are listed for one reason.
const queriesShown = 30

// byOrder is a reason that depends on the order of the series. The scripts' runner loads
// them in random order.
const byOrder = "series of which some have a type or a unit"

// generatedAt matches the modifiers that the scripts' runner adds to queries.
var generatedAt = regexp.MustCompile(` @ -?\d+\.\d{3}\b`)

// document returns the list of queries that Prometheus' engine evaluated, as Markdown.
func (j *judge) document() string {
	var b strings.Builder
	b.WriteString(documentHead)
	// Whole percents: the share differs between runs by a few hundredths of a percent.
	fmt.Fprintf(&b, "ferula's engine does more than %.0f %% of the scripts' evaluations, Prometheus' engine the others:\n", math.Floor(j.share()))
	for _, reason := range slices.Sorted(maps.Keys(j.reasons)) {
		if reason == byOrder {
			continue
		}
		queries := slices.Sorted(maps.Keys(j.reasons[reason]))
		if written := slices.DeleteFunc(slices.Clone(queries), generatedAt.MatchString); len(written) > 0 {
			queries = written
		}
		fmt.Fprintf(&b, "\n## %s\n\n%d queries", reason, len(queries))
		if len(queries) > queriesShown {
			fmt.Fprintf(&b, ", of which %d", queriesShown)
			queries = queries[:queriesShown]
		}
		b.WriteString(":\n\n```\n")
		for _, query := range queries {
			b.WriteString(strings.Join(strings.Fields(query), " ") + "\n")
		}
		b.WriteString("```\n")
	}
	return b.String()
}
