package profilepb

import (
	"slices"
	"sync"

	"github.com/ferula-io/ferula/internal/profiles"
)

// Encoder is a large response that encodes itself. A query's result is encoded without
// a message tree and without reflection.
type Encoder interface {
	// AppendProto appends the message's protobuf bytes.
	AppendProto(dst []byte) []byte
	// AppendJSON appends the message in protobuf's JSON mapping: names in camel case,
	// 64-bit integers as strings, no zero values.
	AppendJSON(dst []byte) []byte
}

// SeriesEncoder encodes a querier.v1.SelectSeriesResponse.
type SeriesEncoder struct{ Result *profiles.SeriesResult }

// setEncoder encodes the label sets of exemplars. It encodes each set once, when the first
// exemplar with this set is written. Later exemplars get a copy of the encoded set.
type setEncoder struct {
	result *profiles.SeriesResult
	encode func(dst, set []byte, without []string) []byte
	text   []byte // the encoded sets, one after another, from offset 1 on: no span of an encoded set ends at 0
	known  []span // where in text the set with this number is
}

type span struct{ from, to uint32 } // to is 0: not encoded yet

// setEncoders has encoders without a result, for the memory of text and known.
var setEncoders = sync.Pool{New: func() any { return &setEncoder{} }}

// pooledSetBytes is the maximum memory of an encoder in setEncoders.
const pooledSetBytes = 1 << 20

// newSetEncoder returns nil if the result has no sets. The caller releases the encoder.
func newSetEncoder(result *profiles.SeriesResult, encode func(dst, set []byte, without []string) []byte) *setEncoder {
	n := len(result.Sets)
	if n == 0 {
		return nil
	}
	e := setEncoders.Get().(*setEncoder)
	e.result, e.encode = result, encode
	e.text, e.known = append(e.text[:0], 0), slices.Grow(e.known[:0], n)[:n]
	clear(e.known)
	return e
}

// release returns the encoder to the pool. The encoder may be nil.
func (e *setEncoder) release() {
	if e == nil || cap(e.text)+8*cap(e.known) > pooledSetBytes {
		return
	}
	e.result, e.encode = nil, nil
	setEncoders.Put(e)
}

// get returns an encoded set. It is valid until the next call.
func (e *setEncoder) get(number uint32) []byte {
	at := &e.known[number]
	if at.to == 0 {
		from := len(e.text)
		e.text = e.encode(e.text, e.result.Sets[number], e.result.GroupBy)
		*at = span{uint32(from), uint32(len(e.text))}
	}
	return e.text[at.from:at.to]
}

// MergeEncoder encodes a SelectMergeStacktracesResponse in one of its four formats: the field
// of this format is set.
type MergeEncoder struct {
	Flame *profiles.FlameGraph
	Tree  []byte
	Dot   string
	Pprof []byte // encoded google.v1.Profile, uncompressed
}

// ProfileEncoder encodes the response of SelectMergeProfile: an encoded
// google.v1.Profile, uncompressed.
type ProfileEncoder struct{ Profile []byte }

// DiffEncoder encodes a diff of two flame graphs. A level has seven integers per node: distance
// (as in a FlameGraph), total and self of the left graph, the same three of the right graph, and the
// index of the name.
type DiffEncoder struct {
	profiles.FlameGraph
	LeftTicks, RightTicks int64
}

// FunctionCost is the cost of a function, in the unit of the profile type. Self excludes and
// Total includes the functions that it calls. A function that calls itself counts once in its
// total.
type FunctionCost struct {
	Name        string
	Self, Total int64
}

// FunctionsEncoder encodes the response of SelectFunctions: in protobuf field 1 repeated
// {1 name, 2 self, 3 total}, field 2 the total of all stacks, field 3 the number of
// functions. Functions may be limited to those with the greatest cost; Count is the number
// without this limit.
type FunctionsEncoder struct {
	Functions []FunctionCost
	Total     int64
	Count     int64
}

// LabelSetsEncoder encodes the response of Series.
type LabelSetsEncoder struct{ Sets [][]byte } // in the encoding of labelenc

var (
	_ Encoder = (*SeriesEncoder)(nil)
	_ Encoder = (*MergeEncoder)(nil)
	_ Encoder = (*ProfileEncoder)(nil)
	_ Encoder = (*DiffEncoder)(nil)
	_ Encoder = (*FunctionsEncoder)(nil)
	_ Encoder = (*LabelSetsEncoder)(nil)
)
