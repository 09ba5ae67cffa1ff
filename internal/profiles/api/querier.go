package api

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
)

// pushProfilesMax is the number of profiles that one push may hold.
const pushProfilesMax = 10_000

func (s *Server) push(ctx context.Context, tenant string, m *profilepb.PushRequest) (*profilepb.PushResponse, error) {
	if s.opts.PushDisabled {
		return nil, errPushDisabled
	}
	var all []profilepb.RawProfile
	for _, series := range m.GetSeries() {
		lset := make([]profilepb.RawLabel, 0, len(series.GetLabels()))
		for _, pair := range series.GetLabels() {
			lset = append(lset, profilepb.RawLabel{Name: pair.GetName(), Value: pair.GetValue()})
		}
		for _, sample := range series.GetSamples() {
			all = append(all, profilepb.RawProfile{Labels: lset, Raw: sample.GetRawProfile(), ID: sample.GetID()})
		}
	}
	if len(all) > pushProfilesMax {
		return nil, badRequest{fmt.Errorf("%d profiles in one push exceed the limit of %d", len(all), pushProfilesMax)}
	}
	if len(all) > 0 {
		if err := s.pusher.Push(ctx, tenant, all); err != nil {
			return nil, err
		}
	}
	return &profilepb.PushResponse{}, nil
}

func (s *Server) profileTypes(ctx context.Context, tenant string,
	m *profilepb.ProfileTypesRequest) (*profilepb.ProfileTypesResponse, error) {
	r, err := s.labelsQuery(tenant, nil, m.GetStart(), m.GetEnd())
	if err != nil {
		return nil, err
	}
	types, warnings, err := s.querier.ProfileTypes(ctx, &r)
	warn(ctx, warnings)
	response := &profilepb.ProfileTypesResponse{}
	for _, t := range types {
		for _, text := range []*string{&t.Name, &t.SampleType, &t.SampleUnit, &t.PeriodType, &t.PeriodUnit} {
			*text = validText(*text)
		}
		response.ProfileTypes = append(response.ProfileTypes, &profilepb.ProfileType{
			ID: t.String(), Name: t.Name, SampleType: t.SampleType, SampleUnit: t.SampleUnit, PeriodType: t.PeriodType,
			PeriodUnit: t.PeriodUnit,
		})
	}
	return response, err
}

// validText replaces bytes that are not UTF-8, which blocks may have. One such text would make a whole response fail.
func validText(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

func validTexts(list []string) []string {
	valid := make([]string, len(list))
	for i, text := range list {
		valid[i] = validText(text)
	}
	return valid
}

func (s *Server) labelNames(ctx context.Context, tenant string,
	m *profilepb.LabelNamesRequest) (*profilepb.LabelNamesResponse, error) {
	r, err := s.labelsQuery(tenant, m.GetMatchers(), m.GetStart(), m.GetEnd())
	if err != nil {
		return nil, err
	}
	names, warnings, err := s.querier.LabelNames(ctx, &r)
	warn(ctx, warnings)
	return &profilepb.LabelNamesResponse{Names: validTexts(names)}, err
}

func (s *Server) labelValues(ctx context.Context, tenant string,
	m *profilepb.LabelValuesRequest) (*profilepb.LabelValuesResponse, error) {
	if m.GetName() == "" {
		return nil, badRequest{errors.New("the label's name is missing")}
	}
	r, err := s.labelsQuery(tenant, m.GetMatchers(), m.GetStart(), m.GetEnd())
	if err != nil {
		return nil, err
	}
	r.LabelFor = m.GetName()
	values, warnings, err := s.querier.LabelValues(ctx, &r)
	warn(ctx, warnings)
	return &profilepb.LabelValuesResponse{Names: validTexts(values)}, err
}

func (s *Server) series(ctx context.Context, tenant string,
	m *profilepb.SeriesRequest) (*profilepb.LabelSetsEncoder, error) {
	r, err := s.labelsQuery(tenant, m.GetMatchers(), m.GetStart(), m.GetEnd())
	if err != nil {
		return nil, err
	}
	r.Names = m.GetLabelNames()
	sets, warnings, err := s.querier.Series(ctx, &r)
	warn(ctx, warnings)
	return &profilepb.LabelSetsEncoder{Sets: sets}, err
}

func (s *Server) stats(_ context.Context, tenant string,
	_ *profilepb.GetProfileStatsRequest) (*profilepb.GetProfileStatsResponse, error) {
	stats, err := s.querier.Stats(tenant)
	if err != nil || stats == (profiles.Stats{}) {
		return &profilepb.GetProfileStatsResponse{}, err
	}
	return &profilepb.GetProfileStatsResponse{DataIngested: true, OldestProfileTime: stats.OldestMS,
		NewestProfileTime: stats.NewestMS}, nil
}

func (s *Server) selectSeries(ctx context.Context, tenant string,
	m *profilepb.SelectSeriesRequest) (*profilepb.SeriesEncoder, error) {
	r, err := s.seriesQuery(tenant, m)
	if err != nil {
		return nil, err
	}
	result, err := s.querier.SelectSeries(ctx, &r)
	if err != nil {
		return nil, err
	}
	onWritten(ctx, result.Close)
	warn(ctx, result.Warnings)
	return &profilepb.SeriesEncoder{Result: result, To: requestContextOf(ctx).to}, nil
}

func (s *Server) flame(ctx context.Context, r profiles.MergeRequest) (*profiles.FlameGraph, error) {
	f, err := s.querier.MergeFlame(ctx, &r)
	if err != nil {
		return nil, err
	}
	warn(ctx, f.Warnings)
	return f, nil
}

func (s *Server) pprof(ctx context.Context, r *profiles.MergeRequest) ([]byte, error) {
	raw, warnings, err := s.querier.MergePprof(ctx, r)
	warn(ctx, warnings)
	return raw, err
}

func (s *Server) selectMergeStacktraces(ctx context.Context, tenant string,
	m *profilepb.SelectMergeStacktracesRequest) (*profilepb.MergeEncoder, error) {
	r, err := s.mergeRequest(tenant, m)
	if err != nil {
		return nil, err
	}
	switch m.GetFormat() {
	case profilepb.ProfileFormat_PROFILE_FORMAT_UNSPECIFIED, profilepb.ProfileFormat_PROFILE_FORMAT_FLAMEGRAPH:
		flame, err := s.flame(ctx, r)
		return &profilepb.MergeEncoder{Flame: flame}, err
	case profilepb.ProfileFormat_PROFILE_FORMAT_DOT:
		flame, err := s.flame(ctx, r)
		if err != nil {
			return nil, err
		}
		return &profilepb.MergeEncoder{Dot: Dot(flame, r.Type)}, nil
	case profilepb.ProfileFormat_PROFILE_FORMAT_PPROF:
		if m.MaxNodes == nil {
			r.MaxNodes = 0 // a pprof is complete unless the request sets a limit
		}
		raw, err := s.pprof(ctx, &r)
		return &profilepb.MergeEncoder{Pprof: raw}, err
	case profilepb.ProfileFormat_PROFILE_FORMAT_TREE:
		flame, err := s.flame(ctx, r)
		if err != nil {
			return nil, err
		}
		return &profilepb.MergeEncoder{Tree: Tree(flame)}, nil
	}
	return nil, badRequest{fmt.Errorf("format %d is unknown", m.GetFormat())}
}

func (s *Server) selectMergeProfile(ctx context.Context, tenant string,
	m *profilepb.SelectMergeProfileRequest) (*profilepb.ProfileEncoder, error) {
	r, err := s.mergeRequest(tenant, &profilepb.SelectMergeStacktracesRequest{
		ProfileTypeID: m.GetProfileTypeID(), LabelSelector: m.GetLabelSelector(), Start: m.GetStart(), End: m.GetEnd(),
		ProfileIdSelector: m.GetProfileIdSelector(), TraceIdSelector: m.GetTraceIdSelector(),
		StackTraceSelector: m.GetStackTraceSelector(), MaxNodes: m.MaxNodes,
	})
	if err != nil {
		return nil, err
	}
	if m.MaxNodes == nil {
		r.MaxNodes = 0
	}
	raw, err := s.pprof(ctx, &r)
	return &profilepb.ProfileEncoder{Profile: raw}, err
}

// selectMergeSpanProfile returns the samples of spans. Its response has the same field
// numbers as SelectMergeStacktraces' response.
func (s *Server) selectMergeSpanProfile(ctx context.Context, tenant string,
	m *profilepb.SelectMergeSpanProfileRequest) (*profilepb.MergeEncoder, error) {
	if len(m.GetSpanSelector()) == 0 {
		return nil, badRequest{errors.New("span_selector is missing")}
	}
	r, err := s.mergeRequest(tenant, &profilepb.SelectMergeStacktracesRequest{
		ProfileTypeID: m.GetProfileTypeID(), LabelSelector: m.GetLabelSelector(), Start: m.GetStart(), End: m.GetEnd(),
		SpanSelector: m.GetSpanSelector(), MaxNodes: m.MaxNodes,
	})
	if err != nil {
		return nil, err
	}
	flame, err := s.flame(ctx, r)
	if err != nil {
		return nil, err
	}
	switch m.GetFormat() {
	case profilepb.ProfileFormat_PROFILE_FORMAT_UNSPECIFIED, profilepb.ProfileFormat_PROFILE_FORMAT_FLAMEGRAPH:
		return &profilepb.MergeEncoder{Flame: flame}, nil
	case profilepb.ProfileFormat_PROFILE_FORMAT_TREE:
		return &profilepb.MergeEncoder{Tree: Tree(flame)}, nil
	}
	return nil, badRequest{fmt.Errorf("format %s is neither a flame graph nor a tree", m.GetFormat())}
}

func (s *Server) diff(ctx context.Context, tenant string, m *profilepb.DiffRequest) (*profilepb.DiffEncoder, error) {
	var flames [2]*profiles.FlameGraph
	nodes := 0
	for i, side := range []*profilepb.SelectMergeStacktracesRequest{m.GetLeft(), m.GetRight()} {
		if side == nil {
			return nil, badRequest{errors.New("a diff needs both left and right")}
		}
		r, err := s.mergeRequest(tenant, side)
		if err == nil {
			nodes = max(nodes, r.MaxNodes)
			r.MaxNodes = diffNodesMax
			flames[i], err = s.flame(ctx, r)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", [...]string{"left", "right"}[i], err)
		}
	}
	return Diff(flames[0], flames[1], nodes), nil
}
