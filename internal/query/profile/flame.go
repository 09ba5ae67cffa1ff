package profile

import (
	"cmp"
	"slices"
	"strings"

	"github.com/ferula-io/ferula/internal/series/profiles"
	"github.com/ferula-io/ferula/internal/store/profile/block"
)

// tree is a tree of stacks merged by function name. Node 0 is the root; a parent has a
// smaller number than its children.
type tree struct {
	names  []string
	byName map[string]uint32
	nodes  []node
	byEdge map[uint64]uint32 // parent<<32 | name
}

type node struct {
	parent, name uint32 // indexes in nodes and names
	self, total  int64
}

const (
	rootName  = "total"
	otherName = "other"
)

func newTree() *tree {
	return &tree{
		names: []string{rootName}, byName: map[string]uint32{rootName: 0}, nodes: []node{{}}, byEdge: map[uint64]uint32{},
	}
}

// Estimated memory of a node and of a name, with their tables.
const (
	nodeBytes = 24 + 32
	nameBytes = 16 + 48
)

// bytes estimates the memory of the tree, without the text of the names.
func (t *tree) bytes() int64 { return nodeBytes*int64(len(t.nodes)) + nameBytes*int64(len(t.names)) }

func (t *tree) name(text string) uint32 {
	n, ok := t.byName[text]
	if !ok {
		n = uint32(len(t.names))
		t.byName[text] = n
		t.names = append(t.names, text)
	}
	return n
}

// add adds the stacks of a source, with their sums, to the tree.
func (t *tree) add(s *block.Symbols, sums []int64) {
	used := s.Used(sums)
	names := make([]uint32, len(s.Frames)) // numbers in t.names plus 1; 0: not known yet
	at := make([]uint32, len(s.Parents))
	t.nodes[0].self = addValues(t.nodes[0].self, sums[0])
	for i := 1; i < len(s.Parents); i++ {
		if !used[i] {
			continue
		}
		frame := s.NodeFrame[i]
		if names[frame] == 0 {
			names[frame] = t.name(s.FrameName(frame)) + 1
		}
		parent := at[s.Parents[i]]
		edge := uint64(parent)<<32 | uint64(names[frame]-1)
		n, ok := t.byEdge[edge]
		if !ok {
			n = uint32(len(t.nodes))
			t.byEdge[edge] = n
			t.nodes = append(t.nodes, node{parent: parent, name: names[frame] - 1})
		}
		t.nodes[n].self = addValues(t.nodes[n].self, sums[i])
		at[i] = n
	}
}

// flame converts the tree: children are sorted by name, so that the result does not depend
// on the order of the blocks.
func (t *tree) flame(maxNodes int) *profiles.FlameGraph {
	children := t.arrange()
	kept := t.keep(children, maxNodes)
	g := &profiles.FlameGraph{Total: t.nodes[0].total}
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
		other       bool
		x           int64
		total, self int64
	}
	level := []placed{{total: t.nodes[0].total, self: t.nodes[0].self}}
	for len(level) > 0 {
		var below []placed
		values := make([]int64, 0, 4*len(level))
		var end int64
		for _, p := range level {
			text := otherName
			if !p.other {
				text = t.names[t.nodes[p.node].name]
			}
			values = append(values, p.x-end, p.total, p.self, nameOf(text))
			end = p.x + p.total
			g.MaxSelf = max(g.MaxSelf, p.self)
			if p.other {
				continue
			}
			x, rest := p.x, int64(0)
			for _, c := range children.of(p.node) {
				n := &t.nodes[c]
				if !kept[c] {
					rest = addValues(rest, n.total)
					continue
				}
				below = append(below, placed{node: c, x: x, total: n.total, self: n.self})
				x = addValues(x, n.total)
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

// family lists the children of nodes: list[from[n]:from[n+1]] are the children of n.
type family struct {
	from []uint32
	list []uint32
}

func (f *family) of(n uint32) []uint32 { return f.list[f.from[n]:f.from[n+1]] }

// arrange computes totals and sorts children by name.
func (t *tree) arrange() *family {
	f := &family{from: make([]uint32, len(t.nodes)+1), list: make([]uint32, len(t.nodes)-1)}
	for i := len(t.nodes) - 1; i >= 0; i-- {
		n := &t.nodes[i]
		n.total = addValues(n.total, n.self)
		if i > 0 {
			t.nodes[n.parent].total = addValues(t.nodes[n.parent].total, n.total)
			f.from[n.parent+1]++
		}
	}
	for i := range len(t.nodes) {
		f.from[i+1] += f.from[i]
	}
	next := slices.Clone(f.from)
	for i := 1; i < len(t.nodes); i++ {
		parent := t.nodes[i].parent
		f.list[next[parent]] = uint32(i)
		next[parent]++
	}
	for i := range t.nodes {
		slices.SortFunc(f.of(uint32(i)), func(a, b uint32) int { return strings.Compare(t.names[t.nodes[a].name], t.names[t.nodes[b].name]) })
	}
	return f
}

// keep selects the maxNodes greatest nodes. Of equal nodes it selects those that come first, so that the parent of a
// selected node is always selected.
func (t *tree) keep(children *family, maxNodes int) []bool {
	kept := make([]bool, len(t.nodes))
	if maxNodes == 0 || len(t.nodes) <= maxNodes {
		for i := range kept {
			kept[i] = true
		}
		return kept
	}
	order := make([]uint32, 0, len(t.nodes))
	stack := []uint32{0}
	for len(stack) > 0 {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		order = append(order, n)
		for _, c := range slices.Backward(children.of(n)) {
			stack = append(stack, c)
		}
	}
	slices.SortStableFunc(order, func(a, b uint32) int { return cmp.Compare(t.nodes[b].total, t.nodes[a].total) })
	for _, n := range order[:maxNodes] {
		kept[n] = true
	}
	return kept
}
