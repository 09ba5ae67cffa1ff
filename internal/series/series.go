// Package series is the raw seam: series that stay encoded on their way from
// where they rest to a wire.
//
// A Source opens a Querier over a range; Select gives a Set, a stream of label
// sets (package labelenc) with their chunks as stored, in label order. What Next
// brings is borrowed until the next call of Next. Merge joins sets that are each
// in order, WithExternal adds a server's own labels and keeps the order, and
// adapters lead from Prometheus' storage interfaces to this one and back. No
// sample is decoded here except by who asks for it through FromSet.
package series

import (
	"context"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"
)

// Chunk is one encoded chunk of a series.
type Chunk struct {
	MinMS, MaxMS int64 // of its samples, inclusive
	Encoding     chunkenc.Encoding
	Data         []byte
}

// Set is a stream of series in the order of their labels, each label set once.
type Set interface {
	// Next moves to the next series; false at the end or after a failure.
	Next() bool
	// Labels is the encoded label set, borrowed until Next.
	Labels() []byte
	// Chunks are those of the series in the order of their start, borrowed until
	// Next, data included. It may be empty.
	Chunks() []Chunk
	// Err is what ended the stream, nil if it is complete.
	Err() error
	// Warnings may be asked for at the end.
	Warnings() annotations.Annotations
}

// Querier selects series of the range that it was opened for. Several sets may be
// open, used by one goroutine; none is valid after Close.
type Querier interface {
	// Select gives the series that match every matcher, chunks cut to the range of
	// the querier.
	Select(ctx context.Context, matchers ...*labels.Matcher) Set
	// LabelNames lists the names in use, sorted.
	LabelNames(ctx context.Context) ([]string, error)
	Close() error
}

// Fixed is a Querier that knows whether all its selections give the same: none of
// what it reads is still written to.
type Fixed interface{ Fixed() bool }

// Source is a storage that knows the raw seam: the optional upgrade of a
// storage.ChunkQueryable. mint and maxt are inclusive, in ms.
type Source interface {
	RawQuerier(ctx context.Context, mint, maxt int64) (Querier, error)
}

// Open opens a raw querier on any storage: its own if it is a Source, else one
// that encodes what its chunk querier gives.
func Open(ctx context.Context, from storage.ChunkQueryable, mint, maxt int64) (Querier, error) {
	if source, ok := from.(Source); ok {
		return source.RawQuerier(ctx, mint, maxt)
	}
	q, err := from.ChunkQuerier(mint, maxt)
	if err != nil {
		return nil, err
	}
	return FromChunkQuerier(q), nil
}

// Failed is a set of nothing that ended with err, which may be nil.
func Failed(err error) Set { return failed{err} }

type failed struct{ err error }

func (failed) Next() bool                        { return false }
func (failed) Labels() []byte                    { return nil }
func (failed) Chunks() []Chunk                   { return nil }
func (f failed) Err() error                      { return f.err }
func (failed) Warnings() annotations.Annotations { return nil }
