package remoteread

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/prompb"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ferula-io/ferula/internal/series"
)

// within is a message field.
func within(number protowire.Number, body ...[]byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), bytes.Join(body, nil))
}

// otherTypes returns a field with each wire type that it must not have.
func otherTypes(number protowire.Number, want protowire.Type) (fields [][]byte) {
	for _, f := range [][]byte{
		protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), 0),
		protowire.AppendFixed64(protowire.AppendTag(nil, number, protowire.Fixed64Type), 0),
		within(number),
		protowire.AppendFixed32(protowire.AppendTag(nil, number, protowire.Fixed32Type), 0),
		protowire.AppendTag(nil, number, protowire.StartGroupType),
	} {
		if protowire.Type(f[0]&7) != want {
			fields = append(fields, f)
		}
	}
	return fields
}

const varint, text = protowire.VarintType, protowire.BytesType

func TestDecode_FieldsOfAnotherTypeAreCorrupt(t *testing.T) {
	decodeRequest := func(b []byte) error { _, err := DecodeRequest(b); return err }
	decodeFrame := func(b []byte) error { _, _, _, err := decodeFrame(b, nil, nil); return err }
	onlyResult := func(b []byte) error { _, err := onlyResult(b); return err }
	series := within(1)
	for name, tt := range map[string]struct {
		decode func([]byte) error
		around func([]byte) []byte
		fields []protowire.Type // by number, from 1
	}{
		"request": {decodeRequest, func(b []byte) []byte { return b }, []protowire.Type{text}},
		"query":   {decodeRequest, func(b []byte) []byte { return within(1, b) }, []protowire.Type{varint, varint, text, text}},
		"matcher": {decodeRequest, func(b []byte) []byte { return within(1, within(3, b)) }, []protowire.Type{varint, text, text}},
		"hints":   {decodeRequest, func(b []byte) []byte { return within(1, within(4, b)) }, []protowire.Type{varint, text, varint, varint, text, varint, varint}},
		"frame":   {decodeFrame, func(b []byte) []byte { return slices.Concat(series, b) }, []protowire.Type{-1, varint}},
		"series":  {decodeFrame, func(b []byte) []byte { return within(1, b) }, []protowire.Type{text, text}},
		"chunk":   {decodeFrame, func(b []byte) []byte { return within(1, within(2, b)) }, []protowire.Type{varint, varint, varint, text}},
		"result":  {onlyResult, func(b []byte) []byte { return b }, []protowire.Type{text}},
	} {
		for i, want := range tt.fields {
			if want == -1 {
				continue
			}
			for _, f := range otherTypes(protowire.Number(i+1), want) {
				if err := tt.decode(tt.around(f)); !errors.Is(err, ErrCorrupt) {
					t.Errorf("%s: field %d of wire type %d: %v", name, i+1, f[0]&7, err)
				}
			}
		}
		// A message that is cut within a field, and a field that is not known.
		if err := tt.decode(tt.around([]byte{15<<3 | byte(text), 1})); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s that is cut short: %v", name, err)
		}
		for _, f := range otherTypes(15, protowire.StartGroupType) {
			if err := tt.decode(tt.around(f)); err != nil {
				t.Errorf("%s with an unknown field of wire type %d: %v", name, f[0]&7, err)
			}
		}
	}
	for _, f := range otherTypes(1, text) {
		if err := decodeFrame(f); !errors.Is(err, ErrCorrupt) {
			t.Errorf("series of wire type %d: %v", f[0]&7, err)
		}
	}
}

func TestDecodeRequest_Limits(t *testing.T) {
	groups := func(n int) []byte { return within(1, within(4, bytes.Repeat(within(5), n))) }
	types := func(n int) []byte { return within(2, make([]byte, n)) }
	for name, tt := range map[string]struct {
		src []byte
		ok  bool
	}{
		"all queries":  {bytes.Repeat(within(1), queriesMax), true},
		"a query more": {bytes.Repeat(within(1), queriesMax+1), false},
		"all groups":   {groups(fieldsMax - 2), true},
		"a group more": {groups(fieldsMax - 1), false},
		"all types":    {types(acceptedMax), true},
		"a type more":  {types(acceptedMax + 1), false},
	} {
		if _, err := DecodeRequest(tt.src); (err == nil) != tt.ok || err != nil && !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDecodeFrame_JoinsLabelsAndKeepsTheIndex(t *testing.T) {
	a, b := within(1, within(1, []byte("a")), within(2, []byte("1"))), within(1, within(1, []byte("b")), within(2, []byte("2")))
	chunk := within(2, []byte{1 << 3, 1, 2 << 3, 9, 3 << 3, encodingMax})
	index, labels, chunks, err := decodeFrame(slices.Concat(within(1, a, chunk, b, chunk), []byte{2 << 3, 5}), []byte("x"), make([]series.Chunk, 1))
	if err != nil || index != 5 || string(labels) != "x"+string(a)+string(b) || len(chunks) != 3 || chunks[2].MinMS != 1 || chunks[2].MaxMS != 9 || chunks[2].Encoding != encodingMax || chunks[2].Data != nil {
		t.Errorf("%d %q %+v %v", index, labels, chunks, err)
	}
}

func TestSizes_AreThoseOfTheEncodings(t *testing.T) {
	for _, timeMS := range []int64{math.MinInt64, -1, 0, 1, 127, 128, floatFromMS - 1, floatFromMS, floatToMS, floatToMS + 1, math.MaxInt64} {
		b := appendFloat([]byte("x"), timeMS, -0.5)
		size := len(b) - 1
		if floatSize(timeMS) != size {
			t.Errorf("a float at %d has %d bytes, not %d", timeMS, size, floatSize(timeMS))
		}
		if between := timeMS >= floatFromMS && timeMS <= floatToMS; between != (size == floatBytes) && timeMS > 0 {
			t.Errorf("a float at %d has %d bytes", timeMS, size)
		}
		number, kind, n := protowire.ConsumeTag(b[1:])
		body, m := protowire.ConsumeBytes(b[1+n:])
		var sample prompb.Sample
		if err := sample.Unmarshal(body); number != 2 || kind != text || m != size-n || err != nil || sample.Timestamp != timeMS || sample.Value != -0.5 {
			t.Errorf("%d: %v %v", timeMS, sample, err)
		}
	}
	for _, size := range []int{0, 1, 127, 128, 1 << 14, 1<<21 - 1} {
		if head := appendHistogramHead([]byte("x"), size); len(head)-1+size != histogramSize(size) || head[1] != 4<<3|2 {
			t.Errorf("histogram of %d bytes: % x, %d", size, head, histogramSize(size))
		}
		if head := appendMessageHead([]byte("x"), uint64(size)); uint64(len(head)-1+size) != messageSize(uint64(size)) || head[1] != 1<<3|2 {
			t.Errorf("message of %d bytes: % x, %d", size, head, messageSize(uint64(size)))
		}
	}
}
