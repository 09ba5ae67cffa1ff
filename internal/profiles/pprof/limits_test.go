package pprof

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
)

func TestRepairs_EachNamesTheReasonsThatOccurred(t *testing.T) {
	var got []string
	note := func(reason string, n int) { got = append(got, fmt.Sprint(reason, " ", n)) }
	Repairs{}.Each(note)
	Repairs{Depth: 1, Negative: 2, Location: 3, Function: 4, Mapping: 5, Time: 6, Labels: 7}.Each(note)
	if want := "depth 1, negative_value 2, missing_location 3, missing_function 4, missing_mapping 5, time_unit 6, sample_labels 7"; strings.Join(got, ", ") != want {
		t.Errorf("%q", got)
	}
}

// begin is the texts "", a and b, and one sample type.
func begin() []byte {
	return bytes.Join([][]byte{message(6), message(6, []byte("a")), message(6, []byte("b")), message(1, number(1, 1), number(2, 2))}, nil)
}

func plainLimits() Limits {
	return Limits{Bytes: 1 << 20, Strings: 10, Functions: 10, Locations: 10, Samples: 10, Depth: 10, Nodes: 100, SampleTypes: 10}
}

// A profile at a limit is decoded. A profile that exceeds the limit by one is not.
func TestProfile_DecodeUpToEachLimit(t *testing.T) {
	ids := func(field int) func(n int) []byte {
		return func(n int) (b []byte) {
			for i := range n {
				b = append(b, message(field, number(1, uint64(i)+1))...)
			}
			return b
		}
	}
	for name, tt := range map[string]struct {
		most int
		of   func(n int) []byte
	}{
		"strings":      {10 - 3, func(n int) []byte { return bytes.Repeat(message(6), n) }},
		"functions":    {10, ids(5)},
		"mappings":     {10, ids(3)},
		"locations":    {10, ids(4)},
		"samples":      {10, func(n int) []byte { return bytes.Repeat(message(2, number(2, 1)), n) }},
		"sample types": {10 - 1, func(n int) []byte { return bytes.Repeat(message(1), n) }},
	} {
		var p Profile
		if err := p.Decode(append(begin(), tt.of(tt.most)...), plainLimits()); err != nil {
			t.Errorf("as many %s as there may be: %v", name, err)
		}
		if err := p.Decode(append(begin(), tt.of(tt.most+1)...), plainLimits()); !errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), name) {
			t.Errorf("one more of the %s: %v", name, err)
		}
	}
}

func TestProfile_DecodeUpToItsLimitOfBytes(t *testing.T) {
	raw := append(begin(), message(2, number(2, 1))...)
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(raw); err != nil {
		t.Fatal(err)
	}
	must(t, z.Close())
	for name, b := range map[string][]byte{"plain": raw, "compressed": zipped.Bytes()} {
		var p Profile
		limits := plainLimits()
		for range 2 { // the second time with the memory of the first
			limits.Bytes = len(raw)
			if err := p.Decode(b, limits); err != nil || p.RawBytes() != len(raw) || p.Strings() != 3 || p.HasLabels() || len(p.Samples) != 1 {
				t.Errorf("%s: %v, %d bytes, %d strings", name, err, p.RawBytes(), p.Strings())
			}
			limits.Bytes--
			if err := p.Decode(b, limits); !errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), "bytes") {
				t.Errorf("%s, a byte more: %v", name, err)
			}
		}
		for n := range zipped.Len() {
			if name == "compressed" && n > 0 {
				if err := p.Decode(b[:n], plainLimits()); !errors.Is(err, ErrCorrupt) || n > 1 && !strings.Contains(err.Error(), "gzip") {
					t.Errorf("%d of %d bytes: %v", n, len(b), err)
				}
			}
		}
		if err := p.Decode(b, plainLimits()); err != nil {
			t.Errorf("%s, after failures: %v", name, err)
		}
	}
}

func TestProfile_DecodeBrokenMessages(t *testing.T) {
	endless := bytes.Repeat([]byte{0xFF}, 12)
	packed := func(field int, b ...byte) []byte { return message(field, b) }
	for name, tt := range map[string]struct {
		raw  []byte
		text string
	}{
		"field 0":                    {[]byte{0x02, 0}, "no field"},
		"a field number beyond 2^29": {append(binary.AppendUvarint(nil, 1<<32), 0), "no field"},
		"8 bytes of 7":               {append([]byte{15<<3 | 1}, make([]byte, 7)...), "field 15"},
		"4 bytes of 3":               {append([]byte{15<<3 | 5}, make([]byte, 3)...), "field 15"},
		"the end of a group":         {[]byte{15<<3 | 4}, "wire type 4"},
		"a length without end":       {append([]byte{15<<3 | 2}, endless...), "longer than its message"},
		"a number without end":       {append([]byte{15 << 3}, endless...), "cut short"},
		"a sample type cut short":    {packed(1, 1<<3), "field 1"},
		"a sample type as number":    {number(1, 1), "wire type"},
		"a period type cut short":    {packed(11, 1<<3), "field 1"},
		"a period type as number":    {number(11, 1), "wire type"},
		"a mapping cut short":        {packed(3, 1<<3), "field 1"},
		"a mapping as number":        {number(3, 1), "wire type"},
		"a function cut short":       {packed(5, 1<<3), "field 1"},
		"a function as number":       {number(5, 1), "wire type"},
		"a string as number":         {number(6, 1), "wire type"},
		"a location cut short":       {packed(4, 1<<3), "field 1"},
		"a location as number":       {number(4, 1), "wire type"},
		"an address without end":     {packed(4, append([]byte{3 << 3}, endless...)...), "field 3"},
		"a line as number":           {message(4, number(4, 1)), "wire type"},
		"a line that is longer":      {packed(4, 4<<3|2, 3, 0), "longer than its message"},
		"a short line cut short":     {packed(4, 4<<3|2, 1, 1<<3), "field 1"},
		"a long line cut short":      {packed(4, 4<<3|2, 0x81, 0, 1<<3), "field 1"},
		"a sample cut short":         {packed(2, 1<<3), "field 1"},
		"locations without end":      {message(2, packed(1, endless...)), "locations of sample 0"},
		"locations cut short":        {message(2, packed(1, 0x80)), "locations of sample 0"},
		"values without end":         {message(2, packed(2, endless...)), "values of sample 0"},
		"values cut short":           {message(2, packed(2, 0x80)), "values of sample 0"},
		"a label as number":          {message(2, number(2, 1), number(3, 1)), "wire type"},
		"a label cut short":          {message(2, number(2, 1), packed(3, 1<<3)), "field 1"},
		"a sample with fewer values": {append(message(1), message(2, number(2, 1))...), "sample 0 has 1 values for 2"},
		"values for types not there": {append(message(2, number(2, 1), number(2, 1)), number(9, 1)...), "sample 0 has 2 values for 1"},
		"a mapping twice":            {append(message(3, number(1, 1)), message(3, number(1, 1))...), "mapping 1 has id 1"},
		"a mapping without id":       {message(3), "mapping 0 has id 0"},
		"a great id twice":           {append(message(5, number(1, 1<<40)), message(5, number(1, 1<<40))...), "function 1 has id"},
		"a function without id":      {append(message(5), message(5, number(1, 1))...), "function 0 has id 0"},
		"a type without unit":        {message(1, number(1, 1), number(2, 3)), "sample type 1"},
		"a period type without text": {message(11, number(1, 3)), "the period type has no string"},
		"a period type without unit": {message(11, number(2, 3)), "the period type has no string"},
		"a function without name":    {message(5, number(1, 1), number(2, 3)), "function 0 has no string"},
		"a function without system":  {message(5, number(1, 1), number(3, 3)), "function 0 has no string"},
		"a function without file":    {message(5, number(1, 1), number(4, 3)), "function 0 has no string"},
		"a mapping without file":     {message(3, number(1, 1), number(5, 3)), "mapping 0 has no string"},
		"a mapping without build ID": {message(3, number(1, 1), number(6, 3)), "mapping 0 has no string"},
		"a label without key":        {message(2, number(2, 1), message(3, number(1, 3))), "label 0 has no string"},
		"a label without text":       {message(2, number(2, 1), message(3, number(2, 3))), "label 0 has no string"},
		"a text beyond 32 bits":      {message(2, number(2, 1), message(3, number(2, 1<<32))), "label 0 has no string"},
	} {
		var p Profile
		err := p.Decode(append(begin(), tt.raw...), plainLimits())
		if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v, want %q", name, err, tt.text)
		}
	}
	values := bytes.Repeat(number(2, 1), 11)
	for name, raw := range map[string][]byte{"apart": message(2, values), "packed": message(2, message(2, bytes.Repeat([]byte{1}, 11)))} {
		var p Profile
		if err := p.Decode(append(begin(), raw...), plainLimits()); !errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), "values of one sample") {
			t.Errorf("too many values, %s: %v", name, err)
		}
	}
}

// Peers encode numbers in one, two or more bytes, in any order, with fields that are not known.
func TestProfile_DecodeNumbersOfAnyLength(t *testing.T) {
	unknown := bytes.Join([][]byte{number(15, 1<<40), message(14, []byte("x")), append([]byte{13<<3 | 1}, make([]byte, 8)...), append([]byte{13<<3 | 5}, make([]byte, 4)...)}, nil)
	for _, v := range []uint64{1, 127, 128, 1<<14 - 1, 1 << 14, 1 << 40, math.MaxInt64} {
		function := message(5, unknown, number(5, v), number(4, 1), number(3, 2), number(2, 1), number(1, v), unknown)
		mapping := message(3, number(6, 1), number(5, 2), number(4, v), number(3, v), number(2, v), number(1, v), unknown)
		line := func(pad []byte) []byte { return message(4, number(2, v), number(1, v), pad) }
		location := message(4, number(3, v), line(nil), unknown, line(bytes.Repeat(number(15, 1), 80)), number(2, v), number(1, v))
		sample := message(2, number(1, v), message(1, binary.AppendUvarint(binary.AppendUvarint(nil, v), v)), message(3, number(3, v), number(2, 2), number(1, 1)), unknown, message(2, binary.AppendUvarint(nil, v)))
		tail := bytes.Join([][]byte{number(9, v), number(10, v), message(11, number(1, 1), number(2, 2)), number(12, v), unknown}, nil)
		var p Profile
		if err := p.Decode(bytes.Join([][]byte{begin(), sample, location, mapping, function, tail}, nil), plainLimits()); err != nil {
			t.Fatal(v, err)
		}
		n := int64(v)
		f, m, l, s := p.Functions[0], p.Mappings[0], p.Locations[0], p.Samples[0]
		if f.Name != 1 || f.System != 2 || f.File != 1 || f.StartLine != n || m.Start != v || m.Limit != v || m.Offset != v || m.File != 2 || m.BuildID != 1 || l.Address != v || l.Mapping != 0 {
			t.Errorf("%d: %+v %+v %+v", v, f, m, l)
		}
		if lines := p.Lines[l.From:l.To]; len(lines) != 2 || lines[0].Line != n || lines[1].Line != n || lines[0].Function != 0 || lines[1].Function != 0 {
			t.Errorf("%d: %+v", v, lines)
		}
		if !slices.Equal(p.Stack(&s), []uint32{0, 0, 0}) || !slices.Equal(p.Values(&s), []int64{n}) || fmt.Sprint(p.Labels(&s)) != fmt.Sprint([]Label{{Key: 1, Text: 2, Number: n}}) || !p.HasLabels() {
			t.Errorf("%d: %v %v %v", v, p.Stack(&s), p.Values(&s), p.Labels(&s))
		}
		if p.TimeNS != n || p.DurationNS != n || p.Period != n || p.PeriodType != (ValueType{1, 2}) || p.Repairs != (Repairs{}) {
			t.Errorf("%d: %d %d %d %v %+v", v, p.TimeNS, p.DurationNS, p.Period, p.PeriodType, p.Repairs)
		}
	}
}

// Sample types may follow the samples.
func TestProfile_DecodeSampleTypesAtTheEnd(t *testing.T) {
	texts := bytes.Join([][]byte{message(6), message(6, []byte("a"))}, nil)
	sample := message(2, number(2, 3), number(2, 4))
	kind := message(1, number(1, 1))
	var p Profile
	if err := p.Decode(bytes.Join([][]byte{texts, sample, kind, kind}, nil), plainLimits()); err != nil || len(p.Samples) != 1 || !slices.Equal(p.Values(&p.Samples[0]), []int64{3, 4}) {
		t.Errorf("%v %v", err, p.Samples)
	}
	if err := p.Decode(bytes.Join([][]byte{texts, kind, kind, kind, sample, number(9, 1)}, nil), plainLimits()); !errors.Is(err, ErrCorrupt) {
		t.Errorf("fewer values than types: %v", err)
	}
}

// Functions that all lack an id belong to the locations in their order, if these fit.
func TestProfile_DecodeFunctionsWithoutIDs(t *testing.T) {
	function, line := message(5, number(2, 1)), message(4, number(2, 7))
	sample := message(2, number(1, 1), number(2, 5))
	for name, tt := range map[string]struct {
		parts []byte
		ok    bool
	}{
		"one of one":        {slices.Concat(function, message(4, number(1, 1), line)), true},
		"two of one":        {slices.Concat(function, function, message(4, number(1, 1), line)), false},
		"two lines":         {slices.Concat(function, message(4, number(1, 1), line, line)), false},
		"no line":           {slices.Concat(function, message(4, number(1, 1))), false},
		"a line with an id": {slices.Concat(function, message(4, number(1, 1), message(4, number(1, 1)))), false},
	} {
		var p Profile
		err := p.Decode(slices.Concat(begin(), tt.parts, sample), plainLimits())
		if (err == nil) != tt.ok || tt.ok && p.Repairs.Function != 1 || !tt.ok && !strings.Contains(err.Error(), "function 0 has id 0") {
			t.Errorf("%s: %v, %+v", name, err, p.Repairs)
		}
	}
}

// A stack of very many locations is cut while it is read, at the leaf.
func TestProfile_DecodeCutsDeepStacks(t *testing.T) {
	locations := slices.Concat(message(5, number(1, 1), number(2, 1)), message(4, number(1, 1), message(4, number(1, 1))), message(4, number(1, 200), message(4, number(1, 1), number(2, 9))))
	for _, depth := range []int{1, 2, 3, 10} {
		for n := 1; n <= 4*depth+3; n++ {
			ids := append(bytes.Repeat([]byte{1}, n-1), 0xC8, 1) // 200 is the root
			var apart []byte
			for range n - 1 {
				apart = append(apart, number(1, 1)...)
			}
			apart = append(apart, number(1, 200)...)
			for name, stack := range map[string][]byte{"packed": message(1, ids), "apart": apart, "mixed": slices.Concat(apart[:2*(n/2)], message(1, ids[n/2:]))} {
				limits := plainLimits()
				limits.Depth = depth
				var p Profile
				must(t, p.Decode(slices.Concat(begin(), locations, message(2, stack, number(2, 5))), limits))
				got, want := p.Stack(&p.Samples[0]), min(n, depth)
				if cut := p.Repairs.Depth == 1; len(got) != want || got[want-1] != 1 || cut != (n > depth) {
					t.Fatalf("%d of %d, %s: %v, %+v", n, depth, name, got, p.Repairs)
				}
			}
		}
	}
}

func TestEncoder_LabelsRoundTrip(t *testing.T) {
	e := NewEncoder()
	e.SampleType("cpu", "nanoseconds")
	at := e.Location(e.Function("f", "", "", 0), 3)
	for i := range 200 {
		e.LabelledSample([]uint64{at}, [][2]string{{"n", fmt.Sprint(i)}, {"span", "s"}}, int64(i))
	}
	var p Profile
	must(t, p.Decode(e.Append(nil), Limits{}))
	for i := range p.Samples {
		l := p.Labels(&p.Samples[i])
		if len(l) != 2 || string(p.Text(l[0].Key)) != "n" || string(p.Text(l[0].Text)) != fmt.Sprint(i) || string(p.Text(l[1].Key)) != "span" || string(p.Text(l[1].Text)) != "s" || p.Values(&p.Samples[i])[0] != int64(i) {
			t.Fatalf("sample %d: %+v", i, l)
		}
	}
}
