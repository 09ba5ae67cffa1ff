package storepb

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/internal/series"
	pb "github.com/ferula-io/ferula/internal/thanos/storepb/thanospb"
)

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
	one := func(chunk ...[]byte) []byte {
		body := bytes.Join(chunk, nil)
		return append([]byte{2<<3 | wireBytes, byte(len(body))}, body...)
	}
	d := Decoder{Wanted: all}
	_, got, err := d.Series(one(sum, count), nil)
	if err != nil || len(got) != 1 || len(parts(got[0])) != 2 || parts(got[0])[0].Aggr != series.Count {
		t.Errorf("%v %v", err, got)
	}
	if _, got, err = d.Series(one(count, sum, count), nil); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a count twice: %v %v", err, got)
	}
}

func TestDecoder_OnlyWantedAggregatesRemain(t *testing.T) {
	chunk := downsampled(1, 2, series.Part{Aggr: series.Count, Encoding: 1, Data: []byte("n")}, series.Part{Aggr: series.Max, Encoding: 2, Data: []byte("m")})
	src := appendChunks(nil, []series.Chunk{chunk, raw(3, 4, 1, "x")})
	for wanted, want := range map[series.Aggrs][]series.Chunk{
		0: {raw(3, 4, 1, "x")}, all: {chunk, raw(3, 4, 1, "x")},
		series.AggrsOf([]series.Aggr{series.Max, series.Sum}): {downsampled(1, 2, series.Part{Aggr: series.Max, Encoding: 2, Data: []byte("m")}), raw(3, 4, 1, "x")},
	} {
		d := Decoder{Wanted: wanted}
		if got, _, err := d.Chunks(src, nil); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%b: %v %v, want %v", wanted, got, err, want)
		}
	}
}
