package storepb

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/series/labelenc"
)

func TestSkip_ErrorsNameTheField(t *testing.T) {
	for _, tt := range []struct {
		src  []byte
		want string
	}{
		{[]byte{15<<3 | 3, 15<<3 | 4}, "field 15 has wire type 3"}, // a whole group
		{[]byte{15<<3 | 4}, "field 15 has wire type 4"},
		{[]byte{15<<3 | 6, 0}, "field 15 has wire type 6"},
		{[]byte{15<<3 | 7, 0}, "field 15 has wire type 7"},
		{[]byte{14<<3 | 5, 1, 2, 3}, "field 14 is cut short"},
		{[]byte{tagSeries, 5}, "field 1 is cut short"},
		{[]byte{0, 0}, "bad field number"},
	} {
		if _, _, err := DecodeResponse(tt.src); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("% x: %v, want %q", tt.src, err, tt.want)
		}
	}
}

func TestDecodeSpan_AdjacentDuplicateIsCorrupt(t *testing.T) {
	for _, aggr := range []byte{fieldRaw, fieldRaw + 1, fieldCounter} {
		one := []byte{aggr<<3 | wireBytes, 0}
		if _, err := (&Decoder{}).span(slices.Concat(one, one), nil); !errors.Is(err, ErrCorrupt) {
			t.Errorf("field %d twice: %v", aggr, err)
		}
	}
}

func TestAppendDelta_AtTheEndsOfSets(t *testing.T) {
	of := func(pairs ...string) []byte { return labelenc.Append(nil, labels.FromStrings(pairs...)) }
	base := of("a", "1", "b", "2")
	for name, tt := range map[string]struct {
		previous, set []byte
		want          string
	}{
		"nothing after nothing": {nil, nil, ""},
		"a label more":          {base, of("a", "1", "b", "2", "c", "3"), "\x11\x01c\x013"},
		"a label less":          {base, of("a", "1"), "\x0a"},
	} {
		if delta, exact, err := appendDelta(nil, tt.previous, tt.set); string(delta) != tt.want || !exact || err != nil {
			t.Errorf("%s: %q, %v, %v, want %q", name, delta, exact, err, tt.want)
		}
	}
}

// A new run costs two bytes, so a few equal bytes are overwritten with the same.
func TestAppendPatch_JoinsRunsUpToTheGap(t *testing.T) {
	for set, want := range map[string]string{
		"X123X56789": "\x03\x00\x05X123X",
		"X1234X6789": "\x03\x00\x01X\x04\x01X",
		"XX234X6789": "\x03\x00\x06XX234X",
		"012345678X": "\x03\x09\x01X",
	} {
		if got := appendPatch(nil, []byte("0123456789"), []byte(set)); string(got) != want {
			t.Errorf("%s: %q, want %q", set, got, want)
		}
	}
}

func TestApplyPatch_UpToTheEndOfTheSet(t *testing.T) {
	for delta, want := range map[string]string{
		"": "abc", "\x03\x00": "abc", "\x02\x01x": "abx", "\x00\x03xyz": "xyz", "\x01\x01x\x00\x01y": "axy",
	} {
		set := []byte("abc")
		if err := applyPatch(set, []byte(delta)); string(set) != want || err != nil {
			t.Errorf("%q: %q, %v", delta, set, err)
		}
	}
	for _, delta := range []string{"\x04\x00", "\x03\x01x", "\x00\x04wxyz"} {
		if err := applyPatch([]byte("abc"), []byte(delta)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%q: %v", delta, err)
		}
	}
}

// Callers begin another message once a series might not fit.
func TestDeltaWriter_SizesThatMayBeNeeded(t *testing.T) {
	for _, tt := range []struct{ got, want int }{
		{(&DeltaWriter{}).SeriesSizeMax(0, 0), 32}, {(&DeltaWriter{}).SeriesSizeMax(5, 7), 44}, {(&DeltaWriter{previous: make([]byte, 9)}).SeriesSizeMax(5, 7), 53},
	} {
		if tt.got != tt.want {
			t.Errorf("%d bytes, want %d", tt.got, tt.want)
		}
	}
}

func TestDecoder_UpToTheLimitOfLabels(t *testing.T) {
	const size = 8 // of the set {a="1"}
	d := Decoder{Arena: make([]byte, labelArenaMax-size, labelArenaMax+size)}
	if lset, _, err := d.DeltaSeries(within(1, deltaOfA), nil); err != nil || len(lset) != size || len(d.Arena) != labelArenaMax {
		t.Errorf("%d bytes, %v", len(d.Arena), err)
	}
	d.Begin()
	d.Arena = d.Arena[:labelArenaMax-size+1]
	if _, _, err := d.DeltaSeries(within(1, deltaOfA), nil); !errors.Is(err, ErrCorrupt) || len(d.Arena) != labelArenaMax-size+1 {
		t.Errorf("a byte more: %d bytes, %v", len(d.Arena), err)
	}
}
