// Package tsdb stores samples in Prometheus' TSDB, behind the storage interfaces that
// PromQL, scraping and remote write use.
//
// Samples are acknowledged once Commit has written them to the write-ahead log. Queries use
// storage.Queryable, ChunkQueryable and ExemplarQueryable. New returns a Store without a
// database. Until Open has replayed the write-ahead log, every query, append and admin call
// returns ErrNotReady, so that the HTTP server can listen and report it. The package has no
// HTTP, no PromQL and no scraping.
package tsdb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alecthomas/units"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/wlog"
	"github.com/prometheus/prometheus/util/compression"
	"github.com/prometheus/prometheus/util/runtime"

	"github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/metrics"
)

// ErrNotReady is returned by queries, appends and admin calls until the write-ahead log is replayed.
var ErrNotReady = tsdb.ErrNotReady

// Options of a Store. A zero field takes Prometheus' default, unless its comment names another.
type Options struct {
	Dir string // directory of blocks and write-ahead log
	// retention time; 0: 15 days, or no limit if RetentionBytes is set; negative: no limit
	Retention        time.Duration
	RetentionBytes   int64         // retention size; 0: no limit
	MinBlockDuration time.Duration // time range of a block cut from the head; 0: 2h
	// longest compacted block; 0: a tenth of the retention, at most 31 days, at least MinBlockDuration
	MaxBlockDuration   time.Duration
	WALSegmentBytes    int // 0: 128 MiB
	WALCompression     compression.Type
	NoLockfile         bool
	MaxExemplars       int64         // capacity for exemplars in memory; 0: 100,000; negative: none
	OutOfOrderWindow   time.Duration // out_of_order_time_window: how far back a sample may arrive out of order
	SnapshotOnShutdown bool          // feature memory-snapshot-on-shutdown
	// samples are refused while the disk has less free space; at most a twentieth of the disk; 0: what the next block of
	// the head needs, at least 256 MiB; negative: no check
	FreeBytesMin int64
	// --no-storage.tsdb.allow-overlapping-compaction: do not compact blocks only because they overlap
	KeepOverlappingBlocks    bool
	FloatChunkEncodingIsXOR2 bool
	HistogramsWithST         bool // feature histograms-st-encoding: chunks of histograms have start timestamps
	// feature st-storage: the log has start timestamps, and so have chunks: it needs FloatChunkEncodingIsXOR2 and
	// HistogramsWithST
	StoreST bool
	// feature created-timestamp-zero-ingestion: a start timestamp is stored as a sample of 0, if samples are in order
	STAsZeroSample bool
	// feature metadata-wal-records: the log has metadata of scraped samples, for remote write 2.0
	MetadataInWAL bool

	ChunkSegmentBytes      int64         // largest segment file of chunks in a block; 0: 512 MiB
	HeadQueueSize          int           // length of the queue of head chunks to write to disk; 0: no queue
	SamplesPerChunk        int           // 0: 120
	BlockReloadInterval    time.Duration // 0: 1 minute
	DelayedCompaction      bool          // feature delayed-compaction: delay each compaction of the head by a random time
	CompactionDelayPercent int           // longest such delay, in percent of the range of the head; 0: 10
	// blocks of level 1 are compacted only once this file lists them as uploaded; "": without delay
	UploadedBlocksFile string

	ExpectedSeries int // about how many series the head of a new database will have; 0: few

	// Section is the `storage` section of the configuration file, nil if it has none. It
	// overrides the fields above, as in Prometheus. The database deletes blocks beyond the
	// retention while it opens, so a section applied later would be too late.
	Section *config.StorageConfig
}

const (
	defaultRetention    = 15 * 24 * time.Hour
	defaultMaxExemplars = 100_000
	defaultFreeBytesMin = 256 << 20
	longestBlock        = 31 * 24 * time.Hour
)

// DefaultRetention returns the retention in effect if the configuration file has none.
func (o Options) DefaultRetention() config.TSDBRetentionConfig {
	if o.Retention == 0 && o.RetentionBytes == 0 {
		o.Retention = defaultRetention
	}
	return config.TSDBRetentionConfig{Time: model.Duration(max(0, o.Retention)), Size: units.Base2Bytes(o.RetentionBytes)}
}

// section returns a copy of given, in which the options replace a missing retention and missing
// settings for exemplars. If given is nil, the out-of-order window is taken from the options, too.
func (o Options) section(given *config.StorageConfig) config.StorageConfig {
	var complete config.StorageConfig
	if given != nil {
		complete = *given
	}
	inner := config.TSDBConfig{}
	if complete.TSDBConfig != nil {
		inner = *complete.TSDBConfig
	}
	if inner.Retention == nil {
		retention := o.DefaultRetention()
		inner.Retention = &retention
	}
	if given == nil {
		inner.OutOfOrderTimeWindow = o.OutOfOrderWindow.Milliseconds()
	}
	complete.TSDBConfig = &inner
	if complete.ExemplarsConfig == nil {
		complete.ExemplarsConfig = &config.ExemplarsConfig{MaxExemplars: defaultMaxExemplars}
		if o.MaxExemplars != 0 {
			complete.ExemplarsConfig.MaxExemplars = max(0, o.MaxExemplars)
		}
	}
	return complete
}

// resolved returns the effective options: the fields overridden by the section, with defaults
// filled in. In the effective options a retention of 0 means no limit.
func (o Options) resolved() Options {
	section := o.section(o.Section)
	o.Section = &section
	o.Retention, o.RetentionBytes = time.Duration(section.TSDBConfig.Retention.Time),
		int64(section.TSDBConfig.Retention.Size)
	o.OutOfOrderWindow = time.Duration(section.TSDBConfig.OutOfOrderTimeWindow) * time.Millisecond
	o.MaxExemplars = section.ExemplarsConfig.MaxExemplars
	if floats := section.TSDBConfig.ChunkEncoding.Floats; floats != "" {
		o.FloatChunkEncodingIsXOR2 = floats == config.FloatChunkEncodingXOR2
	}
	o.MinBlockDuration = cmp.Or(o.MinBlockDuration, time.Duration(tsdb.DefaultBlockDuration)*time.Millisecond)
	if o.MaxBlockDuration == 0 {
		o.MaxBlockDuration = longestBlock
		if o.Retention != 0 && o.Retention/10 < longestBlock {
			o.MaxBlockDuration = o.Retention / 10
		}
	}
	if o.MaxBlockDuration < o.MinBlockDuration {
		o.MaxBlockDuration = o.MinBlockDuration
	}
	o.WALCompression = cmp.Or(o.WALCompression, compression.Snappy)
	return o
}

// Validate returns all errors of the options.
func (o Options) Validate() error {
	var errs []error
	if o.Dir == "" {
		errs = append(errs, errors.New("no directory for the database"))
	}
	if o.RetentionBytes < 0 {
		errs = append(errs, hint.Invalid("storage.tsdb.retention.size", fmt.Errorf("%d is negative", o.RetentionBytes)))
	}
	for _, option := range []struct {
		name  string
		value int64
	}{{"storage.tsdb.head-chunks-write-queue-size", int64(o.HeadQueueSize)}, {"storage.tsdb.samples-per-chunk",
		int64(o.SamplesPerChunk)}, {"storage.tsdb.delayed-compaction.max-percent", int64(o.CompactionDelayPercent)}} {
		if option.value < 0 {
			errs = append(errs, hint.Invalid(option.name, fmt.Errorf("%d is negative", option.value)))
		}
	}
	if o.WALSegmentBytes != 0 && (o.WALSegmentBytes < 10<<20 || o.WALSegmentBytes > 256<<20) {
		errs = append(errs, hint.Invalid("storage.tsdb.wal-segment-size",
			fmt.Errorf("%d bytes are not between 10MB and 256MB", o.WALSegmentBytes)))
	}
	// a reference of a chunk has 32 bits for its place in the segment
	if o.ChunkSegmentBytes != 0 && (o.ChunkSegmentBytes < 1<<20 || o.ChunkSegmentBytes > 4<<30) {
		errs = append(errs, hint.Invalid("storage.tsdb.max-block-chunk-segment-size",
			fmt.Errorf("%d bytes are not between 1MB and 4GB", o.ChunkSegmentBytes)))
	}
	if o.OutOfOrderWindow < 0 {
		errs = append(errs, fmt.Errorf("storage.tsdb.out_of_order_time_window: %s is negative", o.OutOfOrderWindow))
	}
	if o.MaxBlockDuration != 0 && o.MinBlockDuration != 0 && o.MaxBlockDuration < o.MinBlockDuration {
		errs = append(errs, hint.Invalid("storage.tsdb.max-block-duration",
			fmt.Errorf("%s is less than --storage.tsdb.min-block-duration=%s", o.MaxBlockDuration, o.MinBlockDuration)))
	}
	if percentage := o.percentage(); percentage > 0 && o.Dir != "" && runtime.FsSize(o.Dir) == 0 {
		errs = append(errs, fmt.Errorf("storage.tsdb.retention.percentage=%g: cannot determine the size of the file "+
			"system of %s", percentage, o.Dir))
	}
	return errors.Join(errs...)
}

// percentage returns the percentage of the disk that blocks may use; 0: no limit.
func (o Options) percentage() float64 {
	if o.Section == nil || o.Section.TSDBConfig == nil || o.Section.TSDBConfig.Retention == nil {
		return 0
	}
	return o.Section.TSDBConfig.Retention.Percentage
}

func (o Options) prometheus() *tsdb.Options {
	p := tsdb.DefaultOptions()
	p.RetentionDuration = o.Retention.Milliseconds()
	p.MaxBytes = o.RetentionBytes
	p.MaxPercentage = o.percentage()
	p.StaleSeriesCompactionThreshold = o.Section.TSDBConfig.StaleSeriesCompactionThreshold
	p.MinBlockDuration = o.MinBlockDuration.Milliseconds()
	p.MaxBlockDuration = o.MaxBlockDuration.Milliseconds()
	p.WALSegmentSize = o.WALSegmentBytes
	p.WALCompression = o.WALCompression
	p.NoLockfile = o.NoLockfile
	p.EnableExemplarStorage = true // a capacity of 0 disables it until a reload sets another
	p.MaxExemplars = max(0, o.MaxExemplars)
	p.OutOfOrderTimeWindow = o.OutOfOrderWindow.Milliseconds()
	p.EnableMemorySnapshotOnShutdown = o.SnapshotOnShutdown
	p.EnableFastStartup = o.SnapshotOnShutdown // writes the last series reference to series_state.json: see keepReferences
	p.EnableOverlappingCompaction = !o.KeepOverlappingBlocks
	p.HeadChunksWriteQueueSize = o.HeadQueueSize
	p.EnableDelayedCompaction = o.DelayedCompaction
	p.EnableMetadataWALRecords = o.MetadataInWAL
	p.EnableHistogramSTEncoding = o.HistogramsWithST
	p.EnableSTStorage = o.StoreST
	p.EnableSTAsZeroSample = o.STAsZeroSample
	p.MaxBlockChunkSegmentSize = cmp.Or(o.ChunkSegmentBytes, p.MaxBlockChunkSegmentSize)
	p.SamplesPerChunk = cmp.Or(o.SamplesPerChunk, p.SamplesPerChunk)
	p.BlockReloadInterval = cmp.Or(o.BlockReloadInterval, p.BlockReloadInterval)
	p.CompactionDelayMaxPercent = cmp.Or(o.CompactionDelayPercent, p.CompactionDelayMaxPercent)
	if o.FloatChunkEncodingIsXOR2 {
		p.FloatChunkEncoding = chunkenc.EncXOR2
	}
	return p
}

// Store is one database on one disk. It is safe for concurrent use.
type Store struct {
	given  Options // as passed to New
	opts   Options // with Section and defaults applied
	guard  *writeGuard
	gate   *lateGate
	logger *slog.Logger
	reg    prometheus.Registerer // for the metrics of the database
	own    *metrics.Set          // for the metrics of the store
	stats  *tsdb.DBStats
	db     atomic.Pointer[tsdb.DB]

	gaps      int  // number of logs in which the start found a gap
	snapshots bool // the database starts from a snapshot of the head, and writes one when it closes

	applying sync.Mutex           // held from Stage to Commit or Undo
	applied  config.StorageConfig // the effective section
	encoding atomic.Uint32        // encoding of float chunks, by the effective section

	writes wlog.WriteNotified // notified of every commit; may be nil

	exemplars exemplarRing
	sides     sideFiles  // summaries of the chunks of blocks
	mappings  mappings   // of blocks that are read through RawQuerier
	orders    headOrders // of selections of the head through RawQuerier
}

var (
	_ storage.Queryable         = (*Store)(nil)
	_ storage.ChunkQueryable    = (*Store)(nil)
	_ storage.ExemplarQueryable = (*Store)(nil)
	_ storage.Appendable        = (*Store)(nil)
	_ storage.AppendableV2      = (*Store)(nil)
)

// New returns a store; Open opens the database. The database registers its metrics in reg,
// the store its own in set.
func New(opts Options, logger *slog.Logger, reg prometheus.Registerer, set *metrics.Set) (*Store, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	s := &Store{given: opts, opts: opts.resolved(), logger: logger, reg: reg, own: set, stats: tsdb.NewDBStats()}
	head := func() *tsdb.Head {
		if db := s.db.Load(); db != nil {
			return db.Head()
		}
		return nil
	}
	s.guard = newWriteGuard(opts.Dir, opts.FreeBytesMin, head)
	s.sides = sideFiles{store: s, fs: files.Disk{}, dir: filepath.Join(opts.Dir, summariesDir)}
	s.mappings.sides = &s.sides
	s.gate = &lateGate{rangeMS: s.opts.MinBlockDuration.Milliseconds(), head: head}
	s.gate.enable(s.opts.OutOfOrderWindow.Milliseconds())
	if s.opts.percentage() > 0 && s.opts.RetentionBytes > 0 {
		logger.Warn("Ignoring storage.tsdb.retention.size, because storage.tsdb.retention.percentage is specified")
	}
	s.setApplied(*s.opts.Section)
	return s, nil
}

// Options returns the options with which the database opens, after the configuration
// file's section and the defaults are applied. A retention of 0 is no limit.
func (s *Store) Options() Options { return s.opts }

// Open replays the write-ahead log and makes the store ready. It may take minutes;
// WALReplayStatus returns the progress.
func (s *Store) Open() error {
	opts := s.opts.prometheus()
	opts.BlockCompactionExcludeFunc = s.lateBlock
	if path := s.opts.UploadedBlocksFile; path != "" {
		uploaded := &uploadedBlocks{path: path, logger: s.logger}
		opts.BlockCompactionExcludeFunc = func(meta *tsdb.BlockMeta) bool {
			return s.lateBlock(meta) || uploaded.excluded(meta)
		}
	}
	if err := s.guard.refusal(); err != nil {
		s.logger.Warn("The disk is nearly full. If the replay of the write-ahead log cannot write chunks of the head, the "+
			"process ends with a panic; nothing is lost, and the next start repeats the replay", "dir", s.opts.Dir, "err", err)
	}
	opts.StripeSize = s.stripes()
	opts.SeriesLifecycleCallback = &s.orders
	db, err := s.openDatabase(opts)
	if err != nil {
		return fmt.Errorf("open database in %s: %w", s.opts.Dir, err)
	}
	if err := s.exemplars.shrink(db); err != nil {
		return errors.Join(fmt.Errorf("exemplars: %w", err), db.Close())
	}
	if s.writes != nil {
		db.SetWriteNotified(s.writes)
	}
	s.registerBounds(db)
	s.sides.register(s.own)
	s.sides.start()
	s.db.Store(db)
	return nil
}

// NotifyWrites sets the receiver of a notification of every write to the write-ahead log. It
// must be called before Open.
func (s *Store) NotifyWrites(writes wlog.WriteNotified) { s.writes = writes }

// registerBounds registers the three gauges that Prometheus' main program adds and that
// dashboards use, and a gauge that shows whether samples are accepted.
func (s *Store) registerBounds(db *tsdb.DB) {
	process.Gauge(s.own, "ferula_tsdb_accepts_samples", "Whether samples are accepted. At 0 they are refused with status "+
		"503: the disk is nearly full, or a write to the write-ahead log has failed.", func() float64 {
		if s.Refusal() != nil {
			return 0
		}
		return 1
	})
	process.Gauge(s.own, "ferula_tsdb_wal_aside_bytes", "Size of the segments of the write-ahead log that are kept but "+
		"not read (*.aside, *.repair): segments before them are missing or damaged. Delete these files if no samples are "+
		"missing.", func() float64 { return float64(s.asideBytes()) })
	gauge := func(name, help string, valueMS func() int64) {
		process.Gauge(s.own, name, help, func() float64 { return float64(valueMS() / 1000) })
	}
	gauge("prometheus_tsdb_lowest_timestamp_seconds", "Lowest timestamp value stored in the database.", func() int64 {
		if blocks := db.Blocks(); len(blocks) > 0 {
			return blocks[0].Meta().MinTime
		}
		return db.Head().MinTime()
	})
	gauge("prometheus_tsdb_head_min_time_seconds", "Minimum time bound of the head block.", db.Head().MinTime)
	gauge("prometheus_tsdb_head_max_time_seconds", "Maximum timestamp of the head block.", db.Head().MaxTime)
}

// Close flushes and closes the database if it was opened.
func (s *Store) Close() error {
	if db := s.db.Swap(nil); db != nil {
		return s.close(db)
	}
	return nil
}

func (s *Store) close(db *tsdb.DB) error {
	s.sides.stop()
	defer s.gate.open() // a compaction that was stopped opens nothing
	if err := errors.Join(db.Close(), s.mappings.close()); err != nil {
		return fmt.Errorf("close database in %s: %w", s.opts.Dir, err)
	}
	return nil
}

// Staged is a `storage` section of which Stage has applied the settings that can fail, but
// not the settings that delete data. The caller calls Commit, and Undo instead of it or after it has failed.
type Staged struct {
	store *Store
	next  config.StorageConfig
}

// Stage applies the settings of a section that can fail. It keeps the old retention and the old
// capacity for exemplars, because the new ones may delete blocks and exemplars: these could not
// be restored if another part of the configuration is refused afterwards.
func (s *Store) Stage(cfg *config.Config) (*Staged, error) {
	db := s.db.Load()
	if db == nil {
		return nil, ErrNotReady
	}
	s.applying.Lock()
	staged := &Staged{s, s.given.section(&cfg.StorageConfig)}
	careful, inner := staged.next, *staged.next.TSDBConfig
	inner.Retention, careful.ExemplarsConfig = s.applied.TSDBConfig.Retention, s.applied.ExemplarsConfig
	careful.TSDBConfig = &inner
	if err := db.ApplyConfig(&config.Config{StorageConfig: careful}); err != nil {
		return nil, errors.Join(err, staged.Undo())
	}
	s.gate.enable(inner.OutOfOrderTimeWindow)
	return staged, nil
}

// Commit applies the rest of the section. If it fails, Undo must be called.
func (s *Staged) Commit() error {
	db := s.store.db.Load()
	if db == nil {
		return ErrNotReady
	}
	if err := db.ApplyConfig(&config.Config{StorageConfig: s.next}); err != nil {
		return err
	}
	s.store.setApplied(s.next)
	s.store.applying.Unlock()
	return nil
}

// Undo restores the previous section.
func (s *Staged) Undo() error {
	defer s.store.applying.Unlock()
	db := s.store.db.Load()
	if db == nil {
		return ErrNotReady
	}
	if err := db.ApplyConfig(&config.Config{StorageConfig: s.store.applied}); err != nil {
		return fmt.Errorf("restore the previous storage configuration: %w", err)
	}
	return nil
}

func (s *Store) setApplied(section config.StorageConfig) {
	encoding := chunkenc.EncXOR
	switch floats := section.TSDBConfig.ChunkEncoding.Floats; {
	case floats == config.FloatChunkEncodingXOR2, floats == "" && s.opts.FloatChunkEncodingIsXOR2:
		encoding = chunkenc.EncXOR2
	}
	s.applied = section
	s.exemplars.setMax(section.ExemplarsConfig.MaxExemplars)
	s.encoding.Store(uint32(encoding))
}

// Querier implements storage.Queryable; mint and maxt are inclusive, in ms.
func (s *Store) Querier(mint, maxt int64) (storage.Querier, error) {
	if db := s.db.Load(); db != nil {
		return db.Querier(mint, maxt)
	}
	return nil, ErrNotReady
}

// ChunkQuerier implements storage.ChunkQueryable; mint and maxt are inclusive, in ms.
func (s *Store) ChunkQuerier(mint, maxt int64) (storage.ChunkQuerier, error) {
	if db := s.db.Load(); db != nil {
		return db.ChunkQuerier(mint, maxt)
	}
	return nil, ErrNotReady
}

// ExemplarQuerier implements storage.ExemplarQueryable.
func (s *Store) ExemplarQuerier(ctx context.Context) (storage.ExemplarQuerier, error) {
	if db := s.db.Load(); db != nil {
		return db.ExemplarQuerier(ctx)
	}
	return nil, ErrNotReady
}

// Appender implements storage.Appendable.
func (s *Store) Appender(ctx context.Context) storage.Appender {
	db := s.db.Load()
	if db == nil {
		return notReady{ErrNotReady}
	}
	if err := s.guard.refusal(); err != nil {
		return notReady{err}
	}
	return guardedAppender{db.Appender(ctx), s.guard, s.gate, &s.exemplars}
}

// AppenderV2 implements storage.AppendableV2.
func (s *Store) AppenderV2(ctx context.Context) storage.AppenderV2 {
	db := s.db.Load()
	if db == nil {
		return notReadyV2{ErrNotReady}
	}
	if err := s.guard.refusal(); err != nil {
		return notReadyV2{err}
	}
	return guardedAppenderV2{db.AppenderV2(ctx), s.guard, s.gate, &s.exemplars}
}

// Refusal returns why samples are not accepted, nil if they are.
func (s *Store) Refusal() error {
	if s.db.Load() == nil {
		return ErrNotReady
	}
	return s.guard.refusal()
}

// HeadStats returns cardinality statistics of the head, with at most limit entries in each
// list. byLabel is the label whose values are counted in place of metric names.
func (s *Store) HeadStats(byLabel string, limit int) (*tsdb.Stats, error) {
	if db := s.db.Load(); db != nil {
		return db.Head().Stats(byLabel, limit), nil
	}
	return nil, ErrNotReady
}

// BlockMetas returns the metas of the blocks on disk, oldest first.
func (s *Store) BlockMetas() ([]tsdb.BlockMeta, error) {
	if db := s.db.Load(); db != nil {
		return db.BlockMetas(), nil
	}
	return nil, ErrNotReady
}

// StartTime returns the start of the oldest block in ms; without blocks the minimum time of the head, which is the
// greatest int64 for an empty store.
func (s *Store) StartTime() (int64, error) {
	if db := s.db.Load(); db != nil {
		return db.StartTime()
	}
	return 0, ErrNotReady
}

// HeadMinTime returns the time of the oldest sample of the head in ms; the greatest int64 if it is empty or not open.
func (s *Store) HeadMinTime() int64 {
	if db := s.db.Load(); db != nil {
		return db.Head().MinTime()
	}
	return math.MaxInt64
}

// WALReplayStatus returns the current segment of the replay and the number of segments.
func (s *Store) WALReplayStatus() tsdb.WALReplayStatus {
	return s.stats.Head.WALReplayStatus.GetWALReplayStatus()
}
