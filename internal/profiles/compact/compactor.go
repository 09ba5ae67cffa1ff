// Package compact compacts and deletes the profile blocks of a bucket.
//
// An iteration lists the bucket and does this for each tenant:
//
//	compact   the blocks of a day are merged, and blocks that have profiles in common
//	mark      replaced and expired blocks get a deletion mark, as in Thanos
//	delete    a marked block is deleted after DeleteDelay, if the reason for the mark still holds
//	clean     the remains of interrupted uploads and deletions are deleted
//
// The iteration ends by writing an index of all blocks, which readers use when they start.
//
// The bucket is the only state: if a process is killed, the next one continues its work. A block is
// never overwritten. A new block has a ULID of its own and lists its parents. From these lists every
// reader computes which blocks have the same rows (block.Lineage). Two compactors that run at the same
// time therefore repeat work, but no profile is lost or counted twice.
package compact

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/internal/bucket"
	"github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/internal/profiles/block"
	profilestore "github.com/ferula-io/ferula/internal/profiles/store"
	"github.com/ferula-io/ferula/metrics"
)

// Options of a Compactor.
type Options struct {
	Dir         string        // local directory for blocks that are being merged
	Consistency time.Duration // time from the end of a day to the compaction of its blocks; 0: 30 h
	DeleteDelay time.Duration // time from the deletion mark to the deletion; negative: deleted once marked; 0: 48 h
	Retention   time.Duration // age of the newest profile at which a block is deleted; 0: no limit
	BlockBytes  int64         // maximum total size of the blocks of a day that are merged into one; 0: 512 MiB
	Now         func() time.Time
}

const (
	daySpan    = 24 * time.Hour
	partialAge = 48 * time.Hour // age at which incomplete blocks are deleted
	skewMax    = time.Hour      // a mark whose time is further in the future was written with a wrong clock
	// parentsMax limits the parents of a block, so that the first block.HeadBytes of its index contain the whole meta.
	parentsMax = 4000
	readsMax   = 16 // concurrent reads of metas
	groupDir   = "group-"
)

func (o Options) withDefaults() Options {
	o.Consistency = cmp.Or(o.Consistency, 30*time.Hour)
	o.DeleteDelay = cmp.Or(o.DeleteDelay, 48*time.Hour)
	o.BlockBytes = cmp.Or(o.BlockBytes, 512<<20)
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Compactor compacts and deletes profile blocks. It is not safe for concurrent use.
type Compactor struct {
	opts    Options
	store   *bucket.ProfileStore
	logger  *slog.Logger
	metrics compactMetrics
	locked  io.Closer
	known   map[ulid.ULID]*stored // complete blocks of the last list
	corrupt map[ulid.ULID]bool    // blocks that could not be merged
	indexed map[ulid.ULID]bool    // blocks of the index of the bucket; nil: not written yet

	indexMax int64 // limit of the total size of the indexes of blocks that are merged into one
}

// stored is a complete block in the bucket.
type stored struct {
	*bucket.StoredProfile
	meta  block.Meta
	bytes int64  // size of index and rows
	head  []byte // beginning of the index, with the meta
}

func (s *stored) indexBytes() int64 { return s.bytes - int64(s.meta.RowsBytes) }

// New creates the directory of o, locks it and removes the files of an earlier process from it. The
// caller closes the bucket.
func New(in objstore.Bucket, o Options, logger *slog.Logger, set *metrics.Set) (*Compactor, error) {
	c := &Compactor{
		opts: o.withDefaults(), store: bucket.NewProfileStore(in), logger: logger, metrics: newCompactMetrics(set),
		known: map[ulid.ULID]*stored{}, corrupt: map[ulid.ULID]bool{}, indexMax: block.IndexMax,
	}
	if err := os.MkdirAll(c.opts.Dir, 0o755); err != nil {
		return nil, err
	}
	var err error
	if c.locked, err = files.LockDir(c.opts.Dir); err != nil {
		return nil, err
	}
	left, err := fs.Glob(os.DirFS(c.opts.Dir), groupDir+"*") // the directory's name is not a pattern
	for _, name := range left {
		err = errors.Join(err, os.RemoveAll(filepath.Join(c.opts.Dir, name)))
	}
	if err != nil {
		return nil, errors.Join(err, c.locked.Close())
	}
	return c, nil
}

// Close unlocks the directory.
func (c *Compactor) Close() error { return c.locked.Close() }

// Iterate compacts, marks and deletes the blocks of all tenants once. A tenant that fails does not stop
// the others.
func (c *Compactor) Iterate(ctx context.Context) error {
	err := c.iterate(ctx)
	if err == nil {
		c.metrics.iterations.Inc()
		c.metrics.lastSuccess.Set(float64(c.opts.Now().Unix()))
		c.logger.Info("Iteration ended", "blocks", len(c.known), "skipped", c.metrics.broken.Get())
	}
	return err
}

func (c *Compactor) iterate(ctx context.Context) error {
	listed, err := c.store.List(ctx)
	if err != nil {
		return err
	}
	tenants := map[string][]*bucket.StoredProfile{}
	for _, s := range listed {
		tenants[s.Tenant] = append(tenants[s.Tenant], s)
	}
	seen, broken := map[ulid.ULID]*stored{}, 0
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(tenants)) {
		t := &tenant{Compactor: c, name: name}
		if err := t.iterate(ctx, tenants[name]); err != nil {
			errs = append(errs, fmt.Errorf("profiles of tenant %s: %w", name, err))
		}
		for _, s := range t.blocks {
			seen[s.ID] = s
		}
		broken += len(t.broken)
		if ctx.Err() != nil {
			return errors.Join(errs...)
		}
	}
	c.known = seen
	maps.DeleteFunc(c.corrupt, func(id ulid.ULID, _ bool) bool { return seen[id] == nil })
	c.metrics.broken.Set(float64(broken + len(c.corrupt)))
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	return c.writeIndex(ctx)
}

// writeIndex writes the index of the bucket, if the blocks have changed since the last time.
func (c *Compactor) writeIndex(ctx context.Context) error {
	ids := make(map[ulid.ULID]bool, len(c.known))
	entries := make([]bucket.ProfileEntry, 0, len(c.known))
	for _, id := range slices.SortedFunc(maps.Keys(c.known), ulid.ULID.Compare) {
		s := c.known[id]
		ids[id] = true
		entries = append(entries, bucket.ProfileEntry{Tenant: s.Tenant, ID: id, IndexBytes: s.indexBytes(),
			RowsBytes: int64(s.meta.RowsBytes), Head: s.head})
	}
	if len(ids) == 0 || maps.Equal(ids, c.indexed) {
		return nil
	}
	if err := c.store.WriteIndex(ctx, entries); err != nil {
		return err
	}
	c.indexed = ids
	return nil
}

// tenant is one iteration over the blocks of a tenant.
type tenant struct {
	*Compactor
	name    string
	blocks  []*stored // complete
	broken  []*brokenBlock
	partial []*bucket.StoredProfile // without index or rows
	lineage block.Lineage
}

// brokenBlock is a block whose index cannot be read completely.
type brokenBlock struct {
	*bucket.StoredProfile
	meta *block.Meta // nil: it cannot be read
	err  error
}

// iterate compacts, marks and deletes the blocks of the tenant. Blocks are marked and deleted even if a compaction
// fails, because the retention must also apply while the local disk is full.
func (t *tenant) iterate(ctx context.Context, listed []*bucket.StoredProfile) error {
	if err := t.load(ctx, listed); err != nil {
		return err
	}
	failed := t.compactAll(ctx)
	if ctx.Err() != nil {
		return failed
	}
	t.relate() // compact has removed blocks from t.blocks that another process deleted
	err := t.mark(ctx)
	if err == nil {
		err = t.clean(ctx)
	}
	return errors.Join(failed, err)
}

// compactAll merges blocks until there are no groups, or a merge fails.
func (t *tenant) compactAll(ctx context.Context) error {
	for again := true; again; {
		t.relate()
		again = false
		for _, g := range t.plan() {
			changed, err := t.compact(ctx, g)
			if err != nil {
				return err
			}
			again = again || changed
		}
	}
	return nil
}

// relate computes which blocks have the same rows.
func (t *tenant) relate() {
	metas := make([]*block.Meta, len(t.blocks))
	for i, s := range t.blocks {
		metas[i] = &s.meta
	}
	t.lineage = block.LineageOf(metas)
}

// expired reports whether a block is beyond the retention time.
func (t *tenant) expired(m *block.Meta) bool {
	return t.opts.Retention > 0 && m.MaxNS < t.opts.Now().Add(-t.opts.Retention).UnixNano()
}

// fresh reports whether the server that wrote a block may still compact it itself: maxNS is less than
// Options.Consistency ago. maxNS is the end of the block's day, or the time of the block's newest profile if that is
// later.
func (t *tenant) fresh(maxNS int64) bool {
	return maxNS >= t.opts.Now().Add(-t.opts.Consistency).UnixNano()
}

// group is a number of blocks to be merged.
type group struct {
	blocks   []*stored
	vertical bool // the blocks have profiles in common
}

// plan returns the groups of blocks to be merged. The blocks of a group have profiles in common, or they are blocks
// of a day that is older than Options.Consistency, of together at most Options.BlockBytes.
func (t *tenant) plan() (groups []group) {
	byID := map[ulid.ULID]*stored{}
	for _, s := range t.blocks {
		if !t.lineage.Replaced[s.ID] && !t.expired(&s.meta) && !s.Marked() && !t.corrupt[s.ID] {
			byID[s.ID] = s
		}
	}
	for _, metas := range t.lineage.Overlapping {
		var g []*stored
		for _, m := range metas {
			if s := byID[m.ULID]; s != nil {
				g = append(g, s)
				delete(byID, m.ULID)
			}
		}
		if g = t.fitting(sorted(g)); len(g) > 1 {
			groups = append(groups, group{g, true})
		}
	}
	days := map[int64][]*stored{}
	for _, s := range byID {
		day := floorDay(s.meta.MinNS)
		if !t.fresh(max(s.meta.MaxNS, (day+1)*int64(daySpan))) {
			days[day] = append(days[day], s)
		}
	}
	for _, day := range slices.Sorted(maps.Keys(days)) {
		groups = append(groups, divide(sorted(days[day]), t.opts.BlockBytes, t.indexMax)...)
	}
	t.metrics.todo.Set(float64(len(groups)))
	return groups
}

// floorDay returns the number of the UTC day of a timestamp in ns; day 0 is 1970-01-01.
func floorDay(ns int64) int64 {
	day := ns / int64(daySpan)
	if ns%int64(daySpan) < 0 {
		day--
	}
	return day
}

func sorted(all []*stored) []*stored {
	slices.SortFunc(all, func(a, b *stored) int {
		return cmp.Or(cmp.Compare(a.meta.MinNS, b.meta.MinNS), a.ID.Compare(b.ID))
	})
	return all
}

// fitting returns the blocks of all that can be merged into one block. It adds them one after the other, and leaves
// out a block that would give the merged block more than parentsMax parents or an index of more than t.indexMax bytes.
func (t *tenant) fitting(all []*stored) (fit []*stored) {
	parents, index := map[[16]byte]bool{}, int64(0)
	for _, s := range all {
		more := 0
		for _, id := range append([][16]byte{s.ID}, s.meta.Parents...) {
			if !parents[id] {
				more++
			}
		}
		if len(parents)+more > parentsMax || index+s.indexBytes() > t.indexMax {
			t.logger.Warn("A profile block is not merged with the blocks that have the same profiles: "+
				"too many parents or too large an index",
				"block", s.Name(), "parents", len(s.meta.Parents), "index_bytes", s.indexBytes())
			continue
		}
		for _, id := range append([][16]byte{s.ID}, s.meta.Parents...) {
			parents[id] = true
		}
		fit, index = append(fit, s), index+s.indexBytes()
	}
	return fit
}

// divide divides blocks, sorted by start, into groups of at most bytesMax bytes, indexMax bytes of indexes and one day.
func divide(all []*stored, bytesMax, indexMax int64) (groups []group) {
	var run []*stored
	end := func() {
		if len(run) > 1 {
			groups = append(groups, group{blocks: run})
		}
		run = nil
	}
	var bytes, index, maxNS int64
	parents := 0
	for _, s := range all {
		more := 1 + len(s.meta.Parents)
		if len(run) > 0 && (bytes+s.bytes > bytesMax || index+s.indexBytes() > indexMax ||
			max(maxNS, s.meta.MaxNS)-run[0].meta.MinNS > int64(daySpan) || parents+more > parentsMax) {
			end()
		}
		if len(run) == 0 {
			bytes, index, maxNS, parents = 0, 0, s.meta.MaxNS, 0
		}
		run, bytes, maxNS, parents = append(run, s), bytes+s.bytes, max(maxNS, s.meta.MaxNS), parents+more
		index += s.indexBytes()
	}
	end()
	return groups
}

// Reasons of deletion marks: values of the label reason of thanos_compact_blocks_marked_total, and of details in a
// mark.
const (
	replacedReason = profilestore.MarkReplaced
	expiredReason  = "retention"
)

// reason returns why a block is to be deleted; "" if it is not.
func (t *tenant) reason(s *stored) string {
	switch {
	case t.expired(&s.meta):
		return expiredReason
	case t.lineage.Replaced[s.ID]:
		return replacedReason
	}
	return ""
}

// mark marks the blocks that are to be deleted, and deletes the blocks whose marks are older than
// Options.DeleteDelay. It removes a mark whose details are replacedReason or expiredReason if the block is neither
// replaced nor expired any more. It obeys a mark with other details, such as a mark written by hand.
//
// An error of one block does not stop mark, because a mark that cannot be read must not end the retention of the
// tenant. After failuresMax errors mark stops, because the bucket itself probably fails.
func (t *tenant) mark(ctx context.Context) error {
	var kept []*stored
	var errs []error
	for i, s := range t.blocks {
		deleted, err := t.markBlock(ctx, s)
		if !deleted {
			kept = append(kept, s)
		}
		if err == nil {
			continue
		}
		if errs = append(errs, err); ctx.Err() != nil || len(errs) == failuresMax {
			kept = append(kept, t.blocks[i+1:]...)
			break
		}
	}
	t.blocks = kept
	return errors.Join(errs...)
}

// failuresMax is the limit of the blocks of a tenant whose marking or deletion fails in one iteration.
const failuresMax = 16

// markBlock marks one block, removes its mark, or deletes it, by the rules of mark.
func (t *tenant) markBlock(ctx context.Context, s *stored) (deleted bool, err error) {
	reason := t.reason(s)
	if reason == "" && !s.Marked() {
		return false, nil
	}
	var mark bucket.DeletionMark
	if s.Marked() {
		mark, err = t.store.ReadMark(ctx, s.StoredProfile)
		switch {
		case t.store.IsNotFound(err), errors.Is(err, bucket.ErrCorrupt) && reason != "":
			mark = bucket.DeletionMark{} // the mark is written again
		case errors.Is(err, bucket.ErrCorrupt):
			t.logger.Warn("Ignoring an invalid deletion mark", "block", s.Name(), "err", err)
			return false, nil
		case err != nil:
			return false, err
		}
	}
	own := mark.Details == replacedReason || mark.Details == expiredReason
	if own && reason != "" && time.Unix(mark.DeletionTime, 0).Sub(t.opts.Now()) > skewMax {
		mark = bucket.DeletionMark{} // the mark is written again: otherwise the block would not be deleted before that time
	}
	switch {
	case mark.DeletionTime == 0 && reason == "":
		return false, nil
	case mark.DeletionTime == 0:
		if mark, err = t.store.Mark(ctx, s.Tenant, s.ID, t.opts.Now(), reason); err != nil {
			return false, err
		}
		t.metrics.marked.With(bucket.MarkFile, reason).Inc()
		t.logger.Info("Marked a profile block for deletion", "block", s.Name(), "reason", reason)
	case reason == "" && own:
		t.logger.Warn("Removing a deletion mark: its reason is gone", "block", s.Name(), "reason", mark.Details)
		return false, t.store.Unmark(ctx, s.Tenant, s.ID)
	}
	if t.opts.Now().Sub(time.Unix(mark.DeletionTime, 0)) < t.opts.DeleteDelay {
		return false, nil
	}
	return t.delete(ctx, s.StoredProfile, reason)
}

func (t *tenant) delete(ctx context.Context, s *bucket.StoredProfile, reason string) (bool, error) {
	if err := t.store.Delete(ctx, s.Tenant, s.ID); err != nil {
		t.metrics.cleanFailures.Inc()
		return false, err
	}
	t.metrics.cleaned.Inc()
	t.logger.Info("Deleted a profile block", "block", s.Name(), "reason", reason)
	return true, nil
}

// clean deletes incomplete blocks. It deletes a block that has a mark and no index at once, because the deletion of the
// block was interrupted. It deletes other incomplete blocks after partialAge. It treats a broken block as incomplete
// if each of its parents is in the bucket, or is a parent of a complete block in the bucket: then no profile is lost.
func (t *tenant) clean(ctx context.Context) error {
	whole := map[[16]byte]bool{}
	for _, s := range t.blocks {
		whole[s.ID] = true
		for _, parent := range s.meta.Parents {
			whole[parent] = true
		}
	}
	for _, s := range t.partial {
		if s.Marked() && !s.HasIndex() {
			if _, err := t.delete(ctx, s, "deletion was interrupted"); err != nil {
				return err
			}
		} else if err := t.deleteOld(ctx, s); err != nil {
			return err
		}
	}
	for _, b := range t.broken {
		t.logger.Warn("Skipping a profile block", "block", b.Name(), "err", b.err)
		if b.meta == nil || len(b.meta.Parents) == 0 || slices.ContainsFunc(b.meta.Parents, func(id [16]byte) bool {
			return !whole[id]
		}) {
			continue
		}
		if err := t.deleteOld(ctx, b.StoredProfile); err != nil {
			return err
		}
	}
	return nil
}

// deleteOld deletes an incomplete block that was not changed for partialAge.
func (t *tenant) deleteOld(ctx context.Context, s *bucket.StoredProfile) error {
	modified, err := t.store.Modified(ctx, s)
	if err != nil || modified.IsZero() {
		return err
	}
	if t.opts.Now().Sub(modified) < partialAge {
		t.logger.Warn("Skipping a profile block whose upload is incomplete", "block", s.Name(), "modified", modified)
		return nil
	}
	t.metrics.partialDeleted.Inc()
	_, err = t.delete(ctx, s, "upload was interrupted")
	return err
}
