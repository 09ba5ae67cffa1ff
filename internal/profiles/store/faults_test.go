package store

import (
	"context"
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/internal/profiles"
)

// smallDisk is a disk with so many bytes left. A write that does not fit is written in
// part, as on real disks.
type smallDisk struct {
	files.Disk
	left atomic.Int64
}

type smallFile struct {
	files.File
	disk *smallDisk
}

func (d *smallDisk) Create(path string) (files.File, error) {
	if d.left.Load() <= 0 {
		return nil, syscall.ENOSPC
	}
	f, err := d.Disk.Create(path)
	return &smallFile{f, d}, err
}

func (f *smallFile) Write(p []byte) (int, error) {
	if left := f.disk.left.Add(-int64(len(p))); left < 0 {
		n, _ := f.File.Write(p[:max(0, int64(len(p))+left)])
		return n, syscall.ENOSPC
	}
	return f.File.Write(p)
}

func TestAppend_FullDiskRefusesAndLosesNothing(t *testing.T) {
	dir, ctx, disk := t.TempDir(), context.Background(), &smallDisk{}
	disk.left.Store(2000)
	s := openTest(t, dir, func(s *Store) { s.fs = disk })
	stores := map[uint64]bool{}
	full := 0
	for n := range uint64(60) {
		switch err := s.Append(ctx, "t", []profiles.RawProfile{numbered(n)}); {
		case err == nil:
			stores[n] = true
		case errors.Is(err, syscall.ENOSPC):
			if full++; full == 10 {
				disk.left.Store(1 << 20) // space was freed
			}
		default:
			t.Fatal(err)
		}
	}
	if full != 10 || len(stores) != 50 {
		t.Fatalf("%d refused, %d stored", full, len(stores))
	}
	check := func(s *Store) {
		t.Helper()
		counts := stored(t, s)
		for n := range uint64(60) {
			if want := map[bool]int{true: 1}[stores[n]]; counts[n] != want {
				t.Errorf("profile %d is stored %d times, want %d", n, counts[n], want)
			}
		}
	}
	check(s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	check(openTest(t, dir, nil))
}

func TestFlush_FullDiskKeepsTheHead(t *testing.T) {
	dir, ctx, disk := t.TempDir(), context.Background(), &smallDisk{}
	disk.left.Store(1 << 20)
	s := openTest(t, dir, func(s *Store) { s.fs = disk })
	for n := range uint64(20) {
		if err := s.Append(ctx, "t", []profiles.RawProfile{numbered(n)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, left := range []int64{0, 1, 100, 600, 1500, 2500} {
		disk.left.Store(left)
		if err := s.Flush(ctx); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("%d bytes left: %v", left, err)
		}
		if got := len(stored(t, s)); got != 20 {
			t.Fatalf("%d bytes left: %d profiles", left, got)
		}
	}
	if got := s.metrics.flushesFailed.Get(); got != 6 {
		t.Errorf("the metric has %d failures", got)
	}
	disk.left.Store(1 << 20)
	if err := s.Append(ctx, "t", []profiles.RawProfile{numbered(20)}); err != nil {
		t.Fatal(err)
	}
	if err := s.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := len(stored(t, openTest(t, dir, nil))); got != 21 {
		t.Errorf("%d profiles", got)
	}
}

func TestRetain_RemovesOldBlocks(t *testing.T) {
	dir, ctx := t.TempDir(), context.Background()
	s := openTest(t, dir, nil)
	for n := range uint64(3) {
		p := numbered(n)
		p.TimeNS += int64(n) * int64(time.Hour)
		if err := s.Append(ctx, "t", []profiles.RawProfile{p}); err != nil {
			t.Fatal(err)
		}
		if err := s.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	tenant, err := s.tenant("t", false)
	if err != nil {
		t.Fatal(err)
	}
	newest := time.Unix(1_700_000_000, 0).Add(2 * time.Hour)
	tenant.flushMu.Lock()
	s.now = func() time.Time { return newest.Add(time.Minute) }
	s.opts.Retention = 90 * time.Minute
	tenant.flushMu.Unlock()
	if err := tenant.retain(); err != nil {
		t.Fatal(err)
	}
	if counts := stored(t, s); counts[0] != 0 || counts[1] != 1 || counts[2] != 1 {
		t.Errorf("by age: %v", counts)
	}
	tenant.flushMu.Lock()
	s.opts.Retention, s.opts.RetentionBytes = -1, tenant.blocks[0].Bytes()+10
	tenant.flushMu.Unlock()
	if err := tenant.retain(); err != nil {
		t.Fatal(err)
	}
	if counts := stored(t, s); len(counts) != 1 || counts[2] != 1 {
		t.Errorf("by size: %v", counts)
	}
}

func TestAppend_RefusesBadPushes(t *testing.T) {
	s, ctx := openTest(t, t.TempDir(), nil), context.Background()
	good := numbered(1)
	for name, change := range map[string]func(p *profiles.RawProfile){
		"no name":        func(p *profiles.RawProfile) { p.Labels = nil },
		"no labels":      func(p *profiles.RawProfile) { p.Labels = []byte("hello") },
		"no pprof":       func(p *profiles.RawProfile) { p.Raw = []byte("hello") },
		"nothing":        func(p *profiles.RawProfile) { p.Raw = nil },
		"a far time":     func(p *profiles.RawProfile) { p.TimeNS = 1<<63 - 1 },
		"a time in 1969": func(p *profiles.RawProfile) { p.TimeNS = -1 },
	} {
		p := good
		change(&p)
		if err := s.Append(ctx, "t", []profiles.RawProfile{numbered(2), p}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for _, tenant := range []string{"", "..", "a/b", "a b", "ä", "a|b", "%2Eops"} {
		if err := s.Append(ctx, tenant, []profiles.RawProfile{good}); !errors.Is(err, profiles.ErrBadRequest) {
			t.Errorf("tenant %q: %v", tenant, err)
		}
	}
	if counts := stored(t, s); len(counts) != 0 {
		t.Errorf("refused pushes are stored: %v", counts)
	}
}
