package httpapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/metadata"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/httpapi"
	rawseries "github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/fanout"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/metrics"
)

// store is a store with one series, or one that fails.
type store struct {
	fanout.Client
	labels labels.Labels
	err    error
}

var wide = storeapi.TimeRange{MinMS: math.MinInt64, MaxMS: math.MaxInt64}

func (s *store) Info(context.Context) (storeapi.Info, error) {
	return storeapi.Info{
		Component: "sidecar", LabelSets: []labels.Labels{labels.FromStrings("replica", s.labels.Get("replica"))},
		Store: &storeapi.StoreInfo{TimeRange: wide}, Exemplars: &wide, Rules: true, Targets: true, MetricMetadata: true, Status: true,
	}, nil
}

func (s *store) Close() error { return nil }

func (s *store) Series(_ context.Context, r storeapi.SeriesRequest) storeapi.Stream {
	return &stream{left: s.err == nil, labels: labelenc.Append(nil, s.labels), err: s.err}
}

func (s *store) Exemplars(context.Context, storeapi.ExemplarsRequest) ([]exemplar.QueryResult, []string, error) {
	return []exemplar.QueryResult{{SeriesLabels: s.labels, Exemplars: []exemplar.Exemplar{{Ts: 1}}}}, nil, s.err
}

func (s *store) MetricMetadata(context.Context, storeapi.MetadataRequest) (map[string][]metadata.Metadata, []string, error) {
	return map[string][]metadata.Metadata{"up": {{Help: "Whether a target is up."}}}, nil, s.err
}

func (s *store) Targets(context.Context, storeapi.TargetsRequest) (storeapi.Targets, []string, error) {
	return storeapi.Targets{Active: []storeapi.ActiveTarget{{Labels: s.labels, Health: "up"}}}, nil, s.err
}

func (s *store) Rules(context.Context, storeapi.RulesRequest) ([]storeapi.RuleGroup, []string, error) {
	return []storeapi.RuleGroup{{Name: "g", File: "f.yml", Rules: []storeapi.Rule{{Name: "r", Query: "m"}}}}, nil, s.err
}

func (s *store) TSDBStatistics(context.Context, storeapi.StatusRequest) ([]storeapi.TSDBStatistics, []string, error) {
	return []storeapi.TSDBStatistics{{Series: 2}}, nil, s.err
}

type stream struct {
	rawseries.Set
	left   bool
	labels []byte
	err    error
}

func (s *stream) Next() bool {
	left := s.left
	s.left = false
	return left
}
func (s *stream) Labels() []byte                  { return s.labels }
func (*stream) Chunks() []rawseries.Chunk         { return nil }
func (s *stream) Err() error                      { return s.err }
func (*stream) Warnings() annotations.Annotations { return nil }
func (*stream) BufferedBytes() int64              { return 0 }
func (*stream) Close() error                      { return nil }

func newStores(t *testing.T, stores map[string]*store) httpapi.Stores {
	t.Helper()
	o := fanout.EndpointsOptions{Logger: slog.New(slog.DiscardHandler), Metrics: metrics.NewSet()}
	for name := range stores {
		o.Static = append(o.Static, fanout.Address{Name: name})
	}
	o.Dial = func(a fanout.Address) (fanout.Client, error) {
		address := a.Name
		return stores[address], nil
	}
	endpoints := fanout.NewEndpoints(o)
	endpoints.Update(context.Background())
	t.Cleanup(endpoints.Close)
	return httpapi.StoresOf(fanout.New(endpoints, fanout.Options{}), endpoints)
}

// count returns the number of series of m.
func countSeries(t *testing.T, s httpapi.Stores, r fanout.Request) (n int, warnings int, err error) {
	t.Helper()
	q, err := s.Query(r).Querier(0, 10)
	if err != nil {
		t.Fatal(err)
	}
	set := q.Select(context.Background(), true, nil, ofM)
	for set.Next() {
		n++
	}
	return n, len(set.Warnings()), errors.Join(set.Err(), q.Close())
}

var ofM = labels.MustNewMatcher(labels.MatchEqual, "__name__", "m")

func TestStores_ParametersReachTheFanout(t *testing.T) {
	one := &store{labels: labels.FromStrings("__name__", "m", "replica", "1")}
	two := &store{labels: labels.FromStrings("__name__", "m", "replica", "2")}
	s := newStores(t, map[string]*store{"one:1": one, "two:1": two})
	only := [][]*labels.Matcher{{labels.MustNewMatcher(labels.MatchEqual, "__address__", "two:1")}}
	for _, c := range []struct {
		r    fanout.Request
		want int
	}{
		{fanout.Request{}, 2},
		{fanout.Request{ReplicaLabels: []string{"replica"}}, 1},
		{fanout.Request{Stores: only}, 1},
	} {
		if n, warnings, err := countSeries(t, s, c.r); n != c.want || warnings != 0 || err != nil {
			t.Errorf("%+v: %d series, %d warnings, %v", c.r, n, warnings, err)
		}
	}
	two.err = errors.New("the disk is gone")
	if n, warnings, err := countSeries(t, s, fanout.Request{}); n != 1 || warnings != 1 || err != nil {
		t.Error(n, warnings, err)
	}
	if _, _, err := countSeries(t, s, fanout.Request{AbortOnPartial: true}); err == nil || !strings.Contains(err.Error(), "the disk is gone") {
		t.Error(err)
	}
}

func TestStores_JoinsWhatTheStoresReturn(t *testing.T) {
	one := &store{labels: labels.FromStrings("__name__", "m", "replica", "1")}
	two := &store{labels: labels.FromStrings("__name__", "m", "replica", "2")}
	s, ctx := newStores(t, map[string]*store{"one:1": one, "two:1": two}), context.Background()
	q := s.Query(fanout.Request{})
	if found, _, err := q.Exemplars(ctx, 0, 10, [][]*labels.Matcher{{ofM}}); err != nil || len(found) != 2 {
		t.Error(found, err)
	}
	if found, _, err := q.MetricMetadata(ctx, "", 0); err != nil || len(found["up"]) != 1 {
		t.Error(found, err)
	}
	if found, _, err := q.Targets(ctx, "any"); err != nil || len(found.Active) != 2 {
		t.Error(found, err)
	}
	if found, _, err := q.Rules(ctx, "all", nil); err != nil || len(found) != 1 {
		t.Error(found, err)
	}
	if found, _, err := q.TSDBStatistics(ctx, nil, 10); err != nil || found.Series != 4 {
		t.Error(found, err)
	}
	statuses := s.Statuses()
	if len(statuses) != 2 || statuses[0].Component != "sidecar" || statuses[0].LastError != nil || statuses[0].LastCheck.IsZero() || len(statuses[0].LabelSets) != 1 || statuses[0].MinMS != math.MinInt64 {
		t.Errorf("%+v", statuses)
	}
}

func TestStores_AnalysisOfAQueryHasWhatEachStoreSent(t *testing.T) {
	one := &store{labels: labels.FromStrings("__name__", "m", "replica", "1")}
	two := &store{labels: labels.FromStrings("__name__", "m", "replica", "2")}
	a := httpapi.New(httpapi.Options{
		Engine: promql.NewEngine(promql.EngineOpts{MaxSamples: 1000, Timeout: time.Minute}), Stores: newStores(t, map[string]*store{"one:1": one, "two:1": two}),
	})
	mux := http.NewServeMux()
	a.Register(mux, "/api/v1")
	get := func(path string) string {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Body.String()
	}
	for _, path := range []string{"/api/v1/query?time=5&query=m%20%2B%20m&analyze=", "/api/v1/query_range?start=0&end=9&step=3&query=m%20%2B%20m&analyze="} {
		var got struct {
			Data struct {
				Analysis *struct {
					Name          string `json:"name"`
					ExecutionTime string `json:"executionTime"`
					Children      []struct {
						Name string `json:"name"`
					} `json:"children"`
					Fanout []struct {
						EndpointAddr string `json:"endpointAddr"`
						Duration     string `json:"duration"`
						NumResponses int    `json:"numResponses"`
						Series       int    `json:"series"`
						Chunks       int    `json:"chunks"`
						Samples      *int   `json:"samples"`
					} `json:"fanout"`
				} `json:"analysis"`
			} `json:"data"`
		}
		body := get(path + "true")
		if err := json.Unmarshal([]byte(body), &got); err != nil || got.Data.Analysis == nil || len(got.Data.Analysis.Fanout) != 2 {
			t.Fatalf("%s: %v: %s", path, err, body)
		}
		n := got.Data.Analysis
		if _, err := time.ParseDuration(n.ExecutionTime); err != nil || n.Name != "m + m" || len(n.Children) != 1 || n.Children[0].Name != "[prometheus] m + m" {
			t.Errorf("%s: %s", path, body)
		}
		for i, address := range []string{"one:1", "two:1"} {
			s := n.Fanout[i]
			if _, err := time.ParseDuration(s.Duration); err != nil || s.EndpointAddr != address || s.Series != s.NumResponses || s.Series < 1 || s.Series > 2 || s.Samples == nil || *s.Samples < s.Chunks {
				t.Errorf("%s: %+v: %s", path, s, body)
			}
		}
		for value, want := range map[string]bool{"1": true, "": false, "false": false, "yes": false} {
			if body := get(path + value); strings.Contains(body, "analysis") != want {
				t.Errorf("analyze=%s: %s", value, body)
			}
		}
	}
}
