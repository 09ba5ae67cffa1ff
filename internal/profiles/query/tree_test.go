package query

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// randomTree returns a tree of about n nodes with many equal values, and each node's path of names.
func randomTree(r *rand.Rand, n, branches int) (t *tree, paths map[uint32]string) {
	t, paths = newTree(), map[uint32]string{0: ""}
	for range n {
		parent := uint32(r.IntN(t.n))
		name := fmt.Sprintf("f%03d", r.IntN(branches))
		c := t.child(parent, t.name(name))
		path := paths[parent] + "/" + name
		if before, ok := paths[c]; ok && before != path {
			panic(before + " is " + path)
		}
		paths[c] = path
		t.at(c).self += int64(r.IntN(3))
	}
	return t, paths
}

func TestTree_ChildIsTheOneWithTheName(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, branches := range []int{2, nearMax, nearMax + 1, 40, 2000} {
		tree, paths := randomTree(r, 3*pageNodes, branches)
		if len(paths) != tree.n || len(slices.Compact(slices.Sorted(maps.Values(paths)))) != tree.n {
			t.Errorf("%d names: %d nodes have %d paths", branches, tree.n, len(paths))
		}
		seen := 1
		for n := range uint32(tree.n) {
			for c, child := range tree.children(n) {
				seen++
				if child.parent != n || tree.child(n, child.name) != c {
					t.Fatalf("%d names: node %d is not the child of %d with the name %d", branches, c, n, child.name)
				}
			}
		}
		if seen != tree.n {
			t.Errorf("%d names: %d of %d nodes are children", branches, seen, tree.n)
		}
	}
}

func TestTree_KeepsTheGreatestNodesOfEqualOnesTheFirst(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	for round := range 300 {
		tree, paths := randomTree(r, 1+r.IntN(200), 1+r.IntN(20))
		tree.addUp()
		all := slices.SortedFunc(maps.Keys(paths), func(a, b uint32) int {
			return cmp.Or(cmp.Compare(tree.at(b).total, tree.at(a).total), cmp.Compare(paths[a], paths[b]))
		})
		for _, most := range []int{1, 2, tree.n / 2, tree.n - 1, tree.n, 0} {
			if most == 0 || most >= tree.n {
				if kept := tree.keep(most); kept != nil {
					t.Errorf("round %d: not all of %d nodes are kept", round, tree.n)
				}
				continue
			}
			want := map[uint32]struct{}{}
			for _, n := range all[:most] {
				want[n] = struct{}{}
			}
			if kept := tree.keep(most); !maps.Equal(kept, nodeSet(want)) {
				t.Fatalf("round %d: %d of %d nodes: %v, want %v", round, most, tree.n, kept, want)
			}
		}
	}
}

// In a deep tree with equal totals, a comparison of nodes by their paths would take time in proportion to the depth.
func TestTree_EqualNodesThatAreDeepAreSelectedInTime(t *testing.T) {
	const depth, wide, most = 4000, 40_000, 20_000
	tree := newTree()
	at := uint32(0)
	for i := range depth {
		at = tree.child(at, tree.name(fmt.Sprintf("deep%d", i)))
	}
	for i := range wide {
		tree.at(tree.child(at, tree.name(fmt.Sprintf("leaf%05d", i*7919%wide)))).self = 1
	}
	tree.addUp()
	begun := time.Now()
	kept := tree.keep(most)
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
	if len(kept) != most {
		t.Fatalf("%d nodes are kept", len(kept))
	}
	for c := range tree.children(at) {
		if want := tree.names[tree.at(c).name] < fmt.Sprintf("leaf%05d", most-depth-1); kept.has(c) != want {
			t.Fatalf("%s is kept: %v", tree.names[tree.at(c).name], !want)
		}
	}
}
