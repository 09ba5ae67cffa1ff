package app

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
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

var (
	quiet    = slog.New(slog.DiscardHandler)
	external = labels.FromStrings("cluster", "eu")
)

// yamlOf is the configuration of a bucket in a directory.
func yamlOf(dir string) string { return "type: FILESYSTEM\nconfig: {directory: " + dir + "}\n" }

func shipperOf(t *testing.T, bucketDir, dir string) *shipper {
	t.Helper()
	o := ShippingOptions{Bucket: yamlOf(bucketDir)}
	o.Shipper.Interval, o.Shipper.RetryMin = time.Millisecond, time.Millisecond
	s, err := newShipper(o, dir, "sidecar", func() labels.Labels { return external }, quiet, telemetry.New())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	s.AddProfiles(filepath.Join(dir, "profiles"), o, quiet, telemetry.New())
	return s
}

func TestShipper_NilDoesNothing(t *testing.T) {
	s, err := newShipper(ShippingOptions{}, t.TempDir(), "ferula", nil, quiet, telemetry.New())
	if s != nil || err != nil {
		t.Fatal(s, err)
	}
	var o store.Options
	s.AddProfiles("", ShippingOptions{}, quiet, nil)
	s.ReadProfiles(&o, ProfileCacheOptions{}, nil)
	if err := errors.Join(s.Run(context.Background()), s.Close()); err != nil || s.Note() != "" || o.Remote != nil {
		t.Error(err, s.Note(), o)
	}
}

func TestShipper_ConfigurationOfTheBucketIsChecked(t *testing.T) {
	if s, err := newShipper(ShippingOptions{Bucket: "type: SQL\n"}, t.TempDir(), "ferula", nil, quiet, telemetry.New()); s != nil || err == nil {
		t.Error(s, err)
	}
}

func TestShipper_ShipsBlocksOfBothSignals(t *testing.T) {
	to, dir := t.TempDir(), t.TempDir()
	block := sampleBlock(t, dir)
	id := ulid.Make()
	putFiles(t, filepath.Join(dir, "profiles", "team-a", id.String()), "index", "profiles.parquet")
	s := shipperOf(t, to, dir)
	if note := s.Note(); note != "Shipping has not begun.\n" {
		t.Errorf("%q", note)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	meta := filepath.Join(to, block.String(), "meta.json")
	index := filepath.Join(to, "profiles", "team-a", id.String(), "index")
	until(t, func() bool {
		return exists(meta) && exists(index) && strings.HasPrefix(s.Note(), "Shipping last succeeded at ")
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	o := store.Options{Dir: t.TempDir()}
	s.ReadProfiles(&o, ProfileCacheOptions{IndexBytes: 1000, PagesBytes: 1 << 20}, nil)
	found, err := o.Remote.Blocks(context.Background())
	if err != nil || len(found) != 1 || found[0].Tenant != "team-a" || found[0].ID != id || found[0].IndexBytes == 0 || o.RemoteIndexBytes != 1000 {
		t.Errorf("%+v, %d, %v", found, o.RemoteIndexBytes, err)
	}
	if s.ReadProfiles(&o, ProfileCacheOptions{}, nil); o.RemoteIndexBytes != 128<<20 {
		t.Error(o.RemoteIndexBytes)
	}
}

func TestShipper_NoteHasTheFailure(t *testing.T) {
	to, dir := filepath.Join(t.TempDir(), "bucket"), t.TempDir()
	putFiles(t, filepath.Join(dir, ulid.Make().String()), "meta.json") // not JSON
	s := shipperOf(t, to, dir)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	until(t, func() bool { return strings.HasPrefix(s.Note(), "Shipping has failed since ") })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestShippingOptions_CheckLocal(t *testing.T) {
	two, day := 2*time.Hour, 24*time.Hour
	for _, c := range []struct {
		o        ShippingOptions
		min, max time.Duration
		external labels.Labels
		want     string // within the error; "": none
	}{
		{ShippingOptions{}, two, day, labels.EmptyLabels(), ""},
		{ShippingOptions{Bucket: "b"}, two, two, external, ""},
		{ShippingOptions{Bucket: "b"}, two, day, external, "--storage.tsdb.max-block-duration=24h0m0s must both be 2h0m0s"},
		{ShippingOptions{Bucket: "b"}, time.Hour, two, external, "--storage.tsdb.min-block-duration=1h0m0s"},
		{ShippingOptions{Bucket: "b", IgnoreBlockSize: true}, two, day, external, ""},
		{ShippingOptions{Bucket: "b"}, two, day, labels.EmptyLabels(), "set global.external_labels\na block could be compacted"},
		{ShippingOptions{Bucket: "b", IgnoreBlockSize: true}, two, day, labels.EmptyLabels(), bucket.ErrNoLabels.Error() + ": set global.external_labels"},
	} {
		err := c.o.CheckLocal(tsdb.Options{MinBlockDuration: c.min, MaxBlockDuration: c.max}, c.external)
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "--objstore.config: ")) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestShippingOptions_CheckPrometheus(t *testing.T) {
	const minFlag, maxFlag, delay = "storage.tsdb.min-block-duration", "storage.tsdb.max-block-duration", "storage.tsdb.delay-compact-file.path"
	named := ShippingOptions{}
	named.Shipper.StateFile = "list.json"
	for _, c := range []struct {
		o     ShippingOptions
		flags map[string]string
		want  string // within the error; "": none
	}{
		{ShippingOptions{}, map[string]string{minFlag: "2h", maxFlag: "2h"}, ""},
		{ShippingOptions{}, map[string]string{minFlag: "2h", maxFlag: "1d"}, "--storage.tsdb.max-block-duration=1d must both be 2h0m0s"},
		{ShippingOptions{IgnoreBlockSize: true}, map[string]string{minFlag: "2h", maxFlag: "1d"}, ""},
		{ShippingOptions{}, map[string]string{maxFlag: "2h"}, `its --storage.tsdb.min-block-duration is ""`},
		{ShippingOptions{}, map[string]string{maxFlag: "1d", delay: "/data/./thanos.shipper.json"}, ""},
		{named, map[string]string{maxFlag: "1d", delay: "/data/list.json"}, ""},
		{ShippingOptions{IgnoreBlockSize: true}, map[string]string{delay: "/other/thanos.shipper.json"}, "but shipped blocks are listed in /data/thanos.shipper.json"},
	} {
		err := c.o.CheckPrometheus("/data", c.flags)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// sampleBlock writes a block of samples.
func sampleBlock(t *testing.T, dir string) ulid.ULID {
	t.Helper()
	w, err := prometheustsdb.NewBlockWriter(quiet, dir, shippedDuration.Milliseconds())
	if err != nil {
		t.Fatal(err)
	}
	app := w.Appender(context.Background())
	_, err = app.Append(0, labels.FromStrings("__name__", "m"), 1_700_006_400_000, 1)
	if err := errors.Join(err, app.Commit()); err != nil {
		t.Fatal(err)
	}
	id, err := w.Flush(context.Background())
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return id
}

// putFiles writes files that contain their names.
func putFiles(t *testing.T, dir string, names ...string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

var errBucket = errors.New("the bucket fails")

// brokenBucket is a bucket whose methods can be replaced.
type brokenBucket struct {
	objstore.Bucket
	upload func(ctx context.Context) error
	close  error
}

func (b *brokenBucket) Upload(ctx context.Context, _ string, _ io.Reader, _ ...objstore.ObjectUploadOption) error {
	return b.upload(ctx)
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
	sampleBlock(t, dir)
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
