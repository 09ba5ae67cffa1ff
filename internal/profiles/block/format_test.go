package block

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// The expected bytes are written by hand from docs/formats/profile-block.md.
func TestWriter_WritesTheDocumentedFormat(t *testing.T) {
	dir := t.TempDir()
	w, err := NewWriter(files.Disk{}, dir)
	if err != nil {
		t.Fatal(err)
	}
	first, second := profiles.ID{0xBB}, profiles.ID{0xAA}
	for _, r := range []Row{
		{Dataset: "a", Key: Key{first, 0x0102030405}, Series: 0, Stacks: []uint32{1, 2}, Values: []int64{20, 50}},
		{Dataset: "a", Key: Key{first, 0x0102030405}, Series: 1, Stacks: []uint32{2}, Values: []int64{7}},
		{Dataset: "b", Key: Key{second, 0x0102030406}, Series: 2},
	} {
		if err := w.Add(&r); err != nil {
			t.Fatal(err)
		}
	}
	set := labelenc.AppendLabel(nil, "__name__", "process_cpu")
	b := NewBuilder()
	b.Node(b.Node(0, b.Frame(b.Function(Function{Name: b.String([]byte("main")), StartLine: 5}), 9)), 0)
	err = w.Finish(&Content{
		Meta: Meta{ULID: [16]byte{1}, Level: 2, Parents: [][16]byte{{4}, {5}}}, Types: []profiles.Type{testType},
		Series: []Series{{Plain: set}, {Plain: set}, {Plain: set}}, Parts: mustEncode([]datasetSymbols{{"a", &b.Symbols}, {"b", &NewBuilder().Symbols}}), Shared: []Key{{second, 0x0102030406}},
	})
	if err != nil {
		t.Fatal(err)
	}
	rows, err := os.ReadFile(filepath.Join(dir, RowsFile))
	if err != nil {
		t.Fatal(err)
	}
	index, err := os.ReadFile(filepath.Join(dir, IndexFile))
	if err != nil {
		t.Fatal(err)
	}
	le, uv := binary.LittleEndian, binary.AppendUvarint
	if string(index[:8]) != "ferulaP\x01" {
		t.Fatalf("magic %q", index[:8])
	}
	bodies := map[uint32][]byte{}
	at := 8
	for _, kind := range []uint32{1, 2, 3, 4, 5, 9, 10, 7, 11, 8} {
		head, size := index[at:at+32], int(le.Uint64(index[at+8:]))
		stored := index[at+32 : at+32+size]
		if le.Uint32(head) != kind || le.Uint64(head[24:]) != xxhash.Sum64(stored) {
			t.Fatalf("section %d begins %x", kind, head)
		}
		if le.Uint32(head[4:]) == 1 {
			if stored, err = decompressIn(nil, stored, 1<<20); err != nil {
				t.Fatal(err)
			}
		}
		if len(stored) != int(le.Uint64(head[16:])) {
			t.Fatalf("section %d has %d bytes", kind, len(stored))
		}
		bodies[kind] = stored
		at += 32 + size
	}
	if at != len(index) {
		t.Errorf("%d bytes after the end", len(index)-at)
	}
	text := func(dst []byte, s string) []byte { return append(uv(dst, uint64(len(s))), s...) }

	series := uv(nil, 1)
	for _, s := range []string{"process_cpu", "cpu", "nanoseconds", "cpu", "nanoseconds"} {
		series = text(series, s)
	}
	series = append(series, 3)
	for range 3 {
		series = text(append(series, 0), string(set))
	}
	spans := append(text([]byte{2}, "a"), 0, 1, 2, 2, 0, 1)
	spans = append(text(spans, "b"), 0, 0, 1, 1, 2)
	ids := []byte{2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0}
	symbols := append(text(text([]byte{2}, ""), "main"), 1, 1, 0, 0, 5, 1, 0, 9, 3, 1, 0, 1, 0)
	none := append(text([]byte{1}, ""), 0, 0, 1)
	parts, stored := []byte{2}, bodies[10]
	for _, p := range []struct {
		dataset string
		stacks  byte
		body    []byte
	}{{"a", 2, symbols}, {"b", 0, none}} {
		size := bytes.Index(stored[1:], []byte{0x28, 0xB5, 0x2F, 0xFD}) + 1 // the magic of the next frame
		if size == 0 {
			size = len(stored)
		}
		got, err := decompressIn(nil, stored[:size], 1<<20)
		if err != nil || !bytes.Equal(got, p.body) {
			t.Errorf("symbols of %s are\n%x\nwant\n%x, %v", p.dataset, got, p.body, err)
		}
		parts = append(text(parts, p.dataset), p.stacks, byte(size), byte(len(p.body)))
		parts, stored = le.AppendUint64(parts, xxhash.Sum64(stored[:size])), stored[size:]
	}
	shared := le.AppendUint64(append([]byte{1}, second[:]...), 0x0102030406)
	for kind, want := range map[uint32][]byte{2: series, 3: spans, 5: ids, 9: parts, 7: shared, 11: le.AppendUint64(nil, xxhash.Sum64(rows)), 8: nil} {
		if !bytes.Equal(bodies[kind], want) {
			t.Errorf("section %d is\n%x\nwant\n%x", kind, bodies[kind], want)
		}
	}
	checkChunks(t, bodies[4], rows, bodies[1])
}

// checkChunks finds every column of fixed width at the extent in the index, and the end of
// the columns at the offset in meta.
func checkChunks(t *testing.T, chunks, rows, meta []byte) {
	t.Helper()
	le := binary.LittleEndian
	d := decoder{b: chunks}
	if d.uvarint() != 1 || d.uvarint() != 3 {
		t.Fatalf("chunks %x", chunks)
	}
	u32 := func(values ...uint32) (b []byte) {
		for _, v := range values {
			b = le.AppendUint32(b, v)
		}
		return b
	}
	u64 := func(values ...uint64) (b []byte) {
		for _, v := range values {
			b = le.AppendUint64(b, v)
		}
		return b
	}
	id := func(first ...byte) (b []byte) {
		for _, v := range first {
			b = append(append(b, v), make([]byte, 15)...)
		}
		return b
	}
	var end uint64
	for i, want := range [][]byte{u32(0, 1, 2), u64(0x0102030405, 0x0102030405, 0x0102030406), u64(70, 7, 0), u32(0, 0, 1), id(0xBB, 0xBB, 0xAA), u32(2, 1, 0), u64(10, 7, 1), nil, nil} {
		offset, size, sum := d.uvarint(), d.uvarint(), d.u64()
		got := rows[offset : offset+size]
		if want != nil && !bytes.Equal(got, want) {
			t.Errorf("column %s is %x, want %x", columnNames[i], got, want)
		}
		if xxhash.Sum64(got) != sum {
			t.Errorf("column %s has another checksum", columnNames[i])
		}
		end = max(end, offset+size)
	}
	if d.err != nil || len(d.b) != 0 {
		t.Errorf("chunks end with %x, %v", d.b, d.err)
	}
	want := append(append([]byte{1}, make([]byte, 15)...), u64(0x0102030405, 0x0102030406)...)
	for _, v := range []uint64{3, 2, 2, 0, uint64(len(rows)), end} {
		want = binary.AppendUvarint(want, v)
	}
	want = append(want, u64(xxhash.Sum64(rows[end:]))...)
	want = append(append(want, 2), id(4, 5)...)
	if !bytes.Equal(meta, want) {
		t.Errorf("meta is\n%x\nwant\n%x", meta, want)
	}
}

func TestFormat_DocumentNamesEveryColumn(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "formats", "profile-block.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range columnNames {
		if !bytes.Contains(text, []byte("`"+name+"`")) {
			t.Errorf("column %s is not documented", name)
		}
	}
}

// The size in a header is not believed: neither that of the section, nor that in the frame of zstd.
func TestSection_DecompressesNoMoreThanItDeclares(t *testing.T) {
	bomb, err := appendCompressed(nil, make([]byte, 64<<20))
	if err != nil {
		t.Fatal(err)
	}
	for _, declared := range []uint64{10, 1 << 20, 63 << 20, sectionMax} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := section{compression: zstded, plain: declared, sum: xxhash.Sum64(bomb), stored: bomb}.open(sectionMeta)
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, ErrCorrupt) || used > 72<<20 || declared <= 1<<20 && used > 16<<20 {
			t.Errorf("%d bytes declared: %d allocated, %v", declared, used, err)
		}
	}
	if b, err := (section{compression: zstded, plain: 64 << 20, sum: xxhash.Sum64(bomb), stored: bomb}).open(sectionMeta); err != nil || len(b) != 64<<20 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

// The memory of heads is limited by this estimate.
func TestBuilder_BytesCountsEverySlice(t *testing.T) {
	for name, grow := range map[string]func(b *Builder) int{
		"strings": func(b *Builder) int {
			n := cap(b.Strings)
			b.Strings = slices.Grow(b.Strings, 1000)
			return 16 * (cap(b.Strings) - n)
		},
		"functions": func(b *Builder) int {
			n := cap(b.Functions)
			b.Functions = slices.Grow(b.Functions, 1000)
			return 24 * (cap(b.Functions) - n)
		},
		"frames": func(b *Builder) int {
			n := cap(b.Frames)
			b.Frames = slices.Grow(b.Frames, 1000)
			return 8 * (cap(b.Frames) - n)
		},
		"parents": func(b *Builder) int {
			n := cap(b.Parents)
			b.Parents = slices.Grow(b.Parents, 1000)
			return 4 * (cap(b.Parents) - n)
		},
		"nodes": func(b *Builder) int {
			n := cap(b.NodeFrame)
			b.NodeFrame = slices.Grow(b.NodeFrame, 1000)
			return 4 * (cap(b.NodeFrame) - n)
		},
	} {
		b := NewBuilder()
		before := b.Bytes()
		if want := before + grow(b); b.Bytes() != want || want < before+4000 {
			t.Errorf("%s: %d bytes, want %d", name, b.Bytes(), want)
		}
	}
}

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
