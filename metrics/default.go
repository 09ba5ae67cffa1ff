package metrics

import (
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferula-io/ferula/metrics/internal/exposition"
)

// defaultSet is the set that the package-level functions use.
var defaultSet = Set{}

// registeredSets are the default set and the sets of RegisterSet, in the order of registration.
var registeredSets = setList{first: []*Set{&defaultSet}}

// setList is a list of sets. It is copied on write, so that a scrape takes no lock.
type setList struct {
	mu    sync.Mutex             // serializes changes
	first []*Set                 // the list before the first change
	sets  atomic.Pointer[[]*Set] // nil until the first change
}

func (l *setList) load() []*Set {
	if sets := l.sets.Load(); sets != nil {
		return *sets
	}
	return l.first
}

func (l *setList) change(f func(sets []*Set) []*Set) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sets := f(slices.Clone(l.load()))
	l.sets.Store(&sets)
}

// GetDefaultSet returns the set that the package-level functions use.
func GetDefaultSet() *Set { return &defaultSet }

// RegisterSet adds s to the sets that WritePrometheus writes.
func RegisterSet(s *Set) {
	registeredSets.change(func(sets []*Set) []*Set {
		if slices.Contains(sets, s) {
			return sets
		}
		return append(sets, s)
	})
}

// RegisteredSets returns the sets that WritePrometheus writes, the default set among them.
func RegisteredSets() []*Set { return slices.Clone(registeredSets.load()) }

// UnregisterSet removes s from the sets that WritePrometheus writes. If destroySet is
// true, it removes all metrics from s as well; otherwise s can be registered again.
func UnregisterSet(s *Set, destroySet bool) {
	registeredSets.change(func(sets []*Set) []*Set {
		return slices.DeleteFunc(sets, func(other *Set) bool { return other == s })
	})
	if destroySet {
		s.UnregisterAllMetrics()
	}
}

// families pools the maps in which WritePrometheus notes the families whose metadata it has written.
var families sync.Pool

const familiesMax = 1 << 16 // a larger map is not pooled

// WritePrometheus writes the metrics of the default set and of all registered sets
// to w, in the order of their registration, and then, if exposeProcessMetrics is
// true, the metrics of WriteProcessMetrics, without families that a set has. Call it in a handler of
// /metrics, or use Handler.
func WritePrometheus(w io.Writer, exposeProcessMetrics bool) {
	sets := registeredSets.load()
	if len(sets) < 2 || !exposeMetadata.Load() {
		for _, s := range sets {
			s.WritePrometheus(w)
		}
	} else {
		writeDescribedOnce(w, sets)
	}
	if exposeProcessMetrics {
		writeProcessMetrics(w, sets)
	}
}

// writeDescribedOnce writes the sets with HELP and TYPE lines. If several sets have a family, its
// lines are written once.
func writeDescribedOnce(w io.Writer, sets []*Set) {
	seen, ok := families.Get().(map[string]struct{})
	if !ok {
		seen = map[string]struct{}{}
	}
	for _, s := range sets {
		if s.write(w, seen) != nil {
			break
		}
		s.runWriters(w)
	}
	if len(seen) <= familiesMax {
		clear(seen)
		families.Put(seen)
	}
}

// RegisterMetricsWriter is Set.RegisterMetricsWriter of the default set.
func RegisterMetricsWriter(writeMetrics func(w io.Writer)) {
	defaultSet.RegisterMetricsWriter(writeMetrics)
}

// UnregisterMetric removes the metric with this name from the default set. It returns
// false if there is none.
func UnregisterMetric(name string) bool { return defaultSet.UnregisterMetric(name) }

// UnregisterAllMetrics removes all metrics, writers and collectors from the default set.
func UnregisterAllMetrics() { defaultSet.UnregisterAllMetrics() }

// ListMetricNames returns the names of all metrics of the default set, sorted.
func ListMetricNames() []string { return defaultSet.ListMetricNames() }

// NewCounter registers a new counter in the default set. Like all New functions it
// panics if the name is invalid or taken.
func NewCounter(name string) *Counter { return defaultSet.NewCounter(name) }

// GetOrCreateCounter is Set.GetOrCreateCounter of the default set.
func GetOrCreateCounter(name string) *Counter { return defaultSet.GetOrCreateCounter(name) }

// NewFloatCounter registers a new float counter in the default set.
func NewFloatCounter(name string) *FloatCounter { return defaultSet.NewFloatCounter(name) }

// GetOrCreateFloatCounter is Set.GetOrCreateFloatCounter of the default set.
func GetOrCreateFloatCounter(name string) *FloatCounter {
	return defaultSet.GetOrCreateFloatCounter(name)
}

// NewCounterFunc registers a new counter with a callback in the default set, see Set.NewCounterFunc.
func NewCounterFunc(name string, f func() float64) *CounterFunc {
	return defaultSet.NewCounterFunc(name, f)
}

// NewGauge registers a new gauge in the default set. f returns the value at each
// scrape; if f is nil, the methods Set, Add, Inc and Dec change the value.
func NewGauge(name string, f func() float64) *Gauge { return defaultSet.NewGauge(name, f) }

// GetOrCreateGauge is Set.GetOrCreateGauge of the default set.
func GetOrCreateGauge(name string, f func() float64) *Gauge {
	return defaultSet.GetOrCreateGauge(name, f)
}

// NewHistogram registers a new histogram with VictoriaMetrics' vmrange buckets in the default set.
func NewHistogram(name string) *Histogram { return defaultSet.NewHistogram(name) }

// GetOrCreateHistogram is Set.GetOrCreateHistogram of the default set.
func GetOrCreateHistogram(name string) *Histogram { return defaultSet.GetOrCreateHistogram(name) }

// NewPrometheusHistogram registers a new classic histogram with
// PrometheusHistogramDefaultBuckets in the default set.
func NewPrometheusHistogram(name string) *PrometheusHistogram {
	return defaultSet.NewPrometheusHistogram(name)
}

// NewPrometheusHistogramExt registers a new classic histogram with these upper bounds
// in the default set.
func NewPrometheusHistogramExt(name string, upperBounds []float64) *PrometheusHistogram {
	return defaultSet.NewPrometheusHistogramExt(name, upperBounds)
}

// GetOrCreatePrometheusHistogram is Set.GetOrCreatePrometheusHistogram of the
// default set.
func GetOrCreatePrometheusHistogram(name string) *PrometheusHistogram {
	return defaultSet.GetOrCreatePrometheusHistogram(name)
}

// GetOrCreatePrometheusHistogramExt is Set.GetOrCreatePrometheusHistogramExt of the
// default set.
func GetOrCreatePrometheusHistogramExt(name string, upperBounds []float64) *PrometheusHistogram {
	return defaultSet.GetOrCreatePrometheusHistogramExt(name, upperBounds)
}

// NewNativeHistogram registers a new native histogram in the default set.
func NewNativeHistogram(name string, o NativeHistogramOptions) *PrometheusHistogram {
	return defaultSet.NewNativeHistogram(name, o)
}

// GetOrCreateNativeHistogram is Set.GetOrCreateNativeHistogram of the default set.
func GetOrCreateNativeHistogram(name string, o NativeHistogramOptions) *PrometheusHistogram {
	return defaultSet.GetOrCreateNativeHistogram(name, o)
}

// NewSummary registers a new summary in the default set.
func NewSummary(name string) *Summary { return defaultSet.NewSummary(name) }

// NewSummaryExt registers a new summary with this window and these quantiles in the
// default set.
func NewSummaryExt(name string, window time.Duration, quantiles []float64) *Summary {
	return defaultSet.NewSummaryExt(name, window, quantiles)
}

// GetOrCreateSummary is Set.GetOrCreateSummary of the default set.
func GetOrCreateSummary(name string) *Summary { return defaultSet.GetOrCreateSummary(name) }

// GetOrCreateSummaryExt is Set.GetOrCreateSummaryExt of the default set.
func GetOrCreateSummaryExt(name string, window time.Duration, quantiles []float64) *Summary {
	return defaultSet.GetOrCreateSummaryExt(name, window, quantiles)
}

// exposeMetadata is true if the text formats have HELP and TYPE lines.
var exposeMetadata = atomic.Bool{}

// ExposeMetadata turns HELP and TYPE lines on or off, for all sets. The default is off.
// It may be called at any time.
func ExposeMetadata(v bool) { exposeMetadata.Store(v) }

// WriteMetadataIfNeeded writes the HELP and TYPE lines of the family of metricName to w
// if ExposeMetadata is on.
func WriteMetadataIfNeeded(w io.Writer, metricName, metricType string) {
	p := getPage()
	p.describe(metricName, metricType)
	p.send(w)
}

// WriteCounterUint64 writes one line of a counter to w, after HELP and TYPE lines if
// ExposeMetadata is on.
func WriteCounterUint64(w io.Writer, name string, value uint64) {
	p := getPage()
	p.uint(name, "counter", value)
	p.send(w)
}

// WriteCounterFloat64 writes one line of a counter to w, see WriteCounterUint64.
func WriteCounterFloat64(w io.Writer, name string, value float64) {
	p := getPage()
	p.float(name, "counter", value)
	p.send(w)
}

// WriteGaugeUint64 writes one line of a gauge to w, see WriteCounterUint64.
func WriteGaugeUint64(w io.Writer, name string, value uint64) {
	p := getPage()
	p.uint(name, "gauge", value)
	p.send(w)
}

// WriteGaugeFloat64 writes one line of a gauge to w, see WriteCounterUint64.
func WriteGaugeFloat64(w io.Writer, name string, value float64) {
	p := getPage()
	p.float(name, "gauge", value)
	p.send(w)
}

func (p *page) uint(name, typeName string, n uint64) {
	p.describe(name, typeName)
	p.b = appendUint(p.b, name, n)
}

func (p *page) float(name, typeName string, v float64) {
	p.describe(name, typeName)
	p.b = appendFloat(p.b, name, v)
}

func (p *page) describe(name, typeName string) {
	if p.described {
		p.b = appendMetadata(p.b, exposition.Family(name), typeName, "")
	}
}

// send writes the buffer to w and returns it to the pool. It ignores errors of w, because the
// exported functions that call it return no error.
func (p *page) send(w io.Writer) {
	_ = p.flush(w)
	putPage(p)
}

func appendMetadata(dst []byte, family, typeName, help string) []byte {
	dst = append(append(dst, "# HELP "...), family...)
	if help != "" {
		dst = append(append(dst, ' '), help...)
	}
	dst = append(append(dst, "\n# TYPE "...), family...)
	return append(append(append(dst, ' '), typeName...), '\n')
}
