package exposition

import (
	"bytes"
	"math"
	"strconv"
)

var openMetricsTypes = [...]string{Counter: "counter", Gauge: "gauge", Summary: "summary", Unknown: "unknown",
	Histogram: "histogram"}

func (e *Encoder) beginText(help, unit []byte) {
	if len(help) > 0 {
		e.comment("# HELP ")
		e.Page = append(AppendQuoted(e.Page, help, true), '\n')
	}
	e.comment("# TYPE ")
	e.Page = append(append(e.Page, openMetricsTypes[e.kind]...), '\n')
	if n := len(e.name) - len(unit) - 1; len(unit) > 0 && n > 0 && e.name[n] == '_' && bytes.HasSuffix(e.name, unit) {
		e.comment("# UNIT ")
		e.Page = append(append(e.Page, unit...), '\n')
	}
}

func (e *Encoder) comment(keyword string) {
	e.Page = append(e.Page, keyword...)
	if e.quoted {
		e.Page = append(append(append(e.Page, '"'), e.name...), `" `...)
		return
	}
	e.Page = append(append(e.Page, e.name...), ' ')
}

// addText appends a metric. It omits samples that OpenMetrics forbids: negative and NaN counters,
// sums and quantiles.
func (e *Encoder) addText(m *Metric) {
	e.labels = e.appendLabels(e.labels[:0], m.Labels)
	switch e.kind {
	case Counter:
		if m.Value >= 0 {
			e.head("_total", "", 0)
			e.Page = appendFloat(e.Page, m.Value)
			e.end(m, m.Exemplar)
			e.created(m)
		}
	case Summary:
		for _, q := range m.Quantiles {
			if q.Value >= 0 {
				e.head("", "quantile", q.Phi)
				e.Page = appendFloat(e.Page, q.Value)
				e.end(m, Exemplar{})
			}
		}
		e.sumAndCount(m)
	case Histogram:
		for i := range m.Buckets {
			e.bucket(m, &m.Buckets[i])
		}
		if !m.ends() {
			e.bucket(m, &Bucket{Upper: math.Inf(1), Count: m.Count})
		}
		e.sumAndCount(m)
	default:
		e.head("", "", 0)
		e.Page = appendFloat(e.Page, m.Value)
		e.end(m, Exemplar{})
	}
}

func (e *Encoder) bucket(m *Metric, b *Bucket) {
	e.head("_bucket", "le", b.Upper)
	e.Page = strconv.AppendUint(e.Page, b.Count, 10)
	e.end(m, b.Exemplar)
}

func (e *Encoder) sumAndCount(m *Metric) {
	if m.Sum >= 0 {
		e.head("_sum", "", 0)
		e.Page = appendFloat(e.Page, m.Sum)
		e.end(m, Exemplar{})
	}
	e.head("_count", "", 0)
	e.Page = strconv.AppendUint(e.Page, m.Count, 10)
	e.end(m, Exemplar{})
	e.created(m)
}

func (e *Encoder) created(m *Metric) {
	if e.Created && m.CreatedMS > 0 {
		e.head("_created", "", 0)
		e.Page = append(appendFloat(e.Page, float64(m.CreatedMS)/1e3), '\n')
	}
}

// head appends a line up to its value. If tag is not empty, it is a further label with the value
// bound.
func (e *Encoder) head(suffix, tag string, bound float64) {
	b, separator := e.Page, byte('{')
	if e.quoted {
		b = append(append(append(append(b, `{"`...), e.name...), suffix...), '"')
		separator = ','
	} else {
		b = append(append(b, e.name...), suffix...)
	}
	if len(e.labels) > 0 {
		b = append(append(b, separator), e.labels...)
		separator = ','
	}
	if tag != "" {
		b = append(append(append(b, separator), tag...), `="`...)
		b = append(appendFloat(b, bound), '"')
		separator = ','
	}
	if separator == ',' {
		b = append(b, '}')
	}
	e.Page = append(b, ' ')
}

// end appends the timestamp and the exemplar, if there are any, and a line break.
func (e *Encoder) end(m *Metric, x Exemplar) {
	b := e.Page
	if m.TimestampMS != 0 {
		b = appendFloat(append(b, ' '), float64(m.TimestampMS)/1e3)
	}
	if x.AtMS != 0 {
		b = append(b, " # {"...)
		b = append(appendFloat(append(e.appendLabels(b, m.texts[x.from:x.to]), "} "...), x.Value), ' ')
		b = appendFloat(b, float64(x.AtMS)/1e3)
	}
	e.Page = append(b, '\n')
}

// appendLabels appends labels with names escaped by the scheme, values escaped as
// OpenMetrics defines, and no spaces.
func (e *Encoder) appendLabels(dst, text []byte) []byte {
	first := true
	for {
		name, value, rest, ok := NextLabel(text)
		if !ok {
			return dst
		}
		if !first {
			dst = append(dst, ',')
		}
		first, text = false, rest
		if IsClassicLabel(name) {
			dst = append(dst, name...)
		} else {
			e.text = AppendEscapedLabel(e.text[:0], name, e.Form.Scheme)
			if e.Form.Scheme == AllowUTF8 {
				dst = append(append(append(dst, '"'), e.text...), '"')
			} else {
				dst = append(dst, e.text...)
			}
		}
		dst = append(dst, `="`...)
		if isPlain(value) {
			dst = append(dst, value...)
		} else {
			e.text = AppendUnescaped(e.text[:0], value)
			dst = AppendQuoted(dst, e.text, true)
		}
		dst = append(dst, '"')
	}
}

// isPlain reports whether an escaped label value needs no change: it has no escapes and is ASCII.
func isPlain(value []byte) bool {
	for _, c := range value {
		if c == '\\' || c >= 0x80 {
			return false
		}
	}
	return true
}

// appendFloat appends a float as OpenMetrics does: an integer has a fraction, as in 1.0. From 1e6 on
// it has an exponent instead, as in 1e+06.
func appendFloat(dst []byte, v float64) []byte {
	switch {
	case math.IsInf(v, 1):
		return append(dst, "+Inf"...)
	case v == math.Trunc(v) && math.Abs(v) < 1e6:
		return append(strconv.AppendInt(dst, int64(v), 10), ".0"...)
	}
	from := len(dst)
	dst = strconv.AppendFloat(dst, v, 'g', -1, 64)
	if v == v && !math.IsInf(v, 0) && !bytes.ContainsAny(dst[from:], ".e") {
		dst = append(dst, ".0"...)
	}
	return dst
}
