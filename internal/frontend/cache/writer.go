package cache

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"
)

// Writer takes the bytes of one response and stores them as an extent. It never fails
// and blocks its caller for Options.WriterWait at most: if the store is slower than the
// response, the extent is aborted and the remaining bytes are dropped. Use Cache.Writer.
// One goroutine writes, and ends with either Commit or Abort.
type Writer struct {
	cache *Cache
	key   string
	base  string
	ext   extent
	// replaces are the ids of the extents that this one merges. If one of them was
	// removed meanwhile, the merged extent is dropped.
	replaces []uint64

	raw     []byte        // response bytes that do not fill a block yet
	part    []byte        // the current part: space for its header, then its blocks
	partRaw int           // bytes of the response in part
	stored  int64         // compressed bytes of the parts cut so far
	charged int64         // of InFlightBytesMax, for raw and part
	wait    time.Duration // how long Write may still block, in total
	ended   bool

	jobs        atomic.Int32           // pending part writes, plus one until Commit or Abort; finish runs at 0
	abortReason atomic.Pointer[string] // why the extent was aborted
	sentTo      atomic.Int32           // the store may hold the parts with numbers below this
}

// Results of a Writer, for the metric.
const (
	resultStored    = "stored"
	resultAborted   = "aborted"    // by the caller, or nothing was written
	resultSlow      = "slow"       // InFlightBytesMax was reached for longer than WriterWait
	resultQueueFull = "queue-full" // no space in the queue of the workers
	resultTooLarge  = "too-large"  // for the cache or its store; also an invalid key or range
	resultStore     = "store"      // the store failed
	resultOutdated  = "outdated"   // a longer extent covers it, or an extent that it merges was removed
)

// Writer returns a Writer that adds an extent to the entry under key. startMS and endMS are
// inclusive. The timestamps of the extent are startMS, startMS+stepMS, …; stepMS 0 means no fixed
// step. The age of the extent counts from this call.
func (c *Cache) Writer(key string, startMS, endMS, stepMS int64) *Writer {
	w := &Writer{
		cache: c, key: key, base: storeKey(key), wait: c.opts.WriterWait,
		ext: extent{id: c.opts.NewID(), startMS: startMS, endMS: endMS, stepMS: stepMS, writtenMS: c.opts.Now().UnixMilli()},
	}
	w.jobs.Store(1)
	if len(key) > c.opts.KeyBytesMax || startMS > endMS || stepMS < 0 {
		w.markAborted(resultTooLarge)
	}
	return w
}

// Write takes all of p, always. It does not retain p.
func (w *Writer) Write(p []byte) (int, error) {
	size := w.cache.blockBytes
	for rest := p; len(rest) > 0 && !w.aborted(); {
		if len(w.raw) == 0 && len(rest) >= size {
			w.block(rest[:size])
			rest = rest[size:]
			continue
		}
		n := min(len(rest), size-len(w.raw))
		w.raw = append(w.raw, rest[:n]...)
		rest = rest[n:]
		if len(w.raw) == size {
			w.block(w.raw)
			w.raw = w.raw[:0]
		}
		w.charge()
	}
	return len(p), nil
}

// Commit stores the extent. It becomes visible at once with a local store, and after
// the background writes otherwise.
func (w *Writer) Commit() {
	if w.ended {
		return
	}
	if len(w.raw) > 0 && !w.aborted() {
		w.block(w.raw)
	}
	switch {
	case w.aborted():
	case w.partRaw == 0 && len(w.ext.parts) == 0:
		w.markAborted(resultAborted) // nothing was written
	case len(w.ext.parts) == 0 && len(w.part) <= w.cache.opts.InlineBytes:
		sealPart(w.part, w.ext.id, 0)
		w.ext.inline = w.part // the manifest copies it
		w.ext.parts = []partRef{{storedBytes: len(w.part), rawBytes: w.partRaw}}
	default:
		w.cut(w.part, w.partRaw)
	}
	w.end()
}

// Abort drops the extent. After Commit it does nothing.
func (w *Writer) Abort() {
	if w.ended {
		return
	}
	w.markAborted(resultAborted)
	w.end()
}

func (w *Writer) end() {
	w.ended = true
	w.cache.inFlight.Release(w.charged)
	w.charged, w.raw, w.part = 0, nil, nil
	if w.jobs.Add(-1) == 0 && !w.cache.enqueue(w.finish) {
		w.markAborted(resultQueueFull)
		w.count()
	}
}

func (w *Writer) aborted() bool { return w.abortReason.Load() != nil }

// markAborted marks the extent as aborted, so that no manifest is written; the first reason counts.
func (w *Writer) markAborted(why string) { w.abortReason.CompareAndSwap(nil, &why) }

// block compresses raw and appends it to the part as a block. If it does not fit, the part without
// it is sent to the store, and the block begins the next part.
func (w *Writer) block(raw []byte) {
	e := encoders.Get().(*encoder)
	defer encoders.Put(e)
	if w.part == nil {
		w.part = beginPart(nil)
	}
	before := len(w.part)
	w.part = e.appendBlock(w.part, raw, w.cache.opts.Codec)
	if len(w.part) > w.cache.opts.PartBytes && before > partHeaderBytes {
		w.cut(w.part[:before], w.partRaw)
		w.part = append(w.part[:partHeaderBytes], w.part[before:]...)
		w.partRaw = 0
	}
	w.partRaw += len(raw)
	w.charge()
}

// charge counts the writer's own buffers against InFlightBytesMax.
func (w *Writer) charge() {
	if more := int64(cap(w.raw)+cap(w.part)) - w.charged; more > 0 && w.acquire(more) {
		w.charged += more
	}
}

// acquire takes n bytes of InFlightBytesMax. It waits for w.wait at most, and subtracts the time
// from w.wait. If it fails, it aborts the extent.
func (w *Writer) acquire(n int64) bool {
	if w.cache.inFlight.TryAcquire(n) {
		return true
	}
	if w.wait > 0 && n <= w.cache.opts.InFlightBytesMax {
		begin := time.Now() // time.Now and not Options.Now, because the timer below uses the system's clock
		ctx, cancel := context.WithTimeout(w.cache.background, w.wait)
		err := w.cache.inFlight.Acquire(ctx, n)
		cancel()
		w.wait -= time.Since(begin)
		if err == nil {
			return true
		}
	}
	w.markAborted(resultSlow)
	return false
}

// cut seals a part and sends a copy of it to the store.
func (w *Writer) cut(part []byte, rawBytes int) {
	number := len(w.ext.parts)
	w.stored += int64(len(part))
	if w.stored > w.cache.opts.EntryBytesMax || number == manifestPartsMax {
		w.markAborted(resultTooLarge)
		return
	}
	sealPart(part, w.ext.id, number)
	w.ext.parts = append(w.ext.parts, partRef{storedBytes: len(part), rawBytes: rawBytes})
	value := bytes.Clone(part)
	size := int64(len(value))
	if !w.acquire(size) {
		return
	}
	w.jobs.Add(1)
	sent := w.cache.enqueue(func(ctx context.Context) {
		w.send(ctx, number, value)
		w.cache.inFlight.Release(size)
		if w.jobs.Add(-1) == 0 {
			w.finish(ctx)
		}
	})
	if !sent {
		w.cache.inFlight.Release(size)
		w.jobs.Add(-1)
		w.markAborted(resultQueueFull)
	}
}

// send stores one part.
func (w *Writer) send(ctx context.Context, number int, value []byte) {
	if w.aborted() {
		return
	}
	for { // remember the highest part, to delete all parts on abort
		highest := w.sentTo.Load()
		if int(highest) > number || w.sentTo.CompareAndSwap(highest, int32(number+1)) {
			break
		}
	}
	ctx, cancel := context.WithTimeout(ctx, w.cache.opts.SetTimeout)
	defer cancel()
	if err := w.cache.store.set(ctx, partKey(w.base, w.ext.id, number), value, w.cache.opts.TTL); err != nil {
		w.markAborted(resultOf(err))
	}
}

func resultOf(err error) string {
	if errors.Is(err, ErrTooLarge) {
		return resultTooLarge
	}
	return resultStore
}

func (w *Writer) count() {
	result := resultStored
	if lost := w.abortReason.Load(); lost != nil {
		result = *lost
	}
	w.cache.met.extents.of(result).Inc()
}

// finish runs after the last write of a part. It writes the manifest, or deletes the parts if the
// extent is aborted.
func (w *Writer) finish(ctx context.Context) {
	defer w.count()
	if !w.aborted() {
		err := w.cache.update(ctx, w.base, w.key, func(extents []extent) ([]extent, bool) {
			for _, id := range w.replaces {
				at := slices.IndexFunc(extents, func(e extent) bool { return e.id == id })
				if at < 0 {
					w.markAborted(resultOutdated)
					return nil, false
				}
				extents = slices.Delete(extents, at, at+1)
			}
			next := w.cache.insert(extents, w.ext)
			if next == nil {
				w.markAborted(resultOutdated)
			}
			return next, next != nil
		})
		if err != nil {
			w.markAborted(resultOf(err))
		}
	}
	if w.aborted() && w.sentTo.Load() > 0 {
		w.cache.deleteParts(ctx, w.base, w.ext.id, int(w.sentTo.Load()))
	}
}

// deleteParts deletes the first n parts of an extent, best effort.
func (c *Cache) deleteParts(ctx context.Context, base string, id uint64, n int) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.SetTimeout)
	defer cancel()
	for i := range n {
		if err := c.store.delete(ctx, partKey(base, id, i)); err != nil {
			return // the rest expires or is evicted
		}
	}
}
