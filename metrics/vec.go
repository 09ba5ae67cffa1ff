package metrics

import (
	"fmt"
	"hash/maphash"
	"iter"
	"log"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/ferula-io/ferula/metrics/internal/exposition"
)

// Vec is a family of metrics of one type, partitioned by label values. A lookup takes no
// lock and does not allocate:
//
//	served := metrics.NewCounterVec("requests_total", "Requests served.", "method", "code")
//	served.With("GET", "200").Inc()
//
// A member is the metric of one combination of label values. Limit bounds the number of
// members, and thereby the memory of the vector; the default is DefaultMaxSeries. When a
// vector is full, With returns one shared member for all further combinations, so that no
// update is lost. All label values of this member are "overflow".
// metrics_vec_overflow_total{family="..."} counts the lookups of the shared member, and the
// first of them is logged. Delete removes a member, Expire removes unused members. If
// Set.UnregisterMetric removes a member, it is no longer exposed, but With still returns it.
type Vec[M metric] struct {
	set    *Set
	name   string
	labels []string
	create func(name string) M
	key    hashKey
	table  atomic.Pointer[vecTable[M]] // slots are filled in place; a larger table replaces it

	epoch     atomic.Uint32 // number of sweeps; 0: members do not expire
	mu        sync.Mutex    // guards additions and removals
	tombstone *member[M]    // marks slots of removed members
	used      int           // slots in use, tombstones included
	maxSeries atomic.Int64  // limit of members
	live      atomic.Int64  // number of members
	overflow  atomic.Pointer[overflowMember[M]]
	idle      time.Duration
	lastSweep time.Time
}

// The vectors of each metric type.
type (
	CounterVec             = Vec[*Counter]
	FloatCounterVec        = Vec[*FloatCounter]
	GaugeVec               = Vec[*Gauge]
	HistogramVec           = Vec[*Histogram]
	PrometheusHistogramVec = Vec[*PrometheusHistogram]
	SummaryVec             = Vec[*Summary]
	CounterFuncVec         = Vec[*CounterFunc]
	GaugeFuncVec           = Vec[*GaugeFunc]
)

// DefaultMaxSeries is the default limit of members of a vector, see Vec.Limit.
const DefaultMaxSeries = 10_000

const overflow = "overflow"

// overflowMember is the shared member of a full vector, and the counter of its lookups.
type overflowMember[M metric] struct {
	metric  M
	lookups *Counter
}

type vecTable[M metric] struct {
	slots []atomic.Pointer[member[M]] // a power of two, at most half full
}

type member[M metric] struct {
	hash      uint64
	values    []string
	metric    M
	lastEpoch atomic.Uint32 // the epoch of the last lookup
}

// NewCounterVec returns a new vector of counters in the default set. help is the text of
// the HELP line. Like all functions for vectors it panics if a name is invalid or there
// are no labels.
func NewCounterVec(name, help string, labels ...string) *CounterVec {
	return defaultSet.NewCounterVec(name, help, labels...)
}

// NewFloatCounterVec returns a new vector of float counters in the default set.
func NewFloatCounterVec(name, help string, labels ...string) *FloatCounterVec {
	return defaultSet.NewFloatCounterVec(name, help, labels...)
}

// NewGaugeVec returns a new vector of gauges without callbacks in the default set.
func NewGaugeVec(name, help string, labels ...string) *GaugeVec {
	return defaultSet.NewGaugeVec(name, help, labels...)
}

// NewHistogramVec returns a new vector of vmrange histograms in the default set.
func NewHistogramVec(name, help string, labels ...string) *HistogramVec {
	return defaultSet.NewHistogramVec(name, help, labels...)
}

// NewPrometheusHistogramVec returns a new vector of classic histograms with these bounds in
// the default set.
func NewPrometheusHistogramVec(name, help string, upperBounds []float64, labels ...string) *PrometheusHistogramVec {
	return defaultSet.NewPrometheusHistogramVec(name, help, upperBounds, labels...)
}

// NewNativeHistogramVec returns a new vector of native histograms in the default set.
func NewNativeHistogramVec(name, help string, o NativeHistogramOptions, labels ...string) *PrometheusHistogramVec {
	return defaultSet.NewNativeHistogramVec(name, help, o, labels...)
}

// NewSummaryVec returns a new vector of summaries in the default set.
func NewSummaryVec(name, help string, labels ...string) *SummaryVec {
	return defaultSet.NewSummaryVec(name, help, labels...)
}

// NewCounterFuncVec returns a new vector of counters with callbacks in the default set, see
// Set.NewCounterFuncVec.
func NewCounterFuncVec(name, help string, labels ...string) *CounterFuncVec {
	return defaultSet.NewCounterFuncVec(name, help, labels...)
}

// NewGaugeFuncVec returns a new vector of gauges with callbacks in the default set, see
// Set.NewGaugeFuncVec.
func NewGaugeFuncVec(name, help string, labels ...string) *GaugeFuncVec {
	return defaultSet.NewGaugeFuncVec(name, help, labels...)
}

// NewCounterFuncVec returns a new vector of counters with callbacks, which SetFunc sets:
//
//	parsed.With("mail").SetFunc(func() float64 { return float64(mail.Parsed()) })
//
// The callback is called at every scrape until Delete removes the member. Delete the member
// when the measured object ends.
func (s *Set) NewCounterFuncVec(name, help string, labels ...string) *CounterFuncVec {
	return newVec(s, name, help, labels, func(name string) *CounterFunc {
		return &CounterFunc{callbackMetric{named: named{name}}}
	})
}

// NewGaugeFuncVec returns a new vector of gauges with callbacks, see NewCounterFuncVec.
func (s *Set) NewGaugeFuncVec(name, help string, labels ...string) *GaugeFuncVec {
	return newVec(s, name, help, labels, func(name string) *GaugeFunc {
		return &GaugeFunc{callbackMetric{named: named{name}}}
	})
}

// NewCounterVec returns a new vector of counters.
func (s *Set) NewCounterVec(name, help string, labels ...string) *CounterVec {
	return newVec(s, name, help, labels, func(name string) *Counter { return &Counter{named: named{name}} })
}

// NewFloatCounterVec returns a new vector of float counters.
func (s *Set) NewFloatCounterVec(name, help string, labels ...string) *FloatCounterVec {
	return newVec(s, name, help, labels, func(name string) *FloatCounter { return &FloatCounter{named: named{name}} })
}

// NewGaugeVec returns a new vector of gauges without callbacks.
func (s *Set) NewGaugeVec(name, help string, labels ...string) *GaugeVec {
	return newVec(s, name, help, labels, func(name string) *Gauge { return &Gauge{named: named{name}} })
}

// NewHistogramVec returns a new vector of vmrange histograms.
func (s *Set) NewHistogramVec(name, help string, labels ...string) *HistogramVec {
	return newVec(s, name, help, labels, newHistogram)
}

// NewPrometheusHistogramVec returns a new vector of classic histograms with these bounds.
func (s *Set) NewPrometheusHistogramVec(name, help string, upperBounds []float64,
	labels ...string) *PrometheusHistogramVec {
	newPrometheusHistogram(name, upperBounds) // panics here and not at the first value
	return newVec(s, name, help, labels, func(name string) *PrometheusHistogram {
		return newPrometheusHistogram(name, upperBounds)
	})
}

// NewNativeHistogramVec returns a new vector of native histograms.
func (s *Set) NewNativeHistogramVec(name, help string, o NativeHistogramOptions,
	labels ...string) *PrometheusHistogramVec {
	newNativeHistogram(name, o) // panics here and not at the first value
	return newVec(s, name, help, labels, func(name string) *PrometheusHistogram { return newNativeHistogram(name, o) })
}

// NewSummaryVec returns a new vector of summaries with a window of five minutes.
func (s *Set) NewSummaryVec(name, help string, labels ...string) *SummaryVec {
	return newVec(s, name, help, labels, func(name string) *Summary {
		return &Summary{named: named{name}, spec: &defaultSummarySpec}
	})
}

// NewSummaryVecExt returns a new vector of summaries with this window and these quantiles in
// the default set.
func NewSummaryVecExt(name, help string, window time.Duration, quantiles []float64, labels ...string) *SummaryVec {
	return defaultSet.NewSummaryVecExt(name, help, window, quantiles, labels...)
}

// NewSummaryVecExt returns a new vector of summaries with this window and these quantiles. It
// panics if a quantile is outside [0, 1] or occurs twice.
func (s *Set) NewSummaryVecExt(name, help string, window time.Duration, quantiles []float64,
	labels ...string) *SummaryVec {
	spec := s.summarySpec(name, window, quantiles)
	return newVec(s, name, help, labels, func(name string) *Summary { return &Summary{named: named{name}, spec: spec} })
}

func newVec[M metric](s *Set, name, help string, labels []string, create func(name string) M) *Vec[M] {
	if len(labels) == 0 || !isValidUTF8Name(name) {
		panic(fmt.Errorf("BUG: invalid metric name %q or no labels", name))
	}
	if s.scope != nil {
		name = s.scope.prefix + name
	}
	v := &Vec[M]{set: s, name: name, create: create, key: newHashKey(), tombstone: &member[M]{}}
	v.maxSeries.Store(DefaultMaxSeries)
	reserved := ""
	switch any(*new(M)).(type) {
	case *PrometheusHistogram:
		reserved = "le"
	case *Histogram:
		reserved = "vmrange"
	case *Summary:
		reserved = "quantile"
	}
	for i, label := range labels {
		if !isValidUTF8Name(label) || slices.Contains(labels[:i], label) || label == "__name__" || label == reserved {
			panic(fmt.Errorf("BUG: metric %q: invalid label %q", name, label))
		}
		if !exposition.IsClassic(label) || strings.Contains(label, ":") {
			label = quoted(label)
		}
		if s.scope != nil {
			s.scope.mustLack(name, label)
		}
		v.labels = append(v.labels, label)
	}
	s.describe(name, help, "", true)
	s.mu.Lock()
	s.vectors = append(s.vectors, v)
	s.mu.Unlock()
	v.table.Store(&vecTable[M]{make([]atomic.Pointer[member[M]], 8)})
	return v
}

// family returns the name, type and labels of the vector. The set adds the help and the unit.
func (v *Vec[M]) family() VecFamily {
	return VecFamily{Family{Name: v.name, Type: v.create(v.name).typeName()}, slices.Clone(v.labels)}
}

func isValidUTF8Name(name string) bool { return name != "" && utf8.ValidString(name) }

func quoted(name string) string {
	return string(append(exposition.AppendQuoted([]byte{'"'}, name, true), '"'))
}

// Describe sets the text of the HELP line and the unit of a family. OpenMetrics has a
// UNIT line only if the name of the family ends with the unit.
func (s *Set) Describe(family, help, unit string) {
	if s.scope != nil {
		family = s.scope.prefix + family
	}
	s.describe(family, help, unit, false)
}

// describe is Describe for a family name with the prefix of the set. If keep is true, the
// existing unit stays, and the existing help stays if help is empty.
func (s *Set) describe(family, help, unit string, keep bool) {
	help, unit = strings.ToValidUTF8(help, "\uFFFD"), strings.ToValidUTF8(unit, "\uFFFD")
	s.mu.Lock()
	defer s.mu.Unlock()
	texts := map[string]description{}
	if old := s.descriptions.Load(); old != nil {
		maps.Copy(texts, *old)
	}
	if old := texts[family]; keep {
		unit = old.unit
		if help == "" {
			help = old.help
		}
	}
	d := description{help, string(exposition.AppendQuoted(nil, help, false)), unit}
	texts[family] = d
	if !exposition.IsClassic(family) {
		texts[quoted(family)] = d
	}
	s.descriptions.Store(&texts)
}

// Limit sets the maximum number of members and returns the vector.
func (v *Vec[M]) Limit(seriesMax int) *Vec[M] {
	v.maxSeries.Store(int64(seriesMax))
	return v
}

// Expire makes members expire that With has not returned for the idle time (up to 1.5 times as
// long), and returns the vector. Expired members are removed by scrapes of the set, and when a
// member is created. Callers must not keep the result of With: updates of a removed member are
// lost. An idle time of 0 disables expiry.
func (v *Vec[M]) Expire(idle time.Duration) *Vec[M] {
	v.mu.Lock()
	v.idle, v.lastSweep = idle, time.Now()
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

// sweep removes members that were not looked up in the last two epochs. An epoch is half
// the idle time. Scrapes call it.
func (v *Vec[M]) sweep(now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.sweepLocked(now)
}

func (v *Vec[M]) sweepLocked(now time.Time) {
	epoch := v.epoch.Load()
	if epoch == 0 || now.Sub(v.lastSweep) < v.idle/2 {
		return
	}
	v.lastSweep = now
	v.epoch.Store(epoch + 1)
	table := v.table.Load()
	for i := range table.slots {
		if m := table.slots[i].Load(); m != nil && m != v.tombstone && m.lastEpoch.Load()+2 <= epoch {
			v.remove(table, i)
		}
	}
}

// Delete removes the member with these label values from the vector and its set. It
// returns false if there is none. A later With returns a new member.
func (v *Vec[M]) Delete(values ...string) bool {
	if len(values) != len(v.labels) {
		v.panicLabelCount(len(values))
	}
	values = validUTF8(values)
	v.mu.Lock()
	defer v.mu.Unlock()
	table, hash := v.table.Load(), v.key.hash(values)
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

// Reset removes all members from the vector and its set.
func (v *Vec[M]) Reset() {
	v.mu.Lock()
	defer v.mu.Unlock()
	table := v.table.Load()
	for i := range table.slots {
		if m := table.slots[i].Load(); m != nil && m != v.tombstone {
			v.remove(table, i)
		}
	}
	if o := v.overflow.Swap(nil); o != nil {
		v.set.unregister(o.metric.fullName())
	}
	v.used = 0
	v.table.Store(&vecTable[M]{make([]atomic.Pointer[member[M]], 8)})
}

// Unregister removes the vector with all members, and its metrics_vec_overflow_total, from its
// set. Afterwards another vector may have the same name. Do not call With afterwards: it
// registers members again.
func (v *Vec[M]) Unregister() {
	v.Expire(0)
	s := v.set
	s.mu.Lock()
	s.vectors = slices.DeleteFunc(slices.Clone(s.vectors), func(other resetter) bool { return other == resetter(v) })
	if old := s.expiring.Load(); old != nil {
		left := slices.DeleteFunc(slices.Clone(*old), func(other sweeper) bool { return other == sweeper(v) })
		s.expiring.Store(&left)
	}
	s.mu.Unlock()
	if o := v.overflow.Load(); o != nil {
		s.unregister(o.lookups.fullName())
	}
	v.Reset()
}

// DeletePartialMatch removes the members that have all of these labels, values by name, and
// returns their number. It visits all members.
func (v *Vec[M]) DeletePartialMatch(labels map[string]string) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	table, n := v.table.Load(), 0
	for i := range table.slots {
		if m := table.slots[i].Load(); m != nil && m != v.tombstone && v.hasValues(m, labels) {
			v.remove(table, i)
			n++
		}
	}
	return n
}

// hasValues reports whether a member has these label values. A name that is not a label of
// the vector matches no member.
func (v *Vec[M]) hasValues(m *member[M], labels map[string]string) bool {
	for name, value := range labels {
		at := slices.IndexFunc(v.labels, func(label string) bool { return label == name || label == quoted(name) })
		if at < 0 || m.values[at] != value {
			return false
		}
	}
	return true
}

// All returns an iterator over the label values and the members, in no order. Members that
// are added or removed during the iteration may be missing. The values must not be changed.
func (v *Vec[M]) All() iter.Seq2[[]string, M] {
	return func(yield func([]string, M) bool) {
		table := v.table.Load()
		for i := range table.slots {
			if m := table.slots[i].Load(); m != nil && m != v.tombstone && !yield(m.values, m.metric) {
				return
			}
		}
	}
}

// remove removes the member in slot at. The caller holds mu.
func (v *Vec[M]) remove(table *vecTable[M], at int) {
	m := table.slots[at].Load()
	table.slots[at].Store(v.tombstone)
	v.live.Add(-1)
	v.set.unregister(m.metric.fullName())
}

// With returns the member with these label values, in the order of the label names, and
// creates it if there is none. It panics if the number of values differs from the number of
// labels. It does not retain values. Bytes that are not UTF-8 are replaced with U+FFFD,
// because Prometheus would reject the whole scrape response.
func (v *Vec[M]) With(values ...string) M {
	if len(values) != len(v.labels) {
		v.panicLabelCount(len(values))
	}
	hash := v.key.hash(values)
	if m := v.table.Load().find(hash, values); m != nil {
		if epoch := v.epoch.Load(); epoch != 0 && m.lastEpoch.Load() != epoch {
			m.lastEpoch.Store(epoch)
		}
		return m.metric
	}
	if o := v.overflow.Load(); o != nil && v.live.Load() >= v.maxSeries.Load() {
		o.lookups.Inc()
		return o.metric
	}
	return v.add(hash, values)
}

// validUTF8 returns values, or a copy without invalid UTF-8.
func validUTF8(values []string) []string {
	for i, value := range values {
		if !utf8.ValidString(value) {
			values = slices.Clone(values)
			for ; i < len(values); i++ {
				values[i] = strings.ToValidUTF8(values[i], "\uFFFD")
			}
			return values
		}
	}
	return values
}

// TryWith is With for label values from configuration or requests. If their number differs
// from the number of labels, it returns an error instead of a panic.
func (v *Vec[M]) TryWith(values ...string) (M, error) {
	if len(values) != len(v.labels) {
		var none M
		return none, v.labelCountError(len(values))
	}
	return v.With(values...), nil
}

func (v *Vec[M]) labelCountError(n int) error {
	return fmt.Errorf("metric %q has %d labels; got %d values", v.name, len(v.labels), n)
}

func (v *Vec[M]) panicLabelCount(n int) { panic(fmt.Errorf("BUG: %w", v.labelCountError(n))) }

// hashKey makes hashes of label values unpredictable for those who choose the values.
type hashKey [2]uint64

func newHashKey() hashKey {
	return hashKey{maphash.Bytes(maphash.MakeSeed(), nil), maphash.Bytes(maphash.MakeSeed(), nil)}
}

// hash folds products of 128 bits, without a call for short values: calls of maphash, one for each value, cost as much
// as the rest of a look-up.
func (k *hashKey) hash(values []string) uint64 {
	h := k[0]
	for _, value := range values {
		h = (h + uint64(len(value))) * 0x9e3779b97f4a7c15
		for ; len(value) > 16; value = value[16:] {
			h = fold(load8(value)^k[1], load8(value[8:])^h)
		}
		var a, b uint64
		switch n := len(value); {
		case n >= 8:
			a, b = load8(value), load8(value[n-8:])
		case n >= 4:
			a, b = load4(value), load4(value[n-4:])
		case n > 0:
			a = uint64(value[0])<<16 | uint64(value[n/2])<<8 | uint64(value[n-1])
		}
		h = fold(a^k[1], b^h)
	}
	return h
}

func fold(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	return high ^ low
}

func load8(s string) uint64 { return load4(s) | load4(s[4:])<<32 }

func load4(s string) uint64 {
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24
}

// find returns the member with these label values, nil if there is none. hash is the hash of values.
// The search ends at an empty slot, and passes the tombstones of removed members.
func (t *vecTable[M]) find(hash uint64, values []string) *member[M] {
	mask := uint64(len(t.slots) - 1)
	for at := hash >> 32; ; at++ {
		m := t.slots[at&mask].Load()
		if m == nil || m.hash == hash && slices.Equal(m.values, values) {
			return m
		}
	}
}

// put inserts m. The table must have a free slot, and the caller holds the vector's mu.
func (t *vecTable[M]) put(m *member[M]) {
	mask := uint64(len(t.slots) - 1)
	at := m.hash >> 32
	for t.slots[at&mask].Load() != nil {
		at++
	}
	t.slots[at&mask].Store(m)
}

// add creates the member with these label values and returns it. If another goroutine has created it
// meanwhile, add returns that member. If the vector is full, add returns the shared member. hash is
// the hash of values.
func (v *Vec[M]) add(hash uint64, values []string) M {
	if valid := validUTF8(values); &valid[0] != &values[0] {
		values, hash = valid, v.key.hash(valid)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.epoch.Load() != 0 {
		v.sweepLocked(time.Now())
	}
	table := v.table.Load()
	if m := table.find(hash, values); m != nil {
		m.lastEpoch.Store(v.epoch.Load())
		return m.metric // another goroutine has added it
	}
	if v.live.Load() >= v.maxSeries.Load() {
		return v.overflowMetric()
	}
	m := &member[M]{hash: hash, values: make([]string, len(values))}
	for i, value := range values {
		m.values[i] = strings.Clone(value)
	}
	m.metric = getOrRegister(v.set, v.create(v.fullName(m.values)))
	m.lastEpoch.Store(v.epoch.Load())
	v.live.Add(1)
	if v.used++; 2*v.used <= len(table.slots) {
		table.put(m)
		return m.metric
	}
	size := 8
	for size < 4*int(v.live.Load()) {
		size *= 2
	}
	fresh := &vecTable[M]{make([]atomic.Pointer[member[M]], size)}
	for i := range table.slots {
		if old := table.slots[i].Load(); old != nil && old != v.tombstone {
			fresh.put(old)
		}
	}
	fresh.put(m)
	v.used = int(v.live.Load())
	v.table.Store(fresh)
	return m.metric
}

// overflowMetric returns the shared member, and creates it if there is none. The caller holds mu.
func (v *Vec[M]) overflowMetric() M {
	o := v.overflow.Load()
	if o == nil {
		o = &overflowMember[M]{
			metric:  getOrRegister(v.set, v.create(v.fullName(slices.Repeat([]string{overflow}, len(v.labels))))),
			lookups: getOrRegister(v.set, &Counter{named: named{v.overflowName()}}),
		}
		v.overflow.Store(o)
		log.Printf("WARN: metrics: family %q has %d members, its limit: further label values share the member %q", v.name,
			v.maxSeries.Load(), overflow)
	}
	o.lookups.Inc()
	return o.metric
}

func (v *Vec[M]) overflowName() string {
	name := `metrics_vec_overflow_total{family="` + string(exposition.AppendQuoted(nil, v.name, true)) + `"}`
	if c := v.set.scope; c != nil && !slices.Contains(c.names, "family") {
		name = c.withLabels(name)
	}
	return name
}

// fullName returns the name of a member with its labels, escaped.
func (v *Vec[M]) fullName(values []string) string {
	b := openName(v.set.scope, v.name)
	for i, label := range v.labels {
		b = appendLabel(b, label, values[i])
	}
	return string(append(b, '}'))
}
