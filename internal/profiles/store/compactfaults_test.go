package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/test/crashfs"
)

func TestCompact_FailedOneIsCountedAndRepeatedAfterAPause(t *testing.T) {
	dir, f := t.TempDir(), &faults{}
	clock := stoppedAt(time.Unix(1_700_000_100, 0).UnixNano())
	s := openFaulty(t, dir, f, clock.of)
	tenant := flushed(t, s, 0, 1, 2, 3)
	before, failed := openIn(t, dir), uint64(0)
	for _, choose := range []func(crashfs.Call) bool{
		calls("removeall", "tmp-"), calls("mkdir", "tmp-"), calls("create", block.RowsFile), calls("write", block.RowsFile), calls("sync", block.IndexFile), calls("rename", "tmp-"),
	} {
		f.fail(choose)
		err := s.Compact(t.Context())
		if failed++; !errors.Is(err, errDisk) || !strings.Contains(err.Error(), "profiles of tenant t: compact blocks") || s.metrics.compactFail.Get() != failed || s.metrics.compactions.Get() != 0 {
			t.Errorf("%d: %v, %d failures are counted", failed, err, s.metrics.compactFail.Get())
		}
		if n := openIn(t, dir); n != before || tenant.count() != 4 || tenant.compactRetry.due(s.now()) {
			t.Errorf("%v: %d files are open, %d before; %d blocks", err, n, before, tenant.count())
		}
	}
	if err := tenant.maintain(t.Context()); err != nil || s.metrics.compactFail.Get() != failed {
		t.Errorf("during the pause: %v, %d failures", err, s.metrics.compactFail.Get())
	}
	clock.Add(int64(10 * time.Minute))
	if err := tenant.maintain(t.Context()); !errors.Is(err, errDisk) || s.metrics.compactFail.Get() != failed+1 {
		t.Errorf("after the pause: %v, %d failures", err, s.metrics.compactFail.Get())
	}
	f.fail(nil)
	clock.Add(int64(10 * time.Minute))
	if err := tenant.maintain(t.Context()); err != nil || s.metrics.compactions.Get() != 1 || tenant.count() != 1 || tenant.compacting.id != (ulid.ULID{}) || !tenant.compactRetry.due(s.now()) {
		t.Errorf("%v, %d compactions, %d blocks", err, s.metrics.compactions.Get(), tenant.count())
	}
	once(t, stored(t, s), 4)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Compact(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// The block of a failed compaction may be on the disk. It is removed before other blocks are compacted.
func TestCompact_BlockOfAFailedCompactionIsRemovedBeforeTheNextOne(t *testing.T) {
	dir, f := t.TempDir(), &faults{}
	s := openFaulty(t, dir, f, nil)
	tenant := flushed(t, s, 0, 1, 2, 3)
	tenantDir := func(c crashfs.Call) bool { return c.Op == "syncdir" && c.Path == filepath.Join("profiles", "t") }
	f.fail(tenantDir)
	if err := s.Compact(t.Context()); !errors.Is(err, errDisk) {
		t.Fatal(err)
	}
	failed := tenant.compacting.id
	if failed == (ulid.ULID{}) || len(tenant.compacting.run) != 4 {
		t.Fatalf("%+v", tenant.compacting)
	}
	f.fail(nil)
	// Retention removes the first block, so the next compaction has other blocks.
	tenant.flushMu.Lock()
	tenant.replace(tenant.blocks[:1], nil)
	tenant.flushMu.Unlock()
	flushed(t, s, 4)
	f.fail(calls("removeall", failed.String()))
	if err := s.Compact(t.Context()); !errors.Is(err, errDisk) || tenant.compacting.id != failed {
		t.Errorf("%v, block %v", err, tenant.compacting.id)
	}
	if f.fail(nil); s.Compact(t.Context()) != nil || tenant.count() != 1 || found(t, dir, "0*") != 1 || found(t, dir, "tmp-*") != 0 || found(t, dir, failed.String()) != 0 {
		t.Errorf("%d blocks, %d directories, %d temporary ones", tenant.count(), found(t, dir, "0*"), found(t, dir, "tmp-*"))
	}
	if counts := stored(t, s); len(counts) != 4 || counts[0] != 0 || counts[4] != 1 {
		t.Errorf("%v", counts)
	}
}

func TestCompact_CorruptBlocksAreNotCompactedAgain(t *testing.T) {
	dir := t.TempDir()
	s := openFaulty(t, dir, &faults{}, nil)
	tenant := flushed(t, s, 0, 1, 2, 3)
	path := filepath.Join(tenant.blocks[2].path, block.RowsFile)
	rows, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range len(rows) / 2 { // the columns
		rows[i+4] ^= 1
	}
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteAt(rows, 0); errors.Join(err, file.Close()) != nil { // the reader has the file mapped
		t.Fatal(err)
	}
	before := openIn(t, dir)
	if err := s.Compact(t.Context()); !errors.Is(err, profiles.ErrCorrupt) || s.metrics.compactFail.Get() != 1 {
		t.Fatalf("%v, %d failures", err, s.metrics.compactFail.Get())
	}
	if err := s.Compact(t.Context()); err != nil || tenant.count() != 4 || openIn(t, dir) != before || found(t, dir, "tmp-*") != 0 {
		t.Errorf("%v, %d blocks, %d files are open, %d before", err, tenant.count(), openIn(t, dir), before)
	}
	flushed(t, s, 4, 5, 6, 7)
	if err := s.Compact(t.Context()); err != nil || tenant.count() != 5 {
		t.Errorf("later blocks: %v, %d blocks", err, tenant.count())
	}
}

func TestPick_RunsOfOneLevelWithinSizeAndTime(t *testing.T) {
	const apart = int64(time.Hour)
	s := openFaulty(t, t.TempDir(), &faults{}, nil)
	var tenant *tenant
	for n := range uint64(5) {
		p := numbered(n)
		p.TimeNS = numbered(0).TimeNS + int64(n)*apart
		if err := errors.Join(s.Append(t.Context(), "t", []profiles.RawProfile{p}), s.Flush(t.Context())); err != nil {
			t.Fatal(err)
		}
		tenant = s.tenants["t"]
	}
	blocks := tenant.blocks
	size := func(run []*heldBlock) (bytes int64) {
		for _, b := range run {
			bytes += b.Bytes()
		}
		return bytes
	}
	big, day := int64(1<<30), 24*time.Hour
	for name, c := range map[string]struct {
		bytes int64
		span  time.Duration
		want  []*heldBlock
	}{
		"no limit":                {big, day, blocks[:4]},
		"exact size":              {size(blocks[:4]), day, blocks[:4]},
		"a byte too many":         {min(size(blocks[:4]), size(blocks[1:5])) - 1, day, nil},
		"exact range":             {big, 3 * time.Hour, blocks[:4]},
		"range too short":         {big, 3*time.Hour - 1, nil},
		"size of none":            {1, day, nil},
		"a nanosecond more range": {big, 3*time.Hour + 1, blocks[:4]},
	} {
		s.opts.BlockBytes, s.opts.blockSpan = c.bytes, c.span
		if got := tenant.pick(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %d blocks, want %d", name, len(got), len(c.want))
		}
	}
	s.opts.BlockBytes, s.opts.blockSpan = big, day
	blocks[0].excluded = true
	if got := tenant.pick(); !slices.Equal(got, blocks[1:5]) {
		t.Errorf("without the first block: %d blocks", len(got))
	}
	blocks[1].excluded = true
	if got := tenant.pick(); got != nil {
		t.Errorf("three blocks: %d", len(got))
	}
}

func TestPick_BlocksFarFromTheFirstBeginAnotherRun(t *testing.T) {
	s := openFaulty(t, t.TempDir(), &faults{}, func(s *Store) { s.opts.blockSpan = time.Hour })
	for n, hours := range []int64{0, 10, 10, 10, 10} {
		p := numbered(uint64(n))
		p.TimeNS += hours * int64(time.Hour)
		if err := errors.Join(s.Append(t.Context(), "t", []profiles.RawProfile{p}), s.Flush(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	tenant := s.tenants["t"]
	if got := tenant.pick(); !slices.Equal(got, tenant.blocks[1:]) {
		t.Errorf("%d blocks are picked", len(got))
	}
}

func TestCompact_LevelsRiseByOneAndAreNotMixed(t *testing.T) {
	s := openFaulty(t, t.TempDir(), &faults{}, func(s *Store) { s.fs = unsynced{} })
	levels := func() (all []uint64) {
		for _, b := range s.tenants["t"].blocks {
			all = append(all, b.Meta().Level)
		}
		return all
	}
	for n := range uint64(16) {
		tenant := flushed(t, s, n)
		if n == 14 {
			if got := levels(); !slices.Equal(got, []uint64{1, 1, 1, 0, 0, 0}) {
				t.Errorf("levels %v", got)
			}
		}
		if err := s.Compact(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n == 15 {
			m := tenant.blocks[0].Meta()
			if got := levels(); !slices.Equal(got, []uint64{2}) || len(m.Parents) != 20 || m.Rows != 16 {
				t.Errorf("levels %v, %+v", got, m)
			}
		}
	}
	if got := s.metrics.compactions.Get(); got != 5 {
		t.Errorf("%d compactions", got)
	}
	once(t, stored(t, s), 16)
}

// spanned is a numbered profile whose sample has a span.
func spanned(n uint64) profiles.RawProfile {
	p, e := numbered(n), pprof.NewEncoder()
	e.SampleType("cpu", "nanoseconds")
	e.Period("cpu", "nanoseconds", 1)
	e.LabelledSample([]uint64{e.Location(e.Function("f", "", "", 0), 1)}, [][2]string{{"span_id", fmt.Sprintf("%016x", 0xf0+n)}}, int64(n)+1)
	p.Raw = e.Append(nil)
	return p
}

// A profile whose samples have two label sets has two rows. Each row has the spans of its own samples.
func TestAppend_RowsOfASplitProfileHaveTheirOwnSpans(t *testing.T) {
	p, e := numbered(1), pprof.NewEncoder()
	e.SampleType("cpu", "nanoseconds")
	e.Period("cpu", "nanoseconds", 1)
	for i, endpoint := range []string{"a", "b"} {
		e.LabelledSample([]uint64{e.Location(e.Function("f", "", "", 0), 1)}, [][2]string{{"endpoint", endpoint}, {"span_id", fmt.Sprintf("%016x", 0xf0+i)}}, int64(i)+1)
	}
	p.Raw = e.Append(nil)
	s := openFaulty(t, t.TempDir(), &faults{}, nil)
	if err := errors.Join(s.Append(t.Context(), "t", []profiles.RawProfile{p}), s.Flush(t.Context())); err != nil {
		t.Fatal(err)
	}
	r := s.tenants["t"].blocks[0].Reader
	spans, err := r.TraceSpans()
	if err != nil || r.Meta().Rows != 2 || spans.Len() != 2 {
		t.Fatalf("%v spans of %d rows, %v", spans, r.Meta().Rows, err)
	}
	rows := map[uint32]int64{}
	for id, total := range map[uint64]int64{0xf0: 1, 0xf1: 2} {
		err := spans.Find([]uint64{id}, nil, func(s block.TraceSpan) error {
			if rows[s.Row] = s.Total; s.Total != total {
				t.Errorf("span %x: total %d, want %d", id, s.Total, total)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	if len(rows) != 2 {
		t.Errorf("totals by row: %v", rows)
	}
}

// Two stores have the profile 1. Its row and its span are in the merged block once.
func TestMerge_RowsThatSeveralBlocksHaveAreWrittenOnce(t *testing.T) {
	var run []*block.Reader
	for _, numbers := range [][]uint64{{0, 1}, {1, 2}} {
		s := openFaulty(t, t.TempDir(), &faults{}, nil)
		var pushed []profiles.RawProfile
		for _, n := range numbers {
			pushed = append(pushed, spanned(n))
		}
		if err := errors.Join(s.Append(t.Context(), "t", pushed), s.Flush(t.Context())); err != nil {
			t.Fatal(err)
		}
		run = append(run, s.tenants["t"].blocks[0].Reader)
	}
	dir, id := t.TempDir(), ulid.Make()
	if err := Merge(t.Context(), dir, id, run); err != nil {
		t.Fatal(err)
	}
	if n := openIn(t, dir); n != 0 {
		t.Errorf("%d files are open", n)
	}
	merged, err := block.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = merged.Close() }()
	m := merged.Meta()
	if m.ULID != id || m.Rows != 3 || m.Profiles != 3 || m.Level != 1 || !slices.Equal(m.Parents, [][16]byte{run[0].Meta().ULID, run[1].Meta().ULID}) {
		t.Errorf("%+v", m)
	}
	spans, err := merged.TraceSpans()
	if err != nil || spans.Len() != 3 {
		t.Fatalf("%v spans, %v", spans, err)
	}
	for i := range 3 {
		span := spans.Span(i)
		rowID, err := merged.ID(int(span.Row))
		_, values, samplesErr := spans.Samples(span, nil, nil)
		if n := int64(span.ID - 0xf0); errors.Join(err, samplesErr) != nil || rowID != numbered(uint64(n)).ID || !slices.Equal(values, []int64{n + 1}) {
			t.Errorf("span %x is of profile %v, values %v", span.ID, rowID, values)
		}
	}
	if err := Merge(t.Context(), filepath.Join(dir, "missing"), id, run); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a directory: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	other := t.TempDir()
	if err := Merge(ctx, other, id, run); !errors.Is(err, context.Canceled) || openIn(t, other) != 0 {
		t.Errorf("cancelled: %v, %d files are open", err, openIn(t, other))
	}
}

func TestCompactedMeta_ParentsAreNamedOnce(t *testing.T) {
	s := openFaulty(t, t.TempDir(), &faults{}, nil)
	flushed(t, s, 0, 1, 2)
	var run []*block.Reader
	for _, numbers := range [][]int{{0, 1}, {1, 2}} {
		b, err := block.Open(s.merged(t, numbers...))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = b.Close() }()
		run = append(run, b)
	}
	blocks := s.tenants["t"].blocks
	want := [][16]byte{run[0].Meta().ULID, blocks[0].Meta().ULID, blocks[1].Meta().ULID, run[1].Meta().ULID, blocks[2].Meta().ULID}
	if m := compactedMeta(run); m.Level != 2 || !slices.Equal(m.Parents, want) {
		t.Errorf("%+v, want the parents %v", m, want)
	}
	if m := compactedMeta([]*block.Reader{blocks[2].Reader, blocks[0].Reader}); m.Level != 1 {
		t.Errorf("%+v", m)
	}
}

// rowSource is a fakeSource of rows with samples.
type rowSource struct{ *fakeSource }

func (s rowSource) Samples(_ context.Context, rows []int, f func(int, []uint32, []int64) error) error {
	for _, row := range rows {
		if err := f(row, []uint32{1}, []int64{s.fakeSource.rows[row].value}); err != nil {
			return err
		}
	}
	return s.fails["Samples"]
}

func TestRowsOfBlock_ErrorsEndIt(t *testing.T) {
	source := func() rowSource {
		src := rowSource{fakeOf(false, oneRow{0, 1, 10, 0, 1}, oneRow{0, 2, 20, 1, 2}, oneRow{0, 3, 30, 2, 3})}
		src.spans = []block.Span{{Hi: 1, Dataset: "a"}, {Lo: 1, Hi: 3, Dataset: "b"}}
		return src
	}
	merged, numbers := []block.Series{{Labels: []byte("x")}}, []uint32{0}
	nodes := []uint32{0, 7}
	var datasets []string
	var values []int64
	for r, err := range rowsOfBlock(t.Context(), source(), merged, numbers, nodes) {
		if err != nil || r.row != len(values) || r.key.TimeNS != int64(r.row+1) || r.key.ID != (profiles.ID{byte(r.row + 1)}) || !slices.Equal(r.stacks, []uint32{7}) || r.t != 0 || r.series != 0 {
			t.Fatalf("%+v, %v", r, err)
		}
		datasets, values = append(datasets, r.dataset), append(values, r.values...)
	}
	if !slices.Equal(datasets, []string{"a", "b", "b"}) || !slices.Equal(values, []int64{10, 20, 30}) {
		t.Errorf("datasets %v, values %v", datasets, values)
	}
	for range rowsOfBlock(t.Context(), source(), merged, numbers, nodes) {
		break
	}
	for _, method := range []string{"Spans", "Columns", "ID", "Samples"} {
		src, want, rows, failures := source(), errors.New(method), 0, 0
		src.fails[method] = want
		for _, err := range rowsOfBlock(t.Context(), src, merged, numbers, nodes) {
			if err == nil {
				rows++
			} else if failures++; !errors.Is(err, want) {
				t.Errorf("%s: %v", method, err)
			}
		}
		if all := method == "Samples"; failures != 1 || all != (rows == 3) || !all && rows != 0 {
			t.Errorf("%s: %d errors after %d rows", method, failures, rows)
		}
	}
}
