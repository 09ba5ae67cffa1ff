package block

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"

	"github.com/cespare/xxhash/v2"
	"github.com/parquet-go/parquet-go"

	"github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/internal/profiles"
)

// Columns of RowsFile, by number.
const (
	colSeries = iota
	colTime
	colValue
	colProfile
	colID
	colCount
	colScale
	colStacks
	colValues
	numColumns
)

var (
	columnNames = [numColumns]string{"series", "time_ns", "value", "profile", "id", "samples", "scale", "stacks", "values"}
	widths      = [numColumns]int{4, 8, 8, 4, 16, 4, 8, 0, 0} // bytes per row; 0: variable
)

const (
	groupRows = 16 << 10
	// A page of any column of fixed width holds a whole group: such a column has at most 16 bytes per row.
	pageBytes = 17 * groupRows
)

// fileRow is a row of RowsFile. Columns of fixed width are neither encoded nor compressed,
// so that the offset of a row follows from its number.
type fileRow struct {
	Series  uint32   `parquet:"series,plain,uncompressed"`
	TimeNS  int64    `parquet:"time_ns,plain,uncompressed"`
	Value   int64    `parquet:"value,plain,uncompressed"`
	Profile uint32   `parquet:"profile,plain,uncompressed"`
	ID      [16]byte `parquet:"id,plain,uncompressed"`
	Count   uint32   `parquet:"samples,plain,uncompressed"`
	Scale   int64    `parquet:"scale,plain,uncompressed"`
	Stacks  []uint32 `parquet:"stacks,list" parquet-element:",delta"` // compressed by pages, like Values
	Values  []int64  `parquet:"values,list" parquet-element:",delta"`
}

// Row is one row to be written to a block.
type Row struct {
	Type    uint32 // index in Content.Types
	Dataset string
	Key     Key
	Series  uint32   // index in Content.Series
	Stacks  []uint32 // ascending; Stacks and Values are borrowed
	Values  []int64
}

// Writer writes one block. Rows must be sorted by type, dataset, timestamp, ID and series.
type Writer struct {
	fs       files.FS
	dir      string
	file     files.File
	parquet  *parquet.GenericWriter[fileRow]
	buffered []fileRow
	numbers  map[Key]uint32 // number of each profile, as in Columns.Profile
	spans    []Span
	last     Key // of the last row
	ids      []profiles.ID
	meta     Meta
}

// NewWriter starts a block in an existing, empty directory.
func NewWriter(fs files.FS, dir string) (*Writer, error) {
	file, err := fs.Create(filepath.Join(dir, RowsFile))
	if err != nil {
		return nil, err
	}
	w := &Writer{
		fs: fs, dir: dir, file: file, numbers: map[Key]uint32{},
		meta: Meta{MinNS: math.MaxInt64, MaxNS: math.MinInt64},
		parquet: parquet.NewGenericWriter[fileRow](file, parquet.PageBufferSize(pageBytes), parquet.WriteBufferSize(1<<20),
			parquet.DataPageStatistics(false), parquet.CreatedBy("ferula", "1", ""), parquet.Compression(pages{})),
	}
	return w, nil
}

// Abort closes the file; the caller removes the directory.
func (w *Writer) Abort() {
	if w.file != nil {
		_ = w.file.Close() // the file is about to be removed
	}
}

const rowsBuffered = 64

// Add adds a row.
func (w *Writer) Add(r *Row) error {
	number, ok := w.numbers[r.Key]
	if !ok {
		number = uint32(len(w.numbers))
		w.numbers[r.Key] = number
	}
	row := int(w.meta.Rows)
	if n := len(w.spans); n == 0 || w.spans[n-1].Type != int32(r.Type) || w.spans[n-1].Dataset != r.Dataset {
		w.spans = append(w.spans, Span{Type: int32(r.Type), Dataset: r.Dataset, Lo: row, Sorted: true})
	} else if w.last == r.Key {
		w.spans[n-1].MultiRow = true
	}
	span := &w.spans[len(w.spans)-1]
	span.Hi = row + 1
	if at, found := slices.BinarySearch(span.Series, r.Series); !found {
		span.Series = slices.Insert(span.Series, at, r.Series)
	}
	w.last = r.Key
	w.ids = append(w.ids, r.Key.ID)
	w.meta.Rows++
	if w.meta.Rows > math.MaxUint32 {
		return fmt.Errorf("%w: a block of more than %d rows", profiles.ErrLimit, uint32(math.MaxUint32))
	}
	w.meta.MinNS, w.meta.MaxNS = min(w.meta.MinNS, r.Key.TimeNS), max(w.meta.MaxNS, r.Key.TimeNS)
	w.buffer(r, number)
	if len(w.buffered) == rowsBuffered || w.meta.Rows%groupRows == 0 {
		return w.flush()
	}
	return nil
}

// buffer copies a row. It divides the values by their greatest common divisor. For CPU times of a
// sampling profiler this is the period.
func (w *Writer) buffer(r *Row, number uint32) {
	n := len(w.buffered)
	if n < cap(w.buffered) {
		w.buffered = w.buffered[:n+1]
	} else {
		w.buffered = append(w.buffered, fileRow{})
	}
	f := &w.buffered[n]
	*f = fileRow{
		Series: r.Series, TimeNS: r.Key.TimeNS, Profile: number, ID: r.Key.ID, Count: uint32(len(r.Stacks)), Scale: 1,
		Stacks: append(f.Stacks[:0], r.Stacks...), Values: append(f.Values[:0], r.Values...),
	}
	var scale int64
	for _, v := range f.Values {
		f.Value = AddValues(f.Value, v)
		for a := v; a != 0; {
			scale, a = a, scale%a
		}
	}
	if scale > 1 {
		f.Scale = scale
		for i := range f.Values {
			f.Values[i] /= scale
		}
	}
}

// flush passes the buffered rows to the Parquet writer, and ends the row group if it is full.
func (w *Writer) flush() error {
	if len(w.buffered) > 0 {
		if _, err := w.parquet.Write(w.buffered); err != nil {
			return err
		}
		w.buffered = w.buffered[:0]
	}
	if w.meta.Rows%groupRows == 0 {
		return w.parquet.Flush()
	}
	return nil
}

// Content is the part of a block other than its rows. Finish sets the fields of Meta that
// follow from the rows.
type Content struct {
	Meta   Meta
	Types  []profiles.Type // sorted by name
	Series []Series        // sorted by type and labels
	Parts  *PartsEncoder   // symbols of every dataset of the rows; or of one part without a dataset, for all rows
	Shared []Key           // as in Source.Shared
	Spans  *TraceSpans     // nil: none
}

// Finish writes the remaining rows, the spans and the index, syncs the files and the
// directory, and closes the files.
func (w *Writer) Finish(c *Content) (err error) {
	if err := w.flush(); err != nil {
		return err
	}
	if err := w.parquet.Close(); err != nil {
		return err
	}
	if err := closeFile(w.file); err != nil {
		return err
	}
	w.file = nil
	path := filepath.Join(w.dir, RowsFile)
	file, err := mapFile(w.dir, RowsFile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	b := file.Bytes()
	chunks, err := findChunks(b)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	meta := c.Meta
	meta.MinNS, meta.MaxNS, meta.Rows = w.meta.MinNS, w.meta.MaxNS, w.meta.Rows
	meta.Profiles, meta.RowsBytes = uint64(len(w.numbers)), uint64(len(b))
	for _, group := range chunks { // the last column ends at TailAt, where Parquet's metadata begins
		for _, p := range group.places {
			meta.TailAt = max(meta.TailAt, p.offset+p.size)
		}
	}
	meta.TailSum = xxhash.Sum64(b[meta.TailAt:])
	if meta.SpansBytes, err = w.writeSpans(c.Spans); err != nil {
		return err
	}
	parts, symbols := c.Parts.sections()
	index, err := appendSections([]byte(magic), []indexSection{
		{sectionMeta, plain, appendMeta(nil, &meta)},
		{sectionSeries, zstded, appendSeries(nil, c.Types, c.Series)},
		{sectionSpans, zstded, appendSpans(nil, w.spans)},
		{sectionChunks, plain, appendChunks(nil, chunks)},
		{sectionIDs, plain, w.idOrder()},
		{sectionParts, zstded, parts},
	})
	if err != nil {
		return err
	}
	end, err := appendSections(nil, []indexSection{
		{sectionShared, plain, appendKeys(nil, c.Shared)},
		{sectionRowsSum, plain, binary.LittleEndian.AppendUint64(nil, xxhash.Sum64(b))},
		{sectionEnd, plain, nil},
	})
	if err != nil {
		return err
	}
	// not copied: symbols are most of the index
	pieces := append([][]byte{appendPlainHeader(index, sectionPartSymbols, symbols)}, symbols...)
	if err := w.writeFile(IndexFile, append(pieces, end)...); err != nil {
		return err
	}
	return w.fs.SyncDir(w.dir)
}

type indexSection struct {
	kind, compression uint32
	body              []byte
}

func appendSections(dst []byte, sections []indexSection) (_ []byte, err error) {
	for _, s := range sections {
		if dst, err = appendSection(dst, s.kind, s.compression, s.body); err != nil {
			return nil, err
		}
	}
	return dst, nil
}

// writeSpans writes SpansFile if there are spans, and returns its size.
func (w *Writer) writeSpans(spans *TraceSpans) (uint64, error) {
	if spans == nil || spans.Len() == 0 {
		return 0, nil
	}
	b, err := spans.encode()
	if err != nil {
		return 0, err
	}
	return uint64(len(b)), w.writeFile(SpansFile, b)
}

func (w *Writer) writeFile(name string, pieces ...[]byte) error {
	file, err := w.fs.Create(filepath.Join(w.dir, name))
	if err != nil {
		return err
	}
	for _, b := range pieces {
		if _, err := file.Write(b); err != nil {
			return errors.Join(err, file.Close())
		}
	}
	return closeFile(file)
}

func closeFile(f files.File) error { return errors.Join(f.Sync(), f.Close()) }

// idOrder returns the row numbers sorted by ID.
func (w *Writer) idOrder() []byte {
	order := make([]uint32, len(w.ids))
	for i := range order {
		order[i] = uint32(i)
	}
	slices.SortFunc(order, func(a, b uint32) int {
		return cmp.Or(bytes.Compare(w.ids[a][:], w.ids[b][:]), cmp.Compare(a, b))
	})
	dst := make([]byte, 0, 4*len(order))
	for _, row := range order {
		dst = binary.LittleEndian.AppendUint32(dst, row)
	}
	return dst
}

// findChunks returns the extents of each row group's columns. The extent of a column of fixed
// width is its only page, without the header of the page. The extent of another column is all
// its pages.
func findChunks(b []byte) ([]chunk, error) {
	file, err := parquet.OpenFile(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		return nil, err
	}
	var chunks []chunk
	for _, group := range file.RowGroups() {
		c := chunk{rows: int(group.NumRows())}
		for i, column := range group.ColumnChunks() {
			offsets, err := column.OffsetIndex()
			if err != nil {
				return nil, err
			}
			p, err := findPlace(offsets, widths[i]*c.rows)
			if err != nil {
				return nil, fmt.Errorf("column %s: %w", columnNames[i], err)
			}
			p.sum = xxhash.Sum64(b[p.offset : p.offset+p.size])
			c.places[i] = p
		}
		chunks = append(chunks, c)
	}
	return chunks, nil
}

// findPlace returns the extent of a column of a row group, as findChunks describes. fixed is the number of bytes of
// all values in a column of fixed width; 0: another column.
func findPlace(offsets parquet.OffsetIndex, fixed int) (extent, error) {
	n := offsets.NumPages()
	if n == 0 {
		return extent{}, errors.New("the column has no pages")
	}
	first, end := offsets.Offset(0), offsets.Offset(n-1)+offsets.CompressedPageSize(n-1)
	if fixed == 0 {
		return extent{offset: uint64(first), size: uint64(end - first)}, nil
	}
	if n != 1 || end-first < int64(fixed) {
		return extent{}, fmt.Errorf("the column has %d pages of %d bytes, want one of at least %d", n, end-first, fixed)
	}
	return extent{offset: uint64(end) - uint64(fixed), size: uint64(fixed)}, nil
}
