package cache

import (
	"cmp"
	"container/list"
	"context"
	"fmt"
	"sync"
	"time"

	instruments "github.com/ferula-io/ferula/metrics"
)

// MemoryOptions of a Memory. Zero values take the defaults.
type MemoryOptions struct {
	BytesMax int64            // of values, keys and overhead; 0: 256 MiB
	ItemsMax int              // 0: no limit but BytesMax
	Now      func() time.Time // nil: time.Now
	Name     string           // of the cache, as in Options
}

// Memory is a Store in this process, bounded by bytes.
//
// A hit costs a map look-up and copies nothing. Eviction is SIEVE: values are
// queued in the order in which they were written, a hit only marks them, and a hand moves from the
// oldest to the newest, clearing marks and evicting the first value without one. A response that is
// never requested again is evicted sooner than with LRU, and the parts of one response, which are
// written and read together, are evicted together.
type Memory struct {
	opts                      MemoryOptions
	evicted, expired, refused *instruments.Counter

	mu    sync.Mutex
	items map[string]*list.Element // of queue
	queue list.List                // of *memoryItem; the newest is at the front
	hand  *list.Element            // nil: at the oldest item
	bytes int64
}

var _ Store = (*Memory)(nil)

const (
	memoryBytesMax = 256 << 20
	// memoryItemBytes is the overhead of an item in addition to its key and value: the
	// structs, the map entry and the rounding of the allocator.
	memoryItemBytes = 192
)

type memoryItem struct {
	key     string
	value   []byte    // shared, immutable
	expires time.Time // zero: never
	used    bool      // the mark of a hit
}

func (i *memoryItem) bytes() int64 {
	return int64(len(i.key)) + int64(cap(i.value)) + memoryItemBytes
}

// NewMemory returns an empty store whose metrics are registered in set, which may be nil.
func NewMemory(opts MemoryOptions, set *instruments.Set) (*Memory, error) {
	if opts.BytesMax < 0 || opts.ItemsMax < 0 {
		return nil, fmt.Errorf("memory cache: bytes %d and items %d cannot be negative", opts.BytesMax, opts.ItemsMax)
	}
	opts.BytesMax = cmp.Or(opts.BytesMax, memoryBytesMax)
	if opts.Now == nil {
		opts.Now = time.Now
	}
	set = cmp.Or(set, instruments.NewSet())
	counter := func(name, help string) *instruments.Counter {
		return set.NewCounterVec(metricPrefix+name, help, "cache").With(opts.Name)
	}
	m := &Memory{
		opts: opts, items: map[string]*list.Element{},
		evicted: counter("memory_evicted_total", "Values evicted to free space for others."),
		expired: counter("memory_expired_total", "Values dropped because their TTL expired."),
		refused: counter("memory_rejected_total", "Values rejected because they are larger than the store."),
	}
	gauge := func(name, help string, value func() int64) {
		gaugeOf(set, opts.Name, name, help, func() float64 {
			m.mu.Lock()
			defer m.mu.Unlock()
			return float64(value())
		})
	}
	gauge("memory_bytes", "Bytes of the memory store, including keys and overhead.", func() int64 { return m.bytes })
	gauge("memory_max_bytes", "Maximum bytes of the memory store.", func() int64 { return opts.BytesMax })
	gauge("memory_items", "Values in the memory store.", func() int64 { return int64(len(m.items)) })
	return m, nil
}

// Local returns true.
func (m *Memory) Local() bool { return true }

// Get returns the value itself, not a copy.
func (m *Memory) Get(_ context.Context, key string) ([]byte, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.items[key]
	if e == nil {
		return nil, false, nil
	}
	item := e.Value.(*memoryItem)
	if !item.expires.IsZero() && !m.opts.Now().Before(item.expires) {
		m.remove(e)
		m.expired.Inc()
		return nil, false, nil
	}
	item.used = true
	return item.value, true, nil
}

// Set stores value itself, not a copy, and evicts others until it fits.
func (m *Memory) Set(_ context.Context, key string, value []byte, ttl time.Duration) error {
	item := &memoryItem{key: key, value: value}
	if ttl > 0 {
		item.expires = m.opts.Now().Add(ttl)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if old := m.items[key]; old != nil {
		item.used = old.Value.(*memoryItem).used
		m.remove(old)
	}
	if item.bytes() > m.opts.BytesMax {
		m.refused.Inc()
		return fmt.Errorf("%d bytes, at most %d: %w", item.bytes(), m.opts.BytesMax, ErrTooLarge)
	}
	for m.bytes+item.bytes() > m.opts.BytesMax || (m.opts.ItemsMax > 0 && len(m.items) >= m.opts.ItemsMax) {
		m.evict()
	}
	m.items[key] = m.queue.PushFront(item)
	m.bytes += item.bytes()
	return nil
}

// Close drops all values.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.items)
	m.queue.Init()
	m.hand, m.bytes = nil, 0
	return nil
}

// remove and evict are called with mu held.
func (m *Memory) remove(e *list.Element) {
	if m.hand == e {
		m.hand = e.Prev()
	}
	item := m.queue.Remove(e).(*memoryItem)
	delete(m.items, item.key)
	m.bytes -= item.bytes()
}

// evict moves the hand to the first item without a mark and evicts it. The store must not be empty. The first round
// clears all marks, so the second round finds an item.
func (m *Memory) evict() {
	for {
		if m.hand == nil {
			m.hand = m.queue.Back()
		}
		e := m.hand
		item := e.Value.(*memoryItem)
		if !item.used {
			m.remove(e)
			m.evicted.Inc()
			return
		}
		item.used, m.hand = false, e.Prev()
	}
}
