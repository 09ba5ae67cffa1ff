package sim

import (
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"

	"github.com/ferula-io/ferula/test/chunksample"
)

// histogramSample is a chunks.Sample with a native histogram.
type histogramSample struct {
	chunksample.Float
	h *histogram.FloatHistogram
}

func (s histogramSample) FH() *histogram.FloatHistogram { return s.h }
func (s histogramSample) Type() chunkenc.ValueType      { return chunkenc.ValFloatHistogram }
func (s histogramSample) Copy() chunks.Sample           { return s }

// chunkSamples returns points sorted by timestamp.
func chunkSamples(points map[int64]float64) []chunks.Sample {
	var list []chunks.Sample
	for _, ms := range sortedKeys(points) {
		list = append(list, chunksample.Float{MS: ms, Value: points[ms]})
	}
	return list
}
