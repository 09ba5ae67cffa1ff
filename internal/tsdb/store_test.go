package tsdb

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
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

func TestStore_CallsBeforeOpenReturnErrNotReady(t *testing.T) {
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

// gaugeOf reads a gauge of the database.
func gaugeOf(t *testing.T, s *Store, name string) float64 {
	t.Helper()
	families, err := s.reg.(*prometheus.Registry).Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// sectionOf parses the storage section of a configuration file.
func sectionOf(t *testing.T, text string) config.StorageConfig {
	t.Helper()
	cfg, err := config.Load(text, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text, "retention") {
		cfg.StorageConfig.TSDBConfig.Retention = nil
	}
	return cfg.StorageConfig
}

// ApplyConfig stages a section and commits it.
func (s *Store) ApplyConfig(cfg *config.Config) error {
	staged, err := s.Stage(cfg)
	if err != nil {
		return err
	}
	if err := staged.Commit(); err != nil {
		return errors.Join(err, staged.Undo())
	}
	return nil
}

func TestApplyConfig_RetentionOfOptionsIsTheDefault(t *testing.T) {
	for _, given := range []Options{{Retention: 48 * time.Hour}, {RetentionBytes: 1 << 30}, {Retention: 48 * time.Hour, RetentionBytes: 1 << 30}} {
		s := newStore(t, given)
		if err := s.Open(); err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct {
			text           string
			seconds, bytes float64
		}{
			{"", given.Retention.Seconds(), float64(given.RetentionBytes)},
			{"storage: {tsdb: {out_of_order_time_window: 10m}}", given.Retention.Seconds(), float64(given.RetentionBytes)},
			{"storage: {tsdb: {retention: {time: 1h}}}", 3600, 0},
			{"storage: {tsdb: {retention: {size: 1KB}}}", 0, 1024},
			{"storage: {tsdb: {retention: {time: 0s}}}", 0, 0},
			{"", given.Retention.Seconds(), float64(given.RetentionBytes)},
		} {
			if err := s.ApplyConfig(&config.Config{StorageConfig: sectionOf(t, tt.text)}); err != nil {
				t.Fatal(err)
			}
			if got := gaugeOf(t, s, "prometheus_tsdb_retention_limit_seconds"); got != tt.seconds {
				t.Errorf("%q: the retention is %g s, want %g", tt.text, got, tt.seconds)
			}
			if got := gaugeOf(t, s, "prometheus_tsdb_retention_limit_bytes"); got != tt.bytes {
				t.Errorf("%q: the retention is %g bytes, want %g", tt.text, got, tt.bytes)
			}
		}
	}
}

func TestOpen_ConfigurationSectionOverridesOptions(t *testing.T) {
	section := sectionOf(t, `storage:
  tsdb:
    retention: {time: 100d, size: 2GB, percentage: 80}
    out_of_order_time_window: 30m
    stale_series_compaction_threshold: 0.5
    chunk_encoding: {floats: xor2}
  exemplars: {max_exemplars: 7}
`)
	opts := Options{Dir: t.TempDir(), Retention: time.Hour, Section: &section}.resolved()
	got := opts.prometheus()
	if got.RetentionDuration != 100*24*hourMS || got.MaxBytes != 2<<30 || got.MaxPercentage != 80 || got.OutOfOrderTimeWindow != hourMS/2 ||
		got.StaleSeriesCompactionThreshold != 0.5 || got.FloatChunkEncoding != chunkenc.EncXOR2 || got.MaxExemplars != 7 || !got.EnableExemplarStorage ||
		got.MaxBlockDuration != 10*24*hourMS {
		t.Errorf("%+v", got)
	}
	section = sectionOf(t, "storage: {exemplars: {max_exemplars: 0}, tsdb: {chunk_encoding: {floats: xor}}}")
	got = Options{Retention: 48 * time.Hour, FloatChunkEncodingIsXOR2: true, OutOfOrderWindow: time.Hour, Section: &section}.resolved().prometheus()
	if got.RetentionDuration != 48*hourMS || got.FloatChunkEncoding != chunkenc.EncXOR || got.MaxExemplars != 0 || got.OutOfOrderTimeWindow != 0 || got.MaxBlockDuration != 48*hourMS/10 {
		t.Errorf("%+v", got)
	}
	got = Options{RetentionBytes: 1}.resolved().prometheus()
	if got.RetentionDuration != 0 || got.MaxBytes != 1 || got.MaxBlockDuration != 31*24*hourMS || got.MaxExemplars != defaultMaxExemplars {
		t.Errorf("%+v", got)
	}
}

func TestApplyConfig_FailureChangesNothing(t *testing.T) {
	s := newStore(t, Options{Retention: 48 * time.Hour})
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(s.opts.Dir, "wbl")
	if err := os.WriteFile(log, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	next := &config.Config{StorageConfig: sectionOf(t, `storage:
  tsdb: {retention: {time: 1h, size: 1KB}, out_of_order_time_window: 10m, chunk_encoding: {floats: xor2}}
  exemplars: {max_exemplars: 7}
`)}
	state := func() [4]float64 {
		return [4]float64{gaugeOf(t, s, "prometheus_tsdb_retention_limit_seconds"), gaugeOf(t, s, "prometheus_tsdb_retention_limit_bytes"),
			gaugeOf(t, s, "prometheus_tsdb_exemplar_max_exemplars"), float64(s.encoding.Load())}
	}
	before := state()
	if err := s.ApplyConfig(next); err == nil {
		t.Fatal("a log of out-of-order samples was created over a file")
	}
	if got := state(); got != before {
		t.Errorf("after a failure: %v, want %v", got, before)
	}
	if err := os.Remove(log); err != nil {
		t.Fatal(err)
	}
	if err := s.ApplyConfig(next); err != nil {
		t.Fatal(err)
	}
	if got, want := state(), [4]float64{3600, 1024, 7, float64(chunkenc.EncXOR2)}; got != want {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestOptions_ValidateReportsAllErrors(t *testing.T) {
	_, err := New(Options{RetentionBytes: -1, WALSegmentBytes: 1, OutOfOrderWindow: -1}, nil, nil, nil)
	for _, want := range []string{"no directory", "--storage.tsdb.retention.size: ", "--storage.tsdb.wal-segment-size: ", "out_of_order_time_window: "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %q", err, want)
		}
	}
}
