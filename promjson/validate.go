package promjson

import "io"

// Validate reads a whole response to a query and returns an *Error unless it is valid:
// it must be JSON, with the members, points and histograms that this API defines. Unknown
// members may be any JSON. Timestamps need not increase, and series need not be sorted. o
// bounds the memory for any response.
func Validate(r io.Reader, o Options) error {
	o.Validate = true
	s := NewScanner(r, o)
	for s.Next() {
	}
	return s.Err()
}

// checked returns a piece of kind k. With Options.Validate it checks the piece, and ends the scan
// if a point in it is invalid.
func (s *Scanner) checked(k kind, piece []byte) []byte {
	if !s.o.Validate || piece == nil {
		return piece
	}
	c := cursor{b: piece}
	for i := 0; ; i++ {
		more, wrong := c.separator(i)
		if more {
			wrong = c.checkPoint(k, &s.histogram)
		}
		if wrong != "" {
			s.stop(s.locate(piece, c.error(wrong)))
			return nil
		}
		if !more {
			return piece
		}
	}
}

// checkPoint reads one point: first as JSON, because the decoder of points accepts numbers that
// are not JSON, and then as a point.
func (c *cursor) checkPoint(k kind, h *HistogramPoint) (wrong string) {
	c.space()
	start := c.i
	if wrong = c.skip(); wrong != "" {
		return wrong
	}
	point := cursor{b: c.b[:c.i], i: start}
	if k == kindValues {
		_, wrong = point.point()
	} else {
		_, wrong = point.nextHistogram(0, h)
	}
	if wrong != "" {
		c.i = point.i
	}
	return wrong
}

// isOfQuery returns an error if a successful response has no resultType, which every response to a query has. The whole
// response must have been read.
func (s *Scanner) isOfQuery() error {
	if s.envelope.Status == "success" && s.envelope.ResultType == "" {
		return s.syntax("the response has no resultType")
	}
	return nil
}

// checkResult checks the result of a scalar or string query, which is s.result.
func (s *Scanner) checkResult() error {
	if !s.o.Validate {
		return nil
	}
	if err := s.isOfQuery(); err != nil {
		return err
	}
	a := Response{Envelope: Envelope{ResultType: s.envelope.ResultType}}
	if s.result == nil {
		if kind := a.ResultType; s.envelope.Status == "success" && (kind == "scalar" || kind == "string") {
			return s.syntax("the result of type " + kind + " is missing")
		}
		return nil
	}
	if kind := a.ResultType; kind != "scalar" && kind != "string" {
		return s.syntax("this is not the response to a query")
	}
	if a.decodeResult(s.result) != nil {
		return s.syntax("the result is not a " + a.ResultType)
	}
	return nil
}
