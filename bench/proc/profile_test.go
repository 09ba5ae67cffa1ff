package proc

import (
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/google/pprof/profile"
)

// stack is a sample of so much CPU, its functions from the innermost.
func stack(ns int64, functions ...string) *profile.Sample {
	s := &profile.Sample{Value: []int64{1, ns}}
	for _, name := range functions {
		s.Location = append(s.Location, &profile.Location{Line: []profile.Line{{Function: &profile.Function{Name: name}}}})
	}
	return s
}

func TestProcessorTimeBelongsToTheInnermostStage(t *testing.T) {
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}},
		Sample: []*profile.Sample{
			stack(10, "runtime.memmove", "json.decode", "codec.DecodeResponse", "main"),
			stack(20, "runtime.gcAssistAlloc", "runtime.mallocgc", "codec.DecodeResponse"),
			stack(40, "json.encode", "codec.EncodeResponse"),
			stack(80, "runtime.memmove", "main"),
			stack(160),
		},
	}
	p.Sample[4].Location = []*profile.Location{{Line: []profile.Line{{}}}} // a function without a name
	stages := []Stage{{"collect", []string{"gcBgMarkWorker", "gcAssist"}}, {"decode", []string{"DecodeResponse"}}, {"encode", []string{"EncodeResponse"}}}
	got, err := attribute(p, stages)
	want := map[string]time.Duration{"decode": 10, "collect": 20, "encode": 40, Other: 240}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	p.SampleType[1].Type = "wall"
	if _, err := attribute(p, stages); !errors.Is(err, ErrMissing) {
		t.Errorf("a profile of something else: %v", err)
	}
}
