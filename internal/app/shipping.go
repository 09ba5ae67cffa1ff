package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/internal/bucket"
	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/process/telemetry"
	profilestore "github.com/ferula-io/ferula/internal/profiles/store"
	"github.com/ferula-io/ferula/internal/tsdb"
	"github.com/ferula-io/ferula/metrics"
)

// shippedDuration is the duration of shipped blocks. Thanos' compactor requires it.
const shippedDuration = 2 * time.Hour

// ShippingOptions configure the upload of blocks to an object store.
type ShippingOptions struct {
	Bucket string // Thanos' object store configuration in YAML; "": no shipping
	// IgnoreBlockSize ships although the TSDB compacts blocks. The TSDB may then compact and delete
	// a block before it is shipped.
	IgnoreBlockSize bool
	Shipper         bucket.ShipOptions // Dir, Labels and Source are set by newShipper
}

// shipper is a bucket and the shippers that upload to it. A nil shipper does nothing.
type shipper struct {
	bucket   objstore.Bucket
	samples  *bucket.Shipper
	profiles *bucket.ProfileShipper // nil: no profiles are shipped
	reader   *bucket.ProfileReader  // nil: profiles are not shipped
	logger   *slog.Logger           // of reader
}

// newShipper opens the bucket of o and creates a shipper of the blocks in dir. It returns nil if o has no
// bucket. component is the name of the program in metrics and in the meta.json of blocks.
func newShipper(o ShippingOptions, dir, component string, external func() labels.Labels, logger *slog.Logger,
	reg *telemetry.Registry) (*shipper, error) {
	if o.Bucket == "" {
		return nil, nil
	}
	reads, logger := logger.With("component", "profiles"), logger.With("component", "shipper")
	to, err := bucket.Open([]byte(o.Bucket), component, logger, reg)
	if err != nil {
		return nil, err
	}
	o.Shipper.Dir, o.Shipper.Labels, o.Shipper.Source = dir, external, component
	samples, err := bucket.NewShipper(to, o.Shipper, logger, reg.Own)
	if err != nil {
		return nil, errors.Join(err, to.Close())
	}
	return &shipper{bucket: to, samples: samples, logger: reads}, nil
}

// Expect records the blocks on disk that were not shipped yet. It must be called before the TSDB
// opens, because the TSDB then deletes expired blocks. The first sync counts a recorded block that
// was deleted before it was shipped as lost.
func (s *shipper) Expect(context.Context) error {
	if s != nil {
		s.samples.Expect()
	}
	return nil
}

// Run ships blocks until ctx is canceled.
func (s *shipper) Run(ctx context.Context) error {
	if s == nil {
		return nil
	}
	var both sync.WaitGroup
	defer both.Wait()
	if s.profiles != nil {
		both.Go(func() { s.profiles.Run(ctx) })
	}
	s.samples.Run(ctx)
	return nil
}

// Sync uploads the blocks of samples on disk that were not uploaded yet, once.
func (s *shipper) Sync(ctx context.Context) error {
	_, err := s.samples.Sync(ctx)
	return err
}

// Note returns the lines about shipping in the readiness response. An unavailable bucket
// does not make a server unready: its blocks wait on disk and it can be queried.
func (s *shipper) Note() string {
	if s == nil {
		return ""
	}
	status := s.samples.Status()
	switch {
	case !status.FailingFrom.IsZero():
		return fmt.Sprintf("Shipping has failed since %s; blocks waiting: %d. %v\n",
			status.FailingFrom.UTC().Format(time.RFC3339), status.Waiting, status.Err)
	case status.LastSuccess.IsZero():
		return "Shipping has not begun.\n"
	}
	return fmt.Sprintf("Shipping last succeeded at %s.\n", status.LastSuccess.UTC().Format(time.RFC3339))
}

// Close closes the reader of profile blocks, which ends running reads, and the bucket.
func (s *shipper) Close() error {
	if s == nil {
		return nil
	}
	var err error
	if s.reader != nil {
		err = s.reader.Close()
	}
	return errors.Join(err, s.bucket.Close())
}

// AddProfiles adds a shipper of the profile blocks in dir. It has the intervals of o.Shipper, the shipper of sample
// blocks. AddProfiles must be called before Run.
func (s *shipper) AddProfiles(dir string, o ShippingOptions, logger *slog.Logger, reg *telemetry.Registry) {
	if s == nil {
		return
	}
	o.Shipper.Dir = dir
	s.profiles = bucket.NewProfileShipper(s.bucket, o.Shipper, logger.With("component", "profile shipper"), reg.Own)
}

// SkipReplaced sets the function that reports whether another block in the bucket has all rows of a profile block. If
// the function returns true, the profile block is not uploaded. If it returns an error, the next sync calls it again.
// SkipReplaced must be called before Run.
func (s *shipper) SkipReplaced(replaced func(tenant string, id ulid.ULID) (bool, error)) {
	if s != nil && s.profiles != nil {
		s.profiles.SkipReplaced(replaced)
	}
}

// ProfileCacheOptions are the limits of the caches for profile blocks in the bucket. Zero values take the defaults.
type ProfileCacheOptions struct {
	IndexBytes int64 // memory of the indexes of open blocks; 0: 128 MiB
	PagesBytes int64 // size of the file of pages; 0: 256 MiB

	Flags hint.Flags // the flag that sets PagesBytes, named in errors
}

// pagesDir is the directory of the file of pages, next to the directory "profiles". A process that starts removes the
// file of an earlier one.
const pagesDir = "profiles-cache"

// ReadProfiles configures a profile store to read blocks from the bucket that are not on
// disk, if profiles are shipped. The directory of the store must be set.
func (s *shipper) ReadProfiles(o *profilestore.Options, cache ProfileCacheOptions, set *metrics.Set) {
	if s == nil || s.profiles == nil {
		return
	}
	s.reader = bucket.NewProfileReader(s.bucket, bucket.ProfileReaderOptions{Dir: filepath.Join(o.Dir, pagesDir),
		PagesBytes: cmp.Or(cache.PagesBytes, 256<<20), Timeout: objectTimeout, Logger: s.logger, Metrics: set,
		Flags: cache.Flags})
	o.Remote, o.RemoteIndexBytes = s.reader, cmp.Or(cache.IndexBytes, 128<<20)
}

// CheckLocal returns an error if there are no external labels, or if the TSDB of this process could compact and
// delete a block before it is shipped. Without external labels the blocks of several servers have the same identity.
func (o ShippingOptions) CheckLocal(store tsdb.Options, external labels.Labels) error {
	if o.Bucket == "" {
		return nil
	}
	var errs []error
	if external.IsEmpty() {
		errs = append(errs, fmt.Errorf("%w: set global.external_labels", bucket.ErrNoLabels))
	}
	if !o.IgnoreBlockSize && (store.MinBlockDuration != shippedDuration || store.MaxBlockDuration != shippedDuration) {
		errs = append(errs, fmt.Errorf("a block could be compacted and deleted before it is shipped: "+
			"--storage.tsdb.min-block-duration=%s and --storage.tsdb.max-block-duration=%s must both be %s",
			store.MinBlockDuration, store.MaxBlockDuration, shippedDuration))
	}
	if err := errors.Join(errs...); err != nil {
		return hint.Invalid("objstore.config", err)
	}
	return nil
}

// CheckPrometheus returns an error if a Prometheus with these flags and the data directory dir could compact and
// delete a block before it is shipped. There is no error if --storage.tsdb.delay-compact-file.path names the
// shipper's list of shipped blocks: such a Prometheus compacts only blocks in this list.
func (o ShippingOptions) CheckPrometheus(dir string, flags map[string]string) error {
	state := cmp.Or(o.Shipper.StateFile, "thanos.shipper.json")
	state = filepath.Join(dir, state)
	if delayFile := flags["storage.tsdb.delay-compact-file.path"]; delayFile != "" {
		if filepath.Clean(delayFile) != filepath.Clean(state) {
			return fmt.Errorf("its --storage.tsdb.delay-compact-file.path is %s, but shipped blocks are listed in %s",
				delayFile, state)
		}
		return nil
	}
	if o.IgnoreBlockSize {
		return nil
	}
	const minFlag, maxFlag = "storage.tsdb.min-block-duration", "storage.tsdb.max-block-duration"
	for _, name := range []string{minFlag, maxFlag} {
		d, err := model.ParseDuration(flags[name])
		if err != nil {
			return fmt.Errorf("its --%s is %q", name, flags[name])
		}
		if time.Duration(d) != shippedDuration {
			return fmt.Errorf("a block could be compacted and deleted before it is shipped: --%s=%s and --%s=%s must both be "+
				"%s", minFlag, flags[minFlag], maxFlag, flags[maxFlag], shippedDuration)
		}
	}
	return nil
}

// objectTimeout is the timeout of one read of a profile block in the bucket.
const objectTimeout = 30 * time.Second
