package api

import (
	"cmp"
	"encoding/binary"
	"fmt"
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

// flameNode is a node of one flame graph, or of two that are merged.
type flameNode struct {
	name     string
	total    [2]int64
	self     [2]int64
	children []*flameNode
	byName   map[string]*flameNode // set when there are many children
}

// fewChildren is the maximum number of children that are searched without a map.
const fewChildren = 16

func (f *flameNode) child(name string) *flameNode {
	if len(f.children) <= fewChildren {
		for _, c := range f.children {
			if c.name == name {
				return c
			}
		}
	} else if c := f.byName[name]; c != nil {
		return c
	}
	c := &flameNode{name: name}
	f.children = append(f.children, c)
	switch {
	case f.byName != nil:
		f.byName[name] = c
	case len(f.children) > fewChildren:
		f.byName = make(map[string]*flameNode, 4*fewChildren)
		for _, c := range f.children {
			f.byName[c.name] = c
		}
	}
	return c
}

// overlay adds a flame graph to a tree, as its left or right side. The nodes of a level
// are in the order of their parents, so one pass over both levels finds each parent.
func overlay(root *flameNode, flame *profiles.FlameGraph, side int) {
	type span struct {
		from, to int64
		frame    *flameNode
	}
	parents := []span{{from: 0, to: 1<<63 - 1, frame: root}}
	for _, level := range flame.Levels {
		var here []span
		var x int64
		at := 0
		for i := 0; i+flameWidth <= len(level); i += flameWidth {
			x += level[i]
			total, self, name := level[i+1], level[i+2], level[i+3]
			for at < len(parents)-1 && x >= parents[at].to {
				at++
			}
			if len(parents) == 0 || name < 0 || name >= int64(len(flame.Names)) {
				return // not a flame graph of a query
			}
			f := parents[at].frame.child(flame.Names[name])
			f.total[side] += total
			f.self[side] += self
			here = append(here, span{from: x, to: x + total, frame: f})
			x += total
		}
		parents = here
	}
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
	var top flameNode
	overlay(&top, flame, 0)
	if len(top.children) == 0 || flame.Total == 0 {
		return nil
	}
	root := top.children[0]
	root.name = ""
	var b []byte
	for stack := []*flameNode{root}; len(stack) > 0; {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		b = append(binary.AppendUvarint(b, uint64(len(n.name))), n.name...)
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(n.self[0])), uint64(len(n.children)))
		for _, c := range slices.Backward(n.children) {
			stack = append(stack, c)
		}
	}
	return b
}

// Diff merges two flame graphs, either of which may be nil. It keeps the nodesMax greatest
// nodes; 0: all.
func Diff(left, right *profiles.FlameGraph, nodesMax int) *profilepb.DiffEncoder {
	var top flameNode
	diff := &profilepb.DiffEncoder{}
	for side, flame := range []*profiles.FlameGraph{left, right} {
		if flame != nil {
			overlay(&top, flame, side)
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
	type edge struct{ from, to string }
	type weight struct{ flat, cum int64 }
	nodes, edges := map[string]*weight{}, map[edge]int64{}
	var top flameNode
	overlay(&top, flame, 0)
	path := map[string]int{}
	var walk func(f *flameNode, parent string)
	walk = func(f *flameNode, parent string) {
		w := nodes[f.name]
		if w == nil {
			w = &weight{}
			nodes[f.name] = w
		}
		w.flat += f.self[0]
		if path[f.name] == 0 { // count a recursion once
			w.cum += f.total[0]
		}
		if parent != "" {
			edges[edge{parent, f.name}] += f.total[0]
		}
		path[f.name]++
		for _, c := range f.children {
			walk(c, f.name)
		}
		path[f.name]--
	}
	for _, root := range top.children { // "total" is not a function
		for _, c := range root.children {
			walk(c, "")
		}
	}
	least := int64(dotShare * float64(flame.Total))
	names := make([]string, 0, len(nodes))
	for name, w := range nodes {
		if w.cum >= least {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(nodes[b].cum, nodes[a].cum), strings.Compare(a, b))
	})
	number := make(map[string]int, len(names))
	out := []byte("digraph " + strconv.Quote(t.String()) + " {\nnode [shape=box]\n")
	for i, name := range names {
		number[name] = i
		out = fmt.Appendf(out, "n%d [label=%s]\n", i, strconv.Quote(fmt.Sprintf("%s\n%d of %d %s", name, nodes[name].flat,
			nodes[name].cum, t.SampleUnit)))
	}
	arrows := make([]edge, 0, len(edges))
	for e := range edges {
		_, from := number[e.from]
		_, to := number[e.to]
		if from && to && edges[e] >= least {
			arrows = append(arrows, e)
		}
	}
	slices.SortFunc(arrows, func(a, b edge) int {
		return cmp.Or(cmp.Compare(edges[b], edges[a]), strings.Compare(a.from, b.from), strings.Compare(a.to, b.to))
	})
	for _, e := range arrows {
		out = fmt.Appendf(out, "n%d -> n%d [label=\"%d\"]\n", number[e.from], number[e.to], edges[e])
	}
	return string(append(out, "}\n"...))
}
