package promjson

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
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
	pieceLen = 64

	// pointGap is what stands between a value and the next time. Every time is
	// written with the gap before it and the quote of its value behind it.
	pointGap = `"],[`
)

// AppendPoints appends points as [t,"v"],[t,"v"] with commas between them, that
// is the inside of a "values" array. Times on the grid are copied, others are
// written; g may be nil. A long series can be encoded piece by piece so that
// the caller can write dst out in between: he puts the comma between pieces.
func AppendPoints[P PointLike](dst []byte, g *Grid, points []P) []byte {
	if len(points) == 0 {
		return dst
	}
	dst = slices.Grow(dst, MaxPointLen*min(len(points), pieceLen))
	p := Point(points[0])
	dst = append(dst, '[')
	dst = AppendTimestamp(dst, p.T)
	dst = append(dst, ',', '"')
	dst = AppendFloat(dst, p.F)
	next := g.after(p.T)
	for points = points[1:]; len(points) > 0; {
		piece := points[:min(len(points), pieceLen)]
		points = points[len(piece):]
		dst = slices.Grow(dst, MaxPointLen*(len(piece)+1))
		dst, next = appendPiece(dst, g, next, piece)
	}
	return append(dst, '"', ']')
}

// appendPiece appends points behind another point whose value is still open.
// There is room for all of them, and next is the grid's index expected first.
func appendPiece[P PointLike](dst []byte, g *Grid, next int, points []P) ([]byte, int) {
	n := len(dst)
	dst = dst[:cap(dst)]
	var stamps []stamp
	if g != nil {
		stamps = g.stamps
	}
	known, knownAt, knownLen := uint64(0), 0, 0 // The last value that was computed; 0 is none.
	for i := range points {
		p := Point(points[i])
		if uint(next) < uint(len(stamps)) && stamps[next].t == p.T {
			s := &stamps[next]
			b := (*[24]byte)(dst[n : n+24])
			binary.LittleEndian.PutUint64(b[0:], s.text[0])
			binary.LittleEndian.PutUint64(b[8:], s.text[1])
			binary.LittleEndian.PutUint64(b[16:], s.text[2])
			n += int(s.text[2] >> 56)
			next++
		} else {
			n = len(appendStamp(dst[:n], p.T))
			next = g.after(p.T)
			if g != nil {
				stamps = g.stamps
			}
		}

		raw := math.Float64bits(p.F)
		b := (*[floatRoom]byte)(dst[n : n+floatRoom])
		k := 0
		if whole := int64(p.F); math.Float64bits(float64(whole)) == raw {
			if uint64(whole) < 10000 {
				w := fourDigits(uint64(whole))
				skip := bits.TrailingZeros32(w^0x30303030|1<<24) &^ 7
				binary.LittleEndian.PutUint32(b[:], w>>(skip&31))
				n += 4 - skip/8
				continue
			}
			k = putFloat(b, p.F)
		} else if raw == known {
			*b = *(*[floatRoom]byte)(dst[knownAt : knownAt+floatRoom])
			n += knownLen
			continue
		} else {
			k = putFraction(b, p.F)
		}
		if k == 0 {
			k = len(appendSlow(dst[:n], p.F)) - n
		}
		known, knownAt, knownLen = raw, n, k
		n += k
	}
	return dst[:n], next
}

func appendStamp(dst []byte, ms int64) []byte {
	dst = append(dst, pointGap...)
	dst = AppendTimestamp(dst, ms)
	return append(dst, ',', '"')
}
