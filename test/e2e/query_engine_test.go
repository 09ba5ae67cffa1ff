package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"
	"github.com/prometheus/prometheus/util/teststorage"

	role "github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

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
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	return db
}

// timings are the only statistics that differ between two evaluations.
var timings = regexp.MustCompile(`"timings":\{[^}]*\}`)

var storeNames = regexp.MustCompile(`store 127\.0\.0\.1:\d+: `)

// withEngine returns status, body and engine of a request.
func (q *querier) withEngine(path string) (status int, body, engine string) {
	q.t.Helper()
	resp, err := http.Get(q.base + path)
	if err != nil {
		q.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		q.t.Fatal(err)
	}
	return resp.StatusCode, inOrder(q.t, timings.ReplaceAllString(string(raw), "")), resp.Header.Get("X-Ferula-Query-Engine")
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
	stores := []string{serveSource(t, rawStore{ChunkQueryable: writeReplica(t, 0)}), serveSource(t, rawStore{ChunkQueryable: writeReplica(t, 1)})}
	for name, stores := range map[string][]string{"all stores": stores, "one store fails": append(slices.Clone(stores), failing)} {
		t.Run(name, func(t *testing.T) {
			start := func(engine string, parallelism int) *querier {
				return startQuery(t, stores, func(o *role.QueryOptions) {
					o.Stores.ReplicaLabels, o.Engine = []string{"replica"}, role.EngineOptions{Name: engine, Parallelism: parallelism}
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
	stores := []string{serveSource(t, rawStore{ChunkQueryable: writeReplica(t, 0)}), serveSource(t, rawStore{ChunkQueryable: writeReplica(t, 1)})}
	start := func(engine string) *querier {
		return startQuery(t, stores, func(o *role.QueryOptions) {
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
		`count_over_time({__name__=~"c_total|b_bucket"}[3m]) or on (kind) histogram_count(increase(h[9m] smoothed))`: "prometheus; reason=extended_range_selector",
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
