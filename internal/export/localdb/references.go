package localdb

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/record"
	"github.com/prometheus/prometheus/tsdb/wlog"
)

// checkReferences returns an error if the write-ahead log in dir gives one reference to two series.
//
// Prometheus' feature memory-snapshot-on-shutdown can do this: after a start from a snapshot, a new series gets the reference of a
// series that had left the head before the shutdown. The log does not tell which of the two series a mapped chunk belongs to,
// so a replay would return samples of one series for the other, and without an error. Only directories with a snapshot are
// checked, because the check reads the whole log.
func checkReferences(dir string) error {
	if snapshots, err := fs.Glob(os.DirFS(dir), "chunk_snapshot.*"); err != nil || len(snapshots) == 0 { // dir is not a pattern
		return err
	}
	const tries = 3 // the server may delete segments and checkpoints meanwhile
	var err error
	for range tries {
		if err = checkLog(filepath.Join(dir, "wal")); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return err
}

// checkLog is checkReferences for one log.
func checkLog(log string) error {
	seen := map[uint64]uint64{} // hash of the labels by reference
	if checkpoint, index, err := wlog.LastCheckpoint(log); err == nil {
		if err := checkSegments(wlog.SegmentRange{Dir: checkpoint, First: -1, Last: math.MaxInt32}, seen); err != nil {
			return err
		}
		return checkSegments(wlog.SegmentRange{Dir: log, First: index + 1, Last: math.MaxInt32}, seen)
	}
	return checkSegments(wlog.SegmentRange{Dir: log, First: -1, Last: math.MaxInt32}, seen)
}

// checkSegments adds the series of some segments to seen. It reads damaged segments up to the damage, which the replay reports.
func checkSegments(of wlog.SegmentRange, seen map[uint64]uint64) error {
	files, err := wlog.NewSegmentsRangeReader(of)
	if err != nil {
		return err
	}
	defer func() { _ = files.Close() }() // only read
	decoder := record.NewDecoder(labels.NewSymbolTable(), slog.New(slog.DiscardHandler))
	var series []record.RefSeries
	for r := wlog.NewReader(files); r.Next(); {
		if decoder.Type(r.Record()) != record.Series {
			continue
		}
		if series, err = decoder.Series(r.Record(), series[:0]); err != nil {
			return err
		}
		for i := range series {
			ref, hash := uint64(series[i].Ref), series[i].Labels.Hash()
			if earlier, ok := seen[ref]; ok && earlier != hash {
				return fmt.Errorf("%s: the log has the reference %d for the series %s and for an earlier one, as after a start from a snapshot of the head (memory-snapshot-on-shutdown): samples of one would be read for the other. Read from the running server with --url instead, or a copy of the directory that has only the blocks",
					of.Dir, ref, series[i].Labels)
			}
			seen[ref] = hash
		}
	}
	return nil
}
