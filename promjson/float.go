package promjson

import (
	"math"
	"strconv"
)

// AppendFloat appends v, without quotes, as Prometheus writes sample values:
// the shortest decimal that reads back as v, in the form 12.5, or in the form
// 1e-07 where |v| is below 1e-6 (and not 0) or at least 1e21. Special values
// are NaN, +Inf, -Inf and -0.
func AppendFloat(dst []byte, v float64) []byte {
	abs := math.Abs(v)
	format := byte('f')
	if abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		format = 'e'
	}
	return strconv.AppendFloat(dst, v, format, -1, 64)
}
