package block

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sort"
	"strings"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
)

// Part describes the symbols of the profiles of one dataset. The symbols of each part are
// read and decoded separately. Stacks First to First+Nodes-1 of the source are stacks 1 to
// Nodes of the part. Stack 0, the root, belongs to every part. A part without a dataset has
// the stacks of all datasets, and is the only part of its source.
type Part struct {
	Dataset string
	First   uint32
	Nodes   uint32
}

// WholePart is the part of a source that does not divide its symbols.
func WholePart() Part { return Part{First: 1, Nodes: math.MaxUint32} }

// Local converts the number that a stack has in the source to its number in the part. ok is false
// if another part has the stack.
func (p Part) Local(stack uint32) (n uint32, ok bool) {
	if stack == 0 {
		return 0, true
	}
	if stack < p.First || stack-p.First >= p.Nodes {
		return 0, false
	}
	return stack - p.First + 1, true
}

// filePart is a part of a Reader.
type filePart struct {
	Part
	body    section                 // encoded symbols
	symbols atomic.Pointer[Symbols] // nil: not decoded
}

// PartsEncoder encodes the symbols of a block part by part, so that a writer needs the symbols of only one part at a
// time.
type PartsEncoder struct {
	directory    []byte   // of sectionParts, without the number of parts
	bodies       [][]byte // of sectionPartSymbols, in pieces: one slice would be copied whenever it grows
	parts        int
	last         string
	body, stored []byte // reused
}

// Add adds the symbols of a part. Parts are sorted by dataset.
func (e *PartsEncoder) Add(dataset string, s *Symbols) error {
	if e.parts > 0 && dataset <= e.last {
		return fmt.Errorf("symbols are not sorted by dataset: %q follows %q", dataset, e.last)
	}
	e.body = appendSymbols(e.body[:0], s)
	var err error
	if e.stored, err = appendCompressed(e.stored[:0], e.body); err != nil {
		return err
	}
	e.directory = appendText(e.directory, dataset)
	for _, v := range []uint64{uint64(len(s.Parents) - 1), uint64(len(e.stored)), uint64(len(e.body))} {
		e.directory = binary.AppendUvarint(e.directory, v)
	}
	e.directory = binary.LittleEndian.AppendUint64(e.directory, xxhash.Sum64(e.stored))
	e.bodies, e.last = appendPieces(e.bodies, e.stored), dataset
	e.parts++
	return nil
}

const (
	pieceMin = 16 << 10 // capacity of the first piece; each further piece has twice the capacity
	pieceMax = 1 << 20  // maximum capacity of a piece
)

// appendPieces copies b to the end of a list of pieces.
func appendPieces(pieces [][]byte, b []byte) [][]byte {
	for len(b) > 0 {
		last := len(pieces) - 1
		if last < 0 || len(pieces[last]) == cap(pieces[last]) {
			size := pieceMin
			if last >= 0 {
				size = min(2*cap(pieces[last]), pieceMax)
			}
			pieces = append(pieces, make([]byte, 0, size))
			last++
		}
		n := min(len(b), cap(pieces[last])-len(pieces[last]))
		pieces[last], b = append(pieces[last], b[:n]...), b[n:]
	}
	return pieces
}

// sections returns the body of sectionParts, and the body of sectionPartSymbols in pieces.
func (e *PartsEncoder) sections() (directory []byte, bodies [][]byte) {
	return append(binary.AppendUvarint(nil, uint64(e.parts)), e.directory...), e.bodies
}

// decodeParts decodes the body of sectionParts. The parts alias bodies.
func decodeParts(directory, bodies []byte) ([]*filePart, error) {
	d := decoder{b: directory}
	var parts []*filePart
	next := uint64(1)
	for range d.count(12) {
		p := &filePart{Part: Part{Dataset: string(d.text()), First: uint32(next)}}
		nodes, size := d.uvarint(), d.uvarint()
		p.body = section{compression: zstded, plain: d.uvarint(), sum: d.u64()}
		if d.err != nil {
			return nil, d.err
		}
		if next += nodes; nodes > math.MaxUint32 || next > math.MaxUint32 || size > uint64(len(bodies)) ||
			p.body.plain > sectionMax {
			return nil, corruptf("symbols of dataset %q: %d stacks in %d bytes", p.Dataset, nodes, size)
		}
		if n := len(parts); n > 0 && p.Dataset <= parts[n-1].Dataset {
			return nil, corruptf("symbols are not sorted by dataset: %q follows %q", p.Dataset, parts[n-1].Dataset)
		}
		p.Nodes, p.body.stored, bodies = uint32(nodes), bodies[:size], bodies[size:]
		parts = append(parts, p)
	}
	if len(parts) == 0 && d.err == nil {
		return nil, corruptf("there are no symbols")
	}
	return parts, d.err
}

// readParts finds the parts of a block, and the part of every span.
func (r *Reader) readParts(directory []byte) (err error) {
	if r.parts, err = decodeParts(directory, r.sections[sectionPartSymbols].stored); err != nil {
		return fmt.Errorf("parts: %w", err)
	}
	r.partOf = make([]int, len(r.spans))
	for i := range r.spans {
		if len(r.parts) == 1 {
			continue
		}
		at, found := slices.BinarySearchFunc(r.parts, r.spans[i].Dataset, func(p *filePart, dataset string) int {
			return strings.Compare(p.Dataset, dataset)
		})
		if !found {
			return corruptf("dataset %q has no symbols", r.spans[i].Dataset)
		}
		r.partOf[i] = at
	}
	return nil
}

// Parts implements Source.
func (r *Reader) Parts() []Part {
	parts := make([]Part, len(r.parts))
	for i, p := range r.parts {
		parts[i] = p.Part
	}
	return parts
}

// PartOf implements Source.
func (r *Reader) PartOf(row int) (part, end int) {
	i := sort.Search(len(r.spans), func(i int) bool { return r.spans[i].Hi > row })
	if i == len(r.spans) {
		return 0, row + 1 // no row of the block: reading it fails
	}
	return r.partOf[i], r.spans[i].Hi
}

// PartSymbols implements Source. It decodes the symbols on first use and caches them until
// DropIdleSymbols.
func (r *Reader) PartSymbols(i int) (*Symbols, error) {
	r.wanted.Store(true)
	p := r.parts[i]
	if s := p.symbols.Load(); s != nil {
		return s, nil
	}
	r.symbolsMu.Lock()
	defer r.symbolsMu.Unlock()
	if s := p.symbols.Load(); s != nil {
		return s, nil
	}
	s, err := p.decode()
	if err != nil {
		return nil, err
	}
	if !r.closed.Load() {
		p.symbols.Store(s)
		r.count(r.PartBytes(i))
	}
	return s, nil
}

// PartDecoder decodes the symbols of one part after the other, in the same memory.
type PartDecoder struct {
	symbols Symbols
	plain   []byte
}

// Decode returns the symbols of a part as PartSymbols does, but does not cache them: a compaction needs the symbols of
// each part only once. The result is valid until the next call; the strings in it stay valid.
func (d *PartDecoder) Decode(r *Reader, i int) (*Symbols, error) {
	if s := r.parts[i].symbols.Load(); s != nil {
		return s, nil
	}
	if err := r.parts[i].decodeIn(&d.symbols, &d.plain); err != nil {
		return nil, err
	}
	return &d.symbols, nil
}

// PartNodes returns the number of stacks of a part, without the root, before the symbols are decoded. ok is false if
// the number is too large for the size of the symbols.
func (r *Reader) PartNodes(i int) (nodes int, ok bool) {
	p := r.parts[i]
	// a stack has at least two bytes
	if p.body.plain > usualBytes(len(p.body.stored)) || 2*uint64(p.Nodes) > p.body.plain {
		return 0, false
	}
	return int(p.Nodes), true
}

// CheckPart verifies the checksum of the symbols of a part, unless they are decoded.
func (r *Reader) CheckPart(i int) error {
	p := r.parts[i]
	if p.symbols.Load() == nil && xxhash.Sum64(p.body.stored) != p.body.sum {
		return corruptf("symbols of dataset %q: wrong checksum", p.Dataset)
	}
	return nil
}

func (p *filePart) decode() (*Symbols, error) {
	s, plain := &Symbols{}, []byte(nil)
	if err := p.decodeIn(s, &plain); err != nil {
		return nil, err
	}
	return s, nil
}

// decodeIn decodes the symbols into s, and decompresses them into plain.
func (p *filePart) decodeIn(s *Symbols, plain *[]byte) error {
	b, err := p.body.openIn(*plain, sectionPartSymbols)
	if err != nil {
		return err
	}
	if p.body.compression == zstded { // otherwise b is the block's own
		*plain = b
	}
	err = s.decode(b)
	if err == nil && len(s.Parents) != int(p.Nodes)+1 {
		err = corruptf("%d stacks, not %d", len(s.Parents)-1, p.Nodes)
	}
	if err != nil {
		return fmt.Errorf("symbols of dataset %q: %w", p.Dataset, err)
	}
	return nil
}

// PartBytes estimates the memory of the decoded symbols of a part.
func (r *Reader) PartBytes(i int) int64 { return decodedShare * int64(r.parts[i].body.plain) }

// HasPart reports whether the symbols of a part are decoded.
func (r *Reader) HasPart(i int) bool { return r.parts[i].symbols.Load() != nil }

// stacks returns the number of stacks of the block, with the root.
func (r *Reader) stacks() int {
	last := r.parts[len(r.parts)-1]
	return int(last.First) + int(last.Nodes)
}

// Partitioner divides the symbols of a Builder into parts. For each part the caller calls Begin,
// then Use with every stack of the part, then Part. A Builder has deduplicated its symbols, so a
// part needs no tables to find duplicates.
type Partitioner struct {
	whole                    *Symbols
	part                     uint32   // number of the current part
	number                   []uint32 // by stack of the current part: its number, before the part is arranged
	in                       bitset   // stacks of the current part: those passed to Use, and their callers
	used                     []uint32 // the stacks in the set in; Part sorts them
	isNamed                  bitset   // stacks that were passed to Use
	named                    []uint32 // the stacks in the set isNamed; Part sorts them
	numbers                  []uint32 // the numbers in the part of the stacks in named
	frames, functions, texts renumbering
	symbols                  Symbols // of the current part, not arranged
	arranger                 Arranger
}

// bitset is a set of numbers.
type bitset []uint64

func newBitset(n int) bitset          { return make(bitset, (n+63)/64) }
func (s bitset) has(i uint32) bool    { return s[i/64]>>(i%64)&1 != 0 }
func (s bitset) add(i uint32)         { s[i/64] |= 1 << (i % 64) }
func (s bitset) clearWordOf(i uint32) { s[i/64] = 0 }

// renumbering maps elements of the whole to their numbers in the current part.
type renumbering struct {
	number []uint32
	in     []uint32 // the last part that has the element
}

func newRenumbering(n int) renumbering { return renumbering{make([]uint32, n), make([]uint32, n)} }

// add gives an element the number next unless it has one.
func (r *renumbering) add(i, part uint32, next int) (n uint32, added bool) {
	if r.in[i] == part {
		return r.number[i], false
	}
	r.in[i], r.number[i] = part, uint32(next)
	return uint32(next), true
}

// NewPartitioner returns a partitioner of symbols, which must not change.
func NewPartitioner(s *Symbols) *Partitioner {
	n := len(s.Parents)
	return &Partitioner{
		whole: s, number: make([]uint32, n), in: newBitset(n), isNamed: newBitset(n), frames: newRenumbering(len(s.Frames)),
		functions: newRenumbering(len(s.Functions)), texts: newRenumbering(len(s.Strings)),
	}
}

// Begin begins the next part.
func (p *Partitioner) Begin() {
	p.part++
	for _, stack := range p.used {
		p.in.clearWordOf(stack)
		p.isNamed.clearWordOf(stack)
	}
	p.used, p.named = p.used[:0], p.named[:0]
}

// Use adds a stack to the part, with its callers.
func (p *Partitioner) Use(stack uint32) {
	if stack == 0 || p.isNamed.has(stack) {
		return
	}
	p.isNamed.add(stack)
	p.named = append(p.named, stack)
	for ; stack != 0 && !p.in.has(stack); stack = p.whole.Parents[stack] {
		p.in.add(stack)
		p.used = append(p.used, stack)
	}
}

// sortUsed sorts used and named. If the part has many stacks, it does not sort used but lists the
// elements of the bitset in, which is faster.
func (p *Partitioner) sortUsed() {
	slices.Sort(p.named)
	if len(p.used) < len(p.number)/512 {
		slices.Sort(p.used)
		return
	}
	p.used = p.used[:0]
	for i, word := range p.in {
		for ; word != 0; word &= word - 1 {
			p.used = append(p.used, uint32(64*i+bits.TrailingZeros64(word)))
		}
	}
}

// Part returns the symbols of the part. stacks are the numbers in the whole, ascending, of the stacks
// that were passed to Use, except the root. numbers are their numbers in the part, in the same order. The
// results are valid until the next part begins.
func (p *Partitioner) Part() (symbols *Symbols, stacks, numbers []uint32) {
	p.sortUsed()
	s := &p.symbols
	clear(s.Strings)
	s.Strings, s.Functions, s.Frames = s.Strings[:0], s.Functions[:0], s.Frames[:0]
	s.Parents, s.NodeFrame = append(s.Parents[:0], 0), append(s.NodeFrame[:0], 0)
	p.text(s, 0) // string 0 is the empty string
	p.number[0] = 0
	for i, n := range p.used { // parents first
		frame := p.frame(s, p.whole.NodeFrame[n])
		s.Parents, s.NodeFrame = append(s.Parents, p.number[p.whole.Parents[n]]), append(s.NodeFrame, frame)
		p.number[n] = uint32(i) + 1
	}
	symbols, arranged := p.arranger.Arrange(s)
	p.numbers = p.numbers[:0]
	for _, stack := range p.named {
		p.numbers = append(p.numbers, arranged[p.number[stack]])
	}
	return symbols, p.named, p.numbers
}

// Table ends the partitioner. It returns memory that the partitioner no longer needs: a slice with an element for
// each stack of the whole. The values of the elements are arbitrary.
func (p *Partitioner) Table() []uint32 {
	table := p.number
	p.number = nil
	return table
}

func (p *Partitioner) frame(s *Symbols, i uint32) uint32 {
	n, added := p.frames.add(i, p.part, len(s.Frames))
	if added {
		f := p.whole.Frames[i]
		s.Frames = append(s.Frames, Frame{p.function(s, f.Function), f.Line})
	}
	return n
}

func (p *Partitioner) function(s *Symbols, i uint32) uint32 {
	n, added := p.functions.add(i, p.part, len(s.Functions))
	if added {
		f := p.whole.Functions[i]
		s.Functions = append(s.Functions, Function{p.text(s, f.Name), p.text(s, f.System), p.text(s, f.File), f.StartLine})
	}
	return n
}

func (p *Partitioner) text(s *Symbols, i uint32) uint32 {
	n, added := p.texts.add(i, p.part, len(s.Strings))
	if added {
		s.Strings = append(s.Strings, p.whole.Strings[i])
	}
	return n
}
