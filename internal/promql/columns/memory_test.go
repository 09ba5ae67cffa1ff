package columns_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// writeStore returns the directory of a store with the samples that write appends.
func writeStore(t *testing.T, write func(db *tsdb.DB)) string {
	t.Helper()
	dir := t.TempDir()
	opts := tsdb.DefaultOptions()
	opts.NoLockfile = true
	db, err := tsdb.Open(dir, nil, nil, opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	write(db)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestQuery_LeavesPairsOfShortLivedSeriesToPrometheus(t *testing.T) {
	const steps, many = 3000, 40
	dir := writeStore(t, func(db *tsdb.DB) {
		for i := range int64(60) { // one after the other
			from := beginMS + i*steps/60*1000
			appendSamples(t, db, fmt.Sprintf(`pod{uid="%d"}`, i), from, from+steps/60*1000, 1000, func(int, int64) (float64, bool) { return 1, true })
		}
		for i := range many {
			appendSamples(t, db, fmt.Sprintf(`node{i="%d"}`, i), beginMS, beginMS+steps*1000, 1000, func(n int, _ int64) (float64, bool) { return float64(n), true })
		}
	})
	store := openStore(t, dir)
	reference, engine := newEngines(1_000_000)
	r := request{query: `node * on() group_left() last_over_time(pod[1s])`, start: beginMS, end: beginMS + (steps-1)*1000, step: time.Second}
	want, _ := r.run(t, reference, store)
	got, by := r.run(t, engine, store)
	if got != want {
		t.Error(difference(got, want))
	}
	if by != "prometheus memory" { // 2400 pairs of 3000 steps
		t.Errorf("evaluated by %s", by)
	}
}

func TestQuery_LeavesSubqueriesOfManyStepsToPrometheus(t *testing.T) {
	store := newWorld(t, false)
	reference, engine := newEngines(2_000_000)
	for query, wantBy := range map[string]string{
		`sum(max_over_time((both_a + 1)[5h:1s]))`:                            "columns",
		`sum(max_over_time((both_a + 1)[5h:10ms]))`:                          "prometheus memory",
		`max_over_time(max_over_time(part_a[1m:100ms])[1h:1s])`:              "columns",
		`max_over_time(sum(max_over_time(part_a[1m:10ms]))[3h:500ms])`:       "prometheus memory",
		`sum(max_over_time(part_a[4h:10ms])) + max_over_time(both_a[1h:1m])`: "prometheus memory",
	} {
		r := request{query: query, start: beginMS + 5*hourMS}
		want, _ := r.run(t, reference, store)
		got, by := r.run(t, engine, store)
		if got != want {
			t.Errorf("%s: %s", r, difference(got, want))
		}
		if by != wantBy {
			t.Errorf("%s: evaluated by %s, want %s", r, by, wantBy)
		}
	}
}

func TestQuery_BoundsTheLabelsThatItMakes(t *testing.T) {
	dir := writeStore(t, func(db *tsdb.DB) {
		for i := range 100 {
			appendSamples(t, db, fmt.Sprintf(`x{a="%s",i="%d"}`, strings.Repeat("y", 1000), i), beginMS, beginMS+1000, 1000, func(int, int64) (float64, bool) { return 1, true })
		}
	})
	store := openStore(t, dir)
	_, engine := newEngines(1000)
	for query, want := range map[string]string{
		`count(label_replace(x,"b","` + strings.Repeat("$1", 100) + `","a","(.*)"))`:                                       "100/",
		`count(label_replace(x,"b","` + strings.Repeat("$1", 200) + `","a","(.*)"))`:                                       "label_replace() made the labels of all series longer by more than 16777216 bytes",
		`count(label_replace(x,"b","` + strings.Repeat("$1", 1049) + `","a","(.*)"))`:                                      "label_replace() would make a label value of up to 1051098 bytes: at most 1048576",
		`label_join(label_replace(x,"b","` + strings.Repeat("$1", 1000) + `","a","(.*)"),"c","-","b","b")`:                 "label_join() would make a label value of up to 2000002 bytes",
		`count(label_replace(label_replace(x,"a","short","a","(.*)"),"b","` + strings.Repeat("$1", 200) + `","a","(.*)"))`: "100/",
	} {
		got, by := request{query: query, start: beginMS}.run(t, engine, store)
		if by != "columns" || !strings.Contains(got, want) {
			t.Errorf("%.60s: evaluated by %s: %.200s, want %q", query, by, got, want)
		}
	}
}

func TestQuery_MemoryDoesNotGrowWithTheNumberOfSeries(t *testing.T) {
	for _, query := range []string{`sum(rate(x[5m]))`, `count(x)`, `max(max_over_time(x[5m]))`, `avg(last_over_time({__name__=~"x.*"}[5m]))`} {
		heap := map[int64]uint64{}
		for _, series := range []int64{1_000, 50_000} {
			from := newEndlessRaw(t)
			from.end = series
			from.atEnd = func() {
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				heap[series] = m.HeapAlloc
			}
			_, engine := newEngines(50_000_000)
			if got, by := (request{query: query, start: beginMS, end: beginMS + 25*60_000, step: time.Minute}).run(t, engine, from); by != "columns" {
				t.Fatalf("%s by %s: %s", query, by, got)
			}
		}
		if heap[50_000] > heap[1_000]+512<<10 {
			t.Errorf("%s: the heap has %d bytes after 50,000 series, %d after 1,000", query, heap[50_000], heap[1_000])
		}
	}
}

func TestQuery_AggregationsAllocateNothingForEachSeries(t *testing.T) {
	const few, many = 1_000, 20_000
	var sets [][]byte
	for i := range many {
		sets = append(sets, labelenc.Append(nil, labels.FromStrings(labels.MetricName, "x", "i", fmt.Sprint(i), "ns", fmt.Sprint(i%3))))
	}
	for _, query := range []string{`sum(rate(x[5m]))`, `sum by (ns) (rate(x[5m]))`, `count(x)`, `max without (i) (max_over_time(x[5m]))`, `sum by (ns) (abs(-rate(x[5m])) * 60)`} {
		for _, parallelism := range []int{1, 3} {
			allocations := func(end int64) int64 {
				from := newEndlessRaw(t)
				from.end, from.sets = end, sets
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				if got, by := (request{query: query, start: beginMS, end: beginMS + 25*60_000, step: time.Minute}).run(t, helped(engineOpts(50_000_000), parallelism-1), from); by != "columns" {
					t.Fatalf("%s by %s: %s", query, by, got)
				}
				runtime.ReadMemStats(&after)
				return int64(after.Mallocs - before.Mallocs)
			}
			if a, b := allocations(few), allocations(many); b > a+(many-few)/4 { // workers are started again and again
				t.Errorf("%s with parallelism %d: %d allocations for %d series, %d for %d", query, parallelism, b, many, a, few)
			}
		}
	}
}

func TestQuery_EvaluatesEqualExpressionsOnce(t *testing.T) {
	for query, reads := range map[string]int64{
		`sum(x) / sum(x)`: 1, `sum(x) + sum(x) * sum( x )`: 1, `sum(x) / sum(x offset 1s)`: 2, `sum(rate(x[5m])) + sum(rate(x[5m]))`: 2,
		`x / x`: 1, `x == (x)`: 1, `max_over_time(x[5m]) / ignoring () max_over_time(x[5m])`: 1, `(x - x offset 1s) / x`: 2, `(x - x offset 1s) / x offset 1s`: 2, `quantile_over_time(0.5, x[5m]) > quantile_over_time(0.5, x[5m])`: 1,
		`rate(x[5m]) / rate(x[5m])`: 2,                                       // x is no name of a counter: two annotations with positions
		`x * 2 + x`:                 2, `x and x`: 2, `sum(x) / count(x)`: 2, // whose hints differ
		`sum(max_over_time(x[5m])) / count(max_over_time(x[5m]))`: 1, `sum(abs(x)) - max(abs(x)) + min by (i) (abs( x ))`: 1, `sum by (i) (x * 2) / on () group_left () sum(x * 2)`: 1, `sum(x * 2) / count(x * 3)`: 2,
		`sum(rate(x[5m])) / count(rate(x[5m]))`: 2, `max_over_time((sum(abs(x)) / count(abs(x)))[5m:1m])`: 2,
		`max_over_time((x / x)[5m:1m])`: 2,
	} {
		from := &countingRaw{endlessRaw: newEndlessRaw(t)}
		from.end = 10
		if got, by := (request{query: query, start: beginMS, end: beginMS + 25*60_000, step: time.Minute}).run(t, helped(engineOpts(50_000_000), 0), from); by != "columns" || strings.Contains(got, "error") {
			t.Fatalf("%s by %s: %s", query, by, got)
		}
		if from.selected != reads {
			t.Errorf("%s: %d selections, want %d", query, from.selected, reads)
		}
	}
}

// countingRaw counts the selections. Every selection returns the series from the first one.
type countingRaw struct {
	*endlessRaw
	selected int64
}

func (c *countingRaw) RawQuerier(context.Context, int64, int64) (series.Querier, error) {
	return c, nil
}

func (c *countingRaw) Select(ctx context.Context, opts series.SelectOptions, matchers ...*labels.Matcher) series.Set {
	c.selected++
	c.read.Store(0)
	return c.endlessRaw.Select(ctx, opts, matchers...)
}

func TestEngine_FindsSeriesThatDifferInTheirTypeOnly(t *testing.T) {
	for _, metrics := range [][]string{{`x{__type__="gauge",i="1"}`, `x{__type__="counter",i="1"}`}, {`x{i="0"}`, `x{__type__="gauge",i="1"}`, `x{i="1"}`}, {`x{__unit__="s",i="1"}`, `x{__unit__="s",i="2"}`}} {
		store := openStore(t, writeStore(t, func(db *tsdb.DB) {
			for _, metric := range metrics {
				appendSamples(t, db, metric, beginMS, beginMS+hourMS, 15_000, func(n int, _ int64) (float64, bool) { return float64(n), true })
			}
		}))
		for _, query := range []string{`rate(x[5m])`, `sum(max_over_time(x[5m]))`, `last_over_time(x[5m])`} {
			compare(t, request{query: query, start: beginMS + 30*60_000, end: beginMS + 40*60_000, step: time.Minute}, store, store, 1_000_000)
		}
	}
}

// Series that have samples at one step each have different sets of steps, which are recorded to find equal labels. They
// would take more memory than the samples.
func TestQuery_LeavesVeryManyShortLivedSeriesToPrometheus(t *testing.T) {
	if raceEnabled {
		t.Skip("takes minutes with the race detector, and uses no goroutine of its own")
	}
	const steps, many = 11_000, 6_500 // bitmaps of 172 words
	dir := writeStore(t, func(db *tsdb.DB) {
		for i := range int64(many) {
			at := beginMS + i*1000
			appendSamples(t, db, fmt.Sprintf(`pod{uid="%d"}`, i), at, at+1, 1000, func(int, int64) (float64, bool) { return 1, true })
		}
	})
	store := openStore(t, dir)
	reference, engine := newEngines(500_000)
	for _, query := range []string{`count(-last_over_time(pod[1s]))`, `sum(abs(last_over_time(pod[1s])))`} {
		r := request{query: query, start: beginMS, end: beginMS + (steps-1)*1000, step: time.Second}
		want, _ := r.run(t, reference, store)
		got, by := r.run(t, engine, store)
		if got != want {
			t.Error(difference(got, want))
		}
		if by != "prometheus memory" {
			t.Errorf("%s evaluated by %s", query, by)
		}
	}
}
