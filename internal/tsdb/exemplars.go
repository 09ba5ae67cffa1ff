package tsdb

import (
	"context"
	"math"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb"
)

// exemplarRing allocates the memory for exemplars with the first one: 6.4 MB, which the garbage collector would add to
// what is live, and so to what may be allocated until the next collection.
type exemplarRing struct {
	grown atomic.Bool // it has its memory, from the first exemplar on or from the replay
	max   atomic.Int64

	mu    sync.Mutex
	ring  *tsdb.CircularExemplarStorage
	limit prometheus.Gauge // how many it may have, a metric of the database
}

// shrink frees the memory if the replay of the log has found no exemplar. It is called before db is used.
func (r *exemplarRing) shrink(db *tsdb.DB) error {
	querier, err := db.ExemplarQuerier(context.Background())
	if err != nil {
		return err
	}
	ring, ok := querier.(*tsdb.CircularExemplarStorage)
	found, err := querier.Select(math.MinInt64, math.MaxInt64, []*labels.Matcher{})
	empty := ok && len(found) == 0
	r.grown.Store(!empty)
	if empty {
		r.ring = ring
		r.setMax(r.max.Load())
	}
	return err
}

// grow is called before an exemplar is appended.
func (r *exemplarRing) grow() {
	if r.grown.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.grown.Load() {
		r.ring.Resize(r.max.Load())
		r.grown.Store(true)
	}
}

// setMax sets the number of exemplars to keep. The database may have the number already, or the one before it.
func (r *exemplarRing) setMax(exemplars int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.max.Store(exemplars)
	if r.ring == nil {
		return
	}
	if r.grown.Load() {
		r.ring.Resize(exemplars)
		return
	}
	r.ring.Resize(0)
	r.limit.Set(float64(max(exemplars, 0)))
}
