package remoteread

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"

	"github.com/ferula-io/ferula/internal/codec/labelenc"
	"github.com/ferula-io/ferula/internal/series"
)

// Endpoint is another server that is read beside the local storage: a remote_read
// section of a configuration.
type Endpoint struct {
	Client *Client
	// ExternalLabels are this server's own. They are asked for as matchers, unless a
	// query names them, and taken off what comes back.
	ExternalLabels labels.Labels
	// RequiredMatchers have to be in a query for the endpoint to be asked.
	RequiredMatchers []*labels.Matcher
	// LocalStart, in ms, is where the local storage begins to have everything: what
	// is younger is not asked for. nil asks for all.
	LocalStart func() (int64, error)
}

// upTo is the last millisecond that the endpoint is asked for; ok is false if the
// local storage has the whole range.
func (e Endpoint) upTo(mint, maxt int64) (_ int64, ok bool, err error) {
	if e.LocalStart == nil {
		return maxt, true, nil
	}
	start, err := e.LocalStart()
	return min(maxt, start), mint <= start, err
}

// narrow adds matchers for the external labels that no matcher names, and gives
// the names of those.
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

// sel selects from the endpoint by one of its client's queriers.
func (e Endpoint) sel(ctx context.Context, q *clientQuerier, hints *storage.SelectHints, matchers []*labels.Matcher) series.Set {
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
			set.windowBytes = set.holdBytesMax // {a, b, external} stood before {a, external}
			return &stripped{source: from, names: added}, nil
		}
	}
	return set
}

// stripped takes labels off every series.
type stripped struct {
	source
	names  []string
	labels []byte
}

func (s *stripped) next() error {
	if err := s.source.next(); err != nil {
		return err
	}
	s.labels = s.labels[:0]
	for left := s.source.Labels(); len(left) > 0; {
		name, _, rest, err := labelenc.Next(left)
		if err != nil {
			return err
		}
		if !slices.Contains(s.names, string(name)) {
			s.labels = append(s.labels, left[:len(left)-len(rest)]...)
		}
		left = rest
	}
	return nil
}

func (s *stripped) Labels() []byte { return s.labels }
func (*stripped) ahead() []byte    { return nil }

// Fanout reads the local storage and other servers as one, as Prometheus does: an
// endpoint that fails at once is a warning beside the local answer, one that
// fails later fails the query. It is safe for concurrent use.
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

// NewFanout makes one that reads the local storage only.
func NewFanout(local interface {
	storage.Queryable
	storage.ChunkQueryable
}) *Fanout {
	f := &Fanout{local: local}
	f.SetEndpoints(nil)
	return f
}

// SetEndpoints changes what is read beside the local storage, from the next
// querier on. The slice is shared and immutable from now on.
func (f *Fanout) SetEndpoints(endpoints []Endpoint) { f.endpoints.Store(&endpoints) }

// asked are the endpoints that a range needs, as queriers.
func (f *Fanout) asked(mint, maxt int64) ([]endpointQuerier, error) {
	var asked []endpointQuerier
	for _, e := range *f.endpoints.Load() {
		last, ok, err := e.upTo(mint, maxt)
		if err != nil {
			return nil, err
		}
		if ok {
			asked = append(asked, endpointQuerier{storageQuerier{clientQuerier{client: e.Client, mint: mint, maxt: last}}, e})
		}
	}
	return asked, nil
}

// Querier implements storage.Queryable.
func (f *Fanout) Querier(mint, maxt int64) (storage.Querier, error) {
	asked, err := f.asked(mint, maxt)
	if err != nil {
		return nil, err
	}
	local, err := f.local.Querier(mint, maxt)
	if err != nil || len(asked) == 0 {
		return local, err
	}
	var remote []storage.Querier
	for _, q := range asked {
		remote = append(remote, &endpointSampleQuerier{q})
	}
	return storage.NewMergeQuerier([]storage.Querier{local}, remote, storage.ChainedSeriesMerge), nil
}

// ChunkQuerier implements storage.ChunkQueryable.
func (f *Fanout) ChunkQuerier(mint, maxt int64) (storage.ChunkQuerier, error) {
	asked, err := f.asked(mint, maxt)
	if err != nil {
		return nil, err
	}
	local, err := f.local.ChunkQuerier(mint, maxt)
	if err != nil || len(asked) == 0 {
		return local, err
	}
	var remote []storage.ChunkQuerier
	for _, q := range asked {
		remote = append(remote, &endpointChunkQuerier{q})
	}
	return storage.NewMergeChunkQuerier([]storage.ChunkQuerier{local}, remote, storage.NewCompactingChunkSeriesMerger(storage.ChainedSeriesMerge)), nil
}

type endpointQuerier struct {
	storageQuerier
	endpoint Endpoint
}

type endpointSampleQuerier struct{ endpointQuerier }

// Select implements storage.Querier.
func (q *endpointSampleQuerier) Select(ctx context.Context, _ bool, hints *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	return series.ToSeriesSet(q.endpoint.sel(ctx, &q.clientQuerier, hints, matchers))
}

type endpointChunkQuerier struct{ endpointQuerier }

// Select implements storage.ChunkQuerier.
func (q *endpointChunkQuerier) Select(ctx context.Context, _ bool, hints *storage.SelectHints, matchers ...*labels.Matcher) storage.ChunkSeriesSet {
	return series.ToChunkSeriesSet(q.endpoint.sel(ctx, &q.clientQuerier, hints, matchers))
}
