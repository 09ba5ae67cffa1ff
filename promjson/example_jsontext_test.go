//go:build goexperiment.jsonv2

package promjson_test

import (
	"bytes"
	"encoding/json/jsontext"
	"fmt"
	"strings"

	"github.com/ferula-io/ferula/promjson"
)

// With encoding/json/jsontext, the bytes that promjson appends are a jsontext.Value, and
// promjson decodes Values.
func Example_jsontext() {
	var out bytes.Buffer
	encoder := jsontext.NewEncoder(&out)
	metric := promjson.AppendMetric(nil, promjson.SortedPairs(map[string]string{"__name__": "up", "job": "node"}))
	points := promjson.AppendColumns([]byte("["), nil, []int64{1000, 2500}, []float64{1, 0.5})
	for _, err := range []error{
		encoder.WriteToken(jsontext.BeginObject),
		encoder.WriteToken(jsontext.String("metric")),
		encoder.WriteValue(metric),
		encoder.WriteToken(jsontext.String("values")),
		encoder.WriteValue(append(points, ']')),
		encoder.WriteToken(jsontext.EndObject),
	} {
		if err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Print(out.String())

	decoder := jsontext.NewDecoder(strings.NewReader(`[{"__name__":"up","job":"node"}]`))
	if _, err := decoder.ReadToken(); err != nil {
		fmt.Println(err)
		return
	}
	value, err := decoder.ReadValue()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(promjson.DecodeLabels(nil, value))
	// Output:
	// {"metric":{"__name__":"up","job":"node"},"values":[[1,"1"],[2.500,"0.5"]]}
	// [{__name__ up} {job node}] <nil>
}
