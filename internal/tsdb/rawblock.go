package tsdb

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/tsdb/index"
	"github.com/prometheus/prometheus/tsdb/tombstones"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/series"
)

// rawBlock reads one block through a mapping of its own. It holds no reader of the database:
// compaction, retention and the head's garbage collection would wait for that reader until
// the slowest client has read its response.
type rawBlock struct {
	store      *Store
	block      *tsdb.Block
	files      *mapped
	deletions  map[storage.SeriesRef]tombstones.Intervals // at the time of opening
	mint, maxt int64
}

func (s *Store) openRawBlock(b *tsdb.Block, mint, maxt int64) (_ *rawBlock, err error) {
	r := &rawBlock{store: s, block: b, mint: mint, maxt: maxt}
	// while this reader is open, the database does not delete the block: its files can be mapped
	deletions, err := b.Tombstones()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, deletions.Close()) }()
	if deletions.Total() > 0 {
		r.deletions = make(map[storage.SeriesRef]tombstones.Intervals)
		if err := deletions.Iter(func(ref storage.SeriesRef, intervals tombstones.Intervals) error {
			r.deletions[ref] = intervals // immutable: a deletion replaces the slice
			return nil
		}); err != nil {
			return nil, err
		}
	}
	if r.files, err = s.mappings.acquire(b.Dir()); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *rawBlock) close() error {
	gone := true
	if db := r.store.db.Load(); db != nil {
		for _, b := range db.Blocks() {
			gone = gone && b != r.block
		}
	}
	return r.store.mappings.release(r.block.Dir(), r.files, gone)
}

func (r *rawBlock) selectSeries(ctx context.Context, opts series.SelectOptions, matchers []*labels.Matcher) series.Set {
	p, err := tsdb.PostingsForMatchers(ctx, r.files.postings, matchers...)
	if err != nil {
		return series.Failed(fmt.Errorf("block %s: %w", r.block, err))
	}
	return &rawSet{block: r, postings: r.files.postings.SortedPostings(p), opts: opts}
}

// rawSet iterates over the series of a block. Entries are decoded from the mapped index;
// chunks are slices of the mapped segments.
type rawSet struct {
	block    *rawBlock
	postings index.Postings
	opts     series.SelectOptions

	entryParts
	chunks    []series.Chunk
	intervals tombstones.Intervals // deleted, or out of range
	some      tombstones.Intervals // the intervals that overlap the current chunk
	cutter    *cutter              // created on demand
	arena     []byte               // re-encoded chunks of the current series
	err       error
}

func (s *rawSet) Next() bool {
	if s.err != nil {
		return false
	}
	for s.postings.Next() {
		ok, err := s.read(uint64(s.postings.At()))
		if err != nil {
			s.err = fmt.Errorf("block %s: series %d: %w", s.block.block, s.postings.At(), err)
			return false
		}
		if ok {
			return true
		}
	}
	s.err = s.postings.Err()
	return false
}

// read decodes one series; ok is false if it has no chunks in the range.
func (s *rawSet) read(ref uint64) (ok bool, err error) {
	b := s.block
	if err = b.files.index.series(ref, b.mint, b.maxt, &s.entryParts); err != nil || len(s.metas) == 0 {
		return false, err
	}
	// The intervals are sorted by start. Intervals.Add would keep them sorted, but it panics
	// if the range ends after the first of several deletions.
	s.intervals = s.intervals[:0]
	if s.metas[0].MinTime < b.mint && !s.opts.Uncut {
		s.intervals = append(s.intervals, tombstones.Interval{Mint: math.MinInt64, Maxt: b.mint - 1})
	}
	if deleted := s.block.deletions[storage.SeriesRef(ref)]; len(deleted) > 0 && !s.delete(deleted) {
		return false, nil
	}
	if s.metas[len(s.metas)-1].MaxTime > b.maxt && !s.opts.Uncut {
		s.intervals = append(s.intervals, tombstones.Interval{Mint: b.maxt + 1, Maxt: math.MaxInt64})
	}
	s.chunks, s.arena = s.chunks[:0], s.arena[:0]
	if s.opts.LabelsOnly {
		return true, nil
	}
	for _, meta := range s.metas {
		if err := s.chunk(meta); err != nil {
			return false, fmt.Errorf("chunk %d: %w", meta.Ref, err)
		}
	}
	return true, nil
}

// delete drops the chunks that are deleted completely, and adds the deleted intervals that
// overlap the range to s.intervals. It reports whether chunks remain.
func (s *rawSet) delete(deleted tombstones.Intervals) bool {
	kept := s.metas[:0]
	for _, meta := range s.metas {
		if !(tombstones.Interval{Mint: meta.MinTime, Maxt: meta.MaxTime}).IsSubrange(deleted) {
			kept = append(kept, meta)
		}
	}
	s.metas = kept
	for _, interval := range deleted {
		if interval.Maxt >= s.block.mint && interval.Mint <= s.block.maxt {
			s.intervals = append(s.intervals, interval)
		}
	}
	return len(kept) > 0
}

// chunk appends one chunk of the current series, as stored unless samples are deleted.
func (s *rawSet) chunk(meta chunks.Meta) error {
	encoding, data, err := s.block.files.segments.chunk(meta.Ref)
	if err != nil {
		return err
	}
	if !chunkenc.IsValidEncoding(chunkenc.Encoding(encoding)) {
		return fmt.Errorf("%w: unknown encoding %d", ErrCorrupt, encoding)
	}
	c := series.Chunk{MinMS: meta.MinTime, MaxMS: meta.MaxTime, Encoding: chunkenc.Encoding(encoding), Mapped: true,
		Data: data}
	s.some = s.some[:0]
	for _, interval := range s.intervals {
		if interval.Mint <= c.MaxMS && interval.Maxt >= c.MinMS {
			s.some = append(s.some, interval)
		}
	}
	if len(s.some) > 0 {
		if s.cutter == nil {
			s.cutter = &cutter{}
		}
		var ok bool
		if c, s.arena, ok, err = s.cutter.cut(c, s.some, s.arena); err != nil || !ok {
			return err
		}
		c.Mapped = false
	}
	s.chunks = append(s.chunks, c)
	return nil
}

func (s *rawSet) Labels() []byte                  { return s.labels }
func (s *rawSet) Chunks() []series.Chunk          { return s.chunks }
func (s *rawSet) Err() error                      { return s.err }
func (*rawSet) Warnings() annotations.Annotations { return nil }
