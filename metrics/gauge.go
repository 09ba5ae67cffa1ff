package metrics

import "fmt"

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
