package cache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	instruments "github.com/ferula-io/ferula/metrics"
)

func TestBreaker_States(t *testing.T) {
	now := time.Unix(1000, 0)
	var changes []string
	b := newBreaker(2, time.Second, 3*time.Second, func() time.Time { return now }, func(open bool, err error) {
		changes = append(changes, fmt.Sprint(open, " ", err))
	})
	fault := errors.New("fault")
	expect := func(what string, allowed bool, log string) {
		t.Helper()
		check(t, b.allow() == allowed, "%s: allowed %v", what, !allowed)
		check(t, strings.Join(changes, ", ") == log, "%s: %q", what, changes)
	}
	b.failed(fault)
	expect("one failure", true, "")
	b.succeeded()
	b.failed(fault)
	expect("another after a success", true, "")
	b.failed(fault)
	expect("two in a row", false, "true fault")
	now = now.Add(time.Second - 1)
	expect("before the back-off is over", false, "true fault")
	b.failed(fault) // an operation that began before
	now = now.Add(1)
	expect("the probe", true, "true fault")
	expect("during the probe", false, "true fault")
	b.unknown()
	expect("the next probe", true, "true fault")
	b.failed(fault)
	now = now.Add(2*time.Second - 1)
	expect("the doubled back-off", false, "true fault")
	now = now.Add(1)
	expect("the probe after it", true, "true fault")
	b.failed(fault)
	now = now.Add(3*time.Second - 1)
	expect("the longest back-off", false, "true fault")
	now = now.Add(1)
	expect("the probe after the longest", true, "true fault")
	b.succeeded()
	expect("closed", true, "true fault, false <nil>")
	b.failed(fault)
	expect("one failure of the closed one", true, "true fault, false <nil>")
	b.failed(fault)
	expect("it opens again", false, "true fault, false <nil>, true fault")
	now = now.Add(time.Second)
	expect("after the first back-off again", true, "true fault, false <nil>, true fault")
}

func TestReason_OfEveryError(t *testing.T) {
	for want, errs := range map[string][]error{
		"unavailable": {ErrUnavailable}, "too-large": {ErrTooLarge}, "collision": {errCollision}, "corrupt": {errCorrupt}, "missing": {errMissing}, "no-space": {errNoSpace},
		"canceled": {context.Canceled}, "timeout": {context.DeadlineExceeded, &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}}, "network": {&net.OpError{Op: "dial", Err: errors.New("refused")}},
		"other": {io.EOF, ErrGone},
	} {
		for _, err := range errs {
			check(t, reason(fmt.Errorf("wrapped: %w", err)) == want, "%v: %s, want %s", err, reason(err), want)
		}
	}
}

func TestGuard_CountsOperationsFailuresAndBytes(t *testing.T) {
	for name, store := range map[string]Store{"local": localFake{newFakeStore()}, "remote": newFakeStore()} {
		fake, ok := store.(*fakeStore)
		if !ok {
			fake = store.(localFake).fakeStore
		}
		set := instruments.NewSet()
		c, err := New(store, Options{Name: "n", BreakerFailures: 2}, quiet, set)
		check(t, err == nil, "%v", err)
		ctx := context.Background()
		g := &c.store
		check(t, g.set(ctx, "k", []byte("value"), 0) == nil, "set")
		v, err := g.get(ctx, "k")
		check(t, err == nil && string(v) == "value", "get: %q, %v", v, err)
		v, err = g.get(ctx, "missing")
		check(t, err == nil && v == nil, "get: %q, %v", v, err)
		fake.fail(broken)
		check(t, g.set(ctx, "k", []byte("value"), 0) != nil && g.set(ctx, "k", nil, 0) != nil, "no error")
		_, err = g.get(ctx, "k")
		check(t, err != nil && errors.Is(err, ErrUnavailable) == (name == "remote"), "%s: %v", name, err)
		var page strings.Builder
		set.WritePrometheus(&page)
		blocked, other := 1, 0 // by the circuit breaker
		if name == "local" {
			blocked, other = 0, 1
		}
		lines := []string{
			`operations_total{cache="n",operation="get"} 3`, `operations_total{cache="n",operation="set"} 3`,
			`operation_failures_total{cache="n",operation="set",reason="other"} 2`,
			`store_bytes_total{cache="n",direction="read"} 5`, `store_bytes_total{cache="n",direction="written"} 5`,
			`lookups_total{cache="n",result="hit"} 0`, `lookups_total{cache="n",result="partial"} 0`, `lookups_total{cache="n",result="miss"} 0`, fmt.Sprintf(`breaker_open{cache="n"} %d`, blocked),
		}
		if blocked > 0 {
			lines = append(lines, `operation_failures_total{cache="n",operation="get",reason="unavailable"} 1`, `operation_duration_seconds_count{cache="n",operation="get"} 2`)
		}
		if other > 0 {
			lines = append(lines, `operation_failures_total{cache="n",operation="get",reason="other"} 1`)
		}
		for _, line := range lines {
			check(t, strings.Contains(page.String(), metricPrefix+line+"\n"), "%s: no %s in\n%s", name, line, page.String())
		}
		for _, f := range set.Families() {
			check(t, f.Help != "", "%s has no help", f.Name)
		}
		fake.fail(nil)
		check(t, c.Close() == nil, "close")
	}
}

// An operation that fails at its deadline counts as a failure of the store only if it had enough time.
func TestGuard_OperationsWithLittleTimeDoNotOpenTheBreaker(t *testing.T) {
	for _, tt := range []struct {
		err   error
		grace time.Duration
		opens bool
	}{
		{errors.New("refused"), 0, true}, {ErrTooLarge, 0, false}, {ErrUnavailable, 0, false}, {context.DeadlineExceeded, 0, true}, {context.DeadlineExceeded, time.Hour, false},
	} {
		store := newFakeStore()
		c := newCache(t, store, Options{BreakerFailures: 1})
		c.store.grace = tt.grace
		ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
		if !errors.Is(tt.err, context.DeadlineExceeded) {
			cancel()
			ctx, cancel = context.WithCancel(context.Background())
		}
		store.fail(func(context.Context, string, string) error { return tt.err })
		_, err := c.store.get(ctx, "k")
		check(t, errors.Is(err, tt.err), "%v", err)
		check(t, c.store.breaker.allow() != tt.opens, "%v, %s: opened %v", tt.err, tt.grace, !tt.opens)
		cancel()
		store.fail(nil)
	}
}

func TestReader_WriteToReturnsTheErrorOfTheWriter(t *testing.T) {
	c := newCache(t, localFake{newFakeStore()}, Options{PartBytes: 32 << 10})
	put(t, c, "k", 0, 100, 10, noise(300<<10))
	for _, n := range []int{0, 1000, 200 << 10} {
		r, err := c.Lookup(context.Background(), "k", 0, 100).Open(context.Background())
		check(t, err == nil, "open: %v", err)
		written, err := r.WriteTo(&failAfter{n})
		check(t, errors.Is(err, io.ErrShortWrite) && written == int64(n), "%d bytes: %d, %v", n, written, err)
		rest, err := io.ReadAll(r)
		check(t, err == nil && len(rest) == 300<<10-n, "the rest: %d bytes, %v", len(rest), err)
		check(t, r.Close() == nil, "close")
	}
}

func TestWriter_ResultsAreCounted(t *testing.T) {
	for want, tt := range map[string]struct {
		before func(context.Context, string, string) error
		write  func(c *Cache)
	}{
		resultStored:  {nil, func(c *Cache) { put(t, c, "k", 0, 10, 10, []byte("x")) }},
		resultStore:   {broken, func(c *Cache) { put(t, c, "k", 0, 10, 10, []byte("x")) }},
		resultAborted: {nil, func(c *Cache) { c.Writer("k", 0, 10, 10).Commit() }},
		resultTooLarge: {func(_ context.Context, op, _ string) error {
			if op == opSet {
				return ErrTooLarge
			}
			return nil
		}, func(c *Cache) { put(t, c, "k", 0, 10, 10, noise(100<<10)) }},
		resultTooLarge + " range": {nil, func(c *Cache) { put(t, c, "k", 11, 10, 10, []byte("x")) }},
		resultTooLarge + " step":  {nil, func(c *Cache) { put(t, c, "k", 0, 10, -1, []byte("x")) }},
		resultTooLarge + " entry": {nil, func(c *Cache) { put(t, c, "k", 0, 10, 1, noise(1<<20)) }},
		resultStored + " no step": {nil, func(c *Cache) { put(t, c, "k", 10, 10, 0, []byte("x")) }},
		resultOutdated: {nil, func(c *Cache) {
			put(t, c, "k", 0, 10, 1, []byte("x"))
			c.met.extents.of(resultStored).Set(0)
			put(t, c, "k", 1, 9, 1, []byte("x"))
		}},
		resultAborted + " by its caller": {nil, func(c *Cache) {
			w := c.Writer("k", 0, 10, 1)
			_, _ = w.Write(noise(100 << 10))
			w.Abort()
			w.Abort()
			w.Commit()
		}},
	} {
		store := newFakeStore()
		c := newCache(t, store, Options{PartBytes: 5000, EntryBytesMax: 500_000})
		store.fail(tt.before)
		tt.write(c)
		flush(t, c)
		store.fail(nil)
		result, _, _ := strings.Cut(want, " ")
		for _, r := range []string{resultStored, resultAborted, resultSlow, resultQueueFull, resultTooLarge, resultStore, resultOutdated} {
			n := uint64(0)
			if r == result {
				n = 1
			}
			check(t, results(c, r) == n, "%s: %s is counted %d times", want, r, results(c, r))
		}
		check(t, c.inFlight.TryAcquire(c.opts.InFlightBytesMax), "%s: bytes are still in flight", want)
		c.inFlight.Release(c.opts.InFlightBytesMax)
	}
}

func TestMemory_CountsAndMarks(t *testing.T) {
	ctx := context.Background()
	set := instruments.NewSet()
	now := time.Unix(1000, 0)
	m, err := NewMemory(MemoryOptions{BytesMax: 1000, Name: "n", Now: func() time.Time { return now }}, set)
	check(t, err == nil, "%v", err)
	marked := func() bool { return m.items["k"].Value.(*memoryItem).used }
	fits := make([]byte, 1000-memoryItemBytes-1)
	check(t, m.Set(ctx, "k", fits, 0) == nil, "a value as large as the store is refused")
	check(t, errors.Is(m.Set(ctx, "k2", fits, 0), ErrTooLarge), "a larger one is accepted")
	check(t, m.Set(ctx, "k", []byte("1"), time.Second) == nil, "set")
	now = now.Add(time.Second)
	_, ok, _ := m.Get(ctx, "k")
	check(t, !ok && m.check(t) == 0, "it is not expired")
	check(t, m.Set(ctx, "k", []byte("1"), 0) == nil && !marked(), "a new value is marked")
	_, _, _ = m.Get(ctx, "k")
	check(t, marked(), "a value that was read is not marked")
	check(t, m.Set(ctx, "k", []byte("2"), 0) == nil && marked(), "a value that replaces it is not marked")
	m.check(t)
	var page strings.Builder
	set.WritePrometheus(&page)
	for _, line := range []string{`memory_expired_total{cache="n"} 1`, `memory_rejected_total{cache="n"} 1`, `memory_evicted_total{cache="n"} 0`, `memory_items{cache="n"} 1`} {
		check(t, strings.Contains(page.String(), metricPrefix+line+"\n"), "no %s in\n%s", line, page.String())
	}
	for _, f := range set.Families() {
		check(t, f.Help != "", "%s has no help", f.Name)
	}
	check(t, m.Close() == nil, "close")
	_, ok, err = m.Get(ctx, "k")
	check(t, err == nil && !ok, "%v, %v", ok, err)
}

func TestParseConfig_SizesOfParts(t *testing.T) {
	for size, want := range map[string][2]int64{"10KB": {4096, 4096}, "100KB": {12_500, 25_000}, "40MB": {512 << 10, 10_000_000}, "1MiB": {131_072, 262_144}} {
		c, _, err := parseConfig(fmt.Appendf(nil, "type: IN-MEMORY\nconfig: {max_size: %s}", size), Options{})
		check(t, err == nil && int64(c.PartBytes) == want[0] && c.EntryBytesMax == want[1], "%s: parts of %d bytes, entries of %d, %v", size, c.PartBytes, c.EntryBytesMax, err)
	}
	for size, want := range map[string]int{"4608": partBytesMin, "4607": 0, "1MiB": 512 << 10, "513KiB": 512 << 10, "512KiB": 512<<10 - 512} {
		c, _, err := parseConfig(fmt.Appendf(nil, "type: MEMCACHED\nconfig: {addresses: [a], max_item_size: %s}", size), Options{})
		check(t, c.PartBytes == want && (err == nil) == (want > 0), "%s: parts of %d bytes, %v", size, c.PartBytes, err)
	}
	_, _, err := parseConfig([]byte("type: IN-MEMORY\nconfig: {max_size_items: -1}"), Options{})
	check(t, err != nil, "negative items")
	_, _, err = parseConfig([]byte("type: IN-MEMORY\nconfig: {max_size_items: 0, validity: 0s}"), Options{})
	check(t, err == nil, "%v", err)
	for key, want := range map[string]int{"max_get_multi_concurrency: 7": 7, "pool_size: 8, max_get_multi_concurrency: 7": 8} {
		c, _, err := parseConfig([]byte("type: REDIS\nconfig: {addr: a, "+key+"}"), Options{})
		check(t, err == nil && c.Redis.ConnectionsMax == want, "%s: %d connections, %v", key, c.Redis.ConnectionsMax, err)
	}
}

func TestNewMemcached_RefusesNegativeLimits(t *testing.T) {
	for name, opts := range map[string]MemcachedOptions{
		"timeout": {Timeout: -1}, "interval": {UpdateInterval: -1}, "connections": {IdleConnectionsMax: -1}, "operations": {OperationsMax: -1}, "item": {ItemBytesMax: -1},
	} {
		opts.Addresses = []string{"127.0.0.1:1"}
		_, err := NewMemcached(opts, quiet)
		check(t, err != nil, "%s", name)
	}
	for name, opts := range map[string]RedisOptions{"address": {}, "connections": {ConnectionsMax: -1}, "idle": {IdleConnectionsMin: -1}, "database": {Database: -1}} {
		if name != "address" {
			opts.Address = "127.0.0.1:1"
		}
		_, err := NewRedis(opts, quiet)
		check(t, err != nil, "%s", name)
	}
}

func TestMemcached_LargestItem(t *testing.T) {
	m, err := NewMemcached(MemcachedOptions{Addresses: []string{"127.0.0.1:1"}, ItemBytesMax: 1000}, quiet)
	check(t, err == nil, "%v", err)
	defer m.Close()
	for n, want := range map[int]bool{1000 - itemOverheadBytes - 3: false, 1000 - itemOverheadBytes - 2: true} {
		err := m.Set(context.Background(), "key", make([]byte, n), 0)
		check(t, err != nil && errors.Is(err, ErrTooLarge) == want, "%d bytes: %v", n, err)
	}
}

// failAfter fails after n bytes.
type failAfter struct{ n int }

func (w *failAfter) Write(p []byte) (int, error) {
	k := min(w.n, len(p))
	if w.n -= k; k < len(p) {
		return k, io.ErrShortWrite
	}
	return k, nil
}
