package fanout

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/metadata"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/precheck"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// Source is the StoreAPI over all stores, for other queriers. Series are merged by labels
// while streaming, without decoding chunks.
type Source struct{ f *Fanout }

var _ storeapi.Source = (*Source)(nil)

// Source returns the StoreAPI over all stores.
func (f *Fanout) Source() *Source { return &Source{f} }

// labelSetsMax is the limit of external label sets in Info. If there are more, Info has none, and other queriers
// query this querier for all series.
const labelSetsMax = 1000

// Info implements storeapi.Source. It merges the last Info of each store that is healthy or strict. Of the label
// sets it returns those that the selector selects.
func (s *Source) Info(context.Context) (storeapi.Info, error) {
	all := storeapi.Info{Component: "query", Store: &storeapi.StoreInfo{
		TimeRange: storeapi.TimeRange{MinMS: math.MaxInt64, MaxMS: math.MinInt64}, WithoutReplicaLabels: true, Sharding: true,
	}}
	unbounded := false // a store without labels may have any series
	for _, one := range *s.f.endpoints.current.Load() {
		k, err := one.known()
		info, part := k.info, k.selected
		if info == nil || err != nil && !one.strict {
			continue
		}
		if st := part.store(); st != nil {
			all.Store.MinMS, all.Store.MaxMS = min(all.Store.MinMS, st.MinMS), max(all.Store.MaxMS, st.MaxMS)
			all.Store.Sharding = all.Store.Sharding && st.Sharding
			all.Store.TSDBs = append(all.Store.TSDBs, st.TSDBs...)
			sets := slices.DeleteFunc(slices.Clone(part.info.LabelSets), labels.Labels.IsEmpty)
			unbounded = unbounded || len(sets) == 0
			all.LabelSets = append(all.LabelSets, sets...)
		}
		all.Rules, all.Targets, all.MetricMetadata = all.Rules || info.Rules, all.Targets ||
			info.Targets, all.MetricMetadata || info.MetricMetadata
		all.Status = all.Status || info.Status
		if e := info.Exemplars; e != nil && !part.none {
			if all.Exemplars == nil {
				all.Exemplars = &storeapi.TimeRange{MinMS: e.MinMS, MaxMS: e.MaxMS}
			}
			all.Exemplars.MinMS, all.Exemplars.MaxMS = min(all.Exemplars.MinMS, e.MinMS), max(all.Exemplars.MaxMS, e.MaxMS)
		}
	}
	if all.Store.MinMS > all.Store.MaxMS { // no stores yet: any range is possible
		all.Store.MinMS, all.Store.MaxMS = math.MinInt64, math.MaxInt64
	}
	slices.SortFunc(all.LabelSets, labels.Compare)
	all.LabelSets = slices.CompactFunc(all.LabelSets, labels.Equal)
	if unbounded || len(all.LabelSets) > labelSetsMax {
		all.LabelSets, all.Store.TSDBs = nil, nil
	}
	all.LabelSets = s.f.endpoints.opts.Selector.announced(all.LabelSets)
	return all, nil
}

// ExternalLabels implements storeapi.Source. It returns none, because the series of the stores already have external
// labels.
func (*Source) ExternalLabels() labels.Labels { return labels.EmptyLabels() }

// Capabilities implements storeapi.Source. If the stores announce several replicas, the request to them has no steps,
// and the server must leave out no sample afterwards.
func (*Source) Capabilities() storeapi.Capabilities {
	return storeapi.Capabilities{Exemplars: true, Rules: true, Targets: true, MetricMetadata: true, Status: true,
		ForwardsSteps: true}
}

// request returns the request that a request of another querier becomes.
func request(ctx context.Context, abortOnPartial bool) Request {
	return Request{AbortOnPartial: abortOnPartial, Tenant: storeapi.TenantOf(ctx)}
}

// Series implements storeapi.API.
func (s *Source) Series(ctx context.Context, r storeapi.SeriesRequest) storeapi.Stream {
	if len(r.Matchers) == 0 {
		return storeapi.Failed(fmt.Errorf("%w: no matchers", storeapi.ErrBadRequest))
	}
	m, err := s.f.merge(ctx, request(ctx, r.AbortOnPartial), r)
	if err != nil {
		return storeapi.Failed(err)
	}
	return forwardedStream{m}
}

// timedOut adds context.DeadlineExceeded to the error of a store that has stalled. The gRPC status is then
// DeadlineExceeded. Without it the status would be Internal, which means that this querier has a fault.
func timedOut(err error) error {
	if errors.Is(err, ErrStalled) {
		return fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	return err
}

// LabelNames implements storeapi.API.
func (s *Source) LabelNames(ctx context.Context, r storeapi.LabelsRequest) (names, warnings []string, err error) {
	names, warned, err := s.f.list(ctx, request(ctx, r.AbortOnPartial), r,
		Client.LabelNames)
	return names, texts(warned), timedOut(err)
}

// LabelValues implements storeapi.API.
func (s *Source) LabelValues(ctx context.Context, r storeapi.LabelsRequest) (values, warnings []string, err error) {
	if slices.Contains(r.WithoutReplicaLabels, r.Label) {
		return nil, nil, nil
	}
	values, warned, err := s.f.list(ctx, request(ctx, r.AbortOnPartial), r,
		Client.LabelValues)
	return values, texts(warned), timedOut(err)
}

// Exemplars implements storeapi.Services.
func (s *Source) Exemplars(ctx context.Context, r storeapi.ExemplarsRequest) (results []exemplar.QueryResult,
	warnings []string, err error) {
	if err := precheck.Query(r.Query, precheck.LevelsMax); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", storeapi.ErrBadRequest, err)
	}
	expr, err := parser.NewParser(parser.Options{EnableExperimentalFunctions: true}).ParseExpr(r.Query)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", storeapi.ErrBadRequest, err)
	}
	results, warned, err := s.f.exemplars(ctx, request(ctx, r.AbortOnPartial),
		r, parser.ExtractSelectors(expr))
	return results, texts(warned), timedOut(err)
}

// Rules implements storeapi.Services: the groups of all stores, unmerged. Only the querier that sends the request
// knows the replica labels.
func (s *Source) Rules(ctx context.Context, r storeapi.RulesRequest) ([]storeapi.RuleGroup, []string, error) {
	found, warnings, err := s.f.Queryable(request(ctx, r.AbortOnPartial)).rules(ctx, r)
	return slices.Concat(found...), texts(warnings), timedOut(err)
}

// Targets implements storeapi.Services: the targets of all stores, unmerged.
func (s *Source) Targets(ctx context.Context, r storeapi.TargetsRequest) (storeapi.Targets, []string, error) {
	var all allTargets
	found, warnings, err := s.f.Queryable(request(ctx, r.AbortOnPartial)).targets(ctx, r)
	for _, of := range found {
		all.add(of, r.State)
	}
	return all.Targets, texts(warnings), timedOut(err)
}

// MetricMetadata implements storeapi.Services.
func (s *Source) MetricMetadata(ctx context.Context,
	r storeapi.MetadataRequest) (map[string][]metadata.Metadata, []string, error) {
	found, warnings, err := s.f.Queryable(request(ctx, r.AbortOnPartial)).MetricMetadata(ctx, r.Metric, r.Limit)
	return found, texts(warnings), timedOut(err)
}

// TSDBStatistics implements storeapi.Services: the statistics of all stores, unmerged.
func (s *Source) TSDBStatistics(ctx context.Context,
	r storeapi.StatusRequest) ([]storeapi.TSDBStatistics, []string, error) {
	found, warnings, err := s.f.Queryable(request(ctx, r.AbortOnPartial)).tsdbStatistics(ctx, r)
	return slices.Concat(found...), texts(warnings), timedOut(err)
}

// texts returns the texts of warnings, sorted.
func texts(warnings annotations.Annotations) []string { return slices.Sorted(maps.Keys(warnings)) }

// forwardedStream is a merged stream that is forwarded to another querier.
type forwardedStream struct{ *merged }

// Err implements series.Set.
func (p forwardedStream) Err() error { return timedOut(p.Set.Err()) }

// BufferedBytes implements storeapi.Stream: the budget of all queries has counted them.
func (forwardedStream) BufferedBytes() int64 { return 0 }

// Close implements storeapi.Stream.
func (p forwardedStream) Close() error { p.close(); return nil }
