package labelenc

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
)

// label sets in the order of labels.Compare
var sets = []labels.Labels{
	labels.EmptyLabels(),
	labels.FromStrings("a", "1"),
	labels.FromStrings("a", "1", "b", "2"),
	labels.FromStrings("a", "1", "bb", "1"),
	labels.FromStrings("a", "1", "c", "0"),
	labels.FromStrings("a", "10"),
	labels.FromStrings("a", "2"),
	labels.FromStrings("a", strings.Repeat("2", 127)),
	labels.FromStrings("a", strings.Repeat("2", 128)),
	labels.FromStrings("a", strings.Repeat("2", 300), "b", "1"),
	labels.FromStrings("a", "é"),
	labels.FromStrings("aa", "1"),
	labels.FromStrings("b", ""),
}

func sign(n int) int { return max(-1, min(1, n)) }

func TestCompare_EqualsLabelsCompare(t *testing.T) {
	for _, a := range sets {
		for _, b := range sets {
			if got, want := sign(Compare(Append(nil, a), Append(nil, b))), sign(labels.Compare(a, b)); got != want {
				t.Errorf("Compare(%s, %s) = %d, want %d", a, b, got, want)
			}
		}
	}
}

func TestAppend_EqualsPrometheusEncoding(t *testing.T) {
	for _, set := range sets {
		if set.Has("b") && set.Get("b") == "" {
			continue // the peer omits an empty value
		}
		peer := prompb.ChunkedSeries{Labels: prompb.FromLabels(set, nil)}
		want, err := peer.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if got := Append(nil, set); !bytes.Equal(got, want) {
			t.Errorf("%s: %x, want %x", set, got, want)
		}
	}
}

func TestLabels_RoundTrip(t *testing.T) {
	builder := labels.NewScratchBuilder(4)
	for _, want := range sets {
		encoded := Append(nil, want)
		if err := Validate(encoded); err != nil {
			t.Errorf("%s: %v", want, err)
		}
		got, err := Labels(encoded, &builder)
		if err != nil || !labels.Equal(got, want) {
			t.Errorf("%s came back as %s, %v", want, got, err)
		}
	}
}

func TestAppendSymbols_CopiesIndexSymbols(t *testing.T) {
	symbol := func(s string) []byte { return append([]byte{byte(len(s))}, s...) }
	got := AppendSymbols(nil, symbol("job"), symbol("node"))
	if want := AppendLabel(nil, "job", "node"); !bytes.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
}

func TestAppendMerged_PrimaryWins(t *testing.T) {
	external := labels.FromStrings("b", "ext", "d", "ext")
	for _, tt := range []struct{ own, want labels.Labels }{
		{labels.EmptyLabels(), external},
		{labels.FromStrings("a", "1"), labels.FromStrings("a", "1", "b", "ext", "d", "ext")},
		{labels.FromStrings("b", "1"), labels.FromStrings("b", "1", "d", "ext")},
		{labels.FromStrings("c", "1", "d", "2", "e", "3"), labels.FromStrings("b", "ext", "c", "1", "d", "2", "e", "3")},
	} {
		got, err := AppendMerged(nil, Append(nil, tt.own), Append(nil, external))
		if want := Append(nil, tt.want); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %q, %v", tt.own, got, err)
		}
	}
}

func TestAll_ReturnsTheLabelsUpToTheDamage(t *testing.T) {
	for _, want := range sets {
		got := labels.NewScratchBuilder(0)
		all := All(append(Append(nil, want), 1))
		for range 2 { // it can be read again
			got.Reset()
			for name, value := range all {
				got.Add(string(name), string(value))
			}
			if !labels.Equal(got.Labels(), want) {
				t.Errorf("%s, want %s", got.Labels(), want)
			}
		}
		for range all {
			break
		}
	}
}

func TestValue_ReturnsTheValueOrNil(t *testing.T) {
	set := Append(nil, labels.FromStrings("a", "1", "b", "22", "job", ""))
	for name, want := range map[string]string{"a": "1", "b": "22", "c": "", "": "", "aa": ""} {
		if got := Value(set, name); string(got) != want {
			t.Errorf("%q: %q", name, got)
		}
	}
	if Value(set, "a") == nil || Value(set, "c") != nil || Value(nil, "a") != nil {
		t.Error("nil stands for a label that is not there")
	}
	if got := Value(set[:len(set)-1], "b"); string(got) != "22" {
		t.Errorf("before the damage: %q", got)
	}
	if got := Value(set[1:], "b"); got != nil {
		t.Errorf("behind the damage: %q", got)
	}
}

func TestValidate_InvalidLabelSetIsAnError(t *testing.T) {
	good := AppendLabel(AppendLabel(nil, "a", "1"), "b", "2")
	for name, set := range map[string][]byte{
		"cut short":      good[:len(good)-1],
		"wrong tag":      {0x12, 0},
		"unknown field":  {0x0A, 2, 0x1A, 0},
		"no name":        AppendLabel(nil, "", "1"),
		"twice a name":   AppendLabel(AppendLabel(nil, "a", "1"), "a", "2"),
		"unsorted":       AppendLabel(AppendLabel(nil, "b", "1"), "a", "2"),
		"value first":    {0x0A, 6, 0x12, 1, '1', 0x0A, 1, 'a'},
		"name twice":     {0x0A, 9, 0x0A, 1, 'b', 0x0A, 1, 'a', 0x12, 1, '1'},
		"value twice":    {0x0A, 9, 0x0A, 1, 'a', 0x12, 1, '2', 0x12, 1, '1'},
		"padded label":   {0x0A, 0x86, 0, 0x0A, 1, 'a', 0x12, 1, '1'},
		"padded name":    {0x0A, 7, 0x0A, 0x81, 0, 'a', 0x12, 1, '1'},
		"padded value":   {0x0A, 7, 0x0A, 1, 'a', 0x12, 0x81, 0, '1'},
		"endless length": {0x0A, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F},
	} {
		if err := Validate(set); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := Validate(good); err != nil {
		t.Error(err)
	}
}

// A cut set ends inside a label, including where lengths have two bytes.
func TestValidate_CutLabelSetIsAnError(t *testing.T) {
	for _, set := range sets {
		whole := Append(nil, set)
		ends := map[int]bool{0: true} // offsets of the ends of labels
		for rest := whole; len(rest) > 0; {
			_, _, after, err := Next(rest)
			if err != nil {
				t.Fatal(err)
			}
			rest = after
			ends[len(whole)-len(rest)] = true
		}
		for n := range whole {
			if ends[n] {
				continue
			}
			cut := whole[:n:n]
			Compare(cut, whole)
			Compare(whole, cut)
			if err := Validate(cut); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%d of %d bytes: %v", n, len(whole), err)
			}
			for _, before := range [][]byte{nil, whole, cut[:n-1]} {
				if _, err := Follows(before, cut); !errors.Is(err, ErrCorrupt) {
					t.Errorf("%d of %d bytes after %d: %v", n, len(whole), len(before), err)
				}
			}
		}
	}
}

// Some peers write an empty value and some omit it.
func TestCompare_OmittedEmptyValueIsEqual(t *testing.T) {
	without := []byte{tagLabel, 3, tagName, 1, 'a'}
	b1, b2 := AppendLabel(nil, "b", "1"), AppendLabel(nil, "b", "2")
	with := AppendLabel(nil, "a", "")
	for _, c := range []struct {
		a, b []byte
		want int
	}{{with, without, 0}, {append(bytes.Clone(with), b1...), append(bytes.Clone(without), b2...), -1}, {append(bytes.Clone(without), b2...), append(bytes.Clone(with), b1...), 1}, {append(bytes.Clone(without), b1...), with, 1}} {
		if got := sign(Compare(c.a, c.b)); got != c.want || Validate(c.a) != nil || Validate(c.b) != nil {
			t.Errorf("%q, %q: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func FuzzLabelSet(f *testing.F) {
	for _, set := range sets {
		f.Add(Append(nil, set), Append(nil, sets[2]))
	}
	long := Append(nil, sets[9])
	f.Add(long[:len(long)-1], long)
	f.Add([]byte{tagLabel, 3, tagName, 1, 'b'}, Append(nil, sets[12]))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		Compare(a, b)
		LastName(a)
		if Validate(a) != nil {
			return
		}
		builder := labels.NewScratchBuilder(4)
		set, err := Labels(a, &builder)
		if err != nil {
			t.Fatal(err)
		}
		if Validate(b) != nil {
			return
		}
		other, err := Labels(b, &builder)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := sign(Compare(Append(nil, set), Append(nil, other))), sign(labels.Compare(set, other)); got != want {
			t.Fatalf("Compare(%s, %s) = %d, want %d", set, other, got, want)
		}
		if got, want := sign(Compare(a, b)), sign(labels.Compare(set, other)); got != want {
			t.Fatalf("Compare(%x, %x) = %d, want %d", a, b, got, want)
		}
		merged, err := AppendMerged(nil, Append(nil, set), Append(nil, other))
		if err != nil || Validate(merged) != nil {
			t.Fatalf("merged: %v, %v", err, Validate(merged))
		}
	})
}

func TestLabelenc_DoesNotAllocate(t *testing.T) {
	a, b := Append(nil, sets[2]), Append(nil, sets[3])
	buf := make([]byte, 0, 1024)
	n := testing.AllocsPerRun(100, func() {
		buf = AppendLabel(buf[:0], "job", "node")
		buf, _ = AppendMerged(buf[:0], a, b)
		if Compare(a, b) >= 0 || Validate(a) != nil {
			t.Fatal("wrong")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkCompare(b *testing.B) {
	for _, last := range []string{"pod", "value"} {
		b.Run(fmt.Sprintf("differs in %s", last), func(b *testing.B) {
			b.ReportAllocs()
			x := Append(nil, labels.FromStrings("__name__", "container_cpu_usage", "cluster", "eu", "container", "c1", "instance", "10.0.0.1:9100", "job", "pods", "pod", "p-1"))
			y := Append(nil, labels.FromStrings("__name__", "container_cpu_usage", "cluster", "eu", "container", "c1", "instance", "10.0.0.1:9100", "job", "pods", last, "p-2"))
			for b.Loop() {
				Compare(x, y)
			}
		})
	}
}

func TestLabels_CopiesTheSet(t *testing.T) {
	builder := labels.NewScratchBuilder(4)
	set := AppendLabel(AppendLabel(nil, "a", "first"), "b", "second")
	got, err := Labels(set, &builder)
	if err != nil {
		t.Fatal(err)
	}
	for i := range set {
		set[i] = 'x'
	}
	if got.String() != `{a="first", b="second"}` {
		t.Fatalf("changed with the bytes it was made from: %s", got)
	}
	set = AppendLabel(AppendLabel(set[:0], "a", "first"), "b", "second")
	if n := testing.AllocsPerRun(100, func() { got, _ = Labels(set, &builder) }); n > 1 {
		t.Errorf("%.0f allocations", n)
	}
}

func TestOverwrite_DecodesIntoTheMemoryOfTheBuilder(t *testing.T) {
	var builder labels.ScratchBuilder
	var got labels.Labels
	first := AppendLabel(AppendLabel(nil, "a", "first"), "b", "second")
	second := AppendLabel(nil, "c", "x")
	for set, want := range map[*[]byte]string{&first: `{a="first", b="second"}`, &second: `{c="x"}`, {}: `{}`} {
		if err := Overwrite(&got, *set, &builder); err != nil || got.String() != want {
			t.Errorf("%s %v, want %s", got, err, want)
		}
	}
	if n := testing.AllocsPerRun(100, func() { _ = Overwrite(&got, first, &builder) }); n != 0 {
		t.Errorf("%.0f allocations", n)
	}
	if err := Overwrite(&got, first[:5], &builder); !errors.Is(err, ErrCorrupt) || !got.IsEmpty() {
		t.Errorf("cut short: %s %v", got, err)
	}
}

func TestAppendWithout_LeavesOutTheNames(t *testing.T) {
	set := Append(nil, labels.FromStrings("a", "1", "b", "2", "bb", "3", "c", "4"))
	for want, names := range map[string][]string{
		`{a="1", b="2", bb="3", c="4"}`: {"d"}, `{a="1", bb="3", c="4"}`: {"b"}, `{bb="3"}`: {"a", "c", "b"}, `{}`: {"a", "b", "bb", "c"},
	} {
		got, err := AppendWithout(nil, set, names)
		if err != nil {
			t.Fatal(err)
		}
		var builder labels.ScratchBuilder
		if lset, err := Labels(got, &builder); err != nil || lset.String() != want {
			t.Errorf("without %q: %s %v, want %s", names, lset, err, want)
		}
	}
	if _, err := AppendWithout(nil, set[:len(set)-1], []string{"a"}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a set that is cut: %v", err)
	}
}
