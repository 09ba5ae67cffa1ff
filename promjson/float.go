package promjson

import (
	"encoding/binary"
	"math"
	"math/bits"
	"strconv"
)

//go:generate go run ./internal/gen

// scale holds the factor that converts floats with one binary exponent to decimals.
//
// A float m*2^e, whose m has 53 bits, is in the middle of the interval of all numbers
// that parse as this float. The interval extends half a unit (2^e) to each side. The
// factor is the power of ten that scales the unit into [0.1, 1). The scaled interval then
// holds at most one integer and at least one multiple of 0.1. If it holds an integer, the
// shortest decimal is this integer, which has 15 or 16 digits, without its trailing zeros.
// Otherwise the shortest decimal is the multiple of 0.1 that is nearest to the float.
//
// For example, 1.1 has the unit 2.2e-16, the factor 10^15 and the scaled interval
// 1100000000000000.09 ± 0.11. It holds an integer: the shortest decimal is 1.1. 0.1+0.2 has the
// unit 5.6e-17, the factor 10^16 and the scaled interval 3000000000000000.44 ± 0.28. It holds no
// integer: the shortest decimal is 0.30000000000000004.
//
// The scaled float is rounded down to an integer part of 64 bits and a fraction of 64
// bits. The error of the fraction is less than margin. If a comparison is decided by less
// than margin, strconv encodes the float instead, so correctness does not depend on a proof
// about the last bit. Only ties and exact ends of an interval are that close.
type scale struct {
	hi, lo uint64 // unit/10^exp as a 128-bit fraction
	exp    int
}

const (
	fractionBits = 52
	exponentMask = 1<<11 - 1
	hiddenBit    = 1 << fractionBits
	maxExact     = 1 << 53 // float64 represents every integer below exactly.
	margin       = 64

	// floatBuf is the number of bytes that putFloat may write; the longest float has 25.
	floatBuf  = 32
	digitsBuf = floatBuf - 1

	zeroDigits = 0x3030303030303030 // "00000000"
)

// AppendFloat appends v, without quotes, as Prometheus writes sample values: the
// shortest decimal that parses as v, in the form 12.5, or in the form 1e-07 if |v|
// is below 1e-6 (and not 0) or at least 1e21. Special values are NaN, +Inf, -Inf
// and -0.
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

// appendStrconv appends v with strconv. Every faster path must write the same bytes.
func appendStrconv(dst []byte, v float64) []byte {
	abs := math.Abs(v)
	format := byte('f')
	if abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		format = 'e'
	}
	return strconv.AppendFloat(dst, v, format, -1, 64)
}

// putFloat writes v to b and returns the number of bytes, or 0 if v needs
// appendStrconv. The bytes of b after the number are undefined.
func putFloat(b *[floatBuf]byte, v float64) int {
	raw := math.Float64bits(v)
	if i := int64(math.Abs(v)); float64(i) == math.Abs(v) && i < maxExact {
		sign := int(raw >> 63)
		b[0] = '-'
		return putInt((*[digitsBuf]byte)(b[sign:sign+digitsBuf]), uint64(i)) + sign
	}
	return putFraction(b, raw)
}

// putFraction is putFloat for the bits of a float that is not an integer below
// maxExact. Its steps are functions small enough for the compiler to inline.
func putFraction(full *[floatBuf]byte, raw uint64) int {
	index := raw>>fractionBits&exponentMask - minExponent
	if index >= uint64(len(scales)) {
		return 0
	}
	s := &scales[index]
	limit := s.hi >> 1
	// Below a power of two the distance between floats is half as large. So for a power of
	// two the nearer integer must be within half the interval; otherwise strconv encodes it.
	power := raw&(hiddenBit-1) == 0
	if power {
		limit >>= 1
	}
	q, g := s.times(raw)
	q, digit, inside, sure := shortest(q, g, limit)
	if !sure || power && inside == 0 {
		return 0
	}
	q, digit, point := sixteenDigits(q, digit, s.exp)
	high, low := q/1e8, q%1e8
	w0, w1 := eightDigits(high), eightDigits(low)
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

// putHundredths writes v if it has at most two decimals, its absolute value is below 1,000,000
// and it is not an integer. It returns the number of bytes, or 0 for other values. The decimal
// with two digits after the point is the shortest that parses as v, because no other decimal of
// at most 15 digits parses as v.
func putHundredths(full *[floatBuf]byte, v float64) int {
	abs := math.Abs(v)
	// A conversion to int64 takes fewer instructions than one to uint64.
	x := uint64(int64(abs*100 + 0.5))
	if x-1 >= 1e8-1 || float64(x)/100 != abs { // x-1 overflows for -0, which strconv encodes
		return 0
	}
	w := eightDigits(x)
	// At least one digit is before the point.
	skip := min(uint(bits.TrailingZeros64(w^zeroDigits))/8, 5)
	w >>= 8 * skip
	whole := 6 - skip
	full[0] = '-'
	sign := math.Float64bits(v) >> 63
	b := (*[digitsBuf]byte)(full[sign : sign+digitsBuf])
	p := &places[whole&7]
	b[8] = byte(w >> 56)
	binary.LittleEndian.PutUint64(b[0:], w&p.before|p.point|w&^p.before<<8)
	n := int(whole) + 3 + int(sign)
	if x%10 == 0 {
		n--
	}
	return n
}

// times returns the scaled float: its integer part q and its fraction g.
func (s *scale) times(raw uint64) (q, g uint64) {
	mantissa := raw&(hiddenBit-1) | hiddenBit
	q, g = bits.Mul64(mantissa, s.hi)
	g2, _ := bits.Mul64(mantissa, s.lo)
	g, carry := bits.Add64(g, g2, 0)
	return q + carry, g
}

// shortest returns the shortest decimal in the interval from q.g-limit to q.g+limit.
// If the interval holds the nearer integer, it returns this integer, digit 0 and inside 1;
// otherwise q, the rounded digit after the point and inside 0. sure is false if a comparison
// is within the margin. It uses masks instead of branches, because the CPU would mispredict
// them for random digits.
func shortest(q, g, limit uint64) (integer, digit, inside uint64, sure bool) {
	up := g >> 63 // The nearer integer is q+1 where the fraction is a half or more.
	distance := (g ^ -up) + up
	inside = (distance - limit) >> 63
	digit, f := bits.Mul64(g, 10)
	sure = distance-(limit-margin) > 2*margin && (f-(1<<63-16*margin) >= 32*margin || inside == 1)
	return q + up&inside, (digit + f>>63) & (inside - 1), inside, sure
}

// sixteenDigits extends q, which has 15 or 16 digits, to 16 digits, with digit if necessary.
// It returns the 16 digits, digit or 0 if it was used, and the number of digits before the
// decimal point.
func sixteenDigits(q, digit uint64, exp int) (uint64, uint64, int) {
	short := (q - 1e15) >> 63
	return q + (9*q+digit)&-short, digit & (short - 1), 16 + exp - int(short)
}

// significant returns the number of digits in w0, w1 and digit, without trailing zeros.
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

// putNear writes the digits of w0 and w1 with a decimal point after one of the first 15
// digits. It writes all digits one byte to the right, and then overwrites the word that has
// the point.
func putNear(b *[digitsBuf]byte, w0, w1 uint64, point int) {
	binary.LittleEndian.PutUint64(b[9:], w1)
	p := &places[point&7]
	if point < 8 {
		binary.LittleEndian.PutUint64(b[1:], w0)
		binary.LittleEndian.PutUint64(b[0:], w0&p.before|p.point|w0&^p.before<<8)
	} else {
		binary.LittleEndian.PutUint64(b[0:], w0)
		binary.LittleEndian.PutUint64(b[8:], w1&p.before|p.point|w1&^p.before<<8)
	}
}

// places has, for each digit of a word, the mask of the digits before it, and a decimal point in its place. It takes
// fewer instructions than a shift by a variable.
var places = [8]struct{ before, point uint64 }{
	{0, '.'}, {1<<8 - 1, '.' << 8}, {1<<16 - 1, '.' << 16}, {1<<24 - 1, '.' << 24},
	{1<<32 - 1, '.' << 32}, {1<<40 - 1, '.' << 40}, {1<<48 - 1, '.' << 48}, {1<<56 - 1, '.' << 56},
}

// putFar writes the n digits of w0, w1 and digit for numbers that putNear does not handle:
// with the decimal point before the first digit or after the sixteenth one, without a
// fraction, or with an exponent. It returns the number of bytes.
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

// putInt writes i, which is below 2^53, and returns the number of bytes.
func putInt(b *[digitsBuf]byte, i uint64) int {
	if i < 10000 {
		w := digits[i]
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

// eightDigits returns the decimal digits of x, which is below 1e8, as ASCII, the first digit in
// the lowest byte.
func eightDigits(x uint64) uint64 {
	high := x / 10000
	return uint64(digits[high]) | uint64(digits[x-high*10000])<<32
}
