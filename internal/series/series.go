// Package series is the raw interface: series that stay encoded between storage and wire.
//
// A Source opens a Querier over a time range. Select returns a Set, a stream of label sets
// (package labelenc) with their chunks as stored, sorted by labels. Labels and chunks are
// borrowed until the next call of Next. SelectOptions state what a selection does not need, Capabilities what a
// querier can do. Merge merges sorted sets.
// SelectWithExternalLabels adds a server's external labels and keeps the set sorted.
// FromChunkQuerier, ToChunkSeriesSet and ToSeriesSet convert from and to Prometheus' storage
// interfaces. No function of this package decodes samples; only the iterators of ToSeriesSet do.
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
	// Mapped means that Data stays valid until the querier is closed.
	Mapped bool
	Kept   bool // it is Summarized, and Summaries.Keeps accepts it
	Data   []byte
}

// Set is a stream of series sorted by labels, each label set once.
type Set interface {
	// Next moves to the next series. It returns false at the end and after a failure.
	Next() bool
	// Labels returns the encoded label set, borrowed until Next.
	Labels() []byte
	// Chunks returns the chunks of the series, sorted by start time. The slice is borrowed until
	// Next, and so is the data of a chunk that is not Mapped. The slice may be empty.
	Chunks() []Chunk
	// Err returns the error that ended the stream, nil if the stream is complete.
	Err() error
	// Warnings may be called after the end of the stream.
	Warnings() annotations.Annotations
}

// Ahead is an optional interface of a Set that has decoded its next series already.
type Ahead interface {
	// Ahead returns the labels of the next series; nil if they are not known yet.
	Ahead() []byte
}

// Decoded is an optional interface of a Set of a storage that has decoded labels.
type Decoded interface {
	// Metric returns the labels of the current series, which stay valid; ok is false if they must be decoded.
	Metric() (_ labels.Labels, ok bool)
}

// Querier selects series within the range that it was opened for. One goroutine may have
// several sets open. Sets are invalid after Close.
type Querier interface {
	// Select returns the series that match all matchers, sorted by labels, with chunks cut to the range of
	// the querier. Of what the options leave open it returns what is cheapest.
	Select(ctx context.Context, opts SelectOptions, matchers ...*labels.Matcher) Set
	// LabelNames lists label names, sorted: at least the names in the series that Select returns for the same options
	// and matchers, at most the names in all series.
	LabelNames(ctx context.Context, opts SelectOptions, matchers ...*labels.Matcher) ([]string, error)
	// Capabilities returns what the querier can do. They do not change.
	Capabilities() Capabilities
	Close() error
}

// SelectOptions state what a selection does not need. A querier that cannot save anything ignores them, except
// External.
type SelectOptions struct {
	// LabelsOnly: chunks are not needed. A series is then selected if one of its chunks overlaps the range, whatever
	// samples the chunk has.
	LabelsOnly bool
	// Uncut: chunks may have samples outside the querier's range, and deleted samples.
	Uncut bool
	// OwnOrder: the series may come in the order of the storage, in which a storage.Querier returns them if sortSeries is
	// false. Prometheus' engine selects in that order, and a sum of floats depends on the order of its series. Such a
	// set must not be merged with other sets.
	OwnOrder bool
	// Summaries: chunks without samples are enough where it says so; nil: they are not. A querier that has no summary
	// of a chunk returns the chunk.
	Summaries *Summaries
	// External are labels that Select adds as SelectWithExternalLabels does. They are set only if the querier
	// has the capability External.
	External labels.Labels
}

// Capabilities state what a Querier can do.
type Capabilities struct {
	// OwnOrder: with SelectOptions.OwnOrder, series come in the order of the storage's storage.Querier.
	OwnOrder bool
	// Concurrent: several goroutines may select and read at the same time, each its own sets.
	Concurrent bool
	// Immutable: repeated selections return the same series.
	Immutable bool
	// Merging: samples of several stores may be merged. If two stores have different samples with the same timestamp,
	// another of them may be chosen than by the storage.Querier of the same storage.
	Merging bool
	// External: some of the storages behind the querier return series with the external labels. Select adds
	// SelectOptions.External to the series of the other storages.
	External bool
}

// Source is an optional interface of a storage.ChunkQueryable that can return encoded series
// without a conversion. mint and maxt are inclusive, in milliseconds.
type Source interface {
	RawQuerier(ctx context.Context, mint, maxt int64) (Querier, error)
}

// Open opens a Querier on any storage: the Querier of the storage if the storage is a Source,
// else a Querier that encodes the series of the storage's chunk querier.
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

// SourceOf opens raw queriers on any storage, as Open does.
type SourceOf struct{ storage.ChunkQueryable }

// RawQuerier implements Source.
func (s SourceOf) RawQuerier(ctx context.Context, mint, maxt int64) (Querier, error) {
	return Open(ctx, s.ChunkQueryable, mint, maxt)
}

// Failed returns an empty set whose Err returns err. err may be nil.
func Failed(err error) Set { return failed{err} }

type failed struct{ err error }

func (failed) Next() bool                        { return false }
func (failed) Labels() []byte                    { return nil }
func (failed) Chunks() []Chunk                   { return nil }
func (f failed) Err() error                      { return f.err }
func (failed) Warnings() annotations.Annotations { return nil }
