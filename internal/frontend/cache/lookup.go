package cache

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
)

// fetchesMax is the limit of parts of one response that are read at once.
const fetchesMax = 8

// errNoSpace is returned for a response for which HeldBytesMax has no space.
var errNoSpace = errors.New("no space to hold the response")

// Extent is a stored response that Lookup found. It must be opened or released.
type Extent struct {
	// StartMS and EndMS, both inclusive, are the range that was given to the Writer. The stream may have points
	// outside of it, which the caller must cut off.
	StartMS, EndMS int64

	cache *Cache
	base  string // key of the first part in the store
	head  head
	data  [][]byte // the compressed response, by part; shared, immutable; only the first part before Open
	held  int64    // share of HeldBytesMax
}

// ID identifies the stored bytes: every Writer's response has another ID.
func (e *Extent) ID() uint64 { return e.head.id }

// Length is the number of bytes of the response.
func (e *Extent) Length() int64 { return e.head.rawBytes }

// Release releases an extent that is not opened. It may be called repeatedly, and on nil.
func (e *Extent) Release() {
	if e != nil {
		e.cache.held.Release(e.held)
		e.held, e.data = 0, nil
	}
}

// Lookup returns the response stored under key if it overlaps the range, both ends inclusive, else nil. It reads the
// first part only, in LookupTimeout at most. Every failure is a miss.
func (c *Cache) Lookup(ctx context.Context, key string, startMS, endMS int64) *Extent {
	var e *Extent
	if len(key) <= c.keyBytesMax && startMS <= endMS {
		e = c.load(ctx, storeKey(key), key)
	}
	result := "hit"
	switch {
	case e == nil || e.EndMS < startMS || e.StartMS > endMS:
		e.Release()
		e, result = nil, "miss"
	case e.StartMS-e.head.step() >= startMS || e.EndMS+e.head.step() <= endMS:
		result = "partial"
	}
	c.met.lookups.of(result).Inc()
	return e
}

// load reads the first part of the value at base. It returns nil if there is none or if it cannot be used.
func (c *Cache) load(ctx context.Context, base, key string) *Extent {
	e, err := c.tryLoad(ctx, base, key)
	switch {
	case err != nil:
		c.met.unused.of(reason(err)).Inc()
	case e != nil && !e.head.valid(c.opts.Now(), c.opts.TTL):
		c.met.unused.of("expired").Inc()
		e.Release()
		return nil
	}
	return e
}

func (c *Cache) tryLoad(ctx context.Context, base, key string) (*Extent, error) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.LookupTimeout)
	defer cancel()
	part, err := c.part(ctx, base, 0)
	if err != nil || part == nil {
		return nil, err
	}
	h, data, err := openHead(part, key)
	if err != nil {
		return nil, err
	}
	e := &Extent{StartMS: h.startMS, EndMS: h.endMS, cache: c, base: base, head: h, data: [][]byte{data}}
	if !c.local {
		if !c.held.TryAcquire(h.storedBytes) {
			return nil, fmt.Errorf("%w: %d bytes", errNoSpace, h.storedBytes)
		}
		e.held = h.storedBytes
	}
	return e, nil
}

// part reads a part and checks it; nil if there is none. An empty value is none: remove writes it.
func (c *Cache) part(ctx context.Context, base string, number int) ([]byte, error) {
	part, err := c.store.get(ctx, partKey(base, number))
	if err != nil || len(part) == 0 {
		return nil, err
	}
	if c.local {
		return part, nil
	}
	return part, checkPart(part, number)
}

// Open reads the other parts and returns the response as a stream, a *Reader, which no longer depends on the store.
// It returns ErrGone if a part is missing, has changed or does not arrive within WholeTimeout, or if ctx has ended.
// The extent is released on an error and by the Reader's Close.
func (e *Extent) Open(ctx context.Context) (*Reader, error) {
	if err := e.complete(ctx); err != nil {
		e.Release()
		return nil, e.gone(ctx, err)
	}
	return newReader(e), nil
}

// complete reads the parts that were not read yet.
func (e *Extent) complete(ctx context.Context) error {
	if err := ctx.Err(); err != nil || len(e.data) == e.head.parts {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, e.cache.opts.WholeTimeout)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(fetchesMax)
	data := make([][]byte, e.head.parts)
	for i := range data {
		if i == 0 {
			data[0] = e.data[0]
			continue
		}
		group.Go(func() error {
			part, err := e.cache.part(ctx, e.base, i)
			switch {
			case err != nil:
				return err
			case part == nil:
				return fmt.Errorf("part %d of %d: %w", i, e.head.parts, errMissing)
			case partID(part) != e.head.id || int64(len(part)) > e.head.storedBytes:
				return fmt.Errorf("part %d of %d: written by another writer: %w", i, e.head.parts, errMissing)
			}
			data[i] = part[headerBytes:]
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	e.data = data
	return nil
}

// remove removes a value, so that the next request writes it again, unless another response has replaced it. If it
// fails, the next reader tries again.
func (c *Cache) remove(base string, id uint64) {
	c.enqueue(func(ctx context.Context) {
		lock := c.lock(base)
		lock.Lock()
		defer lock.Unlock()
		ctx, cancel := context.WithTimeout(ctx, c.opts.SetTimeout)
		defer cancel()
		if first, err := c.part(ctx, base, 0); err == nil && first != nil && partID(first) == id {
			_ = c.set(ctx, base, nil)
		}
	})
}

func (c *Cache) set(ctx context.Context, key string, value []byte) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.SetTimeout)
	defer cancel()
	return c.store.set(ctx, key, value, c.opts.TTL)
}
