package metrics

import (
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/ferula-io/ferula/metrics/internal/exposition"
)

// Vec is a family of metrics of one type that differ in the values of their labels.
// Looking one up takes no lock and does not allocate:
//
//	served := metrics.NewCounterVec("requests_total", "Requests served.", "method", "code")
//	served.With("GET", "200").Inc()
//
// A family has DefaultMaxSeries members at most, unless Limit says otherwise. Whoever asks
// for one more gets the member whose labels are all "overflow", so that nothing is
// lost but detail, and memory ends somewhere. Delete takes a member out, Expire those
// that nobody asks for. A member that is unregistered from the set instead is no
// longer written, though the vector still counts in it.
type Vec[M metric] struct {
	set    *Set
	name   string
	labels []string
	create func(name string) M
	seed   maphash.Seed
	table  atomic.Pointer[vecTable[M]] // slots are filled in place, a bigger table replaces it

	epoch  atomic.Uint32 // counts sweeps; 0: members do not expire
	mu     sync.Mutex    // for whoever adds or removes
	gone   *member[M]    // stands in slots that were emptied
	used   int           // slots, emptied ones included
	most   int           // members
	alive  int           // members
	idle   time.Duration
	sweeps time.Time // the last one
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

// DefaultMaxSeries is how many members a vector has, unless Limit says otherwise.
const DefaultMaxSeries = 10_000

const overflow = "overflow"

type vecTable[M metric] struct {
	slots []atomic.Pointer[member[M]] // a power of two, at most half full
}

type member[M metric] struct {
	hash   uint64
	values []string
	metric M
	seen   atomic.Uint32 // the epoch in which somebody asked for it last
}

// NewCounterVec makes a vector of counters in the default set. Help is written if
// ExposeMetadata is on. Like all functions for vectors it panics if a name is
// invalid, or no label is given.
func NewCounterVec(name, help string, labels ...string) *CounterVec {
	return defaultSet.NewCounterVec(name, help, labels...)
}

// NewFloatCounterVec makes a vector of counters of floats in the default set.
func NewFloatCounterVec(name, help string, labels ...string) *FloatCounterVec {
	return defaultSet.NewFloatCounterVec(name, help, labels...)
}

// NewGaugeVec makes a vector of gauges without callbacks in the default set.
func NewGaugeVec(name, help string, labels ...string) *GaugeVec {
	return defaultSet.NewGaugeVec(name, help, labels...)
}

// NewHistogramVec makes a vector of histograms in the default set.
func NewHistogramVec(name, help string, labels ...string) *HistogramVec {
	return defaultSet.NewHistogramVec(name, help, labels...)
}

// NewPrometheusHistogramVec makes a vector of histograms with these upper bounds in
// the default set.
func NewPrometheusHistogramVec(name, help string, upperBounds []float64, labels ...string) *PrometheusHistogramVec {
	return defaultSet.NewPrometheusHistogramVec(name, help, upperBounds, labels...)
}

// NewNativeHistogramVec makes a vector of native histograms in the default set.
func NewNativeHistogramVec(name, help string, o NativeHistogramOptions, labels ...string) *PrometheusHistogramVec {
	return defaultSet.NewNativeHistogramVec(name, help, o, labels...)
}

// NewSummaryVec makes a vector of summaries in the default set.
func NewSummaryVec(name, help string, labels ...string) *SummaryVec {
	return defaultSet.NewSummaryVec(name, help, labels...)
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

// NewNativeHistogramVec makes a vector of native histograms.
func (s *Set) NewNativeHistogramVec(name, help string, o NativeHistogramOptions, labels ...string) *PrometheusHistogramVec {
	newNativeHistogram(name, o) // panics here and not at the first value
	return newVec(s, name, help, labels, func(name string) *PrometheusHistogram { return newNativeHistogram(name, o) })
}

// NewSummaryVec makes a vector of summaries of the last five minutes.
func (s *Set) NewSummaryVec(name, help string, labels ...string) *SummaryVec {
	return newVec(s, name, help, labels, func(name string) *Summary { return &Summary{named: named{name}, spec: &defaultSummarySpec} })
}

func newVec[M metric](s *Set, name, help string, labels []string, create func(name string) M) *Vec[M] {
	if len(labels) == 0 || !isText(name) {
		panic(fmt.Errorf("BUG: invalid metric name %q or no labels", name))
	}
	v := &Vec[M]{set: s, name: name, create: create, seed: maphash.MakeSeed(), most: DefaultMaxSeries, gone: &member[M]{}}
	for i, label := range labels {
		if !isText(label) || slices.Contains(labels[:i], label) {
			panic(fmt.Errorf("BUG: metric %q: invalid label %q", name, label))
		}
		if !exposition.IsClassic(label) || strings.Contains(label, ":") {
			label = quoted(label)
		}
		v.labels = append(v.labels, label)
	}
	s.Describe(name, help, "")
	v.table.Store(&vecTable[M]{make([]atomic.Pointer[member[M]], 8)})
	return v
}

func isText(name string) bool { return name != "" && utf8.ValidString(name) }

func quoted(name string) string {
	return string(append(exposition.AppendQuoted([]byte{'"'}, name, true), '"'))
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
	d := description{help, string(exposition.AppendQuoted(nil, help, false)), unit}
	texts[family] = d
	if !exposition.IsClassic(family) {
		texts[quoted(family)] = d
	}
	s.texts.Store(&texts)
}

// Limit changes how many members there may be, and returns the vector.
func (v *Vec[M]) Limit(seriesMax int) *Vec[M] {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.most = seriesMax
	return v
}

// Expire has the set's scrapes take out members that With did not return for so long,
// or up to half as long again, and returns the vector. Such a member must not be kept
// by whoever updates it: what it counts is lost once it is out. An idle time of 0 ends
// it.
func (v *Vec[M]) Expire(idle time.Duration) *Vec[M] {
	v.mu.Lock()
	v.idle, v.sweeps = idle, time.Now()
	v.mu.Unlock()
	if idle <= 0 {
		v.epoch.Store(0)
		return v
	}
	if v.epoch.CompareAndSwap(0, 1) {
		v.set.expire(v)
	}
	return v
}

// sweep is called by scrapes. A member that was not seen in the two epochs before is
// taken out; an epoch is half the idle time.
func (v *Vec[M]) sweep(now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	epoch := v.epoch.Load()
	if epoch == 0 || now.Sub(v.sweeps) < v.idle/2 {
		return
	}
	v.sweeps = now
	v.epoch.Store(epoch + 1)
	table := v.table.Load()
	for i := range table.slots {
		if m := table.slots[i].Load(); m != nil && m != v.gone && m.seen.Load()+2 <= epoch {
			v.remove(table, i)
		}
	}
}

// Delete takes the member with these values out of the vector and its set, and tells
// whether it was there. Who asks for it again gets a new one.
func (v *Vec[M]) Delete(values ...string) bool {
	if len(values) != len(v.labels) {
		v.refuse(len(values))
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	table, hash := v.table.Load(), v.hash(values)
	m := table.find(hash, values)
	if m == nil {
		return false
	}
	mask := uint64(len(table.slots) - 1)
	for at := hash >> 32; ; at++ {
		if table.slots[at&mask].Load() == m {
			v.remove(table, int(at&mask))
			return true
		}
	}
}

// remove is called with mu held.
func (v *Vec[M]) remove(table *vecTable[M], at int) {
	m := table.slots[at].Load()
	table.slots[at].Store(v.gone)
	v.alive--
	v.set.UnregisterMetric(m.metric.fullName())
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
		if epoch := v.epoch.Load(); epoch != 0 && m.seen.Load() != epoch {
			m.seen.Store(epoch)
		}
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
	if v.alive >= v.most {
		full := slices.Repeat([]string{overflow}, len(v.labels))
		return getOrRegister(v.set, v.create(v.fullName(full)))
	}
	m := &member[M]{hash: hash, values: make([]string, len(values))}
	for i, value := range values {
		m.values[i] = strings.Clone(value)
	}
	m.metric = getOrRegister(v.set, v.create(v.fullName(m.values)))
	m.seen.Store(v.epoch.Load())
	v.alive++
	if v.used++; 2*v.used <= len(table.slots) {
		table.put(m)
		return m.metric
	}
	size := 8
	for size < 4*v.alive {
		size *= 2
	}
	fresh := &vecTable[M]{make([]atomic.Pointer[member[M]], size)}
	for i := range table.slots {
		if old := table.slots[i].Load(); old != nil && old != v.gone {
			fresh.put(old)
		}
	}
	fresh.put(m)
	v.used = v.alive
	v.table.Store(fresh)
	return m.metric
}

// fullName is the text a member is registered under, its values escaped.
func (v *Vec[M]) fullName(values []string) string {
	b := append([]byte(v.name), '{')
	if !exposition.IsClassic(v.name) {
		b = append([]byte{'{'}, quoted(v.name)...)
	}
	for i, label := range v.labels {
		if b[len(b)-1] != '{' {
			b = append(b, ',')
		}
		b = append(append(b, label...), `="`...)
		b = append(exposition.AppendQuoted(b, values[i], true), '"')
	}
	return string(append(b, '}'))
}
