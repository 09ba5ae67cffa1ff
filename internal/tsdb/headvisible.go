package tsdb

import (
	"encoding/binary"
	"math"
	"reflect"

	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// committed splits the chunks by the appends that the view contains; samples of other appends
// are hidden. whole is the number of leading chunks without hidden samples. partial iterates
// over the visible samples of the chunk after them; it is nil if all samples of that chunk
// are hidden. In a series all visible samples precede the hidden samples, so the search begins
// at the last chunk and ends at the first that has a visible sample.
//
// The head has no call that returns which samples are visible. But it wraps the iterator of a chunk with hidden
// samples, so the iterator's type shows it. To compare each sample with the iterator's would cost a decoding of every
// chunk. This file can go once the head's reader returns the number of visible samples of a chunk.
// TestRawHead_HidesLaterCommits fails if the head wraps otherwise.
func (s *headSet) committed() (whole int, partial chunkenc.Iterator) {
	types := &s.head.store.iterators
	for i := len(s.sources) - 1; i >= 0; i-- {
		it := s.sources[i].Iterator(s.iter)
		switch reflect.TypeOf(it) {
		case types.all[s.chunks[i].Encoding]:
			s.iter = it
			return i + 1, nil
		case types.none:
		default:
			return i, it
		}
	}
	return 0, nil
}

// iteratorTypes are the types of the iterators that the head returns for a chunk.
type iteratorTypes struct {
	all  map[chunkenc.Encoding]reflect.Type // if all samples are visible, by the chunk's encoding
	none reflect.Type                       // if all samples are hidden
	xor  *xorFields                         // nil: unknown
}

// xorFields has the places of fields in the iterator of XOR chunks. The iterator is made under the lock of the series,
// and keeps what an append changes later: the number of samples and the last byte. An append changes no other byte of
// the chunk. So the chunk can be read without its lock, and without the clone that the head makes for other readers.
// TestHead_OpenChunkIsReadInPlace fails if the iterator changes.
type xorFields struct {
	of                            reflect.Type // of the iterator
	samples, reader, stream, last int
}

// xorFieldsOf returns nil if the iterator has other fields than those that are known.
func xorFieldsOf(iterator reflect.Type) *xorFields {
	known := true
	index := func(of reflect.Type, name string, kind reflect.Kind) int {
		f, ok := of.FieldByName(name)
		if known = known && ok && f.Type.Kind() == kind; !known {
			return 0
		}
		return f.Index[0]
	}
	f := xorFields{of: iterator}
	f.samples = index(iterator.Elem(), "numTotal", reflect.Uint16)
	if f.reader = index(iterator.Elem(), "br", reflect.Struct); known {
		reader := iterator.Elem().Field(f.reader).Type
		f.stream, f.last = index(reader, "stream", reflect.Slice), index(reader, "last", reflect.Uint8)
	}
	if !known {
		return nil
	}
	return &f
}

// append appends the chunk of an iterator from which nothing was read.
func (f *xorFields) append(dst []byte, it chunkenc.Iterator) []byte {
	from := reflect.ValueOf(it).Elem()
	dst = binary.BigEndian.AppendUint16(dst, uint16(from.Field(f.samples).Uint()))
	from = from.Field(f.reader)
	if stream := from.Field(f.stream).Bytes(); len(stream) > 0 {
		dst = append(append(dst, stream[:len(stream)-1]...), byte(from.Field(f.last).Uint()))
	}
	return dst
}

func newIteratorTypes() iteratorTypes {
	types := iteratorTypes{all: map[chunkenc.Encoding]reflect.Type{}, none: reflect.TypeOf(chunkenc.NewNopIterator())}
	for encoding := range chunkenc.Encoding(math.MaxUint8) {
		if c, err := chunkenc.NewEmptyChunk(encoding); err == nil {
			types.all[encoding] = reflect.TypeOf(c.Iterator(nil))
		}
	}
	types.xor = xorFieldsOf(types.all[chunkenc.EncXOR])
	return types
}
