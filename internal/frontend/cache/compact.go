package cache

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// update changes the manifest stored under base. change gets the extents that have not expired and
// returns the extents to write, or false to leave the manifest as it is. Updates are serialized
// within this process only: of two processes the later write wins, which may lose an extent.
func (c *Cache) update(ctx context.Context, base, key string, change func([]extent) ([]extent, bool)) error {
	lock := c.lock(base)
	lock.Lock()
	defer lock.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 2*c.opts.SetTimeout)
	defer cancel()
	before, err := c.manifest(ctx, base, key)
	if err != nil && !errors.Is(err, errCorrupt) && !errors.Is(err, errVersion) && !errors.Is(err, errCollision) {
		return err
	}
	now := c.opts.Now()
	usable := slices.DeleteFunc(slices.Clone(before), func(e extent) bool { return !e.valid(now, c.opts.TTL) })
	after, ok := change(usable)
	if !ok {
		return nil
	}
	if len(after) == 0 {
		err = c.store.delete(ctx, base)
	} else {
		err = c.store.set(ctx, base, appendManifest(nil, key, after), c.opts.TTL)
	}
	if err != nil {
		return err
	}
	for i := range before {
		if e := &before[i]; e.inline == nil && !slices.ContainsFunc(after, func(a extent) bool { return a.id == e.id }) {
			c.compactor.deleteLater(base, e.id, len(e.parts))
		}
	}
	if first, _ := c.mergeable(after); first >= 0 {
		c.compactor.mergeSoon(base, key)
	}
	return nil
}

// removeExtent removes an incomplete extent from its manifest.
func (c *Cache) removeExtent(base, key string, id uint64) {
	c.enqueue(func(ctx context.Context) {
		// If it fails, the next reader that finds the extent incomplete tries again.
		_ = c.update(ctx, base, key, func(extents []extent) ([]extent, bool) {
			rest := slices.DeleteFunc(slices.Clone(extents), func(e extent) bool { return e.id == id })
			return rest, len(rest) < len(extents)
		})
	})
}

// insert adds e to the extents of an entry and returns the result. It removes extents that e covers, extents with
// another step, the oldest extents if the entry exceeds EntryBytesMax, and the shortest ones if there are more than
// extentsLimit. It returns nil if a longer extent covers e.
func (c *Cache) insert(extents []extent, e extent) []extent {
	next := make([]extent, 0, len(extents)+1)
	size := e.storedBytes()
	for _, old := range extents {
		if old.stepMS == e.stepMS && old.startMS <= e.startMS && old.endMS >= e.endMS &&
			(old.startMS < e.startMS || old.endMS > e.endMS) {
			return nil
		}
		if old.stepMS != e.stepMS || (old.startMS >= e.startMS && old.endMS <= e.endMS) {
			continue
		}
		size += old.storedBytes()
		next = append(next, old)
	}
	drop := func(measure func(e *extent) int64) {
		least := 0
		for i := range next {
			if measure(&next[i]) < measure(&next[least]) {
				least = i
			}
		}
		size -= next[least].storedBytes()
		next = slices.Delete(next, least, least+1)
	}
	for len(next) > 0 && size > c.opts.EntryBytesMax {
		drop(func(e *extent) int64 { return e.writtenMS })
	}
	for len(next) >= c.extentsLimit() {
		drop(func(e *extent) int64 { return e.endMS - e.startMS })
	}
	next = append(next, e)
	slices.SortFunc(next, func(a, b extent) int { return cmp.Compare(a.startMS, b.startMS) })
	return next
}

// extentsLimit is the maximum of extents of an entry; beyond it extents are dropped. With Options.Merge it is twice
// ExtentsMax, so that extents are merged before they would be dropped.
func (c *Cache) extentsLimit() int {
	if c.opts.Merge == nil {
		return c.opts.ExtentsMax
	}
	return 2 * c.opts.ExtentsMax
}

// mergeCheapBytes: two extents with at most this sum of sizes are merged even if one is much larger
// than the other.
const mergeCheapBytes = 256 << 10

// mergeable picks the adjacent extents to merge, extents[first:end]; first is -1 if there are none.
// With more than ExtentsMax extents it picks the smallest neighbours. Otherwise it picks only small
// extents or extents of similar size, so that a large extent is not rewritten for each small one
// that is appended.
func (c *Cache) mergeable(extents []extent) (first, end int) {
	if c.opts.Merge == nil {
		return -1, -1
	}
	first = -1
	var least int64
	for i := 0; i+1 < len(extents); i++ {
		a, b := extents[i].storedBytes(), extents[i+1].storedBytes()
		if !adjacent(&extents[i], &extents[i+1]) || a+b > c.opts.EntryBytesMax {
			continue
		}
		wanted := len(extents) > c.opts.ExtentsMax || a+b <= mergeCheapBytes || max(a, b) <= 4*min(a, b)
		if wanted && (first < 0 || a+b < least) {
			first, end, least = i, i+2, a+b
		}
	}
	if first < 0 {
		return -1, -1
	}
	// Extents after this pair are merged, too, while each is at most as large as all before it together.
	for end < len(extents) && adjacent(&extents[end-1], &extents[end]) && extents[end].storedBytes() <= least {
		least += extents[end].storedBytes()
		end++
	}
	return first, end
}

// adjacent reports whether b starts one step after a's end.
func adjacent(a, b *extent) bool {
	return a.stepMS == b.stepMS && b.startMS > a.endMS && b.startMS-a.endMS <= max(a.stepMS, 1)
}

// entryName names an entry: base is the store's key of its manifest, key the whole cache key.
type entryName struct{ base, key string }

// extentToDelete is an extent that its manifest no longer names. at is the time of its deletion,
// parts the number of its parts.
type extentToDelete struct {
	at    time.Time
	base  string
	id    uint64
	parts int
}

const (
	mergesWaitingMax   = 1024
	extentsToDeleteMax = 4096
)

// compactor is the one goroutine that merges extents and deletes the parts of replaced ones. Its
// lists are bounded. An entry that does not fit in the list of merges is merged after its next
// write. Parts that do not fit in the list of deletions expire by their TTL.
type compactor struct {
	cache  *Cache
	ctx    context.Context // of a running merge; canceled by stop
	cancel context.CancelFunc
	wake   chan struct{}

	mu              sync.Mutex
	merges          []entryName
	extentsToDelete []extentToDelete // sorted by at
}

func newCompactor(c *Cache) *compactor {
	k := &compactor{cache: c, wake: make(chan struct{}, 1)}
	k.ctx, k.cancel = context.WithCancel(c.background)
	return k
}

func (k *compactor) stop() { k.cancel() }

func (k *compactor) nudge() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// mergeSoon schedules the merge of an entry.
func (k *compactor) mergeSoon(base, key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	name := entryName{base, key}
	if k.ctx.Err() != nil || len(k.merges) >= mergesWaitingMax || slices.Contains(k.merges, name) {
		return
	}
	k.cache.pending.add(1)
	k.merges = append(k.merges, name)
	k.nudge()
}

// deleteLater schedules the deletion of an extent's parts, after DeleteAfter, so that
// readers that found the extent before can finish.
func (k *compactor) deleteLater(base string, id uint64, parts int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ctx.Err() != nil || len(k.extentsToDelete) >= extentsToDeleteMax {
		return
	}
	k.extentsToDelete = append(k.extentsToDelete, extentToDelete{k.cache.opts.Now().Add(k.cache.opts.DeleteAfter), base,
		id, parts})
	k.nudge()
}

// next takes the work that is due from the lists: an entry to merge, or extents to delete. If there
// is none, it returns how long to sleep.
func (k *compactor) next() (merge entryName, due []extentToDelete, sleep time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.merges) > 0 {
		merge = k.merges[0]
		k.merges = slices.Delete(k.merges, 0, 1)
		return merge, nil, 0
	}
	now := k.cache.opts.Now()
	n := 0
	for n < len(k.extentsToDelete) && !k.extentsToDelete[n].at.After(now) {
		n++
	}
	due = slices.Clone(k.extentsToDelete[:n])
	k.extentsToDelete = slices.Delete(k.extentsToDelete, 0, n)
	if len(k.extentsToDelete) > 0 {
		return merge, due, max(k.extentsToDelete[0].at.Sub(now), time.Millisecond)
	}
	return merge, due, time.Hour
}

func (k *compactor) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for k.ctx.Err() == nil {
		merge, due, sleep := k.next()
		switch {
		case merge != entryName{}:
			k.merge(merge)
			k.cache.pending.done()
			continue
		case len(due) > 0:
			for _, d := range due {
				k.cache.deleteParts(k.ctx, d.base, d.id, d.parts)
			}
			continue
		}
		timer.Reset(sleep)
		select {
		case <-k.wake:
		case <-timer.C:
		case <-k.ctx.Done():
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for range k.merges {
		k.cache.pending.done()
	}
	k.merges = nil
}

// merge merges adjacent extents of one entry.
func (k *compactor) merge(name entryName) {
	c := k.cache
	ctx, cancel := context.WithTimeout(k.ctx, c.opts.MergeTimeout)
	defer cancel()
	lookup, done := context.WithTimeout(ctx, c.opts.GetTimeout)
	extents, err := c.manifest(lookup, name.base, name.key)
	done()
	if err != nil {
		c.met.merges.of(reason(err)).Inc()
		return
	}
	now := c.opts.Now()
	extents = slices.DeleteFunc(extents, func(e extent) bool { return !e.valid(now, c.opts.TTL) })
	first, end := c.mergeable(extents)
	if first < 0 {
		return
	}
	result := "merged"
	if err := c.mergeExtents(ctx, name, extents[first:end]); err != nil {
		result = reason(err)
		c.log.Debug("Failed to merge cached extents", "extents", end-first, "err", err)
	}
	c.met.merges.of(result).Inc()
}

// mergeExtents writes the contents of adjacent extents as one extent, which replaces them in the
// manifest. If one of them was removed meanwhile, the new extent is dropped.
func (c *Cache) mergeExtents(ctx context.Context, name entryName, extents []extent) error {
	last := &extents[len(extents)-1]
	w := c.Writer(name.key, extents[0].startMS, last.endMS, last.stepMS)
	defer w.Abort()
	w.wait = c.opts.MergeTimeout // no query waits for it
	sources := make([]Source, 0, len(extents))
	for i := range extents {
		e := &extents[i]
		w.replaces = append(w.replaces, e.id)
		w.ext.writtenMS = min(w.ext.writtenMS, e.writtenMS) // the merged extent expires with its oldest source
		found := Extent{cache: c, base: name.base, key: name.key, ext: e, parts: make([][]byte, len(e.parts))}
		if e.inline != nil {
			blocks, err := openPart(e.inline, e.id, 0, e.parts[0].storedBytes)
			if err != nil {
				return err
			}
			found.parts[0] = blocks
		}
		r := newReader(ctx, &found)
		//lint:ignore errcheck everything that is wanted was read
		defer r.Close()
		sources = append(sources, Source{Reader: r, StartMS: e.startMS, EndMS: e.endMS})
	}
	if err := c.opts.Merge(ctx, w, sources); err != nil {
		return err
	}
	w.Commit()
	return nil
}
