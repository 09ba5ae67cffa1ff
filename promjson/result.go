package promjson

import "strconv"

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
