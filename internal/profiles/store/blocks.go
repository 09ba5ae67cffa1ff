package store

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/oklog/ulid/v2"

	"github.com/ferula-io/ferula/internal/invariant"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
)

// heldBlock is an open block with a reference count. The tenant has a reference until the
// block is replaced or removed. Every View with the block has a reference until View.Close.
type heldBlock struct {
	*block.Reader
	path     string
	refs     atomic.Int64
	excluded bool // not compacted any more, because a compaction of it failed; guarded by tenant.flushMu

	compared int  // number of the listing of the bucket for which replaced was computed; guarded by tenant.flushMu
	replaced bool // a block in the listing with the number compared replaces this block
}

// Remote reports whether the block is read from the bucket.
func (b *heldBlock) Remote() bool { return b.path == "" }

// release drops a reference. The last one closes the files.
func (b *heldBlock) release() error {
	refs := b.refs.Add(-1)
	invariant.Check(refs >= 0, "block %s is released more often than it was held", b.Name())
	if refs > 0 {
		return nil
	}
	return b.Close()
}

// holds reports whether the block has rows of a profile, and calls row with the labels of each of these rows.
func (b *heldBlock) holds(key block.Key, row func(labels []byte)) (profile bool) {
	minNS, maxNS := b.Bounds()
	if key.TimeNS < minNS || key.TimeNS > maxNS {
		return false
	}
	series, err := b.Series()
	if err != nil {
		return false
	}
	err = b.Find(key.ID, func(at int) {
		c, err := b.Columns(at)
		if err != nil || c.TimeAt(at-c.First) != key.TimeNS {
			return
		}
		profile = true
		row(series[c.SeriesAt(at-c.First)].Labels)
	})
	return profile && err == nil
}

// holds is heldBlock.holds for a head.
func (h *head) holds(key block.Key, row func(labels []byte)) (profile bool) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	l, ok := h.last[key]
	if !ok {
		return false
	}
	cols := block.Columns{Series: h.seriesCol}
	for at := l.row + 1; at != 0; at = h.previous[at-1] {
		row(h.series[cols.SeriesAt(int(at-1))].Labels)
	}
	return true
}

// View is a snapshot of one tenant's profiles. Its sources stay open until Close.
type View struct {
	Sources  []block.Source
	Warnings []error // blocks that could not be opened; read-only
	Lease    *Lease  // memory of the query, released by Close unless it is detached

	indexBytes int64 // part of the lease that is for indexes of remote blocks
}

// Detach returns the lease, which the caller has to release.
func (v *View) Detach() *Lease {
	l := v.Lease
	v.Lease = &Lease{}
	return l
}

// View opens the head and the blocks that have rows in a range, inclusive, in nanoseconds.
// The view of an unknown tenant is empty. A block in the bucket that cannot be opened within
// half of the time until ctx's deadline is omitted, with a warning.
func (s *Store) View(ctx context.Context, tenant string, minNS, maxNS int64) (*View, error) {
	t, err := s.tenant(tenant, false)
	if err != nil {
		return nil, err
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		known, number, listErr := s.remotes.list(tenant)
		v, disk := t.view(minNS, maxNS)
		v.Lease = &Lease{store: s}
		// If the list has changed meanwhile, a block may have moved from the disk to the bucket,
		// and v and known may both lack it.
		if _, now, _ := s.remotes.list(tenant); now != number {
			v.Close()
			continue
		}
		if listErr != nil {
			v.Warnings = append(v.Warnings, listErr)
		}
		if known != nil {
			if err := s.remotes.add(ctx, v, known, disk, minNS, maxNS); err != nil {
				v.Close()
				return nil, err
			}
		}
		return v, nil
	}
}

// view returns the sources on disk and in memory; none for a nil tenant.
func (t *tenant) view(minNS, maxNS int64) (*View, local) {
	v, disk := &View{}, local{ids: map[ulid.ULID]bool{}, parents: map[ulid.ULID]bool{}}
	if t == nil {
		return v, disk
	}
	v.Warnings = slices.Clip(t.broken)
	overlaps := func(src block.Source) bool {
		lo, hi := src.Bounds()
		return src.Rows() > 0 && lo <= maxNS && hi >= minNS
	}
	t.mu.RLock()
	disk.writing = t.writing
	t.mu.RUnlock()
	heads := t.hold(func(b *heldBlock) {
		if t.store.remotes != nil {
			meta := b.Meta()
			disk.ids[meta.ULID] = true
			for _, parent := range meta.Parents {
				disk.parents[parent] = true
			}
		}
		if overlaps(b) {
			b.refs.Add(1)
			v.Sources = append(v.Sources, b)
		}
	})
	for _, h := range heads {
		if view := h.view(); overlaps(view) {
			v.Sources = append(v.Sources, view)
		}
	}
	return v, disk
}

// hold calls f with every block, under the tenant's lock. It returns the head that is being written as a block, if there
// is one, and the current head. Blocks and heads are those of one point in time, so no row is missing or found twice. The
// caller must read the heads without the tenant's lock, because apply takes a head's lock before the tenant's. A head
// that is being written as a block does not change.
func (t *tenant) hold(f func(b *heldBlock)) (heads []*head) {
	if t == nil {
		return nil
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, b := range t.blocks {
		f(b)
	}
	if t.flushing != nil {
		heads = append(heads, t.flushing)
	}
	return append(heads, t.head)
}

// drop releases the blocks for which gone returns true.
func (v *View) drop(gone func(b *heldBlock) bool) {
	v.Sources = slices.DeleteFunc(v.Sources, func(src block.Source) bool {
		b, ok := src.(*heldBlock)
		ok = ok && gone(b)
		if ok {
			_ = b.release() // a failed unmap does not affect any result
		}
		return ok
	})
}

// Close releases the sources.
func (v *View) Close() {
	v.drop(func(*heldBlock) bool { return true })
	v.Sources = nil
	if v.Lease != nil {
		v.Lease.Release()
	}
}

// Stats returns the time range of a tenant's profiles.
func (s *Store) Stats(tenant string) (profiles.Stats, error) {
	t, err := s.tenant(tenant, false)
	if err != nil {
		return profiles.Stats{}, err
	}
	var stats profiles.Stats
	found := false
	add := func(minNS, maxNS int64, rows int) {
		if rows == 0 {
			return
		}
		if !found || minNS/1e6 < stats.OldestMS {
			stats.OldestMS = minNS / 1e6
		}
		stats.NewestMS, found = max(stats.NewestMS, maxNS/1e6), true
	}
	for _, m := range s.remotes.metas(tenant) {
		add(m.MinNS, m.MaxNS, int(m.Rows))
	}
	heads := t.hold(func(b *heldBlock) {
		minNS, maxNS := b.Bounds()
		add(minNS, maxNS, b.Rows())
	})
	for _, h := range heads {
		h.mu.RLock()
		add(h.minNS, h.maxNS, h.rows())
		h.mu.RUnlock()
	}
	return stats, nil
}
