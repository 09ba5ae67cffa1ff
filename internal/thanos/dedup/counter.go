package dedup

import (
	"math"

	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// Counter adjusts counter resets: the floats that it returns never decrease. It skips NaN samples, and returns
// histograms unchanged.
//
// A downsampled counter chunk ends with two samples that have the same timestamp. The first has the adjusted value. The
// second has the value that the counter really had, from which a reset before the next chunk is found. Counter does not
// return the second sample. It also skips samples that are earlier than the last returned sample.
func Counter(it chunkenc.Iterator) chunkenc.Iterator {
	return &counter{Iterator: it, atMS: math.MinInt64}
}

type counter struct {
	chunkenc.Iterator
	begun     bool
	valueType chunkenc.ValueType
	atMS      int64
	last      float64 // last value of the source, not adjusted
	resets    float64 // sum of the values before the resets
	value     float64
	counting  bool // a float sample was read
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

// take reads a float sample and sets atMS and value. It reports whether the sample is to be returned.
func (c *counter) take(t int64, v float64) bool {
	switch {
	case math.IsNaN(v):
		return false
	case !c.counting:
		c.counting = true
	case t == c.atMS:
		// The second sample at the end of a downsampled chunk has the real value, with which the next sample must be
		// compared. last becomes v, and resets grows by the difference: their sum, the value that was returned, stays the
		// same.
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

// Seek implements chunkenc.Iterator; milliseconds is another name of int64. It reads all samples up to t, because a
// reset may be among them.
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
