package series

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// ErrCorrupt is returned if a source's chunks or labels cannot be read.
var ErrCorrupt = errors.New("corrupt series")

// FromChunkQuerier returns a Querier that encodes the series of a chunk querier. Close
// closes q.
func FromChunkQuerier(q storage.ChunkQuerier) Querier { return chunkQuerier{q} }

type chunkQuerier struct{ q storage.ChunkQuerier }

func (c chunkQuerier) Select(ctx context.Context, opts SelectOptions, matchers ...*labels.Matcher) Set {
	return &fromChunks{set: c.q.Select(ctx, true, nil, matchers...), labelsOnly: opts.LabelsOnly}
}

func (c chunkQuerier) LabelNames(ctx context.Context, _ SelectOptions, _ ...*labels.Matcher) ([]string, error) {
	names, _, err := c.q.LabelNames(ctx, nil)
	return names, err
}

func (chunkQuerier) Capabilities() Capabilities { return Capabilities{} }

func (c chunkQuerier) Close() error { return c.q.Close() }

// FromChunkSeriesSet encodes the series of a set that is sorted by labels.
func FromChunkSeriesSet(set storage.ChunkSeriesSet) Set { return &fromChunks{set: set} }

// LabelsOfChunkSeriesSet encodes the labels of a set that is sorted by labels. Its chunks
// are not read.
func LabelsOfChunkSeriesSet(set storage.ChunkSeriesSet) Set {
	return &fromChunks{set: set, labelsOnly: true}
}

type fromChunks struct {
	set        storage.ChunkSeriesSet
	labelsOnly bool
	iter       chunks.Iterator
	labels     []byte
	chunks     []Chunk
	err        error
}

func (f *fromChunks) Next() bool {
	if f.err != nil {
		return false
	}
	if !f.set.Next() {
		f.err = f.set.Err()
		return false
	}
	series := f.set.At()
	f.labels = labelenc.Append(f.labels[:0], series.Labels())
	f.chunks = f.chunks[:0]
	if f.labelsOnly {
		return true
	}
	f.iter = series.Iterator(f.iter)
	for f.iter.Next() {
		meta := f.iter.At()
		if meta.Chunk == nil {
			f.err = fmt.Errorf("%w: series %s has a chunk without data", ErrCorrupt, series.Labels())
			return false
		}
		f.chunks = append(f.chunks, Chunk{MinMS: meta.MinTime, MaxMS: meta.MaxTime, Encoding: meta.Chunk.Encoding(),
			Data: meta.Chunk.Bytes()})
	}
	if err := f.iter.Err(); err != nil {
		f.err = fmt.Errorf("series %s: %w", series.Labels(), err)
		return false
	}
	return true
}

func (f *fromChunks) Labels() []byte                    { return f.labels }
func (f *fromChunks) Chunks() []Chunk                   { return f.chunks }
func (f *fromChunks) Err() error                        { return f.err }
func (f *fromChunks) Warnings() annotations.Annotations { return f.set.Warnings() }

// ToChunkSeriesSet converts a raw set to storage's interface. Labels and chunks are
// copied, because callers of that interface own them.
func ToChunkSeriesSet(set Set) storage.ChunkSeriesSet {
	return &toChunks{set: set, builder: labels.NewScratchBuilder(16)}
}

// ToSeriesSet converts a raw set to series whose samples are decoded while they are
// iterated. Chunks may overlap.
func ToSeriesSet(set Set) storage.SeriesSet {
	chunks := &toChunks{set: set, builder: labels.NewScratchBuilder(16)}
	return &toSeries{storage.NewSeriesSetFromChunkSeriesSet(chunks), chunks}
}

// toSeries is the adapter of package storage, whose At returns nil for a series without chunks and does not
// merge chunks that overlap.
type toSeries struct {
	storage.SeriesSet
	chunks *toChunks
}

func (t *toSeries) At() storage.Series {
	ours := len(t.chunks.metas) == 0
	for i, m := range t.chunks.metas {
		ours = ours || i > 0 && m.MinTime <= t.chunks.metas[i-1].MaxTime
	}
	if !ours {
		return t.SeriesSet.At()
	}
	var all []Chunk
	for _, m := range t.chunks.metas {
		all = append(all, Chunk{MinMS: m.MinTime, MaxMS: m.MaxTime, Encoding: m.Chunk.Encoding(), Data: m.Chunk.Bytes()})
	}
	lset := t.chunks.current.Labels()
	return &storage.SeriesEntry{Lset: lset, SampleIteratorFn: func(chunkenc.Iterator) chunkenc.Iterator {
		if it, err := Iterator(all); len(all) > 0 && err == nil { // Next has decoded their headers
			return it
		}
		return chunkenc.NewNopIterator()
	}}
}

type toChunks struct {
	set     Set
	builder labels.ScratchBuilder
	current storage.ChunkSeries
	metas   []chunks.Meta // of the current series
	err     error
}

func (t *toChunks) Next() bool {
	if t.err != nil || !t.set.Next() {
		return false
	}
	lset, err := labelenc.Labels(t.set.Labels(), &t.builder)
	if err != nil {
		t.err = err
		return false
	}
	metas := make([]chunks.Meta, 0, len(t.set.Chunks()))
	for _, c := range t.set.Chunks() {
		data := append(make([]byte, 0, len(c.Data)), c.Data...)
		c.Data = data
		chunk, err := c.Decoder()
		if err != nil {
			t.err = fmt.Errorf("series %s: %w", lset, err)
			return false
		}
		metas = append(metas, chunks.Meta{MinTime: c.MinMS, MaxTime: c.MaxMS, Chunk: chunk})
	}
	t.metas = metas
	t.current = &storage.ChunkSeriesEntry{Lset: lset, ChunkIteratorFn: func(chunks.Iterator) chunks.Iterator {
		return storage.NewListChunkSeriesIterator(metas...)
	}}
	return true
}

func (t *toChunks) At() storage.ChunkSeries { return t.current }

func (t *toChunks) Err() error {
	if t.err != nil {
		return t.err
	}
	return t.set.Err()
}

func (t *toChunks) Warnings() annotations.Annotations { return t.set.Warnings() }

// NewList returns a set of series that are in memory.
func NewList(all []storage.Series) storage.SeriesSet { return &seriesList{left: all} }

type seriesList struct {
	current storage.Series
	left    []storage.Series
}

func (l *seriesList) Next() bool {
	if len(l.left) == 0 {
		return false
	}
	l.current, l.left = l.left[0], l.left[1:]
	return true
}

func (l *seriesList) At() storage.Series              { return l.current }
func (*seriesList) Err() error                        { return nil }
func (*seriesList) Warnings() annotations.Annotations { return nil }
