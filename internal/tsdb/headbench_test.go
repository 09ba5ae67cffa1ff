package tsdb

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"

	"github.com/ferula-io/ferula/internal/series"
)

// fillHead appends an hour and a half of n series every 15 s, floats of 15 digits.
func fillHead(t testing.TB, s *Store, n int) (mint, maxt int64) {
	t.Helper()
	refs := make([]storage.SeriesRef, n)
	lsets := make([]labels.Labels, n)
	for i := range n {
		lsets[i] = labels.FromStrings(labels.MetricName, "http_requests_total", "namespace", fmt.Sprintf("namespace-%d", i%50), "pod", fmt.Sprintf("pod-%05d-abcdef", i*7919%n), "instance", fmt.Sprintf("10.0.%d.%d:9100", i/250, i%250), "job", "kubernetes-pods", "cluster", "eu-west-1")
	}
	for step := int64(0); step < 360; step++ {
		app := s.Appender(context.Background())
		for i := range n {
			ref, err := app.Append(refs[i], lsets[i], startMS+step*15_000, math.Sin(float64(i)+float64(step)/40)*1e6)
			if err != nil {
				t.Fatal(err)
			}
			refs[i] = ref
		}
		if err := app.Commit(); err != nil {
			t.Fatal(err)
		}
		if step%20 == 0 {
			s.db.Load().ForceHeadMMap()
		}
	}
	return startMS + 359*15_000 - hourMS, startMS + 359*15_000
}

func BenchmarkRawHead(b *testing.B) {
	s := openWorld(b, b.TempDir(), 0)
	const n = 10_000
	mint, maxt := fillHead(b, s, n)
	b.Run("raw", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			raw, err := s.RawQuerier(context.Background(), mint, maxt)
			if err != nil {
				b.Fatal(err)
			}
			drain(b, raw.Select(context.Background(), series.SelectOptions{}, everything))
			raw.Close()
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/series")
	})
	b.Run("stock", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			q, err := storage.ChunkQueryable(s).ChunkQuerier(mint, maxt)
			if err != nil {
				b.Fatal(err)
			}
			drain(b, series.FromChunkSeriesSet(q.Select(context.Background(), true, nil, everything)))
			q.Close()
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/series")
	})
}
