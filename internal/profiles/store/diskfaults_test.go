package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/test/crashfs"
)

var errDisk = errors.New("input/output error")

// faults chooses the calls of a disk that fail.
type faults struct {
	mu     sync.Mutex
	choose func(c crashfs.Call) bool // nil: no call fails
	seen   func(c crashfs.Call)      // called before each call; nil: not called
}

// calls chooses the calls of an operation on paths that contain a text.
func calls(op, part string) func(crashfs.Call) bool {
	return func(c crashfs.Call) bool { return c.Op == op && strings.Contains(c.Path, part) }
}

func (f *faults) fail(choose func(crashfs.Call) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.choose = choose
}

func (f *faults) watch(seen func(crashfs.Call)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = seen
}

func (f *faults) of(c crashfs.Call) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seen != nil {
		f.seen(c)
	}
	if f.choose != nil && f.choose(c) {
		return errDisk
	}
	return nil
}

// stopped is a clock that only tests move, in nanoseconds.
type stopped struct{ atomic.Int64 }

func stoppedAt(ns int64) *stopped {
	c := &stopped{}
	c.Store(ns)
	return c
}

func (c *stopped) now() time.Time { return time.Unix(0, c.Load()) }

// of makes a store use the clock.
func (c *stopped) of(s *Store) { s.now = c.now }

// openFaulty opens a store on a disk with faults. Its maintenance does not run by itself.
func openFaulty(t *testing.T, dir string, f *faults, change func(*Store)) *Store {
	t.Helper()
	fs, err := crashfs.New(dir, f.of)
	if err != nil {
		t.Fatal(err)
	}
	return openTest(t, dir, func(s *Store) {
		if s.fs, s.every = fs, time.Hour; change != nil {
			change(s)
		}
	})
}

// flushed stores profiles, each in a block of its own.
func flushed(t *testing.T, s *Store, numbers ...uint64) *tenant {
	t.Helper()
	for _, n := range numbers {
		if err := errors.Join(s.Append(t.Context(), "t", []profiles.RawProfile{numbered(n)}), s.Flush(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	return s.tenants["t"]
}

// openIn returns the number of files below a directory that this process has open.
func openIn(t *testing.T, dir string) (n int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name())); err == nil && strings.HasPrefix(to, dir+string(filepath.Separator)) {
			n++
		}
	}
	return n
}

// found returns the number of names that match a pattern below the directory of the tenant t.
func found(t *testing.T, dir, pattern string) int {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "profiles", "t", pattern))
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// A tenant has a temporary directory, a replaced block and a closed segment of the log left, and
// one of the first two cannot be removed.
func TestOpen_LeftoverThatCannotBeRemovedFailsTheTenant(t *testing.T) {
	before, f := t.TempDir(), &faults{}
	s := openFaulty(t, before, f, nil)
	replaced := ulid.ULID(flushed(t, s, 0, 1, 2, 3).blocks[0].Meta().ULID).String()
	f.fail(calls("rename", replaced))
	if err := s.Compact(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.fail(calls("remove", "wal"))
	if err := errors.Join(s.Append(t.Context(), "t", []profiles.RawProfile{numbered(4)}), s.Flush(t.Context())); !errors.Is(err, errDisk) {
		t.Fatal(err)
	}
	if err := errors.Join(s.Close(), os.Mkdir(filepath.Join(before, "profiles", "t", "tmp-x"), 0o755)); err != nil {
		t.Fatal(err)
	}
	for name, choose := range map[string]func(crashfs.Call) bool{
		"temporary": calls("removeall", "tmp-x"), "replaced": calls("rename", replaced), "directory of the log": calls("mkdir", "wal"),
	} {
		t.Run(name, func(t *testing.T) {
			dir, f, clock := t.TempDir(), &faults{choose: choose}, stoppedAt(time.Unix(1_700_000_100, 0).UnixNano())
			if err := os.CopyFS(dir, os.DirFS(before)); err != nil {
				t.Fatal(err)
			}
			s := openFaulty(t, dir, f, clock.of)
			if failed := s.failed["t"]; failed == nil || !errors.Is(failed.err, errDisk) || len(s.list()) != 0 || s.metrics.tenantsFailed.Get() != 1 {
				t.Fatalf("%+v, %d open tenants, %d failures are counted", failed, len(s.list()), s.metrics.tenantsFailed.Get())
			}
			if n := openIn(t, filepath.Join(dir, "profiles", "t")); n != 0 || s.memory.heads.Load() != 0 {
				t.Errorf("%d files are open, %d bytes are used", n, s.memory.heads.Load())
			}
			if _, err := s.View(t.Context(), "t", 0, timeMax); !errors.Is(err, profiles.ErrUnavailable) || !errors.Is(err, errDisk) {
				t.Errorf("a query: %v", err)
			}
			if s.reopen(false); s.metrics.tenantsFailed.Get() != 1 {
				t.Error("it is retried at once")
			}
			clock.Add(int64(10 * time.Second))
			if s.reopen(false); s.metrics.tenantsFailed.Get() != 2 {
				t.Errorf("after the pause: %d failures are counted", s.metrics.tenantsFailed.Get())
			}
			f.fail(nil)
			clock.Add(int64(20 * time.Second))
			s.reopen(false)
			counts := stored(t, s)
			if once(t, counts, 5); len(s.failed) != 0 {
				t.Errorf("%d failed tenants", len(s.failed))
			}
			if tmp, blocks, segments := found(t, dir, "tmp-*"), found(t, dir, "0*"), found(t, dir, "wal/0*"); tmp != 0 || blocks != 2 || segments != 3 {
				t.Errorf("%d temporary directories, %d blocks and %d segments are left", tmp, blocks, segments)
			}
		})
	}
}

func TestOpenBlocks_DirectoryThatCannotBeRead(t *testing.T) {
	s := openTest(t, t.TempDir(), nil)
	missing := &tenant{store: s, dir: filepath.Join(s.root(), "missing")}
	if err := missing.openBlocks(); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// After a replaced block could not be removed, the tenant must have each open block once: it releases each of them once.
func TestOpenBlocks_AfterAFailureItHasEachOpenBlockOnce(t *testing.T) {
	dir, f := t.TempDir(), &faults{}
	s := openFaulty(t, dir, f, nil)
	had := flushed(t, s, 0, 1, 2, 3)
	replaced := ulid.ULID(had.blocks[0].Meta().ULID).String()
	f.fail(calls("rename", replaced))
	if err := s.Compact(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := openIn(t, had.dir)
	again := &tenant{store: s, name: "t", dir: had.dir}
	if err := again.openBlocks(); !errors.Is(err, errDisk) || len(again.blocks) == 0 {
		t.Fatalf("%d blocks, %v", len(again.blocks), err)
	}
	for i, b := range again.blocks {
		if refs := b.refs.Load(); refs != 1 || slices.Contains(again.blocks[:i], b) {
			t.Errorf("block %s has %d references", b.Name(), refs)
		}
	}
	if again.closeBlocks(); openIn(t, had.dir) != before {
		t.Errorf("%d files are open, want %d", openIn(t, had.dir), before)
	}
}

func TestOpen_CorruptBlockIsSkippedWithAWarningAndStays(t *testing.T) {
	dir := t.TempDir()
	s := openFaulty(t, dir, &faults{}, nil)
	path := flushed(t, s, 0, 1).blocks[0].path
	file := filepath.Join(dir, "profiles", "t", ulid.Make().String()) // not a block
	if err := errors.Join(s.Close(), os.Truncate(filepath.Join(path, "index"), 40), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s := openFaulty(t, dir, &faults{}, nil)
		counts, warnings := s.rows(t)
		if len(counts) != 1 || counts[1] != 1 || len(warnings) != 1 || !errors.Is(warnings[0], profiles.ErrCorrupt) || s.metrics.corrupt.Get() != 1 {
			t.Errorf("%v, warnings %v, %d corrupt blocks", counts, warnings, s.metrics.corrupt.Get())
		}
		if got := s.tenants["t"]; got.count() != 1 || len(got.broken) != 1 {
			t.Errorf("%d blocks, %d broken ones", got.count(), len(got.broken))
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{path, file} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}

// An older build keeps the blocks of a newer one, and does not report them as damage.
func TestOpen_NewerBlockIsSkippedAndCountedApart(t *testing.T) {
	dir := t.TempDir()
	s := openFaulty(t, dir, &faults{}, nil)
	path := flushed(t, s, 0, 1).blocks[0].path
	index, err := os.ReadFile(filepath.Join(path, "index"))
	if err := errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	index[7]++
	if err := os.WriteFile(filepath.Join(path, "index"), index, 0o600); err != nil {
		t.Fatal(err)
	}
	s = openFaulty(t, dir, &faults{}, nil)
	counts, warnings := s.rows(t)
	if len(counts) != 1 || counts[1] != 1 || len(warnings) != 1 || !errors.Is(warnings[0], profiles.ErrNewer) {
		t.Errorf("%v, warnings %v", counts, warnings)
	}
	if m := s.metrics; m.corrupt.Get() != 0 || m.newer.Get() != 1 {
		t.Errorf("%d corrupt blocks, %d newer ones", m.corrupt.Get(), m.newer.Get())
	}
	if err := s.tenants["t"].maintain(t.Context()); err != nil || found(t, dir, "0*") != 2 {
		t.Errorf("%v, %d blocks are on the disk", err, found(t, dir, "0*"))
	}
}

func TestClose_NoFileIsLeftOpen(t *testing.T) {
	dir := t.TempDir()
	s := openFaulty(t, dir, &faults{}, nil)
	tenant := flushed(t, s, 0, 1, 2, 3, 4)
	if err := errors.Join(s.Compact(t.Context()), s.Append(t.Context(), "t", []profiles.RawProfile{numbered(5)})); err != nil {
		t.Fatal(err)
	}
	// The index and the rows of two blocks and a segment of the log; those that were compacted are closed.
	if n := openIn(t, filepath.Join(dir, "profiles", "t")); n != 5 || tenant.count() != 2 {
		t.Errorf("%d files of %d blocks are open", n, tenant.count())
	}
	v, err := s.View(t.Context(), "t", 0, timeMax)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil || openIn(t, dir) != 4 {
		t.Errorf("%v, %d files are open for a view", err, openIn(t, dir))
	}
	if v.Close(); openIn(t, dir) != 0 || s.memory.heads.Load() != 0 {
		t.Errorf("%d files are open, %d bytes are used", openIn(t, dir), s.memory.heads.Load())
	}
}

// Every error of Open is returned, and the store that did not open can be closed.
func TestOpen_EveryFailedCallIsReturned(t *testing.T) {
	for name, choose := range map[string]func(crashfs.Call) bool{
		"parent": calls("mkdir", "new"), "root": calls("mkdir", "profiles"),
		"names": func(c crashfs.Call) bool { return c.Op == "syncdir" && strings.HasSuffix(c.Path, "profiles") },
	} {
		dir := t.TempDir()
		fs, err := crashfs.New(dir, (&faults{choose: choose}).of)
		if err != nil {
			t.Fatal(err)
		}
		s, err := New(Options{Dir: filepath.Join(dir, "new")}, quiet, nil)
		if err != nil {
			t.Fatal(err)
		}
		s.fs = fs
		if err := s.Open(); !errors.Is(err, errDisk) || !strings.HasPrefix(err.Error(), "profiles: ") {
			t.Errorf("%s: %v", name, err)
		}
		if err := s.Close(); err != nil || openIn(t, dir) != 0 {
			t.Errorf("%s: %v, %d files are open", name, err, openIn(t, dir))
		}
	}
}

func TestAppend_TenantWhoseDirectoryCannotBeMade(t *testing.T) {
	f := &faults{choose: calls("mkdir", "profiles/t")}
	s := openFaulty(t, t.TempDir(), f, nil)
	push := func() error { return s.Append(t.Context(), "t", []profiles.RawProfile{numbered(0)}) }
	if err := push(); !errors.Is(err, errDisk) || !strings.Contains(err.Error(), "profiles of tenant t") || len(s.Tenants()) != 0 {
		t.Errorf("%v, tenants %v", err, s.Tenants())
	}
	if f.fail(nil); push() != nil || len(stored(t, s)) != 1 {
		t.Errorf("afterwards: %v", stored(t, s))
	}
}

func TestCommit_EveryPushIsCounted(t *testing.T) {
	f, ctx := &faults{}, context.Background()
	s := openFaulty(t, t.TempDir(), f, nil)
	sizes := 0
	for n := range uint64(3) {
		sizes += len(recordOf(numbered(n))) + 8
		if err := s.Append(ctx, "t", []profiles.RawProfile{numbered(n)}); err != nil {
			t.Fatal(err)
		}
	}
	f.fail(calls("write", "wal"))
	for range 2 {
		if err := s.Append(ctx, "t", []profiles.RawProfile{numbered(9)}); !errors.Is(err, errDisk) {
			t.Error(err)
		}
	}
	if m := s.metrics; m.pushes.Get() != 3 || m.failed.Get() != 2 || m.bytes.Get() != uint64(sizes) {
		t.Errorf("%d pushes of %d bytes are counted, %d failed", m.pushes.Get(), m.bytes.Get(), m.failed.Get())
	}
	if used, size := s.memory.heads.Load(), s.tenants["t"].head.size(); used != int64(size) {
		t.Errorf("%d bytes are used, the head has %d", used, size)
	}
	s.memory.headsMax = int64(2 * s.tenants["t"].head.size())
	if err := s.tenants["t"].headLimitError(); err != nil {
		t.Errorf("half of the memory: %v", err)
	}
	s.memory.headsMax--
	if f.fail(nil); !errors.Is(s.tenants["t"].headLimitError(), profiles.ErrUnavailable) {
		t.Error("more than half of the memory: no error")
	}
}
