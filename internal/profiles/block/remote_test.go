package block

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/ferula-io/ferula/internal/profiles"
)

// countedRows records the ranges read from a file, and may fail.
type countedRows struct {
	*bytes.Reader
	spans [][2]int64
	err   error
}

func (c *countedRows) ReadAt(b []byte, at int64) (int, error) {
	c.spans = append(c.spans, [2]int64{at, at + int64(len(b))})
	if c.err != nil {
		return 0, c.err
	}
	return c.Reader.ReadAt(b, at)
}

func (c *countedRows) touched(p extent) bool {
	return slices.ContainsFunc(c.spans, func(s [2]int64) bool { return s[0] < int64(p.offset+p.size) && s[1] > int64(p.offset) })
}

func openRemote(t *testing.T, dir string, change func(index, rows []byte)) (*Reader, *countedRows, error) {
	t.Helper()
	index, err := os.ReadFile(filepath.Join(dir, IndexFile))
	rows, err2 := os.ReadFile(filepath.Join(dir, RowsFile))
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(index, rows)
	}
	counted := &countedRows{Reader: bytes.NewReader(rows)}
	r, err := OpenAt("far", index, counted, int64(len(rows)))
	return r, counted, err
}

func TestOpenAt_EqualsOpenAndReadsOnlyNeededBytes(t *testing.T) {
	dir, written := writeRows(t, 2*groupRows+77)
	local, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	far, counted, err := openRemote(t, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(counted.spans) > 0 || far.Bytes() != local.Bytes() || far.Rows() != local.Rows() {
		t.Fatalf("opening read %v; %d bytes want %d", counted.spans, far.Bytes(), local.Bytes())
	}
	for row := 0; row < far.Rows(); row += groupRows {
		want, err := local.Columns(row)
		if err != nil {
			t.Fatal(err)
		}
		got, err := far.Columns(row)
		if err != nil || !bytes.Equal(got.Time, want.Time) || !bytes.Equal(got.Value, want.Value) || !bytes.Equal(got.Series, want.Series) || !bytes.Equal(got.Profile, want.Profile) {
			t.Fatalf("row %d: %v", row, err)
		}
	}
	for _, c := range far.chunks {
		for _, col := range []int{colID, colCount, colScale, colStacks, colValues} {
			if counted.touched(c.places[col]) {
				t.Errorf("a scan read column %s", columnNames[col])
			}
		}
	}
	before := len(counted.spans)
	if _, err := far.Columns(far.Rows() - 1); err != nil || len(counted.spans) != before {
		t.Errorf("the same columns were read again: %v", err)
	}
	rows := []int{3, 4, groupRows + 9, 2*groupRows + 70}
	at := 0
	err = far.Samples(context.Background(), rows, func(row int, stacks []uint32, values []int64) error {
		if row != rows[at] || !slices.Equal(stacks, written[row].Stacks) || !slices.Equal(values, written[row].Values) {
			t.Errorf("row %d: %v %v, want %v %v", row, stacks, values, written[row].Stacks, written[row].Values)
		}
		at++
		return nil
	})
	if err != nil || at != len(rows) {
		t.Fatal(at, err)
	}
	var found []int
	if err := far.Find(written[groupRows].Key.ID, func(row int) { found = append(found, row) }); err != nil || !slices.Contains(found, groupRows) || len(found) != 3 {
		t.Errorf("found %v, %v", found, err)
	}
}

func TestOpenAt_ErrorsNameTheBlock(t *testing.T) {
	dir, _ := writeRows(t, 100)
	samples := func(r *Reader) error {
		return r.Samples(context.Background(), []int{1}, func(int, []uint32, []int64) error { return nil })
	}
	whole, _, err := openRemote(t, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	for col := range numColumns {
		r, _, err := openRemote(t, dir, func(_, rows []byte) { rows[whole.chunks[0].places[col].offset] ^= 1 })
		if err != nil {
			t.Fatal(err)
		}
		_, scanned := r.Columns(0)
		_, id := r.ID(0)
		if err := errors.Join(scanned, id, samples(r)); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), columnNames[col]) {
			t.Errorf("%s: %v", columnNames[col], err)
		}
	}
	if _, _, err := openRemote(t, dir, func(index, _ []byte) { index[len(magic)+sectionHeader] ^= 1 }); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "block far") {
		t.Error(err)
	}
	r, counted, err := openRemote(t, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	counted.err = errors.New("no route")
	if _, err := r.Columns(0); !errors.Is(err, profiles.ErrUnavailable) || errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "no route") {
		t.Error(err)
	}
	if err := samples(r); !errors.Is(err, profiles.ErrUnavailable) {
		t.Error(err)
	}
	counted.err = nil // a network error is temporary
	if err := samples(r); err != nil {
		t.Error(err)
	}
}

func TestReader_RowOfAnUnknownSeriesIsCorrupt(t *testing.T) {
	dir, _ := writeRows(t, 100)
	r, _, err := openRemote(t, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	for number, ok := range map[int]bool{len(r.series) - 1: true, len(r.series): false, len(r.series) + 1: false} {
		column := binary.LittleEndian.AppendUint32(make([]byte, 4), uint32(number))
		r.chunks[0].places[colSeries].sum = xxhash.Sum64(column)
		expect(t, fmt.Sprintf("series %d of %d", number, len(r.series)), r.check(0, colSeries, column), ok)
	}
}

func TestMetaOf_ReadsTheBeginningOfAnIndex(t *testing.T) {
	dir, _ := writeRows(t, 100)
	whole, _, err := openRemote(t, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	index, err := os.ReadFile(filepath.Join(dir, IndexFile))
	if err != nil {
		t.Fatal(err)
	}
	m, err := MetaOf(index[:200])
	if err != nil || m.ULID != whole.Meta().ULID || m.MaxNS != whole.Meta().MaxNS || len(m.Parents) != 1 {
		t.Errorf("%+v, %v", m, err)
	}
	for n := range 60 {
		if _, err := MetaOf(index[:n]); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}
