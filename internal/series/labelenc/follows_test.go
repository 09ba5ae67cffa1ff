package labelenc

import (
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"pgregory.net/rapid"
)

func TestFollows_OrdersLikeLabelsCompare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func() labels.Labels {
			b := labels.NewBuilder(labels.EmptyLabels())
			for _, name := range []string{"A", "a", "aa", "b", "instance"} {
				if rapid.Bool().Draw(t, name) {
					b.Set(name, rapid.SampledFrom([]string{"1", "12", "2", "same"}).Draw(t, "value"))
				}
			}
			return b.Labels()
		}
		before, after := draw(), draw()
		got, err := Follows(Append(nil, before), Append(nil, after))
		if err != nil {
			t.Fatal(err)
		}
		chunk := rapid.SampledFrom([]string{"", "\x12\x03abc", "\x12\x00"}).Draw(t, "behind")
		encoded := Append(nil, after)
		size, order, err := CutAfter(Append(nil, before), append(encoded, chunk...))
		if err != nil || size != len(encoded) || order > 0 != (got > 0) || order < 0 != (got < 0) {
			t.Fatalf("cut after %s: %d of %d bytes, %d, %v", before, size, len(encoded), order, err)
		}
		want := -1 * labels.Compare(before, after)
		if got > 0 != (want > 0) || got < 0 != (want < 0) {
			t.Fatalf("%s before %s: %d, want %d", before, after, got, want)
		}
	})
}

// Some pairs of these sets are equal, and in some the labels of one set are the first labels of the other.
func TestFollows_PrefixesAndEqualSets(t *testing.T) {
	sets := []labels.Labels{
		labels.EmptyLabels(), labels.FromStrings("a", "1"), labels.FromStrings("a", "1", "b", "2"), labels.FromStrings("a", "1", "b", "2", "c", "3"),
		labels.FromStrings("a", "1", "b", "3"), labels.FromStrings("a", "12"), labels.FromStrings("a", "2", "b", "2"), labels.FromStrings("b", "2"),
	}
	for _, before := range sets {
		for _, after := range sets {
			got, err := Follows(Append(nil, before), Append(nil, after))
			if want := labels.Compare(after, before); err != nil || got > 0 != (want > 0) || got < 0 != (want < 0) {
				t.Errorf("%s before %s: %d, want %d; %v", before, after, got, want, err)
			}
		}
	}
}

func TestFollows_InvalidLabelSetIsAnError(t *testing.T) {
	set := func(pairs ...string) (dst []byte) {
		for i := 0; i < len(pairs); i += 2 {
			dst = AppendLabel(dst, pairs[i], pairs[i+1])
		}
		return dst
	}
	good := set("a", "1", "b", "2", "c", "3")
	for name, bad := range map[string][]byte{
		"a name twice":                     set("a", "1", "a", "2"),
		"a name twice behind what is same": set("a", "1", "b", "2", "b", "3"),
		"not sorted":                       set("b", "1", "a", "2"),
		"not sorted behind what is same":   set("a", "1", "b", "2", "aa", "3"),
		"no name":                          set("", "1"),
		"no name behind what is same":      set("a", "1", "", "2"),
		"cut short":                        good[:len(good)-1],
	} {
		for _, before := range [][]byte{nil, good, set("a", "1")} {
			if _, err := Follows(before, bad); err == nil {
				t.Errorf("%s after %q is taken", name, before)
			}
		}
	}
}
