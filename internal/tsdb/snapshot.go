package tsdb

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"path/filepath"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/tsdb/record"
	"github.com/prometheus/prometheus/tsdb/wlog"
)

// snapshotSeries is the first byte of the record of a series in a snapshot of the head. Its reference follows in
// eight bytes. Prometheus has no exported decoder of these records. snapshotLacks can go once a start from a snapshot
// knows the second reference of a series. TestSnapshot_RecordsOfSeriesHaveTheirReference fails if the format changes.
const snapshotSeries = 1

// dropIncompleteSnapshot deletes the snapshots of the head if snapshotLacks references. The whole write-ahead log is
// then replayed.
func (s *Store) dropIncompleteSnapshot() error {
	if !s.snapshots {
		return nil
	}
	lacks, err := snapshotLacks(s.opts.Dir)
	if err != nil || lacks == 0 {
		return err
	}
	s.logger.Info("Replaying the whole write-ahead log: the snapshot of the head lacks references of out-of-order samples",
		"references", lacks)
	if err := tsdb.DeleteChunkSnapshots(s.opts.Dir, math.MaxInt, math.MaxInt); err != nil {
		return fmt.Errorf("delete the snapshots of the head in %s: %w", s.opts.Dir, err)
	}
	return nil
}

// needsSnapshot reports whether a start without the feature must use the last snapshot of the head once more:
// because the write-ahead log has samples of references whose series it no longer has.
//
// A server that starts from a snapshot does not read which references in the log before it belong to one series. Its
// next checkpoint keeps the samples of such a reference, but not the record of the series. After the next
// checkpoints they are gone, too, because a block has the samples; then needsSnapshot deletes the snapshots, which
// would otherwise be used by a later start with the feature.
func (s *Store) needsSnapshot() bool {
	if _, _, _, err := tsdb.LastChunkSnapshot(s.opts.Dir); err != nil {
		return false
	}
	ranges := logRanges(filepath.Join(s.opts.Dir, "wal"))
	samples, whole := map[chunks.HeadSeriesRef]struct{}{}, true
	for _, r := range ranges {
		all, ok := referencesOf(r)
		maps.Copy(samples, all)
		whole = whole && ok
	}
	for _, r := range ranges {
		eachSeries(r, func(one record.RefSeries) { delete(samples, one.Ref) })
	}
	if len(samples) > 0 {
		s.logger.Warn("Using and writing the snapshot of the head, as with --enable-feature=memory-snapshot-on-shutdown: "+
			"the write-ahead log lacks series that only the snapshot has", "references", len(samples))
		return true
	}
	if whole {
		if err := tsdb.DeleteChunkSnapshots(s.opts.Dir, math.MaxInt, math.MaxInt); err != nil {
			s.logger.Warn("Cannot delete the unused snapshots of the head", "err", err)
		}
	}
	return false
}

// snapshotLacks returns for how many references the log of out-of-order samples in dir, the directory of a database,
// has samples that no series will have after a start from the last snapshot of the head; 0 if there is no snapshot.
//
// A series that leaves the head and returns gets a second reference. A replay of the whole write-ahead log, as after
// a kill, finds both: it takes the first, and knows that samples of the second belong to it. A snapshot has the
// first only, and Prometheus ignores the samples of the second in the log of out-of-order samples.
func snapshotLacks(dir string) (references int, err error) {
	snapshot, segment, _, err := tsdb.LastChunkSnapshot(dir)
	if errors.Is(err, record.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("snapshots of the head in %s: %w", dir, err)
	}
	unknown, _ := referencesOf(wlog.SegmentRange{Dir: filepath.Join(dir, wlog.WblDirName), First: -1, Last: math.MaxInt32})
	if len(unknown) == 0 {
		return 0, nil
	}
	eachRecord(wlog.SegmentRange{Dir: snapshot, First: -1, Last: math.MaxInt32}, func(_ *record.Decoder, r []byte) {
		if len(r) >= 9 && r[0] == snapshotSeries {
			delete(unknown, chunks.HeadSeriesRef(binary.BigEndian.Uint64(r[1:])))
		}
	})
	eachSeries(wlog.SegmentRange{Dir: filepath.Join(dir, "wal"), First: segment, Last: math.MaxInt32},
		func(one record.RefSeries) { delete(unknown, one.Ref) })
	return len(unknown), nil
}

// referencesOf returns the series references of samples in a log. whole is false if the log is damaged, or cannot be
// read.
func referencesOf(of wlog.SegmentRange) (_ map[chunks.HeadSeriesRef]struct{}, whole bool) {
	all := map[chunks.HeadSeriesRef]struct{}{}
	var samples []record.RefSample
	var markers []record.RefMmapMarker
	var histograms []record.RefHistogramSample
	var floats []record.RefFloatHistogramSample
	whole = eachRecord(of, func(d *record.Decoder, r []byte) {
		// A record that cannot be decoded has no references here. The replay reports it.
		switch d.Type(r) {
		case record.Samples, record.SamplesV2:
			samples, _ = d.Samples(r, samples[:0])
			for _, one := range samples {
				all[one.Ref] = struct{}{}
			}
		case record.MmapMarkers:
			markers, _ = d.MmapMarkers(r, markers[:0])
			for _, one := range markers {
				all[one.Ref] = struct{}{}
			}
		case record.HistogramSamples, record.CustomBucketsHistogramSamples, record.HistogramSamplesV2:
			histograms, _ = d.HistogramSamples(r, histograms[:0])
			for _, one := range histograms {
				all[one.Ref] = struct{}{}
			}
		case record.FloatHistogramSamples, record.CustomBucketsFloatHistogramSamples, record.FloatHistogramSamplesV2:
			floats, _ = d.FloatHistogramSamples(r, floats[:0])
			for _, one := range floats {
				all[one.Ref] = struct{}{}
			}
		}
	})
	return all, whole
}

// eachRecord calls f for the records of a log, up to the first damage, which the replay reports. whole is true if
// there is none.
func eachRecord(of wlog.SegmentRange, f func(*record.Decoder, []byte)) (whole bool) {
	files, err := wlog.NewSegmentsRangeReader(of)
	if err != nil {
		return false
	}
	defer func() { _ = files.Close() }() // only read
	decoder := record.NewDecoder(labels.NewSymbolTable(), slog.New(slog.DiscardHandler))
	r := wlog.NewReader(files)
	for r.Next() {
		f(&decoder, r.Record())
	}
	return r.Err() == nil
}

// eachSeries calls f for the series of a log, up to the first damage.
func eachSeries(of wlog.SegmentRange, f func(record.RefSeries)) {
	var series []record.RefSeries
	eachRecord(of, func(d *record.Decoder, r []byte) {
		if d.Type(r) != record.Series {
			return
		}
		series, _ = d.Series(r, series[:0]) // the replay reports the error
		for _, one := range series {
			f(one)
		}
	})
}

// logRanges returns the last checkpoint of a log, if there is one, and the segments behind it.
func logRanges(log string) (ranges []wlog.SegmentRange) {
	first := -1
	if checkpoint, last, err := wlog.LastCheckpoint(log); err == nil {
		ranges = append(ranges, wlog.SegmentRange{Dir: checkpoint, First: -1, Last: math.MaxInt32})
		first = last + 1
	}
	return append(ranges, wlog.SegmentRange{Dir: log, First: first, Last: math.MaxInt32})
}
