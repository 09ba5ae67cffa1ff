// Package cache keeps the answers of range queries as the bytes they were sent as.
//
// What comes in, through a Writer, is the byte stream of one answer together with
// the key that names everything of the request but its range, and the range it
// covers; it is compressed block by block while it passes, cut into parts that any
// store takes, and handed to the store in the background. What goes out, from
// Lookup, are the extents that overlap a range, each a stream of exactly the bytes
// that came in. An entry is a manifest under the key's hash and the parts it names;
// the manifest is written last, so a reader sees all of an extent or nothing of it,
// and it holds the whole key, so a collision is a miss. Whatever is wrong with a
// store or with what it gives back is a miss, counted by reason, and costs a bounded
// time. In the background neighbouring extents are merged by a function that the
// owner passes in.
//
//	manifest  "FQC" | version 1 | xxhash64 of the rest 8 | uvarint len, key | uvarint extents | extent …
//	extent    id 8 | varint start ms | uvarint end - start | uvarint step ms | varint written ms |
//	          uvarint len, the part itself if it is small | uvarint parts | { uvarint stored bytes | uvarint answer bytes } …
//	part      xxhash64 of the rest 8 | extent id 8 | number 4 | block …
//	block     uvarint answer bytes | method 1 | uvarint len, data
//
// The same boxes with their reasons are in docs/formats/frontend-cache.md. There is
// no sample, no PromQL, no JSON and no HTTP here: how an answer is cut at the edges
// of a range, and what may be cached at all, the frontend knows.
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

// What a store's operation or a reader may fail with.
var (
	// ErrGone means that not all of an answer is there, or no longer what was written:
	// the caller fetches it again.
	ErrGone = errors.New("the cached answer is gone")
	// ErrUnavailable means that the store was not asked, because it failed a moment ago.
	ErrUnavailable = errors.New("the cache's store is unavailable")
	// ErrTooLarge means that the store does not take values of that size.
	ErrTooLarge = errors.New("value is too large for the cache's store")
)

// Store is where the bytes rest. Implementations are Memory, Memcached and Redis.
//
// Every method returns when ctx ends, and may be called by many at once. A Store has
// two optional upgrades: Local() bool, true where no operation leaves the process,
// and HasAll(ctx, keys) (bool, error), which tells whether all keys are there at less
// than the cost of getting them.
type Store interface {
	// Get gives the value under key; ok is false where there is none. The value is
	// shared immutable.
	Get(ctx context.Context, key string) (value []byte, ok bool, err error)
	// Set stores value under key for ttl, for ever if ttl is 0. The value is shared
	// immutable from the call on, whether it succeeds or not.
	Set(ctx context.Context, key string, value []byte, ttl time.Duration) error
	// Delete removes key; that it was not there is no error.
	Delete(ctx context.Context, key string) error
	// Close ends all connections and goroutines of the store.
	Close() error
}

type localStore interface{ Local() bool }

type findingStore interface {
	HasAll(ctx context.Context, keys []string) (bool, error)
}

// MergeFunc writes to dst the answer that covers the ranges of all sources, which are
// the answers of adjacent, disjoint ranges in the order of time. What a source holds
// outside its range is to be cut off. It closes nothing, retains nothing, and returns
// the first error of a source as it is.
type MergeFunc func(ctx context.Context, dst io.Writer, sources []Source) error

// Source is a stored answer and the range, both ends inclusive, it is to be used for.
type Source struct {
	io.Reader
	StartMS, EndMS int64
}

// Options of a Cache. Zero values take the defaults.
type Options struct {
	// Name tells the cache from others of the process in metrics.
	Name string
	// TTL is how long an extent may be used; 0: until the store drops it.
	TTL   time.Duration
	Codec Codec
	// Merge makes one extent of adjacent ones; nil: they stay apart.
	Merge MergeFunc

	PartBytes   int // of one value in the store, compressed; 0: 512 KiB
	InlineBytes int // up to this an extent is kept inside the manifest; 0: 16 KiB
	KeyBytesMax int // longer keys are not cached; 0: 64 KiB
	ExtentsMax  int // of an entry, before they are merged or dropped; 0: 4
	// EntryBytesMax limits an entry, compressed; 0: 256 MiB. An extent that would be
	// larger is not stored, and extents make place for a new one.
	EntryBytesMax int64
	// InFlightBytesMax limits what writers hold and the store has not taken yet;
	// 0: 32 MiB.
	InFlightBytesMax int64
	// HeldBytesMax limits the parts in memory that were found and are not read yet;
	// 0: 64 MiB. Those of a local store are not copies and do not count.
	HeldBytesMax int64
	// SpilledBytesMax limits those for which there is no room in memory, and which are
	// in files of SpillDir, whose names are removed at once; 0: 4 GiB.
	SpilledBytesMax int64
	SpillDir        string // "": the directory for temporary files
	// PrefetchBytes is the size up to which Lookup fetches all of an extent; 0: 4 MiB.
	PrefetchBytes int64

	LookupTimeout time.Duration // of a whole Lookup; 0: 250 ms
	GetTimeout    time.Duration // of one part; 0: 1 s
	WholeTimeout  time.Duration // of the parts of an extent that is opened; 0: 5 s
	SetTimeout    time.Duration // 0: 1 s
	WriterWait    time.Duration // that a Writer, in all, holds its caller up before it gives up; 0: 50 ms
	MergeTimeout  time.Duration // of one merge in the background; 0: 30 s
	DeleteAfter   time.Duration // until the parts of a replaced extent go, for those who still read it; 0: 1 min
	CloseTimeout  time.Duration // for what is still on its way to the store; 0: 2 s

	Workers  int // that write to the store; 0: 10
	QueueMax int // writes that wait for a worker; 0: 10,000

	BreakerFailures   int           // in a row, until the store is left alone; 0: 5
	BreakerBackoff    time.Duration // how long at first; 0: 1 s
	BreakerBackoffMax time.Duration // it doubles up to this; 0: 30 s

	Now   func() time.Time // nil: time.Now
	NewID func() uint64    // random, the same never twice; nil: math/rand/v2
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

// partBytesMin leaves room for a block that could not be compressed.
const partBytesMin = 4 << 10

// validate tells all that is wrong with options that have their defaults.
func (o Options) validate() error {
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	fault(o.TTL < 0, "TTL %s is negative", o.TTL)
	fault(o.Codec > CodecNone, "codec %d does not exist", o.Codec)
	fault(o.PartBytes < partBytesMin || o.PartBytes > 64<<20, "parts of %d bytes: at least %d, at most 64 MiB", o.PartBytes, partBytesMin)
	fault(o.InlineBytes < 0 || o.KeyBytesMax < 0, "inline bytes %d and key bytes %d cannot be negative", o.InlineBytes, o.KeyBytesMax)
	fault(o.ExtentsMax < 1 || o.ExtentsMax > manifestExtents/4, "extents of an entry %d: 1 to %d", o.ExtentsMax, manifestExtents/4)
	fault(o.EntryBytesMax < int64(o.PartBytes), "an entry of %d bytes is smaller than a part", o.EntryBytesMax)
	fault(o.InFlightBytesMax < 2*int64(o.PartBytes), "%d bytes in flight are fewer than two parts", o.InFlightBytesMax)
	fault(o.HeldBytesMax < 0 || o.SpilledBytesMax < 0 || o.PrefetchBytes < 0, "bytes to hold %d, to spill %d and to prefetch %d cannot be negative", o.HeldBytesMax, o.SpilledBytesMax, o.PrefetchBytes)
	fault(o.Workers < 1 || o.QueueMax < 1, "%d workers and a queue of %d: at least 1", o.Workers, o.QueueMax)
	fault(o.BreakerFailures < 1, "breaker failures %d: at least 1", o.BreakerFailures)
	for _, d := range []time.Duration{o.LookupTimeout, o.GetTimeout, o.WholeTimeout, o.SetTimeout, o.WriterWait, o.MergeTimeout, o.DeleteAfter, o.CloseTimeout, o.BreakerBackoff} {
		fault(d < 0, "time %s is negative", d)
	}
	return errors.Join(faults...)
}

// Cache keeps answers in a Store. Use New.
type Cache struct {
	opts  Options
	store guard
	local bool
	log   *slog.Logger
	met   *metrics

	blockBytes int // of an answer in one block

	inFlight *semaphore.Weighted // of InFlightBytesMax
	held     *semaphore.Weighted // of HeldBytesMax
	spilled  *semaphore.Weighted // of SpilledBytesMax

	locks [64]sync.Mutex // one manifest is changed by one at a time, by the hash of its key

	background context.Context // of everything that nobody waits for
	cancel     context.CancelFunc
	queue      chan job
	queueLock  sync.RWMutex // guards closed against sends
	closed     bool
	workers    sync.WaitGroup
	keeper     *keeper
	pending    pending
}

// New makes a cache over store, which it owns from then on: Close closes it. Its
// metrics are in set, which may be nil and has no other cache of this name.
func New(store Store, opts Options, logger *slog.Logger, set *instruments.Set) (*Cache, error) {
	upgrade, _ := store.(localStore)
	local := upgrade != nil && upgrade.Local()
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	// A manifest of many small extents stays far below the size of a part.
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
		store: store, local: local, met: c.met, patience: opts.LookupTimeout / 2,
		breaker: newBreaker(opts.BreakerFailures, opts.BreakerBackoff, opts.BreakerBackoffMax, opts.Now, func(open bool, err error) {
			if open {
				c.met.breaker.Set(1)
				logger.Warn("cache: the store fails and is left alone for a while", "err", err)
			} else {
				c.met.breaker.Set(0)
				logger.Info("cache: the store answers again")
			}
		}),
	}
	if !local { // a local store's writes are done where they arise
		for range opts.Workers {
			c.workers.Go(c.work)
		}
	}
	c.keeper = newKeeper(c)
	c.workers.Go(c.keeper.run)
	return c, nil
}

// Close writes what is on its way, for CloseTimeout at most, and closes the store.
// What comes later is not stored.
func (c *Cache) Close() error {
	c.queueLock.Lock()
	if c.closed {
		c.queueLock.Unlock()
		return nil
	}
	c.closed = true
	close(c.queue)
	c.queueLock.Unlock()
	c.keeper.stop()
	late := time.AfterFunc(c.opts.CloseTimeout, c.cancel)
	c.workers.Wait()
	late.Stop()
	c.cancel()
	return c.store.store.Close()
}

// Flush waits until everything that was committed so far is in the store, merges
// included, or has been given up.
func (c *Cache) Flush(ctx context.Context) error { return c.pending.wait(ctx) }

// lock is held while the manifest at base is changed.
func (c *Cache) lock(base string) *sync.Mutex {
	return &c.locks[(uint(base[len(base)-1])*31+uint(base[len(base)-2]))%uint(len(c.locks))]
}

// job is work for the store that nobody waits for.
type job func(ctx context.Context)

// enqueue gives a job to the workers; false: the queue is full, or closed. With a
// local store it is done on return.
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

// pending counts what is under way, for Flush.
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
