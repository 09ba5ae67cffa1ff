package series

import (
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
)

// Floats is a series whose samples are decoded together.
type Floats interface {
	storage.Series
	// AppendFloats appends the samples from mint to maxt, in ms, in the order in which Iterator returns them. It may also
	// append samples outside that range. ok is false for a series with histograms: the caller must use Iterator.
	AppendFloats(to []promql.FPoint, mint, maxt int64) (points []promql.FPoint, ok bool, err error)
}

// FloatsSet is an optional interface of a storage.SeriesSet. Its series stay valid until the
// querier is closed, and several goroutines may decode them at the same time.
type FloatsSet interface {
	storage.SeriesSet
	// AtFloats returns the same series as At.
	AtFloats() Floats
}
