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
// Registration and scrapes do not block each other, so callbacks may register metrics.
type Set struct {
	// Registration takes mu only and appends to metrics. A scrape takes mainScrape or, if
	// another scrape holds it, otherScrapes for reading, and iterates over sorted. If
	// metrics were added or removed since the last scrape, it first sorts them: in place if
	// no scrape holds a lock, otherwise in a copy. So a client that does not read keeps the
	// locks of its scrape, but does not keep later removed metrics in memory. A scrape that
	// runs alone does not allocate: registration has allocated the memory.
	mainScrape    sync.Mutex   // held by one scrape; taken with TryLock only
	page          page         // of the scrape that holds mainScrape
	otherScrapes  sync.RWMutex // read-locked by further overlapping scrapes
	changed       atomic.Bool
	hasNonClassic atomic.Bool                         // some name needs quotes or escaping
	writers       atomic.Pointer[[]func(w io.Writer)] // copied on write
	collectors    atomic.Pointer[collectors]          // copied on write

	expiring atomic.Pointer[[]sweeper] // vectors; copied on write

	scope *scope // of NewSetWithOptions; immutable

	lastSpec     atomic.Pointer[summarySpec]
	descriptions atomic.Pointer[map[string]description] // of families; copied on write

	mu      sync.Mutex
	index   index
	metrics []entry // the first ordered entries are sorted
	ordered int
	sorted  []entry             // the entries that scrapes iterate over: metrics, as of the last call of order
	removed map[metric]struct{} // removed, but still in metrics
	vectors []resetter          // to be emptied by UnregisterAllMetrics
}

// entry is a metric and its creation time.
type entry struct {
	metric
	createdMS int64
}

// description is the metadata of a family.
type description struct{ help, escaped, unit string }

// metric is the interface between a set and its metrics.
type metric interface {
	fullName() string
	typeName() string
	// appendTo appends the metric's lines in text format 0.0.4 to dst. It does not retain dst.
	appendTo(dst []byte) []byte
	// read fills m for the other formats. It returns false if there is nothing to expose.
	read(m *exposition.Metric) bool
}

// named holds the name under which a metric is registered, with its labels:
// name{label="value"}.
type named struct{ name string }

func (n *named) fullName() string { return n.name }

// NewSet returns an empty set. Register it with RegisterSet, or expose it with its own
// Handler.
func NewSet() *Set { return &Set{} }

// add appends a metric. The caller holds mu.
func (s *Set) add(m metric) {
	s.index.add(m)
	// A merge of sorted and new metrics uses as many free entries as there are new ones.
	n, merged := len(s.metrics), 0
	if s.ordered > 0 {
		merged = n + 2 - s.ordered
	}
	if n+2+merged > cap(s.metrics) {
		s.metrics = append(make([]entry, 0, n+n/8+8+merged), s.metrics...) // grow less than append would
	}
	now := time.Now().UnixMilli()
	if sm, ok := m.(*Summary); ok {
		s.metrics = append(s.metrics, entry{(*quantileLines)(sm), now})
	}
	s.metrics = append(s.metrics, entry{m, now})
	if !s.hasNonClassic.Load() && !exposition.IsClassicName(m.fullName()) {
		s.hasNonClassic.Store(true)
	}
	s.changed.Store(true)
}

// markRemoved records the removal of a metric. The caller holds mu.
func (s *Set) markRemoved(m metric) {
	if s.removed == nil {
		s.removed = map[metric]struct{}{}
	}
	s.removed[m] = struct{}{}
	if sm, ok := m.(*Summary); ok {
		s.removed[(*quantileLines)(sm)] = struct{}{}
		sm.stop()
	}
	s.changed.Store(true)
	// Without scrapes nothing else frees removed metrics.
	if n := len(s.removed); n > removedMax && n > len(s.metrics)/2 {
		s.orderLocked()
	}
}

// removedMax is the number of removed metrics that may wait for the next scrape in any set.
const removedMax = 64

// WritePrometheus writes all metrics to w in text format 0.0.4, and then calls the
// registered writers. It stops at the first error of w.
func (s *Set) WritePrometheus(w io.Writer) {
	if s.write(w, nil) != nil {
		return
	}
	s.runWriters(w)
}

// runWriters calls the registered writers. If the last line of a writer has no line break,
// it appends one, because the first line of the next writer would continue that line.
func (s *Set) runWriters(w io.Writer) {
	writers := s.writers.Load()
	if writers == nil {
		return
	}
	l := getLineWriter(w)
	defer putLineWriter(l)
	for _, write := range *writers {
		write(l)
		l.endLine()
	}
}

// lineWriter passes text to w and knows whether its last line has ended.
type lineWriter struct {
	w    io.Writer
	open bool
}

// Write implements io.Writer.
func (l *lineWriter) Write(p []byte) (int, error) {
	if n := len(p); n > 0 {
		l.open = p[n-1] != '\n'
	}
	return l.w.Write(p)
}

func (l *lineWriter) endLine() {
	if l.open {
		_, _ = l.w.Write(lineBreak) // the next write returns the error too
		l.open = false
	}
}

var lineBreak = []byte{'\n'}

// lineWriters is a pool.
var lineWriters sync.Pool

func getLineWriter(w io.Writer) *lineWriter {
	l, ok := lineWriters.Get().(*lineWriter)
	if !ok {
		l = &lineWriter{}
	}
	l.w, l.open = w, false
	return l
}

func putLineWriter(l *lineWriter) {
	l.w = nil
	lineWriters.Put(l)
}

// write writes all metrics. It omits the metadata of families in seen and adds the ones it
// has written; seen may be nil.
func (s *Set) write(w io.Writer, seen map[string]struct{}) error {
	sink := s.collect()
	entries, p := s.enter()
	defer s.leave(p)
	described, withMetadata := "", exposeMetadata.Load()
	if sink != nil {
		defer s.release(sink)
		collected, err := sink.finish(entries)
		logCollected(err)
		for i := range collected { // between the entries of the set, in the order of a page
			at, _ := slices.BinarySearchFunc(entries, collected[i], compareEntries)
			if described, err = s.writeEntries(w, p, entries[:at], withMetadata, described, seen); err != nil {
				return err
			}
			entries = entries[at:]
			if described, err = s.writeEntries(w, p, collected[i:i+1], withMetadata, described, seen); err != nil {
				return err
			}
		}
	}
	if _, err := s.writeEntries(w, p, entries, withMetadata, described, seen); err != nil {
		return err
	}
	return p.flush(w)
}

// writeEntries appends entries to the page and writes it whenever it is full. described is the
// family whose metadata was written last.
func (s *Set) writeEntries(w io.Writer, p *page, entries []entry, withMetadata bool, described string, seen map[string]struct{}) (string, error) {
	b := p.b
	for i := range entries {
		if withMetadata {
			b, described = s.appendDescribed(b, entries[i].metric, described, seen)
		} else {
			b = entries[i].appendTo(b)
		}
		if len(b) >= pageFlush {
			if _, err := w.Write(b); err != nil {
				return described, err
			}
			b = b[:0]
		}
	}
	p.b = b
	return described, nil
}

// enter begins a scrape. A scrape usually takes mainScrape, which costs two atomic
// operations. The page of mainScrape, unlike those of the pool, is not subject to garbage
// collection.
func (s *Set) enter() (entries []entry, p *page) {
	if s.expiring.Load() != nil {
		s.sweep()
	}
	if s.changed.Load() {
		s.mu.Lock()
		s.orderLocked()
		s.mu.Unlock()
	}
	if s.mainScrape.TryLock() {
		p = &s.page
	} else {
		s.otherScrapes.RLock()
		p = getPage()
	}
	s.mu.Lock()
	entries = s.sorted
	s.mu.Unlock()
	return entries, p
}

// leave ends a scrape.
func (s *Set) leave(p *page) {
	if p != &s.page {
		putPage(p)
		s.otherScrapes.RUnlock()
		return
	}
	if p.b = p.b[:0]; cap(p.b) > pageMax {
		p.b = nil
	}
	s.mainScrape.Unlock()
}

func (s *Set) sweep() {
	now := time.Now()
	for _, v := range *s.expiring.Load() {
		v.sweep(now)
	}
}

// sweeper is a vector with expiry.
type sweeper interface{ sweep(now time.Time) }

// resetter is a vector.
type resetter interface {
	Reset()
	family() VecFamily
}

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

// appendDescribed appends a metric. If it is the first metric of its family with a line,
// appendDescribed appends the metadata of the family before it.
func (s *Set) appendDescribed(dst []byte, m metric, described string, seen map[string]struct{}) ([]byte, string) {
	f := exposition.Family(m.fullName())
	if f == described {
		return m.appendTo(dst), f
	}
	before := len(dst)
	if _, there := seen[f]; !there {
		dst = appendMetadata(dst, f, m.typeName(), s.descriptionFor(m, f).escaped)
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

// descriptionOf returns the description of a family, or an empty one.
func (s *Set) descriptionOf(family string) description {
	if texts := s.descriptions.Load(); texts != nil {
		return (*texts)[family]
	}
	return description{}
}

// descriptionFor returns the description of the family of m. A description by Describe
// takes precedence over that of a collected metric.
func (s *Set) descriptionFor(m metric, family string) description {
	d := s.descriptionOf(family)
	if c, ok := m.(*ConstMetric); ok && d.help == "" {
		d.help, d.escaped = c.family.desc.about.help, c.family.desc.about.escaped
	}
	return d
}

// orderLocked updates sorted. The caller holds mu. If a scrape is iterating over metrics,
// which is rare, orderLocked copies them.
func (s *Set) orderLocked() {
	if alone := s.mainScrape.TryLock(); !alone {
		s.copyMetrics()
	} else {
		defer s.mainScrape.Unlock()
		if alone = s.otherScrapes.TryLock(); alone {
			defer s.otherScrapes.Unlock()
		} else {
			s.copyMetrics()
		}
	}
	s.metrics, s.ordered = sortEntries(s.metrics, s.ordered, s.removed)
	if len(s.removed) > removedMax {
		s.removed = nil // a map keeps the memory of its greatest size
	} else {
		clear(s.removed)
	}
	s.sorted = s.metrics
	s.changed.Store(false)
}

func (s *Set) copyMetrics() {
	n := len(s.metrics)
	s.metrics = append(make([]entry, 0, n+n/8+8+n-s.ordered), s.metrics...)
}

// sortEntries removes the entries in removed from metrics and sorts the rest in place. The
// first n entries are sorted already. If the others are few they are inserted, otherwise
// they are sorted and merged, which uses as many free entries behind metrics.
func sortEntries(metrics []entry, n int, removed map[metric]struct{}) ([]entry, int) {
	if len(removed) > 0 {
		kept, sorted := metrics[:0], n
		for i, m := range metrics {
			if _, there := removed[m.metric]; !there {
				kept = append(kept, m)
			} else if i < sorted {
				n--
			}
		}
		clear(metrics[len(kept):])
		metrics = kept
	}
	const few = 16
	if added := metrics[n:]; len(added) > few {
		slices.SortFunc(added, compareEntries)
		if n > 0 {
			merge(metrics, n)
		}
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

// merge merges the sorted metrics[:n] and metrics[n:].
func merge(metrics []entry, n int) {
	added := append(metrics[len(metrics):], metrics[n:]...) // in the free entries, if they suffice
	old, at := n-1, len(metrics)-1
	for i := len(added) - 1; i >= 0; at-- {
		if old >= 0 && compareEntries(metrics[old], added[i]) > 0 {
			metrics[at] = metrics[old]
			old--
		} else {
			metrics[at] = added[i]
			i--
		}
	}
	clear(added)
}

func compareEntries(a, b entry) int { return compare(a.metric, b.metric) }

// compare defines the order of a page: by family, within a family quantile lines first,
// then by name.
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

// compareWithTag compares names with an additional label quantile.
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

// page is a buffer that is flushed whenever it has pageFlush bytes, so that its size does
// not depend on the size of a set.
type page struct {
	b         []byte
	described bool // with HELP and TYPE lines
}

const (
	pageFlush = 32 << 10
	pageMax   = 128 << 10 // a larger page is not reused
)

// flush writes the buffered bytes.
func (p *page) flush(w io.Writer) error {
	if len(p.b) == 0 {
		return nil
	}
	_, err := w.Write(p.b)
	p.b = p.b[:0]
	return err
}

// pages is a pool of pages for overlapping scrapes and for writes without a set.
var pages spares[page]

func getPage() *page {
	p := pages.get()
	p.described = exposeMetadata.Load()
	return p
}

func putPage(p *page) {
	if cap(p.b) <= pageMax {
		p.b = p.b[:0]
		pages.put(p, true)
	}
}
