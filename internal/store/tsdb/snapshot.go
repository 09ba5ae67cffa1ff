package tsdb

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/tsdb/record"
	"github.com/prometheus/prometheus/tsdb/wlog"
)

// snapshotSeries is the first byte of the record of a series in a snapshot of the head. Its reference follows in eight bytes.
const snapshotSeries = 1

// dropIncompleteSnapshot deletes the snapshots of the head if SnapshotLacks references. The whole write-ahead log is then replayed.
func (s *Store) dropIncompleteSnapshot() error {
	if !s.opts.SnapshotOnShutdown {
		return nil
	}
	lacks, err := SnapshotLacks(s.opts.Dir)
	if err != nil || lacks == 0 {
		return err
	}
	s.logger.Info("The snapshot of the head lacks references of out-of-order samples: the whole write-ahead log is replayed", "references", lacks)
	if err := tsdb.DeleteChunkSnapshots(s.opts.Dir, math.MaxInt, math.MaxInt); err != nil {
		return fmt.Errorf("delete the snapshots of the head in %s: %w", s.opts.Dir, err)
	}
	return nil
}

// SnapshotLacks returns for how many references the log of out-of-order samples in dir, the directory of a database, has samples
// that no series will have after a start from the last snapshot of the head; 0 if there is no snapshot.
//
// A series that leaves the head and returns gets a second reference. A replay of the whole write-ahead log, as after a kill, finds
// both: it takes the first, and knows that samples of the second belong to it. A snapshot has the first only, and Prometheus
// ignores the samples of the second in the log of out-of-order samples.
func SnapshotLacks(dir string) (references int, err error) {
	snapshot, segment, _, err := tsdb.LastChunkSnapshot(dir)
	if errors.Is(err, record.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("snapshots of the head in %s: %w", dir, err)
	}
	unknown := referencesOf(wlog.SegmentRange{Dir: filepath.Join(dir, wlog.WblDirName), First: -1, Last: math.MaxInt32})
	if len(unknown) == 0 {
		return 0, nil
	}
	eachRecord(wlog.SegmentRange{Dir: snapshot, First: -1, Last: math.MaxInt32}, func(_ *record.Decoder, r []byte) {
		if len(r) >= 9 && r[0] == snapshotSeries {
			delete(unknown, chunks.HeadSeriesRef(binary.BigEndian.Uint64(r[1:])))
		}
	})
	eachRecord(wlog.SegmentRange{Dir: filepath.Join(dir, "wal"), First: segment, Last: math.MaxInt32}, func(d *record.Decoder, r []byte) {
		if d.Type(r) == record.Series {
			series, _ := d.Series(r, nil) // the replay reports the error
			for _, one := range series {
				delete(unknown, one.Ref)
			}
		}
	})
	return len(unknown), nil
}

// referencesOf returns the series references in a log of out-of-order samples.
func referencesOf(of wlog.SegmentRange) map[chunks.HeadSeriesRef]struct{} {
	all := map[chunks.HeadSeriesRef]struct{}{}
	var samples []record.RefSample
	var markers []record.RefMmapMarker
	var histograms []record.RefHistogramSample
	var floats []record.RefFloatHistogramSample
	eachRecord(of, func(d *record.Decoder, r []byte) {
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
	return all
}

// eachRecord calls f for the records of a log, up to the first damage, which the replay reports.
func eachRecord(of wlog.SegmentRange, f func(*record.Decoder, []byte)) {
	files, err := wlog.NewSegmentsRangeReader(of)
	if err != nil {
		return
	}
	defer func() { _ = files.Close() }() // only read
	decoder := record.NewDecoder(labels.NewSymbolTable(), slog.New(slog.DiscardHandler))
	for r := wlog.NewReader(files); r.Next(); {
		f(&decoder, r.Record())
	}
}
