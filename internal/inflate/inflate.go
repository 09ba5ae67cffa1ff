// Package inflate decompresses gzip from one slice to another.
//
// Bodies of requests and responses are read whole. A reader of streams, such as in compress/gzip, has a window from
// which it copies every byte once more, and checks for the end of its input at every symbol. Here the output itself
// is the window. Far from the ends of both slices a symbol needs no check. 56 bits are loaded at once, which are
// enough for three literals or one length. One lookup in a table returns a symbol, its base and its number of bits.
// Near the ends the same tables are used with checks.
//
// The caller sets the limit on the output. The format is RFC 1951 and RFC 1952: members may follow each other, and
// checksums are verified. Gzip accepts what compress/gzip accepts.
package inflate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/bits"
	"slices"
)

// Errors of Gzip.
var (
	ErrGzip      = errors.New("corrupt gzip")
	ErrGzipLimit = errors.New("too many bytes when decompressed")
)

const (
	litBits    = 10 // index bits of the first table of literals and lengths
	distBits   = 8  // index bits of the first table of distances
	preBits    = 7  // maximum length of a code for code lengths
	codeMax    = 15 // maximum length of a code
	literals   = 288
	distances  = 32
	lengthsMax = 286 + 30 // number of code lengths in the header of a block

	// Codes that are longer than the index of the first table continue in a second table. In a
	// complete code each second table has at least two symbols, so at most half of the symbols
	// need a table of their own.
	litTable  = 1<<litBits + literals/2<<(codeMax-litBits)
	distTable = 1<<distBits + distances/2<<(codeMax-distBits)
)

// An entry of a table:
//
//	bits 0 to 7    number of bits of the code and of its extra bits
//	bits 8 to 11   number of bits of the code
//	bits 16 to 30  the literal, or the base of a length or distance; the start of a second table
//	isLiteral, isOther, isTable, isEnd
//
// An entry with isOther and neither isTable nor isEnd belongs to no symbol.
const (
	isLiteral = 1 << 31
	isOther   = 1 << 15
	isTable   = 1 << 14
	isEnd     = 1 << 13
)

// Inflater holds the tables. The zero value is ready to use, by one goroutine at a time.
type Inflater struct {
	lit     [litTable]uint32
	dist    [distTable]uint32
	pre     [1 << preBits]uint32
	lengths [lengthsMax]uint8
	fixed   bool // lit and dist are the fixed codes

	src  []byte
	at   int    // index in src of the next byte to load
	bits uint64 // loaded bits; the lowest is the next one
	n    uint   // number of bits loaded
	over int    // number of zero bytes loaded beyond the end
}

// Gzip appends the decompressed members of src to dst. It returns ErrGzipLimit if all members
// together have more than bytesMax bytes, and ErrGzip for invalid input. src is borrowed.
func (f *Inflater) Gzip(dst, src []byte, bytesMax int) ([]byte, error) {
	from := len(dst)
	defer func() { f.src = nil }()
	for {
		body, err := header(src)
		if err != nil {
			return dst[:from], err
		}
		begin := len(dst)
		if begin == from {
			dst = slices.Grow(dst, capacityFor(src, bytesMax))
		}
		var rest []byte
		if dst, rest, err = f.inflate(dst, body, from+bytesMax); err != nil {
			return dst[:from], err
		}
		if len(rest) < 8 || binary.LittleEndian.Uint32(rest) != crc32.ChecksumIEEE(dst[begin:]) ||
			binary.LittleEndian.Uint32(rest[4:]) != uint32(len(dst)-begin) {
			return dst[:from], ErrGzip
		}
		if src = rest[8:]; len(src) == 0 {
			return dst, nil
		}
	}
}

// margin is the distance from the end of the output at which the loop without checks ends:
// the longest match, and the bytes that are copied beyond it.
const margin = 258 + 16

// capacityFor returns a capacity for the output of src: the size of the output, if src is a single member,
// plus 2*margin. The last four bytes of a member are this size. They may be wrong, so capacityFor limits
// the size to bytesMax, and to 1,032 bytes for each byte of src: deflate cannot make more.
func capacityFor(src []byte, bytesMax int) int {
	size := uint64(binary.LittleEndian.Uint32(src[len(src)-4:]))
	return int(min(size, 1032*uint64(len(src)), uint64(max(bytesMax, 0)))) + 2*margin
}

// header cuts off the header of a member.
func header(src []byte) (body []byte, err error) {
	const (
		crcFlag, extraFlag, nameFlag, commentFlag = 1 << 1, 1 << 2, 1 << 3, 1 << 4
		fixedBytes                                = 10
	)
	if len(src) < fixedBytes || src[0] != 0x1F || src[1] != 0x8B || src[2] != 8 {
		return nil, ErrGzip
	}
	flags, at := src[3], fixedBytes
	if flags&extraFlag != 0 {
		if len(src) < at+2 {
			return nil, ErrGzip
		}
		at += 2 + int(binary.LittleEndian.Uint16(src[at:]))
	}
	for _, flag := range []byte{nameFlag, commentFlag} {
		if flags&flag == 0 {
			continue
		}
		end := -1
		if at <= len(src) {
			end = bytes.IndexByte(src[at:], 0)
		}
		if end < 0 {
			return nil, ErrGzip
		}
		at += end + 1
	}
	if flags&crcFlag != 0 {
		if len(src) < at+2 || binary.LittleEndian.Uint16(src[at:]) != uint16(crc32.ChecksumIEEE(src[:at])) {
			return nil, ErrGzip
		}
		at += 2
	}
	if at > len(src) {
		return nil, ErrGzip
	}
	return src[at:], nil
}

// inflate appends a deflate stream to dst, which may become end bytes long.
func (f *Inflater) inflate(dst, src []byte, end int) (out, rest []byte, err error) {
	begin := len(dst)
	f.src, f.at, f.bits, f.n, f.over = src, 0, 0, 0, 0
	for last := false; !last; {
		f.load()
		last = f.take(1) == 1
		switch f.take(2) {
		case 0:
			dst, err = f.stored(dst, end)
		case 1:
			f.fixedCodes()
			dst, err = f.block(dst, begin, end)
		case 2:
			if err = f.codes(); err == nil {
				dst, err = f.block(dst, begin, end)
			}
		default:
			err = ErrGzip
		}
		if err != nil {
			return dst, nil, err
		}
	}
	if err := f.unload(); err != nil {
		return dst, nil, err
	}
	return dst, src[f.at:], nil
}

// load fills bits up to at least 56 bits; bits beyond the end of src are 0.
func (f *Inflater) load() {
	if len(f.src)-f.at >= 8 {
		f.bits |= binary.LittleEndian.Uint64(f.src[f.at:]) << f.n
		f.at += int(63-f.n) >> 3
		f.n |= 56
		return
	}
	for f.n < 56 {
		if f.at < len(f.src) {
			f.bits |= uint64(f.src[f.at]) << f.n
			f.at++
		} else {
			f.over++
		}
		f.n += 8
	}
}

// take removes the next n bits, which must be loaded, and returns them.
func (f *Inflater) take(n uint) uint32 {
	v := uint32(f.bits & (1<<n - 1))
	f.bits >>= n
	f.n -= n
	return v
}

// unload drops the bits up to the next whole byte, and moves at back to that byte.
func (f *Inflater) unload() error {
	whole := int(f.n / 8)
	if f.over > whole { // bits beyond the end were taken
		return ErrGzip
	}
	f.at -= whole - f.over
	f.bits, f.n, f.over = 0, 0, 0
	return nil
}

// stored appends a block that is not compressed.
func (f *Inflater) stored(dst []byte, end int) ([]byte, error) {
	if err := f.unload(); err != nil {
		return dst, err
	}
	if len(f.src)-f.at < 4 {
		return dst, ErrGzip
	}
	n := int(binary.LittleEndian.Uint16(f.src[f.at:]))
	if uint16(n) != ^binary.LittleEndian.Uint16(f.src[f.at+2:]) || len(f.src)-f.at-4 < n {
		return dst, ErrGzip
	}
	if len(dst)+n > end {
		return dst, ErrGzipLimit
	}
	dst = append(dst, f.src[f.at+4:f.at+4+n]...)
	f.at += 4 + n
	return dst, nil
}

// codes reads the code lengths of a block and builds its tables.
func (f *Inflater) codes() error {
	f.fixed = false
	f.load()
	lits, dists, pres := int(f.take(5))+257, int(f.take(5))+1, int(f.take(4))+4
	if lits > 286 || dists > 30 {
		return ErrGzip
	}
	var of [19]uint8
	for i := range pres {
		f.load()
		of[preOrder[i]] = uint8(f.take(3))
	}
	if !build(f.pre[:], of[:], preBits, preBase) {
		return ErrGzip
	}
	all := f.lengths[:lits+dists]
	for i := 0; i < len(all); {
		f.load()
		e := f.pre[f.bits&(1<<preBits-1)]
		if e&isOther != 0 || f.over > 8 {
			return ErrGzip
		}
		f.take(uint(e & 0xFF))
		symbol, n, repeated := uint8(e>>16), 1, uint8(0)
		switch {
		case symbol < 16:
			repeated = symbol
		case symbol == 16:
			if i == 0 {
				return ErrGzip
			}
			repeated, n = all[i-1], 3+int(f.take(2))
		case symbol == 17:
			n = 3 + int(f.take(3))
		default:
			n = 11 + int(f.take(7))
		}
		if n > len(all)-i {
			return ErrGzip
		}
		for ; n > 0; n-- {
			all[i] = repeated
			i++
		}
	}
	if !build(f.lit[:], all[:lits], litBits, litBase) || !build(f.dist[:], all[lits:], distBits, distBase) {
		return ErrGzip
	}
	return nil
}

// fixedCodes sets the fixed codes, for blocks without their own codes.
func (f *Inflater) fixedCodes() {
	if f.fixed {
		return
	}
	var lit [literals]uint8
	for i := range lit {
		switch {
		case i < 144:
			lit[i] = 8
		case i < 256:
			lit[i] = 9
		case i < 280:
			lit[i] = 7
		default:
			lit[i] = 8
		}
	}
	var dist [distances]uint8
	for i := range dist {
		dist[i] = 5
	}
	build(f.lit[:], lit[:], litBits, litBase)
	build(f.dist[:], dist[:], distBits, distBase)
	f.fixed = true
}

// build fills a table for the code in which symbol i has lengths[i] bits; 0: the symbol is not
// used. first is the number of index bits of the first table. base returns the entry of a symbol
// without the bits of its code. build returns false if the lengths do not make a complete code.
// Only a code with a single symbol, or with none, may be incomplete.
func build(table []uint32, lengths []uint8, first uint, base func(symbol int) uint32) bool {
	var count [codeMax + 2]int
	longest := uint(0)
	for _, n := range lengths {
		count[n]++
		longest = max(longest, uint(n))
	}
	count[0] = 0
	var next [codeMax + 2]uint32 // code of the next symbol of a length
	code := uint32(0)
	for n := 1; n <= codeMax; n++ {
		code = (code + uint32(count[n-1])) << 1
		next[n] = code
		if code+uint32(count[n]) > 1<<n {
			return false
		}
	}
	if whole := next[codeMax] + uint32(count[codeMax]); whole != 1<<codeMax && longest > 0 &&
		(longest != 1 || count[1] != 1) {
		return false
	}
	for i := range 1 << first {
		table[i] = isOther
	}
	end, second := 1<<first, uint(0)
	if longest > first {
		second = longest - first
	}
	for symbol, length := range lengths {
		if length == 0 {
			continue
		}
		n := uint(length)
		reversed := int(bits.Reverse32(next[n]) >> (32 - n))
		next[n]++
		e := base(symbol) + uint32(n)<<8 + uint32(n)
		if n <= first {
			for i := reversed; i < 1<<first; i += 1 << n {
				table[i] = e
			}
			continue
		}
		low := reversed & (1<<first - 1)
		if table[low]&isTable == 0 {
			table[low] = uint32(end)<<16 | isOther | isTable
			for i := range 1 << second {
				table[end+i] = isOther
			}
			end += 1 << second
		}
		// The bits that index the first table are taken before the lookup in the second table. So
		// the length in an entry of the second table counts the remaining bits of the code.
		e -= uint32(first)<<8 + uint32(first)
		own := table[int(table[low]>>16):]
		for i := reversed >> first; i < 1<<second; i += 1 << (n - first) {
			own[i] = e
		}
	}
	for low := range 1 << first {
		if table[low]&isTable != 0 {
			table[low] |= uint32(second)<<8 | uint32(first)
		}
	}
	return true
}

func preBase(symbol int) uint32 { return uint32(symbol) << 16 }

func litBase(symbol int) uint32 {
	switch {
	case symbol < 256:
		return isLiteral | uint32(symbol)<<16
	case symbol == 256:
		return isOther | isEnd
	case symbol < 286:
		return uint32(lengthBase[symbol-257])<<16 | uint32(lengthExtra[symbol-257])
	}
	return isOther
}

func distBase(symbol int) uint32 {
	if symbol >= 30 {
		return isOther
	}
	extra := max(0, symbol/2-1)
	start := symbol + 1
	if symbol >= 4 {
		start = 1 + (2+symbol&1)<<extra
	}
	return uint32(start)<<16 | uint32(extra)
}

// preOrder is the order in which the header of a block lists the lengths of the code for code
// lengths.
var preOrder = [19]uint8{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}

// Lengths of matches by symbol: base, and number of extra bits.
var (
	lengthBase = [29]uint16{3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115,
		131, 163, 195, 227, 258}
	lengthExtra = [29]uint8{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0}
)
