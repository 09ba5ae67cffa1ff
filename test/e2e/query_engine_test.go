package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	prometheus "github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"
	"github.com/prometheus/prometheus/util/teststorage"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/promql"
	"github.com/ferula-io/ferula/internal/promql/columns"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/fanout"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/test/stores"
)

// TestProcesses_RefuseQueriesWithoutABound sends queries whose evaluation would allocate memory
// although there are hardly any samples.
func TestProcesses_RefuseQueriesWithoutABound(t *testing.T) {
	t.Parallel()
	serve := startProcess(t, binary(t), "serve", "--storage.tsdb.path="+t.TempDir(), "--web.listen-address=127.0.0.1:0")
	old := startProcess(t, binary(t), "serve", "--storage.tsdb.path="+t.TempDir(), "--web.listen-address=127.0.0.1:0", "--query.engine=prometheus")
	query := startProcess(t, binary(t), "query", "--http-address=127.0.0.1:0", "--grpc-address=127.0.0.1:0", "--endpoint=127.0.0.1:1")
	nested := strings.Repeat("label_replace(", 40) + "vector(1)" + strings.Repeat(`,"a","x$1$1","a","(.*)")`, 40)
	for text, want := range map[string]string{
		`sum_over_time(vector(1)[100y:1ms])`:     "more than 50000000 steps together (--query.max-samples)",
		`sum_over_time((up + up)[30d:1ms])`:      "--query.max-samples",
		`sum(sum_over_time(up[30d:1ms]) or up)`:  "--query.max-samples",
		`sum_over_time(` + nested + `[1h:1h])`:   "label_replace and the calls around it may make a label value more than 65536 times longer",
		`label_join(` + nested + `,"b","","a")`:  "65536 times longer",
		`max_over_time((vector(1) > 2)[1y:10s])`: "", // no samples: what is allocated is bounded
	} {
		for name, p := range map[string]*process{"serve": serve, "serve --query.engine=prometheus": old, "query": query} {
			status, body := p.get("/api/v1/query?partial_response=true&query=" + url.QueryEscape(text))
			if want == "" && status != http.StatusOK || want != "" && (status != http.StatusBadRequest || !strings.Contains(body, want)) {
				t.Errorf("%s: %.60s: %d %s, want %q", name, text, status, body, want)
			}
		}
	}
	for _, p := range []*process{serve, old, query} {
		noError(t, p.signal(syscall.SIGTERM))
	}
}

// engineBegin is the first timestamp of the replicas' samples, in ms, and engineEnd the last.
const (
	engineBegin = int64(1767225600_000)
	engineEnd   = engineBegin + 3*3600_000
)

// writeReplica writes the samples that one replica scraped: at later times than the other replica,
// with its own gaps, with counter resets, stale markers, odd floats, native histograms, and floats
// between these.
func writeReplica(t *testing.T, replica int) storage.Storage {
	t.Helper()
	db := teststorage.New(t)
	app := db.Appender(context.Background())
	check := func(_ storage.SeriesRef, err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	lset := func(pairs ...string) labels.Labels {
		return labels.FromStrings(append(pairs, "replica", fmt.Sprint("r", replica))...)
	}
	for i := range 40 {
		rng, sum := rand.New(rand.NewPCG(7, uint64(i))), 1e6 // the same in both replicas
		counter, gauge := lset("__name__", "c_total", "i", fmt.Sprint(i), "ns", fmt.Sprint(i%7)), lset("__name__", "g", "i", fmt.Sprint(i), "ns", fmt.Sprint(i%5))
		for n, ts := 0, engineBegin+int64(replica)*4000+int64(i)*137; ts < engineEnd; n, ts = n+1, ts+30_000 {
			if sum += rng.Float64() * 100; rng.IntN(100) == 0 {
				sum = rng.Float64()
			}
			v := (rng.Float64() - 0.5) * math.Pow(10, float64(rng.IntN(12)))
			if rng.IntN(60) == 0 {
				v = []float64{math.NaN(), math.Inf(1), math.Copysign(0, -1), math.Float64frombits(value.StaleNaN)}[rng.IntN(4)]
			}
			if (n+i)%90 > 40+20*replica && (n+i)%90 < 62+20*replica || replica == 1 && i%9 == 8 {
				continue
			}
			check(app.Append(0, counter, ts, sum))
			check(app.Append(0, gauge, ts, v))
		}
	}
	for n, ts := 0, engineBegin+int64(replica)*4000; ts < engineEnd; n, ts = n+1, ts+60_000 {
		if n%50 > 30+5*replica && n%50 < 42+5*replica {
			continue
		}
		for i, le := range []string{"1", "5", "25", "+Inf"} {
			check(app.Append(0, lset("__name__", "b_bucket", "le", le), ts, float64((i+1)*n)))
		}
		h := tsdbutil.GenerateTestHistogram(int64(n % 120))
		if n%47 == 46 {
			h.Sum = math.Float64frombits(value.StaleNaN)
		}
		check(app.AppendHistogram(0, lset("__name__", "h", "kind", "int"), ts, h, nil))
		check(app.AppendHistogram(0, lset("__name__", "h", "kind", "float"), ts, nil, tsdbutil.GenerateTestFloatHistogram(int64(n))))
		if n/20%2 == 0 {
			check(app.Append(0, lset("__name__", "mixed"), ts, float64(n)))
		} else {
			check(app.AppendHistogram(0, lset("__name__", "mixed"), ts, tsdbutil.GenerateTestHistogram(int64(n)), nil))
		}
	}
	noError(t, app.Commit())
	return db
}

// timings are the only statistics that differ between two evaluations.
var timings = regexp.MustCompile(`"timings":\{[^}]*\}`)

var storeNames = regexp.MustCompile(`store 127\.0\.0\.1:\d+: `)

// withEngine returns status, body and engine of a request.
func (q *querier) withEngine(path string) (status int, body, engine string) {
	q.t.Helper()
	status, body, header := q.request("GET", path, "")
	return status, inOrder(q.t, timings.ReplaceAllString(body, "")), header.Get("X-Ferula-Query-Engine")
}

// inOrder sorts the warnings and infos of a response if there are several: Prometheus returns
// them in random order. Everything before them stays as it is, byte by byte.
func inOrder(t *testing.T, body string) string {
	t.Helper()
	from := strings.LastIndex(body, `},"warnings":`)
	if i := strings.LastIndex(body, `},"infos":`); from < 0 {
		from = i
	}
	if from < 0 {
		return body
	}
	var notes struct{ Warnings, Infos []string }
	if err := json.Unmarshal([]byte("{"+body[from+2:]), &notes); err != nil {
		t.Fatalf("%v: %s", err, body[from:])
	}
	slices.Sort(notes.Warnings)
	slices.Sort(notes.Infos)
	return fmt.Sprintf("%s warnings %q infos %q", body[:from], notes.Warnings, notes.Infos)
}

// differenceOf returns where two texts begin to differ.
func differenceOf(got, want string) string {
	i := 0
	for i < min(len(got), len(want)) && got[i] == want[i] {
		i++
	}
	from := max(0, i-200)
	return fmt.Sprintf("at %d:\n got %.400s\nwant %.400s", i, got[from:], want[from:])
}

// engineQueries are expressions that the engine of columns evaluates.
var engineQueries = []string{
	`c_total`, `g`, `h`, `mixed`, `{__name__=~"c_total|g|h"}`, `absent_metric`,
	`sum by (ns) (rate(c_total[5m]))`, `increase(c_total{i=~"1."}[7m])`, `irate(c_total[5m])`, `resets(c_total[30m])`, `changes(g[11m])`,
	`avg by (ns) (avg_over_time(g[5m]))`, `sum(g)`, `max_over_time(g[4m]) - min_over_time(g[4m])`, `count_over_time(g[9m])`, `stddev_over_time(g[5m])`,
	`quantile_over_time(0.9, g[10m])`, `deriv(g[10m])`, `predict_linear(g[10m], 600)`, `last_over_time(g[3m])`, `count(c_total)`, `count by (ns) (g > 0)`,
	`topk(3, c_total)`, `quantile by (ns) (0.9, rate(c_total[5m]))`, `c_total offset 13m`, `sum_over_time(g[10m] offset 7m)`, `c_total @ 1767230000`,
	`rate(c_total[5m] @ 1767230000)`, `rate(c_total[5m] @ end())`, `g @ start() offset 1m`, `sum(rate(c_total[5m])) / count(c_total)`, `rate(c_total[5m]) * on (i) group_left g`,
	`g or c_total`, `g unless on (ns) c_total{ns="3"}`, `max_over_time(rate(c_total[5m])[30m:1m])`, `sum_over_time(sum(g)[20m:37s] offset 3m)`,
	`histogram_quantile(0.9, sum by (le) (rate(b_bucket[5m])))`, `histogram_quantile(0.9, rate(h[5m]))`, `sum(rate(h[10m]))`, `histogram_sum(h)`, `rate(mixed[10m])`, `sum(mixed)`,
	`absent(g{i="1"})`, `absent_over_time(nothing[5m])`, `label_replace(c_total, "x", "$1", "i", "(.)")`, `timestamp(c_total)`, `vector(time()) + scalar(sum(g))`,
	`rate(g[5m])`, `1 + 1`, `c_total / 0`, `sum without (i) (c_total)`, `count_values("v", h)`, `sort_desc(g)`,
	`sum(rate(c_total[5m])) / count(rate(c_total[5m]))`, `(c_total - c_total offset 1m) / c_total`, `rate(c_total[5m]) / ignoring () rate(c_total[5m])`, // equal parts
	`c_total[0s:`, `sum by (ns) (c_total) + on (ns) group_right c_total + on (ns) c_total`, // errors
}

// engineRequests are the queries over all steps, at one time, and with the parameters of stores.
func engineRequests() (paths []string) {
	at := func(ms int64) string { return fmt.Sprintf("%.3f", float64(ms)/1000) }
	for i, query := range engineQueries {
		for _, dedup := range []string{"true", "false"} {
			form := url.Values{"query": {query}, "dedup": {dedup}}
			paths = append(paths, "/api/v1/query_range?"+form.Encode()+"&step=61&start="+at(engineBegin-600_000)+"&end="+at(engineEnd+600_000))
			paths = append(paths, "/api/v1/query?"+form.Encode()+"&time="+at(engineBegin+4567_890))
			if i%4 == 0 {
				paths = append(paths, "/api/v1/query_range?"+form.Encode()+"&stats=all&step=600&lookback_delta=2m&start="+at(engineBegin+3000_000)+"&end="+at(engineEnd))
			}
		}
	}
	return paths
}

// Two replicas with gaps are read with both engines: the responses are the same, byte by byte, and
// the engine of columns has evaluated every query.
func TestQuery_BothEnginesReturnTheSame(t *testing.T) {
	fail := func(_ context.Context, i int) ([]byte, []series.Chunk, error) {
		if i < 3 {
			lset := labels.FromStrings("__name__", "c_total", "i", fmt.Sprint(100+i), "ns", "2", "replica", "r0")
			return labelenc.Append(nil, lset), testChunks(t, engineBegin+3600_000), nil
		}
		return nil, nil, errors.New("disk failure")
	}
	failing, _ := serveMisbehaving(t, misbehavingStore{next: fail})
	stores := []string{serveSource(t, stores.Raw{ChunkQueryable: writeReplica(t, 0)}), serveSource(t, stores.Raw{ChunkQueryable: writeReplica(t, 1)})}
	for name, stores := range map[string][]string{"all stores": stores, "one store fails": append(slices.Clone(stores), failing)} {
		t.Run(name, func(t *testing.T) {
			start := func(engine string, parallelism int) *querier {
				return startQuery(t, stores, func(o *app.QueryOptions) {
					o.Stores.ReplicaLabels, o.Engine = []string{"replica"}, app.EngineOptions{Name: engine, Parallelism: parallelism}
					o.Query.LookbackDelta = 5 * time.Minute
				})
			}
			prometheus, alone, parallel := start("prometheus", 0), start("columns", 1), start("", 4)
			warned, successes := 0, 0
			requests := engineRequests()
			if len(stores) > 2 {
				requests = slices.DeleteFunc(requests, func(path string) bool { return !strings.Contains(path, "c_total") })
			}
			for _, path := range requests {
				status, want, engine := prometheus.withEngine(path)
				if engine != "" {
					t.Errorf("%s by %q", path, engine)
				}
				if status == http.StatusOK {
					successes++
				}
				if strings.Contains(want, "disk failure") {
					warned++
				}
				for _, q := range []*querier{alone, parallel} {
					gotStatus, got, engine := q.withEngine(path)
					if gotStatus != status || got != want {
						t.Errorf("%s: %d, want %d\n%s", path, gotStatus, status, differenceOf(got, want))
					}
					if status == http.StatusOK && engine != "columns" {
						t.Errorf("%s by %q", path, engine)
					}
				}
			}
			if successes < len(requests)*9/10 {
				t.Errorf("%d successful responses", successes)
			}
			if (warned > 0) != (len(stores) > 2) {
				t.Errorf("%d responses with a warning of the failed store", warned)
			}
			for _, q := range []*querier{alone, parallel} {
				if n := q.metric(`ferula_query_engine_queries_total{engine="columns",reason=""}`); n < float64(successes) {
					t.Errorf("%g queries by columns, %d successful responses", n, successes)
				}
			}
			path := engineRequests()[0] + "&partial_response=false"
			status, want, _ := prometheus.withEngine(path)
			if gotStatus, got, _ := parallel.withEngine(path); gotStatus != status || got != want || (status != http.StatusOK) != (len(stores) > 2) {
				t.Errorf("%s:\n got %d %.600s\nwant %d %.600s", path, gotStatus, got, status, want)
			}
		})
	}
}

// The engine of columns may give up a query while it runs, or leave a part of it to Prometheus'
// engine. Such a query is read twice, or from two queriers. Its limits are those of one query, and so
// is the choice among replicas, which depends on the start of a selection.
func TestQuery_PartsByPrometheusEngineReadTheSame(t *testing.T) {
	stores := []string{serveSource(t, stores.Raw{ChunkQueryable: writeReplica(t, 0)}), serveSource(t, stores.Raw{ChunkQueryable: writeReplica(t, 1)})}
	start := func(engine string) *querier {
		return startQuery(t, stores, func(o *app.QueryOptions) {
			o.Stores.ReplicaLabels, o.Engine.Name = []string{"replica"}, engine
			o.Query.ExperimentalFunctions, o.Query.ExtendedRangeSelectors = true, true
			o.Fanout.SeriesMax = 85
		})
	}
	prometheus, columns := start("prometheus"), start("columns")
	times := fmt.Sprintf("&step=61&start=%d&end=%d", engineBegin/1000+600, engineEnd/1000)
	for query, want := range map[string]string{
		`changes(c_total[3m] anchored) + on (i) sum_over_time(g[2h])`:                                                "columns",
		`increase(c_total[1m] smoothed) or avg_over_time(g[2h:17s])`:                                                 "columns",
		`count_over_time({__name__=~"c_total|b_bucket"}[3m]) or on (kind) histogram_count(increase(h[9m] smoothed))`: "columns",
		`max_over_time(g[61s:100s] offset 30s) or on (kind) sum(g)`:                                                  "prometheus; reason=subquery that begins where the query does",
		`c_total[3m]`: "prometheus; reason=type_matrix",
		`c_total + on (i) g + on (i) increase(c_total[3m] anchored)`: "", // over the limit of series
	} {
		path := "/api/v1/query_range?query=" + url.QueryEscape(query) + times
		if query == `c_total[3m]` {
			path = "/api/v1/query?query=" + url.QueryEscape(query) + "&time=" + fmt.Sprint(engineEnd/1000-600)
		}
		status, wanted, _ := prometheus.withEngine(path)
		gotStatus, got, engine := columns.withEngine(path)
		if want == "" { // which of the stores is named is random
			got, wanted = storeNames.ReplaceAllString(got, ""), storeNames.ReplaceAllString(wanted, "")
		}
		if gotStatus != status || got != wanted || engine != want {
			t.Errorf("%s by %q: %d, want %d by %q\n%s", query, engine, gotStatus, status, want, differenceOf(got, wanted))
		}
		if want == "" && !strings.Contains(got, "more than 85 series") {
			t.Errorf("%s: %.300s", query, got)
		}
	}
}

// downsampledStore is a store with downsampled data of 40 series of one replica: an hour of raw
// samples and two chunks of aggregates. A request that accepts no resolution gets the raw samples.
type downsampledStore struct {
	stores.Raw
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
		return startQuery(t, stores, func(o *app.QueryOptions) {
			o.Stores.ReplicaLabels, o.Engine = []string{"replica"}, app.EngineOptions{Name: engine, Parallelism: 3}
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
	store := serveSource(t, stores.Raw{ChunkQueryable: writeReplica(t, 0)})
	for name, c := range map[string]struct {
		change  func(*app.QueryOptions)
		want    string // in the response
		stalled bool
	}{
		"samples": {func(o *app.QueryOptions) { o.Query.MaxSamples = 3000 }, "query processing would load too many samples", false},
		"series":  {func(o *app.QueryOptions) { o.Fanout.SeriesMax = 30 }, "more than 30 series", false},
		"bytes":   {func(o *app.QueryOptions) { o.Fanout.BytesMax = 20_000 }, "query limit exceeded", false},
		"memory": {func(o *app.QueryOptions) { o.Fanout.TotalBytesMax, o.Fanout.TotalWait = 100_000, time.Millisecond },
			"all queries together use 100000 bytes", false},
		"timeout": {func(o *app.QueryOptions) { o.Query.Timeout = time.Second }, `"errorType":"timeout"`, true},
	} {
		t.Run(name, func(t *testing.T) {
			stores := []string{store}
			if c.stalled {
				stores = append(stores, stalled)
			}
			start := func(engine string) *querier {
				return startQuery(t, stores, func(o *app.QueryOptions) { o.Engine = app.EngineOptions{Name: engine, Parallelism: 3}; c.change(o) })
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

// allSamples hides that a querier can leave out samples between steps.
type allSamples struct{ storage.Queryable }

func (a allSamples) Querier(mint, maxt int64) (storage.Querier, error) {
	q, err := a.Queryable.Querier(mint, maxt)
	return struct{ storage.Querier }{q}, err
}

// stepsWorld has floats of several intervals with gaps and stale markers, and native histograms, for an hour from time 0.
func stepsWorld(t *testing.T, rng *rand.Rand) *teststorage.TestStorage {
	t.Helper()
	s := teststorage.New(t)
	app := s.Appender(context.Background())
	check := func(_ storage.SeriesRef, err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	for i, interval := range []int64{500, 5000, 15_000, 60_000} {
		lset := labels.FromStrings(labels.MetricName, "m", "i", fmt.Sprint(i))
		for at := rng.Int64N(interval); at < 3_600_000; at += interval {
			v := rng.Float64()
			if rng.IntN(30) == 0 {
				v = math.Float64frombits(value.StaleNaN)
			}
			check(app.Append(0, lset, at+rng.Int64N(interval/10), v))
			if rng.IntN(40) == 0 {
				at += rng.Int64N(40) * interval
			}
		}
	}
	for at := int64(0); at < 3_600_000; at += 15_000 {
		check(app.AppendHistogram(0, labels.FromStrings(labels.MetricName, "h"), at, tsdbutil.GenerateTestHistogram(at/15_000), nil))
	}
	noError(t, app.Commit())
	return s
}

// A query returns the same whether or not the store leaves out samples between the steps.
func TestQuery_SamplesBetweenStepsChangeNoResult(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	engine := try(promql.New(promql.Options{MaxSamples: 10_000_000, Timeout: 100 * time.Second}, slog.New(slog.DiscardHandler), nil)).must(t)
	defer engine.Close()
	f := stores.Fanout(t, fanout.Options{}, stores.Raw{ChunkQueryable: stepsWorld(t, rng)})
	evaluator := columns.New(columns.Options{Engine: engine, MaxSamples: engine.MaxSamples(), SubqueryStep: engine.SubqueryStep, Bare: engine.Bare})
	queries := []string{
		`{__name__=~"m|h"}`, `sum(m) by (i)`, `m offset 7m`, `m offset -7s`, `m @ end() or m`, `timestamp(m)`, `absent(m{i="3"})`, `m - rate(m[1m])`,
		`max_over_time(m[5m:7s]) > m`, `histogram_count(h) + on() group_right() m`, `m unless m offset 1m`, `count(m) + scalar(m{i="1"})`,
	}
	for n := range 300 {
		query, start := queries[n%len(queries)], rng.Int64N(3_600_000)
		step := []int64{1, 700, 15_000, 45_001, 300_000}[rng.IntN(5)]
		end, lookback := start+rng.Int64N(100)*step, []time.Duration{0, time.Second, time.Hour}[rng.IntN(3)]
		var results [2]string
		for i, from := range []storage.Queryable{f.Queryable(fanout.Request{}), allSamples{f.Queryable(fanout.Request{})}} {
			opts := prometheus.NewPrometheusQueryOpts(false, lookback)
			q := try(evaluator.NewRangeQuery(t.Context(), from, opts, query, time.UnixMilli(start), time.UnixMilli(end), time.Duration(step)*time.Millisecond)).must(t)
			results[i] = q.Exec(t.Context()).String()
			q.Close()
		}
		if results[0] != results[1] {
			t.Fatalf("%s from %d to %d step %d lookback %s:\n got %.2000s\nwant %.2000s", query, start, end, step, lookback, results[0], results[1])
		}
	}
}
