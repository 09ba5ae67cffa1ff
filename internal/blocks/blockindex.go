// Package blocks decodes series entries of a block's index: the index of Prometheus'
// TSDB, version 2. The input is one entry, whose checksum the caller has verified. The
// output is its labels, as numbers of symbols, and the time range and reference of each chunk.
// Decoders alias their input. The caller looks up the symbols.
//
//	entry   uvarint(len) | labels, chunks | crc32, 16-byte aligned
//	labels  uvarint(count) (uvarint(name) uvarint(value))*   numbers of symbols
//	chunks  uvarint(count) varint(min) uvarint(max-min) uvarint(ref)
//	        (uvarint(min-last max) uvarint(max-min) varint(ref-last ref))*
package blocks

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// ErrCorrupt is returned for an entry that is not valid.
var ErrCorrupt = errors.New("corrupt series entry")

// Varints reads varints from Src. Errors are sticky: after an error Bad stays true and Src
// empty, so that a decoder checks once.
type Varints struct {
	Src []byte
	Bad bool
}

// Uvarint reads an unsigned number; 0 after an error.
func (r *Varints) Uvarint() uint64 {
	if len(r.Src) > 0 && r.Src[0] < 0x80 {
		v := uint64(r.Src[0])
		r.Src = r.Src[1:]
		return v
	}
	v, n := binary.Uvarint(r.Src)
	if n <= 0 {
		r.Bad, r.Src = true, nil
		return 0
	}
	r.Src = r.Src[n:]
	return v
}

// Three reads three numbers. If they have eight bytes together, it takes as long as Uvarint for one.
func (r *Varints) Three() (a, b, c uint64) {
	if len(r.Src) >= 8 {
		w := binary.LittleEndian.Uint64(r.Src)
		first := VarintEnds(w)
		second := first & (first - 1)
		if third := second & (second - 1); third != 0 {
			i, j, k := bits.TrailingZeros64(first), bits.TrailingZeros64(second), bits.TrailingZeros64(third)
			r.Src = r.Src[k/8+1:]
			return JoinVarint(w & (1<<i - 1)), JoinVarint(w >> (i + 1) & (1<<(j-i-1) - 1)),
				JoinVarint(w >> (j + 1) & (1<<(k-j-1) - 1))
		}
	}
	return r.Uvarint(), r.Uvarint(), r.Uvarint()
}

// VarintEnds returns the highest bits of those bytes of w with which a varint ends.
func VarintEnds(w uint64) uint64 { return ^w & 0x8080808080808080 }

// JoinVarint returns the number whose varint has these bytes, the first one lowest.
func JoinVarint(w uint64) uint64 {
	w = w&0x007f007f007f007f | w>>1&0x3f803f803f803f80
	w = w&0x00003fff00003fff | w>>2&0x0fffc0000fffc000
	return w&0x0fffffff | w>>4&0x00fffffff0000000
}

// Signed returns the signed number that a varint encodes.
func Signed(v uint64) int64 { return int64(v>>1) ^ -int64(v&1) }

// Label reads the numbers of the next label's symbols. LabelCount returns how often it may be called.
func (r *Varints) Label() (name, value uint64) { return r.Uvarint(), r.Uvarint() }

// LabelCount reads the number of labels. A corrupt number is cut to the number of bytes that
// follow, so that a loop over the labels ends.
func (r *Varints) LabelCount() int { return int(min(r.Uvarint(), uint64(len(r.Src)))) }

// SkipLabels reads the labels without using them.
func (r *Varints) SkipLabels() {
	for range r.LabelCount() {
		r.Label()
	}
}

// chunksMax is the limit of chunks in a series.
const chunksMax = 1 << 24

// Chunks iterates over the chunks of a series, in the order of the entry. NewChunks creates it.
type Chunks struct {
	r     Varints // a copy: with a pointer the caller's Varints would escape to the heap
	count uint64
	i     uint64
	meta  Chunk
	err   error
}

// Chunk is the location of a chunk, and the timestamps of its first and last sample in ms.
type Chunk struct {
	MinMS, MaxMS int64
	Ref          uint64 // upper 32 bits: number of the segment, from 0; lower 32 bits: offset in the segment
}

// NewChunks reads the number of chunks. The caller has read the labels from r before. NewChunks
// and the Chunks read a copy of r: r does not change.
func NewChunks(r Varints) Chunks {
	c := Chunks{r: r}
	c.count = c.r.Uvarint()
	switch {
	case c.r.Bad:
		c.err = fmt.Errorf("%w: no number of chunks", ErrCorrupt)
	case c.count > chunksMax:
		c.err = fmt.Errorf("%w: %d chunks in a series", ErrCorrupt, c.count)
	}
	return c
}

// Next reads the next chunk. It returns false at the end and after an error.
func (c *Chunks) Next() bool {
	if c.err != nil || c.i == c.count {
		return false
	}
	m := &c.meta
	before, length, ref := c.r.Three()
	if c.i == 0 {
		m.MinMS, m.Ref = Signed(before), ref
	} else {
		m.MinMS, m.Ref = m.MaxMS+int64(before), m.Ref+uint64(Signed(ref))
	}
	m.MaxMS = m.MinMS + int64(length)
	if c.r.Bad {
		c.err = fmt.Errorf("%w: chunk %d is cut short", ErrCorrupt, c.i)
		return false
	}
	c.i++
	return true
}

// AppendWithin appends the rest of the chunks, those that overlap mint to maxt, and returns how many are before them.
// It takes a fifth of Next's time while each chunk is as long as the one before, and as far from it.
func (c *Chunks) AppendWithin(dst []Chunk, mint, maxt int64) (_ []Chunk, earlier int) {
	src, at, m, i := c.r.Src, 0, c.meta, c.i // in registers: the next chunk begins where this one ends
	// What the bytes of most chunks have in common: two numbers, and the length of the third, whose bits are ref.
	// The branch on it is predicted, so that the next chunk need not wait for this one's bytes.
	known, mask := uint64(1), uint64(0)
	var before, length, ref uint64
	var refAt, size int
	for c.err == nil && i < c.count {
		var w uint64
		like := false
		if i > 0 && len(src)-at >= 8 {
			w = binary.LittleEndian.Uint64(src[at:])
			if like = w&mask == known; !like {
				ends := VarintEnds(w)
				second := ends & (ends - 1)
				third := second & (second - 1)
				end, two := bits.TrailingZeros64(ends), second^(second-1)
				if like = third != 0; like {
					before, length = JoinVarint(w&(1<<end-1)), JoinVarint(w&two>>(end+1))
					refAt, size = bits.TrailingZeros64(second)+1, bits.TrailingZeros64(third)/8+1
					ref = (third ^ (third - 1)) &^ two
					mask = two | ref&0x8080808080808080
					known = w & mask
				}
			}
		}
		if like {
			m.MinMS = m.MaxMS + int64(before)
			m.MaxMS, m.Ref = m.MinMS+int64(length), m.Ref+uint64(Signed(JoinVarint(w&ref>>(refAt&63))))
			at, i = at+size, i+1
		} else {
			if c.r.Src, c.meta, c.i = src[at:], m, i; !c.Next() {
				break
			}
			src, at, m, i = c.r.Src, 0, c.meta, c.i
		}
		if m.MinMS > maxt {
			break
		}
		if m.MaxMS >= mint {
			dst = append(dst, m)
		} else if len(dst) == 0 {
			earlier++
		}
	}
	c.i = c.count
	return dst, earlier
}

// At returns the current chunk.
func (c *Chunks) At() Chunk { return c.meta }

// Err returns the error after which Next returned false, an ErrCorrupt; nil at the end of the chunks.
func (c *Chunks) Err() error { return c.err }
