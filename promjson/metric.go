package promjson

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Label is one label of a metric object, unescaped.
type Label struct {
	Name, Value string
}

// metricForm classifies the bytes of a metric object.
type metricForm uint8

const (
	formUnknown   metricForm = iota
	formBad                  // Not an object of strings.
	formAny                  // Label names in any order.
	formSorted               // Label names in ascending order.
	formCanonical            // As Prometheus writes it, if no string has escapes: sorted, without space between tokens.
)

// CompareMetrics compares two metric objects, {"name":"value",...}, in the order of
// Prometheus' labels.Compare: by the first difference in the sorted, unescaped names
// and values. This order differs from bytes.Compare. It returns a negative number, 0
// or a positive number.
//
// Any JSON encoding and label order is accepted. The encoding of Prometheus is
// compared without decoding. If one of the objects is malformed, their bytes are compared.
func CompareMetrics(a, b []byte) int {
	if bytes.Equal(a, b) {
		return 0
	}
	formA, _, _ := metricFormOf(a)
	formB, _, _ := metricFormOf(b)
	return compareMetrics(a, b, formA, formB)
}

func compareMetrics(a, b []byte, formA, formB metricForm) int {
	switch min(formA, formB) {
	case formCanonical:
		return compareCanonical(a, b)
	case formSorted:
		return compareSorted(a, b)
	case formAny:
		la, _ := DecodeLabels(nil, a)
		lb, _ := DecodeLabels(nil, b)
		return slices.CompareFunc(la, lb, func(x, y Label) int {
			return cmp.Or(strings.Compare(x.Name, y.Name), strings.Compare(x.Value, y.Value))
		})
	}
	return bytes.Compare(a, b)
}

// compareCanonical compares two canonical objects by their first different byte. In
// a canonical object every quote begins or ends a string, so the number of quotes
// before that byte shows whether it is inside a string.
func compareCanonical(a, b []byte) int {
	n := commonPrefix(a, b)
	return compareAtDifference(a, b, n, bytes.Count(a[:n], []byte{'"'})%2 == 0)
}

// compareAtDifference compares two canonical objects whose first different byte is
// at index n, between strings or within one.
func compareAtDifference(a, b []byte, n int, between bool) int {
	switch {
	case n == len(a) || n == len(b):
		return 0 // Equal: no canonical object is a prefix of another.
	case between && a[n] == '}': // b has more labels.
		return -1
	case between:
		return 1
	case a[n] == '"': // The string in a is a prefix of the one in b.
		return -1
	case b[n] == '"':
		return 1
	}
	return cmp.Compare(a[n], b[n])
}

func commonPrefix(a, b []byte) int {
	n := 0
	for ; len(a) >= 8 && len(b) >= 8; a, b = a[8:], b[8:] {
		if x := binary.LittleEndian.Uint64(a) ^ binary.LittleEndian.Uint64(b); x != 0 {
			return n + bits.TrailingZeros64(x)/8
		}
		n += 8
	}
	for i := 0; i < len(a) && i < len(b) && a[i] == b[i]; i++ {
		n++
	}
	return n
}

// compareSorted compares two well-formed objects label by label.
func compareSorted(a, b []byte) int {
	ra, rb := readLabels(a), readLabels(b)
	var scratch [2][128]byte
	for {
		moreA, _ := ra.next()
		moreB, _ := rb.next()
		if !moreA || !moreB {
			switch {
			case moreB:
				return -1
			case moreA:
				return 1
			}
			return 0
		}
		for _, raw := range [2][2][]byte{{ra.name, rb.name}, {ra.value, rb.value}} {
			x, _ := appendUnescaped(scratch[0][:0], raw[0])
			y, _ := appendUnescaped(scratch[1][:0], raw[1])
			if c := bytes.Compare(x, y); c != 0 {
				return c
			}
		}
	}
}

// DecodeLabels appends the labels of a metric object to dst, unescaped and sorted by
// name. The strings do not alias metric. For a malformed object it returns an *Error
// and dst unchanged.
func DecodeLabels(dst []Label, metric []byte) ([]Label, error) {
	start := len(dst)
	var spans [32]labelSpan
	if list, ok := canonicalLabels(metric, spans[:0], 1); ok {
		all := string(metric) // One string for all.
		dst = slices.Grow(dst, len(list))
		for i, p := range list {
			end := len(all)
			if i+1 < len(list) {
				end = list[i+1].start
			}
			dst = append(dst, Label{all[p.start+1 : p.nameEnd], all[p.nameEnd+3 : end-2]})
		}
		return dst, nil
	}
	r := readLabels(metric)
	var scratch [128]byte
	for {
		more, wrong := r.next()
		if wrong != "" {
			return dst[:start], r.error(wrong)
		}
		if !more {
			break
		}
		name, okName := appendUnescaped(scratch[:0], r.name)
		label := Label{Name: string(name)}
		value, okValue := appendUnescaped(scratch[:0], r.value)
		label.Value = string(value)
		if !okName || !okValue {
			return dst[:start], r.error("an unknown escape")
		}
		dst = append(dst, label)
	}
	byName := func(x, y Label) int { return strings.Compare(x.Name, y.Name) }
	if !slices.IsSortedFunc(dst[start:], byName) {
		slices.SortStableFunc(dst[start:], byName)
	}
	return dst, nil
}

// metricFormOf checks and classifies a metric object. For formBad it returns the
// offset of the error in m and the reason.
func metricFormOf(m []byte) (form metricForm, at int, wrong string) {
	if isCanonical(m) {
		return formCanonical, 0, ""
	}
	r := readLabels(m)
	form = formSorted
	var scratch [3][128]byte
	last := scratch[0][:0]
	for n := 0; ; n++ {
		more, wrong := r.next()
		if wrong != "" {
			return formBad, r.i, wrong
		}
		if !more {
			return form, 0, ""
		}
		name, okName := appendUnescaped(scratch[1][:0], r.name)
		_, okValue := appendUnescaped(scratch[2][:0], r.value)
		if !okName || !okValue {
			return formBad, r.i, "an unknown escape"
		}
		if n > 0 && bytes.Compare(last, name) >= 0 {
			form = formAny
		}
		last = append(last[:0], name...)
	}
}

// labelSpan holds two offsets of a label in a canonical metric object: the quote that
// opens its name and the quote that closes its name.
type labelSpan struct {
	start, nameEnd int
}

// isCanonical reports whether m is of formCanonical.
func isCanonical(m []byte) bool {
	var scratch [32]labelSpan
	_, ok := canonicalLabels(m, scratch[:0], 1)
	return ok
}

// canonicalLabels appends the spans of the labels of m that begin at offset start or
// later; spans holds the spans of the labels before start. It returns false if m is not of
// formCanonical.
func canonicalLabels(m []byte, spans []labelSpan, start int) ([]labelSpan, bool) {
	if len(m) < 2 || m[0] != '{' {
		return spans, false
	}
	if len(m) == 2 {
		return spans, m[1] == '}'
	}
	for i := start; ; {
		if len(m)-i < 7 || m[i] != '"' {
			return spans, false
		}
		nameEnd := plainRun(m, i+1)
		if len(m)-nameEnd < 5 || m[nameEnd] != '"' || m[nameEnd+1] != ':' || m[nameEnd+2] != '"' {
			return spans, false
		}
		if n := len(spans); n > 0 {
			last := spans[n-1]
			if bytes.Compare(m[last.start+1:last.nameEnd], m[i+1:nameEnd]) >= 0 {
				return spans, false
			}
		}
		spans = append(spans, labelSpan{i, nameEnd})
		valueEnd := plainRun(m, nameEnd+3)
		if len(m)-valueEnd < 2 || m[valueEnd] != '"' {
			return spans, false
		}
		if m[valueEnd+1] != ',' {
			return spans, m[valueEnd+1] == '}' && valueEnd+2 == len(m)
		}
		i = valueEnd + 2
	}
}

// metricOrder checks consecutive metric objects and compares each to the previous one.
// It does not check their common prefix again.
type metricOrder struct {
	last   []byte
	form   metricForm
	labels []labelSpan // Of last, if its form is formCanonical.
}

func (o *metricOrder) reset() {
	o.last, o.form, o.labels = o.last[:0], formUnknown, o.labels[:0]
}

// compareNext returns the form of m and the result of comparing m with the previous object,
// 1 if there is none. For formBad it returns the offset of the error in m and the reason.
func (o *metricOrder) compareNext(m []byte) (form metricForm, c int, at int, wrong string) {
	if o.form == formCanonical {
		n := commonPrefix(o.last, m)
		k := len(o.labels) // becomes the number of labels of the previous object that begin before n
		for k > 0 && o.labels[k-1].start >= n {
			k--
		}
		start := 1 // Offset of the first label that differs.
		if k > 0 {
			start = o.labels[k-1].start
		}
		end := len(o.last) - 1 // End of that label in the previous object.
		if k < len(o.labels) {
			end = o.labels[k].start - 1
		}
		if labels, ok := canonicalLabels(m, o.labels[:max(k-1, 0)], start); ok {
			c = compareAtDifference(m, o.last, n, k == 0 || n == end)
			o.last, o.labels = append(o.last[:0], m...), labels
			return formCanonical, c, 0, ""
		}
	}
	form, at, wrong = metricFormOf(m)
	if form == formBad {
		return form, 0, at, wrong
	}
	if o.form != formUnknown {
		c = compareMetrics(m, o.last, form, o.form)
	} else {
		c = 1
	}
	o.last, o.form = append(o.last[:0], m...), form
	if form == formCanonical {
		o.labels, _ = canonicalLabels(m, o.labels[:0], 1)
	}
	return form, c, 0, ""
}

// labelReader reads the labels of a metric object in any JSON encoding.
type labelReader struct {
	cursor
	n           int
	name, value []byte // Still escaped; they alias b.
}

func readLabels(m []byte) labelReader { return labelReader{cursor: cursor{b: m}} }

// next reads one label into name and value. It returns false after the last label.
func (r *labelReader) next() (more bool, wrong string) {
	if r.n == 0 {
		if wrong := r.expect('{'); wrong != "" {
			return false, wrong
		}
	}
	more, wrong = r.cursor.next(r.n, '}')
	if wrong != "" {
		return false, wrong
	}
	if !more {
		if r.space(); r.i != len(r.b) {
			return false, "more than one object"
		}
		return false, ""
	}
	r.n++
	if r.name, wrong = r.rawString(); wrong != "" {
		return false, wrong
	}
	if wrong = r.expect(':'); wrong != "" {
		return false, wrong
	}
	r.value, wrong = r.rawString()
	return true, wrong
}

// appendUnescaped appends the contents of a JSON string, raw, with escapes decoded.
// Bytes that are not valid UTF-8 stay. It returns false for an escape that JSON does
// not define.
func appendUnescaped(dst, raw []byte) ([]byte, bool) {
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return append(dst, raw...), true
		}
		dst = append(dst, raw[:i]...)
		if i+1 == len(raw) {
			return dst, false
		}
		c := raw[i+1]
		raw = raw[i+2:]
		switch c {
		case '"', '\\', '/':
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'u':
			r, ok := hexRune(raw)
			if !ok {
				return dst, false
			}
			raw = raw[4:]
			if utf16.IsSurrogate(r) {
				// A surrogate that is not part of a pair becomes U+FFFD.
				low := rune(utf8.RuneError)
				if len(raw) >= 6 && raw[0] == '\\' && raw[1] == 'u' {
					low, _ = hexRune(raw[2:])
				}
				if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
					raw = raw[6:]
				}
			}
			dst = utf8.AppendRune(dst, r)
			continue
		default:
			return dst, false
		}
		dst = append(dst, c)
	}
}

// hexRune reads four hexadecimal digits.
func hexRune(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	var r rune
	for _, c := range b[:4] {
		switch {
		case c-'0' <= 9:
			c -= '0'
		case c|0x20-'a' <= 5:
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}
