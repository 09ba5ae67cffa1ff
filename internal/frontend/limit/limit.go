// Package limit decides which requests the query frontend takes on, and when.
//
// A request comes in with the name of its tenant. Acquire lets it pass at once, or
// has it wait in its tenant's queue until a place is free, or refuses it because
// that queue is full; a release function goes out, which gives the place back.
// Places are given to waiting tenants in turn, to the requests of one tenant in the
// order in which they came, so that who sends a thousand requests waits for them
// himself. A tenant is remembered only while it has requests here.
//
//	          ┌ queue of a ┐
//	Acquire ──┤ queue of b ├── in turn, each within its own limit ──> places
//	          └ queue of c ┘                                            │
//	             waiting <──────────────── release ─────────────────────┘
//
// Beside it stand plain checks: what a query may ask for (Query), how many bytes may
// pass (Reader, Writer), and how the headers of a request name its tenant (Tenants).
// No clock decides anything here, and nothing is known of queries but their numbers.
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
	TenantConcurrencyMax int // of one tenant; 0: as many as of all
	TenantQueueMax       int // requests of one tenant that may wait; 0: 512, negative: none
	TenantsMax           int // that may have requests here at the same time; 0: 10000
}

func (o Options) withDefaults() Options {
	if o.ConcurrencyMax == 0 {
		o.ConcurrencyMax = 256
	}
	if o.TenantConcurrencyMax == 0 {
		o.TenantConcurrencyMax = o.ConcurrencyMax
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
	// first. While a place is free it is empty.
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
	admitted chan struct{} // closed when it gets its place
	place    *list.Element // in the queue, nil once admitted
}

// New makes a limiter; with a nil set nobody sees its metrics.
func New(opts Options, set *instruments.Set) (*Limiter, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	return &Limiter{opts: opts.withDefaults(), metrics: newMetrics(set), tenants: map[string]*tenant{}}, nil
}

// Acquire waits for a place for one request of a tenant. release must be called
// when the request has ended; a second call does nothing. Errors: ErrQueueFull,
// ErrTenants, or the context's cause. Who holds a place must not wait for another
// one: all might be held by those who do.
func (l *Limiter) Acquire(ctx context.Context, name string) (release func(), err error) {
	if ctx.Err() != nil {
		return nil, l.left(ctx)
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
	if l.running < l.opts.ConcurrencyMax && t.running < l.opts.TenantConcurrencyMax {
		invariant.Check(l.turns.Len() == 0 && t.queue.Len() == 0, "limit: %d tenants and %d requests wait for a free place", l.turns.Len(), t.queue.Len())
		l.admit(t)
		l.mu.Unlock()
		l.metrics.wait.Update(0)
		return l.releaser(name, t), nil
	}
	if t.queue.Len() >= l.opts.TenantQueueMax {
		waiting := t.queue.Len()
		l.forget(name, t)
		l.mu.Unlock()
		l.metrics.queueFull.Inc()
		return nil, &Error{Limit: fmt.Sprintf("waiting requests of tenant %q", name), Value: int64(waiting) + 1, Max: int64(max(0, l.opts.TenantQueueMax)), kind: ErrQueueFull}
	}
	w := &waiter{admitted: make(chan struct{})}
	w.place = t.queue.PushBack(w)
	l.queueUp(t)
	l.mu.Unlock()
	return l.await(ctx, name, t, w)
}

// await stands in the queue.
func (l *Limiter) await(ctx context.Context, name string, t *tenant, w *waiter) (release func(), err error) {
	l.metrics.queued.Inc()
	defer l.metrics.queued.Dec()
	begun := time.Now()
	select {
	case <-w.admitted:
	case <-ctx.Done():
		l.mu.Lock()
		if w.place != nil {
			t.queue.Remove(w.place)
			if t.queue.Len() == 0 && t.turn != nil {
				l.turns.Remove(t.turn)
				t.turn = nil
			}
			l.forget(name, t)
			l.mu.Unlock()
			return nil, l.left(ctx)
		}
		l.mu.Unlock() // admitted at the same moment: whoever asked finds its context ended soon enough
	}
	l.metrics.wait.Update(time.Since(begun).Seconds())
	return l.releaser(name, t), nil
}

func (l *Limiter) left(ctx context.Context) error {
	l.metrics.canceled.Inc()
	return fmt.Errorf("limit: %w", context.Cause(ctx))
}

// releaser gives the place back once.
func (l *Limiter) releaser(name string, t *tenant) func() {
	var once sync.Once
	return func() {
		once.Do(func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.running--
			t.running--
			l.metrics.running.Dec()
			l.queueUp(t)
			l.next()
			l.forget(name, t)
		})
	}
}

// The methods below are called with mu held.

// queueUp gives a tenant that waits and may run its turn, behind all others'.
func (l *Limiter) queueUp(t *tenant) {
	if t.turn == nil && t.queue.Len() > 0 && t.running < l.opts.TenantConcurrencyMax {
		t.turn = l.turns.PushBack(t)
	}
}

// next admits whoever's turn it is, as long as there are places.
func (l *Limiter) next() {
	for l.running < l.opts.ConcurrencyMax && l.turns.Len() > 0 {
		t, _ := l.turns.Remove(l.turns.Front()).(*tenant) // nothing else is in it
		t.turn = nil
		w, _ := t.queue.Remove(t.queue.Front()).(*waiter)
		w.place = nil
		l.admit(t)
		close(w.admitted)
		l.queueUp(t)
	}
}

func (l *Limiter) admit(t *tenant) {
	l.running++
	t.running++
	l.metrics.running.Inc()
}

// forget drops a tenant without requests.
func (l *Limiter) forget(name string, t *tenant) {
	if t.running == 0 && t.queue.Len() == 0 {
		delete(l.tenants, name)
	}
}
