package bucket

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/metrics"
)

// bodies is a bucket that counts the bodies that are open, and the requests for ranges.
type bodies struct {
	objstore.Bucket
	mu     sync.Mutex
	open   int
	ranges []string // offset and length
	cut    int64    // ranges are this much shorter than requested
}

func (b *bodies) track(r io.ReadCloser, err error) (io.ReadCloser, error) {
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open++
	return &trackedBody{ReadCloser: r, of: b}, nil
}

func (b *bodies) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	return b.track(b.Bucket.Get(ctx, name))
}

func (b *bodies) GetRange(ctx context.Context, name string, off, length int64) (io.ReadCloser, error) {
	b.mu.Lock()
	b.ranges = append(b.ranges, spanOf(off, length))
	b.mu.Unlock()
	return b.track(b.Bucket.GetRange(ctx, name, off, max(0, length-b.cut)))
}

func spanOf(off, length int64) string {
	return time.Duration(off).String() + "+" + time.Duration(length).String()
}

type trackedBody struct {
	io.ReadCloser
	of   *bodies
	once sync.Once
}

func (t *trackedBody) Close() error {
	t.once.Do(func() {
		t.of.mu.Lock()
		defer t.of.mu.Unlock()
		t.of.open--
	})
	return t.ReadCloser.Close()
}

func TestProfileReader_BlockThatGrowsIsLookedUpAgain(t *testing.T) {
	ctx, in := context.Background(), &countedBucket{Bucket: objstore.NewInMemBucket()}
	dir := ProfileBlock("a", ulid.Make())
	put := func(file string, n int) {
		t.Helper()
		if err := in.Upload(ctx, path.Join(dir, file), bytes.NewReader(make([]byte, n))); err != nil {
			t.Fatal(err)
		}
	}
	put(profileFiles[0], 10)
	put(indexFile, 10)
	r := newReader(t, in)
	for i, step := range []struct {
		file       string // that has changed
		n          int
		lookups    int
		index, row int64
	}{
		{"", 0, 2, 10, 10}, {profileFiles[0], 20, 2, 10, 20}, {indexFile, 30, 2, 30, 20}, {"", 0, 2, 30, 20}, {"", 0, 0, 30, 20},
	} {
		if step.file != "" {
			put(step.file, step.n)
		}
		in.attributes = 0
		found, err := r.Blocks(ctx)
		if err != nil || len(found) != 1 || found[0].IndexBytes != step.index || found[0].RowsBytes != step.row || in.attributes != step.lookups {
			t.Errorf("list %d: %+v, %d lookups, %v", i, found, in.attributes, err)
		}
	}
}

func TestProfileReader_ClosesEveryBody(t *testing.T) {
	ctx, in := context.Background(), &bodies{Bucket: objstore.NewInMemBucket()}
	dir := ProfileBlock("a", ulid.Make())
	for _, file := range append(profileFiles, spansFile) {
		if err := in.Upload(ctx, path.Join(dir, file), strings.NewReader("0123456789")); err != nil {
			t.Fatal(err)
		}
	}
	found, err := newReader(t, in).Blocks(ctx)
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	for _, at := range []io.ReaderAt{found[0].Index, found[0].Rows, found[0].Spans} {
		for _, n := range []int{5, 50} {
			p := make([]byte, n)
			got, err := at.ReadAt(p, 2)
			want := min(n, 8)
			if n > 8 && at == found[0].Spans {
				want = 0 // a part of the spans is of no use
			}
			if got != want || (err == nil) != (n == 5) || string(p[:got]) != "23456789"[:want] {
				t.Errorf("%d bytes: %d, %v", n, got, err)
			}
		}
	}
	if in.open != 0 {
		t.Errorf("%d bodies are open", in.open)
	}
}

// undeletable is a bucket that refuses to delete one file.
type undeletable struct {
	objstore.Bucket
	file string
}

func (u undeletable) Delete(ctx context.Context, name string) error {
	if path.Base(name) == u.file {
		return errFault
	}
	return u.Bucket.Delete(ctx, name)
}

func TestDeleteProfile_FailureIsReturned(t *testing.T) {
	for _, file := range []string{indexFile, spansFile, profileFiles[0]} {
		id := ulid.Make()
		err := NewProfileStore(undeletable{objstore.NewInMemBucket(), file}).Delete(context.Background(), "a", id)
		if !errors.Is(err, errFault) || !strings.Contains(err.Error(), "delete "+file+" of profiles/a/"+id.String()) {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// An upload that reads now and then is slow, and one that reads nothing is stalled.
func TestSend_CancelsAnUploadThatReadsNothing(t *testing.T) {
	for name, read := range map[string]func(r io.Reader) error{
		"Read":   func(r io.Reader) error { _, err := r.Read(make([]byte, 1)); return err },
		"ReadAt": func(r io.Reader) error { _, err := r.(io.ReaderAt).ReadAt(make([]byte, 1), 0); return err },
	} {
		synctest.Test(t, func(t *testing.T) {
			err := send(context.Background(), strings.NewReader("0123456789"), 10, 8*time.Second, func(ctx context.Context, r io.Reader) error {
				if n, err := r.(objstore.ObjectSizer).ObjectSize(); n != 10 || err != nil {
					t.Errorf("%d, %v", n, err)
				}
				for range 9 {
					time.Sleep(7 * time.Second)
					if err := read(r); err != nil || ctx.Err() != nil {
						t.Errorf("%s: %v, %v", name, err, context.Cause(ctx))
					}
				}
				return nil
			})
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		err := send(context.Background(), strings.NewReader("x"), 1, 8*time.Second, func(ctx context.Context, _ io.Reader) error {
			<-ctx.Done()
			return errFault
		})
		if took := time.Since(begun); !errors.Is(err, errStalled) || !errors.Is(err, errFault) || took < 8*time.Second || took > 10*time.Second {
			t.Errorf("%v after %s", err, took)
		}
		if err := send(context.Background(), strings.NewReader("x"), 1, time.Second, func(context.Context, io.Reader) error { return errFault }); !errors.Is(err, errFault) || errors.Is(err, errStalled) {
			t.Error(err)
		}
		if err := send(context.Background(), strings.NewReader("x"), 1, 1, func(context.Context, io.Reader) error { return nil }); err != nil {
			t.Error(err)
		}
	})
}

// The pause after a failure doubles up to its limit, and a success ends it.
func TestRepeat_PausesAfterFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		var at, retries []time.Duration
		outcomes := []error{errFault, errFault, errFault, errFault, nil, errFault, nil}
		ctx, stop := context.WithCancel(context.Background())
		ShipOptions{Interval: time.Minute, RetryMin: 2 * time.Second, RetryMax: 7 * time.Second}.repeat(ctx, func(context.Context) (int, error) {
			at = append(at, time.Since(begun))
			if len(at) == len(outcomes) {
				stop()
			}
			return len(at), outcomes[len(at)-1]
		}, func(n int, retry time.Duration, err error) {
			if n != len(at) || !errors.Is(err, errFault) {
				t.Errorf("%d, %v", n, err)
			}
			retries = append(retries, retry)
		})
		s := time.Second
		if got, want := join(at), join([]time.Duration{0, 2 * s, 6 * s, 13 * s, 20 * s, 80 * s, 82 * s}); got != want {
			t.Errorf("at %s, want %s", got, want)
		}
		if got, want := join(retries), join([]time.Duration{2 * s, 4 * s, 7 * s, 7 * s, 2 * s}); got != want {
			t.Errorf("pauses %s, want %s", got, want)
		}
		ctx, stop = context.WithCancel(context.Background())
		ShipOptions{Interval: time.Minute}.repeat(ctx, func(context.Context) (int, error) { stop(); return 0, errFault }, func(int, time.Duration, error) { t.Error("the end is a failure") })
	})
}

func join(list []time.Duration) string {
	var texts []string
	for _, d := range list {
		texts = append(texts, d.String())
	}
	return strings.Join(texts, " ")
}

func TestProfileShipper_CountsAndForgets(t *testing.T) {
	dir, to := t.TempDir(), objstore.NewInMemBucket()
	one, two := "anonymous/"+ulid.Make().String(), "team-a/"+ulid.Make().String()
	profileBlocks(t, dir, one, two)
	ill := &sick{to, errFault}
	set := metrics.NewSet()
	s := NewProfileShipper(ill, ShipOptions{Dir: dir}, quiet, set)
	ctx := context.Background()
	if n, err := s.Sync(ctx); n != 0 || !errors.Is(err, errFault) || !strings.Contains(err.Error(), "profile block profiles/"+one) || !strings.Contains(err.Error(), "profile block profiles/"+two) || s.waiting.Get() != 2 {
		t.Errorf("%d, %v, %v waiting", n, err, s.waiting.Get())
	}
	ill.err = nil
	if n, err := s.Sync(ctx); n != 2 || err != nil || s.uploads.Get() != 2 || s.waiting.Get() != 0 || len(s.known) != 2 {
		t.Errorf("%d, %v, %d uploads", n, err, s.uploads.Get())
	}
	// What is known is not looked up again.
	s.store.bucket = &faulty{Bucket: to, at: 1}
	if n, err := s.Sync(ctx); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	s.store.bucket = to
	removeAll(t, filepath.Join(dir, one))
	if n, err := s.Sync(ctx); n != 0 || err != nil || len(s.known) != 1 || !s.known["profiles/"+two] {
		t.Errorf("%d, %v, %v", n, err, s.known)
	}
	if names := openBelow(t, dir); len(names) > 0 {
		t.Errorf("open: %q", names)
	}
	for _, f := range set.Families() {
		if f.Help == "" {
			t.Errorf("%s has no help", f.Name)
		}
	}
}

func TestProfileShipper_RunCountsFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		profileBlocks(t, dir, "anonymous/"+ulid.Make().String())
		s := NewProfileShipper(&faulty{Bucket: objstore.NewInMemBucket(), at: 1, once: true}, ShipOptions{Dir: dir}, quiet, metrics.NewSet())
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { s.Run(ctx); close(done) }()
		time.Sleep(time.Second)
		if s.failed.Get() != 1 || s.uploads.Get() != 0 {
			t.Errorf("%d failures, %d uploads", s.failed.Get(), s.uploads.Get())
		}
		time.Sleep(2 * time.Second)
		if s.failed.Get() != 1 || s.uploads.Get() != 1 {
			t.Errorf("%d failures, %d uploads, after the pause", s.failed.Get(), s.uploads.Get())
		}
		stop()
		<-done
	})
}

// A block with spans is shipped with them; the index is the last file.
func TestProfileShipper_SpansAreShippedBeforeTheIndex(t *testing.T) {
	dir, to := t.TempDir(), &uploadOrder{Bucket: objstore.NewInMemBucket()}
	name := "anonymous/" + ulid.Make().String()
	profileBlocks(t, dir, name)
	writeFile(t, filepath.Join(dir, name, spansFile), "spans")
	if n, err := NewProfileShipper(to, ShipOptions{Dir: dir}, quiet, metrics.NewSet()).Sync(context.Background()); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if got, want := strings.Join(to.names, " "), "profiles.parquet spans index"; got != want {
		t.Errorf("uploaded %q, want %q", got, want)
	}
}

type uploadOrder struct {
	objstore.Bucket
	names []string
}

func (u *uploadOrder) Upload(ctx context.Context, name string, r io.Reader, o ...objstore.ObjectUploadOption) error {
	u.names = append(u.names, path.Base(name))
	return u.Bucket.Upload(ctx, name, r, o...)
}

func TestProfileShipper_BlockWithoutAFileIsAnError(t *testing.T) {
	for _, file := range profileFiles {
		dir, to := t.TempDir(), objstore.NewInMemBucket()
		name := "anonymous/" + ulid.Make().String()
		profileBlocks(t, dir, name)
		removeAll(t, filepath.Join(dir, name, file))
		s := NewProfileShipper(to, ShipOptions{Dir: dir}, quiet, metrics.NewSet())
		if n, err := s.Sync(context.Background()); n != 0 || err == nil || len(objects(t, to)) != 0 || s.waiting.Get() != 1 {
			t.Errorf("without %s: %d, %v", file, n, err)
		}
		writeFile(t, filepath.Join(dir, name, file), "")
		if _, err := s.Sync(context.Background()); !errors.Is(err, ErrCorrupt) {
			t.Errorf("with an empty %s: %v", file, err)
		}
		if names := openBelow(t, dir); len(names) > 0 {
			t.Errorf("open: %q", names)
		}
	}
}

// concurrent is a bucket that holds the first uploads until want of them run.
type concurrent struct {
	objstore.Bucket
	want    int
	reached chan struct{} // closed when want uploads run

	mu        sync.Mutex
	now, most int
}

func (c *concurrent) Upload(ctx context.Context, name string, r io.Reader, o ...objstore.ObjectUploadOption) error {
	c.mu.Lock()
	c.now++
	c.most = max(c.most, c.now)
	if c.now == c.want {
		select {
		case <-c.reached:
		default:
			close(c.reached)
		}
	}
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.now--
	}()
	<-c.reached
	return c.Bucket.Upload(ctx, name, r, o...)
}
