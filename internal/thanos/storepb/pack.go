package storepb

import (
	"encoding/binary"
	"fmt"
)

// PackedEncoding is the encoding of a packed chunk. No chunk encoding of Prometheus has
// this number. Packed chunks exist only within the process.
const PackedEncoding = 1 << 5

// AppendPacked appends the aggregates (count, sum and so on) of one downsampled time range as the data
// of one chunk. aggregates must be in ascending order of Aggr.
//
//	packed  (aggregate encoding uvarint(len) data)*    in ascending order of Aggr
//
// Merges of series drop duplicate chunks, one chunk at a time. Packed, a count and its sum are one chunk:
// a merge cannot drop one and retain the other.
func AppendPacked(dst []byte, aggregates []Chunk) []byte {
	for i := range aggregates {
		c := &aggregates[i]
		dst = append(dst, byte(c.Aggr), c.Encoding)
		dst = binary.AppendUvarint(dst, uint64(len(c.Data)))
		dst = append(dst, c.Data...)
	}
	return dst
}

// NextPacked cuts the first aggregate off packed data. It does not set the time range. c.Data
// aliases packed.
func NextPacked(packed []byte) (c Chunk, rest []byte, err error) {
	if len(packed) < 3 {
		return Chunk{}, nil, packedShort()
	}
	c = Chunk{Aggr: Aggr(packed[0]), Encoding: packed[1]}
	size, n := uvarint(packed[2:])
	if n == 0 || size > uint64(len(packed)-2-n) {
		return Chunk{}, nil, packedShort()
	}
	at := 2 + n
	end := at + int(size)
	c.Data = packed[at:end]
	return c, packed[end:], nil
}

func packedShort() error { return fmt.Errorf("%w: a packed chunk is cut short", ErrCorrupt) }
