package metrics

import (
	"fmt"
	"hash/maphash"
	"io"
	"math/bits"
	"slices"
	"time"

	"github.com/ferula-io/ferula/metrics/internal/exposition"
)

// NewCounter registers a new counter. Like all New methods it panics if the name is
// invalid or taken.
func (s *Set) NewCounter(name string) *Counter {
	return register(s, &Counter{named: named{checked(name)}})
}

// GetOrCreateCounter returns the counter of this name, and registers it first if
// there is none. Like all GetOrCreate methods it panics if the name is invalid or
// belongs to another type. Keep the result: looking it up costs more than counting.
func (s *Set) GetOrCreateCounter(name string) *Counter {
	if c, ok := lookup[*Counter](s, name); ok {
		return c
	}
	return getOrRegister(s, &Counter{named: named{checked(name)}})
}

// NewFloatCounter registers a new counter of floats.
func (s *Set) NewFloatCounter(name string) *FloatCounter {
	return register(s, &FloatCounter{named: named{checked(name)}})
}

// GetOrCreateFloatCounter returns the counter of this name, and registers it first
// if there is none.
func (s *Set) GetOrCreateFloatCounter(name string) *FloatCounter {
	if fc, ok := lookup[*FloatCounter](s, name); ok {
		return fc
	}
	return getOrRegister(s, &FloatCounter{named: named{checked(name)}})
}

// NewGauge registers a new gauge, whose value f tells, or Set if f is nil. f must be
// safe for concurrent calls; if it panics at a scrape, its line is left out.
func (s *Set) NewGauge(name string, f func() float64) *Gauge {
	return register(s, &Gauge{named: named{checked(name)}, call: f})
}

// GetOrCreateGauge returns the gauge of this name, and registers it first, with f, if
// there is none.
func (s *Set) GetOrCreateGauge(name string, f func() float64) *Gauge {
	if g, ok := lookup[*Gauge](s, name); ok {
		return g
	}
	return getOrRegister(s, &Gauge{named: named{checked(name)}, call: f})
}

// NewHistogram registers a new histogram.
func (s *Set) NewHistogram(name string) *Histogram {
	return register(s, newHistogram(checked(name)))
}

// GetOrCreateHistogram returns the histogram of this name, and registers it first if
// there is none.
func (s *Set) GetOrCreateHistogram(name string) *Histogram {
	if h, ok := lookup[*Histogram](s, name); ok {
		return h
	}
	return getOrRegister(s, newHistogram(checked(name)))
}

// NewPrometheusHistogram registers a new histogram with the default bounds.
func (s *Set) NewPrometheusHistogram(name string) *PrometheusHistogram {
	return s.NewPrometheusHistogramExt(name, PrometheusHistogramDefaultBuckets)
}

// NewPrometheusHistogramExt registers a new histogram with these upper bounds. It
// panics if they are none or do not rise.
func (s *Set) NewPrometheusHistogramExt(name string, upperBounds []float64) *PrometheusHistogram {
	return register(s, newPrometheusHistogram(checked(name), upperBounds))
}

// GetOrCreatePrometheusHistogram returns the histogram of this name, and registers
// it first, with the default bounds, if there is none.
func (s *Set) GetOrCreatePrometheusHistogram(name string) *PrometheusHistogram {
	return s.GetOrCreatePrometheusHistogramExt(name, PrometheusHistogramDefaultBuckets)
}

// GetOrCreatePrometheusHistogramExt returns the histogram of this name, whatever its
// bounds, and registers it first, with these, if there is none.
func (s *Set) GetOrCreatePrometheusHistogramExt(name string, upperBounds []float64) *PrometheusHistogram {
	if h, ok := lookup[*PrometheusHistogram](s, name); ok {
		return h
	}
	return getOrRegister(s, newPrometheusHistogram(checked(name), upperBounds))
}

// NewNativeHistogram registers a new histogram whose buckets adapt to what they are
// given. Only protobuf shows these; the formats that are text show o.UpperBounds.
func (s *Set) NewNativeHistogram(name string, o NativeHistogramOptions) *PrometheusHistogram {
	return register(s, newNativeHistogram(checked(name), o))
}

// GetOrCreateNativeHistogram returns the histogram of this name, whatever its
// options, and registers it first, with these, if there is none.
func (s *Set) GetOrCreateNativeHistogram(name string, o NativeHistogramOptions) *PrometheusHistogram {
	if h, ok := lookup[*PrometheusHistogram](s, name); ok {
		return h
	}
	return getOrRegister(s, newNativeHistogram(checked(name), o))
}

// NewSummary registers a new summary of the last five minutes, with the quantiles
// 0.5, 0.9, 0.97, 0.99 and 1.
func (s *Set) NewSummary(name string) *Summary {
	return s.NewSummaryExt(name, defaultSummarySpec.window, defaultSummarySpec.quantiles)
}

// NewSummaryExt registers a new summary with this window and these quantiles. It
// panics if one of them is outside [0, 1].
func (s *Set) NewSummaryExt(name string, window time.Duration, quantiles []float64) *Summary {
	return register(s, &Summary{named: named{checked(name)}, spec: s.summarySpec(name, window, quantiles)})
}

// summarySpec shares what a summary was asked for with the one made before it, which
// in most programs was asked for the same.
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

// GetOrCreateSummary returns the summary of this name, and registers it first, as
// NewSummary does, if there is none.
func (s *Set) GetOrCreateSummary(name string) *Summary {
	return s.GetOrCreateSummaryExt(name, defaultSummarySpec.window, defaultSummarySpec.quantiles)
}

// GetOrCreateSummaryExt returns the summary of this name, and registers it first if
// there is none. It panics if the one that is there has another window or other
// quantiles.
func (s *Set) GetOrCreateSummaryExt(name string, window time.Duration, quantiles []float64) *Summary {
	sm, ok := lookup[*Summary](s, name)
	if !ok {
		sm = getOrRegister(s, &Summary{named: named{checked(name)}, spec: s.summarySpec(name, window, quantiles)})
	}
	if sm.spec.window != window || !slices.Equal(sm.spec.quantiles, quantiles) {
		panic(fmt.Errorf("BUG: summary %q has window %s and quantiles %v; asked for were %s and %v",
			name, sm.spec.window, sm.spec.quantiles, window, quantiles))
	}
	return sm
}

// UnregisterMetric takes a metric out of the set, whatever the size of the set, and
// tells whether it was there.
func (s *Set) UnregisterMetric(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, at := s.index.find(name)
	if m == nil {
		return false
	}
	s.index.remove(at)
	s.discard(m)
	return true
}

// UnregisterAllMetrics takes out all metrics, and the writers as well.
func (s *Set) UnregisterAllMetrics() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.index.slots {
		if m != nil {
			s.discard(m)
		}
	}
	s.index = index{}
	s.writers.Store(nil)
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

// RegisterMetricsWriter adds a function that writes more metrics, in the text
// format and complete lines, behind those of the set at every scrape.
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

// ValidateMetric tells what is wrong with the name of a metric, which is one of
//
//   - foo
//   - foo{bar="baz"}
//   - foo{bar="baz",aaa="b"}
//
// The functions that register take names of any characters as well, in quotes:
// {"http.requests",bar="baz"}.
func ValidateMetric(s string) error { return exposition.Validate(s) }

// checked returns the name, or panics if it is not valid.
func checked(name string) string {
	if err := exposition.ValidateQuoted(name); err != nil {
		panic(fmt.Errorf("BUG: invalid metric name %q: %w", name, err))
	}
	return name
}

// register adds a metric whose name must be free.
func register[M metric](s *Set, m M) M {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, _ := s.index.find(m.fullName()); old != nil {
		panic(fmt.Errorf("BUG: metric %q is already registered", m.fullName()))
	}
	s.add(m)
	return m
}

// getOrRegister adds a metric unless another goroutine was faster.
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
	s.mu.Lock()
	m, _ := s.index.find(name)
	s.mu.Unlock()
	if m == nil {
		return found, false
	}
	return as[M](m), true
}

func as[M metric](m metric) M {
	asked, ok := m.(M)
	if !ok {
		panic(fmt.Errorf("BUG: metric %q isn't a %T. It is %T", m.fullName(), asked, m))
	}
	return asked
}

// index finds a metric by its name: an open-addressed table of the metrics
// themselves, which know their names. It has 22 bytes a metric at most, where a map
// has 50, for it grows by an eighth. The zero index is empty.
type index struct {
	seed  maphash.Seed
	slots []metric // at most five sixths full
	n     int
}

// find returns the metric, or nil and the slot it would go to.
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

// home is where the search for a name begins: its hash, scaled to the table.
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

// steps is how far the search goes from one slot to another.
func (x *index) steps(from, to int) int {
	if to >= from {
		return to - from
	}
	return to - from + len(x.slots)
}

// add puts in a metric whose name is not there yet.
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

// remove empties the slot, and moves up those behind it that could not have gone to
// their home because of it.
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
