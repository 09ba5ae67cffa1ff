package fanout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"
	"github.com/prometheus/prometheus/util/annotations"
	"go.uber.org/goleak"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sample is a float, or a histogram whose sum is v.
type sample struct {
	t int64
	v float64
	h bool
}

// one is a series of a fake store.
type one struct {
	labels labels.Labels
	chunks []series.Chunk
	aggr   []aggrChunk
}

// aggrChunk is the samples of one aggregate. Those of one time range are adjacent.
type aggrChunk struct {
	Aggr series.Aggr
	series.Chunk
}

// pack returns the downsampled chunks of aggregates.
func pack(aggr []aggrChunk, wanted series.Aggrs) (all []series.Chunk) {
	for len(aggr) > 0 {
		var parts []series.Part
		c := aggr[0].Chunk
		for n := 0; n == 0 || len(aggr) > 0 && aggr[0].MinMS == c.MinMS && aggr[0].MaxMS == c.MaxMS && aggr[0].Aggr > parts[n-1].Aggr; n++ {
			parts, aggr = append(parts, series.Part{Aggr: aggr[0].Aggr, Encoding: aggr[0].Encoding, Data: aggr[0].Data}), aggr[1:]
		}
		c.Encoding, c.Data = series.Aggregated, series.AppendAggregated(nil, wanted.Of(parts))
		all = append(all, c)
	}
	return all
}

// fakeStore is a store in memory. Next overwrites the labels and chunks of the series before.
type fakeStore struct {
	storeapi.NoServices
	info   storeapi.Info
	series []one // sorted by labels
	strips bool  // honours WithoutReplicaLabels

	infoErr error
	err     error // of the stream, after its series
	warning string
	stall   bool  // the stream stalls after its series
	buffers int64 // reported by streams
	openErr error // of lists
	// onOpen and onNext are called in Series and Next, if set. left is the number of series to come.
	onOpen    func(ctx context.Context)
	onNext    func(ctx context.Context, r storeapi.SeriesRequest, left int)
	names     []string
	exemplars []exemplar.QueryResult

	mu       sync.Mutex
	requests []storeapi.SeriesRequest
	open     int
	closed   bool
}

var anyTime = storeapi.TimeRange{MinMS: math.MinInt64, MaxMS: math.MaxInt64}

func (f *fakeStore) Info(context.Context) (storeapi.Info, error) {
	info := f.info
	if info.Store == nil {
		info.Store = &storeapi.StoreInfo{TimeRange: anyTime, WithoutReplicaLabels: f.strips}
	}
	return info, f.infoErr
}

func (f *fakeStore) Close() error { f.closed = true; return nil }

func (f *fakeStore) LabelNames(context.Context, storeapi.LabelsRequest) (names, warnings []string, err error) {
	return f.names, nil, f.openErr
}

func (f *fakeStore) LabelValues(context.Context, storeapi.LabelsRequest) (values, warnings []string, err error) {
	return f.names, nil, f.openErr
}

func (f *fakeStore) Exemplars(context.Context, storeapi.ExemplarsRequest) ([]exemplar.QueryResult, []string, error) {
	return f.exemplars, nil, f.openErr
}

func (f *fakeStore) Series(ctx context.Context, r storeapi.SeriesRequest) storeapi.Stream {
	if f.onOpen != nil {
		f.onOpen(ctx)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = append(f.requests, r)
	f.open++
	s := &fakeStream{f: f, ctx: ctx, r: r}
	for _, have := range f.series {
		if slices.ContainsFunc(r.Matchers, func(m *labels.Matcher) bool { return !m.Matches(have.labels.Get(m.Name)) }) {
			continue
		}
		if f.strips {
			have.labels = labels.NewBuilder(have.labels).Del(r.WithoutReplicaLabels...).Labels()
		}
		if r.SkipChunks {
			have.chunks, have.aggr = nil, nil
		}
		s.series = append(s.series, have)
	}
	if f.strips && len(r.WithoutReplicaLabels) > 0 {
		slices.SortStableFunc(s.series, func(a, b one) int { return labels.Compare(a.labels, b.labels) })
	}
	return s
}

type fakeStream struct {
	f      *fakeStore
	ctx    context.Context
	r      storeapi.SeriesRequest
	series []one
	labels []byte
	chunks []series.Chunk
	err    error
	closed bool
}

func (s *fakeStream) Next() bool {
	for i := range s.labels {
		s.labels[i] = 0xDB
	}
	for _, c := range s.chunks {
		clear(c.Data)
	}
	if s.f.onNext != nil {
		s.f.onNext(s.ctx, s.r, len(s.series))
	}
	if s.err = s.ctx.Err(); s.err != nil {
		return false
	}
	if len(s.series) == 0 {
		if s.f.stall {
			<-s.ctx.Done()
			s.err = s.ctx.Err()
			return false
		}
		s.err = s.f.err
		return false
	}
	at := s.series[0]
	s.series = s.series[1:]
	s.labels = labelenc.Append(s.labels[:0], at.labels)
	s.chunks = s.chunks[:0]
	for _, c := range append(pack(at.aggr, series.AggrsOf(s.r.Aggregates)), at.chunks...) {
		c.Data = slices.Clone(c.Data)
		s.chunks = append(s.chunks, c)
	}
	slices.SortStableFunc(s.chunks, func(a, b series.Chunk) int { return cmp.Compare(a.MinMS, b.MinMS) })
	return true
}

func (s *fakeStream) BufferedBytes() int64   { return s.f.buffers }
func (s *fakeStream) Labels() []byte         { return s.labels }
func (s *fakeStream) Chunks() []series.Chunk { return s.chunks }
func (s *fakeStream) Err() error             { return s.err }
func (s *fakeStream) Warnings() annotations.Annotations {
	var all annotations.Annotations
	if s.f.warning != "" {
		all.Add(errors.New(s.f.warning))
	}
	return all
}

func (s *fakeStream) Close() error {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	if !s.closed {
		s.closed = true
		s.f.open--
	}
	return nil
}

// encode makes a chunk of samples that are all of one kind.
func encode(t testing.TB, samples []sample) series.Chunk {
	t.Helper()
	var chunk chunkenc.Chunk = chunkenc.NewXORChunk()
	if samples[0].h {
		chunk = chunkenc.NewFloatHistogramChunk()
	}
	app, err := chunk.Appender()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range samples {
		if !s.h {
			app.Append(0, s.t, s.v)
			continue
		}
		h := tsdbutil.GenerateTestGaugeFloatHistogram(1)
		h.Sum = s.v
		if _, _, _, err := app.AppendFloatHistogram(nil, 0, s.t, h, false); err != nil {
			t.Fatal(err)
		}
	}
	return series.Chunk{MinMS: samples[0].t, MaxMS: samples[len(samples)-1].t, Encoding: chunk.Encoding(), Data: chunk.Bytes()}
}

// newTestFanout returns a Fanout over stores named s0, s1, …
func newTestFanout(t testing.TB, opts Options, stores ...*fakeStore) (*Fanout, *Endpoints) {
	t.Helper()
	eo := EndpointsOptions{}
	for i := range stores {
		eo.Static = append(eo.Static, Address{Name: fmt.Sprint("s", i)})
	}
	eo.Dial = func(a Address) (Client, error) {
		address := a.Name
		var i int
		_, err := fmt.Sscanf(address, "s%d", &i)
		return stores[i], err
	}
	e := NewEndpoints(eo)
	e.Update(context.Background())
	t.Cleanup(func() {
		e.replace(nil)
		for i, f := range stores {
			if f.open != 0 || !f.closed {
				t.Errorf("store %d: %d streams are open, closed: %v", i, f.open, f.closed)
			}
		}
	})
	return New(e, opts), e
}

// read selects all series and reads them.
func read(t testing.TB, q storage.Queryable, minMS, maxMS int64, hints *storage.SelectHints, matchers ...*labels.Matcher) (lines map[string][]sample, order []string, warnings []string, err error) {
	t.Helper()
	querier, err := q.Querier(minMS, maxMS)
	if err != nil {
		t.Fatal(err)
	}
	defer querier.Close()
	if len(matchers) == 0 {
		matchers = []*labels.Matcher{labels.MustNewMatcher(labels.MatchRegexp, "__name__", ".*")}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	set := querier.Select(ctx, true, hints, matchers...)
	lines = map[string][]sample{}
	var it chunkenc.Iterator
	for set.Next() {
		s := set.At()
		name := s.Labels().String()
		order = append(order, name)
		if _, twice := lines[name]; twice {
			t.Errorf("%s twice", name)
		}
		lines[name] = nil
		it = s.Iterator(it)
		for vt := it.Next(); vt != chunkenc.ValNone; vt = it.Next() {
			if vt == chunkenc.ValFloat {
				at, v := it.At()
				lines[name] = append(lines[name], sample{at, v, false})
			} else {
				at, h := it.AtFloatHistogram(nil)
				lines[name] = append(lines[name], sample{at, h.Sum, true})
			}
			if it.AtT() != lines[name][len(lines[name])-1].t {
				t.Errorf("%s: AtT %d, At %v", name, it.AtT(), lines[name])
			}
		}
		if e := it.Err(); e != nil && err == nil {
			err = e
		}
	}
	if err == nil {
		err = set.Err()
	}
	for w := range set.Warnings() {
		warnings = append(warnings, w)
	}
	slices.Sort(warnings)
	return lines, order, warnings, err
}

// randomSeries cuts samples into chunks, one kind each, sometimes with gaps, as one
// replica has them.
func randomSeries(t testing.TB, rng *rand.Rand, value func(at int64) (float64, bool), aligned bool) []series.Chunk {
	var chunks []series.Chunk
	var piece []sample
	flush := func() {
		if len(piece) > 0 {
			chunks = append(chunks, encode(t, piece))
		}
		piece = nil
	}
	at := int64(rng.IntN(3)) * 1000
	for range rng.IntN(40) {
		step := int64(1000)
		if !aligned {
			step = 900 + rng.Int64N(200)
		}
		if at += step; rng.IntN(12) == 0 {
			at += 1000 * int64(rng.IntN(8))
		}
		v, h := value(at)
		if len(piece) > 0 && (piece[0].h != h || rng.IntN(7) == 0) {
			flush()
		}
		piece = append(piece, sample{at, v, h})
	}
	flush()
	return chunks
}

func decode(t testing.TB, chunks []series.Chunk, minMS, maxMS int64) []sample {
	t.Helper()
	var all []sample
	for _, c := range chunks {
		chunk, err := chunkenc.FromData(c.Encoding, c.Data)
		if err != nil {
			t.Fatal(err)
		}
		it := chunk.Iterator(nil)
		for vt := it.Next(); vt != chunkenc.ValNone; vt = it.Next() {
			s := sample{t: it.AtT()}
			if vt == chunkenc.ValFloat {
				_, s.v = it.At()
			} else {
				_, h := it.AtFloatHistogram(nil)
				s.v, s.h = h.Sum, true
			}
			if s.t >= minMS && s.t <= maxMS {
				all = append(all, s)
			}
		}
	}
	return all
}
