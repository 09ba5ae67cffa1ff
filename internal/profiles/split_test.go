package profiles

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// labelled decodes a profile of one sample for each set of labels.
func labelled(t *testing.T, sets ...map[string][]string) *pprof.Profile {
	t.Helper()
	p := &profile.Profile{SampleType: []*profile.ValueType{{Type: "cpu", Unit: "nanoseconds"}}}
	for _, set := range sets {
		p.Sample = append(p.Sample, &profile.Sample{Value: []int64{1}, Label: set})
	}
	var raw bytes.Buffer
	if err := p.WriteUncompressed(&raw); err != nil {
		t.Fatal(err)
	}
	decoded := &pprof.Profile{}
	if err := decoded.Decode(raw.Bytes(), pprof.Limits{Bytes: 1 << 20, Strings: 10_000, Functions: 10, Locations: 10, Samples: 10_000, Depth: 10, SampleTypes: 10}); err != nil {
		t.Fatal(err)
	}
	return decoded
}

func TestSplitter_GroupsSamplesByTheirLabels(t *testing.T) {
	plain := labelenc.Append(nil, labels.FromStrings("service_name", "shop"))
	many := make([]map[string][]string, SplitsMax+5)
	for i := range many {
		many[i] = map[string][]string{"n": {fmt.Sprint(i)}}
	}
	s := &Splitter{Drop: map[string]bool{"noise": true}}
	for _, tt := range []struct {
		samples  []map[string][]string
		of       string
		sets     int
		first    string
		overflow int
	}{
		{[]map[string][]string{nil, nil}, "[]", 1, `{service_name="shop"}`, 0},
		{[]map[string][]string{{"path": {"/a"}}, {"path": {"/b"}}, {"path": {"/a"}}}, "[0 1 0]", 2, `{path="/a", service_name="shop"}`, 0},
		{[]map[string][]string{{"path": {"/a"}}, nil}, "[1 0]", 2, `{service_name="shop"}`, 0},
		{[]map[string][]string{{"noise": {"x"}, "span_id": {"1"}, "__a": {"b"}}}, "[0]", 1, `{service_name="shop"}`, 0},
		{[]map[string][]string{{"path": {"/a"}, "big": {strings.Repeat("x", SampleLabelMax-2)}}, {"path": {"/a"}}, {strings.Repeat("n", SampleLabelMax): {"v"}}}, "[1 1 0]", 2, `{service_name="shop"}`, 2},
		{many, "", SplitsMax, `{service_name="shop"}`, 6},
		{[]map[string][]string{nil}, "[]", 1, `{service_name="shop"}`, 0},
	} {
		s.Split(plain, labelled(t, tt.samples...))
		var builder labels.ScratchBuilder
		first, err := labelenc.Labels(s.Sets[0], &builder)
		if err != nil {
			t.Fatal(err)
		}
		if tt.of != "" && fmt.Sprint(s.Of) != tt.of || len(s.Sets) != tt.sets || first.String() != tt.first || s.Overflow != tt.overflow {
			t.Errorf("%.100v: %v of %d sets, the first %s, overflow %d", tt.samples, s.Of, len(s.Sets), first, s.Overflow)
		}
	}
}
