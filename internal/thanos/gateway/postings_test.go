package gateway

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
	"testing"

	"github.com/ferula-io/ferula/internal/blocks/pages"
)

// postingsOf returns a file with a list of postings at byte 3, made from arbitrary bytes,
// and the references in it.
func postingsOf(text []byte) (file []byte, all []uint32) {
	at := uint32(0)
	for ; len(text) >= 2; text = text[2:] {
		at += 1 + uint32(binary.BigEndian.Uint16(text))
		all = append(all, at)
	}
	file = append(file, "xyz"...)
	file = binary.BigEndian.AppendUint32(file, 4+4*uint32(len(all)))
	file = binary.BigEndian.AppendUint32(file, uint32(len(all)))
	for _, ref := range all {
		file = binary.BigEndian.AppendUint32(file, ref)
	}
	return binary.BigEndian.AppendUint32(file, crc32.Checksum(file[7:], castagnoli)), all
}

func TestRefs_IntersectionAndDifference(t *testing.T) {
	cache, err := pages.Open(t.TempDir(), pages.Options{BytesMax: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	// Lists of multiples, some of which take several pages.
	multiples := func(of uint32) (refs, map[uint32]bool) {
		text := []byte{}
		set := map[uint32]bool{}
		for ref := of; ref < 100_000; ref += of {
			text = binary.BigEndian.AppendUint16(text, uint16(of-1))
			set[ref] = true
		}
		file, _ := postingsOf(text)
		l, err := openRefs(t.Context(), cache.Object(objects{"index": file}, "index", int64(len(file))), list{3, uint64(len(file))})
		if err != nil {
			t.Fatal(err)
		}
		return l, set
	}
	for _, c := range []struct{ wanted, gone []uint32 }{
		{[]uint32{2, 3}, nil}, {[]uint32{7, 1}, []uint32{2}}, {[]uint32{30, 4, 9}, []uint32{5, 7}}, {[]uint32{1}, []uint32{2, 3}}, {[]uint32{50_001, 2}, nil}, {[]uint32{11}, []uint32{11}},
	} {
		var lists []refs
		var gone []*peeked
		var sets, goneSets []map[uint32]bool
		for i, of := range c.wanted {
			l, set := multiples(of)
			if i > 0 {
				l = &peeked{refs: l}
			}
			lists, sets = append(lists, l), append(sets, set)
		}
		for _, of := range c.gone {
			l, set := multiples(of)
			gone, goneSets = append(gone, &peeked{refs: l}), append(goneSets, set)
		}
		var result refs = without{both{lists}, gone}
		var got, want []uint32
		for ref, ok := result.next(); ok; ref, ok = result.next() {
			if got = append(got, ref); len(got)%100 == 0 {
				result.release() // as between batches
			}
		}
		result.release()
		for ref := range uint32(100_000) {
			in := func(set map[uint32]bool) bool { return set[ref] }
			if !slices.ContainsFunc(sets, func(s map[uint32]bool) bool { return !in(s) }) && !slices.ContainsFunc(goneSets, in) {
				want = append(want, ref)
			}
		}
		if result.err() != nil || !slices.Equal(got, want) {
			t.Errorf("%+v: %d references, want %d, %v", c, len(got), len(want), result.err())
		}
	}
}
