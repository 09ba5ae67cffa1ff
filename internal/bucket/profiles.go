package bucket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/metrics"
)

// spansFile is a file of a profile block that exists only if samples belong to spans of
// traces.
const spansFile = "spans"

// profileFiles are the files of every profile block in upload order: the index is last, because
// a block without its index is not listed. spansFile is uploaded before the index.
var profileFiles = []string{"profiles.parquet", indexFile}

// ProfileShipper uploads profile blocks into a directory for each tenant. It uploads compacted
// blocks as well as their parents. A compacted block lists its parents, and readers of the bucket
// skip the listed parents.
type ProfileShipper struct {
	opts    ShipOptions
	skip    func(tenant string, id ulid.ULID) (bool, error) // nil: no block is skipped
	store   *ProfileStore
	logger  *slog.Logger
	known   map[string]bool // blocks in the bucket, by directory
	uploads *metrics.Counter
	failed  *metrics.Counter
	waiting *metrics.Gauge
}

// NewProfileShipper returns a shipper of opts.Dir, which has a directory for each tenant with a directory for each
// block. Of the other options it needs only the durations. The caller closes the bucket.
func NewProfileShipper(to objstore.Bucket, opts ShipOptions, logger *slog.Logger, set *metrics.Set) *ProfileShipper {
	opts = opts.withDefaults()
	return &ProfileShipper{
		opts:    opts,
		store:   &ProfileStore{bucket: to, timeout: profileReadTimeout, stall: opts.Stall},
		logger:  logger,
		known:   map[string]bool{},
		uploads: process.Counter(set, "ferula_profiles_shipper_uploads_total", "Number of profile blocks uploaded."),
		failed: process.Counter(set, "ferula_profiles_shipper_failures_total",
			"Number of failed syncs of the directory of profile blocks."),
		waiting: process.Gauge(set, "ferula_profiles_shipper_blocks_waiting",
			"Number of profile blocks waiting for upload.", nil),
	}
}

// SkipReplaced sets the function that reports whether another block in the bucket has the rows of a
// block. If it has, the block is not uploaded. If the function returns an error, the next sync tries
// again. Call it before Run.
func (s *ProfileShipper) SkipReplaced(replaced func(tenant string, id ulid.ULID) (bool, error)) {
	s.skip = replaced
}

// Run syncs the directory periodically until ctx is done. After failures it retries with exponential backoff.
func (s *ProfileShipper) Run(ctx context.Context) {
	s.opts.repeat(ctx, s.Sync, func(_ int, retry time.Duration, err error) {
		s.failed.Inc()
		s.logger.Warn("Shipping profiles failed; retrying", "retry_in", retry, "err", err)
	})
}

// Sync syncs the directory once and uploads new blocks. If the upload of a block fails, Sync goes on
// with the other blocks.
func (s *ProfileShipper) Sync(ctx context.Context) (uploaded int, err error) {
	blocks, err := s.blocks()
	if err != nil {
		return 0, err
	}
	var errs []error
	waiting := 0
	for _, b := range blocks {
		if s.known[b.name] {
			continue
		}
		if s.skip != nil {
			replaced, err := s.skip(b.tenant, b.id)
			if err != nil { // the bucket was not listed yet; its reader logs failures
				waiting++
				continue
			}
			if replaced {
				s.known[b.name] = true
				continue
			}
		}
		sent, err := s.ship(ctx, b)
		if errors.Is(err, errVanished) {
			continue // compacted, or removed by retention, which the store counts
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("profile block %s: %w", b.name, err))
			waiting++
			continue
		}
		s.known[b.name] = true
		if sent {
			uploaded++
			s.uploads.Inc()
			s.logger.Info("Shipped a profile block", "block", b.name)
		}
	}
	s.waiting.Set(float64(waiting))
	s.forget(blocks)
	return uploaded, errors.Join(errs...)
}

// profileBlock is a block on disk and its directory in the bucket.
type profileBlock struct {
	dir, name string
	tenant    string
	id        ulid.ULID
}

// forget drops blocks that are not on disk any more.
func (s *ProfileShipper) forget(blocks []profileBlock) {
	maps.DeleteFunc(s.known, func(name string, _ bool) bool {
		return !slices.ContainsFunc(blocks, func(b profileBlock) bool { return b.name == name })
	})
}

// blocks lists the blocks on disk, oldest first within each tenant.
func (s *ProfileShipper) blocks() ([]profileBlock, error) {
	tenants, err := os.ReadDir(s.opts.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // no profile was pushed yet
	}
	if err != nil {
		return nil, err
	}
	var found []profileBlock
	for _, tenant := range tenants {
		name, ok := profiles.TenantOfDir(tenant.Name())
		if !ok || !tenant.IsDir() {
			continue
		}
		entries, err := os.ReadDir(filepath.Join(s.opts.Dir, tenant.Name()))
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if id, err := ulid.ParseStrict(e.Name()); err == nil && e.IsDir() {
				found = append(found, profileBlock{filepath.Join(s.opts.Dir, tenant.Name(), e.Name()),
					ProfileBlock(profiles.TenantDir(name), id), name, id})
			}
		}
	}
	return found, nil
}

// ship uploads all files of a block, unless the bucket has each of them with the same size.
// sent reports whether it has uploaded them.
func (s *ProfileShipper) ship(ctx context.Context, b profileBlock) (sent bool, err error) {
	v := &view{}
	defer v.close()
	if err := v.openProfile(b.dir); err != nil {
		if _, gone := os.Stat(b.dir); errors.Is(gone, fs.ErrNotExist) {
			return false, errVanished
		}
		return false, err
	}
	to, whole := &StoredProfile{Tenant: b.tenant, ID: b.id}, true
	for _, f := range v.files {
		attributes, err := s.store.attributes(ctx, path.Join(b.name, f.name))
		if err != nil && !s.store.IsNotFound(err) {
			return false, err
		}
		whole = whole && err == nil && attributes.Size == f.size
	}
	if whole {
		return false, nil
	}
	return true, s.store.send(ctx, to, v)
}
