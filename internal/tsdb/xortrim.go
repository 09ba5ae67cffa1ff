package tsdb

import (
	"encoding/binary"
	"math/bits"
)

// trimXOR appends the samples of an XOR chunk from mint to maxt, both in ms and inclusive.
// The bytes are those that Prometheus' encoder writes for these samples. first and last are
// their timestamps. ok is false if the chunk has timestamps out of order, bits that
// Prometheus' encoder does not write, or no sample in the range: the caller then uses
// Prometheus' iterators.
//
// The state of an encoder is the last sample, the last interval, and the leading and trailing
// zeros that it wrote last. Once two encoders have equal states, they write equal bits for
// equal samples. So trimXOR goes through the chunk in three steps:
//
//  1. It decodes the samples before mint and drops them.
//  2. It decodes the samples from mint on and encodes them again, until its encoder has the state
//     that the chunk's encoder had after the same sample.
//  3. It decodes the samples up to maxt only to find the bit at which they end, and copies their
//     bits, shifted.
func trimXOR(dst, chunk []byte, mint, maxt int64) (out []byte, first, last int64, ok bool) {
	if len(chunk) < 3 {
		return dst, 0, 0, false
	}
	begin := len(dst)
	in := xorState{src: chunk, at: 16, leading: noPosition}
	w := bitWriter{dst: append(dst, 0, 0)}
	enc := xorEncoder{leading: noPosition}
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
		before, beforeT := in.at, in.t
		if !in.next(i) || i > 0 && in.t < beforeT {
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
				copied = before
			}
		}
		if copied < 0 {
			enc.write(&w, kept, in.t, in.value)
			if kept > 0 && enc.leading == in.leading && enc.trailing == in.trailing {
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
	out = w.flush()
	binary.BigEndian.PutUint16(out[begin:], uint16(kept))
	return out, first, last, true
}

// noPosition is the value of leading until a sample has encoded the number of leading zeros.
const noPosition = 0xff

// xorState decodes an XOR chunk sample by sample.
type xorState struct {
	src               []byte
	at                int // offset in bits
	t                 int64
	delta             uint64
	value             uint64
	leading, trailing uint8 // zeros before and after the significant bits, as the last sample that encoded them has them
}

// peek returns at least 57 bits from the offset on, with zeros after the end.
func (d *xorState) peek() uint64 {
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
func (d *xorState) read(n int) uint64 {
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
func (d *xorState) next(i int) bool {
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
func (d *xorState) run(i, total int, limit int64) int {
	if i < 2 {
		return 0
	}
	src, at, t, delta, value := d.src, d.at, d.t, int64(d.delta), d.value
	leading, trailing := uint(d.leading), uint(d.trailing)
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
			} else if l == noPosition {
				break
			}
			own := binary.BigEndian.Uint64(src[from>>3:])<<(from&7) | uint64(src[from>>3+8])>>(8-uint(from&7))
			value ^= own >> (l + r) << r
			at, leading, trailing = from+int(64-l-r), l, r
		}
		t = next
	}
	d.at, d.t, d.value, d.leading, d.trailing = at, t, value, uint8(leading), uint8(trailing)
	return i - first
}

// interval reads the change of the interval.
func (d *xorState) interval() {
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
func (d *xorState) xor() bool {
	w := d.peek()
	switch {
	case w>>63 == 0:
		d.at++
		return d.at <= 8*len(d.src)
	case w>>62 == 2:
		if d.leading == noPosition {
			return false
		}
		d.at += 2
	default:
		size := w >> 51 & 63
		if size == 0 {
			size = 64 // does not fit in 6 bits
		}
		d.leading = uint8(w >> 57 & 31)
		if uint64(d.leading)+size > 64 {
			return false
		}
		d.trailing = uint8(64 - uint64(d.leading) - size)
		d.at += 13
	}
	d.value ^= d.read(64-int(d.leading)-int(d.trailing)) << d.trailing
	return d.at <= 8*len(d.src)
}

// xorEncoder is the state of Prometheus' encoder.
type xorEncoder struct {
	t                 int64
	delta             uint64
	value             uint64
	leading, trailing uint8
}

// write encodes sample i.
func (e *xorEncoder) write(w *bitWriter, i int, t int64, value uint64) {
	delta := uint64(t - e.t)
	switch i {
	case 0:
		w.dst = binary.AppendVarint(w.dst, t) // at a byte position
		w.write(value, 64)
		e.t, e.value = t, value
		return
	case 1:
		for _, b := range binary.AppendUvarint(make([]byte, 0, binary.MaxVarintLen64), delta) {
			w.write(uint64(b), 8)
		}
	default:
		w.writeInterval(int64(delta - e.delta))
	}
	e.xor(w, value^e.value)
	e.t, e.delta, e.value = t, delta, value
}

func (w *bitWriter) writeInterval(more int64) {
	within := func(size int) bool { return -(1<<(size-1)-1) <= more && more <= 1<<(size-1) }
	switch {
	case more == 0:
		w.write(0, 1)
	case within(14):
		w.write(0b10, 2)
		w.write(uint64(more), 14)
	case within(17):
		w.write(0b110, 3)
		w.write(uint64(more), 17)
	case within(20):
		w.write(0b1110, 4)
		w.write(uint64(more), 20)
	default:
		w.write(0b1111, 4)
		w.write(uint64(more), 64)
	}
}

func (e *xorEncoder) xor(w *bitWriter, change uint64) {
	if change == 0 {
		w.write(0, 1)
		return
	}
	leading, trailing := uint8(min(31, bits.LeadingZeros64(change))), uint8(bits.TrailingZeros64(change))
	if e.leading != noPosition && leading >= e.leading && trailing >= e.trailing {
		w.write(0b10, 2)
		w.write(change>>e.trailing, 64-int(e.leading)-int(e.trailing))
		return
	}
	e.leading, e.trailing = leading, trailing
	size := 64 - int(leading) - int(trailing)
	w.write(0b11<<11|uint64(leading)<<6|uint64(size&63), 13)
	w.write(change>>trailing, size)
}

// bitWriter appends bits.
type bitWriter struct {
	dst  []byte
	word uint64 // its lowest n bits are not yet in dst
	n    int    // less than 8
}

// write appends the lowest n bits of v, 1 to 64.
func (w *bitWriter) write(v uint64, n int) {
	if n > 56 {
		w.write(v>>32, n-32)
		n = 32
	}
	w.word = w.word<<n | v&(1<<n-1)
	for w.n += n; w.n >= 8; {
		w.n -= 8
		w.dst = append(w.dst, byte(w.word>>w.n))
	}
}

// copy appends the bits of src from bit from to bit to.
func (w *bitWriter) copy(src []byte, from, to int) {
	r := xorState{src: src, at: from}
	for to-r.at >= 56 {
		bits, before := r.peek()>>8, w.n // 56 of them
		w.dst = binary.BigEndian.AppendUint64(w.dst, w.word<<(64-before)|bits<<(8-before))
		w.dst = w.dst[:len(w.dst)-1]
		w.word = bits & (1<<before - 1)
		r.at += 56
	}
	if n := to - r.at; n > 0 {
		w.write(r.read(n), n)
	}
}

// flush returns the bytes, the last one filled with zeros.
func (w *bitWriter) flush() []byte {
	if w.n > 0 {
		w.dst = append(w.dst, byte(w.word<<(8-w.n)))
		w.n = 0
	}
	return w.dst
}
