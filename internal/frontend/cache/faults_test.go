package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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
			d = took(func() {
				if found(t, c, "k", 0, 10) {
					n = 1
				}
			})
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

func TestLookup_FailingStoreIsAMiss(t *testing.T) {
	store := newFakeStore()
	store.fail(broken)
	c := newCache(t, store, Options{PartBytes: 5000, BreakerFailures: 1 << 30})
	put(t, c, "k", 0, 10, 10, noise(100<<10))
	check(t, !found(t, c, "k", 0, 10), "found")
	check(t, results(c, resultStore) == 1, "not counted")
	put(t, c, "small", 0, 10, 10, []byte("x"))
	check(t, !found(t, c, "small", 0, 10), "found")
	store.fail(nil)
	put(t, c, "k", 0, 10, 10, noise(100<<10))
	check(t, found(t, c, "k", 0, 10), "not found")
}

func TestWriter_FullQueueDropsResponses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		store.fail(slow(time.Second / 2))
		c := newCache(t, store, Options{QueueMax: 2, Workers: 1, PartBytes: 5000})
		d := took(func() {
			for i := range 10 {
				w := c.Writer(fmt.Sprint(i), 0, 10, 10)
				_, _ = w.Write(noise(12_000))
				w.Commit()
			}
		})
		check(t, d == 0, "held up for %s", d)
		flush(t, c)
		check(t, results(c, resultQueueFull) >= 7, "dropped %v", results(c, resultQueueFull))
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
		check(t, c.Lookup(ctx, "k", 0, 10) == nil, "found")
	}
	check(t, found(t, c, "k", 0, 10), "the store is left alone")
	_, err := c.Lookup(context.Background(), "k", 0, 10).Open(ctx)
	check(t, errors.Is(err, ErrGone) && errors.Is(err, context.Canceled), "open: %v", err)
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

func TestLookup_SlowStoreCostsABoundedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		c := newCache(t, store, Options{PartBytes: 5000, BreakerFailures: 1 << 30})
		put(t, c, "k", 0, 10, 10, noise(200<<10))
		store.fail(slow(300 * time.Millisecond))
		d := took(func() { check(t, get(t, c, "k", 0, 10) == "", "found") })
		check(t, d == 250*time.Millisecond, "took %s", d)
		store.fail(slow(10 * time.Millisecond)) // 40 parts, 8 at once
		d = took(func() { check(t, found(t, c, "k", 0, 10), "not found") })
		check(t, d <= 100*time.Millisecond, "took %s", d)
	})
}

// What a store does not take in time is dropped beyond InFlightBytesMax. The query never waits.
func TestWriter_HangingStoreDoesNotBlockTheQuery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		store.fail(hang)
		c := newCache(t, store, Options{InFlightBytesMax: 2 << 20, Workers: 1}) // a mutex of a second one would stop the time
		d := took(func() {
			for i := range 8 {
				w := c.Writer(fmt.Sprint(i), 0, 10, 10)
				n, err := w.Write(noise(512 << 10))
				check(t, n == 512<<10 && err == nil, "write: %d, %v", n, err)
				w.Commit()
			}
		})
		check(t, d == 0, "held up for %s", d)
		flush(t, c)
		check(t, results(c, resultSlow) >= 5 && results(c, resultSlow)+results(c, resultStore) == 8, "%d dropped", results(c, resultSlow))
		check(t, c.inFlight.TryAcquire(2<<20), "bytes are still in flight")
	})
}

// If any operation of a write fails, readers find the whole response or none.
func TestWriter_FailedWriteIsAMiss(t *testing.T) {
	for at := 0; ; at++ {
		store := newFakeStore()
		c := newCache(t, store, Options{PartBytes: 5000, Workers: 1})
		put(t, c, "k", 0, 10, 10, noise(29_000)) // will be replaced
		var n, failed atomic.Int64
		store.fail(func(context.Context, string, string) error {
			if n.Add(1) == int64(at+1) {
				failed.Store(1)
				return errors.New("reset")
			}
			return nil
		})
		put(t, c, "k", 0, 10, 10, noise(30_000))
		store.fail(nil)
		got := get(t, c, "k", 0, 10)
		check(t, got == "" || got == "gone" || len(got) == 5+29_000 && failed.Load() > 0 || len(got) == 5+30_000, "operation %d failed: found %d bytes", at, len(got))
		if failed.Load() == 0 {
			check(t, at > 5 && len(got) == 5+30_000, "%d operations, found %d bytes", at, len(got))
			return
		}
	}
}

func TestOpen_ResponseLostAfterLookupIsGone(t *testing.T) {
	for _, fault := range []func(context.Context, string, string) error{broken, hang} {
		synctest.Test(t, func(t *testing.T) {
			store := newFakeStore()
			c := newCache(t, store, Options{PartBytes: 5000})
			put(t, c, "k", 0, 10, 10, noise(100<<10))
			e := c.Lookup(context.Background(), "k", 0, 10)
			check(t, e != nil, "not found")
			store.fail(fault)
			d := took(func() {
				got, err := readAll(e)
				check(t, errors.Is(err, ErrGone) && len(got) == 0, "%d bytes, %v", len(got), err)
			})
			check(t, d <= c.opts.WholeTimeout, "took %s", d)
			check(t, c.held.TryAcquire(c.opts.HeldBytesMax), "something is still held")
		})
	}
}

func TestOpen_TimeoutRemovesTheResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		c := newCache(t, store, Options{PartBytes: 5000, WholeTimeout: time.Second, BreakerFailures: 1 << 20})
		put(t, c, "k", 0, 10, 10, noise(100<<10))
		e := c.Lookup(context.Background(), "k", 0, 10)
		store.fail(func(ctx context.Context, op, key string) error {
			if op != opGet || key == storeKey("k") {
				return nil
			}
			return slow(2*time.Second)(ctx, op, key)
		})
		_, err := e.Open(context.Background())
		check(t, errors.Is(err, ErrGone) && errors.Is(err, context.DeadlineExceeded), "open: %v", err)
		flush(t, c)
		store.fail(nil)
		check(t, get(t, c, "k", 0, 10) == "", "it is found again")
		put(t, c, "k", 0, 10, 10, noise(1000))
		check(t, found(t, c, "k", 0, 10), "it cannot be stored again")
	})
}

// A canceled request is not the store's fault.
func TestOpen_CanceledContextKeepsTheResponseStored(t *testing.T) {
	store := newFakeStore()
	c := newCache(t, store, Options{PartBytes: 5000})
	put(t, c, "k", 0, 10, 10, noise(100<<10))
	e := c.Lookup(context.Background(), "k", 0, 10)
	ctx, cancel := context.WithCancel(context.Background())
	store.fail(func(context.Context, string, string) error { cancel(); return context.Canceled })
	_, err := e.Open(ctx)
	check(t, errors.Is(err, ErrGone), "open: %v", err)
	store.fail(nil)
	flush(t, c)
	check(t, found(t, c, "k", 0, 10), "forgotten")
}

func TestReader_DoesNotNeedTheStoreOnceOpened(t *testing.T) {
	for _, local := range []bool{false, true} {
		store := newFakeStore()
		c := newCache(t, map[bool]Store{false: store, true: localFake{store}}[local], Options{PartBytes: 5000})
		put(t, c, "k", 0, 10, 10, noise(100<<10))
		r, err := c.Lookup(context.Background(), "k", 0, 10).Open(context.Background())
		check(t, err == nil, "open: %v", err)
		store.mu.Lock()
		clear(store.values) // all of it is evicted
		store.mu.Unlock()
		store.fail(broken)
		got, err := io.ReadAll(r)
		check(t, err == nil && bytes.Equal(got, noise(100<<10)), "%d bytes, %v", len(got), err)
		check(t, r.Close() == nil, "close")
		store.fail(nil)
	}
}

func TestLookup_HeldBytesAreLimitedAndReleased(t *testing.T) {
	c := newCache(t, newFakeStore(), Options{PartBytes: 5000, HeldBytesMax: 50_000})
	put(t, c, "k", 0, 10, 10, noise(20_000))
	var open []*Extent
	for i := range 4 {
		e := c.Lookup(context.Background(), "k", 0, 10)
		check(t, (e != nil) == (i < 2), "lookup %d: found %v", i, e != nil)
		if e != nil {
			open = append(open, e)
		}
	}
	check(t, c.met.unused.of("no-space").Get() == 2, "not counted")
	got, err := readAll(open[0])
	check(t, err == nil && len(got) == 20_000, "read: %v", err)
	open[1].Release()
	open[1].Release()
	check(t, c.held.TryAcquire(50_000), "something is still held")
	c.held.Release(50_000)
	check(t, found(t, c, "k", 0, 10), "the response was removed")
}
