package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
)

// errMissing is a part that a manifest names and the store does not have.
var errMissing = errors.New("missing")

const (
	fetchesMax  = 8   // parts of one extent fetched at once
	presenceMax = 256 // parts of one extent looked for
)

// Extent is a stored answer that Lookup found.
type Extent struct {
	// StartMS and EndMS, both inclusive, are the range to use the answer for: within
	// the range asked for, and shared with no other extent.
	StartMS, EndMS int64
	// HeldStartMS and HeldEndMS, both inclusive, are the range that was given to the
	// Writer. Points outside StartMS and EndMS are to be cut off; there are none where
	// the two ranges are the same and the Writer got no more than its range.
	HeldStartMS, HeldEndMS int64
	StepMS                 int64
	WrittenAt              time.Time
	// Bytes is the length of the stream.
	Bytes int64

	cache *Cache
	base  string
	key   string
	ext   *extent
	parts [][]byte // the blocks of the parts that are here already; shared immutable
	held  *holding
}

// Bounds are StartMS and EndMS.
func (e Extent) Bounds() (startMS, endMS int64) { return e.StartMS, e.EndMS }

// Whole tells whether all the bytes of the extent have been fetched and checked, so
// that its stream cannot end with ErrGone.
func (e Extent) Whole() bool {
	return !slices.ContainsFunc(e.parts, func(p []byte) bool { return p == nil })
}

// Open gives the stored bytes as a stream, a *Reader. The parts that are not here yet
// are fetched while it is read, one ahead, under ctx. Where one of them is gone or is
// not what it was, Read gives ErrGone; Open itself does where ctx has ended.
func (e Extent) Open(ctx context.Context) (io.ReadCloser, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrGone, err)
	}
	return newReader(ctx, &e), nil
}

// holding is a share of HeldBytesMax. It ends when the first reader is closed, or
// when nobody has the extent any more: its caller may find it and not use it.
type holding struct{ share *heldShare }

type heldShare struct {
	from  *semaphore.Weighted
	bytes atomic.Int64
}

func (s *heldShare) release() {
	if n := s.bytes.Swap(0); n > 0 {
		s.from.Release(n)
	}
}

// hold takes bytes of HeldBytesMax; nil where they are not to be had.
func (c *Cache) hold(bytes int64) *holding {
	if bytes > c.opts.PrefetchBytes || !c.held.TryAcquire(bytes) {
		return nil
	}
	share := &heldShare{from: c.held}
	share.bytes.Store(bytes)
	h := &holding{share}
	runtime.AddCleanup(h, (*heldShare).release, share)
	return h
}

func (h *holding) release() {
	if h != nil {
		h.share.release()
	}
}

// Lookup gives the extents of the entry key that overlap the range, both ends
// inclusive, by time and without overlaps. Small ones are fetched and checked whole, of larger ones the first part
// is and the others are looked for. It fails at nothing: what cannot be had within
// LookupTimeout is not there.
func (c *Cache) Lookup(ctx context.Context, key string, startMS, endMS int64) []Extent {
	if len(key) > c.opts.KeyBytesMax || startMS > endMS {
		c.met.lookups.of("miss").Inc()
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.opts.LookupTimeout)
	defer cancel()
	base := storeKey(key)
	extents, err := c.manifest(ctx, base, key)
	if err != nil {
		c.met.unused.of(reason(err)).Inc()
	}
	now := c.opts.Now()
	extents = slices.DeleteFunc(extents, func(e extent) bool {
		if !e.overlaps(startMS, endMS) {
			return true
		}
		if !e.valid(now, c.opts.TTL) {
			c.met.unused.of("expired").Inc()
			return true
		}
		return false
	})
	found := disjoint(c.loadAll(ctx, base, key, extents), startMS, endMS)
	c.met.lookups.of(coverage(found, startMS, endMS)).Inc()
	return found
}

// manifest gives the extents of an entry, none where there is no such entry.
func (c *Cache) manifest(ctx context.Context, base, key string) ([]extent, error) {
	value, err := c.store.get(ctx, base)
	if err != nil || value == nil {
		return nil, err
	}
	return decodeManifest(value, key)
}

// loadAll makes what the caller gets of the extents, without those that failed.
func (c *Cache) loadAll(ctx context.Context, base, key string, extents []extent) []Extent {
	loaded := make([]Extent, len(extents))
	load := func(i int) {
		e := &extents[i]
		parts, held, err := c.load(ctx, base, e)
		if err != nil {
			held.release()
			c.met.unused.of(reason(err)).Inc()
			if errors.Is(err, errMissing) || errors.Is(err, errCorrupt) {
				c.forget(base, key, e.id)
			}
			return
		}
		loaded[i] = Extent{
			StartMS: e.startMS, EndMS: e.endMS, HeldStartMS: e.startMS, HeldEndMS: e.endMS, StepMS: e.stepMS,
			WrittenAt: time.UnixMilli(e.writtenMS), Bytes: e.rawBytes(), cache: c, base: base, key: key, ext: e, parts: parts, held: held,
		}
	}
	if c.local || len(extents) == 1 {
		for i := range extents {
			load(i)
		}
	} else {
		var wait sync.WaitGroup
		for i := range extents {
			wait.Go(func() { load(i) })
		}
		wait.Wait()
	}
	return slices.DeleteFunc(loaded, func(e Extent) bool { return e.ext == nil })
}

// load fetches what is to be fetched in advance. held is also given with an error.
func (c *Cache) load(ctx context.Context, base string, e *extent) (parts [][]byte, held *holding, err error) {
	parts = make([][]byte, len(e.parts))
	if e.inline != nil {
		parts[0], err = openPart(e.inline, e.id, 0, e.parts[0].storedBytes)
		return parts, nil, err
	}
	fetch := len(parts)
	if held = c.hold(e.storedBytes()); held == nil {
		fetch = 1
	}
	if c.local || fetch == 1 {
		for i := range fetch {
			if parts[i], err = c.part(ctx, base, e, i); err != nil {
				return nil, held, err
			}
		}
	} else {
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(fetchesMax)
		for i := range fetch {
			group.Go(func() (err error) {
				parts[i], err = c.part(ctx, base, e, i)
				return err
			})
		}
		if err := group.Wait(); err != nil {
			return nil, held, err
		}
	}
	return parts, held, c.lookFor(ctx, base, e, fetch)
}

// lookFor checks that the parts from one on are there, not what they hold.
func (c *Cache) lookFor(ctx context.Context, base string, e *extent, from int) error {
	left := len(e.parts) - from
	if left == 0 {
		return nil
	}
	keys := make([]string, 0, min(left, presenceMax))
	for i := range cap(keys) {
		keys = append(keys, partKey(base, e.id, from+i*left/cap(keys)))
	}
	has, err := c.store.hasAll(ctx, keys)
	if err == nil && !has {
		err = fmt.Errorf("a part of %d: %w", len(e.parts), errMissing)
	}
	return err
}

// part fetches part i of an extent and checks it. The blocks are shared immutable.
func (c *Cache) part(ctx context.Context, base string, e *extent, i int) (blocks []byte, err error) {
	value, err := c.store.get(ctx, partKey(base, e.id, i))
	if err != nil {
		return nil, err
	}
	if value == nil {
		return nil, fmt.Errorf("part %d of %d: %w", i, len(e.parts), errMissing)
	}
	return openPart(value, e.id, i, e.parts[i].storedBytes)
}

// disjoint gives every extent the range it is to be used for: the longest keep what
// they have, the others what is left between them. Of all the longer extents none
// lies inside a shorter one, so what is left is one range.
func disjoint(extents []Extent, startMS, endMS int64) []Extent {
	slices.SortStableFunc(extents, func(a, b Extent) int {
		return cmp.Compare(b.HeldEndMS-b.HeldStartMS, a.HeldEndMS-a.HeldStartMS)
	})
	kept := extents[:0]
	for _, e := range extents {
		step := max(e.StepMS, 1)
		for _, longer := range kept {
			switch {
			case longer.HeldStartMS > e.EndMS || longer.HeldEndMS < e.StartMS:
			case longer.HeldStartMS <= e.StartMS: // the first time of e's grid behind it
				e.StartMS = e.HeldStartMS + (longer.HeldEndMS-e.HeldStartMS)/step*step + step
			default: // the last time of e's grid before it
				e.EndMS = e.HeldStartMS + (longer.HeldStartMS-1-e.HeldStartMS)/step*step
			}
		}
		if e.StartMS <= e.EndMS {
			kept = append(kept, e)
		}
	}
	clear(extents[len(kept):])
	extents = kept
	for i := range extents {
		extents[i].StartMS, extents[i].EndMS = max(extents[i].StartMS, startMS), min(extents[i].EndMS, endMS)
	}
	extents = slices.DeleteFunc(extents, func(e Extent) bool { return e.StartMS > e.EndMS })
	slices.SortFunc(extents, func(a, b Extent) int { return cmp.Compare(a.StartMS, b.StartMS) })
	return extents
}

// coverage words how much of the range the extents cover.
func coverage(extents []Extent, startMS, endMS int64) string {
	if len(extents) == 0 {
		return "miss"
	}
	next := startMS
	for _, e := range extents {
		if e.StartMS > next {
			return "partial"
		}
		next = e.EndMS + max(e.StepMS, 1)
	}
	if next <= endMS {
		return "partial"
	}
	return "hit"
}
