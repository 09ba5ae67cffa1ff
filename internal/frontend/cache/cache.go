// Package cache stores the results of range queries as the response bytes in which
// they arrived.
//
// A Writer takes the byte stream of one response, the time range of the response, and a key. The
// key identifies everything of the request except its range. A stored response with its range is an
// extent. The Writer compresses the stream block by block, cuts it into parts of at most PartBytes,
// and writes them to the store in the background. Lookup returns the extents that overlap a range.
// The stream of an extent has exactly the bytes that were written.
//
// An entry has all extents of one key: a manifest, stored under the hash of the key, and the parts
// that the manifest names. The manifest is written after the parts, so a reader sees a whole extent
// or none of it. The manifest holds the whole key, so a hash collision is a miss. Every fault of a
// store or of its data is a miss, is counted by reason and costs a bounded time. Adjacent extents
// are merged in the background by the caller's MergeFunc.
//
//	manifest  "FQC" | version 1 | xxhash64 of the rest 8 | uvarint len, key | uvarint extents | extent …
//	extent    id 8 | varint start ms | uvarint end - start | uvarint step ms | varint written ms |
//	          uvarint len, the part itself if it is small | uvarint parts | { uvarint stored bytes | uvarint response bytes } …
//	part      xxhash64 of the rest 8 | extent id 8 | number 4 | block …
//	block     uvarint response bytes | method 1 | uvarint len, data
//
// docs/formats/frontend-cache.md describes the same format with reasons. The package
// knows no samples, PromQL, JSON or HTTP: the frontend decides what may be cached and
// how a response is cut at the edges of a range.
package cache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	instruments "github.com/ferula-io/ferula/metrics"
	"golang.org/x/sync/semaphore"
)

// Errors of a store's operation or of a reader.
var (
	// ErrGone means that an extent is incomplete or changed in the store: the caller
	// runs the query again.
	ErrGone = errors.New("the cached response is gone")
	// ErrUnavailable means that the operation was not tried because the store failed recently.
	ErrUnavailable = errors.New("the cache's store is unavailable")
	// ErrTooLarge means that the store does not accept values of that size.
	ErrTooLarge = errors.New("value is too large for the cache's store")
)

// Store holds the values. Implementations are Memory, Memcached and Redis.
//
// Every method returns when ctx ends, and may be called concurrently. A Store may have two further
// methods: Local() bool, true if no operation leaves the process, and HasAll(ctx, keys) (bool,
// error), which reports whether all keys exist at a lower cost than reading them.
type Store interface {
	// Get returns the value under key; ok is false if there is none. The value is
	// shared and immutable.
	Get(ctx context.Context, key string) (value []byte, ok bool, err error)
	// Set stores value under key for ttl, without expiry if ttl is 0. The value is
	// shared and immutable from the call on, whether it succeeds or not.
	Set(ctx context.Context, key string, value []byte, ttl time.Duration) error
	// Delete removes key; a missing key is not an error.
	Delete(ctx context.Context, key string) error
	// Close ends all connections and goroutines of the store.
	Close() error
}

type localStore interface{ Local() bool }

type hasAllStore interface {
	HasAll(ctx context.Context, keys []string) (bool, error)
}

// MergeFunc writes to dst one response that covers the ranges of all sources. The sources are stored responses of
// adjacent, disjoint ranges in order of time. MergeFunc must cut off the points of a source outside its range. It
// closes nothing, retains nothing, and returns the first error of a source unchanged.
type MergeFunc func(ctx context.Context, dst io.Writer, sources []Source) error

// Source is a stored response. Only its points from StartMS to EndMS, both inclusive, are used.
type Source struct {
	io.Reader
	StartMS, EndMS int64
}

// Options of a Cache. Zero values take the defaults.
type Options struct {
	// Name is the value of the cache label of this cache's metrics.
	Name string
	// TTL is how long an extent may be used; 0: until the store drops it.
	TTL   time.Duration
	Codec Codec // compression of blocks
	// Merge merges adjacent extents; nil: they stay separate.
	Merge MergeFunc

	PartBytes   int // size of one value in the store, compressed; 0: 512 KiB
	InlineBytes int // an extent up to this size is stored in the manifest; 0: 16 KiB
	KeyBytesMax int // longer keys are not cached; 0: 64 KiB
	ExtentsMax  int // extents of an entry; beyond it extents are merged or dropped; 0: 4
	// EntryBytesMax limits the compressed bytes of all extents of an entry; 0: 256 MiB. A larger
	// extent is not stored. Old extents are dropped to make space for a new one.
	EntryBytesMax int64
	// InFlightBytesMax limits the memory of all Writers: their buffers, and the parts that the
	// store has not acknowledged yet; 0: 32 MiB.
	InFlightBytesMax int64
	// HeldBytesMax limits the memory of parts that Lookup or Open fetched for extents not yet
	// released; 0: 64 MiB. The parts of a local store do not count, because they are not copied.
	HeldBytesMax int64
	// SpilledBytesMax limits the files in SpillDir; 0: 4 GiB. An extent whose parts exceed
	// HeldBytesMax is written to such a file, which is unlinked as soon as it is open.
	SpilledBytesMax int64
	SpillDir        string // "": the directory for temporary files
	// PrefetchBytes: Lookup fetches all parts of an extent up to this size, and only the first part
	// of a larger one; 0: 4 MiB.
	PrefetchBytes int64

	LookupTimeout time.Duration // of a whole Lookup; 0: 250 ms
	GetTimeout    time.Duration // of one part; 0: 1 s
	WholeTimeout  time.Duration // of Open, which fetches the remaining parts of an extent; 0: 5 s
	SetTimeout    time.Duration // of writing or deleting one value; 0: 1 s
	WriterWait    time.Duration // total time a Writer may block its caller; 0: 50 ms
	MergeTimeout  time.Duration // of one merge in the background; 0: 30 s
	// delay before the parts of a replaced extent are deleted: Readers may still need them; 0: 1 min
	DeleteAfter  time.Duration
	CloseTimeout time.Duration // of pending writes in Close; 0: 2 s

	Workers  int // goroutines that write to the store; 0: 10
	QueueMax int // writes that wait for a worker; 0: 10,000

	BreakerFailures   int           // consecutive failures that open the circuit breaker; 0: 5
	BreakerBackoff    time.Duration // how long the breaker first stays open; 0: 1 s
	BreakerBackoffMax time.Duration // BreakerBackoff doubles up to this; 0: 30 s

	Now   func() time.Time // nil: time.Now
	NewID func() uint64    // unique random extent ids; nil: math/rand/v2
}

func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

func (o Options) withDefaults() Options {
	orDefault(&o.PartBytes, 512<<10)
	orDefault(&o.InlineBytes, 16<<10)
	orDefault(&o.KeyBytesMax, 64<<10)
	orDefault(&o.ExtentsMax, 4)
	orDefault(&o.EntryBytesMax, 256<<20)
	orDefault(&o.InFlightBytesMax, 32<<20)
	orDefault(&o.HeldBytesMax, 64<<20)
	orDefault(&o.SpilledBytesMax, 4<<30)
	orDefault(&o.PrefetchBytes, min(4<<20, o.HeldBytesMax))
	orDefault(&o.LookupTimeout, 250*time.Millisecond)
	orDefault(&o.GetTimeout, time.Second)
	orDefault(&o.WholeTimeout, 5*time.Second)
	orDefault(&o.SetTimeout, time.Second)
	orDefault(&o.WriterWait, 50*time.Millisecond)
	orDefault(&o.MergeTimeout, 30*time.Second)
	orDefault(&o.DeleteAfter, time.Minute)
	orDefault(&o.CloseTimeout, 2*time.Second)
	orDefault(&o.Workers, 10)
	orDefault(&o.QueueMax, 10_000)
	orDefault(&o.BreakerFailures, 5)
	orDefault(&o.BreakerBackoff, time.Second)
	orDefault(&o.BreakerBackoffMax, max(30*time.Second, o.BreakerBackoff))
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.NewID == nil {
		o.NewID = rand.Uint64
	}
	return o
}

// partBytesMin leaves space for a block that could not be compressed.
const partBytesMin = 4 << 10

// validate returns all errors of the options, joined. Call it after withDefaults.
func (o Options) validate() error {
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	fault(o.TTL < 0, "TTL %s is negative", o.TTL)
	fault(o.Codec > CodecNone, "codec %d does not exist", o.Codec)
	fault(o.PartBytes < partBytesMin || o.PartBytes > 64<<20, "part bytes %d: want %d to 64 MiB", o.PartBytes,
		partBytesMin)
	fault(o.InlineBytes < 0 || o.KeyBytesMax < 0, "inline bytes %d and key bytes %d cannot be negative", o.InlineBytes,
		o.KeyBytesMax)
	fault(o.ExtentsMax < 1 || o.ExtentsMax > manifestExtents/4, "extents per entry %d: want 1 to %d", o.ExtentsMax,
		manifestExtents/4)
	fault(o.EntryBytesMax < int64(o.PartBytes), "entry bytes %d are fewer than one part's", o.EntryBytesMax)
	fault(o.InFlightBytesMax < 2*int64(o.PartBytes), "in-flight bytes %d are fewer than two parts'", o.InFlightBytesMax)
	fault(o.HeldBytesMax < 0 || o.SpilledBytesMax < 0 || o.PrefetchBytes < 0,
		"held bytes %d, spilled bytes %d and prefetch bytes %d cannot be negative", o.HeldBytesMax, o.SpilledBytesMax,
		o.PrefetchBytes)
	fault(o.Workers < 1 || o.QueueMax < 1, "workers %d and queue length %d: want at least 1", o.Workers, o.QueueMax)
	fault(o.BreakerFailures < 1, "breaker failures %d: want at least 1", o.BreakerFailures)
	for _, d := range []time.Duration{o.LookupTimeout, o.GetTimeout, o.WholeTimeout, o.SetTimeout, o.WriterWait,
		o.MergeTimeout, o.DeleteAfter, o.CloseTimeout, o.BreakerBackoff} {
		fault(d < 0, "duration %s is negative", d)
	}
	return errors.Join(faults...)
}

// Cache stores responses in a Store. Use New.
type Cache struct {
	opts  Options
	store guard
	local bool // operations do not leave the process
	log   *slog.Logger
	met   *metrics

	blockBytes int // uncompressed bytes of a response in one block

	inFlight *semaphore.Weighted // of InFlightBytesMax
	held     *semaphore.Weighted // of HeldBytesMax
	spilled  *semaphore.Weighted // of SpilledBytesMax

	locks [64]sync.Mutex // each serializes the changes of some manifests; see lock

	background context.Context // canceled when Close stops waiting for the background work
	cancel     context.CancelFunc
	queue      chan job
	queueLock  sync.RWMutex // guards closed against sends
	closed     bool
	workers    sync.WaitGroup
	compactor  *compactor
	pending    pending
}

// New returns a cache that owns store: Close closes it. Its metrics are registered in set, which
// may be nil. No two caches in a set may have the same name.
func New(store Store, opts Options, logger *slog.Logger, set *instruments.Set) (*Cache, error) {
	upgrade, _ := store.(localStore)
	local := upgrade != nil && upgrade.Local()
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	// An entry has at most 2*ExtentsMax extents (extentsLimit). So the inline extents of a manifest
	// have at most half of PartBytes, and a store that accepts a part accepts the manifest.
	opts.InlineBytes = min(opts.InlineBytes, opts.PartBytes/(4*opts.ExtentsMax))
	c := &Cache{
		opts:  opts,
		local: local,
		log:   logger,

		blockBytes: min(blockBytes, opts.PartBytes-partHeaderBytes-blockHeaderBytes),

		inFlight: semaphore.NewWeighted(opts.InFlightBytesMax),
		held:     semaphore.NewWeighted(opts.HeldBytesMax),
		spilled:  semaphore.NewWeighted(opts.SpilledBytesMax),
		queue:    make(chan job, opts.QueueMax),
	}
	c.background, c.cancel = context.WithCancel(context.Background())
	c.met = newMetrics(set, opts.Name, func() float64 { return float64(len(c.queue)) })
	c.store = guard{
		store: store, local: local, met: c.met, grace: opts.LookupTimeout / 2,
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
	if !local { // writes to a local store run in the caller's goroutine
		for range opts.Workers {
			c.workers.Go(c.work)
		}
	}
	c.compactor = newCompactor(c)
	c.workers.Go(c.compactor.run)
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
	c.compactor.stop()
	late := time.AfterFunc(c.opts.CloseTimeout, c.cancel)
	c.workers.Wait()
	late.Stop()
	c.cancel()
	return c.store.store.Close()
}

// Flush waits until everything committed so far, merges included, is in the store or
// has failed.
func (c *Cache) Flush(ctx context.Context) error { return c.pending.wait(ctx) }

// lock returns the lock of the manifest at base.
func (c *Cache) lock(base string) *sync.Mutex {
	return &c.locks[(uint(base[len(base)-1])*31+uint(base[len(base)-2]))%uint(len(c.locks))]
}

// job is a write to the store that no caller waits for.
type job func(ctx context.Context)

// enqueue hands a job to the workers; false: the queue is full or closed. With a
// local store the job has run on return.
func (c *Cache) enqueue(do job) bool {
	c.queueLock.RLock()
	if c.closed {
		c.queueLock.RUnlock()
		return false
	}
	c.pending.add(1)
	if c.local {
		c.queueLock.RUnlock()
		do(c.background)
		c.pending.done()
		return true
	}
	defer c.queueLock.RUnlock()
	select {
	case c.queue <- do:
		return true
	default:
		c.pending.done()
		return false
	}
}

func (c *Cache) work() {
	for do := range c.queue {
		do(c.background)
		c.pending.done()
	}
}

// pending counts the work in progress, for Flush.
type pending struct {
	mu      sync.Mutex
	n       int
	waiting []chan struct{}
}

func (p *pending) add(n int) {
	p.mu.Lock()
	p.n += n
	p.mu.Unlock()
}

func (p *pending) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.n--; p.n > 0 {
		return
	}
	for _, w := range p.waiting {
		close(w)
	}
	p.waiting = nil
}

func (p *pending) wait(ctx context.Context) error {
	p.mu.Lock()
	if p.n == 0 {
		p.mu.Unlock()
		return nil
	}
	w := make(chan struct{})
	p.waiting = append(p.waiting, w)
	p.mu.Unlock()
	select {
	case <-w:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
