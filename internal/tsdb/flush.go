package tsdb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// CloseToBlocks closes the database. Before, it writes the samples of the head to blocks, so that they can leave with
// the process. written reports whether all of them were written.
//
// The last block ends behind the last sample, not at the end of its block range. The logs stay as they are: the next
// start drops the samples before the end of the last in-order block, as after a kill between the writing of a block
// and the truncation of the log. So no sample is stored twice, and the next block begins where the last one ends. For
// the same reason in-order samples before this end are refused after the start, unless they are within the
// out-of-order window. Samples of the future stay in the head, because otherwise all others would be refused until
// then.
//
// If ctx ends, the disk is nearly full or a block cannot be written, CloseToBlocks logs the reason. The samples that
// are in no block stay in the log, as after Close. ctx does not end the writing of late samples, which are few.
func (s *Store) CloseToBlocks(ctx context.Context) (written bool, err error) {
	db := s.db.Swap(nil) // appends are refused now
	if db == nil {
		return false, nil
	}
	idle := make(chan struct{})
	go func() {
		defer close(idle)
		db.DisableCompactions() // waits for a running one
	}()
	var failure error
	nowMS := time.Now().UnixMilli()
	select {
	case <-idle:
		s.gate.commits.Lock() // an appender that is still open fails after the close
		defer s.gate.commits.Unlock()
		failure = s.headToBlocks(ctx, db, nowMS)
	case <-ctx.Done():
		failure = ctx.Err()
	}
	if failure != nil {
		s.logger.Warn("Samples of the head were not written to a block; the next start reads them from the write-ahead log",
			"err", failure)
	}
	err = s.close(db)
	<-idle
	if failure == nil && err == nil && db.Head().MaxTime() <= nowMS {
		err = s.removeMapped()
	}
	return failure == nil, err
}

// headToBlocks writes the samples of the head up to nowMS to blocks, one for each block range.
func (s *Store) headToBlocks(ctx context.Context, db *tsdb.DB, nowMS int64) error {
	if err := s.guard.refusal(); err != nil {
		return err
	}
	head, width := db.Head(), s.opts.MinBlockDuration.Milliseconds()
	// Unlike the database's own compactor, this one is canceled by ctx.
	compactor, err := tsdb.NewLeveledCompactorWithOptions(ctx, nil, s.logger, []int64{width}, chunkenc.NewPool(),
		tsdb.LeveledCompactorOptions{
			MaxBlockChunkSegmentSize: s.opts.ChunkSegmentBytes,
			FloatChunkEncoding:       func() chunkenc.Encoding { return chunkenc.Encoding(s.encoding.Load()) },
		})
	if err != nil {
		return err
	}
	endMS := min(head.MaxTime(), nowMS) + 1
	for mint := head.MinTime(); mint < endMS; {
		maxt := min((mint/width+1)*width, endMS)
		if _, err := compactor.Write(s.opts.Dir, tsdb.NewRangeHead(head, mint, maxt-1), mint, maxt, nil); err != nil {
			return fmt.Errorf("block from %d to %d: %w", mint, maxt, err)
		}
		mint = maxt
	}
	// Last: if the process ends before removeMapped, late samples are in two blocks, as after each compaction of theirs.
	return db.CompactOOOHead(ctx)
}

// removeMapped deletes the mapped chunks of a closed database whose whole head is in blocks. CompactOOOHead leaves late
// samples there, in the last file: the next start would read them once more, and write them to a second block.
func (s *Store) removeMapped() error {
	dir := filepath.Join(s.opts.Dir, "chunks_head")
	files, err := os.ReadDir(dir)
	for _, f := range files { // ascending, because a gap between files is an error at the start
		err = errors.Join(err, os.Remove(filepath.Join(dir, f.Name())))
	}
	return err
}
