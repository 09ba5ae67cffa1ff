package profilepb

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/profilepb/googlev1"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// check compares a response encoded by hand with the generated message of the same
// content, as protobuf and as JSON.
func check(t *testing.T, name string, got Encoder, want, empty proto.Message) {
	t.Helper()
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	prefix := []byte("kept")
	if b := got.AppendProto(bytes.Clone(prefix)); !bytes.Equal(b[4:], wire) || !bytes.HasPrefix(b, prefix) {
		t.Fatalf("%s: protobuf is\n%x, want\n%x", name, b[4:], wire)
	}
	text := got.AppendJSON(bytes.Clone(prefix))
	if !bytes.HasPrefix(text, prefix) {
		t.Errorf("%s: JSON overwrote what was there", name)
	}
	if err := protojson.Unmarshal(text[4:], empty); err != nil {
		t.Fatalf("%s: %v in %s", name, err, text)
	}
	if !proto.Equal(empty, want) {
		t.Errorf("%s: JSON is\n%s, want\n%s", name, text[4:], protojson.Format(want))
	}
}

type source struct{ *rand.Rand }

func (r source) text() string {
	texts := []string{"", "a", "ferula", `quo"te\`, "日本", "main.(*T[...]).f", "<&>\u2028", "a\x01b"}
	return texts[r.IntN(len(texts))]
}

func (r source) int() int64 {
	return []int64{0, 1, -1, 127, 128, 1 << 40, -1 << 63, 1<<63 - 1}[r.IntN(8)]
}

func (r source) double() float64 {
	return []float64{0, 1, -1, 0.1, 1e-9, 1e30, 12345678, 1.0 / 3}[r.IntN(8)]
}

func (r source) labels() ([]byte, []*LabelPair) {
	var set []byte
	var pairs []*LabelPair
	for i := range r.IntN(4) {
		name, value := fmt.Sprintf("n%d", i), "v"+r.text() // stored sets have no empty values
		if i == 2 {
			value = string(bytes.Repeat([]byte("long"), 100))
		}
		set = labelenc.AppendLabel(set, name, value)
		pairs = append(pairs, &LabelPair{Name: name, Value: value})
	}
	return set, pairs
}

// exemplar returns an exemplar, whose label set it adds to s, and the generated message.
func (r source) exemplar(s *profiles.SeriesResult, all *[][]*LabelPair) (profiles.Exemplar, *Exemplar) {
	set, pairs := r.labels()
	x := profiles.Exemplar{TimeNS: r.int() / 1e6 * 1e6, ID: profiles.ID{0: 0xab, 5: 0x10, 15: 1}, Value: r.int(), Set: uint32(len(s.Sets))}
	s.Sets, *all = append(s.Sets, set), append(*all, pairs)
	if r.IntN(3) == 0 { // several exemplars have one set
		x.Set = uint32(r.IntN(len(s.Sets)))
		pairs = (*all)[x.Set]
	}
	pairs = slices.DeleteFunc(slices.Clone(pairs), func(p *LabelPair) bool { return slices.Contains(s.GroupBy, p.Name) })
	want := &Exemplar{Timestamp: x.TimeNS / 1e6, ProfileId: "ab000000-0010-0000-0000-000000000001", Value: x.Value, Labels: pairs}
	if s.Spans != nil {
		x.Span = uint32(r.IntN(len(s.Spans)))
		want.SpanId, want.TraceId = []string{"", "00000000000000ab", "ffffffffffffffff"}[x.Span], []string{"", "", "01000000000000000000000000000002"}[x.Span]
	}
	return x, want
}

func (r source) flame() (*profiles.FlameGraph, *FlameGraph) {
	f := &profiles.FlameGraph{Total: r.int(), MaxSelf: r.int()}
	want := &FlameGraph{Total: f.Total, MaxSelf: f.MaxSelf}
	for range r.IntN(5) {
		f.Names = append(f.Names, r.text())
		var level []int64
		for range r.IntN(60) {
			level = append(level, r.int())
		}
		f.Levels = append(f.Levels, level)
		want.Levels = append(want.Levels, &Level{Values: level})
	}
	want.Names = f.Names
	return f, want
}

func TestSeriesEncoder_EqualsGeneratedCode(t *testing.T) {
	r := source{rand.New(rand.NewPCG(1, 2))}
	for range 300 {
		got, want := &profiles.SeriesResult{GroupBy: [][]string{nil, {"n0"}, {"n1", "n2"}, {"n0", "n1", "n2", "n3"}}[r.IntN(4)]}, &SelectSeriesResponse{}
		if r.IntN(2) == 0 { // the first stands for no span: the point has no exemplar
			got.Spans = []profiles.Span{{}, {ID: 0xab}, {ID: 1<<64 - 1, Trace: profiles.TraceID{0: 1, 15: 2}}}
		}
		var all [][]*LabelPair
		sets, wantSets := &LabelSetsEncoder{}, &SeriesResponse{}
		for range r.IntN(4) {
			set, pairs := r.labels()
			s, w, exemplars := profiles.Series{Labels: set}, &Series{Labels: pairs}, r.IntN(3) > 0
			for range r.IntN(5) {
				p := profiles.Point{TimeMS: r.int(), Value: r.double()}
				wp := &Point{Timestamp: p.TimeMS, Value: p.Value}
				if exemplars {
					x, wx := r.exemplar(got, &all)
					s.Exemplars = append(s.Exemplars, x)
					if got.Spans == nil || x.Span > 0 {
						wp.Exemplars = []*Exemplar{wx}
					}
				}
				s.Points, w.Points = append(s.Points, p), append(w.Points, wp)
			}
			got.Series, want.Series = append(got.Series, s), append(want.Series, w)
			sets.Sets, wantSets.LabelsSet = append(sets.Sets, set), append(wantSets.LabelsSet, &Labels{Labels: pairs})
		}
		check(t, "series", &SeriesEncoder{Result: got}, want, &SelectSeriesResponse{})
		check(t, "label sets", sets, wantSets, &SeriesResponse{})
	}
}

func TestMergeEncoder_EqualsGeneratedCode(t *testing.T) {
	r := source{rand.New(rand.NewPCG(3, 4))}
	for range 300 {
		f, w := r.flame()
		check(t, "merge", &MergeEncoder{Flame: f}, &SelectMergeStacktracesResponse{Flamegraph: w}, &SelectMergeStacktracesResponse{})
		diff := &FlameGraphDiff{Names: w.Names, Levels: w.Levels, Total: w.Total, MaxSelf: w.MaxSelf, LeftTicks: r.int(), RightTicks: r.int()}
		check(t, "diff", &DiffEncoder{FlameGraph: *f, LeftTicks: diff.LeftTicks, RightTicks: diff.RightTicks}, &DiffResponse{Flamegraph: diff}, &DiffResponse{})
	}
	p := &googlev1.Profile{
		SampleType: []*googlev1.ValueType{{Type: 1, Unit: 2}}, Sample: []*googlev1.Sample{{LocationId: []uint64{1, 2}, Value: []int64{-5}}},
		Location: []*googlev1.Location{{Id: 1, Line: []*googlev1.Line{{FunctionId: 1, Line: 3}}}}, StringTable: []string{"", "cpu", "ns"}, TimeNanos: 1 << 60,
	}
	raw, err := proto.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	check(t, "pprof", &MergeEncoder{Pprof: raw}, &SelectMergeStacktracesResponse{Pprof: &PprofProfile{Profile: p}}, &SelectMergeStacktracesResponse{})
	check(t, "profile", &ProfileEncoder{raw}, p, &googlev1.Profile{})
	check(t, "tree and dot", &MergeEncoder{Tree: []byte("x"), Dot: "digraph {}"}, &SelectMergeStacktracesResponse{Tree: []byte("x"), Dot: "digraph {}"}, &SelectMergeStacktracesResponse{})
}

func TestMergeEncoder_InvalidUTF8IsReplaced(t *testing.T) {
	a := &MergeEncoder{Flame: &profiles.FlameGraph{Names: []string{"a\xffb"}}}
	var got SelectMergeStacktracesResponse
	if err := proto.Unmarshal(a.AppendProto(nil), &got); err != nil || got.Flamegraph.Names[0] != "a\uFFFDb" {
		t.Errorf("%v, %v", got.Flamegraph, err)
	}
	if err := protojson.Unmarshal(a.AppendJSON(nil), &got); err != nil || got.Flamegraph.Names[0] != "a\uFFFDb" {
		t.Errorf("%v, %v", got.Flamegraph, err)
	}
}

func BenchmarkSeriesEncoder(b *testing.B) {
	var result profiles.SeriesResult
	labels := labelenc.AppendLabel(nil, "service_name", "ferula")
	for range 100 {
		s := profiles.Series{Labels: labels}
		for i := range 60 {
			s.Points = append(s.Points, profiles.Point{TimeMS: int64(1e12) + int64(i), Value: float64(i) / 3})
			s.Exemplars = append(s.Exemplars, profiles.Exemplar{TimeNS: 1e18, ID: profiles.ID{1}, Value: 7})
		}
		result.Series = append(result.Series, s)
	}
	result.Sets = [][]byte{labels}
	a := &SeriesEncoder{Result: &result}
	var buf []byte
	b.Run("proto", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			buf = a.AppendProto(buf[:0])
		}
	})
	b.Run("json", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			buf = a.AppendJSON(buf[:0])
		}
	})
}

func TestSeriesEncoder_DoesNotAllocatePerLabelSet(t *testing.T) {
	var result profiles.SeriesResult
	s := profiles.Series{Labels: labelenc.AppendLabel(nil, "service_name", "ferula")}
	for i := range 1000 {
		result.Sets = append(result.Sets, labelenc.AppendLabel(nil, "pod", fmt.Sprintf("pod-%d", i)))
		s.Points = append(s.Points, profiles.Point{TimeMS: int64(i), Value: 1})
		s.Exemplars = append(s.Exemplars, profiles.Exemplar{TimeNS: 1e6, Value: 7, Set: uint32(i)})
	}
	result.Series = []profiles.Series{s}
	a := &SeriesEncoder{Result: &result}
	buf := a.AppendProto(nil)
	least := 1e9
	for range 50 { // a pool may drop what is returned to it
		least = min(least, testing.AllocsPerRun(1, func() { buf = a.AppendProto(buf[:0]) }))
	}
	if least > 5 {
		t.Errorf("%v allocations of 1,000 label sets", least)
	}
}

func TestFunctionsEncoder_BytesAndJSON(t *testing.T) {
	a := &FunctionsEncoder{Functions: []FunctionCost{{"a\xff", 1, 300}, {}}, Total: 3, Count: 4}
	const want = "\x0a\x0b\x0a\x04a\uFFFD\x10\x01\x18\xac\x02\x0a\x00\x10\x03\x18\x04"
	if got := string(a.AppendProto([]byte("x"))); got != "x"+want {
		t.Errorf("got %q, want %q", got, "x"+want)
	}
	const wantJSON = `{"functions":[{"name":"a` + "\uFFFD" + `","self":"1","total":"300"},{}],"total":"3","count":"4"}`
	if got := string(a.AppendJSON(nil)); got != wantJSON {
		t.Errorf("got %s, want %s", got, wantJSON)
	}
}
