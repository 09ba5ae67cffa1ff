package metrics

import (
	"runtime"
	"testing"
)

func TestSpares_SmallValuesOutliveGarbageCollections(t *testing.T) {
	var s spares[page]
	put := map[*page]bool{}
	for range len(s.kept) {
		p := &page{}
		put[p] = true
		s.put(p, true)
	}
	for range 3 { // a sync.Pool drops all values at the second collection
		runtime.GC()
	}
	for range len(s.kept) {
		p := s.get()
		if !put[p] {
			t.Error("a new page, although pages were put")
		}
		delete(put, p)
	}
	if p := s.get(); p == nil {
		t.Error("no page")
	}
}

func TestSpares_LargeValuesAreNotKept(t *testing.T) {
	var s spares[page]
	s.put(&page{}, false)
	for i := range s.kept {
		if s.kept[i].Load() != nil {
			t.Error("a large page is kept for ever")
		}
	}
}
