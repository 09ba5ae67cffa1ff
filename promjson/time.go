package promjson

import (
	"encoding/binary"
	"strconv"
)

// stampRoom is what the quick path of AppendTimestamp may write.
const stampRoom = 16

// AppendTimestamp appends ms, milliseconds since the epoch, as Prometheus
// writes timestamps: in seconds, with a point and exactly three digits where
// there is a fraction, so 10000 is 10 and 10010 is 10.010.
func AppendTimestamp(dst []byte, ms int64) []byte {
	n := len(dst)
	if ms < 1e12 || ms >= 1e13 || cap(dst)-n < stampRoom {
		return appendAnyTimestamp(dst, ms)
	}
	// From 2001 to 2286 the seconds have ten digits.
	b := (*[stampRoom]byte)(dst[n : n+stampRoom])
	seconds, fraction := uint64(ms)/1000, uint64(ms)%1000
	low := seconds % 1e8
	binary.LittleEndian.PutUint16(b[0:], uint16(fourDigits(seconds/1e8)>>16))
	binary.LittleEndian.PutUint32(b[2:], fourDigits(low/10000))
	binary.LittleEndian.PutUint32(b[6:], fourDigits(low%10000))
	if fraction == 0 {
		return dst[:n+10]
	}
	binary.LittleEndian.PutUint32(b[10:], fourDigits(fraction)-'0'+'.')
	return dst[:n+14]
}

func appendAnyTimestamp(dst []byte, ms int64) []byte {
	u := uint64(ms)
	if ms < 0 {
		dst = append(dst, '-')
		u = -u // Right for MinInt64 too, which has no positive int64.
	}
	dst = strconv.AppendUint(dst, u/1000, 10)
	if f := u % 1000; f != 0 {
		dst = append(dst, '.', byte('0'+f/100), byte('0'+f/10%10), byte('0'+f%10))
	}
	return dst
}
