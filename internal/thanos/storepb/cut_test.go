package storepb

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/protobuf/encoding/protowire"
)

// within is a message field.
func within(number protowire.Number, body ...[]byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), bytes.Join(body, nil))
}

func number(field protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, field, protowire.VarintType), v)
}

// Each decoder returns an error for a message that is cut short, at every level of nesting.
func TestDecode_EveryMessageMayBeCutShort(t *testing.T) {
	response := func(b []byte) error { _, _, err := DecodeResponse(b); return err }
	batch := func(b []byte) error { _, _, err := NextSeries(b); return err }
	series := func(b []byte) error { _, _, _, err := DecodeSeries(b, nil, nil); return err }
	chunks := func(b []byte) error { _, _, err := DecodeChunks(b, nil); return err }
	delta := func(b []byte) error { _, _, _, err := (&DeltaReader{}).DecodeSeries(b, nil, nil); return err }
	alone := func(b []byte) []byte { return b }
	endless := bytes.Repeat([]byte{0xFF}, 11)
	for name, tt := range map[string]struct {
		decode  func([]byte) error
		around  func([]byte) []byte
		texts   []protowire.Number // fields with a length
		numbers []protowire.Number
	}{
		"response":               {response, alone, []protowire.Number{1, 2, 3, 4, 90491}, nil},
		"batch":                  {batch, alone, []protowire.Number{1}, nil},
		"series":                 {series, alone, []protowire.Number{1, 2}, nil},
		"series, after a chunk":  {series, func(b []byte) []byte { return slices.Concat(within(2), b) }, []protowire.Number{1, 2}, nil},
		"chunks":                 {chunks, alone, []protowire.Number{2}, nil},
		"span":                   {series, func(b []byte) []byte { return within(2, b) }, []protowire.Number{3, 4, 5, 6, 7, 8}, []protowire.Number{1, 2}},
		"span of chunks":         {chunks, func(b []byte) []byte { return within(2, b) }, []protowire.Number{3, 8}, []protowire.Number{1, 2}},
		"data":                   {series, func(b []byte) []byte { return within(2, within(3, b)) }, []protowire.Number{2}, []protowire.Number{1, 3}},
		"series with a delta":    {delta, alone, []protowire.Number{1, 2}, nil},
		"span of a delta series": {delta, func(b []byte) []byte { return within(2, b) }, []protowire.Number{3}, []protowire.Number{1}},
	} {
		bad := map[string][]byte{
			"an endless tag": endless, "field 0": {0, 0}, "the start of a group": {15<<3 | 3}, "the end of a group": {15<<3 | 4},
			"wire type 6": {15<<3 | 6, 0}, "wire type 7": {15<<3 | 7, 0},
			"an unknown number without end": append([]byte{15 << 3}, endless...), "4 bytes of 5": {15<<3 | 5, 1, 2, 3}, "8 bytes of 7": {15<<3 | 1, 1, 2, 3, 4, 5, 6, 7},
			"an unknown text": {15<<3 | 2, 2, 'a'},
		}
		for _, n := range tt.texts {
			head := protowire.AppendTag(nil, n, protowire.BytesType)
			bad[fmt.Sprintf("field %d without length", n)] = head
			bad[fmt.Sprintf("field %d without text", n)] = append(bytes.Clone(head), 2, 'a')
			bad[fmt.Sprintf("field %d of endless length", n)] = append(bytes.Clone(head), endless...)
		}
		for _, n := range tt.numbers {
			head := protowire.AppendTag(nil, n, protowire.VarintType)
			bad[fmt.Sprintf("field %d without number", n)] = head
			bad[fmt.Sprintf("field %d of endless length", n)] = append(bytes.Clone(head), endless...)
		}
		for what, b := range bad {
			if err := tt.decode(tt.around(b)); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s with %s: %v", name, what, err)
			}
		}
		for _, unknown := range [][]byte{number(15, 1<<40), within(15, []byte("text")), {15<<3 | 5, 1, 2, 3, 4}, {15<<3 | 1, 1, 2, 3, 4, 5, 6, 7, 8}} {
			if err := tt.decode(tt.around(unknown)); err != nil {
				t.Errorf("%s with an unknown field % x: %v", name, unknown, err)
			}
		}
	}
}

func TestDecodeChunks_EqualsDecodeSeries(t *testing.T) {
	body := slices.Concat(within(2, number(1, 5), number(2, 9), within(3, number(1, 2), within(2, []byte("data")))), number(15, 1), within(2, number(1, 10), within(8, within(2, []byte("x"))), within(4), number(2, 11)))
	_, _, want, err := DecodeSeries(body, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, apart, err := DecodeChunks(body, make([]Chunk, 1))
	if err != nil || apart || fmt.Sprint(got[1:]) != fmt.Sprint(want) {
		t.Errorf("%v %v %v, want %v", got, apart, err, want)
	}
	wanted := []Chunk{{5, 9, Raw, 3, []byte("data")}, {10, 11, Count, 1, nil}, {10, 11, Counter, 1, []byte("x")}}
	if fmt.Sprint(want) != fmt.Sprint(wanted) {
		t.Errorf("%v, want %v", want, wanted)
	}
	if _, apart, err := DecodeChunks(append(body, within(1)...), nil); err != nil || !apart {
		t.Errorf("labels behind chunks: %v %v", apart, err)
	}
	if got, apart, err := DecodeChunks(nil, nil); err != nil || apart || got != nil {
		t.Errorf("nothing: %v %v %v", got, apart, err)
	}
}

func TestDecodeSpan_OnlyAFieldsOwnNumbersAreAggregates(t *testing.T) {
	for n := protowire.Number(1); n < 12; n++ {
		_, _, chunks, err := DecodeSeries(within(2, within(n)), nil, nil)
		if want := n >= fieldRaw && n <= fieldCounter; err != nil || (len(chunks) == 1) != want || want && chunks[0].Aggr != Aggr(n-fieldRaw) {
			t.Errorf("field %d: %v, %v", n, chunks, err)
		}
	}
}

func TestNextSeries_EmptySeriesIsNotTheEnd(t *testing.T) {
	s, rest, err := NextSeries(within(1))
	if s == nil || len(s) != 0 || len(rest) != 0 || err != nil {
		t.Errorf("%v %v %v", s, rest, err)
	}
	if s, rest, err = NextSeries(number(15, 1)); s != nil || rest != nil || err != nil {
		t.Errorf("without series: %v %v %v", s, rest, err)
	}
	s, rest, err = NextSeries(slices.Concat(number(15, 1), within(1, []byte("a")), within(1, []byte("b"))))
	if string(s) != "a" || !bytes.Equal(rest, within(1, []byte("b"))) || err != nil {
		t.Errorf("%q %q %v", s, rest, err)
	}
}

func TestAggr_HasAName(t *testing.T) {
	var names []string
	for a := Raw; a <= Counter+1; a++ {
		names = append(names, a.String())
	}
	if got := strings.Join(names, ", "); got != "raw, count, sum, min, max, counter, aggregate 6" {
		t.Error(got)
	}
}

func TestSpanLen_JoinsAscendingAggregatesOfOneRange(t *testing.T) {
	c := func(aggr Aggr, minMS, maxMS int64) Chunk {
		return Chunk{MinMS: minMS, MaxMS: maxMS, Aggr: aggr, Encoding: 1}
	}
	for name, tt := range map[string]struct {
		chunks []Chunk
		want   int
	}{
		"one": {[]Chunk{c(Sum, 1, 2)}, 1}, "ascending": {[]Chunk{c(Count, 1, 2), c(Sum, 1, 2), c(Counter, 1, 2)}, 3},
		"equal": {[]Chunk{c(Count, 1, 2), c(Count, 1, 2)}, 1}, "descending": {[]Chunk{c(Sum, 1, 2), c(Count, 1, 2)}, 1},
		"raw": {[]Chunk{c(Raw, 1, 2), c(Count, 1, 2)}, 1}, "another start": {[]Chunk{c(Count, 1, 2), c(Sum, 0, 2)}, 1},
		"another end": {[]Chunk{c(Count, 1, 2), c(Sum, 1, 2), c(Max, 1, 3)}, 2},
	} {
		if got := SpanLen(tt.chunks); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}

func TestSizes_AreThoseOfTheEncodings(t *testing.T) {
	for _, n := range []int{0, 1, 100, 127, 128, 20_000} {
		for _, times := range [][2]int64{{0, 0}, {0, 5}, {-1, 0}, {1 << 40, 1<<40 + 1}} {
			for encoding := uint8(1); encoding <= EncodingMax; encoding++ {
				data := bytes.Repeat([]byte{7}, n)
				b := AppendChunk([]byte("x"), times[0], times[1], encoding, data)
				if len(b)-1 != ChunkSize(times[0], times[1], encoding, n) {
					t.Errorf("chunk of %d bytes at %d: %d, not %d", n, times, len(b)-1, ChunkSize(times[0], times[1], encoding, n))
				}
				got, _, err := DecodeChunks(b[1:], nil)
				want := Chunk{times[0], times[1], Raw, encoding, data}
				if err != nil || len(got) != 1 || fmt.Sprint(got[0]) != fmt.Sprint(want) {
					t.Errorf("%v, %v, want %v", got, err, want)
				}
				span := []Chunk{{times[0], times[1], Count, encoding, data}, {times[0], times[1], Max, 1, nil}}
				if b := AppendSpan([]byte("x"), span); len(b)-1 != SpanSize(span) {
					t.Errorf("span of %d bytes: %d, not %d", n, len(b)-1, SpanSize(span))
				} else if got, _, err := DecodeChunks(b[1:], nil); err != nil || fmt.Sprint(got) != fmt.Sprint(span) {
					t.Errorf("%v, %v, want %v", got, err, span)
				}
				head := AppendSeriesHead([]byte("x"), data, len(b))
				if len(head)-1+len(b) != SeriesSize(n, len(b)) {
					t.Errorf("series of %d bytes: %d, not %d", n, len(head)-1+len(b), SeriesSize(n, len(b)))
				}
			}
		}
	}
	for _, n := range []int{0, 1, 127, 128, 1 << 14, 1<<21 + 3} {
		buf := append(AppendHead(nil), within(1, make([]byte, n))...)
		SealBatch(buf)
		if kind, body, err := DecodeResponse(buf); kind != Batch || len(body) != len(buf)-HeadBytes || err != nil {
			t.Errorf("batch of %d bytes: %d of %d, %v", n, kind, len(body), err)
		}
	}
	if kind, body, err := DecodeResponse(AppendWarning(nil, "slow")); kind != Warning || string(body) != "slow" || err != nil {
		t.Errorf("%d %q %v", kind, body, err)
	}
}

// Sets of different lengths with equal labels at both ends, in messages of a few series.
func TestDeltaBatch_SetsOfAnyLengthRoundTrip(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var list []one
	for i := range 9000 {
		var b labels.ScratchBuilder
		for name := 'a'; name < 'a'+rune(1+random.IntN(9)); name++ {
			if random.IntN(3) > 0 {
				b.Add(string(name), fmt.Sprint(random.IntN(3)))
			}
		}
		if i%3 == 0 {
			for j := range 6 {
				b.Add("n"+fmt.Sprint(j), fmt.Sprint(i))
			}
		}
		if random.IntN(2) > 0 {
			b.Add("z", "last")
		}
		list = append(list, one{labels: b.Labels()})
	}
	for _, each := range []int{1, 4, 50} {
		reader, at := &DeltaReader{}, 0
		for _, message := range deltaMessages(t, list, each) {
			_, body, err := DecodeResponse(message)
			if err != nil {
				t.Fatal(err)
			}
			reader.Begin()
			var arena []byte
			for len(body) > 0 {
				var src, lset []byte
				if src, body, err = NextSeries(body); err != nil {
					t.Fatal(err)
				}
				if lset, arena, _, err = reader.DecodeSeries(src, arena, nil); err != nil {
					t.Fatal(err)
				}
				if want := list[at].encoded(); !bytes.Equal(lset, want) {
					t.Fatalf("series %d, %d in a message: %q, want %q", at, each, lset, want)
				}
				at++
			}
		}
		if at != len(list) {
			t.Errorf("%d series of %d", at, len(list))
		}
	}
}

func TestNextPacked_ReadsPastTheDataOnly(t *testing.T) {
	packed := AppendPacked(nil, []Chunk{{Aggr: Sum, Encoding: 2, Data: []byte("ab")}, {Aggr: Max, Encoding: 1}})
	c, rest, err := NextPacked(packed)
	if err != nil || c.Aggr != Sum || c.Encoding != 2 || string(c.Data) != "ab" || cap(c.Data) < len("ab")+3 || len(rest) != 3 {
		t.Errorf("%+v %d %v", c, len(rest), err)
	}
	for _, b := range [][]byte{packed[:2], packed[:3], packed[:4], append([]byte{1, 1}, binary.AppendUvarint(nil, 1<<63)...), bytes.Repeat([]byte{0xFF}, 20)} {
		if c, rest, err := NextPacked(b); !errors.Is(err, ErrCorrupt) || rest != nil {
			t.Errorf("% x: %+v %v", b, c, err)
		}
	}
}
