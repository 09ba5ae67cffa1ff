package store

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/ferula-io/ferula/internal/profiles/block"
)

// deletionsMax is the limit of blocks that are marked or deleted after each listing of the bucket.
const deletionsMax = 1000

// Reasons in deletion marks.
const (
	// MarkReplaced is the reason of a block that another block replaces. Every process compares the metas of the blocks
	// to know whether a block is replaced. From the mark it takes only the time since when the block is replaced.
	MarkReplaced = "compacted"
	// MarkExpired is the reason of a block beyond the retention of the bucket (Options.RemoteRetention). Other
	// processes do not know this retention. They obey the mark, like a mark that was written by hand.
	MarkExpired = "retention of ferula serve"
)

// expired reports whether a block is beyond the retention of the bucket.
func (r *remotes) expired(maxNS int64) bool {
	keep := r.store.opts.RemoteRetention
	return keep > 0 && maxNS < r.store.aged().Add(-keep).UnixNano()
}

// leave sets why a block is to be deleted (b.reason), and since when (b.leaving). With an empty reason the block is
// not to be deleted. b.leaving is the time of the first call with a reason. If the block has an older deletion mark,
// b.leaving is the time of the mark, so that the delay before the deletion does not begin again in each process. A
// mark does not count after a call without a reason.
func (b *remoteBlock) leave(reason string, now time.Time) {
	b.reason = reason
	if reason == "" {
		b.leaving, b.kept = time.Time{}, true
		return
	}
	if b.leaving.IsZero() {
		b.leaving = now
	}
	if !b.kept && !b.Marked.IsZero() && b.Marked.Before(b.leaving) {
		b.leaving = b.Marked
	}
}

// visible returns the listed blocks that queries may read, and sets the leaving time of
// blocks that are to be deleted. Blocks beyond the retention are to be deleted and are not
// visible. Blocks that a readable block in the bucket has replaced are to be deleted, but
// stay visible in case the replacing block cannot be opened.
func (r *remotes) visible() map[string]*remoteList {
	now, seen, overlaps := r.store.now(), make(map[string]*remoteList, len(r.all)), 0
	var newest ulid.ULID
	for _, blocks := range r.all {
		for id := range blocks {
			if id.Compare(newest) > 0 {
				newest = id
			}
		}
	}
	if newest != (ulid.ULID{}) {
		r.store.sawBlock(newest, false)
	}
	for tenant, blocks := range r.all {
		metas := make([]*block.Meta, 0, len(blocks))
		for _, b := range blocks {
			if b.bad == nil {
				metas = append(metas, &b.meta)
			}
		}
		lineage := block.LineageOf(metas)
		list := &remoteList{blocks: make(map[ulid.ULID]*remoteBlock, len(blocks)), duplicates: lineage.Duplicates,
			overlaps: map[ulid.ULID]bool{}, marked: map[ulid.ULID]bool{}}
		for _, group := range lineage.Overlapping {
			overlaps += len(group)
			for _, m := range group {
				list.overlaps[m.ULID] = true
			}
		}
		for id, b := range blocks {
			expired := b.bad == nil && b.meta.Rows > 0 && r.expired(b.meta.MaxNS)
			switch {
			case expired:
				b.leave(MarkExpired, now)
			case lineage.Replaced[id]:
				b.leave(MarkReplaced, now)
			default:
				b.leave("", now)
			}
			if !expired {
				list.blocks[id] = b
			}
			// Marks of this server's own reasons hide no block: the server knows by itself whether these reasons hold.
			if !b.Marked.IsZero() && b.MarkReason != MarkReplaced && b.MarkReason != MarkExpired &&
				now.Sub(b.Marked) >= r.store.opts.RemoteDeleteDelay {
				list.marked[id] = true
			}
		}
		seen[tenant] = list
	}
	r.store.metrics.remoteOverlaps.Set(float64(overlaps))
	return seen
}

// clean marks the blocks that are to be deleted, and deletes those whose leaving time is at least RemoteDeleteDelay
// ago. It removes the marks of this store's retention from blocks that are no longer beyond the retention. A block
// whose mark cannot be read stays as it is. Blocks that mayLeave excludes wait for the next listing of the bucket.
// So do all blocks after the first error, and all after deletionsMax changes.
func (r *remotes) clean(ctx context.Context) {
	r.listing.Lock()
	defer r.listing.Unlock()
	changed, now := 0, r.store.now()
	for tenant, blocks := range r.all {
		owners := uncertain(blocks)
		for id, b := range blocks {
			marked := !b.Marked.IsZero()
			mark, unmark := b.reason != "" && !marked, b.bad == nil && b.reason == "" && marked && b.MarkReason == MarkExpired
			due := b.reason != "" && now.Sub(b.leaving) >= r.store.opts.RemoteDeleteDelay
			if !mark && !unmark && !due || b.MarkUnread {
				continue
			}
			if changed++; changed > deletionsMax || ctx.Err() != nil {
				return
			}
			if (mark || due) && !b.mayLeave(owners) {
				continue
			}
			if err := r.change(ctx, tenant, id, b, mark, unmark, due); err != nil {
				r.store.metrics.remoteDeleteFail.Inc()
				if ctx.Err() == nil {
					r.store.logger.Warn("Marking or deleting a profile block in the bucket failed; retrying later", "tenant", tenant,
						"block", b.name(), "err", err)
				}
				return // the others would fail for the same reason
			}
		}
	}
}

// uncertain returns, by their parents, the compacted blocks whose sizes and metas come from the index of the bucket
// and were not compared with the files.
func uncertain(blocks map[ulid.ULID]*remoteBlock) map[ulid.ULID][]*remoteBlock {
	owners := map[ulid.ULID][]*remoteBlock{}
	for _, b := range blocks {
		if b.bad == nil && b.listed.Load() != nil {
			for _, parent := range b.meta.Parents {
				owners[parent] = append(owners[parent], b)
			}
		}
	}
	return owners
}

// mayLeave reports whether the files of the block, and of blocks that replace it, were read. owners is the result of
// uncertain.
func (b *remoteBlock) mayLeave(owners map[ulid.ULID][]*remoteBlock) bool {
	sure := b.certain()
	if b.reason != MarkReplaced {
		return sure
	}
	candidates := owners[b.meta.ULID]
	if len(b.meta.Parents) > 0 { // a block that has all of its parents replaces it, too
		candidates = slices.Concat(candidates, owners[b.meta.Parents[0]])
	}
	for _, o := range candidates {
		if o != b && o.meta.Replaces(&b.meta) {
			sure = o.certain() && sure
		}
	}
	return sure
}

// change marks a block, removes its mark or deletes it. A block is marked before it is deleted: if the deletion is
// interrupted, the mark shows that the remaining files belong to a deleted block.
func (r *remotes) change(ctx context.Context, tenant string, id ulid.ULID, b *remoteBlock, mark, unmark,
	due bool) error {
	remote := r.store.opts.Remote
	if unmark {
		b.Marked, b.MarkReason = time.Time{}, ""
		return remote.Unmark(ctx, tenant, id)
	}
	if mark {
		if err := remote.Mark(ctx, tenant, id, b.leaving, b.reason); err != nil {
			return err
		}
		b.Marked, b.MarkReason = b.leaving, b.reason
	}
	if !due {
		return nil
	}
	if err := remote.Delete(ctx, tenant, id); err != nil {
		return err
	}
	r.store.metrics.remoteDeleted.Inc()
	return nil
}

// Replaced reports whether another block in the bucket has the rows of a block on this disk. It
// returns an error until the bucket has been listed.
func (s *Store) Replaced(tenant string, id ulid.ULID) (bool, error) {
	known, _, err := s.remotes.list(tenant)
	if err != nil {
		return false, err
	}
	t, err := s.tenant(tenant, false)
	if errors.Is(err, errReplaying) {
		return false, err // it is asked again
	}
	if err != nil || t == nil || known == nil {
		return false, nil // the blocks of a tenant that cannot be opened are uploaded
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, b := range t.blocks {
		if meta := b.Meta(); meta.ULID == id {
			return len(known.replacing(&meta)) > 0, nil
		}
	}
	return false, nil
}
