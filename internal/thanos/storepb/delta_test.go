package storepb

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"pgregory.net/rapid"

	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// anySet draws a label set. Its values have parts in common with those of other sets.
func anySet(t *rapid.T) []byte {
	b := labels.NewBuilder(labels.EmptyLabels())
	for _, name := range []string{"__name__", "a", "aa", "b", "instance", "job", "z"} {
		if rapid.Bool().Draw(t, name) {
			b.Set(name, rapid.SampledFrom([]string{"10.0.0.", "same", "x", "y", ""}).Draw(t, "front")+rapid.SampledFrom([]string{"1", "2", "12", "21", "", string(bytes.Repeat([]byte("v"), 200))}).Draw(t, "value")+
				rapid.SampledFrom([]string{":9100", ""}).Draw(t, "end"))
		}
	}
	return labelenc.Append(nil, b.Labels())
}

func TestDelta_RoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		previous, set := anySet(t), anySet(t)
		delta, _, err := appendDelta([]byte("before"), previous, set)
		if err != nil {
			t.Fatal(err)
		}
		got, err := applyDelta([]byte("before"), previous, delta[len("before"):])
		if err != nil || !bytes.Equal(got, append([]byte("before"), set...)) {
			t.Fatalf("%q after %q: %q by %q, %v", set, previous, got, delta, err)
		}
		if len(delta)-len("before") > len(set)+len(previous) {
			t.Fatalf("%d bytes for a set of %d bytes after one of %d", len(delta), len(set), len(previous))
		}
	})
}

func TestAppendDelta_HasOnlyTheBytesThatDiffer(t *testing.T) {
	of := func(pairs ...string) []byte { return labelenc.Append(nil, labels.FromStrings(pairs...)) }
	base := of("__name__", "up", "cluster", "eu", "instance", "10.0.0.1:9100", "job", "node", "pod", "node-1-x")
	for _, tt := range []struct {
		name  string
		set   []byte
		delta string
	}{
		{"the same", base, "\x03"},
		{"one value", of("__name__", "up", "cluster", "eu", "instance", "10.0.0.27:9100", "job", "node", "pod", "node-1-x"), "\x10\x07\x05\x0227"},
		{"two values", of("__name__", "up", "cluster", "eu", "instance", "10.0.0.27:9100", "job", "node", "pod", "node-2-x"), "\x10\x07\x05\x0227\x08\x05\x02\x012"},
		{"values of the same length", of("__name__", "up", "cluster", "eu", "instance", "10.0.0.2:9100", "job", "node", "pod", "node-2-x"), "\x03\x34\x012\x20\x012"},
		{"bytes near each other", of("__name__", "up", "cluster", "eu", "instance", "10.0.0.1:9100", "job", "node", "pod", "nodf-2-x"), "\x03\x53\x03f-2"},
		{"bytes far from each other", of("__name__", "uq", "cluster", "eu", "instance", "10.0.0.1:9100", "job", "node", "pod", "node-1-y"), "\x03\x0f\x01q\x47\x01y"},
		{"one label less", of("__name__", "up", "cluster", "eu", "job", "node", "pod", "node-1-x"), "\x12"},
		{"one label more", of("__name__", "up", "cluster", "eu", "env", "dev", "instance", "10.0.0.1:9100", "job", "node", "pod", "node-1-x"), "\x11\x03env\x03dev"},
		{"no label", nil, "\x02\x02\x02\x02\x02"},
	} {
		delta, _, err := appendDelta(nil, base, tt.set)
		if err != nil || string(delta) != tt.delta {
			t.Errorf("%s: %q, want %q, %v", tt.name, delta, tt.delta, err)
		}
	}
	if delta, _, err := appendDelta(nil, nil, of("a", "1", "b", "22")); err != nil || string(delta) != "\x01\x01a\x011\x01\x01b\x0222" {
		t.Errorf("after nothing: %q, %v", delta, err)
	}
}

func TestDelta_OmittedEmptyValueIsWritten(t *testing.T) {
	omitted := []byte{10, 3, 10, 1, 'a'}
	for _, previous := range [][]byte{nil, labelenc.Append(nil, labels.FromStrings("a", "1")), labelenc.AppendLabel(nil, "a", "")} {
		delta, _, err := appendDelta(nil, previous, omitted)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := applyDelta(nil, previous, delta); err != nil || !bytes.Equal(got, labelenc.AppendLabel(nil, "a", "")) {
			t.Errorf("%q, %v", got, err)
		}
	}
}

func TestAppendDelta_InvalidLabelSetIsAnError(t *testing.T) {
	good := labelenc.Append(nil, labels.FromStrings("a", "1", "b", "2"))
	for n := range len(good) {
		if n == 0 || n == len(good)/2 {
			continue // no label, or one
		}
		if _, _, err := appendDelta(nil, nil, good[:n]); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

func TestApplyDelta_InvalidDeltaIsCorrupt(t *testing.T) {
	previous := labelenc.Append(nil, labels.FromStrings("a", "123", "b", "4"))
	for name, delta := range map[string]string{
		"unknown kind":               "\x07",
		"copies too many labels":     "\x18\x00\x00\x00",
		"copies endlessly":           "\xf8\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00\x00\x00",
		"replaces behind the end":    "\x10\x00\x00\x00",
		"drops behind the end":       "\x12",
		"keeps too long a prefix":    "\x00\x04\x00\x00",
		"keeps too long a suffix":    "\x00\x00\x04\x00",
		"keeps more than there is":   "\x00\x02\x02\x00",
		"keeps an overflowing sum":   "\x00\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00",
		"a replacement without size": "\x00\x00\x00",
		"a replacement cut short":    "\x00\x00\x00\x02x",
		"no prefix":                  "\x00",
		"no suffix":                  "\x00\x00",
		"an inserted name cut short": "\x01\x02x",
		"an inserted value missing":  "\x01\x01x",
		"no varint":                  "\xff",
		"patches behind the end":     "\x03\x14\x01x",
		"keeps more than all":        "\x03\x15\x00",
		"keeps endlessly":            "\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x01x",
		"a patch without length":     "\x03\x01",
		"a patch cut short":          "\x03\x01\x02x",
		"a patch behind the labels":  "\x13\x00\x01x",
	} {
		if got, err := applyDelta(nil, previous, []byte(delta)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// A set with an empty value has two encodings, with the value and without. A delta changes bytes of the encoded set before
// it, so the writer must know which encoding of that set the reader has.
func TestDeltaWriter_SetsThatOmitEmptyValues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, r := &DeltaWriter{}, &Decoder{}
		w.Begin()
		r.Begin()
		for range rapid.IntRange(1, 10).Draw(t, "sets") {
			var set []byte
			for _, name := range []string{"a", "b", "c"} {
				switch value := rapid.SampledFrom([]string{"none", "omitted", "", "12", "34", "5"}).Draw(t, name); value {
				case "none":
				case "omitted":
					set = append(set, 10, 3, 10, 1, name[0])
				default:
					set = labelenc.AppendLabel(set, name, value)
				}
			}
			message, err := w.AppendSeries(nil, set, 0)
			if err != nil {
				t.Fatal(err)
			}
			body, _, _ := prefixed(message[1:])
			var got []byte
			if got, _, err = r.DeltaSeries(body, nil); err != nil || labelenc.Compare(got, set) != 0 {
				t.Fatalf("%q, want %q, %v", got, set, err)
			}
		}
	})
}

// FuzzDelta applies any delta to any set, and checks that two sets make the round trip if they are valid.
func FuzzDelta(f *testing.F) {
	one, two := labelenc.Append(nil, labels.FromStrings("a", "123", "b", "4")), labelenc.Append(nil, labels.FromStrings("a", "1x3", "c", "4"))
	delta, _, err := appendDelta(nil, one, two)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(one, two, delta)
	f.Add([]byte(nil), one, []byte("\x01\x01a\x011"))
	f.Add(one, one, []byte("\xf8\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, previous, set, delta []byte) {
		got, err := applyDelta(nil, previous, delta)
		if err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
		if len(got) > len(previous)+12*len(delta) {
			t.Fatalf("%d bytes of %d and %d", len(got), len(previous), len(delta))
		}
		if labelenc.Validate(previous) != nil || labelenc.Validate(set) != nil {
			return
		}
		made, _, err := appendDelta(nil, previous, set)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := applyDelta(nil, previous, made); err != nil || labelenc.Compare(got, set) != 0 {
			t.Fatalf("%q after %q is %q, %v", set, previous, got, err)
		}
	})
}

func TestDelta_DoesNotAllocate(t *testing.T) {
	previous := labelenc.Append(nil, labels.FromStrings("__name__", "up", "instance", "10.0.0.1:9100", "job", "node"))
	set := labelenc.Append(nil, labels.FromStrings("__name__", "up", "instance", "10.0.0.2:9100", "pod", "node"))
	var delta, again []byte
	if n := testing.AllocsPerRun(100, func() {
		var err error
		if delta, _, err = appendDelta(delta[:0], previous, set); err != nil {
			t.Fatal(err)
		}
		if again, err = applyDelta(again[:0], previous, delta); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%g allocations", n)
	}
}

func BenchmarkDelta(b *testing.B) {
	var sets, deltas [][]byte
	for i := range 1000 {
		sets = append(sets, labelenc.Append(nil, labels.FromStrings("__name__", "container_network_receive_bytes_total", "cluster", "eu-west-1-production", "instance", fmt.Sprintf("10.32.%05d:10250", i),
			"job", "kubernetes-pods", "namespace", fmt.Sprintf("team-%02d", i%20), "node", fmt.Sprintf("ip-10-0-%03d.eu-west-1.compute.internal", i%100), "pod", fmt.Sprintf("service-%03d-abcdef01-%05d", i%250, i))))
		if i > 0 {
			delta, _, err := appendDelta(nil, sets[i-1], sets[i])
			if err != nil {
				b.Fatal(err)
			}
			deltas = append(deltas, delta)
		}
	}
	var buf []byte
	var err error
	b.Run("append", func(b *testing.B) {
		for n := 0; b.Loop(); n++ {
			i := n % len(deltas)
			if buf, _, err = appendDelta(buf[:0], sets[i], sets[i+1]); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("apply", func(b *testing.B) {
		for n := 0; b.Loop(); n++ {
			i := n % len(deltas)
			if buf, err = applyDelta(buf[:0], sets[i], deltas[i]); err != nil {
				b.Fatal(err)
			}
		}
	})
}
