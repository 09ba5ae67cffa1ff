package storeapi

import (
	"fmt"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/series"
	pb "github.com/ferula-io/ferula/internal/thanos/storepb/thanospb"
)

// This file converts requests and small responses between structs and messages.

func strategy(abort bool) pb.PartialResponseStrategy {
	if abort {
		return pb.PartialResponseStrategy_ABORT
	}
	return pb.PartialResponseStrategy_WARN
}

// aborts reads both fields of a request that may have the strategy ABORT: partial_response_disabled, the older one, and
// partial_response_strategy.
func aborts(disabled bool, s pb.PartialResponseStrategy) bool {
	return disabled || s == pb.PartialResponseStrategy_ABORT
}

var (
	matcherOut = map[labels.MatchType]pb.LabelMatcher_Type{
		labels.MatchEqual: pb.LabelMatcher_EQ, labels.MatchNotEqual: pb.LabelMatcher_NEQ,
		labels.MatchRegexp: pb.LabelMatcher_RE, labels.MatchNotRegexp: pb.LabelMatcher_NRE,
	}
	matcherIn = map[pb.LabelMatcher_Type]labels.MatchType{
		pb.LabelMatcher_EQ: labels.MatchEqual, pb.LabelMatcher_NEQ: labels.MatchNotEqual,
		pb.LabelMatcher_RE: labels.MatchRegexp, pb.LabelMatcher_NRE: labels.MatchNotRegexp,
	}
)

func matchersTo(matchers []*labels.Matcher) []*pb.LabelMatcher {
	out := make([]*pb.LabelMatcher, 0, len(matchers))
	for _, m := range matchers {
		out = append(out, &pb.LabelMatcher{Type: matcherOut[m.Type], Name: m.Name, Value: m.Value})
	}
	return out
}

func matchersFrom(matchers []*pb.LabelMatcher) ([]*labels.Matcher, error) {
	out := make([]*labels.Matcher, 0, len(matchers))
	for i, m := range matchers {
		kind, ok := matcherIn[m.GetType()]
		if !ok {
			return nil, fmt.Errorf("%w: matcher %d has unknown type %d", ErrBadRequest, i, m.GetType())
		}
		matcher, err := labels.NewMatcher(kind, m.GetName(), m.GetValue())
		if err != nil {
			return nil, fmt.Errorf("%w: matcher %d: %w", ErrBadRequest, i, err)
		}
		out = append(out, matcher)
	}
	return out, nil
}

// extendedBatch is the number of series per batch that ferula requests from ferula, which
// limits batches by bytes, too. It is requested through the extension only: servers without
// the extension limit batches by the number of series alone.
const extendedBatch = 1 << 16

func seriesRequest(r SeriesRequest, opts ClientOptions) *pb.SeriesRequest {
	out := &pb.SeriesRequest{
		MinTime: r.MinMS, MaxTime: r.MaxMS, Matchers: matchersTo(r.Matchers), MaxResolutionWindow: r.MaxResolutionMS,
		PartialResponseDisabled: r.AbortOnPartial, PartialResponseStrategy: strategy(r.AbortOnPartial),
		SkipChunks: r.SkipChunks, WithoutReplicaLabels: r.WithoutReplicaLabels, Limit: r.Limit,
		ResponseBatchSize: int64(opts.BatchSeries),
	}
	if !opts.NoExtension {
		out.Extension = &pb.Extension{BatchSeries: extendedBatch, Deltas: !opts.NoDeltas}
		if s := r.Steps; s != nil {
			out.Extension.FirstTime, out.Extension.LastTime, out.Extension.Step = s.FirstMS, s.LastMS, s.StepMS
			out.Extension.JoinChunks, out.Extension.JoinWithin = r.JoinMS == JoinAny, r.JoinMS
		}
		if s := r.Summaries; s != nil {
			out.Extension.Windows = &pb.Windows{FirstTime: s.Ends.FirstMS, LastTime: s.Ends.LastMS, Step: s.Ends.StepMS,
				RangeMs: s.RangeMS, Whole: s.Whole, Starts: s.Starts, Rising: s.Rising, Apart: s.Apart, Singles: s.Singles}
		}
	}
	for _, a := range r.Aggregates {
		out.Aggregates = append(out.Aggregates, pb.Aggr(a))
	}
	if s := r.Shard; s != nil {
		out.ShardInfo = &pb.ShardInfo{ShardIndex: s.Index, TotalShards: s.Total, By: s.By, Labels: s.Labels}
	}
	if h := r.Hints; h != nil {
		out.Step, out.Range = h.StepMS, h.RangeMS
		out.QueryHints = &pb.QueryHints{StepMillis: h.StepMS, Func: &pb.Func{Name: h.Func},
			Grouping: &pb.Grouping{By: h.By, Labels: h.Grouping}}
		if h.RangeMS > 0 {
			out.QueryHints.Range = &pb.Range{Millis: h.RangeMS}
		}
	}
	return out
}

func seriesRequestFrom(in *pb.SeriesRequest) (SeriesRequest, error) {
	r := SeriesRequest{
		MinMS: in.MinTime, MaxMS: in.MaxTime, SkipChunks: in.SkipChunks, Limit: in.Limit,
		WithoutReplicaLabels: in.WithoutReplicaLabels, MaxResolutionMS: in.MaxResolutionWindow,
		AbortOnPartial: aborts(in.PartialResponseDisabled, in.PartialResponseStrategy),
	}
	var err error
	if r.Matchers, err = matchersFrom(in.Matchers); err != nil {
		return r, err
	}
	for _, a := range in.Aggregates {
		if a < pb.Aggr_RAW || a > pb.Aggr_COUNTER {
			return r, fmt.Errorf("%w: unknown aggregate %d", ErrBadRequest, a)
		}
		r.Aggregates = append(r.Aggregates, Aggr(a))
	}
	if s := in.ShardInfo; s != nil && s.TotalShards > 0 {
		if s.ShardIndex < 0 || s.ShardIndex >= s.TotalShards {
			return r, fmt.Errorf("%w: shard %d of %d", ErrBadRequest, s.ShardIndex, s.TotalShards)
		}
		r.Shard = &Shard{Index: s.ShardIndex, Total: s.TotalShards, By: s.By, Labels: s.Labels}
	}
	if e := in.Extension; e.GetStep() != 0 {
		r.Steps = &series.Steps{FirstMS: e.FirstTime, LastMS: e.LastTime, StepMS: e.Step}
		if !r.Steps.Valid() {
			return r, fmt.Errorf("%w: steps of %d ms from %d to %d", ErrBadRequest, e.Step, e.FirstTime, e.LastTime)
		}
		if r.JoinMS = e.JoinWithin; r.JoinMS < 0 {
			return r, fmt.Errorf("%w: chunks joined within %d ms", ErrBadRequest, r.JoinMS)
		}
		if e.JoinChunks {
			r.JoinMS = JoinAny
		}
	}
	if w := in.Extension.GetWindows(); w != nil {
		r.Summaries = &series.Summaries{Rising: w.Rising, Apart: w.Apart, Windows: series.Windows{
			Ends:    series.Steps{FirstMS: w.FirstTime, LastMS: w.LastTime, StepMS: w.Step},
			RangeMS: w.RangeMs, MinMS: r.MinMS, MaxMS: r.MaxMS, Whole: w.Whole, Starts: w.Starts,
			Singles: w.Starts && w.Singles}}
		if !w.Apart {
			r.JoinMS = JoinAny
		}
		if !r.Summaries.Ends.Valid() || w.RangeMs < 0 {
			return r, fmt.Errorf("%w: windows of %d ms each %d ms from %d to %d", ErrBadRequest, w.RangeMs, w.Step, w.FirstTime,
				w.LastTime)
		}
	}
	if h := in.QueryHints; h != nil {
		r.Hints = &Hints{StepMS: h.StepMillis, RangeMS: h.Range.GetMillis(), Func: h.Func.GetName(), By: h.Grouping.GetBy(),
			Grouping: h.Grouping.GetLabels()}
	}
	return r, nil
}

func namesRequest(r LabelsRequest) *pb.LabelNamesRequest {
	return &pb.LabelNamesRequest{
		PartialResponseDisabled: r.AbortOnPartial, PartialResponseStrategy: strategy(r.AbortOnPartial),
		Start: r.MinMS, End: r.MaxMS, Matchers: matchersTo(r.Matchers), WithoutReplicaLabels: r.WithoutReplicaLabels,
		Limit: r.Limit,
	}
}

func valuesRequest(r LabelsRequest) *pb.LabelValuesRequest {
	return &pb.LabelValuesRequest{
		Label: r.Label, PartialResponseDisabled: r.AbortOnPartial, PartialResponseStrategy: strategy(r.AbortOnPartial),
		Start: r.MinMS, End: r.MaxMS, Matchers: matchersTo(r.Matchers), WithoutReplicaLabels: r.WithoutReplicaLabels,
		Limit: r.Limit,
	}
}

func infoFrom(in *pb.InfoResponse) Info {
	info := Info{
		Component: in.ComponentType, Rules: in.Rules != nil, MetricMetadata: in.MetricMetadata != nil,
		Targets: in.Targets != nil, Query: in.Query != nil, Status: in.Status != nil,
	}
	for _, set := range in.LabelSets {
		info.LabelSets = append(info.LabelSets, labelsOf(set.Labels))
	}
	if s := in.Store; s != nil {
		info.Store = &StoreInfo{TimeRange: TimeRange{s.MinTime, s.MaxTime}, Sharding: s.SupportsSharding,
			WithoutReplicaLabels: s.SupportsWithoutReplicaLabels}
		for _, db := range s.TsdbInfos {
			info.Store.TSDBs = append(info.Store.TSDBs, TSDBInfo{labelsOf(db.GetLabels().GetLabels()),
				TimeRange{db.MinTime, db.MaxTime}})
		}
	}
	if e := in.Exemplars; e != nil {
		info.Exemplars = &TimeRange{e.MinTime, e.MaxTime}
	}
	return info
}

func infoTo(info Info) *pb.InfoResponse {
	out := &pb.InfoResponse{ComponentType: info.Component}
	for _, set := range info.LabelSets {
		out.LabelSets = append(out.LabelSets, labelSetTo(set))
	}
	if s := info.Store; s != nil {
		out.Store = &pb.StoreInfo{MinTime: s.MinMS, MaxTime: s.MaxMS, SupportsSharding: s.Sharding,
			SupportsWithoutReplicaLabels: s.WithoutReplicaLabels}
		for _, db := range s.TSDBs {
			out.Store.TsdbInfos = append(out.Store.TsdbInfos, &pb.TSDBInfo{Labels: labelSetTo(db.Labels), MinTime: db.MinMS,
				MaxTime: db.MaxMS})
		}
	}
	if e := info.Exemplars; e != nil {
		out.Exemplars = &pb.ExemplarsInfo{MinTime: e.MinMS, MaxTime: e.MaxMS}
	}
	if info.Rules {
		out.Rules = &pb.RulesInfo{}
	}
	if info.MetricMetadata {
		out.MetricMetadata = &pb.MetricMetadataInfo{}
	}
	if info.Targets {
		out.Targets = &pb.TargetsInfo{}
	}
	if info.Query {
		out.Query = &pb.QueryAPIInfo{}
	}
	if info.Status {
		out.Status = &pb.StatusInfo{}
	}
	return out
}

func labelSetTo(set labels.Labels) *pb.ZLabelSet {
	out := &pb.ZLabelSet{}
	set.Range(func(l labels.Label) { out.Labels = append(out.Labels, &pb.Label{Name: l.Name, Value: l.Value}) })
	return out
}

func exemplarsFrom(in *pb.ExemplarData) exemplar.QueryResult {
	out := exemplar.QueryResult{SeriesLabels: labelsOf(in.GetSeriesLabels().GetLabels())}
	for _, e := range in.Exemplars {
		out.Exemplars = append(out.Exemplars, exemplar.Exemplar{Labels: labelsOf(e.GetLabels().GetLabels()), Value: e.Value,
			Ts: e.Ts, HasTs: true})
	}
	return out
}

func exemplarsTo(in exemplar.QueryResult) *pb.ExemplarData {
	out := &pb.ExemplarData{SeriesLabels: labelSetTo(in.SeriesLabels)}
	for _, e := range in.Exemplars {
		out.Exemplars = append(out.Exemplars, &pb.Exemplar{Labels: labelSetTo(e.Labels), Value: e.Value, Ts: e.Ts})
	}
	return out
}
