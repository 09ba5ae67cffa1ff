package promjson

import "bytes"

// topMember reads the value of a member of the response object.
func (s *Scanner) topMember(name []byte) error {
	e := &s.envelope
	switch string(name) {
	case "status":
		return s.string(&e.Status)
	case "errorType":
		return s.string(&e.ErrorType)
	case "error":
		return s.string(&e.Error)
	case "warnings":
		return s.strings(&e.Warnings)
	case "infos":
		return s.strings(&e.Infos)
	case "data":
		if s.seen.data {
			return s.syntax("duplicate data")
		}
		s.seen.data = true
		c, err := s.space()
		if err != nil || c != '{' {
			return s.unknown(name, false)
		}
		s.pos++
		s.enter(levelData)
		return nil
	}
	return s.unknown(name, false)
}

// dataMember reads the value of a member of the "data" object.
func (s *Scanner) dataMember(name []byte) error {
	switch string(name) {
	case "resultType":
		return s.string(&s.envelope.ResultType)
	case "result":
		if s.seen.result {
			return s.syntax("duplicate result")
		}
		s.seen.result = true
		return s.beginResult()
	}
	return s.unknown(name, true)
}

// beginResult detects the type of the result by its first two bytes, because
// "resultType" may follow the result.
func (s *Scanner) beginResult() error {
	c, err := s.space()
	if err != nil {
		return err
	}
	if c != '[' {
		var null skipper
		null.state, null.literal = skipLiteral, "null"
		return s.skip(&null)
	}
	s.mark = s.pos
	s.pos++
	c, err = s.space()
	back := s.mark
	s.mark = -1
	if err != nil {
		return err
	}
	if c == '{' || c == ']' {
		s.enter(levelResult)
		return nil
	}
	s.pos = back
	raw, err := s.capture()
	if err != nil {
		return err
	}
	s.result = bytes.Clone(raw)
	return s.spend(len(raw))
}

// spend subtracts n bytes from the rest of MaxTextBytes.
func (s *Scanner) spend(n int) error {
	if s.textBytes -= n; s.textBytes < 0 {
		return s.fail(s.pos, "more than MaxTextBytes of strings", ErrLimit)
	}
	return nil
}

// string reads a string or null into dst.
func (s *Scanner) string(dst *string) error {
	c, err := s.space()
	if err != nil {
		return err
	}
	if c == 'n' {
		return s.skip(new(skipper))
	}
	raw, err := s.rawString()
	if err != nil {
		return err
	}
	if err := s.spend(len(raw)); err != nil {
		return err
	}
	value, ok := appendUnescaped(nil, raw)
	if !ok {
		return s.syntax("an unknown escape")
	}
	*dst = string(value)
	return nil
}

// strings appends an array of strings, or nothing for null, to dst.
func (s *Scanner) strings(dst *[]string) error {
	c, err := s.space()
	if err != nil {
		return err
	}
	if c == 'n' {
		return s.skip(new(skipper))
	}
	if err := s.expect('['); err != nil {
		return err
	}
	if c, err = s.space(); err != nil {
		return err
	}
	for c != ']' {
		var value string
		if err := s.string(&value); err != nil {
			return err
		}
		if err := s.spend(16); err != nil { // An empty string has a header too.
			return err
		}
		*dst = append(*dst, value)
		if c, err = s.space(); err != nil {
			return err
		}
		if c != ',' && c != ']' {
			return s.syntax("expected a comma or the closing bracket")
		}
		if c == ',' {
			s.pos++
		}
	}
	s.pos++
	return nil
}

// unknown reads a value of any type and adds it to Envelope.Unknown if it fits
// into the rest of MaxUnknownBytes.
func (s *Scanner) unknown(name []byte, inData bool) error {
	var k skipper
	if s.unknownBytes <= 0 {
		return s.skip(&k)
	}
	if _, err := s.space(); err != nil {
		return err
	}
	s.mark = s.pos
	err := s.skip(&k)
	from := s.mark
	s.mark = -1
	//lint:ignore errorlint a hot path; the error is set in this package and never wrapped
	if err == errBufferFull {
		return s.skip(&k) // Too large for the buffer: skip the rest.
	}
	if err != nil {
		return err
	}
	if size := s.pos - from + len(name); size <= s.unknownBytes {
		s.unknownBytes -= size
		s.envelope.Unknown = append(s.envelope.Unknown, Member{string(name), inData, bytes.Clone(s.buf[from:s.pos])})
	}
	return nil
}
