package httpapi_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
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
	chunks []rawseries.Chunk
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
	return &stream{left: true, labels: labelenc.Append(nil, s.labels), chunks: s.chunks}
}

type stream struct {
	rawseries.Set
	left   bool
	labels []byte
	chunks []rawseries.Chunk
}

func (s *stream) Next() bool {
	left := s.left
	s.left = false
	return left
}
func (s *stream) Labels() []byte                  { return s.labels }
func (s *stream) Chunks() []rawseries.Chunk       { return s.chunks }
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

var storeDuration = regexp.MustCompile(`"duration":"[^"]+"`)

func TestStores_AnalysisOfAQueryHasWhatEachStoreSent(t *testing.T) {
	samples := chunkenc.NewXORChunk()
	app, err := samples.Appender()
	if err != nil {
		t.Fatal(err)
	}
	for ts := range int64(3) {
		app.Append(0, 1000*ts, 1)
	}
	one := &store{labels: labels.FromStrings("__name__", "m", "replica", "1")}
	two := &store{labels: labels.FromStrings("__name__", "m", "replica", "22"), chunks: []rawseries.Chunk{
		{MinMS: 0, MaxMS: 2000, Encoding: chunkenc.EncXOR, Data: samples.Bytes()},
	}}
	var now time.Time
	o := httpapi.Options{
		Engine: promql.NewEngine(promql.EngineOpts{MaxSamples: 1000, Timeout: time.Minute}), Stores: newStores(t, map[string]*store{"one:1": one, "two:1": two}),
		Now: func() time.Time { now = now.Add(time.Second); return now },
	}
	sent := func(address string, s *store, chunks, samples int) string {
		bytes := len(labelenc.Append(nil, s.labels))
		for _, c := range s.chunks {
			bytes += len(c.Data)
		}
		return fmt.Sprintf(`{"endpointAddr":%q,"duration":"-","bytesProcessed":%d,"numResponses":1,"series":1,"chunks":%d,"samples":%d}`, address, bytes, chunks, samples)
	}
	want := `,"analysis":{"name":"m","executionTime":"1s","peakSamples":%d,"totalSamples":%d,"fanout":[` +
		sent("one:1", one, 0, 0) + `,` + sent("two:1", two, 1, 3) + `],"children":[{"name":"[prometheus] m"}]}}}`
	for path, want := range map[string]string{
		"/query?time=5&query=m&analyze=":                     fmt.Sprintf(want, 1, 1),
		"/query_range?start=0&end=9&step=3&query=m&analyze=": fmt.Sprintf(want, 4, 4),
	} {
		for value, analyzed := range map[string]bool{"true": true, "1": true, "": false, "false": false, "yes": false} {
			body := storeDuration.ReplaceAllStringFunc(responseOf(o, path+value).Body.String(), func(found string) string {
				if _, err := time.ParseDuration(found[len(`"duration":"`) : len(found)-1]); err != nil {
					t.Error(err)
				}
				return `"duration":"-"`
			})
			if strings.HasSuffix(body, want) != analyzed || strings.Contains(body, "analysis") != analyzed {
				t.Errorf("%s%s: %s\nwant %s", path, value, body, want)
			}
		}
	}
}
