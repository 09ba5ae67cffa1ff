package promjson

import "bytes"

// Window is a time range. A Scanner cuts a response to it, see Scanner.SetWindow.
type Window struct {
	StartMS, EndMS int64 // Inclusive, in milliseconds since the epoch.
	// StepMS is the step of the query in milliseconds: points are expected at StartMS plus
	// multiples of StepMS. Points at other times are not dropped, see Scanner.StepAligned.
	// 0 disables the check of StepAligned.
	StepMS int64
}

// window is the state of a Window during a scan. The first piece of a series is read
// before Next returns the series, because a series without a point inside the
// window is skipped.
type window struct {
	Window
	on        bool
	unaligned bool
	pending   []byte // The first piece of the series inside the window, until the caller takes it.
	kind      kind   // Of pending.
}

// SetWindow makes s drop points outside w, and series without a point inside w. Call
// it before the first Next; it applies until s is reset.
func (s *Scanner) SetWindow(w Window) { s.window = window{Window: w, on: true} }

// StepAligned reports whether the first point of every piece so far was on a step of the
// window. It is false if the server has aligned the start of the query to other times.
func (s *Scanner) StepAligned() bool { return !s.window.unaligned }

// findPointInWindow reads up to the first point of the series inside the window and
// returns false if there is none.
func (s *Scanner) findPointInWindow() bool {
	s.window.pending = s.nextInWindow((*Scanner).rawValues)
	if s.window.kind = kindValues; s.window.pending == nil {
		s.window.pending = s.nextInWindow((*Scanner).rawHistograms)
		s.window.kind = kindHistograms
	}
	return s.window.pending != nil
}

// takePending returns the piece that findPointInWindow has read, if it is of kind k.
func (s *Scanner) takePending(k kind) []byte {
	if s.window.kind != k {
		return nil
	}
	p := s.window.pending
	s.window.pending = nil
	return p
}

// nextInWindow returns the points inside the window of the next piece that has such points; nil
// if there is none.
func (s *Scanner) nextInWindow(raw func(*Scanner) []byte) []byte {
	for p := raw(s); p != nil; p = raw(s) {
		kept, err := s.clip(p)
		if err != nil {
			s.stop(err)
			return nil
		}
		if len(kept) > 0 {
			return kept
		}
	}
	return nil
}

// clip returns the points of a piece that are inside the window. Points are in the
// order of time, so it searches from both ends: its cost grows with the number of
// points it drops.
func (s *Scanner) clip(points []byte) ([]byte, error) {
	for len(points) > 0 {
		ms, err := FirstTime(points)
		if err != nil {
			return nil, s.locate(points, err)
		}
		if ms >= s.window.StartMS {
			if s.window.StepMS > 0 && (ms-s.window.StartMS)%s.window.StepMS != 0 {
				s.window.unaligned = true
			}
			break
		}
		points = points[secondPoint(points):]
	}
	for len(points) > 0 {
		last := lastPoint(points)
		ms, err := FirstTime(points[last:])
		if err != nil {
			return nil, s.locate(points[last:], err)
		}
		if ms <= s.window.EndMS {
			break
		}
		points = bytes.TrimRight(points[:last], ", \t\r\n")
	}
	return points, nil
}

// secondPoint returns the offset of the second point, or len(points). The strings of
// a point are numbers, so they never contain brackets.
func secondPoint(points []byte) int {
	depth := 0
	for i, c := range points {
		if c == '[' {
			depth++
		}
		if c == ']' {
			if depth--; depth == 0 {
				if next := bytes.IndexByte(points[i:], '['); next >= 0 {
					return i + next
				}
				break
			}
		}
	}
	return len(points)
}

// lastPoint returns the offset of the last point.
func lastPoint(points []byte) int {
	depth := 0
	for i := len(points) - 1; i >= 0; i-- {
		if points[i] == ']' {
			depth++
		}
		if points[i] == '[' {
			if depth--; depth <= 0 {
				return i
			}
		}
	}
	return 0
}
