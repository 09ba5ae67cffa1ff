package remoteread

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// Endpoint is a server that is read in addition to the local storage: one
// remote_read section of the configuration.
type Endpoint struct {
	Name   string // in errors and warnings
	Client *Client
	// ExternalLabels are the external labels of this process. A request has an equality matcher
	// for each of them, unless the query has a matcher for its name. The labels of the added
	// matchers are removed from the returned series.
	ExternalLabels labels.Labels
	// RequiredMatchers must all be in a query, or the endpoint is not queried.
	RequiredMatchers []*labels.Matcher
	// LocalStart returns the timestamp, in ms, from which on the local storage is
	// complete. Samples after it are not requested. nil: all samples are requested.
	LocalStart func() (int64, error)
}

// upTo returns the last millisecond that is requested from the endpoint. ok is
// false if the local storage has the whole range.
func (e Endpoint) upTo(mint, maxt int64) (_ int64, ok bool, err error) {
	if e.LocalStart == nil {
		return maxt, true, nil
	}
	start, err := e.LocalStart()
	return min(maxt, start), mint <= start, err
}

// narrow adds an equality matcher for every external label that no matcher names, and returns
// the names of these labels in added.
func (e Endpoint) narrow(matchers []*labels.Matcher) (_ []*labels.Matcher, added []string) {
	narrowed := slices.Clone(matchers)
	e.ExternalLabels.Range(func(l labels.Label) {
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return m.Name == l.Name }) {
			narrowed = append(narrowed, labels.MustNewMatcher(labels.MatchEqual, l.Name, l.Value))
			added = append(added, l.Name)
		}
	})
	return narrowed, added
}

// sel selects from the endpoint with a querier of its client.
func (e Endpoint) sel(ctx context.Context, q *clientQuerier, hints *storage.SelectHints,
	matchers []*labels.Matcher) series.Set {
	if !e.required(matchers) {
		return series.Failed(nil)
	}
	narrowed, added := e.narrow(matchers)
	set := q.sel(ctx, hints, narrowed)
	if len(added) > 0 {
		open := set.open
		set.open = func() (source, error) {
			from, err := open()
			if err != nil {
				return nil, err
			}
			// The order changes when the labels are removed: the server sorted {a, b, external} before {a, external}.
			set.windowBytes = set.holdBytesMax
			return &nameStripper{source: from, names: added}, nil
		}
	}
	return set
}

// nameStripper removes labels by name from every series.
type nameStripper struct {
	source
	names  []string
	labels []byte
}

func (s *nameStripper) next() error {
	if err := s.source.next(); err != nil {
		return err
	}
	var err error
	s.labels, err = labelenc.AppendWithout(s.labels[:0], s.source.Labels(), s.names)
	return err
}

func (s *nameStripper) Labels() []byte { return s.labels }
func (*nameStripper) ahead() []byte    { return nil }

// Fanout reads the local storage and the endpoints as one storage, as Prometheus does. An
// endpoint that fails before its first series adds a warning to the local result. An endpoint
// that fails later fails the query. A Fanout is safe for concurrent use.
type Fanout struct {
	local interface {
		storage.Queryable
		storage.ChunkQueryable
	}
	endpoints atomic.Pointer[[]Endpoint]
}

var (
	_ storage.SampleAndChunkQueryable = (*Fanout)(nil)
	_ series.Source                   = (*Fanout)(nil)
)

// NewFanout returns a Fanout without endpoints.
func NewFanout(local interface {
	storage.Queryable
	storage.ChunkQueryable
}) *Fanout {
	f := &Fanout{local: local}
	f.SetEndpoints(nil)
	return f
}

// SetEndpoints replaces the endpoints. Queriers that are open keep the old ones. The
// slice must not change afterwards.
func (f *Fanout) SetEndpoints(endpoints []Endpoint) { f.endpoints.Store(&endpoints) }

// endpointQueriers returns a querier for every endpoint that the range needs.
func (f *Fanout) endpointQueriers(mint, maxt int64) ([]endpointQuerier, error) {
	var queriers []endpointQuerier
	for _, e := range *f.endpoints.Load() {
		last, ok, err := e.upTo(mint, maxt)
		if err != nil {
			return nil, err
		}
		if ok {
			queriers = append(queriers, endpointQuerier{storageQuerier{clientQuerier{client: e.Client, mint: mint, maxt: last}},
				e})
		}
	}
	return queriers, nil
}

// Querier implements storage.Queryable.
func (f *Fanout) Querier(mint, maxt int64) (storage.Querier, error) {
	endpoints, err := f.endpointQueriers(mint, maxt)
	if err != nil {
		return nil, err
	}
	local, err := f.local.Querier(mint, maxt)
	if err != nil || len(endpoints) == 0 {
		return local, err
	}
	merged := func() storage.Querier {
		var remote []storage.Querier
		for _, q := range endpoints {
			remote = append(remote, &endpointSampleQuerier{q})
		}
		return storage.NewMergeQuerier([]storage.Querier{local}, remote, storage.ChainedSeriesMerge)
	}
	return &anytimeQuerier{Querier: merged(), again: merged}, nil
}

// anytimeQuerier merges a local querier with remote queriers, and can select at any time. Prometheus' merge querier
// panics if a selection follows the first Next of another selection, because an error of an endpoint fails all
// selections of that endpoint. Here the selections before the first Next still fail together. A later selection uses
// a new merge querier: the selections of that querier fail together, too.
type anytimeQuerier struct {
	storage.Querier
	// returns a new merge querier of the same queriers. The new querier is not closed: Querier.Close closes the merged
	// queriers
	again func() storage.Querier

	mu      sync.Mutex
	current storage.Querier // the merge querier of the latest selections; nil: there was no selection
	begun   *atomic.Bool    // whether Next of a set of current was called
}

// Select implements storage.Querier.
func (q *anytimeQuerier) Select(ctx context.Context, sorted bool, hints *storage.SelectHints,
	matchers ...*labels.Matcher) storage.SeriesSet {
	q.mu.Lock()
	if q.current == nil {
		q.current, q.begun = q.Querier, new(atomic.Bool)
	} else if q.begun.Load() {
		q.current, q.begun = q.again(), new(atomic.Bool)
	}
	from, begun := q.current, q.begun
	set := from.Select(ctx, sorted, hints, matchers...)
	q.mu.Unlock()
	return &anytimeSet{set, begun}
}

// anytimeSet records that it is being read.
type anytimeSet struct {
	storage.SeriesSet
	begun *atomic.Bool
}

// Next implements storage.SeriesSet.
func (s *anytimeSet) Next() bool {
	s.begun.Store(true)
	return s.SeriesSet.Next()
}

// ChunkQuerier implements storage.ChunkQueryable.
func (f *Fanout) ChunkQuerier(mint, maxt int64) (storage.ChunkQuerier, error) {
	endpoints, err := f.endpointQueriers(mint, maxt)
	if err != nil {
		return nil, err
	}
	local, err := f.local.ChunkQuerier(mint, maxt)
	if err != nil || len(endpoints) == 0 {
		return local, err
	}
	var remote []storage.ChunkQuerier
	for _, q := range endpoints {
		remote = append(remote, &endpointChunkQuerier{q})
	}
	return storage.NewMergeChunkQuerier([]storage.ChunkQuerier{local}, remote,
		storage.NewCompactingChunkSeriesMerger(storage.ChainedSeriesMerge)), nil
}

type endpointQuerier struct {
	storageQuerier
	endpoint Endpoint
}

type endpointSampleQuerier struct{ endpointQuerier }

// Select implements storage.Querier.
func (q *endpointSampleQuerier) Select(ctx context.Context, _ bool, hints *storage.SelectHints,
	matchers ...*labels.Matcher) storage.SeriesSet {
	return series.ToSeriesSet(q.endpoint.sel(ctx, &q.clientQuerier, hints, matchers))
}

type endpointChunkQuerier struct{ endpointQuerier }

// Select implements storage.ChunkQuerier.
func (q *endpointChunkQuerier) Select(ctx context.Context, _ bool, hints *storage.SelectHints,
	matchers ...*labels.Matcher) storage.ChunkSeriesSet {
	return series.ToChunkSeriesSet(q.endpoint.sel(ctx, &q.clientQuerier, hints, matchers))
}
