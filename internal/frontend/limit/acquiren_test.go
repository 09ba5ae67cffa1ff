package limit

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func newLimiter(t *testing.T, opts Options) *Limiter {
	t.Helper()
	l, err := New(opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestAcquireN_AllSlotsOrNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, Options{ConcurrencyMax: 4, TenantConcurrencyMax: 4})
		first, err := l.AcquireN(t.Context(), "a", 3)
		checkIs(t, err, nil)
		var got atomic.Int64
		acquire := func(n int) {
			free, err := l.AcquireN(t.Context(), "a", n)
			checkIs(t, err, nil)
			got.Add(int64(n))
			free(n)
		}
		go acquire(3)
		go func() { time.Sleep(1); acquire(1) }() // a slot is free, but a larger request is ahead of it
		time.Sleep(2)
		synctest.Wait()
		check(t, "slots acquired while one is free and three are requested", got.Load(), 0)
		first(1)
		synctest.Wait()
		check(t, "slots acquired while two are free", got.Load(), 0)
		first(1)
		synctest.Wait()
		check(t, "slots acquired once three are free", got.Load(), 4)
		first(5)
		first(1)
		check(t, "slots held", l.running, 0)
		check(t, "tenants", len(l.tenants), 0)
	})
}

func TestLimiter_DefaultLimitOfATenant(t *testing.T) {
	for total, share := range map[int]int{256: 192, 4: 3, 3: 3, 2: 2, 1: 1} {
		check(t, "slots of a tenant", newLimiter(t, Options{ConcurrencyMax: total}).MaxPerRequest(), share)
	}
	check(t, "tenant limit above the total", newLimiter(t, Options{ConcurrencyMax: 5, TenantConcurrencyMax: 50}).MaxPerRequest(), 5)
}

// Requests of any size, some of them canceled, never hold more slots than the limits, and
// all of them end.
func TestAcquireN_SlotsAreNeitherSharedNorLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const total, share = 10, 7
		l := newLimiter(t, Options{ConcurrencyMax: total, TenantConcurrencyMax: share, TenantQueueMax: 1 << 20, WaitMax: -1})
		var held [3]atomic.Int64
		var all, maximum atomic.Int64
		var wg sync.WaitGroup
		for i := range 2000 {
			r := rand.New(rand.NewPCG(5, uint64(i)))
			wg.Go(func() {
				tenant := r.IntN(len(held))
				n := int64(1 + r.IntN(share))
				time.Sleep(time.Duration(r.IntN(3000)))
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+r.IntN(1<<r.IntN(22))))
				defer cancel()
				free, err := l.AcquireN(ctx, string(rune('a'+tenant)), int(n))
				if err != nil {
					return
				}
				if of := held[tenant].Add(n); of > share {
					t.Errorf("a tenant holds %d", of)
				}
				if sum := all.Add(n); sum > total {
					t.Errorf("%d are held", sum)
				} else {
					maximum.Store(max(maximum.Load(), sum))
				}
				for n > 0 {
					time.Sleep(time.Duration(r.IntN(30)))
					some := 1 + r.Int64N(n)
					held[tenant].Add(-some)
					all.Add(-some)
					free(int(some))
					n -= some
				}
			})
		}
		wg.Wait()
		check(t, "held at maximum", maximum.Load(), total)
		check(t, "held in the end", l.running, 0)
		check(t, "tenants in the end", len(l.tenants), 0)
		check(t, "turns in the end", l.turns.Len(), 0)
	})
}

func TestAcquire_WaitsAsLongAsItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for text, most := range map[string]time.Duration{"at most 0s": 1, "at most 10s": 10 * time.Second} {
			l := newLimiter(t, Options{ConcurrencyMax: 1, WaitMax: most})
			hold(t, l, "a", 1)
			begun := time.Now()
			_, err := l.Acquire(t.Context(), "b")
			checkIs(t, err, ErrWait)
			check(t, "text", strings.Contains(err.Error(), text), true)
			check(t, "waited", time.Since(begun), most)
			check(t, "queues", l.turns.Len(), 0)
		}
	})
}

func TestAcquire_WithoutLimitOfTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, Options{ConcurrencyMax: 1, WaitMax: -1})
		free := hold(t, l, "a", 1)
		waiting := acquire(t.Context(), t, l, "b", 1)
		time.Sleep(1000 * time.Hour)
		check(t, "admitted while the slot is in use", waiting(), false)
		free(1)
		check(t, "admitted", waiting(), true)
	})
}

func TestAcquire_WithoutQueueTheErrorNamesNoPlace(t *testing.T) {
	l := newLimiter(t, Options{ConcurrencyMax: 1, TenantQueueMax: -1})
	hold(t, l, "a", 1)
	_, err := l.Acquire(t.Context(), "b")
	checkIs(t, err, ErrQueueFull)
	check(t, "text", err.Error(), `limit exceeded: too many requests: waiting requests of tenant "b": 1, at most 0`)
}

func TestCheckTenant_CharactersAtTheEndsOfThoseAllowed(t *testing.T) {
	checkIs(t, CheckTenant("!~"), nil)
	for _, bad := range []string{" ", "\x7f", "\x80"} {
		checkIs(t, CheckTenant(bad), ErrTenant)
	}
}
