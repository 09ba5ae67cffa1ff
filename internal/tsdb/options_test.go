package tsdb

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/fileutil"
	"github.com/prometheus/prometheus/util/compression"

	"github.com/ferula-io/ferula/metrics"
)

func TestOptions_LongestBlockIsATenthOfTheRetention(t *testing.T) {
	const day = 24 * time.Hour
	for _, tt := range []struct {
		given             Options
		retention         time.Duration
		minBlock, maxBock time.Duration
	}{
		{Options{}, 15 * day, 2 * time.Hour, 36 * time.Hour},
		{Options{Retention: -1}, 0, 2 * time.Hour, 31 * day},
		{Options{RetentionBytes: 1}, 0, 2 * time.Hour, 31 * day},
		{Options{Retention: 309 * day}, 309 * day, 2 * time.Hour, 309 * day / 10},
		{Options{Retention: 400 * day}, 400 * day, 2 * time.Hour, 31 * day},
		{Options{Retention: time.Hour}, time.Hour, 2 * time.Hour, 2 * time.Hour},
		{Options{MinBlockDuration: 3 * day}, 15 * day, 3 * day, 3 * day},
		{Options{MinBlockDuration: time.Hour, MaxBlockDuration: 3 * time.Hour}, 15 * day, time.Hour, 3 * time.Hour},
	} {
		o := tt.given.resolved()
		p := o.prometheus()
		if o.Retention != tt.retention || o.MinBlockDuration != tt.minBlock || o.MaxBlockDuration != tt.maxBock ||
			p.RetentionDuration != tt.retention.Milliseconds() || p.MinBlockDuration != tt.minBlock.Milliseconds() || p.MaxBlockDuration != tt.maxBock.Milliseconds() {
			t.Errorf("%+v: %s, %s to %s", tt.given, o.Retention, o.MinBlockDuration, o.MaxBlockDuration)
		}
	}
}

func TestOptions_ReachPrometheus(t *testing.T) {
	p := Options{
		RetentionBytes: 5, WALSegmentBytes: 16 << 20, WALCompression: compression.Zstd, NoLockfile: true, MaxExemplars: 7, OutOfOrderWindow: time.Minute,
		SnapshotOnShutdown: true, KeepOverlappingBlocks: true, FloatChunkEncodingIsXOR2: true,
	}.resolved().prometheus()
	if p.MaxBytes != 5 || p.WALSegmentSize != 16<<20 || p.WALCompression != compression.Zstd || !p.NoLockfile || p.MaxExemplars != 7 || !p.EnableExemplarStorage || p.OutOfOrderTimeWindow != 60_000 ||
		!p.EnableMemorySnapshotOnShutdown || p.EnableOverlappingCompaction || p.FloatChunkEncoding != chunkenc.EncXOR2 || p.MaxPercentage != 0 {
		t.Errorf("%+v", p)
	}
	p = Options{}.resolved().prometheus()
	if p.MaxBytes != 0 || p.WALSegmentSize != 0 || p.WALCompression != compression.Snappy || p.NoLockfile || p.EnableMemorySnapshotOnShutdown || !p.EnableOverlappingCompaction || p.FloatChunkEncoding == chunkenc.EncXOR2 {
		t.Errorf("%+v", p)
	}
}

func TestOptions_ValidateKeepsTheLimits(t *testing.T) {
	dir := t.TempDir()
	hour := time.Hour
	for _, tt := range []struct {
		o    Options
		want string // "": valid
	}{
		{Options{Dir: dir}, ""}, {Options{}, "no directory for the database"},
		{Options{Dir: dir, RetentionBytes: -1}, "--storage.tsdb.retention.size: -1 is negative"},
		{Options{Dir: dir, WALSegmentBytes: 10 << 20}, ""}, {Options{Dir: dir, WALSegmentBytes: 10<<20 - 1}, "--storage.tsdb.wal-segment-size: 10485759 bytes are not between"},
		{Options{Dir: dir, WALSegmentBytes: 256 << 20}, ""}, {Options{Dir: dir, WALSegmentBytes: 256<<20 + 1}, "--storage.tsdb.wal-segment-size: 268435457 bytes"},
		{Options{Dir: dir, WALSegmentBytes: -1}, "--storage.tsdb.wal-segment-size: -1 bytes"},
		{Options{Dir: dir, ChunkSegmentBytes: -1}, "--storage.tsdb.max-block-chunk-segment-size: -1 bytes are not between"},
		{Options{Dir: dir, ChunkSegmentBytes: 1<<20 - 1}, "--storage.tsdb.max-block-chunk-segment-size: 1048575 bytes are not between"}, {Options{Dir: dir, ChunkSegmentBytes: 1 << 20}, ""},
		{Options{Dir: dir, ChunkSegmentBytes: 4 << 30}, ""}, {Options{Dir: dir, ChunkSegmentBytes: 4<<30 + 1}, "--storage.tsdb.max-block-chunk-segment-size: 4294967297 bytes are not between"},
		{Options{Dir: dir, HeadQueueSize: -1}, "--storage.tsdb.head-chunks-write-queue-size: -1 is negative"},
		{Options{Dir: dir, SamplesPerChunk: -1}, "--storage.tsdb.samples-per-chunk: -1 is negative"},
		{Options{Dir: dir, CompactionDelayPercent: -1}, "--storage.tsdb.delayed-compaction.max-percent: -1 is negative"},
		{Options{Dir: dir, OutOfOrderWindow: -1}, "storage.tsdb.out_of_order_time_window: -1ns is negative"},
		{Options{Dir: dir, MinBlockDuration: hour, MaxBlockDuration: hour}, ""}, {Options{Dir: dir, MinBlockDuration: hour}, ""}, {Options{Dir: dir, MaxBlockDuration: 1}, ""},
		{Options{Dir: dir, MinBlockDuration: hour, MaxBlockDuration: hour - 1}, "--storage.tsdb.max-block-duration: 59m59.999999999s is less than --storage.tsdb.min-block-duration=1h0m0s"},
		{withPercentage(Options{Dir: dir}, 80), ""}, {withPercentage(Options{}, 80), "no directory for the database"},
		{withPercentage(Options{Dir: filepath.Join(dir, "none")}, 80), "storage.tsdb.retention.percentage=80: cannot determine the size of the file system of "},
		{withPercentage(Options{Dir: filepath.Join(dir, "none")}, 0), ""},
	} {
		err := tt.o.Validate()
		if (err == nil) != (tt.want == "") || err != nil && (!strings.Contains(err.Error(), tt.want) || strings.Count(err.Error(), "\n") > 0) {
			t.Errorf("%+v: %v, want %q", tt.o, err, tt.want)
		}
	}
	for _, section := range []*config.StorageConfig{nil, {}, {TSDBConfig: &config.TSDBConfig{}}} {
		if got := (Options{Section: section}).percentage(); got != 0 {
			t.Errorf("%+v: %g %%", section, got)
		}
	}
}

func withPercentage(o Options, percentage float64) Options {
	o.Section = &config.StorageConfig{TSDBConfig: &config.TSDBConfig{Retention: &config.TSDBRetentionConfig{Percentage: percentage}}}
	return o
}

// A repair is resumed before the database opens, which takes the lock itself.
func TestPrepareLogs_LockIsReleased(t *testing.T) {
	for _, existed := range []bool{false, true} {
		s := newStore(t, Options{})
		path := filepath.Join(s.opts.Dir, "lock")
		if existed {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			if err := s.prepareLogs(); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) == existed {
				t.Errorf("the file existed: %v, %v", existed, err)
			}
		}
		lock, _, err := fileutil.Flock(path) // as another process
		if err != nil {
			t.Fatal(err)
		}
		if err := s.prepareLogs(); err == nil || !strings.Contains(err.Error(), "lock "+path) {
			t.Errorf("locked by another: %v", err)
		}
		s.opts.NoLockfile = true
		if err := s.prepareLogs(); err != nil {
			t.Errorf("without a lock: %v", err)
		}
		if err := lock.Release(); err != nil {
			t.Error(err)
		}
	}
	s := newStore(t, Options{Dir: filepath.Join(t.TempDir(), "none")})
	if err := s.prepareLogs(); err != nil {
		t.Errorf("no directory: %v", err)
	}
}

func TestResumeRepairs_FaultsOfALogNameIt(t *testing.T) {
	for name, breaks := range map[string]func(dir string) error{
		"checkpoint ":           func(dir string) error { return os.MkdirAll(filepath.Join(dir, "checkpoint.00000001", "x"), 0o700) },
		"resume the repair of ": func(dir string) error { return os.WriteFile(dir, nil, 0o600) },
	} {
		for _, log := range []string{"wal", "wbl"} {
			s := newStore(t, Options{})
			dir := filepath.Join(s.opts.Dir, log)
			if err := breaks(dir); err != nil {
				t.Fatal(err)
			}
			if err := s.resumeRepairs(); err != nil && !strings.Contains(err.Error(), dir) {
				t.Errorf("%s of %s: %v", name, log, err)
			} else if name != "checkpoint " && err == nil {
				t.Errorf("%s of %s: no error", name, log)
			}
		}
	}
}

func TestSegmentBytes_AreThoseOfSegmentsWithRecords(t *testing.T) {
	s := newStore(t, Options{})
	for name, content := range map[string]string{"wal/00000001": "abc", "wal/00000002": "", "wal/00000003.repair": "x", "wal/x": "x", "wbl/00000001": "ab"} {
		path := filepath.Join(s.opts.Dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	got := s.logBytes()
	if len(got) != 2 || got[filepath.Join(s.opts.Dir, "wal", "00000001")] != 3 || got[filepath.Join(s.opts.Dir, "wbl", "00000001")] != 2 {
		t.Errorf("%v", got)
	}
	var lines strings.Builder
	s.logger = slog.New(slog.NewTextHandler(&lines, nil))
	s.reportRemoved(got)
	if lines.Len() > 0 {
		t.Errorf("nothing was removed: %s", lines.String())
	}
	for _, log := range []string{"wal", "wbl"} {
		if err := os.Truncate(filepath.Join(s.opts.Dir, log, "00000001"), 0); err != nil {
			t.Fatal(err)
		}
	}
	s.reportRemoved(got)
	for _, want := range []string{"segments=2 ", "first=" + filepath.Join(s.opts.Dir, "wal", "00000001"), "bytes=5\n"} {
		if !strings.Contains(lines.String(), want) {
			t.Errorf("no %q in %s", want, lines.String())
		}
	}
}

func TestWatchedRegisterer_PassesOnAndForgets(t *testing.T) {
	g := newWriteGuard("", -1, nil)
	next := prometheus.NewRegistry()
	r := &watchedRegisterer{Registerer: next, guard: g}
	failed := prometheus.NewCounter(prometheus.CounterOpts{Name: "a_writes_failed_total"})
	other := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "b_total"}, []string{"l"})
	r.MustRegister(failed, other)
	other.WithLabelValues("x").Inc()
	if len(r.registered) != 2 || len(g.failures) != 1 || g.failed() || len(r.repairs()) != 0 {
		t.Errorf("%d registered, %d counters of failures", len(r.registered), len(g.failures))
	}
	if failed.Inc(); !g.failed() {
		t.Error("a counter above 0 is not seen")
	}
	if err := g.checkLog(nil); !errors.Is(err, ErrLogFailed) || !errors.Is(g.refusal(), ErrLogFailed) {
		t.Error(err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("registered twice")
			}
		}()
		r.MustRegister(failed)
	}()
	r.unregisterAll()
	if len(r.registered) != 0 || g.failures != nil || next.Unregister(other) {
		t.Errorf("%d registered, %d counters of failures", len(r.registered), len(g.failures))
	}
	if r = (&watchedRegisterer{guard: g}); r.Register(failed) != nil || r.Unregister(failed) || len(r.registered) != 1 {
		t.Error("a store without a registry")
	}
}

func TestStaged_OfAClosedStoreReleasesTheNext(t *testing.T) {
	s := newStore(t, Options{})
	cfg := &config.Config{}
	for range 2 {
		if err := s.Open(); err != nil {
			t.Fatal(err)
		}
		for i, end := range []func(*Staged) error{(*Staged).Commit, (*Staged).Undo} {
			staged, err := s.Stage(cfg)
			if err != nil {
				t.Fatal(err)
			}
			db := s.db.Swap(nil)
			if err := end(staged); !errors.Is(err, ErrNotReady) {
				t.Errorf("closed: %v", err)
			}
			s.db.Store(db)
			if i == 0 { // a failed Commit leaves the old section to Undo
				if err := staged.Undo(); err != nil {
					t.Error(err)
				}
			}
			if staged, err = s.Stage(cfg); err != nil {
				t.Fatal(err)
			}
			if err := end(staged); err != nil {
				t.Error(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s.own, s.reg = metrics.NewSet(), prometheus.NewRegistry()
	}
}

func TestStore_BoundsAreInSeconds(t *testing.T) {
	set := metrics.NewSet()
	s, err := New(Options{Dir: t.TempDir(), Retention: -1}, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), set)
	if err == nil {
		err = s.Open()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	app := s.Appender(context.Background())
	for _, at := range []int64{startMS + 1999, startMS + 61_500} {
		if _, err := app.Append(0, labels.FromStrings("__name__", "m"), at, 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	var page strings.Builder
	set.WritePrometheus(&page)
	for name, ms := range map[string]int64{"prometheus_tsdb_lowest_timestamp_seconds": startMS + 1000, "prometheus_tsdb_head_min_time_seconds": startMS + 1000, "prometheus_tsdb_head_max_time_seconds": startMS + 61_000} {
		_, text, _ := strings.Cut("\n"+page.String(), "\n"+name+" ")
		text, _, _ = strings.Cut(text, "\n")
		if got, err := strconv.ParseFloat(text, 64); err != nil || got != float64(ms/1000) {
			t.Errorf("%s: %s, want %d", name, text, ms/1000)
		}
	}
	for _, f := range set.Families() {
		if f.Help == "" {
			t.Errorf("%s has no help", f.Name)
		}
	}
	if start, err := s.StartTime(); start != startMS+1999 || err != nil {
		t.Errorf("%d, %v", start, err)
	}
}
