package profilepb

import (
	"encoding/binary"
	"slices"
	"sync"
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
type SeriesEncoder struct{ Source SeriesSource }

// SeriesSource gives access to the result of a query, which an encoder reads in place.
type SeriesSource interface {
	Len() int
	Labels(series int) []byte // label set in the encoding of labelenc
	Points(series int) int    // number of points
	// Point sets all fields of into.
	Point(series, point int, into *EncodedPoint)
	// Sets returns the number of label sets to which exemplars may refer, and the names of the
	// labels that an encoder leaves out of these sets.
	Sets() (n int, without []string)
	Set(number uint32) []byte // label set in the encoding of labelenc
}

// EncodedPoint is the value of one step.
type EncodedPoint struct {
	TimestampMS int64
	Value       float64
	HasExemplar bool
	Exemplar    EncodedExemplar
}

// EncodedExemplar is an exemplar of a point: one profile.
type EncodedExemplar struct {
	TimestampMS int64
	ProfileID   [16]byte // written as a UUID with dashes
	Value       int64
	Set         uint32 // number of a label set of the source
}

// uuidBytes is the length of a UUID in text.
const uuidBytes = 36

// putUUID writes a UUID in text to dst, which has uuidBytes bytes.
func putUUID(dst []byte, id *[16]byte) {
	_ = dst[uuidBytes-1]
	le := binary.LittleEndian
	le.PutUint64(dst, hexDigits(le.Uint32(id[:])))
	dst[8] = '-'
	v := hexDigits(le.Uint32(id[4:]))
	le.PutUint32(dst[9:], uint32(v))
	dst[13] = '-'
	le.PutUint32(dst[14:], uint32(v>>32))
	dst[18] = '-'
	v = hexDigits(le.Uint32(id[8:]))
	le.PutUint32(dst[19:], uint32(v))
	dst[23] = '-'
	le.PutUint32(dst[24:], uint32(v>>32))
	le.PutUint64(dst[28:], hexDigits(le.Uint32(id[12:])))
}

// hexDigits returns the eight hexadecimal digits of four bytes, in the order of memory.
func hexDigits(v uint32) uint64 {
	x := uint64(v)
	x = (x | x<<16) & 0x0000FFFF0000FFFF
	x = (x | x<<8) & 0x00FF00FF00FF00FF
	digits := x>>4&0x000F000F000F000F | x&0x000F000F000F000F<<8
	letters := (digits + 0x0606060606060606) >> 4 & 0x0101010101010101 // 1 for digits above 9
	return digits + 0x3030303030303030 + letters*('a'-'0'-10)
}

// appendUUID appends a UUID in text.
func appendUUID(dst []byte, id *[16]byte) []byte {
	n := len(dst)
	dst = slices.Grow(dst, uuidBytes)[:n+uuidBytes]
	putUUID(dst[n:], id)
	return dst
}

// setEncoder encodes the label sets of exemplars. It encodes each set once, when the first
// exemplar with this set is written. Later exemplars get a copy of the encoded set.
type setEncoder struct {
	source  SeriesSource
	encode  func(dst, set []byte, without []string) []byte
	without []string
	text    []byte // the encoded sets, one after another, from offset 1 on: no span of an encoded set ends at 0
	known   []span // where in text the set with this number is
}

type span struct{ from, to uint32 } // to is 0: not encoded yet

// setEncoders has encoders without a source, for the memory of text and known.
var setEncoders = sync.Pool{New: func() any { return &setEncoder{} }}

// pooledSetBytes is the maximum memory of an encoder in setEncoders.
const pooledSetBytes = 1 << 20

// newSetEncoder returns nil if the source has no sets. The caller releases the encoder.
func newSetEncoder(source SeriesSource, encode func(dst, set []byte, without []string) []byte) *setEncoder {
	n, without := source.Sets()
	if n == 0 {
		return nil
	}
	e := setEncoders.Get().(*setEncoder)
	e.source, e.encode, e.without = source, encode, without
	e.text, e.known = append(e.text[:0], 0), slices.Grow(e.known[:0], n)[:n]
	clear(e.known)
	return e
}

// release returns the encoder to the pool. The encoder may be nil.
func (e *setEncoder) release() {
	if e == nil || cap(e.text)+8*cap(e.known) > pooledSetBytes {
		return
	}
	e.source, e.encode, e.without = nil, nil, nil
	setEncoders.Put(e)
}

// get returns an encoded set. It is valid until the next call.
func (e *setEncoder) get(number uint32) []byte {
	at := &e.known[number]
	if at.to == 0 {
		from := len(e.text)
		e.text = e.encode(e.text, e.source.Set(number), e.without)
		*at = span{uint32(from), uint32(len(e.text))}
	}
	return e.text[at.from:at.to]
}

// Flame is a flame graph. A level has four integers per node: the distance from the end of the
// previous node of the level to the start of this node, total, self, and the index of the name.
type Flame struct {
	Names   []string
	Levels  [][]int64
	Total   int64
	MaxSelf int64
}

// MergeEncoder encodes a SelectMergeStacktracesResponse in one of its four formats: the field
// of this format is set.
type MergeEncoder struct {
	Flame *Flame
	Tree  []byte
	Dot   string
	Pprof []byte // encoded google.v1.Profile, uncompressed
}

// ProfileEncoder encodes the response of SelectMergeProfile: an encoded
// google.v1.Profile, uncompressed.
type ProfileEncoder struct{ Profile []byte }

// DiffEncoder encodes a diff of two flame graphs. A level has seven integers per node: distance
// (as in Flame), total and self of the left graph, the same three of the right graph, and the
// index of the name.
type DiffEncoder struct {
	Flame
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
