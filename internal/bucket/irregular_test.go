package bucket

import (
	"context"
	"errors"
	"io"
	"math"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/thanos-io/objstore"
)

// withinLimit runs f, and fails the test if f hangs.
func withinLimit(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatalf("%s hangs", what)
	}
}

// To open a FIFO blocks until another process opens it, whatever the context.
func TestDirectory_FIFOsAreNotOpened(t *testing.T) {
	dir := t.TempDir()
	in, err := newDirectory(dir)
	if err != nil {
		t.Fatal(err)
	}
	id := ulid.Make()
	upload(t, in, "a", id, func(string) []byte { return []byte("0123456789") })
	for _, name := range []string{path.Join(ProfileBlock("a", id), MarkFile), path.Join(profilesDir, profileIndexFile)} {
		if err := syscall.Mkfifo(filepath.Join(dir, name), 0o600); err != nil {
			t.Fatal(err)
		}
		withinLimit(t, name, func() {
			_, err1 := in.Get(t.Context(), name)
			_, err2 := in.GetRange(t.Context(), name, 0, 5)
			err3 := in.Upload(t.Context(), name, strings.NewReader("text"))
			for _, err := range []error{err1, err2, err3} {
				if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), name) {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
	withinLimit(t, "a list of blocks", func() {
		r := NewProfileReader(in, ProfileReaderOptions{Dir: t.TempDir(), PagesBytes: 1 << 20, Timeout: time.Minute})
		found, err := r.Blocks(context.Background())
		if err != nil || len(found) != 1 || !found[0].Marked.IsZero() {
			t.Errorf("%+v, %v", found, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	// Regular files, links to them and new objects are as before.
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "one"), []byte("text"), 0o600), os.Symlink("one", filepath.Join(dir, "two"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"one", "two", "new"} {
		if err := in.Upload(t.Context(), name, strings.NewReader("other")); err != nil {
			t.Fatal(err)
		}
		body, err := in.GetRange(t.Context(), name, 1, 3)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(body); err != nil || string(b) != "the" {
			t.Errorf("%s: %q, %v", name, b, err)
		}
		if err := body.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := in.Get(t.Context(), "missing"); !in.IsObjNotFoundErr(err) {
		t.Errorf("a missing object: %v", err)
	}
}

// Seconds near 2^63 overflow a time.Time, which would be long ago. A block with such a mark must be neither hidden nor deleted.
func TestReadMark_TimesThatAreNoneAreCorrupt(t *testing.T) {
	for seconds, valid := range map[int64]bool{
		1: true, time.Now().Unix(): true, markTimeMax: true,
		0: false, -1: false, math.MinInt64: false, markTimeMax + 1: false, math.MaxInt64: false, math.MaxInt64 - 62135596800: false,
		time.Now().UnixNano(): false, // of the wrong unit
	} {
		in, id := objstore.NewInMemBucket(), ulid.Make()
		upload(t, in, "a", id, func(string) []byte { return []byte("0123456789") })
		text := `{"id":"` + id.String() + `","version":1,"details":"by hand","deletion_time":` + strconv.FormatInt(seconds, 10) + `}`
		if err := in.Upload(t.Context(), path.Join(ProfileBlock("a", id), MarkFile), strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
		_, err := NewProfileStore(in).ReadMark(t.Context(), &StoredProfile{Tenant: "a", ID: id})
		found, err2 := newReader(t, in).Blocks(t.Context())
		if err2 != nil || len(found) != 1 || found[0].Marked.IsZero() == valid || valid && (err != nil || found[0].Marked.Unix() != seconds) || !valid && !errors.Is(err, ErrCorrupt) {
			t.Errorf("%d: %v, %v, %v", seconds, err, err2, found)
		}
	}
}
