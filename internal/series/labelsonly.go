package series

import (
	"context"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
)

// LabelsReader is the optional upgrade of a Querier that can select series without
// reading their chunks.
type LabelsReader interface {
	// LabelsOnly is a querier of the same view whose series have no chunks. A series is
	// selected if a chunk of it overlaps the range, whatever the chunk's samples. Close
	// is that of the querier it came from.
	LabelsOnly() Querier
}

// NamesOf is the optional upgrade of a Querier that can list the names of only those
// series that match.
type NamesOf interface {
	LabelNamesOf(ctx context.Context, matchers ...*labels.Matcher) ([]string, error)
}

// LabelsOnly makes a querier whose series have no chunks. They are not read where q is
// a LabelsReader, else they are dropped.
func LabelsOnly(q Querier) Querier {
	if r, ok := q.(LabelsReader); ok {
		return r.LabelsOnly()
	}
	return labelsOnly{q}
}

type labelsOnly struct{ Querier }

// Select implements Querier.
func (l labelsOnly) Select(ctx context.Context, matchers ...*labels.Matcher) Set {
	return withoutChunks{l.Querier.Select(ctx, matchers...)}
}

// withoutChunks drops the chunks of a set.
type withoutChunks struct{ Set }

func (withoutChunks) Chunks() []Chunk { return nil }

// Ahead is that of the set, if it has it.
func (w withoutChunks) Ahead() []byte {
	if next, ok := w.Set.(interface{ Ahead() []byte }); ok {
		return next.Ahead()
	}
	return nil
}

// LabelsOfChunkSeriesSet encodes the labels of a set that is in label order. Its
// chunks are not read.
func LabelsOfChunkSeriesSet(set storage.ChunkSeriesSet) Set {
	return &fromChunks{set: set, labelsOnly: true}
}

// LabelsOnly implements LabelsReader.
func (c chunkQuerier) LabelsOnly() Querier { return chunkLabels{c} }

type chunkLabels struct{ chunkQuerier }

// Select implements Querier.
func (c chunkLabels) Select(ctx context.Context, matchers ...*labels.Matcher) Set {
	return LabelsOfChunkSeriesSet(c.q.Select(ctx, true, nil, matchers...))
}

// namesOf lists the names of series that match, or of more.
func namesOf(ctx context.Context, q Querier, matchers []*labels.Matcher) ([]string, error) {
	if n, ok := q.(NamesOf); ok {
		return n.LabelNamesOf(ctx, matchers...)
	}
	return q.LabelNames(ctx)
}
