package tsdb

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/tsdb/record"
	"github.com/prometheus/prometheus/tsdb/wlog"
	"github.com/prometheus/prometheus/util/compression"
)

// keepLateChunks keeps the database from losing late samples that arrive after a start.
//
// The head remembers the last mapped chunk that a compaction of late samples has written to a block, and takes chunks
// with lower references for old: they are not read, and the next truncation drops them. If no chunk was written since
// the start, such a compaction can delete all files of chunks, and the next file is 1 again: late samples after it are
// lost. That is so if the log of late samples is empty and files have late chunks, as after a start that follows a
// compaction. Then the first sample of the last late chunk of each series is logged once more. The replay makes a chunk
// of it, which the next compaction writes, together with the chunks that hold the same sample.
//
// The cause is in chunks.ChunkDiskMapper.Truncate. TestLibrary_TakesNewChunksForOldOnes fails when it is gone.
func (s *Store) keepLateChunks() error {
	dir := filepath.Join(s.opts.Dir, wlog.WblDirName)
	if _, err := os.Stat(dir); err != nil {
		return nil // late samples were never accepted
	}
	if sizes, _ := segmentBytes(dir); len(sizes) > 0 {
		return nil
	}
	mapped, err := mappedChunks(s.opts.Dir)
	if mapped == nil || err != nil {
		return nil // there are no chunks, or tsdb.Open returns the error
	}
	defer func() { _ = mapped.Close() }() // nothing is written
	last := map[chunks.HeadSeriesRef]chunks.ChunkDiskMapperRef{}
	_ = mapped.IterateAllChunks(func(series chunks.HeadSeriesRef, chunk chunks.ChunkDiskMapperRef, _, _ int64, _ uint16,
		_ chunkenc.Encoding, late bool) error {
		if late {
			last[series] = chunk
		}
		return nil
	}) // Prometheus removes what is damaged when it opens the database
	if len(last) == 0 {
		return nil
	}
	var floats []record.RefSample
	var histograms []record.RefHistogramSample
	var floatHistograms []record.RefFloatHistogramSample
	for series, ref := range last {
		chunk, err := mapped.Chunk(ref)
		if err != nil {
			continue // damaged
		}
		switch it := chunk.Iterator(nil); it.Next() {
		case chunkenc.ValFloat:
			ms, v := it.At()
			floats = append(floats, record.RefSample{Ref: series, T: ms, V: v})
		case chunkenc.ValHistogram:
			ms, h := it.AtHistogram(nil)
			histograms = append(histograms, record.RefHistogramSample{Ref: series, T: ms, H: h})
		case chunkenc.ValFloatHistogram:
			ms, h := it.AtFloatHistogram(nil)
			floatHistograms = append(floatHistograms, record.RefFloatHistogramSample{Ref: series, T: ms, FH: h})
		}
	}
	var encoder record.Encoder
	records := [][]byte{encoder.Samples(floats, nil)}
	exponential, custom := encoder.HistogramSamples(histograms, nil)
	records = append(records, exponential, encoder.CustomBucketsHistogramSamples(custom, nil))
	exponential, customFloat := encoder.FloatHistogramSamples(floatHistograms, nil)
	records = append(records, exponential, encoder.CustomBucketsFloatHistogramSamples(customFloat, nil))
	// A record without samples has its type alone, or nothing.
	records = slices.DeleteFunc(records, func(r []byte) bool { return len(r) <= 1 })
	log, err := wlog.New(s.logger, nil, dir, compression.None)
	if err != nil {
		return err
	}
	if err := log.Log(records...); err != nil {
		_ = log.Close()
		return err
	}
	return log.Close()
}
