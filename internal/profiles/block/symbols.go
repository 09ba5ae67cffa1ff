package block

import (
	"crypto/rand"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
)

// Function is a function; strings are given by number.
type Function struct {
	Name, System, File uint32
	StartLine          int64
}

// Frame is a line of a function.
type Frame struct{ Function, Line uint32 }

// Symbols are strings, functions, frames and the tree of stacks. A stack is a node with a
// frame and a parent, whose number is smaller. Node 0 is the root and has neither. Symbols of a
// source are shared and immutable.
type Symbols struct {
	Strings   []string
	Functions []Function
	Frames    []Frame
	Parents   []uint32 // by node
	NodeFrame []uint32 // by node
}

// Builder deduplicates and numbers symbols. Profiles of one program add the same symbols in
// nearly the same order. Suppose that the last added symbol has number n. A Builder compares the
// next symbol with number n+1 before it looks into the tables: the comparison reads adjacent
// memory, while a table costs one to three cache misses.
type Builder struct {
	Symbols
	lastString, lastFunction, lastFrame uint32
	strings                             map[string]uint32
	functions, frames, nodes, stacks    table
	factor                              uint64 // odd; of the hashes
	bytes                               int
}

// NewBuilder returns a builder with the empty string and the root. Its tables hash with a random factor. If a client
// knew the factor, it could push symbols with equal hashes, and each new symbol would be compared with all symbols
// before it.
func NewBuilder() *Builder {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	factor := binary.NativeEndian.Uint64(random[:]) | 1
	b := &Builder{strings: map[string]uint32{}, factor: factor}
	b.begin()
	return b
}

// Bytes estimates the memory of the symbols and the tables.
func (b *Builder) Bytes() int {
	tables := 8*(len(b.functions.slots)+len(b.frames.slots)+len(b.nodes.slots)+len(b.stacks.slots)) + 48*len(b.strings)
	return b.bytes + tables + 16*cap(b.Strings) + 24*cap(b.Functions) + 8*cap(b.Frames) +
		4*(cap(b.Parents)+cap(b.NodeFrame))
}

// Seal frees the tables, which take more memory than the symbols. Nothing may be added to a sealed builder.
func (b *Builder) Seal() {
	b.strings = nil
	b.functions, b.frames, b.nodes, b.stacks = table{}, table{}, table{}, table{}
}

// Reset empties the builder and keeps its memory. Symbols that it has returned must not be used any more.
func (b *Builder) Reset() {
	clear(b.strings)
	clear(b.Strings) // so that unused ones are freed
	for _, t := range []*table{&b.functions, &b.frames, &b.nodes, &b.stacks} {
		clear(t.slots)
		t.n = 0
	}
	b.bytes = 0
	b.lastString, b.lastFunction, b.lastFrame = 0, 0, 0
	b.Strings, b.Functions, b.Frames = b.Strings[:0], b.Functions[:0], b.Frames[:0]
	b.Parents, b.NodeFrame = b.Parents[:0], b.NodeFrame[:0]
	b.begin()
}

func (b *Builder) begin() {
	b.String(nil)
	b.Parents, b.NodeFrame = append(b.Parents, 0), append(b.NodeFrame, 0)
}

// String returns the number of a string. It copies a new string.
func (b *Builder) String(text []byte) uint32 {
	if next, ok := b.Next(text); ok {
		return next
	}
	n, ok := b.strings[string(text)]
	if !ok {
		n = b.newString(string(text))
	}
	b.lastString = n
	return n
}

// Next returns the number of a string if it is the next number after the last string. It does not look
// into the table.
func (b *Builder) Next(text []byte) (n uint32, ok bool) {
	next := b.lastString + 1
	if int(next) < len(b.Strings) && b.Strings[next] == string(text) {
		b.lastString = next
		return next, true
	}
	return 0, false
}

// Function returns the number of a function.
func (b *Builder) Function(f Function) uint32 {
	if next := b.lastFunction + 1; int(next) < len(b.Functions) && b.Functions[next] == f {
		b.lastFunction = next
		return next
	}
	hash := (uint64(f.Name)<<32 | uint64(f.File)) * b.factor  // multiplied after each field that a client can choose:
	hash = (hash ^ hash>>32 ^ uint64(f.StartLine)) * b.factor // otherwise many functions could have equal hashes
	hash = (hash ^ hash>>32 ^ uint64(f.System)) * b.factor
	n, added := b.functions.get(hash, len(b.Functions), func(n uint32) bool { return b.Functions[n] == f })
	if added {
		b.Functions = append(b.Functions, f)
	}
	b.lastFunction = n
	return n
}

// Frame returns the number of a line of a function.
func (b *Builder) Frame(function, line uint32) uint32 {
	if next := b.lastFrame + 1; int(next) < len(b.Frames) && b.Frames[next] == (Frame{function, line}) {
		b.lastFrame = next
		return next
	}
	f := Frame{function, line}
	n, added := b.frames.get((uint64(function)<<32|uint64(line))*b.factor, len(b.Frames),
		func(n uint32) bool { return b.Frames[n] == f })
	if added {
		b.Frames = append(b.Frames, f)
	}
	b.lastFrame = n
	return n
}

// Stack returns the node of a stack, root first. It finds a known stack by the hash of its frames
// and compares it from leaf to root. The nodes of a stack were added one after the other, so most of
// them are adjacent in memory. A walk from the root would read slots anywhere in the table.
func (b *Builder) Stack(frames []uint32) uint32 {
	if len(frames) == 0 {
		return 0
	}
	hash := b.hash(frames)
	slot, n, known := b.stacks.find(hash, func(n uint32) bool { return b.is(n, frames) })
	if known {
		return n
	}
	for _, f := range frames {
		n = b.Node(n, f)
	}
	b.stacks.put(slot, hash, n)
	return n
}

// hash returns a hash of the frames of a stack. It takes two frames with each multiplication.
func (b *Builder) hash(frames []uint32) uint64 {
	hash := uint64(len(frames))
	for ; len(frames) > 1; frames = frames[2:] {
		hash = (hash ^ uint64(frames[0]) ^ uint64(frames[1])<<32) * b.factor
		hash ^= hash >> 32
	}
	if len(frames) == 1 {
		hash = (hash ^ uint64(frames[0])) * b.factor
		hash ^= hash >> 32
	}
	return hash * b.factor
}

// is reports whether the stack of a node has these frames, root first.
func (b *Builder) is(node uint32, frames []uint32) bool {
	parents, nodeFrame := b.Parents, b.NodeFrame
	for i := len(frames); i > 0; i-- {
		// Most nodes follow their parent. A processor that predicts the branch of this loop reads several nodes at once: it
		// does not wait until it has read from memory which node is the parent.
		for i > 1 && node > 0 && parents[node] == node-1 && nodeFrame[node] == frames[i-1] {
			node--
			i--
		}
		if node == 0 || nodeFrame[node] != frames[i-1] {
			return false
		}
		node = parents[node]
	}
	return node == 0
}

// Node returns the child of node parent that has this frame. A stack adds its nodes one after the other, so most
// nodes have the next number after their parent. For example, main;a;b adds nodes 1, 2 and 3, and main;a;c adds
// node 4, whose parent is 2. Nodes 1 to 3 follow their parents: Node finds them without the table, and they are not
// in the table. Node 4 is in the table.
func (b *Builder) Node(parent, frame uint32) uint32 {
	next := parent + 1
	if int(next) == len(b.Parents) {
		b.Parents, b.NodeFrame = append(b.Parents, parent), append(b.NodeFrame, frame)
		return next
	}
	if b.Parents[next] == parent && b.NodeFrame[next] == frame {
		return next
	}
	n, added := b.nodes.get((uint64(parent)<<32|uint64(frame))*b.factor, len(b.Parents), func(n uint32) bool {
		return b.Parents[n] == parent && b.NodeFrame[n] == frame
	})
	if added {
		b.Parents, b.NodeFrame = append(b.Parents, parent), append(b.NodeFrame, frame)
	}
	return n
}

// AppendAdded adds the symbols of another source. It appends the number in b of each node of s to dst, without the
// number of the root, which is 0.
func (b *Builder) AppendAdded(dst []uint32, s *Symbols) []uint32 {
	texts := make([]uint32, len(s.Strings))
	for i, t := range s.Strings {
		texts[i] = b.text(t)
	}
	functions := make([]uint32, len(s.Functions))
	for i, f := range s.Functions {
		functions[i] = b.Function(Function{texts[f.Name], texts[f.System], texts[f.File], f.StartLine})
	}
	frames := make([]uint32, len(s.Frames))
	for i, f := range s.Frames {
		frames[i] = b.Frame(functions[f.Function], f.Line)
	}
	first := len(dst) // number of stack 1
	for i := 1; i < len(s.Parents); i++ {
		parent := s.Parents[i]
		if parent != 0 {
			parent = dst[first+int(parent)-1]
		}
		dst = append(dst, b.Node(parent, frames[s.NodeFrame[i]]))
	}
	return dst
}

// text is String for a string that need not be copied.
func (b *Builder) text(s string) uint32 {
	if next := b.lastString + 1; int(next) < len(b.Strings) && b.Strings[next] == s {
		b.lastString = next
		return next
	}
	n, ok := b.strings[s]
	if !ok {
		n = b.newString(s)
	}
	b.lastString = n
	return n
}

func (b *Builder) newString(s string) uint32 {
	n := uint32(len(b.Strings))
	b.strings[s] = n
	b.Strings = append(b.Strings, s)
	b.bytes += len(s)
	return n
}

// table maps elements to their numbers by a hash: open addressing, linear probing, at most two thirds full. The
// elements are not in the table but in Symbols, because a head has millions of nodes. A slot has the number of an
// element plus one in its low half and the hash in its high half; 0: the slot is free.
type table struct {
	slots []uint64
	n     int  // number of elements
	shift uint // 64 less the bits of the index of a slot
}

// get returns the number of an element. If the table does not have it, get adds it with the number next. is reports
// whether an element with the same hash is this one.
func (t *table) get(hash uint64, next int, is func(n uint32) bool) (n uint32, added bool) {
	slot, n, known := t.find(hash, is)
	if !known {
		n = uint32(next)
		t.put(slot, hash, n)
	}
	return n, !known
}

// find returns the number of an element, or the free slot for it.
func (t *table) find(hash uint64, is func(n uint32) bool) (slot *uint64, n uint32, known bool) {
	if 3*(t.n+1) >= 2*len(t.slots) {
		t.grow()
	}
	mask := uint64(len(t.slots) - 1)
	for i := hash >> t.shift; ; i = (i + 1) & mask {
		slot = &t.slots[i]
		if *slot == 0 {
			return slot, 0, false
		}
		if n = uint32(*slot) - 1; (*slot^hash)>>32 == 0 && is(n) {
			return slot, n, true
		}
	}
}

func (t *table) put(slot *uint64, hash uint64, n uint32) {
	*slot = hash&^math.MaxUint32 | uint64(n+1)
	t.n++
}

func (t *table) grow() {
	old, size := t.slots, max(1<<10, 2*len(t.slots))
	t.slots, t.shift = make([]uint64, size), uint(64-bits.TrailingZeros(uint(size)))
	mask := uint64(size - 1)
	for _, s := range old {
		if s == 0 {
			continue
		}
		i := s >> t.shift
		for t.slots[i] != 0 {
			i = (i + 1) & mask
		}
		t.slots[i] = s
	}
}

// FrameName returns the name of a frame's function.
func (s *Symbols) FrameName(frame uint32) string {
	return s.Strings[s.Functions[s.Frames[frame].Function].Name]
}

// Used reports for each node whether it or a descendant has a sum other than 0. sums is indexed by
// node.
func (s *Symbols) Used(sums []int64) []bool { return s.UsedIn(nil, sums) }

// UsedIn is Used with the memory of used, if its capacity suffices.
func (s *Symbols) UsedIn(used []bool, sums []int64) []bool {
	used = Zeros(used, len(s.Parents))
	for i := len(s.Parents) - 1; i > 0; i-- {
		if used[i] || sums[i] != 0 {
			used[i], used[s.Parents[i]] = true, true
		}
	}
	return used
}

// AddUsed adds the nodes of s that Used reports. It returns the number in b of each node of s; 0 for other nodes.
func (b *Builder) AddUsed(s *Symbols, sums []int64) []uint32 {
	used, nodes, frames := s.Used(sums), make([]uint32, len(s.Parents)), make([]uint32, len(s.Frames))
	for i := 1; i < len(s.Parents); i++ {
		if !used[i] {
			continue
		}
		frame := s.NodeFrame[i]
		if frames[frame] == 0 {
			frames[frame] = b.addFrame(s, s.Frames[frame]) + 1
		}
		nodes[i] = b.Node(nodes[s.Parents[i]], frames[frame]-1)
	}
	return nodes
}

func (b *Builder) addFrame(s *Symbols, frame Frame) uint32 {
	f := s.Functions[frame.Function]
	text := func(n uint32) uint32 { return b.text(s.Strings[n]) }
	return b.Frame(b.Function(Function{text(f.Name), text(f.System), text(f.File), f.StartLine}), frame.Line)
}

// Arranger renumbers the stacks of several Symbols depth first, so that the stacks of one profile have close numbers.
// It arranges one after the other, in the same memory.
type Arranger struct {
	first, next, numbers []uint32
	arranged             Symbols
}

// Arrange returns arranged symbols, which share strings, functions and frames with s, and the new number of each stack,
// by its number in s. Both are valid until the next call.
func (a *Arranger) Arrange(s *Symbols) (*Symbols, []uint32) {
	n := len(s.Parents)
	a.first, a.next, a.numbers = Zeros(a.first, n), Zeros(a.next, n), Zeros(a.numbers, n)
	first, next, numbers := a.first, a.next, a.numbers
	for i := n - 1; i > 0; i-- { // lists of children, in order of addition
		next[i] = first[s.Parents[i]]
		first[s.Parents[i]] = uint32(i)
	}
	arranged := &a.arranged
	*arranged = Symbols{
		Strings: s.Strings, Functions: s.Functions, Frames: s.Frames,
		Parents:   append(slices.Grow(arranged.Parents[:0], n), 0),
		NodeFrame: append(slices.Grow(arranged.NodeFrame[:0], n), 0),
	}
	for node := first[0]; node != 0; {
		numbers[node] = uint32(len(arranged.Parents))
		arranged.Parents = append(arranged.Parents, numbers[s.Parents[node]])
		arranged.NodeFrame = append(arranged.NodeFrame, s.NodeFrame[node])
		down := first[node]
		for down == 0 && node != 0 { // no children: the next sibling, or an ancestor's
			if down = next[node]; down == 0 {
				node = s.Parents[node]
			}
		}
		node = down
	}
	return arranged, numbers
}

// Zeros returns n zeros, in the memory of s if its capacity suffices.
func Zeros[T any](s []T, n int) []T {
	s = slices.Grow(s[:0], n)[:n]
	clear(s)
	return s
}
