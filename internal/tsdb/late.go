package tsdb

import (
	"math"

	"github.com/prometheus/prometheus/tsdb"
)

// lateBlock reports whether a block must not be compacted yet: it has out-of-order samples
// and ends after the last in-order block.
//
// Compaction with in-order blocks drops the out-of-order hint. At the next start the database
// would take the end of the compacted block for the end of the in-order blocks, and skip the
// samples of the write-ahead log before that end. Such a block can be compacted once an
// in-order block ends at or after its end.
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
