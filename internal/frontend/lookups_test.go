package frontend

import (
	"context"
	"fmt"
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
	for days, limit := range map[int]int{1: 1, 14: 14, 15: 14 + lookupConcurrency + 14, lookupsMax: 14 + lookupConcurrency + 14, lookupsMax + 1: 14, 11_000: 14} {
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
	check(t, lookups == 90 && w.requests.Load() == before+6 && h.Get("X-Ferula-Cache") == "partial", "%d lookups, %d calls, cache %s", lookups, w.requests.Load()-before, h.Get("X-Ferula-Cache"))
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
