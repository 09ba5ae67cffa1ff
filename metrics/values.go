package metrics

import (
	"fmt"
	"log"
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/ferula-io/ferula/metrics/internal/exposition"
)

// Counter is a counter of integers. Dec and Set make it usable as a gauge too. The zero
// Counter is ready for use but is not registered in a Set. All metrics are safe for concurrent
// use.
type Counter struct {
	named
	n       atomic.Uint64
	example atomic.Pointer[exemplar]
}

// Inc adds one.
func (c *Counter) Inc() { c.n.Add(1) }

// Dec subtracts one.
func (c *Counter) Dec() { c.n.Add(^uint64(0)) }

// Add adds n.
func (c *Counter) Add(n int) { c.n.Add(uint64(n)) }

// AddInt64 adds n.
func (c *Counter) AddInt64(n int64) { c.n.Add(uint64(n)) }

// IncWithExemplar is AddWithExemplar(1, labels...).
func (c *Counter) IncWithExemplar(labels ...string) { c.AddWithExemplar(1, labels...) }

// AddWithExemplar adds n and replaces the exemplar of the counter, which is exposed in
// OpenMetrics and protobuf. labels are alternating names and values, such as "trace_id"
// and the ID, of at most 128 characters in all. An invalid exemplar is dropped; n is
// still added.
func (c *Counter) AddWithExemplar(n int, labels ...string) {
	c.Add(n)
	getOrCreateExemplar(&c.example).set(float64(n), labels)
}

// Get returns the value.
func (c *Counter) Get() uint64 { return c.n.Load() }

// Set sets the counter to n. Its created timestamp stays the time of its registration.
func (c *Counter) Set(n uint64) { c.n.Store(n) }

func (c *Counter) typeName() string { return "counter" }

func (c *Counter) appendTo(dst []byte) []byte { return appendUint(dst, c.name, c.Get()) }

func (c *Counter) read(m *exposition.Metric) bool {
	m.Reset(exposition.Counter)
	m.Value, m.Exemplar = float64(c.Get()), c.example.Load().read(m)
	return true
}

// FloatCounter is a counter of floats. Sub and Set make it usable as a gauge too. The
// zero FloatCounter is ready for use but is not registered in a Set.
//
// While only whole numbers have been added, the value is an integer, and an update is one atomic
// operation. From then on it is a float under a mutex: with an atomic float, two cores that add at
// the same time repeat failed compare-and-swaps and take three times as long.
type FloatCounter struct {
	named
	whole   atomic.Int64 // the value; at most floatBelow: the value is v
	mu      sync.Mutex
	v       float64
	example atomic.Pointer[exemplar]
}

// Whole numbers are still added to whole after it has become floatMark. Those additions have no effect:
// Add sees that the sum is at most floatBelow and adds to v, too. The limit of one addition keeps a
// million concurrent ones within 1<<60 of the mark.
const (
	wholeMax   = 1 << 53 // floats are exact up to it
	addMax     = 1 << 40
	floatMark  = -1 << 62
	floatBelow = -1 << 61
	driftMax   = 1 << 60
)

// Add adds n.
func (fc *FloatCounter) Add(n float64) {
	i := int64(n)
	if float64(i) != n || i < -addMax || i > addMax {
		fc.mu.Lock()
		if fc.whole.Load() > floatBelow {
			fc.toFloat()
		}
		fc.v += n
		fc.mu.Unlock()
	} else if sum := fc.whole.Add(i); sum <= floatBelow {
		fc.addToFloat(n)
	} else if sum < -wholeMax || sum > wholeMax {
		fc.addToFloat(0)
	}
}

func (fc *FloatCounter) addToFloat(n float64) {
	fc.mu.Lock()
	fc.toFloat()
	fc.v += n
	fc.mu.Unlock()
}

// toFloat moves the value from whole to v. The caller holds mu.
func (fc *FloatCounter) toFloat() {
	if n := fc.whole.Load(); n > floatBelow {
		fc.v = float64(fc.whole.Swap(floatMark))
	} else if n < floatMark-driftMax || n > floatMark+driftMax {
		fc.whole.Store(floatMark)
	}
}

// AddWithExemplar adds n and replaces the exemplar, see Counter.AddWithExemplar.
func (fc *FloatCounter) AddWithExemplar(n float64, labels ...string) {
	fc.Add(n)
	getOrCreateExemplar(&fc.example).set(n, labels)
}

// Sub subtracts n.
func (fc *FloatCounter) Sub(n float64) { fc.Add(-n) }

// Get returns the value.
func (fc *FloatCounter) Get() float64 {
	if n := fc.whole.Load(); n > floatBelow {
		return float64(n)
	}
	fc.mu.Lock()
	v := fc.v
	fc.mu.Unlock()
	return v
}

// Set sets the counter to n.
func (fc *FloatCounter) Set(n float64) {
	fc.mu.Lock()
	fc.toFloat()
	fc.v = n
	fc.mu.Unlock()
}

func (fc *FloatCounter) typeName() string { return "counter" }

func (fc *FloatCounter) appendTo(dst []byte) []byte { return appendFloat(dst, fc.name, fc.Get()) }

func (fc *FloatCounter) read(m *exposition.Metric) bool {
	m.Reset(exposition.Counter)
	m.Value, m.Exemplar = fc.Get(), fc.example.Load().read(m)
	return true
}

// CounterFunc is a counter. A callback returns its value at every scrape.
type CounterFunc struct{ callbackMetric }

func (c *CounterFunc) typeName() string { return "counter" }

func (c *CounterFunc) read(m *exposition.Metric) bool { return c.readAs(exposition.Counter, m) }

// GaugeFunc is a gauge of a GaugeFuncVec. A callback returns its value at every scrape. For
// a single gauge with a callback use NewGauge.
type GaugeFunc struct{ callbackMetric }

func (g *GaugeFunc) typeName() string { return "gauge" }

func (g *GaugeFunc) read(m *exposition.Metric) bool { return g.readAs(exposition.Gauge, m) }

// callbackMetric is a metric with a callback.
type callbackMetric struct {
	named
	callback atomic.Pointer[func() float64]
}

// SetFunc replaces the callback, which must be safe for concurrent calls. Without a
// callback the metric is not exposed: a new member of a vector has none, and SetFunc(nil)
// removes the callback.
func (c *callbackMetric) SetFunc(f func() float64) {
	if f == nil {
		c.callback.Store(nil)
		return
	}
	c.callback.Store(&f)
}

// Get returns the result of the callback, 0 without one.
func (c *callbackMetric) Get() float64 {
	if f := c.callback.Load(); f != nil {
		return (*f)()
	}
	return 0
}

func (c *callbackMetric) appendTo(dst []byte) []byte {
	v, f := 0.0, c.callback.Load()
	if f != nil && safeCall(c.name, *f, &v) {
		return appendNumber(dst, c.name, v)
	}
	return dst
}

func (c *callbackMetric) readAs(t exposition.Type, m *exposition.Metric) bool {
	m.Reset(t)
	f := c.callback.Load()
	return f != nil && safeCall(c.name, *f, &m.Value)
}

// Gauge is a value that goes up and down, or the result of a callback at every scrape.
// The zero Gauge is ready for use but is not registered in a Set.
type Gauge struct {
	named
	v        atomicFloat // hasCallback with a callback
	callback func() float64
}

// hasCallback is a NaN that marks a gauge with a callback. So Set needs no field but the value: it
// would wait for the cache line again if another core has written the value meanwhile.
const hasCallback = 0x7ff8_0000_fe50_1a00

func newGauge(name string, f func() float64) *Gauge {
	g := &Gauge{named: named{name}, callback: f}
	if f != nil {
		g.v.bits.Store(hasCallback)
	}
	return g
}

// panicked has the names of metrics whose callback has panicked, each logged once.
var panicked = loggedNames{}

// loggedNames limits a log message to one line for each name, and to namesMax lines in all.
type loggedNames struct {
	mu    sync.Mutex
	names map[string]struct{}
}

const namesMax = 1000

// first reports whether the name is to be logged now: it was not logged before, and the limit is not reached.
func (l *loggedNames) first(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, there := l.names[name]; there || len(l.names) >= namesMax {
		return false
	}
	if l.names == nil {
		l.names = map[string]struct{}{}
	}
	l.names[name] = struct{}{}
	return true
}

// Get returns the value, which is the result of the callback if the gauge has one.
func (g *Gauge) Get() float64 {
	if g.callback != nil {
		return g.callback()
	}
	return g.v.load()
}

// Set sets the gauge to v. It panics if the gauge has a callback.
func (g *Gauge) Set(v float64) {
	if g.v.swap(v) == hasCallback && g.callback != nil {
		g.v.bits.Store(hasCallback)
		g.panicHasCallback("Set")
	}
}

// Add adds v, which may be negative. It panics if the gauge has a callback.
func (g *Gauge) Add(v float64) {
	if g.callback != nil {
		g.panicHasCallback("Add")
	}
	g.v.add(v)
}

// Inc adds one. It panics if the gauge has a callback.
func (g *Gauge) Inc() { g.Add(1) }

// Dec subtracts one. It panics if the gauge has a callback.
func (g *Gauge) Dec() { g.Add(-1) }

func (g *Gauge) panicHasCallback(method string) {
	panic(fmt.Errorf("BUG: %s called on gauge %q, which has a callback", method, g.name))
}

func (g *Gauge) typeName() string { return "gauge" }

func (g *Gauge) appendTo(dst []byte) []byte {
	if v := g.v.load(); g.callback == nil || safeCall(g.name, g.callback, &v) {
		return appendNumber(dst, g.name, v)
	}
	return dst
}

func (g *Gauge) read(m *exposition.Metric) bool {
	m.Reset(exposition.Gauge)
	m.Value = g.v.load()
	return g.callback == nil || safeCall(g.name, g.callback, &m.Value)
}

// safeCall sets v to the result of the callback, for a scrape. It recovers a panic of the
// callback and returns false: the scrape goes on without this metric. The first panic of
// each metric is logged.
func safeCall(name string, callback func() float64, v *float64) (ok bool) {
	defer func() {
		if reason := recover(); reason != nil {
			ok = false
			if panicked.first(name) {
				log.Printf("ERROR: metrics: the callback of %q panicked, and the metric is left out of the scrape: %v",
					name, reason)
			}
		}
	}()
	*v = callback()
	return true
}

// exemplar is the last exemplar of a counter or bucket. Its memory is allocated for the
// first exemplar and then reused.
type exemplar struct {
	mu     sync.Mutex
	labels []byte // name="value", escaped, each followed by a comma
	value  float64
	atMS   int64 // 0: there is none
}

const exemplarRunesMax = 128 // limit of OpenMetrics, of names and values together

func getOrCreateExemplar(p *atomic.Pointer[exemplar]) *exemplar {
	if x := p.Load(); x != nil {
		return x
	}
	p.CompareAndSwap(nil, &exemplar{})
	return p.Load()
}

func (x *exemplar) set(v float64, labels []string) {
	runes := 0
	for i, text := range labels {
		if runes += utf8.RuneCountInString(text); runes > exemplarRunesMax || !utf8.ValidString(text) || i%2 == 0 &&
			!exposition.IsClassicLabel(text) {
			return
		}
	}
	if len(labels) == 0 || len(labels)%2 != 0 {
		return
	}
	now := time.Now().UnixMilli()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.labels, x.value, x.atMS = x.labels[:0], v, now
	for i := 0; i < len(labels); i += 2 {
		x.labels = append(append(x.labels, labels[i]...), `="`...)
		x.labels = append(exposition.AppendQuoted(x.labels, labels[i+1], true), `",`...)
	}
}

// read returns the exemplar, whose labels are copied into a buffer of m. x may be nil.
func (x *exemplar) read(m *exposition.Metric) exposition.Exemplar {
	if x == nil {
		return exposition.Exemplar{}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.atMS == 0 {
		return exposition.Exemplar{}
	}
	return m.NewExemplar(x.labels, x.value, x.atMS)
}

// atomicFloat is a float64 without a lock: add repeats a compare-and-swap until it succeeds.
type atomicFloat struct{ bits atomic.Uint64 }

func (f *atomicFloat) load() float64 { return math.Float64frombits(f.bits.Load()) }

// swap stores v and returns the bits of the value before.
func (f *atomicFloat) swap(v float64) uint64 { return f.bits.Swap(math.Float64bits(v)) }

func (f *atomicFloat) add(v float64) {
	for {
		old := f.bits.Load()
		if f.bits.CompareAndSwap(old, math.Float64bits(math.Float64frombits(old)+v)) {
			return
		}
	}
}

// appendUint appends one line. prefix is the name with its labels, as registered.
func appendUint(dst []byte, prefix string, n uint64) []byte {
	dst = append(append(dst, prefix...), ' ')
	return append(strconv.AppendUint(dst, n, 10), '\n')
}

func appendFloat(dst []byte, prefix string, v float64) []byte {
	dst = append(append(dst, prefix...), ' ')
	return append(strconv.AppendFloat(dst, v, 'g', -1, 64), '\n')
}

// appendNumber appends one line. It writes integers without an exponent.
func appendNumber(dst []byte, prefix string, v float64) []byte {
	n := int64(v)
	if float64(n) == v && n >= 0 {
		return appendUint(dst, prefix, uint64(n))
	}
	if float64(n) == v {
		dst = append(append(dst, prefix...), ' ')
		return append(strconv.AppendInt(dst, n, 10), '\n')
	}
	return appendFloat(dst, prefix, v)
}

// appendFloatText appends the shortest text of v.
func appendFloatText(dst []byte, v float64) []byte { return strconv.AppendFloat(dst, v, 'g', -1, 64) }
