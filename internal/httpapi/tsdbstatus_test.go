package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/httpapi"
	"github.com/ferula-io/ferula/internal/thanos/fanout"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// countedStores implements httpapi.Stores with statistics.
type countedStores struct {
	queriedStores
	got     *string
	err     error
	partial bool
}

func (s countedStores) Query(r fanout.Request) httpapi.StoreQuery {
	s.partial = !r.AbortOnPartial
	return s
}

func (s countedStores) TSDBStatistics(_ context.Context, matchers []*labels.Matcher, limit int) (storeapi.TSDBStatistics, annotations.Annotations, error) {
	*s.got = fmt.Sprint(s.partial, " ", matchers, " ", limit)
	var warnings annotations.Annotations
	if s.partial {
		warnings.Add(errors.New("store x: gone"))
	}
	return storeapi.TSDBStatistics{
		Series: 5, LabelPairs: 6, Chunks: 7, MinMS: -8, MaxMS: 9, SeriesByMetric: []storeapi.Statistic{{Name: "up", Value: 1}}, ValuesByLabel: []storeapi.Statistic{{Name: "job", Value: 2}},
		BytesByLabel: []storeapi.Statistic{{Name: "job", Value: 3}, {Name: "a", Value: 1}}, SeriesByPair: []storeapi.Statistic{{Name: `job="`, Value: 4}},
	}, warnings, s.err
}

func TestAPI_StatisticsOfStores(t *testing.T) {
	var got string
	w := respondedWith(countedStores{got: &got}, nil, "/status/tsdb")
	want := `{"status":"success","data":{"headStats":{"numSeries":5,"numLabelPairs":6,"chunkCount":7,"minTime":-8,"maxTime":9},"seriesCountByMetricName":[{"name":"up","value":1}],"labelValueCountByLabelName":[{"name":"job","value":2}],` +
		`"memoryInBytesByLabelName":[{"name":"job","value":3},{"name":"a","value":1}],"seriesCountByLabelValuePair":[{"name":"job=\"","value":4}]}}`
	if strings.TrimSpace(w.Body.String()) != want || got != "false [] 10" {
		t.Errorf("%s: %s", got, w.Body)
	}
	for query, want := range map[string]string{
		"limit=0": "false [] 10", "limit=": "false [] 10", "limit=10000": "false [] 10000",
		"partial_response=true&match[]={cluster%3D%22a%22}&match[]={b!%3D%22c%22,d%3D~%22e%22}": `true [cluster="a" b!="c" d=~"e"] 10`,
	} {
		if w := respondedWith(countedStores{got: &got}, nil, "/status/tsdb?"+query); w.Code != http.StatusOK || got != want {
			t.Errorf("%s: %d %s, want %s", query, w.Code, got, want)
		}
	}
	if w := respondedWith(countedStores{got: &got}, nil, "/status/tsdb?partial_response=true"); !strings.Contains(w.Body.String(), `"warnings":["store x: gone"]`) || w.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("%v %s", w.Header(), w.Body)
	}
	for _, query := range []string{"limit=x", "limit=-1", "limit=10001", "match[]={", "partial_response=x"} {
		if w := respondedWith(countedStores{got: &got}, nil, "/status/tsdb?"+query); w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", query, w.Code, w.Body)
		}
	}
	if w := respondedWith(countedStores{got: &got, err: errors.New("gone")}, nil, "/status/tsdb"); w.Code == http.StatusOK || !strings.Contains(w.Body.String(), "gone") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
