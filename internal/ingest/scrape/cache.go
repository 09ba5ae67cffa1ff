package scrape

import (
	"maps"
	"sync"
	"unique"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/metadata"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/storage"
)

// known is what a scrape remembers of a series in a page.
type known struct {
	labels labels.Labels // after metric relabeling; empty: metric relabeling drops the series
	ref    storage.SeriesRef
}

func (k *known) dropped() bool { return k.labels.IsEmpty() }

// series is a known series outside of a layout.
type series struct {
	known
	seen uint64 // the scrape whose page had the series last
}

// cache is the memory of a target between scrapes: its series by their text in the page, which of them get a
// staleness marker once they are missing, and the metadata. It survives a reload that changes nothing about labels.
// Only one scrape loop uses it at a time; only metadata is read by others.
type cache struct {
	scrape   uint64 // number of the current scrape
	lastOK   int    // entries after the last page without an error
	series   map[string]*series
	tracked  map[storage.SeriesRef]*series // in the current page
	before   map[storage.SeriesRef]*series // in the page before
	reports  [len(reports)]known
	layout   *layout // the series of the page before, instead of series and before
	vain     int     // layouts in a row that no page had
	pause    int     // pages before the next layout is made
	shuffled bool    // a page had the lines of the page before in another order
	meta     metadataStore
}

func newCache() *cache {
	c := &cache{}
	c.reset()
	c.meta.families = map[string]*family{}
	return c
}

func (c *cache) reset() {
	c.series, c.tracked = map[string]*series{}, map[storage.SeriesRef]*series{}
	c.before = map[storage.SeriesRef]*series{}
}

// get finds a series by its text and says whether the current page had it already.
func (c *cache) get(text []byte) (s *series, again bool) {
	s = c.series[string(text)]
	if s == nil {
		return nil, false
	}
	again, s.seen = s.seen == c.scrape, c.scrape
	return s, again
}

func (c *cache) add(text string, ref storage.SeriesRef, l labels.Labels) *series {
	s := &series{known{l, ref}, c.scrape}
	c.series[text] = s
	return s
}

// moved gives a series another reference, after the storage has removed it and made it again. Otherwise the series
// would get a staleness marker under its old reference.
func (c *cache) moved(s *series, ref storage.SeriesRef) {
	if ref == 0 || ref == s.ref {
		return
	}
	for _, set := range []map[storage.SeriesRef]*series{c.before, c.tracked} {
		if s.ref != 0 && set[s.ref] == s {
			delete(set, s.ref)
			set[ref] = s
		}
	}
	s.ref = ref
}

// count returns the number of entries.
func (c *cache) count() int {
	count := len(c.series) + c.meta.LengthMetadata()
	if c.layout != nil { // the page has few other series
		count += c.layout.values
	}
	for i := range c.reports {
		if !c.reports[i].dropped() {
			count++
		}
	}
	return count
}

// done ends a scrape. A page without an error removes what it does not have. Pages with errors may add series
// without end, so they remove, too, once the cache has doubled; forced says so.
func (c *cache) done(ok bool) (forced bool) {
	count := c.count()
	if ok {
		c.lastOK = count
	} else {
		forced = count > 2*c.lastOK+1000
	}
	if ok || forced {
		maps.DeleteFunc(c.series, func(_ string, s *series) bool { return s.seen != c.scrape })
		c.meta.expire(c.scrape)
	}
	c.before, c.tracked = c.tracked, c.before
	clear(c.tracked)
	c.scrape++
	return forced
}

// metadataAge is for how many scrapes the metadata of a family stays after the family has disappeared.
const metadataAge = 10

// metadataStore is the metadata of a target by metric family. It is safe for concurrent use.
type metadataStore struct {
	mu       sync.Mutex
	families map[string]*family
	size     int
}

var _ scrape.MetricMetadataStore = (*metadataStore)(nil)

// family is a metric family of a target. Targets with the same family share its texts.
type family struct {
	name     unique.Handle[string]
	metadata unique.Handle[metadata.Metadata]
	seen     uint64 // the scrape whose page had the family last
}

var unknownMetadata = unique.Make(metadata.Metadata{Type: model.MetricTypeUnknown})

func (f *family) size() int {
	md := f.metadata.Value()
	return len(md.Help) + len(md.Unit) + len(md.Type)
}

// set changes the metadata of a family in the given scrape.
func (m *metadataStore) set(name []byte, seen uint64, change func(*metadata.Metadata)) *family {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.families[string(name)]
	if f == nil {
		f = &family{name: unique.Make(string(name)), metadata: unknownMetadata}
		m.families[f.name.Value()] = f
	} else {
		m.size -= f.size()
	}
	md := f.metadata.Value()
	was := md
	if change(&md); md != was {
		f.metadata = unique.Make(md)
	}
	f.seen = seen
	m.size += f.size()
	return f
}

// expire removes families that are not in the pages any more.
func (m *metadataStore) expire(scrape uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, f := range m.families {
		if scrape-f.seen > metadataAge {
			m.size -= f.size()
			delete(m.families, name)
		}
	}
}

func (m *metadataStore) GetMetadata(name string) (scrape.MetricMetadata, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.families[name]
	if !ok {
		return scrape.MetricMetadata{}, false
	}
	return f.of(name), true
}

func (f *family) of(name string) scrape.MetricMetadata {
	md := f.metadata.Value()
	return scrape.MetricMetadata{MetricFamily: name, Type: md.Type, Help: md.Help, Unit: md.Unit}
}

func (m *metadataStore) ListMetadata() []scrape.MetricMetadata {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]scrape.MetricMetadata, 0, len(m.families))
	for name, f := range m.families {
		list = append(list, f.of(name))
	}
	return list
}

func (m *metadataStore) SizeMetadata() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.size
}

func (m *metadataStore) LengthMetadata() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.families)
}
