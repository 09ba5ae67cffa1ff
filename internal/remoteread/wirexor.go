package remoteread

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/ferula-io/ferula/internal/series/xor"
)

// xorBatch is the number of samples that appendXORFloats decodes at once before it encodes them.
const xorBatch = 64

// appendXORFloats appends the first n samples of an XOR chunk as appendFloat does, or all if the
// chunk has fewer, and returns their number. A timestamp outside minMS to maxMS, inclusive, is
// an error.
func appendXORFloats(dst, chunk []byte, n int, minMS, maxMS int64) ([]byte, int, error) {
	var r xor.Reader
	if err := r.Reset(chunk, xor.AnyOrder); err != nil {
		return dst, 0, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	n = min(n, r.Samples())
	short := minMS >= floatFromMS && maxMS <= floatToMS
	if short {
		dst = slices.Grow(dst, n*floatBytes+8)
	}
	var batch [xorBatch]xor.Point
	for done := 0; done < n; {
		points := batch[:min(n-done, xorBatch)]
		count, err := xor.Read(&r, points)
		for i, p := range points[:count] {
			if p.T < minMS || p.T > maxMS {
				return dst, done + i, fmt.Errorf("%w: a chunk from %d to %d has a sample at %d", ErrCorrupt, minMS, maxMS, p.T)
			}
			if short {
				dst = putShortFloat(dst, uint64(p.T), math.Float64bits(p.F))
			} else {
				dst = appendFloat(dst, p.T, p.F)
			}
		}
		done += count
		if err != nil {
			return dst, done, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
	}
	return dst, n, nil
}

// putShortFloat appends a sample whose timestamp is a varint of 6 bytes, with four writes. The
// last write exceeds the sample by 2 bytes, so dst needs a capacity for 2 more bytes.
func putShortFloat(dst []byte, t, value uint64) []byte {
	const head = 2<<3 | wireBytes | (floatBytes-2)<<8 | (1<<3|wireFixed64)<<16
	out := dst[len(dst) : len(dst)+floatBytes+2]
	binary.LittleEndian.PutUint32(out, head)
	binary.LittleEndian.PutUint64(out[3:], value)
	out[11] = 2<<3 | wireVarint
	binary.LittleEndian.PutUint64(out[12:], uvarint6(t)) // the next sample overwrites the last two bytes
	return dst[:len(dst)+floatBytes]
}

// uvarint6 returns a varint of 6 bytes: seven bits per byte, with the highest bit set in
// all but the last.
func uvarint6(t uint64) uint64 {
	return t&0x7f | t<<1&0x7f00 | t<<2&0x7f0000 | t<<3&0x7f000000 | t<<4&0x7f00000000 | t<<5&0x7f0000000000 | 0x8080808080
}
