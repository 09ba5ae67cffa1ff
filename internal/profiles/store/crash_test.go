package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
	"github.com/ferula-io/ferula/test/crashfs"
)

// script is the workload of these tests: pushes of two profiles, a flush after every second
// push, merges, and a push of another tenant. It returns the acknowledged pushes, by the
// number of their first profile.
func script(s *Store, again func() bool) map[uint64]bool {
	ctx, acknowledged := context.Background(), map[uint64]bool{}
	for n := uint64(0); n < 20; n += 2 {
		if s.Append(ctx, "t", []profiles.RawProfile{numbered(n), numbered(n + 1)}) == nil {
			acknowledged[n] = true
		}
		if n%4 == 2 {
			for s.Flush(ctx) != nil && again() {
			}
			for s.Compact(ctx) != nil && again() {
			}
		}
	}
	return acknowledged
}

// unsynced is a disk whose syncs do nothing, to save time.
type unsynced struct{ files.Disk }

type unsyncedFile struct{ files.File }

func (d unsynced) Create(path string) (files.File, error) {
	f, err := d.Disk.Create(path)
	return unsyncedFile{f}, err
}

func (unsynced) SyncDir(string) error { return nil }
func (unsyncedFile) Sync() error      { return nil }

// checkStored opens a directory and compares: acknowledged pushes are there once, others once
// or not at all, all of refused not at all, and no damage is reported.
func checkStored(t *testing.T, what, dir string, acknowledged map[uint64]bool, refused bool) {
	t.Helper()
	s, err := New(Options{Dir: dir, Retention: -1}, quiet, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.fs = unsynced{}
	if err := s.Open(); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	if len(s.failed) > 0 {
		t.Fatalf("%s: a tenant could not be opened: %v", what, s.failed["t"].err)
	}
	counts := stored(t, s)
	for n := uint64(0); n < 20; n += 2 {
		switch {
		case counts[n] != counts[n+1]:
			t.Fatalf("%s: push %d is stored partially: %d, %d", what, n, counts[n], counts[n+1])
		case acknowledged[n] && counts[n] != 1, counts[n] > 1, refused && !acknowledged[n] && counts[n] > 0:
			t.Fatalf("%s: push %d, acknowledged: %t, is stored %d times", what, n, acknowledged[n], counts[n])
		}
	}
	if got := s.metrics.corrupt.Get() + s.metrics.gaps.Get() + s.metrics.setAside.Get(); got > 0 {
		t.Fatalf("%s: %d blocks or records are corrupt", what, got)
	}
}

// survivals are what may remain of unsynced data after a power cut.
func survivals(r *rand.Rand) map[string]crashfs.Survival {
	names := func(b bool) func() bool { return func() bool { return b } }
	content := func(c crashfs.Content) func() crashfs.Content { return func() crashfs.Content { return c } }
	return map[string]crashfs.Survival{
		"nothing":       {Names: names(false), Content: content(crashfs.Lost)},
		"names only":    {Names: names(true), Content: content(crashfs.Lost)},
		"content only":  {Names: names(false), Content: content(crashfs.Kept)},
		"half":          {Names: names(true), Content: content(crashfs.Half)},
		"zeros":         {Names: names(true), Content: content(crashfs.Zeroed)},
		"this and that": {Names: func() bool { return r.IntN(2) == 0 }, Content: func() crashfs.Content { return crashfs.Content(r.IntN(4)) }},
	}
}

// runScript runs the script on a file system and closes the store.
func runScript(t *testing.T, fs *crashfs.FS, dir string, change func(*Store), again func() bool) map[uint64]bool {
	t.Helper()
	s, err := New(Options{Dir: dir, Retention: -1}, quiet, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.fs = fs
	if change != nil {
		change(s)
	}
	if err := s.Open(); err != nil {
		return nil
	}
	acknowledged := script(s, again)
	if err := s.Close(); err != nil && !errors.Is(err, crashfs.ErrCrashed) {
		t.Fatal(err)
	}
	return acknowledged
}

func never() bool { return false }

func TestStore_PowerCutLosesAndDuplicatesNothing(t *testing.T) {
	total := func() int {
		dir := t.TempDir()
		fs, err := crashfs.New(dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		if acknowledged := runScript(t, fs, dir, nil, never); len(acknowledged) != 10 {
			t.Fatalf("without a fault: %v", acknowledged)
		}
		return len(fs.Calls())
	}()
	step := 1
	if testing.Short() {
		step = 7
	}
	for at := 1; at <= total+1; at += step {
		dir := t.TempDir()
		fs, err := crashfs.New(dir, func(c crashfs.Call) error {
			if c.Number == at {
				return crashfs.ErrCrashed
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		acknowledged := runScript(t, fs, dir, nil, never)
		calls := fs.Calls()
		for name, survival := range survivals(rand.New(rand.NewPCG(1, uint64(at)))) {
			after := t.TempDir()
			if err := fs.After(after, survival); err != nil {
				t.Fatal(err)
			}
			checkStored(t, fmt.Sprintf("%s, %s is left", calls[len(calls)-1], name), after, acknowledged, false)
		}
	}
}

func TestStore_FailedCallLosesAndDuplicatesNothing(t *testing.T) {
	errDisk := errors.New("input/output error")
	step := uint64(1)
	if testing.Short() {
		step = 7
	}
	for at := uint64(1); ; at += step {
		for _, times := range []int{1, 3} { // three: the cleanup after the first failure fails, too
			dir := t.TempDir()
			left := times
			fs, err := crashfs.New(dir, func(c crashfs.Call) error {
				if uint64(c.Number) >= at && left > 0 {
					left--
					return errDisk
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			acknowledged := runScript(t, fs, dir, nil, func() bool { return true })
			if left == times {
				return // all calls were tested
			}
			what := fmt.Sprintf("%d failures from %s on", times, fs.Calls()[at-1])
			for name, survival := range survivals(rand.New(rand.NewPCG(2, at))) {
				if name != "nothing" && name != "this and that" {
					continue // a power cut has the same effect at any call
				}
				after := t.TempDir()
				if err := fs.After(after, survival); err != nil {
					t.Fatal(err)
				}
				checkStored(t, what+", "+name+" is left", after, acknowledged, times == 1)
			}
			checkStored(t, what, dir, acknowledged, times == 1)
		}
	}
}

func TestFlush_BlockThatCannotBeOpenedIsNotWrittenTwice(t *testing.T) {
	for _, what := range []string{"flush", "merge"} {
		t.Run(what, func(t *testing.T) {
			dir, ctx := t.TempDir(), context.Background()
			failing := true
			s := openTest(t, dir, func(s *Store) {
				s.openBlock = func(path string) (*block.Reader, error) {
					r, err := block.Open(path)
					if err != nil || !failing || (what == "merge" && r.Meta().Level == 0) {
						return r, err
					}
					return nil, errors.Join(os.ErrPermission, r.Close())
				}
			})
			for n := range uint64(8) {
				if err := s.Append(ctx, "t", []profiles.RawProfile{numbered(n)}); err != nil {
					t.Fatal(err)
				}
				if n%2 == 1 {
					if err := s.Flush(ctx); (err != nil) != (what == "flush") {
						t.Fatal(err)
					}
				}
			}
			blocks := func() int {
				found, err := filepath.Glob(filepath.Join(dir, "profiles", "t", "0*", "index"))
				if err != nil {
					t.Fatal(err)
				}
				return len(found)
			}
			before := blocks()
			for range 3 {
				if err := errors.Join(s.Flush(ctx), s.Compact(ctx)); !errors.Is(err, os.ErrPermission) {
					t.Fatal(err)
				}
				if now := blocks(); now != before {
					t.Fatalf("%d blocks, want %d", now, before)
				}
			}
			failing = false
			if err := errors.Join(s.Flush(ctx), s.Flush(ctx), s.Compact(ctx)); err != nil {
				t.Fatal(err)
			}
			check := func(s *Store) {
				counts := stored(t, s)
				for n := range uint64(8) {
					if counts[n] != 1 {
						t.Errorf("profile %d is stored %d times", n, counts[n])
					}
				}
			}
			check(s)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			check(openTest(t, dir, nil))
		})
	}
}

func TestRetry_BacksOffExponentially(t *testing.T) {
	r, now, err := retry{min: 4 * time.Second, max: time.Minute}, time.Unix(0, 0), errors.New("full")
	var waits []string
	for range 6 {
		r.result(now, err)
		from := now
		for !r.due(now) {
			now = now.Add(time.Second)
		}
		waits = append(waits, now.Sub(from).String())
	}
	if got := strings.Join(waits, " "); got != "4s 8s 16s 32s 1m0s 1m0s" {
		t.Error(got)
	}
	if r.result(now, nil); !r.due(now) {
		t.Error("retry is not due after a success")
	}
}
