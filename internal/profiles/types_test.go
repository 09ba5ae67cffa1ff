package profiles

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

const (
	trace = "0102030405060708090a0b0c0d0e0f10"
	span  = "00000000000000ff"
)

func TestParseTraceID_Has32DigitsAndIsNotZero(t *testing.T) {
	id, err := ParseTraceID(trace)
	if err != nil || id != (TraceID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}) {
		t.Error(id, err)
	}
	for _, text := range []string{"", trace[1:], trace + "0", strings.Repeat("0", 32), "g" + trace[1:], trace[1:] + "g"} {
		if id, err := ParseTraceID(text); !errors.Is(err, ErrBadRequest) || id != (TraceID{}) {
			t.Errorf("%q: %v, %v", text, id, err)
		}
	}
}

func TestParseSpanID_Has16DigitsAndIsNotZero(t *testing.T) {
	if id, err := ParseSpanID(span); err != nil || id != 255 {
		t.Error(id, err)
	}
	for _, text := range []string{"", span[1:], "0" + span, strings.Repeat("0", 16), "g" + span[1:]} {
		if id, err := ParseSpanID(text); !errors.Is(err, ErrBadRequest) || id != 0 {
			t.Errorf("%q: %d, %v", text, id, err)
		}
	}
}

func TestParseType_HasFivePartsOfWhichTwoAreNotEmpty(t *testing.T) {
	for _, text := range []string{"cpu:samples:count:cpu:nanoseconds", "cpu:samples:::"} {
		got, err := ParseType(text)
		if err != nil || got.String() != text {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	if got, _ := ParseType("a:b:c:d:e"); got != (Type{"a", "b", "c", "d", "e"}) {
		t.Errorf("%+v", got)
	}
	for _, text := range []string{"", "a:b:c:d", "a:b:c:d:e:f", ":b:c:d:e", "a::c:d:e"} {
		if got, err := ParseType(text); !errors.Is(err, ErrBadRequest) || got != (Type{}) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

func TestSeriesResult_IsReleasedOnce(t *testing.T) {
	n := 0
	r := NewSeriesResult(func() { n++ })
	r.Close()
	r.Close()
	if n != 1 {
		t.Errorf("released %d times", n)
	}
	(&SeriesResult{}).Close()
	(*SeriesResult)(nil).Close()
}

func TestID_TimeIsThatOfVersion7Only(t *testing.T) {
	id := NewID(1<<48 - 2)
	if ms, ok := id.TimeMS(); !ok || ms != 1<<48-2 {
		t.Error(ms, ok)
	}
	if NewID(1) == NewID(1) {
		t.Error("two IDs are equal")
	}
	version, variant := id, id
	version[6], variant[8] = version[6]&0x0f|0x40, variant[8]&0x3f|0xC0
	for _, id := range []ID{version, variant, {}} {
		if ms, ok := id.TimeMS(); ok || ms != 0 {
			t.Errorf("%s: %d", id, ms)
		}
	}
	if back, err := ParseID(id.String()); err != nil || back != id {
		t.Error(back, err)
	}
}

func TestSplitter_FindsTheSpansOfSamples(t *testing.T) {
	other := TraceID{0xff}
	otherText := "ff" + strings.Repeat("0", 30)
	s := &Splitter{}
	for _, tt := range []struct {
		samples []map[string][]string
		want    []Span
	}{
		{[]map[string][]string{{"a": {"b"}}, nil}, nil},
		{[]map[string][]string{{"trace_id": {otherText}}}, nil}, // a trace without a span
		{[]map[string][]string{{"span_id": {span}}}, []Span{{ID: 255}}},
		{[]map[string][]string{{"profile_id": {span}}}, []Span{{ID: 255}}},
		{[]map[string][]string{{"profile_id": {span}, "span_id": {"00000000000000fe"}}}, []Span{{ID: 254}}},
		{[]map[string][]string{{"profile_id": {"x"}, "span_id": {"00000000000000fe"}}}, []Span{{ID: 254}}},
		{[]map[string][]string{{"span_id": {"x"}}}, nil},
		{[]map[string][]string{{"span_id": {span}, "trace_id": {otherText}}}, []Span{{ID: 255, Trace: other}}},
		{[]map[string][]string{{"span_id": {span}, "trace_id": {"x"}}}, []Span{{ID: 255}}},
		{[]map[string][]string{nil, nil, {"span_id": {span}}, nil}, []Span{{}, {}, {ID: 255}, {}}},
		{[]map[string][]string{nil, {"span_id": {span}}, nil, {"span_id": {span}, "trace_id": {otherText}}, nil, nil}, []Span{{}, {ID: 255}, {}, {ID: 255, Trace: other}, {}, {}}},
		{[]map[string][]string{nil}, nil},
	} {
		s.Split(nil, labelled(t, tt.samples...))
		if fmt.Sprint(s.Spans) != fmt.Sprint(tt.want) {
			t.Errorf("%v: %v, want %v", tt.samples, s.Spans, tt.want)
		}
	}
}

func TestSplitter_SetsAreSortedAndValid(t *testing.T) {
	plain := labelenc.Append(nil, labels.FromStrings("m", "own"))
	s := &Splitter{}
	for _, tt := range []struct {
		set  map[string][]string
		want string
	}{
		{map[string][]string{"z": {"1"}, "a": {"2"}, "n": {"3"}}, `{a="2", m="own", n="3", z="1"}`},
		{map[string][]string{"b": {"first", "second"}}, `{b="first", m="own"}`},
		{map[string][]string{"m": {"other"}}, `{m="own"}`},
		{map[string][]string{"": {"x"}, "e": {""}, "__h": {"x"}, "_h": {"y"}}, `{_h="y", m="own"}`},
		{map[string][]string{"span_id": {"1"}, "trace_id": {"1"}, "profile_id": {"1"}}, `{m="own"}`},
	} {
		s.Split(plain, labelled(t, tt.set))
		var builder labels.ScratchBuilder
		got, err := labelenc.Labels(s.Sets[0], &builder)
		if err != nil || labelenc.Validate(s.Sets[0]) != nil || len(s.Sets) != 1 || got.String() != tt.want {
			t.Errorf("%v: %s of %d, %v, want %s", tt.set, got, len(s.Sets), err, tt.want)
		}
	}
}

func TestNewID_AllButTimeAndVersionIsRandom(t *testing.T) {
	var ones, zeros ID
	for range 1000 {
		id := NewID(0)
		for i, b := range id {
			ones[i], zeros[i] = ones[i]|b, zeros[i]|^b
		}
	}
	want := ID{6: 0x0f, 7: 0xff, 8: 0x3f, 9: 0xff, 10: 0xff, 11: 0xff, 12: 0xff, 13: 0xff, 14: 0xff, 15: 0xff}
	for i := range want {
		if got := ones[i] & zeros[i]; got != want[i] {
			t.Errorf("byte %d: the bits %08b vary, want %08b", i, got, want[i])
		}
	}
}

func TestSplitter_SortsTheLabelsOfASample(t *testing.T) {
	e := pprof.NewEncoder()
	e.SampleType("cpu", "nanoseconds")
	e.LabelledSample(nil, [][2]string{{"z", "1"}, {"b", "2"}, {"n", "3"}}, 1)
	e.LabelledSample(nil, [][2]string{{"n", "3"}, {"z", "1"}, {"b", "2"}}, 1)
	var p pprof.Profile
	if err := p.Decode(e.Append(nil), pprof.Limits{}); err != nil {
		t.Fatal(err)
	}
	s := &Splitter{}
	s.Split(nil, &p)
	want := labelenc.Append(nil, labels.FromStrings("b", "2", "n", "3", "z", "1"))
	if len(s.Sets) != 1 || string(s.Sets[0]) != string(want) {
		t.Errorf("%q", s.Sets)
	}
}
