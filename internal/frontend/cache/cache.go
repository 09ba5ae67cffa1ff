// Package cache stores the results of range queries as the response bytes in which
// they arrived.
//
// A Writer takes the byte stream of one response, the time range of the response, and a key. The
// key identifies everything of the request except its range; the frontend has one for each query and
// split interval. A key has one value: the last response written, or the union of it and the stored one
// if their ranges have no gap. So the interval of the present day grows with each request. The union
// is made by the caller's MergeFunc. Lookup returns the value if it overlaps a range.
//
// A value is cut into numbered parts of at most PartBytes, because memcached limits the size of an item.
// A store outside of this process gets them compressed with S2, in the background. The
// first part, which is written last, has the whole key, so a hash collision is a miss, and all parts
// have the random id of their writer, so parts of two writers are not mixed. Every fault of a
// store or of its data is a miss, is counted by reason and costs a bounded time.
//
//	part   xxhash64 of the rest 8 | id 8 | number 4 | in the first part: head | response, compressed
//	head   start ms 8 | end ms 8 | step ms 8 | written ms 8 | response bytes 8 | stored bytes 8 |
//	       parts 4 | codec 4 | len 4, key
//
// docs/formats/frontend-cache.md describes the same format with reasons. The package
// knows no samples, PromQL, JSON or HTTP: the frontend decides what may be cached and
// how a response is cut at the edges of a range.
package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	instruments "github.com/ferula-io/ferula/metrics"
	"golang.org/x/sync/semaphore"
)

// Errors of a store's operation or of a reader.
var (
	// ErrGone means that a response is incomplete or changed in the store: the caller
	// runs the query again.
	ErrGone = errors.New("the cached response is gone")
	// ErrUnavailable means that the operation was not tried because the store failed recently.
	ErrUnavailable = errors.New("the cache's store is unavailable")
	// ErrTooLarge means that the store does not accept values of that size.
	ErrTooLarge = errors.New("value is too large for the cache's store")
)

// Store holds the values. Implementations are Memory, Memcached and Redis. Every method returns when ctx ends, and
// may be called concurrently.
type Store interface {
	// Get returns the value under key; ok is false if there is none. The value is
	// shared and immutable.
	Get(ctx context.Context, key string) (value []byte, ok bool, err error)
	// Set stores value under key for ttl, without expiry if ttl is 0. The value is
	// shared and immutable from the call on, whether it succeeds or not.
	Set(ctx context.Context, key string, value []byte, ttl time.Duration) error
	// Local reports whether the values are in this process: they are then not compressed, and cannot be damaged.
	Local() bool
	// Close ends all connections and goroutines of the store.
	Close() error
}

// MergeFunc writes to dst one response that covers the ranges of both sources. The sources are responses of
// adjacent, disjoint ranges in order of time. MergeFunc must cut off the points of a source outside its range. It
// closes nothing and retains nothing.
type MergeFunc func(ctx context.Context, dst io.Writer, sources []Source) error

// Source is a response. Only its points from StartMS to EndMS, both inclusive, are used.
type Source struct {
	io.Reader
	StartMS, EndMS int64
}

// Options of a Cache. Zero values take the defaults.
type Options struct {
	// Name is the value of the cache label of this cache's metrics.
	Name string
	// TTL is how long a response may be used; 0: until the store drops it.
	TTL time.Duration
	// Merge joins a response with the stored one; nil: the last one wins.
	Merge MergeFunc

	PartBytes int // size of one value in the store; 0: 512 KiB
	// EntryBytesMax limits all parts of a response; 0: 32 MiB. A larger response is not stored.
	EntryBytesMax int64
	// InFlightBytesMax limits the memory of all Writers until the store has acknowledged their parts; 0: 128 MiB.
	InFlightBytesMax int64
	// HeldBytesMax limits the memory of responses that Lookup found and that are not released; 0: 64 MiB.
	// Those of a Memory do not count, because they are not copied.
	HeldBytesMax int64

	LookupTimeout time.Duration // of Lookup, which reads the first part; 0: 250 ms
	WholeTimeout  time.Duration // of Open, which reads the other parts; 0: 5 s
	SetTimeout    time.Duration // of writing one part; 0: 1 s
	MergeTimeout  time.Duration // of joining a response with the stored one; 0: 30 s
	CloseTimeout  time.Duration // of pending writes in Close; 0: 2 s

	Workers  int // goroutines that write to the store; 0: 10
	QueueMax int // responses that wait for a worker; 0: 10,000

	BreakerFailures   int           // consecutive failures that open the circuit breaker; 0: 5
	BreakerBackoff    time.Duration // how long the breaker first stays open; 0: 1 s
	BreakerBackoffMax time.Duration // BreakerBackoff doubles up to this; 0: 30 s

	Now func() time.Time // nil: time.Now
}

func (o Options) withDefaults() Options {
	o.PartBytes = cmp.Or(o.PartBytes, 512<<10)
	o.EntryBytesMax = cmp.Or(o.EntryBytesMax, 32<<20)
	o.InFlightBytesMax = cmp.Or(o.InFlightBytesMax, 128<<20)
	o.HeldBytesMax = cmp.Or(o.HeldBytesMax, 64<<20)
	o.LookupTimeout = cmp.Or(o.LookupTimeout, 250*time.Millisecond)
	o.WholeTimeout = cmp.Or(o.WholeTimeout, 5*time.Second)
	o.SetTimeout = cmp.Or(o.SetTimeout, time.Second)
	o.MergeTimeout = cmp.Or(o.MergeTimeout, 30*time.Second)
	o.CloseTimeout = cmp.Or(o.CloseTimeout, 2*time.Second)
	o.Workers = cmp.Or(o.Workers, 10)
	o.QueueMax = cmp.Or(o.QueueMax, 10_000)
	o.BreakerFailures = cmp.Or(o.BreakerFailures, 5)
	o.BreakerBackoff = cmp.Or(o.BreakerBackoff, time.Second)
	o.BreakerBackoffMax = cmp.Or(o.BreakerBackoffMax, max(30*time.Second, o.BreakerBackoff))
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

const (
	partBytesMin = 4 << 10 // of Options.PartBytes: most of a part is data
	keyBytesMax  = 64 << 10
)

// validate returns all errors of the options, joined. Call it after withDefaults.
func (o Options) validate() error {
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	fault(o.TTL < 0, "TTL %s is negative", o.TTL)
	fault(o.PartBytes < partBytesMin || o.PartBytes > 64<<20, "part bytes %d: want %d to 64 MiB", o.PartBytes,
		partBytesMin)
	fault(o.EntryBytesMax < int64(o.PartBytes), "entry bytes %d are fewer than one part's", o.EntryBytesMax)
	fault(o.Workers < 1 || o.QueueMax < 1, "workers %d and queue length %d: want at least 1", o.Workers, o.QueueMax)
	fault(o.BreakerFailures < 1, "breaker failures %d: want at least 1", o.BreakerFailures)
	fault(o.BreakerBackoff < 0, "back-off %s is negative", o.BreakerBackoff)
	return errors.Join(faults...)
}

// Cache stores responses in a Store. Use New.
type Cache struct {
	opts        Options
	store       guard
	local       bool // Store.Local
	keyBytesMax int  // longer keys are not cached
	log         *slog.Logger
	met         *metrics

	inFlight *semaphore.Weighted // of InFlightBytesMax
	held     *semaphore.Weighted // of HeldBytesMax

	locks [64]sync.Mutex // each serializes the writes of some values; see lock

	background context.Context // canceled when Close stops waiting for the background work
	cancel     context.CancelFunc
	queue      chan job
	queueLock  sync.RWMutex // guards closed against sends
	closed     bool
	workers    sync.WaitGroup
	pending    atomic.Int64 // jobs of queue that are not done
}

// New returns a cache that owns store: Close closes it. Its metrics are registered in set, which
// may be nil. No two caches in a set may have the same name.
func New(store Store, opts Options, logger *slog.Logger, set *instruments.Set) (*Cache, error) {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	c := &Cache{
		opts:        opts,
		local:       store.Local(),
		keyBytesMax: min(keyBytesMax, opts.PartBytes/2),
		log:         logger,

		inFlight: semaphore.NewWeighted(opts.InFlightBytesMax),
		held:     semaphore.NewWeighted(opts.HeldBytesMax),
		queue:    make(chan job, opts.QueueMax),
	}
	c.background, c.cancel = context.WithCancel(context.Background())
	c.met = newMetrics(set, opts.Name, func() float64 { return float64(len(c.queue)) })
	c.store = guard{
		store: store, local: c.local, met: c.met, grace: opts.LookupTimeout / 2,
		breaker: newBreaker(opts.BreakerFailures, opts.BreakerBackoff, opts.BreakerBackoffMax, opts.Now,
			func(open bool, err error) {
				if open {
					c.met.breaker.Set(1)
					logger.Warn("Cache backend fails: circuit breaker opened", "err", err)
				} else {
					c.met.breaker.Set(0)
					logger.Info("Cache backend recovered: circuit breaker closed")
				}
			}),
	}
	for range opts.Workers {
		c.workers.Go(c.work)
	}
	return c, nil
}

// Close finishes pending writes, for CloseTimeout at most, and closes the store.
// Later writes are dropped.
func (c *Cache) Close() error {
	c.queueLock.Lock()
	if c.closed {
		c.queueLock.Unlock()
		return nil
	}
	c.closed = true
	close(c.queue)
	c.queueLock.Unlock()
	late := time.AfterFunc(c.opts.CloseTimeout, c.cancel)
	c.workers.Wait()
	late.Stop()
	c.cancel()
	return c.store.store.Close()
}

// Flush waits until no write is pending, for tests.
func (c *Cache) Flush(ctx context.Context) error {
	for c.pending.Load() > 0 && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	return ctx.Err()
}

// lock returns the lock of the value at base.
func (c *Cache) lock(base string) *sync.Mutex {
	return &c.locks[(uint(base[len(base)-1])*31+uint(base[len(base)-2]))%uint(len(c.locks))]
}

// job is a write to the store that no caller waits for.
type job func(ctx context.Context)

// enqueue hands a job to the workers; false: the queue is full or closed.
func (c *Cache) enqueue(do job) bool {
	c.queueLock.RLock()
	defer c.queueLock.RUnlock()
	if c.closed {
		return false
	}
	c.pending.Add(1)
	select {
	case c.queue <- do:
		return true
	default:
		c.pending.Add(-1)
		return false
	}
}

func (c *Cache) work() {
	for do := range c.queue {
		do(c.background)
		c.pending.Add(-1)
	}
}
