package storepb

import (
	"bytes"
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	pb "github.com/ferula-io/ferula/internal/thanos/storepb/thanospb"
)

func TestPacked_RoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var span []Chunk
		for aggr := Count; aggr <= Counter; aggr++ {
			if rapid.Bool().Draw(t, "has") {
				span = append(span, Chunk{Aggr: aggr, Encoding: uint8(rapid.IntRange(1, 3).Draw(t, "encoding")), Data: rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "data")})
			}
		}
		packed := AppendPacked([]byte("before"), span)[len("before"):]
		rest := packed
		for _, want := range span {
			var got Chunk
			var err error
			if got, rest, err = NextPacked(rest); err != nil || got.Aggr != want.Aggr || got.Encoding != want.Encoding || !bytes.Equal(got.Data, want.Data) {
				t.Fatalf("%v %v, want %v", err, got, want)
			}
		}
		if len(rest) > 0 {
			t.Fatalf("%d bytes are left", len(rest))
		}
		for cut := 1; cut < len(packed); cut++ {
			for rest := packed[:cut]; len(rest) > 0; {
				var err error
				if _, rest, err = NextPacked(rest); err != nil {
					if !errors.Is(err, ErrCorrupt) {
						t.Fatal(err)
					}
					break
				}
			}
		}
	})
}

// Protobuf allows any order of fields. The aggregates of one message stay together,
// sorted by number.
func TestDecodeChunks_FieldsInAnyOrder(t *testing.T) {
	field := func(c *pb.AggrChunk) []byte {
		raw, err := proto.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	count, sum := field(&pb.AggrChunk{Count: &pb.Chunk{Data: []byte{1}}}), field(&pb.AggrChunk{Sum: &pb.Chunk{Data: []byte{2}}})
	series := func(chunk ...[]byte) []byte {
		body := bytes.Join(chunk, nil)
		return append([]byte{2<<3 | wireBytes, byte(len(body))}, body...)
	}
	_, _, got, err := DecodeSeries(series(sum, count), nil, nil)
	if err != nil || len(got) != 2 || got[0].Aggr != Count || got[1].Aggr != Sum || SpanLen(got) != 2 {
		t.Errorf("%v %v", err, got)
	}
	if _, _, got, err = DecodeSeries(series(count, sum, count), nil, nil); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a count twice: %v %v", err, got)
	}
}
