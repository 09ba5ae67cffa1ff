package gzip

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

const (
	codeBitsMax  = 15
	endOfBlock   = 256
	symbolsMax   = 288 // two of them unused
	distancesMax = 30
	storedMax    = 65535 // bytes of a stored block
	smallBytes   = 8 << 10

	pairFirst    = '*' // of the 16 characters that are coded in pairs: * + , - . / and the digits
	pairBitsMax  = 24  // so that two pairs fit into the accumulator
	shortBitsMax = 14  // so that four pairs fit into the accumulator

	// Flags of a pair, above its code.
	pairLong = 1 << 30 // longer than shortBitsMax
	pairNone = 1 << 31 // too long, or a character has no code
)

// The tables of RFC 1951: by symbol of a length (less 257) or of a distance, the number of extra bits and the smallest
// length; and the order in which the code lengths of the code of code lengths are written.
var (
	lengthExtra = [29]uint8{8: 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0}
	// length less 3
	lengthBase = [29]uint8{0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112,
		128, 160, 192, 224, 255}
	distanceExtra  = [30]uint8{4: 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13}
	lengthsOrdered = [19]uint8{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}
)

// lengthSymbol returns the symbol, less 257, of the length l+3.
func lengthSymbol(l uint32) uint32 {
	switch {
	case l < 8:
		return l
	case l == maxMatch-3:
		return 28
	}
	n := uint32(bits.Len32(l)) - 3
	return n<<2 + l>>n
}

// distanceSymbol returns the symbol of the distance d+1.
func distanceSymbol(d uint32) uint32 {
	if d < 4 {
		return d
	}
	n := uint32(bits.Len32(d)) - 2
	return n<<1 + d>>n
}

// coder writes blocks of deflate.
type coder struct {
	bits uint64 // pending bits, the next one lowest
	n    uint   // number of pending bits, less than 8 between calls

	codes     [symbolsMax]uint32 // code<<5 | its length
	distances [distancesMax]uint32
	matches   [256]uint32 // by length less 3: code and extra bits <<5 | their length
	pairs     [256]uint32 // code of a pair of characters <<5 | its length, and flags

	counts     [symbolsMax]uint32
	codeBits   [symbolsMax + distancesMax]uint8 // code lengths
	huffman    huffman
	runLengths []runLength
}

// stored appends data in stored blocks, without compression.
func (c *coder) stored(out, data []byte, last bool) []byte {
	for {
		part := data[:min(len(data), storedMax)]
		data = data[len(part):]
		final := uint64(0)
		if last && len(data) == 0 {
			final = 1
		}
		c.bits |= final << c.n
		for c.n += 3; ; c.n -= 8 {
			out = append(out, byte(c.bits))
			c.bits >>= 8
			if c.n <= 8 {
				break
			}
		}
		c.bits, c.n = 0, 0
		out = binary.LittleEndian.AppendUint16(out, uint16(len(part)))
		out = binary.LittleEndian.AppendUint16(out, ^uint16(len(part)))
		out = append(out, part...)
		if len(data) == 0 {
			return out
		}
	}
}

// end appends an empty last block and pads the last byte.
func (c *coder) end(out []byte) []byte {
	c.bits |= 0b011 << c.n // last block, fixed codes, end of block: 7 zeros
	c.n += 10
	for ; c.n > 0; c.n -= min(c.n, 8) {
		out = append(out, byte(c.bits))
		c.bits >>= 8
	}
	return out
}

// block appends buf[start:end], whose tokens are in f, as a compressed block or, if that
// is shorter, as a stored block.
func (c *coder) block(out, buf []byte, start, end int, f *finder) []byte {
	if start == end {
		return out
	}
	begin, beforeBits, beforeN := len(out), c.bits, c.n
	c.measure(f)
	c.build()
	out = c.tokens(c.header(out), buf, start, end, f.tokens)
	if end-start <= smallBytes {
		// The header of a block with its own codes may cost more than these codes save.
		own, ownBits, ownN := len(out), c.bits, c.n
		c.bits, c.n = beforeBits, beforeN
		c.fixed()
		c.build()
		out = c.tokens(c.put(out, 0b010, 3), buf, start, end, f.tokens)
		if len(out)-own < own-begin {
			out = append(out[:begin], out[own:]...)
		} else {
			out, c.bits, c.n = out[:own], ownBits, ownN
		}
	}
	if len(out)-begin > end-start+5 {
		c.bits, c.n = beforeBits, beforeN
		return c.stored(out[:begin], buf[start:end], false)
	}
	return out
}

// measure computes the lengths of the codes of a block.
func (c *coder) measure(f *finder) {
	counts := &c.counts
	copy(counts[:256], f.literals[:])
	counts[endOfBlock] = 1
	clear(counts[257:])
	for i, n := range f.lengths {
		counts[257+lengthSymbol(uint32(i))] += n
	}
	// Only a sample of the literals was counted, so every literal that can occur needs a
	// code.
	most := 128
	if f.high {
		most = 256
	}
	for i := range counts[:most] {
		if counts[i] == 0 && f.every > 1 {
			counts[i] = 1
		}
	}
	c.huffman.lengths(c.codeBits[:symbolsMax], counts[:])
	c.huffman.lengths(c.codeBits[symbolsMax:], f.distances[:])
}

// fixed sets the code lengths of the fixed codes of deflate, which need no header.
func (c *coder) fixed() {
	for i := range c.codeBits {
		l := uint8(8)
		switch {
		case i >= symbolsMax:
			l = 5
		case i >= 256 && i < 280:
			l = 7
		case i >= 144 && i < 256:
			l = 9
		}
		c.codeBits[i] = l
	}
}

// build computes the codes with the lengths of codeBits, and the tables for writing tokens.
func (c *coder) build() {
	assign(c.codes[:], c.codeBits[:symbolsMax])
	assign(c.distances[:], c.codeBits[symbolsMax:])
	for i := range c.matches {
		s := lengthSymbol(uint32(i))
		code := c.codes[257+int(s)]
		extra := uint32(i) - uint32(lengthBase[s])
		c.matches[i] = (code>>5|extra<<(code&31))<<5 | (code&31 + uint32(lengthExtra[s]))
	}
	for i := range 16 {
		first := c.codes[pairFirst+i]
		for j := range 16 {
			second := c.codes[pairFirst+j]
			pair := uint32(pairLong | pairNone)
			if n := first&31 + second&31; n <= pairBitsMax && first != 0 && second != 0 {
				pair = (first>>5|second>>5<<(first&31))<<5 | n
				if n > shortBitsMax {
					pair |= pairLong
				}
			}
			c.pairs[i|j<<4] = pair
		}
	}
}

// assign computes the codes with these lengths. They are bit-reversed, because deflate writes a code from its
// highest bit.
func assign(codes []uint32, lengths []uint8) {
	var count, next [codeBitsMax + 1]uint32
	for _, l := range lengths {
		count[l]++
	}
	count[0] = 0
	code := uint32(0)
	for l := 1; l <= codeBitsMax; l++ {
		code = (code + count[l-1]) << 1
		next[l] = code
	}
	for i, l := range lengths {
		if l == 0 {
			codes[i] = 0
			continue
		}
		codes[i] = bits.Reverse32(next[l])>>(32-l)<<5 | uint32(l)
		next[l]++
	}
}

// tokens appends the codes of the literals and matches, and of the end of the block.
func (c *coder) tokens(out, buf []byte, at, end int, tokens []token) []byte {
	acc, n := c.bits, c.n
	to := len(out)
	out = slices.Grow(out, 2*(end-at)+32) // at most 15 bits for a literal, and 48 for a match of at least 4 bytes
	out = out[:cap(out)]
	for _, t := range tokens {
		literals := buf[at : at+int(t.literals)]
		at += int(t.literals) + int(t.length)
		for len(literals) >= 8 { // as below, with eight characters at once
			x := binary.LittleEndian.Uint64(literals) - pairFirst*0x0101010101010101
			paired := x | x>>4
			first, second, third, fourth := c.pairs[uint8(paired)], c.pairs[uint8(paired>>16)], c.pairs[uint8(paired>>32)],
				c.pairs[uint8(paired>>48)]
			if x&0xf0f0f0f0f0f0f0f0 != 0 || (first|second|third|fourth)&pairLong != 0 {
				break
			}
			four, fourBits := uint64(first>>5)|uint64(second>>5)<<(first&31), uint(first&31+second&31)
			last, lastBits := uint64(third>>5)|uint64(fourth>>5)<<(third&31), uint(third&31+fourth&31)
			acc |= (four | last<<(fourBits&63)) << (n & 63)
			n += fourBits + lastBits
			binary.LittleEndian.PutUint64(out[to:], acc)
			to += int(n >> 3)
			acc >>= n & 56
			n &= 7
			literals = literals[8:]
		}
		for len(literals) >= 4 {
			// Subtracting pairFirst makes the 16 paired characters numbers below 16. A character below pairFirst causes a
			// borrow and becomes a number of at least 16.
			w := binary.LittleEndian.Uint32(literals)
			x := w - pairFirst*0x01010101
			if x&0xf0f0f0f0 == 0 {
				first, second := c.pairs[uint8(x|x>>4)], c.pairs[uint8(x>>16|x>>20)]
				if (first|second)&pairNone == 0 {
					first, second = first&^pairLong, second&^pairLong
					acc |= uint64(first>>5) << n
					n += uint(first & 31)
					acc |= uint64(second>>5) << (n & 63)
					n += uint(second & 31)
					binary.LittleEndian.PutUint64(out[to:], acc)
					to += int(n >> 3)
					acc >>= n & 56
					n &= 7
					literals = literals[4:]
					continue
				}
			}
			for i := range 2 {
				code := c.codes[uint8(w>>(8*i))]
				acc |= uint64(code>>5) << (n & 63)
				n += uint(code & 31)
			}
			binary.LittleEndian.PutUint64(out[to:], acc)
			to += int(n >> 3)
			acc >>= n & 56
			n &= 7
			literals = literals[2:]
		}
		for _, b := range literals {
			code := c.codes[b]
			acc |= uint64(code>>5) << (n & 63)
			n += uint(code & 31)
		}
		binary.LittleEndian.PutUint64(out[to:], acc)
		to += int(n >> 3)
		acc >>= n & 56
		n &= 7
		if t.length == 0 {
			continue
		}
		code, codeBits := c.match(t)
		acc |= code << n
		n += codeBits
		binary.LittleEndian.PutUint64(out[to:], acc)
		to += int(n >> 3)
		acc >>= n & 56
		n &= 7
	}
	c.bits, c.n = acc, n
	return c.put(out[:to], uint64(c.codes[endOfBlock]>>5), uint(c.codes[endOfBlock]&31))
}

// match returns the code of a match with all extra bits, at most 48 bits, and their number.
func (c *coder) match(t token) (code uint64, n uint) {
	length := c.matches[uint8(t.length-3)]
	symbol := distanceSymbol(uint32(t.distance))
	distance := c.distances[symbol]
	extra := distanceExtra[symbol]
	code, n = uint64(length>>5), uint(length&31)
	code |= uint64(distance>>5) << n
	n += uint(distance & 31)
	code |= uint64(uint32(t.distance)&(1<<extra-1)) << (n & 63)
	return code, n + uint(extra)
}

// runLength is a symbol of the code of code lengths, with its extra bits.
type runLength struct{ symbol, extra, extraBits uint8 }

// header appends the header of a block with its own codes.
func (c *coder) header(out []byte) []byte {
	symbols, distances := symbolsMax, distancesMax
	for ; c.codeBits[symbols-1] == 0; symbols-- {
	}
	for ; distances > 1 && c.codeBits[symbolsMax+distances-1] == 0; distances-- {
	}
	c.runLengths = c.runLengths[:0]
	var counts [19]uint32
	c.runs(c.codeBits[:symbols], &counts)
	c.runs(c.codeBits[symbolsMax:symbolsMax+distances], &counts)
	var lengths [19]uint8
	c.huffman.limited(lengths[:], counts[:], 7)
	var codes [19]uint32
	assign(codes[:], lengths[:])
	used := 19
	for ; used > 4 && lengths[lengthsOrdered[used-1]] == 0; used-- {
	}
	out = c.put(out, 0b100, 3) // not the last block, its own codes
	out = c.put(out, uint64(symbols-257), 5)
	out = c.put(out, uint64(distances-1), 5)
	out = c.put(out, uint64(used-4), 4)
	for _, symbol := range lengthsOrdered[:used] {
		out = c.put(out, uint64(lengths[symbol]), 3)
	}
	for _, r := range c.runLengths {
		out = c.put(out, uint64(codes[r.symbol]>>5), uint(codes[r.symbol]&31))
		out = c.put(out, uint64(r.extra), uint(r.extraBits))
	}
	return out
}

// put appends the lowest n bits of value.
func (c *coder) put(out []byte, value uint64, n uint) []byte {
	c.bits |= value << c.n
	for c.n += n; c.n >= 8; c.n -= 8 {
		out = append(out, byte(c.bits))
		c.bits >>= 8
	}
	return out
}

// runs appends code lengths, run-length encoded, to runLengths, and counts their symbols.
func (c *coder) runs(lengths []uint8, counts *[19]uint32) {
	add := func(symbol, extra, extraBits uint8) {
		c.runLengths = append(c.runLengths, runLength{symbol, extra, extraBits})
		counts[symbol]++
	}
	for len(lengths) > 0 {
		l, n := lengths[0], 1
		for n < len(lengths) && lengths[n] == l {
			n++
		}
		lengths = lengths[n:]
		if l == 0 {
			for ; n >= 11; n -= min(n, 138) {
				add(18, uint8(min(n, 138)-11), 7)
			}
			if n >= 3 {
				add(17, uint8(n-3), 3)
				n = 0
			}
		} else {
			add(l, 0, 0)
			for n--; n >= 3; n -= min(n, 6) {
				add(16, uint8(min(n, 6)-3), 2)
			}
		}
		for ; n > 0; n-- {
			add(l, 0, 0)
		}
	}
}
