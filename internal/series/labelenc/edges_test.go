package labelenc

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
)

// Lengths of two bytes are read by another branch, in which a value may be empty, too.
func TestLabelSet_LongNamesAndEmptyValues(t *testing.T) {
	long := strings.Repeat("n", 128)
	for _, set := range [][]byte{
		AppendLabel(nil, long, ""), AppendLabel(AppendLabel(nil, long, ""), long+"o", "1"), AppendLabel(AppendLabel(nil, "a", ""), long, ""),
		{tagLabel, 3, tagName, 1, 'a'}, AppendLabel(nil, strings.Repeat("n", 127), ""), AppendLabel(nil, "a", strings.Repeat("v", 127)),
	} {
		if err := Validate(set); err != nil {
			t.Errorf("%q: %v", set, err)
		}
		if Compare(set, bytes.Clone(set)) != 0 || Compare(set, nil) <= 0 || Compare(nil, set) >= 0 {
			t.Errorf("%q is not equal to itself, or not after the empty set", set)
		}
		name, value, rest, err := Next(set)
		again := AppendLabel(nil, string(name), string(value))
		if err != nil || len(name) == 0 || !bytes.HasPrefix(again, set[:len(set)-len(rest)]) && len(value) > 0 {
			t.Errorf("%q: %q %q %v", set, name, value, err)
		}
	}
	for _, length := range []int{0, 1, 126, 127, 128, 129, 16383, 16384} {
		want := strings.Repeat("v", length)
		if name, value, rest, err := Next(AppendLabel(nil, "a", want)); string(name) != "a" || string(value) != want || len(rest) != 0 || err != nil {
			t.Errorf("%d bytes: %q, %d bytes, %v", length, name, len(value), err)
		}
		if length == 0 {
			continue
		}
		if name, value, rest, err := Next(append(AppendLabel(nil, want, "x"), "rest"...)); string(name) != want || string(value) != "x" || string(rest) != "rest" || err != nil {
			t.Errorf("%d bytes of a name: %d, %q, %q, %v", length, len(name), value, rest, err)
		}
	}
}

func TestNext_AnotherFieldInPlaceOfTheNameIsCorrupt(t *testing.T) {
	for name, set := range map[string][]byte{
		"a field before the value":      {tagLabel, 6, 0x1A, 1, 'a', tagValue, 1, '1'},
		"a field after the name":        {tagLabel, 6, tagName, 1, 'a', 0x1A, 1, '1'},
		"a field after the value":       {tagLabel, 8, tagName, 1, 'a', tagValue, 1, '1', 0x1A, 0},
		"a longer label than its value": {tagLabel, 7, tagName, 1, 'a', tagValue, 1, '1', 0},
		"a shorter label":               {tagLabel, 5, tagName, 1, 'a', tagValue, 1, '1'},
		"another list":                  {0x12, 6, tagName, 1, 'a', tagValue, 1, '1'},
		"three bytes":                   {tagLabel, 1, tagName},
		"a name beyond the label":       {tagLabel, 3, tagName, 4, 'a', tagValue, 1, '1'},
		"no length of the value":        {tagLabel, 4, tagName, 1, 'a', tagValue},
	} {
		if n, v, _, err := Next(set); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %q %q %v", name, n, v, err)
		}
	}
}

func TestLastName_IsTheGreatestUpToTheDamage(t *testing.T) {
	set := Append(nil, labels.FromStrings("a", "1", "b", "2", "c", "3"))
	for n, want := range map[int]string{0: "", 1: "", len(set) / 3: "a", len(set) - 1: "b", len(set): "c"} {
		if got := LastName(set[:n]); string(got) != want || (got == nil) != (want == "") {
			t.Errorf("of %d bytes: %q, want %q", n, got, want)
		}
	}
}

func TestCommonPrefix_CountsEqualBytes(t *testing.T) {
	for size := range 30 {
		a := bytes.Repeat([]byte{7}, size)
		for at := range size {
			b := bytes.Clone(a)
			b[at] ^= 0x81
			if got := CommonPrefix(a, b); got != at {
				t.Errorf("%d bytes that differ at %d: %d", size, at, got)
			}
			if got := CommonPrefix(a[:at], a); got != at {
				t.Errorf("%d of %d bytes: %d", at, size, got)
			}
		}
		if got := CommonPrefix(a, bytes.Clone(a)); got != size {
			t.Errorf("%d equal bytes: %d", size, got)
		}
	}
}

// A peer may omit an empty value. Two sets that differ only in this are equal: neither follows the other.
func TestFollows_OmittedEmptyValueIsNotAfterItsEqual(t *testing.T) {
	with, without := AppendLabel(nil, "a", ""), []byte{tagLabel, 3, tagName, 1, 'a'}
	for _, pair := range [][2][]byte{{with, without}, {without, with}} {
		if order, err := Follows(pair[0], pair[1]); order > 0 || err != nil {
			t.Errorf("%q after %q: %d, %v", pair[1], pair[0], order, err)
		}
	}
}
