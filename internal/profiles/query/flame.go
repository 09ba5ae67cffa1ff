package query

import (
	"container/heap"
	"iter"
	"slices"
	"strings"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
)

// tree is a tree of stacks merged by function name. Node 0 is the root; a parent has a
// smaller number than its children.
type tree struct {
	names  []string
	byName map[string]uint32
	pages  []*[pageNodes]node // pages are never copied; a single slice would be copied when it grows
	n      int
	wide   map[uint64]uint32 // children of a node after its first nearMax, by parent<<32 | name

	// Scratch of add.
	used   []bool
	nameOf []uint32 // by frame
	nodeOf []uint32 // by stack
}

// node is a node of a tree. parent, first and next are numbers of nodes. In first and next 0 means none; in parent 0
// is the root.
type node struct {
	parent, name uint32
	first, next  uint32 // the first child, and the next sibling
	self, total  int64
}

const (
	pageNodes = 1 << 14
	nearMax   = 8 // number of children that child compares one by one
)

const (
	rootName  = "total"
	otherName = "other"
)

func newTree() *tree {
	t := &tree{names: []string{rootName}, byName: map[string]uint32{rootName: 0}, wide: map[uint64]uint32{}}
	t.append(node{})
	return t
}

// Memory in bytes: of a node, of an entry of tree.wide (estimated), and of a name with its entry in tree.byName
// (estimated).
const (
	nodeBytes = 32
	wideBytes = 32
	nameBytes = 16 + 48
)

// bytes estimates the memory of the tree, without the text of the names.
func (t *tree) bytes() int64 {
	return nodeBytes*pageNodes*int64(len(t.pages)) + wideBytes*int64(len(t.wide)) + nameBytes*int64(len(t.names))
}

func (t *tree) at(n uint32) *node { return &t.pages[n/pageNodes][n%pageNodes] }

// append adds a node and returns its number.
func (t *tree) append(one node) uint32 {
	if t.n%pageNodes == 0 {
		t.pages = append(t.pages, new([pageNodes]node))
	}
	n := uint32(t.n)
	t.n++
	*t.at(n) = one
	return n
}

// name returns the number of a name in t.names, and adds the name if it is new.
func (t *tree) name(text string) uint32 {
	n, ok := t.byName[text]
	if !ok {
		n = uint32(len(t.names))
		t.byName[text] = n
		t.names = append(t.names, text)
	}
	return n
}

// child returns the child of parent with this name, and adds it if there is none. It compares the names of the first
// nearMax children, because most nodes have few children. Further children are looked up in t.wide.
func (t *tree) child(parent, name uint32) uint32 {
	link := &t.at(parent).first
	for range nearMax {
		if *link == 0 {
			*link = t.append(node{parent: parent, name: name})
			return *link
		}
		c := t.at(*link)
		if c.name == name {
			return *link
		}
		link = &c.next
	}
	edge := uint64(parent)<<32 | uint64(name)
	n, ok := t.wide[edge]
	if !ok {
		n = t.append(node{parent: parent, name: name, next: *link})
		*link, t.wide[edge] = n, n
	}
	return n
}

// children are the children of a node, in no particular order.
func (t *tree) children(n uint32) iter.Seq2[uint32, *node] {
	return func(yield func(uint32, *node) bool) {
		for c := t.at(n).first; c != 0; {
			child := t.at(c)
			if !yield(c, child) {
				return
			}
			c = child.next
		}
	}
}

// add adds the stacks of a source, with their sums, to the tree.
func (t *tree) add(s *block.Symbols, sums []int64) {
	t.used = s.UsedIn(t.used, sums)
	t.nameOf = block.Zeros(t.nameOf, len(s.Frames)) // numbers in t.names plus 1; 0: not known yet
	t.nodeOf = block.Zeros(t.nodeOf, len(s.Parents))
	used, names, at := t.used, t.nameOf, t.nodeOf
	root := t.at(0)
	root.self = block.AddValues(root.self, sums[0])
	for i := 1; i < len(s.Parents); i++ {
		if !used[i] {
			continue
		}
		frame := s.NodeFrame[i]
		if names[frame] == 0 {
			names[frame] = t.name(s.FrameName(frame)) + 1
		}
		at[i] = t.child(at[s.Parents[i]], names[frame]-1)
		n := t.at(at[i])
		n.self = block.AddValues(n.self, sums[i])
	}
}

// flame converts the tree to a flame graph with at most maxNodes nodes, 0 for no limit; nodes named "other" are not
// counted. Children are sorted by name, so that the result does not depend on the order of the blocks.
func (t *tree) flame(maxNodes int) *profiles.FlameGraph {
	t.addUp()
	kept := t.keep(maxNodes)
	g := &profiles.FlameGraph{Total: t.at(0).total}
	names := map[string]int64{}
	nameOf := func(text string) int64 {
		n, ok := names[text]
		if !ok {
			n = int64(len(g.Names))
			names[text] = n
			g.Names = append(g.Names, text)
		}
		return n
	}
	type placed struct {
		node        uint32
		other       bool  // the sum of the siblings that were not kept
		x           int64 // left edge, in units of total
		total, self int64
	}
	level := []placed{{total: t.at(0).total, self: t.at(0).self}}
	for len(level) > 0 {
		var below []placed
		values := make([]int64, 0, 4*len(level))
		var end int64
		for _, p := range level {
			text := otherName
			if !p.other {
				text = t.names[t.at(p.node).name]
			}
			values = append(values, p.x-end, p.total, p.self, nameOf(text))
			end = p.x + p.total
			g.MaxSelf = max(g.MaxSelf, p.self)
			if p.other {
				continue
			}
			begin, rest := len(below), int64(0)
			for c, n := range t.children(p.node) {
				if !kept.has(c) {
					rest = block.AddValues(rest, n.total)
					continue
				}
				below = append(below, placed{node: c, total: n.total, self: n.self})
			}
			slices.SortFunc(below[begin:], func(a, b placed) int { return t.compareNames(a.node, b.node) })
			x := p.x
			for i := begin; i < len(below); i++ {
				below[i].x, x = x, block.AddValues(x, below[i].total)
			}
			if rest > 0 {
				below = append(below, placed{other: true, x: x, total: rest, self: rest})
			}
		}
		g.Levels = append(g.Levels, values)
		level = below
	}
	return g
}

func (t *tree) compareNames(a, b uint32) int {
	return strings.Compare(t.names[t.at(a).name], t.names[t.at(b).name])
}

func (t *tree) addUp() {
	for i := t.n - 1; i >= 0; i-- { // children have greater numbers
		n := t.at(uint32(i))
		n.total = block.AddValues(n.total, n.self)
		if i > 0 {
			parent := t.at(n.parent)
			parent.total = block.AddValues(parent.total, n.total)
		}
	}
}

// nodeSet is a set of nodes. nil contains all nodes.
type nodeSet map[uint32]struct{}

func (s nodeSet) has(n uint32) bool {
	_, ok := s[n]
	return ok || s == nil
}

// keep selects the maxNodes nodes with the greatest totals. Of nodes with equal totals it selects the first in the
// order of a depth-first search that visits children by name. A parent is visited before its children and is not
// less than they are, so the parent of a selected node is always selected.
func (t *tree) keep(maxNodes int) nodeSet {
	if maxNodes == 0 || t.n <= maxNodes {
		return nil
	}
	least, quota := t.least(maxNodes)
	kept, stack := make(nodeSet, maxNodes), []uint32{0}
	for len(stack) > 0 && len(kept) < maxNodes {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if t.at(n).total == least {
			if quota == 0 {
				continue // its descendants have at most the same total, and are not selected either
			}
			quota--
		}
		kept[n] = struct{}{}
		begin := len(stack)
		for c, child := range t.children(n) {
			if child.total > least || child.total == least && quota > 0 {
				stack = append(stack, c)
			}
		}
		slices.SortFunc(stack[begin:], func(a, b uint32) int { return t.compareNames(b, a) })
	}
	return kept
}

// least returns the smallest total of the maxNodes greatest nodes, and the number of those nodes that have this total.
func (t *tree) least(maxNodes int) (total int64, equal int) {
	next := &nextNodes{t: t, nodes: []uint32{0}}
	for range maxNodes {
		n := heap.Pop(next).(uint32)
		if at := t.at(n).total; at != total || equal == 0 {
			total, equal = at, 0
		}
		equal++
		for c := range t.children(n) {
			heap.Push(next, c)
		}
	}
	return total, equal
}

// nextNodes is a heap of nodes, the node with the greatest total first. It holds the nodes whose parents were popped.
type nextNodes struct {
	t     *tree
	nodes []uint32
}

func (h *nextNodes) Len() int { return len(h.nodes) }

func (h *nextNodes) Swap(i, j int) { h.nodes[i], h.nodes[j] = h.nodes[j], h.nodes[i] }

func (h *nextNodes) Push(n any) { h.nodes = append(h.nodes, n.(uint32)) }

func (h *nextNodes) Pop() any {
	last := len(h.nodes) - 1
	n := h.nodes[last]
	h.nodes = h.nodes[:last]
	return n
}

func (h *nextNodes) Less(i, j int) bool {
	return h.t.at(h.nodes[i]).total > h.t.at(h.nodes[j]).total
}
