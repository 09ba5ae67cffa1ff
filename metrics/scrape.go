package metrics

import (
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Set is a set of metrics, written together in the order of their names. The zero
// Set is empty and ready.
//
// Who registers takes mu only, and adds at the end of metrics. Who scrapes holds
// view for reading, and walks over sorted; if something was registered or removed
// since the last scrape, it first puts metrics in order under both locks. So a
// scrape keeps nobody from registering, callbacks included, and does not allocate:
// the room was made by who registered.
type Set struct {
	view    sync.RWMutex
	sorted  []metric // what a scrape walks over: metrics, as of the last ordering
	changed atomic.Bool
	writers atomic.Pointer[[]func(w io.Writer)] // copied on write
	page    atomic.Pointer[page]                // nil while a scrape uses it

	lastSpec atomic.Pointer[summarySpec]
	help     atomic.Pointer[map[string]string] // of families, escaped; copied on write

	mu      sync.Mutex
	index   index
	metrics []metric // of which the first ordered are in order
	ordered int
	gone    map[metric]struct{} // removed, but still in metrics
}

// metric is what a set knows of its metrics.
type metric interface {
	fullName() string
	typeName() string
	// appendTo appends the metric's lines to dst, and retains nothing.
	appendTo(dst []byte) []byte
}

// NewSet returns an empty set. RegisterSet makes it part of WritePrometheus.
func NewSet() *Set { return &Set{} }

// add is called with mu held.
func (s *Set) add(m metric) {
	s.index.add(m)
	if sm, ok := m.(*Summary); ok {
		s.metrics = append(s.metrics, (*quantileLines)(sm))
	}
	s.metrics = append(s.metrics, m)
	s.changed.Store(true)
}

// discard is called with mu held.
func (s *Set) discard(m metric) {
	if s.gone == nil {
		s.gone = map[metric]struct{}{}
	}
	s.gone[m] = struct{}{}
	if sm, ok := m.(*Summary); ok {
		s.gone[(*quantileLines)(sm)] = struct{}{}
		sm.stop()
	}
	s.changed.Store(true)
}

// WritePrometheus writes all metrics to w, and then lets the registered writers
// write theirs. It stops at the first error of w.
func (s *Set) WritePrometheus(w io.Writer) {
	if s.write(w, nil) != nil {
		return
	}
	if writers := s.writers.Load(); writers != nil {
		for _, write := range *writers {
			write(w)
		}
	}
}

// write leaves out the metadata of families that are in seen, and adds those it
// wrote; seen may be nil.
func (s *Set) write(w io.Writer, seen map[string]struct{}) error {
	var late []metric
	if s.changed.Load() {
		late = s.order()
	}
	s.view.RLock()
	metrics, p := s.sorted, s.takePage()
	if late != nil {
		metrics = late
	}
	defer s.leave(p)
	withMetadata, described := exposeMetadata.Load(), ""
	for _, m := range metrics {
		if withMetadata {
			p.b, described = s.appendDescribed(p.b, m, described, seen)
		} else {
			p.b = m.appendTo(p.b)
		}
		if len(p.b) >= pageFlush {
			if err := p.flush(w); err != nil {
				return err
			}
		}
	}
	return p.flush(w)
}

// appendDescribed puts the metadata of a family before its first metric that has
// something to say.
func (s *Set) appendDescribed(dst []byte, m metric, described string, seen map[string]struct{}) ([]byte, string) {
	f := family(m.fullName())
	if f == described {
		return m.appendTo(dst), f
	}
	before := len(dst)
	if _, there := seen[f]; !there {
		dst = appendMetadata(dst, f, m.typeName(), s.helpOf(f))
	}
	after := len(dst)
	if dst = m.appendTo(dst); len(dst) == after {
		return dst[:before], described
	}
	if seen != nil {
		seen[f] = struct{}{}
	}
	return dst, f
}

// helpOf is empty for families that no vector described.
func (s *Set) helpOf(family string) string {
	if texts := s.help.Load(); texts != nil {
		return (*texts)[family]
	}
	return ""
}

// order brings sorted up to date. If another scrape is walking over it, which is
// rare, it returns an ordered copy instead.
func (s *Set) order() (late []metric) {
	alone := s.view.TryLock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !alone {
		late, _ = inOrder(slices.Clone(s.metrics), s.ordered, s.gone)
		return late
	}
	defer s.view.Unlock()
	s.metrics, s.ordered = inOrder(s.metrics, s.ordered, s.gone)
	clear(s.gone)
	s.sorted = s.metrics
	s.changed.Store(false)
	return nil
}

// inOrder sorts metrics, of which the first n are sorted, in place, and takes out
// those that are gone. A few new ones are put in their places, many are sorted with
// the others.
func inOrder(metrics []metric, n int, gone map[metric]struct{}) ([]metric, int) {
	if len(gone) > 0 {
		kept := metrics[:0]
		for i, m := range metrics {
			if _, there := gone[m]; !there {
				kept = append(kept, m)
			} else if i < n {
				n--
			}
		}
		clear(metrics[len(kept):])
		metrics = kept
	}
	const few = 16
	if len(metrics)-n > few {
		slices.SortFunc(metrics, compare)
		return metrics, len(metrics)
	}
	for ; n < len(metrics); n++ {
		m := metrics[n]
		at, _ := slices.BinarySearchFunc(metrics[:n], m, compare)
		copy(metrics[at+1:], metrics[at:n])
		metrics[at] = m
	}
	return metrics, n
}

// compare is the order of a page: families, in each of them the lines of quantiles
// first, then names.
func compare(a, b metric) int {
	aName, bName := a.fullName(), b.fullName()
	if c := strings.Compare(family(aName), family(bName)); c != 0 {
		return c
	}
	_, aFirst := a.(*quantileLines)
	_, bFirst := b.(*quantileLines)
	switch {
	case aFirst && bFirst:
		return compareWithTag(aName, bName)
	case aFirst:
		return -1
	case bFirst:
		return 1
	}
	return strings.Compare(aName, bName)
}

// compareWithTag compares names as they are once a label quantile is added.
func compareWithTag(a, b string) int {
	aBase, aSeparator := openLabels(a)
	bBase, bSeparator := openLabels(b)
	n := min(len(aBase), len(bBase))
	if c := strings.Compare(aBase[:n], bBase[:n]); c != 0 {
		return c
	}
	const tag = `quantile="`
	return strings.Compare(aBase[n:]+aSeparator+tag, bBase[n:]+bSeparator+tag)
}

// page is a buffer that is written whenever it has pageFlush bytes, so that its size
// does not depend on that of a set.
type page struct{ b []byte }

const (
	pageFlush = 32 << 10
	pageMax   = 128 << 10 // a bigger one is not kept
)

// flush writes what there is.
func (p *page) flush(w io.Writer) error {
	if len(p.b) == 0 {
		return nil
	}
	_, err := w.Write(p.b)
	p.b = p.b[:0]
	return err
}

// pages are those that belong to no set, or are used by scrapes that overlap.
var pages sync.Pool

func takePage() *page {
	if p, ok := pages.Get().(*page); ok {
		return p
	}
	return &page{}
}

func givePage(p *page) {
	if cap(p.b) <= pageMax {
		p.b = p.b[:0]
		pages.Put(p)
	}
}

// takePage prefers the set's own page, which survives collections of garbage.
func (s *Set) takePage() *page {
	if p := s.page.Swap(nil); p != nil {
		return p
	}
	return takePage()
}

// leave ends a scrape. The page stays with the set, or goes to the pool if another
// scrape's page is there already.
func (s *Set) leave(p *page) {
	p.b = p.b[:0]
	if cap(p.b) <= pageMax && !s.page.CompareAndSwap(nil, p) {
		pages.Put(p)
	}
	s.view.RUnlock()
}
