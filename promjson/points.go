package promjson

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"
)

// Point is one float sample: T in milliseconds since the epoch, and its value.
type Point struct {
	T int64
	F float64
}

// PointLike is any struct with the fields of Point, so that slices of another
// package's points (promql.FPoint, say) are encoded as they are.
type PointLike interface {
	~struct {
		T int64
		F float64
	}
}

// MaxPointLen is the room that AppendPoints wants for each point: where less is
// left in dst it reallocates, even if the text itself would fit.
const MaxPointLen = 64

const (
	// pieceLen is for how many points room is made at once.
	growPoints = 64

	// pointGap is what stands between a value and the next time. Every time is
	// written with the gap before it and the quote of its value behind it.
	pointGap = `"],[`
)

// AppendPoints appends points as [t,"v"],[t,"v"] with commas between them, that
// is the inside of a "values" array. Times on the grid are copied, others are
// written; g may be nil. A long series can be encoded piece by piece so that
// the caller can write dst out in between: he puts the comma between pieces.
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

// appendPiece appends points behind another point whose value is still open.
// There is room for all of them, and next is the grid's index expected first.
func appendPiece[P PointLike](dst []byte, g *Steps, next int, points []P) ([]byte, int) {
	n := len(dst)
	dst = dst[:cap(dst)]
	var stamps []encodedStep
	if g != nil {
		stamps = g.stamps
	}
	known, knownAt, knownLen := uint64(0), 0, 0 // The last value that was computed; 0 is none.
	for i := range points {
		p := Point(points[i])
		if uint(next) < uint(len(stamps)) && stamps[next].t == p.T {
			s := &stamps[next]
			b := (*[24]byte)(dst[n : n+24])
			binary.LittleEndian.PutUint64(b[0:], s.value[0])
			binary.LittleEndian.PutUint64(b[8:], s.value[1])
			binary.LittleEndian.PutUint64(b[16:], s.value[2])
			n += int(s.value[2] >> 56)
			next++
		} else {
			n = len(appendPointStart(dst[:n], p.T))
			next = g.after(p.T)
			if g != nil {
				stamps = g.stamps
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
		} else if raw == known {
			*b = *(*[floatBuf]byte)(dst[knownAt : knownAt+floatBuf])
			n += knownLen
			continue
		} else {
			k = putFraction(b, raw)
		}
		if k == 0 {
			k = len(appendStrconv(dst[:n], p.F)) - n
		}
		known, knownAt, knownLen = raw, n, k
		n += k
	}
	return dst[:n], next
}

func appendPointStart(dst []byte, ms int64) []byte {
	dst = append(dst, pointGap...)
	dst = AppendTimestamp(dst, ms)
	return append(dst, ',', '"')
}

// Steps holds what the series of one range query share: the times start,
// start+step, ... of its steps, as text. A caller keeps one Steps through a
// whole matrix. The text is made when a time is first met, so a grid costs
// nothing by itself. The zero Steps has no times. Steps is not safe for
// concurrent use.
type Steps struct {
	start, step int64
	count       int
	stamps      []encodedStep // The times made so far, from the start on.
}

// stamp is a time as it stands between two values: "],[1700000000,"
// The last byte of the text is its length.
type encodedStep struct {
	t     int64
	value [3]uint64
}

// gridMax bounds a grid's memory at 512 KiB. Prometheus answers a query with
// 11,000 steps at most; later times are written one by one.
const maxSteps = 1 << 14

// NewSteps returns the grid of count times from startMS in steps of stepMS.
func NewSteps(startMS, stepMS int64, count int) *Steps {
	g := new(Steps)
	g.Reset(startMS, stepMS, count)
	return g
}

// Reset gives g other times and keeps its memory.
func (g *Steps) Reset(startMS, stepMS int64, count int) {
	if stepMS <= 0 {
		count = min(count, 1)
	}
	*g = Steps{start: startMS, step: stepMS, count: min(count, maxSteps), stamps: g.stamps[:0]}
}

// after returns the index of the time that follows ms, for which the grid then
// has the text, or -1 where the grid does not know it.
func (g *Steps) after(ms int64) int {
	if g == nil || g.step <= 0 || ms < g.start || ms-g.start < 0 {
		return -1
	}
	steps := (ms - g.start) / g.step
	if steps >= int64(g.count)-1 || g.start+steps*g.step != ms {
		return -1
	}
	next := int(steps) + 1
	for len(g.stamps) <= next {
		s, ok := newEncodedStep(g.start + int64(len(g.stamps))*g.step)
		if !ok {
			return -1
		}
		g.stamps = append(g.stamps, s)
	}
	return next
}

// makeStamp reports false where the text does not fit.
func newEncodedStep(ms int64) (encodedStep, bool) {
	var room [40]byte
	text := appendPointStart(room[:0], ms)
	if len(text) > 23 {
		return encodedStep{}, false
	}
	clear(room[len(text):])
	room[23] = byte(len(text))
	s := encodedStep{t: ms}
	for i := range s.value {
		s.value[i] = binary.LittleEndian.Uint64(room[8*i:])
	}
	return s, true
}

// AppendScalarResult appends the result of a scalar query, [t,"v"]. Prometheus
// writes it with other rules than samples: the fraction of the time has no
// trailing zeros and the value never has an exponent.
func AppendScalarResult(dst []byte, ms int64, v float64) []byte {
	dst = appendResultTime(dst, ms)
	dst = append(dst, '"')
	dst = strconv.AppendFloat(dst, v, 'f', -1, 64)
	return append(dst, '"', ']')
}

// AppendStringResult appends the result of a string query, [t,"s"]. Beyond what
// holds for scalars, the text differs from AppendString's by \b and \f.
func AppendStringResult(dst []byte, ms int64, s string) []byte {
	dst = appendResultTime(dst, ms)
	dst = appendText(dst, s, true)
	return append(dst, ']')
}

func appendResultTime(dst []byte, ms int64) []byte {
	dst = append(dst, '[')
	dst = strconv.AppendFloat(dst, float64(ms)/1000, 'f', -1, 64)
	return append(dst, ',')
}

// Which ends belong to a bucket, as the first element of a bucket's array says.
const (
	LeftOpen  = 0 // (lower, upper]
	RightOpen = 1 // [lower, upper)
	BothOpen  = 2 // (lower, upper)
	Closed    = 3 // [lower, upper]
)

// Boundaries is the number for a bucket whose ends belong to it or not.
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

// Bucket is one bucket of a native histogram.
type Bucket struct {
	Boundaries          int // LeftOpen, RightOpen, BothOpen or Closed
	Lower, Upper, Count float64
}

// AppendHistogram appends a native histogram as Prometheus writes it:
//
//	{"count":"5","sum":"18.4","buckets":[[3,"-0.001","0.001","2"],[0,"1","2","3"]]}
//
// Buckets with a count of 0 are left out, and so is "buckets" without any.
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

// AppendHistogramStart begins a histogram for callers that have an iterator and
// no slice of buckets: AppendBucket and AppendHistogramEnd must follow.
func AppendHistogramStart(dst []byte, count, sum float64) []byte {
	dst = append(dst, `{"count":"`...)
	dst = AppendFloat(dst, count)
	dst = append(dst, `","sum":"`...)
	dst = AppendFloat(dst, sum)
	return append(dst, '"')
}

// AppendBucket appends one bucket; first says that it is the histogram's first.
// Prometheus leaves out buckets with a count of 0, so the caller must too.
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

// AppendHistogramEnd ends a histogram; any says that it has had a bucket.
func AppendHistogramEnd(dst []byte, any bool) []byte {
	if any {
		dst = append(dst, ']')
	}
	return append(dst, '}')
}
