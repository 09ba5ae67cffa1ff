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

	"github.com/ferula-io/ferula/internal/codec/labelenc"
)

// ErrCorrupt is what a source reports of chunks or labels that cannot be read.
var ErrCorrupt = errors.New("corrupt series")

// FromChunkQuerier encodes what a chunk querier gives. Close closes it.
func FromChunkQuerier(q storage.ChunkQuerier) Querier { return chunkQuerier{q} }

type chunkQuerier struct{ q storage.ChunkQuerier }

func (c chunkQuerier) Select(ctx context.Context, matchers ...*labels.Matcher) Set {
	return FromChunkSeriesSet(c.q.Select(ctx, true, nil, matchers...))
}

func (c chunkQuerier) LabelNames(ctx context.Context) ([]string, error) {
	names, _, err := c.q.LabelNames(ctx, nil)
	return names, err
}

func (c chunkQuerier) Close() error { return c.q.Close() }

// FromChunkSeriesSet encodes the series of a set that is in label order.
func FromChunkSeriesSet(set storage.ChunkSeriesSet) Set { return &fromChunks{set: set} }

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
		f.chunks = append(f.chunks, Chunk{meta.MinTime, meta.MaxTime, meta.Chunk.Encoding(), meta.Chunk.Bytes()})
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

// ToChunkSeriesSet makes storage objects of a raw set. They are owned by the
// caller, as that interface promises: labels and chunks are copied.
func ToChunkSeriesSet(set Set) storage.ChunkSeriesSet {
	return &toChunks{set: set, builder: labels.NewScratchBuilder(16)}
}

// ToSeriesSet is ToChunkSeriesSet with the samples decoded as they are asked for.
// Overlapping chunks are not untangled: a set that may have them goes through
// storage's own merging of ToChunkSeriesSet.
func ToSeriesSet(set Set) storage.SeriesSet {
	chunks := &toChunks{set: set, builder: labels.NewScratchBuilder(16)}
	return &toSeries{storage.NewSeriesSetFromChunkSeriesSet(chunks), chunks}
}

// toSeries is storage's adapter, which has nil for a series without chunks.
type toSeries struct {
	storage.SeriesSet
	chunks *toChunks
}

func (t *toSeries) At() storage.Series {
	if len(t.chunks.set.Chunks()) > 0 {
		return t.SeriesSet.At()
	}
	lset := t.chunks.current.Labels()
	return &storage.SeriesEntry{Lset: lset, SampleIteratorFn: func(chunkenc.Iterator) chunkenc.Iterator { return chunkenc.NewNopIterator() }}
}

type toChunks struct {
	set     Set
	builder labels.ScratchBuilder
	current storage.ChunkSeries
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
		chunk, err := chunkenc.FromData(c.Encoding, data)
		if err != nil {
			t.err = fmt.Errorf("%w: series %s: %w", ErrCorrupt, lset, err)
			return false
		}
		metas = append(metas, chunks.Meta{MinTime: c.MinMS, MaxTime: c.MaxMS, Chunk: chunk})
	}
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
