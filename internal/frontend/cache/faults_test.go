package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	instruments "github.com/ferula-io/ferula/metrics"
)

func hang(ctx context.Context, _, _ string) error { <-ctx.Done(); return ctx.Err() }

func broken(context.Context, string, string) error { return errors.New("connection refused") }

func slow(d time.Duration) func(ctx context.Context, op, key string) error {
	return func(ctx context.Context, _, _ string) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// took returns the duration of do by the synctest bubble's clock.
func took(do func()) time.Duration {
	begin := time.Now()
	do()
	return time.Since(begin)
}

func results(c *Cache, result string) uint64 {
	return c.met.extents.of(result).Get()
}

func TestLookup_HangingStoreCostsABoundedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		c := newCache(t, store, Options{LookupTimeout: 250 * time.Millisecond, BreakerFailures: 3, BreakerBackoff: time.Second})
		put(t, c, "k", 0, 10, 10, []byte("x"))
		store.fail(hang)
		look := func() (n int, d time.Duration) {
			d = took(func() { n = len(c.Lookup(context.Background(), "k", 0, 10)) })
			return n, d
		}
		for i := range 3 {
			n, d := look()
			check(t, n == 0 && d == 250*time.Millisecond, "look-up %d found %d after %s", i, n, d)
		}
		n, d := look() // the breaker is open: the store gets no operations
		check(t, n == 0 && d == 0, "found %d after %s", n, d)
		check(t, c.met.breaker.Get() == 1, "the breaker is closed")
		time.Sleep(time.Second)
		n, d = look() // the probe
		check(t, n == 0 && d == 250*time.Millisecond, "probe: found %d after %s", n, d)
		time.Sleep(time.Second)
		n, d = look() // the back-off has doubled
		check(t, n == 0 && d == 0, "found %d after %s", n, d)
		store.fail(nil)
		time.Sleep(time.Second)
		n, d = look()
		check(t, n == 1 && d == 0, "it is back: found %d after %s", n, d)
		check(t, c.met.breaker.Get() == 0, "the breaker is open")
	})
}

func TestLookup_SlowStoreCostsABoundedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		c := newCache(t, store, Options{PartBytes: 5000, InlineBytes: 1})
		put(t, c, "k", 0, 10, 10, noise(200<<10))
		store.fail(slow(100 * time.Millisecond))
		d := took(func() { check(t, len(get(t, c, "k", 0, 10)) == 0, "found") }) // 40 parts, 8 at once
		check(t, d == 250*time.Millisecond, "took %s", d)
		store.fail(slow(10 * time.Millisecond))
		d = took(func() { check(t, len(get(t, c, "k", 0, 10)) == 1, "not found") })
		check(t, d <= 100*time.Millisecond, "took %s", d)
	})
}

func TestWriter_HangingStoreDoesNotBlockTheQuery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		store.fail(hang)
		c := newCache(t, store, Options{InFlightBytesMax: 2 << 20, WriterWait: 50 * time.Millisecond})
		text := noise(64 << 10)
		d := took(func() {
			w := c.Writer("k", 0, 10, 10)
			for range 1000 {
				n, err := w.Write(text)
				check(t, n == len(text) && err == nil, "write: %d, %v", n, err)
			}
			w.Commit()
		})
		check(t, d <= 50*time.Millisecond, "held up for %s", d)
		flush(t, c)
		check(t, results(c, resultSlow)+results(c, resultStore) == 1 && results(c, resultStored) == 0, "not given up")
		check(t, c.inFlight.TryAcquire(2<<20), "bytes are still in flight")
		c.inFlight.Release(2 << 20)
	})
}

func TestLookup_FailingStoreIsAMiss(t *testing.T) {
	store := newFakeStore()
	store.fail(broken)
	c := newCache(t, store, Options{PartBytes: 5000, BreakerFailures: 1 << 30})
	put(t, c, "k", 0, 10, 10, noise(100<<10))
	check(t, len(get(t, c, "k", 0, 10)) == 0, "found")
	check(t, results(c, resultStore) == 1, "not counted")
	put(t, c, "small", 0, 10, 10, []byte("x"))
	check(t, len(get(t, c, "small", 0, 10)) == 0, "found")
	store.fail(nil)
	put(t, c, "k", 0, 10, 10, noise(100<<10))
	check(t, len(get(t, c, "k", 0, 10)) == 1, "not found")
}

// If any operation of a write fails, readers find the whole response or none.
func TestWriter_FailedWriteIsAMiss(t *testing.T) {
	for at := 0; ; at++ {
		store := newFakeStore()
		var n, failed atomic.Int64
		store.fail(func(context.Context, string, string) error {
			if n.Add(1) == int64(at+1) {
				failed.Store(1)
				return errors.New("reset")
			}
			return nil
		})
		c := newCache(t, store, Options{PartBytes: 5000, InlineBytes: 1, Workers: 1})
		put(t, c, "k", 0, 10, 10, noise(30_000))
		done := failed.Load() == 0
		store.fail(nil)
		found := get(t, c, "k", 0, 10)
		check(t, len(found) == 0 || len(found[0]) > 30_000, "operation %d failed: found %d bytes", at, len(found))
		check(t, !done || len(found) == 1, "nothing failed and nothing was found")
		if !done && len(found) == 0 {
			check(t, len(store.keys()) <= 1, "operation %d failed: %d values are left", at, len(store.keys()))
		}
		if done {
			check(t, at > 5, "only %d operations", at)
			return
		}
	}
}

func TestWriter_FullQueueDropsResponses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		store.fail(slow(time.Second / 2))
		c := newCache(t, store, Options{QueueMax: 2, Workers: 1, PartBytes: 5000, InlineBytes: 1})
		d := took(func() {
			for i := range 10 {
				w := c.Writer(fmt.Sprint(i), 0, 10, 10)
				_, _ = w.Write(noise(12_000))
				w.Commit()
			}
		})
		check(t, d == 0, "held up for %s", d)
		flush(t, c)
		check(t, results(c, resultQueueFull) >= 9, "dropped %v", results(c, resultQueueFull))
		check(t, results(c, resultQueueFull)+results(c, resultStored) == 10, "some are not counted")
		check(t, c.inFlight.TryAcquire(c.opts.InFlightBytesMax), "bytes are still in flight")
		c.inFlight.Release(c.opts.InFlightBytesMax)
	})
}

func TestClose_WaitsForWritesUpToCloseTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		store.fail(slow(100 * time.Millisecond))
		c, err := New(store, Options{}, quiet, nil)
		check(t, err == nil, "new: %v", err)
		w := c.Writer("k", 0, 10, 10)
		_, _ = w.Write([]byte("x"))
		w.Commit()
		check(t, c.Close() == nil && store.closed && len(store.keys()) == 1, "not written before the end")
		check(t, c.Close() == nil, "close again")
		w = c.Writer("late", 0, 10, 10)
		_, _ = w.Write([]byte("x"))
		w.Commit()
		flush(t, c)
		check(t, len(store.keys()) == 1, "written after the end")

		store = newFakeStore()
		store.fail(hang)
		c, err = New(store, Options{SetTimeout: time.Hour, CloseTimeout: 2 * time.Second}, quiet, nil)
		check(t, err == nil, "new: %v", err)
		w = c.Writer("k", 0, 10, 10)
		_, _ = w.Write([]byte("x"))
		w.Commit()
		d := took(func() { check(t, c.Close() == nil, "close") })
		check(t, d == 2*time.Second, "closing took %s", d)
	})
}

func TestBreaker_CanceledCallerDoesNotOpenIt(t *testing.T) {
	store := newFakeStore()
	c := newCache(t, store, Options{BreakerFailures: 1})
	put(t, c, "k", 0, 10, 10, []byte("x"))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 10 {
		check(t, len(c.Lookup(ctx, "k", 0, 10)) == 0, "found")
	}
	check(t, len(get(t, c, "k", 0, 10)) == 1, "the store is left alone")
	found := c.Lookup(context.Background(), "k", 0, 10)
	_, err := found[0].Open(ctx)
	check(t, errors.Is(err, ErrGone) && errors.Is(err, context.Canceled), "open: %v", err)
}

func TestOpen_ExtentLostAfterLookupIsGone(t *testing.T) {
	for _, fault := range []func(context.Context, string, string) error{broken, hang} {
		synctest.Test(t, func(t *testing.T) {
			store := newFakeStore()
			c := newCache(t, store, Options{PartBytes: 5000, InlineBytes: 1, PrefetchBytes: 1})
			put(t, c, "k", 0, 10, 10, noise(100<<10))
			found := c.Lookup(context.Background(), "k", 0, 10)
			check(t, len(found) == 1 && !found[0].whole(), "found %d", len(found))
			store.fail(fault)
			d := took(func() {
				got, err := readAll(found[0])
				check(t, errors.Is(err, ErrGone) && len(got) == 0, "%d bytes, %v", len(got), err)
			})
			check(t, d <= c.opts.GetTimeout, "took %s", d)
			check(t, c.held.TryAcquire(c.opts.HeldBytesMax), "something is still held")
			c.held.Release(c.opts.HeldBytesMax)
		})
	}
}

func TestReader_DoesNotNeedTheStoreOnceOpened(t *testing.T) {
	for name, opts := range map[string]Options{
		"in memory":          {},
		"in a file":          {HeldBytesMax: 1000},
		"in advance":         {PrefetchBytes: 1 << 20},
		"some of it in file": {HeldBytesMax: 60_000, PrefetchBytes: 1},
	} {
		opts.PartBytes, opts.InlineBytes, opts.SpillDir = 5000, 1, t.TempDir()
		store := newFakeStore()
		c := newCache(t, store, opts)
		want := noise(100 << 10)
		put(t, c, "k", 0, 10, 10, want)
		put(t, c, "other", 0, 10, 10, noise(50<<10))
		readers := map[io.ReadCloser][]byte{}
		for range 3 {
			for key, text := range map[string][]byte{"k": want, "other": noise(50 << 10)} {
				r, err := c.Lookup(context.Background(), key, 0, 10)[0].Open(context.Background())
				check(t, err == nil, "%s: open: %v", name, err)
				readers[r] = text
			}
		}
		store.mu.Lock()
		clear(store.values) // all of it is evicted
		store.mu.Unlock()
		store.fail(broken)
		for r, text := range readers {
			got, err := io.ReadAll(r)
			check(t, err == nil && bytes.Equal(got, text), "%s: %d bytes, %v", name, len(got), err)
			check(t, r.Close() == nil, "%s: close", name)
		}
		left, err := os.ReadDir(opts.SpillDir)
		check(t, err == nil && len(left) == 0, "%s: %d files are left", name, len(left))
		check(t, c.held.TryAcquire(c.opts.HeldBytesMax) && c.spilled.TryAcquire(c.opts.SpilledBytesMax), "%s: something is still held", name)
	}
}

func TestOpen_WithoutSpaceKeepsTheExtentStored(t *testing.T) {
	for name, opts := range map[string]Options{
		"the disk is used up":       {SpilledBytesMax: 1000},
		"files cannot be made here": {SpillDir: "/nonexistent"},
	} {
		opts.PartBytes, opts.InlineBytes, opts.HeldBytesMax = 5000, 1, 1000
		c := newCache(t, newFakeStore(), opts)
		put(t, c, "k", 0, 10, 10, noise(100<<10))
		for range 2 {
			found := c.Lookup(context.Background(), "k", 0, 10)
			check(t, len(found) == 1, "%s: not found", name)
			_, err := found[0].Open(context.Background())
			check(t, errors.Is(err, ErrGone), "%s: %v", name, err)
		}
		check(t, c.held.TryAcquire(c.opts.HeldBytesMax) && c.spilled.TryAcquire(c.opts.SpilledBytesMax), "%s: something is still held", name)
	}
}

func TestOpen_TimeoutRemovesTheExtent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		c := newCache(t, store, Options{PartBytes: 5000, InlineBytes: 1, PrefetchBytes: 1, BreakerFailures: 1 << 20})
		put(t, c, "k", 0, 10, 10, noise(100<<10))
		found := c.Lookup(context.Background(), "k", 0, 10)
		store.fail(func(ctx context.Context, op, key string) error {
			if op != opGet || key == storeKey("k") {
				return nil
			}
			return slow(2*time.Second)(ctx, op, key)
		})
		_, err := found[0].Open(context.Background())
		check(t, errors.Is(err, ErrGone) && errors.Is(err, context.DeadlineExceeded), "open: %v", err)
		flush(t, c)
		store.fail(nil)
		check(t, len(c.Lookup(context.Background(), "k", 0, 10)) == 0, "it is found again")
		put(t, c, "k", 0, 10, 10, noise(1000))
		check(t, len(get(t, c, "k", 0, 10)) == 1, "it cannot be stored again")
	})
}

// A canceled request is not the store's fault.
func TestOpen_CanceledContextKeepsTheExtentStored(t *testing.T) {
	store := newFakeStore()
	c := newCache(t, store, Options{PartBytes: 5000, InlineBytes: 1, PrefetchBytes: 1})
	put(t, c, "k", 0, 10, 10, noise(100<<10))
	found := c.Lookup(context.Background(), "k", 0, 10)
	ctx, cancel := context.WithCancel(context.Background())
	store.fail(func(context.Context, string, string) error { cancel(); return context.Canceled })
	_, err := found[0].Open(ctx)
	check(t, errors.Is(err, ErrGone), "open: %v", err)
	store.fail(nil)
	flush(t, c)
	check(t, len(get(t, c, "k", 0, 10)) == 1, "forgotten")
}

func TestLookup_HeldBytesAreLimitedAndReleased(t *testing.T) {
	c := newCache(t, newFakeStore(), Options{PartBytes: 5000, InlineBytes: 1, HeldBytesMax: 50_000})
	put(t, c, "k", 0, 10, 10, noise(20_000))
	var open []Extent
	for i := range 4 {
		found := c.Lookup(context.Background(), "k", 0, 10)
		check(t, len(found) == 1 && found[0].whole() == (i < 2), "look-up %d: whole %v", i, found[0].whole())
		open = append(open, found...)
	}
	for _, e := range open {
		got, err := readAll(e)
		check(t, err == nil && len(got) == 20_000, "read: %v", err)
	}
	check(t, c.held.TryAcquire(50_000), "something is still held")
	c.held.Release(50_000)
	for range 4 { // found and not used
		for _, e := range c.Lookup(context.Background(), "k", 0, 10) {
			e.Release()
			e.Release()
		}
		check(t, c.held.TryAcquire(50_000), "something is held for an extent that was released")
		c.held.Release(50_000)
	}
}

func TestExtent_StaysReadableAfterEvictionFromALocalStore(t *testing.T) {
	m := newMemory(t, MemoryOptions{BytesMax: 8 << 20})
	c := newCache(t, m, Options{HeldBytesMax: 100, PartBytes: 5000, InlineBytes: 1})
	want := noise(300 << 10)
	put(t, c, "k", 0, 10, 10, want)
	found := c.Lookup(context.Background(), "k", 0, 10)
	check(t, len(found) == 1 && found[0].whole(), "found %d", len(found))
	for i := range found[0].parts {
		check(t, m.Delete(context.Background(), partKey(storeKey("k"), found[0].ext.id, i)) == nil, "delete")
	}
	check(t, len(c.Lookup(context.Background(), "k", 0, 10)) == 0, "it was not evicted")
	got, err := readAll(found[0])
	check(t, err == nil && bytes.Equal(got, want), "%d bytes, %v", len(got), err)
}

func TestNew_ReportsEveryInvalidOption(t *testing.T) {
	_, err := New(newFakeStore(), Options{PartBytes: 1, TTL: -1, Workers: -1, ExtentsMax: 1000}, quiet, nil)
	check(t, err != nil, "no error")
	for _, word := range []string{"part bytes 1", "TTL", "workers", "extents"} {
		check(t, contains(err.Error(), word), "%q is not in %q", word, err)
	}
}

func TestNew_TwoCachesShareAMetricsSet(t *testing.T) {
	set := instruments.NewSet()
	for _, name := range []string{"labels", "query_range"} {
		c, err := New(newFakeStore(), Options{Name: name}, quiet, set)
		check(t, err == nil, "new: %v", err)
		c.Lookup(context.Background(), "k", 0, 10)
		check(t, c.Close() == nil, "close")
	}
	var page strings.Builder
	set.WritePrometheus(&page)
	for _, line := range []string{
		`ferula_frontend_cache_lookups_total{cache="labels",result="miss"} 1`,
		`ferula_frontend_cache_lookups_total{cache="query_range",result="miss"} 1`,
		`ferula_frontend_cache_queue_length{cache="labels"} 0`,
		`ferula_frontend_cache_operation_duration_seconds_count{cache="query_range",operation="get"} 1`,
	} {
		check(t, strings.Contains(page.String(), line+"\n"), "no %s in\n%s", line, page.String())
	}
}
