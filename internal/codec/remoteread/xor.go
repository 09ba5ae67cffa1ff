package remoteread

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
)

// A chunk of encoding XOR:
//
//	chunk   number of samples, 2 bytes big endian  first  second  rest*
//	first   varint(time)  value, 64 bits
//	second  uvarint(time less the first)  xor
//	rest    0, the time advances as it did before | 10 14 bits | 110 17 bits | 1110 20 bits | 1111 64 bits, by so much more  xor
//	xor     0, the value is that before it | 10 bits where the last one had its own | 11 leading zeros, 5 bits  number of bits, 6  bits
//
// The varints are at byte positions; everything behind them is bits.

// AppendXORFloats appends the first n float samples of an XOR chunk, or all if it has
// fewer, and returns their number. Timestamps outside minMS to maxMS, inclusive, are an
// error. It has its own decoder: an iterator costs a call per sample and reads single
// bits; this one keeps the state between two samples in registers.
func AppendXORFloats(dst, chunk []byte, n int, minMS, maxMS int64) ([]byte, int, error) {
	if len(chunk) < 2 {
		return dst, 0, fmt.Errorf("%w: chunk of %d bytes", ErrCorrupt, len(chunk))
	}
	n = min(n, int(binary.BigEndian.Uint16(chunk)))
	d := xorDecoder{src: chunk, at: 2 * 8, size: 64}
	short := minMS >= FloatFromMS && maxMS <= FloatToMS
	if short {
		dst = slices.Grow(dst, n*FloatBytes+8)
	}
	for i := 0; i < n; i++ {
		ok := false
		switch i {
		case 0:
			ok = d.first()
		case 1:
			ok = d.second()
		default:
			if short {
				even := 0
				if dst, even = d.appendRegular(dst, n-i, minMS, maxMS); even > 0 {
					i += even - 1
					continue
				}
			}
			ok = d.time() && d.xor()
		}
		if !ok {
			return dst, i, fmt.Errorf("%w: a chunk ends in sample %d of %d", ErrCorrupt, i, n)
		}
		if d.t < minMS || d.t > maxMS {
			return dst, i, fmt.Errorf("%w: a chunk from %d to %d has a sample at %d", ErrCorrupt, minMS, maxMS, d.t)
		}
		if short {
			dst = putShortFloat(dst, uint64(d.t), d.value)
		} else {
			dst = appendFloatBits(dst, d.t, d.value)
		}
	}
	return dst, n, nil
}

// regularBytes is more than a sample at a constant interval takes, including what is
// read ahead with it.
const regularBytes = 24

// appendRegular appends up to n samples as long as the interval is constant, which is
// the usual case, and the end of the chunk is not near. It has the code of time and xor
// again with all state in registers, which halves the time per sample. It leaves invalid
// data to them.
func (d *xorDecoder) appendRegular(dst []byte, n int, minMS, maxMS int64) ([]byte, int) {
	src, at, t, delta, value, leading, size := d.src, d.at, d.t, int64(d.delta), d.value, d.leading, d.size
	done := 0
	for ; done < n && at>>3+regularBytes <= len(src); done++ {
		w := binary.BigEndian.Uint64(src[at>>3:]) << (at & 7)
		next := t + delta
		if w>>63 != 0 || next < minMS || next > maxMS {
			break
		}
		if w>>62 == 0 {
			at += 2
		} else {
			from, l, s := at+3, leading, size
			if w>>61 == 3 {
				if l, s = uint(w>>56&31), uint(w>>50&63); s == 0 {
					s = 64
				}
				from = at + 14
			}
			if l+s > 64 {
				break
			}
			own := binary.BigEndian.Uint64(src[from>>3:])<<(from&7) | uint64(src[from>>3+8])>>(8-uint(from&7))
			value ^= own >> (64 - s) << (64 - l - s)
			at, leading, size = from+int(s), l, s
		}
		t = next
		dst = putShortFloat(dst, uint64(t), value)
	}
	d.at, d.t, d.value, d.leading, d.size = at, t, value, leading, size
	return dst, done
}

// putShortFloat appends a sample whose timestamp is a varint of 6 bytes, in a few words.
// dst needs space for 8 more bytes than the sample.
func putShortFloat(dst []byte, t, value uint64) []byte {
	const head = 2<<3 | wireBytes | (FloatBytes-2)<<8 | (1<<3|wireFixed64)<<16
	out := dst[len(dst) : len(dst)+FloatBytes+2]
	binary.LittleEndian.PutUint32(out, head)
	binary.LittleEndian.PutUint64(out[3:], value)
	out[11] = 2<<3 | wireVarint
	binary.LittleEndian.PutUint64(out[12:], uvarint6(t)) // the next sample overwrites the last two bytes
	return dst[:len(dst)+FloatBytes]
}

// uvarint6 returns a varint of 6 bytes: seven bits per byte, with the highest bit set in
// all but the last.
func uvarint6(t uint64) uint64 {
	return t&0x7f | t<<1&0x7f00 | t<<2&0x7f0000 | t<<3&0x7f000000 | t<<4&0x7f00000000 | t<<5&0x7f0000000000 | 0x8080808080
}

// xorDecoder is the state between two samples of a chunk.
type xorDecoder struct {
	src   []byte
	at    int // offset in bits
	t     int64
	delta uint64
	value uint64
	// Position of the bits of the last xor that had a position of its own.
	leading, size uint
}

// bits returns at least 57 bits from offset at on, with zeros after the end.
func (d *xorDecoder) bits() uint64 {
	from := d.at >> 3
	if from+8 <= len(d.src) {
		return binary.BigEndian.Uint64(d.src[from:]) << (d.at & 7)
	}
	return d.lastBits(from)
}

func (d *xorDecoder) lastBits(from int) uint64 {
	var tail [8]byte
	if from < len(d.src) {
		copy(tail[:], d.src[from:])
	}
	return binary.BigEndian.Uint64(tail[:]) << (d.at & 7)
}

// uint64 reads the next 64 bits.
func (d *xorDecoder) uint64() uint64 {
	high := d.bits() >> 32
	d.at += 32
	low := d.bits() >> 32
	d.at += 32
	return high<<32 | low
}

// withinChunk reports whether no bit after the end was read.
func (d *xorDecoder) withinChunk() bool { return d.at <= len(d.src)*8 }

func (d *xorDecoder) first() bool {
	t, n := binary.Varint(d.src[d.at>>3:])
	if n <= 0 {
		return false
	}
	d.t = t
	d.at += n * 8
	d.value = d.uint64()
	return d.withinChunk()
}

func (d *xorDecoder) second() bool {
	delta, n := binary.Uvarint(d.src[d.at>>3:])
	if n <= 0 {
		return false
	}
	d.delta = delta
	d.t += int64(delta)
	d.at += n * 8
	return d.xor()
}

// time reads the change of the interval and advances the timestamp.
func (d *xorDecoder) time() bool {
	w := d.bits()
	if w>>63 == 0 { // the usual case
		d.at++
		d.t += int64(d.delta)
		return true
	}
	size, head := uint(0), 0
	switch ones := bits.LeadingZeros64(^w); ones {
	case 1:
		size, head = 14, 2
	case 2:
		size, head = 17, 3
	case 3:
		size, head = 20, 4
	default:
		d.at += 4
		d.delta += d.uint64()
		d.t += int64(d.delta)
		return d.withinChunk()
	}
	more := int64(w << head >> (64 - size))
	if more > 1<<(size-1) { // negative numbers are encoded as large ones
		more -= 1 << size
	}
	d.at += head + int(size)
	d.delta += uint64(more)
	d.t += int64(d.delta)
	return d.withinChunk()
}

// xor reads the difference from the value before.
func (d *xorDecoder) xor() bool {
	w := d.bits()
	if w>>63 == 0 {
		d.at++
		return d.withinChunk()
	}
	if w>>62&1 == 0 {
		d.at += 2
	} else {
		d.leading, d.size = uint(w>>57&31), uint(w>>51&63)
		if d.size == 0 {
			d.size = 64 // 64 does not fit in 6 bits; 0 stands for it
		}
		d.at += 13
	}
	if d.leading+d.size > 64 {
		return false
	}
	var own uint64
	if d.size <= 57 {
		own = d.bits() >> (64 - d.size)
		d.at += int(d.size)
	} else {
		own = d.uint64() >> (64 - d.size)
		d.at -= 64 - int(d.size)
	}
	d.value ^= own << (64 - d.leading - d.size)
	return d.withinChunk()
}
