package block

import (
	"slices"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
)

// meta is a block of which the ULID has one letter, with the given parents: a to k are blocks of heads, l to p and z were compacted
// from these.
func meta(id byte, parents string) *Meta {
	m := &Meta{ULID: [16]byte{id}, MinNS: 0, MaxNS: 10}
	switch {
	case strings.ContainsAny(parents, "lmnopz"):
		m.Level = 2
	case parents != "":
		m.Level = 1
	}
	for i := range len(parents) {
		m.Parents = append(m.Parents, [16]byte{parents[i]})
	}
	return m
}

func TestLineageOf(t *testing.T) {
	for name, c := range map[string]struct {
		blocks   []*Meta
		replaced string // of the blocks listed
		groups   string
	}{
		"blocks of heads":                    {[]*Meta{meta('a', ""), meta('b', "")}, "", ""},
		"parents":                            {[]*Meta{meta('a', ""), meta('b', ""), meta('c', ""), meta('m', "ab")}, "ab", ""},
		"the smaller of two with one list":   {[]*Meta{meta('n', "ab"), meta('m', "ba")}, "n", ""},
		"a subset":                           {[]*Meta{meta('m', "ab"), meta('n', "abc")}, "m", ""},
		"a subset with its own parents":      {[]*Meta{meta('a', ""), meta('b', ""), meta('m', "ab"), meta('n', "abc")}, "abm", ""},
		"two lists with a common parent":     {[]*Meta{meta('m', "abc"), meta('n', "cde")}, "", "mn"},
		"a chain of common parents":          {[]*Meta{meta('m', "ab"), meta('n', "bc"), meta('o', "cd"), meta('p', "ef"), meta('q', "f")}, "q", "mno"},
		"their union":                        {[]*Meta{meta('m', "abc"), meta('n', "cde"), meta('u', "mabcnde")}, "mn", ""},
		"a chain that is joined at its ends": {[]*Meta{meta('m', "ab"), meta('n', "cd"), meta('o', "bc")}, "", "mno"},
	} {
		l := LineageOf(c.blocks)
		replaced, groups := "", ""
		for _, m := range c.blocks {
			if l.Replaced[m.ULID] {
				replaced += string(rune(m.ULID[0]))
			}
		}
		for _, g := range l.Overlapping {
			for _, m := range g {
				groups += string(rune(m.ULID[0]))
			}
		}
		sorted := []byte(groups)
		slices.Sort(sorted)
		if replaced != c.replaced || string(sorted) != c.groups {
			t.Errorf("%s: %q are replaced, want %q; %q overlap, want %q", name, replaced, c.replaced, sorted, c.groups)
		}
	}
}

// The lineage and Meta.Replaces must agree: readers use the one, uploads and retention the other.
func TestMeta_ReplacesAgreesWithTheLineage(t *testing.T) {
	blocks := []*Meta{meta('a', ""), meta('b', ""), meta('l', "b"), meta('m', "ab"), meta('n', "ab"), meta('o', "abc"), meta('p', "cd"), meta('q', "pcdo"), meta('r', "xy")}
	l := LineageOf(blocks)
	for _, m := range blocks {
		replaced := slices.ContainsFunc(blocks, func(o *Meta) bool { return o.Replaces(m) })
		if replaced != l.Replaced[m.ULID] {
			t.Errorf("%c: %v, and %v in the lineage", m.ULID[0], replaced, l.Replaced[m.ULID])
		}
		for _, o := range blocks {
			if m.Replaces(o) && o.Replaces(m) {
				t.Errorf("%c and %c replace each other", m.ULID[0], o.ULID[0])
			}
		}
	}
	outside := meta('z', "a")
	outside.MaxNS = 11
	if meta('m', "zab").Replaces(outside) {
		t.Error("a block replaces one that ends later")
	}
	if l := LineageOf([]*Meta{outside, meta('m', "zab")}); l.Replaced[outside.ULID] {
		t.Error("a block that ends later than the one that names it as a parent is replaced")
	}
}

// The compactor deletes replaced blocks: of blocks that name each other as parents one must stay.
func TestLineageOf_CyclesOfParentsReplaceNotEveryBlock(t *testing.T) {
	for name, blocks := range map[string][]*Meta{
		"itself":       {meta('a', "a")},
		"two":          {meta('a', "b"), meta('b', "a")},
		"three":        {meta('a', "b"), meta('b', "c"), meta('c', "a")},
		"three levels": {meta('l', "m"), meta('m', "n"), meta('n', "l")},
		"a duplicate":  {meta('a', "bcd"), meta('b', "cd"), meta('c', "a")},
	} {
		l, left := LineageOf(blocks), 0
		for _, m := range blocks {
			if !l.Replaced[m.ULID] {
				left++
			}
			if slices.ContainsFunc(blocks, func(o *Meta) bool { return o.Replaces(m) }) != l.Replaced[m.ULID] {
				t.Errorf("%s: the lineage and Replaces differ for %c", name, m.ULID[0])
			}
		}
		if left == 0 {
			t.Errorf("%s: every block is replaced", name)
		}
	}
}

func TestIsWhole_EveryOtherEndIsNot(t *testing.T) {
	end, err := appendSection(nil, sectionEnd, plain, nil)
	if err != nil || !IsWhole(end) || len(end) != TailBytes {
		t.Fatal(err, len(end))
	}
	if xxhash.Sum64(nil) == 0 {
		t.Fatal("a file of zeros would be whole")
	}
	for i := range end {
		other := slices.Clone(end)
		other[i] ^= 1
		if IsWhole(other) || IsWhole(end[:i]) {
			t.Errorf("changed at %d, or cut there", i)
		}
	}
}
