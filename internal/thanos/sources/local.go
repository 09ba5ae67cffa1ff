package sources

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/precheck"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/internal/tsdb"
)

// Local implements storeapi.Source on a TSDB.
type Local struct {
	storeapi.NoServices
	store    *tsdb.Store
	parser   parser.Parser
	external func() labels.Labels
	groups   func() []*rules.Group // nil: no service Rules
}

var _ storeapi.Source = (*Local)(nil)

// NewLocal returns the source of a storage. parser reads the queries of exemplar requests;
// external returns the current external labels; groups returns the rules that the process evaluates, nil if it
// evaluates none.
func NewLocal(store *tsdb.Store, parser parser.Parser, external func() labels.Labels,
	groups func() []*rules.Group) *Local {
	return &Local{store: store, parser: parser, external: external, groups: groups}
}

// Info implements storeapi.API. MaxMS is the largest timestamp, as in Thanos' stores
// with a running TSDB: otherwise a querier with a cached Info would exclude this store
// from queries for newer samples.
func (s *Local) Info(context.Context) (storeapi.Info, error) {
	from, err := s.store.StartTime()
	if err != nil {
		return storeapi.Info{}, err
	}
	whole := storeapi.TimeRange{MinMS: from, MaxMS: math.MaxInt64}
	info := storeapi.Info{Component: "sidecar", Exemplars: &whole, Rules: s.groups != nil, Status: true,
		Store: &storeapi.StoreInfo{TimeRange: whole, Sharding: true, WithoutReplicaLabels: true}}
	if external := s.ExternalLabels(); !external.IsEmpty() {
		info.LabelSets = []labels.Labels{external}
		info.Store.TSDBs = []storeapi.TSDBInfo{{Labels: external, TimeRange: whole}}
	}
	return info, nil
}

// ExternalLabels implements storeapi.Source.
func (s *Local) ExternalLabels() labels.Labels {
	return s.external()
}

// Capabilities implements storeapi.Source.
func (s *Local) Capabilities() storeapi.Capabilities {
	return storeapi.Capabilities{Exemplars: true, Status: true, Rules: s.groups != nil}
}

// Series implements storeapi.API.
func (s *Local) Series(ctx context.Context, r storeapi.SeriesRequest) storeapi.Stream {
	return storeapi.LocalSeries(ctx, s.store, s.ExternalLabels(), r)
}

// LabelNames implements storeapi.API.
func (s *Local) LabelNames(ctx context.Context, r storeapi.LabelsRequest) (names, warnings []string, err error) {
	return s.list(r, func(q storage.Querier, hints *storage.LabelHints) ([]string, annotations.Annotations, error) {
		return q.LabelNames(ctx, hints, r.Matchers...)
	})
}

// LabelValues implements storeapi.API.
func (s *Local) LabelValues(ctx context.Context, r storeapi.LabelsRequest) (values, warnings []string, err error) {
	return s.list(r, func(q storage.Querier, hints *storage.LabelHints) ([]string, annotations.Annotations, error) {
		return q.LabelValues(ctx, r.Label, hints, r.Matchers...)
	})
}

// listFunc lists label names or label values.
type listFunc func(storage.Querier, *storage.LabelHints) ([]string, annotations.Annotations, error)

func (s *Local) list(r storeapi.LabelsRequest, read listFunc) (list, warnings []string, err error) {
	q, err := s.store.Querier(r.MinMS, r.MaxMS)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, q.Close()) }()
	found, warns, err := read(q, &storage.LabelHints{Limit: int(r.Limit)})
	if err != nil {
		return nil, nil, err
	}
	for _, value := range found {
		list = append(list, strings.Clone(value)) // strings of a block are valid until the querier is closed
	}
	for _, warning := range warns.AsErrors() {
		warnings = append(warnings, warning.Error())
	}
	return list, warnings, nil
}

// Exemplars implements storeapi.Services. A selector that does not match the
// external labels of this server returns nothing.
func (s *Local) Exemplars(ctx context.Context, r storeapi.ExemplarsRequest) ([]exemplar.QueryResult, []string, error) {
	if err := precheck.Query(r.Query, precheck.LevelsMax); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", storeapi.ErrBadRequest, err)
	}
	expr, err := s.parser.ParseExpr(r.Query)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", storeapi.ErrBadRequest, err)
	}
	var selectors [][]*labels.Matcher
	for _, selector := range parser.ExtractSelectors(expr) {
		if rest, ok := series.MatchExternal(s.ExternalLabels(), selector); ok {
			selectors = append(selectors, rest)
		}
	}
	if len(selectors) == 0 {
		return nil, nil, nil
	}
	q, err := s.store.ExemplarQuerier(ctx)
	if err != nil {
		return nil, nil, err
	}
	found, err := q.Select(r.MinMS, r.MaxMS, selectors...)
	return found, nil, err
}

// TSDBStatistics implements storeapi.Services. It returns the statistics of the head without the number of
// chunks, as Thanos' receivers do.
func (s *Local) TSDBStatistics(_ context.Context,
	r storeapi.StatusRequest) ([]storeapi.TSDBStatistics, []string, error) {
	if !r.MatchesExternal(s.ExternalLabels()) {
		return nil, nil, nil
	}
	stats, err := s.store.HeadStats(labels.MetricName, r.Limit)
	if err != nil {
		return nil, nil, err
	}
	return []storeapi.TSDBStatistics{storeapi.StatisticsOf(stats)}, nil, nil
}
