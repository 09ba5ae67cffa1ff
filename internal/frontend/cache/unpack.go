package cache

import (
	"encoding/binary"

	"github.com/klauspost/compress/s2"
)

// unpacker unpacks blocks. It reuses its buffers for the next block.
type unpacker struct {
	stepTimes stepTimes
	literals  []byte
	previous  lastPacked
}

// lastPacked is the previous value in packed form: unpacking it again costs less than
// storing its text.
type lastPacked struct {
	words [2]uint64
	n     int            // its length; 0: none yet
	raw   bool           // the value was stored unchanged, in text
	text  [valueMax]byte // the value, if raw
}

// join is the inverse of packer.appendPacked: it unpacks the block src into dst. The length of dst
// must be the length of the block before packing. src is borrowed.
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
	u.previous = lastPacked{}
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
		written, read, ok := u.run(dst, values, run.samples, u.stepTimes.seek(beforeMS, stepMS))
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

// decodeLiterals decompresses the literals, at most limit bytes, into u's buffer.
func (u *unpacker) decodeLiterals(src []byte, limit int) ([]byte, error) {
	n, err := s2.DecodedLen(src)
	if err != nil || n > limit {
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

// run writes a run of samples to dst. Their timestamps are those of stepTimes from index k on. run
// returns the number of bytes that it wrote to dst and read from values.
func (u *unpacker) run(dst, values []byte, samples uint64, k int) (written, read int, ok bool) {
	// x0 and x1 are the packed bytes of the previous value, n is its number of characters.
	x0, x1, n := u.previous.words[0], u.previous.words[1], u.previous.n
	for left := samples; left > 0; left-- {
		if k >= len(u.stepTimes.times) {
			if k, ok = u.stepTimes.extend(k); !ok {
				return 0, 0, false
			}
		}
		if written+packSlack > len(dst) || read+valueMax+2 > len(values) {
			u.previous.words, u.previous.n = [2]uint64{x0, x1}, n
			w, r, ok := u.edge(dst[written:], values[read:], k, left == 1)
			if !ok {
				return 0, 0, false
			}
			written, read = written+w, read+r
			if left == 1 { // the last sample of a run ends without a comma
				return written, read, true
			}
			x0, x1, n = u.previous.words[0], u.previous.words[1], u.previous.n
			k++
			continue
		}
		at := &u.stepTimes.times[k]
		k++
		out := (*[packSlack]byte)(dst[written:])
		in := (*[valueMax + 2]byte)(values[read:])
		binary.LittleEndian.PutUint64(out[0:], at.w0)
		binary.LittleEndian.PutUint64(out[8:], at.w1)
		binary.LittleEndian.PutUint64(out[16:], at.w2)
		text := (*[packSlack - timeMax]byte)(out[at.n:])
		if c := int(in[0]); c == 0 {
			read++
		} else if c <= valueMax {
			x0, x1, n = binary.LittleEndian.Uint64(in[1:]), binary.LittleEndian.Uint64(in[9:]), c
			read += 1 + (c+1)/2
			u.previous.raw = false
		} else if n = c - 0x80; n > 0 && n <= valueMax {
			copy(u.previous.text[:], in[1:])
			u.previous.raw = true
			read += 1 + n
		} else {
			return 0, 0, false
		}
		if n == 0 { // the first value has no previous one
			return 0, 0, false
		}
		if u.previous.raw {
			copy(text[:], u.previous.text[:])
		} else {
			m := (n + 1) / 2
			binary.LittleEndian.PutUint64(text[0:], x0&lowNibbles+nibbleBase)
			binary.LittleEndian.PutUint64(text[8:], x1&lowNibbles+nibbleBase)
			binary.LittleEndian.PutUint64(text[m&31:], x0>>4&lowNibbles+nibbleBase)
			binary.LittleEndian.PutUint64(text[(m&31)+8:], x1>>4&lowNibbles+nibbleBase)
		}
		binary.LittleEndian.PutUint32(text[n&63:], '"'|']'<<8|','<<16)
		written += at.n + n + 3
	}
	u.previous.words, u.previous.n = [2]uint64{x0, x1}, n
	return written - 1, read, true // no comma after the last sample
}

// edge writes one sample if dst or values are too short for whole words: it calls run with longer
// buffers, and copies the result.
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
