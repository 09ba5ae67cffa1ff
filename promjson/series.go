package promjson

import "bytes"

// seriesState is the state of the current series. A series that fits into the buffer is
// read whole, and each of its arrays (values, histograms) is returned in one piece. A larger
// series is streamed; its members must be in the order metric, values, histograms.
type seriesState struct {
	values, histograms []byte // Pieces to be returned next, or nil.

	stream     stream
	canonical  bool // The streamed series is in the encoding of Prometheus so far.
	empty      bool // No point of the array has been read yet.
	afterPoint bool // The last token was a point: a comma or ] must follow.
	lastKind   kind // The kind of the array that was begun last.
}

// stream is the position in a streamed series.
type stream uint8

const (
	streamNone    stream = iota // At the end of the series.
	streamPoints                // In the points of an array.
	streamMembers               // Between the members of the series.
)

type kind uint8

const (
	kindNone kind = iota
	kindValues
	kindHistograms
)

// Parts of a series as Prometheus encodes it. None of them can occur inside a string,
// where the quotes would be escaped.
const (
	seriesHead    = `{"metric":`
	seriesMiddle  = `,"values":[[`
	seriesBetween = `]]},{"metric"`
)

// element advances to the next element of the result, and returns false at the end.
func (s *Scanner) element() (found bool, err error) {
	const next = "," + seriesHead
	if len(next) <= s.end-s.pos && string(s.buf[s.pos:s.pos+len(next)]) == next && !s.first {
		s.pos++
	} else {
		c, err := s.space()
		if err != nil {
			return false, err
		}
		if c == ']' {
			s.pos++
			s.leave(levelData)
			return false, nil
		}
		if !s.first {
			if err := s.expect(','); err != nil {
				return false, err
			}
			if c, err = s.space(); err != nil {
				return false, err
			}
		}
		if c != '{' {
			return false, s.syntax("expected a series")
		}
	}
	s.level, s.seen.series = levelSeries, true
	s.metric, s.form, s.ownsMetric = nil, formUnknown, false
	s.series = seriesState{}

	s.mark = s.pos
	if !s.canonicalSeries() {
		s.pos = s.mark
		err = s.anySeries()
	}
	s.mark = -1
	return true, err
}

// canonicalSeries reads a series with values only in the encoding of Prometheus. For
// any other series, and on an error, it returns false with an undefined pos; anySeries
// then reads the series again and returns the error.
func (s *Scanner) canonicalSeries() bool {
	const head, middle = len(seriesHead), len(seriesMiddle)
	s.growable = true
	if !s.have(head) || string(s.buf[s.mark:s.mark+head]) != seriesHead {
		return false
	}
	// All offsets below are relative to mark, because the buffer moves.
	end, err := s.find('}', head)
	if err != nil || !s.have(end+1+middle) {
		return false
	}
	end++
	if string(s.buf[s.mark+end:][:middle]) != seriesMiddle {
		// The bracket may be part of a label.
		s.pos = s.mark + head
		metric, err := s.capture()
		end = head + len(metric)
		if err != nil || !s.have(end+middle) || string(s.buf[s.mark+end:][:middle]) != seriesMiddle {
			return false
		}
	}
	if !s.canonicalPoints(end + middle - 1) {
		return false
	}
	s.metric = s.buf[s.mark+head : s.mark+end]
	s.metricAt = s.base + int64(s.mark+head)
	return true
}

// canonicalPoints reads points in the encoding of Prometheus, the first at mark+from, up
// to the end of the series or as many as fit into the buffer. It returns false for any
// other encoding. To find the end of the points, it searches for the next colon, which in the
// encoding of Prometheus belongs to the next series. If it belongs to a further member of
// this series instead, the bytes before the colon show it.
func (s *Scanner) canonicalPoints(from int) bool {
	s.growable = false
	colon, err := s.find(':', from)
	if err != nil {
		colon = s.end - s.mark
	}
	points := s.buf[s.mark+from : s.mark+colon]
	end := len(points) - len(seriesBetween)
	if err != nil || end < 0 || string(points[end:]) != seriesBetween {
		end = bytes.IndexByte(points, '}')
		if end >= 0 && !bytes.HasSuffix(points[:end], []byte("]]")) {
			return false
		}
		end -= len("]]")
	}
	if end >= 0 {
		s.series = seriesState{values: points[:end+1]}
		s.pos = s.mark + from + end + len("]]}")
		return true
	}
	//lint:ignore errorlint a hot path; the error is set in this package and never wrapped
	if err != errBufferFull {
		return false
	}
	// The buffer holds neither the end of the series nor strings other than numbers. So
	// these bytes separate two points, and not parts of a string.
	end = bytes.LastIndex(points, []byte(`"],[`))
	if end < 0 || bytes.IndexByte(points[:end], '\\') >= 0 {
		return false
	}
	s.series = seriesState{values: points[:end+2], stream: streamPoints, lastKind: kindValues, canonical: true}
	s.pos = s.mark + from + end + len(`"],`)
	return true
}

// span is a range of the buffer as offsets from mark.
type span struct {
	from, to int
	ok       bool
}

func (s *Scanner) at(p span) []byte {
	if p.from == p.to {
		return nil
	}
	return s.buf[s.mark+p.from : s.mark+p.to]
}

// anySeries reads a series in any JSON encoding, whole if it fits into the buffer.
func (s *Scanner) anySeries() error {
	s.pos++
	s.first = true
	s.series = seriesState{}
	var metric, values, histograms span
	for {
		s.growable = true
		name, more, err := s.member()
		if err != nil {
			return err
		}
		if !more {
			break
		}
		switch string(name) {
		case "metric":
			if metric, err = s.captureOnce(metric, '{'); err != nil {
				return err
			}
			s.metricAt = s.base + int64(s.mark+metric.from)
		case "value":
			values, err = s.captureOnce(values, '[')
		case "histogram":
			histograms, err = s.captureOnce(histograms, '[')
		case "values":
			err = s.array(&values, kindValues, metric.ok)
		case "histograms":
			err = s.array(&histograms, kindHistograms, metric.ok)
		default:
			err = s.skip(new(skipper))
		}
		if err != nil {
			return err
		}
		if s.series.stream != streamNone {
			break
		}
	}
	if !metric.ok {
		return s.syntax("a series without a metric")
	}
	s.metric = s.at(metric)
	s.series.values, s.series.histograms = s.at(values), s.at(histograms)
	return nil
}

// captureOnce reads a value that begins with open and returns its span. It returns an error if
// p, the span of this member so far, is set: the member may occur only once.
func (s *Scanner) captureOnce(p span, open byte) (span, error) {
	c, err := s.space()
	if err != nil {
		return p, err
	}
	if p.ok {
		return p, s.syntax("duplicate member")
	}
	if c != open {
		return p, s.syntax("expected " + string(rune(open)))
	}
	p.from = s.pos - s.mark
	if _, err = s.capture(); err != nil {
		return p, err
	}
	p.to, p.ok = s.pos-s.mark, true
	return p, nil
}

// array reads an array of points into p, or begins to stream it. Streaming needs the
// metric and the member order of seriesState.
func (s *Scanner) array(p *span, k kind, haveMetric bool) error {
	if p.ok {
		return s.syntax("duplicate member")
	}
	p.ok = true
	found, err := s.openArray()
	if err != nil || !found {
		return err
	}
	mayStream := haveMetric && s.series.lastKind < k
	valuesMayFollow := k == kindHistograms && s.series.lastKind == kindNone
	s.series.lastKind = max(s.series.lastKind, k)
	points, done, err := s.points(mayStream, valuesMayFollow)
	p.from, p.to = points.from, points.to
	if err == nil && !done {
		s.series.stream = streamPoints
		s.series.lastKind = k
	}
	return err
}

// openArray reads the opening bracket of an array. It returns false for null.
func (s *Scanner) openArray() (found bool, err error) {
	c, err := s.space()
	if err != nil {
		return false, err
	}
	switch c {
	case 'n':
		return false, s.skip(new(skipper))
	case '[':
		s.pos++
		s.series.afterPoint, s.series.empty = false, true
		return true, nil
	}
	return false, s.syntax("expected [")
}

// points reads points up to the end of their array. If mayStream is true, it reads only as many
// as fit into the buffer, but at least one. It returns their span; done reports the end of
// the array. If growFirst is true, the buffer first grows up to Options.MaxBufferBytes. That is
// for histograms that precede the values: such a series must fit into the buffer.
func (s *Scanner) points(mayStream, growFirst bool) (p span, done bool, err error) {
	for {
		s.growable = !mayStream || !p.ok || growFirst
		start := s.pos - s.mark
		c, err := s.space()
		if err == nil {
			switch {
			case c == ']' && (s.series.afterPoint || s.series.empty):
				s.pos++
				return p, true, nil
			case s.series.afterPoint && c == ',':
				s.pos++
				s.series.afterPoint = false
				continue
			case s.series.afterPoint:
				return p, false, s.syntax("expected a comma or the closing bracket")
			case c != '[':
				return p, false, s.syntax("expected a point")
			}
			start = s.pos - s.mark
			err = s.skip(new(skipper))
		}
		//lint:ignore errorlint a hot path; the error is set in this package and never wrapped
		if err == errBufferFull && mayStream && p.ok {
			s.pos = s.mark + start
			return p, false, nil
		}
		if err != nil {
			return p, false, err
		}
		if !p.ok {
			p = span{from: start, ok: true}
		}
		p.to = s.pos - s.mark
		s.series.afterPoint, s.series.empty = true, false
	}
}

// NextValues returns the next piece of the values of the series, [t,"v"],[t,"v"], or
// nil after the last piece and after an error. A piece consists of whole points and neither
// begins nor ends with a comma. The value of a sample of a vector is one piece.
func (s *Scanner) NextValues() []byte {
	if !s.window.on {
		return s.rawValues()
	}
	if p := s.takePending(kindValues); p != nil {
		return p
	}
	return s.nextInWindow((*Scanner).rawValues)
}

// rawValues is NextValues without a window.
func (s *Scanner) rawValues() []byte { return s.checked(kindValues, s.anyValues()) }

// anyValues is rawValues without Options.Validate.
func (s *Scanner) anyValues() []byte {
	if p := s.series.values; p != nil {
		s.series.values = nil
		return p
	}
	if s.series.stream == streamPoints && s.series.lastKind == kindValues {
		return s.more()
	}
	return nil
}

// NextHistograms returns the next piece of the histograms of the series,
// [t,{...}],[t,{...}], or nil after the last piece and after an error. It skips unread values.
func (s *Scanner) NextHistograms() []byte {
	if !s.window.on {
		return s.rawHistograms()
	}
	if p := s.takePending(kindHistograms); p != nil {
		return p
	}
	return s.nextInWindow((*Scanner).rawHistograms)
}

// rawHistograms is NextHistograms without a window.
func (s *Scanner) rawHistograms() []byte { return s.checked(kindHistograms, s.anyHistograms()) }

// anyHistograms is rawHistograms without Options.Validate.
func (s *Scanner) anyHistograms() []byte {
	for s.rawValues() != nil {
	}
	if p := s.series.histograms; p != nil {
		s.series.histograms = nil
		return p
	}
	for s.series.stream != streamNone {
		if s.series.stream == streamMembers {
			if err := s.nextArray(); err != nil {
				s.stop(err)
			}
		} else if p := s.more(); p != nil {
			return p
		}
	}
	return nil
}

// more returns the next piece of a streamed array, or nil at its end.
func (s *Scanner) more() []byte {
	s.mark = s.pos
	defer func() { s.mark = -1 }()
	if s.series.canonical {
		if s.canonicalPoints(0) {
			p := s.series.values
			s.series.values = nil
			return p
		}
		s.series.canonical = false
		s.pos = s.mark
	}
	p, done, err := s.points(true, false)
	if err != nil {
		s.stop(err)
		return nil
	}
	if done {
		s.series.stream = streamMembers
	}
	return s.at(p)
}

// nextArray advances to the next array of a streamed series, or to the end of the
// series.
func (s *Scanner) nextArray() error {
	s.growable = true
	for {
		s.first = false
		name, more, err := s.member()
		if err != nil {
			return err
		}
		if !more {
			s.series.stream = streamNone
			return nil
		}
		switch string(name) {
		case "histograms":
			if s.series.lastKind == kindHistograms {
				return s.syntax("duplicate member")
			}
			found, err := s.openArray()
			if err != nil {
				return err
			}
			s.series.lastKind = kindHistograms
			if found {
				s.series.stream = streamPoints
				return nil
			}
		case "values", "value", "histogram", "metric":
			if string(name) == "values" && s.series.lastKind == kindHistograms {
				return s.fail(s.pos, "values after more histograms than MaxBufferBytes", ErrLimit)
			}
			return s.syntax("duplicate member")
		default:
			if err := s.skip(new(skipper)); err != nil {
				return err
			}
		}
	}
}
