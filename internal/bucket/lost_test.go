package bucket

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/oklog/ulid/v2"
	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/metrics"
)

func TestShipper_CountsBlocksDeletedBeforeUpload(t *testing.T) {
	dir, to := t.TempDir(), objstore.NewInMemBucket()
	shipped := makeBlock(t, dir, 0)
	down := &faulty{Bucket: to, at: 1 << 30}
	s := newShipper(t, down, dir, nil)
	mustSync(t, s, 1)
	lost, merged, stays := makeBlock(t, dir, 1), makeBlock(t, dir, 2), makeBlock(t, dir, 3)
	down.at = down.done + 1 // the bucket is down from now on
	if _, err := s.Sync(context.Background()); err == nil || s.Status().Waiting != 3 {
		t.Fatalf("%v, %d waiting", err, s.Status().Waiting)
	}
	// Retention removes two blocks; a third is compacted into a block that will be shipped.
	into := makeBlock(t, dir, 2)
	setLevel(t, dir, into, `"`+into.String()+`"
		]`, `"`+merged.String()+`"
		]`)
	for _, id := range []ulid.ULID{shipped, lost, merged} {
		if err := os.RemoveAll(filepath.Join(dir, id.String())); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Sync(context.Background()); err == nil || s.metrics.lost.Get() != 0 {
		t.Fatalf("while the bucket is down it is unknown: %v, %d lost", err, s.metrics.lost.Get())
	}
	down.at = 1 << 30
	for range 2 { // they are counted once
		if _, err := s.Sync(context.Background()); err != nil {
			t.Fatal(err)
		}
		if n := s.metrics.lost.Get(); n != 1 || s.Status().Waiting != 0 {
			t.Errorf("%d lost, %d waiting", n, s.Status().Waiting)
		}
	}
	if got := trusted(t, to, dirsOf(t, dir, to)); !slices.Contains(got, stays) || !slices.Contains(got, into) || slices.Contains(got, lost) {
		t.Errorf("%v", got)
	}
}

// A database deletes blocks beyond the retention while it opens, before the first sync.
func TestShipper_CountsBlocksThatARestartDeletes(t *testing.T) {
	dir, to := t.TempDir(), objstore.NewInMemBucket()
	shipped := makeBlock(t, dir, 0)
	mustSync(t, newShipper(t, to, dir, nil), 1)
	waits, stays := makeBlock(t, dir, 1), makeBlock(t, dir, 2) // the bucket is down, and the process ends
	s := newShipper(t, to, dir, nil)
	s.Expect()
	if n := s.metrics.waiting.Get(); n != 2 || s.Status().Waiting != 2 {
		t.Errorf("%v are waiting, want 2", n)
	}
	for _, id := range []ulid.ULID{shipped, waits} {
		if err := os.RemoveAll(filepath.Join(dir, id.String())); err != nil {
			t.Fatal(err)
		}
	}
	mustSync(t, s, 1)
	if n := s.metrics.lost.Get(); n != 1 {
		t.Errorf("%d are lost, want 1", n)
	}
	if listed, err := readState(filepath.Join(dir, "thanos.shipper.json")); err != nil || !slices.Equal(listed, []ulid.ULID{stays}) {
		t.Errorf("listed as shipped are %v, %v", listed, err)
	}
}

// waitingAt records the number of waiting blocks at each upload.
type waitingAt struct {
	objstore.Bucket
	waiting func() float64
	seen    []float64
}

func (w *waitingAt) Upload(ctx context.Context, name string, r io.Reader, o ...objstore.ObjectUploadOption) error {
	w.seen = append(w.seen, w.waiting())
	return w.Bucket.Upload(ctx, name, r, o...)
}

func TestShipper_BlocksWaitWhileTheFirstIsUploaded(t *testing.T) {
	dir := t.TempDir()
	to := &waitingAt{Bucket: objstore.NewInMemBucket()}
	s := newShipper(t, to, dir, nil)
	to.waiting = s.metrics.waiting.Get
	makeBlock(t, dir, 0)
	makeBlock(t, dir, 1)
	mustSync(t, s, 2)
	if len(to.seen) < 2 || slices.Min(to.seen) < 1 || s.metrics.waiting.Get() != 0 {
		t.Errorf("waiting at each upload: %v, and %v afterwards", to.seen, s.metrics.waiting.Get())
	}
}

// dirsOf is a directory with the files of the bucket's blocks that are deleted from disk.
func dirsOf(t *testing.T, dir string, from objstore.Bucket) string {
	t.Helper()
	for name, text := range objects(t, from) {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			continue
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, text, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// vanishing deletes a block at the first request to the bucket, before it is read.
type vanishing struct {
	objstore.Bucket
	dir string
}

func (v *vanishing) Exists(ctx context.Context, name string) (bool, error) {
	if err := os.RemoveAll(v.dir); err != nil {
		return false, err
	}
	return v.Bucket.Exists(ctx, name)
}

func TestShipper_BlockDeletedBeforeUploadIsNotListed(t *testing.T) {
	dir, to := t.TempDir(), objstore.NewInMemBucket()
	id, other := makeBlock(t, dir, 0), makeBlock(t, dir, 1)
	s := newShipper(t, &vanishing{to, filepath.Join(dir, id.String())}, dir, nil)
	mustSync(t, s, 1)
	listed, err := readState(filepath.Join(dir, "thanos.shipper.json"))
	if err != nil || !slices.Equal(listed, []ulid.ULID{other}) {
		t.Errorf("listed as shipped are %v, %v", listed, err)
	}
	mustSync(t, s, 0)
	if n := s.metrics.lost.Get(); n != 1 {
		t.Errorf("%d are lost", n)
	}
}

// short truncates uploads of one file and reports success.
type short struct {
	objstore.Bucket
	file string
}

func (s *short) Upload(ctx context.Context, name string, r io.Reader, o ...objstore.ObjectUploadOption) error {
	text, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if strings.HasSuffix(name, "/"+s.file) {
		text = text[:len(text)-1]
	}
	return s.Bucket.Upload(ctx, name, bytes.NewReader(text), o...)
}

func TestProfileShipper_TruncatedObjectIsNotShipped(t *testing.T) {
	for _, file := range profileFiles {
		dir, to := t.TempDir(), objstore.NewInMemBucket()
		name := "anonymous/" + ulid.Make().String()
		profileBlocks(t, dir, name)
		cutting := &short{Bucket: to, file: file}
		s := NewProfileShipper(cutting, ShipOptions{Dir: dir}, quiet, metrics.NewSet())
		for range 2 {
			if n, err := s.Sync(context.Background()); n != 0 || !errors.Is(err, ErrCorrupt) || s.uploads.Get() != 0 || s.waiting.Get() != 1 {
				t.Fatalf("%s: %d shipped, %v", file, n, err)
			}
		}
		cutting.file = "none"
		if n, err := s.Sync(context.Background()); n != 1 || err != nil || s.waiting.Get() != 0 {
			t.Errorf("%s: %d shipped, %v", file, n, err)
		}
		for object, text := range objects(t, to) {
			if want := name + filepath.Base(object); string(text) != want {
				t.Errorf("%s is %q", object, text)
			}
		}
	}
}
