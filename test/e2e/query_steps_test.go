package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	prometheus "github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"
	"github.com/prometheus/prometheus/util/teststorage"

	"github.com/ferula-io/ferula/internal/promql"
	"github.com/ferula-io/ferula/internal/promql/columns"
	"github.com/ferula-io/ferula/internal/thanos/fanout"
)

// allSamples hides that a querier can leave out samples between steps.
type allSamples struct{ storage.Queryable }

func (a allSamples) Querier(mint, maxt int64) (storage.Querier, error) {
	q, err := a.Queryable.Querier(mint, maxt)
	return struct{ storage.Querier }{q}, err
}

// stepsWorld has floats of several intervals with gaps and stale markers, and native histograms, for an hour from time 0.
func stepsWorld(t *testing.T, rng *rand.Rand) *teststorage.TestStorage {
	t.Helper()
	s := teststorage.New(t)
	app := s.Appender(context.Background())
	check := func(_ storage.SeriesRef, err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	for i, interval := range []int64{500, 5000, 15_000, 60_000} {
		lset := labels.FromStrings(labels.MetricName, "m", "i", fmt.Sprint(i))
		for at := rng.Int64N(interval); at < 3_600_000; at += interval {
			v := rng.Float64()
			if rng.IntN(30) == 0 {
				v = math.Float64frombits(value.StaleNaN)
			}
			check(app.Append(0, lset, at+rng.Int64N(interval/10), v))
			if rng.IntN(40) == 0 {
				at += rng.Int64N(40) * interval
			}
		}
	}
	for at := int64(0); at < 3_600_000; at += 15_000 {
		check(app.AppendHistogram(0, labels.FromStrings(labels.MetricName, "h"), at, tsdbutil.GenerateTestHistogram(at/15_000), nil))
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	return s
}

// A query returns the same whether or not the store leaves out samples between the steps.
func TestQuery_SamplesBetweenStepsChangeNoResult(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	engine, err := promql.New(promql.Options{MaxSamples: 10_000_000, Timeout: 100 * time.Second}, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	f := overStoreAPI(t, fanout.Options{}, rawStore{ChunkQueryable: stepsWorld(t, rng)})
	evaluator := columns.New(columns.Options{Engine: engine, MaxSamples: engine.MaxSamples(), SubqueryStep: engine.SubqueryStep, Bare: engine.Bare})
	queries := []string{
		`{__name__=~"m|h"}`, `sum(m) by (i)`, `m offset 7m`, `m offset -7s`, `m @ end() or m`, `timestamp(m)`, `absent(m{i="3"})`, `m - rate(m[1m])`,
		`max_over_time(m[5m:7s]) > m`, `histogram_count(h) + on() group_right() m`, `m unless m offset 1m`, `count(m) + scalar(m{i="1"})`,
	}
	for n := range 300 {
		query, start := queries[n%len(queries)], rng.Int64N(3_600_000)
		step := []int64{1, 700, 15_000, 45_001, 300_000}[rng.IntN(5)]
		end, lookback := start+rng.Int64N(100)*step, []time.Duration{0, time.Second, time.Hour}[rng.IntN(3)]
		var results [2]string
		for i, from := range []storage.Queryable{f.Queryable(fanout.Request{}), allSamples{f.Queryable(fanout.Request{})}} {
			opts := prometheus.NewPrometheusQueryOpts(false, lookback)
			q, err := evaluator.NewRangeQuery(t.Context(), from, opts, query, time.UnixMilli(start), time.UnixMilli(end), time.Duration(step)*time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			results[i] = q.Exec(t.Context()).String()
			q.Close()
		}
		if results[0] != results[1] {
			t.Fatalf("%s from %d to %d step %d lookback %s:\n got %.2000s\nwant %.2000s", query, start, end, step, lookback, results[0], results[1])
		}
	}
}
