package pprof

import (
	"encoding/binary"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// Encoder builds a profile from calls of its methods, and Append encodes it. Texts, functions and
// locations are numbered in the order of the calls. Texts are deduplicated, functions and
// locations are not.
type Encoder struct {
	strings   map[string]uint64
	table     []byte // the string table: fields 6
	types     []byte
	functions []byte
	locations []byte
	samples   []byte
	tail      []byte // period and times
	nFunction uint64
	nLocation uint64
	scratch   []byte
}

// NewEncoder returns an Encoder whose string table has the empty text.
func NewEncoder() *Encoder {
	e := &Encoder{strings: map[string]uint64{}}
	e.text("")
	return e
}

// text returns the index of a text in the string table. Bytes that are not UTF-8 are replaced, because protobuf
// decoders reject other strings.
func (e *Encoder) text(s string) uint64 {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	if n, ok := e.strings[s]; ok {
		return n
	}
	n := uint64(len(e.strings))
	e.strings[s] = n
	e.table = append(e.table, fieldString<<3|2)
	e.table = binary.AppendUvarint(e.table, uint64(len(s)))
	e.table = append(e.table, s...)
	return n
}

func appendNumber(dst []byte, field int, v uint64) []byte {
	if v == 0 {
		return dst
	}
	return binary.AppendUvarint(append(dst, byte(field<<3)), v)
}

func appendMessage(dst []byte, field int, message []byte) []byte {
	dst = binary.AppendUvarint(append(dst, byte(field<<3|2)), uint64(len(message)))
	return append(dst, message...)
}

func (e *Encoder) valueType(field int, dst []byte, name, unit string) []byte {
	e.scratch = appendNumber(appendNumber(e.scratch[:0], 1, e.text(name)), 2, e.text(unit))
	return appendMessage(dst, field, e.scratch)
}

// SampleType adds a sample type.
func (e *Encoder) SampleType(name, unit string) {
	e.types = e.valueType(fieldSampleType, e.types, name, unit)
}

// Period sets the period and its type.
func (e *Encoder) Period(name, unit string, period int64) {
	e.tail = e.valueType(fieldPeriodType, e.tail, name, unit)
	e.tail = appendNumber(e.tail, fieldPeriod, uint64(period))
}

// Times sets the start of the profile and its duration.
func (e *Encoder) Times(startNS, durationNS int64) {
	e.tail = appendNumber(e.tail, fieldTime, uint64(startNS))
	e.tail = appendNumber(e.tail, fieldDuration, uint64(durationNS))
}

// Function adds a function and returns its id.
func (e *Encoder) Function(name, system, file string, startLine int64) uint64 {
	e.nFunction++
	b := appendNumber(e.scratch[:0], 1, e.nFunction)
	b = appendNumber(b, 2, e.text(name))
	b = appendNumber(b, 3, e.text(system))
	b = appendNumber(b, 4, e.text(file))
	e.scratch = appendNumber(b, 5, uint64(startLine))
	e.functions = appendMessage(e.functions, fieldFunction, e.scratch)
	return e.nFunction
}

// Location adds a location with one line of a function, and returns the location's id.
func (e *Encoder) Location(function uint64, line int64) uint64 {
	e.nLocation++
	var l [24]byte
	inner := appendNumber(appendNumber(l[:0], 1, function), 2, uint64(line))
	e.scratch = appendMessage(appendNumber(e.scratch[:0], 1, e.nLocation), 4, inner)
	e.locations = appendMessage(e.locations, fieldLocation, e.scratch)
	return e.nLocation
}

// Sample adds a stack, leaf first, with one value per sample type.
func (e *Encoder) Sample(stack []uint64, values ...int64) { e.LabelledSample(stack, nil, values...) }

// LabelledSample is Sample with labels: pairs of a name and a value.
func (e *Encoder) LabelledSample(stack []uint64, labels [][2]string, values ...int64) {
	size := 0
	for _, id := range stack {
		size += protowire.SizeVarint(id)
	}
	b := e.scratch[:0]
	if len(stack) > 0 {
		b = binary.AppendUvarint(append(b, 1<<3|2), uint64(size))
		for _, id := range stack {
			b = binary.AppendUvarint(b, id)
		}
	}
	size = 0
	for _, v := range values {
		size += protowire.SizeVarint(uint64(v))
	}
	b = binary.AppendUvarint(append(b, 2<<3|2), uint64(size))
	for _, v := range values {
		b = binary.AppendUvarint(b, uint64(v))
	}
	for _, l := range labels {
		var pair [24]byte
		b = appendMessage(b, 3, appendNumber(appendNumber(pair[:0], 1, e.text(l[0])), 2, e.text(l[1])))
	}
	e.scratch = b
	e.samples = appendMessage(e.samples, fieldSample, b)
}

// Bytes returns the size of the profile so far.
func (e *Encoder) Bytes() int {
	return len(e.types) + len(e.samples) + len(e.locations) + len(e.functions) + len(e.table) + len(e.tail)
}

// Append appends the profile, uncompressed.
func (e *Encoder) Append(dst []byte) []byte {
	dst = append(dst, e.types...)
	dst = append(dst, e.samples...)
	dst = append(dst, e.locations...)
	dst = append(dst, e.functions...)
	dst = append(dst, e.table...)
	return append(dst, e.tail...)
}

// AppendRenamed appends the decoded profile, uncompressed, with new names of functions. rename
// appends the new name of a function to dst. If rename appends nothing, the function keeps its name.
// If the result has more than Limits.Bytes, AppendRenamed returns ErrLimit.
func (p *Profile) AppendRenamed(dst []byte, rename func(dst []byte, f *Function) []byte) ([]byte, error) {
	from, function, number := len(dst), 0, uint64(len(p.strings))
	var name, message, names []byte
	for at := 0; at < len(p.raw); {
		f, next, err := p.next(at, len(p.raw))
		if err != nil {
			return dst[:from], err
		}
		name = name[:0]
		if f.number == fieldFunction {
			name = rename(name, &p.Functions[function])
			function++
		}
		if len(name) == 0 {
			dst = append(dst, p.raw[at:next]...)
		} else { // a second name field overrides the first one, as protobuf decoders take the last value
			message = appendNumber(append(message[:0], p.raw[f.from:f.to]...), 2, number)
			dst, names = appendMessage(dst, fieldFunction, message), appendMessage(names, fieldString, name)
			number++
		}
		if n := len(dst) - from + len(names); n > p.limits.Bytes {
			return dst[:from], tooMany("bytes", n, p.limits.Bytes, p.limits.Flags.Of("DecompressedBytes"))
		}
		at = next
	}
	return append(dst, names...), nil
}
