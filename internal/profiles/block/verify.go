package block

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cespare/xxhash/v2"
)

// Verify reads the whole block in a directory. It compares the bytes with the block's checksums, the sums of rows with
// their samples, and timestamps with the range of the block. It checks the order of rows and of IDs. The error has
// every fault that was found. Verify writes nothing and takes no lock.
func Verify(ctx context.Context, dir string) (Meta, error) {
	r, err := Open(dir)
	if err != nil {
		return Meta{}, err
	}
	return r.meta, errors.Join(r.verify(ctx), r.Close())
}

func (r *Reader) verify(ctx context.Context) error {
	errs := []error{r.verifyFiles(), r.verifySymbols(), r.verifyIDs(), r.verifySpans(ctx)}
	span := 0
	for group := range r.chunks {
		if err := r.verifyGroup(ctx, group, &span); err != nil {
			errs = append(errs, fmt.Errorf("row group %d: %w", group, err))
		}
	}
	for i, err := range errs {
		if err != nil {
			errs[i] = fmt.Errorf("%s: %w", r.name, err)
		}
	}
	return errors.Join(errs...)
}

// verifyFiles checks the bytes that no query reads.
func (r *Reader) verifyFiles() error {
	errs := []error{checkSections(IndexFile, r.index.Bytes(), sectionRowsSum)}
	if r.meta.SpansBytes > 0 {
		if _, err := r.TraceSpans(); err == nil && r.spansFile != nil { // verifySpans returns the error
			file := r.spansFile.Bytes()
			if errs = append(errs, checkSections(SpansFile, file, sectionSpanSamples)); uint64(len(file)) != r.meta.SpansBytes {
				errs = append(errs, corruptf("%s has %d bytes, want %d", SpansFile, len(file), r.meta.SpansBytes))
			}
		}
	}
	sum := binary.LittleEndian.AppendUint64(nil, xxhash.Sum64(r.rows.Bytes()))
	if !bytes.Equal(r.sections[sectionRowsSum].stored, sum) {
		errs = append(errs, corruptf("%s: wrong checksum of the whole file", RowsFile))
	}
	return errors.Join(errs...)
}

// checkSections checks each byte of a file of sections. It returns an error for a section with a wrong
// checksum or size, for a kind of section that occurs twice or is above greatest, and for bytes after
// the last section.
func checkSections(name string, file []byte, greatest uint32) error {
	b, seen := file[len(magic):], map[uint32]bool{}
	for {
		kind, s, rest, err := cutSection(name, b)
		switch {
		case err != nil:
			return err
		case kind == sectionEnd:
			if !IsWhole(b) {
				return corruptf("%s: the last section is not as expected, or %d bytes follow it", name, len(b)-sectionHeader)
			}
			return nil
		case kind == 0 || kind > greatest && kind&sectionOptional == 0 || seen[kind]:
			return corruptf("%s: section %d is unknown or a duplicate", name, kind)
		case s.compression == plain && s.plain != uint64(len(s.stored)):
			return corruptf("%s: section %d: a header with wrong sizes", name, kind)
		case kind > greatest:
			s.compression = plain // only the checksum is known
		}
		seen[kind], b = true, rest
		if _, err := s.open(int(kind)); err != nil {
			return err
		}
	}
}

// verifySymbols decodes the symbols of every part.
func (r *Reader) verifySymbols() error {
	var errs []error
	for i, p := range r.parts {
		if _, err := p.decode(); err != nil {
			errs = append(errs, fmt.Errorf("symbols of dataset %q: %w", r.parts[i].Dataset, err))
		}
	}
	return errors.Join(errs...)
}

// verifyIDs checks that the list of rows in order of ID has each row once, and is in order.
func (r *Reader) verifyIDs() error {
	if _, err := r.sections[sectionIDs].open(sectionIDs); err != nil {
		return err
	}
	seen := make([]bool, r.Rows())
	var last [16]byte
	for i := range r.Rows() {
		row := binary.LittleEndian.Uint32(r.order[4*i:])
		if int(row) >= len(seen) || seen[row] {
			return corruptf("ids: entry %d is row %d, which is unknown or a duplicate", i, row)
		}
		seen[row] = true
		id, err := r.ID(int(row))
		if err != nil {
			return err
		}
		if bytes.Compare(id[:], last[:]) < 0 {
			return corruptf("ids: the id of row %d is less than the one before", row)
		}
		last = id
	}
	return nil
}

// verifySpans reads the samples of every span of a trace.
func (r *Reader) verifySpans(ctx context.Context) error {
	spans, err := r.TraceSpans()
	if err != nil || spans == nil {
		return err
	}
	nodes := r.stacks()
	var stacks []uint32
	var values []int64
	for i := range spans.Len() {
		if err := ctx.Err(); err != nil {
			return err
		}
		span, total := spans.Span(i), int64(0)
		if stacks, values, err = spans.Samples(span, stacks[:0], values[:0]); err != nil {
			return fmt.Errorf("span %016x: %w", span.ID, err)
		}
		for j, stack := range stacks {
			if int(stack) >= nodes {
				return corruptf("span %016x has stack %d of %d", span.ID, stack, nodes)
			}
			total = AddValues(total, values[j])
		}
		if total != span.Total {
			return corruptf("span %016x has samples of %d and the total %d", span.ID, total, span.Total)
		}
	}
	return nil
}

// verifyGroup checks the rows of a row group. span is an index in r.spans: before the call the span of the last row
// of the previous group, after the call the span of the last row of this group.
func (r *Reader) verifyGroup(ctx context.Context, group int, span *int) error {
	first := group * groupRows
	c, err := r.Columns(first)
	if err != nil {
		return err
	}
	ids, err := r.IDs(first)
	if err != nil {
		return err
	}
	rows := make([]int, c.N)
	for i := range rows {
		row := first + i
		rows[i] = row
		for row >= r.spans[*span].Hi {
			*span++
		}
		s := &r.spans[*span]
		if at := c.TimeAt(i); at < r.meta.MinNS || at > r.meta.MaxNS {
			return corruptf("row %d has the time %d, outside of the block", row, at)
		}
		if t := r.series[c.SeriesAt(i)].Type; s.Type >= 0 && t != uint32(s.Type) {
			return corruptf("row %d has the type %d within rows of type %d", row, t, s.Type)
		}
		if i == 0 || row == s.Lo || !s.Sorted {
			continue
		}
		if before, at := c.TimeAt(i-1), c.TimeAt(i); at < before || at == before &&
			bytes.Compare(ids[16*i:16*i+16], ids[16*i-16:16*i]) < 0 {
			return corruptf("row %d belongs before row %d", row, row-1)
		}
	}
	return r.Samples(ctx, rows, func(row int, _ []uint32, values []int64) error {
		var sum int64
		for _, v := range values {
			sum = AddValues(sum, v)
		}
		if value := c.ValueAt(row - first); value != sum {
			return corruptf("row %d has samples of %d and the value %d", row, sum, value)
		}
		return nil
	})
}
