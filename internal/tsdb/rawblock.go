package tsdb

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/index"
	"github.com/prometheus/prometheus/tsdb/tombstones"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/blocks"
	"github.com/ferula-io/ferula/internal/series"
)

// rawBlock reads one block through a mapping of its own. It holds no reader of the database:
// compaction, retention and the head's garbage collection would wait for that reader until
// the slowest client has read its response.
type rawBlock struct {
	mappings   *mappings
	dir        string
	gone       func() bool // the block is no longer served
	files      *mapped
	deletions  map[storage.SeriesRef]tombstones.Intervals // at the time of opening
	mint, maxt int64
}

func (s *Store) openRawBlock(b *tsdb.Block, mint, maxt int64) (*rawBlock, error) {
	// while this reader is open, the database does not delete the block: its files can be mapped
	r, err := s.mappings.open(b.Dir(), b.Tombstones, mint, maxt)
	if err != nil {
		return nil, err
	}
	r.gone = func() bool {
		db := s.db.Load()
		return db == nil || !slices.Contains(db.Blocks(), b)
	}
	return r, nil
}

// open opens the block in dir.
func (p *mappings) open(dir string, read func() (tombstones.Reader, error), mint, maxt int64) (_ *rawBlock, err error) {
	r := &rawBlock{mappings: p, dir: dir, mint: mint, maxt: maxt}
	deletions, err := read()
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
	if r.files, err = p.acquire(dir); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *rawBlock) close() error {
	return r.mappings.release(r.dir, r.files, r.gone == nil || r.gone())
}

func (r *rawBlock) selectSeries(ctx context.Context, opts series.SelectOptions, matchers []*labels.Matcher) series.Set {
	p, err := tsdb.PostingsForMatchers(ctx, r.files.postings, matchers...)
	if err != nil {
		return series.Failed(fmt.Errorf("block %s: %w", filepath.Base(r.dir), err))
	}
	set := &rawSet{block: r, postings: r.files.postings.SortedPostings(p), opts: opts}
	set.sums.open(set)
	return set
}

// rawSet iterates over the series of a block. Entries are decoded from the mapped index;
// chunks are slices of the mapped segments.
type rawSet struct {
	block    *rawBlock
	postings index.Postings
	opts     series.SelectOptions

	entryParts
	chunks []series.Chunk
	cuts
	sums seriesSummaries
	err  error
}

func (s *rawSet) Next() bool {
	if s.err != nil {
		return false
	}
	for s.postings.Next() {
		ok, err := s.read(uint64(s.postings.At()))
		if err != nil {
			s.err = fmt.Errorf("block %s: series %d: %w", filepath.Base(s.block.dir), s.postings.At(), err)
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
	deleted := b.deletions[storage.SeriesRef(ref)]
	s.metas = undeleted(s.metas, deleted, func(c blocks.Chunk) (minMS, maxMS int64) { return c.MinMS, c.MaxMS })
	if len(s.metas) == 0 {
		return false, nil
	}
	s.begin(deleted, b.mint, b.maxt, s.metas[0].MinMS < b.mint && !s.opts.Uncut,
		s.metas[len(s.metas)-1].MaxMS > b.maxt && !s.opts.Uncut)
	s.chunks = s.chunks[:0]
	if s.opts.LabelsOnly {
		return true, nil
	}
	s.sums.Begin(ref, len(deleted) > 0) // one with deleted samples has no summaries
	s.sums.data = s.sums.data[:0]
	s.sums.touch(b.files.segments, s.metas)
	for i := 0; i < len(s.metas); i++ {
		if i += s.sums.AddMany(s.metas[i:], s.skipped+i); i == len(s.metas) || s.sums.Add(s.metas[i], s.skipped+i) {
			continue
		}
		if err := s.chunk(s.metas[i]); err != nil {
			return false, fmt.Errorf("chunk %d: %w", s.metas[i].Ref, err)
		}
	}
	s.sums.Flush()
	if o := s.opts.Summaries; o != nil && o.HasEdges() {
		err = o.Edges(s.chunks, func(i int) (series.Chunk, error) { return s.sums.Read(s.metas[i]) })
	}
	return err == nil, err
}

// chunk appends one chunk of the current series, as stored unless samples are deleted.
func (s *rawSet) chunk(meta blocks.Chunk) error {
	encoding, data, err := s.block.files.segments.chunk(meta.Ref)
	if err != nil {
		return err
	}
	if !chunkenc.IsValidEncoding(chunkenc.Encoding(encoding)) {
		return fmt.Errorf("%w: unknown encoding %d", ErrCorrupt, encoding)
	}
	c := chunkOf(meta, encoding, data)
	if s.overlap(c) {
		var ok bool
		if c, ok, err = s.cut(c); err != nil || !ok {
			return err
		}
	}
	s.chunks = append(s.chunks, c)
	return nil
}

func chunkOf(meta blocks.Chunk, encoding byte, data []byte) series.Chunk {
	return series.Chunk{MinMS: meta.MinMS, MaxMS: meta.MaxMS, Encoding: chunkenc.Encoding(encoding), Mapped: true,
		Data: data}
}

func (s *rawSet) Labels() []byte                  { return s.labels }
func (s *rawSet) Chunks() []series.Chunk          { return s.chunks }
func (s *rawSet) Err() error                      { return s.err }
func (*rawSet) Warnings() annotations.Annotations { return nil }
