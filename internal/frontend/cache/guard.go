package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	instruments "github.com/ferula-io/ferula/metrics"
)

// guard wraps a store with metrics and the circuit breaker. A local store gets the
// metrics only.
type guard struct {
	store   Store
	local   bool
	breaker *breaker
	met     *metrics
	// grace: an operation whose deadline expires counts as a failure of the store only if it took
	// at least this long. The last of many operations of one Lookup may have had almost no time.
	grace time.Duration
}

const (
	opGet = "get"
	opSet = "set"
)

// get returns the value, which is shared and immutable; nil if there is none.
func (g *guard) get(ctx context.Context, key string) (value []byte, err error) {
	err = g.do(ctx, opGet, func() error {
		v, ok, err := g.store.Get(ctx, key)
		if ok && err == nil {
			value = v
			g.met.bytesRead.Add(len(v))
		}
		return err
	})
	return value, err
}

func (g *guard) set(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	return g.do(ctx, opSet, func() error {
		err := g.store.Set(ctx, key, value, ttl)
		if err == nil {
			g.met.bytesWritten.Add(len(value))
		}
		return err
	})
}

// do runs one operation. The deadline of the operation is the deadline of ctx.
func (g *guard) do(ctx context.Context, op string, run func() error) error {
	g.met.operations.of(op).Inc()
	if g.local {
		err := run()
		if err != nil {
			g.met.failed(op, err)
		}
		return err
	}
	if !g.breaker.allow() {
		g.met.failed(op, ErrUnavailable)
		return ErrUnavailable
	}
	begin := time.Now()
	err := run()
	took := time.Since(begin)
	g.met.duration.With(g.met.cache, op).Update(took.Seconds())
	if err != nil {
		g.met.failed(op, err)
	}
	switch {
	case err == nil:
		g.breaker.succeeded()
	case errors.Is(err, ErrTooLarge), errors.Is(err, ErrUnavailable), errors.Is(ctx.Err(), context.Canceled),
		ctx.Err() != nil && took < g.grace:
		g.breaker.unknown() // not the store's failure
	default:
		g.breaker.failed(err)
	}
	return err
}

// reason returns the metric label of an error.
func reason(err error) string {
	var network net.Error
	var op *net.OpError
	switch {
	case errors.Is(err, ErrUnavailable):
		return "unavailable"
	case errors.Is(err, ErrTooLarge):
		return "too-large"
	case errors.Is(err, errCollision):
		return "collision"
	case errors.Is(err, errCorrupt):
		return "corrupt"
	case errors.Is(err, errMissing):
		return "missing"
	case errors.Is(err, errNoSpace):
		return "no-space"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return "timeout"
	case errors.As(err, &op):
		return "network"
	}
	return "other"
}

// breaker opens after failuresMax consecutive failures: allow returns false. When the back-off is
// over, one operation probes the store: a success closes the breaker, a failure doubles the
// back-off.
type breaker struct {
	failuresMax int
	first, max  time.Duration // back-off
	now         func() time.Time
	changed     func(open bool, err error)

	mu        sync.Mutex
	failures  int
	backoff   time.Duration // 0: closed
	openUntil time.Time     // end of the back-off
	probing   bool          // one operation probes the store
}

func newBreaker(failures int, first, backoffMax time.Duration, now func() time.Time,
	changed func(open bool, err error)) *breaker {
	return &breaker{failuresMax: failures, first: first, max: backoffMax, now: now, changed: changed}
}

// allow reports whether the operation may run; then one of succeeded, failed and unknown must follow.
func (b *breaker) allow() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.backoff == 0 {
		return true
	}
	if b.probing || b.now().Before(b.openUntil) {
		return false
	}
	b.probing = true
	return true
}

func (b *breaker) succeeded() {
	b.mu.Lock()
	wasOpen := b.backoff > 0
	b.failures, b.backoff, b.probing = 0, 0, false
	b.mu.Unlock()
	if wasOpen {
		b.changed(false, nil)
	}
}

func (b *breaker) failed(err error) {
	b.mu.Lock()
	wasOpen := b.backoff > 0
	b.failures++
	switch {
	case wasOpen && b.probing:
		b.backoff = min(2*b.backoff, b.max)
		b.openUntil = b.now().Add(b.backoff)
	case !wasOpen && b.failures >= b.failuresMax:
		b.backoff = b.first
		b.openUntil = b.now().Add(b.backoff)
	}
	b.probing = false
	opened := !wasOpen && b.backoff > 0
	b.mu.Unlock()
	if opened {
		b.changed(true, err)
	}
}

// unknown ends an operation whose result does not show whether the store works.
func (b *breaker) unknown() {
	b.mu.Lock()
	b.probing = false
	b.mu.Unlock()
}

// metrics of a cache. The label cache has the name of the cache, because a process has several caches. The label reason
// is why an entry was not used, or why an operation failed. The comments below name the other labels.
type metrics struct {
	cache        string
	lookups      counters                            // result
	unused       counters                            // reason
	extents      counters                            // result
	merges       counters                            // result
	operations   counters                            // operation
	failures     counters                            // operation, reason
	duration     *instruments.PrometheusHistogramVec // cache, operation
	bytesRead    *instruments.Counter
	bytesWritten *instruments.Counter
	breaker      *instruments.Gauge
}

// counters are the counters of one cache in a family.
type counters struct {
	*instruments.CounterVec
	cache string
}

func (c counters) of(value string) *instruments.Counter { return c.With(c.cache, value) }

const metricPrefix = "ferula_frontend_cache_"

// newMetrics registers the metrics in the set, or in a private set if that is nil.
func newMetrics(set *instruments.Set, cache string, queued func() float64) *metrics {
	set = cmp.Or(set, instruments.NewSet())
	family := func(name, help string, labels ...string) counters {
		return counters{set.NewCounterVec(metricPrefix+name, help, append([]string{"cache"}, labels...)...), cache}
	}
	bytes := family("store_bytes_total", "Bytes read from and written to the store, compressed.", "direction")
	m := &metrics{
		cache: cache,
		lookups: family("lookups_total", "Lookups by result: hit covers all of the requested range, partial a part of it.",
			"result"),
		unused:  family("unused_total", "Responses that were found but not used, by reason.", "reason"),
		extents: family("extents_total", "Responses written to the cache, by result.", "result"),
		merges:  family("merges_total", "Writes that extend the stored response, by result.", "result"),
		operations: family("operations_total", "Operations on the store, including those rejected by the circuit breaker.",
			"operation"),
		failures: family("operation_failures_total", "Failed operations on the store, by reason.", "operation", "reason"),
		duration: set.NewPrometheusHistogramVec(metricPrefix+"operation_duration_seconds",
			"Duration of operations on a remote store.",
			[]float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5}, "cache", "operation"),
		bytesRead:    bytes.of("read"),
		bytesWritten: bytes.of("written"),
		breaker:      gaugeOf(set, cache, "breaker_open", "1 while the circuit breaker of the store is open.", nil),
	}
	gaugeOf(set, cache, "queue_length", "Writes that wait for a worker.", queued)
	for _, result := range []string{"hit", "partial", "miss"} {
		m.lookups.of(result)
	}
	return m
}

func (m *metrics) failed(op string, err error) { m.failures.With(m.cache, op, reason(err)).Inc() }

// gaugeOf registers one cache's gauge. If f is not nil, it returns the value.
func gaugeOf(set *instruments.Set, cache, name, help string, f func() float64) *instruments.Gauge {
	set.Describe(metricPrefix+name, help, "")
	return set.NewGauge(fmt.Sprintf("%s%s{cache=%q}", metricPrefix, name, cache), f)
}
