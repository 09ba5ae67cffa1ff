package store

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"

	googlepprof "github.com/google/pprof/profile"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// labelledProfile returns a profile with types, each of whose samples has its own label and further ones.
func labelledProfile(t *testing.T, types, sets, labels, valueBytes int) profiles.RawProfile {
	t.Helper()
	fn := &googlepprof.Function{ID: 1, Name: "f"}
	loc := &googlepprof.Location{ID: 1, Line: []googlepprof.Line{{Function: fn}}}
	p := &googlepprof.Profile{PeriodType: &googlepprof.ValueType{Type: "cpu", Unit: "ns"}, TimeNanos: 1_700_000_000_000_000_000,
		Function: []*googlepprof.Function{fn}, Location: []*googlepprof.Location{loc}}
	for i := range types {
		p.SampleType = append(p.SampleType, &googlepprof.ValueType{Type: fmt.Sprint("t", i), Unit: "count"})
	}
	value := strings.Repeat("x", valueBytes)
	for s := range sets {
		sample := &googlepprof.Sample{Location: []*googlepprof.Location{loc}, Label: map[string][]string{"n": {fmt.Sprint(s)}}}
		for range types {
			sample.Value = append(sample.Value, 1)
		}
		for l := range labels {
			sample.Label[fmt.Sprint("l", l)] = []string{value}
		}
		p.Sample = append(p.Sample, sample)
	}
	var raw bytes.Buffer
	if err := p.WriteUncompressed(&raw); err != nil {
		t.Fatal(err)
	}
	out := profiles.RawProfile{TimeNS: p.TimeNanos, Raw: raw.Bytes()}
	out.ID[0] = 1
	out.Labels = labelenc.AppendLabel(labelenc.AppendLabel(nil, "__name__", "process_cpu"), "service_name", "a")
	return out
}

// heap returns the bytes that are in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestHead_LabelsOfSamplesAreCounted(t *testing.T) {
	for _, c := range [][4]int{{1, 120, 0, 0}, {4, 120, 2, 30}, {1, 120, 20, 2000}, {8, 120, 20, 4000}} {
		s := openTest(t, t.TempDir(), func(s *Store) { s.fs = unsynced{} })
		p := labelledProfile(t, c[0], c[1], c[2], c[3])
		d := &pprof.Profile{}
		if err := d.Decode(p.Raw, pprof.Limits{}); err != nil {
			t.Fatal(err)
		}
		q := p
		q.Profile = d
		need := costOf(q)
		before, known := heap(), s.memory.heads.Load()
		if err := s.Append(t.Context(), "t", []profiles.RawProfile{p}); err != nil {
			t.Fatal(err)
		}
		grown, counted := heap()-before, s.memory.heads.Load()-known
		t.Logf("%d types, %d sets, %d labels of %d bytes: raw %d, reserved %d, heap grew by %d, counted after %d",
			c[0], c[1], c[2], c[3], len(p.Raw), need, grown, counted)
		if counted > need {
			t.Errorf("the head grew by %d counted bytes, but only %d were reserved: costOf is not an upper bound", counted, need)
		}
		if grown > counted+counted/4+1<<20 {
			t.Errorf("the heap grew by %d bytes of which %d are counted", grown, counted)
		}
		runtime.KeepAlive(s)
	}
}

// Texts of types up to --profiles.limit.label-value-length (2048) are in the labels of each series.
func TestHead_TextsOfTypesAreCounted(t *testing.T) {
	s := openTest(t, t.TempDir(), func(s *Store) { s.fs = unsynced{} })
	p := labelledProfile(t, 8, 120, 0, 0)
	g, err := googlepprof.ParseData(p.Raw)
	if err != nil {
		t.Fatal(err)
	}
	g.PeriodType.Type, g.PeriodType.Unit = strings.Repeat("p", 2048), strings.Repeat("q", 2048)
	for i, st := range g.SampleType {
		st.Type, st.Unit = fmt.Sprint(i, strings.Repeat("t", 2000)), strings.Repeat("u", 2048)
	}
	var raw bytes.Buffer
	if err := g.WriteUncompressed(&raw); err != nil {
		t.Fatal(err)
	}
	p.Raw = raw.Bytes()
	before, known := heap(), s.memory.heads.Load()
	if err := s.Append(t.Context(), "t", []profiles.RawProfile{p}); err != nil {
		t.Fatal(err)
	}
	grown, counted := heap()-before, s.memory.heads.Load()-known
	t.Logf("raw %d: heap grew by %d, counted %d", len(p.Raw), grown, counted)
	if grown > counted+counted/4 {
		t.Errorf("the heap grew by %d bytes of which %d are counted", grown, counted)
	}
	runtime.KeepAlive(s)
}
