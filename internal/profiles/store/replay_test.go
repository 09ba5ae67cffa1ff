package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// writeLog writes a tenant's log with these records.
func writeLog(t *testing.T, dir, tenant string, records ...[]byte) (path string) {
	t.Helper()
	path = filepath.Join(dir, "profiles", tenant, "wal", "00000001")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	var b []byte
	for _, r := range records {
		b = appendFrame(b, func(b []byte) []byte { return append(b, r...) })
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func recordOf(pushed ...profiles.RawProfile) []byte { return appendRecord(nil, pushed) }

func TestReplay_UnusableRecordIsSetAside(t *testing.T) {
	dir := t.TempDir()
	bad := numbered(2)
	bad.Raw = []byte("hello")
	writeLog(t, dir, "t", recordOf(numbered(1)), []byte("what is this?"), recordOf(bad, numbered(3)), recordOf(numbered(4)))
	for start := range 3 {
		s := openTest(t, dir, nil)
		counts := stored(t, s)
		if len(counts) != 3 || counts[1] != 1 || counts[3] != 1 || counts[4] != 1 {
			t.Errorf("start %d: %v", start, counts)
		}
		if got := s.metrics.setAside.Get(); got != 2 {
			t.Errorf("start %d: %d records were set aside", start, got)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	aside, err := filepath.Glob(filepath.Join(dir, "profiles", "t", "wal", "aside", "*.txt"))
	if err != nil || len(aside) != 2 {
		t.Fatalf("%v, %v", aside, err)
	}
	reason, err := os.ReadFile(aside[1])
	if err != nil || !strings.Contains(string(reason), "profile 1: corrupt pprof") {
		t.Errorf("%q, %v", reason, err)
	}
}

// The segment in testdata was written by the first version. Later versions must replay it.
func TestReplay_SegmentOfTheFirstVersion(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "profiles", "t", "wal"), os.DirFS("testdata/wal")); err != nil {
		t.Fatal(err)
	}
	s := openFaulty(t, dir, &faults{}, nil)
	once(t, stored(t, s), 3)
	if m := s.metrics; m.setAside.Get()+m.gaps.Get()+m.torn.Get() != 0 {
		t.Error("a part of the segment is not replayed")
	}
}

// A block of another server, restored from a bucket or copied, says nothing about the log of this server.
func TestReplay_ForeignBlockDoesNotHideTheLog(t *testing.T) {
	other := openFaulty(t, t.TempDir(), &faults{}, nil)
	foreign := flushed(t, other, 100, 101, 102, 103).blocks
	for name, path := range map[string]string{"written": foreign[3].path, "compacted": other.merged(t, 2, 3)} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := openFaulty(t, dir, &faults{}, nil)
			err := s.Append(t.Context(), "t", []profiles.RawProfile{numbered(1)})
			if err := errors.Join(err, s.Close()); err != nil {
				t.Fatal(err)
			}
			restore(t, dir, path)
			s = openFaulty(t, dir, &faults{}, nil)
			if counts := stored(t, s); counts[1] != 1 || counts[103] != 1 {
				t.Errorf("%v", counts)
			}
		})
	}
}

// A crash after a block was written leaves the segments of the log whose records the block has.
func TestReplay_RecordsOfABlockAreNotDoubled(t *testing.T) {
	dir, f := t.TempDir(), &faults{}
	s := openFaulty(t, dir, f, nil)
	f.fail(calls("remove", "wal"))
	for n := range uint64(3) {
		err := s.Append(t.Context(), "t", []profiles.RawProfile{numbered(2 * n), numbered(2*n + 1)})
		if err := errors.Join(err, s.Flush(t.Context())); !errors.Is(err, errDisk) {
			t.Fatal(err)
		}
	}
	if err := s.Append(t.Context(), "t", []profiles.RawProfile{numbered(6)}); err != nil {
		t.Fatal(err)
	}
	for start := range 3 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openFaulty(t, dir, f, nil)
		once(t, stored(t, s), 7)
		if n := s.tenants["t"].head.rows(); n != 1 {
			t.Errorf("start %d: %d rows in the head", start, n)
		}
	}
	f.fail(nil)
	if err := s.Flush(t.Context()); err != nil || found(t, dir, "wal/0*") != 1 {
		t.Errorf("%v, %d segments", err, found(t, dir, "wal/0*"))
	}
	once(t, stored(t, s), 7)
}

// A record of a newer version is kept in wal/aside. If that fails, the segment stays, and so does the tenant's fault.
func TestReplay_NewerRecordIsNeverLost(t *testing.T) {
	dir, f := t.TempDir(), &faults{}
	newer := recordOf(numbered(1))
	newer[0]++
	writeLog(t, dir, "t", recordOf(numbered(0)), newer)
	f.fail(calls("mkdir", "aside"))
	s := openFaulty(t, dir, f, nil)
	if failed := s.failed["t"]; failed == nil || !errors.Is(failed.err, errDisk) || !errors.Is(failed.err, profiles.ErrNewer) ||
		!strings.Contains(failed.err.Error(), "record of version 2") {
		t.Fatalf("%+v", failed)
	}
	if n := found(t, dir, "wal/00000001"); n != 1 {
		t.Error("the segment is gone")
	}
	f.fail(nil)
	s.failed["t"].retry.wait = 0
	s.reopen(false)
	once(t, stored(t, s), 1)
	if err := s.Flush(t.Context()); err != nil || s.metrics.setAside.Get() != 1 || found(t, dir, "wal/00000001") != 0 {
		t.Errorf("%v, %d records are set aside", err, s.metrics.setAside.Get())
	}
	names, err := filepath.Glob(filepath.Join(dir, "profiles", "t", "wal", "aside", "*.bytes"))
	if err != nil || len(names) != 1 {
		t.Fatalf("%v, %v", names, err)
	}
	kept, err := os.ReadFile(names[0])
	if want := appendFrame(nil, func(b []byte) []byte { return append(b, newer...) }); err != nil || !bytes.Equal(kept, want) {
		t.Errorf("%q is kept, %v", kept, err)
	}
}

func TestOpen_FailedTenantDoesNotStopOthers(t *testing.T) {
	dir, ctx := t.TempDir(), context.Background()
	writeLog(t, dir, "good", recordOf(numbered(1)))
	// A file in place of the directory of the log.
	if err := os.MkdirAll(filepath.Join(dir, "profiles", "bad"), 0o755); err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(dir, "profiles", "bad", "wal")
	if err := os.WriteFile(bad, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s := openTest(t, dir, nil)
	v, err := s.View(context.Background(), "good", 0, timeMax)
	if err != nil || len(v.Sources) != 1 {
		t.Fatalf("%v, %v", v, err)
	}
	v.Close()
	if _, err := s.View(context.Background(), "bad", 0, timeMax); err == nil || !strings.Contains(err.Error(), "tenant bad cannot be opened") {
		t.Errorf("a query: %v", err)
	}
	if err := s.Append(ctx, "bad", []profiles.RawProfile{numbered(2)}); err == nil || !strings.Contains(err.Error(), "tenant bad cannot be opened") {
		t.Errorf("a push: %v", err)
	}
	if err := os.Remove(bad); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.failed["bad"].retry.wait = 0
	s.mu.Unlock()
	s.reopen(false)
	if err := s.Append(ctx, "bad", []profiles.RawProfile{numbered(2)}); err != nil {
		t.Error(err)
	}
}

// spread is a profile of so many stacks of so many frames, without common frames.
func spread(id uint64, stacks, depth int) profiles.RawProfile {
	e := pprof.NewEncoder()
	e.SampleType("cpu", "nanoseconds")
	common := e.Location(e.Function("common", "", "", 0), 1)
	for i := range stacks {
		stack := make([]uint64, depth)
		for j := range stack {
			stack[j] = common
		}
		stack[depth-1] = e.Location(e.Function(fmt.Sprint("root", id, "_", i), "", "", 0), 1)
		e.Sample(stack, 1)
	}
	p := profiles.RawProfile{TimeNS: 1_700_000_000_000_000_000 + int64(id), Raw: e.Append(nil)}
	binary.BigEndian.PutUint64(p.ID[:], id+1)
	p.Labels = labelenc.AppendLabel(nil, "__name__", "process_cpu")
	return p
}

func TestReplay_LogBeyondTheBudgetIsWrittenAsBlocks(t *testing.T) {
	dir := t.TempDir()
	const n, depth = 128, 500
	var records [][]byte
	for id := range uint64(n) {
		records = append(records, recordOf(spread(id, 40, depth)))
	}
	path := writeLog(t, dir, "t", records[:n/2]...)
	second := writeLog(t, dir, "other", records[n/2:]...)
	if err := os.Rename(second, filepath.Join(filepath.Dir(path), "00000002")); err != nil {
		t.Fatal(err)
	}
	const budget = 16 << 20
	for start := range 3 { // records replayed again are found in the blocks
		s := openTest(t, dir, func(s *Store) { s.memory.headsMax, s.fs = budget, unsynced{} })
		counts := map[uint64]int{}
		v, err := s.View(context.Background(), "t", 0, timeMax)
		if err != nil {
			t.Fatal(err)
		}
		heads, blocks := 0, 0
		for _, src := range v.Sources {
			for row := range src.Rows() {
				id, err := src.ID(row)
				if err != nil {
					t.Fatal(err)
				}
				counts[binary.BigEndian.Uint64(id[:])-1]++
			}
			if src.Name() == "head" {
				heads += src.Rows()
			} else {
				blocks++
			}
		}
		v.Close()
		for id := range uint64(n) {
			if counts[id] != 1 {
				t.Errorf("start %d: profile %d is stored %d times", start, id, counts[id])
			}
		}
		if used := s.memory.heads.Load(); used > budget || blocks < 2 || heads > n/2 {
			t.Errorf("start %d: %d bytes are used, %d blocks, %d rows in the head", start, used, blocks, heads)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if used := s.memory.heads.Load(); used != 0 {
			t.Errorf("start %d: %d bytes are charged after close", start, used)
		}
	}
}

func TestReplay_ProfilesThatExceedALoweredBudgetAreReplayed(t *testing.T) {
	dir := t.TempDir()
	const n, budget = 3, 1 << 20
	var records [][]byte
	for id := range uint64(n) {
		records = append(records, recordOf(spread(id, 40, 500)), recordOf(numbered(100+id)))
	}
	writeLog(t, dir, "t", records...)
	for start := range 2 {
		s := openTest(t, dir, func(s *Store) { s.memory.headsMax, s.fs = budget, unsynced{} })
		if err := s.Append(t.Context(), "t", []profiles.RawProfile{spread(n, 40, 500)}); err == nil || !strings.Contains(err.Error(), "more than all heads may have") {
			t.Fatalf("start %d: a push of this size: %v", start, err)
		}
		if got := s.metrics.setAside.Get(); got != 0 {
			t.Errorf("start %d: %d records were set aside", start, got)
		}
		counts := map[uint64]int{}
		v, err := s.View(t.Context(), "t", 0, timeMax)
		if err != nil {
			t.Fatal(err)
		}
		for _, src := range v.Sources {
			for row := range src.Rows() {
				id, err := src.ID(row)
				if err != nil {
					t.Fatal(err)
				}
				counts[binary.BigEndian.Uint64(id[:])-1]++
			}
		}
		v.Close()
		for id := range uint64(n) {
			if counts[id] != 1 || counts[100+id] != 1 {
				t.Errorf("start %d: profiles %d and %d are stored %d and %d times", start, id, 100+id, counts[id], counts[100+id])
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAppend_HeadsOfAllTenantsShareOneBudget(t *testing.T) {
	ctx := context.Background()
	const budget = 8 << 20
	s := openTest(t, t.TempDir(), func(s *Store) { s.memory.headsMax, s.fs = budget, unsynced{} })
	refused, accepted := 0, 0
	s.openBlock = func(string) (*block.Reader, error) { return nil, os.ErrPermission } // no block can be opened
	for n := range 200 {
		switch err := s.Append(ctx, fmt.Sprint("tenant", n), []profiles.RawProfile{spread(uint64(n), 10, 500)}); {
		case err == nil:
			accepted++
		case strings.Contains(err.Error(), "bytes of memory"):
			refused++
		default:
			t.Fatal(err)
		}
	}
	if accepted < 5 || refused < 50 {
		t.Errorf("%d accepted, %d refused", accepted, refused)
	}
	if used := s.memory.heads.Load(); used > budget {
		t.Errorf("%d bytes are used", used)
	}
	var size int
	for _, tenant := range s.list() {
		size += tenant.headSize()
	}
	if size > budget || size < budget/4 {
		t.Errorf("the heads have %d bytes", size)
	}
	if got := len(s.list()); got != accepted {
		t.Errorf("%d tenants, although %d were accepted", got, accepted)
	}
	for _, tenant := range s.list() {
		if _, err := os.Stat(tenant.dir); err != nil {
			t.Error(err)
		}
	}
}

// The reservation before the log is written is never less than the memory used.
func TestCostOf_IsAnUpperBoundOfHeadGrowth(t *testing.T) {
	for name, make := range map[string]func(i uint64) profiles.RawProfile{
		"deep":  func(i uint64) profiles.RawProfile { return spread(i, 20, 500) },
		"small": numbered,
	} {
		s := openTest(t, t.TempDir(), func(s *Store) { s.fs = unsynced{} })
		for i := range uint64(300) {
			p := make(i)
			if err := s.Append(context.Background(), "t", []profiles.RawProfile{p}); err != nil {
				t.Fatal(err)
			}
		}
		tenant, err := s.tenant("t", false)
		if err != nil {
			t.Fatal(err)
		}
		size := tenant.head.size()
		var decoder pprof.Profile
		var cost int64
		for i := range uint64(300) {
			p := make(i)
			if err := decoder.Decode(p.Raw, pprof.Limits{}); err != nil {
				t.Fatal(err)
			}
			p.Profile = &decoder
			cost += costOf(p)
		}
		t.Logf("%s: %d bytes, reserved %d", name, size, cost)
		if int64(size) > cost+64<<10 {
			t.Errorf("%s: a head of %d bytes has pushes that reserved %d", name, size, cost)
		}
	}
}

// Pushes that are stored already leave texts and stacks in the head, and no row that would make
// it a block.
func TestAppend_RepeatedPushesAfterAFlushUseNoMemory(t *testing.T) {
	ctx, pushed := context.Background(), spread(1, 8000, 20)
	s := openTest(t, t.TempDir(), func(s *Store) { s.fs = unsynced{} })
	for n := range 3 {
		if err := s.Append(ctx, "t", []profiles.RawProfile{pushed}); err != nil {
			t.Fatal(err)
		}
		if used := s.memory.heads.Load(); (used > emptyHeadBytes) != (n == 0) {
			t.Errorf("push %d: %d bytes are used", n, used)
		}
		if err := s.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	v, err := s.View(ctx, "t", 0, timeMax)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if len(v.Sources) != 1 || v.Sources[0].Rows() != 1 {
		t.Errorf("%d sources", len(v.Sources))
	}
}

func TestFlushBiggest_HeadOfOneRowIsWritten(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, t.TempDir(), func(s *Store) { s.fs = unsynced{} })
	if err := s.Append(ctx, "t", []profiles.RawProfile{spread(1, 2000, 20)}); err != nil {
		t.Fatal(err)
	}
	s.memory.headsMax = s.memory.heads.Load()
	s.flushBiggest(ctx)
	if s.memory.underPressure() {
		t.Errorf("%d bytes are used", s.memory.heads.Load())
	}
}
