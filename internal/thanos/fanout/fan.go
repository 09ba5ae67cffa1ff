package fanout

import (
	"context"
	"fmt"

	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/metrics"
)

// fanoutStreams are the response streams of all stores of a request.
type fanoutStreams struct {
	ctx     context.Context // of all the streams
	cancel  context.CancelCauseFunc
	streams []*storeStream
	missing []error // one for each store that may have data and is not queried
	steps   lacking // what the stores may leave out
}

// fan chooses the stores that may have data and creates their streams. It sends no request yet. The
// caller closes the streams.
func (f *Fanout) fan(ctx context.Context, r Request, sr storeapi.SeriesRequest) (*fanoutStreams, error) {
	own := &f.endpoints.opts.Selector
	matchers, ok := own.restrict(sr.Matchers)
	if !ok { // the matchers exclude the querier's own labels
		none := &fanoutStreams{}
		none.ctx, none.cancel = context.WithCancelCause(ctx)
		return none, nil
	}
	if len(matchers) == 0 && !own.Labels.IsEmpty() {
		return nil, fmt.Errorf("%w: no matchers except on the querier's own labels", storeapi.ErrBadRequest)
	}
	sr.Matchers, sr.AbortOnPartial = matchers, r.AbortOnPartial
	c, err := f.endpoints.chooseData(r, func(info *storeapi.Info) bool {
		return mayHold(info, sr.MinMS, sr.MaxMS, sr.Matchers)
	})
	if err != nil {
		return nil, err
	}
	all := &fanoutStreams{missing: c.missing, steps: f.relax(&sr, c.infos)}
	all.ctx, all.cancel = context.WithCancelCause(storeapi.WithTenant(ctx, r.Tenant))
	for i, s := range c.stores {
		one := sr
		one.Matchers = both(sr.Matchers, c.matchers[i])
		all.streams = append(all.streams, f.stream(all.ctx, s, c.infos[i], one))
	}
	return all, nil
}

// stream returns the stream of one store. What the store cannot do itself, by its Info, the stream does.
func (f *Fanout) stream(ctx context.Context, s *store, info *storeapi.Info, r storeapi.SeriesRequest) *storeStream {
	stream := &storeStream{fanout: f, store: s, request: r, call: newCall(ctx, f.opts.ResponseTimeout)}
	can := &storeapi.StoreInfo{}
	if info != nil && info.Store != nil {
		can = info.Store
	}
	if len(r.WithoutReplicaLabels) > 0 && !can.WithoutReplicaLabels {
		stream.replica.names = r.WithoutReplicaLabels
		stream.request.WithoutReplicaLabels = nil
		stream.request.Limit = 0 // replicas are merged into one series, so more than Limit may be needed from the store
	}
	// A store that does not remove replica labels would hash them, too.
	if r.Shard != nil && (len(stream.replica.names) > 0 || !can.Sharding) {
		stream.shard = storeapi.NewShardFilter(r.Shard)
		stream.request.Shard, stream.request.Limit = nil, 0
	}
	return stream
}

func (a *fanoutStreams) close() {
	a.cancel(context.Canceled)
	for _, s := range a.streams {
		s.close()
	}
	a.streams = nil
}

// merged merges the series of all stores of a request, sorted by labels.
type merged struct {
	series.Set
	*fanoutStreams
	ahead   []*readAheadSet
	partial *metrics.Counter
}

// merge queries the stores for another querier. With several stores, a goroutine reads ahead from each, so that the
// stores send at the same time. A goroutine stops reading while aheadPages pages of its store wait for the merge, or
// while its store has more than neededPages pages and no memory is free.
func (f *Fanout) merge(ctx context.Context, r Request, sr storeapi.SeriesRequest) (*merged, error) {
	all, err := f.fan(ctx, r, sr)
	if err != nil {
		return nil, err
	}
	m := &merged{fanoutStreams: all, partial: f.endpoints.metrics.partial.With(forwarded)}
	sets := make([]series.Set, 0, len(all.streams))
	needed := int64(len(all.streams)) * neededBytes
	f.budget.keepFree(needed) // the first stores must not take the memory of stores whose goroutine is not started yet
	defer f.budget.keepFree(-needed)
	for _, s := range all.streams {
		s.memory.budget = &f.budget
		var set series.Set = s
		if names := s.replica.names; len(names) > 0 {
			s.replica.names, s.shard = nil, nil // the server applies the shard to the merged series
			set = series.WithoutLabels(s, names, int(f.opts.SortBytesMax))
		}
		if len(all.streams) > 1 {
			a := readAhead(s.call.ctx, set, &f.budget, s.named, func(p any) error {
				return f.endpoints.panicked(s.store.address, p)
			})
			m.ahead, set = append(m.ahead, a), a
		}
		sets = append(sets, set)
	}
	m.Set = series.Merge(sets...)
	return m, nil
}

func (m *merged) Warnings() annotations.Annotations {
	var all annotations.Annotations
	for _, err := range m.missing {
		all.Add(err)
	}
	all.Merge(m.Set.Warnings())
	return all
}

// close cancels the requests, waits for all goroutines of the merge and releases their memory.
func (m *merged) close() {
	m.cancel(context.Canceled)
	for _, a := range m.ahead {
		a.close()
	}
	if len(m.Warnings()) > 0 {
		m.partial.Inc()
	}
	m.fanoutStreams.close()
}
