// Package limit limits the concurrent requests of the query frontend, with fair queues
// for tenants.
//
// In: the tenant of a request. Acquire admits the request at once, or queues it with
// its tenant until a slot is free, or fails because that queue is full. Out: a function
// that releases the slot. Free slots go to the waiting tenants round-robin, and to the
// requests of one tenant first in, first out. A tenant that sends a thousand requests
// therefore delays its own requests only. A tenant uses memory only while it has
// requests.
//
// AcquireN acquires several slots at once, or waits until enough are free. It is for the parts of a
// query, whose responses are read together: one slot is of no use without the others. While the
// first tenant in the round-robin queue waits for enough free slots, the tenants behind it wait,
// too.
//
//	          ┌ queue of a ┐
//	Acquire ──┤ queue of b ├── round-robin, within each tenant's limit ──> slots
//	          └ queue of c ┘                                                 │
//	             waiting <────────────────── release ────────────────────────┘
//
// The package also has two checks without queues: the limits of a query (Query), and the tenant
// that the headers of a request name (Tenants). The package uses the clock only for WaitMax and for
// the metric of the wait.
package limit

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	instruments "github.com/ferula-io/ferula/metrics"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/invariant"
)

// Options are the limits of a Limiter. Zero values take the defaults.
type Options struct {
	ConcurrencyMax       int // slots; 0: 256
	TenantConcurrencyMax int // slots of one tenant; 0: three quarters of all
	TenantQueueMax       int // waiting requests of one tenant; 0: 512, negative: none
	TenantsMax           int // tenants with requests at the same time; 0: 10000
	// WaitMax is the maximum wait of a request; 0: 1 minute, negative: no limit.
	WaitMax time.Duration
	// Flags names the flags that raise the limits, for errors.
	Flags hint.Flags
	// Downstream means that slots are for calls of the downstream instead of requests of clients.
	// It changes the names of the metrics.
	Downstream bool
}

func (o Options) withDefaults() Options {
	o.ConcurrencyMax = cmp.Or(o.ConcurrencyMax, 256)
	o.TenantConcurrencyMax = min(cmp.Or(o.TenantConcurrencyMax, o.ConcurrencyMax-o.ConcurrencyMax/4), o.ConcurrencyMax)
	o.WaitMax = cmp.Or(o.WaitMax, time.Minute)
	o.TenantQueueMax = cmp.Or(o.TenantQueueMax, 512)
	o.TenantsMax = cmp.Or(o.TenantsMax, 10_000)
	return o
}

// Validate returns all faults of the options, joined.
func (o Options) Validate() error {
	var errs []error
	for _, number := range []struct {
		name  string
		value int
	}{
		{"concurrent requests", o.ConcurrencyMax},
		{"concurrent requests of a tenant", o.TenantConcurrencyMax},
		{"tenants", o.TenantsMax},
	} {
		if number.value < 0 {
			errs = append(errs, fmt.Errorf("limit: maximum of %s is negative: %d", number.name, number.value))
		}
	}
	return errors.Join(errs...)
}

// Limiter admits requests. It is safe for concurrent use.
type Limiter struct {
	opts    Options
	metrics *metrics

	mu      sync.Mutex
	running int                // slots in use
	tenants map[string]*tenant // with requests, by name
	// turns is the round-robin queue: the tenants with a waiting request and below their own limit.
	// It is empty unless its first tenant needs more slots than are free.
	turns list.List
}

// tenant is the state of a tenant with running or waiting requests.
type tenant struct {
	running int           // slots in use
	queue   list.List     // of *waiter
	turn    *list.Element // in turns, or nil
}

// waiter is one request in a queue.
type waiter struct {
	admitted chan struct{} // closed when it gets its slots
	element  *list.Element // in the queue, nil once admitted
	n        int           // slots it needs
}

// New returns a Limiter that registers its metrics in set. With a nil set they are not
// exposed.
func New(opts Options, set *instruments.Set) (*Limiter, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	return &Limiter{opts: opts.withDefaults(), metrics: newMetrics(set, opts.Downstream), tenants: map[string]*tenant{}},
		nil
}

// MaxPerRequest returns the maximum of slots that one AcquireN can get.
func (l *Limiter) MaxPerRequest() int { return l.opts.TenantConcurrencyMax }

// Full reports whether all slots are in use.
func (l *Limiter) Full() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.running >= l.opts.ConcurrencyMax
}

// Acquire waits for a slot for one request of the tenant name. The caller must call release when
// the request has ended; further calls of release do nothing. Errors: ErrQueueFull, ErrTenants,
// ErrWait, or the context's cause. A request that holds a slot must not acquire another one: two
// such requests could wait for each other forever.
func (l *Limiter) Acquire(ctx context.Context, name string) (release func(), err error) {
	free, err := l.AcquireN(ctx, name, 1)
	if err != nil {
		return nil, err
	}
	return func() { free(1) }, nil
}

// AcquireN waits until it gets n slots at once. n must be at most MaxPerRequest. free releases the
// given number of these slots; all calls of free together release at most n. Errors are those of
// Acquire.
func (l *Limiter) AcquireN(ctx context.Context, name string, n int) (free func(n int), err error) {
	invariant.Check(n > 0 && n <= l.MaxPerRequest(), "limit: %d slots requested, a tenant may have %d", n,
		l.MaxPerRequest())
	if ctx.Err() != nil {
		return nil, l.canceledError(ctx)
	}
	l.mu.Lock()
	t := l.tenants[name]
	if t == nil {
		if len(l.tenants) >= l.opts.TenantsMax {
			l.mu.Unlock()
			l.metrics.tenantsFull.Inc()
			return nil, &Error{Limit: "tenants at the same time", Max: int64(l.opts.TenantsMax), kind: ErrTenants}
		}
		t = &tenant{}
		l.tenants[name] = t
	}
	if l.turns.Len() == 0 && t.queue.Len() == 0 && l.fits(t, n) && l.running+n <= l.opts.ConcurrencyMax {
		l.admit(t, n)
		l.mu.Unlock()
		l.metrics.wait.Update(0)
		return l.releaser(name, t, n), nil
	}
	if t.queue.Len() >= l.opts.TenantQueueMax {
		waiting := t.queue.Len()
		l.forget(name, t)
		l.mu.Unlock()
		l.metrics.queueFull.Inc()
		return nil, &Error{Limit: fmt.Sprintf("waiting requests of tenant %q", name), Value: int64(waiting) + 1,
			Max: int64(max(0, l.opts.TenantQueueMax)), Flag: l.opts.Flags.Of("TenantQueueMax"), kind: ErrQueueFull}
	}
	w := &waiter{admitted: make(chan struct{}), n: n}
	w.element = t.queue.PushBack(w)
	l.queueUp(t)
	l.mu.Unlock()
	return l.await(ctx, name, t, w)
}

// await waits in the queue.
func (l *Limiter) await(ctx context.Context, name string, t *tenant, w *waiter) (free func(int), err error) {
	l.metrics.queued.Inc()
	defer l.metrics.queued.Dec()
	start := time.Now()
	var timeout <-chan time.Time // nil without a limit: receiving from it blocks forever
	if l.opts.WaitMax > 0 {
		timer := time.NewTimer(l.opts.WaitMax)
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-w.admitted:
	case <-ctx.Done():
		if l.leave(name, t, w) {
			return nil, l.canceledError(ctx)
		}
	case <-timeout:
		if l.leave(name, t, w) {
			l.metrics.timedOut.Inc()
			return nil, &Error{Limit: "time in the queue", Max: l.opts.WaitMax.Milliseconds(), Unit: "ms",
				Flag: l.opts.Flags.Of("WaitMax"), kind: ErrWait}
		}
	}
	l.metrics.wait.Update(time.Since(start).Seconds())
	return l.releaser(name, t, w.n), nil
}

// leave removes a request, whose context or wait has ended, from its queue. It returns false if the
// request was admitted meanwhile.
func (l *Limiter) leave(name string, t *tenant, w *waiter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.element == nil {
		return false
	}
	t.queue.Remove(w.element)
	w.element = nil
	if t.queue.Len() == 0 && t.turn != nil {
		l.turns.Remove(t.turn)
		t.turn = nil
	}
	// The requests behind w may need fewer slots than w, so they may be admitted now.
	l.queueUp(t)
	l.next()
	l.forget(name, t)
	return true
}

func (l *Limiter) canceledError(ctx context.Context) error {
	l.metrics.canceled.Inc()
	return fmt.Errorf("limit: %w", context.Cause(ctx))
}

// releaser returns the function free of AcquireN.
func (l *Limiter) releaser(name string, t *tenant, n int) func(int) {
	return func(some int) {
		l.mu.Lock()
		defer l.mu.Unlock()
		some = min(some, n)
		if some <= 0 {
			return
		}
		n -= some
		l.running -= some
		t.running -= some
		l.metrics.running.Add(-float64(some))
		l.queueUp(t)
		l.next()
		l.forget(name, t)
	}
}

// The methods below are called with mu held.

// fits reports whether n more slots are within the tenant's own limit.
func (l *Limiter) fits(t *tenant, n int) bool { return t.running+n <= l.opts.TenantConcurrencyMax }

// first returns the longest waiting request of a tenant.
func (t *tenant) first() *waiter {
	w, _ := t.queue.Front().Value.(*waiter) // nothing else is in it
	return w
}

// queueUp appends a tenant to turns if it has a waiting request within its own limit.
func (l *Limiter) queueUp(t *tenant) {
	if t.turn == nil && t.queue.Len() > 0 && l.fits(t, t.first().n) {
		t.turn = l.turns.PushBack(t)
	}
}

// next admits requests in turn while there are enough free slots.
func (l *Limiter) next() {
	for l.turns.Len() > 0 {
		t, _ := l.turns.Front().Value.(*tenant) // nothing else is in it
		w := t.first()
		if l.fits(t, w.n) && l.running+w.n > l.opts.ConcurrencyMax {
			return
		}
		l.turns.Remove(t.turn)
		t.turn = nil
		if !l.fits(t, w.n) { // the request for which t was queued has left; the next one needs more slots
			continue
		}
		t.queue.Remove(w.element)
		w.element = nil
		l.admit(t, w.n)
		close(w.admitted)
		l.queueUp(t)
	}
}

func (l *Limiter) admit(t *tenant, n int) {
	l.running += n
	t.running += n
	l.metrics.running.Add(float64(n))
}

// forget deletes a tenant without requests.
func (l *Limiter) forget(name string, t *tenant) {
	if t.running == 0 && t.queue.Len() == 0 {
		delete(l.tenants, name)
	}
}
