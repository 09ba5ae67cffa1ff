package promjson

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"
)

// Point is one float sample. T is in milliseconds since the epoch, F is the value.
type Point struct {
	T int64
	F float64
}

// PointLike is any struct with the fields of Point. It lets AppendPoints encode slices
// of another package's points, such as promql.FPoint, without conversion.
type PointLike interface {
	~struct {
		T int64
		F float64
	}
}

// MaxPointLen is the free capacity of dst, in bytes, that AppendPoints needs for each point.
// With less it reallocates dst, even if the encoded points would fit.
const MaxPointLen = 64

const (
	// growPoints is the number of points for which dst grows at once.
	growPoints = 64

	// pointGap is the text between a value and the next timestamp. Steps caches it
	// together with the timestamp, the comma and the opening quote of the value.
	pointGap = `"],[`
)

// AppendPoints appends points as [t,"v"],[t,"v"]: the elements of a "values" array,
// without its brackets. g, the steps of the query, has encoded timestamps, which
// AppendPoints copies; it encodes all others. g may be nil. A caller that appends a series
// in several calls must append the comma between them.
func AppendPoints[P PointLike](dst []byte, g *Steps, points []P) []byte {
	if len(points) == 0 {
		return dst
	}
	dst = slices.Grow(dst, MaxPointLen*min(len(points), growPoints))
	p := Point(points[0])
	dst = append(dst, '[')
	dst = AppendTimestamp(dst, p.T)
	dst = append(dst, ',', '"')
	dst = AppendFloat(dst, p.F)
	next := g.after(p.T)
	for points = points[1:]; len(points) > 0; {
		piece := points[:min(len(points), growPoints)]
		points = points[len(piece):]
		dst = slices.Grow(dst, MaxPointLen*(len(piece)+1))
		dst, next = appendPiece(dst, g, next, piece)
	}
	return append(dst, '"', ']')
}

// appendPiece appends points after another point whose value has no closing quote
// yet, and does not write the closing quote of the last value either. dst must have capacity
// for all points. next is the index in g of the first expected timestamp. It returns the index
// for the next call.
func appendPiece[P PointLike](dst []byte, g *Steps, next int, points []P) ([]byte, int) {
	n := len(dst)
	dst = dst[:cap(dst)]
	var encoded []encodedStep
	if g != nil {
		encoded = g.encoded
	}
	prev, prevAt, prevLen := uint64(0), 0, 0 // The last encoded value, its offset in dst and its length; 0: none.
	hundredths := true                       // All fractions so far are in hundredths: the next one may be, too.
	// The index in encoded of a point's expected timestamp, less the index of the point. It is the same for all
	// points on the steps, so that no point waits for the one before.
	ahead := next
	for i := range points {
		p := Point(points[i])
		if at := ahead + i; uint(at) < uint(len(encoded)) && encoded[at].t == p.T {
			s := &encoded[at]
			b := (*[24]byte)(dst[n : n+24])
			binary.LittleEndian.PutUint64(b[0:], s.value[0])
			binary.LittleEndian.PutUint64(b[8:], s.value[1])
			binary.LittleEndian.PutUint64(b[16:], s.value[2])
			n += int(s.value[2] >> 56)
		} else {
			n = len(appendPointStart(dst[:n], p.T))
			ahead = g.after(p.T) - i - 1
			if g != nil {
				encoded = g.encoded
			}
		}

		raw := math.Float64bits(p.F)
		b := (*[floatBuf]byte)(dst[n : n+floatBuf])
		k := 0
		if whole := int64(p.F); math.Float64bits(float64(whole)) == raw {
			if uint64(whole) < uint64(len(small)) {
				w := small[whole]
				binary.LittleEndian.PutUint32(b[:], w)
				n += int(w >> 24)
				continue
			}
			k = putFloat(b, p.F)
		} else if raw == prev {
			*b = *(*[floatBuf]byte)(dst[prevAt : prevAt+floatBuf])
			n += prevLen
			continue
		} else {
			if hundredths {
				k = putHundredths(b, p.F)
				hundredths = k > 0
			}
			if k == 0 {
				k = putFraction(b, raw)
			}
		}
		if k == 0 {
			k = len(appendStrconv(dst[:n], p.F)) - n
		}
		prev, prevAt, prevLen = raw, n, k
		n += k
	}
	return dst[:n], ahead + len(points)
}

func appendPointStart(dst []byte, ms int64) []byte {
	dst = append(dst, pointGap...)
	dst = AppendTimestamp(dst, ms)
	return append(dst, ',', '"')
}

// Steps caches the encoded timestamps of the steps of one range query: start,
// start+step, start+2*step and so on. The caller uses one Steps for all series of a
// matrix. A timestamp is encoded when a series first needs it, so creating Steps
// costs nothing. The zero Steps has no timestamps. Steps is not safe for concurrent
// use.
type Steps struct {
	start, step int64
	count       int
	encoded     []encodedStep // The timestamps encoded so far, from start on.
}

// encodedStep is a timestamp t and the encoded bytes from the closing quote of one value to the
// opening quote of the next value. value has these bytes, followed by zeros. The last byte of value
// has their number. For example, `"],[1700000000,"` has 16 bytes.
type encodedStep struct {
	t     int64
	value [3]uint64
}

// maxSteps bounds the memory of Steps at 512 KiB. It suffices for Prometheus, which rejects
// queries with more than 11,000 steps. Timestamps of later steps are encoded one by one.
const maxSteps = 1 << 14

// NewSteps returns the Steps of a range query with count steps, which starts at startMS and
// has a step of stepMS, both in milliseconds.
func NewSteps(startMS, stepMS int64, count int) *Steps {
	g := new(Steps)
	g.Reset(startMS, stepMS, count)
	return g
}

// Reset sets other steps, as NewSteps does, and reuses the memory of g.
func (g *Steps) Reset(startMS, stepMS int64, count int) {
	if stepMS <= 0 {
		count = min(count, 1)
	}
	*g = Steps{start: startMS, step: stepMS, count: min(count, maxSteps), encoded: g.encoded[:0]}
}

// after returns the index in g.encoded of the step that follows ms, after encoding it
// if necessary, or -1 if there is no such step.
func (g *Steps) after(ms int64) int {
	if g == nil || g.step <= 0 || ms < g.start || ms-g.start < 0 {
		return -1
	}
	steps := (ms - g.start) / g.step
	if steps >= int64(g.count)-1 || g.start+steps*g.step != ms {
		return -1
	}
	next := int(steps) + 1
	for len(g.encoded) <= next {
		s, ok := newEncodedStep(g.start + int64(len(g.encoded))*g.step)
		if !ok {
			return -1
		}
		g.encoded = append(g.encoded, s)
	}
	return next
}

// newEncodedStep encodes a timestamp. It returns false if the bytes do not fit.
func newEncodedStep(ms int64) (encodedStep, bool) {
	var buf [40]byte
	encoded := appendPointStart(buf[:0], ms)
	if len(encoded) > 23 {
		return encodedStep{}, false
	}
	clear(buf[len(encoded):])
	buf[23] = byte(len(encoded))
	s := encodedStep{t: ms}
	for i := range s.value {
		s.value[i] = binary.LittleEndian.Uint64(buf[8*i:])
	}
	return s, true
}

// AppendScalarResult appends the result of a scalar query, [t,"v"]; ms is the
// timestamp in milliseconds. Prometheus encodes it differently from samples: the
// fraction of the timestamp has no trailing zeros, and the value never has an
// exponent.
func AppendScalarResult(dst []byte, ms int64, v float64) []byte {
	dst = appendResultTime(dst, ms)
	dst = append(dst, '"')
	dst = strconv.AppendFloat(dst, v, 'f', -1, 64)
	return append(dst, '"', ']')
}

// AppendStringResult appends the result of a string query, [t,"s"]; ms is the
// timestamp in milliseconds, encoded as in AppendScalarResult. The string is encoded as
// by AppendString, except that backspace and form feed are \b and \f.
func AppendStringResult(dst []byte, ms int64, s string) []byte {
	dst = appendResultTime(dst, ms)
	dst = appendString(dst, s, true)
	return append(dst, ']')
}

func appendResultTime(dst []byte, ms int64) []byte {
	dst = append(dst, '[')
	dst = strconv.AppendFloat(dst, float64(ms)/1000, 'f', -1, 64)
	return append(dst, ',')
}

// Boundary rules of a bucket: the first element of its JSON array.
const (
	LeftOpen  = 0 // (lower, upper]
	RightOpen = 1 // [lower, upper)
	BothOpen  = 2 // (lower, upper)
	Closed    = 3 // [lower, upper]
)

// Boundaries returns the boundary rule for a bucket that includes its bounds or not.
func Boundaries(lowerInclusive, upperInclusive bool) int {
	switch {
	case lowerInclusive && upperInclusive:
		return Closed
	case lowerInclusive:
		return RightOpen
	case upperInclusive:
		return LeftOpen
	}
	return BothOpen
}

// Bucket is one bucket of a native histogram with its bounds and its count, which is
// not cumulative.
type Bucket struct {
	Boundaries          int // LeftOpen, RightOpen, BothOpen or Closed
	Lower, Upper, Count float64
}

// AppendHistogram appends a native histogram as Prometheus writes it:
//
//	{"count":"5","sum":"18.4","buckets":[[3,"-0.001","0.001","2"],[0,"1","2","3"]]}
//
// It omits buckets with a count of 0, and the member "buckets" if there are no other buckets.
func AppendHistogram(dst []byte, count, sum float64, buckets []Bucket) []byte {
	dst = AppendHistogramStart(dst, count, sum)
	written := false
	for i := range buckets {
		b := &buckets[i]
		if b.Count == 0 {
			continue
		}
		dst = AppendBucket(dst, !written, b.Boundaries, b.Lower, b.Upper, b.Count)
		written = true
	}
	return AppendHistogramEnd(dst, written)
}

// AppendHistogramStart begins a histogram, for callers that have an iterator instead
// of a slice of buckets. AppendBucket and AppendHistogramEnd must follow.
func AppendHistogramStart(dst []byte, count, sum float64) []byte {
	dst = append(dst, `{"count":"`...)
	dst = AppendFloat(dst, count)
	dst = append(dst, `","sum":"`...)
	dst = AppendFloat(dst, sum)
	return append(dst, '"')
}

// AppendBucket appends one bucket; first is true for the first of a histogram. The
// caller must omit buckets with a count of 0, as Prometheus does.
func AppendBucket(dst []byte, first bool, boundaries int, lower, upper, count float64) []byte {
	if first {
		dst = append(dst, `,"buckets":[[`...)
	} else {
		dst = append(dst, ',', '[')
	}
	dst = append(dst, byte('0'+boundaries), ',', '"')
	dst = AppendFloat(dst, lower)
	dst = append(dst, '"', ',', '"')
	dst = AppendFloat(dst, upper)
	dst = append(dst, '"', ',', '"')
	dst = AppendFloat(dst, count)
	return append(dst, '"', ']')
}

// AppendHistogramEnd ends a histogram. any must be true if AppendBucket was called for it.
func AppendHistogramEnd(dst []byte, any bool) []byte {
	if any {
		dst = append(dst, ']')
	}
	return append(dst, '}')
}
