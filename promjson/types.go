package promjson

import (
	"bytes"
	"errors"
	"io"
	"iter"
)

// ErrHistograms means that a response has native histograms, but Types.Histogram is nil.
var ErrHistograms = errors.New("promjson: the response has native histograms")

// Types decodes responses into the caller's own types: L of labels, P of values and H of
// native histograms.
//
//	types := promjson.Types[labels.Labels, promql.FPoint, promql.HPoint]{
//		Labels: func(ls []promjson.Label) (labels.Labels, error) { ... },
//		Point:  func(ms int64, v float64) promql.FPoint { return promql.FPoint{T: ms, F: v} },
//		...
//	}
//	response, err := types.Decode(body, promjson.Options{})
type Types[L, P, H any] struct {
	// Labels converts the labels of a series, which are sorted by name. The slice is valid
	// until Labels returns. The strings may be kept; they share one allocation.
	Labels func(labels []Label) (L, error)
	// Point converts a float sample; ms is its timestamp in milliseconds.
	Point func(ms int64, v float64) P
	// Histogram converts a native histogram. h and its buckets are valid until Histogram
	// returns. If Histogram is nil, a histogram in the response is the error ErrHistograms.
	Histogram func(ms int64, h *Histogram) (H, error)
	// MaxPoints is the maximum number of values and histograms of one SeriesOf that All
	// yields. A longer series is yielded as several SeriesOf. 0: no maximum, each series is
	// one SeriesOf.
	MaxPoints int
}

// SeriesOf is a series in the caller's types, or a part of it. The caller owns it.
type SeriesOf[L, P, H any] struct {
	Labels     L
	Values     []P
	Histograms []H
	// Continued reports that the series continues in the next SeriesOf, with the same labels.
	// It is never set if Types.MaxPoints is 0.
	Continued bool
}

// ResponseOf is a decoded response to a query in the caller's types. The caller owns it.
type ResponseOf[L, P, H any] struct {
	Envelope
	// Series holds the series of a matrix, or the samples of a vector as series with one
	// value or one histogram each.
	Series []SeriesOf[L, P, H]
	Scalar Point       // The result if ResultType is "scalar".
	String StringPoint // The result if ResultType is "string".
}

// Decode reads and decodes a whole response into the caller's types, see the function Decode.
func (t Types[L, P, H]) Decode(r io.Reader, o Options) (*ResponseOf[L, P, H], error) {
	s := NewScanner(r, o)
	t.MaxPoints = 0
	a := &ResponseOf[L, P, H]{}
	var api *APIError
	for series, err := range t.All(s) {
		if errors.As(err, &api) {
			break
		}
		if err != nil {
			return nil, err
		}
		a.Series = append(a.Series, series)
	}
	a.Envelope = s.envelope
	if api != nil {
		return a, api
	}
	plain := Response{Envelope: s.envelope}
	err := plain.decodeResult(s.result)
	a.Scalar, a.String = plain.Scalar, plain.String
	return a, err
}

// All iterates over the series of a response in the caller's types. Its memory is bounded
// by one series, or by MaxPoints points, and by the Options of s. The last element has the
// error if there is one. The error is an *APIError if the status of the response is not
// "success". After the last element, s.Result has the result of a scalar or string query, and
// s.Envelope has all other members of the response.
func (t Types[L, P, H]) All(s *Scanner) iter.Seq2[SeriesOf[L, P, H], error] {
	return func(yield func(SeriesOf[L, P, H], error) bool) {
		var list []Label
		for s.Next() {
			var err error
			var series SeriesOf[L, P, H]
			if list, err = DecodeLabels(list[:0], s.Metric()); err == nil {
				series.Labels, err = t.Labels(list)
			}
			if err == nil && !t.points(s, &series, yield, &err) {
				return
			}
			if s.err != nil {
				break
			}
			if err != nil {
				yield(SeriesOf[L, P, H]{}, err)
				return
			}
			if !yield(series, nil) {
				return
			}
		}
		e := &s.envelope
		switch {
		case s.err != nil:
			yield(SeriesOf[L, P, H]{}, s.err)
		case e.Status != "success":
			yield(SeriesOf[L, P, H]{}, &APIError{e.Status, e.ErrorType, e.Error})
		default:
			if err := s.isOfQuery(); err != nil {
				yield(SeriesOf[L, P, H]{}, err)
			}
		}
	}
}

// points adds the points of the current series to series, and yields series whenever it has
// MaxPoints and more follow. It returns false if yield does.
func (t *Types[L, P, H]) points(s *Scanner, series *SeriesOf[L, P, H], yield func(SeriesOf[L, P, H], error) bool,
	err *error) bool {
	send := func() bool {
		if t.MaxPoints <= 0 || len(series.Values)+len(series.Histograms) < t.MaxPoints {
			return true
		}
		part := *series
		part.Continued = true
		series.Values, series.Histograms = nil, nil
		return yield(part, nil)
	}
	for ms, v := range s.Points() {
		if !send() {
			return false
		}
		if series.Values == nil {
			series.Values = make([]P, 0, t.size(s.left))
		}
		series.Values = append(series.Values, t.Point(ms, v))
	}
	for ms, h := range s.Histograms() {
		if !send() {
			return false
		}
		if t.Histogram == nil {
			*err = ErrHistograms
			return true
		}
		var point H
		if point, *err = t.Histogram(ms, h); *err != nil {
			return true
		}
		series.Histograms = append(series.Histograms, point)
	}
	return true
}

// size returns the capacity for n points.
func (t *Types[L, P, H]) size(n int) int {
	if t.MaxPoints > 0 {
		n = min(n, t.MaxPoints)
	}
	return n
}

// Points iterates over the remaining values of the current series: times in milliseconds
// and values. It decodes one piece at a time and does not allocate per point. An error
// ends the iteration, see Err.
func (s *Scanner) Points() iter.Seq2[int64, float64] {
	return func(yield func(int64, float64) bool) {
		for piece := s.NextValues(); piece != nil; piece = s.NextValues() {
			c := cursor{b: piece}
			s.left = c.count()
			for i := 0; ; i++ {
				p, more, wrong := c.nextPoint(i)
				if wrong != "" {
					s.stop(s.locate(piece, c.error(wrong)))
					return
				}
				if !more {
					break
				}
				if !yield(p.T, p.F) {
					return
				}
			}
		}
	}
}

// Histograms iterates over the remaining histograms of the current series. It skips unread
// values. Each Histogram is valid until the next one.
func (s *Scanner) Histograms() iter.Seq2[int64, *Histogram] {
	return func(yield func(int64, *Histogram) bool) {
		var p HistogramPoint
		for piece := s.NextHistograms(); piece != nil; piece = s.NextHistograms() {
			c := cursor{b: piece}
			for i := 0; ; i++ {
				more, wrong := c.nextHistogram(i, &p)
				if wrong != "" {
					s.stop(s.locate(piece, c.error(wrong)))
					return
				}
				if !more {
					break
				}
				if !yield(p.T, &p.Histogram) {
					return
				}
			}
		}
	}
}

// count returns an upper bound of the number of points in values.
func (c *cursor) count() int { return bytes.Count(c.b, []byte{'['}) }

// nextPoint reads point i of a piece of values. more is false at its end.
func (c *cursor) nextPoint(i int) (p Point, more bool, wrong string) {
	if i > 0 && c.i < len(c.b) && c.b[c.i] == ',' {
		if p, n := c.plainPoint(c.b[c.i+1:]); n > 0 {
			c.i += 1 + n
			return p, true, ""
		}
	}
	if more, wrong = c.separator(i); more {
		p, wrong = c.point()
	}
	return p, more, wrong
}

// nextHistogram reads point i of a piece of histograms into p, whose memory it reuses. more
// is false at the end of the piece.
func (c *cursor) nextHistogram(i int, p *HistogramPoint) (more bool, wrong string) {
	if more, wrong = c.separator(i); !more {
		return false, wrong
	}
	if p.T, wrong = c.pointTime(); wrong == "" {
		wrong = c.histogram(&p.Histogram)
	}
	if wrong == "" {
		wrong = c.expect(']')
	}
	return true, wrong
}

// separator reads the bytes before point i of a piece. more is false at its end.
func (c *cursor) separator(i int) (more bool, wrong string) {
	if c.space(); c.i == len(c.b) {
		return false, ""
	}
	if i > 0 {
		wrong = c.expect(',')
	}
	return wrong == "", wrong
}
