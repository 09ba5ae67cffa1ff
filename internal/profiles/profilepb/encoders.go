package profilepb

import (
	"net/http"
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

// SeriesEncoder encodes a querier.v1.SelectSeriesResponse. With exemplars it has megabytes, most of them copies of the
// same labels. With To they are written in pieces that stay in the CPU's cache, and no buffer has the whole message.
type SeriesEncoder struct {
	Result *profiles.SeriesResult
	// To gets the message but for its last bytes, which Append returns; Append's dst must be empty. Errors of writes are
	// left to the write of the last bytes. In protobuf it gets the header Content-Length, too. nil: Append returns all.
	To http.ResponseWriter

	failed bool // a write has failed: the client disconnected
}

// pieceBytes is the size of the writes to SeriesEncoder.To.
const pieceBytes = 128 << 10

// pass writes a piece of the message, and returns the buffer for the next piece.
func (a *SeriesEncoder) pass(dst []byte) []byte {
	if a.To == nil || len(dst) < pieceBytes {
		return dst
	}
	if !a.failed {
		_, err := a.To.Write(dst)
		a.failed = err != nil
	}
	return dst[:0]
}

// grow grows dst for a message of about size bytes, or for a piece.
func (a *SeriesEncoder) grow(dst []byte, size int) []byte {
	if a.To != nil {
		size = min(size, pieceBytes+pieceBytes/8)
	}
	return slices.Grow(dst, size)
}

// setEncoder encodes the label sets of exemplars. It encodes each set once, when the first exemplar with this set is
// written. Later exemplars get a copy of the encoded set, also those whose equal set comes from another block.
type setEncoder struct {
	result *profiles.SeriesResult
	encode func(dst, set []byte, without []string) []byte
	text   []byte         // the encoded sets, one after another, from offset 1 on: no span of an encoded set ends at 0
	known  []span         // where in text the set with this number is
	sizes  []int          // of the series' messages
	spans  map[*byte]span // by address of the set: equal sets of blocks are one in memory
}

type span struct{ from, to uint32 } // to is 0: not encoded yet

// setEncoders has encoders without a result, for the memory of text, known and spans.
var setEncoders = sync.Pool{New: func() any { return &setEncoder{spans: map[*byte]span{}} }}

// pooledSetBytes is the maximum memory of an encoder in setEncoders.
const pooledSetBytes = 4 << 20

// newSetEncoder returns an encoder, which the caller releases.
func newSetEncoder(result *profiles.SeriesResult, encode func(dst, set []byte, without []string) []byte) *setEncoder {
	n := len(result.Sets)
	e := setEncoders.Get().(*setEncoder)
	e.result, e.encode = result, encode
	e.text, e.known, e.sizes = append(e.text[:0], 0), slices.Grow(e.known[:0], n)[:n], e.sizes[:0]
	clear(e.known)
	return e
}

// release returns the encoder to the pool.
func (e *setEncoder) release() {
	if cap(e.text)+32*cap(e.known)+8*cap(e.sizes) > pooledSetBytes {
		return
	}
	e.result, e.encode = nil, nil
	clear(e.spans)
	setEncoders.Put(e)
}

// get returns an encoded set. It is valid until the next call.
func (e *setEncoder) get(number uint32) []byte {
	at := &e.known[number]
	if at.to == 0 {
		*at = e.spanOf(number)
	}
	return e.text[at.from:at.to]
}

// spanOf encodes a set, unless it was encoded with another number.
func (e *setEncoder) spanOf(number uint32) span {
	set := e.result.Sets[number]
	if len(set) == 0 {
		return span{1, 1}
	}
	at, ok := e.spans[&set[0]]
	if !ok {
		at.from = uint32(len(e.text))
		e.text = e.encode(e.text, set, e.result.GroupBy)
		at.to = uint32(len(e.text))
		e.spans[&set[0]] = at
	}
	return at
}

// exemplar returns the exemplar of a point and its span. Both may be nil.
func (a *SeriesEncoder) exemplar(s *profiles.Series, point int) (*profiles.Exemplar, *profiles.Span) {
	if len(s.Exemplars) == 0 {
		return nil, nil
	}
	x := &s.Exemplars[point]
	switch {
	case a.Result.Spans == nil:
		return x, nil
	case x.Span == 0:
		return nil, nil
	}
	return x, &a.Result.Spans[x.Span]
}

// estimate returns about the bytes of the message. point and exemplar are the bytes of a point and of an exemplar
// without labels. The exemplars of a series have labels of about the same size.
func (a *SeriesEncoder) estimate(sets *setEncoder, point, exemplar int) (size int) {
	for i := range a.Result.Series {
		s, each := &a.Result.Series[i], point
		if len(s.Exemplars) > 0 {
			each += exemplar + len(sets.get(s.Exemplars[0].Set))
		}
		size += 2*len(s.Labels) + point + len(s.Points)*each
	}
	return size
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
