package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/oklog/ulid/v2"
	"golang.org/x/sync/errgroup"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
)

// Remote stores blocks in addition to the disk. It is safe for concurrent use.
type Remote interface {
	// Blocks lists the complete blocks of all tenants.
	Blocks(ctx context.Context) ([]profiles.BucketBlock, error)
	// Mark marks a block for deletion. Other processes read the mark.
	Mark(ctx context.Context, tenant string, id ulid.ULID, at time.Time, reason string) error
	// Unmark removes the mark of a block. It is no error if there is none.
	Unmark(ctx context.Context, tenant string, id ulid.ULID) error
	// Delete deletes a block. It is no error if the block does not exist.
	Delete(ctx context.Context, tenant string, id ulid.ULID) error
}

const (
	remoteMax    = 100_000 // blocks of all tenants
	remoteAtOnce = 8       // indexes read at once
	listTimeout  = 5 * time.Minute
)

// remotes lists the blocks of a Remote and caches open blocks. It has the meta of every
// block, read from the beginning of the block's index. A view reads the whole index on
// demand.
type remotes struct {
	store *Store

	listing sync.Mutex                            // one refresh or clean at a time; taken before mu
	all     map[string]map[ulid.ULID]*remoteBlock // also blocks beyond the retention; guarded by listing

	mu      sync.Mutex
	blocks  map[string]*remoteList // by tenant; replaced as a whole
	lists   int                    // number of lists so far
	listErr error                  // set until the first successful list
	open    []*remoteBlock         // blocks with a reader; least recently used first
	bytes   int64                  // size of the indexes of the open blocks
}

// remoteList are the listed blocks of one tenant that queries may read. It does not change.
type remoteList struct {
	blocks     map[ulid.ULID]*remoteBlock
	duplicates map[[16]byte][][16]byte // as block.Lineage
	overlaps   map[ulid.ULID]bool      // blocks that have rows in common with others, none of which is replaced
	marked     map[ulid.ULID]bool      // blocks that are not read because they were marked for deletion a while ago
}

type remoteBlock struct {
	profiles.BucketBlock
	meta block.Meta
	bad  error // why meta could not be read

	// listed is set while the sizes and the meta come from the index of the bucket and were not compared with the files.
	listed   atomic.Pointer[listedHead]
	doubtful atomic.Bool // the files differ from the sizes or from the meta: the next list reads them again

	// Guarded by remotes.listing, as are Marked, MarkReason and MarkUnread:
	leaving time.Time // since when the block is to be deleted; zero: it is not
	reason  string    // why the block is to be deleted: MarkReplaced or MarkExpired; "": it is not
	// after one of the lists there was no reason to delete the block: from then on leave ignores older marks
	kept bool

	opening sync.Mutex
	held    *heldBlock // nil: not open; guarded by remotes.mu
}

// errUnread is the error of a block whose meta was not read before its list was cancelled. The next
// list reads the meta.
var errUnread = errors.New("its meta was not read in time")

// listedHead is the length and the checksum of a BucketBlock.Head that comes from the index of the bucket. When the
// whole index of the block is read, its beginning is compared with them.
type listedHead struct {
	bytes int
	sum   uint64
}

// of reports whether an index has this beginning.
func (h *listedHead) of(index []byte) bool {
	return len(index) >= h.bytes && xxhash.Sum64(index[:h.bytes]) == h.sum
}

func newRemotes(s *Store) *remotes {
	return &remotes{store: s, listErr: errors.New("not listed yet")}
}

// run lists the blocks periodically until ctx is done. After each list it deletes the blocks
// that are due.
func (r *remotes) run(ctx context.Context) {
	for {
		wait := r.store.opts.RemoteEvery
		if err := r.refresh(ctx); err == nil {
			r.clean(ctx)
		} else if ctx.Err() == nil {
			wait = min(wait, 15*time.Second)
			r.store.logger.Warn("Listing profile blocks in the bucket failed", "retry_in", wait, "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// refresh lists the blocks and reads the meta of new ones. Metas that were read before a
// failure are not read again.
func (r *remotes) refresh(ctx context.Context) error {
	r.listing.Lock()
	defer r.listing.Unlock()
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	listed, err := r.store.opts.Remote.Blocks(ctx)
	if err == nil && len(listed) > remoteMax {
		err = fmt.Errorf("%w: there are %d blocks, more than %d", profiles.ErrLimit, len(listed), remoteMax)
	}
	r.mu.Lock()
	if err != nil && r.blocks == nil {
		r.listErr = err
	}
	r.mu.Unlock()
	if err != nil {
		return err
	}
	old, found := r.all, map[string]map[ulid.ULID]*remoteBlock{}
	var fresh []*remoteBlock
	for _, b := range listed {
		if profiles.CheckTenant(b.Tenant) != nil {
			continue // no request can name it
		}
		if found[b.Tenant] == nil {
			found[b.Tenant] = map[ulid.ULID]*remoteBlock{}
		}
		known := old[b.Tenant][b.ID]
		if known == nil || known.bad != nil || known.doubtful.Load() || known.IndexBytes != b.IndexBytes ||
			known.RowsBytes != b.RowsBytes {
			known = &remoteBlock{BucketBlock: b, bad: errUnread} // until its meta is read
			fresh = append(fresh, known)
		}
		known.Marked, known.MarkReason, known.MarkUnread = b.Marked, b.MarkReason, b.MarkUnread
		found[b.Tenant][b.ID] = known
	}
	each(fresh, func(b *remoteBlock) {
		if b.bad = ctx.Err(); b.bad == nil {
			b.readMeta()
		}
	})
	r.all = found
	if err := ctx.Err(); err != nil {
		return err
	}
	r.logBad(fresh)
	visible := r.visible()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.blocks, r.lists, r.listErr = visible, r.lists+1, nil
	for _, b := range slices.Clone(r.open) {
		if visible[b.Tenant].block(b.ID) != b {
			r.closeBlock(b)
		}
	}
	return nil
}

// badMax limits the log lines and warnings about blocks that cannot be read. After a list, at most badMax blocks are
// logged by name. The warnings of a view name at most badMax blocks. One further line or warning has the number of
// the other blocks.
const badMax = 20

// logBad logs the blocks that cannot be read.
func (r *remotes) logBad(blocks []*remoteBlock) {
	bad := 0
	for _, b := range blocks {
		if b.bad == nil {
			continue
		}
		if errors.Is(b.bad, profiles.ErrNewer) {
			r.store.metrics.skipped(b.bad)
		}
		if bad++; bad <= badMax {
			r.store.logger.Warn("Reading a profile block in the bucket failed", "tenant", b.Tenant, "err", b.bad)
		}
	}
	if bad > badMax {
		r.store.logger.Warn("Reading more profile blocks in the bucket failed", "blocks", bad-badMax)
	}
}

// each calls f for all blocks, a few concurrently.
func each(blocks []*remoteBlock, f func(*remoteBlock)) {
	var running errgroup.Group
	running.SetLimit(remoteAtOnce)
	for _, b := range blocks {
		running.Go(func() error {
			f(b)
			return nil
		})
	}
	_ = running.Wait() // no function returns an error
}

func (b *remoteBlock) name() string { return "bucket/" + b.ID.String() }

// fail wraps an error with the block's name.
func (b *remoteBlock) fail(err error) error { return fmt.Errorf("block %s: %w", b.name(), err) }

// doubt makes the next list read the sizes and the meta of the block again.
func (b *remoteBlock) doubt() {
	b.doubtful.Store(true)
	if b.Doubt != nil {
		b.Doubt()
	}
}

// readMeta sets meta, or bad.
func (b *remoteBlock) readMeta() {
	if b.Unread != nil {
		b.bad = b.fail(fmt.Errorf("%w: %w", profiles.ErrUnavailable, b.Unread))
		return
	}
	head, whole := b.Head, b.Head != nil
	defer func() {
		if b.bad != nil && whole {
			b.doubt()
		}
	}()
	if b.Head = nil; !whole {
		head = make([]byte, min(b.IndexBytes, block.HeadBytes))
		if n, err := b.Index.ReadAt(head, 0); n < len(head) {
			b.bad = b.fail(fmt.Errorf("%w: %w", profiles.ErrUnavailable, err))
			return
		}
	}
	meta, err := block.MetaOf(head)
	switch {
	case err != nil:
		b.bad = b.fail(err)
	case meta.ULID != b.ID || meta.RowsBytes != uint64(b.RowsBytes):
		b.bad = b.fail(fmt.Errorf("%w: its meta has ULID %s and %d bytes of rows, want %d", profiles.ErrCorrupt,
			ulid.ULID(meta.ULID), meta.RowsBytes, b.RowsBytes))
	case len(meta.Parents) > 0 && !whole:
		b.bad = b.readTail(head)
	}
	if b.meta = meta; whole && b.bad == nil {
		b.listed.Store(&listedHead{len(head), xxhash.Sum64(head)})
	}
}

// readTail returns an error if the index does not end at IndexBytes. head is the beginning of the index, or nil. A
// compacted block whose upload was interrupted must not replace its parents.
func (b *remoteBlock) readTail(head []byte) error {
	tail := make([]byte, min(b.IndexBytes, block.TailBytes))
	if int64(len(head)) == b.IndexBytes {
		copy(tail, head[len(head)-len(tail):])
	} else if n, err := b.Index.ReadAt(tail, b.IndexBytes-int64(len(tail))); n < len(tail) {
		return b.fail(fmt.Errorf("%w: %w", profiles.ErrUnavailable, err))
	}
	if !block.IsWhole(tail) {
		return b.fail(fmt.Errorf("%w: its index is cut short", profiles.ErrCorrupt))
	}
	return nil
}

// certain reports whether the sizes and the meta were read from the files. If they come from the index of the
// bucket, certain makes the next list read the files.
func (b *remoteBlock) certain() bool {
	if b.listed.Load() == nil {
		return true
	}
	b.doubt()
	return false
}

// errOtherHead is the error of a block whose beginning differs from the one in the index of the bucket.
var errOtherHead = fmt.Errorf("%w: the beginning of its index differs from the one in the index of the bucket",
	profiles.ErrCorrupt)

// list returns the known blocks of a tenant and the number of lists so far. It returns an error
// until the first list has succeeded.
func (r *remotes) list(tenant string) (*remoteList, int, error) {
	if r == nil {
		return nil, 0, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.listErr != nil {
		return nil, 0, fmt.Errorf("%w: profile blocks in the bucket: %w", profiles.ErrUnavailable, r.listErr)
	}
	return r.blocks[tenant], r.lists, nil
}

// block returns a block; nil if it is not in the list. A nil list is empty.
func (l *remoteList) block(id ulid.ULID) *remoteBlock {
	if l == nil {
		return nil
	}
	return l.blocks[id]
}

// replacing returns the blocks of the list that have all rows of the block with this meta. Blocks that cannot be read
// replace nothing.
func (l *remoteList) replacing(meta *block.Meta) (blocks []*remoteBlock) {
	if l == nil {
		return nil
	}
	for _, b := range l.blocks {
		if b.bad == nil && b.meta.Replaces(meta) {
			blocks = append(blocks, b)
		}
	}
	return blocks
}

// has reports whether the bucket has all files of a local block, or a block that replaces the local block. The files
// of the remote block must have been read: if its sizes and meta come from the index of the bucket, has returns
// false, and the next list reads the files. The caller holds the tenant's flushMu.
func (r *remotes) has(tenant string, local *heldBlock) bool {
	known, _, err := r.list(tenant)
	b := known.block(local.Meta().ULID)
	if err == nil && b != nil && b.bad == nil && b.IndexBytes == local.IndexBytes() &&
		b.RowsBytes == int64(local.Meta().RowsBytes) && b.certain() {
		return true
	}
	meta := local.Meta()
	return r.replaced(tenant, local) && slices.ContainsFunc(known.replacing(&meta), (*remoteBlock).certain)
}

// replaced reports whether a block in the bucket replaces a local block. It computes the result once
// for each list of the bucket. The caller holds the tenant's flushMu.
func (r *remotes) replaced(tenant string, local *heldBlock) bool {
	known, number, err := r.list(tenant)
	if err != nil || known == nil {
		return false
	}
	if local.compared != number {
		meta := local.Meta()
		local.compared, local.replaced = number, len(known.replacing(&meta)) > 0
	}
	return local.replaced
}

// local describes all of a tenant's blocks on disk, whatever their time range is.
type local struct {
	ids     map[ulid.ULID]bool // blocks on disk
	parents map[ulid.ULID]bool // the parents of the blocks on disk
	writing ulid.ULID          // a block that is being written; the view has its rows from a head or from other blocks
}

// has reports whether the disk has all rows of a remote block: the block itself, or all of its
// parents.
func (d local) has(meta *block.Meta) bool {
	if d.ids[meta.ULID] || d.writing == meta.ULID {
		return true
	}
	for _, parent := range meta.Parents {
		if !d.ids[parent] && !d.parents[parent] {
			return false
		}
	}
	return len(meta.Parents) > 0
}

// readable returns the blocks of the list whose rows are not on the disk, that can be read and are not about to be
// deleted.
func (l *remoteList) readable(disk local) (blocks []*remoteBlock) {
	for id, b := range l.blocks {
		if b.bad == nil && !l.marked[id] && !disk.has(&b.meta) {
			blocks = append(blocks, b)
		}
	}
	return blocks
}

// unreadable returns a warning about each block that cannot be read, unless the block is on the disk or in replaced:
// then its rows are read from another block. At most badMax warnings name a block. If there are more blocks, one
// further warning has their number.
func (l *remoteList) unreadable(disk local, replaced map[ulid.ULID]bool) (warnings []error) {
	for id, b := range l.blocks {
		if b.bad != nil && !l.marked[id] && !disk.ids[id] && id != disk.writing && !replaced[id] {
			warnings = append(warnings, b.bad)
		}
	}
	if more := len(warnings) - badMax; more > 0 {
		warnings = append(warnings[:badMax], fmt.Errorf("%w: %d more profile blocks in the bucket",
			profiles.ErrUnavailable, more))
	}
	return warnings
}

// replacedBy returns the IDs of the blocks that are replaced by a block on the disk or by one of
// blocks. Blocks in failed replace nothing.
func (l *remoteList) replacedBy(disk local, blocks []*remoteBlock, failed map[ulid.ULID]bool) map[ulid.ULID]bool {
	replaced := maps.Clone(disk.parents)
	for _, b := range blocks {
		if failed[b.ID] {
			continue
		}
		for _, parent := range b.meta.Parents {
			if o := l.blocks[parent]; o == nil || o.bad != nil || b.meta.Level > o.meta.Level && b.meta.CanReplace(&o.meta) {
				replaced[parent] = true
			}
		}
		for _, id := range l.duplicates[b.ID] {
			replaced[id] = true
		}
	}
	return replaced
}

// add adds to a view the remote blocks that have rows in the range and are neither on disk
// nor replaced by another block. It drops a local block that a remote block has replaced, unless
// the disk has all rows of the remote block. A block that cannot be opened replaces nothing.
func (r *remotes) add(ctx context.Context, v *View, known *remoteList, disk local, minNS, maxNS int64) error {
	opening := ctx
	if deadline, ok := ctx.Deadline(); ok { // half of the time is for opening blocks, the other half for reading them
		var cancel context.CancelFunc
		opening, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
	}
	failed := map[ulid.ULID]bool{}
	blocks := known.readable(disk)
	for {
		replaced := known.replacedBy(disk, blocks, failed)
		var wanted []*remoteBlock
		for _, b := range blocks {
			if !failed[b.ID] && !replaced[b.ID] && b.meta.Rows > 0 && b.meta.MinNS <= maxNS && b.meta.MaxNS >= minNS {
				wanted = append(wanted, b)
			}
		}
		if most := r.store.opts.remoteOpenMax; len(wanted) > most {
			return fmt.Errorf("%w: %d blocks in the bucket have profiles of this time, more than %d", profiles.ErrLimit,
				len(wanted), most)
		}
		var indexBytes int64
		for _, b := range wanted {
			if b.IndexBytes <= block.IndexMax { // otherwise it will not be read
				indexBytes += b.IndexBytes
			}
		}
		if err := v.Lease.Take(indexBytes - v.indexBytes); err != nil {
			return failedLease(wanted, err)
		}
		v.indexBytes = max(v.indexBytes, indexBytes)
		slices.SortFunc(wanted, func(a, b *remoteBlock) int { return a.ID.Compare(b.ID) })
		opened, faults := r.holdAll(opening, wanted)
		if len(faults) > 0 {
			for _, h := range opened {
				_ = h.release() // remote blocks have no files to close
			}
			for id, err := range faults {
				failed[id] = true
				v.Warnings = append(v.Warnings, err)
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			continue
		}
		v.Warnings = append(v.Warnings, known.unreadable(disk, replaced)...)
		for _, b := range wanted {
			if known.overlaps[b.ID] {
				v.Warnings = append(v.Warnings, b.fail(errOverlap))
			}
		}
		v.drop(func(h *heldBlock) bool {
			meta := h.Meta()
			return replaced[meta.ULID] ||
				slices.ContainsFunc(wanted, func(b *remoteBlock) bool { return b.meta.Replaces(&meta) })
		})
		for _, h := range opened {
			v.Sources = append(v.Sources, h)
		}
		return nil
	}
}

// failedLease returns the error of a query for whose indexes there is not enough memory. It names the largest index,
// because its size may be wrong in the index of the bucket.
func failedLease(wanted []*remoteBlock, err error) error {
	largest := slices.MaxFunc(wanted, func(a, b *remoteBlock) int { return cmp.Compare(a.IndexBytes, b.IndexBytes) })
	for _, b := range wanted {
		if b.listed.Load() != nil {
			b.doubt()
		}
	}
	return fmt.Errorf("indexes of %d blocks in the bucket, the largest with %d bytes of block %s: %w", len(wanted),
		largest.IndexBytes, largest.name(), err)
}

// errOverlap is the warning about two compacted blocks that have some parents in common, where neither replaces the
// other.
var errOverlap = errors.New("some of its profiles are counted twice, because another block has them, too; ferula profiles compact merges the blocks")

// holdAll opens blocks and returns them in order. faults has an error for each block that
// could not be opened, or was not open when ctx was done.
func (r *remotes) holdAll(ctx context.Context, wanted []*remoteBlock) (opened []*heldBlock,
	faults map[ulid.ULID]error) {
	var mu sync.Mutex
	held, late := map[ulid.ULID]*heldBlock{}, false
	faults = map[ulid.ULID]error{}
	var shut []*remoteBlock
	for _, b := range wanted {
		if h := r.holdOpen(b); h != nil {
			held[b.ID] = h
		} else {
			shut = append(shut, b)
		}
	}
	all := make(chan struct{})
	go func() { // a stalled read ends by its own timeout, after ctx
		defer close(all)
		each(shut, func(b *remoteBlock) {
			h, err := r.hold(ctx, b)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case late && h != nil:
				_ = h.release() // remote blocks have no files to close
			case late:
			case err != nil:
				faults[b.ID] = err
			default:
				held[b.ID] = h
			}
		})
	}()
	select {
	case <-all:
	case <-ctx.Done():
	}
	mu.Lock()
	defer mu.Unlock()
	late = true
	for _, b := range wanted {
		if h := held[b.ID]; h != nil {
			opened = append(opened, h)
		} else if faults[b.ID] == nil {
			faults[b.ID] = b.fail(fmt.Errorf("%w: it was not open in time", profiles.ErrUnavailable))
		}
	}
	return opened, faults
}

// holdOpen adds a reference to a block and returns it, if it is open; nil otherwise.
func (r *remotes) holdOpen(b *remoteBlock) *heldBlock {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b.held == nil {
		return nil
	}
	b.held.refs.Add(1)
	if at := slices.Index(r.open, b); at >= 0 {
		r.open = append(slices.Delete(r.open, at, at+1), b)
	}
	return b.held
}

// hold opens a block unless it is open, and adds a reference.
func (r *remotes) hold(ctx context.Context, b *remoteBlock) (*heldBlock, error) {
	b.opening.Lock()
	defer b.opening.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, b.fail(fmt.Errorf("%w: %w", profiles.ErrUnavailable, err)) // another view was opening it for too long
	}
	if h := r.holdOpen(b); h != nil {
		return h, nil
	}
	reader, err := b.read()
	if r.store.metrics.skipped(err); err != nil {
		if b.listed.Load() != nil {
			b.doubt()
		}
		return nil, err
	}
	b.listed.Store(nil)
	r.store.metrics.remoteOpened.Inc()
	h := r.store.hold(reader, "")
	h.refs.Add(1) // the first reference belongs to remotes.open
	r.mu.Lock()
	defer r.mu.Unlock()
	b.held = h
	r.open, r.bytes = append(r.open, b), r.bytes+b.IndexBytes
	for len(r.open) > 1 && (len(r.open) > r.store.opts.remoteOpenMax || r.bytes > r.store.opts.RemoteIndexBytes) {
		r.closeBlock(r.open[0])
	}
	return h, nil
}

// read reads the index. b.opening is held.
func (b *remoteBlock) read() (*block.Reader, error) {
	if b.IndexBytes > block.IndexMax {
		return nil, b.fail(fmt.Errorf("%w: its index has %d bytes, more than %d", profiles.ErrLimit, b.IndexBytes,
			block.IndexMax))
	}
	listed := b.listed.Load()
	if listed != nil { // IndexBytes may be wrong: it is checked before that much memory is allocated
		if err := b.readTail(nil); err != nil { // the index does not end at IndexBytes
			return nil, err
		}
	}
	index := make([]byte, b.IndexBytes)
	if n, err := b.Index.ReadAt(index, 0); n < len(index) {
		return nil, b.fail(fmt.Errorf("%w: index: %w", profiles.ErrUnavailable, err))
	}
	if listed != nil && !listed.of(index) {
		return nil, b.fail(errOtherHead)
	}
	reader, err := block.OpenAt(b.name(), index, b.Rows, b.RowsBytes)
	if err != nil {
		return nil, err
	}
	reader.ReadSpansFrom(b.Spans)
	return reader, nil
}

// closeBlock removes a block from the open ones. Views keep their references. r.mu is held.
func (r *remotes) closeBlock(b *remoteBlock) {
	_ = b.held.release() // remote blocks have no files to close
	b.held, r.bytes = nil, r.bytes-b.IndexBytes
	r.open = slices.DeleteFunc(r.open, func(o *remoteBlock) bool { return o == b })
}

// sweep drops symbols and columns that have not been used for a while.
func (r *remotes) sweep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range r.open {
		b.held.DropIdleSymbols()
	}
}

// metas returns the metas of a tenant's blocks that could be read.
func (r *remotes) metas(tenant string) []block.Meta {
	known, _, _ := r.list(tenant) // a view returns the error
	if known == nil {
		return nil
	}
	var metas []block.Meta
	for _, b := range known.blocks {
		if b.bad == nil {
			metas = append(metas, b.meta)
		}
	}
	return metas
}
