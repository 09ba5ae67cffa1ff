package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	role "github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// downsampledStore is a store with downsampled data of 40 series of one replica: an hour of raw
// samples and two chunks of aggregates. A request that accepts no resolution gets the raw samples.
type downsampledStore struct {
	rawStore
	t       testing.TB
	replica int
}

const windowMS = int64(300_000)

// Series implements storeapi.API.
func (d downsampledStore) Series(_ context.Context, r storeapi.SeriesRequest) storeapi.Stream {
	s := &downsampledStream{store: d, coarse: r.MaxResolutionMS >= windowMS, wanted: series.AggrsOf(r.Aggregates)}
	s.next = func(_ context.Context, i int) ([]byte, []series.Chunk, error) {
		if i == 40 {
			return nil, nil, errEnd
		}
		lset := labels.FromStrings("__name__", "d_total", "i", fmt.Sprintf("%02d", i), "replica", fmt.Sprint("r", d.replica))
		return labelenc.Append(nil, lset), s.chunksOf(i), nil
	}
	return s
}

type downsampledStream struct {
	misbehavingStream
	store  downsampledStore
	coarse bool
	wanted series.Aggrs
}

// chunksOf returns the chunks of a series.
func (s *downsampledStream) chunksOf(i int) (all []series.Chunk) {
	rng := rand.New(rand.NewPCG(5, uint64(i)))
	for begin := engineBegin; begin < engineBegin+3*3600_000; begin += 3600_000 {
		var points [5][][2]float64 // by aggregate
		for at := begin + windowMS - 1; at < begin+3600_000; at += windowMS {
			n, sum := float64(5+rng.IntN(6)), rng.Float64()*1000
			if (at/windowMS+int64(3*s.store.replica)+int64(i))%11 < 2 {
				continue // a gap of this replica
			}
			for aggr, v := range []float64{n, n * sum, sum - rng.Float64(), sum + rng.Float64(), float64(at-begin)/1000 + sum/1e3} {
				points[aggr] = append(points[aggr], [2]float64{float64(at), v})
			}
		}
		last := points[4][len(points[4])-1]
		if !s.coarse || begin > engineBegin+2*3600_000-1 {
			all = append(all, floatChunk(s.store.t, points[4]))
			continue
		}
		points[4] = append(points[4], [2]float64{last[0], last[1] / 2}) // the true last value of the counter
		var parts []series.Part
		for aggr, of := range points {
			parts = append(parts, series.Part{Aggr: series.Count + series.Aggr(aggr), Encoding: chunkenc.EncXOR, Data: floatChunk(s.store.t, of).Data})
		}
		c := floatChunk(s.store.t, points[0])
		c.Encoding, c.Data = series.Aggregated, series.AppendAggregated(nil, s.wanted.Of(parts))
		all = append(all, c)
	}
	return all
}

// floatChunk encodes pairs of a timestamp and a value.
func floatChunk(t testing.TB, points [][2]float64) series.Chunk {
	c := chunkenc.NewXORChunk()
	app, err := c.Appender()
	if err != nil {
		t.Error(err)
		return series.Chunk{}
	}
	for _, p := range points {
		app.Append(0, int64(p[0]), p[1])
	}
	return series.Chunk{MinMS: int64(points[0][0]), MaxMS: int64(points[len(points)-1][0]), Encoding: chunkenc.EncXOR, Data: c.Bytes()}
}

// Aggregates of downsampled data, which depend on the function, are read the same by both engines.
func TestQuery_BothEnginesReadDownsampledData(t *testing.T) {
	stores := []string{serveSource(t, downsampledStore{t: t}), serveSource(t, downsampledStore{t: t, replica: 1})}
	start := func(engine string) *querier {
		return startQuery(t, stores, func(o *role.QueryOptions) {
			o.Stores.ReplicaLabels, o.Engine = []string{"replica"}, role.EngineOptions{Name: engine, Parallelism: 3}
		})
	}
	prometheus, columns := start("prometheus"), start("columns")
	for _, query := range []string{
		`d_total`, `sum(d_total)`, `avg by (i) (d_total)`, `max(d_total)`, `min(d_total)`, `count(d_total)`, `sum_over_time(d_total[20m])`, `count_over_time(d_total[20m])`,
		`avg_over_time(d_total[20m])`, `min_over_time(d_total[20m])`, `max_over_time(d_total[20m])`, `rate(d_total[30m])`, `sum(increase(d_total[30m]))`, `irate(d_total[1h])`, `resets(d_total[1h])`,
		`delta(d_total[1h] offset 10m)`, `quantile_over_time(0.5, d_total[1h])`, `sum_over_time(d_total[20m]) / count_over_time(d_total[20m])`, `max_over_time(rate(d_total[30m])[1h:5m])`,
	} {
		for _, dedup := range []string{"true", "false"} {
			path := fmt.Sprintf("/api/v1/query_range?query=%s&dedup=%s&step=61&start=%d&end=%d", url.QueryEscape(query), dedup, engineBegin/1000, engineEnd/1000)
			bodies := map[string]bool{}
			for _, resolution := range []string{"0s", "5m"} {
				path := path + "&max_source_resolution=" + resolution
				status, want, _ := prometheus.withEngine(path)
				gotStatus, got, engine := columns.withEngine(path)
				if gotStatus != status || status != http.StatusOK || got != want || engine != "columns" || !strings.Contains(got, `"values"`) {
					t.Errorf("%s by %q: %d, want %d\n%s", path, engine, gotStatus, status, differenceOf(got, want))
				}
				bodies[got] = true
			}
			if len(bodies) != 2 && !strings.HasPrefix(query, "count") && query != `resets(d_total[1h])` {
				t.Errorf("%s with dedup=%s: downsampled data was not read", query, dedup)
			}
		}
	}
}

var timeoutError = regexp.MustCompile(`"error":"(expanding series: context deadline exceeded|query timed out in [a-z ]+)"`)

// The limits of a query end it in the same way with both engines.
func TestQuery_LimitsAreTheSameWithBothEngines(t *testing.T) {
	stalled, _ := serveMisbehaving(t, misbehavingStore{next: func(ctx context.Context, _ int) ([]byte, []series.Chunk, error) {
		<-ctx.Done()
		return nil, nil, ctx.Err()
	}})
	store := serveSource(t, rawStore{ChunkQueryable: writeReplica(t, 0)})
	for name, c := range map[string]struct {
		change  func(*role.QueryOptions)
		want    string // in the response
		stalled bool
	}{
		"samples": {func(o *role.QueryOptions) { o.Query.MaxSamples = 3000 }, "query processing would load too many samples", false},
		"series":  {func(o *role.QueryOptions) { o.Fanout.SeriesMax = 30 }, "more than 30 series", false},
		"bytes":   {func(o *role.QueryOptions) { o.Fanout.BytesMax = 20_000 }, "query limit exceeded", false},
		"memory": {func(o *role.QueryOptions) { o.Fanout.TotalBytesMax, o.Fanout.TotalWait = 100_000, time.Millisecond },
			"all queries together use 100000 bytes", false},
		"timeout": {func(o *role.QueryOptions) { o.Query.Timeout = time.Second }, `"errorType":"timeout"`, true},
	} {
		t.Run(name, func(t *testing.T) {
			stores := []string{store}
			if c.stalled {
				stores = append(stores, stalled)
			}
			start := func(engine string) *querier {
				return startQuery(t, stores, func(o *role.QueryOptions) { o.Engine = role.EngineOptions{Name: engine, Parallelism: 3}; c.change(o) })
			}
			prometheus, columns := start("prometheus"), start("columns")
			for _, query := range []string{`c_total`, `sum by (ns) (rate(c_total[5m]))`} {
				path := fmt.Sprintf("/api/v1/query_range?query=%s&step=15&start=%d&end=%d", url.QueryEscape(query), engineBegin/1000, engineEnd/1000)
				status, want, _ := prometheus.withEngine(path)
				gotStatus, got, _ := columns.withEngine(path)
				whole := want
				got, want = storeNames.ReplaceAllString(got, ""), storeNames.ReplaceAllString(want, "")
				if c.stalled { // whether the timeout ends the selection or the evaluation is random
					got, want = timeoutError.ReplaceAllString(got, ""), timeoutError.ReplaceAllString(want, "")
				}
				if gotStatus != status || got != want {
					t.Errorf("%s: %d, want %d\n%s", path, gotStatus, status, differenceOf(got, want))
				}
				if !strings.Contains(whole, c.want) && query == `c_total` {
					t.Errorf("%s: %d %.300s", path, status, whole)
				}
			}
		})
	}
}
