package columns_test

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	promtsdb "github.com/prometheus/prometheus/tsdb"

	"github.com/ferula-io/ferula/internal/promql/columns"
	"github.com/ferula-io/ferula/internal/thanos/fanout"
)

// newCompacted returns the directory of a block that was compacted from those of two hours, of counters whose samples
// lie at eight times within the interval.
func newCompacted(t testing.TB, stepMS, startMS int64, hours int64) string {
	t.Helper()
	dir, to := t.TempDir(), t.TempDir()
	var parts []string
	for at := startMS; at < startMS+hours*hourMS; at += 2 * hourMS {
		w, err := promtsdb.NewBlockWriter(slog.New(slog.DiscardHandler), dir, 2*hourMS)
		if err != nil {
			t.Fatal(err)
		}
		for from := at; from < at+2*hourMS; from += hourMS / 2 { // the head refuses samples that are an hour older than its last
			for i := range int64(8) {
				appendSamples(t, w, fmt.Sprintf(`x_total{i="%d"}`, i), from+i*stepMS/8, from+hourMS/2, stepMS, func(n int, ts int64) (float64, bool) {
					return float64(ts/1000*(i+1) + int64(n)%7), true
				})
			}
		}
		id, err := w.Flush(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		parts = append(parts, filepath.Join(dir, id.String()))
	}
	c, err := promtsdb.NewLeveledCompactor(t.Context(), nil, slog.New(slog.DiscardHandler), []int64{2 * hourMS, hours * hourMS}, nil, nil)
	if err == nil {
		_, err = c.Compact(to, parts, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// Grafana sends times that are multiples of the step, and windows of the step, or of the step and the interval between
// samples ($__rate_interval). For these a store fetches no chunks.
func TestEngine_WindowsOfDashboardsNeedNoChunks(t *testing.T) {
	const hours, start = 48, beginMS - beginMS%(24*hourMS)
	for _, interval := range []time.Duration{15 * time.Second, 20 * time.Second, time.Minute} {
		dir := newCompacted(t, interval.Milliseconds(), start, hours)
		plain, _ := newObjects(t, dir, `"p": "1"`)
		with, _ := newObjects(t, dir, `"p": "1"`)
		summarize(t, with)
		for _, c := range []struct {
			function   string
			step, wide time.Duration
		}{
			{"rate", time.Hour, time.Hour}, {"max_over_time", 6 * time.Hour, 6 * time.Hour}, {"changes", 2 * time.Hour, 3 * time.Hour},
			{"rate", time.Hour, time.Hour + interval}, {"increase", 3 * time.Hour, 3*time.Hour + interval}, {"delta", 6 * time.Hour, 6*time.Hour + interval},
			{"count_over_time", 2 * time.Hour, 2*time.Hour + interval}, {"changes", time.Hour, time.Hour + interval}, {"first_over_time", time.Hour, time.Hour + 15*time.Second},
			{"rate", 12 * time.Hour, time.Hour}, {"rate", time.Hour, 24 * time.Hour}, {"increase", 0, 24 * time.Hour}, {"", time.Hour, 0}, {"", 6 * time.Hour, 0},
		} {
			r := request{query: "sum by (i) (x_total)", start: start + 24*hourMS, end: start + hours*hourMS, step: c.step}
			if c.function != "" {
				r.query = fmt.Sprintf("%s(x_total[%ds])", c.function, int(c.wide.Seconds()))
			}
			if c.step == 0 {
				r.end = r.start
			}
			engine := columns.New(optionsOf(engineOpts(50_000_000)))
			all, alone := through(t, fanout.Request{}, newGateway(t, plain)), through(t, fanout.Request{}, newGateway(t, with))
			plain.take()
			with.take()
			want, _ := r.run(t, promql.NewEngine(engineOpts(50_000_000)), all)
			got, by := r.run(t, engine, alone)
			if sorted(got) != sorted(want) || by != "columns" {
				t.Errorf("each %s: %s by %s: %s", interval, r, by, difference(got, want))
			}
			if without, with := plain.take(), with.take(); without["chunks"] == 0 || with["chunks"] > 0 {
				t.Errorf("each %s: %s: fetched %v with summaries, %v without", interval, r, with, without)
			}
		}
	}
}
