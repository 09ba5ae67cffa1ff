package store

import (
	"fmt"
	"sync/atomic"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
)

// memory is the budget that heads, queries and decoded symbols share. The heads of all tenants have a limit of their own
// within it, so that queries do not stop pushes. Before a push is logged, the most memory that the push could need is
// reserved. Once the push is in a head, the actual growth of the head is charged instead.
type memory struct {
	max, headsMax int64
	heads         atomic.Int64
	leased        atomic.Int64  // by queries
	symbols       atomic.Int64  // decoded symbols of blocks, in use or cached
	wake          chan struct{} // of capacity 1; receives when heads should be written as blocks
}

// reserve adds bytes to used, unless used would exceed limit.
func reserve(used *atomic.Int64, bytes, limit int64) bool {
	for {
		now := used.Load()
		if now+bytes > limit {
			return false
		}
		if used.CompareAndSwap(now, now+bytes) {
			return true
		}
	}
}

// take reserves bytes for heads. It returns false and reserves nothing if heads would exceed their limit.
func (m *memory) take(bytes int64) bool {
	if m.heads.Load()+bytes > m.headsMax/2 {
		m.relieve()
	}
	return reserve(&m.heads, bytes, m.headsMax)
}

func (m *memory) relieve() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// underPressure reports whether heads should be written as blocks although they are small and new.
func (m *memory) underPressure() bool { return m.heads.Load() > m.headsMax/2 }

// charge adds a head's growth since the last charge.
func (m *memory) charge(h *head) {
	size := int64(h.size())
	m.heads.Add(size - h.charged)
	h.charged = size
}

// discharge releases the charges of a head that no longer changes.
func (m *memory) discharge(h *head) {
	m.heads.Add(-h.charged)
	h.charged = 0
}

// Lease is the memory of one query. It is used by one goroutine.
type Lease struct {
	store *Store
	bytes int64
}

// Take adds bytes to the lease. If they do not fit into the store's memory, it drops the
// symbols that no query uses. If they still do not fit, it takes nothing and returns ErrLimit.
// The lease of a nil store has no limit.
func (l *Lease) Take(bytes int64) error {
	if l.store == nil || bytes <= 0 {
		return nil
	}
	if l.reserve(bytes) || l.store.dropSymbols() && l.reserve(bytes) {
		l.bytes += bytes
		return nil
	}
	s := l.store
	return fmt.Errorf("%w: the query needs %d bytes in addition to its %d, and %d of %d are in use: select a shorter range or fewer series, or send it again later%s",
		profiles.ErrLimit, bytes, l.bytes, s.memory.heads.Load()+s.memory.leased.Load()+s.memory.symbols.Load(), s.memory.max,
		s.opts.Flags.Of("MemoryBytes"))
}

func (l *Lease) reserve(bytes int64) bool {
	m := &l.store.memory
	return reserve(&m.leased, bytes, m.max-m.heads.Load()-m.symbols.Load())
}

// Grow adds to the lease the bytes by which a part of the query has grown. now is the present
// size of the part, and known is the result of the last call. Grow returns the greater of both.
func (l *Lease) Grow(known, now int64) (int64, error) {
	if now <= known {
		return known, nil
	}
	return now, l.Take(now - known)
}

// Release ends the lease.
func (l *Lease) Release() { l.give(l.bytes) }

// give gives bytes of the lease back.
func (l *Lease) give(bytes int64) {
	if l.store != nil {
		l.store.memory.leased.Add(-bytes)
	}
	l.bytes -= bytes
}

// dropSymbols drops the cached symbols of all blocks that no query uses. It reports whether
// there were any.
func (s *Store) dropSymbols() bool {
	before := s.memory.symbols.Load()
	for _, t := range s.list() {
		t.mu.RLock()
		for _, b := range t.blocks {
			b.DropSymbols()
		}
		t.mu.RUnlock()
	}
	if s.remotes != nil {
		s.remotes.mu.Lock()
		for _, b := range s.remotes.open {
			b.held.DropSymbols()
		}
		s.remotes.mu.Unlock()
	}
	return s.memory.symbols.Load() < before
}

// PartSymbols returns the symbols of one part of a source of the view. Their bytes are part of the store's memory; while
// they are being decoded, the lease has them. The caller calls done when it no longer uses the symbols. After that they
// stay cached until they are idle, memory is short, or all decoded symbols exceed their share of the memory
// (symbolsShare).
func (v *View) PartSymbols(src block.Source, part int) (symbols *block.Symbols, done func(), err error) {
	b, ok := src.(*heldBlock)
	if !ok || v.Lease.store == nil {
		symbols, err = src.PartSymbols(part)
		return symbols, func() {}, err
	}
	unpin := b.PinSymbols()
	if !b.HasPart(part) {
		cost := b.PartBytes(part)
		if err := v.Lease.Take(cost); err != nil {
			unpin()
			return nil, nil, err
		}
		defer v.Lease.give(cost) // once the symbols are decoded, the block's reader counts them
	}
	if symbols, err = b.PartSymbols(part); err != nil {
		unpin()
		return nil, nil, err
	}
	memory := &v.Lease.store.memory
	return symbols, func() {
		unpin()
		if memory.symbols.Load() > memory.max/symbolsShare {
			b.DropSymbols()
		}
	}, nil
}

// DecodePart is PartSymbols for a query of many parts, which needs each part once. Symbols that are not cached yet
// are decoded with d and not cached. They are valid until the next call with d. Their memory is part of the lease
// until done is called.
func (v *View) DecodePart(src block.Source, part int,
	d *block.PartDecoder) (symbols *block.Symbols, done func(), err error) {
	b, ok := src.(*heldBlock)
	if !ok || v.Lease.store == nil || b.HasPart(part) {
		return v.PartSymbols(src, part)
	}
	cost := b.PartBytes(part)
	if err := v.Lease.Take(cost); err != nil {
		return nil, nil, err
	}
	if symbols, err = d.Decode(b.Reader, part); err != nil {
		v.Lease.give(cost)
		return nil, nil, err
	}
	return symbols, func() { v.Lease.give(cost) }, nil
}

// Many reports whether symbols of this size take more than an eighth of the memory for cached symbols. A query then
// uses DecodePart, so that these symbols do not displace the symbols of other blocks.
func (v *View) Many(bytes int64) bool {
	return v.Lease != nil && v.Lease.store != nil && bytes > v.Lease.store.memory.max/symbolsShare/8
}

// symbolsShare limits cached symbols. While all decoded symbols take more than a sixteenth of the
// memory, the symbols of a block are dropped as soon as no query uses them.
const symbolsShare = 16
