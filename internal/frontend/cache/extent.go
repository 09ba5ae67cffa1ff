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

// errMissing means that the store does not have a part that the manifest names.
var errMissing = errors.New("missing")

const (
	fetchesMax  = 8   // parts of one extent fetched at once
	presenceMax = 256 // parts of one extent whose presence is checked; of more parts, a sample
)

// Extent is a stored response that Lookup found.
type Extent struct {
	// StartMS and EndMS, both inclusive, are the range of the points to use. It lies within the
	// requested range and does not overlap the ranges of the other extents.
	StartMS, EndMS int64
	// StoredStartMS and StoredEndMS, both inclusive, are the range that was given to the Writer.
	// The stream may have points outside StartMS and EndMS, which the caller must cut off. There are
	// no such points if the two ranges are equal and the Writer got only points of its range.
	StoredStartMS, StoredEndMS int64
	StepMS                     int64 // 0: no fixed step
	WrittenAt                  time.Time
	// Bytes is the length of the stream.
	Bytes int64

	cache *Cache
	base  string // key of the manifest in the store
	key   string
	ext   *extent
	parts [][]byte // blocks by part; nil: not fetched, or in the spill file; shared, immutable
	// held is the extent's share of HeldBytesMax or SpilledBytesMax; nil: no share taken.
	held *heldBudget
}

// Bounds returns StartMS and EndMS.
func (e Extent) Bounds() (startMS, endMS int64) { return e.StartMS, e.EndMS }

// ID identifies the stored bytes: every Writer's extent has another ID.
func (e Extent) ID() uint64 { return e.ext.id }

// Length returns Bytes.
func (e Extent) Length() int64 { return e.Bytes }

// whole reports whether all bytes of the extent have been fetched and checked, so
// that its stream cannot end with ErrGone.
func (e *Extent) whole() bool {
	return e.held.spilled() || !slices.ContainsFunc(e.parts, func(p []byte) bool { return p == nil })
}

// Release releases an extent that is not opened. It may be called repeatedly.
func (e Extent) Release() { e.held.release() }

// Open fetches all stored bytes and returns them as a stream, a *Reader. The bytes are in memory,
// or in a temporary file if HeldBytesMax is reached, so the stream no longer depends on the store.
// Open returns ErrGone if a part is missing, has changed or does not arrive within WholeTimeout, if
// there is no space for it, or if ctx has ended. The extent is released on an error and by the
// Reader's Close.
func (e Extent) Open(ctx context.Context) (io.ReadCloser, error) {
	err := ctx.Err()
	if err == nil && !e.whole() {
		if err = e.complete(ctx); err != nil {
			e.cache.met.unused.of(reason(err)).Inc()
			// A store that is too slow for this reader is too slow for the next one, so the extent
			// is removed.
			if ctx.Err() == nil && !errors.Is(err, errNoSpace) && !errors.Is(err, ErrUnavailable) {
				e.cache.removeExtent(e.base, e.key, e.ext.id)
			}
		}
	}
	if err != nil {
		e.held.release()
		return nil, fmt.Errorf("%w: %w", ErrGone, err)
	}
	return newReader(ctx, &e), nil
}

// errNoSpace is returned for an extent for which neither memory nor disk has space.
var errNoSpace = errors.New("no space to hold the extent")

// complete fetches the parts that are not fetched yet.
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

// heldBudget is an extent's share of HeldBytesMax (then file is nil), or its share of
// SpilledBytesMax and its file. The share is returned by release, or when the heldBudget is garbage
// collected.
type heldBudget struct {
	share *heldShare
	file  *os.File
	parts []fileRange // where file has the blocks, by part
}

// fileRange is where a part's blocks are in a file: offset and length.
type fileRange struct{ at, bytes int64 }

type heldShare struct {
	from  *semaphore.Weighted
	bytes atomic.Int64
}

func (s *heldShare) release() {
	if n := s.bytes.Swap(0); n > 0 {
		s.from.Release(n)
	}
}

func newHeldBudget(from *semaphore.Weighted, bytes int64) *heldBudget {
	if !from.TryAcquire(bytes) {
		return nil
	}
	share := &heldShare{from: from}
	share.bytes.Store(bytes)
	h := &heldBudget{share: share}
	runtime.AddCleanup(h, (*heldShare).release, share)
	return h
}

// hold takes a share of HeldBytesMax; nil if too few bytes are left.
func (c *Cache) hold(bytes int64) *heldBudget { return newHeldBudget(c.held, bytes) }

// spill takes a share of SpilledBytesMax and creates an unlinked file for it.
func (c *Cache) spill(bytes int64, parts int) (*heldBudget, error) {
	h := newHeldBudget(c.spilled, bytes)
	if h == nil {
		return nil, fmt.Errorf("%w: %d bytes", errNoSpace, bytes)
	}
	file, err := os.CreateTemp(c.opts.SpillDir, "ferula-cache-*")
	if err != nil {
		h.release()
		return nil, fmt.Errorf("%w: %w", errNoSpace, err)
	}
	if err := os.Remove(file.Name()); err != nil { // the space is freed on close, also if the process dies
		h.release()
		return nil, errors.Join(fmt.Errorf("%w: %w", errNoSpace, err), file.Close())
	}
	h.file, h.parts = file, make([]fileRange, parts)
	return h, nil
}

// spilled reports whether the parts are in a file.
func (h *heldBudget) spilled() bool { return h != nil && h.file != nil }

// write writes the blocks of a part to the file at offset at.
func (h *heldBudget) write(part int, at int64, blocks []byte) error {
	if _, err := h.file.WriteAt(blocks, at); err != nil {
		return fmt.Errorf("%w: %w", errNoSpace, err)
	}
	h.parts[part] = fileRange{at, int64(len(blocks))}
	return nil
}

// read reads the blocks of a part from the file, into scratch if it is large enough.
func (h *heldBudget) read(part int, scratch []byte) ([]byte, error) {
	s := h.parts[part]
	if int64(cap(scratch)) < s.bytes {
		scratch = make([]byte, s.bytes)
	}
	scratch = scratch[:s.bytes]
	_, err := h.file.ReadAt(scratch, s.at)
	return scratch, err
}

func (h *heldBudget) release() {
	if h == nil {
		return
	}
	h.share.release()
	if h.file != nil {
		_ = h.file.Close() // it is unlinked and needs no flush
	}
}

// Lookup returns the extents stored under key that overlap the range, both ends inclusive. They are sorted by time, and
// StartMS and EndMS of the extents do not overlap. Small extents are fetched and checked whole. Of a larger extent only
// the first part is fetched, and the presence of the other parts is checked. An extent is a miss if this fails or
// exceeds LookupTimeout.
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

// manifest returns the extents of an entry; none if the entry does not exist.
func (c *Cache) manifest(ctx context.Context, base, key string) ([]extent, error) {
	value, err := c.store.get(ctx, base)
	if err != nil || value == nil {
		return nil, err
	}
	return decodeManifest(value, key)
}

// loadAll loads the extents and drops those that failed.
func (c *Cache) loadAll(ctx context.Context, base, key string, extents []extent) []Extent {
	loaded := make([]Extent, len(extents))
	load := func(i int) {
		e := &extents[i]
		parts, held, err := c.load(ctx, base, e)
		if err != nil {
			held.release()
			c.met.unused.of(reason(err)).Inc()
			if errors.Is(err, errMissing) || errors.Is(err, errCorrupt) {
				c.removeExtent(base, key, e.id)
			}
			return
		}
		loaded[i] = Extent{
			StartMS: e.startMS, EndMS: e.endMS, StoredStartMS: e.startMS, StoredEndMS: e.endMS, StepMS: e.stepMS,
			WrittenAt: time.UnixMilli(e.writtenMS), Bytes: e.rawBytes(), cache: c, base: base, key: key, ext: e, parts: parts,
			held: held,
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

// load fetches the parts of an extent as Lookup describes. The caller must release held even after
// an error.
func (c *Cache) load(ctx context.Context, base string, e *extent) (parts [][]byte, held *heldBudget, err error) {
	parts = make([][]byte, len(e.parts))
	if e.inline != nil {
		parts[0], err = openPart(e.inline, e.id, 0, e.parts[0].storedBytes)
		return parts, nil, err
	}
	fetch := len(parts) // number of parts to fetch now
	if !c.local {       // a local store's values are not copies and live as long as they are referenced
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

// lookFor checks that the store has the parts number from and later, without reading them. Of more
// than presenceMax parts it checks a sample. A missing part is errMissing.
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

// part fetches part i of an extent and checks it. The blocks are shared and immutable.
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

// disjoint sets StartMS and EndMS of the extents so that they do not overlap. The longer of two
// overlapping extents keeps its range. The shorter one keeps the steps outside the longer one:
// these are one range, because a longer extent cannot lie inside a shorter one. An extent without
// steps left is dropped.
//
// For example, with a step of 1 m, extents of 10:00–12:00 and 11:30–12:30 become 10:00–12:00 and
// 12:01–12:30.
func disjoint(extents []Extent, startMS, endMS int64) []Extent {
	slices.SortStableFunc(extents, func(a, b Extent) int {
		return cmp.Compare(b.StoredEndMS-b.StoredStartMS, a.StoredEndMS-a.StoredStartMS)
	})
	kept := extents[:0]
	for _, e := range extents {
		step := max(e.StepMS, 1)
		for _, longer := range kept {
			switch {
			case longer.StoredStartMS > e.EndMS || longer.StoredEndMS < e.StartMS:
			case longer.StoredStartMS <= e.StartMS: // e begins at its first step after longer
				e.StartMS = e.StoredStartMS + (longer.StoredEndMS-e.StoredStartMS)/step*step + step
			default: // e ends at its last step before longer
				e.EndMS = e.StoredStartMS + (longer.StoredStartMS-1-e.StoredStartMS)/step*step
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

// coverage returns the lookup's result label: hit, partial or miss.
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
