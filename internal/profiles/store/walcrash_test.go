package store

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/ferula-io/ferula/internal/files/crashfs"
)

// Frames of a failed Append are not there after a power cut, even if the failed sync
// completed, whichever call of Append fails.
func TestLog_Append_FailedFramesAreGoneAfterAPowerCut(t *testing.T) {
	for _, op := range []string{"write", "sync"} {
		dir, failing := t.TempDir(), false
		fs, err := crashfs.New(dir, func(c crashfs.Call) error {
			if failing && c.Op == op {
				failing = false
				return errDisk
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		l, _, err := openLog(fs, filepath.Join(dir, "wal"), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.append(frames("first")); err != nil {
			t.Fatal(err)
		}
		failing = true
		if err := l.append(frames("refused")); !errors.Is(err, errDisk) {
			t.Fatalf("%s: %v", op, err)
		}
		fs.Crash()
		if err := l.close(); err != nil {
			t.Fatal(err)
		}
		after := t.TempDir()
		lost := crashfs.Survival{Names: func() bool { return false }, Content: func() crashfs.Content { return crashfs.Lost }}
		if err := fs.After(after, lost); err != nil {
			t.Fatal(err)
		}
		if _, payloads, torn := reopen(t, filepath.Join(after, "wal")); !slices.Equal(payloads, []string{"first"}) || len(torn) > 0 {
			t.Errorf("%s: %v, %v", op, payloads, torn)
		}
	}
}

func TestLog_Append_SegmentWithUnsyncedNameIsNotUsed(t *testing.T) {
	dir, failing := t.TempDir(), true
	fs, err := crashfs.New(dir, func(c crashfs.Call) error {
		if failing && c.Op == "syncdir" && filepath.Base(c.Path) == "wal" {
			return errDisk
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	l, _, err := openLog(fs, filepath.Join(dir, "wal"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := l.append(frames("refused")); !errors.Is(err, errDisk) {
			t.Fatal(err)
		}
	}
	failing = false
	if err := l.append(frames("accepted")); err != nil {
		t.Fatal(err)
	}
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	if _, payloads, _ := reopen(t, filepath.Join(dir, "wal")); !slices.Equal(payloads, []string{"accepted"}) {
		t.Error(payloads)
	}
}

// A payload of frame-like bytes and zeros does not make the search for the next record slow
// or find false records.
func TestLog_Open_SearchForTheNextRecordIsBounded(t *testing.T) {
	dir := t.TempDir()
	b := slices.Concat(frames("first"), slices.Repeat([]byte{0, 0, 1, 0}, 4<<20), frames("last"))
	if err := os.WriteFile(filepath.Join(dir, "00000001"), b, 0o644); err != nil {
		t.Fatal(err)
	}
	_, payloads, torn := reopen(t, dir)
	if len(payloads) == 0 || payloads[0] != "first" || len(torn) != 1 {
		t.Errorf("%d records, %v", len(payloads), torn)
	}
}
