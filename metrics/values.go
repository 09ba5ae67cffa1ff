package metrics

import (
	"fmt"
	"math"
	"strconv"
	"sync/atomic"

	"github.com/ferula-io/ferula/metrics/internal/exposition"
)

// Counter counts up in whole steps. With Dec and Set it may serve as a gauge. The
// zero Counter counts, but belongs to no set.
type Counter struct {
	named
	n atomic.Uint64
}

// Inc adds one.
func (c *Counter) Inc() { c.n.Add(1) }

// Dec takes one away.
func (c *Counter) Dec() { c.n.Add(^uint64(0)) }

// Add adds n.
func (c *Counter) Add(n int) { c.n.Add(uint64(n)) }

// AddInt64 adds n.
func (c *Counter) AddInt64(n int64) { c.n.Add(uint64(n)) }

// Get returns the count.
func (c *Counter) Get() uint64 { return c.n.Load() }

// Set makes n the count.
func (c *Counter) Set(n uint64) { c.n.Store(n) }

func (c *Counter) typeName() string { return "counter" }

func (c *Counter) appendTo(dst []byte) []byte { return appendUint(dst, c.name, c.Get()) }

func (c *Counter) read(m *exposition.Metric) bool {
	m.Reset(exposition.Counter)
	m.Value = float64(c.Get())
	return true
}

// FloatCounter counts up in steps of any size. With Sub and Set it may serve as a
// gauge. The zero FloatCounter counts, but belongs to no set.
type FloatCounter struct {
	named
	v atomicFloat
}

// Add adds n.
func (fc *FloatCounter) Add(n float64) { fc.v.add(n) }

// Sub takes n away.
func (fc *FloatCounter) Sub(n float64) { fc.v.add(-n) }

// Get returns the count.
func (fc *FloatCounter) Get() float64 { return fc.v.load() }

// Set makes n the count.
func (fc *FloatCounter) Set(n float64) { fc.v.store(n) }

func (fc *FloatCounter) typeName() string { return "counter" }

func (fc *FloatCounter) appendTo(dst []byte) []byte { return appendFloat(dst, fc.name, fc.Get()) }

func (fc *FloatCounter) read(m *exposition.Metric) bool {
	m.Reset(exposition.Counter)
	m.Value = fc.Get()
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
	if g.call == nil {
		return appendNumber(dst, g.name, g.v.load())
	}
	return g.appendCalled(dst)
}

// appendCalled leaves the line out if the callback panics: a scrape has no caller
// who could do anything about it.
func (g *Gauge) appendCalled(dst []byte) (line []byte) {
	defer func() {
		if recover() != nil {
			line = dst
		}
	}()
	return appendNumber(dst, g.name, g.call())
}

func (g *Gauge) read(m *exposition.Metric) (ok bool) {
	defer func() { ok = recover() == nil }()
	m.Reset(exposition.Gauge)
	m.Value = g.Get()
	return true
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
	if n := int64(v); float64(n) == v {
		dst = append(append(dst, prefix...), ' ')
		return append(strconv.AppendInt(dst, n, 10), '\n')
	}
	return appendFloat(dst, prefix, v)
}

func appendShort(dst []byte, v float64) []byte { return strconv.AppendFloat(dst, v, 'g', -1, 64) }
