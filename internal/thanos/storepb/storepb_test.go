package storepb

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	pb "github.com/ferula-io/ferula/internal/thanos/storepb/thanospb"
)

// one is a series for the encoder.
type one struct {
	labels labels.Labels
	chunks []series.Chunk
}

func (o one) encoded() []byte { return labelenc.Append(nil, o.labels) }

// raw is a chunk of raw samples.
func raw(minMS, maxMS int64, encoding chunkenc.Encoding, data string) series.Chunk {
	return series.Chunk{MinMS: minMS, MaxMS: maxMS, Encoding: encoding, Data: []byte(data)}
}

// downsampled is a chunk of aggregates.
func downsampled(minMS, maxMS int64, parts ...series.Part) series.Chunk {
	return series.Chunk{MinMS: minMS, MaxMS: maxMS, Encoding: series.Aggregated, Data: series.AppendAggregated(nil, parts)}
}

// all are all aggregates.
const all = series.Aggrs(0xff)

// parts returns the samples of a chunk.
func parts(c series.Chunk) []series.Part {
	list, err := c.AppendParts(nil)
	if err != nil {
		panic(err)
	}
	return list
}

func sizeOf(chunks []series.Chunk) (size int) {
	for _, c := range chunks {
		size += FieldSize(ChunkSize(c.MinMS, c.MaxMS, parts(c)))
	}
	return size
}

func appendChunks(dst []byte, chunks []series.Chunk) []byte {
	for _, c := range chunks {
		dst = AppendChunk(dst, ChunkSize(c.MinMS, c.MaxMS, parts(c)), c.MinMS, c.MaxMS, parts(c))
	}
	return dst
}

// appendOne appends a series with the encoder of this package.
func appendOne(dst []byte, o one) []byte {
	size, start, lset := sizeOf(o.chunks), len(dst), o.encoded()
	dst = appendChunks(AppendSeriesHead(dst, lset, size), o.chunks)
	if len(dst)-start != SeriesSize(len(lset), size) {
		panic("size of a series")
	}
	return dst
}

// message returns the same series as a generated message.
func (o one) message() *pb.Series {
	out := &pb.Series{}
	o.labels.Range(func(l labels.Label) { out.Labels = append(out.Labels, &pb.Label{Name: l.Name, Value: l.Value}) })
	for _, one := range o.chunks {
		c := &pb.AggrChunk{MinTime: one.MinMS, MaxTime: one.MaxMS}
		for _, part := range parts(one) {
			data := &pb.Chunk{Type: pb.Chunk_Encoding(part.Encoding - 1), Data: part.Data}
			*[]**pb.Chunk{&c.Raw, &c.Count, &c.Sum, &c.Min, &c.Max, &c.Counter}[part.Aggr] = data
		}
		out.Chunks = append(out.Chunks, c)
	}
	return out
}

func anyOne(t *rapid.T) one {
	b := labels.NewBuilder(labels.EmptyLabels())
	for range rapid.IntRange(0, 5).Draw(t, "labels") {
		b.Set(rapid.SampledFrom([]string{"a", "b", "job", "instance", "__name__"}).Draw(t, "name"), rapid.StringN(0, 200, 300).Draw(t, "value"))
	}
	o := one{labels: b.Labels()}
	for range rapid.IntRange(0, 3).Draw(t, "chunks") {
		minMS, maxMS := rapid.Int64().Draw(t, "min"), rapid.Int64().Draw(t, "max")
		var list []series.Part
		for aggr := series.Raw; aggr <= series.Counter; aggr++ {
			if rapid.Bool().Draw(t, "has") {
				list = append(list, series.Part{Aggr: aggr, Encoding: chunkenc.Encoding(rapid.IntRange(1, 3).Draw(t, "encoding")), Data: rapid.SliceOfN(rapid.Byte(), 1, 300).Draw(t, "data")})
			}
		}
		switch {
		case len(list) == 0:
		case list[0].Aggr == series.Raw:
			o.chunks = append(o.chunks, raw(minMS, maxMS, list[0].Encoding, string(list[0].Data)))
		default:
			o.chunks = append(o.chunks, downsampled(minMS, maxMS, list...))
		}
	}
	return o
}

func TestBatch_ProtobufReadsIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOfN(rapid.Custom(anyOne), 1, 5).Draw(t, "series")
		buf := AppendHead(nil)
		var want pb.SeriesBatch
		for _, o := range list {
			buf = appendOne(buf, o)
			want.Series = append(want.Series, o.message())
		}
		SealBatch(buf)
		var got pb.SeriesResponse
		if err := proto.Unmarshal(buf, &got); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(got.GetBatch(), &want) {
			t.Fatalf("got %v, want %v", &got, &want)
		}
	})
}

func TestDecode_ReadsProtobuf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOfN(rapid.Custom(anyOne), 1, 5).Draw(t, "series")
		var batch pb.SeriesBatch
		for _, o := range list {
			batch.Series = append(batch.Series, o.message())
		}
		raw, err := proto.Marshal(&pb.SeriesResponse{Result: &pb.SeriesResponse_Batch{Batch: &batch}})
		if err != nil {
			t.Fatal(err)
		}
		kind, body, err := DecodeResponse(raw)
		if err != nil || kind != Batch {
			t.Fatal(kind, err)
		}
		for _, want := range list {
			var src []byte
			if src, body, err = NextSeries(body); err != nil || src == nil {
				t.Fatal(src, err)
			}
			lset, chunks, err := (&Decoder{Wanted: all}).Series(src, nil)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(lset, want.encoded()) {
				t.Fatalf("labels %q, want %q", lset, want.encoded())
			}
			if got, want := fmt.Sprint(chunks), fmt.Sprint(want.chunks); got != want {
				t.Fatalf("chunks %s, want %s", got, want)
			}
		}
		if src, _, err := NextSeries(body); src != nil || err != nil {
			t.Fatal("more series than written", err)
		}
	})
}

func TestDecodeResponse_LastFieldWins(t *testing.T) {
	raw, err := proto.Marshal(&pb.SeriesResponse{Result: &pb.SeriesResponse_Warning{Warning: "oh"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := AppendWarning(nil, "oh"); !bytes.Equal(got, raw) {
		t.Errorf("warning %x, want %x", got, raw)
	}
	later := protowire.AppendVarint(protowire.AppendTag(nil, 4711, protowire.VarintType), 5)
	for name, c := range map[string]struct {
		src  []byte
		kind Kind
		body string
	}{
		"nothing":         {nil, None, ""},
		"unknown field":   {later, None, ""},
		"warning":         {raw, Warning, "oh"},
		"hints":           {[]byte{tagHints, 1, 'x'}, None, ""},
		"hints win":       {[]byte{tagWarning, 1, 'w', tagHints, 1, 'x'}, None, ""},
		"a warning wins":  {[]byte{tagHints, 1, 'x', tagWarning, 1, 'w'}, Warning, "w"},
		"unknown, then":   {append(bytes.Clone(later), raw...), Warning, "oh"},
		"last one counts": {append([]byte{tagSeries, 0}, raw...), Warning, "oh"},
	} {
		kind, body, err := DecodeResponse(c.src)
		if err != nil || kind != c.kind || string(body) != c.body && c.kind != None {
			t.Errorf("%s: %d %q %v", name, kind, body, err)
		}
	}
}

func TestDecodeSeries_JoinsSeparateLabels(t *testing.T) {
	a, b := labelenc.AppendLabel(nil, "a", "1"), labelenc.AppendLabel(nil, "b", "2")
	chunk := appendChunks(nil, []series.Chunk{raw(1, 2, 1, "data")})
	src := bytes.Join([][]byte{a, chunk, b}, nil)
	lset, chunks, err := (&Decoder{}).Series(src, nil)
	if err != nil || !bytes.Equal(lset, append(a, b...)) || len(chunks) != 1 {
		t.Fatalf("%q %v %v", lset, chunks, err)
	}
}

func TestDecodeChunks_ChecksTheHash(t *testing.T) {
	data := []byte("chunk data")
	for hash, ok := range map[uint64]bool{0: true, xxhash.Sum64(data): true, 7: false} {
		raw, err := proto.Marshal(&pb.Series{Chunks: []*pb.AggrChunk{{Raw: &pb.Chunk{Data: data, Hash: hash}}}})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := (&Decoder{}).Series(raw, nil); (err == nil) != ok || err != nil && !errors.Is(err, ErrCorrupt) {
			t.Errorf("hash %d: %v", hash, err)
		}
	}
}

func TestDecodeChunks_UnknownEncodingIsAnError(t *testing.T) {
	for _, n := range []pb.Chunk_Encoding{3, 200, math.MaxInt32, -1} {
		raw, err := proto.Marshal(&pb.Series{Chunks: []*pb.AggrChunk{{Raw: &pb.Chunk{Type: n, Data: []byte{1}}}}})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := (&Decoder{}).Series(raw, nil); !errors.Is(err, ErrCorrupt) {
			t.Errorf("encoding %d: %v", n, err)
		}
	}
}

func TestDecodeSeries_CutSeriesIsCorrupt(t *testing.T) {
	buf := appendOne(AppendHead(nil), one{labels.FromStrings("a", "1", "b", "22"), []series.Chunk{raw(1, 2, 1, "data"), downsampled(3, 4, series.Part{Aggr: series.Count, Encoding: 1, Data: []byte("x")}, series.Part{Aggr: series.Sum, Encoding: 1, Data: []byte("y")})}})
	SealBatch(buf)
	_, body, err := DecodeResponse(buf)
	if err != nil {
		t.Fatal(err)
	}
	src, _, err := NextSeries(body)
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n < len(buf); n++ {
		if _, _, err := DecodeResponse(buf[:n]); !errors.Is(err, ErrCorrupt) {
			t.Errorf("response of %d bytes: %v", n, err)
		}
	}
	for n := 1; n < len(body); n++ {
		if _, _, err := NextSeries(body[:n]); !errors.Is(err, ErrCorrupt) {
			t.Errorf("batch of %d bytes: %v", n, err)
		}
	}
	whole := 0
	for n := range src {
		if _, _, err := (&Decoder{}).Series(src[:n], nil); err == nil {
			whole++ // a prefix that ends after a field
		} else if !errors.Is(err, ErrCorrupt) {
			t.Errorf("series of %d bytes: %v", n, err)
		}
	}
	if whole != 4 { // no field, one label, two labels, a chunk
		t.Errorf("%d beginnings are whole", whole)
	}
}

func FuzzDecode(f *testing.F) {
	buf := appendOne(AppendHead(nil), one{labels.FromStrings("a", "1", "b", "22"), []series.Chunk{raw(1, 2, 1, "data"), downsampled(3, 4, series.Part{Aggr: series.Count, Encoding: 1, Data: []byte("x")})}})
	SealBatch(buf)
	f.Add(buf, []byte{})
	f.Add(AppendWarning(nil, "w"), buf[HeadBytes+2:])
	f.Fuzz(func(t *testing.T, src, previous []byte) {
		if labelenc.Validate(previous) != nil {
			previous = nil
		}
		kind, body, err := DecodeResponse(src)
		if err != nil {
			checkSentinel(t, err)
			return
		}
		for kind == Batch && len(body) > 0 {
			var src []byte
			if src, body, err = NextSeries(body); err != nil {
				checkSentinel(t, err)
				return
			}
			lset, chunks, err := (&Decoder{Wanted: all}).Series(src, nil)
			if err != nil {
				checkSentinel(t, err)
				continue
			}
			order, err := labelenc.Follows(previous, lset)
			if valid := labelenc.Validate(lset) == nil; valid != (err == nil) {
				t.Fatalf("%q after %q: %v", lset, previous, err)
			}
			if err != nil {
				continue
			}
			if want := labelenc.Compare(lset, previous); order > 0 && want <= 0 {
				t.Fatalf("%q after %q: %d, want %d", lset, previous, order, want)
			}
			previous = lset
			if n := CountChunks(src); n > len(src) || len(chunks) > 2*n {
				t.Fatalf("%d chunks in %d messages", len(chunks), n)
			}
		}
	})
}

func checkSentinel(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, ErrCorrupt) {
		t.Fatalf("%v is no %v", err, ErrCorrupt)
	}
}
