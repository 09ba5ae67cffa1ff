package tsdb

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/tsdb/record"
)

// checkReferences returns an error if the write-ahead log in dir gives one reference to two series, and the mapped
// chunks have out-of-order samples with this reference.
//
// Prometheus' feature memory-snapshot-on-shutdown can do this: after a start from a snapshot, a new series gets the
// reference of a series that had left the head before the shutdown. Such a chunk may belong to either of the two
// series, so a replay would return samples of one series for the other, and without an error. Only directories with
// a snapshot are checked, because the check reads the whole log.
func checkReferences(dir string) error {
	// dir is not a pattern
	if snapshots, err := fs.Glob(os.DirFS(dir), "chunk_snapshot.*"); err != nil || len(snapshots) == 0 {
		return err
	}
	hashes := map[chunks.HeadSeriesRef]uint64{} // of the labels
	twice := map[chunks.HeadSeriesRef]string{}  // labels of the last series with the reference of another
	for _, part := range logRanges(filepath.Join(dir, "wal")) {
		eachSeries(part, func(one record.RefSeries) {
			hash := one.Labels.Hash()
			if earlier, ok := hashes[one.Ref]; ok && earlier != hash {
				twice[one.Ref] = one.Labels.String()
			}
			hashes[one.Ref] = hash
		})
	}
	if len(twice) == 0 {
		return nil
	}
	mapped, err := mappedChunks(dir)
	if mapped == nil || err != nil {
		return err
	}
	err = mapped.IterateAllChunks(func(ref chunks.HeadSeriesRef, _ chunks.ChunkDiskMapperRef, _, _ int64, _ uint16,
		_ chunkenc.Encoding, outOfOrder bool) error {
		if lset, ok := twice[ref]; ok && outOfOrder {
			return fmt.Errorf("out-of-order samples of two series would be mixed up: the write-ahead log has the "+
				"reference %d for the series %s and for an earlier series, as after a start from a snapshot of the head "+
				"(memory-snapshot-on-shutdown). Read from the running server with --url, or from a copy of the "+
				"directory with only the blocks", ref, lset)
		}
		return nil
	})
	return errors.Join(err, mapped.Close())
}
