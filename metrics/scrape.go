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
	// Registration locks mu only and appends to metrics. A scrape iterates over sorted. It
	// locks mainScrape or, if another scrape holds mainScrape, read-locks otherScrapes. If
	// metrics were added or removed since the last scrape, the scrape first sorts them: in
	// place if no other scrape is running, otherwise in a copy. So a slow client, whose scrape
	// keeps its lock, delays neither registration nor other scrapes. Metrics that are removed
	// meanwhile stay in memory until the slow scrape ends. A scrape that runs alone does not
	// allocate: registration has allocated the memory.
	mainScrape    sync.Mutex              // held by one scrape; taken with TryLock only
	page          page                    // buffer of the scrape that holds mainScrape
	otherScrapes  sync.RWMutex            // read-locked by further overlapping scrapes
	sorted        atomic.Pointer[[]entry] // metrics after the last orderLocked; nil in a set without any
	changed       atomic.Bool
	hasNonClassic atomic.Bool                         // some name needs quotes or escaping
	writers       atomic.Pointer[[]func(w io.Writer)] // copied on write
	collectors    atomic.Pointer[collectors]          // copied on write

	expiring atomic.Pointer[[]sweeper] // vectors with expiry; copied on write

	scope *scope // of NewSetWithOptions; immutable

	lastSpec     atomic.Pointer[summarySpec]
	descriptions atomic.Pointer[map[string]description] // of families; copied on write

	mu      sync.Mutex
	index   index
	metrics []entry             // sorted up to index ordered, then in order of registration
	ordered int                 // number of sorted entries
	removed map[metric]struct{} // unregistered, but still in metrics
	vectors []resetter          // all vectors, for UnregisterAllMetrics and Vectors
}

// entry is a metric and its creation time.
type entry struct {
	metric
	createdMS int64
}

// description is the metadata of a family. escaped is help as in a HELP line.
type description struct{ help, escaped, unit string }

// metric is the interface between a set and its metrics.
type metric interface {
	fullName() string
	typeName() string
	// appendTo appends the metric's lines in text format 0.0.4 to dst. It does not retain dst.
	appendTo(dst []byte) []byte
	// read fills m for OpenMetrics and protobuf. It returns false if there is nothing to expose.
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
	if s.sorted.Load() == nil {
		s.sorted.Store(new([]entry))
	}
	// A merge of sorted and new metrics needs as many free entries as there are new metrics.
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

// markRemoved records the removal of a metric, which orderLocked completes. The caller holds mu.
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
	// A program without scrapes must not keep removed metrics in memory.
	if n := len(s.removed); n > removedMax && n > len(s.metrics)/2 {
		s.orderLocked()
	}
}

// removedMax is the number of removed metrics that may stay in memory until the next scrape.
const removedMax = 64

// WritePrometheus writes all metrics to w in text format 0.0.4, and then calls the
// registered writers. It stops at the first error of w.
func (s *Set) WritePrometheus(w io.Writer) {
	if s.write(w, nil) != nil {
		return
	}
	s.runWriters(w)
}

// runWriters calls the registered writers. If the output of a writer does not end with a line
// break, it appends one, because the next writer would continue that line.
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

// lineWriter passes text to w.
type lineWriter struct {
	w    io.Writer
	open bool // the last line has no line break yet
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

// write writes all metrics. It omits the metadata of families that are in seen, and adds the
// families whose metadata it writes; seen may be nil.
func (s *Set) write(w io.Writer, seen map[string]struct{}) error {
	sink := s.collect()
	entries, p := s.enter()
	defer s.leave(p)
	described, withMetadata := "", exposeMetadata.Load()
	if sink != nil {
		defer s.release(sink)
		collected, err := sink.finish(entries)
		logCollected(err)
		for i := range collected { // merged with the entries of the set, in the order of compare
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

// writeEntries appends entries to the buffer and writes it to w whenever it is full. described is
// the family whose metadata was written last; writeEntries returns the new one.
func (s *Set) writeEntries(w io.Writer, p *page, entries []entry, withMetadata bool, described string,
	seen map[string]struct{}) (string, error) {
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

// enter begins a scrape: it returns the sorted entries and a buffer. A scrape usually gets
// mainScrape, which costs two atomic operations. The buffer of mainScrape is a field of the
// set, so that the garbage collector does not free it, as it may free buffers of the pool.
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
	if sorted := s.sorted.Load(); sorted != nil {
		entries = *sorted
	}
	return entries, p
}

// leave ends a scrape and releases its buffer and its lock.
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

// appendDescribed appends a metric. If no metric of its family was exposed before, it appends
// the metadata of the family first. It returns the family whose metadata was written last.
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

// descriptionFor returns the description of the family of m. The help of Describe takes
// precedence over the help of a collected metric.
func (s *Set) descriptionFor(m metric, family string) description {
	d := s.descriptionOf(family)
	if c, ok := m.(*ConstMetric); ok && d.help == "" {
		d.help, d.escaped = c.family.desc.about.help, c.family.desc.about.escaped
	}
	return d
}

// orderLocked sorts metrics, without the removed ones, and sets sorted to them. The caller
// holds mu. If a scrape is iterating over metrics, which is rare, orderLocked sorts a copy.
func (s *Set) orderLocked() {
	if !s.changed.Load() {
		return
	}
	sorted := s.sorted.Load()
	alone := s.mainScrape.TryLock()
	if alone {
		defer s.mainScrape.Unlock()
		if alone = s.otherScrapes.TryLock(); alone {
			defer s.otherScrapes.Unlock()
		}
	}
	if !alone { // scrapes load sorted after they have locked
		s.copyMetrics()
		sorted = new([]entry)
	}
	s.metrics, s.ordered = sortEntries(s.metrics, s.ordered, s.removed)
	if len(s.removed) > removedMax {
		s.removed = nil // a map keeps the memory of its greatest size
	} else {
		clear(s.removed)
	}
	*sorted = s.metrics
	s.sorted.Store(sorted)
	s.changed.Store(false)
}

func (s *Set) copyMetrics() {
	n := len(s.metrics)
	s.metrics = append(make([]entry, 0, n+n/8+8+n-s.ordered), s.metrics...)
}

// sortEntries removes the entries in removed from metrics and sorts the rest in place. The
// first n entries are sorted already. It inserts the others if they are few. Otherwise it
// sorts and merges them, which uses the capacity behind metrics as scratch memory. It returns
// the sorted entries and their number.
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
	added := append(metrics[len(metrics):], metrics[n:]...) // in the capacity behind metrics, if it suffices
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

// compare defines the order of a scrape response: by family; within a family quantile lines
// first; then by name with labels.
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

// compareWithTag compares names as if they had the additional label quantile.
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

// page is the buffer of a scrape response in text format. It is written whenever it has
// pageFlush bytes, so that its size does not depend on the size of a set.
type page struct {
	b         []byte
	described bool // with HELP and TYPE lines
}

const (
	pageFlush = 32 << 10
	pageMax   = 128 << 10 // a larger buffer is not reused
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

// pages is the pool of buffers for overlapping scrapes and for functions that write without a set,
// such as WriteProcessMetrics.
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
