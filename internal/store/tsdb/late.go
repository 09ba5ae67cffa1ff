package tsdb

import (
	"math"

	"github.com/prometheus/prometheus/tsdb"
)

// lateBlock reports whether a block must not be compacted yet: it is of out-of-order samples
// and ends after the in-order blocks.
//
// Compaction with in-order blocks drops the out-of-order hint. At the next start the database
// takes the end of the result for the end of the in-order blocks, and leaves out what the
// write-ahead log has before it. Such a block waits until the head was cut beyond its end.
func (s *Store) lateBlock(meta *tsdb.BlockMeta) bool {
	if !meta.Compaction.FromOutOfOrder() {
		return false
	}
	db, until := s.db.Load(), int64(math.MinInt64)
	if db == nil { // it is still being opened
		return true
	}
	for _, b := range db.Blocks() {
		m := b.Meta()
		if c := &m.Compaction; !c.FromOutOfOrder() && !c.FromStaleSeries() && !c.FromSelectedSeries() {
			until = max(until, m.MaxTime)
		}
	}
	return meta.MaxTime > until
}
