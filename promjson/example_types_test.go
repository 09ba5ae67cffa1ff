package promjson_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/ferula-io/ferula/promjson"
)

// matrix returns the response to a range query with one series.
func matrix(series string) io.Reader {
	return strings.NewReader(`{"status":"success","data":{"resultType":"matrix","result":[` + series + `]}}`)
}

func ExampleAPIError() {
	_, err := promjson.Decode(strings.NewReader(`{"status":"error","errorType":"timeout","error":"query timed out"}`), promjson.Options{})
	var failed *promjson.APIError
	fmt.Println(errors.As(err, &failed), failed.Type)
	// Output: true timeout
}

func ExampleError() {
	_, err := promjson.Decode(strings.NewReader(`{"status":"success","data":{"resultType":"matrix"`), promjson.Options{})
	var at *promjson.Error
	fmt.Println(errors.As(err, &at), at.Offset, errors.Is(err, io.ErrUnexpectedEOF))
	// Output: true 49 true
}

func ExamplePartError() {
	var splicer promjson.Splicer
	_, err := splicer.Splice(io.Discard,
		promjson.NewScanner(matrix(`{"metric":{},"values":[[1,"1"]]}`), promjson.Options{}),
		promjson.NewScanner(strings.NewReader(`{"status":`), promjson.Options{}))
	var part *promjson.PartError
	fmt.Println(errors.As(err, &part), part.Part)
	// Output: true 1
}

func ExampleHistogram() {
	body := `{"metric":{},"histograms":[[1,{"count":"3","sum":"4.5","buckets":[[0,"1","2","3"]]}]]}`
	a, err := promjson.Decode(matrix(body), promjson.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, p := range a.Series[0].Histograms {
		fmt.Println(p.T, p.Count, p.Sum, p.Buckets)
	}
	// Output: 1000 3 4.5 [{0 1 2 3}]
}

func ExampleHistogramPoint() {
	points, err := promjson.DecodeHistograms(nil, []byte(`[1,{"count":"3","sum":"4.5"}],[2,{"count":"4","sum":"5"}]`))
	for _, p := range points {
		fmt.Println(p.T, p.Count, err)
	}
	// Output:
	// 1000 3 <nil>
	// 2000 4 <nil>
}

func ExampleBucket() {
	b := promjson.Bucket{Boundaries: promjson.Boundaries(false, true), Lower: 1, Upper: 2, Count: 3} // (1, 2]
	fmt.Printf("%s\n", promjson.AppendHistogram(nil, 3, 4.5, []promjson.Bucket{b}))
	// Output: {"count":"3","sum":"4.5","buckets":[[0,"1","2","3"]]}
}

func ExampleLabel() {
	labels, err := promjson.DecodeLabels(nil, []byte(`{"job":"node","__name__":"up"}`))
	fmt.Println(labels, err)
	// Output: [{__name__ up} {job node}] <nil>
}

func ExampleEnvelope() {
	s := promjson.NewScanner(strings.NewReader(`{"status":"success","data":{"resultType":"vector","result":[]},"infos":["an info"]}`), promjson.Options{})
	for s.Next() {
	}
	e := s.Envelope() // complete now
	fmt.Println(e.Status, e.ResultType, e.Warnings, e.Infos)
	// Output: success vector [] [an info]
}

func ExampleMember() {
	body := `{"status":"success","isPartial":true,"data":{"resultType":"vector","result":[],"stats":{"n":1}}}`
	a, err := promjson.Decode(strings.NewReader(body), promjson.Options{MaxUnknownBytes: 1024})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, m := range a.Unknown {
		fmt.Printf("%s %v %s\n", m.Name, m.InData, m.Value)
	}
	// Output:
	// isPartial false true
	// stats true {"n":1}
}

func ExamplePoint() {
	points, err := promjson.DecodePoints(nil, []byte(`[1700000000.500,"0.25"],[1700000001,"NaN"]`))
	fmt.Println(points, err)
	// Output: [{1700000000500 0.25} {1700000001000 NaN}] <nil>
}

// The points of another package, such as promql.FPoint, need no conversion.
func ExamplePointLike() {
	type FPoint struct {
		T int64
		F float64
	}
	fmt.Printf("%s\n", promjson.AppendPoints(nil, nil, []FPoint{{1500, 0.1}}))
	// Output: [1.500,"0.1"]
}

func ExampleResponse() {
	a, err := promjson.Decode(strings.NewReader(`{"status":"success","data":{"resultType":"scalar","result":[1,"2.5"]}}`), promjson.Options{})
	fmt.Println(a.ResultType, a.Scalar, err)
	// Output: scalar {1000 2.5} <nil>
}

func ExampleStringPoint() {
	a, err := promjson.Decode(strings.NewReader(`{"status":"success","data":{"resultType":"string","result":[1,"text"]}}`), promjson.Options{})
	fmt.Println(a.String.T, a.String.S, err)
	// Output: 1000 text <nil>
}

func ExampleSeries() {
	a, err := promjson.Decode(matrix(`{"metric":{"job":"node"},"values":[[1,"1"],[2,"2"]]}`), promjson.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, s := range a.Series {
		fmt.Println(s.Labels, len(s.Values), len(s.Histograms))
	}
	// Output: [{job node}] 2 0
}

func ExampleResponseOf() {
	types := promjson.Types[int, float64, struct{}]{
		Labels: func(labels []promjson.Label) (int, error) { return len(labels), nil },
		Point:  func(_ int64, v float64) float64 { return v },
	}
	var a *promjson.ResponseOf[int, float64, struct{}]
	a, err := types.Decode(matrix(`{"metric":{"job":"node"},"values":[[1,"1"],[2,"2"]]}`), promjson.Options{})
	fmt.Println(a.ResultType, len(a.Series), err)
	// Output: matrix 1 <nil>
}

func ExampleSeriesOf() {
	types := promjson.Types[string, float64, struct{}]{
		Labels: func(labels []promjson.Label) (string, error) { return labels[0].Value, nil },
		Point:  func(_ int64, v float64) float64 { return v },
	}
	var last promjson.SeriesOf[string, float64, struct{}]
	for series, err := range types.All(promjson.NewScanner(matrix(`{"metric":{"job":"node"},"values":[[1,"1"],[2,"2"]]}`), promjson.Options{})) {
		if err != nil {
			fmt.Println(err)
			return
		}
		last = series
	}
	fmt.Println(last.Labels, last.Values)
	// Output: node [1 2]
}

func ExampleSteps() {
	steps := promjson.NewSteps(1700000000000, 15000, 3) // of all series of a query
	ts := []int64{1700000000000, 1700000015000, 1700000030000}
	for _, vs := range [][]float64{{1, 2, 3}, {4, 5, 6}} {
		fmt.Printf("%s\n", promjson.AppendColumns(nil, steps, ts, vs))
	}
	// Output:
	// [1700000000,"1"],[1700000015,"2"],[1700000030,"3"]
	// [1700000000,"4"],[1700000015,"5"],[1700000030,"6"]
}

func ExampleWindow() {
	s := promjson.NewScanner(matrix(`{"metric":{},"values":[[1,"1"],[2,"2"],[3,"3"]]}`), promjson.Options{})
	s.SetWindow(promjson.Window{StartMS: 2000, EndMS: 3000})
	for s.Next() {
		_, _ = os.Stdout.Write(s.NextValues())
	}
	// Output: [2,"2"],[3,"3"]
}
