package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/prompb"

	"github.com/ferula-io/ferula/internal/app"
)

// shape is a query of testdata/promql_shapes.txt.
type shape struct {
	query string
	fails bool
}

// promQLShapes returns the queries of the file. Names in them are replaced by every combination of their values.
func promQLShapes(t *testing.T) []shape {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "promql_shapes.txt"))
	if err != nil {
		t.Fatal(err)
	}
	values := map[string][]string{}
	var shapes []shape
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "# ") {
			continue
		}
		if name, list, ok := strings.Cut(line, " = "); ok && !strings.ContainsAny(name, " (<") {
			values[name] = strings.Fields(list)
			continue
		}
		query, fails := strings.CutPrefix(line, "fails: ")
		combined := []string{query}
		for name, list := range values {
			if !strings.Contains(query, "<"+name+">") {
				continue
			}
			var next []string
			for _, q := range combined {
				for _, v := range list {
					next = append(next, strings.ReplaceAll(q, "<"+name+">", v))
				}
			}
			combined = next
		}
		slices.Sort(combined)
		for _, q := range combined {
			shapes = append(shapes, shape{q, fails})
		}
	}
	return shapes
}

// shopSamples returns remote write requests with 70 minutes of three instances: gauges, counters with a
// reset, a classic histogram and a series that ends with a stale marker and begins again.
func shopSamples(t *testing.T, end time.Time) [][]byte {
	t.Helper()
	const stepsMax, stepsEach = 280, 40
	stale := math.Float64frombits(value.StaleNaN)
	var bodies [][]byte
	for first := 0; first < stepsMax; first += stepsEach {
		series := map[string]*prompb.TimeSeries{}
		for step := first; step < first+stepsEach; step++ {
			at := end.Add(time.Duration(step-stepsMax) * 15 * time.Second)
			add := func(v float64, pairs ...string) {
				key := strings.Join(pairs, "\xff")
				if series[key] == nil {
					ts := v1Series(0, 0, pairs...)
					ts.Samples = nil
					series[key] = &ts
				}
				series[key].Samples = append(series[key].Samples, prompb.Sample{Timestamp: at.UnixMilli(), Value: v})
			}
			for instance := range 3 {
				shopStep(add, fmt.Sprintf("shop.example:%d", 10000+instance), instance, step, at)
				if state := step / 7 % 3; state < 2 {
					add(float64(step), "__name__", "shop_sometimes", "instance", fmt.Sprint(instance))
				} else if step%7 == 0 {
					add(stale, "__name__", "shop_sometimes", "instance", fmt.Sprint(instance))
				}
			}
		}
		req := v1()
		for _, ts := range series {
			req.Timeseries = append(req.Timeseries, *ts)
		}
		bodies = append(bodies, encoded(t, req))
	}
	return bodies
}

// shopStep adds one sample of every series of an instance.
func shopStep(add func(v float64, pairs ...string), instance string, n, step int, at time.Time) {
	i, k := float64(step), float64(n+1)
	labels := func(name string, pairs ...string) []string {
		return append([]string{"__name__", name, "instance", instance, "job", "demo"}, pairs...)
	}
	for j, typ := range []string{"buffers", "cached", "free", "used"} {
		add(1e9*k+float64(j)*3.7e8+1e7*math.Sin(i/9+float64(j)), labels("shop_memory_bytes", "type", typ)...)
	}
	for j, mode := range []string{"idle", "system", "user"} {
		// The counter begins again at step 200 less ten per instance.
		add(float64((step+10*n)%200)*0.1*float64(j+1)*k, labels("shop_cpu_seconds_total", "mode", mode)...)
	}
	add(math.Pow(2, k+1), labels("shop_cpus")...)
	add(1e10+i*12345.678*k+1e5*math.Cos(i), labels("shop_disk_bytes")...)
	add(float64(at.Unix()/600*600)-k, labels("shop_batch_timestamp_seconds")...)
	add(float64(step%5)*k, labels("shop_handler_in_flight")...)
	for j, code := range []string{"200", "500", "503"} {
		add(i*float64(3-j)*k, "__name__", "shop_handler_requests_total", "code", code, "instance", instance, "job", "demo")
	}
	for j, le := range []string{"0.1", "0.5", "1", "5", "+Inf"} {
		add(math.Floor(i*float64(j+1)*k*1.5), labels("shop_request_duration_seconds_bucket", "le", le)...)
	}
	add(math.Floor(i*5*k*1.5), labels("shop_request_duration_seconds_count")...)
	add(i*k*2.25, labels("shop_request_duration_seconds_sum")...)
}

// promQLResponse is a response of the query endpoints; Data is compared as bytes.
type promQLResponse struct {
	Status, ErrorType, Error string
	Data                     json.RawMessage
	Warnings, Infos          []string
}

func (a promQLResponse) equal(b promQLResponse) bool {
	for _, list := range [][]string{a.Warnings, a.Infos, b.Warnings, b.Infos} {
		slices.Sort(list) // Prometheus keeps annotations in a map
	}
	return a.Status == b.Status && a.ErrorType == b.ErrorType && a.Error == b.Error && bytes.Equal(a.Data, b.Data) &&
		slices.Equal(a.Warnings, b.Warnings) && slices.Equal(a.Infos, b.Infos)
}

// sortVector sorts the elements of an instant vector.
func (a *promQLResponse) sortVector(t *testing.T) {
	t.Helper()
	var data struct {
		ResultType string            `json:"resultType"`
		Result     []json.RawMessage `json:"result"`
	}
	if err := json.Unmarshal(a.Data, &data); err != nil {
		t.Fatalf("%v in %.500s", err, a.Data)
	}
	if data.ResultType == "vector" {
		slices.SortFunc(data.Result, func(a, b json.RawMessage) int { return bytes.Compare(a, b) })
		sorted, err := json.Marshal(data)
		if err != nil {
			t.Fatal(err)
		}
		a.Data = sorted
	}
}

func (s *server) evaluate(path string) (int, promQLResponse) {
	s.t.Helper()
	status, body := s.get(path)
	var a promQLResponse
	if err := json.Unmarshal([]byte(body), &a); err != nil {
		s.t.Fatalf("%s: %v in %.500s", path, err, body)
	}
	return status, a
}

// unordered are the functions whose instant vectors have the order of a map, in both engines.
var unordered = []string{"histogram_quantile(", "count_values("}

// The responses to every instant and range query of the PromQL compliance tester have the same bytes as Prometheus'.
// Queries that must fail have the same error. The tester itself tolerates small differences of floats; this test does
// not.
func TestPeerPrometheus_QueriesOfThePromQLComplianceTesterAreTheSame(t *testing.T) {
	path := peerBinary(t, "prometheus")
	dir := t.TempDir()
	config := writeFile(t, filepath.Join(dir, "prometheus.yml"), "scrape_configs: []\n")
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	startPeer(t, "http://"+address+"/-/ready", path, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "prometheus"),
		"--web.listen-address="+address, "--web.enable-remote-write-receiver", "--enable-feature=promql-experimental-functions", "--log.level=warn")
	peer := &server{t: t, base: "http://" + address}
	ours := startServe(t, func(o *app.ServeOptions) {
		o.ConfigFile = config
		o.Query.ExperimentalFunctions = true
	})
	end := time.Now().Truncate(time.Minute)
	for _, body := range shopSamples(t, end) {
		ours.must(v1Type, body)
		peer.must(v1Type, body)
	}
	end = end.Add(-10 * time.Minute) // negative offsets look into the future
	shapes, results := promQLShapes(t), 0
	for _, shape := range shapes {
		instant := url.Values{"query": {shape.query}, "time": {fmt.Sprint(end.Unix())}}
		spread := url.Values{"query": {shape.query}, "start": {fmt.Sprint(end.Add(-10 * time.Minute).Unix())}, "end": {fmt.Sprint(end.Unix())}, "step": {"10"}}
		for _, request := range []string{"/api/v1/query?" + instant.Encode(), "/api/v1/query_range?" + spread.Encode()} {
			gotStatus, got := ours.evaluate(request)
			wantStatus, want := peer.evaluate(request)
			if slices.ContainsFunc(unordered, func(name string) bool { return strings.HasPrefix(shape.query, name) }) && wantStatus == http.StatusOK && gotStatus == wantStatus {
				got.sortVector(t)
				want.sortVector(t)
			}
			if gotStatus != wantStatus || !got.equal(want) {
				t.Errorf("%s\n%s\nferula     %d %.600s\nPrometheus %d %.600s", shape.query, request, gotStatus, fmt.Sprintf("%s", got), wantStatus, fmt.Sprintf("%s", want))
			}
			if shape.fails != (wantStatus != http.StatusOK) {
				t.Errorf("%s: Prometheus' status is %d", shape.query, wantStatus)
			}
			if bytes.Contains(want.Data, []byte(`"value`)) {
				results++
			}
		}
	}
	if len(shapes) < 500 || results < len(shapes) {
		t.Errorf("%d queries had %d results that are not empty", len(shapes), results)
	}
}
