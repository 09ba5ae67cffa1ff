package promjson

import (
	"bytes"
	"errors"
	"iter"
)

// Exemplar is one exemplar of the response of /query_exemplars. T of the Point is in
// milliseconds.
type Exemplar struct {
	Series []Label // Of the series that it belongs to, sorted by name.
	Labels []Label // Of the exemplar, such as trace_id, sorted by name.
	Point
}

// ExemplarOf is an Exemplar in the caller's types: L for labels and P for values, see Types.
type ExemplarOf[L, P any] struct {
	Series, Labels L
	Point          P
}

// Metadata is the metadata of a family in the response of /metadata, of one target or of
// several targets with the same metadata. The caller owns it.
type Metadata struct {
	Family, Type, Unit, Help string
}

var (
	errRead = errors.New("promjson: the response has been read already")
	errLeft = errors.New("promjson: the caller has left the loop")
)

// Collect returns all elements of an iterator over a response, and the error that ended it:
// names, err := Collect(s.Strings()). Options do not bound the memory of the elements.
func Collect[T any](elements iter.Seq2[T, error]) ([]T, error) {
	var all []T
	for v, err := range elements {
		if err != nil {
			return all, err
		}
		all = append(all, v)
	}
	return all, nil
}

// Strings iterates over the response of /labels or /label/NAME/values.
//
// Strings, LabelSets, Exemplars and Metadata each read a whole response. Call one of them
// instead of Next. Each element must fit into Options.MaxBufferBytes, which bounds their
// memory. The last element has the error if there is one. The error is an *APIError if the
// status of the response is not "success". The Envelope is complete after the last element.
// A caller that breaks out of the loop cannot continue.
func (s *Scanner) Strings() iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		list(s, yield, func() error {
			return s.elements(func() error {
				raw, err := s.rawString()
				if err != nil {
					return err
				}
				text, ok := appendUnescaped(nil, raw)
				if !ok {
					return s.syntax("an unknown escape")
				}
				return next(yield, string(text))
			})
		})
	}
}

// LabelSets iterates over the response of /series, see Strings. Labels are sorted by name;
// the caller owns them.
func (s *Scanner) LabelSets() iter.Seq2[[]Label, error] {
	return func(yield func([]Label, error) bool) {
		s.labelSets(yield, func() []Label { return nil })
	}
}

// labelSets yields the labels of each series, appended to the slice that memory returns.
func (s *Scanner) labelSets(yield func([]Label, error) bool, memory func() []Label) {
	list(s, yield, func() error {
		return s.elements(func() error {
			labels, err := s.labels(memory())
			if err != nil {
				return err
			}
			return next(yield, labels)
		})
	})
}

// LabelSets iterates over the response of /series in the caller's type, see
// Scanner.Strings. An error of t.Labels ends it.
func (t Types[L, P, H]) LabelSets(s *Scanner) iter.Seq2[L, error] {
	return func(yield func(L, error) bool) {
		var list []Label
		convert := func(labels []Label, err error) bool {
			list = labels
			return t.labels(labels, err, yield)
		}
		s.labelSets(convert, func() []Label { return list[:0] })
	}
}

// labels yields labels in the caller's type, or an error. It returns false if the loop must end.
func (t Types[L, P, H]) labels(labels []Label, err error, yield func(L, error) bool) bool {
	var own, none L
	if err == nil {
		own, err = t.Labels(labels)
	}
	if err != nil {
		yield(none, err)
		return false
	}
	return yield(own, nil)
}

// Exemplars iterates over the response of /query_exemplars, see Strings. The caller owns
// the labels. The exemplars of one series share Series. A series without exemplars is
// skipped.
func (s *Scanner) Exemplars() iter.Seq2[Exemplar, error] {
	return func(yield func(Exemplar, error) bool) {
		s.exemplars(yield, func(*Exemplar) {})
	}
}

// Exemplars iterates over the response of /query_exemplars in the caller's types, see
// Scanner.Exemplars. t.Labels converts the labels of each series once, and the labels of
// each exemplar. An error of t.Labels ends the iteration.
func (t Types[L, P, H]) Exemplars(s *Scanner) iter.Seq2[ExemplarOf[L, P], error] {
	return func(yield func(ExemplarOf[L, P], error) bool) {
		var own, none ExemplarOf[L, P]
		var wrong error
		series := func(e *Exemplar) { own.Series, wrong = t.Labels(e.Series) }
		s.exemplars(func(e Exemplar, err error) bool {
			if err == nil {
				err = wrong
			}
			if err == nil {
				own.Labels, err = t.Labels(e.Labels)
			}
			if err != nil {
				yield(none, err)
				return false
			}
			own.Point = t.Point(e.T, e.F)
			return yield(own, nil)
		}, series)
	}
}

// exemplars yields exemplars, and calls series before the first of each series.
func (s *Scanner) exemplars(yield func(Exemplar, error) bool, series func(*Exemplar)) {
	list(s, yield, func() error {
		return s.elements(func() error { return s.exemplarSeries(yield, series) })
	})
}

// exemplarSeries reads one element of the response of /query_exemplars. If the labels of the
// series precede the exemplars, as in Prometheus' responses, it reads the exemplars one by one.
// Otherwise it reads them into memory first.
func (s *Scanner) exemplarSeries(yield func(Exemplar, error) bool, series func(*Exemplar)) error {
	var labels []Label
	var seen struct{ labels, exemplars bool }
	var early []byte  // The exemplars, if they precede the labels of the series.
	var earlyAt int64 // The offset of early in the input.
	err := s.members(func(name []byte) (err error) {
		switch string(name) {
		case "seriesLabels":
			if seen.labels {
				return s.syntax("duplicate member")
			}
			seen.labels = true
			if labels, err = s.labels(nil); err == nil {
				series(&Exemplar{Series: labels})
			}
			return err
		case "exemplars":
			if seen.exemplars {
				return s.syntax("duplicate member")
			}
			seen.exemplars = true
			if seen.labels {
				return s.elements(func() error { return s.exemplar(labels, yield) })
			}
			raw, err := s.capture()
			early, earlyAt = bytes.Clone(raw), s.base+int64(s.pos-len(raw))
			return err
		}
		return s.skip(new(skipper))
	})
	if err == nil && !seen.labels {
		return s.syntax("exemplars without a series")
	}
	if err != nil || early == nil {
		return err
	}
	rest := &Scanner{o: s.o}
	rest.ResetBytes(early)
	rest.base = earlyAt
	return rest.elements(func() error { return rest.exemplar(labels, yield) })
}

// exemplar reads and yields one exemplar.
func (s *Scanner) exemplar(series []Label, yield func(Exemplar, error) bool) error {
	e := Exemplar{Series: series}
	var value, timestamp bool
	err := s.members(func(name []byte) (err error) {
		switch string(name) {
		case "labels":
			e.Labels, err = s.labels(nil)
		case "value":
			value = true
			err = s.captured(func(c *cursor) (wrong string) {
				e.F, wrong = c.float()
				return wrong
			})
		case "timestamp":
			timestamp = true
			err = s.captured(func(c *cursor) (wrong string) {
				e.T, c.i, wrong = parseTime(c.b)
				if wrong == "" && c.i != len(c.b) {
					wrong = "expected a time"
				}
				return wrong
			})
		default:
			err = s.skip(new(skipper))
		}
		return err
	})
	if err == nil && (!value || !timestamp) {
		err = s.syntax("an exemplar without a value or a timestamp")
	}
	if err != nil {
		return err
	}
	return next(yield, e)
}

// Metadata iterates over the response of /metadata, see Strings.
func (s *Scanner) Metadata() iter.Seq2[Metadata, error] {
	return func(yield func(Metadata, error) bool) {
		list(s, yield, func() error {
			return s.members(func(name []byte) error {
				family := string(name)
				return s.elements(func() error { return s.familyMetadata(family, yield) })
			})
		})
	}
}

func (s *Scanner) familyMetadata(family string, yield func(Metadata, error) bool) error {
	m := Metadata{Family: family}
	err := s.members(func(name []byte) error {
		var dst *string
		switch string(name) {
		case "type":
			dst = &m.Type
		case "unit":
			dst = &m.Unit
		case "help":
			dst = &m.Help
		default:
			return s.skip(new(skipper))
		}
		return s.captured(func(c *cursor) string {
			value, wrong := c.unescaped()
			*dst = string(value)
			return wrong
		})
	})
	if err != nil {
		return err
	}
	return next(yield, m)
}

// next yields v. It returns errLeft if the caller breaks out of the loop.
func next[T any](yield func(T, error) bool, v T) error {
	if !yield(v, nil) {
		return errLeft
	}
	return nil
}

// list reads a whole response and yields its error, if there is one. data reads the value of
// the member "data" and yields the elements.
func list[T any](s *Scanner, yield func(T, error) bool, data func() error) {
	err := s.err
	switch {
	case err != nil:
	case s.level != levelStart:
		err = errRead
	default:
		err = s.listResponse(data)
		s.level = levelEnd
		if errors.Is(err, errLeft) {
			return
		}
		if e := &s.envelope; err != nil {
			s.stop(err)
			err = s.err
		} else if e.Status != "success" {
			err = &APIError{e.Status, e.ErrorType, e.Error}
		}
	}
	if err != nil {
		var none T
		yield(none, err)
	}
}

func (s *Scanner) listResponse(data func() error) error {
	err := s.members(func(name []byte) error {
		if string(name) != "data" {
			return s.topMember(name)
		}
		if s.seen.data {
			return s.syntax("duplicate data")
		}
		s.seen.data = true
		if c, err := s.space(); err != nil {
			return err
		} else if c == 'n' {
			return s.skip(new(skipper))
		}
		return data()
	})
	if err != nil {
		return err
	}
	return s.finish()
}

// members reads an object and calls each after every name, to read the value.
func (s *Scanner) members(each func(name []byte) error) error {
	if err := s.expect('{'); err != nil {
		return err
	}
	for s.first = true; ; s.first = false {
		name, more, err := s.member()
		if err != nil || !more {
			return err
		}
		if err := each(name); err != nil {
			return err
		}
	}
}

// elements reads an array, or null. It calls each for every element, to read it.
func (s *Scanner) elements(each func() error) error {
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
	for n := 0; ; n++ {
		c, err := s.space()
		if err != nil {
			return err
		}
		if c == ']' {
			s.pos++
			return nil
		}
		if n > 0 {
			if c != ',' {
				return s.syntax("expected a comma or the closing bracket")
			}
			s.pos++
		}
		if err := each(); err != nil {
			return err
		}
	}
}

// labels reads an object of labels and appends them to dst.
func (s *Scanner) labels(dst []Label) ([]Label, error) {
	raw, err := s.capture()
	if err != nil {
		return nil, err
	}
	if dst, err = DecodeLabels(dst, raw); err != nil {
		return nil, s.locate(raw, err)
	}
	return dst, nil
}

// captured reads one value into memory and calls read to parse it.
func (s *Scanner) captured(read func(c *cursor) (wrong string)) error {
	raw, err := s.capture()
	if err != nil {
		return err
	}
	c := cursor{b: raw}
	if wrong := read(&c); wrong != "" {
		return s.locate(raw, c.error(wrong))
	}
	return nil
}
