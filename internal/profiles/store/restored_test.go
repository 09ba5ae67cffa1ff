package store

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/oklog/ulid/v2"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
)

// restore copies a block into the directory of the tenant t, and returns the copy.
func restore(t *testing.T, dir, from string) (path string) {
	t.Helper()
	index, err := os.ReadFile(filepath.Join(from, block.IndexFile))
	if err != nil {
		t.Fatal(err)
	}
	meta, err := block.MetaOf(index)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "profiles", "t", ulid.ULID(meta.ULID).String())
	if err := os.CopyFS(path, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return path
}

// A copy that was interrupted can have files of the right size without their content.
func TestOpen_DamagedBlockReplacesNone(t *testing.T) {
	dir := t.TempDir()
	s := openFaulty(t, dir, &faults{}, nil)
	flushed(t, s, 0, 1, 2)
	merged := s.merged(t, 0, 1, 2)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	rows := filepath.Join(restore(t, dir, merged), block.RowsFile)
	info, err := os.Stat(rows)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(rows, make([]byte, info.Size()), 0o644); err != nil {
		t.Fatal(err)
	}
	s = openFaulty(t, dir, &faults{}, nil)
	counts, warnings := s.rows(t)
	if once(t, counts, 3); len(warnings) != 1 || !errors.Is(warnings[0], profiles.ErrCorrupt) {
		t.Error(warnings)
	}
	// The operator copies it again. Now it replaces the others.
	if err := errors.Join(s.Close(), os.RemoveAll(filepath.Dir(rows))); err != nil {
		t.Fatal(err)
	}
	restore(t, dir, merged)
	s = openFaulty(t, dir, &faults{}, nil)
	counts, warnings = s.rows(t)
	if once(t, counts, 3); len(warnings) > 0 || len(s.tenants["t"].blocks) != 1 {
		t.Error(warnings, len(s.tenants["t"].blocks))
	}
}

// A bucket's compactor and this server may compact the same blocks.
func TestOpen_TwoCompactionsOfTheSameBlocksAreReadOnce(t *testing.T) {
	dir := t.TempDir()
	s := openFaulty(t, dir, &faults{}, nil)
	flushed(t, s, 0, 1, 2, 3)
	merged := s.merged(t, 0, 1, 2, 3)
	if err := errors.Join(s.Compact(t.Context()), s.Close()); err != nil {
		t.Fatal(err)
	}
	restore(t, dir, merged)
	s = openFaulty(t, dir, &faults{}, nil)
	counts, warnings := s.rows(t)
	if once(t, counts, 4); len(warnings) > 0 {
		t.Error(warnings)
	}
}

// A copy of a block under another name has the same rows, and its directory is not the one that is removed with it.
func TestOpen_CopyOfABlockIsReadOnce(t *testing.T) {
	dir := t.TempDir()
	s := openFaulty(t, dir, &faults{}, nil)
	path := flushed(t, s, 0).blocks[0].path
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(dir, "profiles", "t", ulid.Make().String()), os.DirFS(path)); err != nil {
		t.Fatal(err)
	}
	s = openFaulty(t, dir, &faults{}, nil)
	counts, warnings := s.rows(t)
	if once(t, counts, 1); len(warnings) != 1 || !errors.Is(warnings[0], profiles.ErrCorrupt) {
		t.Error(warnings)
	}
}
