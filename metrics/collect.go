package metrics

import (
	"errors"
	"fmt"
	"log"
	"slices"
	"sort"
	"strings"
	"sync/atomic"

	"github.com/ferula-io/ferula/metrics/internal/exposition"
)

// RegisterCollector registers a collector in the default set, see Set.RegisterCollector.
func RegisterCollector(collect func(sink *Sink) error) (unregister func()) {
	return defaultSet.RegisterCollector(collect)
}

// RegisterCollector adds a function that produces metrics during each scrape. It is meant for
// exporters, whose values belong to another program or library and whose series come and go. The
// metrics are exposed in all formats, in one order with the other metrics of the set, with its
// prefix and labels, and are pushed with them. The returned function removes the collector;
// calling it again does nothing.
//
// Collectors run one after the other, before the first byte of the response is sent. collect must
// be safe for concurrent calls, because scrapes may overlap, and must limit its own time. A scrape
// waits for collect, and so do scrapes of the same format that arrive meanwhile; scrapes beyond
// HandlerOptions.MaxRequestsInFlight get status 503. An error or panic of collect, or a metric that
// is not valid (see Sink), fails the scrape. A handler responds with status 500 and all errors.
// WritePrometheus writes the valid metrics and logs each error once.
func (s *Set) RegisterCollector(collect func(sink *Sink) error) (unregister func()) {
	one := &collector{collect}
	s.changeCollectors(func(list []*collector) []*collector { return append(list, one) })
	return func() {
		s.changeCollectors(func(list []*collector) []*collector {
			return slices.DeleteFunc(list, func(other *collector) bool { return other == one })
		})
	}
}

func (s *Set) changeCollectors(change func(list []*collector) []*collector) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fresh := &collectors{sinks: &spares[Sink]{}, families: &atomic.Pointer[[]Family]{}}
	if old := s.collectors.Load(); old != nil {
		fresh.list, fresh.sinks, fresh.families = slices.Clone(old.list), old.sinks, old.families
	}
	if fresh.list = change(fresh.list); len(fresh.list) == 0 {
		fresh = nil
	}
	s.collectors.Store(fresh)
}

// CollectedFamilies returns the families that the collectors of the set produced in the last
// scrape, sorted by name; nil if no scrape has run them.
func (s *Set) CollectedFamilies() []Family {
	if c := s.collectors.Load(); c != nil {
		if families := c.families.Load(); families != nil {
			return slices.Clone(*families)
		}
	}
	return nil
}

// HasFamily reports whether the set has a metric of the named family, or its collectors produced
// one in the last scrape. name is with the prefix of the set and without quotes.
func (s *Set) HasFamily(name string) bool {
	if !exposition.IsClassic(name) {
		name = quoted(name)
	}
	s.mu.Lock()
	s.orderLocked()
	found := familyNamed(s.metrics, []byte(name)) != nil
	s.mu.Unlock()
	if c := s.collectors.Load(); c != nil && !found {
		if families := c.families.Load(); families != nil {
			_, found = slices.BinarySearchFunc(*families, name, func(f Family, name string) int {
				return strings.Compare(f.Name, name)
			})
		}
	}
	return found
}

// collectors are the collectors of a set.
type collectors struct {
	list     []*collector
	sinks    *spares[Sink]             // sinks of earlier scrapes, for reuse
	families *atomic.Pointer[[]Family] // of the last scrape
}

type collector struct{ collect func(sink *Sink) error }

// sinkMetricsMax is the number of metrics up to which a sink is kept for later scrapes. A larger
// sink goes to a sync.Pool, where the garbage collector can free it.
const sinkMetricsMax = 10_000

// collect runs the collectors of the set, without a lock, and returns the sink with their metrics.
// It returns nil if there are no collectors. The caller must finish and release the sink.
func (s *Set) collect() *Sink {
	c := s.collectors.Load()
	if c == nil {
		return nil
	}
	sink := c.sinks.get()
	sink.begin(s)
	for _, one := range c.list {
		sink.run(one)
	}
	sink.order()
	return sink
}

// release makes a sink available for another scrape.
func (s *Set) release(sink *Sink) {
	if c := s.collectors.Load(); c != nil {
		c.families.Store(sink.known)
		c.sinks.put(sink, len(sink.byName) <= sinkMetricsMax)
	}
}

// logCollected logs the errors of collectors, each once.
func logCollected(err error) {
	if err != nil && collectErrors.first(err.Error()) {
		log.Printf("ERROR: metrics: %v", err)
	}
}

// collectErrors has the errors of collectors, each logged once.
var collectErrors = loggedNames{}

func (s *Sink) begin(set *Set) {
	s.set = set
	if s.byName == nil {
		s.byName, s.families = map[string]*ConstMetric{}, map[*Desc]*sinkFamily{}
	}
	s.epoch++
	s.seen, s.seenOf, s.more, s.errs = 0, 0, 0, nil
	s.changed, s.hadBad = s.hadBad, false
}

// run runs one collector.
func (s *Sink) run(c *collector) {
	defer func() {
		if reason := recover(); reason != nil {
			s.Error(fmt.Errorf("a collector panicked: %v", reason))
		}
	}()
	s.Error(c.collect(s))
}

// order updates s.sorted, which stays as it is if the series are the same as in the last scrape.
func (s *Sink) order() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seenOf < len(s.families) { // a collector with a new Desc in each scrape must not grow the map
		for d, f := range s.families {
			if f.epoch != s.epoch {
				delete(s.families, d)
			}
		}
	}
	if s.seen == len(s.sorted) && len(s.added) == 0 {
		return
	}
	s.changed = true
	kept := s.sorted[:0]
	for _, e := range s.sorted {
		if c := collected(e); c.epoch == s.epoch {
			kept = append(kept, e)
		} else {
			delete(s.byName, c.name)
		}
	}
	clear(s.sorted[len(kept):])
	n := len(kept)
	s.sorted, _ = sortEntries(append(kept, s.added...), n, nil)
	clear(s.added)
	s.added = s.added[:0]
	if len(s.byName) < cap(s.sorted)/4 { // maps and slices keep the memory of their largest size
		fresh := make(map[string]*ConstMetric, len(s.byName))
		for _, e := range s.sorted {
			fresh[e.fullName()] = collected(e)
		}
		s.byName, s.sorted, s.valid = fresh, slices.Clone(s.sorted), nil
	}
}

// collected returns the metric of an entry of a sink.
func collected(e entry) *ConstMetric {
	c, _ := e.metric.(*ConstMetric) // a sink has no other type
	return c
}

// finish returns the metrics that are valid with each other and with those that are registered
// in the set, in the order of the exposition, and the errors of the scrape. The caller holds the locks
// of the scrape, so that registered does not change.
func (s *Sink) finish(registered []entry) ([]entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	bad := 0
	for from := 0; from < len(s.sorted); {
		first, to := collected(s.sorted[from]), from+1
		for to < len(s.sorted) && sameFamily(first.family, collected(s.sorted[to]).family) {
			to++
		}
		bad += s.checkFamily(s.sorted[from:to], registered)
		from = to
	}
	entries := s.sorted
	if bad > 0 {
		s.changed, s.hadBad, s.valid = true, true, s.valid[:0]
		for _, e := range s.sorted {
			if !collected(e).bad {
				s.valid = append(s.valid, e)
			}
		}
		entries = s.valid
	}
	if s.changed || s.known == nil {
		s.known = familiesOf(entries)
	}
	return entries, s.err()
}

func sameFamily(a, b *sinkFamily) bool { return a == b || a.name == b.name }

// familiesOf returns the families of collected metrics.
func familiesOf(entries []entry) *[]Family {
	families := []Family{}
	for _, e := range entries {
		c := collected(e)
		if n := len(families); n == 0 || families[n-1].Name != c.family.name {
			families = append(families, Family{Name: c.family.name, Type: c.typeName(), Help: c.family.desc.about.help})
		}
	}
	return &families
}

// err returns the errors of the scrape, at most errorsMax of them and the number of the others.
func (s *Sink) err() error {
	if len(s.errs) == 0 {
		return nil
	}
	if s.more > 0 {
		s.errs = append(s.errs, fmt.Errorf("and %d more", s.more))
	}
	return fmt.Errorf("errors of collectors: %w", errors.Join(s.errs...))
}

// checkFamily marks the metrics of a family that are not valid and returns their number.
func (s *Sink) checkFamily(family, registered []entry) int {
	first, bad := collected(family[0]), 0
	mark := func(c *ConstMetric, format string, args ...any) {
		c.bad = true
		bad++
		s.fail(fmt.Errorf("metric %s %w", c.name, fmt.Errorf(format, args...)))
	}
	s.text = append(s.text[:0], first.family.name...)
	inSet := familyNamed(registered, s.text) // a metric of this family in the set itself
	clash := s.suffixClash(first, registered)
	for _, e := range family {
		c := collected(e)
		switch {
		case c.kind != first.kind:
			mark(c, "is a %s, its family a %s", c.typeName(), first.typeName())
		case c.family != first.family && c.family.desc.about.help != first.family.desc.about.help:
			mark(c, "has the help %q, its family %q", c.family.desc.about.help, first.family.desc.about.help)
		case clash != "":
			mark(c, "%s", clash)
		case inSet != nil && !isOfType(inSet, c):
			mark(c, "is a %s, its family in the set a %s", c.typeName(), registeredType(inSet))
		case inSet != nil:
			if _, there := slices.BinarySearchFunc(registered, e, compareEntries); there {
				mark(c, "is also registered in the set itself")
			}
		}
	}
	return bad
}

// isOfType reports whether a collected metric has the type of a registered metric. Collectors cannot
// produce vmrange histograms, so the result is false for a registered Histogram.
func isOfType(registered metric, c *ConstMetric) bool {
	_, isVMRange := registered.(*Histogram)
	return !isVMRange && registered.typeName() == c.typeName()
}

func registeredType(registered metric) string {
	if _, isVMRange := registered.(*Histogram); isVMRange {
		return "vmrange histogram"
	}
	return registered.typeName()
}

// suffixes that histograms and summaries append to their names. No other family may have such a
// name, see suffixClash.
var suffixes = [...]string{"_sum", "_count", "_bucket"}

// suffixClash returns the reason why the family of c and another family have lines of the same
// name: one is a histogram or summary, and the other has the same name with a suffix. It returns
// "" if there is no such family.
func (s *Sink) suffixClash(c *ConstMetric, registered []entry) string {
	end := ""
	name := c.family.name
	if strings.HasPrefix(name, `"`) {
		name, end = name[:len(name)-1], `"`
	}
	for _, suffix := range suffixes {
		if base, ok := strings.CutSuffix(name, suffix); ok {
			s.text = append(append(s.text[:0], base...), end...)
			m := familyNamed(s.sorted, s.text)
			if m == nil {
				m = familyNamed(registered, s.text)
			}
			if m != nil && takes(m.typeName(), suffix) {
				return "has the name of lines of the " + m.typeName() + " " + string(s.text)
			}
		}
		if takes(c.typeName(), suffix) {
			s.text = append(append(append(s.text[:0], name...), suffix...), end...)
			if familyNamed(registered, s.text) != nil {
				return "has lines with the name of the registered family " + string(s.text)
			}
		}
	}
	return ""
}

// takes reports whether metrics of a type have lines with this suffix.
func takes(typeName, suffix string) bool {
	return typeName == "histogram" || typeName == "summary" && suffix != "_bucket"
}

// familyNamed returns a metric of the family of this name, nil if there is none.
func familyNamed(entries []entry, name []byte) metric {
	at := sort.Search(len(entries), func(i int) bool { return exposition.Family(entries[i].fullName()) >= string(name) })
	if at < len(entries) && exposition.Family(entries[at].fullName()) == string(name) {
		return entries[at].metric
	}
	return nil
}
