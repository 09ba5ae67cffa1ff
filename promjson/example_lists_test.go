package promjson_test

import (
	"fmt"
	"strings"

	"github.com/ferula-io/ferula/promjson"
)

// success returns a Scanner of the response of an endpoint other than /query and /query_range.
func success(data string) *promjson.Scanner {
	return promjson.NewScanner(strings.NewReader(`{"status":"success","data":`+data+`,"warnings":["one store is down"]}`), promjson.Options{})
}

// The response of /labels or /label/NAME/values, in one slice.
func ExampleCollect() {
	s := success(`["__name__","job"]`)
	names, err := promjson.Collect(s.Strings())
	fmt.Printf("%q %v %q\n", names, err, s.Envelope().Warnings)
	// Output: ["__name__" "job"] <nil> ["one store is down"]
}

func ExampleScanner_Strings() {
	for name, err := range success(`["__name__","job"]`).Strings() {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(name)
	}
	// Output:
	// __name__
	// job
}

func ExampleScanner_LabelSets() {
	for labels, err := range success(`[{"__name__":"up","job":"node"},{"__name__":"up","job":"api"}]`).LabelSets() {
		fmt.Println(labels, err)
	}
	// Output:
	// [{__name__ up} {job node}] <nil>
	// [{__name__ up} {job api}] <nil>
}

// The response of /series in the caller's type.
func ExampleTypes_LabelSets() {
	types := promjson.Types[string, float64, struct{}]{
		Labels: func(labels []promjson.Label) (string, error) {
			return string(promjson.AppendLabels(nil, labels)), nil
		},
	}
	series, err := promjson.Collect(types.LabelSets(success(`[{"job":"node","__name__":"up"}]`)))
	fmt.Println(series, err)
	// Output: [{"__name__":"up","job":"node"}] <nil>
}

func ExampleExemplar() {
	s := success(`[{"seriesLabels":{"le":"1"},"exemplars":[{"labels":{"trace_id":"4bf92f35"},"value":"0.25","timestamp":1700000000.5}]}]`)
	for e, err := range s.Exemplars() {
		if err != nil {
			fmt.Println(err)
			return
		}
		var x promjson.Exemplar = e
		fmt.Println(x.Series, x.Labels, x.T, x.F)
	}
	// Output: [{le 1}] [{trace_id 4bf92f35}] 1700000000500 0.25
}

// The traces of exemplars, in the caller's types.
func ExampleExemplarOf() {
	types := promjson.Types[map[string]string, float64, struct{}]{
		Labels: func(labels []promjson.Label) (map[string]string, error) {
			m := map[string]string{}
			for _, l := range labels {
				m[l.Name] = l.Value
			}
			return m, nil
		},
		Point: func(_ int64, v float64) float64 { return v },
	}
	s := success(`[{"seriesLabels":{"le":"1"},"exemplars":[{"labels":{"trace_id":"4bf92f35"},"value":"0.25","timestamp":1700000000.5}]}]`)
	var list []promjson.ExemplarOf[map[string]string, float64]
	list, err := promjson.Collect(types.Exemplars(s))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(list[0].Series["le"], list[0].Labels["trace_id"], list[0].Point)
	// Output: 1 4bf92f35 0.25
}

func ExampleMetadata() {
	s := success(`{"up":[{"type":"gauge","unit":"","help":"Whether the target was scraped."}]}`)
	var list []promjson.Metadata
	list, err := promjson.Collect(s.Metadata())
	fmt.Printf("%+v %v\n", list, err)
	// Output: [{Family:up Type:gauge Unit: Help:Whether the target was scraped.}] <nil>
}
