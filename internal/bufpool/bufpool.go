// Package bufpool lends byte buffers and takes them back.
//
// A buffer is borrowed by Get and returned by Put in the same function; nobody
// keeps a slice of it afterwards. A buffer that grew past the pool's cap is
// dropped on Put, so one huge answer does not stay in memory for ever. With
// `-tags invariants` a returned buffer is overwritten, which turns a use after
// Put into a visible wrong answer. There is no size class and no clearing: the
// callers append.
package bufpool

import (
	"sync"

	"github.com/ferula-io/ferula/internal/invariant"
)

// Pool lends buffers of one starting capacity. Use New.
type Pool struct {
	startBytes int
	maxBytes   int
	pool       sync.Pool
}

// New makes a pool whose buffers start with startBytes of capacity and are
// dropped once they have grown past maxBytes.
func New(startBytes, maxBytes int) *Pool {
	invariant.Check(startBytes > 0 && maxBytes >= startBytes, "bufpool: start %d, max %d", startBytes, maxBytes)
	return &Pool{startBytes: startBytes, maxBytes: maxBytes}
}

// Get lends a buffer of length 0. The pointer, not the slice, is what Put takes,
// so that lending allocates nothing once the pool is warm.
func (p *Pool) Get() *[]byte {
	if b, ok := p.pool.Get().(*[]byte); ok {
		*b = (*b)[:0]
		return b
	}
	b := make([]byte, 0, p.startBytes)
	return &b
}

// Put takes a buffer back; the caller must hold no slice of it.
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
