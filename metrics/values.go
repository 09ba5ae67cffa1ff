package metrics

import (
	"fmt"
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/ferula-io/ferula/metrics/internal/exposition"
)

// Counter counts up in whole steps. With Dec and Set it may serve as a gauge. The
// zero Counter counts, but belongs to no set.
type Counter struct {
	named
	n       atomic.Uint64
	example atomic.Pointer[exemplar]
}

// Inc adds one.
func (c *Counter) Inc() { c.n.Add(1) }

// Dec takes one away.
func (c *Counter) Dec() { c.n.Add(^uint64(0)) }

// Add adds n.
func (c *Counter) Add(n int) { c.n.Add(uint64(n)) }

// AddInt64 adds n.
func (c *Counter) AddInt64(n int64) { c.n.Add(uint64(n)) }

// IncWithExemplar is AddWithExemplar of one.
func (c *Counter) IncWithExemplar(labels ...string) { c.AddWithExemplar(1, labels...) }

// AddWithExemplar adds n, and tells in OpenMetrics and protobuf where to learn more of
// this one: labels are names and values in turn, such as "trace_id" and the id, of 128
// characters in all. The last exemplar is kept. What cannot be one is not, but n is
// added.
func (c *Counter) AddWithExemplar(n int, labels ...string) {
	c.Add(n)
	exemplarOf(&c.example).set(float64(n), labels)
}

// Get returns the count.
func (c *Counter) Get() uint64 { return c.n.Load() }

// Set makes n the count.
func (c *Counter) Set(n uint64) { c.n.Store(n) }

func (c *Counter) typeName() string { return "counter" }

func (c *Counter) appendTo(dst []byte) []byte { return appendUint(dst, c.name, c.Get()) }

func (c *Counter) read(m *exposition.Metric) bool {
	m.Reset(exposition.Counter)
	m.Value, m.Exemplar = float64(c.Get()), c.example.Load().read(m)
	return true
}

// FloatCounter counts up in steps of any size. With Sub and Set it may serve as a
// gauge. The zero FloatCounter counts, but belongs to no set.
//
// It has a lock: two cores that add to an atomic float undo each other's work, and
// take three times as long.
type FloatCounter struct {
	named
	mu      sync.Mutex
	v       float64
	example atomic.Pointer[exemplar]
}

// Add adds n.
func (fc *FloatCounter) Add(n float64) {
	fc.mu.Lock()
	fc.v += n
	fc.mu.Unlock()
}

// AddWithExemplar adds n as Counter.AddWithExemplar does.
func (fc *FloatCounter) AddWithExemplar(n float64, labels ...string) {
	fc.Add(n)
	exemplarOf(&fc.example).set(n, labels)
}

// Sub takes n away.
func (fc *FloatCounter) Sub(n float64) { fc.Add(-n) }

// Get returns the count.
func (fc *FloatCounter) Get() float64 {
	fc.mu.Lock()
	v := fc.v
	fc.mu.Unlock()
	return v
}

// Set makes n the count.
func (fc *FloatCounter) Set(n float64) {
	fc.mu.Lock()
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

// Gauge is a value that goes up and down, or one that a callback tells at every
// scrape. The zero Gauge keeps a value, but belongs to no set.
type Gauge struct {
	named
	v    atomicFloat
	call func() float64
}

// Get returns the value, asking the callback if there is one.
func (g *Gauge) Get() float64 {
	if g.call != nil {
		return g.call()
	}
	return g.v.load()
}

// Set makes v the value. It panics if the gauge has a callback.
func (g *Gauge) Set(v float64) {
	if g.call != nil {
		g.refuse("Set")
	}
	g.v.store(v)
}

// Add adds v, which may be negative. It panics if the gauge has a callback.
func (g *Gauge) Add(v float64) {
	if g.call != nil {
		g.refuse("Add")
	}
	g.v.add(v)
}

// Inc adds one. It panics if the gauge has a callback.
func (g *Gauge) Inc() { g.Add(1) }

// Dec takes one away. It panics if the gauge has a callback.
func (g *Gauge) Dec() { g.Add(-1) }

func (g *Gauge) refuse(method string) {
	panic(fmt.Errorf("BUG: %s called on gauge %q, which has a callback", method, g.name))
}

func (g *Gauge) typeName() string { return "gauge" }

func (g *Gauge) appendTo(dst []byte) []byte {
	if v := g.v.load(); g.call == nil || g.called(&v) {
		return appendNumber(dst, g.name, v)
	}
	return dst
}

func (g *Gauge) read(m *exposition.Metric) bool {
	m.Reset(exposition.Gauge)
	m.Value = g.v.load()
	return g.call == nil || g.called(&m.Value)
}

// called asks the callback for a scrape, which has no caller who could do anything
// about a panic.
func (g *Gauge) called(v *float64) (ok bool) {
	defer func() { ok = recover() == nil }()
	*v = g.call()
	return true
}

// exemplar is the last value that somebody wants to be found again. It is made with
// the first one, and its room is used again.
type exemplar struct {
	mu     sync.Mutex
	labels []byte // as between the braces of a name
	value  float64
	atMS   int64 // 0: there is none
}

const exemplarRunesMax = 128 // OpenMetrics' own limit, of names and values together

func exemplarOf(p *atomic.Pointer[exemplar]) *exemplar {
	if x := p.Load(); x != nil {
		return x
	}
	p.CompareAndSwap(nil, &exemplar{})
	return p.Load()
}

func (x *exemplar) set(v float64, labels []string) {
	runes := 0
	for i, text := range labels {
		if runes += utf8.RuneCountInString(text); runes > exemplarRunesMax || !utf8.ValidString(text) || i%2 == 0 && !exposition.IsClassic(text) {
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

// read copies the exemplar to m; x may be nil.
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

// atomicFloat is a float64 without a lock: an addition is tried until nobody came
// in between.
type atomicFloat struct{ bits atomic.Uint64 }

func (f *atomicFloat) load() float64   { return math.Float64frombits(f.bits.Load()) }
func (f *atomicFloat) store(v float64) { f.bits.Store(math.Float64bits(v)) }

func (f *atomicFloat) add(v float64) {
	for {
		old := f.bits.Load()
		if f.bits.CompareAndSwap(old, math.Float64bits(math.Float64frombits(old)+v)) {
			return
		}
	}
}

// appendUint appends one line. The prefix is a name with its labels and without the
// space, so that a name serves as it was registered.
func appendUint(dst []byte, prefix string, n uint64) []byte {
	dst = append(append(dst, prefix...), ' ')
	return append(strconv.AppendUint(dst, n, 10), '\n')
}

func appendFloat(dst []byte, prefix string, v float64) []byte {
	dst = append(append(dst, prefix...), ' ')
	return append(strconv.AppendFloat(dst, v, 'g', -1, 64), '\n')
}

// appendNumber writes whole numbers without an exponent.
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

func appendShort(dst []byte, v float64) []byte { return strconv.AppendFloat(dst, v, 'g', -1, 64) }
