package promjson

import "strconv"

// AppendTimestamp appends ms, milliseconds since the epoch, as Prometheus
// writes timestamps: in seconds, with a point and exactly three digits where
// there is a fraction, so 10000 is 10 and 10010 is 10.010.
func AppendTimestamp(dst []byte, ms int64) []byte {
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
