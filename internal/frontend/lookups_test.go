package frontend

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// countingCache counts lookups, writers and concurrent lookups.
type countingCache struct {
	*memoryCache
	mu                  sync.Mutex
	lookups, writers    int
	running, runningMax int
	before              func() // called before each lookup
}

func (c *countingCache) Lookup(ctx context.Context, key string, startMS, endMS int64) []Extent {
	c.mu.Lock()
	c.lookups++
	c.running++
	c.runningMax = max(c.runningMax, c.running)
	before := c.before
	c.mu.Unlock()
	if before != nil {
		before()
	}
	defer func() {
		c.mu.Lock()
		c.running--
		c.mu.Unlock()
	}()
	return c.memoryCache.Lookup(ctx, key, startMS, endMS)
}

func (c *countingCache) NewWriter(key string, startMS, endMS, stepMS int64) CacheWriter {
	c.mu.Lock()
	c.writers++
	c.mu.Unlock()
	return c.memoryCache.NewWriter(key, startMS, endMS, stepMS)
}

func (c *countingCache) reset() (lookups, writers int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	lookups, writers = c.lookups, c.writers
	c.lookups, c.writers = 0, 0
	return lookups, writers
}

// newEmptyEnv is a downstream that responds to range queries without series.
func newEmptyEnv(t *testing.T) *testEnv {
	return newTestEnvWith(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"status":"success","data":{"resultType":"matrix","result":[]}}`)
	}))
}

const day = 24 * 3600

func countingFront(t *testing.T) (w *testEnv, c *countingCache, base string) {
	w, c = newEmptyEnv(t), &countingCache{memoryCache: newMemoryCache()}
	front := w.front(func(o *Options) {
		o.Split.Interval, o.Cache = 24*time.Hour, c
		o.Now = func() time.Time { return time.Unix(20_000*day, 0) }
	})
	return w, c, front.URL
}

func TestLookUp_CountIsBounded(t *testing.T) {
	// At each length of the interval, the lookups end some time after the 15th gap.
	const stopped = 14 + lookupConcurrency
	for days, limit := range map[int]int{
		1: 1 + 3, 14: 14 + 7 + 4 + 2, 15: stopped + 8 + 4 + 2 + 1,
		lookupsMax: 2*stopped + 25 + 13 + 7 + 4 + 2, lookupsMax + 1: stopped + 26 + 13 + 7 + 4 + 2, 11_000: 2*stopped + 22 + 11 + 6 + 3 + 2,
	} {
		w, c, base := countingFront(t)
		path := rangePath("up", 0, float64(days*day-1), day)
		for _, want := range []string{"miss", "hit"} {
			calls := w.requests.Load()
			status, body, h := get(t, base+path)
			check(t, status == 200 && h.Get("X-Ferula-Cache") == want, "%d days: %d, cache %s, %.300s", days, status, h.Get("X-Ferula-Cache"), body)
			lookups, writers := c.reset()
			calls = w.requests.Load() - calls
			check(t, lookups <= limit && calls <= 14, "%d days, %s: %d lookups, at limit %d; %d calls", days, want, lookups, limit, calls)
			check(t, int64(writers) == calls, "%d days, %s: %d writers for %d calls", days, want, writers, calls)
		}
	}
}

func TestLookUp_CachedDaysServeALongerQuery(t *testing.T) {
	w, c, base := countingFront(t)
	for from := 0; from < 84; from += 14 {
		_, _, _ = get(t, base+rangePath("up", float64(from*day), float64((from+14)*day-1), 3600))
	}
	c.reset()
	before := w.requests.Load()
	_, _, h := get(t, base+rangePath("up", 0, 90*day-1, 3600))
	lookups, _ := c.reset()
	// The last six days have entries of no length.
	check(t, lookups == 90+3+2+2 && w.requests.Load() == before+6 && h.Get("X-Ferula-Cache") == "partial", "%d lookups, %d calls, cache %s", lookups, w.requests.Load()-before, h.Get("X-Ferula-Cache"))
}

func TestLookUp_ConcurrencyIsBounded(t *testing.T) {
	_, c, base := countingFront(t)
	_, _, _ = get(t, base+rangePath("up", 0, 14*day-1, 3600))
	c.reset()
	var arrived atomic.Int64
	all := make(chan struct{})
	c.before = func() { // no lookup ends before all have begun
		if arrived.Add(1) == 14 {
			close(all)
		}
		select {
		case <-all:
		case <-time.After(10 * time.Second):
		}
	}
	_, _, h := get(t, base+rangePath("up", 0, 14*day-1, 3600))
	check(t, h.Get("X-Ferula-Cache") == "hit" && c.runningMax == 14, "cache %s, %d lookups at once", h.Get("X-Ferula-Cache"), c.runningMax)
	c.runningMax = 0
	tooMany := make(chan struct{})
	var running atomic.Int64
	c.before = func() { // long enough for all allowed lookups to run at once
		defer running.Add(-1)
		if running.Add(1) == lookupConcurrency+1 {
			close(tooMany)
		}
		select {
		case <-tooMany:
		case <-time.After(50 * time.Millisecond):
		}
	}
	_, _, _ = get(t, base+rangePath("up", 0, 90*day-1, 3600))
	check(t, c.runningMax <= lookupConcurrency, "%d lookups at once", c.runningMax)
}

func TestPlan_ManyGapsAreFetchedAsWholeIntervals(t *testing.T) {
	w, c, base := countingFront(t)
	// Each day has twelve cached pieces with gaps in between.
	for i := range 24 {
		_, _, _ = get(t, base+rangePath("up", float64(i*2*3600), float64(i*2*3600+1800), 1800))
	}
	c.reset()
	for i, want := range []string{"miss", "hit"} {
		before := w.requests.Load()
		status, body, h := get(t, base+rangePath("up", 0, 2*day-1, 1800))
		calls := w.requests.Load() - before
		check(t, status == 200 && strings.Contains(body, "success") && h.Get("X-Ferula-Cache") == want, "%d: %d %s, cache %s", i, status, body, h.Get("X-Ferula-Cache"))
		check(t, calls == []int64{2, 0}[i], "%d: %d calls", i, calls)
	}
}

// An extent that was fetched by intervals of one length serves queries that are split by another length, and is stored
// once.
func TestPlan_EntriesOfAllLengthsServeAllQueries(t *testing.T) {
	type request struct {
		from, to int // days
		calls    int64
		cache    string
	}
	for name, requests := range map[string][]request{
		"shorter":             {{0, 15, 8, "miss"}, {0, 14, 0, "hit"}, {3, 4, 0, "hit"}, {0, 15, 0, "hit"}},
		"longer":              {{0, 14, 14, "miss"}, {0, 15, 1, "partial"}, {0, 15, 0, "hit"}, {0, 28, 13, "partial"}},
		"shifted":             {{0, 15, 8, "miss"}, {1, 16, 1, "partial"}, {2, 17, 1, "partial"}, {3, 13, 0, "hit"}},
		"much shorter":        {{0, 100, 13, "miss"}, {0, 50, 0, "hit"}, {41, 43, 0, "hit"}, {99, 100, 0, "hit"}, {85, 105, 3, "partial"}},
		"pieces in between":   {{5, 6, 1, "miss"}, {9, 10, 1, "miss"}, {0, 40, 10, "miss"}, {0, 14, 0, "hit"}, {0, 40, 0, "hit"}},
		"a gap in a long one": {{0, 7, 7, "miss"}, {9, 15, 6, "miss"}, {0, 15, 2, "partial"}, {0, 15, 0, "hit"}},
	} {
		w, _, base := countingFront(t)
		for _, r := range requests {
			before := w.requests.Load()
			status, _, h := get(t, base+rangePath("up", float64(r.from*day), float64(r.to*day-1), 3600))
			calls := w.requests.Load() - before
			check(t, status == 200 && calls == r.calls && h.Get("X-Ferula-Cache") == r.cache, "%s: days %d to %d: %d calls, cache %s, want %d, %s", name, r.from, r.to, calls, h.Get("X-Ferula-Cache"), r.calls, r.cache)
		}
	}
}

// trackingCache counts the extents that were neither opened nor released, and the extents that were opened or released
// twice.
type trackingCache struct {
	*memoryCache
	open, twice atomic.Int64
}

func (c *trackingCache) Lookup(ctx context.Context, key string, startMS, endMS int64) []Extent {
	found := c.memoryCache.Lookup(ctx, key, startMS, endMS)
	for i, e := range found {
		c.open.Add(1)
		found[i] = &trackedExtent{Extent: e, cache: c}
	}
	return found
}

type trackedExtent struct {
	Extent
	cache *trackingCache
	ended atomic.Bool
}

func (e *trackedExtent) end() {
	e.cache.open.Add(-1)
	if e.ended.Swap(true) {
		e.cache.twice.Add(1)
	}
}

func (e *trackedExtent) Open(ctx context.Context) (io.ReadCloser, error) {
	e.end()
	return e.Extent.Open(ctx)
}

func (e *trackedExtent) Release() { e.end() }

func TestPlan_EveryExtentIsOpenedOrReleasedOnce(t *testing.T) {
	w := newEmptyEnv(t)
	r := rand.New(rand.NewPCG(5, 6))
	for _, parallelism := range []int{1, 2, 5, 14} {
		c := &trackingCache{memoryCache: newMemoryCache()}
		front := w.front(func(o *Options) {
			o.Split.Interval, o.Cache, o.Parallelism = time.Hour, c, parallelism
			o.Now = func() time.Time { return time.Unix(20_000*day, 0) }
		})
		cached := 0
		for range 150 {
			start := r.IntN(100 * 3600)
			start -= start % 600
			before := w.requests.Load()
			status, body, h := get(t, front.URL+rangePath("up", float64(start), float64(start+r.IntN(1<<(10+r.IntN(9)))), 600))
			check(t, status == 200 && c.open.Load() == 0 && c.twice.Load() == 0, "%d %s: %d extents are left, %d ended twice", status, body, c.open.Load(), c.twice.Load())
			check(t, w.requests.Load()-before <= int64(parallelism), "%d calls", w.requests.Load()-before)
			if h.Get("X-Ferula-Cache") != "miss" {
				cached++
			}
		}
		check(t, cached > 30, "parallelism %d: %d of the responses were cached", parallelism, cached)
	}
}
