package promjson

import (
	"encoding/binary"
	"io"
	"math/bits"
	"slices"
	"strconv"
)

// Response is a decoded response to a query or a range query. The caller owns it.
type Response struct {
	Envelope
	// Series holds the series of a matrix, or the samples of a vector as series with
	// one value or one histogram each.
	Series []Series
	Scalar Point       // The result if ResultType is "scalar".
	String StringPoint // The result if ResultType is "string".
}

// Series is one series of a matrix, or one sample of a vector.
type Series struct {
	Labels     []Label // Sorted by name.
	Values     []Point
	Histograms []HistogramPoint
}

// HistogramPoint is one histogram sample. T is in milliseconds since the epoch.
type HistogramPoint struct {
	T int64
	Histogram
}

// Histogram is a native histogram as the HTTP API returns it: with the buckets
// expanded, without schema and spans.
type Histogram struct {
	Count, Sum float64
	Buckets    []Bucket
}

// StringPoint is the result of a string query. T is in milliseconds since the epoch.
type StringPoint struct {
	T int64
	S string
}

// Decode reads and decodes a whole response to a query. Options bound the buffer and the strings of
// the Envelope, but not the memory of the decoded series. If the status of the response is
// not "success", Decode returns an *APIError and a Response with the Envelope. With any
// other error the Response is nil or incomplete.
func Decode(r io.Reader, o Options) (*Response, error) {
	s := NewScanner(r, o)
	a := &Response{}
	for s.Next() {
		series, err := decodeSeries(s)
		if err != nil {
			return nil, err
		}
		a.Series = append(a.Series, series)
	}
	if s.Err() != nil {
		return nil, s.Err()
	}
	a.Envelope = s.envelope
	if a.Status != "success" {
		return a, &APIError{a.Status, a.ErrorType, a.Error}
	}
	if err := s.isOfQuery(); err != nil {
		return nil, err
	}
	return a, a.decodeResult(s.result)
}

func decodeSeries(s *Scanner) (series Series, err error) {
	if series.Labels, err = DecodeLabels(nil, s.Metric()); err != nil {
		return series, err
	}
	for p := s.NextValues(); p != nil; p = s.NextValues() {
		if series.Values, err = DecodePoints(series.Values, p); err != nil {
			return series, s.locate(p, err)
		}
	}
	for p := s.NextHistograms(); p != nil; p = s.NextHistograms() {
		if series.Histograms, err = DecodeHistograms(series.Histograms, p); err != nil {
			return series, s.locate(p, err)
		}
	}
	return series, s.Err()
}

// decodeResult decodes the result of a scalar or string query into a.
func (a *Response) decodeResult(raw []byte) error {
	switch a.ResultType {
	case "scalar":
		points, err := DecodePoints(nil, raw)
		if err == nil && len(points) != 1 {
			err = (&cursor{b: raw}).error("expected one scalar")
		}
		if err == nil {
			a.Scalar = points[0]
		}
		return err
	case "string":
		c := cursor{b: raw}
		t, wrong := c.pointTime()
		if wrong == "" {
			var value []byte
			value, wrong = c.unescaped()
			a.String = StringPoint{t, string(value)}
		}
		if wrong == "" {
			wrong = c.expect(']')
		}
		if wrong != "" {
			return c.error(wrong)
		}
	}
	return nil
}

// DecodePoints appends the points of a piece of values, [t,"v"],[t,"v"], to dst.
// Errors are *Error with an offset within piece; dst then holds the points before this offset.
func DecodePoints(dst []Point, piece []byte) ([]Point, error) {
	c := cursor{b: piece}
	dst = slices.Grow(dst, c.count())
	for i := 0; ; i++ {
		p, more, wrong := c.nextPoint(i)
		if wrong != "" {
			return dst, c.error(wrong)
		}
		if !more {
			return dst, nil
		}
		dst = append(dst, p)
	}
}

// DecodeHistograms appends the points of a piece of histograms, [t,{...}],[t,{...}],
// to dst. Errors are *Error with an offset within piece; dst then holds the points
// before this offset.
func DecodeHistograms(dst []HistogramPoint, piece []byte) ([]HistogramPoint, error) {
	c := cursor{b: piece}
	for i := 0; ; i++ {
		var p HistogramPoint
		more, wrong := c.nextHistogram(i, &p)
		if wrong != "" {
			return dst, c.error(wrong)
		}
		if !more {
			return dst, nil
		}
		dst = append(dst, p)
	}
}

// pointTime reads the start of a point, [t, and returns t in milliseconds.
func (c *cursor) pointTime() (ms int64, wrong string) {
	if wrong = c.expect('['); wrong != "" {
		return 0, wrong
	}
	c.space()
	ms, n, wrong := parseTime(c.b[c.i:])
	c.i += n
	if wrong == "" {
		wrong = c.expect(',')
	}
	return ms, wrong
}

func (c *cursor) point() (p Point, wrong string) {
	if p, n := c.plainPoint(c.b[c.i:]); n > 0 {
		c.i += n
		return p, ""
	}
	if p.T, wrong = c.pointTime(); wrong != "" {
		return p, wrong
	}
	if c.i < len(c.b) && c.b[c.i] == '"' {
		if v, n := parseShort(c.b[c.i+1:]); n > 0 && c.i+n+2 < len(c.b) && c.b[c.i+n+2] == ']' {
			c.i += n + 3
			p.F = v
			return p, ""
		}
	}
	if p.F, wrong = c.float(); wrong != "" {
		return p, wrong
	}
	return p, c.expect(']')
}

// float reads a float in quotes.
func (c *cursor) float() (v float64, wrong string) {
	digits, wrong := c.unescaped()
	if wrong != "" {
		return 0, wrong
	}
	v, err := strconv.ParseFloat(string(digits), 64)
	if err != nil {
		return 0, "expected a float in quotes"
	}
	return v, ""
}

// histogram reads a histogram object into h, whose memory it reuses.
func (c *cursor) histogram(h *Histogram) (wrong string) {
	*h = Histogram{Buckets: h.Buckets[:0]}
	if wrong = c.expect('{'); wrong != "" {
		return wrong
	}
	for n := 0; ; n++ {
		more, wrong := c.next(n, '}')
		if !more || wrong != "" {
			return wrong
		}
		name, wrong := c.unescaped()
		if wrong == "" {
			wrong = c.expect(':')
		}
		if wrong != "" {
			return wrong
		}
		switch string(name) {
		case "count":
			h.Count, wrong = c.float()
		case "sum":
			h.Sum, wrong = c.float()
		case "buckets":
			h.Buckets, wrong = c.buckets(h.Buckets[:0])
		default:
			wrong = c.skip()
		}
		if wrong != "" {
			return wrong
		}
	}
}

// buckets reads an array of buckets into list, which is empty.
func (c *cursor) buckets(list []Bucket) ([]Bucket, string) {
	if wrong := c.expect('['); wrong != "" {
		return list, wrong
	}
	for {
		more, wrong := c.next(len(list), ']')
		if !more || wrong != "" {
			return list, wrong
		}
		b, wrong := c.bucket()
		if wrong != "" {
			return list, wrong
		}
		list = append(list, b)
	}
}

func (c *cursor) bucket() (b Bucket, wrong string) {
	if wrong = c.expect('['); wrong != "" {
		return b, wrong
	}
	digit := c.space() - '0'
	if digit > Closed {
		return b, "expected the number of a bucket's boundaries"
	}
	c.i++
	b.Boundaries = int(digit)
	for _, v := range [...]*float64{&b.Lower, &b.Upper, &b.Count} {
		if wrong = c.expect(','); wrong != "" {
			return b, wrong
		}
		if *v, wrong = c.float(); wrong != "" {
			return b, wrong
		}
	}
	return b, c.expect(']')
}

// powersOfTen holds the powers of ten, from 1, that a float64 represents exactly.
var powersOfTen = [...]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
	1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22}

// parseShort parses a float without an exponent, which ends at a quote, and returns
// its value and length. It returns length 0 for floats that need strconv. It divides the
// digits by a power of ten: if float64 represents both exactly, this one division is
// rounded correctly.
func parseShort(b []byte) (v float64, n int) {
	negative := len(b) > 0 && b[0] == '-'
	if negative {
		n++
	}
	digits, first, point := uint64(0), n, -1
	for ; n < len(b) && n < 18; n++ {
		if d := b[n] - '0'; d <= 9 {
			digits = digits*10 + uint64(d)
		} else if b[n] == '.' && point < 0 && n > first {
			point = n
		} else {
			break
		}
	}
	if n == len(b) || b[n] != '"' || n == first || point == n-1 || digits > maxExact {
		return 0, 0
	}
	v = float64(digits)
	if point >= 0 {
		v /= powersOfTen[n-point-1]
	}
	if negative {
		v = -v
	}
	return v, n
}

// plainPointBuf is the number of bytes that plainPoint needs, even for a shorter point.
const plainPointBuf = 48

// plainPoint reads a point in the usual form of Prometheus, [1700000000,"12.5"], and
// returns its length. It returns length 0 for points that need the slower functions: points
// in another encoding or with more digits than a float64 holds, and invalid ones.
func (c *cursor) plainPoint(b []byte) (p Point, n int) {
	if len(b) < plainPointBuf {
		return p, 0
	}
	in := (*[plainPointBuf]byte)(b)
	if in[0] != '[' || in[11] != ',' || in[12] != '"' {
		return p, 0
	}
	high, low := uint32(binary.LittleEndian.Uint16(in[1:]))+1, bits.ReverseBytes64(binary.LittleEndian.Uint64(in[3:]))
	if high != c.times.high || low != c.times.low {
		seconds, digits := leadingDigits(binary.LittleEndian.Uint64(in[1:]))
		d8, d9 := uint64(in[9]-'0'), uint64(in[10]-'0')
		if digits != 8 || d8 > 9 || d9 > 9 {
			return p, 0
		}
		c.times.read(high, low, int64(seconds*100+d8*10+d9)*1000)
	}
	p.T = c.times.ms
	c.times.predict()
	i := 13
	if in[13] == '-' {
		i++
	}
	all, digits := leadingDigits(binary.LittleEndian.Uint64(in[i&15:]))
	if digits == 0 {
		return p, 0
	}
	i += digits
	if digits == 8 {
		more, n := leadingDigits(binary.LittleEndian.Uint64(in[i&31:]))
		all, digits, i = all*wholePowers[n]+more, digits+n, i+n
	}
	fraction := 0
	if in[i] == '.' {
		i++
		part, n := leadingDigits(binary.LittleEndian.Uint64(in[i&31:]))
		all, fraction, i = all*wholePowers[n]+part, n, i+n
		if n == 8 {
			part, n = leadingDigits(binary.LittleEndian.Uint64(in[i&63:]))
			all, fraction, i = all*wholePowers[n]+part, 8+n, i+n
		}
		if fraction == 0 {
			return p, 0
		}
	}
	if digits+fraction > 18 || all > maxExact || in[i] != '"' || in[i+1] != ']' {
		return p, 0
	}
	p.F = float64(all)
	if fraction > 0 {
		p.F /= powersOfTen[fraction]
	}
	if in[13] == '-' {
		p.F = -p.F
	}
	return p, i + 2
}

// timePrediction is the text of the timestamp that is expected next in a series: its points usually have a constant
// step, and to compare a text costs less than to parse it. Timestamps are whole seconds of ten digits.
type timePrediction struct {
	high uint32 // The first two characters, little-endian, plus one; 0 if nothing is expected.
	low  uint64 // The other eight characters, big-endian, so that a greater number is a later time.
	ms   int64  // The same timestamp in milliseconds.

	last, step uint64 // The eight characters of the last read timestamp, and the eight digits of the step, a byte each.
	lastMS     int64
	stepMS     int64 // 0 until two timestamps are read.
}

// read sets the timestamp of a point that was not expected, and the step from the point before it.
func (t *timePrediction) read(high uint32, low uint64, ms int64) {
	t.stepMS = 0
	if step := ms - t.lastMS; t.last != 0 && step > 0 && step < 1e8*1000 {
		t.step, t.stepMS = addDigits(low-zeroDigits, 0x0909090909090909-(t.last-zeroDigits)+1), step
	}
	t.high, t.low, t.ms = high, low, ms
}

// predict sets the next expected timestamp, one step after the current one. Nothing is expected if the step is not
// known, or if its sum with the last eight digits has more than eight.
func (t *timePrediction) predict() {
	t.last, t.lastMS = t.low, t.ms
	t.low = addDigits(t.low-zeroDigits, t.step) + zeroDigits
	t.ms += t.stepMS
	if t.stepMS == 0 || t.low < t.last {
		t.high = 0
	}
}

// addDigits adds two numbers of eight decimal digits, a byte each, modulo 1e8. The last digit of y may be ten.
func addDigits(x, y uint64) uint64 {
	const six = 0xf6f6f6f6f6f6f6f6 // makes a byte of ten or more overflow into the next one
	sum := x + y + six
	return sum - sum>>7&0x0101010101010101*0xf6 // takes it back from the bytes that did not overflow
}

// wholePowers holds the powers of ten by which a number is multiplied to append up to eight digits.
var wholePowers = [...]uint64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8}

// leadingDigits returns the value and the number of the decimal digits at the beginning of eight bytes, which w holds
// little-endian.
func leadingDigits(w uint64) (value uint64, n int) {
	w ^= zeroDigits
	other := (w + 0x7676767676767676 | w) & 0x8080808080808080 // the highest bit of each byte that is above 9
	n = bits.TrailingZeros64(other) / 8
	w <<= uint(64-8*n) & 127 // leading zeros for the missing digits
	w = w * (1 + 10<<8) >> 8 & 0x00ff00ff00ff00ff
	w = w * (1 + 100<<16) >> 16 & 0x0000ffff0000ffff
	return w * (1 + 10000<<32) >> 32, n
}
