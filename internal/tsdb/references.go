package tsdb

import (
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/tsdb/record"
	"github.com/prometheus/prometheus/tsdb/wlog"

	"github.com/ferula-io/ferula/internal/files"
)

// seriesState is the content of series_state.json in the directory of the write-ahead log, as Prometheus writes it
// with its feature fast-startup: the last reference that was given to a series.
type seriesState struct {
	LastSeriesID   uint64 `json:"last_series_id"`
	LastWALSegment int    `json:"last_wal_segment"`
	CleanShutdown  bool   `json:"clean_shutdown"`
}

const seriesStateFile = "series_state.json"

// lastReferenceMax is the highest reference that is believed of series_state.json. Queries of the head panic for
// references of more than 40 bits, and after the reference 2^64-1 Prometheus gives 0, which means no reference. No
// server gives half of the references that have 40 bits: such a file is corrupt.
const lastReferenceMax = 1 << 39

// keepReferences makes sure that a start from a snapshot of the head gives no new series a reference that another
// series had.
//
// A snapshot has the series that were in the head at the shutdown, and Prometheus continues behind the highest of their
// references. A series with a higher one may have left the head before, while the write-ahead log and the mapped
// chunks still have its records. A new series with its reference would get its out-of-order chunks at the next
// start, and a replay without the snapshot would find each of the two by the labels of the other. The head therefore
// continues behind the reference in series_state.json, which Prometheus maintains with EnableFastStartup.
//
// Prometheus would also lower the last reference to the one in the file. So the file must be from the last
// program that opened the directory, which may have been a Prometheus without that feature: each start begins a
// segment of the log, so the last segment is then not the one in the file. In this case, and if there is no file,
// the directory is read once for the reference.
//
// After a kill the file is up to a second old, and the last segment may have later references. Prometheus would read
// that segment, too, but would ignore the file if the segment ends in an incomplete record, as after a crash. So it
// is read here, up to the damage.
//
// Without the feature nothing maintains the file, so it is removed: a later start must not use an old one.
//
// This can go once a snapshot has the last reference, or Prometheus reads the highest one from the whole log.
// TestStore_SeriesStateIsReadByPrometheus fails if the file changes.
func (s *Store) keepReferences() error {
	logs := filepath.Join(s.opts.Dir, "wal")
	path := filepath.Join(logs, seriesStateFile)
	if !s.snapshots {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	if err := errors.Join(removeIrregular(path), removeIrregular(path+".tmp")); err != nil {
		return err
	}
	segments, err := segmentsOf(logs)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(segments) == 0 {
		return nil // there is no log yet
	}
	if err != nil {
		return err
	}
	lastSegment := segments[len(segments)-1]
	var state seriesState
	if content, err := os.ReadFile(path); err != nil || json.Unmarshal(content, &state) != nil ||
		state.LastSeriesID > lastReferenceMax {
		state = seriesState{LastWALSegment: -1}
	}
	last := state.LastSeriesID
	switch {
	case state.LastWALSegment != lastSegment:
		s.logger.Info("Reading the write-ahead log and the mapped chunks once, to find the last series reference", "dir",
			s.opts.Dir)
		last = max(last, lastReferenceOfLog(logs, segments), lastReferenceOfChunks(s.opts.Dir))
	case state.CleanShutdown:
		return nil
	default:
		last = max(last, lastReferenceOfSegments(wlog.SegmentRange{Dir: logs, First: lastSegment, Last: lastSegment}))
	}
	err = writeSeriesState(path, seriesState{LastSeriesID: last, LastWALSegment: lastSegment, CleanShutdown: true})
	if err != nil && state.LastWALSegment == lastSegment {
		// Prometheus can use the file that is there. It ignores it if the log needs a repair, but a repair fails on a full
		// disk, too.
		s.logger.Warn("Cannot write the last series reference", "err", err)
		return nil
	}
	return err
}

// removeIrregular removes what is not a regular file, such as a FIFO: to open one blocks, and Prometheus opens it
// without a check.
func removeIrregular(path string) error {
	if info, err := os.Lstat(path); err != nil || info.Mode().IsRegular() {
		return nil // if it cannot be read, opening it fails, too
	}
	return os.Remove(path)
}

func writeSeriesState(path string, state seriesState) error {
	content, err := json.Marshal(state)
	if err != nil {
		return err
	}
	return files.WriteFile(files.Disk{}, path, content)
}

// lastReferenceOfLog returns the highest reference of a series record in a log and its last checkpoint; 0 if there
// is none. It reads a damaged segment up to the damage: the replay reports it. The segments behind are read, too:
// they stay if the replay starts behind the damage.
func lastReferenceOfLog(dir string, segments []int) (last uint64) {
	var ranges []wlog.SegmentRange
	for _, index := range segments { // a record is in one segment
		ranges = append(ranges, wlog.SegmentRange{Dir: dir, First: index, Last: index})
	}
	if checkpoint, _, err := wlog.LastCheckpoint(dir); err == nil {
		ranges = append(ranges, wlog.SegmentRange{Dir: checkpoint, First: -1, Last: math.MaxInt32})
	}
	for _, r := range ranges {
		last = max(last, lastReferenceOfSegments(r))
	}
	return last
}

func lastReferenceOfSegments(of wlog.SegmentRange) (last uint64) {
	eachSeries(of, func(one record.RefSeries) { last = max(last, uint64(one.Ref)) })
	return last
}

// lastReferenceOfChunks returns the highest series reference of the mapped chunks of the head; 0 if there are none.
// It reads damaged files up to the damage: Prometheus removes the rest when it opens the database.
func lastReferenceOfChunks(dir string) (last uint64) {
	mapped, err := mappedChunks(dir)
	if mapped == nil || err != nil {
		return 0
	}
	_ = mapped.IterateAllChunks(func(ref chunks.HeadSeriesRef, _ chunks.ChunkDiskMapperRef, _, _ int64, _ uint16,
		_ chunkenc.Encoding, _ bool) error {
		last = max(last, uint64(ref))
		return nil
	})
	_ = mapped.Close() // nothing was written
	return last
}

// mappedChunks opens the mapped chunks of the head of a database; nil if there are none.
func mappedChunks(dir string) (*chunks.ChunkDiskMapper, error) {
	dir = filepath.Join(dir, "chunks_head")
	if _, err := os.Stat(dir); err != nil {
		return nil, nil
	}
	return chunks.NewChunkDiskMapper(nil, dir, chunkenc.NewPool(), chunks.DefaultWriteBufferSize, 0)
}
