package limit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	instruments "github.com/ferula-io/ferula/metrics"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// check compares a result with the expected one.
func check[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// checkIs expects an error that wraps want; nil expects no error.
func checkIs(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got error %v, want %v", err, want)
	}
}

// pendingRequest is a request of a tenant, sent by a goroutine of its own.
type pendingRequest struct {
	tenant string
	number int // in order of arrival
	ahead  int // waiting requests of the tenant at its arrival
	cancel context.CancelFunc

	served  map[string]int // admitted requests per tenant, between arrival and admission
	release func()         // nil until admitted
	err     error
}

// harness sends requests in a synctest bubble and records the order of admissions.
type harness struct {
	limiter  *Limiter
	mu       sync.Mutex
	all      []*pendingRequest
	admitted []*pendingRequest
}

func newHarness(t *testing.T, opts Options) *harness {
	t.Helper()
	l, err := New(opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &harness{limiter: l}
}

func (h *harness) request(t *testing.T, tenant string) *pendingRequest {
	ctx, cancel := context.WithCancel(t.Context())
	a := &pendingRequest{tenant: tenant, number: len(h.all), ahead: len(h.waiting(tenant)), cancel: cancel, served: map[string]int{}}
	h.all = append(h.all, a)
	go func() {
		release, err := h.limiter.Acquire(ctx, tenant)
		h.mu.Lock()
		defer h.mu.Unlock()
		if a.err = err; err != nil {
			return
		}
		for _, other := range h.all {
			if other.release == nil && other.err == nil && other != a {
				other.served[tenant]++
			}
		}
		a.release = release
		h.admitted = append(h.admitted, a)
	}()
	synctest.Wait()
	return a
}

// waiting returns the requests neither admitted nor rejected; of all tenants if "".
func (h *harness) waiting(tenant string) (list []*pendingRequest) {
	for _, a := range h.all {
		if a.release == nil && a.err == nil && (tenant == "" || a.tenant == tenant) {
			list = append(list, a)
		}
	}
	return list
}

func (h *harness) end(a *pendingRequest) {
	a.release()
	a.cancel()
	synctest.Wait()
	h.admitted = slices.DeleteFunc(h.admitted, func(other *pendingRequest) bool { return other == a })
}

func (h *harness) empty(t *testing.T) {
	t.Helper()
	for len(h.admitted) > 0 {
		h.end(h.admitted[0])
	}
	check(t, "waiting requests", len(h.waiting("")), 0)
	check(t, "running", h.limiter.running, 0)
	check(t, "tenants", len(h.limiter.tenants), 0)
	check(t, "turns", h.limiter.turns.Len(), 0)
}

func TestLimiter_RequestsBeyondTheLimitWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Options{ConcurrencyMax: 2})
		first := h.request(t, "a")
		h.request(t, "a")
		third := h.request(t, "b")
		check(t, "admitted", len(h.admitted), 2)
		h.end(first)
		check(t, "admitted after the first has ended", third.release != nil, true)
		first.release()
		first.release()
		check(t, "running after three releases", h.limiter.running, 2)
		h.empty(t)
	})
}

func TestLimiter_FullQueueRejects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Options{ConcurrencyMax: 1, TenantQueueMax: 2})
		h.request(t, "a")
		h.request(t, "a")
		h.request(t, "a")
		full := h.request(t, "a")
		checkIs(t, full.err, ErrQueueFull)
		checkIs(t, full.err, ErrLimit)
		check(t, "text", full.err.Error(), `limit exceeded: too many requests: waiting requests of tenant "a": 3, at most 2`)
		other := h.request(t, "b")
		checkIs(t, other.err, nil)
		h.empty(t)
	})
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Options{ConcurrencyMax: 1, TenantQueueMax: -1})
		h.request(t, "a")
		checkIs(t, h.request(t, "b").err, ErrQueueFull)
		check(t, "tenants", len(h.limiter.tenants), 1)
		h.empty(t)
	})
}

func TestLimiter_TenantsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Options{TenantsMax: 2})
		first := h.request(t, "a")
		h.request(t, "b")
		err := h.request(t, "c").err
		checkIs(t, err, ErrTenants)
		check(t, "text", err.Error(), "limit exceeded: too many tenants: tenants at the same time: at most 2")
		h.end(first)
		checkIs(t, h.request(t, "c").err, nil)
		h.empty(t)
	})
}

func TestLimiter_WaitEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Options{ConcurrencyMax: 1})
		h.request(t, "a")
		second, third := h.request(t, "b"), h.request(t, "b")
		second.cancel()
		synctest.Wait()
		checkIs(t, second.err, context.Canceled)
		check(t, "waiting", len(h.waiting("")), 1)
		third.cancel()
		synctest.Wait()
		check(t, "tenants", len(h.limiter.tenants), 1)
		check(t, "turns", h.limiter.turns.Len(), 0)
		h.empty(t)
		ended, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("the client has gone"))
		_, err := h.limiter.Acquire(ended, "a")
		check(t, "canceled before it waits", err.Error(), "limit: the client has gone")
	})
}

// A request of another tenant waits for at most one request of a tenant that floods the
// queue.
func TestLimiter_FloodOfOneTenantDoesNotDelayOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, Options{ConcurrencyMax: 1, TenantQueueMax: 1000})
		for range 500 {
			h.request(t, "flood")
		}
		for range 20 {
			quiet := h.request(t, "quiet")
			turns := 0
			for quiet.release == nil {
				h.end(h.admitted[0])
				turns++
			}
			if turns > 2 || quiet.served["flood"] > 1 {
				t.Fatalf("waited for %d slots and %d requests of the flood", turns, quiet.served["flood"])
			}
			h.end(quiet)
		}
		h.empty(t)
	})
}

// Random arrivals, ends and cancellations, with the invariants checked after each.
func TestLimiter_SlotsAreFairAndNeverIdle(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			opts := Options{ConcurrencyMax: 1 + random.IntN(4), TenantQueueMax: 1 + random.IntN(8), TenantsMax: 3 + random.IntN(3)}
			if random.IntN(2) == 0 {
				opts.TenantConcurrencyMax = 1 + random.IntN(opts.ConcurrencyMax)
			}
			h := newHarness(t, opts)
			for range 300 {
				switch waiting := h.waiting(""); {
				case random.IntN(8) == 0 && len(waiting) > 0:
					waiting[random.IntN(len(waiting))].cancel()
					synctest.Wait()
				case random.IntN(2) == 0 && len(h.admitted) > 0:
					h.end(h.admitted[random.IntN(len(h.admitted))])
				default:
					// The first tenant sends more requests than all others.
					h.request(t, fmt.Sprint(max(0, random.IntN(12)-6)))
				}
				h.verify(t, opts)
			}
			h.empty(t)
		})
	}
}

func (h *harness) verify(t *testing.T, opts Options) {
	t.Helper()
	opts = opts.withDefaults()
	running, oldest := map[string]int{}, map[string]int{}
	for _, a := range h.admitted {
		running[a.tenant]++
	}
	for _, a := range slices.Backward(h.waiting("")) {
		oldest[a.tenant] = a.number
		if running[a.tenant] < opts.TenantConcurrencyMax && len(h.admitted) < opts.ConcurrencyMax {
			t.Fatalf("request %d of %s waits although it could run", a.number, a.tenant)
		}
	}
	if len(h.admitted) > opts.ConcurrencyMax {
		t.Fatalf("%d run", len(h.admitted))
	}
	tenants := map[string]bool{}
	for _, a := range h.all {
		if a.release == nil && a.err == nil {
			tenants[a.tenant] = true
		}
	}
	for _, a := range h.admitted {
		tenants[a.tenant] = true
		if running[a.tenant] > opts.TenantConcurrencyMax {
			t.Fatalf("%d of %s run", running[a.tenant], a.tenant)
		}
		if first, waits := oldest[a.tenant]; waits && first < a.number {
			t.Fatalf("%d of %s was admitted before %d", a.number, a.tenant, first)
		}
		if opts.TenantConcurrencyMax < opts.ConcurrencyMax {
			continue // a tenant at its own limit waits for itself, others pass
		}
		for other, served := range a.served {
			if other != a.tenant && served > a.ahead+1 {
				t.Fatalf("%d of %s, with %d before it, waited for %d of %s", a.number, a.tenant, a.ahead, served, other)
			}
		}
	}
	if len(h.limiter.tenants) != len(tenants) {
		t.Fatalf("%d tenants in memory, %d have requests", len(h.limiter.tenants), len(tenants))
	}
}

func TestLimiter_Metrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := instruments.NewSet()
		l, err := New(Options{ConcurrencyMax: 1, TenantQueueMax: 1}, set)
		if err != nil {
			t.Fatal(err)
		}
		h := &harness{limiter: l}
		h.request(t, "a")
		h.request(t, "a")
		h.request(t, "a") // refused
		check(t, "running", l.metrics.running.Get(), 1)
		check(t, "queued", l.metrics.queued.Get(), 1)
		check(t, "refused", l.metrics.queueFull.Get(), 1)
		time.Sleep(3 * time.Second)
		h.empty(t)
		want := `
ferula_frontend_queue_wait_seconds_bucket{le="0.001"} 1
ferula_frontend_queue_wait_seconds_bucket{le="0.01"} 1
ferula_frontend_queue_wait_seconds_bucket{le="0.1"} 1
ferula_frontend_queue_wait_seconds_bucket{le="0.5"} 1
ferula_frontend_queue_wait_seconds_bucket{le="1"} 1
ferula_frontend_queue_wait_seconds_bucket{le="5"} 2
ferula_frontend_queue_wait_seconds_bucket{le="10"} 2
ferula_frontend_queue_wait_seconds_bucket{le="30"} 2
ferula_frontend_queue_wait_seconds_bucket{le="60"} 2
ferula_frontend_queue_wait_seconds_bucket{le="120"} 2
ferula_frontend_queue_wait_seconds_bucket{le="+Inf"} 2
ferula_frontend_queue_wait_seconds_sum 3
ferula_frontend_queue_wait_seconds_count 2
`
		var page strings.Builder
		set.WritePrometheus(&page)
		if !strings.Contains("\n"+page.String(), want) {
			t.Errorf("got %s, want %s", page.String(), want)
		}
		defer func() {
			if recover() == nil {
				t.Error("two limiters on one set")
			}
		}()
		_, _ = New(Options{}, set)
	})
}

func TestOptions_ValidateReturnsAllFaults(t *testing.T) {
	_, err := New(Options{ConcurrencyMax: -1, TenantConcurrencyMax: -2, TenantsMax: -3}, nil)
	for _, want := range []string{"-1", "-2", "-3"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is missing in %v", want, err)
		}
	}
}

func BenchmarkAcquire(b *testing.B) {
	l, err := New(Options{}, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		release, err := l.Acquire(b.Context(), "a")
		if err != nil {
			b.Fatal(err)
		}
		release()
	}
}

func TestError_NumbersHaveTheirUnits(t *testing.T) {
	for _, tt := range []struct {
		err  Error
		want string
	}{
		{Error{Limit: "steps", Value: 1234, Max: 1000}, "limit exceeded: steps: 1234, at most 1000"},
		{Error{Limit: "body", Value: 1234, Max: 1000, Unit: "bytes"}, "limit exceeded: body: 1234 bytes, at most 1000 bytes"},
		{Error{Limit: "range", Value: 90_000, Max: 60_000, Unit: "ms"}, "limit exceeded: range: 1m30s, at most 1m0s"},
		{Error{Limit: "body", Max: 12, Unit: "bytes"}, "limit exceeded: body: at most 12 bytes"},
	} {
		check(t, "text", tt.err.Error(), tt.want)
	}
}
