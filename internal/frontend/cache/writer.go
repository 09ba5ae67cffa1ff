package cache

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"

	"github.com/klauspost/compress/s2"
)

// Writer takes the bytes of one response, compresses them and holds them until Commit. It never fails and never
// waits. Use Cache.Writer. One goroutine writes, and ends with either Commit or Abort.
type Writer struct {
	cache *Cache
	key   string
	base  string
	head  head

	s2      *s2.Writer // compresses into part; nil: the response is stored as it is
	parts   [][]byte   // full parts, each with space for its header
	part    []byte     // the current part
	charged int64      // of InFlightBytesMax
	lost    string     // why the response is not stored; "": it will be
	ended   bool
}

// Results of a Writer, for the metric.
const (
	resultStored    = "stored"
	resultAborted   = "aborted"    // by the caller, or nothing was written
	resultSlow      = "slow"       // InFlightBytesMax is reached: the store is slower than responses arrive
	resultQueueFull = "queue-full" // no space in the queue of the workers
	resultTooLarge  = "too-large"  // for the cache or its store; also an invalid key or range
	resultStore     = "store"      // the store failed
	resultOutdated  = "outdated"   // a stored response has all its steps and more
)

// Writer returns a Writer of a response for the value under key. startMS and endMS are inclusive. The timestamps of
// the response are startMS, startMS+stepMS, …; stepMS 0 means no fixed step. Its age counts from this call.
func (c *Cache) Writer(key string, startMS, endMS, stepMS int64) *Writer {
	w := &Writer{cache: c, key: key, base: storeKey(key), head: head{
		//lint:ignore gosec the number only tells writers apart
		id: rand.Uint64(), startMS: startMS, endMS: endMS, stepMS: stepMS, writtenMS: c.opts.Now().UnixMilli(),
	}}
	if len(key) > c.keyBytesMax || startMS > endMS || stepMS < 0 {
		w.lose(resultTooLarge)
		return w
	}
	if !c.local {
		w.head.codec = codecS2
		w.s2 = s2Writers.Get().(*s2.Writer)
		w.s2.Reset(partsWriter{w})
	}
	return w
}

// lose drops the response; the first result counts.
func (w *Writer) lose(result string) {
	if w.lost == "" {
		w.lost = result
	}
	w.parts, w.part = nil, nil
	w.cache.inFlight.Release(w.charged)
	w.charged = 0
	if w.s2 != nil {
		w.s2.Reset(nil)
		s2Writers.Put(w.s2)
		w.s2 = nil
	}
}

// Write takes all of p, always. It does not retain p.
func (w *Writer) Write(p []byte) (int, error) {
	if w.lost != "" || w.ended {
		return len(p), nil
	}
	w.head.rawBytes += int64(len(p))
	var err error
	if w.s2 != nil {
		_, err = w.s2.Write(p)
	} else {
		_, err = partsWriter{w}.Write(p)
	}
	w.failed(err)
	return len(p), nil
}

// lostError is the result with which a partsWriter fails.
type lostError string

func (e lostError) Error() string { return string(e) }

func (w *Writer) failed(err error) {
	if lost := lostError(resultStore); err != nil {
		errors.As(err, &lost)
		w.lose(string(lost))
	}
}

// partsWriter appends the compressed response to the parts of a Writer.
type partsWriter struct{ w *Writer }

func (p partsWriter) Write(data []byte) (int, error) {
	w, size := p.w, len(data)
	for len(data) > 0 {
		if len(w.part) == w.cache.opts.PartBytes {
			w.parts, w.part = append(w.parts, w.part), nil
		}
		if w.part == nil {
			begin := headerBytes
			if len(w.parts) == 0 {
				begin = headBytes + len(w.key)
			}
			if err := w.grow(begin + len(data)); err != nil {
				return 0, err
			}
			w.part = w.part[:begin]
		}
		if err := w.grow(len(w.part) + len(data)); err != nil {
			return 0, err
		}
		n := min(len(data), cap(w.part)-len(w.part))
		w.part, data = append(w.part, data[:n]...), data[n:]
	}
	return size, nil
}

// grow makes the current part larger, so that it has space for size bytes, or PartBytes if that is less.
func (w *Writer) grow(size int) error {
	limit := w.cache.opts.PartBytes
	if size = min(size, limit); size <= cap(w.part) {
		return nil
	}
	if size = min(max(size, 2*cap(w.part)), limit); len(w.parts) > 0 {
		size = limit
	}
	more := int64(size - cap(w.part))
	switch {
	case int64(len(w.parts)*limit+size) > w.cache.opts.EntryBytesMax || len(w.parts) == partsMax:
		return lostError(resultTooLarge)
	case !w.cache.inFlight.TryAcquire(more):
		return lostError(resultSlow)
	}
	w.charged += more
	w.part = append(make([]byte, 0, size), w.part...)
	return nil
}

// Commit stores the response. It is visible at once in a store in this process, unless it extends the stored one, and
// after the background writes otherwise.
func (w *Writer) Commit() {
	if w.ended {
		return
	}
	w.seal()
	w.ended = true
	c := w.cache
	switch {
	case w.lost != "":
		c.met.extents.of(w.lost).Inc()
	case c.local && !w.extendsStored():
		w.store(c.background)
	case !c.enqueue(w.store):
		w.lose(resultQueueFull)
		c.met.extents.of(w.lost).Inc()
	}
}

// Abort drops the response. After Commit it does nothing.
func (w *Writer) Abort() {
	if !w.ended {
		w.ended = true
		w.lose(resultAborted)
		w.cache.met.extents.of(w.lost).Inc()
	}
}

// seal ends the last part and writes the headers of all.
func (w *Writer) seal() {
	if w.s2 != nil {
		w.failed(w.s2.Close())
	}
	if w.head.rawBytes == 0 {
		w.lose(resultAborted)
	}
	if w.lost != "" {
		return
	}
	if w.s2 != nil {
		w.s2.Reset(nil)
		s2Writers.Put(w.s2)
		w.s2 = nil
	}
	w.parts, w.part = append(w.parts, bytes.Clone(w.part)), nil // without the space behind it
	w.head.seal(w.parts, w.key)
}

// extends reports whether the response is to be joined with the stored one.
func (w *Writer) extends(old *Extent) bool {
	return old != nil && w.cache.opts.Merge != nil && old.head.touches(&w.head) &&
		!w.head.covers(&old.head) && !old.head.covers(&w.head)
}

func (w *Writer) extendsStored() bool {
	old := w.cache.load(w.cache.background, w.base, w.key)
	defer old.Release()
	return w.extends(old)
}

// store writes the response, or the union of it and the stored response. It runs in a worker, and in the goroutine
// of Commit if there is nothing to wait for.
func (w *Writer) store(ctx context.Context) {
	c := w.cache
	defer func() {
		result := w.lost
		w.lose(resultStored)
		if result == "" {
			result = resultStored
		}
		c.met.extents.of(result).Inc()
	}()
	lock := c.lock(w.base)
	lock.Lock()
	defer lock.Unlock()
	stored, old := w, c.load(ctx, w.base, w.key)
	defer old.Release()
	switch {
	case w.extends(old):
		if union := w.join(ctx, old); union != nil {
			defer union.lose(resultStored)
			stored = union
		}
	case old != nil && old.head.covers(&w.head) && !w.head.covers(&old.head) && old.complete(ctx) == nil:
		w.lost = resultOutdated
		return
	}
	// The first part is written last: it has the number of the others.
	for i := len(stored.parts) - 1; i >= 0; i-- {
		if err := c.set(ctx, partKey(w.base, i), stored.parts[i]); err != nil {
			w.lost = resultStore
			if errors.Is(err, ErrTooLarge) {
				w.lost = resultTooLarge
			}
			return
		}
	}
}

// join returns a sealed writer of the union of the response and the stored one, which it releases. The response wins
// where both have steps. It returns nil if they cannot be joined.
func (w *Writer) join(ctx context.Context, old *Extent) *Writer {
	c, step := w.cache, w.head.step()
	ctx, cancel := context.WithTimeout(ctx, c.opts.MergeTimeout)
	defer cancel()
	result := "merged"
	defer func() { c.met.merges.of(result).Inc() }()
	before, err := old.Open(ctx)
	if err != nil {
		result = reason(err)
		return nil
	}
	//lint:ignore errcheck everything that is wanted was read
	defer before.Close()
	written := &Extent{cache: c, base: w.base, head: w.head, data: w.data()}
	now := newReader(written)
	//lint:ignore errcheck everything that is wanted was read
	defer now.Close()
	union := c.Writer(w.key, min(old.head.startMS, w.head.startMS), max(old.head.endMS, w.head.endMS), w.head.stepMS)
	union.head.writtenMS = min(old.head.writtenMS, w.head.writtenMS) // it expires with its oldest steps
	var sources []Source
	if old.head.startMS < w.head.startMS {
		sources = append(sources, Source{before, old.head.startMS, w.head.startMS - step})
	}
	sources = append(sources, Source{now, w.head.startMS, w.head.endMS})
	if len(sources) == 1 {
		sources = append(sources, Source{before, w.head.endMS + step, old.head.endMS})
	}
	if err = c.opts.Merge(ctx, union, sources); err == nil {
		union.seal()
	}
	if err != nil || union.lost != "" {
		if result = union.lost; err != nil {
			result = reason(err)
			c.log.Debug("Failed to join a response with the stored one", "err", err)
		}
		union.lose(resultAborted)
		return nil
	}
	return union
}

func (w *Writer) data() [][]byte {
	data := [][]byte{w.parts[0][headBytes+len(w.key):]}
	for _, p := range w.parts[1:] {
		data = append(data, p[headerBytes:])
	}
	return data
}
