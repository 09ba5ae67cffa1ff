package remoteread

import (
	"context"
	"errors"
	"regexp"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

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

// fanoutQuerier merges the local storage with the endpoints.
type fanoutQuerier struct {
	local  series.Querier
	remote []endpointQuerier
}

// Capabilities implements series.Querier.
func (*fanoutQuerier) Capabilities() series.Capabilities { return series.Capabilities{External: true} }

// Select implements series.Querier. The local storage stores series without
// the external labels. The series of an endpoint may have them, and whether the endpoint gets
// a matcher for them depends on the request. So the local storage and each endpoint
// get the matchers of the request and add the labels to their own series. The results
// are merged after that.
func (q *fanoutQuerier) Select(ctx context.Context, opts series.SelectOptions, matchers ...*labels.Matcher) series.Set {
	external := opts.External
	sets := []storage.ChunkSeriesSet{series.ToChunkSeriesSet(series.SelectWithExternalLabels(ctx, q.local, external,
		matchers...))}
	for i := range q.remote {
		r := &q.remote[i]
		sets = append(sets, series.ToChunkSeriesSet(&bestEffort{Set: r.endpoint.selExternal(ctx, &r.clientQuerier, external,
			matchers), name: r.endpoint.Name}))
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
func (q *fanoutQuerier) Close() error {
	err := q.local.Close()
	for i := range q.remote {
		err = errors.Join(err, q.remote[i].Close())
	}
	return err
}

// bestEffort turns an error before the first series into a warning, as Prometheus
// does for remote read.
type bestEffort struct {
	series.Set
	name   string
	begun  bool
	failed error
}

// endpointError is the error of an endpoint whose series are missing in a result.
type endpointError struct {
	name string
	err  error
	// Server.missing has returned or sent this error; no lock, because every selection has its own endpointErrors
	reported bool
}

func (e *endpointError) Error() string {
	return "the series of the remote_read endpoint " + e.name + " are missing: " + e.err.Error()
}

func (e *endpointError) Unwrap() error { return e.err }

// Next implements series.Set.
func (b *bestEffort) Next() bool {
	if b.failed != nil {
		return false
	}
	ok := b.Set.Next()
	if !b.begun && !ok {
		if err := b.Set.Err(); err != nil {
			b.failed = &endpointError{name: b.name, err: err}
		}
	}
	b.begun = true
	return ok
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

// selExternal selects from the endpoint and adds the external labels that a series
// does not have. All series that it returns match all matchers.
func (e Endpoint) selExternal(ctx context.Context, q *clientQuerier, external labels.Labels,
	matchers []*labels.Matcher) series.Set {
	if external.IsEmpty() {
		return e.sel(ctx, q, nil, matchers)
	}
	var check []*labels.Matcher
	wanted := make([]*labels.Matcher, 0, len(matchers)+1)
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
	if !e.required(matchers) {
		return series.Failed(nil)
	}
	narrowed, added := e.narrow(wanted)
	if len(narrowed) == 0 { // remote read requires a matcher
		narrowed = append(narrowed, labels.MustNewMatcher(labels.MatchRegexp, labels.MetricName, ".*"))
	}
	set := q.sel(ctx, nil, narrowed)
	open, encoded := set.open, labelenc.Append(nil, external)
	set.open = func() (source, error) {
		from, err := open()
		if err != nil {
			return nil, err
		}
		set.windowBytes = set.holdBytesMax // the changed labels change the order
		return &labelAdder{source: &nameStripper{source: from, names: added}, external: encoded, check: check}, nil
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
	return nil // a negation that excludes series without the label: labelAdder checks
}

// labelAdder adds external labels to the series of a source, and drops series that do not
// match with these labels.
type labelAdder struct {
	source
	external []byte
	check    []*labels.Matcher
	labels   []byte
}

func (s *labelAdder) next() (err error) {
	for {
		if err = s.source.next(); err != nil {
			return err
		}
		if s.labels, err = labelenc.AppendMerged(s.labels[:0], s.source.Labels(), s.external); err != nil {
			return err
		}
		if ok, err := s.matches(); ok || err != nil {
			return err
		}
	}
}

func (s *labelAdder) matches() (bool, error) {
	found := 0
	for left := s.labels; len(left) > 0; {
		name, value, rest, err := labelenc.Next(left)
		if err != nil {
			return false, err
		}
		for _, m := range s.check {
			if m.Name == string(name) {
				if !m.Matches(string(value)) {
					return false, nil
				}
				found++
			}
		}
		left = rest
	}
	return found == len(s.check), nil // check names external labels only, which all series have now
}

func (s *labelAdder) Labels() []byte { return s.labels }
func (*labelAdder) ahead() []byte    { return nil }

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
