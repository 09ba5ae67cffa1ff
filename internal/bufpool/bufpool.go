// Package bufpool pools byte buffers.
//
// The same function borrows a buffer with Get and returns it with Put; no slice of it may be
// retained. Put drops a buffer that has grown past the pool's maximum, so that one large
// response does not stay in memory for ever. With `-tags invariants` Put overwrites the
// buffer, which makes a use after Put visible. There are no size classes, and buffers are not
// cleared: callers append.
package bufpool

import (
	"sync"

	"github.com/ferula-io/ferula/internal/invariant"
)

// Pool is a pool of buffers with one initial capacity. Create it with New.
type Pool struct {
	startBytes int
	maxBytes   int
	pool       sync.Pool
}

// New creates a pool. Buffers have an initial capacity of startBytes and are dropped once
// they have grown past maxBytes.
func New(startBytes, maxBytes int) *Pool {
	invariant.Check(startBytes > 0 && maxBytes >= startBytes, "bufpool: start %d, max %d", startBytes, maxBytes)
	return &Pool{startBytes: startBytes, maxBytes: maxBytes}
}

// Get returns a buffer of length 0. It returns a pointer, which Put takes, so that a warm
// pool does not allocate.
func (p *Pool) Get() *[]byte {
	if b, ok := p.pool.Get().(*[]byte); ok {
		*b = (*b)[:0]
		return b
	}
	b := make([]byte, 0, p.startBytes)
	return &b
}

// Put returns a buffer to the pool. The caller must not retain a slice of it.
func (p *Pool) Put(b *[]byte) {
	if invariant.Enabled {
		poison((*b)[:cap(*b)])
	}
	if cap(*b) > p.maxBytes {
		return
	}
	p.pool.Put(b)
}

func poison(b []byte) {
	for i := range b {
		b[i] = 0xDB
	}
}
