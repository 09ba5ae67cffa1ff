package series

import (
	"context"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
)

// Floats is a series whose samples are decoded together.
type Floats interface {
	storage.Series
	// AppendFloats appends the samples from mint to maxt, in ms, in the order in which Iterator returns them. It may also
	// append samples outside that range. ok is false for a series with histograms: the caller must use Iterator.
	AppendFloats(to []promql.FPoint, mint, maxt int64) (points []promql.FPoint, ok bool, err error)
	// Summarized returns the chunks of the series, float chunks that do not overlap, if some of them are Summarized; nil
	// otherwise. If it returns chunks, the series cannot be read in another way.
	Summarized() []Chunk
}

// FloatsSet is a storage.SeriesSet whose series stay valid until the
// querier is closed. Several goroutines may decode them at the same time.
type FloatsSet interface {
	storage.SeriesSet
	// AtFloats returns the same series as At.
	AtFloats() Floats
}

// FloatsSelector is an optional interface of a storage.Querier.
type FloatsSelector interface {
	// SelectFloats is Select, for a caller that does not need all samples.
	SelectFloats(ctx context.Context, need Needs, hints *storage.SelectHints, matchers ...*labels.Matcher) FloatsSet
}

// Needs are the samples that a selection needs. The zero value: all.
type Needs struct {
	// Steps: of each series only the last sample at or before each step. A series may lack other samples. nil: all.
	Steps *Steps
	// Summaries: chunks without samples are enough where it says so; nil: they are not.
	Summaries *Summaries
}

// Within returns the points from mint to maxt.
func Within(points []promql.FPoint, mint, maxt int64) []promql.FPoint {
	for len(points) > 0 && points[0].T < mint {
		points = points[1:]
	}
	for len(points) > 0 && points[len(points)-1].T > maxt {
		points = points[:len(points)-1]
	}
	return points
}
