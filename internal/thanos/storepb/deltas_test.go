package storepb

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	pb "github.com/ferula-io/ferula/internal/thanos/storepb/thanospb"
)

// deltaMessages encodes series with deltas, several per message.
func deltaMessages(t interface{ Fatal(...any) }, list []one, each int) (messages [][]byte) {
	var w DeltaWriter
	for len(list) > 0 {
		n := min(each, len(list))
		w.Begin()
		buf := AppendDeltaHead(nil)
		for _, o := range list[:n] {
			size := sizeOf(o.chunks)
			before, lset := len(buf), o.encoded()
			var err error
			most := w.SeriesSizeMax(len(lset), size)
			if buf, err = w.AppendSeries(buf, lset, size); err != nil {
				t.Fatal(err)
			}
			if got := len(buf) - before + size; got > most {
				t.Fatal("more than was made room for", got)
			}
			buf = appendChunks(buf, o.chunks)
		}
		SealDeltaBatch(buf)
		messages, list = append(messages, buf), list[n:]
	}
	return messages
}

func TestDeltaBatch_RoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOfN(rapid.Custom(anyOne), 1, 20).Draw(t, "series")
		reader := Decoder{Wanted: all}
		at := 0
		for _, message := range deltaMessages(t, list, rapid.IntRange(1, 7).Draw(t, "each")) {
			var oracle pb.SeriesResponse
			if err := proto.Unmarshal(message, &oracle); err != nil {
				t.Fatal(err)
			}
			kind, body, err := DecodeResponse(message)
			if err != nil || kind != DeltaBatch {
				t.Fatal(kind, err)
			}
			reader.Begin()
			for range oracle.GetDeltaBatch().Series {
				var src, lset []byte
				var chunks []series.Chunk
				if src, body, err = NextSeries(body); err != nil || src == nil {
					t.Fatal(src, err)
				}
				if lset, chunks, err = reader.DeltaSeries(src, nil); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(lset, list[at].encoded()) {
					t.Fatalf("labels %q, want %q", lset, list[at].encoded())
				}
				if got, want := fmt.Sprint(chunks), fmt.Sprint(list[at].chunks); got != want {
					t.Fatalf("chunks %s, want %s", got, want)
				}
				at++
			}
			if src, _, err := NextSeries(body); src != nil || err != nil {
				t.Fatal("more series than written", err)
			}
		}
		if at != len(list) {
			t.Fatalf("%d series of %d", at, len(list))
		}
	})
}

// deltaOfA is the delta of the set {a="1"} to nothing.
var deltaOfA = []byte("\x01\x01a\x011")

// A message can be read without the messages before it. So the labels of its first series are complete, and those of the
// second series are the difference to the first.
func TestDeltaWriter_DeltasHaveOnlyTheDifferenceWithinAMessage(t *testing.T) {
	list := []one{{labels: labels.FromStrings("a", "1", "b", "same", "c", "1")}, {labels: labels.FromStrings("a", "1", "b", "same", "c", "2")}}
	var sizes []int
	for _, each := range []int{1, 2} {
		for _, message := range deltaMessages(t, list, each) {
			sizes = append(sizes, len(message)-deltaTagBytes-paddedBytes)
			if err := readDeltas(message, &Decoder{}); err != nil {
				t.Error(err)
			}
		}
	}
	if want := []int{22, 22, 30}; !slices.Equal(sizes, want) {
		t.Errorf("messages of %d bytes, want %d", sizes, want)
	}
}

// A delta of a byte repeats the labels of the series before it, however many these are.
func TestDecoder_LabelsOfAMessageAreLimited(t *testing.T) {
	r := &Decoder{}
	r.Begin()
	first := within(1, binary.AppendUvarint([]byte{1, 1, 'a'}, 1<<20), make([]byte, 1<<20))
	r.Arena = make([]byte, 0, labelArenaMax+1<<21)
	lset, _, err := r.DeltaSeries(first, nil)
	if err != nil {
		t.Fatal(err)
	}
	for n := 2; err == nil; n++ {
		if _, _, err = r.DeltaSeries(within(1), nil); err == nil && n*len(lset) > labelArenaMax {
			t.Fatalf("%d series of %d bytes", n, len(lset))
		}
	}
	if !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
}

func TestDecoder_InvalidDeltaIsCorrupt(t *testing.T) {
	for name, batch := range map[string][]*pb.DeltaSeries{
		"after nothing":      {{Delta: []byte{0, 0, 0, 0}}},
		"of an unknown kind": {{Delta: []byte{7}}},
		"cut short":          {{Delta: []byte{1, 1}}},
		"drop of no label":   {{Delta: deltaOfA}, {Delta: []byte{2, 2}}},
	} {
		message, err := proto.Marshal(&pb.SeriesResponse{Result: &pb.SeriesResponse_DeltaBatch{DeltaBatch: &pb.DeltaBatch{Series: batch}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := readDeltas(message, &Decoder{}); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var r Decoder
	twice := slices.Concat(within(1, deltaOfA), within(2), within(1, deltaOfA))
	if _, _, err := r.DeltaSeries(twice, nil); !errors.Is(err, ErrCorrupt) {
		t.Errorf("two deltas: %v", err)
	}
}

// A field of protobuf that is empty may be absent. So a series without a delta has the labels of the series before.
func TestDecoder_AnAbsentDeltaIsEmpty(t *testing.T) {
	var r Decoder
	first, _, err := r.DeltaSeries(within(1, deltaOfA), nil)
	if err != nil {
		t.Fatal(err)
	}
	second, chunks, err := r.DeltaSeries(within(2, within(3)), nil)
	if err != nil || !bytes.Equal(first, second) || len(chunks) != 1 {
		t.Errorf("%q after %q, %d chunks, %v", second, first, len(chunks), err)
	}
}

// readDeltas decodes all series of a message.
func readDeltas(message []byte, reader *Decoder) error {
	kind, body, err := DecodeResponse(message)
	if err != nil || kind != DeltaBatch {
		return err
	}
	reader.Begin()
	for len(body) > 0 {
		var src []byte
		if src, body, err = NextSeries(body); err != nil {
			return err
		}
		if src == nil {
			return nil
		}
		if _, _, err = reader.DeltaSeries(src, nil); err != nil {
			return err
		}
	}
	return nil
}

func FuzzDeltaBatch(f *testing.F) {
	list := []one{{labels.FromStrings("a", "1", "b", "2"), []series.Chunk{raw(1, 2, 1, "x")}}, {labels.FromStrings("a", "1", "b", "3", "c", "4"), nil}, {labels.FromStrings("a", "2", "c", "4"), nil}}
	messages := deltaMessages(f, list, 2)
	f.Add(messages[0], messages[1])
	f.Fuzz(func(t *testing.T, first, second []byte) {
		var reader Decoder
		for _, message := range [][]byte{first, second} {
			if err := readDeltas(message, &reader); err != nil {
				checkSentinel(t, err)
			}
		}
		if len(reader.previous) > 0 && labelenc.Validate(reader.previous) == nil && labelenc.LastName(reader.previous) == nil {
			t.Fatal("labels without a name")
		}
	})
}
