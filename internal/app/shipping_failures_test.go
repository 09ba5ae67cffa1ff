package app

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/prometheus/model/labels"
	prometheustsdb "github.com/prometheus/prometheus/tsdb"
	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/internal/bucket"
	"github.com/ferula-io/ferula/internal/process/telemetry"
	"github.com/ferula-io/ferula/internal/profiles/store"
	"github.com/ferula-io/ferula/internal/tsdb"
	"github.com/ferula-io/ferula/metrics"
)

var errBucket = errors.New("the bucket fails")

// brokenBucket is a bucket whose methods can be replaced.
type brokenBucket struct {
	objstore.Bucket
	iter   func(ctx context.Context) error
	upload func(ctx context.Context) error
	remove func(ctx context.Context, name string) error
	close  error
}

func (b *brokenBucket) Iter(ctx context.Context, dir string, f func(string) error, options ...objstore.IterOption) error {
	if b.iter != nil {
		return b.iter(ctx)
	}
	return b.Bucket.Iter(ctx, dir, f, options...)
}

func (b *brokenBucket) Upload(ctx context.Context, name string, r io.Reader, options ...objstore.ObjectUploadOption) error {
	if b.upload != nil {
		return b.upload(ctx)
	}
	return b.Bucket.Upload(ctx, name, r, options...)
}

func (b *brokenBucket) Delete(ctx context.Context, name string) error {
	if b.remove != nil {
		if err := b.remove(ctx, name); err != nil {
			return err
		}
	}
	return b.Bucket.Delete(ctx, name)
}

func (b *brokenBucket) Close() error { return b.close }

// shipperTo returns a shipper of both signals to a bucket.
func shipperTo(t *testing.T, to objstore.Bucket, dir string) *shipper {
	t.Helper()
	samples, err := bucket.NewShipper(to, bucket.ShipOptions{Dir: dir, Labels: func() labels.Labels { return external }}, quiet, metrics.NewSet())
	if err != nil {
		t.Fatal(err)
	}
	s := &shipper{bucket: to, samples: samples}
	s.AddProfiles(filepath.Join(dir, "profiles"), ShippingOptions{}, quiet, telemetry.New())
	return s
}

func TestShipper_OptionsOfTheShipperAreChecked(t *testing.T) {
	o := ShippingOptions{Bucket: yamlOf(t.TempDir())}
	o.Shipper.StateFile = "a/b"
	s, err := newShipper(o, t.TempDir(), "ferula", func() labels.Labels { return external }, quiet, telemetry.New())
	if s != nil || err == nil || !strings.Contains(err.Error(), `"a/b" must be a plain file name`) {
		t.Error(s, err)
	}
}

func TestShipper_LogsNameTheComponent(t *testing.T) {
	dir := t.TempDir()
	putFiles(t, filepath.Join(dir, ulid.Make().String()), "meta.json") // not JSON
	var log lockedBuffer
	s, err := newShipper(ShippingOptions{Bucket: yamlOf(t.TempDir())}, dir, "ferula", func() labels.Labels { return external }, slog.New(slog.NewTextHandler(&log, nil)), telemetry.New())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	until(t, func() bool { return strings.Contains(log.text(), "Shipping failed") })
	cancel()
	if err := <-ended; err != nil || !strings.Contains(log.text(), "component=shipper") {
		t.Errorf("%q, %v", log.text(), err)
	}
}

// A warning about an object that a query could not read has the component profiles, not that of the shipper.
func TestReadProfiles_LogsNameTheComponentThatReads(t *testing.T) {
	root := t.TempDir()
	putFiles(t, filepath.Join(root, "profiles"), "bucket-index.json.gz") // not in the format of gzip
	var log lockedBuffer
	s, err := newShipper(ShippingOptions{Bucket: yamlOf(root)}, t.TempDir(), "ferula", func() labels.Labels { return external }, slog.New(slog.NewTextHandler(&log, nil)), telemetry.New())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.AddProfiles(t.TempDir(), ShippingOptions{}, quiet, telemetry.New())
	o := store.Options{Dir: t.TempDir()}
	s.ReadProfiles(&o, ProfileCacheOptions{PagesBytes: 1 << 20}, nil)
	if found, err := o.Remote.Blocks(t.Context()); err != nil || len(found) > 0 {
		t.Fatal(found, err)
	}
	if text := log.text(); !strings.Contains(text, "bucket-index") || strings.Count(text, "component=") != 1 || !strings.Contains(text, "component=profiles") {
		t.Error(text)
	}
}

// lockedBuffer is a log that can be read while it is written.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Expect records the blocks before the TSDB opens. Otherwise blocks that the TSDB deletes when it opens would not be counted
// as lost.
func TestShipper_CountsTheBlocksOnDisk(t *testing.T) {
	var none *shipper
	if err := none.Expect(context.Background()); err != nil {
		t.Error(err)
	}
	dir := t.TempDir()
	w, err := prometheustsdb.NewBlockWriter(quiet, dir, shippedDuration.Milliseconds())
	if err != nil {
		t.Fatal(err)
	}
	app := w.Appender(context.Background())
	_, err = app.Append(0, labels.FromStrings("__name__", "m"), 1_700_006_400_000, 1)
	if err := errors.Join(err, app.Commit()); err != nil {
		t.Fatal(err)
	}
	_, err = w.Flush(context.Background())
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	s := shipperOf(t, t.TempDir(), dir)
	if err := s.Expect(context.Background()); err != nil || s.samples.Status().Waiting != 1 {
		t.Errorf("%+v, %v", s.samples.Status(), err)
	}
}

// The bucket closes after Run: no upload may be running then.
func TestShipper_ReturnsAfterTheUploadsOfProfiles(t *testing.T) {
	dir := t.TempDir()
	putFiles(t, filepath.Join(dir, "profiles", "team-a", ulid.Make().String()), "index", "profiles.parquet")
	uploading, release := make(chan struct{}), make(chan struct{})
	var over atomic.Bool
	s := shipperTo(t, &brokenBucket{Bucket: objstore.NewInMemBucket(), upload: func(context.Context) error {
		close(uploading)
		<-release
		over.Store(true)
		return errBucket
	}}, dir)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		err := s.Run(ctx)
		if !over.Load() {
			t.Error("Run has returned before the upload")
		}
		ended <- err
	}()
	<-uploading
	cancel()
	time.AfterFunc(200*time.Millisecond, func() { close(release) }) // for a Run that does not wait
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestShipper_ReturnsTheErrorOfTheBucket(t *testing.T) {
	s := shipperTo(t, &brokenBucket{Bucket: objstore.NewInMemBucket(), close: errBucket}, t.TempDir())
	if err := s.Close(); !errors.Is(err, errBucket) {
		t.Error(err)
	}
}

func TestReadProfiles_NeedsAShipperOfProfilesAndHasDefaults(t *testing.T) {
	s := shipperTo(t, objstore.NewInMemBucket(), t.TempDir())
	for bytes, want := range map[int64]int64{0: 128 << 20, 1: 1, 2: 2} {
		var o store.Options
		if s.ReadProfiles(&o, ProfileCacheOptions{IndexBytes: bytes}, nil); o.Remote == nil || o.RemoteIndexBytes != want {
			t.Errorf("%d: %d", bytes, o.RemoteIndexBytes)
		}
	}
	s.profiles = nil
	var o store.Options
	if s.ReadProfiles(&o, ProfileCacheOptions{IndexBytes: 2}, nil); o.Remote != nil || o.RemoteIndexBytes != 0 {
		t.Errorf("%+v", o)
	}
}

func TestShippedProfiles_ListsAndDeletesBlocks(t *testing.T) {
	ctx, id := context.Background(), ulid.Make()
	to := &brokenBucket{Bucket: objstore.NewInMemBucket()}
	for _, name := range []string{"index", "profiles.parquet"} {
		if err := to.Upload(ctx, "profiles/team-a/"+id.String()+"/"+name, strings.NewReader(name)); err != nil {
			t.Fatal(err)
		}
	}
	o := store.Options{Dir: t.TempDir()}
	shipperTo(t, to, t.TempDir()).ReadProfiles(&o, ProfileCacheOptions{PagesBytes: 1 << 20}, nil)
	// The sizes of two lists are compared.
	for range 2 {
		if found, err := o.Remote.Blocks(ctx); err != nil || len(found) != 1 || found[0].ID != id {
			t.Errorf("%+v, %v", found, err)
		}
	}
	to.iter = func(context.Context) error { return errBucket }
	if found, err := o.Remote.Blocks(ctx); !errors.Is(err, errBucket) {
		t.Errorf("%+v, %v", found, err)
	}
	to.iter = nil
	to.remove = func(context.Context, string) error { return errBucket }
	if err := o.Remote.Delete(ctx, "team-a", id); !errors.Is(err, errBucket) {
		t.Error(err)
	}
	var used context.Context
	to.remove = func(ctx context.Context, _ string) error { used = ctx; return nil }
	if err := o.Remote.Delete(ctx, "team-a", id); err != nil || used == nil {
		t.Fatal(err)
	}
	if deadline, ok := used.Deadline(); !ok || time.Until(deadline) > objectTimeout || used.Err() == nil {
		t.Errorf("deadline %s, %v", deadline, used.Err())
	}
	if found, err := o.Remote.Blocks(ctx); err != nil || len(found) != 0 {
		t.Errorf("%+v, %v", found, err)
	}
}

func TestCheckLocal_ReturnsAllErrors(t *testing.T) {
	err := ShippingOptions{Bucket: "b"}.CheckLocal(tsdb.Options{}, labels.EmptyLabels())
	if !errors.Is(err, bucket.ErrNoLabels) || !strings.Contains(err.Error(), "must both be 2h0m0s") {
		t.Error(err)
	}
}

func TestSkipReplaced_ReachesTheShipperOfProfiles(t *testing.T) {
	(*shipper)(nil).SkipReplaced(nil)
	dir, to := t.TempDir(), objstore.NewInMemBucket()
	replaced, other := ulid.Make(), ulid.Make()
	for _, id := range []ulid.ULID{replaced, other} {
		putFiles(t, filepath.Join(dir, "profiles", "team-a", id.String()), "index", "profiles.parquet")
	}
	s := shipperTo(t, to, dir)
	s.SkipReplaced(func(tenant string, id ulid.ULID) (bool, error) { return tenant == "team-a" && id == replaced, nil })
	if n, err := s.profiles.Sync(t.Context()); n != 1 || err != nil {
		t.Errorf("%d blocks are uploaded, %v", n, err)
	}
	for name := range to.Objects() {
		if !strings.HasPrefix(name, "profiles/team-a/"+other.String()+"/") {
			t.Error(name)
		}
	}
	s.profiles = nil
	s.SkipReplaced(nil)
}

// A timer that runs on after the request would hold its memory for half a minute.
func TestShippedProfiles_MarksReleaseTheirTimeouts(t *testing.T) {
	ctx, id := context.Background(), ulid.Make()
	to := &brokenBucket{Bucket: objstore.NewInMemBucket()}
	o := store.Options{Dir: t.TempDir()}
	shipperTo(t, to, t.TempDir()).ReadProfiles(&o, ProfileCacheOptions{PagesBytes: 1 << 20}, nil)
	for _, failure := range []error{nil, errBucket} {
		var used context.Context
		to.upload = func(ctx context.Context) error { used = ctx; return failure }
		to.remove = func(ctx context.Context, _ string) error {
			used = ctx
			return errors.Join(failure, to.Bucket.Upload(ctx, "profiles/team-a/"+id.String()+"/deletion-mark.json", strings.NewReader("{}")))
		}
		for name, call := range map[string]func() error{
			"Mark":   func() error { return o.Remote.Mark(ctx, "team-a", id, time.Unix(1, 0), "retention") },
			"Unmark": func() error { return o.Remote.Unmark(ctx, "team-a", id) },
		} {
			used = nil
			if err := call(); !errors.Is(err, failure) || failure == nil && err != nil || used == nil {
				t.Fatalf("%s: %v", name, err)
			}
			if deadline, ok := used.Deadline(); !ok || time.Until(deadline) > objectTimeout || used.Err() == nil {
				t.Errorf("%s: deadline %s, %v", name, deadline, used.Err())
			}
		}
	}
}

// A deletion mark that is not valid is read again only once an hour. If this process has replaced it by a valid mark, the new
// mark must be read by the next list. Otherwise the process would write the mark again after every list.
func TestShippedProfiles_MarkOverAnInvalidOneIsReadByTheNextList(t *testing.T) {
	ctx, id, at := t.Context(), ulid.Make(), time.Unix(1_700_000_000, 0)
	to, o := objstore.NewInMemBucket(), store.Options{Dir: t.TempDir()}
	for name, text := range map[string]string{"index": "i", "profiles.parquet": "r", "deletion-mark.json": "{"} {
		if err := to.Upload(ctx, "profiles/team-a/"+id.String()+"/"+name, strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	}
	s := shipperTo(t, to, t.TempDir())
	s.ReadProfiles(&o, ProfileCacheOptions{PagesBytes: 1 << 20}, nil)
	for _, want := range []time.Time{{}, at} {
		if !want.IsZero() {
			if err := o.Remote.Mark(ctx, "team-a", id, want, "retention"); err != nil {
				t.Fatal(err)
			}
		}
		found, err := o.Remote.Blocks(ctx)
		if err != nil || len(found) != 1 || !found[0].Marked.Equal(want) {
			t.Errorf("want %s: %+v, %v", want, found, err)
		}
	}
}
