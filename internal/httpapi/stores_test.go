package httpapi_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/httpapi"
	rawseries "github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/fanout"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/metrics"
)

// store is a store with one series.
type store struct {
	fanout.Client
	labels labels.Labels
}

var wide = storeapi.TimeRange{MinMS: math.MinInt64, MaxMS: math.MaxInt64}

func (s *store) Info(context.Context) (storeapi.Info, error) {
	return storeapi.Info{
		Component: "sidecar", LabelSets: []labels.Labels{labels.FromStrings("replica", s.labels.Get("replica"))},
		Store: &storeapi.StoreInfo{TimeRange: wide},
	}, nil
}

func (s *store) Close() error { return nil }

func (s *store) Series(_ context.Context, r storeapi.SeriesRequest) storeapi.Stream {
	return &stream{left: true, labels: labelenc.Append(nil, s.labels)}
}

type stream struct {
	rawseries.Set
	left   bool
	labels []byte
}

func (s *stream) Next() bool {
	left := s.left
	s.left = false
	return left
}
func (s *stream) Labels() []byte                  { return s.labels }
func (*stream) Chunks() []rawseries.Chunk         { return nil }
func (*stream) Err() error                        { return nil }
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
