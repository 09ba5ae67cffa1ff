package sim

import (
	"cmp"
	"context"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/fanout"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// fakeSeries is one series of a fakeStore.
type fakeSeries struct {
	labels labels.Labels
	raw    []series.Chunk
	aggr   []series.Chunk // downsampled
}

// fakeStore is a StoreAPI in memory. As in a real one, each Next overwrites the bytes
// that the stream has returned.
type fakeStore struct {
	storeapi.NoServices
	mintMS, maxtMS int64
	series         []fakeSeries // sorted by labels
}

var _ fanout.Client = (*fakeStore)(nil)

// Info implements fanout.Client.
func (f *fakeStore) Info(context.Context) (storeapi.Info, error) {
	return storeapi.Info{Component: "store", Store: &storeapi.StoreInfo{TimeRange: storeapi.TimeRange{MinMS: f.mintMS, MaxMS: f.maxtMS}}}, nil
}

// Series implements fanout.Client.
func (f *fakeStore) Series(ctx context.Context, r storeapi.SeriesRequest) storeapi.Stream {
	s := &fakeStream{ctx: ctx, request: r}
	for _, one := range f.series {
		if !slices.ContainsFunc(r.Matchers, func(m *labels.Matcher) bool { return !m.Matches(one.labels.Get(m.Name)) }) {
			s.rest = append(s.rest, one)
		}
	}
	return s
}

// LabelNames implements fanout.Client.
func (f *fakeStore) LabelNames(context.Context, storeapi.LabelsRequest) (names, warnings []string, err error) {
	return nil, nil, nil
}

// LabelValues implements fanout.Client.
func (f *fakeStore) LabelValues(context.Context, storeapi.LabelsRequest) (values, warnings []string, err error) {
	return nil, nil, nil
}

// Close implements fanout.Client.
func (f *fakeStore) Close() error { return nil }

// fakeStream is the response of a fakeStore.
type fakeStream struct {
	ctx     context.Context //nolint:containedctx // a stream belongs to one request
	request storeapi.SeriesRequest
	rest    []fakeSeries

	labels []byte
	chunks []series.Chunk
}

// Next implements series.Set.
func (s *fakeStream) Next() bool {
	clear(s.labels)
	for _, c := range s.chunks {
		clear(c.Data)
	}
	if s.ctx.Err() != nil || len(s.rest) == 0 {
		return false
	}
	one := s.rest[0]
	s.rest = s.rest[1:]
	s.labels = labelenc.Append(s.labels[:0], one.labels)
	s.chunks = nil
	inRange := func(c series.Chunk) bool { return c.MinMS <= s.request.MaxMS && c.MaxMS >= s.request.MinMS }
	for _, c := range one.raw {
		if inRange(c) {
			c.Data = slices.Clone(c.Data)
			s.chunks = append(s.chunks, c)
		}
	}
	for _, c := range one.aggr {
		if inRange(c) && s.request.MaxResolutionMS >= windowMS {
			parts, _ := c.AppendParts(nil)
			c.Data = series.AppendAggregated(nil, series.AggrsOf(s.request.Aggregates).Of(parts))
			s.chunks = append(s.chunks, c)
		}
	}
	slices.SortStableFunc(s.chunks, func(a, b series.Chunk) int { return cmp.Compare(a.MinMS, b.MinMS) })
	return true
}

// Labels implements series.Set.
func (s *fakeStream) Labels() []byte { return s.labels }

// Chunks implements series.Set.
func (s *fakeStream) Chunks() []series.Chunk { return s.chunks }

// Err implements series.Set.
func (s *fakeStream) Err() error { return s.ctx.Err() }

// Warnings implements series.Set.
func (s *fakeStream) Warnings() annotations.Annotations { return nil }

// BufferedBytes implements storeapi.Stream.
func (s *fakeStream) BufferedBytes() int64 { return 0 }

// Close implements storeapi.Stream.
func (s *fakeStream) Close() error { return nil }

// sourceClient makes a querier's StoreAPI a client of a further querier.
type sourceClient struct{ *fanout.Source }

// Close implements fanout.Client.
func (sourceClient) Close() error { return nil }
