package gateway

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/tsdb/index"

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

// Lists in pages, combined and released between batches, have the references that they should.
func TestRefs_IntersectionAndDifference(t *testing.T) {
	cache, err := pages.Open(t.TempDir(), pages.Options{BytesMax: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	for _, c := range []struct{ wanted, gone []uint32 }{
		{[]uint32{2, 3}, nil}, {[]uint32{7, 1}, []uint32{2}}, {[]uint32{30, 4, 9}, []uint32{5, 7}}, {[]uint32{1}, []uint32{2, 3}}, {[]uint32{50_001, 2}, nil}, {[]uint32{11}, []uint32{11}},
	} {
		var result refs
		multiples := func(of uint32) index.Postings { // some lists take several pages
			text := []byte{}
			for ref := of; ref < 100_000; ref += of {
				text = binary.BigEndian.AppendUint16(text, uint16(of-1))
			}
			file, _ := postingsOf(text)
			l, err := openRefs(t.Context(), cache.Object(objects{"index": file}, "index", int64(len(file))), list{3, uint64(len(file))})
			if err != nil {
				t.Fatal(err)
			}
			result.lists = append(result.lists, l)
			return l
		}
		var wanted []index.Postings
		for _, of := range c.wanted {
			wanted = append(wanted, multiples(of))
		}
		result.Postings = index.Intersect(wanted...)
		for _, of := range c.gone {
			result.Postings = index.Without(result.Postings, multiples(of))
		}
		var got, want []uint32
		for result.Next() {
			if got = append(got, uint32(result.At())); len(got)%100 == 0 {
				result.release() // as between batches
			}
		}
		result.release()
		for ref := uint32(1); ref < 100_000; ref++ {
			divides := func(of uint32) bool { return ref%of == 0 }
			if !slices.ContainsFunc(c.gone, divides) && !slices.ContainsFunc(c.wanted, func(of uint32) bool { return !divides(of) }) {
				want = append(want, ref)
			}
		}
		if result.Err() != nil || !slices.Equal(got, want) {
			t.Errorf("%+v: %d references, want %d, %v", c, len(got), len(want), result.Err())
		}
	}
}

// Without a list that cannot be read it is unknown which series a negative matcher excludes: no series is returned.
func TestFetchEntries_ListOfExcludedSeriesUnread_IsAnError(t *testing.T) {
	cache, err := pages.Open(t.TempDir(), pages.Options{BytesMax: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	file, all := postingsOf(make([]byte, 2*(refsMax+100)))
	object := cache.Object(objects{"index": file}, "index", int64(len(file)))
	wanted, err := openRefs(t.Context(), object, list{3, uint64(len(file))})
	if err != nil {
		t.Fatal(err)
	}
	gone, err := openRefs(t.Context(), object, list{3, uint64(len(file))})
	if err != nil {
		t.Fatal(err)
	}
	gone.object = cache.Object(objects{}, "gone", int64(len(file))) // its pages have left the cache, and the bucket fails
	p := &producer{block: &block{index: object}, postings: refs{index.Without(wanted, gone), []*pageRefs{wanted, gone}}}
	if err := p.fetchEntries(t.Context()); err == nil {
		t.Errorf("%d of %d excluded series were returned", len(p.refs), len(all))
	}
}

// Options.PostingsBytes limits the bytes of the lists, so a union must not take much more memory than its lists.
func TestUnion_HasTheMemoryOfItsReferences(t *testing.T) {
	cache, err := pages.Open(t.TempDir(), pages.Options{BytesMax: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	file, all := postingsOf(make([]byte, 2*300_000))
	from := cache.Object(objects{"index": file}, "index", int64(len(file)))
	whole := list{3, uint64(len(file))}
	l, err := union(t.Context(), from, choice{lists: []list{whole, whole}, bytes: 2 * uint64(len(file))}, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	if got := cap(l.window); l.n != len(all) || got > 4*len(all)+64<<10 {
		t.Errorf("%d bytes for %d references, want %d references", got, l.n, len(all))
	}
}
