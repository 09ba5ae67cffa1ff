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

func (s Float) T() int64                      { return s.MS }
func (s Float) ST() int64                     { return 0 }
func (s Float) F() float64                    { return s.Value }
func (s Float) H() *histogram.Histogram       { return nil }
func (s Float) FH() *histogram.FloatHistogram { return nil }
func (s Float) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s Float) Copy() chunks.Sample           { return s }
