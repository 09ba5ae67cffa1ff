package cache

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// update changes the manifest at base: change gets the extents that may still be
// used, and gives those to write, or false to leave all as it is. Only this process
// takes turns; of two processes the later one wins, which may lose an extent.
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
			c.keeper.deleteLater(base, e.id, len(e.parts))
		}
	}
	if first, _ := c.mergeable(after); first >= 0 {
		c.keeper.mergeSoon(base, key)
	}
	return nil
}

// forget takes an extent that is no longer whole out of its manifest.
func (c *Cache) forget(base, key string, id uint64) {
	c.enqueue(func(ctx context.Context) {
		// If it fails the next one who finds the gap tries again.
		_ = c.update(ctx, base, key, func(extents []extent) ([]extent, bool) {
			rest := slices.DeleteFunc(slices.Clone(extents), func(e extent) bool { return e.id == id })
			return rest, len(rest) < len(extents)
		})
	})
}

// insert adds an extent, for which others make place: those it covers, those of
// another grid, the oldest where the entry gets too large, the shortest where there
// are too many. It gives nil where another one covers it.
func (c *Cache) insert(extents []extent, e extent) []extent {
	next := make([]extent, 0, len(extents)+1)
	size := e.storedBytes()
	for _, old := range extents {
		if old.stepMS == e.stepMS && old.startMS <= e.startMS && old.endMS >= e.endMS && (old.startMS < e.startMS || old.endMS > e.endMS) {
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
	for len(next) >= c.extentsMost() {
		drop(func(e *extent) int64 { return e.endMS - e.startMS })
	}
	next = append(next, e)
	slices.SortFunc(next, func(a, b extent) int { return cmp.Compare(a.startMS, b.startMS) })
	return next
}

// extentsMost is when extents are dropped: with a Merge only after it had its chance.
func (c *Cache) extentsMost() int {
	if c.opts.Merge == nil {
		return c.opts.ExtentsMax
	}
	return 2 * c.opts.ExtentsMax
}

// mergeCheapBytes is what is merged without looking at the proportions.
const mergeCheapBytes = 256 << 10

// mergeable picks adjacent extents, extents[first:end], that should become one; -1
// where none should. Where there are too many, it is the cheapest neighbours; else
// only such as are of a size, so that a large extent to whose end small ones are
// added is not written again for each of them.
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
	for end < len(extents) && adjacent(&extents[end-1], &extents[end]) && extents[end].storedBytes() <= least {
		least += extents[end].storedBytes()
		end++
	}
	return first, end
}

// adjacent tells whether b begins with the time of the grid after a's last one.
func adjacent(a, b *extent) bool {
	return a.stepMS == b.stepMS && b.startMS > a.endMS && b.startMS-a.endMS <= max(a.stepMS, 1)
}

// entryName is an entry by its manifest's key and its own.
type entryName struct{ base, key string }

// doomed are the parts of an extent that nobody finds any more.
type doomed struct {
	at    time.Time
	base  string
	id    uint64
	parts int
}

const (
	mergesWaitingMax = 1024
	doomedMax        = 4096
)

// keeper is the one goroutine that merges extents and removes replaced ones. Its
// lists are bounded: what does not fit is merged another time, or goes with its time
// to live.
type keeper struct {
	cache  *Cache
	ctx    context.Context // ends with stop; of a running merge
	cancel context.CancelFunc
	wake   chan struct{}

	mu     sync.Mutex
	merges []entryName
	doomed []doomed // by at
}

func newKeeper(c *Cache) *keeper {
	k := &keeper{cache: c, wake: make(chan struct{}, 1)}
	k.ctx, k.cancel = context.WithCancel(c.background)
	return k
}

func (k *keeper) stop() { k.cancel() }

func (k *keeper) nudge() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// mergeSoon has an entry merged.
func (k *keeper) mergeSoon(base, key string) {
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

// deleteLater has the parts of an extent removed when those who found it before are
// likely to have read it.
func (k *keeper) deleteLater(base string, id uint64, parts int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ctx.Err() != nil || len(k.doomed) >= doomedMax {
		return
	}
	k.doomed = append(k.doomed, doomed{k.cache.opts.Now().Add(k.cache.opts.DeleteAfter), base, id, parts})
	k.nudge()
}

// next takes what is due: an entry to merge, or parts to remove, or neither and how
// long to sleep.
func (k *keeper) next() (merge entryName, gone []doomed, sleep time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.merges) > 0 {
		merge = k.merges[0]
		k.merges = slices.Delete(k.merges, 0, 1)
		return merge, nil, 0
	}
	now := k.cache.opts.Now()
	due := 0
	for due < len(k.doomed) && !k.doomed[due].at.After(now) {
		due++
	}
	gone = slices.Clone(k.doomed[:due])
	k.doomed = slices.Delete(k.doomed, 0, due)
	if len(k.doomed) > 0 {
		return merge, gone, max(k.doomed[0].at.Sub(now), time.Millisecond)
	}
	return merge, gone, time.Hour
}

func (k *keeper) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for k.ctx.Err() == nil {
		merge, gone, sleep := k.next()
		switch {
		case merge != entryName{}:
			k.merge(merge)
			k.cache.pending.done()
			continue
		case len(gone) > 0:
			for _, d := range gone {
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

// merge makes one extent of adjacent ones of an entry.
func (k *keeper) merge(name entryName) {
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
		c.log.Debug("cache: merge of extents failed", "extents", end-first, "err", err)
	}
	c.met.merges.of(result).Inc()
}

func (c *Cache) mergeExtents(ctx context.Context, name entryName, extents []extent) error {
	last := &extents[len(extents)-1]
	w := c.Writer(name.key, extents[0].startMS, last.endMS, last.stepMS)
	defer w.Abort()
	w.wait = c.opts.MergeTimeout // nobody waits for it
	sources := make([]Source, 0, len(extents))
	for i := range extents {
		e := &extents[i]
		w.replaces = append(w.replaces, e.id)
		w.ext.writtenMS = min(w.ext.writtenMS, e.writtenMS) // as old as the oldest
		found := Extent{cache: c, base: name.base, key: name.key, ext: e, parts: make([][]byte, len(e.parts))}
		if e.inline != nil {
			blocks, err := openPart(e.inline, e.id, 0, e.parts[0].storedBytes)
			if err != nil {
				return err
			}
			found.parts[0] = blocks
		}
		r := newReader(ctx, &found)
		defer r.Close()
		sources = append(sources, Source{Reader: r, StartMS: e.startMS, EndMS: e.endMS})
	}
	if err := c.opts.Merge(ctx, w, sources); err != nil {
		return err
	}
	w.Commit()
	return nil
}
