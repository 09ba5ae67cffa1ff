package role

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/internal/store/bucket"
	"github.com/ferula-io/ferula/internal/store/profile"
	"github.com/ferula-io/ferula/internal/store/tsdb"
)

// blockDuration is the duration of shipped blocks. Thanos' compactor requires it.
const blockDuration = 2 * time.Hour

// ShippingOptions configure the upload of blocks to an object store.
type ShippingOptions struct {
	Bucket string // Thanos' object store configuration in YAML; "": no shipping
	// IgnoreBlockSize ships although the TSDB compacts: a block may be compacted and
	// deleted before it is shipped.
	IgnoreBlockSize bool
	Shipper         bucket.ShipOptions // Dir, Labels and Source are set by newShipping
}

// shipping is a bucket and the shippers that upload to it; nil without a bucket.
type shipping struct {
	bucket   objstore.Bucket
	shipper  *bucket.Shipper
	profiles *bucket.ProfileShipper // nil: no profiles are shipped
}

// newShipping opens the bucket and creates the shipper of o; nil without a bucket.
// component is the name of the program in metrics and in the meta.json of blocks.
func newShipping(o ShippingOptions, dir, component string, external func() labels.Labels, logger *slog.Logger, reg *registry) (*shipping, error) {
	if o.Bucket == "" {
		return nil, nil
	}
	logger = logger.With("component", "shipper")
	to, err := bucket.Open([]byte(o.Bucket), component, logger, reg)
	if err != nil {
		return nil, err
	}
	o.Shipper.Dir, o.Shipper.Labels, o.Shipper.Source = dir, external, component
	shipper, err := bucket.NewShipper(to, o.Shipper, logger, reg.own)
	if err != nil {
		return nil, errors.Join(err, to.Close())
	}
	return &shipping{bucket: to, shipper: shipper}, nil
}

// run ships blocks until ctx is canceled.
func (s *shipping) run(ctx context.Context) {
	if s == nil {
		return
	}
	var both sync.WaitGroup
	defer both.Wait()
	if s.profiles != nil {
		both.Go(func() { s.profiles.Run(ctx) })
	}
	s.shipper.Run(ctx)
}

// note returns the lines about shipping in the readiness response. An unavailable bucket
// does not make a server unready: its blocks wait on disk and it can be queried.
func (s *shipping) note() string {
	if s == nil {
		return ""
	}
	status := s.shipper.Status()
	switch {
	case !status.FailingFrom.IsZero():
		return fmt.Sprintf("Shipping fails since %s, blocks waiting: %d. %v\n", status.FailingFrom.UTC().Format(time.RFC3339), status.Waiting, status.Err)
	case status.LastSuccess.IsZero():
		return "Shipping has not begun.\n"
	}
	return fmt.Sprintf("Shipping was done at %s.\n", status.LastSuccess.UTC().Format(time.RFC3339))
}

func (s *shipping) close() error {
	if s == nil {
		return nil
	}
	return s.bucket.Close()
}

// checkServeShipping returns an error if there are no external labels, without which
// blocks of several servers have the same identity, or if a block could be compacted
// and deleted before it is shipped.
func checkServeShipping(o ShippingOptions, store tsdb.Options, external labels.Labels) error {
	if o.Bucket == "" {
		return nil
	}
	var errs []error
	if external.IsEmpty() {
		errs = append(errs, fmt.Errorf("%w: set global.external_labels", bucket.ErrNoLabels))
	}
	if !o.IgnoreBlockSize && (store.MinBlockDuration != blockDuration || store.MaxBlockDuration != blockDuration) {
		errs = append(errs, fmt.Errorf("a block could be compacted and deleted before it is shipped: --storage.tsdb.min-block-duration=%s and --storage.tsdb.max-block-duration=%s must both be %s", store.MinBlockDuration, store.MaxBlockDuration, blockDuration))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("objstore.config: %w", err)
	}
	return nil
}

// newShipping sets up shipping. The configuration must be loaded and the store created.
func (s *Serve) newShipping() error {
	external := func() labels.Labels { return s.config.current().GlobalConfig.ExternalLabels }
	if err := checkServeShipping(s.opts.Ship, s.store.Options(), external()); err != nil {
		return err
	}
	var err error
	s.shipping, err = newShipping(s.opts.Ship, s.opts.Store.Dir, "ferula", external, s.opts.Logger, s.reg)
	s.readiness.note = func() string { return s.shipping.note() + s.profiles.note() }
	if err == nil && s.shipping != nil {
		times := s.opts.Ship.Shipper
		s.shipping.profiles = bucket.NewProfileShipper(s.shipping.bucket, bucket.ProfileShipOptions{
			Dir: filepath.Join(s.profilesDir(), "profiles"), Interval: times.Interval, RetryMin: times.RetryMin, RetryMax: times.RetryMax, Stall: times.Stall,
		}, s.opts.Logger.With("component", "profile shipper"), s.reg.own)
	}
	return err
}

// profilesDir returns the parent of the folder "profiles".
func (s *Serve) profilesDir() string {
	if dir := s.opts.Profiles.Store.Dir; dir != "" {
		return dir
	}
	return s.opts.Store.Dir
}

// objectTimeout is the timeout of one read of a profile block in the bucket.
const objectTimeout = 30 * time.Second

// shippedProfiles implements profile.Remote on the profile blocks in the bucket.
type shippedProfiles struct{ reader *bucket.ProfileReader }

var _ profile.Remote = shippedProfiles{}

// Blocks implements profile.Remote.
func (p shippedProfiles) Blocks(ctx context.Context) ([]profile.RemoteBlock, error) {
	found, err := p.reader.Blocks(ctx)
	if err != nil {
		return nil, err
	}
	blocks := make([]profile.RemoteBlock, len(found))
	for i, b := range found {
		blocks[i] = profile.RemoteBlock(b)
	}
	return blocks, nil
}

// readShipped configures the profile store to read blocks from the bucket that are not
// on disk.
func (s *Serve) readShipped(o *ProfilesOptions) {
	if s.shipping == nil || s.shipping.profiles == nil {
		return
	}
	half := o.BucketCacheBytes / 2
	if half <= 0 {
		half = 128 << 20
	}
	o.Store.Remote = shippedProfiles{bucket.NewProfileReader(s.shipping.bucket, half, objectTimeout)}
	o.Store.RemoteIndexBytes = half
}
