package area

import (
	"errors"
	"math"
	"slices"
	"testing"
)

func TestRecorder_MedianCounts(t *testing.T) {
	var rec Recorder
	for i, v := range []float64{3, 1.6, 2} {
		rec.Add(i+1, "peer", "cpu", Seconds, 2*v)
		rec.Add(i+1, "ferula", "cpu", Seconds, v)
	}
	rec.Add(1, "ferula", "bytes", Bytes, 0)
	rec.Add(1, "peer", "bytes", Bytes, 0)
	if got := rec.Median("ferula", "cpu"); got != 2 {
		t.Errorf("median: got %v, want 2", got)
	}
	if got := rec.Spread("ferula", "cpu"); got != 0.5 {
		t.Errorf("spread: got %v, want 0.5", got)
	}
	if got := rec.Spread("ferula", "bytes"); !math.IsNaN(got) {
		t.Errorf("spread around 0: got %v, want NaN", got)
	}
	rec.Add(1, "even", "cpu", Seconds, 4)
	rec.Add(2, "even", "cpu", Seconds, 2)
	if got := rec.Median("even", "cpu"); got != 3 {
		t.Errorf("median of two: got %v, want 3", got)
	}
	if got := rec.Over("ferula", "peer", "cpu"); got != 0.5 {
		t.Errorf("over: got %v, want 0.5", got)
	}
	for what, got := range map[string]float64{
		"never read":     rec.Median("ferula", "allocs"),
		"no such side":   rec.Over("relay", "peer", "cpu"),
		"nothing over 0": rec.Over("ferula", "peer", "bytes"),
	} {
		if !math.IsNaN(got) {
			t.Errorf("%s: got %v, want NaN", what, got)
		}
	}
	if got := rec.Kinds(); !slices.Equal(got, []string{"cpu", "bytes"}) {
		t.Errorf("kinds: %v", got)
	}
}

func TestOutcome_UnmeasuredGoalIsNaN(t *testing.T) {
	var o Outcome
	o.Measure("a/b", 0.25, "cpu")
	if o.Figure("a/b") != 0.25 || !math.IsNaN(o.Figure("a/c")) {
		t.Errorf("got %v and %v", o.Figure("a/b"), o.Figure("a/c"))
	}
}

func TestSameBytes_RejectsUnequalAndEmptyResponses(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want error
	}{
		{"same", "same", nil}, {"", "", ErrEmpty}, {"x", "", ErrEmpty}, {"some", "same", ErrUnequal}, {"same", "same!", ErrUnequal},
	} {
		if err := SameBytes("test", []byte(c.a), []byte(c.b)); !errors.Is(err, c.want) {
			t.Errorf("%q, %q: got %v, want %v", c.a, c.b, err, c.want)
		}
	}
}

func TestWorst_IsTheGreatestOrMissing(t *testing.T) {
	if got := Worst(0.2, 0.3, 0.1); got != 0.3 {
		t.Errorf("got %v", got)
	}
	if got := Worst(0.2, math.NaN()); !math.IsNaN(got) {
		t.Errorf("with a missing figure: got %v", got)
	}
}
