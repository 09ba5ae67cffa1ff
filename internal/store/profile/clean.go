package profile

import (
	"context"
	"time"

	"github.com/oklog/ulid/v2"
)

// deletionsMax is the limit of blocks that are deleted after each listing of the bucket.
const deletionsMax = 1000

// expired reports whether a block is beyond the retention of the bucket.
func (r *remotes) expired(maxNS int64) bool {
	keep := r.store.opts.RemoteRetention
	return keep > 0 && maxNS < r.store.now().Add(-keep).UnixNano()
}

// visible returns the listed blocks that queries may read, and sets the leaving time of
// blocks that are to be deleted. Blocks beyond the retention are to be deleted and are not
// visible. Blocks that a readable block in the bucket has replaced are to be deleted, but
// stay visible in case the replacing block cannot be opened.
func (r *remotes) visible() map[string]map[ulid.ULID]*remoteBlock {
	now, seen := r.store.now(), make(map[string]map[ulid.ULID]*remoteBlock, len(r.all))
	for tenant, blocks := range r.all {
		replaced := map[ulid.ULID]bool{}
		for _, b := range blocks {
			if b.bad == nil {
				for _, parent := range b.meta.Parents {
					replaced[parent] = true
				}
			}
		}
		seen[tenant] = make(map[ulid.ULID]*remoteBlock, len(blocks))
		for id, b := range blocks {
			expired := b.bad == nil && b.meta.Rows > 0 && r.expired(b.meta.MaxNS)
			switch {
			case !expired && !replaced[id]:
				b.leaving = time.Time{}
			case b.leaving.IsZero():
				b.leaving = now
			}
			if !expired {
				seen[tenant][id] = b
			}
		}
	}
	return seen
}

// clean deletes the blocks whose leaving time is at least RemoteDeleteDelay ago. A failed deletion
// is retried after the next listing of the bucket.
func (r *remotes) clean(ctx context.Context) {
	r.listing.Lock()
	defer r.listing.Unlock()
	deleted, now := 0, r.store.now()
	for tenant, blocks := range r.all {
		for id, b := range blocks {
			if b.leaving.IsZero() || now.Sub(b.leaving) < r.store.opts.RemoteDeleteDelay {
				continue
			}
			if deleted++; deleted > deletionsMax || ctx.Err() != nil {
				return
			}
			err := r.store.opts.Remote.Delete(ctx, tenant, id)
			if err != nil {
				r.store.metrics.remoteDeleteFail.Inc()
				if ctx.Err() == nil {
					r.store.logger.Warn("Deleting a profile block in the bucket failed; retrying later", "tenant", tenant, "block", b.name(), "err", err)
				}
				return // the others would fail for the same reason
			}
			r.store.metrics.remoteDeleted.Inc()
		}
	}
}
