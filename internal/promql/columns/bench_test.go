package columns_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	promtsdb "github.com/prometheus/prometheus/tsdb"

	"github.com/ferula-io/ferula/internal/promql/columns"

	"github.com/ferula-io/ferula/internal/tsdb"
)

// benchStore returns a store of 10,000 series x 8 h at 15 s in blocks. The directory is kept in FERULA_BENCH_DIR, so that
// it is written once.
func benchStore(b *testing.B, series int) *tsdb.Store {
	b.Helper()
	parent := os.Getenv("FERULA_BENCH_DIR")
	if parent == "" {
		b.Skip("FERULA_BENCH_DIR is not set")
	}
	dir := filepath.Join(parent, fmt.Sprint(series))
	if _, err := os.Stat(filepath.Join(dir, "done")); err != nil {
		writeBench(b, dir, series)
	}
	return openStore(b, dir)
}

func writeBench(b *testing.B, dir string, series int) {
	b.Helper()
	opts := promtsdb.DefaultOptions()
	opts.NoLockfile = true
	db, err := promtsdb.Open(dir, slog.New(slog.DiscardHandler), nil, opts, nil)
	if err != nil {
		b.Fatal(err)
	}
	db.DisableCompactions()
	rng := rand.New(rand.NewPCG(1, 2))
	sums := make([]float64, series)
	lsets := make([]labels.Labels, series)
	for i := range lsets {
		lsets[i] = labels.FromStrings(labels.MetricName, "x_total", "namespace", fmt.Sprintf("namespace-%d", i%50), "pod", fmt.Sprintf("pod-%d-%x", i, rng.Uint64()), "instance", fmt.Sprintf("10.0.%d.%d:9100", i/250, i%250), "job", "kubelet")
	}
	for block := range int64(4) {
		for ts := beginMS + block*2*hourMS; ts < beginMS+(block+1)*2*hourMS; ts += 15_000 {
			app := db.Appender(b.Context())
			for i, lset := range lsets {
				sums[i] += rng.Float64() * 100
				if _, err := app.Append(0, lset, ts+int64(i%15_000), sums[i]); err != nil {
					b.Fatal(err)
				}
			}
			if err := app.Commit(); err != nil {
				b.Fatal(err)
			}
		}
		if block > 0 {
			from := beginMS + (block-1)*2*hourMS
			if err := db.CompactHead(promtsdb.NewRangeHead(db.Head(), from, from+2*hourMS-1)); err != nil {
				b.Fatal(err)
			}
		}
	}
	from := beginMS + 3*2*hourMS
	if err := db.CompactHead(promtsdb.NewRangeHead(db.Head(), from, from+2*hourMS-1)); err != nil {
		b.Fatal(err)
	}
	if err := db.Close(); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "done"), nil, 0o600); err != nil {
		b.Fatal(err)
	}
}

// cpuTime is the time that the process used a processor.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// cpuOf runs the loop of a benchmark. It returns how many seconds a query used a processor.
func cpuOf(b *testing.B, e promql.QueryEngine, store *tsdb.Store, next func() request) float64 {
	b.Helper()
	before := cpuTime(b)
	for b.Loop() {
		q, err := next().open(e, store)
		if err != nil {
			b.Fatal(err)
		}
		if res := q.Exec(b.Context()); res.Err != nil {
			b.Fatal(res.Err)
		}
		q.Close()
	}
	return (cpuTime(b) - before).Seconds() / float64(b.N)
}

// yearStore returns a store of a tenth of a year of 100 counters at 15 s, with files of summaries.
func yearStore(b *testing.B) *tsdb.Store {
	b.Helper()
	parent := os.Getenv("FERULA_BENCH_DIR")
	if parent == "" {
		b.Skip("FERULA_BENCH_DIR is not set")
	}
	dir := filepath.Join(parent, "year")
	if _, err := os.Stat(filepath.Join(dir, "done")); err != nil {
		const blockMS = 486 * hourMS // what Prometheus compacts blocks of a year to
		rng, sums, at := rand.New(rand.NewPCG(3, 4)), [100]float64{}, beginMS-beginMS%blockMS
		for range 2 {
			w, err := promtsdb.NewBlockWriter(slog.New(slog.DiscardHandler), dir, blockMS)
			if err != nil {
				b.Fatal(err)
			}
			for end := at + blockMS; at < end; at += 15_000 {
				app := w.Appender(b.Context())
				for i := range sums {
					sums[i] += float64(rng.IntN(100))
					lset := labels.FromStrings(labels.MetricName, "x_total", "namespace", fmt.Sprint("team-", i%20), "pod", fmt.Sprintf("pod-%d-%x", i/10, i*40503), "container", fmt.Sprint("container-", i%10), "instance", fmt.Sprintf("10.0.0.%d:9100", i/10), "job", "kubelet")
					if _, err := app.Append(0, lset, at+int64(i*149), sums[i]); err != nil {
						b.Fatal(err)
					}
				}
				if err := app.Commit(); err != nil {
					b.Fatal(err)
				}
			}
			if _, err := w.Flush(b.Context()); err != nil {
				b.Fatal(err)
			}
			if err := w.Close(); err != nil {
				b.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "done"), nil, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	store := openStore(b, dir)
	if err := store.Summarize(b.Context()); err != nil {
		b.Fatal(err)
	}
	return store
}

// BenchmarkYear evaluates some of the thousand steps of a query over a year.
func BenchmarkYear(b *testing.B) {
	store := yearStore(b)
	options := optionsOf(engineOpts(50_000_000))
	options.Workers = columns.NewWorkers(runtime.GOMAXPROCS(0) - 1)
	engine := columns.New(options)
	const stepMS, steps = 365 * 24 * hourMS / 1000, 100
	for _, query := range []string{`sum by (job) (rate(x_total[31536s]))`, `sum(max_over_time(x_total[31536s]))`, `sum(x_total)`} {
		b.Run(query, func(b *testing.B) {
			start := beginMS - beginMS%(486*hourMS) + stepMS
			r := request{query: query, start: start, end: start + (steps-1)*stepMS, step: time.Duration(stepMS) * time.Millisecond}
			spent := cpuOf(b, engine, store, func() request { return r })
			b.ReportMetric(spent*1e9/100/float64(steps*stepMS/15_000/120), "cpu-ns/chunk")
			b.ReportMetric(spent*1e3*10, "cpu-ms/1000series")
		})
	}
}

// BenchmarkShort evaluates queries of short ranges, of blocks without and with files of summaries.
func BenchmarkShort(b *testing.B) {
	if err := benchStore(b, 1000).Close(); err != nil { // it would make the files
		b.Fatal(err)
	}
	dir := filepath.Join(os.Getenv("FERULA_BENCH_DIR"), "1000")
	_, engine := newEngines(50_000_000)
	const end = beginMS + 8*hourMS - 1
	for _, r := range []request{
		{query: `sum by (namespace) (rate(x_total[5m]))`, start: end - 8*hourMS, end: end, step: time.Minute},
		{query: `sum by (namespace) (rate(x_total[1h]))`, start: end - 8*hourMS, end: end, step: 5 * time.Minute},
		{query: `x_total`, start: end - 8*hourMS, end: end, step: time.Minute},
		{query: `sum by (namespace) (rate(x_total[5m]))`, start: end - 2*hourMS/3, end: end, step: 15 * time.Second},
		{query: `x_total`, start: end - 2*hourMS/3, end: end, step: 15 * time.Second},
		{query: `max_over_time(x_total[40m])`, start: end},
	} {
		for _, side := range []string{"without", "with"} {
			b.Run(fmt.Sprintf("%s/%dm/%s", r.query, max(0, r.end-r.start)/60_000, side), func(b *testing.B) {
				if err := os.RemoveAll(filepath.Join(dir, "summaries")); err != nil {
					b.Fatal(err)
				}
				store := openStore(b, dir)
				if side == "with" {
					if err := store.Summarize(b.Context()); err != nil {
						b.Fatal(err)
					}
				}
				r.run(b, engine, store)
				spent := cpuOf(b, engine, store, func() request { return r })
				b.ReportMetric(spent*1e6, "cpu-us/op")
			})
		}
	}
}

// BenchmarkSmall compares the engines over 10 series x 1 h, as in a dashboard.
func BenchmarkSmall(b *testing.B) {
	store := benchStore(b, 10_000)
	oracle, engine := newEngines(50_000_000)
	for _, query := range []string{`x_total{instance=~"10.0.0.[0-9]:9100"}`, `sum by (namespace) (rate(x_total{instance=~"10.0.0.[0-9]:9100"}[5m]))`} {
		for name, e := range map[string]promql.QueryEngine{"prometheus": oracle, "columns": engine} {
			b.Run(query[:3]+"/"+name, func(b *testing.B) {
				r := request{query: query, start: beginMS + 7*hourMS - 1, end: beginMS + 8*hourMS - 1, step: 15 * time.Second}
				spent := cpuOf(b, e, store, func() request { return r })
				b.ReportMetric(spent*1e6, "cpu-us/op")
			})
		}
	}
}

// BenchmarkEngines compares the engines over blocks: FERULA_BENCH_DIR=/tmp/x go test -bench .
func BenchmarkEngines(b *testing.B) {
	store := benchStore(b, 10_000)
	oracle, engine := newEngines(50_000_000)
	options := optionsOf(engineOpts(50_000_000))
	options.Workers = columns.NewWorkers(runtime.GOMAXPROCS(0) - 1)
	parallel := columns.New(options)
	for _, query := range []string{
		`count(x_total)`, `sum by (namespace) (rate(x_total[5m]))`, `sum by (namespace) (avg_over_time(x_total[5m]))`, `x_total`, `rate(x_total[5m])`,
		`topk(5, rate(x_total[5m]))`, `quantile by (namespace) (0.9, rate(x_total[5m]))`,
	} {
		for name, e := range map[string]promql.QueryEngine{"prometheus": oracle, "columns": engine, "parallel": parallel} {
			b.Run(query+"/"+name, func(b *testing.B) {
				r := request{query: query, start: beginMS + 5*60_000, end: beginMS + 8*hourMS - 1, step: 3 * time.Minute}
				spent := cpuOf(b, e, store, func() request { return r })
				b.ReportMetric(spent*1e3, "cpu-ms/op")
			})
		}
	}
}

// BenchmarkRules compares the engines over instant queries of 100 series each, as rules make them. The head has more
// samples than the window.
func BenchmarkRules(b *testing.B) {
	const rules, perRule = 1000, 100
	store := openStore(b, b.TempDir())
	lsets, refs := make([]labels.Labels, rules*perRule), make([]storage.SeriesRef, rules*perRule)
	for i := range lsets {
		lsets[i] = labels.FromStrings(labels.MetricName, "x_total", "namespace", fmt.Sprintf("namespace-%d", i%50), "rule", fmt.Sprint(i/perRule), "instance", fmt.Sprintf("10.0.%d.%d:9100", i/250, i%250), "job", "kubelet")
	}
	for step := range int64(50) {
		app := store.Appender(b.Context())
		for i, lset := range lsets {
			ref, err := app.Append(refs[i], lset, beginMS+step*15_000, float64(int64(i)*step))
			if err != nil {
				b.Fatal(err)
			}
			refs[i] = ref
		}
		if err := app.Commit(); err != nil {
			b.Fatal(err)
		}
	}
	oracle, engine := newEngines(50_000_000)
	for name, e := range map[string]promql.QueryEngine{"prometheus": oracle, "columns": engine} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			n := 0
			spent := cpuOf(b, e, store, func() request {
				n++
				return request{query: fmt.Sprintf(`sum(rate(x_total{rule="%d"}[5m]))`, n%rules), start: beginMS + 30*15_000}
			})
			b.ReportMetric(spent*1e6, "cpu-us/op")
		})
	}
}
