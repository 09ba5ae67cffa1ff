package metrics

import (
	"sync"
	"sync/atomic"
)

// spares is a pool of *T. It keeps up to four values, which outlive garbage collections and are available to all
// processors, and puts further values into a sync.Pool. A sync.Pool alone is not enough: it keeps one value per
// processor for goroutines on that processor, so a scrape would sometimes allocate buffers although free ones exist.
type spares[T any] struct {
	kept [4]atomic.Pointer[T]
	more sync.Pool
}

// get returns a value that was passed to put, or a new zero value.
func (s *spares[T]) get() *T {
	for i := range s.kept {
		if v := s.kept[i].Swap(nil); v != nil {
			return v
		}
	}
	if v, ok := s.more.Get().(*T); ok {
		return v
	}
	return new(T)
}

// put makes a value available. A value that is not small goes to the sync.Pool, where the garbage collector can free
// it.
func (s *spares[T]) put(v *T, small bool) {
	if small {
		for i := range s.kept {
			if s.kept[i].CompareAndSwap(nil, v) {
				return
			}
		}
	}
	s.more.Put(v)
}
