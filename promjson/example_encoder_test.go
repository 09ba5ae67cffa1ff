package promjson_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"

	"github.com/ferula-io/ferula/promjson"
)

// queryRange serves a query without an engine: one series in columns.
func queryRange(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	e := promjson.NewEncoder(w, 0)
	if r.FormValue("query") == "" {
		// Nothing is written before the first buffer is full, so the status is still free.
		w.WriteHeader(http.StatusBadRequest)
		_ = e.Fail("bad_data", "no query")
		return
	}
	e.SetSteps(promjson.NewSteps(1700000000000, 15000, 2))
	e.BeginMatrix()
	e.Series(promjson.SortedPairs(map[string]string{"__name__": "up", "job": "node"}))
	e.Columns([]int64{1700000000000, 1700000015000}, []float64{1, 0.25})
	if err := e.Close([]string{"one store is down"}, nil); err != nil {
		panic(http.ErrAbortHandler) // A part must not look like the whole.
	}
}

// A handler for net/http.
func ExampleEncoder() {
	for _, target := range []string{"/api/v1/query_range?query=up", "/api/v1/query_range"} {
		w := httptest.NewRecorder()
		queryRange(w, httptest.NewRequest(http.MethodGet, target, nil))
		fmt.Println(w.Code, w.Body)
	}
	// Output:
	// 200 {"status":"success","data":{"resultType":"matrix","result":[{"metric":{"__name__":"up","job":"node"},"values":[[1700000000,"1"],[1700000015,"0.25"]]}]},"warnings":["one store is down"]}
	// 400 {"status":"error","errorType":"bad_data","error":"no query"}
}

func ExampleEncoder_BeginExemplars() {
	e := promjson.NewEncoder(os.Stdout, 0)
	e.BeginExemplars()
	e.ExemplarSeries(promjson.Pairs([]promjson.Label{{Name: "__name__", Value: "wait_seconds_bucket"}}))
	e.Exemplar(promjson.Pairs([]promjson.Label{{Name: "trace_id", Value: "4bf92f35"}}), 1700000000500, 0.25)
	_ = e.Close(nil, nil)
	// Output: {"status":"success","data":[{"seriesLabels":{"__name__":"wait_seconds_bucket"},"exemplars":[{"labels":{"trace_id":"4bf92f35"},"value":"0.25","timestamp":1700000000.500}]}]}
}

func ExampleEncodeValues() {
	type sample struct { // Any struct with these two fields will do.
		T int64
		F float64
	}
	e := promjson.NewEncoder(os.Stdout, 0)
	e.BeginMatrix()
	e.Series(nil)
	promjson.EncodeValues(e, []sample{{1000, 1}})
	promjson.EncodeValues(e, []sample{{2000, 2}}) // Pieces of one series.
	e.Histogram(3000, 2, 1.5, slices.Values([]promjson.Bucket{{Boundaries: promjson.LeftOpen, Lower: 0.5, Upper: 1, Count: 2}}))
	_ = e.Close(nil, nil)
	// Output: {"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,"1"],[2,"2"]],"histograms":[[3,{"count":"2","sum":"1.5","buckets":[[0,"0.5","1","2"]]}]]}]}}
}

// A client for net/http that decodes into its own types.
func ExampleTypes() {
	server := httptest.NewServer(http.HandlerFunc(queryRange))
	defer server.Close()

	type sample struct {
		Value float64
		AtMS  int64
	}
	types := promjson.Types[string, sample, struct{}]{
		Labels: func(labels []promjson.Label) (string, error) {
			return string(promjson.AppendLabels(nil, labels)), nil
		},
		Point: func(ms int64, v float64) sample { return sample{v, ms} },
	}
	for _, query := range []string{"?query=up", ""} {
		resp, err := http.Get(server.URL + query)
		if err != nil {
			fmt.Println(err)
			return
		}
		response, err := types.Decode(resp.Body, promjson.Options{})
		_ = resp.Body.Close()
		var failed *promjson.APIError
		if errors.As(err, &failed) {
			fmt.Println(resp.StatusCode, failed.Type, failed.Message)
			continue
		}
		fmt.Println(response.Series[0].Labels, response.Series[0].Values, response.Warnings)
	}
	// Output:
	// {"__name__":"up","job":"node"} [{1 1700000000000} {0.25 1700000015000}] [one store is down]
	// 400 bad_data no query
}

// A response of any size in little memory: no SeriesOf has more than MaxPoints.
func ExampleTypes_All() {
	body := `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"job":"node"},"values":[[1,"1"],[2,"2"],[3,"3"]]}]}}`
	types := promjson.Types[int, float64, float64]{
		Labels:    func(labels []promjson.Label) (int, error) { return len(labels), nil },
		Point:     func(_ int64, v float64) float64 { return v },
		Histogram: func(_ int64, h *promjson.Histogram) (float64, error) { return h.Count, nil },
		MaxPoints: 2,
	}
	for series, err := range types.All(promjson.NewScanner(strings.NewReader(body), promjson.Options{})) {
		fmt.Println(series.Values, series.Continued, err)
	}
	// Output:
	// [1 2] true <nil>
	// [3] false <nil>
}

func ExampleScanner_Points() {
	body := `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"job":"node"},"values":[[1,"1"],[2,"2.5"]]}]}}`
	s := promjson.NewScanner(strings.NewReader(body), promjson.Options{})
	for s.Next() {
		for ms, v := range s.Points() {
			fmt.Println(ms, v)
		}
	}
	fmt.Println(s.Err())
	// Output:
	// 1000 1
	// 2000 2.5
	// <nil>
}

func ExampleValidate() {
	body := `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,"1"],[2,"two"]]}]}}`
	err := promjson.Validate(strings.NewReader(body), promjson.Options{})
	var at *promjson.Error
	fmt.Println(errors.As(err, &at), err)
	// Output: true promjson: byte 99: malformed response: expected a float in quotes
}

// With encoding/json, the bytes that promjson appends are a RawMessage within a caller's
// own structs, and promjson decodes RawMessages.
func Example_encodingJSON() {
	type panel struct {
		Title  string
		Points json.RawMessage
	}
	points := promjson.AppendColumns([]byte("["), nil, []int64{1000, 2500}, []float64{1, 0.5})
	text, err := json.Marshal(panel{"load", append(points, ']')})
	fmt.Printf("%s %v\n", text, err)

	var p panel
	if err := json.Unmarshal(text, &p); err != nil {
		fmt.Println(err)
	}
	ts, vs, err := promjson.DecodeColumns(nil, nil, p.Points[1:len(p.Points)-1])
	fmt.Println(ts, vs, err)
	// Output:
	// {"Title":"load","Points":[[1,"1"],[2.500,"0.5"]]} <nil>
	// [1000 2500] [1 0.5] <nil>
}

// Responses without a decoder, here of /targets/metadata: their data is a member that the caller decodes.
func ExampleOptions() {
	s := promjson.NewScanner(strings.NewReader(`{"status":"success","data":[{"metric":"up"}]}`), promjson.Options{MaxUnknownBytes: 1 << 20})
	for s.Next() {
	}
	var metrics []map[string]string
	for _, m := range s.Envelope().Unknown {
		if m.Name == "data" {
			fmt.Println(json.Unmarshal(m.Value, &metrics), metrics)
		}
	}
	fmt.Println(s.Envelope().Status, s.Err())
	// Output:
	// <nil> [map[metric:up]]
	// success <nil>
}

func ExampleAppendMetric() {
	fmt.Printf("%s\n", promjson.AppendMetric(nil, promjson.SortedPairs(map[string]string{"job": "node", "__name__": "up"})))
	// Output: {"__name__":"up","job":"node"}
}

func ExampleAppendError() {
	var body bytes.Buffer
	body.Write(promjson.AppendError(nil, "timeout", "query timed out"))
	fmt.Println(body.String())
	// Output: {"status":"error","errorType":"timeout","error":"query timed out"}
}
