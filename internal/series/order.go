package series

import (
	"context"

	"github.com/prometheus/prometheus/model/labels"
)

// Unsorted is an optional interface of a Querier whose storage has an order of its own: the order in which a
// storage.Querier returns series if sortSeries is false. Prometheus' engine selects in that order, and a sum of floats
// depends on the order of its series.
type Unsorted interface {
	// SelectUnsorted selects the same series as Select, in the order of the storage. sorted reports whether the series
	// are sorted by labels nevertheless. A set that is not sorted must not be merged with other sets.
	SelectUnsorted(ctx context.Context, matchers ...*labels.Matcher) (set Set, sorted bool)
}

// SelectUnsorted selects series in the order of the storage. The series of a querier that does
// not implement Unsorted are sorted by labels.
func SelectUnsorted(ctx context.Context, q Querier, matchers ...*labels.Matcher) (set Set, sorted bool) {
	if u, ok := q.(Unsorted); ok {
		return u.SelectUnsorted(ctx, matchers...)
	}
	return q.Select(ctx, matchers...), true
}

// Merging is an optional interface of a Querier. The method returns true if the Querier may merge samples of several
// stores. If two stores have different samples with the same timestamp, the Querier may then choose another of them
// than the storage.Querier of the same storage.
type Merging interface{ Merging() bool }
