package bucket

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/thanos-io/objstore"
	"golang.org/x/sync/errgroup"

	vfs "github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/metrics"
)

// ErrNoLabels is returned if there are no external labels. External labels distinguish the
// blocks of several servers.
var ErrNoLabels = errors.New("no external labels: they distinguish the blocks of several servers in one bucket")

// ErrOverlap is returned for a compacted block whose time range overlaps another block in
// the bucket with the same external labels.
var ErrOverlap = errors.New("compacted block overlaps a block in the bucket")

// ShipOptions of a Shipper. Zero durations take the defaults.
type ShipOptions struct {
	Dir    string               // directory of the database
	Labels func() labels.Labels // external labels in force
	Source string               // `thanos.source` in meta.json; "": sidecar

	UploadCompacted bool   // also upload blocks of a compaction level above 1
	AllowOutOfOrder bool   // upload later blocks even if an earlier one failed; do not check compacted blocks for overlaps
	SkipCorrupted   bool   // upload the other blocks even if a meta.json cannot be read
	Hashes          bool   // write the SHA-256 of each file to meta.json
	StateFile       string // name of the state file in Dir; "": thanos.shipper.json
	Concurrency     int    // files of a block uploaded concurrently; 0: 1

	Interval time.Duration // pause after a successful sync; 0: 30 s
	RetryMin time.Duration // pause after a failure, doubled after each further one; 0: 2 s
	RetryMax time.Duration // longest pause; 0: 2 min
	Stall    time.Duration // timeout of an upload without progress, and of reading a meta.json; 0: 5 min
	Now      func() time.Time
}

func (o ShipOptions) withDefaults() ShipOptions {
	o.Interval = cmp.Or(o.Interval, 30*time.Second)
	o.RetryMin = cmp.Or(o.RetryMin, 2*time.Second)
	o.RetryMax = cmp.Or(o.RetryMax, 2*time.Minute)
	o.Stall = cmp.Or(o.Stall, 5*time.Minute)
	o.StateFile = cmp.Or(o.StateFile, "thanos.shipper.json")
	o.Source = cmp.Or(o.Source, "sidecar")
	o.Concurrency = cmp.Or(o.Concurrency, 1)
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Shipper uploads the blocks of one directory. Run runs it. Status may be called at any time.
type Shipper struct {
	opts    ShipOptions
	bucket  objstore.Bucket
	logger  *slog.Logger
	metrics shipMetrics

	syncing sync.Mutex  // one Sync at a time
	pending []ulid.ULID // blocks waiting after the last sync; guarded by syncing

	mu     sync.Mutex
	status ShipStatus
}

// ShipStatus is the state of shipping.
type ShipStatus struct {
	LastSuccess time.Time // time of the last successful sync
	FailingFrom time.Time // zero if the last sync succeeded
	Err         error     // of the last sync
	Waiting     int       // blocks waiting for upload
}

// NewShipper returns a shipper. The caller closes the bucket.
func NewShipper(to objstore.Bucket, opts ShipOptions, logger *slog.Logger, set *metrics.Set) (*Shipper, error) {
	opts = opts.withDefaults()
	if opts.Dir == "" || opts.Labels == nil {
		return nil, errors.New("shipping needs a directory and external labels")
	}
	if opts.Concurrency < 0 || opts.StateFile != filepath.Base(opts.StateFile) {
		return nil, fmt.Errorf("shipping: concurrency %d must not be negative, and %q must be a plain file name",
			opts.Concurrency, opts.StateFile)
	}
	return &Shipper{opts: opts, bucket: to, logger: logger, metrics: newShipMetrics(set)}, nil
}

// Status returns the state after the last sync.
func (s *Shipper) Status() ShipStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// Expect records the blocks on disk that wait for upload. It must be called before the
// database opens, because the database then deletes blocks that are older than the retention
// time. The first sync counts each recorded block that was deleted before it was shipped as
// lost. Expect sends no request.
func (s *Shipper) Expect() {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	r := &syncRun{Shipper: s}
	// Errors are ignored: the first sync returns them.
	var err error
	if r.known, err = readState(filepath.Join(s.opts.Dir, s.opts.StateFile)); err != nil {
		return
	}
	blocks, err := listBlocks(s.opts.Dir, func(string, error) {})
	if err != nil {
		return
	}
	r.remain(blocks)
	s.wait(len(s.pending))
}

// wait sets the number of waiting blocks in the status and in the metrics.
func (s *Shipper) wait(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Waiting = n
	s.metrics.waiting.Set(float64(n))
}

// Run syncs the directory periodically until ctx is done. After failures it retries with
// exponential backoff. A block is retried until it is in the bucket or deleted from disk.
func (s *Shipper) Run(ctx context.Context) {
	s.opts.repeat(ctx, s.Sync, func(uploaded int, retry time.Duration, err error) {
		s.logger.Warn("Shipping failed; retrying", "retry_in", retry, "uploaded", uploaded, "waiting", s.Status().Waiting,
			"err", err)
	})
}

// repeat syncs until ctx is done. It pauses for Interval after a success, and for RetryMin to RetryMax after a failure.
func (o ShipOptions) repeat(ctx context.Context, sync func(context.Context) (uploaded int, err error),
	failed func(uploaded int, retry time.Duration, err error)) {
	var retry time.Duration
	for {
		wait := o.Interval
		if n, err := sync(ctx); err != nil && ctx.Err() == nil {
			retry = min(max(2*retry, o.RetryMin), o.RetryMax)
			wait = retry
			failed(n, wait, err)
		} else {
			retry = 0
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// Sync syncs the directory once and uploads new blocks, oldest first.
func (s *Shipper) Sync(ctx context.Context) (uploaded int, err error) {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	round := &syncRun{Shipper: s, labels: s.opts.Labels()}
	err = round.run(ctx)
	now := s.opts.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Err, s.status.Waiting = err, round.waiting
	s.metrics.waiting.Set(float64(round.waiting))
	if err != nil {
		s.metrics.syncFailures.Inc()
		if s.status.FailingFrom.IsZero() {
			s.status.FailingFrom = now
		}
		return round.uploaded, err
	}
	s.metrics.syncs.Inc()
	s.metrics.lastSuccess.Set(float64(now.UnixMilli()) / 1000)
	s.metrics.compactedDone.Set(0)
	if s.opts.UploadCompacted {
		s.metrics.compactedDone.Set(1)
	}
	s.status.LastSuccess, s.status.FailingFrom = now, time.Time{}
	return round.uploaded, nil
}

// syncRun is one sync of the directory.
type syncRun struct {
	*Shipper
	labels    labels.Labels
	shipped   []ulid.ULID // blocks of the directory that this sync has found in the bucket or uploaded
	known     []ulid.ULID // blocks in the state file
	others    []blockMeta // blocks in the bucket with the same external labels; listed for the first compacted block
	listed    bool        // others was read
	waiting   int
	uploaded  int
	undecided []ulid.ULID // deleted from disk; not known whether they are lost
}

// errVanished is returned for a block that was deleted before it was shipped.
var errVanished = errors.New("the block was deleted from disk before it was shipped")

func (r *syncRun) run(ctx context.Context) error {
	if r.labels.IsEmpty() {
		return ErrNoLabels
	}
	statePath := filepath.Join(r.opts.Dir, r.opts.StateFile)
	var err error
	if r.known, err = readState(statePath); err != nil {
		r.logger.Warn("Reading the list of shipped blocks failed; checking the bucket instead", "err", err)
	}
	blocks, errs := r.blocks()
	missed := r.missed(ctx, blocks)
	defer func() { r.remain(blocks) }()
	if len(errs) > 0 && !r.opts.SkipCorrupted {
		r.waiting = r.count(blocks) + len(errs)
		return errors.Join(append(errs, missed)...)
	}
	if missed != nil {
		errs = append(errs, missed)
	}
	r.wait(r.count(blocks)) // an upload may take hours
	for i, m := range blocks {
		if !r.wanted(m) {
			continue
		}
		err := r.ship(ctx, m)
		if errors.Is(err, errVanished) {
			r.undecided = append(r.undecided, m.ID) // the next sync determines whether it is lost
			continue
		}
		if err != nil {
			r.waiting++
			errs = append(errs, fmt.Errorf("block %s: %w", m.ID, err))
			if ctx.Err() != nil || !r.opts.AllowOutOfOrder {
				// A later block would let the compactor compact across the gap.
				r.waiting += r.count(blocks[i+1:])
				break
			}
			continue
		}
		r.shipped = append(r.shipped, m.ID)
		if !slices.Contains(r.known, m.ID) {
			// After each block, so that a restart does not check the uploaded blocks in the bucket again.
			r.remember(statePath)
		}
	}
	if !slices.Equal(r.known, r.shipped) && len(errs) == 0 {
		r.remember(statePath)
	}
	return errors.Join(errs...)
}

// missed counts lost blocks: those that were waiting after the last sync and have been deleted
// from disk since. A deleted block is not lost if it is in the bucket, or if it was compacted
// into a block that will be shipped.
func (r *syncRun) missed(ctx context.Context, blocks []blockMeta) error {
	for i, id := range r.pending {
		if _, err := os.Stat(filepath.Join(r.opts.Dir, id.String())); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if slices.ContainsFunc(blocks, func(m blockMeta) bool { return r.wanted(m) && slices.Contains(m.Sources, id) }) {
			continue
		}
		whole, err := r.whole(ctx, id)
		if err != nil {
			r.undecided = slices.Clone(r.pending[i:]) // checked by the next sync
			return fmt.Errorf("block %s, deleted from disk: %w", id, err)
		}
		if !whole {
			r.metrics.lost.Inc()
			r.logger.Error("A block was deleted from disk before it was shipped", "block", id)
		}
	}
	return nil
}

// remain records which blocks of the directory are still waiting.
func (r *syncRun) remain(blocks []blockMeta) {
	r.pending = slices.Clone(r.undecided)
	for _, m := range blocks {
		if r.wanted(m) && !slices.Contains(r.known, m.ID) && !slices.Contains(r.shipped, m.ID) &&
			!slices.Contains(r.pending, m.ID) {
			r.pending = append(r.pending, m.ID)
		}
	}
}

// remember writes the state file. If that fails, later syncs repeat requests to the bucket.
func (r *syncRun) remember(path string) {
	list := slices.Clone(r.shipped)
	for _, id := range r.known {
		if _, err := os.Stat(filepath.Join(r.opts.Dir, id.String())); err == nil && !slices.Contains(list, id) {
			list = append(list, id)
		}
	}
	if err := writeState(vfs.Disk{}, path, list); err != nil {
		r.logger.Warn("Writing the list of shipped blocks failed", "err", err)
		return
	}
	r.known = list
}

// wanted reports whether a block is to be shipped, or was shipped.
func (r *syncRun) wanted(m blockMeta) bool {
	return slices.Contains(r.known, m.ID) || m.Samples > 0 && (m.Level <= 1 || r.opts.UploadCompacted)
}

func (r *syncRun) count(blocks []blockMeta) (n int) {
	for _, m := range blocks {
		if r.wanted(m) && !slices.Contains(r.known, m.ID) {
			n++
		}
	}
	return n
}

// blocks lists the blocks of the directory by time, and the errors of blocks whose meta.json cannot
// be read. A block that is deleted during the call is in neither list.
func (r *syncRun) blocks() (blocks []blockMeta, errs []error) {
	blocks, err := listBlocks(r.opts.Dir, func(name string, err error) {
		r.metrics.corrupted.Inc()
		errs = append(errs, fmt.Errorf("block %s: %w", name, err))
		r.logger.Error("A block cannot be shipped", "block", name, "err", err)
	})
	if err != nil {
		errs = append(errs, err)
	}
	return blocks, errs
}

// listBlocks lists the blocks of a directory by time. It calls unreadable for those whose
// meta.json cannot be read.
func listBlocks(dir string, unreadable func(name string, err error)) (blocks []blockMeta, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if _, err := ulid.ParseStrict(entry.Name()); err != nil || !entry.IsDir() {
			continue
		}
		dir := filepath.Join(dir, entry.Name())
		m, err := readMeta(dir)
		if _, gone := os.Stat(dir); err != nil && errors.Is(gone, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			unreadable(entry.Name(), err)
			continue
		}
		blocks = append(blocks, m)
	}
	slices.SortFunc(blocks, func(a, b blockMeta) int {
		return cmp.Or(cmp.Compare(a.MinMS, b.MinMS), a.ID.Compare(b.ID))
	})
	return blocks, nil
}

// ship uploads a block unless it is in the bucket.
func (r *syncRun) ship(ctx context.Context, m blockMeta) error {
	if slices.Contains(r.known, m.ID) {
		return nil // if it is no longer in the bucket, the compactor has replaced it
	}
	if whole, err := r.whole(ctx, m.ID); err != nil || whole {
		return err
	}
	if m.Level > 1 && !r.opts.AllowOutOfOrder {
		if err := r.checkOverlap(ctx, m); err != nil {
			return err
		}
	}
	if m.Tombstones > 0 {
		r.logger.Warn("Tombstones of a block are ignored: its deleted samples are shipped", "block", m.ID)
	}
	begun := r.opts.Now()
	n, err := r.upload(ctx, m.ID)
	if _, gone := os.Stat(filepath.Join(r.opts.Dir, m.ID.String())); err != nil && errors.Is(err, fs.ErrNotExist) &&
		errors.Is(gone, fs.ErrNotExist) {
		return errVanished
	}
	if err != nil {
		r.metrics.uploadFailures.Inc()
		return err
	}
	r.uploaded++
	r.metrics.uploads.Inc()
	r.logger.Info("Shipped a block", "block", m.ID, "bytes", n, "took", r.opts.Now().Sub(begun))
	return nil
}

// whole reports whether the bucket has a block: its meta.json, and all files that meta.json lists.
// If meta.json lists no files, the block must have an index. A meta.json alone is not enough: some
// stores keep a part of an interrupted upload.
func (r *syncRun) whole(ctx context.Context, id ulid.ULID) (bool, error) {
	m, err := r.remoteMeta(ctx, id)
	if errors.Is(err, ErrCorrupt) {
		r.logger.Warn("The bucket has an incomplete upload of a block; uploading again", "block", id, "err", err)
		return false, nil
	}
	if err != nil || m == nil {
		return false, err
	}
	if marked, err := r.bucket.Exists(ctx, path.Join(id.String(), MarkFile)); err != nil || marked {
		return marked, err // marked: the block was complete once; some of its files may already be deleted
	}
	files := m.files
	if len(files) == 0 {
		files = []blockFile{{name: indexFile}}
	}
	for _, f := range files {
		if f.name == metaFile {
			continue
		}
		if err := r.checkFile(ctx, id, f); errors.Is(err, ErrCorrupt) {
			r.logger.Warn("The bucket has an incomplete upload of a block; uploading again", "block", id, "err", err)
			return false, nil
		} else if err != nil {
			return false, err
		}
	}
	return true, nil
}

// checkFile returns ErrCorrupt if the bucket does not have file f of a block, or has it with
// another size.
func (r *syncRun) checkFile(ctx context.Context, id ulid.ULID, f blockFile) error {
	attributes, err := r.bucket.Attributes(ctx, path.Join(id.String(), f.name))
	switch {
	case err != nil && r.bucket.IsObjNotFoundErr(err):
		return fmt.Errorf("%w: the bucket has no %s", ErrCorrupt, f.name)
	case err != nil:
		return fmt.Errorf("%s: %w", f.name, err)
	case f.size > 0 && attributes.Size != f.size:
		return fmt.Errorf("%w: %s has %d bytes in the bucket, not %d", ErrCorrupt, f.name, attributes.Size, f.size)
	}
	return nil
}

// remoteMeta reads a block's meta.json from the bucket; nil if it does not exist. It returns an
// error if the requests take longer than Stall.
func (r *syncRun) remoteMeta(ctx context.Context, id ulid.ULID) (*blockMeta, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.opts.Stall, errStalled)
	defer cancel()
	name := path.Join(id.String(), metaFile)
	there, err := r.bucket.Exists(ctx, name)
	if err != nil || !there {
		return nil, err
	}
	body, err := r.bucket.Get(ctx, name)
	if err != nil {
		if r.bucket.IsObjNotFoundErr(err) {
			return nil, nil
		}
		return nil, err
	}
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(body, MetaBytesMax))
	if err != nil {
		return nil, err
	}
	m, err := parseMeta(text)
	if err == nil && m.ID != id {
		err = fmt.Errorf("%w: names block %s", ErrCorrupt, m.ID)
	}
	if err != nil {
		return nil, err
	}
	return &m, nil
}

// checkOverlap returns ErrOverlap if the time range of a compacted block overlaps that of
// another block in the bucket with the same external labels. Most likely the other block is a
// source of the compacted block.
func (r *syncRun) checkOverlap(ctx context.Context, m blockMeta) error {
	if !r.listed {
		err := r.bucket.Iter(ctx, "", func(name string) error {
			id, err := ulid.ParseStrict(path.Base(name))
			if err != nil {
				return nil
			}
			other, err := r.remoteMeta(ctx, id)
			if err != nil && !errors.Is(err, ErrCorrupt) {
				return err
			}
			if other != nil && labels.Equal(other.Labels, r.labels) {
				r.others = append(r.others, *other)
			}
			return nil
		})
		if err != nil {
			r.others = nil
			return fmt.Errorf("list the bucket: %w", err)
		}
		r.listed = true
	}
	for _, other := range r.others {
		if other.ID != m.ID && other.MinMS < m.MaxMS && m.MinMS < other.MaxMS {
			return fmt.Errorf("%w: block %s", ErrOverlap, other.ID)
		}
	}
	return nil
}

// upload uploads every file of a block and replaces objects of an earlier attempt. It checks
// the sizes of the objects and uploads meta.json last.
func (r *syncRun) upload(ctx context.Context, id ulid.ULID) (bytesSent int64, err error) {
	v, err := openView(filepath.Join(r.opts.Dir, id.String()))
	if err != nil {
		return 0, err
	}
	defer v.close()
	if r.opts.Hashes {
		if err := v.addHashes(ctx); err != nil {
			return 0, err
		}
	}
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(r.opts.Concurrency)
	for _, f := range v.files {
		group.Go(func() error {
			if err := r.put(inner, path.Join(id.String(), f.name), f.file, f.size); err != nil {
				return err
			}
			return r.checkFile(inner, id, f.blockFile)
		})
		bytesSent += f.size
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	text, err := v.meta.encode(r.labels, r.opts.Source, v.list(), r.opts.Now())
	if err != nil {
		return 0, err
	}
	return bytesSent, r.put(ctx, path.Join(id.String(), metaFile), bytes.NewReader(text), int64(len(text)))
}

func (r *syncRun) put(ctx context.Context, name string, from io.ReaderAt, size int64) error {
	err := send(ctx, from, size, r.opts.Stall, func(ctx context.Context, body io.Reader) error {
		return r.bucket.Upload(ctx, name, body)
	})
	if err != nil {
		return fmt.Errorf("upload %s: %w", name, err)
	}
	r.metrics.bytes.AddInt64(size)
	return nil
}
