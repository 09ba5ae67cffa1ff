package export

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"

	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// parquetRow is the schema of a Parquet file; docs/formats/export.md describes it.
//
// The labels are one string, not a map and not columns. A map costs readers two values per
// label and row, and columns are not known before the last series. A string that is equal
// in all rows of a series is one entry of the row group's dictionary.
type parquetRow struct {
	Name      string   `parquet:"name,dict"`
	Labels    string   `parquet:"labels,dict"`
	Timestamp int64    `parquet:"timestamp,timestamp(millisecond:utc),delta"`
	Value     *float64 `parquet:"value,optional"`
	Histogram *string  `parquet:"histogram,optional"`
}

const (
	columnName = iota
	columnLabels
	columnTimestamp
	columnValue
	columnHistogram
	columns
)

const (
	rowGroupRows  = 512 << 10
	rowGroupBytes = 16 << 20 // of labels and histograms, before compression
	batchRows     = 1024     // rows that are passed to the library at once
	pageBytes     = 128 << 10
)

// parquetEncoder writes rows column by column. A row group is written, and its memory
// released, when it has enough rows or bytes.
type parquetEncoder struct {
	//lint:ignore SA1019 its replacement GenericWriter writes rows; columns are written here
	w       *parquet.Writer
	columns []*parquet.ColumnWriter
	rows    int
	bytes   int
	values  [columns][]parquet.Value
	name    []byte
	labels  []byte
}

//lint:ignore SA1019 its replacement GenericWriter writes rows; columns are written here
func newParquetWriter(w *bufio.Writer) *parquet.Writer {
	return parquet.NewWriter(w, parquet.SchemaOf(parquetRow{}),
		parquet.Compression(&zstd.Codec{Level: zstd.SpeedFastest}),
		parquet.PageBufferSize(pageBytes),
		parquet.WriteBufferSize(0), // w is buffered
		parquet.MaxRowsPerRowGroup(2*rowGroupRows),
		parquet.DataPageStatistics(true),
		// Min and max of the labels do not help to search for a label within the string.
		parquet.SkipPageBounds("labels"), parquet.SkipPageBounds("histogram"),
		parquet.CreatedBy("ferula", "1", "read"),
	)
}

func newParquetEncoder(w *bufio.Writer) *parquetEncoder {
	pw := newParquetWriter(w)
	return &parquetEncoder{w: pw, columns: pw.ColumnWriters()}
}

// reset begins another file. Rows that were not written are dropped.
func (e *parquetEncoder) reset(w *bufio.Writer) {
	e.w.Reset(w)
	e.columns, e.rows, e.bytes, e.values = e.w.ColumnWriters(), 0, 0, [columns][]parquet.Value{}
}

func (e *parquetEncoder) add(s *samples) (err error) {
	if e.labels, err = appendLabels(e.labels[:0], s.labels); err != nil {
		return err
	}
	e.name = append(e.name[:0], labelenc.Value(s.labels, "__name__")...)
	e.bytes += len(e.labels) + len(e.name)
	name := parquet.ByteArrayValue(e.name).Level(0, 0, columnName)
	labels := parquet.ByteArrayValue(e.labels).Level(0, 0, columnLabels)
	for {
		more, err := s.next()
		if err != nil {
			return err
		}
		if !more || len(e.values[0]) == batchRows || e.bytes >= rowGroupBytes {
			if err := e.write(); err != nil {
				return err
			}
		}
		if !more {
			return nil
		}
		e.row(name, labels, s)
	}
}

// row appends the current sample as one row.
func (e *parquetEncoder) row(name, labels parquet.Value, s *samples) {
	value := parquet.NullValue().Level(0, 0, columnValue)
	hist := parquet.NullValue().Level(0, 0, columnHistogram)
	switch {
	case s.stale():
	case s.hist != nil:
		text := appendHistogram(nil, s.hist)
		e.bytes += len(text)
		hist = parquet.ByteArrayValue(text).Level(0, 1, columnHistogram)
	default:
		value = parquet.DoubleValue(s.value).Level(0, 1, columnValue)
	}
	e.values[columnName] = append(e.values[columnName], name)
	e.values[columnLabels] = append(e.values[columnLabels], labels)
	e.values[columnTimestamp] = append(e.values[columnTimestamp],
		parquet.Int64Value(s.time).Level(0, 0, columnTimestamp))
	e.values[columnValue] = append(e.values[columnValue], value)
	e.values[columnHistogram] = append(e.values[columnHistogram], hist)
}

// write writes the rows to their columns.
func (e *parquetEncoder) write() error {
	rows := len(e.values[0])
	if rows == 0 {
		return nil
	}
	for i, column := range e.columns {
		n, err := column.WriteRowValues(e.values[i])
		if err != nil {
			return err
		}
		if n != rows {
			return fmt.Errorf("column %d took %d of %d rows", i, n, rows)
		}
		e.values[i] = e.values[i][:0]
	}
	if e.rows += rows; e.rows >= rowGroupRows || e.bytes >= rowGroupBytes {
		e.rows, e.bytes = 0, 0
		return e.w.Flush()
	}
	return nil
}

func (e *parquetEncoder) close() error        { return e.w.Close() }
func (*parquetEncoder) skippedSamples() int64 { return 0 }

// joinParquet copies the row groups of parts to one file, without decoding pages.
func joinParquet(ctx context.Context, w *bufio.Writer, parts []string) error {
	to := newParquetWriter(w)
	for _, path := range parts {
		if err := copyRowGroups(ctx, to, path); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return to.Close()
}

//lint:ignore SA1019 its replacement GenericWriter writes rows; columns are written here
func copyRowGroups(ctx context.Context, to *parquet.Writer, path string) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	part, err := parquet.OpenFile(f, info.Size())
	if err != nil {
		return err
	}
	for _, rows := range part.RowGroups() {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if _, err := to.WriteRowGroup(rows); err != nil {
			return err
		}
	}
	return nil
}
