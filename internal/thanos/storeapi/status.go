package storeapi

import (
	"context"
	"maps"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/index"
	"google.golang.org/grpc"

	"github.com/ferula-io/ferula/internal/thanos/storepb/apipb"
	pb "github.com/ferula-io/ferula/internal/thanos/storepb/thanospb"
)

// TSDBStatistics describe the head of a TSDB. The lists have the largest values first. The names in JSON are those of
// Prometheus' API.
type TSDBStatistics struct {
	Tenant         string      `json:"-"` // "": of a store without tenants
	Series         uint64      `json:"-"`
	LabelPairs     int64       `json:"-"`
	Chunks         int64       `json:"-"`
	MinMS          int64       `json:"-"`
	MaxMS          int64       `json:"-"`
	SeriesByMetric []Statistic `json:"seriesCountByMetricName"`
	ValuesByLabel  []Statistic `json:"labelValueCountByLabelName"`
	BytesByLabel   []Statistic `json:"memoryInBytesByLabelName"`
	SeriesByPair   []Statistic `json:"seriesCountByLabelValuePair"`
}

// Statistic is a value of a metric name, a label name, or a pair name=value.
type Statistic struct {
	Name  string `json:"name"`
	Value uint64 `json:"value"`
}

// StatusRequest selects the statistics of the TSDBs whose external labels match.
type StatusRequest struct {
	Matchers       []*labels.Matcher
	Limit          int // of each list; 0 or less: 10
	AbortOnPartial bool
}

// Limits of the lists of statistics.
const (
	statisticsDefault = 10
	statisticsMax     = 10_000
)

// StatisticsOf converts the statistics of a head. The number of chunks is not known and stays
// 0.
func StatisticsOf(stats *tsdb.Stats) TSDBStatistics {
	s := TSDBStatistics{Series: stats.NumSeries, MinMS: stats.MinTime, MaxMS: stats.MaxTime}
	if p := stats.IndexPostingStats; p != nil {
		s.LabelPairs = int64(p.NumLabelPairs)
		s.SeriesByMetric, s.ValuesByLabel = statistics(p.CardinalityMetricsStats), statistics(p.CardinalityLabelStats)
		s.BytesByLabel, s.SeriesByPair = statistics(p.LabelValueStats), statistics(p.LabelValuePairsStats)
	}
	return s
}

func statistics(stats []index.Stat) []Statistic {
	all := make([]Statistic, len(stats))
	for i, s := range stats {
		all[i] = Statistic{s.Name, s.Count}
	}
	return all
}

// MatchesExternal reports whether external labels match all of the request's matchers.
func (r StatusRequest) MatchesExternal(external labels.Labels) bool {
	return !slices.ContainsFunc(r.Matchers, func(m *labels.Matcher) bool { return !m.Matches(external.Get(m.Name)) })
}

// TSDBStatistics returns the statistics of the TSDBs of a store.
func (c *Client) TSDBStatistics(ctx context.Context,
	r StatusRequest) (all []TSDBStatistics, warnings []string, err error) {
	request := &apipb.TSDBStatisticsRequest{Limit: int32(min(r.Limit, statisticsMax)),
		PartialResponseStrategy: int32(strategy(r.AbortOnPartial))}
	for _, m := range matchersTo(r.Matchers) {
		request.Matchers = append(request.Matchers, &apipb.LabelMatcher{Type: int32(m.Type), Name: m.Name, Value: m.Value})
	}
	const method = "/thanos.Status/TSDBStatistics"
	warnings, err = receive(ctx, c, method, request, "statistics", func(msg *apipb.TSDBStatisticsResponse) (n int) {
		of := msg.GetStatistics().GetStatistics()
		for _, tenant := range slices.Sorted(maps.Keys(of)) {
			s := statisticsFrom(of[tenant])
			s.Tenant = tenant
			n += 1 + len(s.SeriesByMetric) + len(s.ValuesByLabel) + len(s.BytesByLabel) + len(s.SeriesByPair)
			all = append(all, s)
		}
		return n
	})
	return all, warnings, err
}

func (s *Server) tsdbStatistics(in *apipb.TSDBStatisticsRequest, out grpc.ServerStream) error {
	r := StatusRequest{Limit: min(int(in.Limit), statisticsMax), AbortOnPartial: aborting(in.PartialResponseStrategy)}
	if r.Limit <= 0 {
		r.Limit = statisticsDefault
	}
	var matchers []*pb.LabelMatcher
	for _, m := range in.Matchers {
		matchers = append(matchers, &pb.LabelMatcher{Type: pb.LabelMatcher_Type(m.Type), Name: m.Name, Value: m.Value})
	}
	var err error
	if r.Matchers, err = matchersFrom(matchers); err != nil {
		return err
	}
	all, warnings, err := s.src.TSDBStatistics(out.Context(), r)
	if err != nil {
		return err
	}
	var messages []any
	for i := range all {
		if tenant := all[i].Tenant; in.Tenant == "" || in.Tenant == tenant {
			of := map[string]*apipb.TSDBStatisticsEntry{tenant: statisticsTo(&all[i])}
			messages = append(messages, &apipb.TSDBStatisticsResponse{Result: &apipb.TSDBStatisticsResponse_Statistics{
				Statistics: &apipb.TSDBStatistics{Statistics: of}}})
		}
	}
	return sendAll(out, messages, warnings, func(w string) any {
		return &apipb.TSDBStatisticsResponse{Result: &apipb.TSDBStatisticsResponse_Warning{Warning: w}}
	})
}

func statisticsFrom(e *apipb.TSDBStatisticsEntry) TSDBStatistics {
	list := func(in []*apipb.Statistic) []Statistic {
		all := make([]Statistic, len(in))
		for i, s := range in {
			all[i] = Statistic{s.GetName(), s.GetValue()}
		}
		return all
	}
	h := e.GetHeadStatistics()
	return TSDBStatistics{
		Series: h.GetNumSeries(), LabelPairs: h.GetNumLabelPairs(), Chunks: h.GetChunkCount(), MinMS: h.GetMinTime(),
		MaxMS:          h.GetMaxTime(),
		SeriesByMetric: list(e.GetSeriesCountByMetricName()), ValuesByLabel: list(e.GetLabelValueCountByLabelName()),
		BytesByLabel: list(e.GetMemoryInBytesByLabelName()), SeriesByPair: list(e.GetSeriesCountByLabelValuePair()),
	}
}

func statisticsTo(s *TSDBStatistics) *apipb.TSDBStatisticsEntry {
	list := func(in []Statistic) []*apipb.Statistic {
		all := make([]*apipb.Statistic, len(in))
		for i := range in {
			all[i] = &apipb.Statistic{Name: in[i].Name, Value: in[i].Value}
		}
		return all
	}
	return &apipb.TSDBStatisticsEntry{
		HeadStatistics: &apipb.HeadStatistics{NumSeries: s.Series, NumLabelPairs: s.LabelPairs,
			ChunkCount: s.Chunks, MinTime: s.MinMS, MaxTime: s.MaxMS},
		SeriesCountByMetricName: list(s.SeriesByMetric), LabelValueCountByLabelName: list(s.ValuesByLabel),
		MemoryInBytesByLabelName: list(s.BytesByLabel), SeriesCountByLabelValuePair: list(s.SeriesByPair),
	}
}
