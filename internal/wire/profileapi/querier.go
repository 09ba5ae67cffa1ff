package profileapi

import (
	"context"
	"fmt"

	"connectrpc.com/connect"

	"github.com/ferula-io/ferula/internal/codec/profilepb"
)

func unimplemented(what string) error {
	return connect.NewError(connect.CodeUnimplemented, fmt.Errorf("%s is not served", what))
}

// pushedMax is how many profiles one push may hold.
const pushedMax = 10_000

func (s *Server) pushed(ctx context.Context, tenant string, m *profilepb.PushRequest) (*profilepb.PushResponse, error) {
	var all []profilepb.Pushed
	for _, series := range m.GetSeries() {
		lset := make([]profilepb.LabelText, 0, len(series.GetLabels()))
		for _, pair := range series.GetLabels() {
			lset = append(lset, profilepb.LabelText{Name: pair.GetName(), Value: pair.GetValue()})
		}
		for _, sample := range series.GetSamples() {
			all = append(all, profilepb.Pushed{Labels: lset, Raw: sample.GetRawProfile(), ID: sample.GetID()})
		}
	}
	if len(all) > pushedMax {
		return nil, badRequest{fmt.Errorf("%d profiles in one push are more than %d", len(all), pushedMax)}
	}
	if len(all) > 0 {
		if err := s.push.Push(ctx, tenant, all); err != nil {
			return nil, err
		}
	}
	return &profilepb.PushResponse{}, nil
}

func (s *Server) profileTypes(ctx context.Context, tenant string, m *profilepb.ProfileTypesRequest) (*profilepb.ProfileTypesResponse, error) {
	start, end, err := span(m.GetStart(), m.GetEnd(), true)
	if err != nil {
		return nil, err
	}
	ids, err := s.query.ProfileTypes(ctx, tenant, start, end)
	if err != nil {
		return nil, err
	}
	answer := &profilepb.ProfileTypesResponse{}
	for _, id := range ids {
		t, err := ParseProfileType(id)
		if err != nil {
			return nil, err
		}
		answer.ProfileTypes = append(answer.ProfileTypes, &profilepb.ProfileType{
			ID: id, Name: t.Name, SampleType: t.SampleType, SampleUnit: t.SampleUnit, PeriodType: t.PeriodType, PeriodUnit: t.PeriodUnit,
		})
	}
	return answer, nil
}

func (s *Server) labelNames(ctx context.Context, tenant string, m *profilepb.LabelNamesRequest) (*profilepb.LabelNamesResponse, error) {
	start, end, err := span(m.GetStart(), m.GetEnd(), true)
	if err != nil {
		return nil, err
	}
	anyOf, err := s.selectors(m.GetMatchers())
	if err != nil {
		return nil, err
	}
	names, err := s.query.LabelNames(ctx, tenant, anyOf, start, end)
	return &profilepb.LabelNamesResponse{Names: names}, err
}

func (s *Server) labelValues(ctx context.Context, tenant string, m *profilepb.LabelValuesRequest) (*profilepb.LabelValuesResponse, error) {
	if m.GetName() == "" {
		return nil, badRequest{fmt.Errorf("the label's name is missing")}
	}
	start, end, err := span(m.GetStart(), m.GetEnd(), true)
	if err != nil {
		return nil, err
	}
	anyOf, err := s.selectors(m.GetMatchers())
	if err != nil {
		return nil, err
	}
	values, err := s.query.LabelValues(ctx, tenant, m.GetName(), anyOf, start, end)
	return &profilepb.LabelValuesResponse{Names: values}, err
}

func (s *Server) series(ctx context.Context, tenant string, m *profilepb.SeriesRequest) (*profilepb.LabelSetsAnswer, error) {
	start, end, err := span(m.GetStart(), m.GetEnd(), true)
	if err != nil {
		return nil, err
	}
	anyOf, err := s.selectors(m.GetMatchers())
	if err != nil {
		return nil, err
	}
	sets, err := s.query.Series(ctx, tenant, anyOf, m.GetLabelNames(), start, end)
	return &profilepb.LabelSetsAnswer{Sets: sets}, err
}

func (s *Server) stats(ctx context.Context, tenant string, _ *profilepb.GetProfileStatsRequest) (*profilepb.GetProfileStatsResponse, error) {
	oldest, newest, ok, err := s.query.Stats(ctx, tenant)
	if err != nil || !ok {
		return &profilepb.GetProfileStatsResponse{}, err
	}
	return &profilepb.GetProfileStatsResponse{DataIngested: true, OldestProfileTime: oldest, NewestProfileTime: newest}, nil
}

func (s *Server) selectSeries(ctx context.Context, tenant string, m *profilepb.SelectSeriesRequest) (*profilepb.SeriesAnswer, error) {
	q, err := s.seriesQuery(tenant, m)
	if err != nil {
		return nil, err
	}
	switch m.GetAggregation() {
	case profilepb.TimeSeriesAggregationType_TIME_SERIES_AGGREGATION_TYPE_SUM:
	case profilepb.TimeSeriesAggregationType_TIME_SERIES_AGGREGATION_TYPE_AVERAGE:
		q.Average = true
	default:
		return nil, badRequest{fmt.Errorf("aggregation %d is unknown", m.GetAggregation())}
	}
	for _, site := range m.GetStackTraceSelector().GetCallSite() {
		q.CallSites = append(q.CallSites, site.GetName())
	}
	return s.query.SelectSeries(ctx, q)
}

func (s *Server) selectMergeStacktraces(ctx context.Context, tenant string, m *profilepb.SelectMergeStacktracesRequest) (*profilepb.MergeAnswer, error) {
	q, err := s.mergeQuery(tenant, m)
	if err != nil {
		return nil, err
	}
	switch m.GetFormat() {
	case profilepb.ProfileFormat_PROFILE_FORMAT_UNSPECIFIED, profilepb.ProfileFormat_PROFILE_FORMAT_FLAMEGRAPH:
		flame, err := s.query.SelectFlame(ctx, q)
		return &profilepb.MergeAnswer{Flame: flame}, err
	case profilepb.ProfileFormat_PROFILE_FORMAT_DOT:
		flame, err := s.query.SelectFlame(ctx, q)
		if err != nil {
			return nil, err
		}
		return &profilepb.MergeAnswer{Dot: Dot(flame, q.Type)}, nil
	case profilepb.ProfileFormat_PROFILE_FORMAT_PPROF:
		raw, err := s.query.SelectPprof(ctx, q)
		return &profilepb.MergeAnswer{Pprof: raw}, err
	case profilepb.ProfileFormat_PROFILE_FORMAT_TREE:
		return nil, unimplemented("PROFILE_FORMAT_TREE")
	}
	return nil, badRequest{fmt.Errorf("format %d is unknown", m.GetFormat())}
}

func (s *Server) selectMergeProfile(ctx context.Context, tenant string, m *profilepb.SelectMergeProfileRequest) (*profilepb.ProfileAnswer, error) {
	q, err := s.querySelection(selection{
		tenant: tenant, profileType: m.GetProfileTypeID(), selector: m.GetLabelSelector(), startMS: m.GetStart(), endMS: m.GetEnd(),
		profiles: m.GetProfileIdSelector(), traces: m.GetTraceIdSelector(), stack: m.GetStackTraceSelector(), nodes: m.MaxNodes,
	})
	if err != nil {
		return nil, err
	}
	if m.MaxNodes == nil {
		q.NodesMax = 0 // a pprof is whole unless somebody wants less
	}
	raw, err := s.query.SelectPprof(ctx, q)
	return &profilepb.ProfileAnswer{Profile: raw}, err
}

func (s *Server) selectMergeSpanProfile(ctx context.Context, tenant string, m *profilepb.SelectMergeSpanProfileRequest) (*profilepb.SpanMergeAnswer, error) {
	q, err := s.querySelection(selection{
		tenant: tenant, profileType: m.GetProfileTypeID(), selector: m.GetLabelSelector(), startMS: m.GetStart(), endMS: m.GetEnd(),
		spans: m.GetSpanSelector(), nodes: m.MaxNodes,
	})
	switch {
	case err != nil:
		return nil, err
	case len(q.SpanIDs) == 0:
		return nil, badRequest{fmt.Errorf("span_selector is empty")}
	}
	switch m.GetFormat() {
	case profilepb.ProfileFormat_PROFILE_FORMAT_UNSPECIFIED, profilepb.ProfileFormat_PROFILE_FORMAT_FLAMEGRAPH:
		flame, err := s.query.SelectFlame(ctx, q)
		return &profilepb.SpanMergeAnswer{Flame: flame}, err
	}
	return nil, unimplemented(m.GetFormat().String())
}

func (s *Server) selectHeatmap(ctx context.Context, tenant string, m *profilepb.SelectHeatmapRequest) (*profilepb.HeatmapAnswer, error) {
	q, err := s.seriesQuery(tenant, m)
	if err != nil {
		return nil, err
	}
	if t := m.GetQueryType(); t == profilepb.HeatmapQueryType_HEATMAP_QUERY_TYPE_SPAN {
		return nil, unimplemented(t.String())
	}
	return s.query.SelectHeatmap(ctx, q)
}

func (s *Server) diff(ctx context.Context, tenant string, m *profilepb.DiffRequest) (*profilepb.DiffAnswer, error) {
	var flames [2]*profilepb.Flame
	for i, side := range []*profilepb.SelectMergeStacktracesRequest{m.GetLeft(), m.GetRight()} {
		if side == nil {
			return nil, badRequest{fmt.Errorf("a diff needs both left and right")}
		}
		q, err := s.mergeQuery(tenant, side)
		if err == nil {
			flames[i], err = s.query.SelectFlame(ctx, q)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", [...]string{"left", "right"}[i], err)
		}
	}
	return Diff(flames[0], flames[1]), nil
}
