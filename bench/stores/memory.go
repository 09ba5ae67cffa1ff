package stores

import (
	"context"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/bench/blocks"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// Series is an encoded series.
type Series struct {
	Labels []byte
	Chunks []series.Chunk
}

// Memory is a store of encoded series, sorted by labels. It returns all of them to every request that its external labels
// match.
type Memory struct {
	storeapi.NoServices
	External labels.Labels
	Times    storeapi.TimeRange
	// Select returns the series of a request; Held is that of a Memory of the same series for all.
	Select func(matchers []*labels.Matcher) series.Set
}

// Held returns all of these series, for every request.
func Held(all []Series) func([]*labels.Matcher) series.Set {
	return func([]*labels.Matcher) series.Set { return &heldSet{rest: all} }
}

// Info implements storeapi.Source.
func (m *Memory) Info(context.Context) (storeapi.Info, error) {
	info := storeapi.Info{
		Component: "sidecar", Store: &storeapi.StoreInfo{TimeRange: m.Times, Sharding: true, WithoutReplicaLabels: true},
	}
	if !m.External.IsEmpty() {
		info.LabelSets = []labels.Labels{m.External}
		info.Store.TSDBs = []storeapi.TSDBInfo{{Labels: m.External, TimeRange: m.Times}}
	}
	return info, nil
}

// ExternalLabels implements storeapi.Source.
func (m *Memory) ExternalLabels() labels.Labels { return m.External }

// LabelNames implements storeapi.Source.
func (*Memory) LabelNames(context.Context, storeapi.LabelsRequest) (names, warnings []string, err error) {
	return nil, nil, nil
}

// LabelValues implements storeapi.Source.
func (*Memory) LabelValues(context.Context, storeapi.LabelsRequest) (values, warnings []string, err error) {
	return nil, nil, nil
}

// Capabilities implements storeapi.Source.
func (*Memory) Capabilities() storeapi.Capabilities { return storeapi.Capabilities{} }

// Series implements storeapi.API.
func (m *Memory) Series(ctx context.Context, r storeapi.SeriesRequest) storeapi.Stream {
	return storeapi.LocalSeries(ctx, m, m.External, r)
}

// RawQuerier implements series.Source.
func (m *Memory) RawQuerier(context.Context, int64, int64) (series.Querier, error) {
	return querier{m}, nil
}

type querier struct{ m *Memory }

func (q querier) Select(_ context.Context, _ series.SelectOptions, matchers ...*labels.Matcher) series.Set {
	return q.m.Select(matchers)
}
func (querier) Capabilities() series.Capabilities { return series.Capabilities{} }
func (querier) LabelNames(context.Context, series.SelectOptions, ...*labels.Matcher) ([]string, error) {
	return nil, nil
}
func (querier) Close() error { return nil }

type heldSet struct {
	rest []Series
	at   Series
}

func (s *heldSet) Next() bool {
	if len(s.rest) == 0 {
		return false
	}
	s.at, s.rest = s.rest[0], s.rest[1:]
	return true
}

func (s *heldSet) Labels() []byte                  { return s.at.Labels }
func (s *heldSet) Chunks() []series.Chunk          { return s.at.Chunks }
func (*heldSet) Err() error                        { return nil }
func (*heldSet) Warnings() annotations.Annotations { return nil }

// chunkSamples is the number of samples of a chunk.
const chunkSamples = 120

// Encode encodes the series of a spec, sorted by labels.
func Encode(spec blocks.Spec) (all []Series, err error) {
	for i := range spec.Series {
		one := Series{Labels: labelenc.Append(nil, spec.Labels(i))}
		if one.Chunks, err = Chunks(spec.Times(i), blocks.SpecSequence(spec, i, spec.Samples)); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b Series) int { return labelenc.Compare(a.Labels, b.Labels) })
	return all, nil
}

// Chunks encodes samples in XOR chunks of 120 samples.
func Chunks(times []int64, values []float64) (chunks []series.Chunk, err error) {
	for from := 0; from < len(times); from += chunkSamples {
		to := min(from+chunkSamples, len(times))
		c := chunkenc.NewXORChunk()
		app, err := c.Appender()
		if err != nil {
			return nil, err
		}
		for j := from; j < to; j++ {
			app.Append(0, times[j], values[j])
		}
		chunks = append(chunks, series.Chunk{MinMS: times[from], MaxMS: times[to-1], Encoding: c.Encoding(), Data: slices.Clone(c.Bytes())})
	}
	return chunks, nil
}
