package promjson_test

import (
	"fmt"

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

	grid := promjson.NewGrid(1700000000000, 15000, 2)
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
