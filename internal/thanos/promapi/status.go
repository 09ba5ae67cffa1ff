package promapi

import (
	"fmt"
	"net/url"
	"strconv"

	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/grpc"

	pb "github.com/ferula-io/ferula/internal/thanos/storepb/apipb"
)

// matchTypes are the types of matchers by the numbers of StoreAPI.
var matchTypes = []labels.MatchType{labels.MatchEqual, labels.MatchNotEqual, labels.MatchRegexp, labels.MatchNotRegexp}

// statisticsMax is the greatest parameter limit that Prometheus accepts.
const statisticsMax = 10_000

// statisticJSON is an entry of a list of status/tsdb.
type statisticJSON struct {
	Name  string `json:"name"`
	Value uint64 `json:"value"`
}

// tsdbStatistics returns the statistics of the head if the external labels match the
// matchers of the request.
func (s *Services) tsdbStatistics(in *pb.TSDBStatisticsRequest, out grpc.ServerStream) error {
	external := s.external()
	for i, m := range in.Matchers {
		if m.GetType() < 0 || int(m.GetType()) >= len(matchTypes) {
			return fmt.Errorf("%w: matcher %d has unknown type %d", ErrRefused, i, m.GetType())
		}
		matcher, err := labels.NewMatcher(matchTypes[m.GetType()], m.GetName(), m.GetValue())
		if err != nil {
			return fmt.Errorf("%w: matcher %d: %w", ErrRefused, i, err)
		}
		if !matcher.Matches(external.Get(matcher.Name)) {
			return nil
		}
	}
	if in.Tenant != "" {
		return nil // a Prometheus has no tenants
	}
	query := url.Values{}
	if in.Limit > 0 {
		query.Set("limit", strconv.FormatInt(int64(min(in.Limit, statisticsMax)), 10))
	}
	var data struct {
		Head struct {
			Series     uint64 `json:"numSeries"`
			LabelPairs int64  `json:"numLabelPairs"`
			Chunks     int64  `json:"chunkCount"`
			MinTime    int64  `json:"minTime"`
			MaxTime    int64  `json:"maxTime"`
		} `json:"headStats"`
		SeriesByMetric []statisticJSON `json:"seriesCountByMetricName"`
		ValuesByLabel  []statisticJSON `json:"labelValueCountByLabelName"`
		BytesByLabel   []statisticJSON `json:"memoryInBytesByLabelName"`
		SeriesByPair   []statisticJSON `json:"seriesCountByLabelValuePair"`
	}
	warnings, err := s.client.data(out.Context(), "api/v1/status/tsdb", query, &data)
	if err != nil {
		return err
	}
	entry := &pb.TSDBStatisticsEntry{
		HeadStatistics: &pb.HeadStatistics{
			NumSeries: data.Head.Series, NumLabelPairs: data.Head.LabelPairs, ChunkCount: data.Head.Chunks,
			MinTime: data.Head.MinTime, MaxTime: data.Head.MaxTime,
		},
		SeriesCountByMetricName: statistics(data.SeriesByMetric), LabelValueCountByLabelName: statistics(data.ValuesByLabel),
		MemoryInBytesByLabelName: statistics(data.BytesByLabel), SeriesCountByLabelValuePair: statistics(data.SeriesByPair),
	}
	found := &pb.TSDBStatistics{Statistics: map[string]*pb.TSDBStatisticsEntry{"": entry}}
	if err := out.SendMsg(&pb.TSDBStatisticsResponse{Result: &pb.TSDBStatisticsResponse_Statistics{Statistics: found}}); err != nil {
		return err
	}
	for _, w := range warnings {
		if err := out.SendMsg(&pb.TSDBStatisticsResponse{Result: &pb.TSDBStatisticsResponse_Warning{Warning: w}}); err != nil {
			return err
		}
	}
	return nil
}

func statistics(in []statisticJSON) []*pb.Statistic {
	all := make([]*pb.Statistic, len(in))
	for i, s := range in {
		all[i] = &pb.Statistic{Name: s.Name, Value: s.Value}
	}
	return all
}
