package series

import (
	"context"

	"github.com/prometheus/prometheus/model/labels"
)

// Unsorted is an optional interface of a Querier whose storage has an order of its own: the order in which a
// storage.Querier returns series if sortSeries is false. Prometheus' engine selects in that order, and a sum of floats
// depends on the order of its series.
type Unsorted interface {
	// SelectUnsorted is Select, except for the order of the series. It is the order in which a storage.Querier of the
	// same storage and range returns them without sorting. sorted reports whether that is the order of the labels; if
	// not, the set must not be merged with others.
	SelectUnsorted(ctx context.Context, matchers ...*labels.Matcher) (set Set, sorted bool)
}

// SelectUnsorted selects in the order of the storage. A querier that does not implement
// Unsorted has the order of the labels.
func SelectUnsorted(ctx context.Context, q Querier, matchers ...*labels.Matcher) (set Set, sorted bool) {
	if u, ok := q.(Unsorted); ok {
		return u.SelectUnsorted(ctx, matchers...)
	}
	return q.Select(ctx, matchers...), true
}

// Merging is an optional interface of a Querier that may have to merge the samples of several stores of one storage. Of
// samples with the same timestamp, the storage's own storage.Querier may then choose another sample than this Querier.
type Merging interface{ Merging() bool }
