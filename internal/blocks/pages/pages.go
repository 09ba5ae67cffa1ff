// Package pages caches pages of immutable objects that are read by ranges, such as those
// of a bucket.
//
// A Cache has one mapped file of a fixed size, divided into slots of one page each. A page is
// read from its object into a slot, and readers get slices of the mapping. The kernel keeps
// the pages in memory that are used often; none of them is on Go's heap. The slots are the
// budget of all readers together. A Reader pins the pages whose slices it has returned, and
// pinned pages are not evicted. A reader that finds no slot waits, then fails with ErrBudget.
// Concurrent readers of a missing page share one request. Fetch reads pages before they are
// needed, and requests missing pages that are near each other together. ReadAt copies a range,
// and pins one page at a time.
//
// The package does not interpret the bytes, and does not list objects.
package pages

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/prometheus/tsdb/fileutil"

	"github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/invariant"
	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/metrics"
)

// Bytes is the size of a page. With larger pages more unneeded bytes are read around the
// requested ones, but fewer pages need bookkeeping.
const Bytes = 16 << 10

// CacheBytesMax is the limit of Options.BytesMax, 1 TiB. The slots and the index of 1 TiB of pages take up to 4 GiB of
// memory.
const CacheBytesMax = 1 << 40

var (
	// ErrBudget is returned if all pages of the cache are pinned or being read for longer than Options.WaitMax.
	ErrBudget = errors.New("all pages of the cache are in use")
	// ErrShort is returned for a range beyond the end of an object, and for a response with fewer bytes than requested.
	ErrShort = errors.New("object is shorter than expected")
	// ErrStalled is returned for a request whose response stalls.
	ErrStalled = errors.New("request has stalled")
	// ErrClosed is returned by a cache that is closed, or not open yet.
	ErrClosed = errors.New("page cache is closed")
)

// Source reads objects. GetRange returns length bytes of the object, from offset off on.
type Source interface {
	GetRange(ctx context.Context, name string, off, length int64) (io.ReadCloser, error)
}

// Options of a Cache. Zero values take the defaults.
type Options struct {
	BytesMax int64         // of all pages, 1 MiB to CacheBytesMax; 0: 250 MiB
	WaitMax  time.Duration // how long a Reader waits for a slot; 0: 30 s
	GapBytes int64         // maximum gap between two missing pages that one request reads; 0: 512 KiB
	RunBytes int64         // maximum size of one request of Fetch; 0: 32 MiB
	Parallel int           // concurrent requests of one Fetch; 0: 4
	Attempts int           // of one request; an attempt that has received a page resets the count; 0: 4
	Pause    time.Duration // before the second attempt, doubled for each further one; 0: 100 ms
	Stall    time.Duration // timeout of an attempt that receives nothing; 0: 1 min
	// Permanent reports errors after which a request is not repeated; nil: none.
	Permanent func(error) bool
	Metrics   *metrics.Set // may be nil
	Flags     hint.Flags   // the flag that sets BytesMax, named in errors
}

func (o Options) withDefaults() Options {
	set := func(v *int64, to int64) {
		if *v <= 0 {
			*v = to
		}
	}
	set(&o.BytesMax, 250<<20)
	set(&o.GapBytes, 512<<10)
	set(&o.RunBytes, 32<<20)
	set((*int64)(&o.WaitMax), int64(30*time.Second))
	set((*int64)(&o.Pause), int64(100*time.Millisecond))
	set((*int64)(&o.Stall), int64(time.Minute))
	if o.Parallel <= 0 {
		o.Parallel = 4
	}
	if o.Attempts <= 0 {
		o.Attempts = 4
	}
	if o.Permanent == nil {
		o.Permanent = func(error) bool { return false }
	}
	o.Metrics = cmp.Or(o.Metrics, metrics.NewSet())
	o.BytesMax = max(o.BytesMax, slotsMin*Bytes)
	return o
}

// slotsMin is the minimum number of slots. A Reader that pins more pages at once than there are slots fails with
// ErrBudget.
const slotsMin = 1 << 20 / Bytes

// Cache is a cache of pages. It is safe for concurrent use. Use Open, or New.
type Cache struct {
	opts    Options
	file    *os.File
	mapping *fileutil.MmapFile
	counts  counts
	ids     atomic.Uint32 // number of the last object
	retries budget        // limits repeated requests

	mu      sync.Mutex
	slots   []slot           // allocated by Open
	used    int32            // the slots from number used on have never had a page
	byKey   map[uint64]int32 // slot of each page that is cached or being read
	free    []int32          // slots that had a page and have none now
	recent  list             // slots that can be evicted, least recently used last
	waiting int              // readers that wait for a slot
	freed   chan struct{}    // closed when a slot becomes free while readers wait
	closed  bool             // Open has not succeeded yet, or Close was called
}

// slot is one page of the file.
type slot struct {
	key        uint64        // number of the object, number of the page: see Object.key
	next, prev int32         // in recent
	pins       int32         // readers that use the page
	size       int32         // bytes of the page
	loading    chan struct{} // closed when the page was read; nil: the page is complete
}

type counts struct {
	hits, misses, evictions, requests, fetched, repeated, failed *metrics.Counter
}

// New returns a cache that has no file yet. Its metrics are exposed, and objects can be created. Readers get
// ErrClosed until Open has succeeded. The caller calls Open later if it must first lock the directory of the file.
func New(opts Options) *Cache {
	opts = opts.withDefaults()
	c := &Cache{opts: opts, byKey: map[uint64]int32{}, freed: make(chan struct{}), closed: true}
	c.recent.init()
	c.retries.init()
	c.counts = newCounts(opts.Metrics)
	process.Gauge(opts.Metrics, "ferula_pages_cached_bytes", "Bytes of the cached pages.",
		func() float64 { return float64(c.Cached()) })
	return c
}

// Open returns a cache whose file is in dir.
func Open(dir string, opts Options) (*Cache, error) {
	c := New(opts)
	return c, c.Open(dir)
}

// Open creates the file of the cache in dir. It removes the file of an earlier process. After an error it can be called
// again, after a success not.
func (c *Cache) Open(dir string) (err error) {
	path, size := filepath.Join(dir, "pages"), c.BytesMax()
	if size > CacheBytesMax {
		return fmt.Errorf("%s with %d bytes would be larger than %d%s", path, size, int64(CacheBytesMax),
			c.opts.Flags.Of("BytesMax"))
	}
	// The old file is not truncated: another process may still map it.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, file.Close(), os.Remove(path))
		}
	}()
	// A full disk is an error here. Later, a write to the mapping would kill the process.
	if err := reserve(file, size); err != nil {
		return fmt.Errorf("reserve %d bytes for %s%s: %w", size, path, c.opts.Flags.Of("BytesMax"), err)
	}
	mapping, err := fileutil.OpenMmapFileWithSize(path, int(size))
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.file, c.mapping, c.closed = file, mapping, false
	c.slots = make([]slot, size/Bytes) // the kernel allocates memory only for slots that are used
	return nil
}

// reserve allocates size bytes on the disk for an empty file. It first compares size with the free space, because a
// file system may fill the whole disk before it returns that size is too large.
func reserve(file *os.File, size int64) error {
	free, total, err := files.Space(file.Name())
	if err != nil {
		return err
	}
	if total > 0 && size > free {
		return fmt.Errorf("the disk has %d free bytes: %w", free, syscall.ENOSPC)
	}
	return fileutil.Preallocate(file, size, true)
}

func newCounts(set *metrics.Set) counts {
	counter := func(name, help string) *metrics.Counter { return process.Counter(set, name, help) }
	return counts{
		hits:      counter("ferula_pages_hits_total", "Reads of a page that was cached."),
		misses:    counter("ferula_pages_misses_total", "Reads of a page that was not cached."),
		evictions: counter("ferula_pages_evictions_total", "Pages evicted to free space for others."),
		requests:  counter("ferula_pages_requests_total", "Requests for ranges of objects, repeated ones included."),
		fetched:   counter("ferula_pages_fetched_bytes_total", "Bytes received by requests for ranges of objects."),
		repeated: counter("ferula_pages_repeated_requests_total",
			"Requests for ranges that were sent again after a failure."),
		failed: counter("ferula_pages_failed_requests_total", "Requests for ranges that failed for good."),
	}
}

// Cached returns the bytes of the cached pages.
func (c *Cache) Cached() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int64(len(c.byKey)) * Bytes
}

// BytesMax returns the bytes of all pages.
func (c *Cache) BytesMax() int64 { return c.opts.BytesMax / Bytes * Bytes }

// Close unmaps the file. No Reader may be in use.
func (c *Cache) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	return errors.Join(c.mapping.Close(), c.file.Close(), os.Remove(c.file.Name()))
}

// Object is an immutable object, read by pages.
type Object struct {
	cache *Cache
	from  Source
	name  string
	size  int64
	id    uint32
}

// Object returns an object of size bytes. It sends no request.
func (c *Cache) Object(from Source, name string, size int64) *Object {
	return &Object{cache: c, from: from, name: name, size: size, id: c.ids.Add(1)}
}

// Size returns the size of the object in bytes.
func (o *Object) Size() int64 { return o.size }

func (o *Object) key(number int64) uint64 { return uint64(o.id)<<32 | uint64(number) }

// pageSize returns the length of a page, which is shorter at the end of the object.
func (o *Object) pageSize(number int64) int { return int(min(Bytes, o.size-number*Bytes)) }

// take returns a slot without a page. If there is none, it evicts the least recently used page. It returns -1 if all
// pages are pinned or being read. c.mu is held.
func (c *Cache) take() int32 {
	if n := len(c.free); n > 0 {
		i := c.free[n-1]
		c.free = c.free[:n-1]
		return i
	}
	if int(c.used) < len(c.slots) {
		c.used++
		return c.used - 1
	}
	i := c.recent.last()
	if i < 0 {
		return -1
	}
	c.recent.remove(c.slots, i)
	delete(c.byKey, c.slots[i].key)
	c.counts.evictions.Inc()
	if invariant.Enabled {
		poison := bytes.Repeat([]byte{0xDB}, Bytes) // so that tests detect slices that still alias it
		_, _ = c.file.WriteAt(poison, int64(i)*Bytes)
	}
	return i
}

// reserve takes a slot for a page that is about to be read. c.mu is held.
func (c *Cache) reserve(key uint64, size int) (slotNumber int32) {
	i := c.take()
	if i >= 0 {
		c.slots[i] = slot{key: key, size: int32(size), loading: make(chan struct{})}
		c.byKey[key] = i
	}
	return i
}

// loaded completes the read of a page. After an error its slot is free again; otherwise every reader may use the page.
func (c *Cache) loaded(i int32, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.slots[i]
	close(s.loading)
	s.loading = nil
	if err != nil {
		delete(c.byKey, s.key)
		c.free = append(c.free, i)
	} else {
		c.recent.push(c.slots, i)
	}
	c.wake()
}

// wake lets the readers that wait for a slot try again. c.mu is held.
func (c *Cache) wake() {
	if c.waiting > 0 {
		close(c.freed)
		c.freed, c.waiting = make(chan struct{}), 0
	}
}

// pin pins a cached page. c.mu is held.
func (c *Cache) pin(i int32) {
	if c.slots[i].pins == 0 {
		c.recent.remove(c.slots, i)
	}
	c.slots[i].pins++
}

func (c *Cache) unpin(all []int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range all {
		s := &c.slots[i]
		invariant.Check(s.pins > 0, "page %d is not pinned", i)
		if s.pins--; s.pins == 0 {
			c.recent.push(c.slots, i)
			c.wake()
		}
	}
}

// bytes returns the content of a pinned page.
func (c *Cache) bytes(i int32) []byte {
	at := int(i) * Bytes
	return c.mapping.Bytes()[at : at+int(c.slots[i].size) : at+int(c.slots[i].size)]
}

// list is a list of slots, linked by their numbers.
type list struct{ head, tail int32 }

func (l *list) init()       { l.head, l.tail = -1, -1 }
func (l *list) last() int32 { return l.tail }

func (l *list) push(slots []slot, i int32) {
	slots[i].prev, slots[i].next = -1, l.head
	if l.head >= 0 {
		slots[l.head].prev = i
	} else {
		l.tail = i
	}
	l.head = i
}

func (l *list) remove(slots []slot, i int32) {
	s := &slots[i]
	if s.prev >= 0 {
		slots[s.prev].next = s.next
	} else {
		l.head = s.next
	}
	if s.next >= 0 {
		slots[s.next].prev = s.prev
	} else {
		l.tail = s.prev
	}
}
