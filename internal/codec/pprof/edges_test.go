package pprof

import (
	"errors"
	"slices"
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
