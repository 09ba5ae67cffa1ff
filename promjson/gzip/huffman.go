package gzip

import "slices"

// huffman computes the lengths of Huffman codes.
type huffman struct {
	order  []uint64 // count<<16 | symbol, ascending
	weight []uint64 // of the leaves, then of the inner nodes
	parent []uint16
	depth  []uint8
}

// lengths computes code lengths of at most 15 bits.
func (h *huffman) lengths(lengths []uint8, counts []uint32) { h.limited(lengths, counts, codeBitsMax) }

// limited computes the code lengths of symbols from their counts; no code is longer than most bits. A symbol with count
// 0 gets length 0. But at least one symbol gets a code, and a single symbol gets a code of one bit.
func (h *huffman) limited(lengths []uint8, counts []uint32, most int) {
	h.order = h.order[:0]
	for i, n := range counts {
		lengths[i] = 0
		if n > 0 {
			h.order = append(h.order, uint64(n)<<16|uint64(i))
		}
	}
	leaves := len(h.order)
	if leaves <= 2 {
		lengths[0] = 1 // also if it does not occur
		for _, o := range h.order {
			lengths[uint16(o)] = 1
		}
		if leaves == 2 && uint16(h.order[0]) != 0 && uint16(h.order[1]) != 0 {
			lengths[0] = 0
		}
		return
	}
	slices.Sort(h.order)
	// The two nodes with the lowest weights are joined until one node remains. Leaves and joined nodes are both in
	// ascending order, so the lowest node is the next one of either list.
	nodes := 2*leaves - 1
	h.weight = slices.Grow(h.weight[:0], nodes)[:nodes]
	h.parent = slices.Grow(h.parent[:0], nodes)[:nodes]
	h.depth = slices.Grow(h.depth[:0], nodes)[:nodes]
	for i, o := range h.order {
		h.weight[i] = o >> 16
	}
	leaf, inner := 0, leaves
	for node := leaves; node < nodes; node++ {
		h.weight[node] = 0
		for range 2 {
			least := leaf
			if leaf == leaves || inner < node && h.weight[inner] < h.weight[leaf] {
				least = inner
				inner++
			} else {
				leaf++
			}
			h.weight[node] += h.weight[least]
			h.parent[least] = uint16(node)
		}
	}
	var count [256]int // of leaves by depth
	h.depth[nodes-1] = 0
	for i := nodes - 2; i >= 0; i-- {
		d := h.depth[h.parent[i]] + 1
		h.depth[i] = d
		if i < leaves {
			count[d]++
		}
	}
	shorten(count[:], most)
	// The least frequent symbols get the longest codes.
	i := 0
	for l := most; l > 0; l-- {
		for range count[l] {
			lengths[uint16(h.order[i])] = uint8(l)
			i++
		}
	}
}

// shorten moves leaves that are deeper than most up to that depth, and moves other leaves down so that the code stays
// valid. count is the number of leaves by depth.
func shorten(count []int, most int) {
	for d := len(count) - 1; d > most; d-- {
		count[most] += count[d]
		count[d] = 0
	}
	used := 0 // code space in units of a leaf at depth most; 1<<most are available
	for d := 1; d <= most; d++ {
		used += count[d] << (most - d)
	}
	for used > 1<<most {
		// The deepest leaf above the limit becomes a node with two leaves: itself and one leaf from the limit.
		d := most - 1
		for count[d] == 0 {
			d--
		}
		count[d]--
		count[d+1] += 2
		count[most]--
		used--
	}
}
