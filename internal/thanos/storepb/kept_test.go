package storepb

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/ferula-io/ferula/internal/series/labelenc"
	pb "github.com/ferula-io/ferula/internal/thanos/storepb/thanospb"
)

// product returns the encoded label sets of metrics, whose names differ in length, of the same containers.
func product(metrics, containers int) (sets [][]byte) {
	for m := range metrics {
		for c := range containers {
			sets = append(sets, labelenc.Append(nil, labels.FromStrings("__name__", "container_"+strings.Repeat("x", m%7)+fmt.Sprintf("_%03d_total", m), "id", fmt.Sprintf("/kubepods/%05d/%064x", c, uint64(c+1)*0x9E3779B97F4A7C15),
				"instance", fmt.Sprintf("10.0.0.%d:9100", c%100), "pod", strings.Repeat("p", c%3)+fmt.Sprint(c))))
		}
	}
	return sets
}

// keptMessages encodes sets as deltas, several per message.
func keptMessages(t interface{ Fatal(...any) }, sets [][]byte, each int, kept int64) (messages [][]byte) {
	w := NewSymbolWriter()
	w.KeepDeltas(kept)
	for len(sets) > 0 {
		n := min(each, len(sets))
		w.Begin()
		buf := AppendSymbolHead(nil)
		for _, set := range sets[:n] {
			most, before := w.DeltaSeriesSizeMax(len(set), 0), len(buf)
			var err error
			if buf, err = w.AppendDeltaSeries(buf, set, 0); err != nil {
				t.Fatal(err)
			}
			if len(buf)-before > most {
				t.Fatal("more than was made room for")
			}
		}
		SealSymbolBatch(buf)
		messages, sets = append(messages, buf), sets[n:]
	}
	return messages
}

// counted decodes a message with protobuf's own runtime, and counts its forms.
func counted(t interface{ Fatal(...any) }, message []byte) (deltas, kept, repeats int) {
	var oracle pb.SeriesResponse
	if err := proto.Unmarshal(message, &oracle); err != nil {
		t.Fatal(err)
	}
	for _, s := range oracle.GetSymbolBatch().Series {
		switch {
		case s.Repeat != nil:
			repeats++
		case len(s.Delta) > 0 && s.Delta[0]&keptBit != 0:
			kept++
		default:
			deltas++
		}
	}
	return deltas, kept, repeats
}

// readSets reads a message, and passes the label set of each series.
func readSets(reader *SymbolReader, message []byte, each func([]byte)) error {
	_, body, err := DecodeResponse(message)
	if err != nil {
		return err
	}
	reader.Begin()
	var arena []byte
	for {
		var src, set []byte
		if src, body, err = reader.Next(body); err != nil || src == nil {
			return err
		}
		if set, arena, _, err = reader.DecodeSeries(src, arena, nil); err != nil {
			return err
		}
		each(set)
	}
}

func TestSymbolWriter_RepeatsDeltasOfOtherMetrics(t *testing.T) {
	const metrics, containers = 20, 200
	sets := product(metrics, containers)
	reader := &SymbolReader{}
	reader.KeepDeltas(KeptBytes)
	at, kept, repeats, size := 0, 0, 0, 0
	for _, message := range keptMessages(t, sets, 700, KeptBytes) {
		if err := readSets(reader, message, func(set []byte) {
			if !bytes.Equal(set, sets[at]) {
				t.Fatalf("series %d: %q, want %q", at, set, sets[at])
			}
			at++
		}); err != nil {
			t.Fatal(err)
		}
		_, k, r := counted(t, message)
		kept, repeats, size = kept+k, repeats+r, size+len(message)
	}
	if at != len(sets) || repeats < (metrics-1)*(containers-1)*95/100 || kept > 2*containers {
		t.Errorf("%d series of %d: %d deltas kept, %d repeated", at, len(sets), kept, repeats)
	}
	plain := 0
	for _, message := range keptMessages(t, sets, 700, 0) {
		deltas, k, r := counted(t, message)
		if plain += len(message); k+r > 0 || deltas == 0 {
			t.Fatalf("%d deltas kept and %d repeated without a request", k, r)
		}
	}
	if size*5 > plain {
		t.Errorf("%d bytes with repeats, %d without", size, plain)
	}
}

// The limits of both sides are small, so that entries are dropped and the ring begins again. The reader may announce more than
// the writer uses.
func TestSymbols_RepeatsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kept := rapid.SampledFrom([]int{1, 20, 100, 300, 2000, KeptBytes}).Draw(t, "kept")
		pool := rapid.SliceOfN(rapid.Custom(anySet), 1, 12).Draw(t, "pool")
		var sets [][]byte
		for range rapid.IntRange(1, 80).Draw(t, "series") {
			sets = append(sets, rapid.SampledFrom(pool).Draw(t, "set"))
		}
		reader := &SymbolReader{}
		reader.KeepDeltas(kept)
		at := 0
		for _, message := range keptMessages(t, sets, rapid.IntRange(1, 30).Draw(t, "each"), int64(kept)) {
			if err := readSets(reader, message, func(set []byte) {
				if !bytes.Equal(set, sets[at]) {
					t.Fatalf("series %d: %q, want %q", at, set, sets[at])
				}
				at++
			}); err != nil {
				t.Fatal(err)
			}
		}
		if at != len(sets) {
			t.Fatalf("%d series of %d", at, len(sets))
		}
		if most := int64(2*kept + 64<<10); reader.Bytes() > most {
			t.Fatalf("%d bytes for %d announced", reader.Bytes(), kept)
		}
	})
}

// The ring of entries has the entries of a list, whatever their sizes.
func TestKeptDeltas_HaveTheLastEntries(t *testing.T) {
	for _, limit := range []int{keptEntryMax, 5000, 40_000} {
		random := rand.New(rand.NewPCG(1, uint64(limit)))
		x := &deltaIndex{keptDeltas: keptDeltas{limit: limit}}
		var list []string
		first, used, found, looked := 0, 0, 0, 0
		for n := range 20_000 {
			body := bytes.Repeat([]byte{byte(n), byte(n >> 8)}, 1+random.IntN(min(limit, keptEntryMax)/2-1))
			if n/3000%2 == 0 {
				body = body[:2+random.IntN(min(len(body)-1, 6))]
			}
			x.add(byte(n%4), body)
			x.insert(uint32(n) * 0x9E3779B1)
			list = append(list, string(rune(n%4))+string(body))
			for used += len(list[n]); used > limit; first++ {
				used -= len(list[first])
			}
			if x.oldest != uint64(first) || x.end != uint64(n+1) || x.used != used {
				t.Fatalf("%d: entries %d to %d with %d bytes, want from %d with %d", n, x.oldest, x.end, x.used, first, used)
			}
			for _, i := range []int{first, n, first + random.IntN(n+1-first)} {
				kind, body := x.entry(uint64(i))
				if got := string(rune(kind)) + string(body); got != list[i] {
					t.Fatalf("entry %d of %d to %d is %q, want %q", i, first, n, got, list[i])
				}
				number, ok := x.find(uint32(i)*0x9E3779B1, byte(i%4), []byte(list[i][1:]))
				if looked++; ok && number == uint64(i) {
					found++
				} else if ok {
					t.Fatalf("entry %d was found as %d", i, number)
				}
			}
		}
		if found < looked*9/10 || x.bytes() > int64(3*limit+4*keptEntryMax+16*20_000) || len(x.ring) > max(limit+keptEntryMax, 4<<10) {
			t.Errorf("limit %d: %d of %d entries found, %d bytes, a ring of %d", limit, found, looked, x.bytes(), len(x.ring))
		}
	}
}

// The first part has more label sets than a reader can keep deltas, and no set twice. The second part repeats its last 4,000 sets.
func TestSymbolWriter_RepeatsTheLastOfVeryManyDeltas(t *testing.T) {
	var sets [][]byte
	value := func(i int) string { return fmt.Sprintf("%016x", uint64(i+1)*0x9E3779B97F4A7C15) }
	for i := range keptEntriesMax + 5000 {
		sets = append(sets, labelenc.AppendLabel(nil, "a", value(i)))
	}
	again := len(sets)
	sets = append(sets, sets[again-4000:]...)
	reader := &SymbolReader{}
	reader.KeepDeltas(KeptBytes)
	at, repeats := 0, 0
	for _, message := range keptMessages(t, sets, 1<<20, KeptBytes) {
		if err := readSets(reader, message, func(set []byte) {
			if !bytes.Equal(set, sets[at]) {
				t.Fatalf("series %d: %q, want %q", at, set, sets[at])
			}
			at++
		}); err != nil {
			t.Fatal(err)
		}
		_, _, r := counted(t, message)
		repeats += r
	}
	// After keptEntriesMax deltas without a repeat the writer keeps no delta any more, so the second part is sent as deltas.
	if at != len(sets) || repeats != 0 {
		t.Errorf("%d series of %d, %d repeats", at, len(sets), repeats)
	}
	sets = sets[again-keptEntriesMax/2:]
	repeats = 0
	for _, message := range keptMessages(t, sets, 1<<20, KeptBytes) {
		_, _, r := counted(t, message)
		repeats += r
	}
	if repeats < 3900 {
		t.Errorf("%d repeats of 4000", repeats)
	}
}

func TestSymbolWriter_KeepsNoMoreWhereNothingRecurs(t *testing.T) {
	w := NewSymbolWriter()
	w.KeepDeltas(10_000)
	w.Begin()
	var message []byte
	for i := range 2000 {
		var err error
		if message, err = w.AppendDeltaSeries(message[:0], labelenc.AppendLabel(nil, "a", fmt.Sprintf("%032x", uint64(i+1)*0x9E3779B97F4A7C15)), 0); err != nil {
			t.Fatal(err)
		}
	}
	if w.kept.limit != 0 || w.kept.bytes() != 0 {
		t.Errorf("%d bytes are kept for nothing", w.kept.bytes())
	}
}

func TestSymbolReader_InvalidRepeatIsCorrupt(t *testing.T) {
	set := string(labelenc.Append(nil, labels.FromStrings("a", "123456789", "b", "4")))
	first := &pb.SymbolSeries{Delta: []byte("\x01\x01a\x09123456789\x01\x01b\x014")}
	patch := &pb.SymbolSeries{Delta: []byte("\x07\x07\x03xyz")} // a="xyz456789"
	edits := &pb.SymbolSeries{Delta: []byte("\x0c\x00\x00\x0212")}
	repeat := func(text string) *pb.SymbolSeries { return &pb.SymbolSeries{Repeat: []byte(text)} }
	for name, list := range map[string][]*pb.SymbolSeries{
		"of nothing":                 {first, repeat("\x06\x00")},
		"of an unknown number":       {first, patch, repeat("\x06\x02")},
		"of a number below 0":        {first, patch, repeat("\x06\x01")},
		"of a very great number":     {first, patch, repeat("\x06\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01")},
		"of a very low number":       {first, patch, repeat("\x06\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")},
		"twice":                      {first, patch, repeat("\x06\x00"), repeat("\x06\x00")},
		"empty":                      {first, patch, repeat("")},
		"without a number":           {first, patch, repeat("\x06")},
		"with more":                  {first, patch, repeat("\x06\x00\x00")},
		"no varint":                  {first, patch, repeat("\xff")},
		"behind the end":             {first, patch, repeat(string(binary.AppendUvarint(nil, uint64(len(set)-2))) + "\x00")},
		"far behind the end":         {first, patch, repeat("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00")},
		"copies too many labels":     {first, edits, repeat("\x02\x00")},
		"copies very many labels":    {first, edits, repeat("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00")},
		"both":                       {first, patch, {Delta: []byte{3}, Repeat: []byte("\x06\x00")}},
		"with numbers":               {first, patch, {Head: 1, Repeat: []byte("\x06\x00")}},
		"a kept delta of nothing":    {{Delta: []byte("\x04\x00\x00\x00")}},
		"a kept patch without bytes": {first, {Delta: []byte("\x07")}},
		"a kept patch cut short":     {first, {Delta: []byte("\x07\x06\x09x")}},
		"a kept head cut short":      {first, {Delta: []byte("\xff")}},
		"a long kept delta":          {first, {Delta: append([]byte("\x05\x01x\x80\x10"), make([]byte, 2<<10)...)}},
	} {
		raw, err := proto.Marshal(&pb.SeriesResponse{Result: &pb.SeriesResponse_SymbolBatch{SymbolBatch: &pb.SymbolBatch{Series: list}}})
		if err != nil {
			t.Fatal(err)
		}
		reader := &SymbolReader{}
		reader.KeepDeltas(KeptBytes)
		if err := readSymbols(raw, reader); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, list := range map[string][]*pb.SymbolSeries{
		"a patch": {first, patch, repeat("\x08\x00"), repeat("\x07\x01")},
		"edits":   {first, edits, repeat("\x01\x00"), repeat("\x00\x01")},
	} {
		raw, err := proto.Marshal(&pb.SeriesResponse{Result: &pb.SeriesResponse_SymbolBatch{SymbolBatch: &pb.SymbolBatch{Series: list}}})
		if err != nil {
			t.Fatal(err)
		}
		reader := &SymbolReader{}
		reader.KeepDeltas(KeptBytes)
		if err := readSymbols(raw, reader); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := readSymbols(raw, &SymbolReader{}); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s that no request has allowed: %v", name, err)
		}
	}
}

// A writer that marks deltas to be kept without end gets no more memory than was announced.
func TestSymbolReader_KeptDeltasAreLimited(t *testing.T) {
	r := &SymbolReader{}
	r.KeepDeltas(100_000)
	r.Begin()
	r.base = labelenc.AppendLabel(nil, "a", strings.Repeat("x", 1000))
	long, short := append([]byte("\x07\x07\xe8\x07"), bytes.Repeat([]byte("y"), 1000)...), []byte("\x07\x07\x01y")
	for range 1000 {
		if _, err := r.appendDeltaLabels(nil, long); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 * keptEntriesMax {
		if _, err := r.appendDeltaLabels(nil, short); err != nil {
			t.Fatal(err)
		}
	}
	if n := r.Bytes(); n < 100_000 || n > 100_000+keptEntryMax+16*keptEntriesMax {
		t.Errorf("%d bytes", n)
	}
}

func TestSymbolWriter_RepeatsDoNotAllocate(t *testing.T) {
	sets := product(2, 100)
	w := NewSymbolWriter()
	w.KeepDeltas(KeptBytes)
	r := &SymbolReader{}
	r.KeepDeltas(KeptBytes)
	var buf, arena []byte
	pass := func() {
		w.Begin()
		r.Begin()
		arena = arena[:0]
		for _, set := range sets {
			var err error
			if buf, err = w.AppendDeltaSeries(buf[:0], set, 0); err != nil {
				t.Fatal(err)
			}
			body, _, _ := prefixed(buf[1:])
			if _, arena, _, err = r.DecodeSeries(body, arena, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	pass()
	if n := testing.AllocsPerRun(10, pass); n > 0 {
		t.Errorf("%g allocations", n)
	}
}

// FuzzKept reads any two messages with little memory for deltas, and writes and reads again the sets that they contain.
func FuzzKept(f *testing.F) {
	messages := keptMessages(f, product(3, 4), 6, 1000)
	f.Add(messages[0], messages[1], uint16(1000))
	f.Add(messages[1], messages[0], uint16(100))
	f.Add(messages[0], messages[0], uint16(0))
	f.Fuzz(func(t *testing.T, first, second []byte, kept uint16) {
		reader := &SymbolReader{}
		reader.KeepDeltas(int(kept))
		var sets [][]byte
		for _, message := range [][]byte{first, second, first} {
			if kind, _, err := DecodeResponse(message); err != nil || kind != SymbolBatch {
				continue
			}
			if err := readSets(reader, message, func(set []byte) {
				if labelenc.Validate(set) == nil && len(set) < 1<<16 {
					sets = append(sets, bytes.Clone(set))
				}
			}); err != nil {
				checkSentinel(t, err)
			}
		}
		if n := reader.kept.bytes(); n > int64(kept)+8<<10+16*int64(len(first)+len(second)) {
			t.Fatalf("%d bytes for %d announced", n, kept)
		}
		reader = &SymbolReader{}
		reader.KeepDeltas(int(kept))
		at := 0
		for _, message := range keptMessages(t, sets, 1+len(sets)/2, int64(kept)) {
			if err := readSets(reader, message, func(set []byte) {
				if labelenc.Compare(set, sets[at]) != 0 {
					t.Fatalf("%q, want %q", set, sets[at])
				}
				at++
			}); err != nil {
				t.Fatal(err)
			}
		}
	})
}
