package promjson_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/ferula-io/ferula/promjson"
)

func ExampleAppendPoints() {
	// Any struct with these two fields will do.
	type sample struct {
		T int64
		F float64
	}
	series := []struct {
		job     string
		samples []sample
	}{
		{"node", []sample{{1700000000000, 1}, {1700000015000, 0.1}}},
		{`the "other"`, []sample{{1700000015000, 5e-324}}},
	}

	grid := promjson.NewSteps(1700000000000, 15000, 2)
	var buf []byte
	for _, s := range series {
		buf = append(buf[:0], `{"metric":{"job":`...)
		buf = promjson.AppendLabelString(buf, s.job)
		buf = append(buf, `},"values":[`...)
		buf = promjson.AppendPoints(buf, grid, s.samples)
		buf = append(buf, `]}`...)
		fmt.Printf("%s\n", buf)
	}
	// Output:
	// {"metric":{"job":"node"},"values":[[1700000000,"1"],[1700000015,"0.1"]]}
	// {"metric":{"job":"the \"other\""},"values":[[1700000015,"5e-324"]]}
}

func ExampleAppendFloat() {
	for _, v := range []float64{0.1, 1e21, 1e-7, 1234567.25} {
		fmt.Printf("%s ", promjson.AppendFloat(nil, v))
	}
	// Output: 0.1 1e+21 1e-07 1234567.25
}

func ExampleAppendTimestamp() {
	for _, ms := range []int64{1700000000000, 1700000000010, -500} {
		fmt.Printf("%s ", promjson.AppendTimestamp(nil, ms))
	}
	// Output: 1700000000 1700000000.010 -0.500
}

func ExampleAppendLabelString() {
	fmt.Printf("%s %s\n", promjson.AppendLabelString(nil, `a "<b>"`), promjson.AppendString(nil, `a "<b>"`))
	// Output: "a \"<b>\"" "a \"\u003cb\u003e\""
}

func ExampleAppendHistogram() {
	buckets := []promjson.Bucket{
		{Boundaries: promjson.Closed, Lower: -0.001, Upper: 0.001, Count: 2},
		{Boundaries: promjson.LeftOpen, Lower: 1, Upper: 2, Count: 3},
	}
	fmt.Printf("%s\n", promjson.AppendHistogram(nil, 5, 18.4, buckets))
	// Output: {"count":"5","sum":"18.4","buckets":[[3,"-0.001","0.001","2"],[0,"1","2","3"]]}
}

func ExampleScanner() {
	response := `{"status":"success","data":{"resultType":"matrix","result":[
		{"metric":{"job":"node"},"values":[[1700000000,"1"],[1700000015,"2"]]}
	]},"warnings":["partial"]}`

	s := promjson.NewScanner(strings.NewReader(response), promjson.Options{})
	for s.Next() {
		fmt.Printf("%s\n", s.Metric())
		// A series that is larger than the buffer comes in several pieces.
		for p := s.NextValues(); p != nil; p = s.NextValues() {
			end, _ := promjson.LastTime(p)
			fmt.Printf("%s until %d\n", p, end)
		}
	}
	fmt.Println(s.Err(), s.Envelope().Status, s.Envelope().Warnings)
	// Output:
	// {"job":"node"}
	// [1700000000,"1"],[1700000015,"2"] until 1700000015000
	// <nil> success [partial]
}

func ExampleSplicer() {
	morning := `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"job":"a"},"values":[[1,"1"]]},{"metric":{"job":"b"},"values":[[1,"2"]]}]}}`
	evening := `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"job":"a"},"values":[[2,"3"]]}]}}`

	var splicer promjson.Splicer // Keep it: it keeps its buffer.
	_, err := splicer.Splice(os.Stdout,
		promjson.NewScanner(strings.NewReader(morning), promjson.Options{}),
		promjson.NewScanner(strings.NewReader(evening), promjson.Options{}))
	fmt.Println()
	fmt.Println(err)

	failed := `{"status":"error","errorType":"timeout","error":"query timed out"}`
	_, err = splicer.Splice(io.Discard,
		promjson.NewScanner(strings.NewReader(morning), promjson.Options{}),
		promjson.NewScanner(strings.NewReader(failed), promjson.Options{}))
	var response *promjson.APIError
	fmt.Println(errors.As(err, &response), response.Type, response.Message)
	// Output:
	// {"status":"success","data":{"resultType":"matrix","result":[{"metric":{"job":"a"},"values":[[1,"1"],[2,"3"]]},{"metric":{"job":"b"},"values":[[1,"2"]]}]}}
	// <nil>
	// true timeout query timed out
}

func ExampleDecode() {
	response := `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"job":"node"},"value":[1700000000.5,"0.25"]}]}}`
	a, err := promjson.Decode(strings.NewReader(response), promjson.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, s := range a.Series {
		fmt.Println(s.Labels, s.Values)
	}
	// Output: [{job node}] [{1700000000500 0.25}]
}

func ExampleCompareMetrics() {
	a, b := []byte(`{"a":"b","c":"d"}`), []byte(`{"a":"b!"}`)
	fmt.Println(promjson.CompareMetrics(a, b) < 0, string(a) < string(b))
	// Output: true false
}
