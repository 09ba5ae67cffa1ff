package metrics

import _ "embed" // for draws.bin

// The seed of a reservoir (summary.go) is constant. So the number of added values alone determines
// which values enter the sample, and which values they replace. draws.bin has these draws,
// precomputed: if a value does not enter the sample, its update is only a comparison and needs no
// random number. For each value that enters the sample, the file has one uvarint,
// delta<<drawSlotBits|slot. slot is the index of the replaced value. delta is the number of values
// since the previous value that entered. For the first value that enters, delta counts from the
// value that filled the sample.
//
//go:embed draws.bin
var draws string

const (
	drawSlotBits = 10         // sampleMax fits
	drawsMax     = 1 << 28    // number of values for which the file has all draws
	drawsState   = 1822454066 // state of the generator after the draw of value drawsMax
)

// advance reads the next draw of the file.
func (r *reservoir) advance() {
	if int(r.offset) == len(draws) {
		if r.accept >= drawsMax { // further draws are computed when they are needed
			r.accept, r.random = 0, drawsState
		} else {
			r.accept, r.slot = drawsMax, sampleMax // a slot of sampleMax replaces no value
		}
		return
	}
	x, shift := uint64(0), 0
	for {
		b := draws[r.offset]
		r.offset++
		x |= uint64(b&0x7f) << shift
		if b < 0x80 {
			break
		}
		shift += 7
	}
	r.accept, r.slot = r.accept+x>>drawSlotBits, uint16(x&(1<<drawSlotBits-1))
}

// draw returns the index of the value that the last added value replaces. If the index is
// sampleMax or above, the added value does not enter the sample.
func (r *reservoir) draw() uint64 {
	switch {
	case r.count < r.accept:
		return sampleMax
	case r.count == r.accept:
		slot := uint64(r.slot)
		r.advance()
		return slot
	}
	return drawNext(&r.random, r.count)
}

// drawNext is one step of xorshift, scaled to [0, count) without a division.
func drawNext(random *uint32, count uint64) uint64 {
	x := *random
	x ^= x << 13
	x ^= x >> 17
	x ^= x << 5
	*random = x
	return uint64(x) * uint64(uint32(count)) >> 32
}
