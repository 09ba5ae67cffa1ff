package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
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

// whole tells whether all the bytes of the extent have been fetched and checked, so
// that its stream cannot end with ErrGone.
func (e *Extent) whole() bool {
	return e.held.spilled() || !slices.ContainsFunc(e.parts, func(p []byte) bool { return p == nil })
}

// Release gives up an extent that is not opened. It may be called again.
func (e Extent) Release() { e.held.release() }

// Open gives the stored bytes as a stream, a *Reader, once all of them are here: in
// memory, up to HeldBytesMax for all extents, or else in a temporary file. Whatever
// happens to the store afterwards, the stream goes on. Where a part is gone, is not
// what it was, or does not come within WholeTimeout, Open gives ErrGone, and so it does
// where there is no room or ctx has ended. The extent is released with an error, and by
// the Reader's Close.
func (e Extent) Open(ctx context.Context) (io.ReadCloser, error) {
	err := ctx.Err()
	if err == nil && !e.whole() {
		if err = e.complete(ctx); err != nil {
			e.cache.met.unused.of(reason(err)).Inc()
			// A store too slow for this one is too slow for the next who wants it.
			if ctx.Err() == nil && !errors.Is(err, errNoRoom) && !errors.Is(err, ErrUnavailable) {
				e.cache.forget(e.base, e.key, e.ext.id)
			}
		}
	}
	if err != nil {
		e.held.release()
		return nil, fmt.Errorf("%w: %w", ErrGone, err)
	}
	return newReader(ctx, &e), nil
}

// errNoRoom is an extent that neither memory nor the disk has room for.
var errNoRoom = errors.New("no room to hold it")

// complete fetches the parts that are not here.
func (e *Extent) complete(ctx context.Context) error {
	if e.held == nil {
		if e.held = e.cache.hold(e.ext.storedBytes()); e.held == nil {
			var err error
			if e.held, err = e.cache.spill(e.ext.storedBytes(), len(e.parts)); err != nil {
				return err
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, e.cache.opts.WholeTimeout)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(fetchesMax)
	parts, next := slices.Clone(e.parts), int64(0)
	for i, part := range e.ext.parts {
		at := next
		next += int64(part.storedBytes)
		group.Go(func() (err error) {
			if parts[i] == nil {
				ctx, cancel := context.WithTimeout(ctx, e.cache.opts.GetTimeout)
				defer cancel()
				if parts[i], err = e.cache.part(ctx, e.base, e.ext, i); err != nil {
					return err
				}
			}
			if e.held.spilled() {
				err = e.held.write(i, at, parts[i])
				parts[i] = nil
			}
			return err
		})
	}
	err := group.Wait()
	e.parts = parts
	return err
}

// holding is what an extent has of HeldBytesMax or of SpilledBytesMax, and the file
// it has then. It ends when the reader is closed, with Release, or when nobody has
// the extent any more.
type holding struct {
	share *heldShare
	file  *os.File
	parts []stretch // of the file, by part
}

// stretch is where the blocks of a part stand in a file.
type stretch struct{ at, bytes int64 }

type heldShare struct {
	from  *semaphore.Weighted
	bytes atomic.Int64
}

func (s *heldShare) release() {
	if n := s.bytes.Swap(0); n > 0 {
		s.from.Release(n)
	}
}

func newHolding(from *semaphore.Weighted, bytes int64) *holding {
	if !from.TryAcquire(bytes) {
		return nil
	}
	share := &heldShare{from: from}
	share.bytes.Store(bytes)
	h := &holding{share: share}
	runtime.AddCleanup(h, (*heldShare).release, share)
	return h
}

// hold takes bytes of HeldBytesMax; nil where they are not to be had.
func (c *Cache) hold(bytes int64) *holding { return newHolding(c.held, bytes) }

// spill takes bytes of SpilledBytesMax and a file for them, which has no name.
func (c *Cache) spill(bytes int64, parts int) (*holding, error) {
	h := newHolding(c.spilled, bytes)
	if h == nil {
		return nil, fmt.Errorf("%w: %d bytes", errNoRoom, bytes)
	}
	file, err := os.CreateTemp(c.opts.SpillDir, "ferula-cache-*")
	if err != nil {
		h.release()
		return nil, fmt.Errorf("%w: %w", errNoRoom, err)
	}
	if err := os.Remove(file.Name()); err != nil { // it goes with its last reader, also if the process dies
		h.release()
		return nil, errors.Join(fmt.Errorf("%w: %w", errNoRoom, err), file.Close())
	}
	h.file, h.parts = file, make([]stretch, parts)
	return h, nil
}

// spilled tells whether the parts are in a file.
func (h *holding) spilled() bool { return h != nil && h.file != nil }

// write puts the blocks of a part where it is in the file.
func (h *holding) write(part int, at int64, blocks []byte) error {
	if _, err := h.file.WriteAt(blocks, at); err != nil {
		return fmt.Errorf("%w: %w", errNoRoom, err)
	}
	h.parts[part] = stretch{at, int64(len(blocks))}
	return nil
}

// read gives the blocks of a part from the file, in scratch if it is large enough.
func (h *holding) read(part int, scratch []byte) ([]byte, error) {
	s := h.parts[part]
	if int64(cap(scratch)) < s.bytes {
		scratch = make([]byte, s.bytes)
	}
	scratch = scratch[:s.bytes]
	_, err := h.file.ReadAt(scratch, s.at)
	return scratch, err
}

func (h *holding) release() {
	if h == nil {
		return
	}
	h.share.release()
	if h.file != nil {
		_ = h.file.Close() // it has no name and nothing to be flushed
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
	if !c.local { // what a local store gives is no copy, and stays as long as it is held
		if bytes := e.storedBytes(); bytes <= c.opts.PrefetchBytes {
			held = c.hold(bytes)
		}
		if held == nil {
			fetch = 1
		}
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
