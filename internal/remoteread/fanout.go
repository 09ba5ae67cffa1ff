package remoteread

import (
	"context"
	"errors"
	"io"
	"regexp"
	"slices"
	"sync/atomic"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

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

// required reports whether a query has all required matchers.
func (e Endpoint) required(matchers []*labels.Matcher) bool {
	for _, r := range e.RequiredMatchers {
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool {
			return m.Type == labels.MatchEqual && m.Name == r.Name && m.Value == r.Value
		}) {
			return false
		}
	}
	return true
}

// sel selects from the endpoint with a querier of its client, and adds the external labels that a series does not have.
// All series that it returns match all matchers.
func (e Endpoint) sel(ctx context.Context, q *Querier, hints *storage.SelectHints, external labels.Labels,
	matchers []*labels.Matcher) series.Set {
	if !e.required(matchers) {
		return series.Failed(nil)
	}
	var check, wanted []*labels.Matcher
	for _, m := range matchers {
		if !external.Has(m.Name) {
			wanted = append(wanted, m)
			continue
		}
		check = append(check, m)
		if e.ExternalLabels.Has(m.Name) {
			wanted = append(wanted, m) // the endpoint's series should have the label
		} else {
			wanted = append(wanted, matchersOrMissing(m, external.Get(m.Name))...)
		}
	}
	narrowed, added := e.narrow(wanted)
	if len(narrowed) == 0 { // remote read requires a matcher
		narrowed = append(narrowed, labels.MustNewMatcher(labels.MatchRegexp, labels.MetricName, ".*"))
	}
	set := q.sel(ctx, hints, narrowed)
	if len(added) == 0 && external.IsEmpty() {
		return set
	}
	// The order changes with the labels: without external, the server sorted {a, b, external} before {a, external}.
	set.windowBytes = set.holdBytesMax
	encoded, own := labelenc.Append(nil, external), []byte(nil)
	set.change = func(dst, lset []byte) (_ []byte, keep bool, err error) {
		if own, err = labelenc.AppendWithout(own[:0], lset, added); err != nil {
			return dst, false, err
		}
		if dst, err = labelenc.AppendMerged(dst, own, encoded); err != nil {
			return dst, false, err
		}
		keep, err = matchAll(check, dst)
		return dst, keep, err
	}
	return set
}

// matchersOrMissing returns matchers for an endpoint whose series may lack m's label. They match
// every series that matches m after a missing label was set to value. They may match others.
func matchersOrMissing(m *labels.Matcher, value string) []*labels.Matcher {
	matches := m.Matches(value)
	switch {
	case matches == m.Matches(""):
		return []*labels.Matcher{m}
	case !matches:
		return []*labels.Matcher{m, labels.MustNewMatcher(labels.MatchNotEqual, m.Name, "")}
	case m.Type == labels.MatchEqual:
		return []*labels.Matcher{labels.MustNewMatcher(labels.MatchRegexp, m.Name, "(?:"+regexp.QuoteMeta(m.Value)+")?")}
	case m.Type == labels.MatchRegexp:
		return []*labels.Matcher{labels.MustNewMatcher(labels.MatchRegexp, m.Name, "(?:"+m.Value+")?")}
	}
	return nil // a negation that excludes series without the label: Endpoint.sel checks
}

// matchAll reports whether a label set matches. It has a label for each matcher: they name external labels, which all
// series have.
func matchAll(matchers []*labels.Matcher, lset []byte) (bool, error) {
	if len(matchers) == 0 {
		return true, nil
	}
	found := 0
	for len(lset) > 0 {
		name, value, rest, err := labelenc.Next(lset)
		if err != nil {
			return false, err
		}
		for _, m := range matchers {
			if m.Name == string(name) {
				if !m.Matches(string(value)) {
					return false, nil
				}
				found++
			}
		}
		lset = rest
	}
	return found == len(matchers), nil
}

// Fanout reads the local storage and the endpoints as one storage, as Prometheus does. An
// endpoint that fails before its first series adds a warning to the local result. An endpoint
// that fails later fails the query. A Fanout is safe for concurrent use.
type Fanout struct {
	local     storage.SampleAndChunkQueryable
	endpoints atomic.Pointer[[]Endpoint]
}

var (
	_ storage.SampleAndChunkQueryable = (*Fanout)(nil)
	_ series.Source                   = (*Fanout)(nil)
)

// NewFanout returns a Fanout without endpoints.
func NewFanout(local storage.SampleAndChunkQueryable) *Fanout {
	f := &Fanout{local: local}
	f.SetEndpoints(nil)
	return f
}

// SetEndpoints replaces the endpoints. Queriers that are open keep the old ones. The
// slice must not change afterwards.
func (f *Fanout) SetEndpoints(endpoints []Endpoint) { f.endpoints.Store(&endpoints) }

// endpointQueriers returns a querier for every endpoint that the range needs.
func (f *Fanout) endpointQueriers(mint, maxt int64) ([]*endpointQuerier, error) {
	var queriers []*endpointQuerier
	for _, e := range *f.endpoints.Load() {
		last, ok, err := e.upTo(mint, maxt)
		if err != nil {
			return nil, err
		}
		if ok {
			queriers = append(queriers, &endpointQuerier{Querier: e.Client.Querier(mint, last), endpoint: e})
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
	return &sampleQuerier{local, endpoints}, nil
}

// sampleQuerier merges the samples of the local storage with those of the endpoints. Its labels are those of the local
// storage, with a warning.
type sampleQuerier struct {
	storage.Querier
	remote []*endpointQuerier
}

// Select implements storage.Querier. Series are always sorted.
func (q *sampleQuerier) Select(ctx context.Context, _ bool, hints *storage.SelectHints,
	matchers ...*labels.Matcher) storage.SeriesSet {
	sets := []storage.SeriesSet{q.Querier.Select(ctx, true, hints, matchers...)}
	for _, r := range q.remote {
		sets = append(sets, series.ToSeriesSet(r.sel(ctx, hints, labels.EmptyLabels(), matchers)))
	}
	return &mergedSet{storage.EmptySeriesSet(), sets}
}

// mergedSet merges sets. It reads none before it is used, so that an engine makes all its selections before that.
type mergedSet struct {
	storage.SeriesSet
	sets []storage.SeriesSet // nil once it is used
}

func (m *mergedSet) begin() storage.SeriesSet {
	if m.sets != nil {
		m.SeriesSet, m.sets = storage.NewMergeSeriesSet(m.sets, 0, storage.ChainedSeriesMerge), nil
	}
	return m.SeriesSet
}

// Next implements storage.SeriesSet.
func (m *mergedSet) Next() bool { return m.begin().Next() }

// Warnings implements storage.SeriesSet. Prometheus' API asks for those of a list of series before the first Next.
func (m *mergedSet) Warnings() annotations.Annotations { return m.begin().Warnings() }

// LabelValues implements storage.LabelQuerier.
func (q *sampleQuerier) LabelValues(ctx context.Context, name string, hints *storage.LabelHints,
	matchers ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	values, warnings, err := q.Querier.LabelValues(ctx, name, hints, matchers...)
	return values, warnings.Add(ErrLabels), err
}

// LabelNames implements storage.LabelQuerier.
func (q *sampleQuerier) LabelNames(ctx context.Context, hints *storage.LabelHints,
	matchers ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	names, warnings, err := q.Querier.LabelNames(ctx, hints, matchers...)
	return names, warnings.Add(ErrLabels), err
}

// Close implements storage.Querier.
func (q *sampleQuerier) Close() error { return closeAll(q.Querier, q.remote) }

func closeAll(local io.Closer, remote []*endpointQuerier) error {
	err := local.Close()
	for _, r := range remote {
		err = errors.Join(err, r.Close())
	}
	return err
}

// ChunkQuerier implements storage.ChunkQueryable, of which Prometheus' API requires the type. All that reads chunks
// takes RawQuerier (series.Open).
func (f *Fanout) ChunkQuerier(int64, int64) (storage.ChunkQuerier, error) {
	return nil, errors.ErrUnsupported
}

// RawQuerier implements series.Source. It is the local storage's own querier if no
// endpoint is needed for the range.
func (f *Fanout) RawQuerier(ctx context.Context, mint, maxt int64) (series.Querier, error) {
	endpoints, err := f.endpointQueriers(mint, maxt)
	if err != nil {
		return nil, err
	}
	local, err := series.Open(ctx, f.local, mint, maxt)
	if err != nil || len(endpoints) == 0 {
		return local, err
	}
	return &fanoutQuerier{local: local, remote: endpoints}, nil
}

// endpointQuerier reads from one endpoint.
type endpointQuerier struct {
	*Querier
	endpoint Endpoint
	unread   []*bestEffort // the selections of which no series was asked for
}

func (q *endpointQuerier) sel(ctx context.Context, hints *storage.SelectHints, external labels.Labels,
	matchers []*labels.Matcher) *bestEffort {
	return q.bestEffort(q.endpoint.sel(ctx, q.Querier, hints, external, matchers))
}

func (q *endpointQuerier) bestEffort(of series.Set) *bestEffort {
	b := &bestEffort{Set: of, from: q}
	q.unread = append(q.unread, b)
	return b
}

// begin reads the first series of all selections. If one fails, all do, as in Prometheus: an expression is not of all
// series of the endpoint in one operand and of none in the other.
func (q *endpointQuerier) begin() {
	all := q.unread
	q.unread = nil
	var err error
	for _, b := range all {
		if b.begun = true; err == nil {
			if b.more = b.Set.Next(); !b.more {
				err = b.Set.Err()
			}
		}
	}
	for _, b := range all {
		if err != nil {
			b.more, b.failed = false, &endpointError{name: q.endpoint.Name, err: err}
		}
	}
}

// fanoutQuerier merges the local storage with the endpoints.
type fanoutQuerier struct {
	local  series.Querier
	remote []*endpointQuerier
}

// Capabilities implements series.Querier.
func (*fanoutQuerier) Capabilities() series.Capabilities { return series.Capabilities{External: true} }

// Select implements series.Querier. The local storage stores series without the external labels. The series of an
// endpoint may have them, and whether the endpoint gets a matcher for them depends on the request. So the local storage
// and each endpoint get the matchers of the request and add the labels to their own series. The results are merged
// after that.
func (q *fanoutQuerier) Select(ctx context.Context, opts series.SelectOptions, matchers ...*labels.Matcher) series.Set {
	sets := []storage.ChunkSeriesSet{series.ToChunkSeriesSet(series.SelectWithExternalLabels(ctx, q.local, opts.External,
		matchers...))}
	for _, r := range q.remote {
		sets = append(sets, series.ToChunkSeriesSet(r.sel(ctx, nil, opts.External, matchers)))
	}
	return series.FromChunkSeriesSet(storage.NewMergeChunkSeriesSet(sets, 0,
		storage.NewCompactingChunkSeriesMerger(storage.ChainedSeriesMerge)))
}

// LabelNames implements series.Querier: the local names, as remote read cannot list them.
func (q *fanoutQuerier) LabelNames(ctx context.Context, opts series.SelectOptions,
	matchers ...*labels.Matcher) ([]string, error) {
	return q.local.LabelNames(ctx, opts, matchers...)
}

// Close implements series.Querier.
func (q *fanoutQuerier) Close() error { return closeAll(q.local, q.remote) }

// bestEffort turns an error before the first series into a warning, as Prometheus
// does for remote read.
type bestEffort struct {
	series.Set
	from   *endpointQuerier
	begun  bool // from has read the first series
	read   bool // Next has returned it
	more   bool // the set has a current series
	failed error
}

// endpointError is the error of an endpoint whose series are missing in a result.
type endpointError struct {
	name string
	err  error
	// Server.missing has returned or sent this error; no lock, because every selection has its own endpointError
	reported bool
}

func (e *endpointError) Error() string {
	return "the series of the remote_read endpoint " + e.name + " are missing: " + e.err.Error()
}

func (e *endpointError) Unwrap() error { return e.err }

// Next implements series.Set.
func (b *bestEffort) Next() bool {
	if !b.begun {
		b.from.begin()
	}
	if b.read && b.more {
		b.more = b.Set.Next()
	}
	b.read = true
	return b.more
}

// Err implements series.Set.
func (b *bestEffort) Err() error {
	if b.failed != nil {
		return nil
	}
	return b.Set.Err()
}

// Warnings implements series.Set.
func (b *bestEffort) Warnings() annotations.Annotations {
	warnings := b.Set.Warnings()
	if b.failed != nil {
		warnings.Add(b.failed)
	}
	return warnings
}
