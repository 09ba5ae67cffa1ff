package gateway

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/index"

	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// hostile is a block whose bytes are written by hand, with valid checksums.
type hostile struct {
	symbols []string
	entries [][]byte // of series
	values  int      // of the label "v", each with the same list of all series
	lists   []uint64 // if set: offsets of the lists of the values of "v" from the list of all series
	chunks  [][]byte // of segment 1: encoding and data
	meta    map[string]any
}

func withCRC(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// ofLength prepends the length and appends the checksum of a section.
func ofLength(content []byte) []byte {
	return binary.BigEndian.AppendUint32(append(binary.BigEndian.AppendUint32(nil, uint32(len(content))), content...), crc32.Checksum(content, castagnoli))
}

// encodeEntry encodes a series: numbers of symbols, and chunks with the first at ref.
func encodeEntry(symbols []uint64, refs ...uint64) (b []byte) {
	b = binary.AppendUvarint(b, uint64(len(symbols)/2))
	for _, n := range symbols {
		b = binary.AppendUvarint(b, n)
	}
	b = binary.AppendUvarint(b, uint64(len(refs)))
	last := uint64(0)
	for i, ref := range refs {
		if i == 0 {
			b = binary.AppendUvarint(binary.AppendUvarint(binary.AppendVarint(b, 1), 1), ref)
		} else {
			b = binary.AppendVarint(binary.AppendUvarint(binary.AppendUvarint(b, 1), 1), int64(ref-last))
		}
		last = ref
	}
	return b
}

// write writes the block into a bucket's directory, and returns the references of its chunks.
func (h hostile) write(t *testing.T, dir string) (id string) {
	t.Helper()
	b := append(binary.BigEndian.AppendUint32(nil, index.MagicIndex), index.FormatV2)
	var toc index.TOC
	toc.Symbols = uint64(len(b))
	symbols := binary.BigEndian.AppendUint32(nil, uint32(len(h.symbols)))
	for _, s := range h.symbols {
		symbols = append(binary.AppendUvarint(symbols, uint64(len(s))), s...)
	}
	b = append(b, ofLength(symbols)...)
	toc.Series = uint64(len(b))
	var refs []uint32
	for _, e := range h.entries {
		b = append(b, make([]byte, -len(b)&15)...)
		refs = append(refs, uint32(len(b)/seriesAlign))
		b = append(binary.AppendUvarint(b, uint64(len(e))), withCRC(e)...)
	}
	toc.LabelIndices, toc.LabelIndicesTable = uint64(len(b)), uint64(len(b))
	b = append(b, make([]byte, -len(b)&3)...)
	toc.Postings = uint64(len(b))
	if h.lists != nil { // a list of one series is in the references of that of all
		inner := withCRC(binary.BigEndian.AppendUint32([]byte{0, 0, 0, 1}, refs[0]))
		refs = append(refs, 8, 1, refs[0], binary.BigEndian.Uint32(inner[8:]))
	}
	postings := binary.BigEndian.AppendUint32(nil, uint32(len(refs)))
	for _, ref := range refs {
		postings = binary.BigEndian.AppendUint32(postings, ref)
	}
	b = append(b, ofLength(postings)...)
	toc.PostingsTable = uint64(len(b))
	b = append(b, ofLength(h.table(toc.Postings))...)
	for _, v := range []uint64{toc.Symbols, toc.Series, toc.LabelIndices, toc.LabelIndicesTable, toc.Postings, toc.PostingsTable} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b[len(b)-48:], castagnoli))

	segment := binary.BigEndian.AppendUint32(nil, 0x85BD40DD)
	segment = append(segment, 1, 0, 0, 0)
	for _, c := range h.chunks {
		segment = append(binary.AppendUvarint(segment, uint64(len(c)-1)), withCRC(c)...)
	}
	id = ulid.Make().String()
	for name, content := range map[string][]byte{"index": b, "chunks/000001": segment, "meta.json": fmt.Appendf(nil, `{"ulid":%q,"version":1,"minTime":0,"maxTime":3600000,"thanos":{"labels":{"block":"bad"}}}`, id)} {
		file := filepath.Join(dir, id, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
			t.Fatal(err)
		}
		write(t, file, string(content))
	}
	if h.meta != nil {
		editMeta(t, dir, id, func(meta map[string]any) {
			for key, value := range h.meta {
				meta[key] = value
			}
		})
	}
	return id
}

// table returns the postings offset table, whose lists begin at offset all.
func (h hostile) table(all uint64) []byte {
	table := binary.BigEndian.AppendUint32(nil, 0)
	add := func(name, value string, off uint64) {
		table = append(binary.AppendUvarint(append(table, 2), uint64(len(name))), name...)
		table = append(binary.AppendUvarint(table, uint64(len(value))), value...)
		table = binary.AppendUvarint(table, off)
		binary.BigEndian.PutUint32(table, binary.BigEndian.Uint32(table)+1)
	}
	add("", "", all)
	for i := range h.values {
		add("v", fmt.Sprintf("%09d", i), all)
	}
	for i, off := range h.lists {
		add("v", fmt.Sprintf("%09d", i), all+off)
	}
	return table
}

// firstChunk is the offset of the first chunk in a segment.
const firstChunk = uint64(segmentHeader)

var floatChunk = []byte{byte(chunkenc.EncXOR), 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0}

// A block with valid checksums and hostile content costs a warning that names it and little memory; the
// other blocks are read.
func TestStore_AHostileBlockIsAWarning(t *testing.T) {
	symbols := []string{"", "__name__", "a", "b", "up", strings.Repeat("x", 1<<20)}
	one := encodeEntry([]uint64{1, 4}, firstChunk)
	manyLabels := make([]uint64, 0, 1<<17)
	for range 1 << 16 {
		manyLabels = append(manyLabels, 5, 5)
	}
	rising := make([]uint64, 0, 1<<17)
	for i := range uint64(1 << 16) {
		rising = append(rising, i+5, 5+1<<16)
	}
	manySymbols := []string{"", "__name__", "a", "b", "up"}
	for i := range 1 << 16 {
		manySymbols = append(manySymbols, fmt.Sprintf("v%09d", i))
	}
	manySymbols = append(manySymbols, strings.Repeat("x", 1<<20))
	large := append([]byte{byte(chunkenc.EncXOR), 0, 1}, make([]byte, 1<<20)...)
	often := make([]uint64, 1000)
	for i := range often {
		often[i] = firstChunk
	}
	for what, c := range map[string]struct {
		hostile
		reason string
	}{
		"a label of a megabyte, many times":             {hostile{symbols: symbols, entries: [][]byte{encodeEntry(manyLabels, firstChunk)}}, "bytes of labels"},
		"many labels of a megabyte":                     {hostile{symbols: manySymbols, entries: [][]byte{encodeEntry(rising, firstChunk)}}, "bytes of labels"},
		"a chunk of a megabyte, many times":             {hostile{symbols: symbols, entries: [][]byte{encodeEntry([]uint64{1, 4}, often...)}, chunks: [][]byte{large}}, "chunks of one series"},
		"more chunks than a series has":                 {hostile{symbols: symbols, entries: [][]byte{encodeEntry([]uint64{1, 4}, make([]uint64, seriesChunks+1)...)}}, "more than 1048576 chunks"},
		"labels out of order":                           {hostile{symbols: symbols, entries: [][]byte{encodeEntry([]uint64{2, 2, 1, 4}, firstChunk)}}, "out of order"},
		"a label twice":                                 {hostile{symbols: symbols, entries: [][]byte{encodeEntry([]uint64{1, 3, 1, 4}, firstChunk)}}, "out of order"},
		"a label without a name":                        {hostile{symbols: symbols, entries: [][]byte{encodeEntry([]uint64{0, 3}, firstChunk)}}, "no name"},
		"series out of order":                           {hostile{symbols: symbols, entries: [][]byte{encodeEntry([]uint64{1, 4}, firstChunk), encodeEntry([]uint64{1, 3}, firstChunk)}}, "do not follow"},
		"a series twice":                                {hostile{symbols: symbols, entries: [][]byte{one, one}}, "do not follow"},
		"symbols out of order":                          {hostile{symbols: []string{"", "b", "a"}, entries: [][]byte{one}}, "symbol 2 is out of order"},
		"lists of postings that lie inside one another": {hostile{symbols: symbols, entries: [][]byte{one}, lists: []uint64{0, 12}}, "5 references in 24 bytes"},
		"an unknown chunk encoding":                     {hostile{symbols: symbols, entries: [][]byte{one}, chunks: [][]byte{{77, 0, 1, 0}}}, "unknown encoding"},
	} {
		t.Run(what, func(t *testing.T) {
			bucket, dir := newBucket(t)
			good := writeBlock(t, dir, 0, hourMS, 3, map[string]string{"block": "good"})
			if c.chunks == nil {
				c.chunks = [][]byte{floatChunk}
			}
			bad := c.write(t, dir)
			s := openStore(t, bucket, Options{})
			selector := "v!=0"
			if c.lists != nil {
				selector = "v!="
			}
			r := storeapi.SeriesRequest{MaxMS: hourMS, Matchers: match(t, selector)}
			got, warnings := s.all(t, r)
			if len(warnings) != 1 || !strings.Contains(warnings[0], bad) || !strings.Contains(warnings[0], c.reason) {
				t.Errorf("warnings: %.300q", warnings)
			}
			for key := range got {
				if strings.Contains(key, `block="bad"`) {
					delete(got, key) // of before the fault
				}
			}
			same(t, "of the good block", got, expected(t, dir, []string{good}, map[string]string{"block": "good"}, r))
		})
	}
}
