// Package storeset connects the HTTP API of a querier to the fan-out over its stores.
package storeset

import (
	"context"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/metadata"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/httpapi"
	"github.com/ferula-io/ferula/internal/thanos/fanout"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// Set implements api.Stores on a fan-out and its endpoints.
type Set struct {
	fanout    *fanout.Fanout
	endpoints *fanout.Endpoints
}

var (
	_ httpapi.Stores        = Set{}
	_ httpapi.StoreAnalyzer = Set{}
)

// New returns the set of the stores of endpoints, read by f.
func New(f *fanout.Fanout, endpoints *fanout.Endpoints) Set { return Set{f, endpoints} }

func (s Set) query(p httpapi.StoreParams) *fanout.Query {
	return s.fanout.Queryable(fanout.Request{
		ReplicaLabels: p.ReplicaLabels, AbortOnPartial: !p.Partial, MaxResolutionMS: p.MaxResolution.Milliseconds(),
		Stores: p.Stores, Tenant: p.Tenant, Matchers: p.Matchers, Shard: p.Shard,
	})
}

// Queryable implements api.Stores.
func (s Set) Queryable(p httpapi.StoreParams) storage.Queryable { return s.query(p) }

// Analyze implements api.StoreAnalyzer.
func (s Set) Analyze(ctx context.Context) (context.Context, func() []httpapi.StoreTraffic) {
	ctx, analysis := fanout.WithAnalysis(ctx)
	return ctx, func() (all []httpapi.StoreTraffic) {
		for _, t := range analysis.Stores() {
			all = append(all, httpapi.StoreTraffic(t))
		}
		return all
	}
}

// Exemplars implements api.Stores.
func (s Set) Exemplars(ctx context.Context, p httpapi.StoreParams, start, end int64,
	selectors [][]*labels.Matcher) ([]exemplar.QueryResult, annotations.Annotations, error) {
	return s.query(p).Exemplars(ctx, start, end, selectors)
}

// MetricMetadata implements api.Stores.
func (s Set) MetricMetadata(ctx context.Context, p httpapi.StoreParams, metric string,
	limit int) (map[string][]metadata.Metadata, annotations.Annotations, error) {
	return s.query(p).MetricMetadata(ctx, metric, limit)
}

// Targets implements api.Stores.
func (s Set) Targets(ctx context.Context, p httpapi.StoreParams,
	state string) (storeapi.Targets, annotations.Annotations, error) {
	return s.query(p).Targets(ctx, state)
}

// Rules implements api.Stores.
func (s Set) Rules(ctx context.Context, p httpapi.StoreParams, kind string,
	matchers [][]*labels.Matcher) ([]storeapi.RuleGroup, annotations.Annotations, error) {
	return s.query(p).Rules(ctx, kind, matchers)
}

// TSDBStatistics implements api.Stores.
func (s Set) TSDBStatistics(ctx context.Context, p httpapi.StoreParams, matchers []*labels.Matcher,
	limit int) (storeapi.TSDBStatistics, annotations.Annotations, error) {
	return s.query(p).TSDBStatistics(ctx, matchers, limit)
}

// Statuses implements api.Stores.
func (s Set) Statuses() []httpapi.StoreStatus {
	var all []httpapi.StoreStatus
	for _, status := range s.endpoints.Statuses() {
		all = append(all, httpapi.StoreStatus{
			Name: status.Name, Component: status.Component, LastCheck: status.LastCheck, LastError: status.LastError,
			LabelSets: status.LabelSets, MinMS: status.MinMS, MaxMS: status.MaxMS,
		})
	}
	return all
}
