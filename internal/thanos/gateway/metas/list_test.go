package metas

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/thanos-io/objstore"
	"github.com/thanos-io/objstore/providers/filesystem"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// putMeta writes the meta.json of a block.
func putMeta(t *testing.T, dir string, id ulid.ULID, text string) {
	t.Helper()
	sub := filepath.Join(dir, id.String())
	if err := errors.Join(os.MkdirAll(sub, 0o700), os.WriteFile(filepath.Join(sub, metaFile), []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func metaOf(id ulid.ULID) string {
	return fmt.Sprintf(`{"ulid":%q,"version":1,"minTime":0,"maxTime":1000}`, id)
}

func newBucket(t *testing.T) (*filesystem.Bucket, string) {
	t.Helper()
	dir := t.TempDir()
	b, err := filesystem.NewBucket(dir)
	if err != nil {
		t.Fatal(err)
	}
	return b, dir
}

// stalling is a bucket of which one response never arrives: it blocks until the request is
// canceled.
type stalling struct {
	objstore.Bucket
	list, body bool
}

func (s *stalling) Iter(ctx context.Context, dir string, f func(string) error, o ...objstore.IterOption) error {
	if s.list {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.Bucket.Iter(ctx, dir, f, o...)
}

func (s *stalling) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	body, err := s.Bucket.Get(ctx, name)
	if err != nil || !s.body {
		return body, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(io.LimitReader(body, 5), untilCanceled{ctx}), body}, nil
}

type untilCanceled struct{ ctx context.Context }

func (u untilCanceled) Read([]byte) (int, error) {
	<-u.ctx.Done()
	return 0, u.ctx.Err()
}

// A list that never ends would keep every later block from being served, without an error.
func TestLister_StalledBucketFailsTheList(t *testing.T) {
	for name, stalls := range map[string]*stalling{"list": {list: true}, "body": {body: true}} {
		for _, recursive := range []bool{false, true} {
			t.Run(fmt.Sprint(name, recursive), func(t *testing.T) {
				b, dir := newBucket(t)
				id := ulid.Make()
				putMeta(t, dir, id, metaOf(id))
				from := *stalls
				from.Bucket = b
				l := NewLister(&from, Options{Stall: 50 * time.Millisecond, Recursive: recursive})
				if _, err := l.List(t.Context(), time.Now()); !errors.Is(err, ErrStalled) || errors.Is(err, context.Canceled) {
					t.Errorf("%v", err)
				}
				from.list, from.body = false, false
				l.opts.Stall = time.Minute
				if r, err := l.List(t.Context(), time.Now()); err != nil || r.Blocks[id] == nil {
					t.Errorf("after the stall: %v, %v", r, err)
				}
			})
		}
	}
}

// slowly is a bucket whose bodies arrive byte by byte.
type slowly struct {
	objstore.Bucket
	pause time.Duration
}

func (s slowly) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	body, err := s.Bucket.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{byteByByte{body, s.pause}, body}, nil
}

type byteByByte struct {
	io.Reader
	pause time.Duration
}

func (b byteByByte) Read(p []byte) (int, error) {
	time.Sleep(b.pause)
	return b.Reader.Read(p[:1])
}

func TestLister_SlowBucketIsNotStalled(t *testing.T) {
	b, dir := newBucket(t)
	id := ulid.Make()
	putMeta(t, dir, id, metaOf(id))
	stall := 2 * time.Second
	l := NewLister(slowly{b, stall / time.Duration(len(metaOf(id))/2)}, Options{Stall: stall})
	if r, err := l.List(t.Context(), time.Now()); err != nil || r.Blocks[id] == nil {
		t.Errorf("%v, %v", r, err)
	}
}

func TestLister_StatesWithoutBlocksAreZero(t *testing.T) {
	b, dir := newBucket(t)
	broken, good := ulid.Make(), ulid.Make()
	putMeta(t, dir, broken, `{"ulid":`)
	putMeta(t, dir, good, metaOf(good))
	l := NewLister(b, Options{})
	for _, want := range []int{1, 0} {
		r, err := l.List(t.Context(), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if n, there := r.States[corrupted]; n != want || !there || r.States[loaded] != 1 {
			t.Errorf("states %v, want %d of %s", r.States, want, corrupted)
		}
		if err := os.RemoveAll(filepath.Join(dir, broken.String())); err != nil {
			t.Fatal(err)
		}
	}
}

// Seconds near 2^63 overflow a time.Time, which would be long ago. A block with such a mark must not be hidden.
func TestLister_MarksWithoutATimeAreIgnored(t *testing.T) {
	b, dir := newBucket(t)
	id := ulid.Make()
	putMeta(t, dir, id, metaOf(id))
	for seconds, want := range map[int64]int64{1: 1, markTimeMax: markTimeMax, 0: 0, markTimeMax + 1: 0, math.MaxInt64: 0} {
		text := fmt.Sprintf(`{"id":%q,"version":1,"deletion_time":%d}`, id, seconds)
		if err := os.WriteFile(filepath.Join(dir, id.String(), markFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		l := NewLister(b, Options{})
		l.arrived = time.AfterFunc(time.Hour, func() {})
		at, err := l.mark(t.Context(), id, id.String()+"/"+markFile)
		if err != nil || at.IsZero() != (want == 0) || want != 0 && at.Unix() != want {
			t.Errorf("%d: %s, %v", seconds, at, err)
		}
	}
}

// unlisted is a bucket with a directory that must not be listed: a recursive list has its name, and its files cannot be read, or do
// not exist in a bucket that shows an object of this name.
type unlisted struct {
	objstore.Bucket
	name string
	err  error
}

func (b unlisted) Iter(ctx context.Context, dir string, f func(string) error, o ...objstore.IterOption) error {
	if err := f(b.name); err != nil {
		return err
	}
	return b.Bucket.Iter(ctx, dir, f, o...)
}

func (b unlisted) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	if b.err != nil && strings.HasPrefix(name, b.name) {
		return nil, b.err
	}
	return b.Bucket.Get(ctx, name)
}

func TestLister_DirectoryThatMustNotBeListedIsNotLeftOut(t *testing.T) {
	inner, dir := newBucket(t)
	id := ulid.Make()
	putMeta(t, dir, id, metaOf(id))
	refused := errors.New("permission denied")
	for _, tt := range []struct {
		name string
		err  error
		want error
	}{
		{ulid.Make().String() + "/", refused, refused},
		{ulid.Make().String() + "/", nil, nil},
		{"lost+found/", refused, nil},
	} {
		r, err := NewLister(unlisted{inner, tt.name, tt.err}, Options{Recursive: true}).List(t.Context(), time.Now())
		if !errors.Is(err, tt.want) || tt.want == nil && (len(r.Blocks) != 1 || r.Blocks[id] == nil) {
			t.Errorf("%s, %v: %v, %v", tt.name, tt.err, r.Blocks, err)
		}
	}
}
