package columns_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	promtsdb "github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/promql/columns"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/xor"
	"github.com/ferula-io/ferula/internal/tsdb"
)

var (
	queriesFlag = flag.Int("queries", 600, "random queries of TestEngine_ReturnsTheSameFromSummaries")
	seedFlag    = flag.Uint64("seed", 2, "seed of these queries")
)

// sides says where summaries come from.
type sides int

const (
	noSides   sides = iota // no chunk has a summary
	sideFiles              // the store has them
	madeHere               // of each chunk for which one is enough, except for some
)

// summarized is a store whose chunks have summaries.
type summarized struct {
	*tsdb.Store
	from    sides
	without uint64 // of those that are made here, so many of 8 are absent
	counts  *summaryCounts
}

type summaryCounts struct{ selections, asked, summaries, samples, decoded, again atomic.Int64 }

func (s summarized) Querier(mint, maxt int64) (storage.Querier, error) {
	s.counts.again.Add(1)
	return s.Store.Querier(mint, maxt)
}

func (s summarized) RawQuerier(ctx context.Context, mint, maxt int64) (series.Querier, error) {
	q, err := s.Store.RawQuerier(ctx, mint, maxt)
	return summarizedQuerier{q, s}, err
}

type summarizedQuerier struct {
	series.Querier
	of summarized
}

func (q summarizedQuerier) Select(ctx context.Context, opts series.SelectOptions, matchers ...*labels.Matcher) series.Set {
	asked := opts.Summaries
	if q.of.from != sideFiles {
		opts.Summaries = nil
	}
	set := q.Querier.Select(ctx, opts, matchers...)
	q.of.counts.selections.Add(1)
	if asked == nil || q.of.from == noSides {
		return set
	}
	q.of.counts.asked.Add(1)
	return &summarizedSet{Set: set, of: q.of, asked: asked}
}

type summarizedSet struct {
	series.Set
	of     summarized
	asked  *series.Summaries
	chunks []series.Chunk
	data   []byte
}

func (s *summarizedSet) Next() bool {
	clear(s.data) // the engine must not keep it
	s.chunks, s.data = s.chunks[:0], nil
	if !s.Set.Next() {
		return false
	}
	for _, c := range s.Set.Chunks() {
		from, short := len(s.data), c.Data
		ok := c.Encoding == series.Summarized
		if s.of.from == madeHere {
			short, ok = s.summary(c)
		}
		if ok {
			s.data = append(s.data, short...)
			c = series.Chunk{MinMS: c.MinMS, MaxMS: c.MaxMS, Encoding: series.Summarized, Data: s.data[from:len(s.data):len(s.data)], Kept: c.Kept}
			if sum, err := c.Summary(); s.of.from == madeHere && err == nil {
				c.Kept = s.asked.Keeps != nil && s.asked.Keeps(&sum)
			}
			s.of.counts.summaries.Add(1)
			s.of.counts.samples.Add(int64(series.SamplesOf([]series.Chunk{c})))
		} else {
			s.of.counts.decoded.Add(1)
		}
		s.chunks = append(s.chunks, c)
	}
	if s.of.from == madeHere && s.asked.HasEdges() {
		return s.asked.Edges(s.chunks, func(i int) (series.Chunk, error) {
			s.of.counts.decoded.Add(1)
			return s.Set.Chunks()[i], nil
		}) == nil
	}
	return true
}

func (s *summarizedSet) summary(c series.Chunk) ([]byte, bool) {
	if c.Encoding != chunkenc.EncXOR || uint64(c.MinMS)*0x9e3779b97f4a7c15>>61 < s.of.without {
		return nil, false
	}
	points, err := xor.AppendPoints([]promql.FPoint(nil), c.Data, xor.Ascending)
	if err != nil || len(points) == 0 || points[0].T != c.MinMS || points[len(points)-1].T != c.MaxMS {
		return nil, false // the last chunk of the head has no exact times
	}
	sum, ok := series.SummaryOf(points)
	enough := s.asked.EnoughOf(c.MinMS, c.MinMS+sum.Second, c.MaxMS-sum.Late, c.MaxMS)
	return series.AppendSummary(nil, sum), ok && enough && !(s.asked.Rising && sum.Falls) && (s.asked.Fits == nil || s.asked.Fits(&sum))
}

func (s *summarizedSet) Chunks() []series.Chunk { return s.chunks }

// deletes reports whether newSummaryWorld deletes samples. Prometheus' own queriers panic at some ranges of such series.
func deletes(seed uint64) bool { return seed%2 == 1 }

// newSummaryWorld returns a store of hours of samples in chunks of some samples.
func newSummaryWorld(t testing.TB, seed uint64, samplesOfChunk int) *tsdb.Store {
	t.Helper()
	store, _ := newSummaryWorldIn(t, seed, samplesOfChunk)
	return store
}

func newSummaryWorldIn(t testing.TB, seed uint64, samplesOfChunk int) (store *tsdb.Store, dir string) {
	t.Helper()
	opts := promtsdb.DefaultOptions()
	opts.NoLockfile, opts.SamplesPerChunk = true, samplesOfChunk
	dir = t.TempDir()
	db, err := promtsdb.Open(dir, slog.New(slog.DiscardHandler), nil, opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	db.DisableCompactions()
	rng := rand.New(rand.NewPCG(seed, 1))
	odd := []float64{0, math.Copysign(0, -1), math.NaN(), math.Inf(1), math.Inf(-1), 1e308, -1e308, 5e-324, 1, math.Float64frombits(value.StaleNaN)}
	const end = beginMS + 6*hourMS
	type one struct {
		name             string
		oddIn            int
		step, next, last int64
		sum              float64
	}
	var all []*one
	for i := range 12 {
		s := &one{name: fmt.Sprintf(`%s{i="%d",k="%d"}`, []string{"c_total", "g", "n"}[i%3], i, i%2), oddIn: []int{1 << 40, 100, 1000}[rng.IntN(3)],
			step: []int64{15_000, 15_000, 30_000, 60_000, 7_001, 300_000}[rng.IntN(6)], next: beginMS + []int64{0, 0, 1, 137, hourMS}[rng.IntN(5)]}
		if s.step < 10_000 {
			s.next += 4 * hourMS
		}
		all = append(all, s)
	}
	for to := beginMS + hourMS/2; to <= end; to += hourMS / 2 { // all series together: the head takes no samples that are much older than its last
		for i, s := range all {
			from := s.next
			s.next += (max(0, to-from) + s.step - 1) / s.step * s.step
			appendSamples(t, db, s.name, from, to, s.step, func(_ int, ts int64) (float64, bool) {
				switch rng.IntN(300) {
				case 0:
					s.sum = rng.Float64()
				case 1:
					s.last = ts + rng.Int64N(100)*s.step // a gap
				}
				if rng.IntN(s.oddIn) == 0 {
					return odd[rng.IntN(len(odd))], true
				}
				s.sum += math.Floor(rng.Float64() * 3)
				switch i % 3 {
				case 0:
					return s.sum * 1.1, ts >= s.last
				case 1:
					return (rng.Float64() - 0.5) * math.Pow(10, float64(rng.IntN(12))), ts >= s.last
				}
				return float64(rng.IntN(3) - 1), ts >= s.last
			})
		}
		writeHistograms(t, db, to-hourMS/2, to)
	}
	for i := range int64(2) {
		if err := db.CompactHead(promtsdb.NewRangeHead(db.Head(), beginMS+i*2*hourMS, beginMS+(i+1)*2*hourMS-1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	store = openStore(t, dir)
	for _, i := range []string{"1", "3", "8"} {
		if !deletes(seed) {
			break
		}
		from := beginMS + rng.Int64N(5*hourMS)
		if err := store.DeleteSeries(t.Context(), from, from+rng.Int64N(hourMS), labels.MustNewMatcher(labels.MatchEqual, "i", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Summarize(t.Context()); err != nil {
		t.Fatal(err)
	}
	return store, dir
}

// random makes queries.
type random struct{ *rand.Rand }

func (r random) of(all ...string) string { return all[r.IntN(len(all))] }

func (r random) duration() string {
	if r.IntN(3) == 0 {
		return fmt.Sprintf("%dms", 1+r.Int64N(int64(1)<<(10+r.IntN(15))))
	}
	return r.of("15s", "1m", "5m", "10m", "20m", "30m", "1h", "1h15s", "90m", "2h", "2h1m", "3h", "6h", "10h")
}

// modifiers returns offset and @.
func (r random) modifiers() (m string) {
	switch r.IntN(5) {
	case 0:
		m = " offset " + r.of("", "-") + r.duration()
	case 1:
		m = fmt.Sprintf(" @ %d", (beginMS+r.Int64N(7*hourMS))/1000)
	case 2:
		m = r.of(" @ start()", " @ end()", " @ start() offset 7m", " @ end() offset -1h", "", "", "")
	}
	return m
}

func (r random) series() string {
	if r.IntN(30) == 0 {
		return r.of("h", "mixed", `{__name__=~"mixed|n"}`)
	}
	return r.of("c_total", "g", "n", `{__name__=~"c_total|g|n"}`, `c_total{k="1"}`, `g{i!="4"}`)
}

func (r random) vector(depth int) string {
	if depth > 0 {
		switch r.IntN(9) {
		case 0:
			return fmt.Sprintf("%s(%s)", r.of("sum", "sum by (k)", "avg without (i)", "topk by (k) (1,", "count", "-", "quantile(0.3,", "stddev"), r.vector(depth-1))
		case 1:
			return fmt.Sprintf("%s((%s)[%s:%s]%s)", r.of("rate", "max_over_time", "sum_over_time", "last_over_time", "changes"), r.vector(depth-1), r.of("20m", "1h", "2h"), r.of("1m", "5m", "20m", "47m"), r.modifiers())
		case 2:
			return fmt.Sprintf("%s %s %s", r.vector(depth-1), r.of("+ on (i, k, x)", "/ ignoring (__name__)", "and", "or", "> bool"), r.vector(depth-1))
		}
	}
	extended := r.of(" anchored", " smoothed", "", "", "", "", "", "", "", "")
	switch r.IntN(6) {
	case 0:
		if extended == " smoothed" {
			return r.series() + extended + r.modifiers()
		}
		return r.series() + r.modifiers()
	case 1:
		return r.of("timestamp", "abs", "") + "(" + r.series() + r.modifiers() + ")"
	}
	function := r.of("rate", "increase", "delta", "min_over_time", "max_over_time", "count_over_time", "last_over_time", "first_over_time",
		"present_over_time", "absent_over_time", "changes", "resets", "ts_of_first_over_time", "ts_of_last_over_time",
		"rate", "increase", "irate", "idelta", "sum_over_time", "avg_over_time", "deriv", "ts_of_max_over_time", "quantile_over_time")
	selected := r.series() + "[" + r.duration() + "]" + extended + r.modifiers()
	if function == "quantile_over_time" {
		selected = "0.3, " + selected
	}
	return function + "(" + selected + ")"
}

// request returns a query. The order of series in the operators of a plain one is not random in Prometheus.
func (r random) request() (q request, plain bool) {
	depth := r.IntN(4)
	q = request{query: r.vector(depth), start: beginMS + r.Int64N(7*hourMS), perStep: r.IntN(2) == 0}
	if r.IntN(3) > 0 {
		q.start -= q.start % []int64{15_000, hourMS / 2}[r.IntN(2)]
	}
	if q.end = q.start; r.IntN(5) > 0 {
		steps := []time.Duration{15 * time.Second, time.Minute, 5 * time.Minute, 20 * time.Minute, time.Hour, 3 * time.Hour, time.Duration(1 + r.IntN(1<<23))}
		q.step = steps[r.IntN(len(steps))]
		if q.step < time.Second {
			q.step *= time.Millisecond
			q.step = max(q.step, 10*time.Second)
		}
		q.end += r.Int64N(40 * q.step.Milliseconds())
	}
	threshold := r.IntN(3) == 0 // often one that a value equals
	if threshold {
		number := r.of("0", "-0", "1", "-1", "0.5", "1e5", "-1e7", "NaN", "Inf", "-Inf", "(2 - 1)", "scalar(n{i='2'})", "110", "550")
		op := r.of(">", "<", ">=", "<=", "==", "!=", "> bool")
		if q.query = r.series() + r.modifiers(); depth > 0 {
			q.query = r.vector(depth - 1)
		}
		if q.query = q.query + " " + op + " " + number; r.IntN(4) == 0 {
			q.query = number + " " + op + " " + r.series()
		}
	}
	// Prometheus returns the series of operators and functions in a random order, on which a sum depends.
	ordered := !threshold && !strings.HasPrefix(q.query, "abs(") && !strings.HasPrefix(q.query, "timestamp(")
	if plain = depth == 0; plain && r.IntN(3) == 0 && ordered {
		q.query = r.of("sum", "sum by (k)", "avg", "max without (i)", "count", "count by (k)", "group without (i)") + "(" + q.query + ")"
	}
	return q, plain
}

// sorted returns a result in the order of its lines: the series of an instant query may come in any order.
func sorted(result string) string {
	lines := strings.Split(result, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func TestEngine_ReturnsTheSameFromSummaries(t *testing.T) {
	counts, made, own, all := &summaryCounts{}, &summaryCounts{}, 0, 0
	for world, samplesOfChunk := range []int{1, 2, 5, 20, 120} {
		store := newSummaryWorld(t, uint64(world), samplesOfChunk)
		rng := random{rand.New(rand.NewPCG(uint64(world), *seedFlag))}
		for range *queriesFlag / 5 {
			opts := engineOpts(50_000_000)
			opts.EnableDelayedNameRemoval = rng.IntN(4) == 0
			workers, gap := rng.IntN(2)*2, rng.IntN(4) > 0
			newEngine := func() *columns.Engine {
				e := columns.New(optionsOf(opts))
				if workers > 0 {
					e = helped(opts, workers)
				}
				if gap {
					e = columns.Summarizing(e)
				}
				return e
			}
			r, plain := rng.request()
			plainly := summarized{store, noSides, 0, &summaryCounts{}}
			want, _ := r.run(t, newEngine(), plainly)
			if rng.IntN(4) == 0 { // at the limit
				var total, read, peak int
				if _, err := fmt.Sscanf(want[strings.LastIndex(want, "samples ")+1:], "amples %d read %d peak %d", &total, &read, &peak); err == nil && peak > 1 {
					opts.MaxSamples = peak - rng.IntN(2)*(1+rng.IntN(peak-1))
					want, _ = r.run(t, newEngine(), plainly)
				}
			}
			from := summarized{store, sideFiles, 0, counts}
			if rng.IntN(4) == 0 {
				from = summarized{store, madeHere, []uint64{0, 0, 4}[rng.IntN(3)], made}
			}
			got, by := r.run(t, newEngine(), from)
			if all++; by != "columns" { // the order in which Prometheus adds some series is random
				continue
			}
			own++
			if got != want {
				t.Fatalf("world %d, limit %d: %s: %s", world, opts.MaxSamples, r, difference(got, want))
			}
			if !plain || deletes(uint64(world)) {
				continue
			}
			if want, _ := r.run(t, promql.NewEngine(opts), store); sorted(got) != sorted(want) {
				t.Fatalf("world %d, limit %d: %s, of Prometheus: %s", world, opts.MaxSamples, r, difference(got, want))
			}
		}
	}
	t.Logf("%d of %d queries by columns", own, all)
	for _, c := range []*summaryCounts{counts, made} {
		t.Logf("%d of %d selections ask, %d summaries with %d samples, %d decoded", c.asked.Load(), c.selections.Load(),
			c.summaries.Load(), c.samples.Load(), c.decoded.Load())
		if own < all*7/10 || c.samples.Load() < c.decoded.Load() {
			t.Error("too few")
		}
	}
}

// A long range is read from summaries, a short one is not, with the windows of a dashboard.
func TestEngine_AsksForSummariesOfLongRanges(t *testing.T) {
	store := newSummaryWorld(t, 8, 120)
	_, engine := newEngines(50_000_000)
	for _, c := range []struct {
		query    string
		step     time.Duration
		asks     bool
		mostRead int64 // chunks that are not summaries
	}{
		{`sum(rate(c_total[1h]))`, time.Hour, true, 40}, {`rate(c_total[6h])`, 0, true, 30}, {`g`, time.Hour, true, 40},
		{`irate(c_total[1h])`, time.Hour, true, 60}, {`idelta(g[6h])`, 0, true, 30},
		{`sum_over_time(g[1m])`, time.Hour, true, 40}, {`irate(g[5m])`, 2 * time.Hour, true, 30}, {`max_over_time(n[2h])`, time.Hour, true, 40},
		{`n > 1`, time.Minute, true, 90}, {`count(n)`, time.Minute, true, 90}, {`n <= -1.5 or 7 == g{i="1"}`, 15 * time.Second, true, 90},
		{`sum(rate(c_total[5m]))`, time.Minute, false, 0}, {`g`, 5 * time.Minute, false, 0}, {`g`, 0, false, 0}, {`sum_over_time(g[1h])`, time.Hour, false, 0},
	} {
		counts := &summaryCounts{}
		r := request{query: c.query, start: beginMS + 6*hourMS, end: beginMS + 6*hourMS, step: c.step}
		if c.step > 0 {
			r.start = beginMS + hourMS
		}
		want, _ := r.run(t, promql.NewEngine(engineOpts(50_000_000)), store)
		got, by := r.run(t, engine, summarized{store, madeHere, 0, counts})
		if by != "columns" || got != want {
			t.Errorf("%s by %s: %s", r, by, difference(got, want))
		}
		if asks := counts.asked.Load() > 0; asks != c.asks || asks && (counts.decoded.Load() > c.mostRead || counts.summaries.Load() == 0) || counts.again.Load() > 0 {
			t.Errorf("%s: asks %v, %d summaries, %d decoded, %d times again", r, asks, counts.summaries.Load(), counts.decoded.Load(), counts.again.Load())
		}
	}
}

// A chunk without a sample above a threshold has gaps, ends in one, or is next to samples above it: the results, and the
// samples that the limit counts, are those of Prometheus' engine.
func TestEngine_ThresholdsOverGaps(t *testing.T) {
	for _, samplesOfChunk := range []int{1, 20} {
		t.Run(fmt.Sprint(samplesOfChunk), func(t *testing.T) { checkThresholds(t, samplesOfChunk) })
	}
}

func checkThresholds(t *testing.T, samplesOfChunk int) {
	opts := promtsdb.DefaultOptions()
	opts.NoLockfile, opts.SamplesPerChunk = true, samplesOfChunk
	dir := t.TempDir()
	db, err := promtsdb.Open(dir, slog.New(slog.DiscardHandler), nil, opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	const end = beginMS + hourMS*9/10
	odd := map[int]float64{45: 2, 46: math.Copysign(0, -1), 130: math.Float64frombits(value.StaleNaN), 131: math.NaN(), 200: math.Inf(1)}
	for i := range 20 { // a gap is in a chunk if it follows its first samples; 30 samples are the lookback delta
		first, gap := 60+i, []int{100, 29, 100, 30, 31}[i%5]
		appendSamples(t, db, fmt.Sprintf(`x{i="%d"}`, i), beginMS, end, 10_000, func(n int, _ int64) (float64, bool) {
			if v, ok := odd[n]; ok {
				return v, true
			}
			return float64(n % 20 / 19), n < first || n >= first+gap
		})
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	counts := &summaryCounts{}
	from := summarized{openStore(t, dir), madeHere, 0, counts}
	for _, query := range []string{"x > 1", "x >= 1", "x < 0", "x == 2", "x != 0", "0.5 < x", "x > 2", "x > Inf", "x > NaN", "x offset 7m > 1"} {
		for _, r := range []request{{query, beginMS, end + hourMS/10, 10 * time.Second, true},
			{query, beginMS + hourMS/5 + 1, end, time.Second, false}, {query, end, end, 0, false}} {
			theirs, ours := newEngines(50_000_000)
			want, _ := r.run(t, theirs, from)
			if got, by := r.run(t, ours, from); by != "columns" || sorted(got) != sorted(want) {
				t.Errorf("%s by %s: %s", r, by, difference(got, want))
			}
		}
	}
	if counts.summaries.Load() < 500 {
		t.Errorf("%d summaries", counts.summaries.Load())
	}
}

// Of a run, the values that WithRuns promises are read: the first ones, and the last.
func TestWithRuns_ReadsBothEnds(t *testing.T) {
	all, notRead, joined := 0, 0, 0
	for world, samplesOfChunk := range []int{1, 2, 5, 20, 120} {
		store := newSummaryWorld(t, uint64(world), samplesOfChunk)
		rng := random{rand.New(rand.NewPCG(uint64(world), *seedFlag))}
		for range *queriesFlag / 10 {
			r, _ := rng.request()
			r.query = rng.of("n >= -1", "n > 0", "n != 7", "-7 < n", "c_total > 0", "c_total <= 150", "g > -1e20", "g < 1e5", "0 != c_total")
			inner := rng.IntN(4) == 0
			if inner {
				r.query = "-(" + r.query + ")"
			}
			if r.step = max(r.step, 15*time.Second); rng.IntN(2) == 0 {
				r.step, r.end = 15*time.Second, r.start+rng.Int64N(6*hourMS)
			}
			from := summarized{store, sideFiles + sides(rng.IntN(2)), []uint64{0, 0, 4}[rng.IntN(3)], &summaryCounts{}}
			lead := time.Duration(rng.IntN(1200)) * time.Second
			runs := &columns.Runs{Lead: lead}
			engine := columns.New(optionsOf(engineOpts(50_000_000)))
			results := func(ctx context.Context) promql.Matrix {
				q, err := r.open(engine, from)
				if err != nil {
					t.Fatal(err)
				}
				res := q.Exec(ctx)
				if res.Err != nil {
					t.Fatal(res.Err)
				}
				return res.Value.(promql.Matrix)
			}
			want, got := results(t.Context()), results(columns.WithRuns(t.Context(), runs))
			if runs.Steps > 0 && (inner || strings.Contains(r.query, "!=")) {
				t.Fatalf("world %d: %s: %+v", world, r, runs)
			}
			if len(got) != len(want) {
				t.Fatalf("world %d: %s: %d series, not %d", world, r, len(got), len(want))
			}
			for i, row := range got {
				points, begun := want[i].Floats, int64(0)
				if runs.Steps > 0 {
					joined += len(row.Floats)
					row.Floats = separate(row.Floats, r.step.Milliseconds())
				}
				if len(row.Floats) != len(points) {
					t.Fatalf("world %d: %s: %s has %d points, not %d", world, r, row.Metric, len(row.Floats), len(points))
				}
				for k, p := range row.Floats {
					all++
					if k == 0 || p.T-points[k-1].T > r.step.Milliseconds() {
						begun = p.T
					}
					ends := k == len(points)-1 || points[k+1].T-p.T > r.step.Milliseconds()
					if needed := ends || p.T <= begun+lead.Milliseconds() || inner; !needed && columns.Unread(p.F) {
						notRead++
					} else if p.T != points[k].T || math.Float64bits(p.F) != math.Float64bits(points[k].F) {
						t.Fatalf("world %d: %s, lead %s: %s is %v, not %v, in a run from %d", world, r, lead, row.Metric, p, points[k], begun)
					}
				}
			}
		}
	}
	if t.Logf("%d of %d values are not read, %d are joined", notRead, all, joined); notRead < all/50 || joined < all/50 {
		t.Error("too few")
	}
}

// separate returns points of which none that is not read stands for others.
func separate(joined []promql.FPoint, stepMS int64) (points []promql.FPoint) {
	for i, p := range joined {
		points = append(points, p)
		for columns.Unread(p.F) && p.T+stepMS < joined[i+1].T {
			p.T += stepMS
			points = append(points, p)
		}
	}
	return points
}

var _ storage.Queryable = summarized{}

// timestamp() of a selector with @ selects at @, and the range of its selection has the offset.
func TestEngine_TimestampsAtATimeComeFromItsSamples(t *testing.T) {
	store, counts := newSummaryWorld(t, 0, 20), &summaryCounts{}
	for at := beginMS/1000 + 3600; at < beginMS/1000+7200; at += 97 {
		for _, offset := range []string{"-1m", "-4m", "1m"} {
			r := request{query: fmt.Sprintf("timestamp(c_total @ %d offset %s)", at, offset), start: beginMS + 3*hourMS}
			want, _ := r.run(t, promql.NewEngine(engineOpts(50_000_000)), store)
			if got, by := r.run(t, columns.Summarizing(columns.New(optionsOf(engineOpts(50_000_000)))), summarized{store, madeHere, 0, counts}); sorted(got) != sorted(want) || by != "columns" {
				t.Fatalf("%s by %s: %s", r, by, difference(got, want))
			}
		}
	}
}
