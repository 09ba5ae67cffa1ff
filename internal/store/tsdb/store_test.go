package tsdb

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"go.uber.org/goleak"

	"github.com/ferula-io/ferula/metrics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newStore(t *testing.T, o Options) *Store {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	s, err := New(o, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), metrics.NewSet())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestUntilItIsOpenEveryCallSaysThatItIsNotReady(t *testing.T) {
	s := newStore(t, Options{})
	ctx := context.Background()
	_, querier := s.Querier(0, 1)
	_, chunks := s.ChunkQuerier(0, 1)
	_, exemplars := s.ExemplarQuerier(ctx)
	_, stats := s.HeadStats("__name__", 10)
	_, blocks := s.BlockMetas()
	_, appended := s.Appender(ctx).Append(0, labels.FromStrings("a", "b"), 1, 1)
	_, appendedV2 := s.AppenderV2(ctx).Append(0, labels.FromStrings("a", "b"), 0, 1, 1, nil, nil, storage.AOptions{})
	for name, err := range map[string]error{
		"Querier": querier, "ChunkQuerier": chunks, "ExemplarQuerier": exemplars, "HeadStats": stats, "BlockMetas": blocks,
		"Append": appended, "AppendV2": appendedV2, "Commit": s.Appender(ctx).Commit(), "ApplyConfig": s.ApplyConfig(&config.Config{}),
	} {
		if !errors.Is(err, ErrNotReady) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTheRetentionOfFlagsHoldsUnlessTheConfigurationHasOne(t *testing.T) {
	s := newStore(t, Options{Retention: 48 * time.Hour})
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	seconds := func() float64 {
		families, err := s.reg.(*prometheus.Registry).Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "prometheus_tsdb_retention_limit_seconds" {
				return f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		return -1
	}
	apply := func(text string) {
		cfg, err := config.Load(text, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.ApplyConfig(cfg); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		text string
		want float64
	}{
		{"", 48 * 3600},
		{"storage: {tsdb: {out_of_order_time_window: 10m}}", 48 * 3600},
		{"storage: {tsdb: {retention: {time: 1h}}}", 3600},
		{"", 48 * 3600},
	} {
		apply(tt.text)
		if got := seconds(); got != tt.want {
			t.Errorf("%q: the retention is %g s, want %g", tt.text, got, tt.want)
		}
	}
}

func TestAllFaultsOfTheOptionsAreReportedAtOnce(t *testing.T) {
	_, err := New(Options{RetentionBytes: -1, WALSegmentBytes: 1, OutOfOrderWindow: -1}, nil, nil, nil)
	for _, want := range []string{"no folder", "retention size", "WAL segment", "out-of-order"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %q", err, want)
		}
	}
}
