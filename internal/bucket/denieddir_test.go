package bucket

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/internal/profiles"
)

// deny makes directories of a FILESYSTEM bucket unreadable until the test ends.
func deny(t *testing.T, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		if err := os.Chmod(dir, 0); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { allow(t, dir) }) // so that it can be removed
	}
}

func allow(t *testing.T, dir string) {
	t.Helper()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Error(err)
	}
}

// openEmpty opens a FILESYSTEM bucket in a new directory, and returns the directory of its objects.
func openEmpty(t *testing.T) (objstore.Bucket, string) {
	t.Helper()
	root := t.TempDir()
	return openTestDirectory(t, root), filepath.Join(root, "eu")
}

func TestDirectory_RecursiveListHasDirectoriesThatMustNotBeRead(t *testing.T) {
	b, dir := openEmpty(t)
	for _, name := range []string{"a/b/c/x", "a/b/y", "a/denied/z", "a/e", "lost+found/x"} {
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, path.Dir(name)), 0o755), os.WriteFile(filepath.Join(dir, name), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	deny(t, filepath.Join(dir, "a/denied"), filepath.Join(dir, "lost+found"))
	refused := fs.ErrPermission // of the caller, and not of a directory
	var names []string
	var list, top, stopped error
	withoutRoot(t, func() {
		list = b.Iter(t.Context(), "", func(name string) error { names = append(names, name); return nil }, objstore.WithRecursiveIter())
		top = b.Iter(t.Context(), "a/denied", func(string) error { return nil }, objstore.WithRecursiveIter())
		stopped = b.Iter(t.Context(), "", func(string) error { return refused }, objstore.WithRecursiveIter())
	})
	if want := []string{"a/b/c/x", "a/b/y", "a/denied/", "a/e", "lost+found/"}; list != nil || !slices.Equal(names, want) {
		t.Errorf("%q, %v, want %q", names, list, want)
	}
	if !errors.Is(top, fs.ErrPermission) || !errors.Is(stopped, refused) {
		t.Errorf("%v, %v", top, stopped)
	}
}

// A directory that must not be read must not hide other blocks.
func TestProfileReader_DirectoryThatMustNotBeReadConcernsItsBlockOnly(t *testing.T) {
	b, dir := openEmpty(t)
	in := &refusals{Bucket: b}
	bad, fine := ulid.Make(), ulid.Make()
	for _, id := range []ulid.ULID{bad, fine} {
		upload(t, in, "a", id, func(string) []byte { return []byte("0123456789") })
	}
	at := time.Unix(1_700_000_000, 0)
	if _, err := NewProfileStore(in).Mark(t.Context(), "a", bad, at, "by hand"); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	r, old := newReader(t, in), newReader(t, in)
	r.opts.Logger = slog.New(slog.NewTextHandler(&log, nil))
	if err := errors.Join(r.open(), old.open()); err != nil {
		t.Fatal(err)
	}
	list := func(r *ProfileReader) (all map[ulid.ULID]profiles.BucketBlock) {
		t.Helper()
		withoutRoot(t, func() {
			found, err := r.Blocks(t.Context())
			all = map[ulid.ULID]profiles.BucketBlock{}
			for _, o := range found {
				all[o.ID] = o
			}
			if err != nil || len(all) != 2 || all[fine].Unread != nil || all[fine].RowsBytes != 10 {
				t.Errorf("%+v, %v", found, err)
			}
		})
		return all
	}
	for range 2 { // the sizes are known then
		list(old)
	}
	block := ProfileBlock("a", bad)
	denied := filepath.Join(dir, block)
	deny(t, denied)
	// Lookups run on threads of their own, which are those of root.
	in.set(errDenied, path.Join(block, indexFile), path.Join(block, profileFiles[0]), path.Join(block, MarkFile))
	for i := range 2 {
		if o := list(r)[bad]; o.Tenant != "a" || o.Unread == nil || o.Rows != nil || r.unread.Get() != uint64(i+1) || strings.Count(log.String(), block) < i+1 {
			t.Errorf("%+v, %d are counted, log %q", o, r.unread.Get(), log.String())
		}
		if o := list(old)[bad]; o.Unread != nil || o.RowsBytes != 10 || !o.Marked.Equal(at) {
			t.Errorf("its sizes and mark were known: %+v", o)
		}
	}
	allow(t, denied)
	in.set(nil)
	if o := list(r)[bad]; o.Unread != nil || o.RowsBytes != 10 || !o.Marked.Equal(at) {
		t.Errorf("%+v", o)
	}
}

// A directory of a tenant that cannot be listed has blocks that are not known: they must not be taken for deleted ones.
func TestProfileLists_DirectoryOfATenantThatMustNotBeReadIsAnError(t *testing.T) {
	b, dir := openEmpty(t)
	upload(t, b, "a", ulid.Make(), func(string) []byte { return []byte("0123456789") })
	upload(t, b, "b", ulid.Make(), func(string) []byte { return []byte("0123456789") })
	r, tenant := newReader(t, b), filepath.Join(dir, profilesDir, "b")
	if err := r.open(); err != nil {
		t.Fatal(err)
	}
	deny(t, tenant)
	withoutRoot(t, func() {
		if found, err := r.Blocks(t.Context()); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%+v, %v", found, err)
		}
		if all, err := NewProfileStore(b).List(t.Context()); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%+v, %v", all, err)
		}
	})
}

// The directory itself is no object of the block: its time must not make the block one whose upload was interrupted.
func TestProfileStore_ListNamesDirectoriesThatMustNotBeRead(t *testing.T) {
	b, dir := openEmpty(t)
	bad, fine := ulid.Make(), ulid.Make()
	for _, id := range []ulid.ULID{bad, fine} {
		upload(t, b, "a", id, func(string) []byte { return []byte("0123456789") })
	}
	deny(t, filepath.Join(dir, ProfileBlock("a", bad)))
	withoutRoot(t, func() {
		p := NewProfileStore(b)
		all, err := p.List(t.Context())
		if err != nil || len(all) != 2 {
			t.Errorf("%+v, %v", all, err)
			return
		}
		for _, s := range all {
			modified, err := p.Modified(t.Context(), s)
			if denied := s.ID == bad; err != nil || denied != errors.Is(s.Unread, fs.ErrPermission) || denied == s.Complete() || denied != modified.IsZero() {
				t.Errorf("%+v, modified %s, %v", s, modified, err)
			}
		}
	})
}

// Some object stores list an object with the name of a directory. This object does not belong to a block, and it is no directory
// without permission to read.
func TestProfileLists_ObjectsWithTheNameOfADirectoryAreIgnored(t *testing.T) {
	id := ulid.Make()
	in := folders{objstore.NewInMemBucket(), []string{profilesDir + "/", profilesDir + "/a/", ProfileBlock("a", id) + "/", ProfileBlock("a", ulid.Make()) + "/"}}
	upload(t, in, "a", id, func(string) []byte { return []byte("0123456789") })
	r := newReader(t, in)
	for range 3 { // the sizes are not requested again
		if o := only(t, r); o.ID != id || o.Unread != nil || r.unread.Get() != 0 {
			t.Errorf("%+v", o)
		}
	}
	all, err := NewProfileStore(in).List(t.Context())
	if err != nil || len(all) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	for _, s := range all {
		if s.Unread != nil || s.Complete() != (s.ID == id) {
			t.Errorf("%+v", s)
		}
	}
	if err := NewProfileStore(in).Delete(t.Context(), "a", id); err != nil {
		t.Fatal(err)
	}
	if found, err := r.Blocks(t.Context()); err != nil || len(found) > 0 {
		t.Errorf("a deleted block: %+v, %v", found, err)
	}
}

// folders is a bucket whose recursive lists begin with names of directories.
type folders struct {
	objstore.Bucket
	names []string
}

func (b folders) Iter(ctx context.Context, dir string, f func(string) error, o ...objstore.IterOption) error {
	if objstore.ApplyIterOptions(o...).Recursive {
		for _, name := range b.names {
			if err := f(name); err != nil {
				return err
			}
		}
	}
	return b.Bucket.Iter(ctx, dir, f, o...)
}
