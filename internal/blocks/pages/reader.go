package pages

import (
	"context"
	"fmt"
	"time"
)

// Reader reads objects of one cache. It pins the pages of the slices that it returns until
// Release. It is not safe for concurrent use.
type Reader struct {
	cache  *Cache
	pinned []int32
	arena  []byte // copies of ranges that span several pages

	object *Object // object, number and page are the page that At returned last
	number int64
	page   []byte
}

// Reader returns a reader of the cache that the object is in.
func (o *Object) Reader() *Reader { return o.cache.Reader() }

// Reader returns a reader. The caller calls Release when it is done.
func (c *Cache) Reader() *Reader { return &Reader{cache: c} }

// Release makes the returned slices invalid.
func (r *Reader) Release() {
	if len(r.pinned) > 0 {
		r.cache.unpin(r.pinned)
		r.pinned = r.pinned[:0]
	}
	r.object, r.page, r.arena = nil, nil, r.arena[:0]
}

// At returns the bytes from off to the end of their page, at least one, borrowed until
// Release.
func (r *Reader) At(ctx context.Context, o *Object, off int64) ([]byte, error) {
	if off < 0 || off >= o.size {
		return nil, fmt.Errorf("object %s: %w: byte %d of %d", o.name, ErrShort, off, o.size)
	}
	if number := off / Bytes; o != r.object || number != r.number {
		page, err := r.pin(ctx, o, number, false)
		if err != nil {
			return nil, err
		}
		r.object, r.number, r.page = o, number, page
	}
	return r.page[off%Bytes:], nil
}

// Bytes returns n bytes from off on, borrowed until Release.
func (r *Reader) Bytes(ctx context.Context, o *Object, off int64, n int) ([]byte, error) {
	if n < 0 || off < 0 || off > o.size || int64(n) > o.size-off {
		return nil, fmt.Errorf("object %s: %w: bytes %d to %d of %d", o.name, ErrShort, off, off+int64(n), o.size)
	}
	if n == 0 {
		return nil, nil
	}
	part, err := r.At(ctx, o, off)
	if err != nil {
		return nil, err
	}
	if len(part) >= n {
		return part[:n:n], nil
	}
	start := len(r.arena)
	for {
		take := min(n, len(part))
		r.arena = append(r.arena, part[:take]...)
		if n, off = n-take, off+int64(take); n == 0 {
			return r.arena[start:len(r.arena):len(r.arena)], nil
		}
		if part, err = r.At(ctx, o, off); err != nil {
			return nil, err
		}
	}
}

// cached returns a page if it is present; nil if it is not.
func (r *Reader) cached(o *Object, number int64) []byte {
	c := r.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	i, ok := c.byKey[o.key(number)]
	if !ok || c.slots[i].loading != nil || c.closed {
		return nil
	}
	c.pin(i)
	r.pinned = append(r.pinned, i)
	return c.bytes(i)
}

// pin pins a page and returns its bytes. It reads the page if it is missing, and waits for a slot up to
// Options.WaitMax. missed means that the caller has already counted the miss.
func (r *Reader) pin(ctx context.Context, o *Object, number int64, missed bool) ([]byte, error) {
	c := r.cache
	var deadline <-chan time.Time
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return nil, ErrClosed
		}
		key := o.key(number)
		i, ok := c.byKey[key]
		if ok && c.slots[i].loading == nil {
			c.pin(i)
			c.mu.Unlock()
			if !missed {
				c.counts.hits.Inc()
			}
			r.pinned = append(r.pinned, i)
			return c.bytes(i), nil
		}
		var wait chan struct{}
		if ok {
			wait = c.slots[i].loading
		} else if i = c.reserve(key, o.pageSize(number)); i < 0 {
			wait = c.freed
			c.waiting++
		}
		c.mu.Unlock()
		missed = true
		if wait == nil {
			c.counts.misses.Inc()
			if err := o.read(ctx, run{first: number, slots: []int32{i}}); err != nil {
				return nil, err
			}
			continue
		}
		if deadline == nil && !ok {
			timer := time.NewTimer(c.opts.WaitMax)
			defer timer.Stop()
			deadline = timer.C
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, fmt.Errorf("object %s: %w", o.name, context.Cause(ctx))
		case <-deadline:
			return nil, fmt.Errorf("%w: no page of %d bytes became free within %s", ErrBudget, int64(len(c.slots))*Bytes,
				c.opts.WaitMax)
		}
	}
}
