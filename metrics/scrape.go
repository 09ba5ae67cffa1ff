package metrics

import (
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferula-io/ferula/metrics/internal/exposition"
)

// Set is a set of metrics, written together in the order of their names. The zero
// Set is empty and ready.
//
// Who registers takes mu only, and adds at the end of metrics. Who scrapes holds
// alone or, if another scrape does, others for reading, and walks over sorted; if
// something was registered or removed since the last scrape, it first puts metrics
// in order under all locks. So a scrape keeps nobody from registering, callbacks
// included, and does not allocate: the room was made by who registered.
type Set struct {
	alone   sync.Mutex   // never waited for
	page    page         // of whoever holds alone
	others  sync.RWMutex // of scrapes that overlap
	sorted  []entry      // what a scrape walks over: metrics, as of the last ordering
	changed atomic.Bool
	odd     atomic.Bool                         // some name is not classic
	writers atomic.Pointer[[]func(w io.Writer)] // copied on write

	expiring atomic.Pointer[[]sweeper] // vectors; copied on write

	lastSpec atomic.Pointer[summarySpec]
	texts    atomic.Pointer[map[string]description] // of families; copied on write

	mu      sync.Mutex
	index   index
	metrics []entry // of which the first ordered are in order
	ordered int
	gone    map[metric]struct{} // removed, but still in metrics
}

// entry is a metric, and when it was made.
type entry struct {
	metric
	madeMS int64
}

// description is what is said of a family.
type description struct{ help, escaped, unit string }

// metric is what a set knows of its metrics.
type metric interface {
	fullName() string
	typeName() string
	// appendTo appends the metric's lines of text to dst, and retains nothing.
	appendTo(dst []byte) []byte
	// read fills m for the other formats. It is false if there is nothing to show.
	read(m *exposition.Metric) bool
}

// named is what all metrics have in common: the whole text they were registered
// under, name{label="value"}.
type named struct{ name string }

func (n *named) fullName() string { return n.name }

// NewSet returns an empty set. RegisterSet makes it part of WritePrometheus.
func NewSet() *Set { return &Set{} }

// add is called with mu held.
func (s *Set) add(m metric) {
	s.index.add(m)
	if n := len(s.metrics); n+2 > cap(s.metrics) {
		s.metrics = append(make([]entry, 0, n+n/8+8), s.metrics...) // tighter than append would
	}
	now := time.Now().UnixMilli()
	if sm, ok := m.(*Summary); ok {
		s.metrics = append(s.metrics, entry{(*quantileLines)(sm), now})
	}
	s.metrics = append(s.metrics, entry{m, now})
	if !s.odd.Load() && !exposition.IsClassicName(m.fullName()) {
		s.odd.Store(true)
	}
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
	s.writeMore(w)
}

func (s *Set) writeMore(w io.Writer) {
	if writers := s.writers.Load(); writers != nil {
		for _, write := range *writers {
			write(w)
		}
	}
}

// write leaves out the metadata of families that are in seen, and adds those it
// wrote; seen may be nil.
func (s *Set) write(w io.Writer, seen map[string]struct{}) error {
	entries, p := s.enter()
	defer s.leave(p)
	b, withMetadata, described := p.b, exposeMetadata.Load(), ""
	for i := range entries {
		if withMetadata {
			b, described = s.appendDescribed(b, entries[i].metric, described, seen)
		} else {
			b = entries[i].appendTo(b)
		}
		if len(b) >= pageFlush {
			if _, err := w.Write(b); err != nil {
				return err
			}
			b = b[:0]
		}
	}
	p.b = b
	if len(b) == 0 {
		return nil
	}
	_, err := w.Write(b)
	return err
}

// enter begins a scrape. What alone costs is two atomic operations; the page that
// comes with it survives collections of garbage.
func (s *Set) enter() (entries []entry, p *page) {
	if s.expiring.Load() != nil {
		s.sweep()
	}
	if s.changed.Load() {
		entries = s.order()
	}
	if s.alone.TryLock() {
		p = &s.page
	} else {
		s.others.RLock()
		p = takePage()
	}
	if entries == nil {
		entries = s.sorted
	}
	return entries, p
}

// leave ends a scrape.
func (s *Set) leave(p *page) {
	if p != &s.page {
		givePage(p)
		s.others.RUnlock()
		return
	}
	if p.b = p.b[:0]; cap(p.b) > pageMax {
		p.b = nil
	}
	s.alone.Unlock()
}

func (s *Set) sweep() {
	now := time.Now()
	for _, v := range *s.expiring.Load() {
		v.sweep(now)
	}
}

// sweeper is a vector whose members expire.
type sweeper interface{ sweep(now time.Time) }

func (s *Set) expire(v sweeper) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var vectors []sweeper
	if old := s.expiring.Load(); old != nil {
		vectors = append(vectors, *old...)
	}
	if !slices.Contains(vectors, v) {
		vectors = append(vectors, v)
	}
	s.expiring.Store(&vectors)
}

// appendDescribed puts the metadata of a family before its first metric that has
// something to say.
func (s *Set) appendDescribed(dst []byte, m metric, described string, seen map[string]struct{}) ([]byte, string) {
	f := exposition.Family(m.fullName())
	if f == described {
		return m.appendTo(dst), f
	}
	before := len(dst)
	if _, there := seen[f]; !there {
		dst = appendMetadata(dst, f, m.typeName(), s.describes(f).escaped)
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

// describes is empty for families that nobody described.
func (s *Set) describes(family string) description {
	if texts := s.texts.Load(); texts != nil {
		return (*texts)[family]
	}
	return description{}
}

// order brings sorted up to date. If another scrape is walking over it, which is
// rare, it returns an ordered copy instead.
func (s *Set) order() (late []entry) {
	alone := s.alone.TryLock()
	if alone {
		defer s.alone.Unlock()
		if alone = s.others.TryLock(); alone {
			defer s.others.Unlock()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !alone {
		late, _ = inOrder(slices.Clone(s.metrics), s.ordered, s.gone)
		return late
	}
	s.metrics, s.ordered = inOrder(s.metrics, s.ordered, s.gone)
	clear(s.gone)
	s.sorted = s.metrics
	s.changed.Store(false)
	return nil
}

// inOrder sorts metrics, of which the first n are sorted, in place, and takes out
// those that are gone. A few new ones are put in their places, many are sorted with
// the others.
func inOrder(metrics []entry, n int, gone map[metric]struct{}) ([]entry, int) {
	if len(gone) > 0 {
		kept, sorted := metrics[:0], n
		for i, m := range metrics {
			if _, there := gone[m.metric]; !there {
				kept = append(kept, m)
			} else if i < sorted {
				n--
			}
		}
		clear(metrics[len(kept):])
		metrics = kept
	}
	const few = 16
	if len(metrics)-n > few {
		slices.SortFunc(metrics, compareEntries)
		return metrics, len(metrics)
	}
	for ; n < len(metrics); n++ {
		m := metrics[n]
		at, _ := slices.BinarySearchFunc(metrics[:n], m, compareEntries)
		copy(metrics[at+1:], metrics[at:n])
		metrics[at] = m
	}
	return metrics, n
}

func compareEntries(a, b entry) int { return compare(a.metric, b.metric) }

// compare is the order of a page: families, in each of them the lines of quantiles
// first, then names.
func compare(a, b metric) int {
	aName, bName := a.fullName(), b.fullName()
	if c := strings.Compare(exposition.Family(aName), exposition.Family(bName)); c != 0 {
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
	aBase, aSeparator := exposition.OpenLabels(a)
	bBase, bSeparator := exposition.OpenLabels(b)
	n := min(len(aBase), len(bBase))
	if c := strings.Compare(aBase[:n], bBase[:n]); c != 0 {
		return c
	}
	const tag = `quantile="`
	return strings.Compare(aBase[n:]+aSeparator+tag, bBase[n:]+bSeparator+tag)
}

// page is a buffer that is written whenever it has pageFlush bytes, so that its size
// does not depend on that of a set.
type page struct {
	b         []byte
	described bool // with HELP and TYPE lines
}

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
	p, ok := pages.Get().(*page)
	if !ok {
		p = &page{}
	}
	p.described = exposeMetadata.Load()
	return p
}

func givePage(p *page) {
	if cap(p.b) <= pageMax {
		p.b = p.b[:0]
		pages.Put(p)
	}
}
