package columns_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	promtsdb "github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/promql/columns"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/tsdb"
)

// orderedWorld returns a store with two blocks and a head, whose samples of all series came in the order of time.
func orderedWorld(t *testing.T) *tsdb.Store {
	t.Helper()
	dir := t.TempDir()
	db, err := promtsdb.Open(dir, slog.New(slog.DiscardHandler), nil, promtsdb.DefaultOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	db.DisableCompactions()
	var all []labels.Labels
	for i := range 15 {
		for _, name := range []string{"c_total", "g", "b_bucket"} {
			all = append(all, labels.FromStrings("__name__", name, "i", strconv.Itoa(i), "ns", strconv.Itoa(i%5)))
		}
	}
	all = append(all, labels.FromStrings("__name__", "part_a", "x", "1"), labels.FromStrings("__name__", "part_b", "x", "1"))
	rng := rand.New(rand.NewPCG(3, 3))
	for ts := beginMS; ts < beginMS+5*hourMS; ts += 10_000 {
		app := db.Appender(context.Background())
		for k, lset := range all {
			every := []int64{10_000, 20_000, 30_000, 60_000, 120_000}[k%5]
			if part := (ts - beginMS) / hourMS; k == len(all)-1 && part < 3 || k == len(all)-2 && part > 1 || ts%every != 0 || rng.IntN(40) == 0 {
				continue
			}
			if _, err := app.Append(0, lset, ts+int64(k), rng.NormFloat64()); err != nil {
				t.Fatal(err)
			}
		}
		if err := app.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range int64(2) {
		if err := db.CompactHead(promtsdb.NewRangeHead(db.Head(), beginMS+i*2*hourMS, beginMS+(i+1)*2*hourMS-1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return openStore(t, dir)
}

// needed counts the series and samples that the selections of Prometheus' engine need.
type needed struct {
	store           *tsdb.Store
	series, samples int64
}

func (n *needed) Querier(mint, maxt int64) (storage.Querier, error) {
	q, err := n.store.Querier(mint, maxt)
	return neededQuerier{q, n}, err
}

type neededQuerier struct {
	storage.Querier
	sum *needed
}

func (q neededQuerier) Select(ctx context.Context, sorted bool, hints *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	exact, err := q.sum.store.Querier(hints.Start, hints.End)
	if err != nil {
		return storage.ErrSeriesSet(err)
	}
	defer exact.Close()
	set := exact.Select(ctx, false, nil, matchers...)
	var it chunkenc.Iterator
	for set.Next() {
		q.sum.series++
		for it = set.At().Iterator(it); it.Next() != chunkenc.ValNone; {
			q.sum.samples++
		}
	}
	return q.Querier.Select(ctx, sorted, hints, matchers...)
}

// randomQuery returns an expression of random selectors of floats.
func randomQuery(rng *rand.Rand) string {
	selector := func() string {
		of := []string{`c_total`, `g{i=~"1.*"}`, `{__name__=~"part_.|c_.*"}`, `{ns="1",__name__!~"h|mixed"}`, `g{i!="3",ns=~"[0-3]"}`, `{__name__=~"b.*|both_a"}`, `nothing`}[rng.IntN(7)]
		text := of
		if rng.IntN(2) == 0 {
			text = fmt.Sprintf("count_over_time(%s[%dm])", of, 1+rng.IntN(150))
			if rng.IntN(3) == 0 {
				text = fmt.Sprintf("max_over_time((%s)[%dm:%ds])", text, 1+rng.IntN(100), 1+rng.IntN(600))
			}
			return text
		}
		if rng.IntN(2) == 0 {
			text += fmt.Sprintf(" offset %dm", rng.IntN(400)-100)
		}
		if rng.IntN(4) == 0 {
			text += fmt.Sprintf(" @ %d", beginMS/1000+rng.Int64N(20_000))
		}
		return text
	}
	text := "count(" + selector() + ")"
	for range rng.IntN(3) {
		text += " + count(" + selector() + ")"
	}
	return text
}

func TestEstimate_IsAnUpperBoundOfWhatTheSelectorsNeed(t *testing.T) {
	store := orderedWorld(t)
	var queries []string
	rng := rand.New(rand.NewPCG(7, 7))
	for range 40 {
		queries = append(queries, randomQuery(rng))
	}
	oracle, engine := newEngines(50_000_000)
	var estimated, all int64
	eachSpan(queries, func(r request) {
		sum := &needed{store: store}
		q, err := r.open(oracle, sum)
		if err != nil {
			return
		}
		defer q.Close()
		ours, err := r.open(engine, store)
		if err != nil {
			t.Fatalf("%s: %v", r, err)
		}
		defer ours.Close()
		var series, samples int64
		for _, s := range columns.SelectionsOf(ours) {
			ofSelection, inSelection, err := store.Estimate(context.Background(), s.StartMS, s.EndMS, s.Matchers...)
			if err != nil {
				t.Fatalf("%s: %v", r, err)
			}
			series, samples = series+ofSelection, samples+inSelection
		}
		q.Exec(context.Background())
		if series < sum.series || samples < sum.samples {
			t.Errorf("%s: estimate of %d samples of %d series, needed %d of %d", r, samples, series, sum.samples, sum.series)
		}
		estimated, all = estimated+samples, all+sum.samples
	})
	if estimated > 6*all {
		t.Errorf("the estimates are %d samples in all, %d are needed", estimated, all)
	}
}

func TestQuery_CountsTheChunksThatItReads(t *testing.T) {
	store := openStore(t, t.TempDir())
	app := store.Appender(t.Context())
	for i := range 30 {
		lset := labels.FromStrings("__name__", "m", "i", strconv.Itoa(i%3))
		if _, err := app.Append(0, lset, beginMS+int64(i)*1000, 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	_, engine := newEngines(1000)
	q, err := request{query: "m", start: beginMS + 60_000}.open(engine, store)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	var read series.Reading
	if res := q.Exec(series.WithReading(t.Context(), &read)); res.Err != nil {
		t.Fatal(res.Err)
	}
	if found, samples, bytes := read.Counts(); found != 3 || samples != 30 || bytes < 60 {
		t.Errorf("%d series, %d samples, %d bytes", found, samples, bytes)
	}
}
