package metrics

import (
	"fmt"
	"hash/maphash"
	"io"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/ferula-io/ferula/metrics/internal/exposition"
)

// NewCounter registers a new counter under name, which may have labels:
// requests_total{path="/"}. Like all New methods it panics if the name is invalid or
// taken.
func (s *Set) NewCounter(name string) *Counter {
	return register(s, &Counter{named: named{s.fullName(name)}})
}

// GetOrCreateCounter returns the counter with this name and registers it if there is
// none. Like all GetOrCreate methods it panics if the name is invalid or belongs to a
// metric of another type. Keep the result: the lookup costs more than an update.
func (s *Set) GetOrCreateCounter(name string) *Counter {
	if c, ok := lookup[*Counter](s, name); ok {
		return c
	}
	return getOrRegister(s, &Counter{named: named{s.fullName(name)}})
}

// NewFloatCounter registers a new float counter.
func (s *Set) NewFloatCounter(name string) *FloatCounter {
	return register(s, &FloatCounter{named: named{s.fullName(name)}})
}

// GetOrCreateFloatCounter returns the float counter with this name and registers it if
// there is none.
func (s *Set) GetOrCreateFloatCounter(name string) *FloatCounter {
	if fc, ok := lookup[*FloatCounter](s, name); ok {
		return fc
	}
	return getOrRegister(s, &FloatCounter{named: named{s.fullName(name)}})
}

// NewCounterFunc registers a new counter whose value f returns at each scrape, for
// example a count of another library. f must be safe for concurrent calls, and its result
// must never decrease, except after a restart from zero. If f panics during a scrape, this
// counter is not exposed.
func (s *Set) NewCounterFunc(name string, f func() float64) *CounterFunc {
	c := &CounterFunc{callbackMetric{named: named{s.fullName(name)}}}
	c.SetFunc(f)
	return register(s, c)
}

// NewGauge registers a new gauge. f returns the value at each scrape; if f is nil, the
// gauge has the value that Set, Add, Inc and Dec give it. f must be safe for concurrent
// calls. If f panics during a scrape, this gauge is not exposed.
func (s *Set) NewGauge(name string, f func() float64) *Gauge {
	return register(s, newGauge(s.fullName(name), f))
}

// GetOrCreateGauge returns the gauge with this name and registers it, with the callback f,
// if there is none. An existing gauge keeps its callback.
func (s *Set) GetOrCreateGauge(name string, f func() float64) *Gauge {
	if g, ok := lookup[*Gauge](s, name); ok {
		return g
	}
	return getOrRegister(s, newGauge(s.fullName(name), f))
}

// NewHistogram registers a new vmrange histogram.
func (s *Set) NewHistogram(name string) *Histogram {
	return register(s, newHistogram(s.fullName(name)))
}

// GetOrCreateHistogram returns the vmrange histogram with this name and registers it if
// there is none.
func (s *Set) GetOrCreateHistogram(name string) *Histogram {
	if h, ok := lookup[*Histogram](s, name); ok {
		return h
	}
	return getOrRegister(s, newHistogram(s.fullName(name)))
}

// NewPrometheusHistogram registers a new classic histogram with
// PrometheusHistogramDefaultBuckets.
func (s *Set) NewPrometheusHistogram(name string) *PrometheusHistogram {
	return s.NewPrometheusHistogramExt(name, PrometheusHistogramDefaultBuckets)
}

// NewPrometheusHistogramExt registers a new classic histogram with these upper bounds.
// It panics if ValidateBuckets returns an error for them.
func (s *Set) NewPrometheusHistogramExt(name string, upperBounds []float64) *PrometheusHistogram {
	return register(s, newPrometheusHistogram(s.fullName(name), upperBounds))
}

// GetOrCreatePrometheusHistogram returns the classic histogram with this name and
// registers it, with PrometheusHistogramDefaultBuckets, if there is none.
func (s *Set) GetOrCreatePrometheusHistogram(name string) *PrometheusHistogram {
	return s.GetOrCreatePrometheusHistogramExt(name, PrometheusHistogramDefaultBuckets)
}

// GetOrCreatePrometheusHistogramExt returns the classic histogram with this name and
// registers it, with these upper bounds, if there is none. An existing histogram keeps
// its bounds.
func (s *Set) GetOrCreatePrometheusHistogramExt(name string, upperBounds []float64) *PrometheusHistogram {
	if h, ok := lookup[*PrometheusHistogram](s, name); ok {
		return h
	}
	return getOrRegister(s, newPrometheusHistogram(s.fullName(name), upperBounds))
}

// NewNativeHistogram registers a new native histogram. Only the protobuf format has
// native buckets; all formats have classic buckets with o.UpperBounds. It panics if the
// options are invalid.
func (s *Set) NewNativeHistogram(name string, o NativeHistogramOptions) *PrometheusHistogram {
	return register(s, newNativeHistogram(s.fullName(name), o))
}

// GetOrCreateNativeHistogram returns the histogram with this name and registers it, with
// these options, if there is none. An existing histogram keeps its options.
func (s *Set) GetOrCreateNativeHistogram(name string, o NativeHistogramOptions) *PrometheusHistogram {
	if h, ok := lookup[*PrometheusHistogram](s, name); ok {
		return h
	}
	return getOrRegister(s, newNativeHistogram(s.fullName(name), o))
}

// NewSummary registers a new summary with a window of five minutes and the quantiles
// 0.5, 0.9, 0.97, 0.99 and 1.
func (s *Set) NewSummary(name string) *Summary {
	return s.NewSummaryExt(name, defaultSummarySpec.window, defaultSummarySpec.quantiles)
}

// NewSummaryExt registers a new summary with this window and these quantiles. It
// panics if a quantile is outside [0, 1] or occurs twice.
func (s *Set) NewSummaryExt(name string, window time.Duration, quantiles []float64) *Summary {
	return register(s, &Summary{named: named{s.fullName(name)}, spec: s.summarySpec(name, window, quantiles)})
}

// summarySpec returns the options of a summary. If they equal the default options, or the options
// created last, it returns those, so that summaries share them: most programs use the same options
// everywhere.
func (s *Set) summarySpec(name string, window time.Duration, quantiles []float64) *summarySpec {
	for _, spec := range []*summarySpec{&defaultSummarySpec, s.lastSpec.Load()} {
		if spec != nil && spec.window == window && slices.Equal(spec.quantiles, quantiles) {
			return spec
		}
	}
	spec := newSummarySpec(name, window, quantiles)
	s.lastSpec.Store(spec)
	return spec
}

// GetOrCreateSummary returns the summary with this name and registers it, as NewSummary
// does, if there is none.
func (s *Set) GetOrCreateSummary(name string) *Summary {
	return s.GetOrCreateSummaryExt(name, defaultSummarySpec.window, defaultSummarySpec.quantiles)
}

// GetOrCreateSummaryExt returns the summary with this name and registers it if there is
// none. It panics if the existing summary has another window or other quantiles.
func (s *Set) GetOrCreateSummaryExt(name string, window time.Duration, quantiles []float64) *Summary {
	sm, ok := lookup[*Summary](s, name)
	if !ok {
		sm = getOrRegister(s, &Summary{named: named{s.fullName(name)}, spec: s.summarySpec(name, window, quantiles)})
	}
	if sm.spec.window != window || !slices.Equal(sm.spec.quantiles, quantiles) {
		panic(fmt.Errorf("BUG: summary %q has window %s and quantiles %v; requested were %s and %v",
			name, sm.spec.window, sm.spec.quantiles, window, quantiles))
	}
	return sm
}

// UnregisterMetric removes the metric with this name from the set. It returns false if
// there is none. Its cost does not depend on the size of the set. In a set with a prefix or
// labels, name may be the name at registration or the full name of ListMetricNames.
func (s *Set) UnregisterMetric(name string) bool {
	if s.scope != nil && s.unregister(s.scope.apply(name)) {
		return true
	}
	return s.unregister(name)
}

// unregister removes the metric with this full name.
func (s *Set) unregister(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, at := s.index.find(name)
	if m == nil {
		return false
	}
	s.index.remove(at)
	s.markRemoved(m)
	return true
}

// UnregisterAllMetrics removes all metrics, writers and collectors from the set. Its
// vectors stay, without members: With creates members again.
func (s *Set) UnregisterAllMetrics() {
	s.mu.Lock()
	vectors := s.vectors
	for _, m := range s.index.slots {
		if m != nil {
			s.markRemoved(m)
		}
	}
	s.index = index{}
	s.writers.Store(nil)
	s.collectors.Store(nil)
	s.mu.Unlock()
	for _, v := range vectors { // they lock their set
		v.Reset()
	}
}

// ListMetricNames returns the names of all metrics, sorted.
func (s *Set) ListMetricNames() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make([]string, 0, s.index.n)
	for _, m := range s.index.slots {
		if m != nil {
			names = append(names, m.fullName())
		}
	}
	slices.Sort(names)
	return names
}

// Family is the metadata of a family of a set.
type Family struct {
	Name string // without labels; in quotes if it is not classic
	Type string // as in TYPE lines: counter, gauge, histogram, summary or untyped
	Help string
	Unit string
}

// Families returns the families of the set, sorted by name, with the type of their first
// metric. It does not return the families of collectors: see CollectedFamilies.
func (s *Set) Families() []Family {
	s.mu.Lock()
	all := make([]metric, 0, s.index.n)
	for _, m := range s.index.slots {
		if m != nil {
			all = append(all, m)
		}
	}
	s.mu.Unlock()
	slices.SortFunc(all, compare)
	var families []Family
	for _, m := range all {
		name := exposition.Family(m.fullName())
		if n := len(families); n > 0 && families[n-1].Name == name {
			continue
		}
		d := s.descriptionOf(name)
		families = append(families, Family{name, m.typeName(), d.help, d.unit})
	}
	return families
}

// VecFamily is the metadata of the family of a vector.
type VecFamily struct {
	Family
	Labels []string // names, in the order of With; in quotes if they are not classic
}

// Vectors returns the families of the set's vectors, sorted by name, including those that
// have no members and are not exposed yet. It can be used to generate a reference of a
// program's metrics.
func (s *Set) Vectors() []VecFamily {
	s.mu.Lock()
	vectors := slices.Clone(s.vectors)
	s.mu.Unlock()
	families := make([]VecFamily, len(vectors))
	for i, v := range vectors {
		families[i] = v.family()
		d := s.descriptionOf(families[i].Name)
		families[i].Help, families[i].Unit = d.help, d.unit
	}
	slices.SortFunc(families, func(a, b VecFamily) int { return strings.Compare(a.Name, b.Name) })
	return families
}

// RegisterMetricsWriter adds a function that writes further metrics at every scrape, after the
// metrics of the set. It must write complete lines in the Prometheus text format.
func (s *Set) RegisterMetricsWriter(writeMetrics func(w io.Writer)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var writers []func(w io.Writer)
	if old := s.writers.Load(); old != nil {
		writers = append(writers, *old...)
	}
	writers = append(writers, writeMetrics)
	s.writers.Store(&writers)
}

// ValidateMetric returns an error unless s is a metric name in one of these forms:
//
//   - foo
//   - foo{bar="baz"}
//   - foo{bar="baz",aaa="b"}
//
// Registration also accepts UTF-8 names in quotes: {"http.requests",bar="baz"}.
func ValidateMetric(s string) error { return exposition.Validate(s) }

// fullName returns the name with the prefix and the labels of the set. It panics if the name
// is not valid.
func (s *Set) fullName(name string) string {
	if err := exposition.ValidateQuoted(name); err != nil {
		panic(fmt.Errorf("BUG: invalid metric name %q: %w", name, err))
	}
	if s.scope == nil {
		return name
	}
	_, labels := exposition.Split(name)
	for text := []byte(labels); ; {
		label, _, rest, ok := exposition.NextLabel(text)
		if !ok {
			return s.scope.apply(name)
		}
		s.scope.mustLack(name, string(label))
		text = rest
	}
}

// register adds a metric and panics if its name is taken.
func register[M metric](s *Set, m M) M {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, _ := s.index.find(m.fullName()); old != nil {
		panic(fmt.Errorf("BUG: metric %q is already registered", m.fullName()))
	}
	s.add(m)
	return m
}

// getOrRegister adds a metric and returns it. If the set already has a metric of this name,
// for example by another goroutine, it returns that metric; it panics if the types differ.
func getOrRegister[M metric](s *Set, m M) M {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, _ := s.index.find(m.fullName()); old != nil {
		return as[M](old)
	}
	s.add(m)
	return m
}

func lookup[M metric](s *Set, name string) (found M, ok bool) {
	if s.scope != nil {
		name = s.scope.apply(name)
	}
	s.mu.Lock()
	m, _ := s.index.find(name)
	s.mu.Unlock()
	if m == nil {
		return found, false
	}
	return as[M](m), true
}

func as[M metric](m metric) M {
	want, ok := m.(M)
	if !ok {
		panic(fmt.Errorf("BUG: metric %q isn't a %T. It is %T", m.fullName(), want, m))
	}
	return want
}

// index finds metrics by name. It is a hash table with open addressing. It holds only the
// metrics, because each metric has its name, and grows by an eighth, so it needs at most 22
// bytes per metric; a map needs 50. The zero index is empty.
type index struct {
	seed  maphash.Seed
	slots []metric // at most five sixths full
	n     int
}

// find returns the metric with this name and its slot, or nil and a free slot for the metric.
func (x *index) find(name string) (metric, int) {
	if len(x.slots) == 0 {
		return nil, 0
	}
	at := x.home(name)
	for x.slots[at] != nil && x.slots[at].fullName() != name {
		at = x.after(at)
	}
	return x.slots[at], at
}

// home returns the slot at which the search for a name begins: its hash, scaled to the table.
func (x *index) home(name string) int {
	at, _ := bits.Mul64(maphash.String(x.seed, name), uint64(len(x.slots)))
	return int(at)
}

func (x *index) after(at int) int {
	if at++; at < len(x.slots) {
		return at
	}
	return 0
}

// steps returns the number of slots a search visits from one slot to another.
func (x *index) steps(from, to int) int {
	if to >= from {
		return to - from
	}
	return to - from + len(x.slots)
}

// add inserts a metric whose name is not in the table.
func (x *index) add(m metric) {
	if 6*(x.n+1) > 5*len(x.slots) {
		x.grow()
	}
	x.n++
	_, at := x.find(m.fullName())
	x.slots[at] = m
}

func (x *index) grow() {
	old := x.slots
	if old == nil {
		x.seed = maphash.MakeSeed()
	}
	x.slots = make([]metric, 8+len(old)+len(old)/8)
	for _, m := range old {
		if m != nil {
			_, at := x.find(m.fullName())
			x.slots[at] = m
		}
	}
}

// remove empties the slot and moves later metrics closer to their home slots, so that searches
// do not end at the empty slot.
func (x *index) remove(at int) {
	x.n--
	hole := at
	for next := x.after(at); x.slots[next] != nil; next = x.after(next) {
		if home := x.home(x.slots[next].fullName()); x.steps(home, next) >= x.steps(hole, next) {
			x.slots[hole] = x.slots[next]
			hole = next
		}
	}
	x.slots[hole] = nil
}
