package storepb

import "encoding/binary"

// PackedEncoding is the encoding of a packed chunk. No chunk encoding of Prometheus has
// this number. Packed chunks exist only within the process.
const PackedEncoding = 1 << 5

// AppendPacked appends the aggregates of one downsampled span as the data of one chunk.
// A merge that compares and drops whole chunks then never separates a count from its
// sum:
//
//	packed  (aggregate encoding uvarint(len) data)*    aggregates ascending
func AppendPacked(dst []byte, span []Chunk) []byte {
	for i := range span {
		c := &span[i]
		dst = append(dst, byte(c.Aggr), c.Encoding)
		dst = binary.AppendUvarint(dst, uint64(len(c.Data)))
		dst = append(dst, c.Data...)
	}
	return dst
}

// NextPacked cuts the first aggregate off packed data. It does not set the time range. The
// capacity of c.Data ends where the capacity of packed ends, so that readers may read ahead.
func NextPacked(packed []byte) (c Chunk, rest []byte, err error) {
	if len(packed) < 3 {
		return Chunk{}, nil, cutShort(2)
	}
	c = Chunk{Aggr: Aggr(packed[0]), Encoding: packed[1]}
	size, n := uvarint(packed[2:])
	if n == 0 || size > uint64(len(packed)-2-n) {
		return Chunk{}, nil, cutShort(2)
	}
	at := 2 + n
	end := at + int(size)
	c.Data = packed[at:end]
	return c, packed[end:], nil
}
