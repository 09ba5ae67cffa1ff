package profile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/ferula-io/ferula/internal/series/profiles"
	"github.com/ferula-io/ferula/internal/store/profile/block"
)

// Remote stores blocks in addition to the disk. It is safe for concurrent use.
type Remote interface {
	// Blocks lists the complete blocks of all tenants.
	Blocks(ctx context.Context) ([]RemoteBlock, error)
	// Delete deletes a block. It is no error if the block does not exist.
	Delete(ctx context.Context, tenant string, id ulid.ULID) error
}

// RemoteBlock is a block in a Remote: its files, read by ranges. Reads have timeouts
// of their own.
type RemoteBlock struct {
	Tenant      string
	ID          ulid.ULID
	Index, Rows io.ReaderAt
	Spans       io.ReaderAt // block.SpansFile, if the block has one
	IndexBytes  int64
	RowsBytes   int64
}

const (
	remoteMax      = 100_000   // blocks of all tenants
	remoteIndexMax = 256 << 20 // bytes of one index
	remoteAtOnce   = 8         // indexes read at once
	listTimeout    = 5 * time.Minute
)

// remotes lists the blocks of a Remote and caches open blocks. It has the meta of every
// block, read from the beginning of the block's index. A view reads the whole index on
// demand.
type remotes struct {
	store *Store

	listing sync.Mutex                            // one refresh or clean at a time; taken before mu
	all     map[string]map[ulid.ULID]*remoteBlock // also blocks beyond the retention; guarded by listing

	mu      sync.Mutex
	blocks  map[string]map[ulid.ULID]*remoteBlock // by tenant; replaced as a whole
	lists   int                                   // number of lists so far
	listErr error                                 // set until the first successful list
	open    []*remoteBlock                        // blocks with a reader; least recently used first
	bytes   int64                                 // size of the indexes of the open blocks
}

type remoteBlock struct {
	RemoteBlock
	meta block.Meta
	bad  error // why meta could not be read

	leaving time.Time // since when it is to be deleted; zero: it is not; guarded by remotes.listing

	opening sync.Mutex
	held    *heldBlock // nil: not open; guarded by remotes.mu
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
		if known == nil || known.bad != nil || known.IndexBytes != b.IndexBytes || known.RowsBytes != b.RowsBytes {
			known = &remoteBlock{RemoteBlock: b}
			fresh = append(fresh, known)
		}
		found[b.Tenant][b.ID] = known
	}
	each(ctx, fresh, func(b *remoteBlock) {
		if ctx.Err() == nil {
			b.readMeta()
		} else {
			b.bad = ctx.Err()
		}
	})
	r.all = found
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, b := range fresh {
		if b.bad != nil {
			r.store.logger.Warn("Reading a profile block in the bucket failed", "tenant", b.Tenant, "err", b.bad)
		}
	}
	found = r.visible()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.blocks, r.lists, r.listErr = found, r.lists+1, nil
	for _, b := range slices.Clone(r.open) {
		if found[b.Tenant][b.ID] != b {
			r.closeBlock(b)
		}
	}
	return nil
}

// each calls f for all blocks, a few concurrently, until ctx is done.
func each(ctx context.Context, blocks []*remoteBlock, f func(*remoteBlock)) {
	var running sync.WaitGroup
	slots := make(chan struct{}, remoteAtOnce)
	for _, b := range blocks {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			running.Wait()
			return
		}
		running.Go(func() {
			defer func() { <-slots }()
			f(b)
		})
	}
	running.Wait()
}

func (b *remoteBlock) name() string { return "bucket/" + b.ID.String() }

// fail wraps an error with the block's name.
func (b *remoteBlock) fail(err error) error { return fmt.Errorf("block %s: %w", b.name(), err) }

func (b *remoteBlock) readMeta() {
	head := make([]byte, min(b.IndexBytes, block.HeadBytes))
	if n, err := b.Index.ReadAt(head, 0); n < len(head) {
		b.bad = b.fail(fmt.Errorf("%w: %w", profiles.ErrUnavailable, err))
		return
	}
	meta, err := block.MetaOf(head)
	switch {
	case err != nil:
		b.bad = b.fail(err)
	case meta.ULID != b.ID || meta.RowsBytes != uint64(b.RowsBytes):
		b.bad = b.fail(fmt.Errorf("%w: its meta has ULID %s and %d bytes of rows, want %d", profiles.ErrCorrupt, ulid.ULID(meta.ULID), meta.RowsBytes, b.RowsBytes))
	}
	b.meta = meta
}

// list returns the known blocks of a tenant, which must not be changed, and the number of lists
// so far. It returns an error until the first list has succeeded.
func (r *remotes) list(tenant string) (map[ulid.ULID]*remoteBlock, int, error) {
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

// has reports whether the bucket has all files of a local block.
func (r *remotes) has(tenant string, local *heldBlock) bool {
	known, _, err := r.list(tenant)
	b := known[local.Meta().ULID]
	return err == nil && b != nil && b.bad == nil && b.IndexBytes == local.IndexBytes() && b.RowsBytes == int64(local.Meta().RowsBytes)
}

// local describes all of a tenant's blocks on disk, whatever their time range is.
type local struct {
	ids     map[ulid.ULID]bool // blocks on disk
	parents map[ulid.ULID]bool // blocks that they have replaced
	writing ulid.ULID          // a block being written; its rows are in the view already
}

// add adds to a view the remote blocks that have rows in the range and are neither on disk
// nor replaced by another block. It drops a local block that a remote one has replaced. A
// block that cannot be opened replaces nothing.
func (r *remotes) add(ctx context.Context, v *View, known map[ulid.ULID]*remoteBlock, disk local, minNS, maxNS int64) error {
	opening := ctx
	if deadline, ok := ctx.Deadline(); ok { // the other half is for reading the blocks
		var cancel context.CancelFunc
		opening, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
	}
	failed := map[ulid.ULID]bool{}
	for id, b := range known {
		if b.bad != nil && !disk.ids[id] && !disk.parents[id] && id != disk.writing {
			failed[id] = true
			v.Warnings = append(v.Warnings, b.bad)
		}
	}
	for {
		replaced := maps.Clone(disk.parents)
		for id, b := range known {
			if b.bad == nil && !failed[id] && !disk.ids[id] && id != disk.writing {
				for _, parent := range b.meta.Parents {
					replaced[parent] = true
				}
			}
		}
		var wanted []*remoteBlock
		for id, b := range known {
			if b.bad == nil && !failed[id] && !disk.ids[id] && id != disk.writing && !replaced[id] && b.meta.Rows > 0 && b.meta.MinNS <= maxNS && b.meta.MaxNS >= minNS {
				wanted = append(wanted, b)
			}
		}
		if most := r.store.opts.RemoteOpenMax; len(wanted) > most {
			return fmt.Errorf("%w: %d blocks in the bucket have profiles of this time, more than %d", profiles.ErrLimit, len(wanted), most)
		}
		var indexBytes int64
		for _, b := range wanted {
			indexBytes += b.IndexBytes
		}
		if err := v.Lease.Take(indexBytes - v.indexBytes); err != nil {
			return fmt.Errorf("indexes of %d blocks in the bucket: %w", len(wanted), err)
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
		v.drop(replaced)
		for _, h := range opened {
			v.held, v.Sources = append(v.held, h), append(v.Sources, h)
		}
		return nil
	}
}

// drop releases blocks of a view.
func (v *View) drop(ids map[ulid.ULID]bool) {
	gone := func(h *heldBlock) bool { return ids[h.Meta().ULID] }
	v.Sources = slices.DeleteFunc(v.Sources, func(src block.Source) bool {
		h, ok := src.(*heldBlock)
		return ok && gone(h)
	})
	v.held = slices.DeleteFunc(v.held, func(h *heldBlock) bool {
		if gone(h) {
			_ = h.release() // a failed unmap does not affect any result
			return true
		}
		return false
	})
}

// holdAll opens blocks and returns them in order. faults has an error for each block that
// could not be opened, or was not open when ctx was done.
func (r *remotes) holdAll(ctx context.Context, wanted []*remoteBlock) (opened []*heldBlock, faults map[ulid.ULID]error) {
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
		each(ctx, shut, func(b *remoteBlock) {
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
	if b.IndexBytes > remoteIndexMax {
		return nil, b.fail(fmt.Errorf("%w: its index has %d bytes, more than %d", profiles.ErrLimit, b.IndexBytes, remoteIndexMax))
	}
	index := make([]byte, b.IndexBytes)
	if n, err := b.Index.ReadAt(index, 0); n < len(index) {
		return nil, b.fail(fmt.Errorf("%w: index: %w", profiles.ErrUnavailable, err))
	}
	reader, err := block.OpenAt(b.name(), index, b.Rows, b.RowsBytes)
	if err != nil {
		r.store.metrics.corrupt.Inc()
		return nil, err
	}
	reader.ReadSpansFrom(b.Spans)
	r.store.metrics.remoteOpened.Inc()
	h := r.store.hold(reader, "")
	h.refs.Add(1) // the first reference belongs to remotes.open
	r.mu.Lock()
	defer r.mu.Unlock()
	b.held = h
	r.open, r.bytes = append(r.open, b), r.bytes+b.IndexBytes
	for len(r.open) > 1 && (len(r.open) > r.store.opts.RemoteOpenMax || r.bytes > r.store.opts.RemoteIndexBytes) {
		r.closeBlock(r.open[0])
	}
	return h, nil
}

// closeBlock removes a block from the open ones. Views keep their references. r.mu is held.
func (r *remotes) closeBlock(b *remoteBlock) {
	_ = b.held.release() // remote blocks have no files to close
	b.held, r.bytes = nil, r.bytes-b.IndexBytes
	r.open = slices.DeleteFunc(r.open, func(o *remoteBlock) bool { return o == b })
}

// sweep drops symbols and columns that have not been used for a while.
func (r *remotes) sweep() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range r.open {
		b.held.DropIdleSymbols()
	}
}

// metas returns the metas of a tenant's blocks that could be read.
func (r *remotes) metas(tenant string) []block.Meta {
	known, _, _ := r.list(tenant) // a view returns the error
	var metas []block.Meta
	for b := range maps.Values(known) {
		if b.bad == nil {
			metas = append(metas, b.meta)
		}
	}
	return metas
}
