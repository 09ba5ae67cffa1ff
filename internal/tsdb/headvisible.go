package tsdb

import (
	"math"
	"reflect"

	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// iteratorTypes are the types of the iterators that the head returns for a chunk.
//
// The head has no call that returns which samples are visible. But it wraps the iterator of a chunk with hidden
// samples, so the iterator's type shows it. To compare each sample with the iterator's would cost a decoding of every
// chunk. This file can go once the head's reader returns the number of visible samples of a chunk.
// TestRawHead_HidesLaterCommits fails if the head wraps otherwise.
type iteratorTypes struct {
	all  map[chunkenc.Encoding]reflect.Type // if all samples are visible, by the chunk's encoding
	none reflect.Type                       // if all samples are hidden
}

func newIteratorTypes() iteratorTypes {
	types := iteratorTypes{all: map[chunkenc.Encoding]reflect.Type{}, none: reflect.TypeOf(chunkenc.NewNopIterator())}
	for encoding := range chunkenc.Encoding(math.MaxUint8) {
		if c, err := chunkenc.NewEmptyChunk(encoding); err == nil {
			types.all[encoding] = reflect.TypeOf(c.Iterator(nil))
		}
	}
	return types
}
