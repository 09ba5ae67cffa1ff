package pprof

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestEncoder_BytesIsTheSizeOfTheProfile(t *testing.T) {
	e := NewEncoder()
	for i, add := range []func(){
		func() {},
		func() { e.SampleType("cpu", "nanoseconds") },
		func() { e.Period("cpu", "nanoseconds", 1000) },
		func() { e.Times(5, 6) },
		func() { e.Function("f", "system", "f.go", 3) },
		func() { e.Location(1, 4) },
		func() { e.LabelledSample([]uint64{1}, [][2]string{{"key", "value"}}, 7) },
	} {
		add()
		if got, want := e.Bytes(), len(e.Append(nil)); got != want {
			t.Errorf("after step %d: %d bytes, want %d", i, got, want)
		}
	}
}

// The last byte of a location is the tag of a line.
func TestProfile_DecodeLocationThatEndsWithATag(t *testing.T) {
	var p Profile
	err := p.Decode(append(begin(), message(4, number(1, 1), []byte{4<<3 | 2})...), plainLimits())
	if !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
}

// Messages of numbers may have unknown fields of bytes with low numbers, whose content must not be read as fields.
func TestProfile_DecodeUnknownBytesAmongNumbers(t *testing.T) {
	unknown := message(6, number(1, 77), number(2, 2))
	var p Profile
	err := p.Decode(slices.Concat(begin(), message(5, number(1, 3), number(2, 1), unknown), message(4, number(1, 1), message(4, number(1, 3)))), plainLimits())
	if err != nil || len(p.Functions) != 1 || p.Functions[0].Name != 1 || len(p.Lines) != 1 || p.Lines[0].Function != 0 {
		t.Errorf("%v, functions %+v, lines %+v", err, p.Functions, p.Lines)
	}
}

// Ids below the size of a slice are looked up in the slice, greater ids in a map.
func TestProfile_DecodeIDsAroundTheSizeOfTheTable(t *testing.T) {
	for id := uint64(60); id < 75; id++ { // a table of one message has 66 slots
		var p Profile
		raw := slices.Concat(begin(), message(5, number(1, id), number(2, 1)), message(4, number(1, id), message(4, number(1, id)), message(4, number(1, id+1)), message(4, number(1, id-1))), message(2, number(1, id), number(2, 5)))
		if err := p.Decode(raw, plainLimits()); err != nil || len(p.Samples) != 1 || p.Repairs.Function != 2 || !slices.Equal(p.Stack(&p.Samples[0]), []uint32{0}) {
			t.Errorf("id %d: %v, %+v", id, err, p.Repairs)
		}
	}
}

func TestProfile_DecodeWithoutTimesAndPeriod(t *testing.T) {
	var p Profile
	if err := p.Decode(slices.Concat(begin(), number(9, 1), number(10, 2), message(11, number(1, 1)), number(12, 3)), plainLimits()); err != nil || p.Period != 3 {
		t.Fatal(err, p.Period)
	}
	if err := p.Decode(begin(), plainLimits()); err != nil || p.TimeNS != 0 || p.DurationNS != 0 || p.Period != 0 || p.PeriodType != (ValueType{}) {
		t.Errorf("%v: %d %d %d %v", err, p.TimeNS, p.DurationNS, p.Period, p.PeriodType)
	}
	if err := p.Decode(nil, plainLimits()); err == nil || p.Nodes() != 0 {
		t.Errorf("%v, %d nodes", err, p.Nodes())
	}
}

// A dropped sample leaves neither values nor labels.
func TestProfile_DecodeNegativeSampleBetweenOthers(t *testing.T) {
	good, bad := message(2, number(2, 1)), message(2, number(2, 1<<64-1), message(3, number(1, 1), number(2, 2)))
	var p Profile
	if err := p.Decode(slices.Concat(begin(), good, bad, good, bad), plainLimits()); err != nil || len(p.Samples) != 2 || p.HasLabels() || p.Repairs.Negative != 2 {
		t.Errorf("%v, %d samples, labels %v, %+v", err, len(p.Samples), p.HasLabels(), p.Repairs)
	}
}

// The stack has more locations than the depth divided by the widest of them, but few frames.
func TestProfile_DecodeKeepsStacksOfFewFrames(t *testing.T) {
	line := message(4, number(1, 1))
	locations := slices.Concat(message(5, number(1, 1), number(2, 1)), message(4, number(1, 1), line), message(4, number(1, 2), line, line))
	stack := func(n int) []byte { return message(2, slices.Repeat(number(1, 1), n), number(2, 5)) }
	limits := plainLimits()
	limits.Depth = 3
	var p Profile
	if err := p.Decode(slices.Concat(begin(), locations, stack(2), stack(2), stack(3)), limits); err != nil || p.Repairs != (Repairs{}) {
		t.Fatal(err, p.Repairs)
	}
	for i, want := range []int{2, 2, 3} {
		if got := len(p.Stack(&p.Samples[i])); got != want {
			t.Errorf("stack %d has %d locations, want %d", i, got, want)
		}
	}
}

// Fields that are not known, or of another type, are skipped whole, next to each message's shortcut for usual fields.
func TestProfile_DecodeSkipsUnusualFields(t *testing.T) {
	fixed := func(field byte) []byte { return []byte{field<<3 | 1, 1, 1, 1, 1, 1, 1, 1, 1} }
	far := []byte{0x80, 1, 5}                                                       // field 16
	last := []byte{0xF8, 0xFF, 0xFF, 0xFF, 0x0F, 1}                                 // field 2^29-1
	line := message(4, number(1, 1), number(2, 7), bytes.Repeat(number(15, 1), 62)) // of 128 bytes
	if len(line) != 3+128 {
		t.Fatalf("%d bytes", len(line))
	}
	text := message(6, bytes.Repeat([]byte("x"), 200))
	var p Profile
	err := p.Decode(slices.Concat(far, last, begin(), fixed(8), message(5, fixed(7), number(8, 9), number(1, 1), number(2, 1)), message(4, fixed(5), number(8, 9), far, line, number(1, 1)), text), plainLimits())
	if err != nil || p.Functions[0].Name != 1 || len(p.Lines) != 1 || p.Lines[0].Line != 7 || p.Lines[0].Function != 0 || len(p.Text(3)) != 200 {
		t.Errorf("%v, %+v, %+v", err, p.Functions, p.Lines)
	}
	if err := p.Decode(slices.Concat(begin(), []byte{15<<3 | 3, 0}), plainLimits()); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "wire type 3") {
		t.Errorf("the start of a group: %v", err)
	}
}

func TestProfile_NodesAtTheLimitAreCountedExactly(t *testing.T) {
	e := NewEncoder()
	e.SampleType("a", "b")
	at := e.Location(e.Function("f", "", "", 0), 1)
	for range 3 {
		e.Sample([]uint64{at, at}, 1)
	}
	for limit, want := range map[int]int{7: 6, 6: 6, 5: 2, 2: 2} {
		var p Profile
		if err := p.Decode(e.Append(nil), Limits{Nodes: limit}); err != nil || p.Nodes() != want {
			t.Errorf("at most %d: %d nodes, want %d, %v", limit, p.Nodes(), want, err)
		}
	}
}

func TestEncoder_SampleWithoutStackHasNoFieldOfLocations(t *testing.T) {
	e := NewEncoder()
	e.Sample(nil, 7)
	e.Sample([]uint64{1}, 7)
	if want := slices.Concat(message(2, []byte{2<<3 | 2, 1, 7}), message(2, []byte{1<<3 | 2, 1, 1, 2<<3 | 2, 1, 7})); !bytes.Equal(e.samples, want) {
		t.Errorf("% x, want % x", e.samples, want)
	}
}

func TestProfile_AppendRenamedOfABrokenProfile(t *testing.T) {
	var p Profile
	if err := p.Decode(append(begin(), 15<<3|4), plainLimits()); err == nil {
		t.Fatal("no error")
	}
	if out, err := p.AppendRenamed([]byte("kept"), nil); !errors.Is(err, ErrCorrupt) || string(out) != "kept" {
		t.Errorf("%q, %v", out, err)
	}
}

// Lengths below 128 have one byte, those below 16,384 two.
func TestProfile_DecodeTextsOfLengthsAroundThoseOfOneAndTwoBytes(t *testing.T) {
	for _, n := range []int{0, 1, 126, 127, 128, 129, 1000, 16383, 16384, 16385} {
		text := bytes.Repeat([]byte("x"), n)
		raw := append(begin(), message(6, text)...)
		var p Profile
		if err := p.Decode(raw, plainLimits()); err != nil || !bytes.Equal(p.Text(uint32(p.Strings()-1)), text) {
			t.Fatalf("%d bytes: %v", n, err)
		}
		for cut := len(begin()) + 1; cut < len(raw); cut += 1 + n/50 {
			if err := p.Decode(raw[:cut], plainLimits()); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%d bytes cut after %d: %v", n, cut-len(begin()), err)
			}
		}
	}
}
