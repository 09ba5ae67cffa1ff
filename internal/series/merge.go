package series

import (
	"slices"

	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// Merge merges sets into one. A series that several sets have is returned once with the
// chunks of all of them, sorted by start. Chunks with identical bytes are returned once;
// chunks that only overlap are returned as they are.
func Merge(sets ...Set) Set {
	switch len(sets) {
	case 0:
		return Failed(nil)
	case 1:
		return sets[0]
	}
	return newWinnerTree(sets)
}

// Tidy sorts chunks and removes duplicates, in place.
func Tidy(chunks []Chunk) []Chunk {
	for i := 1; i < len(chunks); i++ {
		if CompareChunks(chunks[i-1], chunks[i]) >= 0 {
			slices.SortStableFunc(chunks, CompareChunks)
			return slices.CompactFunc(chunks, func(a, b Chunk) bool { return CompareChunks(a, b) == 0 })
		}
	}
	return chunks
}

// winnerTree merges n sets with about log2(n) comparisons per series.
//
// A leaf is a set. An inner node (a match) stores which of its two children has the lesser labels, and whether both
// children have the same series (a tie). The root has the least series. The sets that also have this series are
// found by following the ties, without comparing labels again. The next call of Next advances all these sets, and
// compares again each node above them, once even if it is above several of them:
//
//	labels of sets 0 to 3    a b a c
//	matches                  0 wins over 1, 2 wins over 3, 0 and 2 tie at the root
//	current series           a, of the sets 0 and 2
//	Next                     advances 0 and 2, and compares three nodes: the root only once
//
// Prometheus' loser tree stores less, but compares the path from one set to the root at a time.
type winnerTree struct {
	sets    []Set
	leaves  int      // a power of two
	labels  [][]byte // by leaf, of the current series; nil: end of the set
	more    []bool   // by leaf: the set has a current series
	winner  []int32  // by node; node 1 is the root, 2i and 2i+1 are the children of i
	tie     []bool   // by node: both children have the same series
	dirty   []int    // nodes to compare again
	least   []int32  // sets that have the current series of the merge, ascending
	started bool
	chunks  []Chunk
	err     error
}

func newWinnerTree(sets []Set) *winnerTree {
	leaves := 1
	for leaves < len(sets) {
		leaves *= 2
	}
	return &winnerTree{
		sets: sets, leaves: leaves,
		labels: make([][]byte, leaves), more: make([]bool, leaves),
		winner: make([]int32, leaves), tie: make([]bool, leaves),
		least: make([]int32, 0, len(sets)),
	}
}

func (w *winnerTree) Next() bool {
	if w.err != nil || w.started && len(w.least) == 0 { // failed or ended before
		return false
	}
	if w.started {
		for _, i := range w.least {
			if !w.advance(int(i)) {
				return false
			}
		}
		w.replay()
	} else {
		w.started = true
		for i := range w.sets {
			if !w.advance(i) {
				return false
			}
		}
		for match := w.leaves - 1; match >= 1; match-- {
			w.play(match)
		}
	}
	w.least = w.least[:0]
	first := w.winnerOf(1)
	if !w.more[first] {
		return false
	}
	w.gather(1)
	w.join()
	return true
}

// advance reads the next series of a set. It returns false after a failure.
func (w *winnerTree) advance(i int) bool {
	if w.more[i] = w.sets[i].Next(); w.more[i] {
		w.labels[i] = w.sets[i].Labels()
		return true
	}
	w.labels[i] = nil
	w.err = w.sets[i].Err()
	return w.err == nil
}

// winnerOf returns the set that has the least series below a node. For a leaf it returns the set of the leaf.
func (w *winnerTree) winnerOf(node int) int32 {
	if node >= w.leaves {
		return int32(node - w.leaves)
	}
	return w.winner[node]
}

// play compares the children of a match, and sets its winner and tie.
func (w *winnerTree) play(match int) {
	a, b := w.winnerOf(2*match), w.winnerOf(2*match+1)
	w.tie[match] = false
	switch {
	case !w.more[b]:
		w.winner[match] = a
	case !w.more[a]:
		w.winner[match] = b
	default:
		switch c := labelenc.Compare(w.labels[a], w.labels[b]); {
		case c < 0:
			w.winner[match] = a
		case c > 0:
			w.winner[match] = b
		default:
			w.winner[match], w.tie[match] = a, true
		}
	}
}

// replay compares the nodes above the sets that were advanced, level by level.
func (w *winnerTree) replay() {
	if w.leaves == 2 { // the usual case: the root is the only match
		w.play(1)
		return
	}
	w.dirty = w.dirty[:0]
	for _, i := range w.least {
		w.dirty = append(w.dirty, w.leaves+int(i))
	}
	for w.dirty[0] > 1 {
		n := 0
		for _, node := range w.dirty {
			match := node / 2
			if n > 0 && w.dirty[n-1] == match {
				continue
			}
			w.dirty[n] = match
			n++
			w.play(match)
		}
		w.dirty = w.dirty[:n]
	}
}

// gather appends to least the sets below a node that have the least series of the node.
func (w *winnerTree) gather(node int) {
	for node < w.leaves {
		if w.tie[node] {
			w.gather(2 * node)
			node = 2*node + 1
			continue
		}
		if w.winnerOf(2*node) == w.winner[node] {
			node = 2 * node
		} else {
			node = 2*node + 1
		}
	}
	w.least = append(w.least, int32(node-w.leaves))
}

// join sets w.chunks to the chunks of the current series of all sets in w.least.
func (w *winnerTree) join() {
	if len(w.least) == 1 {
		w.chunks = append(w.chunks[:0], w.sets[w.least[0]].Chunks()...)
		return
	}
	w.chunks = w.chunks[:0]
	for _, i := range w.least {
		w.chunks = append(w.chunks, w.sets[i].Chunks()...)
	}
	w.chunks = Tidy(w.chunks)
}

func (w *winnerTree) Labels() []byte  { return w.labels[w.least[0]] }
func (w *winnerTree) Chunks() []Chunk { return w.chunks }
func (w *winnerTree) Err() error      { return w.err }

func (w *winnerTree) Warnings() annotations.Annotations {
	var all annotations.Annotations
	for _, set := range w.sets {
		all.Merge(set.Warnings())
	}
	return all
}
