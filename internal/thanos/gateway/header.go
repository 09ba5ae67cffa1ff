package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"sort"

	"github.com/prometheus/prometheus/tsdb/fileutil"
	"github.com/prometheus/prometheus/tsdb/index"

	"github.com/ferula-io/ferula/internal/blocks/pages"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// header is the part of a block's index that is needed to find postings and to encode labels.
// It is a mapped local file: sections of the index, unchanged, and tables of offsets into
// them.
//
//	head     u64 each: magic, crc32 of all bytes after it, series and postingsEnd of the toc, size of the index, size of each section below
//	front    the index from its first byte to the series: magic, version, symbols
//	table    the postings offset table
//	offsets  u32 for each symbol and one more: its start in the symbols
//	names    for each label name: u32 offset in the table, u32 index in samples of its first value
//	samples  for every 32nd value of a name: u32 offset in the table
//
// Each section is padded to a multiple of 8 bytes; its size in the head is without the padding. All numbers are
// big-endian, as in an index.
type header struct {
	file    *fileutil.MmapFile
	toc     toc
	symbols []byte // the strings, each with its length
	offsets []byte // the sections offsets, names and samples of the file
	table   []byte // entries of the postings offset table, without their number
	names   []byte
	samples []byte

	labelNames []string // sorted; the empty name of all postings is left out
}

// toc has the offsets of the sections of an index, and the size of the index.
type toc struct{ series, postingsEnd, table, size uint64 }

const (
	headerMagic  = 0x6665_7268_6472_3033 // "ferhdr03"
	headerHead   = 8 + 8 + 8*8
	sampledEvery = 32
	indexTail    = 6*8 + 4 // the table of contents: offsets and a checksum
	tailBytes    = 64 << 10
	symbolsMax   = 1 << 30
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// headerPath is the local file of a block.
func headerPath(dir string, b *block) string {
	return filepath.Join(dir, "headers", b.meta.ID.String())
}

// openHeader maps the header of a block at path. If there is no valid header of this index at path, it fetches one.
func openHeader(ctx context.Context, path string, from *pages.Object) (*header, error) {
	h, err := mapHeader(path, uint64(from.Size()))
	if err == nil {
		return h, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return nil, err
	}
	if err := fetchHeader(ctx, path, from); err != nil {
		return nil, err
	}
	return mapHeader(path, uint64(from.Size()))
}

// fetchHeader writes the header of a block to path.
func fetchHeader(ctx context.Context, path string, from *pages.Object) (err error) {
	size := from.Size()
	if size < indexTail+index.HeaderLen {
		return fmt.Errorf("%w: an index of %d bytes", ErrCorrupt, size)
	}
	t, err := readTOC(ctx, from)
	if err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(path), "*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		_ = file.Close()
		if err != nil {
			_ = os.Remove(file.Name())
		}
	}()
	w := &headerWriter{file: file, out: bufio.NewWriterSize(file, 64<<10)}
	w.toc = toc{series: t.Series, postingsEnd: t.PostingsTable, table: t.PostingsTable, size: uint64(size)}
	w.pad(headerHead)
	w.copyRange(ctx, from, 0, int64(t.Series))
	w.copyRange(ctx, from, int64(t.PostingsTable), size-indexTail-int64(t.PostingsTable))
	if w.err == nil {
		w.err = w.out.Flush()
	}
	if w.err != nil {
		return w.err
	}
	if err := w.tables(); err != nil {
		return err
	}
	if err := w.seal(); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}

// readTOC reads the table of contents, which is at the end of an index. With the same request it
// fetches about the last tailBytes bytes of the index into the page cache. These bytes include the end
// of the postings offset table, which fetchHeader reads next. An index of at most tailBytes is fetched
// as a whole.
func readTOC(ctx context.Context, from *pages.Object) (*index.TOC, error) {
	off := from.Size() - indexTail
	start := max(from.Size()-tailBytes, 0)
	start = min((start+pages.Bytes-1)/pages.Bytes*pages.Bytes, off)
	if err := from.Fetch(ctx, []pages.Span{{Off: start, Len: from.Size() - start}}); err != nil {
		return nil, err
	}
	r := from.Reader()
	defer r.Release()
	tail, err := r.Bytes(ctx, from, off, indexTail)
	if err != nil {
		return nil, err
	}
	t, err := index.NewTOCFromByteSlice(byteSlice(tail))
	if err != nil {
		return nil, fmt.Errorf("%w: table of contents: %w", ErrCorrupt, err)
	}
	if t.Symbols != index.HeaderLen || t.Series < t.Symbols+8 || t.PostingsTable < t.Series ||
		t.PostingsTable >= uint64(off) || t.Series > symbolsMax {
		return nil, fmt.Errorf("%w: table of contents", ErrCorrupt)
	}
	return t, nil
}

// headerWriter writes a header's sections.
type headerWriter struct {
	file  *os.File
	out   *bufio.Writer
	toc   toc
	at    int64
	sizes []uint64 // of the sections, without padding
	err   error
}

func (w *headerWriter) pad(n int64) {
	if w.err == nil {
		_, w.err = w.out.Write(make([]byte, n))
		w.at += n
	}
}

// end records a section of n bytes and pads it to a multiple of 8.
func (w *headerWriter) end(n int64) {
	w.sizes = append(w.sizes, uint64(n))
	w.pad(-n & 7)
}

func (w *headerWriter) copyRange(ctx context.Context, from *pages.Object, off, n int64) {
	if w.err == nil {
		w.err = from.Copy(ctx, w.out, off, n)
		w.at += n
		w.end(n)
	}
}

func (w *headerWriter) u32(v uint32) {
	if w.err == nil {
		_, w.err = w.out.Write(binary.BigEndian.AppendUint32(w.out.AvailableBuffer(), v))
		w.at += 4
	}
}

// tables checks the sections front and table, and writes the sections offsets, names and
// samples.
func (w *headerWriter) tables() error {
	mapping, err := fileutil.OpenMmapFile(w.file.Name())
	if err != nil {
		return err
	}
	//lint:ignore errcheck the mapping is read only
	defer mapping.Close()
	at := int64(headerHead)
	front := mapping.Bytes()[at : at+int64(w.sizes[0])]
	at += int64(w.sizes[0]) + (-int64(w.sizes[0]) & 7)
	table, count, err := section(mapping.Bytes()[at : at+int64(w.sizes[1])])
	if err != nil {
		return fmt.Errorf("postings table: %w", err)
	}
	if binary.BigEndian.Uint32(front) != index.MagicIndex || front[4] != index.FormatV2 {
		return fmt.Errorf("%w: it is not an index of version 2", ErrCorrupt)
	}
	if err := w.symbolOffsets(front[index.HeaderLen:]); err != nil {
		return fmt.Errorf("symbols: %w", err)
	}
	if err := w.names(table, count); err != nil {
		return fmt.Errorf("postings table: %w", err)
	}
	if w.err == nil {
		w.err = w.out.Flush()
	}
	return w.err
}

// section returns the entries of a section: len u32 | count u32 | entries | crc32.
func section(src []byte) (entries []byte, count uint32, err error) {
	if len(src) < 4 {
		return nil, 0, fmt.Errorf("%w: cut short", ErrCorrupt)
	}
	size := uint64(binary.BigEndian.Uint32(src))
	if size < 4 || size+8 > uint64(len(src)) {
		return nil, 0, fmt.Errorf("%w: cut short", ErrCorrupt)
	}
	content := src[4 : 4+size]
	if crc32.Checksum(content, castagnoli) != binary.BigEndian.Uint32(src[4+size:]) {
		return nil, 0, fmt.Errorf("%w: checksum", ErrCorrupt)
	}
	return content[4:], binary.BigEndian.Uint32(content), nil
}

func (w *headerWriter) symbolOffsets(src []byte) error {
	symbols, count, err := section(src)
	if err != nil {
		return err
	}
	if int64(count) > int64(len(symbols)) { // each has a byte at least
		return fmt.Errorf("%w: %d symbols in %d bytes", ErrCorrupt, count, len(symbols))
	}
	at := 0
	var last []byte
	for i := range count {
		w.u32(uint32(at))
		symbol, rest, ok := labelenc.Prefixed(symbols[at:])
		if !ok {
			return fmt.Errorf("%w: symbol %d is cut short", ErrCorrupt, i)
		}
		// Series are compared by the numbers of their symbols, which therefore must be sorted.
		if i > 0 && bytes.Compare(last, symbol) >= 0 {
			return fmt.Errorf("%w: symbol %d is out of order", ErrCorrupt, i)
		}
		at += len(symbols) - at - len(rest)
		last = symbol
	}
	w.u32(uint32(at))
	w.end(4 * (int64(count) + 1))
	return nil
}

// names writes the sections names and samples.
func (w *headerWriter) names(table []byte, count uint32) error {
	var names, samples []uint32
	var last, lastValue []byte
	for at, i, inName := 0, uint32(0), 0; i < count; i++ {
		e, rest, ok := tableEntry(table[at:])
		if !ok {
			return fmt.Errorf("%w: entry %d is cut short", ErrCorrupt, i)
		}
		switch order := compareEntries(last, lastValue, e); {
		case i == 0 || order == -2:
			names = append(names, uint32(at), uint32(len(samples)))
			inName = 0
		case order >= 0:
			return fmt.Errorf("%w: entry %d is out of order", ErrCorrupt, i)
		}
		if inName%sampledEvery == 0 {
			samples = append(samples, uint32(at))
		}
		inName++
		last, lastValue = e.name, e.value
		at = len(table) - len(rest)
	}
	names = append(names, uint32(len(table)), uint32(len(samples)))
	for _, list := range [][]uint32{names, samples} {
		for _, v := range list {
			w.u32(v)
		}
		w.end(4 * int64(len(list)))
	}
	return nil
}

// compareEntries compares an entry with the next one: -2 if the next name is greater, -1 if
// the name is the same and the next value is greater, >= 0 if the entries are out of order.
func compareEntries(name, value []byte, next entry) int {
	switch {
	case string(name) < string(next.name):
		return -2
	case string(name) == string(next.name) && string(value) < string(next.value):
		return -1
	}
	return 0
}

// seal writes the head. Its checksum covers all bytes after it.
func (w *headerWriter) seal() error {
	head := binary.BigEndian.AppendUint64(nil, headerMagic)
	head = append(head, make([]byte, 8)...)
	for _, v := range []uint64{w.toc.series, w.toc.postingsEnd, w.toc.size} {
		head = binary.BigEndian.AppendUint64(head, v)
	}
	for _, size := range w.sizes {
		head = binary.BigEndian.AppendUint64(head, size)
	}
	if _, err := w.file.WriteAt(head[16:], 16); err != nil {
		return err
	}
	sum := crc32.New(castagnoli)
	if _, err := io.Copy(sum, io.NewSectionReader(w.file, 16, w.at-16)); err != nil {
		return err
	}
	binary.BigEndian.PutUint64(head[8:], uint64(sum.Sum32()))
	_, err := w.file.WriteAt(head[:16], 0)
	return err
}

// mapHeader maps a header that was written for an index of size bytes.
func mapHeader(path string, size uint64) (_ *header, err error) {
	file, err := fileutil.OpenMmapFile(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, file.Close())
		}
	}()
	b := file.Bytes()
	if len(b) < headerHead || binary.BigEndian.Uint64(b) != headerMagic ||
		binary.BigEndian.Uint64(b[8:]) != uint64(crc32.Checksum(b[16:], castagnoli)) {
		return nil, fmt.Errorf("%w: local header %s", ErrCorrupt, path)
	}
	word := func(i int) uint64 { return binary.BigEndian.Uint64(b[16+8*i:]) }
	h := &header{file: file, toc: toc{series: word(0), postingsEnd: word(1), table: word(1), size: word(2)}}
	if h.toc.size != size {
		return nil, fmt.Errorf("%w: local header %s is of an index of %d bytes, not %d", ErrCorrupt, path, h.toc.size, size)
	}
	at := uint64(headerHead)
	var sections [5][]byte
	for i := range sections {
		n := word(3 + i)
		if n > uint64(len(b))-at {
			return nil, fmt.Errorf("%w: local header %s", ErrCorrupt, path)
		}
		sections[i] = b[at : at+n]
		at = min(at+n+(-n&7), uint64(len(b)))
	}
	h.symbols = sections[0][index.HeaderLen+8:]
	h.table = sections[1][8 : len(sections[1])-4]
	h.offsets, h.names, h.samples = sections[2], sections[3], sections[4]
	for i := range h.nameCount() {
		if e, _, ok := tableEntry(h.table[h.nameAt(i):]); ok && len(e.name) > 0 {
			h.labelNames = append(h.labelNames, string(e.name))
		}
	}
	return h, nil
}

func (h *header) close() error { return h.file.Close() }

func u32At(b []byte, i int) uint32 { return binary.BigEndian.Uint32(b[4*i:]) }

// symbol returns symbol n with its length prefix, mapped.
func (h *header) symbol(n uint64) ([]byte, bool) {
	if n >= uint64(len(h.offsets)/4-1) {
		return nil, false
	}
	return h.symbols[u32At(h.offsets, int(n)):u32At(h.offsets, int(n)+1)], true
}

// entry is one entry of the postings offset table.
type entry struct {
	name, value []byte
	off         uint64 // of the list of postings
}

// tableEntry cuts an entry off src: uvarint(2) name value uvarint(offset).
func tableEntry(src []byte) (e entry, rest []byte, ok bool) {
	if len(src) == 0 || src[0] != 2 {
		return e, nil, false
	}
	src = src[1:]
	if e.name, src, ok = labelenc.Prefixed(src); !ok {
		return e, nil, false
	}
	if e.value, src, ok = labelenc.Prefixed(src); !ok {
		return e, nil, false
	}
	off, n := binary.Uvarint(src)
	if n <= 0 {
		return e, nil, false
	}
	e.off = off
	return e, src[n:], true
}

func (h *header) nameCount() int      { return len(h.names)/8 - 1 }
func (h *header) nameAt(i int) uint32 { return u32At(h.names, 2*i) }

// entries returns the range of the table that has the entries of a label name, and the part of
// the section samples for this name; nil if no series has the name.
func (h *header) entries(name string) (from, to uint32, samples []byte) {
	n := h.nameCount()
	i := sort.Search(n, func(i int) bool {
		e, _, _ := tableEntry(h.table[h.nameAt(i):])
		return string(e.name) >= name
	})
	if i == n {
		return 0, 0, nil
	}
	if e, _, ok := tableEntry(h.table[h.nameAt(i):]); !ok || string(e.name) != name {
		return 0, 0, nil
	}
	first, last := u32At(h.names, 2*i+1), u32At(h.names, 2*i+3)
	return h.nameAt(i), h.nameAt(i + 1), h.samples[4*first : 4*last]
}

// list is the location of a list of postings in the index. end is the start of the next list:
// an upper bound, which is enough to read ahead.
type list struct{ off, end uint64 }

// find returns the list of postings of one label.
func (h *header) find(name, value string) (list, bool) {
	_, to, samples := h.entries(name)
	n := len(samples) / 4
	i := sort.Search(n, func(i int) bool {
		e, _, _ := tableEntry(h.table[u32At(samples, i):])
		return string(e.value) > value
	})
	if i == 0 {
		return list{}, false
	}
	found, ok := list{}, false
	h.scan(u32At(samples, i-1), to, func(e entry, end uint64) bool {
		if string(e.value) == value {
			found, ok = list{e.off, end}, true
		}
		return string(e.value) < value
	})
	return found, ok
}

// each calls f for the values of a name in order, until it returns false.
func (h *header) each(name string, f func(value []byte, l list) bool) {
	from, to, samples := h.entries(name)
	if samples == nil {
		return
	}
	h.scan(from, to, func(e entry, end uint64) bool { return f(e.value, list{e.off, end}) })
}

func (h *header) scan(from, to uint32, f func(e entry, end uint64) bool) {
	for at := from; at < to; {
		e, rest, ok := tableEntry(h.table[at:])
		if !ok {
			return // impossible: the table was checked when it was written
		}
		end := h.toc.postingsEnd
		if next, _, ok := tableEntry(rest); ok && next.off > e.off {
			end = next.off
		}
		if !f(e, end) {
			return
		}
		at = uint32(len(h.table) - len(rest))
	}
}

// byteSlice implements the interface that Prometheus' index package reads from.
type byteSlice []byte

func (b byteSlice) Len() int                           { return len(b) }
func (b byteSlice) Range(start, end int) []byte        { return b[start:end] }
func (b byteSlice) Sub(start, end int) index.ByteSlice { return b[start:end] }
