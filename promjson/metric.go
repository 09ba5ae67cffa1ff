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

// Label is one name and value of a metric object, without escapes.
type Label struct {
	Name, Value string
}

// metricForm is what is known of a metric object's bytes.
type metricForm uint8

const (
	formUnknown   metricForm = iota
	formBad                  // Not an object of strings.
	formAny                  // Names in any order.
	formSorted               // Names ascend.
	formCanonical            // Names ascend, and there is neither an escape nor a space outside strings.
)

// CompareMetrics orders two metric objects, {"name":"value",...}, as Prometheus
// orders their labels: by the first difference in the sorted names and values,
// without escapes. That is not the order of the bytes. Both may be spelled and
// ordered in any way, but are compared quickly as Prometheus writes them.
// Objects that are malformed compare by their bytes.
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

// comparePlain finds the first byte that differs. In plain objects every quote
// begins or ends a string, so the number of quotes before says where it stands.
func compareCanonical(a, b []byte) int {
	n := commonPrefix(a, b)
	return compareAtDifference(a, b, n, bytes.Count(a[:n], []byte{'"'})%2 == 0)
}

// partingOrder compares two plain objects that part at index n, be it between
// strings or within one.
func compareAtDifference(a, b []byte, n int, between bool) int {
	switch {
	case n == len(a) || n == len(b):
		return 0 // The same object: none is a prefix of another.
	case between && a[n] == '}': // b has a further label.
		return -1
	case between:
		return 1
	case a[n] == '"': // The string of a is a prefix of b's.
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

// compareSorted walks through both objects, which are well-formed.
func compareSorted(a, b []byte) int {
	ra, rb := readLabels(a), readLabels(b)
	var room [2][128]byte
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
			x, _ := appendUnescaped(room[0][:0], raw[0])
			y, _ := appendUnescaped(room[1][:0], raw[1])
			if c := bytes.Compare(x, y); c != 0 {
				return c
			}
		}
	}
}

// DecodeLabels appends the labels of a metric object to dst, sorted by name.
// The strings are the caller's: they do not alias metric.
func DecodeLabels(dst []Label, metric []byte) ([]Label, error) {
	start := len(dst)
	var places [32]labelSpan
	if list, ok := canonicalLabels(metric, places[:0], 1); ok {
		text := string(metric) // One string for all.
		dst = slices.Grow(dst, len(list))
		for i, p := range list {
			end := len(text)
			if i+1 < len(list) {
				end = list[i+1].start
			}
			dst = append(dst, Label{text[p.start+1 : p.nameEnd], text[p.nameEnd+3 : end-2]})
		}
		return dst, nil
	}
	r := readLabels(metric)
	var room [128]byte
	for {
		more, wrong := r.next()
		if wrong != "" {
			return dst[:start], r.error(wrong)
		}
		if !more {
			break
		}
		name, okName := appendUnescaped(room[:0], r.name)
		label := Label{Name: string(name)}
		value, okValue := appendUnescaped(room[:0], r.value)
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

// metricFormOf checks a metric object. Of a bad one it says where and why.
func metricFormOf(m []byte) (form metricForm, at int, wrong string) {
	if isCanonical(m) {
		return formCanonical, 0, ""
	}
	r := readLabels(m)
	form = formSorted
	var room [3][128]byte
	last := room[0][:0]
	for n := 0; ; n++ {
		more, wrong := r.next()
		if wrong != "" {
			return formBad, r.i, wrong
		}
		if !more {
			return form, 0, ""
		}
		name, okName := appendUnescaped(room[1][:0], r.name)
		_, okValue := appendUnescaped(room[2][:0], r.value)
		if !okName || !okValue {
			return formBad, r.i, "an unknown escape"
		}
		if n > 0 && bytes.Compare(last, name) >= 0 {
			form = formAny
		}
		last = append(last[:0], name...)
	}
}

// labelPlace is where a label stands in a metric object of formPlain: its
// opening quote and the quote that closes its name.
type labelSpan struct {
	start, nameEnd int
}

// plainSorted reports whether m is of formPlain.
func isCanonical(m []byte) bool {
	var room [32]labelSpan
	_, ok := canonicalLabels(m, room[:0], 1)
	return ok
}

// plainLabels appends the places of the labels of m from start on, which come
// behind those already in places. It reports false where m is not of formPlain.
func canonicalLabels(m []byte, places []labelSpan, start int) ([]labelSpan, bool) {
	if len(m) < 2 || m[0] != '{' {
		return places, false
	}
	if len(m) == 2 {
		return places, m[1] == '}'
	}
	for i := start; ; {
		if len(m)-i < 7 || m[i] != '"' {
			return places, false
		}
		nameEnd := plainRun(m, i+1)
		if len(m)-nameEnd < 5 || m[nameEnd] != '"' || m[nameEnd+1] != ':' || m[nameEnd+2] != '"' {
			return places, false
		}
		if n := len(places); n > 0 {
			last := places[n-1]
			if bytes.Compare(m[last.start+1:last.nameEnd], m[i+1:nameEnd]) >= 0 {
				return places, false
			}
		}
		places = append(places, labelSpan{i, nameEnd})
		valueEnd := plainRun(m, nameEnd+3)
		if len(m)-valueEnd < 2 || m[valueEnd] != '"' {
			return places, false
		}
		if m[valueEnd+1] != ',' {
			return places, m[valueEnd+1] == '}' && valueEnd+2 == len(m)
		}
		i = valueEnd + 2
	}
}

// metricOrder takes metric objects one after the other, sees whether each is
// well-formed and compares it to the one before. What both begin with alike is
// looked at only once.
type metricOrder struct {
	last   []byte
	form   metricForm
	labels []labelSpan // Of last, if its form is formPlain.
}

func (o *metricOrder) reset() {
	o.last, o.form, o.labels = o.last[:0], formUnknown, o.labels[:0]
}

// follow returns the form of m and how m compares to the object before. If m is
// bad, it says where and why.
func (o *metricOrder) compareNext(m []byte) (form metricForm, c int, at int, wrong string) {
	if o.form == formCanonical {
		n := commonPrefix(o.last, m)
		k := len(o.labels)
		for k > 0 && o.labels[k-1].start >= n {
			k--
		}
		start := 1 // Of the label where the objects part.
		if k > 0 {
			start = o.labels[k-1].start
		}
		end := len(o.last) - 1 // Of that label, in the object before.
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

// labelReader reads the labels of a metric object spelled in any way.
type labelReader struct {
	cursor
	n           int
	name, value []byte // With their escapes; they alias b.
}

func readLabels(m []byte) labelReader { return labelReader{cursor: cursor{b: m}} }

// next reads one label.
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
	if r.name, wrong = r.text(); wrong != "" {
		return false, wrong
	}
	if wrong = r.expect(':'); wrong != "" {
		return false, wrong
	}
	r.value, wrong = r.text()
	return true, wrong
}

// appendUnescaped appends what stands between the quotes of a JSON string, as
// it is meant. Bytes that are not valid UTF-8 stay. It reports false for an
// escape that JSON does not know.
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
				// Only two halves make a character; one alone means U+FFFD.
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
