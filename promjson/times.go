package promjson

import (
	"encoding/binary"
	"math"
	"strconv"
)

// timestampBuf is the number of bytes that the fast path of AppendTimestamp may write.
const timestampBuf = 16

// AppendTimestamp appends ms, in milliseconds since the epoch, as Prometheus writes
// the timestamps of samples: in seconds, with exactly three decimal digits if there
// is a fraction. 10000 is 10, and 10010 is 10.010.
func AppendTimestamp(dst []byte, ms int64) []byte {
	n := len(dst)
	if ms < 1e12 || ms >= 1e13 || cap(dst)-n < timestampBuf {
		return appendAnyTimestamp(dst, ms)
	}
	// From 2001 to 2286 the seconds have ten digits.
	b := (*[timestampBuf]byte)(dst[n : n+timestampBuf])
	seconds, fraction := uint64(ms)/1000, uint64(ms)%1000
	low := seconds % 1e8
	binary.LittleEndian.PutUint16(b[0:], uint16(digits[seconds/1e8]>>16))
	binary.LittleEndian.PutUint32(b[2:], digits[low/10000])
	binary.LittleEndian.PutUint32(b[6:], digits[low%10000])
	if fraction == 0 {
		return dst[:n+10]
	}
	binary.LittleEndian.PutUint32(b[10:], digits[fraction]-'0'+'.')
	return dst[:n+14]
}

func appendAnyTimestamp(dst []byte, ms int64) []byte {
	u := uint64(ms)
	if ms < 0 {
		dst = append(dst, '-')
		u = -u // Correct for MinInt64 too, which has no positive int64.
	}
	dst = strconv.AppendUint(dst, u/1000, 10)
	if f := u % 1000; f != 0 {
		dst = append(dst, '.', byte('0'+f/100), byte('0'+f/10%10), byte('0'+f%10))
	}
	return dst
}

// FirstTime returns the timestamp, in milliseconds, of the first point of a piece of
// values or histograms from a Scanner. Errors are *Error with an offset within piece.
func FirstTime(piece []byte) (ms int64, err error) { return timeAt(piece, 0) }

// timeAt returns the timestamp of the point at an index.
func timeAt(piece []byte, at int) (ms int64, err error) {
	i := skipSpaces(piece, at)
	if i == len(piece) || piece[i] != '[' {
		return 0, &Error{Offset: int64(i), Reason: "expected a point", Err: ErrSyntax}
	}
	i = skipSpaces(piece, i+1)
	ms, _, wrong := parseTime(piece[i:])
	if wrong != "" {
		return 0, &Error{Offset: int64(i), Reason: wrong, Err: ErrSyntax}
	}
	return ms, nil
}

// LastTime returns the timestamp, in milliseconds, of the last point of a piece, see
// FirstTime.
func LastTime(piece []byte) (ms int64, err error) {
	i := len(piece) - 1
	if n := len(piece); n > 2 && piece[n-1] == ']' && piece[n-2] == '"' {
		for i = n - 3; i >= 0 && piece[i] != '[' && piece[i] != ']'; i-- {
		}
		if i >= 0 && piece[i] == '[' {
			return timeAt(piece, i)
		}
		i = n - 1 // The point has brackets inside, such as a histogram.
	}
	for depth := 0; i >= 0; i-- {
		switch piece[i] {
		case ']':
			depth++
		case '[':
			depth--
			if depth <= 0 {
				return timeAt(piece, i)
			}
		}
	}
	return 0, &Error{Reason: "expected a point", Err: ErrSyntax}
}

func skipSpaces(b []byte, i int) int {
	for i < len(b) && isSpace(b[i]) {
		i++
	}
	return i
}

// parseTime parses a JSON number of seconds, with or without an exponent. It returns the time
// in milliseconds, rounded exactly, and the length of the number.
func parseTime(b []byte) (ms int64, n int, wrong string) {
	for n < len(b) && n < 15 && b[n]-'0' <= 9 {
		ms = ms*10 + int64(b[n]-'0')
		n++
	}
	if n > 0 && n < len(b) && b[n] == ',' {
		return ms * 1000, n, ""
	}
	return parseAnyTime(b)
}

func parseAnyTime(b []byte) (ms int64, n int, wrong string) {
	negative := n < len(b) && b[n] == '-'
	if negative {
		n++
	}
	first, point := n, -1
	digits, exponent := uint64(0), 3
	for ; n < len(b); n++ {
		if c := b[n] - '0'; c <= 9 {
			if digits >= 1e18 {
				exponent++ // An int64 cannot hold more digits.
			} else {
				digits = digits*10 + uint64(c)
			}
		} else if b[n] == '.' && point < 0 {
			point = n
		} else {
			break
		}
	}
	if point >= 0 {
		exponent -= n - point - 1
	}
	if n == first || point == first || point == n-1 {
		return 0, n, "expected a time"
	}
	if n < len(b) && b[n]|0x20 == 'e' {
		e, length := parseExponent(b[n+1:])
		if length == 0 {
			return 0, n, "expected an exponent"
		}
		n += 1 + length
		exponent += e
	}
	u, ok := scaleTen(digits, exponent)
	if !ok {
		return 0, n, "a time out of range"
	}
	if negative {
		return -int64(u), n, ""
	}
	return int64(u), n, ""
}

// parseExponent returns the exponent and its length. The length is 0 if there is none.
func parseExponent(b []byte) (e, length int) {
	i := 0
	if i < len(b) && (b[i] == '+' || b[i] == '-') {
		i++
	}
	first := i
	for ; i < len(b) && b[i]-'0' <= 9; i++ {
		e = min(e*10+int(b[i]-'0'), 1000)
	}
	if i == first {
		return 0, 0
	}
	if b[0] == '-' {
		e = -e
	}
	return e, i
}

// scaleTen returns digits*10^exponent, rounded half up, and false on overflow.
func scaleTen(digits uint64, exponent int) (uint64, bool) {
	for ; exponent > 0 && digits != 0; exponent-- {
		if digits > math.MaxInt64/10 {
			return 0, false
		}
		digits *= 10
	}
	for ; exponent < -1 && digits != 0; exponent++ {
		digits /= 10
	}
	if exponent < 0 {
		digits = (digits + 5) / 10
	}
	return digits, digits <= math.MaxInt64
}
