package promjson

import (
	"encoding/binary"
	"math"
	"math/bits"
	"strconv"
)

//go:generate go run ./internal/gen

// A float m*2^e with m of 53 bits lies in the middle of the interval of all
// numbers that read back as it, which reaches half a unit (2^e) to each side.
// Scaled by the power of ten that brings the unit to 0.1 or above and below 1,
// the interval holds at most one integer, and at least one multiple of 0.1. So
// the shortest decimal is that integer, of 15 or 16 digits with zeros to trim,
// or else the multiple of 0.1 that is nearest to the float.
//
// The scaled float is computed rounded down, with an integer part of 64 bits
// and a fraction of 64 bits that is less than doubt too small. Comparisons
// closer than that are left to strconv, so correctness rests on no proof about
// the last bit: what is decided here is decided with a margin. Only ties and
// exact ends of an interval come that close.
type scale struct {
	hi, lo uint64 // unit/10^exp as a 128-bit fraction
	exp    int
}

const (
	fractionBits = 52
	exponentMask = 1<<11 - 1
	hiddenBit    = 1 << fractionBits
	maxExact     = 1 << 53 // Every integer below is a float.
	margin       = 64

	// floatRoom is what putFloat may write, the longest float being 25 bytes.
	floatBuf  = 32
	digitsBuf = floatBuf - 1

	zeroDigits = 0x3030303030303030 // "00000000"
)

// AppendFloat appends v, without quotes, as Prometheus writes sample values:
// the shortest decimal that reads back as v, in the form 12.5, or in the form
// 1e-07 where |v| is below 1e-6 (and not 0) or at least 1e21. Special values
// are NaN, +Inf, -Inf and -0.
func AppendFloat(dst []byte, v float64) []byte {
	n := len(dst)
	if cap(dst)-n >= floatBuf {
		if k := putFloat((*[floatBuf]byte)(dst[n:n+floatBuf]), v); k > 0 {
			return dst[:n+k]
		}
		return appendStrconv(dst, v)
	}
	var b [floatBuf]byte
	if k := putFloat(&b, v); k > 0 {
		return append(dst, b[:k]...)
	}
	return appendStrconv(dst, v)
}

// appendSlow is what every other path must agree with.
func appendStrconv(dst []byte, v float64) []byte {
	abs := math.Abs(v)
	format := byte('f')
	if abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		format = 'e'
	}
	return strconv.AppendFloat(dst, v, format, -1, 64)
}

// putFloat writes v and returns how many bytes it takes, or 0 where v is for
// appendSlow. What b holds beyond them is undefined.
func putFloat(b *[floatBuf]byte, v float64) int {
	raw := math.Float64bits(v)
	if i := int64(math.Abs(v)); float64(i) == math.Abs(v) && i < maxExact {
		sign := int(raw >> 63)
		b[0] = '-'
		return putInt((*[digitsBuf]byte)(b[sign:sign+digitsBuf]), uint64(i)) + sign
	}
	return putFraction(b, raw)
}

// putFraction is putFloat for the bits of what is not an integer below maxExact.
// Its steps are functions that are small enough for the compiler to inline.
func putFraction(full *[floatBuf]byte, raw uint64) int {
	index := raw>>fractionBits&exponentMask - minExponent
	if index >= uint64(len(scales)) {
		return 0
	}
	s := &scales[index]
	power := powerOfTwo(raw)
	q, g := s.times(raw)
	// Below a power of two the floats are half as far apart. Half the interval is
	// enough for such, or else they are left to strconv.
	q, digit, inside, sure := shortest(q, g, s.hi>>(1+power))
	if !sure || power > inside {
		return 0
	}
	q, digit, point := sixteenDigits(q, digit, s.exp)
	high, low := q/1e8, q%1e8
	w0 := uint64(fourDigits(high/10000)) | uint64(fourDigits(high%10000))<<32
	w1 := uint64(fourDigits(low/10000)) | uint64(fourDigits(low%10000))<<32
	n := significant(w0, w1, digit)
	full[0] = '-'
	sign := int(raw >> 63)
	b := (*[digitsBuf]byte)(full[sign : sign+digitsBuf])
	if uint(point-1) >= 15 || n <= point {
		return putFar(b, w0, w1, digit, n, point) + sign
	}
	b[17] = byte('0' + digit)
	putNear(b, w0, w1, point)
	return n + 1 + sign
}

// powerOfTwo returns 1 for a power of two and 0 for others.
func powerOfTwo(raw uint64) uint64 {
	return (raw&(hiddenBit-1) - 1) >> 63
}

// times returns the scaled float: its integer part and its fraction.
func (s *scale) times(raw uint64) (q, g uint64) {
	mantissa := raw&(hiddenBit-1) | hiddenBit
	q, g = bits.Mul64(mantissa, s.hi)
	g2, _ := bits.Mul64(mantissa, s.lo)
	g, carry := bits.Add64(g, g2, 0)
	return q + carry, g
}

// shortest returns the shortest decimal in the interval that reaches limit to
// both sides of q.g: the nearer integer and digit 0 if that is inside, which the
// third result says by 1, or else q and the digit behind the point. It is not
// sure of it where that is too close to call. Instead of branches, which random
// digits would mispredict, it has masks.
func shortest(q, g, limit uint64) (integer, digit, inside uint64, sure bool) {
	up := g >> 63 // The nearer integer is q+1 where the fraction is a half or more.
	distance := (g ^ -up) + up
	inside = (distance - limit) >> 63
	digit, f := bits.Mul64(g, 10)
	sure = distance-(limit-margin) > 2*margin && (f-(1<<63-16*margin) >= 32*margin || inside == 1)
	return q + up&inside, (digit + f>>63) & (inside - 1), inside, sure
}

// sixteen makes 16 digits of q, which has 15 or 16, and says where the point is,
// counted from the first.
func sixteenDigits(q, digit uint64, exp int) (uint64, uint64, int) {
	short := (q - 1e15) >> 63
	return q + (9*q+digit)&-short, digit & (short - 1), 16 + exp - int(short)
}

// significant counts the digits in w0, w1 and digit without zeros at the end.
func significant(w0, w1, digit uint64) int {
	n := 8 + (bits.Len64(w1^zeroDigits)+7)/8
	if n == 8 {
		n = (bits.Len64(w0^zeroDigits) + 7) / 8
	}
	if digit != 0 {
		n = 17
	}
	return n
}

// putNear writes the digits of w0 and w1 with a point behind one of the first 15:
// one place too far to the right, and then once more the word with the point.
func putNear(b *[digitsBuf]byte, w0, w1 uint64, point int) {
	binary.LittleEndian.PutUint64(b[9:], w1)
	at := uint64(1) << (uint(point) * 8 & 63)
	if point < 8 {
		binary.LittleEndian.PutUint64(b[1:], w0)
		binary.LittleEndian.PutUint64(b[0:], w0&(at-1)|'.'*at|w0&-at<<8)
	} else {
		binary.LittleEndian.PutUint64(b[0:], w0)
		binary.LittleEndian.PutUint64(b[8:], w1&(at-1)|'.'*at|w1&-at<<8)
	}
}

// putFar writes the n digits of w0, w1 and d where the point is before the
// first, after the sixteenth, or where the number has an exponent.
func putFar(b *[digitsBuf]byte, w0, w1, digit uint64, n, point int) int {
	d := byte('0' + digit)
	switch {
	case point > 21 || point < -5:
		binary.LittleEndian.PutUint64(b[1:], w0)
		binary.LittleEndian.PutUint64(b[9:], w1)
		b[17] = d
		b[0], b[1] = b[1], '.'
		if n > 1 {
			n++
		}
		b[n] = 'e'
		b[n+1] = '+'
		e := point - 1
		if e < 0 {
			b[n+1] = '-'
			e = -e
		}
		b[n+2] = byte('0' + e/10)
		b[n+3] = byte('0' + e%10)
		return n + 4
	case point <= 0:
		copy(b[:], "0.00000")
		o := 2 - point
		binary.LittleEndian.PutUint64(b[o:], w0)
		binary.LittleEndian.PutUint64(b[o+8:], w1)
		b[o+16] = d
		return o + n
	}
	binary.LittleEndian.PutUint64(b[0:], w0)
	binary.LittleEndian.PutUint64(b[8:], w1)
	if n > point {
		b[16], b[17] = '.', d
		return 18
	}
	binary.LittleEndian.PutUint64(b[16:], zeroDigits)
	b[16] = d
	return point
}

// putInt writes i, which is below 2^53.
func putInt(b *[digitsBuf]byte, i uint64) int {
	if i < 10000 {
		w := fourDigits(i)
		skip := bits.TrailingZeros32((w^0x30303030)|1<<24) &^ 7
		binary.LittleEndian.PutUint32(b[0:], w>>(skip&31))
		return 4 - skip/8
	}
	w0, w1 := eightDigits(i/1e8), eightDigits(i%1e8)
	if i < 1e8 {
		skip := bits.TrailingZeros64(w1^zeroDigits) &^ 7
		binary.LittleEndian.PutUint64(b[0:], w1>>(skip&63))
		return 8 - skip/8
	}
	skip := bits.TrailingZeros64(w0^zeroDigits) &^ 7
	binary.LittleEndian.PutUint64(b[0:], w0>>(skip&63))
	n := 8 - skip/8
	binary.LittleEndian.PutUint64(b[n:], w1)
	return n + 8
}

// eightDigits returns the digits of x, which is below 1e8, the first of them in
// the lowest byte.
func eightDigits(x uint64) uint64 {
	return uint64(fourDigits(x/10000)) | uint64(fourDigits(x%10000))<<32
}

func fourDigits(x uint64) uint32 {
	s := digits[4*x : 4*x+4]
	return uint32(s[0]) | uint32(s[1])<<8 | uint32(s[2])<<16 | uint32(s[3])<<24
}
