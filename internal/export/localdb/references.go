package localdb

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/tsdb/record"
	"github.com/prometheus/prometheus/tsdb/wlog"

	storetsdb "github.com/ferula-io/ferula/internal/tsdb"
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
	log := filepath.Join(dir, "wal")
	seen := references{hashes: map[uint64]uint64{}, twice: map[uint64]string{}}
	first := -1
	if checkpoint, index, err := wlog.LastCheckpoint(log); err == nil {
		seen.addSegments(wlog.SegmentRange{Dir: checkpoint, First: -1, Last: math.MaxInt32})
		first = index + 1
	}
	seen.addSegments(wlog.SegmentRange{Dir: log, First: first, Last: math.MaxInt32})
	if len(seen.twice) == 0 {
		return nil
	}
	mapped, err := chunks.NewChunkDiskMapper(nil, filepath.Join(dir, "chunks_head"), chunkenc.NewPool(),
		chunks.DefaultWriteBufferSize, 0)
	if err != nil {
		return err
	}
	err = mapped.IterateAllChunks(func(ref chunks.HeadSeriesRef, _ chunks.ChunkDiskMapperRef, _, _ int64, _ uint16,
		_ chunkenc.Encoding, outOfOrder bool) error {
		if lset, ok := seen.twice[uint64(ref)]; ok && outOfOrder {
			return fmt.Errorf("out-of-order samples of two series would be mixed up: the write-ahead log has the "+
				"reference %d for the series %s and for an earlier series, as after a start from a snapshot of the head "+
				"(memory-snapshot-on-shutdown). Read from the running server with --url, or from a copy of the "+
				"directory with only the blocks", ref, lset)
		}
		return nil
	})
	return errors.Join(err, mapped.Close())
}

// references has the references of the series in a log.
type references struct {
	hashes map[uint64]uint64 // hash of the labels by reference
	twice  map[uint64]string // labels of the last series, by reference, of those that two series have
}

// addSegments adds the series of some segments. The replay reports what cannot be read.
func (r *references) addSegments(of wlog.SegmentRange) {
	var series []record.RefSeries
	storetsdb.EachRecord(of, func(decoder *record.Decoder, rec []byte) {
		if decoder.Type(rec) != record.Series {
			return
		}
		series, _ = decoder.Series(rec, series[:0])
		for i := range series {
			ref, hash := uint64(series[i].Ref), series[i].Labels.Hash()
			if earlier, ok := r.hashes[ref]; ok && earlier != hash {
				r.twice[ref] = series[i].Labels.String()
			}
			r.hashes[ref] = hash
		}
	})
}
