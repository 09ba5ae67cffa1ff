package labelenc

import (
	"errors"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
)

func TestAppendMerged_CutSetsAreCorrupt(t *testing.T) {
	good := Append(nil, labels.FromStrings("b", "1"))
	for n := 1; n < len(good); n++ {
		if _, err := AppendMerged(nil, good, good[:n]); !errors.Is(err, ErrCorrupt) {
			t.Errorf("secondary set of %d bytes: %v", n, err)
		}
		if _, err := AppendMerged(nil, good[:n], good); !errors.Is(err, ErrCorrupt) {
			t.Errorf("primary set of %d bytes: %v", n, err)
		}
		if _, err := AppendWithout(nil, good[:n], []string{"b"}); !errors.Is(err, ErrCorrupt) {
			t.Errorf("set of %d bytes: %v", n, err)
		}
		var b labels.ScratchBuilder
		if lset, err := Labels(good[:n], &b); !errors.Is(err, ErrCorrupt) || !lset.IsEmpty() {
			t.Errorf("labels of %d bytes: %v %v", n, lset, err)
		}
	}
}

func TestCutAfter_NamesMustAscendAndNotBeEmpty(t *testing.T) {
	set := func(pairs ...string) (b []byte) {
		for i := 0; i < len(pairs); i += 2 {
			b = AppendLabel(b, pairs[i], pairs[i+1])
		}
		return b
	}
	for name, tt := range map[string]struct {
		previous, labels []byte
		ok               bool
	}{
		"no name at the start":     {nil, set("", "1"), false},
		"no name after a set":      {set("a", "1"), set("", "1"), false},
		"no name after others":     {nil, set("a", "1", "", "1"), false},
		"a name twice":             {nil, set("a", "1", "a", "2"), false},
		"a name twice after equal": {set("a", "1", "b", "1"), set("a", "1", "a", "2"), false},
		"descending":               {nil, set("b", "1", "a", "1"), false},
		"descending after equal":   {set("b", "1", "c", "1"), set("b", "1", "a", "1"), false},
		"ascending":                {set("a", "1"), set("a", "1", "b", "1", "c", "1"), true},
		"a second label, cut":      {nil, append(set("a", "1"), tagLabel, 5), false},
		"cut after equal labels":   {set("a", "1"), append(set("a", "1"), tagLabel, 5), false},
	} {
		_, err := Follows(tt.previous, tt.labels)
		if (err == nil) != tt.ok || err != nil && !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
		if _, _, err := CutAfter(tt.previous, tt.labels); (err == nil) != tt.ok {
			t.Errorf("%s: cut: %v", name, err)
		}
		if err := Validate(tt.labels); (err == nil) != tt.ok {
			t.Errorf("%s: valid alone: %v", name, err)
		}
	}
	if _, err := Follows(nil, append(set("a", "1"), 0x20, 1)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("bytes behind the labels: %v", err)
	}
	// CutAfter returns no error for bytes behind the labels: its caller reads these bytes.
	for _, previous := range [][]byte{nil, set("a", "0"), set("a", "1"), set("a", "2"), set("a", "1", "b", "1"), set("a", "0", "b", "1")} {
		l := set("a", "1")
		if size, _, err := CutAfter(previous, append(l, 0x20, 1)); size != len(l) || err != nil {
			t.Errorf("after %q: %d, %v", previous, size, err)
		}
	}
}
