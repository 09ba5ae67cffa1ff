package tsdb

import (
	"errors"
	"math"

	"github.com/prometheus/prometheus/tsdb"
)

// openUnlisted opens a reader of the head's chunks from mint to maxt for which truncation of the head does not wait.
// anchor must be closed when nothing is read any more; reader must not be closed.
//
// Prometheus' truncation waits for open readers whose range it overlaps. Remote clients may read a rawHead for
// minutes. Truncation and the compaction would wait for the slowest, and the head and its log would grow meanwhile.
//
// Truncation waits only for readers on a list. Close takes the reader off this list, but the closed reader can still
// be read, and it still hides the appends that were not committed when it was opened. A second reader, the anchor,
// stays open over a range that is never truncated. While the anchor is open, the head keeps the append IDs by which
// samples are hidden.
//
// This file can go once the head has a reader that is not on the list. TestRawHead_TruncationDoesNotWaitForAReader
// fails if the list or the closed reader changes, TestRawHead_HidesLaterCommits if the anchor no longer keeps the
// append IDs.
func openUnlisted(head *tsdb.Head, mint, maxt int64) (anchor, reader tsdb.ChunkReader, err error) {
	if anchor, err = tsdb.NewRangeHead(head, math.MaxInt64, math.MaxInt64).Chunks(); err != nil {
		return nil, nil, err
	}
	if reader, err = tsdb.NewRangeHead(head, mint, maxt).Chunks(); err == nil {
		err = reader.Close()
	}
	if err != nil {
		return nil, nil, errors.Join(err, anchor.Close())
	}
	// The reader's cache of head chunks stays disabled: the cache is for one goroutine, and several goroutines may read
	// the sets. Without the cache each read of a chunk walks the series' list of chunks that are not m-mapped yet. This
	// list is short.
	return anchor, reader, nil
}
