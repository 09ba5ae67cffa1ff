package frontend

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/frontend/cache"
	instruments "github.com/ferula-io/ferula/metrics"
)

// newEmptyEnv is a downstream that responds to range queries without series.
func newEmptyEnv(t *testing.T) *testEnv {
	return newTestEnvWith(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"status":"success","data":{"resultType":"matrix","result":[]}}`)
	}))
}

const day = 24 * 3600

func countingFront(t *testing.T) (w *testEnv, c *testCache, base string) {
	w, c = newEmptyEnv(t), newTestCache()
	front := w.front(func(o *Options) {
		o.Split.Interval, o.Cache = 24*time.Hour, c.Cache
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
	var running, runningMax atomic.Int64
	hold := func(n int64, timeout time.Duration) {
		reached := make(chan struct{})
		var once sync.Once
		runningMax.Store(0)
		c.before = func() func() { // no lookup ends before n have begun
			now := running.Add(1)
			for most := runningMax.Load(); now > most && !runningMax.CompareAndSwap(most, now); most = runningMax.Load() {
			}
			if now == n {
				once.Do(func() { close(reached) })
			}
			select {
			case <-reached:
			case <-time.After(timeout):
			}
			return func() { running.Add(-1) }
		}
	}
	hold(14, 10*time.Second)
	_, _, h := get(t, base+rangePath("up", 0, 14*day-1, 3600))
	check(t, h.Get("X-Ferula-Cache") == "hit" && runningMax.Load() == 14, "cache %s, %d lookups at once", h.Get("X-Ferula-Cache"), runningMax.Load())
	hold(lookupConcurrency+1, 50*time.Millisecond) // long enough for all allowed lookups to run at once
	_, _, _ = get(t, base+rangePath("up", 0, 90*day-1, 3600))
	check(t, runningMax.Load() <= lookupConcurrency, "%d lookups at once", runningMax.Load())
}

func TestPlan_GapsAroundACachedPieceAreFetchedAndJoined(t *testing.T) {
	w, c, base := countingFront(t)
	// The last of twelve pieces of each day is cached. The others have gaps in between.
	for i := range 24 {
		_, _, _ = get(t, base+rangePath("up", float64(i*2*3600), float64(i*2*3600+1800), 1800))
	}
	c.reset()
	for i, want := range []string{"partial", "hit"} {
		before := w.requests.Load()
		status, body, h := get(t, base+rangePath("up", 0, 2*day-1, 1800))
		calls := w.requests.Load() - before
		check(t, status == 200 && strings.Contains(body, "success") && h.Get("X-Ferula-Cache") == want, "%d: %d %s, cache %s", i, status, body, h.Get("X-Ferula-Cache"))
		check(t, calls == []int64{4, 0}[i], "%d: %d calls", i, calls)
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

// An extent that is neither opened nor released keeps its share of HeldBytesMax. Then later lookups find no space.
func TestPlan_EveryExtentIsOpenedOrReleased(t *testing.T) {
	w := newEmptyEnv(t)
	r := rand.New(rand.NewPCG(5, 6))
	for _, parallelism := range []int{1, 2, 5, 14} {
		set := instruments.NewSet()
		store := &losingStore{values: map[string][]byte{}}
		c, err := cache.New(store, cache.Options{Name: "x", Merge: joinResponses, HeldBytesMax: 64 << 10, LookupTimeout: time.Minute},
			slog.New(slog.DiscardHandler), set)
		check(t, err == nil, "%v", err)
		front := w.front(func(o *Options) {
			o.Split.Interval, o.Cache, o.Parallelism = time.Hour, c, parallelism
			o.Now = func() time.Time { return time.Unix(20_000*day, 0) }
		})
		cached := 0
		for range 400 {
			start := r.IntN(100 * 3600)
			start -= start % 600
			before := w.requests.Load()
			status, body, h := get(t, front.URL+rangePath("up", float64(start), float64(start+r.IntN(1<<(10+r.IntN(9)))), 600))
			check(t, status == 200, "%d %s", status, body)
			check(t, w.requests.Load()-before <= int64(parallelism), "%d calls", w.requests.Load()-before)
			if h.Get("X-Ferula-Cache") != "miss" {
				cached++
			}
		}
		check(t, cached > 80, "parallelism %d: %d of the responses were cached", parallelism, cached)
		var text strings.Builder
		set.WritePrometheus(&text)
		check(t, !strings.Contains(text.String(), "no-space"), "parallelism %d: extents are left", parallelism)
	}
}
