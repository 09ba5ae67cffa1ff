package sim

import (
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
)

// floatSample is a chunks.Sample with a float value.
type floatSample struct {
	ms int64
	v  float64
}

func (s floatSample) T() int64                      { return s.ms }
func (s floatSample) ST() int64                     { return 0 }
func (s floatSample) F() float64                    { return s.v }
func (s floatSample) H() *histogram.Histogram       { return nil }
func (s floatSample) FH() *histogram.FloatHistogram { return nil }
func (s floatSample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s floatSample) Copy() chunks.Sample           { return s }

// chunkSamples returns points sorted by timestamp.
func chunkSamples(points map[int64]float64) []chunks.Sample {
	var list []chunks.Sample
	for _, ms := range sortedKeys(points) {
		list = append(list, floatSample{ms, points[ms]})
	}
	return list
}
