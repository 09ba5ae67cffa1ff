package store_test

import (
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/internal/bucket"
	"github.com/ferula-io/ferula/internal/profiles/compact"
	"github.com/ferula-io/ferula/internal/profiles/store"
	"github.com/ferula-io/ferula/metrics"
)

// weekBucket implements profile.WeekBucket on a directory.
type weekBucket struct {
	dir, work string
	bucket    objstore.Bucket
	logger    *slog.Logger
	*bucket.ProfileReader
	shipper *bucket.ProfileShipper
}

var _ store.WeekBucket = (*weekBucket)(nil)

func newWeekBucket(t *testing.T) *weekBucket {
	t.Helper()
	b := &weekBucket{dir: t.TempDir(), work: t.TempDir(), logger: slog.New(slog.DiscardHandler)}
	var err error
	if b.bucket, err = bucket.Open([]byte("type: FILESYSTEM\nconfig: {directory: "+b.dir+"}\n"), "week", b.logger, prometheus.NewRegistry()); err != nil {
		t.Fatal(err)
	}
	b.ProfileReader = bucket.NewProfileReader(b.bucket, bucket.ProfileReaderOptions{Dir: t.TempDir(), PagesBytes: 1 << 20, Timeout: time.Minute})
	t.Cleanup(func() {
		if err := b.ProfileReader.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// Ship implements profile.WeekBucket.
func (b *weekBucket) Ship(ctx context.Context, dir string, begin bool, replaced func(tenant string, id ulid.ULID) (bool, error)) error {
	if begin {
		b.shipper = bucket.NewProfileShipper(b.bucket, bucket.ShipOptions{Dir: dir}, b.logger, metrics.NewSet())
		b.shipper.SkipReplaced(replaced)
	}
	_, err := b.shipper.Sync(ctx)
	return err
}

// Compact implements profile.WeekBucket. Every call is a process of its own.
func (b *weekBucket) Compact(ctx context.Context, now time.Time) error {
	c, err := compact.New(b.bucket, compact.Options{Dir: b.work, DeleteDelay: 4 * time.Hour, Now: func() time.Time { return now }}, b.logger, metrics.NewSet())
	if err != nil {
		return err
	}
	if err := c.Iterate(ctx); err != nil {
		return err
	}
	return c.Close()
}

// Bytes implements profile.WeekBucket.
func (b *weekBucket) Bytes() (size int64, err error) {
	err = filepath.WalkDir(b.dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if os.IsNotExist(err) {
			return nil
		}
		if err == nil {
			size += info.Size()
		}
		return err
	})
	return size, err
}

// Each block is on the disk, in the bucket, or in both, and compacted in both. Every profile is read once.
func TestStore_SimulatedWeekWithABucket(t *testing.T) {
	if testing.Short() {
		t.Skip("the bucket is in a steady state after four days only")
	}
	store.SimulateWeek(t, 7, newWeekBucket(t))
}
