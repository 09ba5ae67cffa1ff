package block

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/test/crashfs"
)

// expect fails unless a decoder accepts what it must, and returns ErrCorrupt for the rest.
func expect(t *testing.T, what string, err error, ok bool) {
	t.Helper()
	if (err == nil) != ok || err != nil && !errors.Is(err, ErrCorrupt) {
		t.Errorf("%s: %v", what, err)
	}
}

// cuts decodes each beginning of b, of which none is valid.
func cuts(t *testing.T, what string, b []byte, decode func([]byte) error) {
	t.Helper()
	for n := range b {
		expect(t, fmt.Sprintf("%s cut at %d", what, n), decode(b[:n]), false)
	}
	expect(t, what, decode(b), true)
}

func TestDecodeMeta_Limits(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Meta)
		ok     bool
	}{
		"none":               {func(*Meta) {}, true},
		"most rows":          {func(m *Meta) { m.Rows = math.MaxUint32 }, true},
		"more rows":          {func(m *Meta) { m.Rows = math.MaxUint32 + 1 }, false},
		"one instant":        {func(m *Meta) { m.MinNS = m.MaxNS }, true},
		"an end before":      {func(m *Meta) { m.MinNS = m.MaxNS + 1 }, false},
		"no tail":            {func(m *Meta) { m.TailAt = m.RowsBytes }, true},
		"a tail behind it":   {func(m *Meta) { m.TailAt = m.RowsBytes + 1 }, false},
		"parents":            {func(m *Meta) { m.Parents = [][16]byte{{1}, {2}} }, true},
		"spans":              {func(m *Meta) { m.SpansBytes = 300 }, true},
		"parents and spans":  {func(m *Meta) { m.Parents, m.SpansBytes = [][16]byte{{1}}, 1 }, true},
		"everything is zero": {func(m *Meta) { *m = Meta{} }, true},
	} {
		m := Meta{ULID: [16]byte{7}, MinNS: -5, MaxNS: 10, Rows: 3, Profiles: 2, Level: 4, RowsBytes: 1000, TailAt: 900, TailSum: 1 << 60}
		tt.change(&m)
		got, err := decodeMeta(appendMeta(nil, &m))
		expect(t, name, err, tt.ok)
		if tt.ok && fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", m) {
			t.Errorf("%s: %+v, want %+v", name, got, m)
		}
	}
	cuts(t, "meta", appendMeta(nil, &Meta{MaxNS: 1, Rows: 300, Parents: [][16]byte{{1}}}), func(b []byte) error { _, err := decodeMeta(b); return err })
}

func TestDecodeSeries_Limits(t *testing.T) {
	plain := labelenc.AppendLabel(nil, "__name__", "process_cpu")
	series := []Series{{Type: 0, Plain: plain}, {Type: 1, Plain: plain}}
	other := testType
	other.SampleType = "samples"
	b := appendSeries(nil, []profiles.Type{testType, other}, series)
	decode := func(b []byte) error { _, _, err := decodeSeries(b); return err }
	cuts(t, "series", b, decode)
	types, got, err := decodeSeries(b)
	if err != nil || len(types) != 2 || types[1] != other || len(got) != 2 || got[1].Type != 1 || !bytes.Equal(got[1].Plain, plain) || !bytes.Equal(got[0].Labels, FullLabels(plain, TypeLabels(testType))) {
		t.Errorf("%+v, %+v, %v", types, got, err)
	}
	if &got[0].Plain[0] != &got[1].Plain[0] {
		t.Error("equal label sets are not the same memory")
	}
	expect(t, "an unknown type", decode(appendSeries(nil, []profiles.Type{testType}, series)), false)
	expect(t, "no label set", decode(appendSeries(nil, []profiles.Type{testType}, []Series{{Plain: []byte{1, 2, 3}}})), false)
	expect(t, "nothing", decode(appendSeries(nil, nil, nil)), true)
}

func TestDecodeSpans_Limits(t *testing.T) {
	spans := []Span{{Type: 0, Dataset: "a", Lo: 0, Hi: 3, Sorted: true, MultiRow: true, Series: []uint32{0, 2}}, {Type: 1, Dataset: "b", Lo: 3, Hi: 5, Sorted: true, Series: []uint32{1}}}
	b := appendSpans(nil, spans)
	decode := func(types, series, rows int) func([]byte) error {
		return func(b []byte) error { _, err := decodeSpans(b, types, series, rows); return err }
	}
	cuts(t, "spans", b, decode(2, 3, 5))
	got, err := decodeSpans(b, 2, 3, 5)
	if err != nil || fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", spans) {
		t.Errorf("%+v, %v", got, err)
	}
	expect(t, "too few types", decode(1, 3, 5)(b), false)
	expect(t, "too few series", decode(2, 2, 5)(b), false)
	expect(t, "too few rows", decode(2, 3, 4)(b), false)
	expect(t, "too many rows", decode(2, 3, 6)(b), false)
	flag := slices.Clone(b)
	flag[4] = 2
	expect(t, "another flag", decode(2, 3, 5)(flag), false)
	expect(t, "none", decode(2, 3, 0)(appendSpans(nil, nil)), true)
	expect(t, "none of some rows", decode(2, 3, 1)(appendSpans(nil, nil)), false)
}

func TestDecodeChunks_Limits(t *testing.T) {
	const file = 1 << 20
	one := func(rows int, change func(*chunk)) chunk {
		c := chunk{rows: rows}
		for i := range c.places {
			c.places[i] = extent{offset: 100, size: uint64(widths[i] * rows), sum: 5}
		}
		if change != nil {
			change(&c)
		}
		return c
	}
	for name, tt := range map[string]struct {
		chunks []chunk
		rows   int
		ok     bool
	}{
		"one group":             {[]chunk{one(7, nil)}, 7, true},
		"two groups":            {[]chunk{one(groupRows, nil), one(1, nil)}, groupRows + 1, true},
		"two small groups":      {[]chunk{one(7, nil), one(1, nil)}, 8, false},
		"a group of no rows":    {[]chunk{one(0, nil)}, 0, false},
		"no group":              {nil, 0, true},
		"no group of some rows": {nil, 1, false},
		"too few rows":          {[]chunk{one(7, nil)}, 8, false},
		"too many rows":         {[]chunk{one(7, nil)}, 6, false},
		"a third group":         {[]chunk{one(groupRows, nil), one(1, nil)}, groupRows + 2, false},
		"at the end":            {[]chunk{one(7, func(c *chunk) { c.places[colSeries].offset = file - 28 })}, 7, true},
		"beyond the end":        {[]chunk{one(7, func(c *chunk) { c.places[colSeries].offset = file - 27 })}, 7, false},
		"empty, at the end":     {[]chunk{one(7, func(c *chunk) { c.places[colStacks] = extent{offset: file} })}, 7, true},
		"empty, beyond the end": {[]chunk{one(7, func(c *chunk) { c.places[colStacks] = extent{offset: file + 1} })}, 7, false},
		"the whole file":        {[]chunk{one(7, func(c *chunk) { c.places[colStacks] = extent{size: file} })}, 7, true},
		"more than the file":    {[]chunk{one(7, func(c *chunk) { c.places[colStacks] = extent{size: file + 1} })}, 7, false},
		"another width":         {[]chunk{one(7, func(c *chunk) { c.places[colTime].size++ })}, 7, false},
	} {
		got, err := decodeChunks(appendChunks(nil, tt.chunks), tt.rows, file)
		expect(t, name, err, tt.ok)
		if tt.ok && !slices.Equal(got, tt.chunks) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	cuts(t, "chunks", appendChunks(nil, []chunk{one(7, nil)}), func(b []byte) error { _, err := decodeChunks(b, 7, file); return err })
}

func TestDecodeSymbols_Limits(t *testing.T) {
	some := func(change func(*Symbols)) []byte {
		s := &Symbols{
			Strings: []string{"", "a", "b"}, Functions: []Function{{Name: 1, System: 2, File: 0, StartLine: 5}, {Name: 2}}, Frames: []Frame{{Function: 1, Line: 7}, {Function: 0}},
			Parents: []uint32{0, 0, 1, 1}, NodeFrame: []uint32{0, 0, 1, 0},
		}
		if change != nil {
			change(s)
		}
		return appendSymbols(nil, s)
	}
	decode := func(b []byte) error { return new(Symbols).decode(b) }
	cuts(t, "symbols", some(nil), decode)
	s := &Symbols{}
	if err := s.decode(some(nil)); err != nil || !bytes.Equal(appendSymbols(nil, s), some(nil)) || s.Parents[3] != 1 || s.NodeFrame[2] != 1 || s.FrameName(1) != "a" {
		t.Errorf("%+v, %v", s, err)
	}
	for name, tt := range map[string]struct {
		change func(*Symbols)
		ok     bool
	}{
		"a name":            {func(s *Symbols) { s.Functions[0].Name = 3 }, false},
		"a system name":     {func(s *Symbols) { s.Functions[0].System = 3 }, false},
		"a file":            {func(s *Symbols) { s.Functions[0].File = 3 }, false},
		"a function":        {func(s *Symbols) { s.Frames[0].Function = 2 }, false},
		"the last line":     {func(s *Symbols) { s.Frames[0].Line = math.MaxUint32 - 1 }, true},
		"a further line":    {func(s *Symbols) { s.Frames[0].Line = math.MaxUint32 }, false},
		"a frame":           {func(s *Symbols) { s.NodeFrame[1] = 2 }, false},
		"its own parent":    {func(s *Symbols) { s.Parents[2] = 2 }, false},
		"a later parent":    {func(s *Symbols) { s.Parents[2] = 3 }, false},
		"the parent before": {func(s *Symbols) { s.Parents[3] = 2 }, true},
		"no stack":          {func(s *Symbols) { s.Parents = nil }, false},
		"the root only":     {func(s *Symbols) { s.Parents = s.Parents[:1] }, true},
	} {
		expect(t, name, decode(some(tt.change)), tt.ok)
	}
	// More stacks than the bytes can have.
	b := some(func(s *Symbols) { s.Parents = s.Parents[:1] })
	expect(t, "a stack without bytes", decode(append(b[:len(b)-1:len(b)-1], 2)), false)
	keys := []Key{{profiles.ID{1}, 5}, {profiles.ID{2}, -6}}
	cuts(t, "keys", appendKeys(nil, keys), func(b []byte) error {
		got, err := decodeKeys(b)
		if err == nil && !slices.Equal(got, keys) {
			t.Errorf("%v", got)
		}
		return err
	})
}

func TestSections_Limits(t *testing.T) {
	header := func(kind, compression uint32, stored, plain uint64, body []byte) []byte {
		le := binary.LittleEndian
		b := le.AppendUint64(le.AppendUint64(le.AppendUint32(le.AppendUint32(nil, kind), compression), stored), plain)
		return append(le.AppendUint64(b, xxhash.Sum64(body)), body...)
	}
	end := header(sectionEnd, plain, 0, 0, nil)
	for name, tt := range map[string]struct {
		b  []byte
		ok bool
	}{
		"none":                {end, true},
		"one":                 {append(header(sectionMeta, plain, 3, 3, []byte("abc")), end...), true},
		"no end":              {header(sectionMeta, plain, 3, 3, []byte("abc")), false},
		"longer than it is":   {header(sectionMeta, plain, 4, 4, []byte("abc")), false},
		"the largest":         {append(header(sectionMeta, zstded, 3, sectionMax, []byte("abc")), end...), true},
		"a larger one":        {append(header(sectionMeta, zstded, 3, sectionMax+1, []byte("abc")), end...), false},
		"another compression": {append(header(sectionMeta, 2, 3, 3, []byte("abc")), end...), false},
		"half an end":         {end[:sectionHeader-1], false},
	} {
		found, err := sections(append([]byte(magic), tt.b...))
		expect(t, name, err, tt.ok)
		if s, ok := found[sectionMeta]; tt.ok && name != "none" && (!ok || string(s.stored) != "abc") {
			t.Errorf("%s: %+v", name, found)
		}
		first, err := firstSection(append([]byte(magic), tt.b...))
		expect(t, name+", as the first", err, tt.ok && name != "none" || name == "no end")
		if err == nil && string(first.stored) != "abc" {
			t.Errorf("%s: %+v", name, first)
		}
	}
	_, err := sections([]byte("ferulaP\x02"))
	expect(t, "another version", err, false)
	_, err = sections([]byte(magic)[:7])
	expect(t, "half a magic", err, false)
	_, err = firstSection(append([]byte("ferulaP\x02"), header(sectionMeta, plain, 3, 3, []byte("abc"))...))
	expect(t, "the first of another version", err, false)

	body := bytes.Repeat([]byte("abcdef"), 1000)
	stored, err := appendCompressed(nil, body)
	if err != nil {
		t.Fatal(err)
	}
	open := func(compression uint32, plain, sum uint64, stored []byte) error {
		b, err := section{compression: compression, plain: plain, sum: sum, stored: stored}.open(sectionMeta)
		if err == nil && !bytes.Equal(b, body) {
			t.Errorf("%d bytes", len(b))
		}
		return err
	}
	expect(t, "compressed", open(zstded, uint64(len(body)), xxhash.Sum64(stored), stored), true)
	expect(t, "plain", open(plain, uint64(len(body)), xxhash.Sum64(body), body), true)
	expect(t, "a wrong checksum", open(zstded, uint64(len(body)), xxhash.Sum64(stored)+1, stored), false)
	expect(t, "a wrong checksum of a plain one", open(plain, uint64(len(body)), xxhash.Sum64(body)+1, body), false)
	expect(t, "one byte more", open(zstded, uint64(len(body))+1, xxhash.Sum64(stored), stored), false)
	expect(t, "one byte less", open(zstded, uint64(len(body))-1, xxhash.Sum64(stored), stored), false)
	expect(t, "no zstd", open(zstded, 3, xxhash.Sum64([]byte("abc")), []byte("abc")), false)
}

func TestPart_NumbersOfStacks(t *testing.T) {
	p := Part{First: 5, Nodes: 3}
	for stack, want := range map[uint32]int{0: 0, 4: -1, 5: 1, 7: 3, 8: -1, 1: -1, math.MaxUint32: -1} {
		n, ok := p.Local(stack)
		if ok != (want >= 0) || ok && int(n) != want {
			t.Errorf("stack %d: %d, %v", stack, n, ok)
		}
	}
	for _, stack := range []uint32{0, 1, 1 << 31} {
		if n, ok := WholePart().Local(stack); !ok || n != stack {
			t.Errorf("of the whole: stack %d is %d, %v", stack, n, ok)
		}
	}
}

// datasets are symbols of two datasets, of 2 and 1 stacks.
func datasets() []datasetSymbols {
	a, b := NewBuilder(), NewBuilder()
	frame := func(b *Builder, name string) uint32 {
		return b.Frame(b.Function(Function{Name: b.String([]byte(name)), File: b.String([]byte("file of " + name)), StartLine: 3}), 9)
	}
	a.Node(a.Node(0, frame(a, "main")), frame(a, "work"))
	b.Node(0, frame(b, "other"))
	return []datasetSymbols{{"a", &a.Symbols}, {"b", &b.Symbols}}
}

func TestDecodeParts_Limits(t *testing.T) {
	encoded, err := encodeParts(datasets())
	if err != nil {
		t.Fatal(err)
	}
	directory, pieces := encoded.sections()
	bodies := bytes.Join(pieces, nil)
	decode := func(b []byte) error { _, err := decodeParts(b, bodies); return err }
	cuts(t, "parts", directory, decode)
	parts, err := decodeParts(directory, bodies)
	if err != nil || len(parts) != 2 || parts[0].Part != (Part{"a", 1, 2}) || parts[1].Part != (Part{"b", 3, 1}) {
		t.Fatalf("%+v, %v", parts, err)
	}
	for i, p := range parts {
		s, err := p.decode()
		if err != nil || len(s.Parents) != int(p.Nodes)+1 {
			t.Errorf("part %d: %+v, %v", i, s, err)
		}
		p.Nodes++
		_, err = p.decode()
		expect(t, "another number of stacks", err, false)
	}
	if _, err := encodeParts([]datasetSymbols{datasets()[1], datasets()[0]}); err == nil {
		t.Error("parts that are not sorted are written")
	}
	if _, err := encodeParts([]datasetSymbols{datasets()[0], datasets()[0]}); err == nil {
		t.Error("a part is written twice")
	}
	_, err = decodeParts(directory, bodies[:len(bodies)-1])
	expect(t, "bodies that are cut", err, false)
	entry := func(dst []byte, dataset string, nodes, size, plain uint64) []byte {
		dst = appendText(dst, dataset)
		for _, v := range []uint64{nodes, size, plain} {
			dst = binary.AppendUvarint(dst, v)
		}
		return binary.LittleEndian.AppendUint64(dst, 0)
	}
	for name, tt := range map[string]struct {
		b  []byte
		ok bool
	}{
		"none":               {[]byte{0}, false},
		"most stacks":        {entry([]byte{1}, "a", math.MaxUint32-1, 0, 0), true},
		"more stacks":        {entry([]byte{1}, "a", math.MaxUint32, 0, 0), false},
		"far more stacks":    {entry([]byte{1}, "a", math.MaxUint64, 0, 0), false},
		"most stacks of two": {entry(entry([]byte{2}, "a", math.MaxUint32-2, 0, 0), "b", 1, 0, 0), true},
		"more stacks of two": {entry(entry([]byte{2}, "a", math.MaxUint32-2, 0, 0), "b", 2, 0, 0), false},
		"all bytes":          {entry([]byte{1}, "a", 1, uint64(len(bodies)), 0), true},
		"more bytes":         {entry([]byte{1}, "a", 1, uint64(len(bodies))+1, 0), false},
		"largest":            {entry([]byte{1}, "a", 1, 0, sectionMax), true},
		"larger":             {entry([]byte{1}, "a", 1, 0, sectionMax+1), false},
		"twice":              {entry(entry([]byte{2}, "a", 1, 0, 0), "a", 1, 0, 0), false},
		"backwards":          {entry(entry([]byte{2}, "b", 1, 0, 0), "a", 1, 0, 0), false},
	} {
		expect(t, name, decode(tt.b), tt.ok)
	}
}

// writeDatasets writes a block of two datasets, of a row each.
func writeDatasets(t *testing.T, spans *TraceSpans) (dir string) {
	t.Helper()
	dir = t.TempDir()
	w, err := NewWriter(files.Disk{}, dir)
	if err != nil {
		t.Fatal(err)
	}
	for i, dataset := range []string{"a", "b"} {
		if err := w.Add(&Row{Dataset: dataset, Key: Key{profiles.ID{byte(i + 1)}, int64(i)}, Stacks: []uint32{uint32(i + 2)}, Values: []int64{5}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finish(&Content{Types: []profiles.Type{testType}, Series: []Series{{Plain: labelenc.AppendLabel(nil, "a", "b")}}, Parts: mustEncode(datasets()), Spans: spans}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// path returns the names of a stack, root first.
func path(s *Symbols, node uint32) (names string) {
	for ; node != 0; node = s.Parents[node] {
		names = ";" + s.FrameName(s.NodeFrame[node]) + names
	}
	return names
}

func TestReader_SymbolsOfPartsAreCachedAndCounted(t *testing.T) {
	r, err := Open(writeDatasets(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	var counted int64
	r.OnSymbols(func(bytes int64) { counted += bytes })
	if r.HasPart(0) || len(r.Parts()) != 2 || r.PartBytes(0) <= 0 || r.SymbolsBytes() != r.PartBytes(0)+r.PartBytes(1) || r.PartBytes(0) != 4*int64(r.parts[0].body.plain) {
		t.Errorf("%d and %d bytes", r.PartBytes(0), r.PartBytes(1))
	}
	if s, err := new(PartDecoder).Decode(r, 1); err != nil || path(s, 1) != ";other" || r.HasPart(1) || counted != 0 {
		t.Errorf("decoded: %v, %d counted", err, counted)
	}
	first, err := r.PartSymbols(0)
	if err != nil || path(first, 2) != ";main;work" || !r.HasPart(0) || r.HasPart(1) || counted != r.PartBytes(0) {
		t.Errorf("part: %v, %d counted", err, counted)
	}
	if again, err := r.PartSymbols(0); again != first || err != nil || counted != r.PartBytes(0) {
		t.Errorf("again: %v, %d counted", err, counted)
	}
	if again, err := new(PartDecoder).Decode(r, 0); again != first || err != nil {
		t.Errorf("the cached symbols are decoded again: %v", err)
	}
	second, err := r.PartSymbols(1)
	if err != nil || path(second, 1) != ";other" || counted != r.SymbolsBytes() {
		t.Errorf("second part: %v, %d counted", err, counted)
	}
	if f := second.Functions[second.Frames[second.NodeFrame[1]].Function]; second.Strings[f.File] != "file of other" || f.StartLine != 3 || second.Frames[second.NodeFrame[1]].Line != 9 {
		t.Errorf("%+v", f)
	}
	if n := r.stacks(); n != 4 {
		t.Errorf("%d stacks", n)
	}
	r.DropIdleSymbols()
	if !r.HasPart(0) {
		t.Error("symbols that were used are dropped")
	}
	done := r.PinSymbols()
	r.DropIdleSymbols()
	r.DropSymbols()
	if !r.HasPart(0) {
		t.Error("symbols that are pinned are dropped")
	}
	done()
	r.symbolsMu.Lock()
	r.DropSymbols() // they are being decoded
	r.symbolsMu.Unlock()
	if !r.HasPart(0) {
		t.Error("symbols that are being decoded are dropped")
	}
	r.DropIdleSymbols()
	if r.HasPart(0) || r.HasPart(1) || counted != 0 {
		t.Errorf("idle symbols are kept, %d counted", counted)
	}
	if _, err := r.PartSymbols(1); err != nil {
		t.Error(err)
	}
	if err := r.Close(); err != nil || counted != 0 {
		t.Errorf("%d counted after Close, %v", counted, err)
	}
	for row, want := range map[int][2]int{0: {0, 1}, 1: {1, 2}, 2: {0, 3}} {
		if part, end := r.PartOf(row); part != want[0] || end != want[1] {
			t.Errorf("row %d: part %d to %d", row, part, end)
		}
	}
}

func TestReader_RowsBeyondTheBlockAreErrors(t *testing.T) {
	r, err := Open(writeDatasets(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ids, err := r.IDs(1)
	if err != nil || len(ids) != 32 || ids[0] != 1 || ids[16] != 2 {
		t.Errorf("%x, %v", ids, err)
	}
	if id, err := r.ID(1); err != nil || id != (profiles.ID{2}) {
		t.Errorf("%x, %v", id, err)
	}
	none := func(int, []uint32, []int64) error { return nil }
	for _, row := range []int{-1, 2, groupRows} {
		_, err := r.ID(row)
		expect(t, fmt.Sprint("the ID of row ", row), err, false)
		expect(t, fmt.Sprint("the samples of row ", row), r.Samples(context.Background(), []int{row}, none), false)
		if row == 2 {
			continue
		}
		_, err = r.IDs(row)
		expect(t, fmt.Sprint("the IDs of row ", row), err, false)
		_, err = r.Columns(row)
		expect(t, fmt.Sprint("the columns of row ", row), err, false)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.Samples(ctx, []int{0}, none); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := r.Samples(context.Background(), []int{0, 1}, func(int, []uint32, []int64) error { return errStop }); !errors.Is(err, errStop) {
		t.Error(err)
	}
	if err := r.Samples(ctx, nil, none); err != nil {
		t.Error(err)
	}
}

func TestOpen_FilesThatAreMissingOrOfAnotherSizeAreCorrupt(t *testing.T) {
	for name, breaks := range map[string]func(dir string) error{
		"no index":    func(dir string) error { return os.Remove(filepath.Join(dir, IndexFile)) },
		"no rows":     func(dir string) error { return os.Remove(filepath.Join(dir, RowsFile)) },
		"a byte more": func(dir string) error { return appendTo(filepath.Join(dir, RowsFile)) },
		"a FIFO as index": func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, IndexFile)), syscall.Mkfifo(filepath.Join(dir, IndexFile), 0o600))
		},
		"a FIFO as rows": func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, RowsFile)), syscall.Mkfifo(filepath.Join(dir, RowsFile), 0o600))
		},
	} {
		dir := writeDatasets(t, nil)
		if err := breaks(dir); err != nil {
			t.Fatal(err)
		}
		r, err := Open(dir)
		expect(t, name, err, false)
		if err != nil && (r != nil && name == "" || !strings.Contains(err.Error(), "block "+filepath.Base(dir))) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func appendTo(name string) error {
	f, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write([]byte{0})
	return errors.Join(err, f.Close())
}

func TestReader_TraceSpansOfABlockOnDisk(t *testing.T) {
	var b TraceSpansBuilder
	b.Add(9, profiles.TraceID{1}, 1, []uint32{1}, []int64{3})
	dir := writeDatasets(t, b.Spans())
	r, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.TraceSpans()
	if err != nil || s.Len() != 1 || s.TraceID(s.Span(0)) != (profiles.TraceID{1}) || r.SpansBytes() == 0 || r.Bytes() != r.IndexBytes()+int64(r.Meta().RowsBytes)+r.SpansBytes() {
		t.Errorf("%v, %v", s, err)
	}
	if again, err := r.TraceSpans(); again != s || err != nil {
		t.Errorf("read again: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if r, err = Open(dir); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if _, err := r.TraceSpans(); err == nil {
		t.Error("spans of a closed block are read")
	}
	if r, err = Open(dir); err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := os.Remove(filepath.Join(dir, SpansFile)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, err := r.TraceSpans()
		expect(t, "without the file", err, false)
	}
	// Retention by size would remove other blocks for the bytes that this block claims to have.
	without, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer without.Close()
	if got, want := without.Bytes(), without.IndexBytes()+int64(without.Meta().RowsBytes); got != want {
		t.Errorf("%d bytes without the file, want %d", got, want)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, SpansFile), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Verify(context.Background(), dir)
	expect(t, "a FIFO as spans", err, false)
	none, err := Open(writeDatasets(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	defer none.Close()
	if s, err := none.TraceSpans(); s != nil || err != nil {
		t.Errorf("%v, %v", s, err)
	}
}

func TestTraceSpans_LimitsOfFields(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(entry []byte, s *TraceSpans)
		ok     bool
	}{
		"none":           {func([]byte, *TraceSpans) {}, true},
		"another row":    {func(e []byte, _ *TraceSpans) { e[24] = 3 }, false},
		"the last row":   {func(e []byte, _ *TraceSpans) { e[24] = 2 }, true},
		"another trace":  {func(e []byte, _ *TraceSpans) { e[28] = 3 }, false},
		"the last trace": {func(e []byte, _ *TraceSpans) { e[28] = 2 }, true},
		"samples":        {func(e []byte, s *TraceSpans) { e[16] = byte(len(s.samples)) }, false},
		"other samples":  {func(e []byte, s *TraceSpans) { e[16] = byte(len(s.samples)) - 1 }, true},
		"a total":        {func(e []byte, _ *TraceSpans) { e[15] = 0x80 }, false},
		"half an entry":  {func(_ []byte, s *TraceSpans) { s.traces = s.traces[:len(s.traces)-1] }, false},
	} {
		s := someSpans()
		s.entries, s.traces = slices.Clone(s.entries), slices.Clone(s.traces)
		tt.change(s.entries[:traceSpanBytes], s)
		file, err := s.encode()
		if err != nil {
			t.Fatal(err)
		}
		_, err = decodeTraceSpans(file, 3)
		expect(t, name, err, tt.ok)
	}
	s := someSpans()
	for name, samples := range map[string][]byte{"cut": {2, 1}, "a value": append([]byte{1, 1}, binary.AppendUvarint(nil, 1<<63)...), "a stack": append(append([]byte{1}, binary.AppendUvarint(nil, 1<<32)...), 1), "none": nil} {
		s.samples = samples
		_, _, err := s.Samples(TraceSpan{}, nil, nil)
		expect(t, name, err, false)
	}
	s.samples = append(append([]byte{1}, binary.AppendUvarint(nil, math.MaxUint32)...), binary.AppendUvarint(nil, math.MaxInt64)...)
	stacks, values, err := s.Samples(TraceSpan{}, []uint32{1}, []int64{2})
	if err != nil || !slices.Equal(stacks, []uint32{1, math.MaxUint32}) || !slices.Equal(values, []int64{2, math.MaxInt64}) {
		t.Errorf("%v, %v, %v", stacks, values, err)
	}
	_, _, err = s.Samples(TraceSpan{At: uint64(len(s.samples)) + 1}, nil, nil)
	expect(t, "outside", err, false)
	if err := someSpans().Find([]uint64{7}, nil, func(TraceSpan) error { return errStop }); !errors.Is(err, errStop) {
		t.Error(err)
	}
	var empty TraceSpansBuilder
	if empty.Spans() != nil || empty.Bytes() != 0 {
		t.Errorf("%d bytes", empty.Bytes())
	}
	empty.Add(1, profiles.TraceID{1}, 0, []uint32{1}, []int64{1})
	if n := cap(empty.spans.entries) + cap(empty.spans.traces) + cap(empty.spans.samples); empty.Bytes() != n+48 || n < traceSpanBytes+traceBytes {
		t.Errorf("%d bytes of %d", empty.Bytes(), n)
	}
	file, err := someSpans().encode()
	if err != nil {
		t.Fatal(err)
	}
	read, err := decodeTraceSpans(file, 3)
	if err != nil {
		t.Fatal(err)
	}
	if err := read.Find([]uint64{7}, nil, func(TraceSpan) error { return errStop }); !errors.Is(err, errStop) {
		t.Error(err)
	}
	for i, want := range [][2]uint64{{7, 0}, {7, 1}, {8, 1}, {9, 2}} {
		if s := read.Span(i); s.ID != want[0] || uint64(s.Row) != want[1] {
			t.Errorf("span %d: %+v", i, s)
		}
	}
}

func TestRemote_SumsAndCachedColumns(t *testing.T) {
	b := make([]byte, 2*checkBytes+5)
	for i := range b {
		b[i] = byte(i * 7)
	}
	m := &remote{rows: bytes.NewReader(b)}
	r := &Reader{remote: m}
	for _, p := range []extent{{}, {offset: 5, size: 1}, {offset: 0, size: checkBytes}, {offset: 1, size: checkBytes + 1}, {offset: 3, size: uint64(len(b)) - 3}, {offset: 0, size: uint64(len(b))}} {
		if sum, err := r.sum(p); err != nil || sum != xxhash.Sum64(b[p.offset:p.offset+p.size]) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	if _, err := r.sum(extent{offset: 3, size: uint64(len(b)) - 2}); !errors.Is(err, profiles.ErrUnavailable) {
		t.Errorf("beyond the end: %v", err)
	}
	for i := range nearColumns + 1 {
		m.store(extent{offset: uint64(i)}, []byte{byte(i)})
		m.store(extent{offset: uint64(i)}, []byte{99}) // read twice concurrently
	}
	for i := range nearColumns + 1 {
		if got := m.cached(extent{offset: uint64(i)}); (got == nil) != (i == 0) || got != nil && got[0] != byte(i) {
			t.Errorf("column %d: %v", i, got)
		}
	}
	m.drop()
	if m.cached(extent{offset: 1}) != nil {
		t.Error("dropped columns are cached")
	}
}

// Whatever call fails, the writer returns the error, and Abort closes its file.
func TestWriter_FailureOfAnyCallIsReturned(t *testing.T) {
	errDisk := errors.New("disk")
	for n := 1; ; n++ {
		dir := t.TempDir()
		fs, err := crashfs.New(dir, func(c crashfs.Call) error {
			if c.Number == n {
				return errDisk
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		var spans TraceSpansBuilder
		spans.Add(1, profiles.TraceID{1}, 0, []uint32{1}, []int64{1})
		w, err := NewWriter(fs, dir)
		if err == nil {
			err = w.Add(&Row{Dataset: "a", Stacks: []uint32{1}, Values: []int64{1}})
			if err == nil {
				err = w.Finish(&Content{Types: []profiles.Type{testType}, Series: []Series{{Plain: labelenc.AppendLabel(nil, "a", "b")}}, Parts: mustEncode(datasets()[:1]), Spans: spans.Spans()})
			}
			w.Abort()
		}
		if failed := len(fs.Calls()) >= n; failed != errors.Is(err, errDisk) {
			t.Fatalf("call %d of %d: %v", n, len(fs.Calls()), err)
		} else if !failed {
			if err != nil || n < 9 {
				t.Errorf("%d calls, %v", n-1, err)
			}
			return
		}
	}
}

func TestWriter_SpansOfRowsFollowTypesAndDatasets(t *testing.T) {
	dir := t.TempDir()
	w, err := NewWriter(files.Disk{}, dir)
	if err != nil {
		t.Fatal(err)
	}
	one, two := Key{profiles.ID{1}, 5}, Key{profiles.ID{2}, 5}
	for _, r := range []Row{
		{Dataset: "a", Key: one, Series: 2}, {Dataset: "a", Key: two, Series: 0}, {Dataset: "a", Key: two, Series: 2}, {Dataset: "b", Key: two}, {Dataset: "b", Type: 1, Key: two}, {Dataset: "b", Type: 1, Key: one, Series: 1},
	} {
		if err := w.Add(&r); err != nil {
			t.Fatal(err)
		}
	}
	want := []Span{
		{Dataset: "a", Lo: 0, Hi: 3, Sorted: true, MultiRow: true, Series: []uint32{0, 2}}, {Dataset: "b", Lo: 3, Hi: 4, Sorted: true, Series: []uint32{0}},
		{Type: 1, Dataset: "b", Lo: 4, Hi: 6, Sorted: true, Series: []uint32{0, 1}},
	}
	if fmt.Sprintf("%+v", w.spans) != fmt.Sprintf("%+v", want) {
		t.Errorf("%+v", w.spans)
	}
	w.Abort()
}

func TestFullLabels_HasTheLabelsOfTheType(t *testing.T) {
	plain := labelenc.AppendLabel(nil, "pod", "a")
	all := string(FullLabels(plain, TypeLabels(testType)))
	for _, name := range []string{profiles.LabelPeriodType, profiles.LabelPeriodUnit, profiles.LabelType, profiles.LabelSampleType, profiles.LabelSampleUnit} {
		if !strings.Contains(all, name) {
			t.Errorf("%s is missing in %q", name, all)
		}
	}
	if err := labelenc.Validate([]byte(all)); err != nil {
		t.Error(err)
	}
	noUnit := testType
	noUnit.PeriodUnit = ""
	if got := string(FullLabels(plain, TypeLabels(noUnit))); strings.Contains(got, profiles.LabelPeriodUnit) {
		t.Errorf("%q", got)
	}
	if got := FullLabels([]byte{1, 2, 3}, TypeLabels(testType)); !bytes.Equal(got, []byte{1, 2, 3}) {
		t.Errorf("an invalid set: %q", got)
	}
}
