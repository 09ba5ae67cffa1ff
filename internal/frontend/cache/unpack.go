package cache

import (
	"encoding/binary"

	"github.com/klauspost/compress/s2"
)

// unpacker unpacks blocks. Its buffers are kept for the next block.
type unpacker struct {
	grid     grid
	literals []byte
	previous [valueMax/8 + 1]uint64
}

// join is split's inverse: it fills dst, which has the block's length before packing.
// src is borrowed.
func (u *unpacker) join(dst, src []byte) error {
	headerBytes, n := binary.Uvarint(src)
	if n <= 0 {
		return errCorrupt
	}
	src = src[n:]
	valueBytes, n := binary.Uvarint(src)
	if n <= 0 || headerBytes > uint64(len(src)-n) || valueBytes > uint64(len(src)-n)-headerBytes {
		return errCorrupt
	}
	src = src[n:]
	headers, values := src[:headerBytes], src[headerBytes:headerBytes+valueBytes]
	literals, err := u.decodeLiterals(src[headerBytes+valueBytes:], len(dst))
	if err != nil {
		return err
	}
	u.previous = [valueMax/8 + 1]uint64{}
	var beforeMS, stepMS int64
	for len(headers) > 0 {
		var run runHeader
		if run, headers, err = decodeRunHeader(headers); err != nil {
			return err
		}
		if run.literals > uint64(len(literals)) || run.literals > uint64(len(dst)) {
			return errCorrupt
		}
		copy(dst, literals[:run.literals])
		dst, literals = dst[run.literals:], literals[run.literals:]
		beforeMS += run.firstMS
		if run.stepMS != 0 {
			stepMS = run.stepMS
		}
		if beforeMS < 0 || beforeMS >= timeLimitMS || stepMS <= 0 {
			return errCorrupt
		}
		written, read, ok := u.run(dst, values, run.samples, u.grid.seek(beforeMS, stepMS))
		if !ok {
			return errCorrupt
		}
		dst, values = dst[written:], values[read:]
	}
	if len(literals) != len(dst) || len(values) != 0 {
		return errCorrupt
	}
	copy(dst, literals)
	return nil
}

// decodeLiterals aliases u's buffer.
func (u *unpacker) decodeLiterals(src []byte, most int) ([]byte, error) {
	n, err := s2.DecodedLen(src)
	if err != nil || n > most {
		return nil, errCorrupt
	}
	if cap(u.literals) < n {
		u.literals = make([]byte, n, n+n/4)
	}
	literals, err := s2.Decode(u.literals[:cap(u.literals)], src)
	if err != nil || len(literals) != n {
		return nil, errCorrupt
	}
	return literals, nil
}

type runHeader struct {
	literals, samples uint64
	firstMS, stepMS   int64
}

func decodeRunHeader(src []byte) (h runHeader, rest []byte, err error) {
	var n int
	if h.literals, n = binary.Uvarint(src); n <= 0 {
		return h, nil, errCorrupt
	}
	src = src[n:]
	if h.samples, n = binary.Uvarint(src); n <= 0 || h.samples == 0 {
		return h, nil, errCorrupt
	}
	src = src[n:]
	if h.firstMS, n = binary.Varint(src); n <= 0 || h.firstMS <= -timeLimitMS || h.firstMS >= timeLimitMS {
		return h, nil, errCorrupt
	}
	src = src[n:]
	step, n := binary.Uvarint(src)
	if n <= 0 || step >= timeLimitMS {
		return h, nil, errCorrupt
	}
	h.stepMS = int64(step)
	return h, src[n:], nil
}

// run writes samples from time k of the grid on, and says how much of dst it filled
// and of values it used.
func (u *unpacker) run(dst, values []byte, samples uint64, k int) (written, read int, ok bool) {
	var p0, p1, p2, p3 = u.previous[0], u.previous[1], u.previous[2], u.previous[3]
	pn := int(u.previous[4])
	for left := samples; left > 0; left-- {
		if k >= len(u.grid.times) {
			if k, ok = u.grid.extend(k); !ok {
				return 0, 0, false
			}
		}
		if written+packSlack > len(dst) || read+valueMax+2 > len(values) {
			u.previous = [valueMax/8 + 1]uint64{p0, p1, p2, p3, uint64(pn)}
			// The last sample of a run ends without a comma.
			w, r, ok := u.edge(dst[written:], values[read:], k, left == 1)
			if !ok {
				return 0, 0, false
			}
			written, read = written+w, read+r
			if left == 1 {
				return written, read, true
			}
			p0, p1, p2, p3, pn = u.previous[0], u.previous[1], u.previous[2], u.previous[3], int(u.previous[4])
			k++
			continue
		}
		at := &u.grid.times[k]
		k++
		out := (*[packSlack]byte)(dst[written:])
		in := (*[valueMax + 2]byte)(values[read:])
		binary.LittleEndian.PutUint64(out[0:], at.w0)
		binary.LittleEndian.PutUint64(out[8:], at.w1)
		binary.LittleEndian.PutUint64(out[16:], at.w2)
		switch c := in[0]; {
		case c == 0:
			read++
		case c <= 24: // in one piece: lengths around 16 alternate, and a branch would be guessed wrong
			packed := binary.LittleEndian.Uint64(in[1:])
			p0, p1, p2 = spread(uint32(packed)), spread(uint32(packed>>32)), spread(binary.LittleEndian.Uint32(in[9:]))
			pn = int(c)
			read += 1 + (pn+1)/2
		case c <= valueMax:
			packed := binary.LittleEndian.Uint64(in[1:])
			p0, p1 = spread(uint32(packed)), spread(uint32(packed>>32))
			packed = binary.LittleEndian.Uint64(in[9:])
			p2, p3 = spread(uint32(packed)), spread(uint32(packed>>32))
			pn = int(c)
			read += 1 + (pn+1)/2
		case c > 0x80 && c <= 0x80+valueMax:
			p0, p1 = binary.LittleEndian.Uint64(in[1:]), binary.LittleEndian.Uint64(in[9:])
			p2, p3 = binary.LittleEndian.Uint64(in[17:]), binary.LittleEndian.Uint64(in[25:])
			pn = int(c - 0x80)
			read += 1 + pn
		default:
			return 0, 0, false
		}
		if pn == 0 { // the first value cannot be as the one before
			return 0, 0, false
		}
		text := (*[packSlack - timeMax]byte)(out[at.n:])
		binary.LittleEndian.PutUint64(text[0:], p0)
		binary.LittleEndian.PutUint64(text[8:], p1)
		binary.LittleEndian.PutUint64(text[16:], p2)
		if pn > 24 {
			binary.LittleEndian.PutUint64(text[24:], p3)
		}
		binary.LittleEndian.PutUint32(text[pn&63:], '"'|']'<<8|','<<16)
		written += at.n + pn + 3
	}
	u.previous = [valueMax/8 + 1]uint64{p0, p1, p2, p3, uint64(pn)}
	return written - 1, read, true // no comma behind the last one
}

// edge writes one sample where dst or values are too short for whole words.
func (u *unpacker) edge(dst, values []byte, k int, last bool) (written, read int, ok bool) {
	var out [packSlack]byte
	var in [valueMax + 2]byte
	copy(in[:], values)
	written, read, ok = u.run(out[:], in[:], 1, k)
	if !ok || read > len(values) {
		return 0, 0, false
	}
	if !last {
		out[written] = ','
		written++
	}
	if written > len(dst) {
		return 0, 0, false
	}
	copy(dst, out[:written])
	return written, read, true
}

// spread is eight characters from eight nibbles.
func spread(packed uint32) uint64 {
	x := uint64(packed)
	x = (x | x<<16) & 0x0000FFFF0000FFFF
	x = (x | x<<8) & 0x00FF00FF00FF00FF
	x = (x | x<<4) & 0x0F0F0F0F0F0F0F0F
	return x + nibbleBase
}
