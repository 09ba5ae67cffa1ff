// Package limit decides which requests the query frontend takes on, and when.
//
// A request comes in with the name of its tenant. Acquire lets it pass at once, or
// has it wait in its tenant's queue until a place is free, or refuses it because
// that queue is full; a release function goes out, which gives the place back.
// Places are given to waiting tenants in turn, to the requests of one tenant in the
// order in which they came, so that who sends a thousand requests waits for them
// himself. A tenant is remembered only while it has requests here.
//
// AcquireN takes several places at once or waits, for a request that cannot use one
// without the others: calls of the downstream, which are read together. The tenant
// whose turn it is waits for enough of them, and others behind it.
//
//	          ┌ queue of a ┐
//	Acquire ──┤ queue of b ├── in turn, each within its own limit ──> places
//	          └ queue of c ┘                                            │
//	             waiting <──────────────── release ─────────────────────┘
//
// Beside it stand plain checks: what a query may ask for (Query), and how the headers of a request name its tenant (Tenants).
// The only clock is that of WaitMax, and nothing is known of queries but their numbers.
package limit

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	instruments "github.com/ferula-io/ferula/metrics"

	"github.com/ferula-io/ferula/internal/invariant"
)

// Options of admission. Zero values take the defaults named.
type Options struct {
	ConcurrencyMax       int // requests let in at once; 0: 256
	TenantConcurrencyMax int // of one tenant; 0: three quarters of all
	TenantQueueMax       int // requests of one tenant that may wait; 0: 512, negative: none
	TenantsMax           int // that may have requests here at the same time; 0: 10000
	// WaitMax is how long a request may wait; 0: 1 minute, negative: no limit.
	WaitMax time.Duration
	// Downstream makes the metrics those of calls of the downstream.
	Downstream bool
}

func (o Options) withDefaults() Options {
	if o.ConcurrencyMax == 0 {
		o.ConcurrencyMax = 256
	}
	if o.TenantConcurrencyMax == 0 {
		o.TenantConcurrencyMax = o.ConcurrencyMax - o.ConcurrencyMax/4
	}
	o.TenantConcurrencyMax = min(o.TenantConcurrencyMax, o.ConcurrencyMax)
	if o.WaitMax == 0 {
		o.WaitMax = time.Minute
	}
	if o.TenantQueueMax == 0 {
		o.TenantQueueMax = 512
	}
	if o.TenantsMax == 0 {
		o.TenantsMax = 10_000
	}
	return o
}

// Validate reports every fault of the options at once.
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
			errs = append(errs, fmt.Errorf("limit: %d %s at most", number.value, number.name))
		}
	}
	return errors.Join(errs...)
}

// Limiter admits requests. Its methods may be called concurrently.
type Limiter struct {
	opts    Options
	metrics *metrics

	mu      sync.Mutex
	running int
	tenants map[string]*tenant
	// turns are the tenants that wait and are below their own limit, who is next
	// first. While there are places for the first it is empty.
	turns list.List
}

// tenant is one that has requests running or waiting.
type tenant struct {
	running int
	queue   list.List     // of *waiter
	turn    *list.Element // in turns, or nil
}

// waiter is one request in a queue.
type waiter struct {
	admitted chan struct{} // closed when it gets its places
	element    *list.Element // in the queue, nil once admitted
	n        int           // places it needs
}

// New makes a limiter; with a nil set nobody sees its metrics.
func New(opts Options, set *instruments.Set) (*Limiter, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	return &Limiter{opts: opts.withDefaults(), metrics: newMetrics(set, opts.Downstream), tenants: map[string]*tenant{}}, nil
}

// Most is how many places a request can have at all.
func (l *Limiter) MaxPerRequest() int { return l.opts.TenantConcurrencyMax }

// Full tells whether there is no place left.
func (l *Limiter) Full() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.running >= l.opts.ConcurrencyMax
}

// Acquire waits for a place for one request of a tenant. release must be called
// when the request has ended; a second call does nothing. Errors: ErrQueueFull,
// ErrTenants, ErrWait, or the context's cause. Who holds a place must not wait for
// another one: all might be held by those who do.
func (l *Limiter) Acquire(ctx context.Context, name string) (release func(), err error) {
	free, err := l.AcquireN(ctx, name, 1)
	if err != nil {
		return nil, err
	}
	return func() { free(1) }, nil
}

// AcquireN waits for n places at once, which are at most Most. They are given back
// by free, one after the other or together; more than there were are not.
func (l *Limiter) AcquireN(ctx context.Context, name string, n int) (free func(n int), err error) {
	invariant.Check(n > 0 && n <= l.MaxPerRequest(), "limit: %d places, of which a tenant may have %d", n, l.MaxPerRequest())
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
		return nil, &Error{Limit: fmt.Sprintf("waiting requests of tenant %q", name), Value: int64(waiting) + 1, Max: int64(max(0, l.opts.TenantQueueMax)), kind: ErrQueueFull}
	}
	w := &waiter{admitted: make(chan struct{}), n: n}
	w.element = t.queue.PushBack(w)
	l.queueUp(t)
	l.mu.Unlock()
	return l.await(ctx, name, t, w)
}

// await stands in the queue.
func (l *Limiter) await(ctx context.Context, name string, t *tenant, w *waiter) (free func(int), err error) {
	l.metrics.queued.Inc()
	defer l.metrics.queued.Dec()
	begun := time.Now()
	var late <-chan time.Time // never, without a limit
	if l.opts.WaitMax > 0 {
		timer := time.NewTimer(l.opts.WaitMax)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-w.admitted:
	case <-ctx.Done():
		if l.leave(name, t, w) {
			return nil, l.canceledError(ctx)
		}
	case <-late:
		if l.leave(name, t, w) {
			l.metrics.timedOut.Inc()
			return nil, &Error{Limit: "time in the queue", Max: l.opts.WaitMax.Milliseconds(), Unit: "ms", kind: ErrWait}
		}
	}
	l.metrics.wait.Update(time.Since(begun).Seconds())
	return l.releaser(name, t, w.n), nil
}

// leave takes a request out of its queue; false: it was admitted at the same time,
// and finds the end of its context soon enough.
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
	// It may have needed more places than those behind it.
	l.queueUp(t)
	l.next()
	l.forget(name, t)
	return true
}

func (l *Limiter) canceledError(ctx context.Context) error {
	l.metrics.canceled.Inc()
	return fmt.Errorf("limit: %w", context.Cause(ctx))
}

// releaser gives back each of n places once.
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

// fits tells whether a tenant may have n more places.
func (l *Limiter) fits(t *tenant, n int) bool { return t.running+n <= l.opts.TenantConcurrencyMax }

// first is the request of a tenant that waits longest.
func (t *tenant) first() *waiter {
	w, _ := t.queue.Front().Value.(*waiter) // nothing else is in it
	return w
}

// queueUp gives a tenant that waits and may run its turn, behind all others'.
func (l *Limiter) queueUp(t *tenant) {
	if t.turn == nil && t.queue.Len() > 0 && l.fits(t, t.first().n) {
		t.turn = l.turns.PushBack(t)
	}
}

// next admits whoever's turn it is, as long as there are places.
func (l *Limiter) next() {
	for l.turns.Len() > 0 {
		t, _ := l.turns.Front().Value.(*tenant) // nothing else is in it
		w := t.first()
		if l.fits(t, w.n) && l.running+w.n > l.opts.ConcurrencyMax {
			return
		}
		l.turns.Remove(t.turn)
		t.turn = nil
		if !l.fits(t, w.n) { // the request whose turn it was has left
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

// forget drops a tenant without requests.
func (l *Limiter) forget(name string, t *tenant) {
	if t.running == 0 && t.queue.Len() == 0 {
		delete(l.tenants, name)
	}
}
