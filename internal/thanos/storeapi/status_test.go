package storeapi

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/thanos/storepb/apipb"
)

// counted is a source of statistics. It has no series.
type counted struct {
	Source
	all []TSDBStatistics
	err error
	got StatusRequest
}

// Capabilities implements Source.
func (*counted) Capabilities() Capabilities { return Capabilities{Status: true} }

func (c *counted) TSDBStatistics(_ context.Context, r StatusRequest) ([]TSDBStatistics, []string, error) {
	c.got = r
	return c.all, []string{"w"}, c.err
}

func TestServer_StatisticsArriveAsTheyAre(t *testing.T) {
	c := &counted{all: []TSDBStatistics{
		{
			Series: 1, LabelPairs: 2, Chunks: 3, MinMS: -4, MaxMS: 5, SeriesByMetric: []Statistic{{"up", 6}, {"m", 1}}, ValuesByLabel: []Statistic{{"job", 7}},
			BytesByLabel: []Statistic{{"job", 8}}, SeriesByPair: []Statistic{{"job=a", 9}},
		},
		{Tenant: "a", SeriesByMetric: []Statistic{}, ValuesByLabel: []Statistic{}, BytesByLabel: []Statistic{}, SeriesByPair: []Statistic{}},
	}}
	client := NewClient(connect(t, NewServer(c, ServerOptions{}).registerAll, GRPCServerOptions()...), ClientOptions{})
	request := StatusRequest{Limit: 7, AbortOnPartial: true, Matchers: []*labels.Matcher{labels.MustNewMatcher(labels.MatchNotRegexp, "cluster", "e.")}}
	all, warnings, err := client.TSDBStatistics(t.Context(), request)
	if err != nil || !reflect.DeepEqual(all, c.all) || len(warnings) != 1 {
		t.Errorf("%v %q %+v", err, warnings, all)
	}
	if c.got.Limit != 7 || !c.got.AbortOnPartial || fmt.Sprint(c.got.Matchers) != fmt.Sprint(request.Matchers) {
		t.Errorf("request: %+v", c.got)
	}
	for limit, want := range map[int]int{0: statisticsDefault, -1: statisticsDefault, statisticsMax + 1: statisticsMax, 1 << 40: statisticsMax} {
		if _, _, err := client.TSDBStatistics(t.Context(), StatusRequest{Limit: limit}); err != nil || c.got.Limit != want {
			t.Errorf("limit %d: %d, %v", limit, c.got.Limit, err)
		}
	}
	c.err = fmt.Errorf("%w: store s", ErrUnavailable)
	if _, _, err := client.TSDBStatistics(t.Context(), StatusRequest{}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("%v", err)
	}
	bad := &apipb.TSDBStatisticsRequest{Matchers: []*apipb.LabelMatcher{{Type: 9, Name: "a"}}}
	if _, err := receive(t.Context(), client, "/thanos.Status/TSDBStatistics", bad, "", func(*apipb.TSDBStatisticsResponse) int { return 0 }); !errors.Is(err, ErrBadRequest) {
		t.Errorf("%v", err)
	}
	c.err = nil
	tenants := 0
	_, err = receive(t.Context(), client, "/thanos.Status/TSDBStatistics", &apipb.TSDBStatisticsRequest{Tenant: "a"}, "", func(m *apipb.TSDBStatisticsResponse) int {
		tenants += len(m.GetStatistics().GetStatistics())
		return 0
	})
	if err != nil || tenants != 1 {
		t.Errorf("of one tenant: %d, %v", tenants, err)
	}
}
