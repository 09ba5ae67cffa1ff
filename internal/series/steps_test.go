package series

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestSteps_NotBeforeAndWithin(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		s := Steps{FirstMS: rng.Int64N(50) - 25, StepMS: 1 + rng.Int64N(20)}
		s.LastMS = s.FirstMS + rng.Int64N(200)
		minMS := rng.Int64N(300) - 100
		maxMS := minMS + rng.Int64N(100)
		first, count := int64(math.MaxInt64), 0
		for at := s.FirstMS; at <= s.LastMS; at += s.StepMS {
			if at >= minMS {
				first = min(first, at)
			}
			if at >= minMS && at <= maxMS {
				count++
			}
		}
		if got := s.NotBefore(minMS); got != first && !(first == math.MaxInt64 && got > s.LastMS) {
			t.Fatalf("%+v: NotBefore(%d) = %d, want %d", s, minMS, got, first)
		}
		if got := s.Within(minMS, maxMS, 1000); got != count {
			t.Fatalf("%+v: Within(%d, %d) = %d, want %d", s, minMS, maxMS, got, count)
		}
	}
}

func TestSteps_Extremes(t *testing.T) {
	s := Steps{math.MinInt64, math.MaxInt64, 1 << 40}
	if got := s.NotBefore(math.MaxInt64); got != math.MaxInt64 {
		t.Errorf("NotBefore: %d", got)
	}
	if got := s.NotBefore(math.MinInt64); got != math.MinInt64 {
		t.Errorf("NotBefore of the least time: %d", got)
	}
	if got := s.Within(math.MinInt64, math.MaxInt64, 7); got != 7 {
		t.Errorf("Within: %d", got)
	}
	if got := s.Within(5, 4, 7); got != 0 {
		t.Errorf("Within of an empty range: %d", got)
	}
	for _, bad := range []Steps{{}, {0, 1, 0}, {0, 1, -1}, {2, 1, 1}} {
		if bad.Valid() {
			t.Errorf("%+v is valid", bad)
		}
	}
}
