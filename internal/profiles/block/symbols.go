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
	functions                           functionTable
	frames                              table
	nodes                               nodeTable
	stacks                              stackTable
	bytes                               int
}

// NewBuilder returns a builder with the empty string and the root. Its tables hash with a random factor. If a client
// knew the factor, it could push symbols with equal hashes, and each new symbol would be compared with all symbols
// before it.
func NewBuilder() *Builder {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	factor := binary.NativeEndian.Uint64(random[:]) | 1
	b := &Builder{strings: map[string]uint32{}, functions: functionTable{factor: factor}, frames: table{factor: factor},
		nodes: nodeTable{factor: factor}, stacks: stackTable{factor: factor}}
	b.begin()
	return b
}

// Bytes estimates the memory of the symbols and the tables.
func (b *Builder) Bytes() int {
	tables := 16*len(b.frames.slots) + 8*len(b.nodes.slots) + 4*len(b.functions.slots) + 48*len(b.strings) +
		8*len(b.stacks.slots)
	return b.bytes + tables + 16*cap(b.Strings) + 24*cap(b.Functions) + 8*cap(b.Frames) +
		4*(cap(b.Parents)+cap(b.NodeFrame))
}

// Seal frees the tables, which take more memory than the symbols. Nothing may be added to a sealed builder.
func (b *Builder) Seal() {
	b.strings = nil
	b.functions, b.frames, b.nodes, b.stacks = functionTable{}, table{}, nodeTable{}, stackTable{}
}

// Reset empties the builder and keeps its memory. Symbols that it has returned must not be used any more.
func (b *Builder) Reset() {
	clear(b.strings)
	clear(b.Strings) // so that unused ones are freed
	clear(b.functions.slots)
	clear(b.frames.slots)
	clear(b.nodes.slots)
	clear(b.stacks.slots)
	b.frames.n, b.nodes.n, b.stacks.n, b.bytes = 0, 0, 0, 0
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

// Next returns the number of a string if the string has the number after that of the last string. It does not look
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
	n, added := b.functions.get(f, b.Functions)
	if added {
		b.Functions = append(b.Functions, f)
	}
	b.lastFunction = n
	return n
}

// functionTable maps functions to numbers: open addressing, at most half full.
type functionTable struct {
	slots  []uint32 // number + 1
	shift  uint
	factor uint64 // odd
}

// start returns the first slot to look at. It multiplies after each field that a client can choose: with a single
// multiplication a client could choose fields of many functions so that their hashes are equal.
func (t *functionTable) start(f Function) uint64 {
	hash := (uint64(f.Name)<<32 | uint64(f.File)) * t.factor
	hash = (hash ^ hash>>32 ^ uint64(f.StartLine)) * t.factor
	return (hash ^ hash>>32 ^ uint64(f.System)) * t.factor >> t.shift
}

func (t *functionTable) get(f Function, known []Function) (n uint32, added bool) {
	if 2*len(known) >= len(t.slots) {
		t.slots, t.shift = make([]uint32, max(1<<10, 2*len(t.slots))), 64
		for n := len(t.slots); n > 1; n >>= 1 {
			t.shift--
		}
		for i := range known {
			t.slots[t.find(known[i], known)] = uint32(i) + 1
		}
	}
	at := t.find(f, known)
	if t.slots[at] != 0 {
		return t.slots[at] - 1, false
	}
	t.slots[at] = uint32(len(known)) + 1
	return uint32(len(known)), true
}

// find returns the slot of a function, or the free slot for it.
func (t *functionTable) find(f Function, known []Function) uint64 {
	mask := uint64(len(t.slots) - 1)
	for i := t.start(f); ; i = (i + 1) & mask {
		if n := t.slots[i]; n == 0 || known[n-1] == f {
			return i
		}
	}
}

// Frame returns the number of a line of a function.
func (b *Builder) Frame(function, line uint32) uint32 {
	if next := b.lastFrame + 1; int(next) < len(b.Frames) && b.Frames[next] == (Frame{function, line}) {
		b.lastFrame = next
		return next
	}
	n, added := b.frames.get(uint64(function)<<32|uint64(line), uint32(len(b.Frames)))
	if added {
		b.Frames = append(b.Frames, Frame{function, line})
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
	slot, hash, known := b.stacks.find(b, frames)
	if known {
		return uint32(*slot)
	}
	var n uint32
	for _, f := range frames {
		n = b.Node(n, f)
	}
	*slot = uint64(hash)<<32 | uint64(n)
	b.stacks.n++
	return n
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

// stackTable maps stacks to their nodes: open addressing, linear probing, at most two thirds full. The frames of a
// stack are not in the table but in Symbols.
type stackTable struct {
	// low half: number of a node; high half: hash of the stack; 0: the slot is free, because the root is in no slot
	slots []uint64
	n     int  // number of stacks in the table
	shift uint // 32 less the bits of the index of a slot

	factor uint64 // odd
}

// hash returns a hash of the frames. It takes two frames with each multiplication.
func (t *stackTable) hash(frames []uint32) uint32 {
	hash := uint64(len(frames))
	for ; len(frames) > 1; frames = frames[2:] {
		hash = (hash ^ uint64(frames[0]) ^ uint64(frames[1])<<32) * t.factor
		hash ^= hash >> 32
	}
	if len(frames) == 1 {
		hash = (hash ^ uint64(frames[0])) * t.factor
		hash ^= hash >> 32
	}
	return uint32(hash * t.factor >> 32)
}

// find returns the slot of a stack of b, or the free slot for the stack, which the caller fills.
func (t *stackTable) find(b *Builder, frames []uint32) (slot *uint64, hash uint32, known bool) {
	if 3*(t.n+1) >= 2*len(t.slots) {
		t.grow()
	}
	hash = t.hash(frames)
	mask := uint32(len(t.slots) - 1)
	for i := hash >> t.shift; ; i = (i + 1) & mask {
		slot = &t.slots[i]
		if *slot == 0 {
			return slot, hash, false
		}
		if uint32(*slot>>32) == hash && b.is(uint32(*slot), frames) {
			return slot, hash, true
		}
	}
}

func (t *stackTable) grow() {
	old := t.slots
	size := max(1<<10, 2*len(old))
	t.slots, t.shift = make([]uint64, size), uint(32-bits.TrailingZeros(uint(size)))
	mask := uint32(size - 1)
	for _, s := range old {
		if s == 0 {
			continue
		}
		i := uint32(s>>32) >> t.shift
		for t.slots[i] != 0 {
			i = (i + 1) & mask
		}
		t.slots[i] = s
	}
}

// Node returns the child of node parent that has this frame. A stack adds its nodes one after the other, so most
// nodes have the number after that of their parent. For example, main;a;b adds nodes 1, 2 and 3, and main;a;c adds
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
	n, added := b.nodes.get(parent, frame, &b.Symbols)
	if added {
		b.Parents, b.NodeFrame = append(b.Parents, parent), append(b.NodeFrame, frame)
	}
	return n
}

// nodeTable maps a parent and a frame to the number of their node, unless the node follows its parent: open
// addressing, linear probing, at most two thirds full. The parents and frames of nodes are not in the table but in
// Symbols, because a head has millions of nodes.
type nodeTable struct {
	slots []uint64 // low half: number of a node, 0 if the slot is free; high half: tag of its hash
	n     int      // number of nodes in the table
	shift uint

	factor uint64 // odd
}

// get returns the number of a node. A new node gets the next number; the caller adds it to s.
func (t *nodeTable) get(parent, frame uint32, s *Symbols) (n uint32, added bool) {
	if 3*(t.n+1) >= 2*len(t.slots) {
		t.grow(s)
	}
	i, tag := t.start(parent, frame)
	for mask := uint64(len(t.slots) - 1); ; i = (i + 1) & mask {
		slot := t.slots[i]
		if slot == 0 {
			t.slots[i] = tag | uint64(len(s.Parents))
			t.n++
			return uint32(len(s.Parents)), true
		}
		if n := uint32(slot); slot&^math.MaxUint32 == tag && s.Parents[n] == parent && s.NodeFrame[n] == frame {
			return n, false
		}
	}
}

// start returns the first slot to look at, and the tag: the bits of the hash below those of the slot.
func (t *nodeTable) start(parent, frame uint32) (slot, tag uint64) {
	hash := (uint64(parent)<<32 | uint64(frame)) * t.factor
	return hash >> t.shift, hash << (64 - t.shift) &^ math.MaxUint32
}

// grow doubles the table and adds the nodes of s that do not follow their parent.
func (t *nodeTable) grow(s *Symbols) {
	size := max(1<<10, 2*len(t.slots))
	t.slots = nil // so that it can be freed before the new table is filled
	t.slots, t.shift = make([]uint64, size), uint(64-bits.TrailingZeros(uint(size)))
	mask := uint64(size - 1)
	for n := 1; n < len(s.Parents); n++ {
		if int(s.Parents[n]) == n-1 {
			continue
		}
		i, tag := t.start(s.Parents[n], s.NodeFrame[n])
		for t.slots[i] != 0 {
			i = (i + 1) & mask
		}
		t.slots[i] = tag | uint64(n)
	}
}

// Add adds the symbols of another source. It returns, for each node of s, its number in b.
func (b *Builder) Add(s *Symbols) []uint32 {
	return b.AppendAdded(make([]uint32, 1, len(s.Parents)), s)
}

// AppendAdded is Add. It appends the numbers to dst, without that of the root, which is 0.
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

// table maps keys of 64 bits to numbers: open addressing, linear probing, at most half full.
type table struct {
	slots  []slot
	n      int
	shift  uint
	factor uint64 // odd
}

type slot struct {
	key   uint64
	value uint32
	used  bool
}

// get returns the number of key. A new key gets the number next.
func (t *table) get(key uint64, next uint32) (value uint32, added bool) {
	if 2*t.n >= len(t.slots) {
		t.grow()
	}
	mask := uint64(len(t.slots) - 1)
	for i := key * t.factor >> t.shift; ; i = (i + 1) & mask {
		s := &t.slots[i]
		if !s.used {
			*s = slot{key, next, true}
			t.n++
			return next, true
		}
		if s.key == key {
			return s.value, false
		}
	}
}

func (t *table) grow() {
	old := t.slots
	size := max(1<<10, 2*len(old))
	t.slots, t.shift = make([]slot, size), 64
	for n := size; n > 1; n >>= 1 {
		t.shift--
	}
	mask := uint64(size - 1)
	for _, s := range old {
		if !s.used {
			continue
		}
		i := s.key * t.factor >> t.shift
		for t.slots[i].used {
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
	used = slices.Grow(used[:0], len(s.Parents))[:len(s.Parents)]
	clear(used)
	for i := len(s.Parents) - 1; i > 0; i-- {
		if used[i] || sums[i] != 0 {
			used[i], used[s.Parents[i]] = true, true
		}
	}
	return used
}

// AddUsed is Add for the nodes that Used reports. In the result other nodes have number 0.
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

// Arrange renumbers the stacks depth first, so that the stacks of one profile have close
// numbers. The result shares strings, functions and frames with s. Arrange also returns the new
// number of each stack, by its number in s.
func (s *Symbols) Arrange() (*Symbols, []uint32) { return new(Arranger).Arrange(s) }

// Arranger arranges several Symbols, one after the other, in the same memory.
type Arranger struct {
	first, next, numbers []uint32
	arranged             Symbols
}

// Arrange is Symbols.Arrange. The result is valid until the next call.
func (a *Arranger) Arrange(s *Symbols) (*Symbols, []uint32) {
	n := len(s.Parents)
	a.first, a.next, a.numbers = zeros(a.first, n), zeros(a.next, n), zeros(a.numbers, n)
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

// zeros returns n zeros, in the memory of s if its capacity suffices.
func zeros(s []uint32, n int) []uint32 {
	s = slices.Grow(s[:0], n)[:n]
	clear(s)
	return s
}
