package api

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// selectHeatmap counts profiles, or spans, by time and value.
func (s *Server) selectHeatmap(ctx context.Context, tenant string,
	m *profilepb.SelectHeatmapRequest) (*profilepb.SelectHeatmapResponse, error) {
	limit := m.GetLimit()
	over, err := s.seriesQuery(tenant, &profilepb.SelectSeriesRequest{
		ProfileTypeID: m.GetProfileTypeID(), LabelSelector: m.GetLabelSelector(), Start: m.GetStart(), End: m.GetEnd(),
		Step: m.GetStep(), GroupBy: m.GetGroupBy(), Limit: &limit,
	})
	if err != nil {
		return nil, err
	}
	r := profiles.HeatmapRequest{SeriesRequest: over}
	switch m.GetQueryType() {
	case profilepb.HeatmapQueryType_HEATMAP_QUERY_TYPE_UNSPECIFIED,
		profilepb.HeatmapQueryType_HEATMAP_QUERY_TYPE_INDIVIDUAL:
	case profilepb.HeatmapQueryType_HEATMAP_QUERY_TYPE_SPAN:
		r.Spans = true
	default:
		return nil, badRequest{fmt.Errorf("query_type %d is unknown", m.GetQueryType())}
	}
	switch m.GetExemplarType() {
	case profilepb.ExemplarType_EXEMPLAR_TYPE_UNSPECIFIED, profilepb.ExemplarType_EXEMPLAR_TYPE_NONE:
	case profilepb.ExemplarType_EXEMPLAR_TYPE_INDIVIDUAL:
		if r.Spans {
			return nil, badRequest{fmt.Errorf("a heat map of spans has exemplars of type EXEMPLAR_TYPE_SPAN only")}
		}
		r.Exemplars = true
	case profilepb.ExemplarType_EXEMPLAR_TYPE_SPAN:
		if !r.Spans {
			return nil, badRequest{fmt.Errorf("a heat map of profiles has exemplars of type EXEMPLAR_TYPE_INDIVIDUAL only")}
		}
		r.Exemplars = true
	default:
		return nil, badRequest{fmt.Errorf("exemplar_type %d is unknown", m.GetExemplarType())}
	}
	result, err := s.querier.Heatmap(ctx, &r)
	if err != nil {
		return nil, err
	}
	warn(ctx, result.Warnings)
	response := &profilepb.SelectHeatmapResponse{}
	for i := range result.Series {
		response.Series = append(response.Series, heatmapSeries(&result.Series[i]))
	}
	return response, nil
}

func heatmapSeries(s *profiles.HeatmapSeries) *profilepb.HeatmapSeries {
	out := &profilepb.HeatmapSeries{Labels: labelPairs(s.Labels)}
	for i := range s.Slots {
		slot := &s.Slots[i]
		to := &profilepb.HeatmapSlot{Timestamp: slot.TimeMS, YMin: slot.YMin, Counts: slot.Counts}
		for j := range slot.Exemplars {
			x := &slot.Exemplars[j]
			exemplar := &profilepb.Exemplar{Timestamp: x.TimeNS / 1e6, ProfileId: x.ID.String(), Value: x.Value,
				Labels: labelPairs(x.Labels), SpanId: x.Span.IDText(), TraceId: x.Span.TraceText()}
			to.Exemplars = append(to.Exemplars, exemplar)
		}
		out.Slots = append(out.Slots, to)
	}
	return out
}

func labelPairs(set []byte) (pairs []*profilepb.LabelPair) {
	for name, value := range labelenc.All(set) {
		pairs = append(pairs, &profilepb.LabelPair{Name: string(name), Value: string(value)})
	}
	return pairs
}

// analyzeQuery returns how many blocks, series, profiles and bytes a query would read.
func (s *Server) analyzeQuery(ctx context.Context, tenant string,
	m *profilepb.AnalyzeQueryRequest) (*profilepb.AnalyzeQueryResponse, error) {
	selector := m.GetQuery()
	if at := strings.IndexByte(selector, '{'); at > 0 { // type{selector}
		selector = selector[at:]
	}
	r, err := s.labelsQuery(tenant, []string{selector}, m.GetStart(), m.GetEnd())
	if err != nil {
		return nil, err
	}
	a, warnings, err := s.querier.Analyze(ctx, &r)
	if err != nil {
		return nil, err
	}
	warn(ctx, warnings)
	scope := &profilepb.QueryScope{
		ComponentType: "store", ComponentCount: 1, BlockCount: uint64(a.Blocks), SeriesCount: uint64(a.Series),
		ProfileCount: uint64(a.Profiles),
		IndexBytes:   uint64(a.IndexBytes), ProfileBytes: uint64(a.RowsBytes), SymbolBytes: uint64(a.SymbolsBytes),
	}
	return &profilepb.AnalyzeQueryResponse{
		QueryScopes: []*profilepb.QueryScope{scope},
		QueryImpact: &profilepb.QueryImpact{TotalBytesInTimeRange: uint64(a.IndexBytes + a.RowsBytes),
			TotalQueriedSeries: uint64(a.Series)},
	}, nil
}

// getSettings returns no settings: none are stored. Grafana's application for profiles requests
// the settings with every flame graph.
func (s *Server) getSettings(context.Context, string, *emptypb.Empty) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, nil
}

func (s *Server) setSettings(context.Context, string, *emptypb.Empty) (*emptypb.Empty, error) {
	return nil, connect.NewError(connect.CodeUnimplemented, errors.New("storing settings is not served"))
}
