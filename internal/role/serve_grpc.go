package role

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
	"google.golang.org/grpc"

	"github.com/ferula-io/ferula/internal/nesting"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/wire/storeapi"
)

// newGRPC creates the gRPC server of the StoreAPI on the local storage and of the
// profile API.
func (s *Serve) newGRPC() (err error) {
	opts := s.opts.StoreAPI
	opts.Metrics = s.reg.own
	s.grpc, err = newGRPCServer(s.opts.GRPC, s.opts.Logger, s.reg, func(to *grpc.Server) {
		storeapi.NewServer(localStore{s}, opts).Register(to)
		s.profiles.api.RegisterGRPC(to, func() bool { return s.readiness.isReady() && s.profiles.serving() })
	})
	return err
}

// localStore implements storeapi.Source on the local storage.
type localStore struct{ serve *Serve }

var (
	_ storeapi.Source         = localStore{}
	_ storeapi.ExemplarSource = localStore{}
)

// Info implements storeapi.Source. MaxMS is the largest timestamp, as in Thanos' stores
// with a running TSDB: otherwise a querier with a cached Info would exclude this store
// from queries for newer samples.
func (l localStore) Info(context.Context) (storeapi.Info, error) {
	from, err := l.serve.store.StartTime()
	if err != nil {
		return storeapi.Info{}, err
	}
	whole := storeapi.TimeRange{MinMS: from, MaxMS: math.MaxInt64}
	info := storeapi.Info{Component: "sidecar", Store: &storeapi.StoreInfo{TimeRange: whole}, Exemplars: &whole}
	if external := l.ExternalLabels(); !external.IsEmpty() {
		info.LabelSets = []labels.Labels{external}
		info.Store.TSDBs = []storeapi.TSDBInfo{{Labels: external, TimeRange: whole}}
	}
	return info, nil
}

// ExternalLabels implements storeapi.Source.
func (l localStore) ExternalLabels() labels.Labels {
	return l.serve.config.current().GlobalConfig.ExternalLabels
}

// RawQuerier implements storeapi.Source.
func (l localStore) RawQuerier(ctx context.Context, mint, maxt int64) (series.Querier, error) {
	return series.Open(ctx, l.serve.store, mint, maxt)
}

// LabelNames implements storeapi.Source.
func (l localStore) LabelNames(ctx context.Context, r storeapi.LabelsRequest) (names, warnings []string, err error) {
	return l.list(r, func(q storage.Querier, hints *storage.LabelHints) ([]string, annotations.Annotations, error) {
		return q.LabelNames(ctx, hints, r.Matchers...)
	})
}

// LabelValues implements storeapi.Source.
func (l localStore) LabelValues(ctx context.Context, r storeapi.LabelsRequest) (values, warnings []string, err error) {
	return l.list(r, func(q storage.Querier, hints *storage.LabelHints) ([]string, annotations.Annotations, error) {
		return q.LabelValues(ctx, r.Label, hints, r.Matchers...)
	})
}

// listFunc lists label names or label values.
type listFunc func(storage.Querier, *storage.LabelHints) ([]string, annotations.Annotations, error)

func (l localStore) list(r storeapi.LabelsRequest, read listFunc) (list, warnings []string, err error) {
	q, err := l.serve.store.Querier(r.MinMS, r.MaxMS)
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

// Exemplars implements storeapi.ExemplarSource. A selector that does not match the
// external labels of this server returns nothing.
func (l localStore) Exemplars(ctx context.Context, r storeapi.ExemplarsRequest) ([]exemplar.QueryResult, []string, error) {
	if err := nesting.Check(r.Query, nesting.LevelsMax); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", storeapi.ErrBadRequest, err)
	}
	expr, err := l.serve.engine.Parser.ParseExpr(r.Query)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", storeapi.ErrBadRequest, err)
	}
	var selectors [][]*labels.Matcher
	for _, selector := range parser.ExtractSelectors(expr) {
		if rest, ok := series.MatchExternal(l.ExternalLabels(), selector); ok {
			selectors = append(selectors, rest)
		}
	}
	if len(selectors) == 0 {
		return nil, nil, nil
	}
	q, err := l.serve.store.ExemplarQuerier(ctx)
	if err != nil {
		return nil, nil, err
	}
	found, err := q.Select(r.MinMS, r.MaxMS, selectors...)
	return found, nil, err
}
