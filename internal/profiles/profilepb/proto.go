package profilepb

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// Tags of the fields of responses: number<<3 | wire type.
const (
	varint1, varint2, varint3, varint4, varint5, varint6 = 1 << 3, 2 << 3, 3 << 3, 4 << 3, 5 << 3, 6 << 3
	fixed1                                               = 1<<3 | 1
	bytes1, bytes2, bytes3, bytes4, bytes5, bytes6       = 1<<3 | 2, 2<<3 | 2, 3<<3 | 2, 4<<3 | 2, 5<<3 | 2, 6<<3 | 2
)

func sizeInt(v int64) int {
	if v == 0 {
		return 0
	}
	return 1 + protowire.SizeVarint(uint64(v))
}

func appendInt(dst []byte, tag byte, v int64) []byte {
	if v == 0 {
		return dst
	}
	return binary.AppendUvarint(append(dst, tag), uint64(v))
}

func appendHead(dst []byte, tag byte, size int) []byte {
	return binary.AppendUvarint(append(dst, tag), uint64(size))
}

func appendText(dst []byte, tag byte, text string) []byte {
	if text == "" {
		return dst
	}
	return append(appendHead(dst, tag, len(text)), text...)
}

// valid replaces invalid UTF-8, which a protobuf string must not have.
func valid(text string) string {
	if utf8.ValidString(text) {
		return text
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// retagged appends a valid label set with another field number, without the labels named in
// without. Only the tag of each label differs.
func retagged(dst, set []byte, tag byte, without []string) []byte {
	for len(set) > 0 {
		name, _, rest, err := labelenc.Next(set)
		if err != nil {
			break // stored sets are valid
		}
		if !slices.Contains(without, string(name)) {
			dst = append(append(dst, tag), set[1:len(set)-len(rest)]...)
		}
		set = rest
	}
	return dst
}

// pointSize returns the bytes of a point's message, and those of its exemplar's. x may be nil, and so may its span; set
// is the size of the encoded label set.
func pointSize(p *profiles.Point, x *profiles.Exemplar, span *profiles.Span, set int) (size, exemplar int) {
	size = sizeInt(p.TimeMS)
	if math.Float64bits(p.Value) != 0 {
		size += 9
	}
	if x == nil {
		return size, 0
	}
	exemplar = sizeInt(x.TimeNS/1e6) + 2 + profiles.IDBytes + sizeInt(x.Value) + set
	if span != nil && span.ID != 0 {
		exemplar += 2 + 2*8
	}
	if span != nil && span.Trace != (profiles.TraceID{}) {
		exemplar += 2 + 2*len(span.Trace)
	}
	return size + 1 + protowire.SizeBytes(exemplar), exemplar
}

// appendPoint appends a point. x may be nil, and so may its span; set is the encoded label set.
func appendPoint(dst []byte, p *profiles.Point, x *profiles.Exemplar, span *profiles.Span, set []byte) []byte {
	size, exemplar := pointSize(p, x, span, len(set))
	bits := math.Float64bits(p.Value)
	// dst grows once for the whole point, so that the capacity is not checked for each byte.
	from := len(dst)
	out := slices.Grow(dst, size+1+binary.MaxVarintLen64)
	out = out[:cap(out)]
	out[from] = bytes2
	at := putVarint(out, from+1, uint64(size))
	if bits != 0 {
		out[at] = fixed1
		binary.LittleEndian.PutUint64(out[at+1:], bits)
		at += 9
	}
	at = putInt(out, at, varint2, p.TimeMS)
	if x != nil {
		out[at] = bytes4
		at = putVarint(out, at+1, uint64(exemplar))
		at = putInt(out, at, varint1, x.TimeNS/1e6)
		out[at], out[at+1] = bytes2, profiles.IDBytes
		x.ID.Put(out[at+2:])
		at += 2 + profiles.IDBytes
		if span != nil {
			at = putText(out, at, bytes3, span.IDText())
		}
		at = putInt(out, at, varint4, x.Value)
		at += copy(out[at:], set)
		if span != nil {
			at = putText(out, at, bytes6, span.TraceText())
		}
	}
	return out[:at]
}

// putInt writes a field at an offset and returns the offset after it.
func putInt(out []byte, at int, tag byte, v int64) int {
	if v == 0 {
		return at
	}
	out[at] = tag
	return putVarint(out, at+1, uint64(v))
}

// putText writes a field of less than 128 bytes at an offset and returns the offset after it.
func putText(out []byte, at int, tag byte, text string) int {
	if text == "" {
		return at
	}
	out[at], out[at+1] = tag, byte(len(text))
	return at + 2 + copy(out[at+2:], text)
}

// putVarint writes a varint at an offset and returns the offset after it.
func putVarint(out []byte, at int, v uint64) int {
	for ; v >= 0x80; at++ {
		out[at] = byte(v) | 0x80
		v >>= 7
	}
	out[at] = byte(v)
	return at + 1
}

// AppendProto implements Encoder.
func (a *SeriesEncoder) AppendProto(dst []byte) []byte {
	sets := newSetEncoder(a.Result, func(dst, set []byte, without []string) []byte {
		return retagged(dst, set, bytes5, without)
	})
	defer sets.release()
	point := func(s *profiles.Series, j int) (x *profiles.Exemplar, span *profiles.Span, set []byte) {
		if x, span = a.exemplar(s, j); x != nil {
			set = sets.get(x.Set)
		}
		return x, span, set
	}
	total := 0
	for i := range a.Result.Series {
		s := &a.Result.Series[i]
		size := len(s.Labels)
		for j := range s.Points {
			x, span, set := point(s, j)
			n, _ := pointSize(&s.Points[j], x, span, len(set))
			size += 1 + protowire.SizeBytes(n)
		}
		sets.sizes = append(sets.sizes, size)
		total += 1 + protowire.SizeBytes(size)
	}
	if a.To != nil {
		a.To.Header().Set("Content-Length", strconv.Itoa(total))
	}
	dst = a.grow(dst, total)
	for i := range a.Result.Series {
		s := &a.Result.Series[i]
		dst = append(appendHead(dst, bytes1, sets.sizes[i]), s.Labels...)
		for j := range s.Points {
			x, span, set := point(s, j)
			dst = a.pass(appendPoint(dst, &s.Points[j], x, span, set))
		}
	}
	return dst
}

func packedSize(values []int64) int {
	size := 0
	for _, v := range values {
		size += protowire.SizeVarint(uint64(v))
	}
	return size
}

func appendFlame(dst []byte, f *profiles.FlameGraph) []byte {
	for _, name := range f.Names {
		name = valid(name)
		dst = append(appendHead(dst, bytes1, len(name)), name...)
	}
	for _, level := range f.Levels {
		n := packedSize(level)
		if n == 0 {
			dst = append(dst, bytes2, 0)
			continue
		}
		dst = appendHead(appendHead(dst, bytes2, 1+protowire.SizeBytes(n)), bytes1, n)
		for _, v := range level {
			dst = binary.AppendUvarint(dst, uint64(v))
		}
	}
	dst = appendInt(dst, varint3, f.Total)
	return appendInt(dst, varint4, f.MaxSelf)
}

// appendMessage appends the message that inner appends, with tag and length. It inserts
// the length afterwards.
func appendMessage(dst []byte, tag byte, inner func([]byte) []byte) []byte {
	dst = append(dst, tag, 0)
	start := len(dst)
	dst = inner(dst)
	n := len(dst) - start
	if extra := protowire.SizeVarint(uint64(n)) - 1; extra > 0 {
		dst = append(dst, make([]byte, extra)...)
		copy(dst[start+extra:], dst[start:start+n])
	}
	binary.PutUvarint(dst[start-1:], uint64(n))
	return dst
}

// AppendProto implements Encoder.
func (a *MergeEncoder) AppendProto(dst []byte) []byte {
	if a.Flame != nil {
		dst = appendMessage(dst, bytes1, func(dst []byte) []byte { return appendFlame(dst, a.Flame) })
	}
	if len(a.Tree) > 0 {
		dst = append(appendHead(dst, bytes2, len(a.Tree)), a.Tree...)
	}
	dst = appendText(dst, bytes3, valid(a.Dot))
	if a.Pprof != nil {
		dst = appendHead(dst, bytes5, 1+protowire.SizeBytes(len(a.Pprof)))
		dst = append(appendHead(dst, bytes1, len(a.Pprof)), a.Pprof...)
	}
	return dst
}

// AppendProto implements Encoder.
func (a *ProfileEncoder) AppendProto(dst []byte) []byte { return append(dst, a.Profile...) }

// AppendProto implements Encoder.
func (a *DiffEncoder) AppendProto(dst []byte) []byte {
	return appendMessage(dst, bytes1, func(dst []byte) []byte {
		dst = appendFlame(dst, &a.FlameGraph)
		dst = appendInt(dst, varint5, a.LeftTicks)
		return appendInt(dst, varint6, a.RightTicks)
	})
}

// AppendProto implements Encoder.
func (a *FunctionsEncoder) AppendProto(dst []byte) []byte {
	for i := range a.Functions {
		f := &a.Functions[i]
		dst = appendMessage(dst, bytes1, func(dst []byte) []byte {
			return appendInt(appendInt(appendText(dst, bytes1, valid(f.Name)), varint2, f.Self), varint3, f.Total)
		})
	}
	return appendInt(appendInt(dst, varint2, a.Total), varint3, a.Count)
}

// AppendProto implements Encoder.
func (a *LabelSetsEncoder) AppendProto(dst []byte) []byte {
	for _, set := range a.Sets {
		dst = append(appendHead(dst, bytes2, len(set)), set...)
	}
	return dst
}
