package fanout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/dedup"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// encodedStore streams encoded series.
type encodedStore struct {
	fakeStore
	labels [][]byte
	chunks []series.Chunk
}

func (s *encodedStore) Series(context.Context, storeapi.SeriesRequest) storeapi.Stream {
	return &encodedStream{s: s, at: -1}
}

type encodedStream struct {
	s  *encodedStore
	at int
}

func (s *encodedStream) Next() bool                        { s.at++; return s.at < len(s.s.labels) }
func (s *encodedStream) Labels() []byte                    { return s.s.labels[s.at] }
func (s *encodedStream) Chunks() []series.Chunk            { return s.s.chunks }
func (s *encodedStream) Err() error                        { return nil }
func (s *encodedStream) Warnings() annotations.Annotations { return nil }
func (s *encodedStream) Close() error                      { return nil }
func (s *encodedStream) BufferedBytes() int64              { return 0 }

// BenchmarkSelect reads 10,000 series in all.
func BenchmarkSelect(b *testing.B) {
	const total = 10_000
	for _, c := range []struct {
		name          string
		stores, times int // each series is in times of the stores
	}{{"1 store", 1, 1}, {"8 stores apart", 8, 1}, {"2 replicas", 2, 2}} {
		b.Run(c.name, func(b *testing.B) {
			var samples []sample
			for i := range 120 {
				samples = append(samples, sample{int64(i) * 15_000, float64(i * i), false})
			}
			chunks := []series.Chunk{encode(b, samples)}
			e := NewEndpoints(EndpointsOptions{Dial: func(a Address) (Client, error) {
				address := a.Name
				s := &encodedStore{chunks: chunks}
				var at int
				_, err := fmt.Sscanf(address, "s%d", &at)
				for i := range total * c.times / c.stores {
					cluster := at
					if c.times > 1 {
						cluster = 0
					}
					s.labels = append(s.labels, labelenc.Append(nil, labels.FromStrings("__name__", "http_requests_total", "cluster", fmt.Sprint(cluster), "instance", fmt.Sprintf("10.0.%03d.%03d:9100", i/250, i%250), "job", "node", "method", "GET")))
				}
				return s, err
			}})
			for i := range c.stores {
				e.opts.Static = append(e.opts.Static, Address{Name: fmt.Sprint("s", i)})
			}
			e.Update(b.Context())
			f := New(e, Options{})
			b.ReportAllocs()
			for b.Loop() {
				q, err := f.Queryable(Request{}).Querier(0, 1<<40)
				if err != nil {
					b.Fatal(err)
				}
				n := 0
				for set := q.Select(b.Context(), true, nil, labels.MustNewMatcher(labels.MatchEqual, "__name__", "http_requests_total")); set.Next(); n++ {
					_ = set.At()
				}
				if n != total {
					b.Fatal(n)
				}
				if err := q.Close(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/total, "ns/series")
		})
	}
}

// BenchmarkAppendFloats reads a series of two replicas, 960 samples each, as arrays and through iterators.
func BenchmarkAppendFloats(b *testing.B) {
	var chunks []series.Chunk
	for replica := range int64(2) {
		for c := range int64(8) {
			var samples []sample
			for i := range int64(120) {
				at := (c*120+i)*15_000 + replica*7000
				samples = append(samples, sample{at, float64(at % 977), false})
			}
			chunks = append(chunks, encode(b, samples))
		}
	}
	slices.SortFunc(chunks, series.CompareChunks)
	for _, function := range []string{"avg_over_time", "rate"} {
		b.Run(function, func(b *testing.B) {
			s := &storedSeries{chunks: chunks, view: &view{minMS: 0, maxMS: 1 << 40, function: function, isCounter: dedup.IsCounter(function), replicas: true}}
			var points []promql.FPoint
			b.ReportAllocs()
			for b.Loop() {
				var err error
				if points, _, err = s.AppendFloats(points[:0], 0, 1<<40); err != nil || len(points) < 900 {
					b.Fatal(len(points), err)
				}
			}
		})
	}
}

// encodedFanout returns a fan-out over stores of number series each. A series has size bytes of chunks.
func encodedFanout(t testing.TB, stores, number, size int) *Fanout {
	t.Helper()
	e := NewEndpoints(EndpointsOptions{Dial: func(a Address) (Client, error) {
		s := &encodedStore{chunks: []series.Chunk{{MaxMS: 1, Encoding: chunkenc.EncXOR, Data: make([]byte, size)}}}
		for i := range number {
			s.labels = append(s.labels, labelenc.Append(nil, labels.FromStrings("__name__", "m", "i", fmt.Sprintf("%06d", i), "store", a.Name)))
		}
		return s, nil
	}})
	for i := range stores {
		e.opts.Static = append(e.opts.Static, Address{Name: fmt.Sprint("s", i)})
	}
	e.Update(t.Context())
	return New(e, Options{})
}

// forwardAll reads all series as another querier does.
func forwardAll(t testing.TB, f *Fanout, want int) {
	t.Helper()
	set := f.Source().Series(t.Context(), storeapi.SeriesRequest{MaxMS: 1 << 40, Matchers: []*labels.Matcher{everything}})
	n := 0
	for ; set.Next(); n++ {
	}
	if err := errors.Join(set.Err(), set.Close()); err != nil || n != want {
		t.Fatalf("%d series, want %d, %v", n, want, err)
	}
}

// BenchmarkSource forwards the series of 8 stores to another querier, 100 of each store.
func BenchmarkSource(b *testing.B) {
	f := encodedFanout(b, 8, 100, 1100)
	b.ReportAllocs()
	for b.Loop() {
		forwardAll(b, f, 800)
	}
}
