package store

import (
	"errors"
	"testing"

	"github.com/ferula-io/ferula/internal/files"
)

// TestOpen_DirectoryInUse: a second store would delete log segments that the first one still
// needs.
func TestOpen_DirectoryInUse(t *testing.T) {
	open := func(opts Options) (*Store, error) {
		s, err := New(opts, quiet, nil)
		if err != nil {
			t.Fatal(err)
		}
		return s, s.Open()
	}
	dir := t.TempDir()
	first, err := open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	second, err := open(Options{Dir: dir})
	if !errors.Is(err, files.ErrLocked) {
		t.Fatalf("opening a directory in use: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if third, err := open(Options{Dir: dir}); !errors.Is(err, files.ErrLocked) {
		t.Fatalf("the store that was refused has released the lock: %v", errors.Join(err, third.Close()))
	}
	unlocked, err := open(Options{Dir: dir, NoLock: true})
	if err := errors.Join(err, unlocked.Close()); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := open(Options{Dir: dir})
	if err := errors.Join(err, again.Close()); err != nil {
		t.Fatalf("opening a directory that was closed: %v", err)
	}
}
