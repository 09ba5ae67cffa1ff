package dedup

import (
	"math"

	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// Counter makes the resets of a counter good: what it shows never falls. Samples
// that are no number are left out, histograms shown as they are.
//
// A downsampled chunk ends with a second sample at the last one's time, which is
// not shown: it is the counter's true last value, from which the next chunk's first
// sample tells whether there was a reset between. Samples that lie before the last
// one are left out too.
func Counter(it chunkenc.Iterator) chunkenc.Iterator {
	return &counter{Iterator: it, atMS: math.MinInt64}
}

type counter struct {
	chunkenc.Iterator
	begun     bool
	valueType chunkenc.ValueType
	atMS      int64
	last      float64 // as the source has it
	resets    float64 // what has been counted before them
	value     float64
	counting  bool
}

// Next implements chunkenc.Iterator.
func (c *counter) Next() chunkenc.ValueType {
	c.begun = true
	for {
		switch c.valueType = c.Iterator.Next(); c.valueType {
		case chunkenc.ValNone:
			return chunkenc.ValNone
		case chunkenc.ValFloat:
			if c.take(c.Iterator.At()) {
				return c.valueType
			}
		default:
			if t := c.Iterator.AtT(); t > c.atMS {
				c.atMS = t
				return c.valueType
			}
		}
	}
}

// take says whether a sample is to be shown.
func (c *counter) take(t int64, v float64) bool {
	switch {
	case math.IsNaN(v):
		return false
	case !c.counting:
		c.counting = true
	case t == c.atMS:
		// The true last value; what was counted up to it is what was shown.
		c.resets += c.last - v
		c.last = v
		return false
	case t < c.atMS:
		return false
	case v < c.last:
		c.resets += c.last
	}
	c.atMS, c.last, c.value = t, v, v+c.resets
	return true
}

// Seek implements chunkenc.Iterator. It goes through all samples, since a reset may
// be among those that are passed.
func (c *counter) Seek(t milliseconds) chunkenc.ValueType {
	if c.begun && (c.valueType == chunkenc.ValNone || c.atMS >= t) {
		return c.valueType
	}
	for {
		if vt := c.Next(); vt == chunkenc.ValNone || c.atMS >= t {
			return vt
		}
	}
}

// At implements chunkenc.Iterator.
func (c *counter) At() (int64, float64) { return c.atMS, c.value }

// AtT implements chunkenc.Iterator.
func (c *counter) AtT() int64 { return c.atMS }
