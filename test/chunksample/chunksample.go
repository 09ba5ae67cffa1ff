// Package chunksample has float samples for tests that write series and blocks.
package chunksample

import (
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
)

// Float is a chunks.Sample with a float value.
type Float struct {
	MS    int64
	Value float64
}

// T implements chunks.Sample.
func (s Float) T() int64 { return s.MS }

// ST implements chunks.Sample: there is no start timestamp.
func (s Float) ST() int64 { return 0 }

// F implements chunks.Sample.
func (s Float) F() float64 { return s.Value }

// H implements chunks.Sample.
func (s Float) H() *histogram.Histogram { return nil }

// FH implements chunks.Sample.
func (s Float) FH() *histogram.FloatHistogram { return nil }

// Type implements chunks.Sample.
func (s Float) Type() chunkenc.ValueType { return chunkenc.ValFloat }

// Copy implements chunks.Sample.
func (s Float) Copy() chunks.Sample { return s }
