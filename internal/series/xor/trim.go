package xor

import (
	"encoding/binary"
	"math/bits"
)

// Trim appends the samples of an XOR chunk from mint to maxt, both in ms and inclusive.
// The bytes are those that Prometheus' encoder writes for these samples. first and last are
// their timestamps. ok is false if the chunk has timestamps out of order, bits that
// Prometheus' encoder does not write, or no sample in the range: the caller then uses
// Prometheus' iterators.
//
// The state of an encoder is the last sample, the last interval, and the leading and trailing
// zeros that it wrote last. Once two encoders have equal states, they write equal bits for
// equal samples. So Trim goes through the chunk in three steps:
//
//  1. It decodes the samples before mint and drops them.
//  2. It decodes the samples from mint on and encodes them again, until its encoder has the state
//     that the chunk's encoder had after the same sample.
//  3. It decodes the samples up to maxt only to find the bit at which they end, and copies their
//     bits, shifted.
func Trim(dst, chunk []byte, mint, maxt int64) (out []byte, first, last int64, ok bool) {
	if len(chunk) < 3 {
		return dst, 0, 0, false
	}
	begin := len(dst)
	in := cursor{src: chunk, at: 16, leading: noWindow}
	w := writer{dst: append(dst, 0, 0), leading: noWindow}
	total := int(binary.BigEndian.Uint16(chunk))
	kept := 0    // samples in the range so far
	copied := -1 // bit of chunk from which step 3 copies; -1: step 3 has not begun
	end := 0     // bit of chunk after the last sample in the range
	for i := 0; i < total; i++ {
		if kept == 0 || copied >= 0 {
			limit := maxt
			if kept == 0 {
				limit = mint - 1
			}
			if n := in.run(i, total, limit); n > 0 {
				if i += n - 1; kept > 0 {
					kept, last, end = kept+n, in.t, in.at
				}
				continue
			}
		}
		was := in
		if !in.next(i) || i > 0 && in.t < was.t {
			return dst, 0, 0, false
		}
		if in.t < mint {
			continue
		}
		if in.t > maxt {
			break
		}
		if kept == 0 {
			if first = in.t; i == 0 {
				copied = was.at
			}
		}
		if copied < 0 {
			switch kept {
			case 0:
				w.dst = binary.BigEndian.AppendUint64(binary.AppendVarint(w.dst, in.t), in.value)
			case 1:
				w.dst = binary.AppendUvarint(w.dst, uint64(in.t-was.t)) // at a byte position, as the first sample
				w.value(was.value, in.value)
			default:
				w.change(int64(in.delta - was.delta))
				w.value(was.value, in.value)
			}
			if kept > 0 && w.leading == in.leading && w.trailing == in.trailing {
				copied = in.at
			}
		}
		kept, last, end = kept+1, in.t, in.at
	}
	if kept == 0 {
		return dst, 0, 0, false
	}
	if copied >= 0 {
		w.copy(chunk, copied, end)
	}
	out = w.end()
	binary.BigEndian.PutUint16(out[begin:], uint16(kept))
	return out, first, last, true
}

// cursor decodes a chunk sample by sample, and knows the bit behind each, unlike Reader.
type cursor struct {
	src               []byte
	at                int // offset in bits
	t                 int64
	delta             uint64
	value             uint64
	leading, trailing uint // zeros before and after the significant bits, as the last sample that encoded them has them
}

// peek returns at least 57 bits from the offset on, with zeros after the end.
func (d *cursor) peek() uint64 {
	from := d.at >> 3
	if from+8 <= len(d.src) {
		return binary.BigEndian.Uint64(d.src[from:]) << (d.at & 7)
	}
	var tail [8]byte
	if from < len(d.src) {
		copy(tail[:], d.src[from:])
	}
	return binary.BigEndian.Uint64(tail[:]) << (d.at & 7)
}

// read reads 1 to 64 bits.
func (d *cursor) read(n int) uint64 {
	if n <= 57 {
		v := d.peek() >> (64 - n)
		d.at += n
		return v
	}
	high := d.read(32)
	return high<<(n-32) | d.read(n-32)
}

// next decodes sample i. It returns false for bits that Prometheus' encoder does not write,
// and at the end of the chunk.
func (d *cursor) next(i int) bool {
	switch i {
	case 0:
		t, n := binary.Varint(d.src[d.at>>3:])
		if n <= 0 {
			return false
		}
		d.t, d.at = t, d.at+8*n
		d.value = d.read(64)
		return d.at <= 8*len(d.src)
	case 1:
		delta, n := binary.Uvarint(d.src[d.at>>3:])
		if n <= 0 {
			return false
		}
		d.delta, d.at = delta, d.at+8*n
	default:
		d.interval()
	}
	d.t += int64(d.delta)
	return d.xor()
}

// runBytes is more than the number of bytes that run reads for one sample.
const runBytes = 24

// run decodes samples from number i on, as next does. It stops where the interval changes,
// before a timestamp after limit, and near the end of the chunk. It returns the number of
// decoded samples. A constant interval is the usual case: with all state in registers, its
// decoding takes half the time.
func (d *cursor) run(i, total int, limit int64) int {
	if i < 2 {
		return 0
	}
	src, at, t, delta, value := d.src, d.at, d.t, int64(d.delta), d.value
	leading, trailing := d.leading, d.trailing
	first := i
	for ; i < total && at>>3+runBytes <= len(src); i++ {
		w := binary.BigEndian.Uint64(src[at>>3:]) << (at & 7)
		next := t + delta
		if w>>63 != 0 || next < t || next > limit {
			break
		}
		if w>>62 == 0 {
			at += 2
		} else {
			from, l, r := at+3, leading, trailing
			if w>>61 == 3 {
				size := uint(w >> 50 & 63)
				if size == 0 {
					size = 64
				}
				if from, l = at+14, uint(w>>56&31); l+size > 64 {
					break
				}
				r = 64 - l - size
			} else if l == noWindow {
				break
			}
			own := binary.BigEndian.Uint64(src[from>>3:])<<(from&7) | uint64(src[from>>3+8])>>(8-uint(from&7))
			value ^= own >> (l + r) << r
			at, leading, trailing = from+int(64-l-r), l, r
		}
		t = next
	}
	d.at, d.t, d.value, d.leading, d.trailing = at, t, value, leading, trailing
	return i - first
}

// interval reads the change of the interval.
func (d *cursor) interval() {
	w := d.peek()
	if w>>63 == 0 {
		d.at++
		return
	}
	size := 0
	switch ones := bits.LeadingZeros64(^w); ones {
	case 1:
		d.at, size = d.at+2, 14
	case 2:
		d.at, size = d.at+3, 17
	case 3:
		d.at, size = d.at+4, 20
	default:
		d.at += 4
		d.delta += d.read(64)
		return
	}
	more := int64(d.read(size))
	if more > 1<<(size-1) {
		more -= 1 << size
	}
	d.delta += uint64(more)
}

// xor reads the difference from the value before.
func (d *cursor) xor() bool {
	w := d.peek()
	switch {
	case w>>63 == 0:
		d.at++
		return d.at <= 8*len(d.src)
	case w>>62 == 2:
		if d.leading == noWindow {
			return false
		}
		d.at += 2
	default:
		size := uint(w >> 51 & 63)
		if size == 0 {
			size = 64 // does not fit in 6 bits
		}
		d.leading = uint(w >> 57 & 31)
		if d.leading+size > 64 {
			return false
		}
		d.trailing = 64 - d.leading - size
		d.at += 13
	}
	d.value ^= d.read(64-int(d.leading)-int(d.trailing)) << d.trailing
	return d.at <= 8*len(d.src)
}

// copy appends the bits of src from bit from to bit to.
func (w *writer) copy(src []byte, from, to int) {
	r := cursor{src: src, at: from}
	for to-r.at >= 56 {
		w.put(r.read(56), 56)
	}
	if n := to - r.at; n > 0 {
		w.put(r.read(n), uint(n))
	}
}
