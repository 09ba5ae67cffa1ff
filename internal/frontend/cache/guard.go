package cache

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// guard stands before a store: deadlines, the circuit breaker, metrics. A local
// store is only counted.
type guard struct {
	store   Store
	local   bool
	breaker *breaker
	met     *metrics
	// patience is what a store must have had before a deadline is its fault: the last
	// of many operations of one Lookup may have had next to nothing.
	patience time.Duration
}

const (
	opGet    = "get"
	opSet    = "set"
	opDelete = "delete"
	opHas    = "has"
)

// get gives the value, which is shared immutable; nil where there is none.
func (g *guard) get(ctx context.Context, key string) (value []byte, err error) {
	err = g.do(ctx, opGet, func() error {
		v, ok, err := g.store.Get(ctx, key)
		if ok && err == nil {
			value = v
			g.met.bytesRead.Add(float64(len(v)))
		}
		return err
	})
	return value, err
}

func (g *guard) set(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	return g.do(ctx, opSet, func() error {
		err := g.store.Set(ctx, key, value, ttl)
		if err == nil {
			g.met.bytesWritten.Add(float64(len(value)))
		}
		return err
	})
}

func (g *guard) delete(ctx context.Context, key string) error {
	return g.do(ctx, opDelete, func() error { return g.store.Delete(ctx, key) })
}

// hasAll tells whether all keys are there; true also where the store cannot tell.
func (g *guard) hasAll(ctx context.Context, keys []string) (has bool, err error) {
	finding, ok := g.store.(findingStore)
	if !ok || len(keys) == 0 {
		return true, nil
	}
	err = g.do(ctx, opHas, func() (err error) {
		has, err = finding.HasAll(ctx, keys)
		return err
	})
	return has, err
}

// do runs one operation, whose deadline is in ctx.
func (g *guard) do(ctx context.Context, op string, run func() error) error {
	g.met.operations.WithLabelValues(op).Inc()
	if g.local {
		err := run()
		if err != nil {
			g.met.failures.WithLabelValues(op, reason(err)).Inc()
		}
		return err
	}
	if !g.breaker.allow() {
		g.met.failures.WithLabelValues(op, reason(ErrUnavailable)).Inc()
		return ErrUnavailable
	}
	begin := time.Now()
	err := run()
	took := time.Since(begin)
	g.met.duration.WithLabelValues(op).Observe(took.Seconds())
	if err != nil {
		g.met.failures.WithLabelValues(op, reason(err)).Inc()
	}
	switch {
	case err == nil:
		g.breaker.succeeded()
	case errors.Is(err, ErrTooLarge), errors.Is(err, ErrUnavailable), errors.Is(ctx.Err(), context.Canceled),
		ctx.Err() != nil && took < g.patience:
		g.breaker.unknown() // the store is not to blame
	default:
		g.breaker.failed(err)
	}
	return err
}

// reason words an error for a metric's label.
func reason(err error) string {
	var network net.Error
	var op *net.OpError
	switch {
	case errors.Is(err, ErrUnavailable):
		return "unavailable"
	case errors.Is(err, ErrTooLarge):
		return "too-large"
	case errors.Is(err, errVersion):
		return "version"
	case errors.Is(err, errCollision):
		return "collision"
	case errors.Is(err, errCorrupt):
		return "corrupt"
	case errors.Is(err, errMissing):
		return "missing"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return "timeout"
	case errors.As(err, &op):
		return "network"
	}
	return "other"
}

// breaker leaves a store alone after failures in a row. When the back-off is over
// one operation probes it: if that succeeds all is as before, if it fails the
// back-off doubles.
type breaker struct {
	failuresMax int
	first, most time.Duration
	now         func() time.Time
	changed     func(open bool, err error)

	mu        sync.Mutex
	failures  int
	backoff   time.Duration // 0: closed
	openUntil time.Time
	probing   bool
}

func newBreaker(failures int, first, most time.Duration, now func() time.Time, changed func(open bool, err error)) *breaker {
	return &breaker{failuresMax: failures, first: first, most: most, now: now, changed: changed}
}

// allow tells whether to go on; then one of succeeded, failed and unknown must follow.
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
		b.backoff = min(2*b.backoff, b.most)
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

// unknown ends an operation that says nothing about the store.
func (b *breaker) unknown() {
	b.mu.Lock()
	b.probing = false
	b.mu.Unlock()
}

// metrics of a cache. Why something was not used, or not stored, is a label.
type metrics struct {
	lookups      *prometheus.CounterVec // result
	unused       *prometheus.CounterVec // reason
	extents      *prometheus.CounterVec // result
	merges       *prometheus.CounterVec // result
	operations   *prometheus.CounterVec // operation
	failures     *prometheus.CounterVec // operation, reason
	duration     *prometheus.HistogramVec
	bytesRead    prometheus.Counter
	bytesWritten prometheus.Counter
	breaker      prometheus.Gauge
}

const metricPrefix = "ferula_frontend_cache_"

func newMetrics(reg prometheus.Registerer, queued func() float64) (*metrics, error) {
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricPrefix + name, Help: help}, labels)
	}
	bytes := counters("store_bytes_total", "Bytes read from and written to the store, compressed.", "direction")
	m := &metrics{
		lookups:    counters("lookups_total", "Lookups: hit covers all of the asked range, partial some of it.", "result"),
		unused:     counters("unused_total", "Entries and extents that were found and not used.", "reason"),
		extents:    counters("extents_total", "Answers offered to the cache.", "result"),
		merges:     counters("merges_total", "Merges of adjacent extents in the background.", "result"),
		operations: counters("operations_total", "Operations on the store, those not tried included.", "operation"),
		failures:   counters("operation_failures_total", "Operations on the store that failed.", "operation", "reason"),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: metricPrefix + "operation_duration_seconds", Help: "Duration of operations on a store outside of this process.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5},
		}, []string{"operation"}),
		bytesRead:    bytes.WithLabelValues("read"),
		bytesWritten: bytes.WithLabelValues("written"),
		breaker:      prometheus.NewGauge(prometheus.GaugeOpts{Name: metricPrefix + "breaker_open", Help: "1 while the store is left alone because it failed."}),
	}
	for _, result := range []string{"hit", "partial", "miss"} {
		m.lookups.WithLabelValues(result)
	}
	if reg == nil {
		return m, nil
	}
	queue := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: metricPrefix + "queue_length", Help: "Writes that wait for a worker."}, queued)
	return m, register(reg, m.lookups, m.unused, m.extents, m.merges, m.operations, m.failures, m.duration, bytes, m.breaker, queue)
}

func register(reg prometheus.Registerer, collectors ...prometheus.Collector) error {
	for _, c := range collectors {
		if err := reg.Register(c); err != nil {
			return err
		}
	}
	return nil
}
