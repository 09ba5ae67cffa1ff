package cache

import (
	"context"
	"fmt"
	"hash/maphash"
	"math/bits"
	"sync"
	"sync/atomic"
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
// A hit costs a map look-up under a read lock and copies nothing. Eviction is SIEVE: values are
// queued in the order in which they were written, a hit only marks them, and a hand moves from the
// oldest to the newest, clearing marks and evicting the first value without one. A response that is
// never requested again is evicted sooner than with LRU, and the parts of one response, which are
// written and read together, are evicted together.
type Memory struct {
	now    func() time.Time
	seed   maphash.Seed
	shards []memoryShard // 2^n
}

var _ Store = (*Memory)(nil)

const (
	memoryBytesMax  = 256 << 20
	memoryShardsMax = 16
	// memoryShardBytes is the smallest size of a shard if there are several: a shard
	// must hold several parts.
	memoryShardBytes = 8 << 20
	memoryShardItems = 128
	// memoryItemBytes is the overhead of an item in addition to its key and value: the
	// struct, its map entry and the rounding of the allocator.
	memoryItemBytes = 192
)

type memoryShard struct {
	mu       sync.RWMutex
	items    map[string]*memoryItem
	newest   *memoryItem
	oldest   *memoryItem
	hand     *memoryItem // nil: at the oldest item
	bytes    int64
	bytesMax int64
	itemsMax int

	evicted, expired, refused *instruments.Counter // counters that all shards share
}

type memoryItem struct {
	key          string
	value        []byte // shared, immutable
	expires      int64  // Unix nanoseconds; 0: never
	older, newer *memoryItem
	used         atomic.Bool // the mark of a hit
}

func (i *memoryItem) bytes() int64 {
	return int64(len(i.key)) + int64(cap(i.value)) + memoryItemBytes
}

// NewMemory returns an empty store whose metrics are registered in set, which may be nil.
func NewMemory(opts MemoryOptions, set *instruments.Set) (*Memory, error) {
	if opts.BytesMax < 0 || opts.ItemsMax < 0 {
		return nil, fmt.Errorf("memory cache: bytes %d and items %d cannot be negative", opts.BytesMax, opts.ItemsMax)
	}
	orDefault(&opts.BytesMax, memoryBytesMax)
	if opts.Now == nil {
		opts.Now = time.Now
	}
	limit := min(memoryShardsMax, opts.BytesMax/memoryShardBytes)
	if opts.ItemsMax > 0 {
		limit = min(limit, int64(opts.ItemsMax)/memoryShardItems)
	}
	count := 1 << (bits.Len64(uint64(max(limit, 1))) - 1)
	if set == nil {
		set = instruments.NewSet()
	}
	counter := func(name, help string) *instruments.Counter {
		return set.NewCounterVec(metricPrefix+name, help, "cache").With(opts.Name)
	}
	evicted := counter("memory_evicted_total", "Values evicted to free space for others.")
	expired := counter("memory_expired_total", "Values dropped because their TTL expired.")
	refused := counter("memory_rejected_total", "Values rejected because they are larger than a shard.")
	m := &Memory{now: opts.Now, seed: maphash.MakeSeed(), shards: make([]memoryShard, count)}
	for i := range m.shards {
		m.shards[i].items = map[string]*memoryItem{}
		m.shards[i].bytesMax = opts.BytesMax / int64(count)
		m.shards[i].itemsMax = opts.ItemsMax / count
		m.shards[i].evicted, m.shards[i].expired, m.shards[i].refused = evicted, expired, refused
	}
	gauge := func(name, help string, value func(s *memoryShard) int64) {
		gaugeOf(set, opts.Name, name, help, func() float64 { return float64(m.sum(value)) })
	}
	gauge("memory_bytes", "Bytes of the memory store, including keys and overhead.", func(s *memoryShard) int64 {
		return s.bytes
	})
	gauge("memory_max_bytes", "Maximum bytes of the memory store.", func(s *memoryShard) int64 { return s.bytesMax })
	gauge("memory_items", "Values in the memory store.", func(s *memoryShard) int64 { return int64(len(s.items)) })
	return m, nil
}

func (m *Memory) sum(value func(s *memoryShard) int64) (total int64) {
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.RLock()
		total += value(s)
		s.mu.RUnlock()
	}
	return total
}

// Bytes returns the size of the store in bytes, including keys and overhead.
func (m *Memory) Bytes() int64 {
	return m.sum(func(s *memoryShard) int64 { return s.bytes })
}

// Local returns true.
func (m *Memory) Local() bool { return true }

func (m *Memory) shard(key string) *memoryShard {
	return &m.shards[maphash.String(m.seed, key)&uint64(len(m.shards)-1)]
}

// Get returns the value itself, not a copy.
func (m *Memory) Get(_ context.Context, key string) ([]byte, bool, error) {
	s := m.shard(key)
	s.mu.RLock()
	item := s.items[key]
	if item == nil {
		s.mu.RUnlock()
		return nil, false, nil
	}
	value, expires := item.value, item.expires
	s.mu.RUnlock()
	if expires != 0 && m.now().UnixNano() >= expires {
		s.expire(item)
		return nil, false, nil
	}
	if !item.used.Load() { // no write if it is set already, so that cores can share the cache line
		item.used.Store(true)
	}
	return value, true, nil
}

// Set stores value itself, not a copy, and evicts others until it fits.
func (m *Memory) Set(_ context.Context, key string, value []byte, ttl time.Duration) error {
	s := m.shard(key)
	item := &memoryItem{key: key, value: value}
	if ttl > 0 {
		item.expires = m.now().Add(ttl).UnixNano()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.items[key]; old != nil {
		s.remove(old)
		item.used.Store(old.used.Load())
	}
	if item.bytes() > s.bytesMax {
		s.refused.Inc()
		return fmt.Errorf("%d bytes, at most %d: %w", item.bytes(), s.bytesMax, ErrTooLarge)
	}
	for s.bytes+item.bytes() > s.bytesMax || (s.itemsMax > 0 && len(s.items) >= s.itemsMax) {
		s.evict()
	}
	s.insert(item)
	return nil
}

// Close drops all values.
func (m *Memory) Close() error {
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		clear(s.items)
		s.newest, s.oldest, s.hand, s.bytes = nil, nil, nil, 0
		s.mu.Unlock()
	}
	return nil
}

func (s *memoryShard) expire(item *memoryItem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.items[item.key] == item {
		s.remove(item)
		s.expired.Inc()
	}
}

func (s *memoryShard) insert(item *memoryItem) {
	item.older = s.newest
	if s.newest != nil {
		s.newest.newer = item
	} else {
		s.oldest = item
	}
	s.newest = item
	s.items[item.key] = item
	s.bytes += item.bytes()
}

func (s *memoryShard) remove(item *memoryItem) {
	if s.hand == item {
		s.hand = item.newer
	}
	if item.older != nil {
		item.older.newer = item.newer
	} else {
		s.oldest = item.newer
	}
	if item.newer != nil {
		item.newer.older = item.older
	} else {
		s.newest = item.older
	}
	item.older, item.newer = nil, nil
	delete(s.items, item.key)
	s.bytes -= item.bytes()
}

// evict moves the hand to the first item without a mark and evicts it. The shard must not be empty.
// The first round clears all marks, so the second round finds an item, unless a concurrent Get has
// marked each one again.
func (s *memoryShard) evict() {
	for {
		if s.hand == nil {
			s.hand = s.oldest
		}
		if item := s.hand; item.used.Load() {
			item.used.Store(false)
			s.hand = item.newer
		} else {
			s.remove(item)
			s.evicted.Inc()
			return
		}
	}
}
