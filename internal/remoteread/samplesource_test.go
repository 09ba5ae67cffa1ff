package remoteread

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/gogo/protobuf/proto"
	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/storage/remote"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/tsdb"
)

// peer returns Prometheus' own remote read handler, with external labels.
func peer(s *tsdb.Store, external labels.Labels) http.Handler {
	return remote.NewReadHandler(slog.New(slog.DiscardHandler), nil, queryables{s}, func() config.Config {
		return config.Config{GlobalConfig: config.GlobalConfig{ExternalLabels: external}}
	}, 0, 10, 2000)
}

// sumOf reads with a client.
func sumOf(t testing.TB, client *Client, mint, maxt int64) summary {
	t.Helper()
	set, done := raw(t, client, mint, maxt, everything)
	got := sum(t, series.ToSeriesSet(set), asIs)
	if !got.sorted {
		t.Errorf("not sorted: %+v", got)
	}
	done()
	return got
}

func TestClient_BothResponseTypesOfBothServersAreEqual(t *testing.T) {
	dir := t.TempDir()
	block(t, dir, 30, startMS, startMS+2*hourMS, 30_000)
	s := open(t, dir)
	fill(t, s, 28, startMS+2*hourMS, startMS+3*hourMS, 30_000)
	for _, external := range []labels.Labels{labels.EmptyLabels(), labels.FromStrings("number", "none"), labels.FromStrings("aa", "1", "zone", "z")} {
		for _, r := range [][2]int64{{startMS, startMS + 9*hourMS}, {startMS + 7, startMS + hourMS}, {startMS + 2*hourMS + 1, startMS + 4*hourMS}, {0, 1}} {
			q, err := s.Querier(r[0], r[1])
			if err != nil {
				t.Fatal(err)
			}
			widen := func(l labels.Labels) labels.Labels {
				b := labels.NewBuilder(l)
				external.Range(func(e labels.Label) {
					if !l.Has(e.Name) {
						b.Set(e.Name, e.Value)
					}
				})
				return b.Labels()
			}
			want := sum(t, q.Select(context.Background(), true, nil, everything), widen)
			// Prometheus omits a value of 0 from samples, which turns -0 into 0.
			plain := sum(t, noMinusZero{q.Select(context.Background(), true, nil, everything)}, widen)
			want.sorted, plain.sorted = true, true
			_ = q.Close()
			for name, address := range map[string]string{
				"ferula":     serve(t, s, Options{FrameBytesMax: 2000, ExternalLabels: func() labels.Labels { return external }}),
				"Prometheus": serveHandler(t, peer(s, external)),
			} {
				for _, samplesOnly := range []bool{false, true} {
					want := want
					if name == "Prometheus" && samplesOnly {
						want = plain
					}
					if got := sumOf(t, NewClient(ClientOptions{URL: address, SamplesOnly: samplesOnly}), r[0], r[1]); got != want {
						t.Errorf("%s, %s, samples only %t, %v: %+v, want %+v", name, external, samplesOnly, r, got, want)
					}
				}
			}
		}
	}
}

// noMinusZero replaces -0 by 0.
type noMinusZero struct{ storage.SeriesSet }

func (n noMinusZero) At() storage.Series {
	at := n.SeriesSet.At()
	return &storage.SeriesEntry{Lset: at.Labels(), SampleIteratorFn: func(chunkenc.Iterator) chunkenc.Iterator { return plusZero{at.Iterator(nil)} }}
}

type plusZero struct{ chunkenc.Iterator }

func (p plusZero) At() (int64, float64) {
	t, v := p.Iterator.At()
	return t, v + 0 // -0 + 0 is 0
}

// sampleResponse is a response of n series with one sample each, in the given order.
func sampleResponse(t testing.TB, order []int) []byte {
	result := &prompb.QueryResult{}
	for _, i := range order {
		result.Timeseries = append(result.Timeseries, &prompb.TimeSeries{
			Labels: []prompb.Label{{Name: "a", Value: fmt.Sprintf("%06d", i)}}, Samples: []prompb.Sample{{Value: float64(i), Timestamp: 1000}},
		})
	}
	return encodeResponse(t, &prompb.ReadResponse{Results: []*prompb.QueryResult{result}})
}

func encodeResponse(t testing.TB, response *prompb.ReadResponse) []byte {
	t.Helper()
	plain, err := proto.Marshal(response)
	if err != nil {
		t.Fatal(err)
	}
	return snappy.Encode(nil, plain)
}

// samplesFrom reads a response of samples through a client's set.
func samplesFrom(from io.Reader, bytesMax int64) *orderedSet {
	return &orderedSet{windowBytes: 1 << 20, holdBytesMax: 1 << 20, open: func() (source, error) {
		return &sampleSource{body: io.NopCloser(nil), from: from, bytesMax: bytesMax, flag: " (--flag)"}, nil
	}}
}

func TestClient_SamplesOfAnyOrderAreSortedWithinALimit(t *testing.T) {
	shuffled := rand.New(rand.NewPCG(1, 2)).Perm(5000)
	for _, tt := range []struct {
		name     string
		order    []int
		bytesMax int64
		want     error
	}{
		{"shuffled", shuffled, 4 << 20, nil},
		{"too long when compressed", shuffled, 10 << 10, ErrLimit},
		{"too long when decompressed", shuffled, 80 << 10, ErrLimit},
		{"too long when decoded", shuffled, 200 << 10, ErrLimit},
		{"one twice", []int{1, 2, 1}, 1 << 20, ErrCorrupt},
	} {
		set, n := samplesFrom(bytes.NewReader(sampleResponse(t, tt.order)), tt.bytesMax), 0
		for ; set.Next(); n++ {
			if want := labelenc.AppendLabel(nil, "a", fmt.Sprintf("%06d", n)); tt.want == nil && !bytes.Equal(set.Labels(), want) {
				t.Fatalf("%s: series %d is %q", tt.name, n, set.Labels())
			}
		}
		if !errors.Is(set.Err(), tt.want) || (tt.want == nil && n != len(tt.order)) {
			t.Errorf("%s: %d series, %v", tt.name, n, set.Err())
		}
		if tt.want == ErrLimit && !strings.Contains(set.Err().Error(), "(--flag)") {
			t.Errorf("%s: %v does not name the flag", tt.name, set.Err())
		}
	}
}

func TestSampleSource_BrokenResponseIsAnError(t *testing.T) {
	good := sampleResponse(t, []int{0, 1, 2})
	plain, err := snappy.Decode(nil, good)
	if err != nil {
		t.Fatal(err)
	}
	messages := func(parts ...[]byte) []byte { return snappy.Encode(nil, bytes.Join(parts, nil)) }
	badHistogram := prompb.FromIntHistogram(1, tsdbutil.GenerateTestHistogram(3))
	badHistogram.PositiveSpans[0].Length = 1 << 30
	one := func(s *prompb.TimeSeries) []byte {
		s.Labels = append(s.Labels, prompb.Label{Name: "a", Value: "b"})
		return encodeResponse(t, &prompb.ReadResponse{Results: []*prompb.QueryResult{{Timeseries: []*prompb.TimeSeries{s}}}})
	}
	for _, tt := range []struct {
		name     string
		response []byte
		want     error
	}{
		{"whole", good, nil},
		{"no result", messages(nil), nil},
		{"nothing", nil, ErrCorrupt},
		{"cut short", good[:len(good)-1], ErrCorrupt},
		{"too long", append(bytes.Clone(good), 0), ErrCorrupt},
		{"two results", messages(plain, plain), ErrCorrupt},
		{"a length beyond the end", messages([]byte{0x0a, 0xff, 0x01, 0x0a}), ErrCorrupt},
		{"a block that lies about its length", append([]byte{0x80, 0x80, 0x80, 0x80, 0x08}, good[1:]...), ErrLimit},
		{"a block of 32 GiB", []byte{0x80, 0x80, 0x80, 0x80, 0x80, 0x01, 0}, ErrCorrupt},
		{"a copy of nothing", []byte{10, 0x01, 0x01}, ErrCorrupt},
		{"time goes back", one(&prompb.TimeSeries{Samples: []prompb.Sample{{Timestamp: 2}, {Timestamp: 1}}}), ErrCorrupt},
		{"labels out of order", one(&prompb.TimeSeries{Labels: []prompb.Label{{Name: "z", Value: "b"}}}), ErrCorrupt},
		{"a histogram without its buckets", one(&prompb.TimeSeries{Histograms: []prompb.Histogram{badHistogram}}), ErrCorrupt},
		{"a label of 5 MiB", one(&prompb.TimeSeries{Labels: []prompb.Label{{Name: "A", Value: strings.Repeat("x", 5<<20)}}}), ErrLimit},
		{"a label of 1 MiB", one(&prompb.TimeSeries{Labels: []prompb.Label{{Name: "A", Value: strings.Repeat("x", 1<<20)}}}), nil},
	} {
		set := samplesFrom(iotest.HalfReader(bytes.NewReader(tt.response)), 4<<20)
		for set.Next() {
		}
		if !errors.Is(set.Err(), tt.want) || (tt.want == nil && set.Err() != nil) {
			t.Errorf("%s: %v, want %v", tt.name, set.Err(), tt.want)
		}
	}
}

// FuzzSamples compares the result with Prometheus' functions for input that both accept.
func FuzzSamples(f *testing.F) {
	for _, response := range [][]byte{sampleResponse(f, []int{2, 0, 1}), encodeResponse(f, &prompb.ReadResponse{Results: []*prompb.QueryResult{{Timeseries: []*prompb.TimeSeries{{
		Labels: []prompb.Label{{Name: "a", Value: "b"}}, Samples: []prompb.Sample{{Timestamp: 1, Value: math.Inf(1)}, {Timestamp: 5}},
		Histograms: []prompb.Histogram{prompb.FromIntHistogram(3, tsdbutil.GenerateTestHistogram(3))},
	}}}}})} {
		plain, err := snappy.Decode(nil, response)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(plain)
	}
	f.Fuzz(func(t *testing.T, plain []byte) {
		set := samplesFrom(bytes.NewReader(snappy.Encode(nil, plain)), 1<<20)
		var names []string
		for set.Next() {
			if labelenc.Validate(set.Labels()) != nil {
				t.Fatal("bad labels")
			}
			names = append(names, labelenc.Text(set.Labels()))
		}
		if err := set.Err(); err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrLimit) && !errors.Is(err, labelenc.ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		var response prompb.ReadResponse
		if proto.Unmarshal(plain, &response) != nil {
			return // the fuzzer may break unknown fields
		}
		n := 0
		for _, result := range response.Results {
			n += len(result.Timeseries)
		}
		if n != len(names) {
			t.Fatalf("%d series, want %d", len(names), n)
		}
	})
}

// The memory of a copy counts against the limit, so it is not larger than the bytes of the chunks.
func TestBufferedSeries_CopyTakesTheBytesOfItsChunks(t *testing.T) {
	a, b := bytes.Repeat([]byte{1}, 1024), bytes.Repeat([]byte{2}, 3072) // together a size that is allocated exactly
	chunks := []series.Chunk{{MaxMS: 1, Data: a}, {MinMS: 2, MaxMS: 3, Data: b}}
	var h bufferedSeries
	h.copy([]byte("labels"), chunks)
	if got := h.bytes() - cap(h.labels) - cap(h.chunks)*chunkHeadBytes; got != len(a)+len(b) {
		t.Errorf("%d bytes, want %d", got, len(a)+len(b))
	}
	if string(h.labels) != "labels" || len(h.chunks) != 2 || !bytes.Equal(h.chunks[0].Data, a) || !bytes.Equal(h.chunks[1].Data, b) || h.chunks[1].MinMS != 2 {
		t.Errorf("%s %+v", h.labels, h.chunks)
	}
}
