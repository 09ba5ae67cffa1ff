package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/profiles"
)

// pushAt pushes profiles with times in hours after the first numbered one and writes them as one block.
func pushAt(t *testing.T, s *Store, first uint64, hours ...int64) *tenant {
	t.Helper()
	var pushed []profiles.RawProfile
	for i, h := range hours {
		p := numbered(first + uint64(i))
		p.TimeNS = numbered(0).TimeNS + h*int64(time.Hour)
		pushed = append(pushed, p)
	}
	if err := errors.Join(s.Append(t.Context(), "t", pushed), s.Flush(t.Context())); err != nil {
		t.Fatal(err)
	}
	return s.tenants["t"]
}

func TestRetain_LimitsAreExact(t *testing.T) {
	clock := stoppedAt(numbered(0).TimeNS)
	dir := t.TempDir()
	s := openFaulty(t, dir, &faults{}, func(s *Store) {
		s.opts.Retention, s.now = time.Hour, clock.now
	})
	pushAt(t, s, 0, 0, 20) // begins first and ends last
	pushAt(t, s, 2, 1)
	tenant := pushAt(t, s, 3, 2)
	all := slices.Clone(tenant.blocks)
	retain := func(what string, want ...*heldBlock) {
		t.Helper()
		if err := tenant.retain(); err != nil || !slices.Equal(tenant.blocks, want) {
			t.Errorf("%s: %v, %d blocks, want %d", what, err, len(tenant.blocks), len(want))
		}
	}
	end := all[1].Meta().MaxNS
	clock.Store(end + int64(time.Hour))
	retain("as old as the retention time", all...)
	clock.Add(1)
	retain("a nanosecond older", all[0], all[2])
	if n := openIn(t, filepath.Join(dir, "profiles", "t")); n != 5 || found(t, dir, "0*") != 2 || found(t, dir, "tmp-*") != 0 {
		t.Errorf("%d files are open, %d blocks on the disk", n, found(t, dir, "0*"))
	}
	s.opts.RetentionBytes = all[0].Bytes() + all[2].Bytes()
	retain("as large as the retention size", all[0], all[2])
	s.opts.RetentionBytes--
	retain("a byte larger", all[0])
	if n := s.metrics.lost.Get(); n != 0 {
		t.Errorf("%d blocks are lost for a bucket that does not exist", n)
	}
	s.opts.Retention, s.opts.RetentionBytes = -1, 0
	clock.Add(int64(1000 * time.Hour))
	retain("without limits", all[0])
	s.opts.RetentionBytes = 1
	retain("a byte")
}

// A clock that is ahead must not remove profiles, before or after a start: the blocks are there when it is right again.
func TestRetain_ClockThatIsAheadRemovesNothing(t *testing.T) {
	const month = 30 * 24 * time.Hour
	var up atomic.Int64
	clock, dir := stoppedAt(numbered(0).TimeNS), t.TempDir()
	open := func() *Store {
		up.Store(0)
		return openFaulty(t, dir, &faults{}, func(s *Store) {
			s.opts.Retention, s.now, s.uptime = month/2, clock.now, func() time.Duration { return time.Duration(up.Load()) }
		})
	}
	retain := func(what string, s *Store, want int) {
		t.Helper()
		if err := s.tenants["t"].retain(); err != nil || s.tenants["t"].count() != want {
			t.Errorf("%s: %v, %d blocks, want %d", what, err, s.tenants["t"].count(), want)
		}
	}
	s := open()
	flushed(t, s, 0)
	clock.Add(int64(month))
	retain("a clock that jumps", s, 1)
	p := numbered(1) // by a client whose clock is ahead, too
	p.TimeNS = clock.Load()
	if err := errors.Join(s.Append(t.Context(), "t", []profiles.RawProfile{p}), s.Flush(t.Context())); err != nil {
		t.Fatal(err)
	}
	retain("and a block that is written meanwhile", s, 2)
	clock.Add(-int64(month))
	retain("a clock that is right again", s, 2)
	// With the block that was written while the clock was ahead, a start with such a clock takes the time from it.
	if err := errors.Join(os.RemoveAll(s.tenants["t"].blocks[1].path), s.Close()); err != nil {
		t.Fatal(err)
	}
	clock.Add(int64(month))
	s = open()
	retain("a start with a clock that is ahead", s, 1)
	up.Store(int64(month/2) - 1)
	retain("as old as the retention time", s, 1)
	up.Add(2)
	retain("after the retention time", s, 0)
}

// A block that was written while the clock was ahead does not make blocks older at a restart, unless the machine has
// restarted, too, or the file is damaged.
func TestRetain_AgeGoesOnAfterARestart(t *testing.T) {
	const month = 30 * 24 * time.Hour
	for name, c := range map[string]struct {
		boot string
		file string // "": unchanged
		want int
	}{
		"restart":                     {"a", "", 2},
		"restart of the machine":      {"b", "", 1},
		"no boots":                    {"", "", 1},
		"cut file":                    {"a", "a 5 ", 1},
		"cut line":                    {"a", "a 5 7", 1},
		"other file":                  {"a", "hello\n", 1},
		"less time since the boot":    {"a", fmt.Sprintf("a %d 7\n", 10*month.Milliseconds()), 1},
		"another time since the boot": {"a", fmt.Sprintf("a 0 %d\n", numbered(0).TimeNS/1e6), 2},
	} {
		t.Run(name, func(t *testing.T) {
			var up atomic.Int64
			clock, dir, boot := stoppedAt(numbered(0).TimeNS), t.TempDir(), "a"
			open := func() *Store {
				begun := up.Load()
				return openFaulty(t, dir, &faults{}, func(s *Store) {
					s.opts.Retention, s.now = month/2, clock.now
					s.uptime = func() time.Duration { return time.Duration(up.Load() - begun) }
					s.booted = func() (string, int64) { return boot, up.Load() / 1e6 }
				})
			}
			s := open()
			if s.keepAged() {
				t.Error("the age is kept before there is a block")
			}
			flushed(t, s, 0)
			if !s.keepAged() {
				t.Error("the age is not kept")
			}
			clock.Add(int64(month))
			up.Add(int64(time.Hour))
			p := numbered(1) // by a client whose clock is ahead, too
			p.TimeNS = clock.Load()
			if err := errors.Join(s.Append(t.Context(), "t", []profiles.RawProfile{p}), s.Flush(t.Context()), s.Close()); err != nil {
				t.Fatal(err)
			}
			if c.file != "" {
				if err := os.WriteFile(filepath.Join(dir, "profiles", agedName), []byte(c.file), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			boot = c.boot
			s = open()
			check := func(what string, want int) {
				t.Helper()
				if err := s.tenants["t"].retain(); err != nil || s.tenants["t"].count() != want {
					t.Errorf("%s: %v, %d blocks, want %d", what, err, s.tenants["t"].count(), want)
				}
			}
			check("after the restart", c.want)
			up.Add(int64(month/2) - int64(time.Hour) - 1e6)
			if name == "restart" {
				check("as old as the retention time", 2)
			}
			up.Add(2e6)
			check("after the retention time", 1)
		})
	}
}

func TestMaintain_WritesTheAgeOnceThereIsABlock(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir, func(s *Store) {
		s.every, s.booted = time.Millisecond, func() (string, int64) { return "boot", 5 }
	})
	flushed(t, s, 0)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		line, err := os.ReadFile(filepath.Join(dir, "profiles", agedName))
		if err == nil && strings.HasPrefix(string(line), "boot 5 1") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%q, %v", line, err)
		}
	}
}

func TestBootClock_GoesOn(t *testing.T) {
	boot, since := bootClock()
	again, later := bootClock()
	if runtime.GOOS == "linux" && (boot == "" || since <= 0) || boot != again || later < since {
		t.Errorf("%q %d, then %q %d", boot, since, again, later)
	}
}

// A head is written when it is old or full, and a block whose write has failed once its pause is over.
func TestMaintain_HeadsAreWrittenWhenTheyAreOldOrFull(t *testing.T) {
	clock, f := stoppedAt(numbered(0).TimeNS), &faults{}
	s := openFaulty(t, t.TempDir(), f, func(s *Store) {
		s.opts.HeadAge, s.now = time.Minute, clock.now
	})
	push := func(n uint64) *tenant {
		t.Helper()
		if err := s.Append(t.Context(), "t", []profiles.RawProfile{numbered(n)}); err != nil {
			t.Fatal(err)
		}
		return s.tenants["t"]
	}
	tenant := push(0)
	maintain := func(what string, blocks, rows int) {
		t.Helper()
		if err := tenant.maintain(t.Context()); err != nil || tenant.count() != blocks || tenant.head.count() != rows {
			t.Errorf("%s: %v, %d blocks, %d rows in the head, want %d and %d", what, err, tenant.count(), tenant.head.count(), blocks, rows)
		}
	}
	clock.Add(int64(time.Minute) - 1)
	maintain("younger than the head age", 0, 1)
	clock.Add(1)
	maintain("at the head age", 1, 0)
	clock.Add(int64(time.Hour))
	maintain("an empty head", 1, 0)
	if err := s.Append(t.Context(), "t", []profiles.RawProfile{numbered(1)}); err != nil {
		t.Fatal(err)
	}
	maintain("a head that was empty for an hour", 2, 0)
	push(2)
	s.opts.HeadBytes = tenant.head.size() + 1
	maintain("smaller than the head size", 2, 1)
	s.opts.HeadBytes = tenant.head.size()
	maintain("at the head size", 3, 0)
	s.opts.HeadBytes = 64 << 20
	push(3)
	clock.Add(int64(time.Minute))
	f.fail(calls("mkdir", "tmp-"))
	if err := tenant.maintain(t.Context()); !errors.Is(err, errDisk) || s.metrics.flushesFailed.Get() != 1 {
		t.Errorf("a disk that fails: %v, %d failures", err, s.metrics.flushesFailed.Get())
	}
	push(4)
	f.fail(nil)
	clock.Add(int64(4*time.Second) - 1)
	maintain("within the pause", 3, 1)
	clock.Add(1)
	maintain("after the pause", 1, 1) // four blocks are compacted
	once(t, stored(t, s), 5)
}

func TestMaintain_OpensFailedTenantsAndForgetsIdleOnes(t *testing.T) {
	dir, clock, f := t.TempDir(), stoppedAt(numbered(0).TimeNS), &faults{}
	writeLog(t, dir, "t", recordOf(numbered(0)))
	writeLog(t, dir, "idle")
	f.fail(calls("mkdir", "profiles/t/wal"))
	s := openFaulty(t, dir, f, func(s *Store) {
		s.every, s.now = time.Millisecond, clock.now
	})
	if got := s.Tenants(); !slices.Equal(got, []string{"idle", "t"}) || len(s.list()) != 1 {
		t.Errorf("tenants %v, %d are open", got, len(s.list()))
	}
	f.fail(nil)
	clock.Add(int64(tenantIdle))
	eventually(t, func() bool { return slices.Equal(s.Tenants(), []string{"t"}) && len(s.list()) == 1 })
	once(t, stored(t, s), 1)
}

func TestIdle_EveryRemainderKeepsATenant(t *testing.T) {
	clock := stoppedAt(numbered(0).TimeNS)
	s := openFaulty(t, t.TempDir(), &faults{}, clock.of)
	tenant := pushAt(t, s, 0, 0)
	blocks, empty := tenant.blocks, tenant.head
	clock.Add(int64(tenantIdle))
	full := s.newHead()
	full.at = make([]uint64, 1)
	for name, c := range map[string]struct {
		change, undo func()
		idle         bool
	}{
		"nothing":  {func() {}, func() {}, true},
		"a block":  {func() { tenant.blocks = blocks }, func() { tenant.blocks = nil }, false},
		"broken":   {func() { tenant.broken = []error{errDisk} }, func() { tenant.broken = nil }, false},
		"flushing": {func() { tenant.flushing = empty }, func() { tenant.flushing = nil }, false},
		"a head":   {func() { tenant.head = full }, func() { tenant.head = empty }, false},
		"a queue":  {func() { tenant.queue.waiting = []*waiting{nil} }, func() { tenant.queue.waiting = nil }, false},
		"a push":   {func() { clock.Add(-1) }, func() { clock.Add(1) }, false},
	} {
		tenant.blocks = nil
		if c.change(); tenant.idle(false) != c.idle {
			t.Errorf("%s: idle is %v", name, !c.idle)
		}
		if !c.idle && tenant.idle(true) || tenant.closing != nil {
			t.Errorf("%s: its queue is closed", name)
		}
		c.undo()
	}
	tenant.blocks = blocks
	if s.forget(); len(s.list()) != 1 {
		t.Error("a tenant with a block was forgotten")
	}
}

func TestForget_DirectoryWithRecordsSetAsideStays(t *testing.T) {
	dir, clock := t.TempDir(), stoppedAt(numbered(0).TimeNS)
	writeLog(t, dir, "t", []byte("what is this?"))
	writeLog(t, dir, "u")
	s := openFaulty(t, dir, &faults{}, clock.of)
	clock.Add(int64(tenantIdle))
	if s.forget(); len(s.Tenants()) != 0 || openIn(t, filepath.Join(dir, "profiles")) != 0 {
		t.Errorf("tenants %v, %d files are open", s.Tenants(), openIn(t, filepath.Join(dir, "profiles")))
	}
	if found(t, dir, "wal/aside/*.bytes") != 1 {
		t.Error("a record that was set aside is gone")
	}
	if _, err := os.Stat(filepath.Join(dir, "profiles", "u")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory without records: %v", err)
	}
	if err := s.Append(t.Context(), "t", []profiles.RawProfile{numbered(0)}); err != nil {
		t.Error(err)
	}
	once(t, stored(t, s), 1)
}

func TestRemoveTenant_ErrorsAreReturned(t *testing.T) {
	for name, f := range map[string]*faults{
		"log": {choose: calls("removeall", "wal")}, "directory": {choose: calls("remove", "profiles/t")}, "names": {choose: calls("syncdir", "profiles")},
	} {
		dir := t.TempDir()
		writeLog(t, dir, "t")
		choose := f.choose
		f.fail(nil)
		s := openFaulty(t, dir, f, nil)
		f.fail(choose)
		if err := s.removeTenant(s.tenants["t"]); !errors.Is(err, errDisk) {
			t.Errorf("%s: %v", name, err)
		}
		f.fail(nil)
	}
	s := openFaulty(t, t.TempDir(), &faults{}, nil)
	if err := s.removeTenant(&tenant{store: s, dir: filepath.Join(s.root(), "missing")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}

func TestForget_ClosedStoreKeepsItsTenants(t *testing.T) {
	dir, clock := t.TempDir(), stoppedAt(numbered(0).TimeNS)
	writeLog(t, dir, "t")
	s := openFaulty(t, dir, &faults{}, clock.of)
	clock.Add(int64(tenantIdle))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s.forget(); len(s.list()) != 1 || found(t, dir, "wal/0*") == 0 {
		t.Errorf("%d tenants, %d segments", len(s.list()), found(t, dir, "wal/0*"))
	}
}

func TestDropIdleSymbols_AfterAMinuteWithoutUse(t *testing.T) {
	clock := stoppedAt(numbered(0).TimeNS)
	s := openFaulty(t, t.TempDir(), &faults{}, clock.of)
	tenant := flushed(t, s, 0)
	v, err := s.View(t.Context(), "t", 0, timeMax)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	_, done, err := v.PartSymbols(v.Sources[0], 0)
	if err != nil {
		t.Fatal(err)
	}
	done()
	for i, step := range []struct {
		after time.Duration
		kept  bool
	}{{0, true}, {symbolsIdle - 1, true}, {1, false}} {
		clock.Add(int64(step.after))
		if tenant.dropIdleSymbols(); (s.memory.symbols.Load() > 0) != step.kept {
			t.Errorf("step %d: %d bytes of symbols", i, s.memory.symbols.Load())
		}
	}
}

// Symbols whose file is damaged after the block was opened.
func TestSymbols_ThatCannotBeDecodedAreNotHeld(t *testing.T) {
	s := openFaulty(t, t.TempDir(), &faults{}, nil)
	path := filepath.Join(flushed(t, s, 0).blocks[0].path, "index")
	index, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	v, err := s.View(t.Context(), "t", 0, timeMax)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	failed := false
	for at := len(index) - 1; at > 0 && !failed; at-- { // what follows the symbols is not read again
		if _, err := file.WriteAt([]byte{^index[at]}, int64(at)); err != nil {
			t.Fatal(err)
		}
		_, done, err := v.PartSymbols(v.Sources[0], 0)
		if failed = err != nil; !failed {
			done()
			v.Sources[0].(*heldBlock).DropSymbols()
		} else if !errors.Is(err, profiles.ErrCorrupt) {
			t.Error(err)
		}
	}
	if !failed {
		t.Error("no damage was noticed")
	}
	if v.Lease.bytes != 0 || s.memory.leased.Load() != 0 || s.memory.symbols.Load() != 0 {
		t.Errorf("%d bytes are leased, %d are held", s.memory.leased.Load(), s.memory.symbols.Load())
	}
}
