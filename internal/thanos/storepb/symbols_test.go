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

	"github.com/ferula-io/ferula/internal/series/labelenc"
	pb "github.com/ferula-io/ferula/internal/thanos/storepb/thanospb"
)

// numbering gives every label of a test a number.
type numbering map[string]uint64

func (n numbering) of(lset labels.Labels) (numbers []uint64) {
	lset.Range(func(l labels.Label) {
		text := l.Name + "\xff" + l.Value
		if _, ok := n[text]; !ok {
			n[text] = uint64(len(n)) << 33
		}
		numbers = append(numbers, n[text])
	})
	return numbers
}

// symbolMessages encodes series with numbers, several per message.
func symbolMessages(t interface{ Fatal(...any) }, list []one, each int) (messages [][]byte) {
	return mixedMessages(t, list, each, func() bool { return false })
}

// mixedMessages encodes series with numbers, or deltas where delta returns true.
func mixedMessages(t interface{ Fatal(...any) }, list []one, each int, delta func() bool) (messages [][]byte) {
	w, known := NewSymbolWriter(), numbering{}
	for len(list) > 0 {
		n := min(each, len(list))
		w.Begin()
		buf := AppendSymbolHead(nil)
		for _, o := range list[:n] {
			size := 0
			for i := 0; i < len(o.chunks); {
				n := SpanLen(o.chunks[i:])
				size += SpanSize(o.chunks[i : i+n])
				i += n
			}
			before, lset, numbers := len(buf), o.encoded(), known.of(o.labels)
			var err error
			most := SymbolSeriesSizeMax(len(lset), len(numbers), size)
			if delta() {
				most = w.DeltaSeriesSizeMax(len(lset), size)
				buf, err = w.AppendDeltaSeries(buf, lset, size)
			} else {
				buf, err = w.AppendSeries(buf, lset, numbers, size)
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := len(buf) - before + size; got > most {
				t.Fatal("more than was made room for", got)
			}
			for i := 0; i < len(o.chunks); {
				n := SpanLen(o.chunks[i:])
				buf = AppendSpan(buf, o.chunks[i:i+n])
				i += n
			}
		}
		SealSymbolBatch(buf)
		messages, list = append(messages, buf), list[n:]
	}
	return messages
}

func TestSymbols_RoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOfN(rapid.Custom(anyOne), 1, 20).Draw(t, "series")
		var reader SymbolReader
		at := 0
		kind := rapid.SampledFrom([]string{"numbered", "deltas", "mixed"}).Draw(t, "kind")
		delta := func() bool { return kind == "deltas" || kind == "mixed" && rapid.Bool().Draw(t, "deltas") }
		for _, message := range mixedMessages(t, list, rapid.IntRange(1, 7).Draw(t, "each"), delta) {
			var oracle pb.SeriesResponse
			if err := proto.Unmarshal(message, &oracle); err != nil {
				t.Fatal(err)
			}
			kind, body, err := DecodeResponse(message)
			if err != nil || kind != SymbolBatch {
				t.Fatal(kind, err)
			}
			reader.Begin()
			var arena []byte
			for range oracle.GetSymbolBatch().Series {
				var src, lset []byte
				var chunks []Chunk
				if src, body, err = reader.Next(body); err != nil || src == nil {
					t.Fatal(src, err)
				}
				if lset, arena, chunks, err = reader.DecodeSeries(src, arena, nil); err != nil {
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
			if src, _, err := reader.Next(body); src != nil || err != nil {
				t.Fatal("more series than written", err)
			}
		}
		if at != len(list) {
			t.Fatalf("%d series of %d", at, len(list))
		}
	})
}

func TestSymbolWriter_SendsEachLabelOnce(t *testing.T) {
	var list []one
	for i := range 1000 {
		list = append(list, one{labels: labels.FromStrings("__name__", "a_rather_long_metric_name_total", "instance", fmt.Sprintf("instance-number-%d", i/10), "job", "job", "z", fmt.Sprint(i%10))})
	}
	sent, size := 0, 0
	for _, message := range symbolMessages(t, list, 100) {
		sent += bytes.Count(message, []byte("a_rather_long_metric_name_total"))
		size += len(message)
	}
	if sent != 1 || size > 1000*12 {
		t.Errorf("a name was sent %d times in %d bytes", sent, size)
	}
}

// deltaOfA is the delta of the set {a="1"} to nothing.
var deltaOfA = []byte("\x01\x01a\x011")

// A message can be read without the messages before it. So the labels of its first series are complete, and those of the
// second series are the difference to the first.
func TestSymbolWriter_DeltasHaveOnlyTheDifferenceWithinAMessage(t *testing.T) {
	list := []one{{labels: labels.FromStrings("a", "1", "b", "same", "c", "1")}, {labels: labels.FromStrings("a", "1", "b", "same", "c", "2")}}
	var sizes []int
	for _, each := range []int{1, 2} {
		for _, message := range mixedMessages(t, list, each, func() bool { return true }) {
			sizes = append(sizes, len(message)-symbolTagBytes-paddedBytes)
			if err := readSymbols(message, &SymbolReader{}); err != nil {
				t.Error(err)
			}
		}
	}
	if want := []int{22, 22, 30}; !slices.Equal(sizes, want) {
		t.Errorf("messages of %d bytes, want %d", sizes, want)
	}
}

// A delta of a byte repeats the labels of the series before it, however many these are.
func TestSymbolReader_LabelsOfDeltasOfAMessageAreLimited(t *testing.T) {
	r := &SymbolReader{}
	r.Begin()
	first := within(5, binary.AppendUvarint([]byte{1, 1, 'a'}, 1<<20), make([]byte, 1<<20))
	lset, arena, _, err := r.DecodeSeries(first, make([]byte, 0, labelArenaMax+1<<21), nil)
	if err != nil {
		t.Fatal(err)
	}
	for n := 2; err == nil; n++ {
		if _, arena, _, err = r.DecodeSeries(within(5), arena, nil); err == nil && n*len(lset) > labelArenaMax {
			t.Fatalf("%d series of %d bytes", n, len(lset))
		}
	}
	if !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
}

func TestSymbolReader_InvalidSymbolIsCorrupt(t *testing.T) {
	for name, batch := range map[string]*pb.SymbolBatch{
		"unknown label":   {Series: []*pb.SymbolSeries{{Labels: []uint32{0}}}},
		"unknown name":    {Symbols: []*pb.Symbol{{NameOf: 1, Value: "x"}}, Series: []*pb.SymbolSeries{{}}},
		"head of nothing": {Series: []*pb.SymbolSeries{{Head: 1}}},
		"tail of nothing": {Series: []*pb.SymbolSeries{{Tail: 1}}},
		"more than it had": {Symbols: []*pb.Symbol{{Name: "a", Value: "x"}}, Series: []*pb.SymbolSeries{
			{Labels: []uint32{0}}, {Head: 1, Tail: 1}}},
		"delta after nothing":       {Series: []*pb.SymbolSeries{{Delta: []byte{0, 0, 0, 0}}}},
		"delta of an unknown kind":  {Series: []*pb.SymbolSeries{{Delta: []byte{7}}}},
		"delta cut short":           {Series: []*pb.SymbolSeries{{Delta: []byte{1, 1}}}},
		"delta with numbers":        {Symbols: []*pb.Symbol{{Name: "a", Value: "x"}}, Series: []*pb.SymbolSeries{{Labels: []uint32{0}, Delta: []byte{}}}},
		"delta with a head":         {Series: []*pb.SymbolSeries{{Delta: deltaOfA}, {Head: 1, Delta: []byte{}}}},
		"delta after numbers":       {Symbols: []*pb.Symbol{{Name: "a", Value: "x"}}, Series: []*pb.SymbolSeries{{Labels: []uint32{0}}, {Delta: []byte{2}}}},
		"head after a delta":        {Series: []*pb.SymbolSeries{{Delta: deltaOfA}, {Head: 1}}},
		"tail after a delta":        {Series: []*pb.SymbolSeries{{Delta: deltaOfA}, {Tail: 1}}},
		"head after a second delta": {Symbols: []*pb.Symbol{{Name: "a", Value: "x"}}, Series: []*pb.SymbolSeries{{Labels: []uint32{0}}, {Delta: deltaOfA}, {Head: 1}}},
	} {
		raw, err := proto.Marshal(&pb.SeriesResponse{Result: &pb.SeriesResponse_SymbolBatch{SymbolBatch: batch}})
		if err != nil {
			t.Fatal(err)
		}
		if err := readSymbols(raw, &SymbolReader{}); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// readSymbols decodes all series of a message.
func readSymbols(message []byte, reader *SymbolReader) error {
	kind, body, err := DecodeResponse(message)
	if err != nil || kind != SymbolBatch {
		return err
	}
	reader.Begin()
	var arena []byte
	for len(body) > 0 {
		var src []byte
		if src, body, err = reader.Next(body); err != nil {
			return err
		}
		if src == nil {
			return nil
		}
		if _, arena, _, err = reader.DecodeSeries(src, arena, nil); err != nil {
			return err
		}
	}
	return nil
}

func FuzzSymbols(f *testing.F) {
	list := []one{{labels.FromStrings("a", "1", "b", "2"), []Chunk{{1, 2, Raw, 1, []byte("x")}}}, {labels.FromStrings("a", "1", "b", "3", "c", "4"), nil}, {labels.FromStrings("a", "2", "c", "4"), nil}}
	messages := symbolMessages(f, list, 2)
	f.Add(messages[0], messages[1])
	delta := mixedMessages(f, list, 2, func() bool { return true })
	f.Add(delta[0], delta[1])
	f.Add(delta[0], messages[1])
	n := 0
	mixed := mixedMessages(f, list, 3, func() bool { n++; return n == 2 })
	f.Add(mixed[0], delta[1])
	f.Fuzz(func(t *testing.T, first, second []byte) {
		var reader SymbolReader
		reader.KeepDeltas(100)
		for _, message := range [][]byte{first, second} {
			if err := readSymbols(message, &reader); err != nil {
				checkSentinel(t, err)
			}
		}
		if len(reader.before) > 0 && labelenc.Validate(reader.before) == nil && labelenc.LastName(reader.before) == nil {
			t.Fatal("labels without a name")
		}
	})
}
