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
	"sync"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding"
	"github.com/prometheus/prometheus/tsdb/fileutil"

	"github.com/ferula-io/ferula/internal/profiles"
)

// Reader is an open block: two mapped files, or an index in memory and rows that are read
// by ranges. It is safe for concurrent use. Series, spans and symbols stay valid after Close; other
// results are valid until Close.
type Reader struct {
	name        string
	dir         string
	meta        Meta
	index, rows *fileutil.MmapFile
	remote      *remote // replaces index and rows if the block is not on disk
	indexBytes  int64
	spansBytes  int64 // size of SpansFile; on disk that of the file, because retention by size sums it up
	sections    map[uint32]section
	types       []profiles.Type
	series      []Series
	spans       []Span
	chunks      []chunk
	order       []byte // row numbers sorted by ID
	shared      []Key
	parts       []*filePart
	partOf      []int // by span: index in parts

	checked   []atomic.Uint32 // by chunk: bit set of the columns whose checksum was verified
	orderOnce sync.Once
	orderErr  error
	fileMu    sync.Mutex
	file      *parquet.File
	fileErr   error        // permanent
	wanted    atomic.Bool  // symbols were used since the last DropIdleSymbols
	pins      atomic.Int64 // users of the symbols that PinSymbols counted
	symbolsMu sync.Mutex
	closed    atomic.Bool // Close was called: symbols are no longer cached

	spansMu    sync.Mutex
	spansFile  *fileutil.MmapFile
	traceSpans *TraceSpans
	spansErr   error

	onSymbols func(int64) // called with the change of the decoded symbols' size; nil: not counted
}

var _ Source = (*Reader)(nil)

// Open opens the block in a directory. It verifies the index, except its IDs and symbols. The Reader
// verifies IDs, symbols and columns when they are first read.
func Open(dir string) (_ *Reader, err error) {
	r := &Reader{name: "block " + filepath.Base(dir), dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%s: %w", r.name, err), r.Close())
		}
	}()
	if r.index, err = mapFile(dir, IndexFile); err != nil {
		return nil, err
	}
	if r.rows, err = mapFile(dir, RowsFile); err != nil {
		return nil, err
	}
	r.indexBytes = int64(len(r.index.Bytes()))
	if err := r.read(r.index.Bytes(), uint64(len(r.rows.Bytes()))); err != nil {
		return nil, err
	}
	if info, err := os.Stat(filepath.Join(dir, SpansFile)); err == nil {
		r.spansBytes = info.Size()
	}
	return r, nil
}

// mapFile maps a file of a block. It opens only regular files: opening a FIFO would block until another process
// writes to the FIFO.
func mapFile(dir, name string) (*fileutil.MmapFile, error) {
	path := filepath.Join(dir, name)
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	var file *fileutil.MmapFile
	if err == nil {
		file, err = fileutil.OpenMmapFile(path)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return file, nil
}

// read decodes an index for a rows file of the given size.
func (r *Reader) read(index []byte, rowsBytes uint64) (err error) {
	if r.sections, err = sections(index); err != nil {
		return err
	}
	body := func(kind uint32) []byte {
		s, ok := r.sections[kind]
		if !ok {
			err = errors.Join(err, corruptf("index: section %d is missing", kind))
			return nil
		}
		b, openErr := s.open(int(kind))
		err = errors.Join(err, openErr)
		return b
	}
	meta, series, spans, chunks, shared, parts := body(sectionMeta), body(sectionSeries), body(sectionSpans),
		body(sectionChunks), body(sectionShared), body(sectionParts)
	if err != nil {
		return err
	}
	if r.meta, err = decodeMeta(meta); err != nil {
		return fmt.Errorf("meta: %w", err)
	}
	if r.meta.RowsBytes != rowsBytes {
		return corruptf("%s has %d bytes, want %d", RowsFile, rowsBytes, r.meta.RowsBytes)
	}
	if r.types, r.series, err = decodeSeries(series); err != nil {
		return fmt.Errorf("series: %w", err)
	}
	if r.spans, err = decodeSpans(spans, len(r.types), len(r.series), int(r.meta.Rows)); err != nil {
		return fmt.Errorf("spans: %w", err)
	}
	if r.chunks, err = decodeChunks(chunks, int(r.meta.Rows), rowsBytes); err != nil {
		return fmt.Errorf("chunks: %w", err)
	}
	if r.shared, err = decodeKeys(shared); err != nil {
		return fmt.Errorf("shared: %w", err)
	}
	ids, ok := r.sections[sectionIDs]
	if r.order = ids.stored; !ok || ids.compression != plain || uint64(len(r.order)) != 4*r.meta.Rows {
		return corruptf("%d bytes of ids for %d rows", len(r.order), r.meta.Rows)
	}
	if err := r.readParts(parts); err != nil {
		return err
	}
	r.checked = make([]atomic.Uint32, len(r.chunks))
	return nil
}

// Close unmaps the files.
func (r *Reader) Close() error {
	r.symbolsMu.Lock()
	r.closed.Store(true)
	r.dropSymbols(true)
	r.symbolsMu.Unlock()
	r.spansMu.Lock()
	defer r.spansMu.Unlock()
	var errs []error
	for _, f := range []*fileutil.MmapFile{r.index, r.rows, r.spansFile} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// Name returns the block's name in errors.
func (r *Reader) Name() string { return r.name }

// Meta returns the description of the block.
func (r *Reader) Meta() Meta { return r.meta }

// Bytes returns the size of the block's files.
func (r *Reader) Bytes() int64 { return r.indexBytes + int64(r.meta.RowsBytes) + r.spansBytes }

// IndexBytes returns the size of the block's index.
func (r *Reader) IndexBytes() int64 { return r.indexBytes }

// Bounds returns the first and last timestamp.
func (r *Reader) Bounds() (int64, int64) { return r.meta.MinNS, r.meta.MaxNS }

// Rows returns the number of rows.
func (r *Reader) Rows() int { return int(r.meta.Rows) }

// Types returns the profile types of the rows.
func (r *Reader) Types() []profiles.Type { return r.types }

// Series returns the label sets.
func (r *Reader) Series() ([]Series, error) { return r.series, nil }

// Spans returns the spans of rows.
func (r *Reader) Spans() ([]Span, error) { return r.spans, nil }

// Shared implements Source.
func (r *Reader) Shared() []Key { return r.shared }

// column returns the bytes of a column in a row group. It verifies the checksum when it reads the column: on disk the
// first time, of a remote block unless the column is cached.
func (r *Reader) column(group, col int) (b []byte, err error) {
	p := r.chunks[group].places[col]
	if r.remote == nil {
		if b = r.rows.Bytes()[p.offset : p.offset+p.size : p.offset+p.size]; r.isChecked(group, col) {
			return b, nil
		}
	} else {
		if b = r.remote.cached(p); b != nil {
			return b, nil
		}
		b = make([]byte, p.size)
		if _, err := r.remote.ReadAt(b, int64(p.offset)); err != nil {
			return nil, fmt.Errorf("column %s of row group %d: %w", columnNames[col], group, err)
		}
	}
	if err := r.check(group, col, b); err != nil {
		return nil, err
	}
	if r.remote != nil {
		r.remote.store(p, b)
	}
	return b, nil
}

// isChecked reports whether the checksum of a column was verified.
func (r *Reader) isChecked(group, col int) bool { return r.checked[group].Load()&(1<<col) != 0 }

// check verifies the checksum of a column, and in colSeries the references to series.
func (r *Reader) check(group, col int, b []byte) error {
	if xxhash.Sum64(b) != r.chunks[group].places[col].sum {
		return corruptf("column %s of row group %d: wrong checksum", columnNames[col], group)
	}
	if col == colSeries {
		for i := 0; i < len(b); i += 4 {
			if binary.LittleEndian.Uint32(b[i:]) >= uint32(len(r.series)) {
				return corruptf("row %d has an unknown series", group*groupRows+i/4)
			}
		}
	}
	r.checked[group].Or(1 << col)
	return nil
}

// checkPages verifies the checksum of a column of variable width before parquet reads it.
func (r *Reader) checkPages(group, col int) error {
	if r.isChecked(group, col) {
		return nil
	}
	p := r.chunks[group].places[col]
	sum, err := r.sum(p)
	if err == nil && sum != p.sum {
		return corruptf("column %s of row group %d: wrong checksum", columnNames[col], group)
	}
	if err != nil {
		return fmt.Errorf("column %s of row group %d: %w", columnNames[col], group, err)
	}
	r.checked[group].Or(1 << col)
	return nil
}

// groupOf returns the row group of a row.
func (r *Reader) groupOf(row int) (int, error) {
	if uint(row) >= uint(r.meta.Rows) {
		return 0, corruptf("no row %d", row)
	}
	return row / groupRows, nil
}

// Columns returns the columns of the row's group.
func (r *Reader) Columns(row int) (c Columns, err error) {
	group, err := r.groupOf(row)
	if err != nil {
		return c, err
	}
	c.First, c.N = group*groupRows, r.chunks[group].rows
	for col, b := range []*[]byte{colSeries: &c.Series, colTime: &c.Time, colValue: &c.Value, colProfile: &c.Profile} {
		if *b, err = r.column(group, col); err != nil {
			return c, err
		}
	}
	return c, nil
}

// IDs returns the IDs of the row's group.
func (r *Reader) IDs(row int) ([]byte, error) {
	group, err := r.groupOf(row)
	if err != nil {
		return nil, err
	}
	return r.column(group, colID)
}

// ID returns the ID of a row's profile.
func (r *Reader) ID(row int) (id profiles.ID, err error) {
	b, err := r.IDs(row)
	if err == nil {
		copy(id[:], b[16*(row%groupRows):])
	}
	return id, err
}

// Find calls f with the rows of a profile, ascending.
func (r *Reader) Find(id profiles.ID, f func(row int)) error {
	r.orderOnce.Do(func() { _, r.orderErr = r.sections[sectionIDs].open(sectionIDs) })
	if r.orderErr != nil {
		return r.orderErr
	}
	at := func(i int) int { return int(binary.LittleEndian.Uint32(r.order[4*i:])) }
	lo, hi := 0, r.Rows()
	for lo < hi {
		mid := (lo + hi) / 2
		other, err := r.ID(at(mid))
		if err != nil {
			return err
		}
		if bytes.Compare(other[:], id[:]) < 0 {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	for ; lo < r.Rows(); lo++ {
		other, err := r.ID(at(lo))
		if err != nil {
			return err
		}
		if other != id {
			break
		}
		f(at(lo))
	}
	return nil
}

func (r *Reader) count(bytes int64) {
	if r.onSymbols != nil {
		r.onSymbols(bytes)
	}
}

// OnSymbols sets a function that is called with the change, in bytes, of the memory of
// cached symbols. It must be called before the first use of the reader.
func (r *Reader) OnSymbols(f func(bytes int64)) { r.onSymbols = f }

// decodedShare is the estimated size of decoded symbols divided by the size of encoded symbols: a
// number takes one to three bytes encoded, and four bytes decoded.
const decodedShare = 4

// SymbolsBytes estimates the memory of the decoded symbols of all parts.
func (r *Reader) SymbolsBytes() (bytes int64) {
	for i := range r.parts {
		bytes += r.PartBytes(i)
	}
	return bytes
}

// PinSymbols prevents DropSymbols from dropping the symbols until done is called.
func (r *Reader) PinSymbols() (done func()) {
	r.pins.Add(1)
	return func() { r.pins.Add(-1) }
}

// DropSymbols drops the symbols unless they are pinned or being decoded.
func (r *Reader) DropSymbols() {
	if !r.symbolsMu.TryLock() {
		return
	}
	defer r.symbolsMu.Unlock()
	r.dropSymbols(r.pins.Load() == 0)
}

// dropSymbols drops the symbols if drop is set. r.symbolsMu is held.
func (r *Reader) dropSymbols(drop bool) {
	if !drop {
		return
	}
	for i, p := range r.parts {
		if p.symbols.Swap(nil) != nil {
			r.count(-r.PartBytes(i))
		}
	}
}

// DropIdleSymbols drops symbols that were not used since the last call. Callers that have
// them may go on using them.
func (r *Reader) DropIdleSymbols() {
	if !r.wanted.Swap(false) {
		r.DropSymbols()
	}
	if r.remote != nil {
		r.remote.drop()
	}
}

// parquetFile opens the rows file once. Errors of a remote file are not cached.
func (r *Reader) parquetFile() (*parquet.File, error) {
	r.fileMu.Lock()
	defer r.fileMu.Unlock()
	if r.file != nil || r.fileErr != nil {
		return r.file, r.fileErr
	}
	file, err := r.openParquet()
	if r.remote == nil {
		r.fileErr = err
	}
	r.file = file
	return file, err
}

// readFailed reports whether an error is a failed read, not bad content.
func readFailed(err error) bool { return errors.Is(err, profiles.ErrUnavailable) }

// Samples calls f with the samples of rows, which must ascend.
func (r *Reader) Samples(ctx context.Context, rows []int,
	f func(row int, stacks []uint32, values []int64) error) error {
	if len(rows) == 0 {
		return nil
	}
	file, err := r.parquetFile()
	if err != nil {
		return err
	}
	var values []int64
	for len(rows) > 0 {
		group, err := r.groupOf(rows[0])
		if err != nil {
			return err
		}
		n := 0
		for n < len(rows) && rows[n]/groupRows == group {
			n++
		}
		if values, err = r.groupSamples(ctx, file, group, rows[:n], values, f); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

func (r *Reader) groupSamples(ctx context.Context, file *parquet.File, group int, rows []int, values []int64,
	f func(row int, stacks []uint32, values []int64) error,
) (_ []int64, err error) {
	counts, err := r.column(group, colCount)
	if err != nil {
		return values, err
	}
	scales, err := r.column(group, colScale)
	if err != nil {
		return values, err
	}
	for _, col := range []int{colStacks, colValues} {
		if err := r.checkPages(group, col); err != nil {
			return values, err
		}
	}
	columns, nodes := file.RowGroups()[group].ColumnChunks(), r.stacks()
	stacks, scaled := lists{counts: counts, kind: encoding.Int32, width: 4},
		lists{counts: counts, kind: encoding.Int64, width: 8}
	stacks.begin(columns[colStacks])
	scaled.begin(columns[colValues])
	defer func() { err = errors.Join(err, stacks.end(), scaled.end()) }()
	for i, at := range rows {
		if i%64 == 0 {
			if err := ctx.Err(); err != nil {
				return values, err
			}
		}
		row := at % groupRows
		if row >= r.chunks[group].rows {
			return values, corruptf("no row %d", at)
		}
		from, to, err := stacks.find(row)
		if err != nil {
			return values, fmt.Errorf("stacks of row %d: %w", at, err)
		}
		own := stacks.u32[from:to]
		for _, stack := range own {
			if stack >= uint32(nodes) {
				return values, corruptf("row %d has stack %d of %d", at, stack, nodes)
			}
		}
		if from, to, err = scaled.find(row); err != nil {
			return values, fmt.Errorf("values of row %d: %w", at, err)
		}
		scale := int64(binary.LittleEndian.Uint64(scales[8*row:]))
		values = values[:0]
		for _, v := range scaled.i64[from:to] {
			if scale < 1 || v < 0 || v > math.MaxInt64/scale {
				return values, corruptf("row %d has the value %d times %d", at, v, scale)
			}
			values = append(values, v*scale)
		}
		if err := f(at, own, values); err != nil {
			return values, err
		}
	}
	return values, nil
}

// lists finds the lists of rows in the pages of a column.
type lists struct {
	counts []byte // of all rows of the group
	kind   encoding.Kind
	width  int64
	pages  parquet.Pages
	page   parquet.Page
	first  int // first row of the page
	rows   int // number of rows of the page
	row    int // the row whose list begins at offset at
	at     int // offset in the page's values
	length int // number of the page's values
	u32    []uint32
	i64    []int64
}

func (l *lists) begin(column parquet.ColumnChunk) { l.pages = column.Pages() }

func (l *lists) end() error {
	parquet.Release(l.page)
	return l.pages.Close()
}

// find reads the page with the list of a row, unless it is the current page, and returns the range of
// the list in the page's values. Rows must ascend from call to call.
func (l *lists) find(row int) (from, to int, err error) {
	if l.page == nil || row >= l.first+l.rows {
		if err := l.turn(row); err != nil {
			return 0, 0, err
		}
	}
	for ; l.row < row; l.row++ {
		l.at += int(binary.LittleEndian.Uint32(l.counts[4*l.row:]))
	}
	from, to = l.at, l.at+int(binary.LittleEndian.Uint32(l.counts[4*row:]))
	if to > l.length {
		return 0, 0, corruptf("the list of row %d is longer than its page", row)
	}
	return from, to, nil
}

// pageError wraps an error of parquet as corrupt unless it is a failed read.
func pageError(err error) error {
	if readFailed(err) {
		return err
	}
	return corruptf("%v", err)
}

// turn makes the page with the list of a row the current page.
func (l *lists) turn(row int) (err error) {
	defer func() { // the checksum is right, but parquet's decoder may still panic
		if p := recover(); p != nil {
			err = corruptf("page of row %d: %v", row, p)
		}
	}()
	next := l.first + l.rows
	parquet.Release(l.page)
	l.page = nil
	if row > next {
		if err := l.pages.SeekToRow(int64(row)); err != nil {
			return pageError(err)
		}
		next = row
	}
	page, err := l.pages.ReadPage()
	if err != nil {
		return pageError(err)
	}
	values := page.Data()
	if values.Kind() != l.kind {
		return corruptf("the page has values of %s", values.Kind())
	}
	if l.kind == encoding.Int32 {
		l.u32 = values.Uint32()
	} else {
		l.i64 = values.Int64()
	}
	l.page, l.first, l.rows, l.row, l.at, l.length = page, next, int(page.NumRows()), next, 0, int(values.Size()/l.width)
	if row >= l.first+l.rows {
		return corruptf("row %d is in no page", row)
	}
	return nil
}
