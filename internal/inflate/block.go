package inflate

import (
	"encoding/binary"
	"slices"
)

// symbolBytes is an upper bound of the input bytes of a length and a distance, including
// the bits that are loaded ahead.
const symbolBytes = 24

// block decompresses a block and appends its output to dst, which may become end bytes long.
// The output of the member begins at dst[begin]: a match that begins before is an error.
func (f *Inflater) block(dst []byte, begin, end int) ([]byte, error) {
	for {
		var ended bool
		var err error
		if dst, ended, err = f.fast(dst, begin, end); ended || err != nil {
			return dst, err
		}
		if dst, ended, err = f.careful(dst, begin, end); ended || err != nil {
			return dst, err
		}
	}
}

// fast decodes symbols while they are far from the ends of input and output.
func (f *Inflater) fast(dst []byte, begin, end int) (_ []byte, ended bool, err error) {
	src, at, buf, n, to := f.src, f.at, f.bits, f.n, len(dst)
	out := dst[:cap(dst)]
	inEnd, outEnd := len(src)-symbolBytes, min(len(out), end)-margin
	lit, dist := &f.lit, &f.dist
	for at <= inEnd && to <= outEnd {
		buf |= binary.LittleEndian.Uint64(src[at:]) << (n & 63)
		at += int(63-n) >> 3
		n |= 56
		e := lit[buf&(1<<litBits-1)]
		if e&isLiteral != 0 { // three literals of 10 bits and a length of 20 bits fit into the 56 loaded bits
			out[to] = byte(e >> 16)
			to++
			buf, n = buf>>(e&63), n-uint(e&63)
			if e = lit[buf&(1<<litBits-1)]; e&isLiteral != 0 {
				out[to] = byte(e >> 16)
				to++
				buf, n = buf>>(e&63), n-uint(e&63)
				if e = lit[buf&(1<<litBits-1)]; e&isLiteral != 0 {
					out[to] = byte(e >> 16)
					to++
					buf, n = buf>>(e&63), n-uint(e&63)
					continue
				}
			}
		}
		if e&isOther != 0 {
			if e&isTable != 0 {
				buf, n = buf>>litBits, n-litBits
				e = lit[int(e>>16)+int(buf&(1<<(e>>8&15)-1))]
			}
			if e&isLiteral != 0 {
				out[to] = byte(e >> 16)
				to++
				buf, n = buf>>(e&63), n-uint(e&63)
				continue
			}
			if e&isOther != 0 {
				if e&isEnd == 0 {
					return dst, false, ErrGzip
				}
				buf, n = buf>>(e&63), n-uint(e&63)
				f.at, f.bits, f.n = at, buf, n
				return out[:to], true, nil
			}
		}
		length := int(e>>16&0x7FFF) + int(buf&(1<<(e&63)-1)>>(e>>8&15))
		buf, n = buf>>(e&63), n-uint(e&63)
		buf |= binary.LittleEndian.Uint64(src[at:]) << (n & 63)
		at += int(63-n) >> 3
		n |= 56
		d := dist[buf&(1<<distBits-1)]
		if d&isOther != 0 {
			if d&isTable != 0 {
				buf, n = buf>>distBits, n-distBits
				d = dist[int(d>>16)+int(buf&(1<<(d>>8&15)-1))]
			}
			if d&isOther != 0 {
				return dst, false, ErrGzip
			}
		}
		from := to - int(d>>16) - int(buf&(1<<(d&63)-1)>>(d>>8&15))
		buf, n = buf>>(d&63), n-uint(d&63)
		if from < begin {
			return dst, false, ErrGzip
		}
		copyMatch(out, to, from, length)
		to += length
	}
	f.at, f.bits, f.n = at, buf, n
	return out[:to], false, nil
}

// copyMatch copies length bytes from out[from:] to out[to:]. It may overwrite up to 7 bytes
// after them.
func copyMatch(out []byte, to, from, length int) {
	if to-from < 8 {
		for i := range length { // source and destination may overlap
			out[to+i] = out[from+i]
		}
		return
	}
	for end := to + length; to < end; to, from = to+8, from+8 {
		binary.LittleEndian.PutUint64(out[to:], binary.LittleEndian.Uint64(out[from:]))
	}
}

// careful decodes symbols near the end of input or output, until there is room for fast again.
func (f *Inflater) careful(dst []byte, begin, end int) (_ []byte, ended bool, err error) {
	if cap(dst)-len(dst) < margin {
		dst = slices.Grow(dst, min(max(len(dst), 4<<10), max(0, end-len(dst)))+2*margin)
	}
	for once := true; once || len(f.src)-f.at < symbolBytes || end-len(dst) < margin; once = false {
		f.load()
		if f.over > 8 {
			return dst, false, ErrGzip
		}
		e := f.symbol(f.lit[:], litBits)
		switch {
		case e&isEnd != 0 && e&isOther != 0:
			return dst, true, nil
		case e&isLiteral != 0:
			if len(dst) >= end {
				return dst, false, f.beyond()
			}
			dst = append(dst, byte(e>>16))
			continue
		case e&isOther != 0:
			return dst, false, ErrGzip
		}
		length := int(e >> 16 & 0x7FFF)
		length += int(f.take(uint(e&0xFF) - uint(e>>8&15)))
		f.load()
		d := f.symbol(f.dist[:], distBits)
		if d&isOther != 0 {
			return dst, false, ErrGzip
		}
		from := len(dst) - int(d>>16&0x7FFF) - int(f.take(uint(d&0xFF)-uint(d>>8&15)))
		if from < begin {
			return dst, false, ErrGzip
		}
		if len(dst)+length > end {
			return dst, false, f.beyond()
		}
		for range length {
			dst = append(dst, dst[from])
			from++
		}
	}
	return dst, false, nil
}

// beyond returns the error for a symbol whose output exceeds the limit: ErrGzipLimit. If the symbol
// was decoded from the zeros that load appends to a truncated input, the error is ErrGzip.
func (f *Inflater) beyond() error {
	if f.over > int(f.n/8) {
		return ErrGzip
	}
	return ErrGzipLimit
}

// symbol takes the bits of the next code and returns the entry of its symbol. The caller takes
// the extra bits. first is the number of index bits of the first table.
func (f *Inflater) symbol(table []uint32, first uint) uint32 {
	e := table[f.bits&(1<<first-1)]
	if e&isTable != 0 && e&isOther != 0 {
		f.take(first)
		e = table[int(e>>16)+int(f.bits&(1<<(e>>8&15)-1))]
	}
	f.take(uint(e >> 8 & 15))
	return e
}
