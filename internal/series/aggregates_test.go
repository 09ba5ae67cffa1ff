package series

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"pgregory.net/rapid"
)

func TestAggr_HasAName(t *testing.T) {
	var names []string
	for a := Raw; a <= Counter+1; a++ {
		names = append(names, a.String())
	}
	if got := strings.Join(names, ", "); got != "raw, count, sum, min, max, counter, aggregate 6" {
		t.Error(got)
	}
}

func anyParts(t *rapid.T) (parts []Part) {
	for aggr := Count; aggr <= Counter; aggr++ {
		if rapid.Bool().Draw(t, "has") {
			encoding := chunkenc.Encoding(rapid.IntRange(1, 3).Draw(t, "encoding"))
			parts = append(parts, Part{aggr, encoding, rapid.SliceOfN(rapid.Byte(), 1, 300).Draw(t, "data")})
		}
	}
	return parts
}

func TestAggregated_RoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parts := anyParts(t)
		c := Chunk{Encoding: Aggregated, Data: AppendAggregated([]byte("before"), parts)[len("before"):]}
		got, err := c.AppendParts(nil)
		if err != nil || len(got) != len(parts) {
			t.Fatalf("%v %v, want %v", got, err, parts)
		}
		for i, want := range parts {
			if got[i].Aggr != want.Aggr || got[i].Encoding != want.Encoding || !bytes.Equal(got[i].Data, want.Data) {
				t.Fatalf("%v, want %v", got[i], want)
			}
		}
		for cut := range c.Data {
			short := Chunk{Encoding: Aggregated, Data: c.Data[:cut]}
			if got, err := short.AppendParts(nil); err != nil && !errors.Is(err, ErrCorrupt) || err == nil && len(got) >= len(parts) {
				t.Fatalf("%d of %d bytes: %v %v", cut, len(c.Data), got, err)
			}
		}
	})
}

func TestAppendParts_OfAnotherChunkAreItsSamples(t *testing.T) {
	c := Chunk{Encoding: chunkenc.EncXOR, Data: []byte("x")}
	if got, err := c.AppendParts(nil); err != nil || len(got) != 1 || got[0].Aggr != Raw || string(got[0].Data) != "x" {
		t.Errorf("%v, %v", got, err)
	}
	for _, data := range []string{"\x01\x63x", "\x01\x00x", "\x05\x01x", strings.Repeat("\xff", 11)} {
		c := Chunk{Encoding: Aggregated, Data: []byte(data)}
		if got, err := c.AppendParts(nil); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%q: %v, %v", data, got, err)
		}
	}
}

// The bytes of a count that both replicas have must not decide which sum is first.
func TestCompareChunks_TheFirstAggregateThatDiffersDecides(t *testing.T) {
	of := func(parts ...Part) Chunk { return Chunk{Encoding: Aggregated, Data: AppendAggregated(nil, parts)} }
	part := func(a Aggr, data string) Part { return Part{a, chunkenc.EncXOR, []byte(data)} }
	for name, tt := range map[string]struct{ before, after Chunk }{
		"longer":           {of(part(Count, "b")), of(part(Count, "aaaa"))},
		"the second":       {of(part(Count, "a"), part(Sum, "b")), of(part(Count, "a"), part(Sum, "aaaa"))},
		"an absent one":    {of(part(Count, "a")), of(part(Sum, "z"))},
		"a raw chunk":      {Chunk{Encoding: chunkenc.EncXOR, Data: []byte("a")}, of(part(Count, "z"))},
		"an earlier end":   {Chunk{MaxMS: 1, Encoding: Aggregated}, Chunk{MaxMS: 2, Encoding: chunkenc.EncXOR}},
		"descending bytes": {Chunk{Encoding: chunkenc.EncXOR, Data: []byte("b")}, Chunk{Encoding: chunkenc.EncXOR, Data: []byte("a")}},
	} {
		if CompareChunks(tt.before, tt.after) >= 0 || CompareChunks(tt.after, tt.before) <= 0 || CompareChunks(tt.after, tt.after) != 0 {
			t.Errorf("%s: %v and %v", name, tt.before, tt.after)
		}
	}
}
