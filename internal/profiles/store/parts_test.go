package store

import (
	"bytes"
	"context"
	"slices"
	"testing"

	"github.com/google/pprof/profile"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// A profile becomes a row for each set of labels of its samples. Labels that are pushed for
// the whole profile, and those of one request, make no row of their own.
func TestStore_SamplesOfOneProfileAreSplitByTheirLabels(t *testing.T) {
	f := &profile.Function{ID: 1, Name: "main"}
	at := &profile.Location{ID: 1, Line: []profile.Line{{Function: f, Line: 1}}}
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "cpu", Unit: "nanoseconds"}}, PeriodType: &profile.ValueType{Type: "cpu", Unit: "nanoseconds"}, Period: 1,
		Function: []*profile.Function{f}, Location: []*profile.Location{at},
	}
	for i, set := range []map[string][]string{
		nil, {"env": {"a"}}, {"env": {"b"}, "span_id": {"1"}}, {"env": {"a"}, "trace_id": {"7"}, "request": {"8"}}, {"service_name": {"shop"}}, {"profile_id": {"x"}},
	} {
		p.Sample = append(p.Sample, &profile.Sample{Location: []*profile.Location{at}, Value: []int64{1 << i}, Label: set})
	}
	var raw bytes.Buffer
	if err := p.WriteUncompressed(&raw); err != nil {
		t.Fatal(err)
	}
	s := openTest(t, t.TempDir(), func(s *Store) { s.drop = map[string]bool{"request": true} })
	pushed := profiles.RawProfile{ID: profiles.ID{1}, TimeNS: 1_700_000_000_000_000_000, Raw: raw.Bytes()}
	pushed.Labels = labelenc.AppendLabel(labelenc.AppendLabel(nil, "__name__", "process_cpu"), "service_name", "shop")
	if err := s.Append(context.Background(), "t", []profiles.RawProfile{pushed}); err != nil {
		t.Fatal(err)
	}
	v, err := s.View(context.Background(), "t", 0, timeMax)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	got, rows := map[string]int64{}, 0
	builder := labels.NewScratchBuilder(4)
	for _, src := range v.Sources {
		series, err := src.Series()
		if err != nil {
			t.Fatal(err)
		}
		all := make([]int, src.Rows())
		for row := range all {
			all[row] = row
		}
		rows += len(all)
		err = src.Samples(context.Background(), all, func(row int, _ []uint32, values []int64) error {
			c, err := src.Columns(row)
			if err != nil {
				return err
			}
			set, err := labelenc.Labels(series[c.SeriesAt(row-c.First)].Plain, &builder)
			for _, value := range values {
				got[set.Get("env")] += value
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if want := map[string]int64{"": 1 + 16 + 32, "a": 2 + 8, "b": 4}; len(got) != len(want) || rows != 3 || !slices.Equal([]int64{got[""], got["a"], got["b"]}, []int64{want[""], want["a"], want["b"]}) {
		t.Errorf("%v, want %v", got, want)
	}
}
