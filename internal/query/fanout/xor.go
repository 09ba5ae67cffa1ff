package fanout

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
)

// xorSlack is the number of bytes that must be readable after a chunk, so that eight bytes
// can be loaded at any offset.
const xorSlack = 16

var (
	errXORCut      = errors.New("ends within a sample")
	errXORTime     = errors.New("timestamps not ascending")
	errXORBits     = errors.New("value of more than 64 bits")
	errXORNoHeader = errors.New("no header")
)

// xorDecoder decodes whole float chunks. PromQL reads every sample, and reading it from an
// array takes a fraction of the time of decoding it bit by bit on demand.
//
//	chunk   uint16 samples, varint time, float64 value, uvarint delta, xor, {dod, xor}
//	dod     0 | 10 and 14 bits | 110 and 17 | 1110 and 20 | 1111 and 64
//	xor     0 | 10 and the bits of the window before | 11, 5 bits zeros before, 6 bits width, bits
type xorDecoder struct {
	times  []int64
	values []float64
	padded []byte
}

// decode replaces the decoder's samples by those of a chunk. It may read xorSlack bytes
// after the chunk's end if its capacity allows. Timestamps must ascend, or be equal if
// repeats is set.
func (d *xorDecoder) decode(data []byte, repeats bool) error {
	d.times, d.values = d.times[:0], d.values[:0]
	if len(data) < 2 {
		return errXORNoHeader
	}
	n := int(binary.BigEndian.Uint16(data))
	if n == 0 {
		return nil
	}
	t, size := binary.Varint(data[2:])
	at := 2 + size
	if size <= 0 || at+8 > len(data) {
		return errXORCut
	}
	value := binary.BigEndian.Uint64(data[at:])
	at += 8
	d.times, d.values = append(d.times, t), append(d.values, math.Float64frombits(value))
	if n == 1 {
		return nil
	}
	delta, size := binary.Uvarint(data[at:])
	if size <= 0 {
		return errXORCut
	}
	least := uint64(1)
	if repeats {
		least = 0
	}
	if delta < least || delta > math.MaxInt64 {
		return errXORTime
	}
	if 2*(n-2) > len(data)*8 { // a sample has at least two bits
		return errXORCut
	}
	d.times, d.values = slices.Grow(d.times, n)[:n], slices.Grow(d.values, n)[:n]
	good, err := d.rest(d.readable(data), (at+size)*8, len(data)*8, t, delta, value, int64(least))
	d.times, d.values = d.times[:good], d.values[:good]
	return err
}

// rest decodes the samples after the first two; at and end are bit offsets. It returns the
// number of valid samples.
func (d *xorDecoder) rest(data []byte, at, end int, t int64, delta, value uint64, least int64) (int, error) {
	var leading, trailing uint
	times, values := d.times, d.values[:len(d.times)]
	for i := 1; ; i++ {
		head := load(data, at)
		switch {
		case head>>63 == 0:
			at++
		case head>>62 == 0b11:
			width := uint(head << 7 >> 58)
			if width == 0 {
				width = 64
			}
			if leading = uint(head << 2 >> 59); leading+width > 64 {
				return i, errXORBits
			}
			trailing = 64 - leading - width
			if at += 13; width <= 57-13 { // the loaded bits include it
				value ^= head << 13 >> (64 - width) << trailing
				at += int(width)
				break
			}
			fallthrough
		default:
			if head>>62 == 0b10 {
				at += 2
			}
			width := 64 - leading - trailing
			if at > end {
				return i, errXORCut
			}
			value ^= readBits(data, at, width) << trailing
			at += int(width)
		}
		if at > end {
			return i, errXORCut
		}
		t += int64(delta)
		times[i], values[i] = t, math.Float64frombits(value)
		if i == len(times)-1 {
			return i + 1, nil
		}
		if head = load(data, at); head>>63 == 0 {
			at++
			continue
		}
		var dod uint64
		if dod, at = dodOf(data, at, end, head); at > end {
			return i + 1, errXORCut
		}
		if delta += dod; int64(delta) < least {
			return i + 1, errXORTime
		}
	}
}

// readable returns data with xorSlack readable bytes after it.
func (d *xorDecoder) readable(data []byte) []byte {
	if cap(data)-len(data) >= xorSlack {
		return data[:len(data)+xorSlack]
	}
	d.padded = append(append(d.padded[:0], data...), make([]byte, xorSlack)...)
	return d.padded
}

// load returns at least 57 bits from a bit offset, the first one highest. The offset must
// not be after the end.
func load(data []byte, at int) uint64 {
	return binary.BigEndian.Uint64(data[at>>3:]) << (at & 7)
}

// readBits returns n bits, at most 64.
func readBits(data []byte, at int, n uint) uint64 {
	if n <= 56 {
		return load(data, at) >> (64 - n)
	}
	return load(data, at)>>32<<(n-32) | load(data, at+32)>>(96-n)
}

// dodOf decodes a delta of deltas that is not 0, and returns the offset of its end.
func dodOf(data []byte, at, end int, head uint64) (uint64, int) {
	var size uint
	switch {
	case head>>62 == 0b10:
		head, size = head<<2, 14
		at += 2 + 14
	case head>>61 == 0b110:
		head, size = head<<3, 17
		at += 3 + 17
	case head>>60 == 0b1110:
		head, size = head<<4, 20
		at += 4 + 20
	default:
		if at += 4; at > end {
			return 0, at
		}
		return readBits(data, at, 64), at + 64
	}
	v := head >> (64 - size)
	if v > 1<<(size-1) {
		v -= 1 << size
	}
	return v, at
}
