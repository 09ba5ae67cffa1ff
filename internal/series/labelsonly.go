package series

import (
	"context"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
)

// LabelsReader is an optional interface of a Querier that can select series without
// reading their chunks.
type LabelsReader interface {
	// LabelsOnly returns a querier over the same view whose series have no chunks. A
	// series is selected if one of its chunks overlaps the range, whatever samples the
	// chunk has. Close of this querier closes the original querier.
	LabelsOnly() Querier
}

// LabelNamesMatcher is an optional interface of a Querier that can list the label names of only
// the series that match.
type LabelNamesMatcher interface {
	LabelNamesMatching(ctx context.Context, matchers ...*labels.Matcher) ([]string, error)
}

// LabelsOnly returns a querier whose series have no chunks. If q is a LabelsReader, chunks
// are not read, else they are dropped.
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

// Ahead returns the labels of the next series; nil if they are unknown or the set has no method Ahead.
func (w withoutChunks) Ahead() []byte {
	if next, ok := w.Set.(interface{ Ahead() []byte }); ok {
		return next.Ahead()
	}
	return nil
}

// LabelsOfChunkSeriesSet encodes the labels of a set that is sorted by labels. Its chunks
// are not read.
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

// namesOf lists the label names of the series that match if q is a LabelNamesMatcher, else of all series.
func namesOf(ctx context.Context, q Querier, matchers []*labels.Matcher) ([]string, error) {
	if n, ok := q.(LabelNamesMatcher); ok {
		return n.LabelNamesMatching(ctx, matchers...)
	}
	return q.LabelNames(ctx)
}
