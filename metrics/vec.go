package metrics

import (
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/ferula-io/ferula/metrics/internal/exposition"
)

// Vec is a family of metrics of one type that differ in the values of their labels.
// Looking one up takes no lock and does not allocate:
//
//	served := metrics.NewCounterVec("requests_total", "Requests served.", "method", "code")
//	served.With("GET", "200").Inc()
//
// A family has SeriesMax members at most, unless Limit says otherwise. Whoever asks
// for one more gets the member whose labels are all "overflow", so that nothing is
// lost but detail, and memory ends somewhere. A member that is unregistered from the
// set is no longer written, though the vector still counts in it.
type Vec[M metric] struct {
	set    *Set
	name   string
	labels []string
	create func(name string) M
	seed   maphash.Seed
	table  atomic.Pointer[vecTable[M]] // slots are filled in place, a bigger table replaces it

	mu        sync.Mutex // for whoever adds
	members   int
	seriesMax int
}

// CounterVec and its like are the vectors of each type.
type (
	CounterVec             = Vec[*Counter]
	FloatCounterVec        = Vec[*FloatCounter]
	GaugeVec               = Vec[*Gauge]
	HistogramVec           = Vec[*Histogram]
	PrometheusHistogramVec = Vec[*PrometheusHistogram]
	SummaryVec             = Vec[*Summary]
)

// SeriesMax is how many members a vector has, unless Limit says otherwise.
const SeriesMax = 10_000

const overflow = "overflow"

type vecTable[M metric] struct {
	slots []atomic.Pointer[member[M]] // a power of two, at most half full
}

type member[M metric] struct {
	hash   uint64
	values []string
	metric M
}

// NewCounterVec makes a vector of counters in the default set. Help is written if
// ExposeMetadata is on. Like all functions for vectors it panics if a name is
// invalid, or no label is given.
func NewCounterVec(name, help string, labels ...string) *CounterVec {
	return defaultSet.NewCounterVec(name, help, labels...)
}

// NewCounterVec makes a vector of counters.
func (s *Set) NewCounterVec(name, help string, labels ...string) *CounterVec {
	return newVec(s, name, help, labels, func(name string) *Counter { return &Counter{named: named{name}} })
}

// NewFloatCounterVec makes a vector of counters of floats.
func (s *Set) NewFloatCounterVec(name, help string, labels ...string) *FloatCounterVec {
	return newVec(s, name, help, labels, func(name string) *FloatCounter { return &FloatCounter{named: named{name}} })
}

// NewGaugeVec makes a vector of gauges without callbacks.
func (s *Set) NewGaugeVec(name, help string, labels ...string) *GaugeVec {
	return newVec(s, name, help, labels, func(name string) *Gauge { return &Gauge{named: named{name}} })
}

// NewHistogramVec makes a vector of histograms.
func (s *Set) NewHistogramVec(name, help string, labels ...string) *HistogramVec {
	return newVec(s, name, help, labels, newHistogram)
}

// NewPrometheusHistogramVec makes a vector of histograms with these upper bounds.
func (s *Set) NewPrometheusHistogramVec(name, help string, upperBounds []float64, labels ...string) *PrometheusHistogramVec {
	newPrometheusHistogram(name, upperBounds) // panics here and not at the first value
	return newVec(s, name, help, labels, func(name string) *PrometheusHistogram { return newPrometheusHistogram(name, upperBounds) })
}

// NewSummaryVec makes a vector of summaries of the last five minutes.
func (s *Set) NewSummaryVec(name, help string, labels ...string) *SummaryVec {
	return newVec(s, name, help, labels, func(name string) *Summary { return &Summary{named: named{name}, spec: &defaultSummarySpec} })
}

func newVec[M metric](s *Set, name, help string, labels []string, create func(name string) M) *Vec[M] {
	for i, label := range labels {
		if exposition.ValidateIdentifier(label) != nil || strings.ContainsAny(label, ":.") || slices.Contains(labels[:i], label) {
			panic(fmt.Errorf("BUG: metric %q: invalid label %q", name, label))
		}
	}
	if len(labels) == 0 || exposition.ValidateIdentifier(name) != nil {
		panic(fmt.Errorf("BUG: invalid metric name %q or no labels", name))
	}
	s.Describe(name, help, "")
	v := &Vec[M]{set: s, name: name, labels: slices.Clone(labels), create: create, seed: maphash.MakeSeed(), seriesMax: SeriesMax}
	v.table.Store(&vecTable[M]{make([]atomic.Pointer[member[M]], 8)})
	return v
}

// Describe says what the metrics of a family are, and in which unit, for HELP and
// UNIT lines. OpenMetrics shows a unit only if the family's name ends with it.
func (s *Set) Describe(family, help, unit string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	texts := map[string]description{}
	if old := s.texts.Load(); old != nil {
		maps.Copy(texts, *old)
	}
	texts[family] = description{help, string(exposition.AppendQuoted(nil, help, false)), unit}
	s.texts.Store(&texts)
}

// Limit changes how many members there may be, and returns the vector.
func (v *Vec[M]) Limit(seriesMax int) *Vec[M] {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.seriesMax = seriesMax
	return v
}

// With returns the member with these values, one for each label in the order they
// were named, and makes it first if there is none. It panics if there are more
// or fewer values than labels. The values are copied.
func (v *Vec[M]) With(values ...string) M {
	if len(values) != len(v.labels) {
		v.refuse(len(values))
	}
	hash := v.hash(values)
	if m := v.table.Load().find(hash, values); m != nil {
		return m.metric
	}
	return v.add(hash, values)
}

func (v *Vec[M]) refuse(n int) {
	panic(fmt.Errorf("BUG: metric %q has %d labels; got %d values", v.name, len(v.labels), n))
}

func (v *Vec[M]) hash(values []string) uint64 {
	h := uint64(0)
	for _, value := range values {
		h = (h ^ maphash.String(v.seed, value)) * 0x9e3779b97f4a7c15
	}
	return h
}

func (t *vecTable[M]) find(hash uint64, values []string) *member[M] {
	mask := uint64(len(t.slots) - 1)
	for at := hash >> 32; ; at++ {
		m := t.slots[at&mask].Load()
		if m == nil || m.hash == hash && slices.Equal(m.values, values) {
			return m
		}
	}
}

// put needs room, and the vector's lock.
func (t *vecTable[M]) put(m *member[M]) {
	mask := uint64(len(t.slots) - 1)
	at := m.hash >> 32
	for t.slots[at&mask].Load() != nil {
		at++
	}
	t.slots[at&mask].Store(m)
}

func (v *Vec[M]) add(hash uint64, values []string) M {
	v.mu.Lock()
	defer v.mu.Unlock()
	table := v.table.Load()
	if m := table.find(hash, values); m != nil {
		return m.metric // another goroutine was faster
	}
	if v.members >= v.seriesMax {
		full := slices.Repeat([]string{overflow}, len(v.labels))
		return getOrRegister(v.set, v.create(v.fullName(full)))
	}
	m := &member[M]{hash: hash, values: make([]string, len(values))}
	for i, value := range values {
		m.values[i] = strings.Clone(value)
	}
	m.metric = getOrRegister(v.set, v.create(v.fullName(m.values)))
	v.members++
	if 2*v.members > len(table.slots) {
		bigger := &vecTable[M]{make([]atomic.Pointer[member[M]], 2*len(table.slots))}
		for i := range table.slots {
			if old := table.slots[i].Load(); old != nil {
				bigger.put(old)
			}
		}
		bigger.put(m)
		v.table.Store(bigger)
		return m.metric
	}
	table.put(m)
	return m.metric
}

// fullName is the text a member is registered under, its values escaped.
func (v *Vec[M]) fullName(values []string) string {
	b := append([]byte(v.name), '{')
	for i, label := range v.labels {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(b, label...), `="`...)
		for j := range len(values[i]) {
			switch c := values[i][j]; c {
			case '\n':
				b = append(b, `\n`...)
			case '\\', '"':
				b = append(b, '\\', c)
			default:
				b = append(b, c)
			}
		}
		b = append(b, '"')
	}
	return string(append(b, '}'))
}
