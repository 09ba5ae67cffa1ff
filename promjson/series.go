package promjson

import "bytes"

// seriesState is how far a series has been read. A series that fits into the
// buffer is read whole, and its arrays are handed out in one piece each. One
// that does not is streamed, which wants its members in the order metric,
// values, histograms.
type seriesState struct {
	values, histograms []byte // Pieces that are ready, or nil.

	stream     stream
	canonical  bool // The stream is spelled as Prometheus does, as far as is known.
	empty      bool // No point of the array has been read.
	afterPoint bool // A point has been read, the comma behind it has not.
	lastKind   kind // The last kind of array that has begun.
}

// stream is what a series that is streamed has come to.
type stream uint8

const (
	streamNone    stream = iota // The series is read to its end.
	streamPoints                // The points of an array.
	streamMembers               // Between the members of the series.
)

type kind uint8

const (
	kindNone kind = iota
	kindValues
	kindHistograms
)

// How Prometheus spells a series. None of this can occur inside a string, where
// the quotes would be escaped.
const (
	seriesHead    = `{"metric":`
	seriesMiddle  = `,"values":[[`
	seriesBetween = `]]},{"metric"`
)

// element goes to the next element of the result.
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

// quickSeries reads a series with values only, spelled as Prometheus does. It
// reports false, with pos anywhere, where the series is not like that, or
// cannot be read: then anySeries finds the error again.
func (s *Scanner) canonicalSeries() bool {
	const head, middle = len(seriesHead), len(seriesMiddle)
	s.growable = true
	if !s.have(head) || string(s.buf[s.mark:s.mark+head]) != seriesHead {
		return false
	}
	// From here on everything is counted from mark, because the buffer moves.
	end, err := s.find('}', head)
	if err != nil || !s.have(end+1+middle) {
		return false
	}
	end++
	if string(s.buf[s.mark+end:][:middle]) != seriesMiddle {
		// That bracket may have been part of a label.
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

// quickPoints reads points, the first of which begins at mark+from, to the end
// of their series, or as many as fit into the buffer. It reports false where
// they are not spelled as Prometheus does. The next colon belongs to the next
// series, or else another member could stand in between.
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
	if err != errBufferFull {
		return false
	}
	// There is neither an end nor a string with more than digits in front of
	// this, so it stands between two points.
	end = bytes.LastIndex(points, []byte(`"],[`))
	if end < 0 || bytes.IndexByte(points[:end], '\\') >= 0 {
		return false
	}
	s.series = seriesState{values: points[:end+2], stream: streamPoints, lastKind: kindValues, canonical: true}
	s.pos = s.mark + from + end + len(`"],`)
	return true
}

// span is a stretch of the buffer, counted from mark.
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

// anySeries reads a series in any spelling, whole if it fits into the buffer.
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

// captureOnce reads a value that begins with open into the span of a member
// that may stand there only once.
func (s *Scanner) captureOnce(p span, open byte) (span, error) {
	c, err := s.space()
	if err != nil {
		return p, err
	}
	if p.ok {
		return p, s.syntax("a member again")
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

// array reads an array of points into p, or begins to stream it: that needs the
// metric, and the order that seriesState wants.
func (s *Scanner) array(p *span, k kind, haveMetric bool) error {
	if p.ok {
		return s.syntax("a member again")
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

// openArray reads the bracket, or null instead of an array.
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

// points reads points up to the end of their array or, where it may stream, as
// many as fit into the buffer but at least one. It returns where they are. The
// buffer grows first where the caller would rather have the whole array.
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

// NextValues returns the next piece of the series' values, [t,"v"],[t,"v"], or
// nil after the last. Pieces consist of whole points and neither begin nor end
// with a comma, so one belongs between each two. A vector's value is a piece.
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
func (s *Scanner) rawValues() []byte {
	if p := s.series.values; p != nil {
		s.series.values = nil
		return p
	}
	if s.series.stream == streamPoints && s.series.lastKind == kindValues {
		return s.more()
	}
	return nil
}

// NextHistograms returns the next piece of the series' histograms,
// [t,{...}],[t,{...}], or nil after the last. Values that have not been asked
// for are skipped.
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
func (s *Scanner) rawHistograms() []byte {
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

// more reads the next piece of a stream.
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

// nextArray goes on to the next array of a series that is streamed, or to the
// end of the series.
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
				return s.syntax("a member again")
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
				return s.fail(s.pos, "values behind more histograms than MaxBufferBytes", ErrLimit)
			}
			return s.syntax("a member again")
		default:
			if err := s.skip(new(skipper)); err != nil {
				return err
			}
		}
	}
}
