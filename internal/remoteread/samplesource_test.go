package remoteread

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/gogo/protobuf/proto"
	"github.com/golang/snappy"
	"github.com/klauspost/compress/s2"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/storage/remote"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"

	"github.com/ferula-io/ferula/internal/remoteread/wire"
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

// sumOf reads through both interfaces of package storage and compares the results.
func sumOf(t testing.TB, client *Client, mint, maxt int64) summary {
	t.Helper()
	q, err := client.Querier(mint, maxt)
	if err != nil {
		t.Fatal(err)
	}
	got := sum(t, q.Select(context.Background(), false, nil, everything), asIs)
	c, err := client.ChunkQuerier(mint, maxt)
	if err != nil {
		t.Fatal(err)
	}
	chunks := sum(t, storage.NewSeriesSetFromChunkSeriesSet(c.Select(context.Background(), false, nil, everything)), asIs)
	if chunks != got || !got.sorted {
		t.Errorf("chunk querier %+v, querier %+v", chunks, got)
	}
	if err := errors.Join(q.Close(), c.Close()); err != nil {
		t.Error(err)
	}
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
func samplesFrom(from io.Reader, holdBytesMax, seriesBytesMax int) *orderedSet {
	return &orderedSet{windowBytes: holdBytesMax, holdBytesMax: holdBytesMax, open: func() (source, error) {
		return &sampleSource{body: io.NopCloser(nil), from: bufio.NewReader(from), seriesBytesMax: seriesBytesMax, holdBytesMax: holdBytesMax}, nil
	}}
}

func TestOrderedSet_SortsSamplesWithinTheWindowOnly(t *testing.T) {
	shuffled := rand.New(rand.NewPCG(1, 2)).Perm(5000)
	nearly := make([]int, 5000)
	for i := range nearly {
		nearly[i] = i ^ 7
	}
	for _, tt := range []struct {
		name  string
		order []int
		hold  int
		want  error
	}{
		{"shuffled, large window", shuffled, 4 << 20, nil},
		{"shuffled, small window", shuffled, 64 << 10, ErrLimit},
		{"nearly in order, small window", nearly, 64 << 10, nil},
		{"one twice", []int{1, 2, 1}, 1 << 20, wire.ErrCorrupt},
	} {
		set, n := samplesFrom(bytes.NewReader(sampleResponse(t, tt.order)), tt.hold, 1<<20), 0
		for ; set.Next(); n++ {
			if want := labelenc.AppendLabel(nil, "a", fmt.Sprintf("%06d", n)); tt.want == nil && !bytes.Equal(set.Labels(), want) {
				t.Fatalf("%s: series %d is %q", tt.name, n, set.Labels())
			}
		}
		if !errors.Is(set.Err(), tt.want) || (tt.want == nil && n != len(tt.order)) {
			t.Errorf("%s: %d series, %v", tt.name, n, set.Err())
		}
		if tt.want == ErrLimit && !strings.Contains(set.Err().Error(), "the limit is") {
			t.Errorf("%s: %v does not name the limit", tt.name, set.Err())
		}
	}
}

func TestChunkBuilder_MergesFloatsAndHistogramsByTime(t *testing.T) {
	one := &prompb.TimeSeries{Labels: []prompb.Label{{Name: "a", Value: "b"}}}
	for i := range int64(500) {
		switch {
		case i%100 < 40:
			one.Samples = append(one.Samples, prompb.Sample{Timestamp: i, Value: float64(i)})
		case i%100 < 70:
			one.Histograms = append(one.Histograms, prompb.FromIntHistogram(i, tsdbutil.GenerateTestHistogram(i)))
		default:
			one.Histograms = append(one.Histograms, prompb.FromFloatHistogram(i, tsdbutil.GenerateTestFloatHistogram(i)))
		}
	}
	one.Histograms = append(one.Histograms[:1], one.Histograms...)
	one.Histograms[0] = prompb.FromIntHistogram(3, tsdbutil.GenerateTestHistogram(1)) // a float has the same timestamp
	response := &prompb.ReadResponse{Results: []*prompb.QueryResult{{Timeseries: []*prompb.TimeSeries{one}}}}
	got := sum(t, series.ToSeriesSet(samplesFrom(bytes.NewReader(encodeResponse(t, response)), 1<<20, 1<<20)), asIs)
	want := sum(t, remote.FromQueryResult(true, response.Results[0]), asIs)
	if got != want || got.samples != 500 {
		t.Errorf("%+v, want %+v", got, want)
	}
	set := samplesFrom(bytes.NewReader(encodeResponse(t, response)), 1<<20, 1<<20)
	last := int64(-1)
	for set.Next() {
		for _, c := range set.Chunks() {
			if c.MinMS <= last || c.MaxMS < c.MinMS {
				t.Errorf("a chunk from %d to %d after %d", c.MinMS, c.MaxMS, last)
			}
			last = c.MaxMS
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
	long := make([]prompb.Sample, 40_000)
	for i := range long {
		long[i] = prompb.Sample{Timestamp: int64(i), Value: rand.Float64()}
	}
	// 6 MiB of an unknown field, and a copy that refers back to its beginning.
	far := []byte{0x81, 0x80, 0x80, 0x03, 0xfc, 0xff, 0xff, 0x5f, 0x00, 0x7a, 0xfc, 0xff, 0xff, 0x02}
	far = append(append(far, make([]byte, 6<<20-5)...), 0x03, 0x00, 0x00, 0x60, 0x00)
	for _, tt := range []struct {
		name     string
		response []byte
		want     error
	}{
		{"whole", good, nil},
		{"no result", messages(nil), nil},
		{"nothing", nil, io.ErrUnexpectedEOF},
		{"cut short", good[:len(good)-1], io.ErrUnexpectedEOF},
		{"too long", append(bytes.Clone(good), 0), wire.ErrCorrupt},
		{"two results", messages(plain, plain), wire.ErrCorrupt},
		{"a length beyond the end", messages([]byte{0x0a, 0xff, 0x01, 0x0a}), wire.ErrCorrupt},
		{"a block that lies about its length", append([]byte{0x80, 0x80, 0x80, 0x80, 0x08}, good[1:]...), io.ErrUnexpectedEOF},
		{"a block of 32 GiB", []byte{0x80, 0x80, 0x80, 0x80, 0x80, 0x01, 0}, wire.ErrCorrupt},
		{"a copy of nothing", []byte{10, 0x01, 0x01}, wire.ErrCorrupt},
		{"a copy from too far back", far, ErrLimit},
		{"time goes back", one(&prompb.TimeSeries{Samples: []prompb.Sample{{Timestamp: 2}, {Timestamp: 1}}}), wire.ErrCorrupt},
		{"labels out of order", one(&prompb.TimeSeries{Labels: []prompb.Label{{Name: "z", Value: "b"}}}), labelenc.ErrCorrupt},
		{"a histogram without its buckets", one(&prompb.TimeSeries{Histograms: []prompb.Histogram{badHistogram}}), wire.ErrCorrupt},
		{"a label of 5 MiB", one(&prompb.TimeSeries{Labels: []prompb.Label{{Name: "A", Value: strings.Repeat("x", 5<<20)}}}), ErrLimit},
		{"a label of 1 MiB", one(&prompb.TimeSeries{Labels: []prompb.Label{{Name: "A", Value: strings.Repeat("x", 1<<20)}}}), nil},
		{"a long series", one(&prompb.TimeSeries{Samples: long}), ErrLimit},
	} {
		set := samplesFrom(iotest.HalfReader(bytes.NewReader(tt.response)), 4<<20, 200_000)
		if tt.name == "a label of 1 MiB" {
			set = samplesFrom(bytes.NewReader(tt.response), 4<<20, 4<<20)
		}
		for set.Next() {
		}
		if !errors.Is(set.Err(), tt.want) || (tt.want == nil && set.Err() != nil) {
			t.Errorf("%s: %v, want %v", tt.name, set.Err(), tt.want)
		}
	}
}

// blockOf decompresses a block in views of the given lengths.
func blockOf(from *bufio.Reader, windowMax int, next func() int) (got []byte, err error) {
	var b blockReader
	if err := b.begin(from, windowMax); err != nil {
		return nil, err
	}
	for b.rest() > 0 {
		n := int(min(b.rest(), uint64(next())))
		view, err := b.view(n)
		if err != nil {
			return got, err
		}
		got = append(got, view...)
		b.skip(n)
	}
	return got, b.finish()
}

func TestBlockReader_LongBlockTakesTwoThirdsOfTheWindow(t *testing.T) {
	const windowMax = 3 << 20
	for size, most := range map[int]int{windowMax: windowMax, windowMax + 1: 2 * windowMax / 3} {
		var b blockReader
		if err := b.begin(bufio.NewReader(bytes.NewReader(snappy.Encode(nil, repeated(1, size)))), windowMax); err != nil {
			t.Fatal(err)
		}
		for b.rest() > 0 {
			if _, err := b.view(1); err != nil {
				t.Fatal(err)
			}
			b.skip(b.end - b.at)
		}
		if got := len(b.window) - 2*viewBytesMax; got != most || b.end < min(size, windowMax/3) {
			t.Errorf("a block of %d bytes: a window of %d bytes with %d in use, want %d", size, got, b.end, most)
		}
	}
}

func TestBlockReader_EqualsTheLibrary(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	// Blocks of other encoders decompress as long as the window holds what they copy.
	for _, size := range []int{100_000, 400_000, 3 << 20} {
		plain := slices.Concat(repeated(1, size/10), repeated(uint64(size), size*8/10), repeated(1, size/10))
		for _, block := range [][]byte{s2.EncodeSnappy(nil, plain), s2.EncodeSnappyBetter(nil, plain), s2.EncodeSnappyBest(nil, plain)} {
			got, err := blockOf(bufio.NewReader(iotest.HalfReader(bytes.NewReader(block))), 3<<20, func() int { return 1 + random.IntN(viewBytesMax) })
			if err != nil || !bytes.Equal(got, plain) {
				t.Errorf("%d bytes: %d, %v", size, len(got), err)
			}
		}
	}
	for _, size := range []int{0, 1, 15, 60, 61, 65_535, 65_536, 65_537, 300_000, 1 << 20} {
		plain := make([]byte, size)
		for i := range plain {
			if plain[i] = byte(random.IntN(4)); random.IntN(3) == 0 && i > 100 {
				plain[i] = plain[i-1-random.IntN(100)]
			}
		}
		if size == 300_000 {
			for i := range plain {
				plain[i] = byte(random.Uint32()) // literals only
			}
		}
		for _, from := range []io.Reader{bytes.NewReader(snappy.Encode(nil, plain)), iotest.OneByteReader(bytes.NewReader(snappy.Encode(nil, plain)))} {
			got, err := blockOf(bufio.NewReader(from), 0, func() int { return 1 + random.IntN(viewBytesMax) })
			if err != nil || !bytes.Equal(got, plain) {
				t.Errorf("%d bytes: %v", size, err)
			}
		}
	}
}

// repeated returns n random bytes, the same for the same seed.
func repeated(seed uint64, n int) []byte {
	random, out := rand.New(rand.NewPCG(seed, seed)), make([]byte, n)
	for i := range out {
		out[i] = byte(random.Uint32())
	}
	return out
}

// reaches returns the largest offset of a block's copies.
func reaches(t *testing.T, block []byte) (longest int) {
	t.Helper()
	_, n := binary.Uvarint(block)
	for src := block[n:]; len(src) > 0; {
		size, length, offset := element(src)
		if size == 0 {
			t.Fatal("the block is cut short")
		}
		if longest = max(longest, offset); offset < 0 {
			size += length
		}
		src = src[size:]
	}
	return longest
}

func TestBlockReader_ReadsCopiesWithLargeOffsets(t *testing.T) {
	// The series are so long that the text in all of their labels is far back.
	var order []*prompb.TimeSeries
	for i := range 6 {
		one := &prompb.TimeSeries{Labels: []prompb.Label{{Name: "a", Value: fmt.Sprint(i)}, {Name: "text", Value: string(bytes.ToValidUTF8(repeated(7, 2000), []byte("?")))}}}
		for at := range int64(40_000) {
			one.Samples = append(one.Samples, prompb.Sample{Timestamp: at * 15_000, Value: math.Float64frombits(0x3ff<<52 | uint64(at*int64(i+1)*0x9e3779b97f4a7)>>12)})
		}
		order = append(order, one)
	}
	response := &prompb.ReadResponse{Results: []*prompb.QueryResult{{Timeseries: order}}}
	plain, err := proto.Marshal(response)
	if err != nil {
		t.Fatal(err)
	}
	want := sum(t, remote.FromQueryResult(true, response.Results[0]), asIs)
	for name, block := range map[string][]byte{"better": s2.EncodeSnappyBetter(nil, plain), "best": s2.EncodeSnappyBest(nil, plain)} {
		far := reaches(t, block)
		if far < 700_000 {
			t.Fatalf("%s: copies reach back %d bytes", name, far)
		}
		for _, from := range []io.Reader{bytes.NewReader(block), iotest.HalfReader(bytes.NewReader(block)), iotest.DataErrReader(bytes.NewReader(block))} {
			if got := sum(t, series.ToSeriesSet(samplesFrom(from, 12<<20, 4<<20)), asIs); got != want {
				t.Errorf("%s: %+v, want %+v", name, got, want)
			}
		}
		set := samplesFrom(bytes.NewReader(block), 256<<10, 4<<20)
		for set.Next() {
		}
		if !errors.Is(set.Err(), ErrLimit) || !strings.Contains(set.Err().Error(), "the window has") {
			t.Errorf("%s with a window of 256 KiB: %v", name, set.Err())
		}
	}
}

func TestSampleSource_MemoryIsBoundedByTheWindow(t *testing.T) {
	response := func(n int) []byte {
		result := &prompb.QueryResult{}
		for i := range n {
			one := &prompb.TimeSeries{Labels: []prompb.Label{{Name: "a", Value: fmt.Sprintf("%06d", i)}}}
			for at := range int64(240) {
				one.Samples = append(one.Samples, prompb.Sample{Timestamp: at * 15_000, Value: float64(i) + float64(at)/7})
			}
			result.Timeseries = append(result.Timeseries, one)
		}
		return encodeResponse(t, &prompb.ReadResponse{Results: []*prompb.QueryResult{result}})
	}
	const hold = 200_000
	peak := func(packed []byte, n int) (bytes int) {
		set := samplesFrom(strings.NewReader(string(packed)), hold, 1<<20)
		seen := 0
		for ; set.Next(); seen++ {
			spare := 0
			for _, h := range set.free {
				spare += h.bytes()
			}
			bytes = max(bytes, set.bytes+spare)
		}
		if set.Err() != nil || seen != n {
			t.Fatal(seen, set.Err())
		}
		return bytes
	}
	if got := peak(response(1000), 1000); got < hold/2 || got > 2*hold {
		t.Errorf("%d bytes are held, %d may", got, hold)
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
		set := samplesFrom(bytes.NewReader(snappy.Encode(nil, plain)), 1<<20, 1<<20)
		var names []string
		for set.Next() {
			if labelenc.Validate(set.Labels()) != nil {
				t.Fatal("bad labels")
			}
			names = append(names, labelsText(set.Labels()))
		}
		if err := set.Err(); err != nil {
			if !errors.Is(err, wire.ErrCorrupt) && !errors.Is(err, ErrLimit) && !errors.Is(err, labelenc.ErrCorrupt) {
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

// FuzzBlock compares the result with the library's for input that both decompress.
func FuzzBlock(f *testing.F) {
	f.Add(snappy.Encode(nil, bytes.Repeat([]byte("ferula "), 40)))
	f.Add([]byte{10, 0x01, 0x01})
	f.Add(s2.EncodeSnappyBetter(nil, slices.Concat(repeated(1, 300), repeated(2, 70_000), repeated(1, 300))))
	f.Fuzz(func(t *testing.T, block []byte) {
		size, err := snappy.DecodedLen(block)
		if err != nil || size > 1<<20 {
			return
		}
		want, wantErr := snappy.Decode(nil, block)
		var b blockReader
		var got []byte
		err = b.begin(bufio.NewReader(bytes.NewReader(block)), 1<<20)
		for err == nil && b.rest() > 0 {
			var view []byte
			if view, err = b.atLeast(1); err == nil {
				got = append(got, view...)
				b.skip(len(view))
			}
		}
		if err == nil {
			err = b.finish()
		}
		if (err == nil) != (wantErr == nil) || (err == nil && !slices.Equal(got, want)) {
			t.Fatalf("%v, want %v", err, wantErr)
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
