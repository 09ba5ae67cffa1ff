// Package localdb reads the folder of a Prometheus database that another process
// may be writing: blocks, and the write-ahead log for what is younger.
//
// A folder comes in; out go raw queriers over windows of it. Nothing in the folder
// is locked, written or repaired. The log's head needs a folder of its own beside
// it (hard links to the chunks that are mapped already), which is made elsewhere on
// the same file system and removed. Replaying the log takes memory for the series
// and the youngest chunks of the head, and is done only for windows that reach
// behind the last block. What is not here: opening a database to write to it, see
// package store/tsdb.
package localdb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"syscall"

	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"

	"github.com/ferula-io/ferula/internal/series"
)

// DB is an open folder. It is used by one goroutine; Close must be called.
type DB struct {
	dir, sandbox string
	logger       *slog.Logger
	db           *tsdb.DBReadOnly
	blocks       []tsdb.BlockReader
	headMS       int64 // samples from here on may be in the log
}

var _ series.Source = (*DB)(nil)

// Open opens the blocks of dir. sandbox is a folder on the same file system, for
// links while the log is read; "" tries the system's folder for temporary files
// and then dir's parent.
func Open(dir, sandbox string, logger *slog.Logger) (_ *DB, err error) {
	d := &DB{dir: dir, sandbox: sandbox, logger: logger, headMS: math.MinInt64}
	if sandbox == "" {
		d.sandbox = chooseSandbox(dir)
	}
	if d.db, err = tsdb.OpenDBReadOnly(dir, d.sandbox, logger); err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	if d.blocks, err = d.db.Blocks(); err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, errors.Join(err, d.db.Close()))
	}
	for _, b := range d.blocks {
		d.headMS = max(d.headMS, b.Meta().MaxTime)
	}
	if _, err := os.Stat(filepath.Join(dir, "wal")); errors.Is(err, os.ErrNotExist) {
		if d.headMS = math.MaxInt64; len(d.blocks) == 0 {
			return nil, fmt.Errorf("%s has neither blocks nor a write-ahead log: %w", dir, errors.Join(os.ErrNotExist, d.db.Close()))
		}
	} else if err != nil {
		return nil, errors.Join(err, d.db.Close())
	}
	return d, nil
}

// chooseSandbox finds a folder that links from dir can be made in.
func chooseSandbox(dir string) string {
	tmp := os.TempDir()
	a, errA := os.Stat(dir)
	b, errB := os.Stat(tmp)
	if errA != nil || errB != nil {
		return tmp
	}
	statA, okA := a.Sys().(*syscall.Stat_t)
	statB, okB := b.Sys().(*syscall.Stat_t)
	if okA && okB && statA.Dev != statB.Dev {
		return filepath.Dir(filepath.Clean(dir))
	}
	return tmp
}

// Close closes the blocks.
func (d *DB) Close() error { return d.db.Close() }

// RawQuerier implements series.Source; mint and maxt are inclusive, in ms.
func (d *DB) RawQuerier(_ context.Context, mint, maxt int64) (series.Querier, error) {
	if maxt >= d.headMS {
		return d.withHead(mint, maxt)
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
	merged := storage.NewMergeChunkQuerier(queriers, nil, storage.NewCompactingChunkSeriesMerger(storage.ChainedSeriesMerge))
	return series.FromChunkQuerier(merged), nil
}

// withHead reads the log too, which Prometheus does for one querier at a time.
func (d *DB) withHead(mint, maxt int64) (series.Querier, error) {
	db, err := tsdb.OpenDBReadOnly(d.dir, d.sandbox, d.logger)
	if err != nil {
		return nil, err
	}
	q, err := db.ChunkQuerier(mint, maxt)
	if err != nil {
		return nil, fmt.Errorf("write-ahead log of %s: %w", d.dir, errors.Join(err, db.Close()))
	}
	return &headQuerier{Querier: series.FromChunkQuerier(q), db: db}, nil
}

// headQuerier closes the database with the querier.
type headQuerier struct {
	series.Querier
	db *tsdb.DBReadOnly
}

// Close implements series.Querier.
func (q *headQuerier) Close() error { return errors.Join(q.Querier.Close(), q.db.Close()) }
