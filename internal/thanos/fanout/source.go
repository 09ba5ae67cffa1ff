package fanout

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/metadata"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/nesting"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/internal/thanos/storepb"
)

// Source is the StoreAPI over all stores, for other queriers. Series are merged by labels
// while streaming, without decoding chunks.
type Source struct{ f *Fanout }

var (
	_ storeapi.Source         = (*Source)(nil)
	_ storeapi.StepsForwarder = (*Source)(nil)
	_ storeapi.ExemplarSource = (*Source)(nil)
	_ storeapi.ListSource     = (*Source)(nil)
	_ storeapi.StatusSource   = (*Source)(nil)
)

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
		info, err := one.known()
		if info == nil || err != nil && !one.strict {
			continue
		}
		part, _ := one.selection()
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

// RawQuerier implements series.Source.
func (s *Source) RawQuerier(_ context.Context, mint, maxt int64) (series.Querier, error) {
	return &rawQuerier{s: s, minMS: mint, maxMS: maxt}, nil
}

// Series implements storeapi.SeriesSource.
func (s *Source) Series(ctx context.Context, r storeapi.SeriesRequest) storeapi.Stream {
	if len(r.Matchers) == 0 {
		return &forwardedStream{err: fmt.Errorf("%w: no matchers", storeapi.ErrBadRequest)}
	}
	m, err := s.f.merge(ctx, Request{AbortOnPartial: r.AbortOnPartial, Tenant: storeapi.TenantOf(ctx)}, r)
	if err != nil {
		return &forwardedStream{err: err}
	}
	return &forwardedStream{m: m}
}

// ForwardsSteps implements storeapi.StepsForwarder. If the stores announce several replicas, the request to them has
// no steps, and the server must leave out no sample afterwards.
func (*Source) ForwardsSteps() {}

// timedOut adds context.DeadlineExceeded to the error of a store that has stalled. The gRPC status is then
// DeadlineExceeded. Without it the status would be Internal, which means that this querier has a fault.
func timedOut(err error) error {
	if errors.Is(err, ErrStalled) {
		return fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	return err
}

// LabelNames implements storeapi.Source.
func (s *Source) LabelNames(ctx context.Context, r storeapi.LabelsRequest) (names, warnings []string, err error) {
	names, warned, err := s.f.list(ctx, Request{AbortOnPartial: r.AbortOnPartial, Tenant: storeapi.TenantOf(ctx)}, r,
		Client.LabelNames)
	return names, errorStrings(warned), timedOut(err)
}

// LabelValues implements storeapi.Source.
func (s *Source) LabelValues(ctx context.Context, r storeapi.LabelsRequest) (values, warnings []string, err error) {
	if slices.Contains(r.WithoutReplicaLabels, r.Label) {
		return nil, nil, nil
	}
	values, warned, err := s.f.list(ctx, Request{AbortOnPartial: r.AbortOnPartial, Tenant: storeapi.TenantOf(ctx)}, r,
		Client.LabelValues)
	return values, errorStrings(warned), timedOut(err)
}

// Exemplars implements storeapi.ExemplarSource.
func (s *Source) Exemplars(ctx context.Context, r storeapi.ExemplarsRequest) (results []exemplar.QueryResult,
	warnings []string, err error) {
	if err := nesting.Check(r.Query, nesting.LevelsMax); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", storeapi.ErrBadRequest, err)
	}
	expr, err := parser.NewParser(parser.Options{EnableExperimentalFunctions: true}).ParseExpr(r.Query)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", storeapi.ErrBadRequest, err)
	}
	results, warned, err := s.f.exemplars(ctx, Request{AbortOnPartial: r.AbortOnPartial, Tenant: storeapi.TenantOf(ctx)},
		r, parser.ExtractSelectors(expr))
	return results, errorStrings(warned), timedOut(err)
}

// Rules implements storeapi.ListSource: the groups of all stores, unmerged. Only the querier that sends the request
// knows the replica labels.
func (s *Source) Rules(ctx context.Context, r storeapi.RulesRequest) ([]storeapi.RuleGroup, []string, error) {
	found, warnings, err := s.f.Queryable(Request{AbortOnPartial: r.AbortOnPartial,
		Tenant: storeapi.TenantOf(ctx)}).rules(ctx, r)
	return slices.Concat(found...), annotationStrings(warnings), timedOut(err)
}

// Targets implements storeapi.ListSource: the targets of all stores, unmerged.
func (s *Source) Targets(ctx context.Context, r storeapi.TargetsRequest) (storeapi.Targets, []string, error) {
	var all allTargets
	found, warnings, err := s.f.Queryable(Request{AbortOnPartial: r.AbortOnPartial,
		Tenant: storeapi.TenantOf(ctx)}).targets(ctx, r)
	for _, of := range found {
		all.add(of, r.State)
	}
	return all.Targets, annotationStrings(warnings), timedOut(err)
}

// MetricMetadata implements storeapi.ListSource.
func (s *Source) MetricMetadata(ctx context.Context, metric string, limit int,
	abortOnPartial bool) (map[string][]metadata.Metadata, []string, error) {
	found, warnings, err := s.f.Queryable(Request{AbortOnPartial: abortOnPartial,
		Tenant: storeapi.TenantOf(ctx)}).MetricMetadata(ctx, metric, limit)
	return found, annotationStrings(warnings), timedOut(err)
}

// TSDBStatistics implements storeapi.StatusSource: the statistics of all stores, unmerged.
func (s *Source) TSDBStatistics(ctx context.Context,
	r storeapi.StatusRequest) ([]storeapi.TSDBStatistics, []string, error) {
	found, warnings, err := s.f.Queryable(Request{AbortOnPartial: r.AbortOnPartial,
		Tenant: storeapi.TenantOf(ctx)}).tsdbStatistics(ctx, r)
	return slices.Concat(found...), annotationStrings(warnings), timedOut(err)
}

func annotationStrings(all annotations.Annotations) []string {
	var texts []string
	for text := range all {
		texts = append(texts, text)
	}
	slices.Sort(texts)
	return texts
}

func errorStrings(errs []error) []string {
	var all []string
	for _, err := range errs {
		all = append(all, err.Error())
	}
	return all
}

// forwardedStream is a merged stream that is forwarded to another querier.
type forwardedStream struct {
	m      *merged
	chunks []series.Chunk       // of the current series: what Chunks returns
	raw    []series.Chunk       // buffer of chunks for a series that has downsampled chunks, too
	aggr   []storeapi.AggrChunk // of the current series: the downsampled chunks
	err    error
}

// Next implements series.Set.
func (p *forwardedStream) Next() bool {
	if p.err != nil || !p.m.Next() {
		return false
	}
	all := p.m.Chunks()
	p.chunks, p.aggr = all, p.aggr[:0]
	if !slices.ContainsFunc(all, isPacked) {
		return true
	}
	p.raw = p.raw[:0]
	for _, c := range all {
		if c.Encoding != packedEncoding {
			p.raw = append(p.raw, c)
			continue
		}
		for rest := c.Data; len(rest) > 0; {
			var one storepb.Chunk
			if one, rest, p.err = storepb.NextPacked(rest); p.err != nil {
				return false
			}
			p.aggr = append(p.aggr, storeapi.AggrChunk{Aggr: one.Aggr, Chunk: series.Chunk{MinMS: c.MinMS, MaxMS: c.MaxMS,
				Encoding: chunkenc.Encoding(one.Encoding), Data: one.Data}})
		}
	}
	p.chunks = p.raw
	return true
}

// Labels implements series.Set.
func (p *forwardedStream) Labels() []byte { return p.m.Labels() }

// Chunks implements series.Set: the raw chunks.
func (p *forwardedStream) Chunks() []series.Chunk { return p.chunks }

// AggrChunks returns the downsampled chunks.
func (p *forwardedStream) AggrChunks() []storeapi.AggrChunk { return p.aggr }

// Err implements series.Set.
func (p *forwardedStream) Err() error {
	if p.err != nil || p.m == nil {
		return p.err
	}
	return timedOut(p.m.Err())
}

// Warnings implements series.Set.
func (p *forwardedStream) Warnings() annotations.Annotations {
	if p.m == nil {
		return nil
	}
	return p.m.Warnings()
}

// Close implements storeapi.Stream.
func (p *forwardedStream) Close() error {
	if p.m != nil {
		p.m.close()
	}
	return nil
}

// rawQuerier implements series.Querier over a Source.
type rawQuerier struct {
	s            *Source
	minMS, maxMS int64
	open         []storeapi.Stream
}

func (q *rawQuerier) Select(ctx context.Context, opts series.SelectOptions, matchers ...*labels.Matcher) series.Set {
	set := q.s.Series(ctx, storeapi.SeriesRequest{MinMS: q.minMS, MaxMS: q.maxMS, Matchers: matchers,
		SkipChunks: opts.LabelsOnly})
	q.open = append(q.open, set)
	return set
}

func (*rawQuerier) Capabilities() series.Capabilities { return series.Capabilities{} }

func (q *rawQuerier) LabelNames(ctx context.Context, _ series.SelectOptions, _ ...*labels.Matcher) ([]string, error) {
	names, _, err := q.s.LabelNames(ctx, storeapi.LabelsRequest{MinMS: q.minMS, MaxMS: q.maxMS})
	return names, err
}

func (q *rawQuerier) Close() error {
	var errs []error
	for _, set := range q.open {
		errs = append(errs, set.Close())
	}
	return errors.Join(errs...)
}
