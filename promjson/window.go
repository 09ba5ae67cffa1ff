package promjson

import "bytes"

// Window is what of an answer is wanted, and what grid its points should be on.
type Window struct {
	StartMS, EndMS int64 // Both inclusive.
	// StepMS is the distance of points, counted from FromMS; 0 expects nothing. It
	// is only watched: see Scanner.StepAligned.
	StepMS int64
}

// window is a Window in force. Series are looked into before they are handed
// out, because those without a point inside are not.
type window struct {
	Window
	on        bool
	unaligned bool
	pending   []byte // The first piece of the series.
	kind      kind   // Of what held is.
}

// SetWindow makes s drop the points outside of w, and series that have none
// inside. It is called before the first Next, and holds until s is reset.
func (s *Scanner) SetWindow(w Window) { s.window = window{Window: w, on: true} }

// StepAligned reports whether every series so far began on the grid of the window. A
// server that moves the times of a query to its liking gives others.
func (s *Scanner) StepAligned() bool { return !s.window.unaligned }

// look reads on to the first point inside the window, and reports false where
// the series has none.
func (s *Scanner) findPointInWindow() bool {
	s.window.pending = s.nextInWindow((*Scanner).rawValues)
	if s.window.kind = kindValues; s.window.pending == nil {
		s.window.pending = s.nextInWindow((*Scanner).rawHistograms)
		s.window.kind = kindHistograms
	}
	return s.window.pending != nil
}

// take hands out what look has found, if it is of this kind.
func (s *Scanner) takePending(k kind) []byte {
	if s.window.kind != k {
		return nil
	}
	p := s.window.pending
	s.window.pending = nil
	return p
}

// windowed returns the next piece that has points inside the window.
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

// clip is what of a piece lies inside the window. Points are in the order of
// time, so it comes in from both ends: what it costs is what it drops.
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

// pointBehind is where the second point begins, or len(points). The strings of a
// point are numbers, so brackets are never inside of one.
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

// lastPoint is where the last point begins.
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
