// Package otlpprofile decodes profiles of OTLP: the request of the collector's service
// ProfilesService, version v1development, of opentelemetry-proto 1.10 and 1.11.
//
// Decode reads the messages by hand into flat tables, which alias the request. References to
// the dictionary are indexes of its tables. Decode checks the references within the
// dictionary, so that readers of a table index without checks. References of resources,
// profiles and samples are checked by the methods that look them up. A reference of more than
// 31 bits is decoded as -1, which no table has. FromJSON converts the JSON encoding to protobuf.
// There is no conversion to pprof, no HTTP and no decompression here.
//
//	request     1 resource*  2 dictionary
//	resource    1 {1 attribute*}  2 scope*           scope  1 {3 attribute*}  2 profile*
//	profile     1 type  2 sample*  3 time  4 duration  5 period type  6 period  7 id  11 attribute*
//	sample      1 stack  2 attribute*  3 link  4 value*  5 time*
//	dictionary  1 mapping*  2 location*  3 function*  4 link*  5 string*  6 attribute*  7 stack*
//
// Invalid input returns ErrCorrupt with its position in the request, or ErrLimit. It never
// panics, and the memory of the tables is bounded by Limits.
package otlp

import (
	"errors"
	"fmt"
)

var (
	// ErrCorrupt is returned for an invalid request.
	ErrCorrupt = errors.New("invalid OTLP profiles")
	// ErrLimit is returned for a request that exceeds one of Limits.
	ErrLimit = errors.New("OTLP profiles exceed a limit")
	// ErrUnsupported is returned for a request that is neither protobuf nor JSON.
	ErrUnsupported = errors.New("encoding not supported")
)

// Limits of one request. Zero fields take the defaults.
type Limits struct {
	Bytes    int // memory of the decoded tables; 64 MiB
	Profiles int // 10,000
}

func (l Limits) withDefaults() Limits {
	if l.Bytes <= 0 {
		l.Bytes = 64 << 20
	}
	if l.Profiles <= 0 {
		l.Profiles = 10_000
	}
	return l
}

// Range is a part of a table: its elements from From to To-1.
type Range struct{ From, To int }

// Request is a decoded request. It aliases the bytes that were decoded.
type Request struct {
	Profiles []Profile

	attributes []KeyValue // of resources and scopes
	samples    []Sample
	indexes    []int32 // of the attributes of profiles and samples, and of the locations of stacks
	mappings   []Mapping
	locations  []Location
	lines      []Line
	functions  []Function
	links      []Link
	strings    [][]byte
	table      []Attribute // attribute_table of the dictionary
	stacks     []Range     // in indexes: locations
}

// Profile is a profile of one sample type.
type Profile struct {
	Resource, Scope int // number of the resource in the request, and of the scope in the resource
	Number          int // number of the profile in the scope
	Type            ValueType
	Period          int64
	PeriodType      ValueType
	TimeNS          uint64
	DurationNS      uint64
	ID              [16]byte // zero: none

	ofResource, ofScope Range // in Request.attributes: the attributes of the resource, and of the scope
	attributes          Range // in Request.indexes
	samples             Range // in Request.samples
}

// Place names the profile in errors.
func (p *Profile) Place() string {
	return fmt.Sprintf("resource_profiles[%d].scope_profiles[%d].profiles[%d]", p.Resource, p.Scope, p.Number)
}

// ValueType is a type and its unit, as indexes for Request.Text.
type ValueType struct{ Type, Unit int32 }

// Sample is a stack and its value.
type Sample struct {
	stack, link int32 // indexes in the dictionary; link 0: none
	attributes  Range // in Request.indexes
	values      int   // number of values
	times       int   // number of timestamps
	sum         int64 // of the values
}

// Value returns the value of a sample: the sum of its values or, without any, the number of
// its timestamps.
func (s *Sample) Value() int64 {
	if s.values == 0 {
		return int64(s.times)
	}
	return s.sum
}

// Kind is the kind of a Value.
type Kind uint8

// Kinds of values. Other is a list, a map or bytes.
const (
	None Kind = iota
	Text
	Bool
	Int
	Double
	Other
	reference // a Text given by its index in string_table; callers get it as Text
)

// Value is the value of an attribute.
type Value struct {
	Kind   Kind
	Text   []byte
	Bits   uint64 // of a Bool, an Int or a Double
	number int32  // for Kind reference: index in string_table
}

// KeyValue is an attribute of a resource or a scope.
type KeyValue struct {
	Key    []byte
	Value  Value
	number int32 // index of the key in string_table; 0: the key is in Key
}

// Attribute is an attribute of the dictionary.
type Attribute struct {
	key   int32 // index in string_table
	Value Value
}

// Mapping is a mapped file.
type Mapping struct{ File int32 }

// Location is an address with the lines of its functions, innermost first.
type Location struct {
	Mapping int32
	Address uint64
	Lines   Range
}

// Line is a line of a function. Function is an index for Request.Function; 0: none.
type Line struct {
	Function int32
	Line     int64
}

// Function is a function. Its texts are indexes for Request.Text.
type Function struct {
	Name, System, File int32
	StartLine          int64
}

// Link is a span of a trace.
type Link struct {
	Trace [16]byte
	Span  [8]byte
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}

// checked returns an error for an index that a table of n elements does not have. Index 0
// means no element, and is valid for an empty table, too.
func checked(what, table string, i int32, n int) error {
	if i == 0 || i > 0 && int(i) < n {
		return nil
	}
	return corrupt("%s %d, but %s_table has %d elements", what, i, table, n)
}

// Text returns a string of the dictionary.
func (r *Request) Text(i int32) ([]byte, error) {
	if err := checked("string", "string", i, len(r.strings)); err != nil || len(r.strings) == 0 {
		return nil, err
	}
	return r.strings[i], nil
}

// text is Text for an index that was checked.
func (r *Request) text(i int32) []byte {
	if len(r.strings) == 0 {
		return nil
	}
	return r.strings[i]
}

// Attributes calls f with the attributes of a profile's resource, of its scope and of the
// profile.
func (r *Request) Attributes(p *Profile, f func(key []byte, v Value)) error {
	for _, part := range []Range{p.ofResource, p.ofScope} {
		for i := part.From; i < part.To; i++ {
			kv := &r.attributes[i]
			key, value := kv.Key, kv.Value
			var err error
			if kv.number != 0 {
				if key, err = r.Text(kv.number); err != nil {
					return fmt.Errorf("key of an attribute: %w", err)
				}
			}
			if value.Kind == reference {
				if value.Text, err = r.Text(value.number); err != nil {
					return fmt.Errorf("attribute %.100q: %w", key, err)
				}
				value.Kind = Text
			}
			f(key, value)
		}
	}
	return r.listed(p.attributes, f)
}

// listed calls f with attributes of the dictionary: those whose indexes are in r.indexes[list.From:list.To].
func (r *Request) listed(list Range, f func(key []byte, v Value)) error {
	for _, i := range r.indexes[list.From:list.To] {
		if err := checked("attribute", "attribute", i, len(r.table)); err != nil {
			return err
		}
		if len(r.table) > 0 {
			f(r.text(r.table[i].key), r.table[i].Value)
		}
	}
	return nil
}

// Samples returns the samples of a profile.
func (r *Request) Samples(p *Profile) []Sample { return r.samples[p.samples.From:p.samples.To] }

// SampleAttributes calls f with the attributes of a sample.
func (r *Request) SampleAttributes(s *Sample, f func(key []byte, v Value)) error {
	return r.listed(s.attributes, f)
}

// Stack returns the numbers of a sample's locations, leaf first.
func (r *Request) Stack(s *Sample) ([]int32, error) {
	if err := checked("stack", "stack", s.stack, len(r.stacks)); err != nil || len(r.stacks) == 0 {
		return nil, err
	}
	at := r.stacks[s.stack]
	return r.indexes[at.From:at.To], nil
}

// Link returns the span of a sample; ok is false if it has none.
func (r *Request) Link(s *Sample) (link Link, ok bool, err error) {
	if err := checked("link", "link", s.link, len(r.links)); err != nil || s.link == 0 {
		return Link{}, false, err
	}
	return r.links[s.link], true, nil
}

// Location returns a location of a stack.
func (r *Request) Location(i int32) Location {
	if len(r.locations) == 0 {
		return Location{}
	}
	return r.locations[i]
}

// Line returns a line of a location.
func (r *Request) Line(i int) Line { return r.lines[i] }

// Function returns the texts of a line's function.
func (r *Request) Function(i int32) (name, system, file []byte, startLine int64) {
	if len(r.functions) == 0 {
		return nil, nil, nil, 0
	}
	f := r.functions[i]
	return r.text(f.Name), r.text(f.System), r.text(f.File), f.StartLine
}

// MappingFile returns the path of a location's mapping.
func (r *Request) MappingFile(i int32) []byte {
	if len(r.mappings) == 0 {
		return nil
	}
	return r.text(r.mappings[i].File)
}
