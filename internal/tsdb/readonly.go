package tsdb

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"syscall"

	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/wlog"

	"github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/internal/series"
)

// ReadOnly is an open directory of a database that another process may be writing: its blocks, and the write-ahead log
// for newer samples. It locks, writes and repairs nothing in the directory.
//
// The replay of the log creates a temporary directory, outside of the database's directory, for hard links to mapped
// head chunks, or for copies of these chunks. It needs memory for the series and the newest chunks of the head. The log
// is replayed once: for the first range beyond the last block, or for the first range if there are out-of-order samples,
// which may have any timestamp. A ReadOnly is not safe for concurrent use; Close must be called.
type ReadOnly struct {
	dir, sandbox string
	remove       func() error // removes sandbox
	logger       *slog.Logger
	db           *tsdb.DBReadOnly
	blocks       []tsdb.BlockReader
	headMS       int64         // samples from here on may be in the log
	late         bool          // older samples may be in the out-of-order log
	head         *replayedHead // nil: the log was not replayed yet
}

var _ series.Source = (*ReadOnly)(nil)

// OpenReadOnly opens the blocks of dir. In sandbox, "" chooses one, it makes a directory for hard links while the log is
// read, or for copies if it is on another file system.
func OpenReadOnly(dir, sandbox string, logger *slog.Logger) (_ *ReadOnly, err error) {
	d := &ReadOnly{dir: dir, logger: logger, headMS: math.MinInt64}
	if sandbox == "" {
		sandbox = chooseSandbox(dir)
	}
	if d.sandbox, d.remove, err = files.TempDir(sandbox, "ferula_read_"); err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.remove())
		}
	}()
	// The out-of-order log is checked before the blocks are listed. If samples move from it
	// to a block after this check, the replay finds that block: it lists the blocks again.
	late, err := segmentBytes(filepath.Join(dir, wlog.WblDirName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	d.late = len(late) > 0
	if d.db, d.blocks, err = d.openBlocks(); err != nil {
		return nil, err
	}
	for _, b := range d.blocks {
		meta := b.Meta()
		d.headMS = max(d.headMS, inOrderUntil(&meta))
	}
	if _, err := os.Stat(filepath.Join(dir, "wal")); errors.Is(err, os.ErrNotExist) {
		if d.headMS = math.MaxInt64; len(d.blocks) == 0 {
			return nil, fmt.Errorf("%s has neither blocks nor a write-ahead log: %w", dir,
				errors.Join(os.ErrNotExist, d.db.Close()))
		}
		d.late = false
	} else if err != nil {
		return nil, errors.Join(err, d.db.Close())
	}
	return d, nil
}

// openBlocks opens the blocks of the directory. The server may delete a block while it is opened, because it has
// compacted it or because of its age, so a list with a missing file is made again.
func (d *ReadOnly) openBlocks() (db *tsdb.DBReadOnly, blocks []tsdb.BlockReader, err error) {
	const tries = 10
	for try := 1; ; try++ {
		db, err = tsdb.OpenDBReadOnly(d.dir, d.sandbox, d.logger)
		if err == nil {
			if blocks, err = db.Blocks(); err == nil {
				return db, blocks, nil
			}
			err = errors.Join(err, db.Close())
		}
		if try == tries || !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, fmt.Errorf("open %s: %w", d.dir, err)
		}
	}
}

// inOrderUntil returns a time before which every in-order sample is in a block, as far as the
// meta.json of one block shows it:
//
//   - the end of a block that was cut from the head
//   - math.MinInt64 for a block of out-of-order samples, or of some series only, which a hint in
//     meta.json marks: it may end later than samples that are only in the log
//   - the earliest end of the parents of a block of level 2 without a hint: Prometheus drops the
//     hint when it compacts a marked block with in-order blocks, so at least one parent was cut from
//     the head, but it is not known which
//   - the start of any other block, because its parents may be compacted or rewritten blocks
func inOrderUntil(meta *tsdb.BlockMeta) int64 {
	c := &meta.Compaction
	switch {
	case c.FromOutOfOrder() || c.FromStaleSeries() || c.FromSelectedSeries():
		return math.MinInt64
	case len(c.Parents) == 0 && c.Level <= 1:
		return meta.MaxTime
	case c.Level != 2 || len(c.Parents) == 0: // parents may be compacted ones, or rewritten ones
		return meta.MinTime
	}
	until := meta.MaxTime
	for _, p := range c.Parents {
		until = min(until, p.MaxTime)
	}
	return until
}

// chooseSandbox returns a directory to which files of dir can be hard-linked: the system's
// directory for temporary files, or else dir's parent. If dir is a mount point, neither is on
// its file system.
func chooseSandbox(dir string) string {
	tmp, parent := os.TempDir(), filepath.Dir(filepath.Clean(dir))
	if !sameFileSystem(dir, tmp) && sameFileSystem(dir, parent) {
		return parent
	}
	return tmp
}

// sameFileSystem reports whether files of one directory can be hard-linked in the other; true
// if that is unknown.
func sameFileSystem(dir, other string) bool {
	a, errA := os.Stat(dir)
	b, errB := os.Stat(other)
	if errA != nil || errB != nil {
		return true
	}
	statA, okA := a.Sys().(*syscall.Stat_t)
	statB, okB := b.Sys().(*syscall.Stat_t)
	return !okA || !okB || statA.Dev == statB.Dev
}

// Close closes the blocks and the head.
func (d *ReadOnly) Close() error {
	var err error
	if d.head != nil {
		err = d.head.close()
	}
	return errors.Join(err, d.db.Close(), d.remove())
}

// RawQuerier implements series.Source; mint and maxt are inclusive, in ms.
func (d *ReadOnly) RawQuerier(ctx context.Context, mint, maxt int64) (series.Querier, error) {
	if d.head == nil && (d.late || maxt >= d.headMS) {
		if err := d.replay(ctx); err != nil {
			return nil, err
		}
	}
	var queriers []storage.ChunkQuerier
	for _, b := range d.blocks {
		if meta := b.Meta(); meta.MinTime > maxt || meta.MaxTime <= mint {
			continue
		}
		q, err := tsdb.NewBlockChunkQuerier(b, mint, maxt)
		if err != nil {
			for _, opened := range queriers {
				err = errors.Join(err, opened.Close())
			}
			return nil, fmt.Errorf("block %s: %w", b.Meta().ULID, err)
		}
		queriers = append(queriers, q)
	}
	if d.head != nil && maxt >= d.head.minMS {
		queriers = append(queriers, headWindow{d.head.querier, mint, maxt})
	}
	merged := storage.NewMergeChunkQuerier(queriers, nil,
		storage.NewCompactingChunkSeriesMerger(storage.ChainedSeriesMerge))
	return series.FromChunkQuerier(merged), nil
}

// replay replays the logs and then reopens the blocks, because samples may have moved from
// the logs to a new block before the replay.
func (d *ReadOnly) replay(ctx context.Context) error {
	h, err := openHead(ctx, d.dir, d.sandbox, d.headMS, d.late, d.logger)
	if err != nil {
		return fmt.Errorf("write-ahead log of %s: %w", d.dir, err)
	}
	db, blocks, err := d.openBlocks()
	if err != nil {
		return errors.Join(err, h.close())
	}
	if err := d.db.Close(); err != nil {
		return errors.Join(err, db.Close(), h.close())
	}
	d.db, d.blocks, d.head = db, blocks, h
	return nil
}
