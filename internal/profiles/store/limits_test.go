package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	googlepprof "github.com/google/pprof/profile"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

func TestLease_TakesUpToTheMemoryAndReturnsIt(t *testing.T) {
	s := openTest(t, t.TempDir(), func(s *Store) { s.memory.max, s.opts.Flags = 100, hint.Flags{"MemoryBytes": "--memory"} })
	s.memory.heads.Add(20)
	defer s.memory.heads.Add(-20)
	s.memory.symbols.Add(10)
	defer s.memory.symbols.Add(-10)
	l := Lease{store: s}
	if err := errors.Join(l.Take(30), l.Take(0), l.Take(-5), l.Take(40)); err != nil || l.bytes != 70 || s.memory.leased.Load() != 70 {
		t.Fatalf("to the limit: %v, %d and %d bytes", err, l.bytes, s.memory.leased.Load())
	}
	err := l.Take(1)
	if !errors.Is(err, profiles.ErrLimit) || !strings.HasSuffix(err.Error(), "needs 1 bytes in addition to its 70, and 100 of 100 are in use: select a shorter range or fewer series, or send it again later (--memory)") {
		t.Errorf("one past the limit: %v", err)
	}
	if l.bytes != 70 || s.memory.leased.Load() != 70 {
		t.Errorf("after an error: %d and %d bytes", l.bytes, s.memory.leased.Load())
	}
	l.Release()
	l.Release()
	if l.bytes != 0 || s.memory.leased.Load() != 0 {
		t.Errorf("after Release: %d and %d bytes", l.bytes, s.memory.leased.Load())
	}
	known := int64(0)
	for _, c := range []struct{ now, known, leased int64 }{{10, 10, 10}, {5, 10, 10}, {10, 10, 10}, {12, 12, 12}} {
		if known, err = l.Grow(known, c.now); err != nil || known != c.known || s.memory.leased.Load() != c.leased {
			t.Errorf("grown to %d: %d known, %d leased, %v", c.now, known, s.memory.leased.Load(), err)
		}
	}
	if _, err = l.Grow(known, 1000); !errors.Is(err, profiles.ErrLimit) {
		t.Errorf("grown past the limit: %v", err)
	}
	l.Release()
	free := Lease{}
	if err := free.Take(math.MaxInt64); err != nil {
		t.Errorf("without a store: %v", err)
	}
	free.Release()
}

// Symbols of a block are counted while they are decoded and afterwards, stay cached, and are
// dropped if memory is short.
func TestView_SymbolsAreCountedAndDroppedIfMemoryIsShort(t *testing.T) {
	ctx := t.Context()
	s := openTest(t, t.TempDir(), nil)
	if err := errors.Join(s.Append(ctx, "t", []profiles.RawProfile{numbered(0), numbered(1), numbered(2)}), s.Flush(ctx)); err != nil {
		t.Fatal(err)
	}
	for _, part := range []int{0, 1} {
		name := fmt.Sprint("part ", part)
		v, err := s.View(ctx, "t", 0, timeMax)
		if err != nil {
			t.Fatal(err)
		}
		s.memory.max = 1 << 30
		got, done, err := v.PartSymbols(v.Sources[0], part)
		if err != nil || len(got.Parents) < 2 {
			t.Fatalf("%s: %v", name, err)
		}
		if leased, held := s.memory.leased.Load(), s.memory.symbols.Load(); leased != 0 || held == 0 || v.Lease.bytes != 0 {
			t.Errorf("%s, decoded: %d bytes leased, %d held", name, leased, held)
		}
		if s.dropSymbols() {
			t.Errorf("%s: dropped while in use", name)
		}
		done()
		if s.memory.symbols.Load() == 0 {
			t.Errorf("%s: not cached", name)
		}
		s.memory.max = s.memory.symbols.Load()
		if err := v.Lease.Take(1); err != nil || s.memory.symbols.Load() != 0 {
			t.Errorf("%s: %v, and %d bytes of symbols are left", name, err, s.memory.symbols.Load())
		}
		if s.dropSymbols() {
			t.Errorf("%s: dropped twice", name)
		}
		if err := v.Lease.Take(s.memory.max - 1); err != nil {
			t.Fatal(err)
		}
		if _, _, err := v.PartSymbols(v.Sources[0], part); !errors.Is(err, profiles.ErrLimit) {
			t.Errorf("%s, no memory left: %v", name, err)
		}
		v.Lease.Release()
		s.memory.max = 1 << 30
		if _, done, err = v.PartSymbols(v.Sources[0], part); err != nil {
			t.Fatal(err)
		}
		s.memory.max = symbolsShare * s.memory.symbols.Load()
		if done(); s.memory.symbols.Load() == 0 {
			t.Errorf("%s: an eighth of the memory was dropped", name)
		}
		if _, done, err = v.PartSymbols(v.Sources[0], part); err != nil {
			t.Fatal(err)
		}
		s.memory.max -= symbolsShare
		if done(); s.memory.symbols.Load() != 0 {
			t.Errorf("%s: more than an eighth of the memory is cached", name)
		}
		s.memory.max = 1 << 30
		v.Close()
	}
}

func TestAppend_LittleFreeSpaceIsReservedForSamples(t *testing.T) {
	s := openTest(t, t.TempDir(), func(s *Store) { s.opts.Flags = hint.Flags{"FreeBytesMin": "--reserve"} })
	push := func() error { return s.Append(t.Context(), "t", []profiles.RawProfile{numbered(1)}) }
	for _, reserve := range []int64{-1, 0, 1} {
		if s.opts.FreeBytesMin = reserve; s.checkSpace() != nil {
			t.Errorf("%d reserved: %v", reserve, s.checkSpace())
		}
	}
	var stat syscall.Statfs_t
	if err := syscall.Statfs(s.opts.Dir, &stat); err != nil {
		t.Fatal(err)
	}
	s.opts.FreeBytesMin = math.MaxInt64
	err := push()
	if free, tenth := int64(stat.Bavail)*int64(stat.Bsize), int64(stat.Blocks)*int64(stat.Bsize)/10; free > tenth+tenth/10 {
		if err != nil {
			t.Errorf("%d bytes free of %d: %v", free, 10*tenth, err)
		}
	} else if free < tenth-tenth/10 {
		if !errors.Is(err, profiles.ErrUnavailable) || !errors.Is(err, syscall.ENOSPC) || !strings.HasSuffix(err.Error(), "are reserved for samples (--reserve)") {
			t.Errorf("%d bytes free of %d: %v", free, 10*tenth, err)
		}
	}
	s.opts.Dir = filepath.Join(s.opts.Dir, "missing")
	if err := s.checkSpace(); err != nil {
		t.Errorf("missing directory: %v", err)
	}
}

func TestReadRecord_EveryCutIsNoticed(t *testing.T) {
	pushed := numbered(1)
	record := recordOf(pushed)
	count := func(b []byte) (int, error) {
		n := 0
		err := readRecord(b, func(p *profiles.RawProfile) error {
			if n++; p.ID != pushed.ID || p.TimeNS != pushed.TimeNS || string(p.Labels) != string(pushed.Labels) || string(p.Raw) != string(pushed.Raw) {
				t.Errorf("read %+v", p)
			}
			return nil
		})
		return n, err
	}
	if n, err := count(append(slices.Clip(record), record[1:]...)); n != 2 || err != nil {
		t.Errorf("whole: %d, %v", n, err)
	}
	if n, err := count(record[:1]); n != 0 || err != nil {
		t.Errorf("no profile: %d, %v", n, err)
	}
	labelsEnd := 1 + 24 + 1 + len(pushed.Labels)
	for end := range len(record) {
		if end == 1 {
			continue
		}
		want := "profile of a record"
		switch {
		case end == 0:
			want = "record without a version"
		case end < 25:
			want = "record is cut short"
		case end < labelsEnd:
			want = "labels of a record"
		}
		if n, err := count(record[:end]); n != 0 || !errors.Is(err, profiles.ErrCorrupt) || !strings.Contains(err.Error(), want) {
			t.Errorf("%d bytes: %d, %v", end, n, err)
		}
	}
	if _, err := count([]byte{recordVersion + 1}); !errors.Is(err, profiles.ErrNewer) {
		t.Errorf("newer version: %v", err)
	}
	stop := errors.New("stop")
	if err := readRecord(record, func(*profiles.RawProfile) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("error of the callback: %v", err)
	}
}

func TestComplete_TimesAndIDs(t *testing.T) {
	now := time.Unix(7, 5)
	for _, c := range []struct {
		pushed, encoded, want int64 // want 0: refused
	}{
		{3, 4, 3}, {0, 4, 4}, {0, 0, 7_000_000_005}, {timeMax, 4, timeMax}, {timeMax + 1, 4, 0}, {-1, 4, 0}, {0, -1, 0}, {1, -1, 1},
	} {
		p := profiles.RawProfile{TimeNS: c.pushed, Profile: &pprof.Profile{TimeNS: c.encoded}}
		err := complete(&p, 5, now)
		if c.want == 0 {
			if !errors.Is(err, profiles.ErrBadRequest) || !strings.Contains(err.Error(), "profile 5 has the time") {
				t.Errorf("%+v: %v", c, err)
			}
			continue
		}
		if err != nil || p.TimeNS != c.want || p.ID == (profiles.ID{}) {
			t.Errorf("%+v: %d, %v, %v", c, p.TimeNS, p.ID, err)
		}
		id := p.ID
		if err := complete(&p, 5, now); err != nil || p.ID != id {
			t.Errorf("an ID was replaced: %v", err)
		}
	}
}

func TestOptions_EveryNegativeNumberIsRefused(t *testing.T) {
	for name, o := range map[string]Options{
		"retention size": {RetentionBytes: -1}, "head size": {HeadBytes: -1}, "heads size": {HeadsBytes: -1}, "memory": {MemoryBytes: -1}, "head age": {HeadAge: -1},
		"block size": {BlockBytes: -1}, "tenants limit": {TenantsMax: -1},
		"bucket list interval": {RemoteEvery: -1}, "bucket index size": {RemoteIndexBytes: -1},
		"bucket retention time": {RemoteRetention: -1}, "bucket deletion delay": {RemoteDeleteDelay: -1},
	} {
		if o.Dir = "d"; o.Validate() == nil || o.Validate().Error() != name+" -1 is negative" {
			t.Errorf("%s: %v", name, o.Validate())
		}
		if _, err := New(o, quiet, nil); err == nil {
			t.Errorf("%s: New accepted it", name)
		}
	}
	if err := (Options{}).Validate(); err == nil || err.Error() != "no directory for profiles" {
		t.Errorf("no directory: %v", err)
	}
	for _, c := range []struct {
		disk, remote time.Duration
		ok           bool
	}{
		{-1, 0, true}, {-1, time.Hour, false}, {time.Hour, time.Hour, true}, {time.Hour, time.Hour - 1, false}, {0, 15 * 24 * time.Hour, true}, {0, 15*24*time.Hour - 1, false}, {time.Hour, 0, true},
	} {
		if err := (Options{Dir: "d", Retention: c.disk, RemoteRetention: c.remote}).Validate(); (err == nil) != c.ok {
			t.Errorf("%s on disk, %s in the bucket: %v", c.disk, c.remote, err)
		}
	}
}

func TestStore_CallsBeforeOpenAndAfterCloseAreUnavailable(t *testing.T) {
	s, err := New(Options{Dir: filepath.Join(t.TempDir(), "new", "dir"), Retention: -1}, quiet, nil)
	if err != nil {
		t.Fatal(err)
	}
	calls := func(state, want string) {
		t.Helper()
		_, statsErr := s.Stats("t")
		_, viewErr := s.View(t.Context(), "t", 0, timeMax)
		for name, err := range map[string]error{"Append": s.Append(t.Context(), "t", []profiles.RawProfile{numbered(1)}), "Stats": statsErr, "View": viewErr} {
			if !errors.Is(err, profiles.ErrUnavailable) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s %s: %v", name, state, err)
			}
		}
	}
	calls("before Open", "is being replayed")
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	other, err := New(s.opts, quiet, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Open(); err == nil {
		t.Error("a second store opened the directory")
	}
	if err := s.Append(t.Context(), "t", []profiles.RawProfile{numbered(1)}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	calls("after Close", "the store is closed")
	again, err := New(s.opts, quiet, nil)
	if err == nil {
		err = again.Open()
	}
	if err != nil {
		t.Fatalf("the lock was not released: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

func TestAppend_BadPushesStoreNothing(t *testing.T) {
	s := openTest(t, t.TempDir(), func(s *Store) { s.opts.TenantsMax, s.opts.Flags = 1, hint.Flags{"TenantsMax": "--tenants"} })
	good := numbered(1)
	for name, c := range map[string]struct {
		change func(p *profiles.RawProfile)
		kind   error
		text   string
	}{
		"labels":  {func(p *profiles.RawProfile) { p.Labels = []byte{200} }, profiles.ErrBadRequest, "profile 1: "},
		"no name": {func(p *profiles.RawProfile) { p.Labels = labelenc.AppendLabel(nil, "a", "b") }, profiles.ErrBadRequest, "profile 1 has no label __name__"},
		"pprof":   {func(p *profiles.RawProfile) { p.Raw = []byte{255} }, nil, "profile 1: "},
		"time":    {func(p *profiles.RawProfile) { p.TimeNS = -1 }, profiles.ErrBadRequest, "profile 1 has the time -1 ns"},
	} {
		bad := numbered(2)
		c.change(&bad)
		pushed := []profiles.RawProfile{good, bad}
		if err := s.Append(t.Context(), "t", pushed); err == nil || c.kind != nil && !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
		if pushed[0].Profile != nil || pushed[1].Profile != nil {
			t.Errorf("%s: a lent decoder is still in the push", name)
		}
	}
	if err := errors.Join(s.Append(t.Context(), "t", nil)); err != nil || len(s.Tenants()) != 0 {
		t.Errorf("empty push: %v, tenants %v", err, s.Tenants())
	}
	if err := s.Append(t.Context(), "a/..", []profiles.RawProfile{good}); err == nil {
		t.Error("a tenant of a wrong name was stored")
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := s.Append(ended, "t", []profiles.RawProfile{good}); !errors.Is(err, context.Canceled) {
		t.Errorf("ended context: %v", err)
	}
	if _, err := s.View(ended, "t", 0, timeMax); !errors.Is(err, context.Canceled) {
		t.Errorf("view with an ended context: %v", err)
	}
	if s.memory.heads.Load() != 0 {
		t.Errorf("%d bytes are still reserved", s.memory.heads.Load())
	}
	if err := s.Append(t.Context(), "t", []profiles.RawProfile{good}); err != nil {
		t.Fatal(err)
	}
	if err := s.Append(t.Context(), "u", []profiles.RawProfile{good}); !errors.Is(err, profiles.ErrLimit) || !strings.HasSuffix(err.Error(), "limit of 1 tenants reached: there are 1 (--tenants)") {
		t.Errorf("second tenant: %v", err)
	}
	if got := s.Tenants(); !slices.Equal(got, []string{"t"}) {
		t.Errorf("tenants %v", got)
	}
}

func TestStats_RangeIsThatOfHeadsAndBlocks(t *testing.T) {
	ctx := t.Context()
	s := openTest(t, t.TempDir(), nil)
	at := func(n uint64, ms int64) []profiles.RawProfile {
		p := numbered(n)
		p.TimeNS = ms * 1e6
		return []profiles.RawProfile{p}
	}
	stats := func(what string, want profiles.Stats) {
		t.Helper()
		if got, err := s.Stats("t"); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", what, got, err, want)
		}
	}
	stats("no tenant", profiles.Stats{})
	if err := s.Append(ctx, "t", at(1, 2000)); err != nil {
		t.Fatal(err)
	}
	stats("head", profiles.Stats{OldestMS: 2000, NewestMS: 2000})
	if err := s.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	stats("block", profiles.Stats{OldestMS: 2000, NewestMS: 2000})
	if err := s.Append(ctx, "t", at(2, 3000)); err != nil {
		t.Fatal(err)
	}
	stats("newer head", profiles.Stats{OldestMS: 2000, NewestMS: 3000})
	if err := errors.Join(s.Append(ctx, "t", at(3, 1000)), s.Flush(ctx)); err != nil {
		t.Fatal(err)
	}
	stats("older block", profiles.Stats{OldestMS: 1000, NewestMS: 3000})
	for _, c := range []struct {
		minMS, maxMS int64
		sources      int
	}{{0, 999, 0}, {0, 1000, 1}, {2000, 2000, 2}, {2001, 2999, 1}, {3000, 4000, 1}, {3001, 4000, 0}, {0, 4000, 2}} {
		v, err := s.View(ctx, "t", c.minMS*1e6, c.maxMS*1e6)
		if err != nil || len(v.Sources) != c.sources {
			t.Fatalf("%+v: %v", c, err)
		}
		held := slices.Clone(v.Sources)
		for _, src := range held {
			b := src.(*heldBlock)
			if b.refs.Load() != 2 {
				t.Errorf("%d references to a block of a view", b.refs.Load())
			}
		}
		v.Close()
		v.Close()
		for _, src := range held {
			b := src.(*heldBlock)
			if b.refs.Load() != 1 || v.Sources != nil {
				t.Errorf("%d references after Close", b.refs.Load())
			}
		}
	}
}

func TestBudget_LimitPressureAndErrors(t *testing.T) {
	b := memory{headsMax: 100, wake: make(chan struct{}, 1)}
	woken := func() bool {
		select {
		case <-b.wake:
			return true
		default:
			return false
		}
	}
	if !b.take(50) || woken() || b.underPressure() {
		t.Error("half of the budget is pressure")
	}
	if !b.take(1) || !woken() || !b.underPressure() {
		t.Error("more than half of the budget is no pressure")
	}
	if !b.take(49) || b.heads.Load() != 100 || b.take(1) || b.heads.Load() != 100 {
		t.Errorf("%d bytes of 100 are used", b.heads.Load())
	}
	s := &Store{opts: Options{Flags: hint.Flags{"HeadsBytes": "--heads"}}}
	s.memory.headsMax = 100
	s.memory.heads.Add(60)
	if err := s.memoryError(100); !errors.Is(err, profiles.ErrUnavailable) || !strings.HasSuffix(err.Error(), "heads use 60 of 100: they are being written as blocks (--heads)") {
		t.Errorf("fits later: %v", err)
	}
	if err := s.memoryError(101); !errors.Is(err, pprof.ErrLimit) || !strings.HasSuffix(err.Error(), "more than all heads may have: 100 (--heads)") {
		t.Errorf("never fits: %v", err)
	}
}

func TestStore_BuffersOfFramesAreReusedUpToALimit(t *testing.T) {
	s := &Store{}
	if b := s.borrowFrames(); b != nil {
		t.Errorf("a new buffer of %d bytes", cap(b))
	}
	s.releaseFrames(make([]byte, 1, framesMax+1))
	if b := s.borrowFrames(); b != nil {
		t.Errorf("a buffer of %d bytes was kept", cap(b))
	}
}

func TestHeadPart_NumbersOfItsStacks(t *testing.T) {
	p := headPart{stacks: []uint32{2, 4}, numbers: []uint32{7, 8}}
	nodes := []uint32{1, 1, 1, 1, 1}
	if p.fill(nodes); !slices.Equal(nodes, []uint32{1, 1, 7, 1, 8}) {
		t.Errorf("filled %v", nodes)
	}
	for stack, want := range []struct {
		number uint32
		ok     bool
	}{{0, true}, {0, false}, {7, true}, {0, false}, {8, true}, {0, false}} {
		if n, ok := p.number(uint32(stack)); n != want.number || ok != want.ok {
			t.Errorf("stack %d: %d, %v", stack, n, ok)
		}
	}
}

func TestCutHead_FreesTheTablesOfTheClosedHead(t *testing.T) {
	s := openTest(t, t.TempDir(), nil)
	const n = 50
	for i := range n {
		if err := s.Append(t.Context(), "t", []profiles.RawProfile{numbered(uint64(i))}); err != nil {
			t.Fatal(err)
		}
	}
	tenant := s.tenants["t"]
	before, reply := s.memory.heads.Load(), make(chan cut, 1)
	tenant.flushMu.Lock()
	tenant.cuts <- reply
	c := <-reply
	after := s.memory.heads.Load()
	tenant.failedFlush = &c
	tenant.flushMu.Unlock()
	if c.err != nil || after != int64(c.head.size()) || after > before-16<<10 {
		t.Errorf("%d bytes are charged of %d; the closed head has %d, %v", after, before, c.head.size(), c.err)
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := s.memory.heads.Load(); len(tenant.blocks) != 1 || tenant.blocks[0].Rows() != n || left != 0 {
		t.Errorf("%d blocks, %d bytes are charged", len(tenant.blocks), left)
	}
}

func TestStore_ErrorsOfTheDiskAreLoggedOnceASecondAndHidePaths(t *testing.T) {
	var log strings.Builder
	at := time.Unix(100, 0)
	s := &Store{logger: slog.New(slog.NewTextHandler(&log, nil)), now: func() time.Time { return at }}
	failure := &os.PathError{Op: "write", Path: "/secret/path", Err: syscall.EIO}
	for _, c := range []struct {
		after time.Duration
		lines int
	}{{0, 1}, {time.Second, 1}, {time.Second + 1, 2}} {
		at = at.Add(c.after)
		err := s.withoutPaths("t", failure)
		if !errors.Is(err, profiles.ErrUnavailable) || !errors.Is(err, syscall.EIO) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v", err)
		}
		if n := strings.Count(log.String(), "/secret/path"); n != c.lines {
			t.Errorf("%d lines are logged, want %d", n, c.lines)
		}
	}
	for _, err := range []error{nil, io.ErrUnexpectedEOF, profiles.ErrUnavailable} {
		if got := s.withoutPaths("t", err); got != err {
			t.Errorf("%v became %v", err, got)
		}
		if got := reasonOf(err); got != err {
			t.Errorf("%v has the reason %v", err, got)
		}
	}
	if got := reasonOf(failure); got != syscall.EIO {
		t.Errorf("reason %v", got)
	}
}

// A directory of profiles may have files and directories of others, such as lost+found at the root of a disk.
func TestOpen_WhatIsNoTenantIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "profiles")
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "lost+found"), 0o700), os.Mkdir(filepath.Join(root, "t"), 0o700), os.WriteFile(filepath.Join(root, "notes"), []byte("mine"), 0o600)); err != nil {
		t.Fatal(err)
	}
	s := openTest(t, dir, nil)
	if got := s.Tenants(); !slices.Equal(got, []string{"t"}) {
		t.Errorf("tenants %q", got)
	}
	if n := s.metrics.tenantsFailed.Get(); n != 0 {
		t.Errorf("%d tenants are counted as failed", n)
	}
	if inside, err := os.ReadDir(filepath.Join(root, "lost+found")); err != nil || len(inside) != 0 {
		t.Errorf("%v, %v", inside, err)
	}
	if text, err := os.ReadFile(filepath.Join(root, "notes")); string(text) != "mine" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
}

// A client may send very many rows under one ID: rows that are stored already are visited once for a profile, not once for each of its rows.
func TestHead_StoredRowsAreVisitedOnceForAProfile(t *testing.T) {
	fn := &googlepprof.Function{ID: 1, Name: "f"}
	loc := &googlepprof.Location{ID: 1, Line: []googlepprof.Line{{Function: fn, Line: 1}}}
	src := &googlepprof.Profile{
		SampleType: []*googlepprof.ValueType{{Type: "a", Unit: "count"}, {Type: "b", Unit: "count"}, {Type: "a", Unit: "count"}, {Type: "none", Unit: "count"}},
		PeriodType: &googlepprof.ValueType{Type: "space", Unit: "bytes"}, Function: []*googlepprof.Function{fn}, Location: []*googlepprof.Location{loc},
	}
	for i := range 3 {
		src.Sample = append(src.Sample, &googlepprof.Sample{Location: []*googlepprof.Location{loc}, Label: map[string][]string{"k": {fmt.Sprint(i)}}, Value: []int64{1, 2, 3, 0}})
	}
	var b bytes.Buffer
	if err := src.Write(&b); err != nil {
		t.Fatal(err)
	}
	var decoded pprof.Profile
	if err := decoded.Decode(b.Bytes(), pprof.Limits{}); err != nil {
		t.Fatal(err)
	}
	p, calls := &profiles.RawProfile{Labels: numbered(1).Labels, Profile: &decoded, ID: [16]byte{1}}, 0
	first := newHead(nil)
	none := func(block.Key, func([]byte)) bool { calls++; return false }
	if first.apply(p, 1, none); calls != 1 || first.rows() != 6 || len(first.shared) != 0 { // the second "a" is the first again
		t.Errorf("%d calls, %d rows, %d shared", calls, first.rows(), len(first.shared))
	}
	if first.apply(p, 1, none); calls != 2 || first.rows() != 6 || len(first.shared) != 0 {
		t.Errorf("again: %d calls, %d rows, %d shared", calls, first.rows(), len(first.shared))
	}
	older := func(key block.Key, row func([]byte)) bool {
		row([]byte("another"))
		return first.holds(key, func(labels []byte) {
			if calls++; calls > 4 {
				row(labels)
			}
		})
	}
	calls = 0
	second := newHead(nil)
	if second.apply(p, 1, older); calls != 6 || second.rows() != 4 || len(second.shared) != 1 {
		t.Errorf("of which two rows are older: %d calls, %d rows, %d shared", calls, second.rows(), len(second.shared))
	}
	if second.apply(p, 2, older); second.rows() != 10 || len(second.shared) != 1 {
		t.Errorf("another time: %d rows, %d shared", second.rows(), len(second.shared))
	}
}

func TestHead_SmallLabelSetsAreNotUnderestimated(t *testing.T) {
	s := openTest(t, t.TempDir(), func(s *Store) { s.fs = unsynced{} })
	push := func(from, to int) {
		for at := from; at < to; at += 1000 {
			var batch []profiles.RawProfile
			for i := range 1000 {
				p := numbered(uint64(at + i))
				p.Labels = labelenc.AppendLabel(labelenc.AppendLabel(nil, profiles.LabelName, "m"), profiles.LabelService, fmt.Sprint(at+i))
				batch = append(batch, p)
			}
			if err := s.Append(t.Context(), "t", batch); err != nil {
				t.Fatal(err)
			}
		}
	}
	push(0, 1000)
	before, known := heap(), s.memory.heads.Load()
	push(1000, 30_000)
	grown, counted := heap()-before, s.memory.heads.Load()-known
	t.Logf("%d bytes, counted %d", grown, counted)
	if grown > counted {
		t.Errorf("a head grew by %d bytes of which %d are counted", grown, counted)
	}
}
