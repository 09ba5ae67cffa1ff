package store

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/test/crashfs"
)

func TestFlush_EveryFailedCallIsReturnedAndCounted(t *testing.T) {
	dir, f := t.TempDir(), &faults{}
	clock := stoppedAt(time.Unix(1_700_000_100, 0).UnixNano())
	s := openFaulty(t, dir, f, clock.of)
	tenant := flushed(t, s, 0)
	if m := s.metrics; m.flushes.Get() != 1 || m.flushesFailed.Get() != 0 || s.memory.heads.Load() != 0 {
		t.Fatalf("%d flushes, %d failed, %d bytes are used", m.flushes.Get(), m.flushesFailed.Get(), s.memory.heads.Load())
	}
	if err := s.Append(t.Context(), "t", []profiles.RawProfile{numbered(1)}); err != nil {
		t.Fatal(err)
	}
	before, failed := openIn(t, dir), uint64(0)
	for _, choose := range []func(crashfs.Call) bool{
		calls("create", "wal"), calls("removeall", "tmp-"), calls("mkdir", "tmp-"), calls("create", block.RowsFile), calls("create", block.IndexFile),
		calls("write", block.RowsFile), calls("write", block.IndexFile), calls("sync", block.RowsFile), calls("sync", block.IndexFile), calls("rename", "tmp-"),
	} {
		f.fail(choose)
		err := s.Flush(t.Context())
		if failed++; !errors.Is(err, errDisk) || !strings.Contains(err.Error(), "profiles of tenant t: ") || s.metrics.flushesFailed.Get() != failed {
			t.Errorf("%d: %v, %d failures are counted", failed, err, s.metrics.flushesFailed.Get())
		}
		if n := openIn(t, dir); n > before {
			t.Errorf("%v: %d files are open, %d before", err, n, before)
		}
		if tenant.flushRetry.due(s.now()) {
			t.Errorf("%v: it is retried at once", err)
		}
	}
	if f.fail(nil); s.Flush(t.Context()) != nil || s.metrics.flushes.Get() != 2 || tenant.failedFlush != nil || tenant.flushing != nil || tenant.writing != (ulid.ULID{}) {
		t.Errorf("%d flushes; %v is being written", s.metrics.flushes.Get(), tenant.writing)
	}
	once(t, stored(t, s), 2)
	if !tenant.flushRetry.due(s.now()) || s.memory.heads.Load() != 0 {
		t.Errorf("after a success: %d bytes are used", s.memory.heads.Load())
	}
}

// A block whose removal has failed, too, may exist: the same block is written again.
func TestFlush_BlockThatCannotBeDiscardedIsStillBeingWritten(t *testing.T) {
	f := &faults{}
	s := openFaulty(t, t.TempDir(), f, nil)
	tenant := flushed(t, s, 0)
	if err := s.Append(t.Context(), "t", []profiles.RawProfile{numbered(1)}); err != nil {
		t.Fatal(err)
	}
	f.fail(func(c crashfs.Call) bool { return c.Op == "syncdir" && c.Path == filepath.Join("profiles", "t") })
	err := s.Flush(t.Context())
	if !errors.Is(err, errDisk) || strings.Count(err.Error(), errDisk.Error()) != 2 {
		t.Errorf("%v", err)
	}
	if id := tenant.failedFlush.id; id == (ulid.ULID{}) || tenant.writing != id {
		t.Errorf("block %v is being written, want %v", tenant.writing, id)
	}
	f.fail(calls("rename", "tmp-"))
	if err := s.Flush(t.Context()); !errors.Is(err, errDisk) || tenant.writing != (ulid.ULID{}) {
		t.Errorf("%v, block %v is being written", err, tenant.writing)
	}
	if f.fail(nil); s.Flush(t.Context()) != nil {
		t.Error("it cannot be written afterwards")
	}
	once(t, stored(t, s), 2)
}

func TestFlush_BlockIsKnownBeforeItIsRenamed(t *testing.T) {
	f, renamed := &faults{}, 0
	s := openFaulty(t, t.TempDir(), f, nil)
	f.watch(func(c crashfs.Call) {
		if id, ok := strings.CutPrefix(filepath.Base(c.Path), temporary); ok && c.Op == "rename" {
			s.mu.RLock()
			tenant := s.tenants["t"]
			s.mu.RUnlock()
			tenant.mu.RLock()
			defer tenant.mu.RUnlock()
			if renamed++; tenant.writing.String() != id {
				t.Errorf("block %v is being written, %s is renamed", tenant.writing, id)
			}
		}
	})
	tenant := flushed(t, s, 0, 1, 2, 3)
	if err := s.Compact(t.Context()); err != nil || tenant.writing != (ulid.ULID{}) {
		t.Errorf("%v, block %v is being written", err, tenant.writing)
	}
	if f.watch(nil); renamed < 5 {
		t.Errorf("%d blocks were renamed", renamed)
	}
}

func TestFlush_SegmentsThatStayAreRemovedByTheNextOne(t *testing.T) {
	dir, f := t.TempDir(), &faults{}
	s := openFaulty(t, dir, f, nil)
	push := func(n uint64) {
		t.Helper()
		if err := s.Append(t.Context(), "t", []profiles.RawProfile{numbered(n)}); err != nil {
			t.Fatal(err)
		}
	}
	push(0)
	f.fail(calls("remove", "wal"))
	if err := s.Flush(t.Context()); !errors.Is(err, errDisk) || !strings.Contains(err.Error(), "profiles of tenant t: write-ahead log") {
		t.Error(err)
	}
	if m, n := s.metrics, found(t, dir, "wal/0*"); m.flushes.Get() != 1 || m.flushesFailed.Get() != 0 || n != 2 || s.memory.heads.Load() != 0 {
		t.Errorf("%d flushes, %d failed, %d segments, %d bytes are used", m.flushes.Get(), m.flushesFailed.Get(), n, s.memory.heads.Load())
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Errorf("an empty head: %v", err)
	}
	f.fail(nil)
	push(1)
	if err := s.Flush(t.Context()); err != nil || found(t, dir, "wal/0*") != 1 || s.tenants["t"].count() != 2 {
		t.Errorf("%v, %d segments, %d blocks", err, found(t, dir, "wal/0*"), s.tenants["t"].count())
	}
}

func TestFlush_AgainOnlyRetriesAFlushThatFailed(t *testing.T) {
	f := &faults{}
	s := openFaulty(t, t.TempDir(), f, nil)
	tenant := flushed(t, s, 0)
	push := func(n uint64) error { return s.Append(t.Context(), "t", []profiles.RawProfile{numbered(n)}) }
	if err := errors.Join(push(1), tenant.flush(t.Context(), true)); err != nil || tenant.count() != 1 || tenant.head.rows() != 1 {
		t.Fatalf("%v, %d blocks", err, tenant.count())
	}
	f.fail(calls("mkdir", "tmp-"))
	if err := tenant.flush(t.Context(), false); !errors.Is(err, errDisk) {
		t.Fatal(err)
	}
	f.fail(nil)
	if err := errors.Join(push(2), tenant.flush(t.Context(), true)); err != nil || tenant.count() != 2 || tenant.head.rows() != 1 {
		t.Errorf("%v, %d blocks, %d rows in the head", err, tenant.count(), tenant.head.rows())
	}
}

func TestFlush_EndsWithItsContextAndWithTheStore(t *testing.T) {
	s, tenant, disk, results := busy(t, nil) // the log is busy and cannot be cut
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tenant.flush(ctx, false); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	close(disk.proceed)
	if err := errors.Join(<-results, <-results, s.Close()); err != nil {
		t.Fatal(err)
	}
	if err := tenant.flush(context.Background(), false); !errors.Is(err, profiles.ErrUnavailable) || !strings.Contains(err.Error(), "the store is closed") {
		t.Errorf("closed: %v", err)
	}
	if n := s.metrics.flushesFailed.Get(); n != 0 {
		t.Errorf("%d failures are counted", n)
	}
}

// Shutdown cancels a flush or a compaction: no pause follows, and nothing of the block is left.
func TestFlush_CancelledWriteIsRetriedWithoutAPause(t *testing.T) {
	dir, f := t.TempDir(), &faults{}
	s := openFaulty(t, dir, f, nil)
	tenant := flushed(t, s, 0, 1, 2)
	if err := s.Append(t.Context(), "t", []profiles.RawProfile{numbered(3)}); err != nil {
		t.Fatal(err)
	}
	cancelled := func(what string, write func(context.Context) error) {
		t.Helper()
		before := openIn(t, dir)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		f.watch(func(c crashfs.Call) {
			if calls("mkdir", "tmp-")(c) {
				cancel()
			}
		})
		defer f.watch(nil)
		if err := write(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", what, err)
		}
		if !tenant.flushRetry.due(s.now()) || !tenant.compactRetry.due(s.now()) {
			t.Errorf("%s: a pause follows", what)
		}
		if n := openIn(t, dir); n != before || found(t, dir, "tmp-*") != 0 || tenant.writing != (ulid.ULID{}) {
			t.Errorf("%s: %d files are open, %d before; %d temporary directories", what, n, before, found(t, dir, "tmp-*"))
		}
	}
	cancelled("flush", s.Flush)
	if err := s.Flush(t.Context()); err != nil || tenant.count() != 4 {
		t.Fatalf("%v, %d blocks", err, tenant.count())
	}
	cancelled("compaction", s.Compact)
	if err := s.Compact(t.Context()); err != nil || tenant.count() != 1 {
		t.Errorf("%v, %d blocks", err, tenant.count())
	}
	once(t, stored(t, s), 4)
}

func TestBlocks_AreInOrderOfTimeThenULID(t *testing.T) {
	dir := t.TempDir()
	s := openFaulty(t, dir, &faults{}, nil)
	same := numbered(3)
	same.ID[0] = 9
	tenant := flushed(t, s, 5, 3, 4)
	if err := errors.Join(s.Append(t.Context(), "t", []profiles.RawProfile{same}), s.Flush(t.Context())); err != nil {
		t.Fatal(err)
	}
	check := func(blocks []*heldBlock) {
		t.Helper()
		var times []int64
		for i, a := range blocks {
			minNS, _ := a.Bounds()
			times = append(times, minNS-numbered(0).TimeNS)
			for j, b := range blocks {
				if got, want := byAge(a, b), cmp.Compare(i, j); got != want {
					t.Errorf("block %d and block %d compare as %d, want %d", i, j, got, want)
				}
			}
		}
		if !slices.Equal(times, []int64{3, 3, 4, 5}) {
			t.Errorf("blocks of %v", times)
		}
	}
	check(tenant.blocks)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openFaulty(t, dir, &faults{}, nil)
	check(s.tenants["t"].blocks)
}

func TestOrder_TypesAndSeriesOfAllSourcesAreNumbered(t *testing.T) {
	a, b := profiles.Type{Name: "a"}, profiles.Type{Name: "b"}
	x, y := labelenc.AppendLabel(nil, "l", "x"), labelenc.AppendLabel(nil, "l", "y")
	first, second := []block.Series{{Type: 0, Labels: x}, {Type: 1, Labels: y}}, []block.Series{{Type: 0, Labels: y}, {Type: 0, Labels: x}}
	o, numbers, err := orderOf(&headView{types: []profiles.Type{b, a}, series: first}, &headView{types: []profiles.Type{a}, series: second})
	if err != nil || !slices.Equal(o.types, []profiles.Type{a, b}) || len(o.series) != 3 {
		t.Errorf("types %v, %d series, %v", o.types, len(o.series), err)
	}
	if !slices.Equal(numbers[0], []uint32{2, 1}) || !slices.Equal(numbers[1], []uint32{1, 0}) {
		t.Errorf("numbers %v", numbers)
	}
}

func TestCompareRows_TypeThenDatasetTimeIDAndSeries(t *testing.T) {
	key := func(timeNS int64, id byte) block.Key { return block.Key{TimeNS: timeNS, ID: profiles.ID{id}} }
	rows := []headRow{
		{t: 0, dataset: "b", key: key(9, 9), series: 9}, {t: 1, dataset: "a", key: key(9, 9), series: 9}, {t: 1, dataset: "b", key: key(1, 9), series: 9},
		{t: 1, dataset: "b", key: key(2, 1), series: 9}, {t: 1, dataset: "b", key: key(2, 2), series: 1}, {t: 1, dataset: "b", key: key(2, 2), series: 2},
	}
	for i := range rows {
		for j := range rows {
			if got := compareRows(&rows[i], &rows[j]); got != cmp.Compare(i, j) {
				t.Errorf("row %d and row %d compare as %d", i, j, got)
			}
		}
	}
}

// The rows of a profile with several services are in the dataset of the first of these by name, whichever was pushed first.
func TestWriteHead_ProfileOfSeveralServicesIsInOneDataset(t *testing.T) {
	for _, services := range [][]string{{"b", "a"}, {"a", "b"}} {
		s := openFaulty(t, t.TempDir(), &faults{}, nil)
		for _, service := range services {
			p := numbered(1)
			p.Labels = labelenc.AppendLabel(labelenc.AppendLabel(nil, "__name__", "process_cpu"), "service_name", service)
			if err := s.Append(t.Context(), "t", []profiles.RawProfile{p}); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		b := s.tenants["t"].blocks[0]
		spans, err := b.Spans()
		if err != nil || len(spans) != 1 || spans[0].Dataset != "a" || spans[0].Hi != 2 || !spans[0].MultiRow || len(b.Shared()) != 1 {
			t.Errorf("%v: %+v, %v shared, %v", services, spans, b.Shared(), err)
		}
	}
}

func TestMoveSpans_RowsAndStacksAreRenumbered(t *testing.T) {
	var from, to block.TraceSpansBuilder
	trace := profiles.TraceID{7}
	from.Add(1, trace, 0, []uint32{1, 2}, []int64{10, 20})
	from.Add(2, trace, 1, []uint32{1}, []int64{30})
	from.Add(3, profiles.TraceID{}, 2, []uint32{2}, []int64{40})
	rows := []uint32{5, noRow, 7}
	if err := moveSpans(t.Context(), &to, from.Spans(), rows, numbersOf([]uint32{0, 4, 3})); err != nil {
		t.Fatal(err)
	}
	moved := to.Spans()
	if moved.Len() != 2 {
		t.Fatalf("%d spans", moved.Len())
	}
	for i, want := range []struct {
		id     uint64
		row    uint32
		trace  profiles.TraceID
		stacks []uint32
		values []int64
	}{{1, 5, trace, []uint32{3, 4}, []int64{20, 10}}, {3, 7, profiles.TraceID{}, []uint32{3}, []int64{40}}} {
		span := moved.Span(i)
		stacks, values, err := moved.Samples(span, nil, nil)
		if err != nil || span.ID != want.id || span.Row != want.row || moved.TraceID(span) != want.trace || !slices.Equal(stacks, want.stacks) || !slices.Equal(values, want.values) {
			t.Errorf("span %+v: stacks %v, values %v, %v, want %+v", span, stacks, values, err, want)
		}
	}
	if err := moveSpans(t.Context(), &to, from.Spans(), rows, numbersOf([]uint32{0, 4})); !errors.Is(err, profiles.ErrCorrupt) || !strings.Contains(err.Error(), "span 0000000000000001 has the unknown stack 2") {
		t.Errorf("an unknown stack: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := moveSpans(ctx, &to, from.Spans(), rows, numbersOf([]uint32{0, 4, 3})); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
