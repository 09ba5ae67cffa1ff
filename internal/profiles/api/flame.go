package api

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
)

// Numbers per node in a level of a flame graph and of a diff.
const (
	flameWidth = 4
	diffWidth  = 7
)

// flameNode is a node of two flame graphs that are merged.
type flameNode struct {
	name     string
	total    [2]int64
	self     [2]int64
	children []*flameNode
}

// edge is the place of a node: its parent and its name.
type edge struct {
	parent *flameNode
	name   string
}

// walk visits the nodes of a flame graph depth first. name is an index in its Names. The root has the depth 0.
func walk(flame *profiles.FlameGraph, visit func(depth, name int, total, self int64)) {
	at := make([]int, len(flame.Levels))     // of each level: offset of the next node in its values
	ends := make([]int64, len(flame.Levels)) // of each level: end of the last node that was visited
	var children func(depth int, parentEnd int64)
	children = func(depth int, parentEnd int64) {
		for depth < len(at) && at[depth]+flameWidth <= len(flame.Levels[depth]) {
			node := flame.Levels[depth][at[depth]:]
			start, name := ends[depth]+node[0], node[3]
			if start >= parentEnd || name < 0 || name >= int64(len(flame.Names)) { // an invalid name ends the level
				return
			}
			at[depth], ends[depth] = at[depth]+flameWidth, start+node[1]
			visit(depth, int(name), node[1], node[2])
			children(depth+1, ends[depth])
		}
	}
	children(0, math.MaxInt64)
}

// overlay adds a flame graph to a tree, as its left or right side.
func overlay(root *flameNode, nodes map[edge]*flameNode, flame *profiles.FlameGraph, side int) {
	path := []*flameNode{root}
	walk(flame, func(depth, name int, total, self int64) {
		at := edge{path[depth], flame.Names[name]}
		f := nodes[at]
		if f == nil {
			f = &flameNode{name: at.name}
			nodes[at] = f
			at.parent.children = append(at.parent.children, f)
		}
		f.total[side] += total
		f.self[side] += self
		path = append(path[:depth+1], f)
	})
}

// diffNodesMax is the limit of nodes of each side of a diff before both are merged and cut. It
// is high, so that a function near the limit of one side does not look new.
const diffNodesMax = 1 << 18

// otherName is the name of nodes that replace cut nodes.
const otherName = "other"

// cut keeps at most nodesMax nodes: those with the greatest sums of both sides' totals. It merges
// the other children of each node into one node.
func (f *flameNode) cut(nodesMax int) {
	var totals []int64
	for stack := []*flameNode{f}; len(stack) > 0; {
		n := stack[len(stack)-1]
		stack = append(stack[:len(stack)-1], n.children...)
		totals = append(totals, n.total[0]+n.total[1])
	}
	if nodesMax <= 0 || len(totals) <= nodesMax {
		return
	}
	slices.SortFunc(totals, func(a, b int64) int { return cmp.Compare(b, a) })
	f.cutBelow(totals[nodesMax]) // nodes with an equal total are cut too, so that at most nodesMax remain
}

// cutBelow merges, for each node, the children whose totals are at most the given one.
func (f *flameNode) cutBelow(most int64) {
	for stack := []*flameNode{f}; len(stack) > 0; {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		kept, other := n.children[:0], &flameNode{name: otherName}
		for _, c := range n.children {
			if c.total[0]+c.total[1] > most {
				kept = append(kept, c)
				continue
			}
			for side := range other.total {
				other.total[side] += c.total[side]
				other.self[side] += c.total[side]
			}
		}
		stack = append(stack, kept...)
		if other.total[0]+other.total[1] > 0 {
			kept = append(kept, other)
		}
		n.children = kept
	}
}

// Tree encodes a flame graph as PROFILE_FORMAT_TREE: the nodes depth first, each with the
// length of its name, the name, its self value and the number of its children. The first
// node has no name and is the parent of all stacks.
func Tree(flame *profiles.FlameGraph) []byte {
	type node struct {
		name           string
		self, children int64
	}
	var nodes []node
	var path []int // indexes in nodes
	walk(flame, func(depth, name int, _, self int64) {
		n := node{self: self}
		if depth > 0 {
			n.name = flame.Names[name]
			nodes[path[depth-1]].children++
		}
		path, nodes = append(path[:depth], len(nodes)), append(nodes, n)
	})
	if flame.Total == 0 {
		return nil
	}
	var b []byte
	for _, n := range nodes {
		b = append(binary.AppendUvarint(b, uint64(len(n.name))), n.name...)
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(n.self)), uint64(n.children))
	}
	return b
}

// Diff merges two flame graphs, either of which may be nil. It keeps the nodesMax greatest
// nodes; 0: all.
func Diff(left, right *profiles.FlameGraph, nodesMax int) *profilepb.DiffEncoder {
	var top flameNode
	nodes := map[edge]*flameNode{}
	diff := &profilepb.DiffEncoder{}
	for side, flame := range []*profiles.FlameGraph{left, right} {
		if flame != nil {
			overlay(&top, nodes, flame, side)
		}
	}
	top.cut(nodesMax)
	if left != nil {
		diff.LeftTicks = left.Total
	}
	if right != nil {
		diff.RightTicks = right.Total
	}
	diff.Total = diff.LeftTicks + diff.RightTicks
	index := map[string]int64{}
	type placed struct {
		*flameNode
		x [2]int64
	}
	level := make([]placed, 0, len(top.children))
	for _, c := range top.children {
		level = append(level, placed{flameNode: c})
	}
	for len(level) > 0 {
		var below []placed
		var end [2]int64
		values := make([]int64, 0, diffWidth*len(level))
		for _, p := range level {
			name, ok := index[p.name]
			if !ok {
				name = int64(len(diff.Names))
				index[p.name] = name
				diff.Names = append(diff.Names, p.name)
			}
			values = append(values, p.x[0]-end[0], p.total[0], p.self[0], p.x[1]-end[1], p.total[1], p.self[1], name)
			diff.MaxSelf = max(diff.MaxSelf, p.self[0], p.self[1])
			slices.SortFunc(p.children, func(a, b *flameNode) int { return strings.Compare(a.name, b.name) })
			x := p.x
			for side := range end {
				end[side] = p.x[side] + p.total[side]
			}
			for _, c := range p.children {
				below = append(below, placed{c, x})
				x[0], x[1] = x[0]+c.total[0], x[1]+c.total[1]
			}
		}
		diff.Levels = append(diff.Levels, values)
		level = below
	}
	return diff
}

// dotShare is the share of the total below which a dot graph drops nodes and edges, as
// pprof does.
const dotShare = 0.005

// Dot returns the call graph of a flame graph in the DOT language of Graphviz.
func Dot(flame *profiles.FlameGraph, t profiles.Type) string {
	type call struct{ from, to string }
	edges := map[call]int64{}
	var path []string
	walk(flame, func(depth, name int, total, _ int64) {
		if path = append(path[:depth], flame.Names[name]); depth > 1 { // "total" is not a function
			edges[call{path[depth-1], path[depth]}] += total
		}
	})
	least := int64(dotShare * float64(flame.Total))
	number := map[string]int{}
	out := []byte("digraph " + strconv.Quote(t.String()) + " {\nnode [shape=box]\n")
	for i, f := range Functions(flame) {
		if f.Total < least {
			break
		}
		number[f.Name] = i
		out = fmt.Appendf(out, "n%d [label=%s]\n", i, strconv.Quote(fmt.Sprintf("%s\n%d of %d %s", f.Name, f.Self, f.Total,
			t.SampleUnit)))
	}
	arrows := slices.Collect(maps.Keys(edges))
	slices.SortFunc(arrows, func(a, b call) int {
		return cmp.Or(cmp.Compare(edges[b], edges[a]), strings.Compare(a.from, b.from), strings.Compare(a.to, b.to))
	})
	for _, e := range arrows {
		from, ok := number[e.from]
		to, both := number[e.to]
		if ok && both && edges[e] >= least {
			out = fmt.Appendf(out, "n%d -> n%d [label=\"%d\"]\n", from, to, edges[e])
		}
	}
	return string(append(out, "}\n"...))
}
