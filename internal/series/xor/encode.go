package xor

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// SamplesMax is the greatest number of samples of a chunk: the header has two bytes for it.
const SamplesMax = math.MaxUint16

// AppendChunk appends samples as a chunk, which has the bytes that Prometheus' appender writes. There are at most
// SamplesMax samples.
func AppendChunk[P Sample](dst []byte, samples []P) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(samples)))
	if len(samples) == 0 {
		return dst
	}
	first := Point(samples[0])
	value := math.Float64bits(first.F)
	dst = binary.BigEndian.AppendUint64(binary.AppendVarint(dst, first.T), value)
	if len(samples) == 1 {
		return dst
	}
	second := Point(samples[1])
	t, delta := second.T, uint64(second.T-first.T)
	dst = binary.AppendUvarint(dst, delta)
	w := writer{dst: dst, leading: noWindow}
	w.value(value, math.Float64bits(second.F))
	value = math.Float64bits(second.F)
	for _, s := range samples[2:] {
		p := Point(s)
		next := uint64(p.T - t)
		w.change(int64(next - delta))
		w.value(value, math.Float64bits(p.F))
		t, delta, value = p.T, next, math.Float64bits(p.F)
	}
	return w.end()
}

// noWindow is more leading zeros than a chunk can encode: no xor has encoded its window yet. A decoder then uses all 64
// bits. To get these without a branch, decode needs a multiple of 64.
const noWindow = 192

// writer appends bits.
type writer struct {
	dst               []byte
	acc               uint64 // the bits that are not in dst yet, the first one highest
	used              uint   // number of bits in acc, less than 64
	leading, trailing uint   // zeros around the bits of the last xor that encoded its window
}

// put appends the lowest size bits of v, which has no other bits.
func (w *writer) put(v uint64, size uint) {
	room := 64 - w.used
	if size < room {
		w.acc |= v << (room - size)
		w.used += size
		return
	}
	rest := size - room
	w.dst = binary.BigEndian.AppendUint64(w.dst, w.acc|v>>rest)
	w.acc, w.used = v<<(64-rest), rest // a shift by 64 is 0
}

// change appends the change of the interval between two samples.
func (w *writer) change(by int64) {
	fits := func(size uint) bool { return by > -(1<<(size-1)) && by <= 1<<(size-1) }
	switch {
	case by == 0:
		w.put(0, 1)
	case fits(14):
		w.put(0b10<<14|uint64(by)&(1<<14-1), 2+14)
	case fits(17):
		w.put(0b110<<17|uint64(by)&(1<<17-1), 3+17)
	case fits(20):
		w.put(0b1110<<20|uint64(by)&(1<<20-1), 4+20)
	default:
		w.put(0b1111, 4)
		w.put(uint64(by), 64)
	}
}

// value appends the xor of two values.
func (w *writer) value(before, now uint64) {
	x := before ^ now
	if x == 0 {
		w.put(0, 1)
		return
	}
	leading, trailing := uint(min(bits.LeadingZeros64(x), 31)), uint(bits.TrailingZeros64(x))
	if w.leading != noWindow && leading >= w.leading && trailing >= w.trailing {
		w.put(0b10, 2)
		w.put(x>>w.trailing, 64-w.leading-w.trailing)
		return
	}
	w.leading, w.trailing = leading, trailing
	size := 64 - leading - trailing
	w.put(0b11<<11|uint64(leading)<<6|uint64(size&63), 2+5+6) // 64 is encoded as 0
	w.put(x>>trailing, size)
}

// end appends the bits of the last bytes.
func (w *writer) end() []byte {
	for n := uint(0); n < w.used; n += 8 {
		w.dst = append(w.dst, byte(w.acc>>(56-n)))
	}
	return w.dst
}
