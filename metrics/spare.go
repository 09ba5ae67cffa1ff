package metrics

import (
	"sync"
	"sync/atomic"
)

// spares is a pool of *T of which up to four outlive garbage collections and are found from every processor. A sync.Pool
// alone sometimes has nothing for a goroutine, because it keeps one value for each processor that others do not take:
// then a scrape would allocate buffers although there are enough. Further values are left to the sync.Pool.
type spares[T any] struct {
	kept [4]atomic.Pointer[T]
	more sync.Pool
}

// get returns a value that was put, or a new zero value.
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

// put makes a value available. One that is not small goes to the sync.Pool, so that the memory it holds is freed some
// time.
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
