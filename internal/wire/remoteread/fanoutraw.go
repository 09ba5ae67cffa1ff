package remoteread

import (
	"context"
	"errors"
	"regexp"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/codec/labelenc"
	"github.com/ferula-io/ferula/internal/series"
)

// RawQuerier implements series.Source: the local storage's own querier, unless
// other servers have a part in the range.
func (f *Fanout) RawQuerier(ctx context.Context, mint, maxt int64) (series.Querier, error) {
	asked, err := f.asked(mint, maxt)
	if err != nil {
		return nil, err
	}
	local, err := series.Open(ctx, f.local, mint, maxt)
	if err != nil || len(asked) == 0 {
		return local, err
	}
	return &fanoutQuerier{local: local, remote: asked}, nil
}

// fanoutQuerier merges the local storage with endpoints.
type fanoutQuerier struct {
	local  series.Querier
	remote []endpointQuerier
}

var _ series.ExternalSelector = (*fanoutQuerier)(nil)

// Select implements series.Querier.
func (q *fanoutQuerier) Select(ctx context.Context, matchers ...*labels.Matcher) series.Set {
	return q.SelectWithExternal(ctx, labels.EmptyLabels(), matchers...)
}

// SelectWithExternal implements series.ExternalSelector. The local series lack the
// external labels; an endpoint's series may have them, and whether it is queried
// with a matcher for them depends on the matchers of the request. So each part gets
// the matchers of the request, adds the labels to its own series, and then the
// parts are merged.
func (q *fanoutQuerier) SelectWithExternal(ctx context.Context, external labels.Labels, matchers ...*labels.Matcher) series.Set {
	sets := []storage.ChunkSeriesSet{series.ToChunkSeriesSet(series.SelectWithExternalLabels(ctx, q.local, external, matchers...))}
	for i := range q.remote {
		r := &q.remote[i]
		sets = append(sets, series.ToChunkSeriesSet(&bestEffort{Set: r.endpoint.selExternal(ctx, &r.clientQuerier, external, matchers)}))
	}
	return series.FromChunkSeriesSet(storage.NewMergeChunkSeriesSet(sets, 0, storage.NewCompactingChunkSeriesMerger(storage.ChainedSeriesMerge)))
}

// LabelNames implements series.Querier: remote read cannot list them.
func (q *fanoutQuerier) LabelNames(ctx context.Context) ([]string, error) {
	return q.local.LabelNames(ctx)
}

// Close implements series.Querier.
func (q *fanoutQuerier) Close() error {
	err := q.local.Close()
	for i := range q.remote {
		err = errors.Join(err, q.remote[i].Close())
	}
	return err
}

// bestEffort turns a failure before the first series into a warning, as
// Prometheus does for endpoints.
type bestEffort struct {
	series.Set
	begun  bool
	failed error
}

// Next implements series.Set.
func (b *bestEffort) Next() bool {
	if b.failed != nil {
		return false
	}
	ok := b.Set.Next()
	if !b.begun && !ok {
		b.failed = b.Set.Err()
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

// selExternal selects from the endpoint and gives every series the external
// labels that it lacks. All matchers hold for what comes out.
func (e Endpoint) selExternal(ctx context.Context, q *clientQuerier, external labels.Labels, matchers []*labels.Matcher) series.Set {
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
			wanted = append(wanted, m) // the endpoint is meant to have the label
		} else {
			wanted = append(wanted, orLacking(m, external.Get(m.Name))...)
		}
	}
	if !e.required(matchers) {
		return series.Failed(nil)
	}
	narrowed, added := e.narrow(wanted)
	if len(narrowed) == 0 { // a request needs a matcher
		narrowed = append(narrowed, labels.MustNewMatcher(labels.MatchRegexp, labels.MetricName, ".*"))
	}
	set := q.sel(ctx, nil, narrowed)
	open, encoded := set.open, labelenc.Append(nil, external)
	set.open = func() (source, error) {
		from, err := open()
		if err != nil {
			return nil, err
		}
		set.windowBytes = set.holdBytesMax // other labels, another order
		return &dressed{source: &stripped{source: from, names: added}, external: encoded, check: check}, nil
	}
	return set
}

// orLacking are matchers that all series meet which would meet m if those without
// its label had value.
func orLacking(m *labels.Matcher, value string) []*labels.Matcher {
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
	return nil // a negation that excludes series without the label: dressed checks
}

// dressed is a source whose series get labels that they lack, and of which those
// are left out that then do not match.
type dressed struct {
	source
	external []byte
	check    []*labels.Matcher
	labels   []byte
}

func (s *dressed) next() (err error) {
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

func (s *dressed) matches() (bool, error) {
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
	return found == len(s.check), nil // each names an external label, which all series have now
}

func (s *dressed) Labels() []byte { return s.labels }
func (*dressed) ahead() []byte    { return nil }

// required tells whether a query has all required matchers.
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
