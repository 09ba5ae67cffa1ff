// Package pprof decodes and encodes pprof's profile.proto.
//
// Profile.Decode inflates a profile into its own buffer if it is compressed, and decodes
// the messages by hand into typed slices without pointers: texts are offsets in the
// buffer, functions and locations are numbered from 0. The next Decode reuses all
// memory. Decode validates every reference, so that readers index without checks. It drops
// samples with a missing location or a negative value, lines with a missing function, and
// references to a missing mapping. Repairs counts what was dropped. Encoder encodes a profile
// from stacks that its caller has merged. This package does not symbolize, merge or do I/O.
//
//	profile    1 sample_type*  2 sample*  3 mapping*  4 location*  5 function*
//	           6 string*  9 time  10 duration  11 period_type  12 period
//	sample     1 location* (leaf first)  2 value*  3 label*
//	location   1 id  2 mapping  3 address  4 line*      line      1 function  2 line
//	function   1 id  2 name  3 system  4 file  5 start  label     1 key  2 str  3 num
//
// Invalid input returns ErrCorrupt with its offset, or ErrLimit. It never panics, and
// memory is bounded by Limits.
package pprof

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/inflate"
)

var (
	// ErrCorrupt is returned for an invalid profile.
	ErrCorrupt = errors.New("corrupt pprof")
	// ErrLimit is returned for a profile that exceeds one of Limits.
	ErrLimit = errors.New("pprof exceeds a limit")
)

// Limits of one profile. Zero fields take the defaults.
type Limits struct {
	Bytes       int // decompressed; 64 MiB
	Strings     int // 1,000,000
	Functions   int // 500,000
	Locations   int // 500,000
	Samples     int // 500,000
	Depth       int // frames per stack; 1,000; further frames, at the leaf, are cut off
	Nodes       int // estimated nodes in the tree of all stacks; 1,000,000
	SampleTypes int // 64

	// flags that raise the limits, named in errors; the keys are fields of the Limits of package profiles/ingest
	Flags hint.Flags
}

// Unlimited returns limits for profiles that were validated when they were ingested.
func Unlimited() Limits {
	const limit = math.MaxInt32
	return Limits{Bytes: limit, Strings: limit, Functions: limit, Locations: limit, Samples: limit, Depth: limit,
		Nodes: limit, SampleTypes: limit}
}

// Repairs counts what Decode repaired, by reason.
type Repairs struct {
	Depth    int // stacks that were cut
	Negative int // samples dropped for a negative value
	Location int // samples dropped for a missing location
	Function int // lines dropped for a missing function, and functions that got an id because all lacked one
	Time     int // timestamps in another unit; set by the caller of Decode
	Labels   int // samples whose labels were dropped; set by the caller of Decode
	Mapping  int // locations that refer to a missing mapping; the location stays, without a mapping
}

// Each calls f for every reason that occurred.
func (r Repairs) Each(f func(reason string, n int)) {
	for _, one := range []struct {
		reason string
		n      int
	}{
		{"depth", r.Depth}, {"negative_value", r.Negative}, {"missing_location", r.Location},
		{"missing_function", r.Function},
		{"missing_mapping", r.Mapping}, {"time_unit", r.Time}, {"sample_labels", r.Labels},
	} {
		if one.n > 0 {
			f(one.reason, one.n)
		}
	}
}

// WithDefaults returns the limits with zero fields replaced by their defaults.
func (l Limits) WithDefaults() Limits {
	l.Bytes = cmp.Or(l.Bytes, 64<<20)
	l.Strings = cmp.Or(l.Strings, 1_000_000)
	l.Functions = cmp.Or(l.Functions, 500_000)
	l.Locations = cmp.Or(l.Locations, 500_000)
	l.Samples = cmp.Or(l.Samples, 500_000)
	l.Depth = cmp.Or(l.Depth, 1000)
	l.Nodes = cmp.Or(l.Nodes, 1_000_000)
	l.SampleTypes = cmp.Or(l.SampleTypes, 64)
	return l
}

// ValueType is the type and unit of values, as numbers for Profile.Text.
type ValueType struct{ Type, Unit uint32 }

// Function is a function. Its texts are numbers for Profile.Text.
type Function struct {
	id                 uint64
	Name, System, File uint32
	StartLine          int64
}

// Line is a line of a function.
type Line struct {
	Function uint32 // index in Profile.Functions
	Line     int64
	id       uint64 // id of the function in the message; resolve sets Function from it
}

// Location is an address. Lines[From:To] are its functions, innermost first.
type Location struct {
	id        uint64
	mappingID uint64
	Address   uint64
	Mapping   int32 // index in Profile.Mappings; -1: none
	From, To  uint32
}

// Mapping is a mapped file.
type Mapping struct {
	id                   uint64
	Start, Limit, Offset uint64
	File, BuildID        uint32 // numbers for Profile.Text
}

// Label is a label of a sample: a text if Text is not 0, otherwise a number.
type Label struct {
	Key, Text uint32
	Number    int64
}

// Sample is a stack and its values.
type Sample struct {
	locFrom, locTo     uint32 // range in Profile.stacks
	valFrom            uint32 // first of its values in Profile.values
	labelFrom, labelTo uint32 // range in Profile.labels
}

type span struct{ from, to uint32 } // a text: raw[from:to]

// Profile is a decoded profile. The zero value is ready for Decode. Its contents are
// valid until the next Decode.
type Profile struct {
	SampleTypes []ValueType
	PeriodType  ValueType
	Period      int64
	TimeNS      int64
	DurationNS  int64
	Functions   []Function
	Locations   []Location
	Lines       []Line
	Mappings    []Mapping
	Samples     []Sample
	Repairs     Repairs

	strings []span
	stacks  []uint32
	values  []int64
	labels  []Label

	nodes  int
	order  []uint32 // numbers of the samples, sorted by stack
	locIDs []uint64 // ids of the locations of stacks; resolve sets stacks from them
	byID   idTable
	raw    []byte // the uncompressed profile
	buf    []byte // memory into which a compressed profile is inflated
	limits Limits

	inflater *inflate.Inflater // nil: not used yet
}

// Strings returns the number of texts.
func (p *Profile) Strings() int { return len(p.strings) }

// Text returns the text with number i. It aliases the profile.
func (p *Profile) Text(i uint32) []byte {
	s := p.strings[i]
	return p.raw[s.from:s.to]
}

// ValidText is Text with U+FFFD in place of bytes that are not UTF-8. Some profilers cut a text within a character, and
// neither JSON nor protobuf can express an incomplete character.
func (p *Profile) ValidText(i uint32) []byte {
	text := p.Text(i)
	if utf8.Valid(text) {
		return text
	}
	return bytes.ToValidUTF8(text, []byte("\uFFFD"))
}

// Stack returns the numbers of a sample's locations, leaf first.
func (p *Profile) Stack(s *Sample) []uint32 { return p.stacks[s.locFrom:s.locTo] }

// Stacks returns the locations of all samples in one slice.
func (p *Profile) Stacks() []uint32 { return p.stacks }

// Values returns the values of a sample, one per sample type.
func (p *Profile) Values(s *Sample) []int64 {
	return p.values[s.valFrom : int(s.valFrom)+len(p.SampleTypes)]
}

// Labels returns the labels of a sample.
func (p *Profile) Labels(s *Sample) []Label { return p.labels[s.labelFrom:s.labelTo] }

// RawBytes returns the length of the uncompressed profile.
func (p *Profile) RawBytes() int { return len(p.raw) }

// Nodes returns an upper estimate of the nodes in the tree of all stacks.
func (p *Profile) Nodes() int { return p.nodes }

// HasLabels reports whether any sample has a label.
func (p *Profile) HasLabels() bool { return len(p.labels) > 0 }

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}

func tooMany(what string, n, limit int, flag string) error {
	return fmt.Errorf("%w: %d %s exceed the limit of %d%s", ErrLimit, n, what, limit, flag)
}

// Decode decodes src. If src is not compressed, the profile aliases src. Otherwise Decode does
// not retain src.
func (p *Profile) Decode(src []byte, limits Limits) error {
	p.reset(limits.WithDefaults())
	if err := p.inflate(src); err != nil {
		return err
	}
	if err := p.walk(); err != nil {
		return err
	}
	if err := p.resolve(); err != nil {
		return err
	}
	p.cutStacks()
	return p.countNodes()
}

func (p *Profile) reset(limits Limits) {
	p.limits = limits
	p.SampleTypes, p.Functions, p.Locations = p.SampleTypes[:0], p.Functions[:0], p.Locations[:0]
	p.Lines, p.Mappings, p.Samples = p.Lines[:0], p.Mappings[:0], p.Samples[:0]
	p.strings, p.stacks, p.values, p.labels, p.locIDs = p.strings[:0], p.stacks[:0], p.values[:0], p.labels[:0],
		p.locIDs[:0]
	p.PeriodType, p.Period, p.TimeNS, p.DurationNS = ValueType{}, 0, 0, 0
	p.raw, p.Repairs, p.nodes = nil, Repairs{}, 0
}

func (p *Profile) inflate(src []byte) error {
	if len(src) < 2 || src[0] != 0x1F || src[1] != 0x8B {
		if len(src) > p.limits.Bytes {
			return tooMany("bytes", len(src), p.limits.Bytes, p.limits.Flags.Of("DecompressedBytes"))
		}
		p.raw = src
		return nil
	}
	if p.inflater == nil {
		p.inflater = new(inflate.Inflater)
	}
	var err error
	p.buf, err = p.inflater.Gzip(p.buf[:0], src, p.limits.Bytes)
	switch {
	case errors.Is(err, inflate.ErrGzipLimit):
		return fmt.Errorf("%w: more than %d bytes when decompressed%s", ErrLimit, p.limits.Bytes,
			p.limits.Flags.Of("DecompressedBytes"))
	case err != nil:
		return corrupt("%v", err)
	}
	p.raw = p.buf
	return nil
}

// A field of a message: a number, or the bytes raw[from:to].
type field struct {
	number   int
	value    uint64
	from, to int
	bytes    bool
}

// uvarint is binary.Uvarint at an offset. next is negative if there is no valid varint.
func uvarint(b []byte, at int) (v uint64, next int) {
	if at < len(b) && b[at] < 0x80 {
		return uint64(b[at]), at + 1
	}
	if at+1 < len(b) && b[at+1] < 0x80 {
		return uint64(b[at]&0x7F) | uint64(b[at+1])<<7, at + 2
	}
	if at > len(b) {
		return 0, -1
	}
	v, n := binary.Uvarint(b[at:])
	if n <= 0 {
		return 0, -1
	}
	return v, at + n
}

// next decodes the field at offset at of raw[:end], and returns the offset after it.
func (p *Profile) next(at, end int) (field, int, error) {
	// The usual case: a tag of one byte, and a number or a length of one byte.
	if b := p.raw; at+1 < end && b[at] < 0x80 && b[at] >= 1<<3 && b[at+1] < 0x80 {
		switch tag, v := b[at], int(b[at+1]); {
		case tag&7 == 0:
			return field{number: int(tag >> 3), value: uint64(v)}, at + 2, nil
		case tag&7 == 2 && v <= end-at-2:
			return field{number: int(tag >> 3), from: at + 2, to: at + 2 + v, bytes: true}, at + 2 + v, nil
		}
	} else if at+2 < end && b[at]&7 == 2 && b[at] < 0x80 && b[at] >= 1<<3 && b[at+2] < 0x80 {
		// Bytes with a length of two bytes, as many samples have.
		if v := int(b[at+1]&0x7F) | int(b[at+2])<<7; v <= end-at-3 {
			return field{number: int(b[at] >> 3), from: at + 3, to: at + 3 + v, bytes: true}, at + 3 + v, nil
		}
	}
	return p.nextSlow(at, end)
}

func (p *Profile) nextSlow(at, end int) (field, int, error) {
	start := at
	tag, at := uvarint(p.raw[:end], at)
	if at < 0 || tag>>3 == 0 || tag>>3 > 1<<29-1 {
		return field{}, 0, corrupt("no field at byte %d", start)
	}
	f := field{number: int(tag >> 3)}
	switch tag & 7 {
	case 0:
		if f.value, at = uvarint(p.raw[:end], at); at < 0 {
			return field{}, 0, corrupt("field %d at byte %d is cut short", f.number, start)
		}
	case 1:
		at += 8
	case 5:
		at += 4
	case 2:
		var size uint64
		if size, at = uvarint(p.raw[:end], at); at < 0 || size > uint64(end-at) {
			return field{}, 0, corrupt("field %d at byte %d is longer than its message", f.number, start)
		}
		f.from, f.to, f.bytes = at, at+int(size), true
		at = f.to
	default:
		return field{}, 0, corrupt("field %d at byte %d has wire type %d", f.number, start, tag&7)
	}
	if at > end {
		return field{}, 0, corrupt("field %d at byte %d is cut short", f.number, start)
	}
	return f, at, nil
}

// wants checks the wire type of a field with a known number.
func (f field) wants(isBytes bool, at int) error {
	if f.bytes != isBytes {
		return corrupt("field %d before byte %d has the wrong wire type", f.number, at)
	}
	return nil
}
