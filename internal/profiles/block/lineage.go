package block

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// Replaces reports whether the block has all rows of another block o: the block was compacted from
// o, or from every parent of o. Of two blocks with the same parents, the block with the smaller ULID
// replaces the other. So two blocks never replace each other: readers would skip both.
func (m *Meta) Replaces(o *Meta) bool {
	return m.CanReplace(o) && (slices.Contains(m.Parents, o.ULID) && m.Level > o.Level || m.duplicates(o))
}

// CanReplace reports whether the range and the level of the block allow it to have all rows of o.
// The level of a block is above the levels of all its parents.
func (m *Meta) CanReplace(o *Meta) bool {
	return m.ULID != o.ULID && m.Level >= o.Level && m.MinNS <= o.MinNS && m.MaxNS >= o.MaxNS
}

// duplicates reports whether the block has every parent of a compacted block o.
func (m *Meta) duplicates(o *Meta) bool {
	if len(o.Parents) == 0 || !contains(m.Parents, o.Parents) {
		return false
	}
	return !contains(o.Parents, m.Parents) || bytes.Compare(m.ULID[:], o.ULID[:]) < 0
}

func contains(all, some [][16]byte) bool {
	set := make(map[[16]byte]bool, len(all))
	for _, id := range all {
		set[id] = true
	}
	return !slices.ContainsFunc(some, func(id [16]byte) bool { return !set[id] })
}

// Lineage describes which of a tenant's blocks have the same rows.
type Lineage struct {
	// Replaced is the set of blocks whose rows another block has (Meta.Replaces). It also has parents
	// that are not in the list given to LineageOf.
	Replaced map[[16]byte]bool
	// Duplicates maps a block to the compacted blocks that it replaces because it has all of their
	// parents, although it was not compacted from them.
	Duplicates map[[16]byte][][16]byte
	// Overlapping are groups of blocks that have some rows in common, none of which is replaced. A
	// reader of all blocks of a group reads these rows several times.
	Overlapping [][]*Meta
}

// LineageOf compares the parents of blocks of one tenant. The blocks must be complete.
func LineageOf(metas []*Meta) Lineage {
	l := Lineage{Replaced: map[[16]byte]bool{}, Duplicates: map[[16]byte][][16]byte{}}
	// A block that has every parent of another block has its first parent. So only blocks that have this first parent are
	// compared with the other block.
	wanted := map[[16]byte]bool{} // the first parent of each compacted block
	known := make(map[[16]byte]*Meta, len(metas))
	for _, m := range metas {
		known[m.ULID] = m
		if len(m.Parents) > 0 {
			wanted[m.Parents[0]] = true
		}
	}
	owners := map[[16]byte][]*Meta{} // the blocks that have a wanted parent, by parent
	for _, m := range metas {
		for _, parent := range m.Parents {
			if o := known[parent]; o == nil || m.Level > o.Level && m.CanReplace(o) {
				l.Replaced[parent] = true
			}
			if wanted[parent] && !slices.Contains(owners[parent], m) {
				owners[parent] = append(owners[parent], m)
			}
		}
	}
	for _, m := range metas {
		if len(m.Parents) == 0 {
			continue
		}
		for _, other := range owners[m.Parents[0]] {
			if other != m && (other.Level == m.Level || !slices.Contains(other.Parents, m.ULID)) && other.Replaces(m) {
				l.Replaced[m.ULID] = true
				l.Duplicates[other.ULID] = append(l.Duplicates[other.ULID], m.ULID)
			}
		}
	}
	l.Overlapping = overlapping(metas, l.Replaced)
	return l
}

// overlapping groups the blocks that are not replaced and have a parent in common.
func overlapping(metas []*Meta, replaced map[[16]byte]bool) (groups [][]*Meta) {
	group := map[*Meta]*[]*Meta{}
	owner := map[[16]byte]*Meta{}
	for _, m := range metas {
		if replaced[m.ULID] {
			continue
		}
		group[m] = &[]*Meta{m}
		for _, parent := range m.Parents {
			other := owner[parent]
			if other == nil {
				owner[parent] = m
				continue
			}
			if into, from := group[other], group[m]; into != from {
				*into = append(*into, *from...)
				for _, moved := range *from {
					group[moved] = into
				}
			}
		}
	}
	for _, m := range metas {
		if g := group[m]; g != nil && len(*g) > 1 && (*g)[0] == m {
			groups = append(groups, *g)
		}
	}
	return groups
}

// TailBytes is the size of the end of an index that IsWhole checks.
const TailBytes = sectionHeader

// IsWhole reports whether an index is complete. tail are the last TailBytes bytes of the index.
func IsWhole(tail []byte) bool {
	if len(tail) != TailBytes {
		return false
	}
	le := binary.LittleEndian
	return le.Uint32(tail) == sectionEnd && le.Uint32(tail[4:]) == plain && le.Uint64(tail[8:]) == 0 &&
		le.Uint64(tail[16:]) == 0 && le.Uint64(tail[24:]) == xxhash.Sum64(nil)
}

// Head returns the part of the beginning of an index that MetaOf needs.
func Head(index []byte) ([]byte, error) {
	s, err := firstSection(index)
	if err != nil {
		return nil, err
	}
	return index[:len(magic)+sectionHeader+len(s.stored)], nil
}

// Head returns a copy of the part of the beginning of the index that MetaOf needs. The block is on disk.
func (r *Reader) Head() ([]byte, error) {
	head, err := Head(r.index.Bytes())
	return bytes.Clone(head), err
}
