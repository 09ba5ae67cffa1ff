package series

import "math"

// Steps are the times FirstMS, FirstMS + StepMS, … up to LastMS. StepMS is positive, and FirstMS not after LastMS.
type Steps struct{ FirstMS, LastMS, StepMS int64 }

// Valid reports whether the fields have the values that the comment of Steps names.
func (s Steps) Valid() bool { return s.StepMS > 0 && s.FirstMS <= s.LastMS }

// Within returns how many steps a time range has, inclusive, at most limit.
func (s Steps) Within(minMS, maxMS int64, limit int) int {
	from := s.NotBefore(minMS)
	if maxMS = min(maxMS, s.LastMS); from > maxMS {
		return 0
	}
	// The unsigned difference is right even if the signed one overflows.
	return int(min(uint64(maxMS-from)/uint64(s.StepMS), uint64(max(limit, 1)-1))) + 1
}

// NotBefore returns the first step at or after a time. The result is after LastMS if there is no such step.
func (s Steps) NotBefore(ms int64) int64 {
	if ms <= s.FirstMS {
		return s.FirstMS
	}
	if over := uint64(ms-s.FirstMS) % uint64(s.StepMS); over > 0 {
		next := ms + (s.StepMS - int64(over))
		if next < ms { // overflow
			return math.MaxInt64
		}
		return next
	}
	return ms
}
