package block

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/parquet-go/parquet-go"
	"github.com/prometheus/prometheus/tsdb/fileutil"

	"github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

var testType = profiles.Type{Name: "process_cpu", SampleType: "cpu", SampleUnit: "nanoseconds", PeriodType: "cpu", PeriodUnit: "nanoseconds"}

// writeRows writes a block of so many rows to a new directory.
func writeRows(t testing.TB, rows int) (dir string, written []Row) {
	t.Helper()
	dir = t.TempDir()
	w, err := NewWriter(files.Disk{}, dir)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, uint64(rows)))
	b := NewBuilder()
	for i := range 50 {
		b.Node(uint32(r.IntN(i+1)), b.Frame(b.Function(Function{Name: b.String(fmt.Appendf(nil, "f%d", i)), StartLine: int64(i)}), uint32(i)))
	}
	for i := range rows {
		row := Row{Key: Key{TimeNS: int64(1000 + i/3)}, Series: uint32(i % 3), Dataset: "a"}
		binary.BigEndian.PutUint64(row.Key.ID[:], uint64(i/3)) // three rows a profile
		for stack := uint32(r.IntN(5)); stack < uint32(len(b.Parents)); stack += 1 + uint32(r.IntN(20)) {
			row.Stacks, row.Values = append(row.Stacks, stack), append(row.Values, int64(1+r.IntN(100))*1e7)
		}
		if i%10 == 0 {
			row.Stacks, row.Values = nil, nil
		}
		if err := w.Add(&row); err != nil {
			t.Fatal(err)
		}
		written = append(written, row)
	}
	var series []Series
	for i := range 3 {
		plain := labelenc.AppendLabel(labelenc.AppendLabel(nil, "__name__", "process_cpu"), "pod", string(rune('a'+i)))
		series = append(series, Series{Plain: plain, Labels: FullLabels(plain, TypeLabels(testType))})
	}
	content := &Content{Types: []profiles.Type{testType}, Series: series, Parts: mustEncode([]datasetSymbols{{"a", &b.Symbols}}), Shared: []Key{{TimeNS: 5}}}
	content.Meta = Meta{ULID: [16]byte{1, 2}, Level: 3, Parents: [][16]byte{{9}}}
	if err := w.Finish(content); err != nil {
		t.Fatal(err)
	}
	return dir, written
}

func TestOpen_ReturnsWhatWasWritten(t *testing.T) {
	for _, rows := range []int{1, 63, 64, groupRows - 1, groupRows, groupRows + 1, 2*groupRows + 77} {
		dir, written := writeRows(t, rows)
		r, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if m := r.Meta(); m.Rows != uint64(rows) || m.Level != 3 || m.ULID != [16]byte{1, 2} || len(m.Parents) != 1 || m.MinNS != 1000 || m.MaxNS != int64(1000+(rows-1)/3) {
			t.Errorf("%d rows: meta %+v", rows, m)
		}
		all := make([]int, rows)
		for i := range all {
			all[i] = i
		}
		at := 0
		check := func(row int, stacks []uint32, values []int64) error {
			want := written[row]
			if !slices.Equal(stacks, want.Stacks) || !slices.Equal(values, want.Values) {
				t.Fatalf("row %d of %d: %v %v, want %v %v", row, rows, stacks, values, want.Stacks, want.Values)
			}
			c, err := r.Columns(row)
			if err != nil {
				t.Fatal(err)
			}
			var total int64
			for _, v := range want.Values {
				total += v
			}
			id, err := r.ID(row)
			if i := row - c.First; err != nil || id != want.Key.ID || c.SeriesAt(i) != want.Series || c.TimeAt(i) != want.Key.TimeNS || c.ValueAt(i) != total || c.ProfileAt(i) != uint32(row/3) {
				t.Fatalf("row %d of %d: %x %d %d %d, %v", row, rows, id, c.SeriesAt(i), c.TimeAt(i), c.ValueAt(i), err)
			}
			at++
			return nil
		}
		ctx := context.Background()
		if err := r.Samples(ctx, all, check); err != nil || at != rows {
			t.Fatalf("%d rows: %d, %v", rows, at, err)
		}
		var some []int
		for i := 0; i < rows; i += 1 + i/2 {
			some = append(some, i)
		}
		if err := r.Samples(ctx, append(some, rows-1)[min(1, rows-1):], check); err != nil {
			t.Fatal(err)
		}
		var found []int
		if err := r.Find(written[rows-1].Key.ID, func(row int) { found = append(found, row) }); err != nil || !slices.Contains(found, rows-1) || len(found) > 3 {
			t.Errorf("%d rows: found %v, %v", rows, found, err)
		}
		if err := r.Find(profiles.ID{0xFF}, func(int) { t.Error("found a row of an unknown ID") }); err != nil {
			t.Error(err)
		}
		spans, err := r.Spans()
		if err != nil || len(spans) != 1 || spans[0].MultiRow != (rows > 1) || spans[0].Hi != rows || spans[0].Dataset != "a" || len(spans[0].Series) != min(3, rows) {
			t.Errorf("%d rows: spans %+v, %v", rows, spans, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestArrange_KeepsStacks(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	for range 50 {
		b := NewBuilder()
		for i := range r.IntN(40) {
			b.Node(uint32(r.IntN(len(b.Parents))), b.Frame(b.Function(Function{Name: b.String(fmt.Appendf(nil, "f%d", i%7))}), 0))
		}
		path := func(s *Symbols, node uint32) (names string) {
			for ; node != 0; node = s.Parents[node] {
				names = s.FrameName(s.NodeFrame[node]) + ";" + names
			}
			return names
		}
		arranged, numbers := new(Arranger).Arrange(&b.Symbols)
		if len(arranged.Parents) != len(b.Parents) {
			t.Fatalf("%d stacks of %d", len(arranged.Parents), len(b.Parents))
		}
		for i, n := range numbers {
			if got, want := path(arranged, n), path(&b.Symbols, uint32(i)); got != want {
				t.Fatalf("stack %d is %s, want %s", i, got, want)
			}
			if n != 0 && arranged.Parents[n] >= n {
				t.Fatalf("stack %d comes before its parent", n)
			}
		}
	}
}

func TestAddValues_Saturates(t *testing.T) {
	if got := AddValues(AddValues(math.MaxInt64, 5), 7); got != math.MaxInt64 {
		t.Error(got)
	}
}

// FuzzIndex opens arbitrary indexes for a rows file of the right size.
func FuzzIndex(f *testing.F) {
	dir, _ := writeRows(f, 100)
	index, err := os.ReadFile(filepath.Join(dir, IndexFile))
	if err != nil {
		f.Fatal(err)
	}
	rows, err := fileutil.OpenMmapFile(filepath.Join(dir, RowsFile))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = rows.Close() })
	found, err := sections(index)
	if err != nil {
		f.Fatal(err)
	}
	// A section is fuzzed uncompressed, so that checksums match.
	kinds := []int{sectionMeta, sectionSeries, sectionSpans, sectionChunks, sectionIDs, sectionParts, sectionPartSymbols, sectionShared}
	for _, kind := range kinds {
		b, err := found[uint32(kind)].open(kind)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(kind, b)
	}
	f.Add(0, index)
	f.Fuzz(func(t *testing.T, kind int, b []byte) {
		if kind != 0 {
			var made []byte
			made = append(made, magic...)
			for _, k := range append(kinds, sectionRowsSum, sectionEnd) {
				body, err := []byte(nil), error(nil)
				switch {
				case k == kind:
					body = b
				case k != sectionEnd:
					if body, err = found[uint32(k)].open(k); err != nil {
						t.Fatal(err)
					}
				}
				if made, err = appendSection(made, uint32(k), plain, body); err != nil {
					t.Fatal(err)
				}
			}
			b = made
		}
		r := &Reader{name: "fuzzed", rows: rows}
		if err := r.read(b, uint64(len(rows.Bytes()))); err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		var all []int
		for row := range min(r.Rows(), 1000) {
			if _, err := r.Columns(row); err != nil {
				break
			}
			all = append(all, row)
		}
		_ = r.Samples(context.Background(), all, func(int, []uint32, []int64) error { return nil })
		_ = r.Find(profiles.ID{}, func(int) {})
	})
}

// flips changes one bit of each byte of a file, and cuts the file, and calls f with the path of each variant. It puts the file back.
func flips(t *testing.T, dir, name string, f func(what string)) {
	t.Helper()
	path := filepath.Join(dir, name)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write := func(b []byte) {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for at := range whole {
		changed := slices.Clone(whole)
		changed[at] ^= 1 << (at % 8)
		write(changed)
		f(fmt.Sprintf("%s, bit %d of byte %d", name, at%8, at))
	}
	for _, n := range []int{0, 1, 7, 8, len(whole) / 2, len(whole) - 1} {
		write(whole[:n])
		f(fmt.Sprintf("%s, cut to %d bytes", name, n))
	}
	write(append(slices.Clone(whole), 0))
	f(name + ", with a byte more")
	write(whole)
}

func TestVerify_FindsAnyChangedByte(t *testing.T) {
	ctx := context.Background()
	dir, _ := writeRows(t, groupRows+100)
	if found, err := Verify(ctx, dir); err != nil || found.Rows != groupRows+100 {
		t.Fatalf("%+v, %v", found, err)
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := Verify(canceled, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	var spans TraceSpansBuilder
	spans.Add(5, profiles.TraceID{1}, 0, []uint32{1}, []int64{3})
	dir = writeDatasets(t, spans.Spans())
	if found, err := Verify(ctx, dir); err != nil {
		t.Fatalf("%+v, %v", found, err)
	}
	for _, name := range []string{IndexFile, RowsFile, SpansFile} {
		flips(t, dir, name, func(what string) {
			if _, err := Verify(ctx, dir); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
	if _, err := Verify(ctx, dir); err != nil {
		t.Errorf("after the bytes were put back: %v", err)
	}
}

// A build must tell what a newer one wrote from damage: only then is it clear that the block must be kept.
func TestOpen_NewerFormatsAreNotCorrupt(t *testing.T) {
	var spans TraceSpansBuilder
	spans.Add(5, profiles.TraceID{1}, 0, []uint32{1}, []int64{3})
	section := func(kind, compression uint32) func(b []byte) []byte { // before the last one
		return func(b []byte) []byte {
			end := len(b) - sectionHeader
			made := append(appendHeader(slices.Clone(b[:end]), kind, compression, 3, 5, xxhash.Sum64String("abc")), "abc"...)
			return append(made, b[end:]...)
		}
	}
	version := func(v byte) func(b []byte) []byte {
		return func(b []byte) []byte { b[7] = v; return b }
	}
	for name, tt := range map[string]struct {
		file   string
		change func(b []byte) []byte
		newer  bool
		fine   bool
	}{
		"the next version":                      {IndexFile, version(2), true, false},
		"no version":                            {IndexFile, version(0), false, false},
		"another magic":                         {IndexFile, func(b []byte) []byte { b[0]++; return b }, false, false},
		"the next section":                      {IndexFile, section(sectionRowsSum+1, plain), true, false},
		"the last section that is not optional": {IndexFile, section(sectionOptional-1, plain), true, false},
		"an optional section":                   {IndexFile, section(sectionOptional|1, 7), false, true},
		"another compression of meta":           {IndexFile, func(b []byte) []byte { b[len(magic)+4] = 2; return b }, true, false},
		"another compression of shared":         {IndexFile, section(sectionShared, 2), true, false},
		"spans of the next version":             {SpansFile, version(2), true, false},
		"the next section of spans":             {SpansFile, section(sectionEnd+1, plain), true, false},
		"an optional section of spans":          {SpansFile, section(sectionOptional, plain), false, false}, // the size is in meta
	} {
		t.Run(name, func(t *testing.T) {
			dir := writeDatasets(t, spans.Spans())
			path := filepath.Join(dir, tt.file)
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, tt.change(b), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err = Verify(t.Context(), dir)
			if (err == nil) != tt.fine || err != nil && !errors.Is(err, ErrCorrupt) || errors.Is(err, profiles.ErrNewer) != tt.newer {
				t.Errorf("%v", err)
			}
			if head, headErr := os.ReadFile(filepath.Join(dir, IndexFile)); headErr != nil {
				t.Error(headErr)
			} else if _, err := MetaOf(head); err != nil && errors.Is(err, profiles.ErrNewer) != tt.newer {
				t.Errorf("its meta: %v", err)
			}
		})
	}
}

// Other readers of Parquet can find changed rows by themselves.
func TestWriter_PagesHaveParquetsChecksum(t *testing.T) {
	dir, _ := writeRows(t, 100)
	r, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	b := slices.Clone(r.rows.Bytes())
	b[r.chunks[0].places[colTime].offset] ^= 4
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = parquet.Read[fileRow](bytes.NewReader(b), int64(len(b)))
	if !errors.Is(err, parquet.ErrCorrupted) {
		t.Errorf("a changed timestamp: %v", err)
	}
}

// Faults that checksums do not show: the bytes are those that a faulty writer wrote.
func TestVerify_ComparesTheParts(t *testing.T) {
	ctx := context.Background()
	swap := func(order []byte, i, j int) []byte {
		order = slices.Clone(order)
		copy(order[4*i:4*i+4], order[4*j:4*j+4])
		return order
	}
	for _, tt := range []struct {
		want   string
		change func(r *Reader)
	}{
		{"entry 1 is row 0", func(r *Reader) { r.order = swap(r.order, 1, 0) }},
		{"is less than the one before", func(r *Reader) {
			first := slices.Clone(r.order[:4])
			r.order = swap(r.order, 0, 99)
			copy(r.order[4*99:], first)
		}},
		{"row 99 has the time 1033", func(r *Reader) { r.meta.MaxNS = 1032 }},
		{"row 0 has the time 1000", func(r *Reader) { r.meta.MinNS = 1001 }},
		{"row 1 has the type 7 within rows of type 0", func(r *Reader) { r.series[1].Type = 7 }},
		{"stack", func(r *Reader) { r.parts[0].Nodes = 2 }},
		{"span 0000000000000005 has samples of 7 and the total 8", func(r *Reader) {
			r.meta.SpansBytes = 1
			var b TraceSpansBuilder
			b.Add(5, profiles.TraceID{1}, 3, []uint32{1, 2}, []int64{3, 4})
			r.traceSpans = b.Spans()
			binary.LittleEndian.PutUint64(r.traceSpans.entries[8:], 8)
		}},
		{"span 0000000000000005 has stack 1000 of", func(r *Reader) {
			r.meta.SpansBytes = 1
			var b TraceSpansBuilder
			b.Add(5, profiles.TraceID{1}, 3, []uint32{1000}, []int64{3})
			r.traceSpans = b.Spans()
		}},
	} {
		dir, _ := writeRows(t, 100)
		r, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.verify(ctx); err != nil {
			t.Fatal(err)
		}
		tt.change(r)
		if err := r.verify(ctx); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want: %s", err, tt.want)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}
