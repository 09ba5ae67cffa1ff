package storepb

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ferula-io/ferula/internal/series"
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
	whole := func(b []byte) error { _, _, err := (&Decoder{}).Series(b, nil); return err }
	chunks := func(b []byte) error { _, _, err := (&Decoder{}).Chunks(b, nil); return err }
	delta := func(b []byte) error { _, _, err := (&Decoder{}).DeltaSeries(b, nil); return err }
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
		"series":                 {whole, alone, []protowire.Number{1, 2}, nil},
		"series, after a chunk":  {whole, func(b []byte) []byte { return slices.Concat(within(2), b) }, []protowire.Number{1, 2}, nil},
		"chunks":                 {chunks, alone, []protowire.Number{2}, nil},
		"span":                   {whole, func(b []byte) []byte { return within(2, b) }, []protowire.Number{3, 4, 5, 6, 7, 8}, []protowire.Number{1, 2}},
		"span of chunks":         {chunks, func(b []byte) []byte { return within(2, b) }, []protowire.Number{3, 8}, []protowire.Number{1, 2}},
		"data":                   {whole, func(b []byte) []byte { return within(2, within(3, b)) }, []protowire.Number{2}, []protowire.Number{1, 3}},
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

func TestDecoder_ChunksEqualThoseOfSeries(t *testing.T) {
	body := slices.Concat(within(2, number(1, 5), number(2, 9), within(3, number(1, 2), within(2, []byte("data")))), number(15, 1), within(2, number(1, 10), within(8, within(2, []byte("x"))), within(4), number(2, 11)))
	d := Decoder{Wanted: all}
	_, want, err := d.Series(body, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, rest, err := d.Chunks(body, make([]series.Chunk, 1))
	if err != nil || len(rest) > 0 || fmt.Sprint(got[1:]) != fmt.Sprint(want) {
		t.Errorf("%v %v %v, want %v", got, rest, err, want)
	}
	wanted := []series.Chunk{raw(5, 9, 3, "data"), downsampled(10, 11, series.Part{Aggr: series.Counter, Encoding: 1, Data: []byte("x")})}
	if fmt.Sprint(want) != fmt.Sprint(wanted) {
		t.Errorf("%v, want %v", want, wanted)
	}
	if _, rest, err := d.Chunks(append(body, within(1)...), nil); err != nil || len(rest) != 2 {
		t.Errorf("labels behind chunks: %v %v", rest, err)
	}
	if got, rest, err := d.Chunks(nil, nil); err != nil || rest != nil || got != nil {
		t.Errorf("nothing: %v %v %v", got, rest, err)
	}
}

func TestDecoder_OnlyAFieldsOwnNumbersAreAggregates(t *testing.T) {
	for n := protowire.Number(1); n < 12; n++ {
		_, chunks, err := (&Decoder{Wanted: all}).Series(within(2, within(n, within(2, []byte("x")))), nil)
		if want := n >= fieldRaw && n <= fieldCounter; err != nil || (len(chunks) == 1) != want || want && parts(chunks[0])[0].Aggr != series.Aggr(n-fieldRaw) {
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

func TestSizes_AreThoseOfTheEncodings(t *testing.T) {
	for _, n := range []int{0, 1, 100, 127, 128, 20_000} {
		for _, times := range [][2]int64{{0, 0}, {0, 5}, {-1, 0}, {1 << 40, 1<<40 + 1}} {
			for encoding := chunkenc.Encoding(1); encoding <= EncodingMax; encoding++ {
				data := bytes.Repeat([]byte{7}, n)
				chunks := []series.Chunk{raw(times[0], times[1], encoding, string(data)), downsampled(times[0], times[1], series.Part{Aggr: series.Max, Encoding: 1, Data: []byte("m")})}
				if n > 0 {
					chunks[1] = downsampled(times[0], times[1], series.Part{Aggr: series.Count, Encoding: encoding, Data: data}, series.Part{Aggr: series.Max, Encoding: 1, Data: []byte("m")})
				}
				b := appendChunks([]byte("x"), chunks)
				if len(b)-1 != sizeOf(chunks) {
					t.Errorf("chunks of %d bytes at %d: %d, not %d", n, times, len(b)-1, sizeOf(chunks))
				}
				if got, _, err := (&Decoder{Wanted: all}).Chunks(b[1:], nil); err != nil || fmt.Sprint(got) != fmt.Sprint(chunks) {
					t.Errorf("%v, %v, want %v", got, err, chunks)
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
		reader, at := &Decoder{}, 0
		for _, message := range deltaMessages(t, list, each) {
			_, body, err := DecodeResponse(message)
			if err != nil {
				t.Fatal(err)
			}
			reader.Begin()
			for len(body) > 0 {
				var src, lset []byte
				if src, body, err = NextSeries(body); err != nil {
					t.Fatal(err)
				}
				if lset, _, err = reader.DeltaSeries(src, nil); err != nil {
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
