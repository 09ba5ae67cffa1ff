// Package bucketstore serves the blocks of a bucket as a StoreAPI. It translates requests for package
// thanos/gateway, and splits downsampled chunks into their aggregates.
package bucketstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/blocks/pages"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/gateway"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// Source implements storeapi.Source and storeapi.SeriesSource.
type Source struct {
	store *gateway.Store
	ready func() bool
}

var (
	_ storeapi.Source       = (*Source)(nil)
	_ storeapi.SeriesSource = (*Source)(nil)
)

// New returns the source of a store. Its Info fails until ready returns true.
func New(store *gateway.Store, ready func() bool) *Source { return &Source{store, ready} }

// Info implements storeapi.Source.
func (s *Source) Info(context.Context) (storeapi.Info, error) {
	if !s.ready() {
		return storeapi.Info{}, fmt.Errorf("%w: the blocks are not listed yet", storeapi.ErrUnavailable)
	}
	sets, spans := s.store.Spans()
	info := storeapi.Info{LabelSets: sets, Component: "store", Store: &storeapi.StoreInfo{Sharding: true,
		WithoutReplicaLabels: true}}
	info.Store.MinMS, info.Store.MaxMS = s.store.Range()
	for _, span := range spans {
		info.Store.TSDBs = append(info.Store.TSDBs, storeapi.TSDBInfo{Labels: span.Labels,
			TimeRange: storeapi.TimeRange{MinMS: span.MinMS, MaxMS: span.MaxMS}})
	}
	return info, nil
}

// ExternalLabels implements storeapi.Source. It returns none: each block has external labels of its own, which
// package thanos/gateway adds.
func (*Source) ExternalLabels() labels.Labels { return labels.EmptyLabels() }

// RawQuerier implements storeapi.Source. It always returns an error, because the server calls Series of a
// storeapi.SeriesSource instead.
func (*Source) RawQuerier(context.Context, int64, int64) (series.Querier, error) {
	return nil, errors.New("series of a bucket are read by whole requests")
}

// Series implements storeapi.SeriesSource.
func (s *Source) Series(ctx context.Context, r storeapi.SeriesRequest) storeapi.Stream {
	wanted := aggregatesOf(r.Aggregates)
	selection, err := s.store.Select(ctx, gateway.Request{
		MinMS: r.MinMS, MaxMS: r.MaxMS, Matchers: r.Matchers, Without: r.WithoutReplicaLabels, LabelsOnly: r.SkipChunks,
		ResolutionMS: r.MaxResolutionMS, Aggregates: wanted, Strict: r.AbortOnPartial,
	})
	if err != nil {
		return failed{series.Failed(toStore(err))}
	}
	return &stream{Selection: selection, wanted: wanted}
}

// failed is a stream without series.
type failed struct{ series.Set }

// Close implements storeapi.Stream.
func (failed) Close() error { return nil }

// kinds has the aggregates of StoreAPI in the order of a downsampled chunk.
var kinds = [...]storeapi.Aggr{storeapi.Count, storeapi.Sum, storeapi.Min, storeapi.Max, storeapi.Counter}

// aggregatesOf converts the aggregates of a request for package thanos/gateway: bit i stands for kinds[i].
func aggregatesOf(list []storeapi.Aggr) (all gateway.Aggregates) {
	for _, a := range list {
		for i, kind := range kinds {
			if a == kind {
				all |= 1 << i
			}
		}
	}
	return all
}

// stream splits the chunks of a selection.
type stream struct {
	*gateway.Selection
	wanted gateway.Aggregates
	raw    []series.Chunk
	aggr   []storeapi.AggrChunk
	parts  []gateway.Aggregate
	err    error
}

// Next implements series.Set.
func (s *stream) Next() bool {
	if s.err != nil || !s.Selection.Next() {
		return false
	}
	chunks := s.Selection.Chunks()
	s.raw, s.aggr = chunks, s.aggr[:0]
	for i := range chunks {
		if chunks[i].Encoding == gateway.Aggregated {
			s.err = s.split(chunks)
			break
		}
	}
	return s.err == nil
}

// split sets s.raw to the raw chunks of a series, and s.aggr to one chunk for each wanted aggregate of a downsampled
// chunk.
func (s *stream) split(chunks []series.Chunk) (err error) {
	var raw []series.Chunk
	for _, c := range chunks {
		if c.Encoding != gateway.Aggregated {
			raw = append(raw, c)
			continue
		}
		if s.parts, err = gateway.AppendAggregates(s.parts[:0], c.Data, s.wanted); err != nil {
			return err
		}
		for _, part := range s.parts {
			one := series.Chunk{MinMS: c.MinMS, MaxMS: c.MaxMS, Encoding: part.Encoding, Data: part.Data}
			s.aggr = append(s.aggr, storeapi.AggrChunk{Aggr: kindOf(part.Kind), Chunk: one})
		}
	}
	s.raw = raw
	return nil
}

func kindOf(a gateway.Aggregates) storeapi.Aggr {
	for i, kind := range kinds {
		if a == 1<<i {
			return kind
		}
	}
	return storeapi.Raw
}

// Chunks implements series.Set.
func (s *stream) Chunks() []series.Chunk { return s.raw }

// AggrChunks returns the aggregates of the downsampled chunks.
func (s *stream) AggrChunks() []storeapi.AggrChunk { return s.aggr }

// Err implements series.Set.
func (s *stream) Err() error {
	if s.err != nil {
		return toStore(s.err)
	}
	return toStore(s.Selection.Err())
}

// LabelNames implements storeapi.Source.
func (s *Source) LabelNames(ctx context.Context, r storeapi.LabelsRequest) (names, warnings []string, err error) {
	names, warned, err := s.store.LabelNames(ctx, request(r))
	return names, texts(warned), toStore(err)
}

// LabelValues implements storeapi.Source.
func (s *Source) LabelValues(ctx context.Context, r storeapi.LabelsRequest) (values, warnings []string, err error) {
	values, warned, err := s.store.LabelValues(ctx, request(r), r.Label)
	return values, texts(warned), toStore(err)
}

func request(r storeapi.LabelsRequest) gateway.Request {
	return gateway.Request{MinMS: r.MinMS, MaxMS: r.MaxMS, Matchers: r.Matchers, Without: r.WithoutReplicaLabels,
		Strict: r.AbortOnPartial}
}

func texts(warnings annotations.Annotations) (all []string) {
	for _, w := range warnings.AsErrors() {
		all = append(all, w.Error())
	}
	return all
}

// toStore maps errors of the store to errors that have a status code.
func toStore(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, gateway.ErrLimit), errors.Is(err, pages.ErrBudget):
		return fmt.Errorf("%w: %w", storeapi.ErrLimit, err)
	case errors.Is(err, gateway.ErrCorrupt):
		return fmt.Errorf("%w: %w", storeapi.ErrCorrupt, err)
	case errors.Is(err, gateway.ErrBlock), errors.Is(err, gateway.ErrClosed):
		return fmt.Errorf("%w: %w", storeapi.ErrUnavailable, err)
	}
	return err
}
