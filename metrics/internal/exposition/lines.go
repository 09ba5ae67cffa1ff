package exposition

import (
	"bytes"
	"math"
	"slices"
	"strconv"
)

// Lines parses output in text format, such as from registered writers, and encodes it in
// formats that need whole families.
type Lines struct {
	lines []line
	help  []byte
	m     Metric
	base  []byte // labels of all lines of a family, without le and quantile
}

// line is one sample.
type line struct {
	// of a histogram or summary: Lines.base[from:to] are the labels without le or quantile
	from, to                      int
	bound                         float64 // value of le or quantile
	family, suffix, labels, value []byte
	help                          []byte
	kind                          Type
}

// Encode appends all families of page, which is in text format, sorted by name, each once with
// all its lines. It omits malformed lines.
func (l *Lines) Encode(e *Encoder, page []byte) {
	l.read(page)
	slices.SortStableFunc(l.lines, func(a, b line) int { return bytes.Compare(a.family, b.family) })
	for from := 0; from < len(l.lines); {
		first := &l.lines[from]
		to := from
		for to < len(l.lines) && bytes.Equal(l.lines[to].family, first.family) {
			to++
		}
		base, total := trimTotal(first.family)
		taken := total && slices.ContainsFunc(l.lines[:from], func(other line) bool {
			return bytes.Equal(other.family, base)
		})
		l.help = AppendUnescaped(l.help[:0], first.help)
		e.Begin(first.family, l.help, nil, first.kind, taken)
		l.encodeFamily(e, l.lines[from:to], first.kind)
		e.End()
		from = to
	}
	clear(l.lines) // they alias page, which the caller reuses
}

// read parses the samples of page and sets the family of each, from the HELP and TYPE lines.
func (l *Lines) read(page []byte) {
	l.lines = l.lines[:0]
	var described, help, typed []byte
	kind := Unknown
	for len(page) > 0 {
		text := page
		if i := bytes.IndexByte(page, '\n'); i >= 0 {
			text, page = page[:i], page[i+1:]
		} else {
			page = nil
		}
		text = bytes.TrimSpace(text)
		if rest, ok := bytes.CutPrefix(text, []byte("# HELP ")); ok {
			described, help, _ = bytes.Cut(rest, []byte(" "))
			continue
		}
		if rest, ok := bytes.CutPrefix(text, []byte("# TYPE ")); ok {
			var name []byte
			typed, name, _ = bytes.Cut(rest, []byte(" "))
			kind = typeOf(name)
			continue
		}
		x, ok := parseLine(text)
		if !ok {
			continue
		}
		x.kind = Unknown
		if suffix, ok := bytes.CutPrefix(x.family, typed); ok && len(typed) > 0 && belongs(suffix, kind) {
			x.family, x.suffix, x.kind = typed, suffix, kind
		}
		if bytes.Equal(x.family, described) {
			x.help = help
		}
		l.lines = append(l.lines, x)
	}
}

func typeOf(text []byte) Type {
	for t, name := range openMetricsTypes {
		if string(text) == name {
			return Type(t)
		}
	}
	return Unknown
}

func belongs(suffix []byte, t Type) bool {
	switch string(suffix) {
	case "":
		return t != Histogram
	case "_bucket":
		return t == Histogram
	case "_sum", "_count":
		return t == Histogram || t == Summary
	}
	return false
}

// parseLine splits a line, name{labels} value, into its parts. ok is false if it is no sample.
func parseLine(text []byte) (x line, ok bool) {
	if len(text) == 0 || text[0] == '#' {
		return x, false
	}
	end := bytes.IndexAny(text, "{ \t")
	if end < 0 {
		return x, false
	}
	x.family = text[:end]
	if text[end] == '{' {
		n := labelsLen(text[end:])
		if n < 0 {
			return x, false
		}
		x.labels = text[end+1 : end+n-1]
		end += n
		if len(x.family) == 0 { // {"name",labels}
			n, err := quotedLen(x.labels)
			if err != nil {
				return x, false
			}
			x.family, x.labels = x.labels[1:n-1], x.labels[n:]
		}
	}
	x.value = bytes.TrimSpace(text[end:])
	return x, len(x.value) > 0 && len(x.family) > 0
}

// labelsLen returns the length of labels with their braces, -1 without a closing brace.
func labelsLen(text []byte) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '}':
			return i + 1
		case '"':
			n, err := quotedLen(text[i:])
			if err != nil {
				return -1
			}
			i += n - 1
		}
	}
	return -1
}

// encodeFamily encodes the metrics of a family, each from all its lines.
func (l *Lines) encodeFamily(e *Encoder, lines []line, kind Type) {
	open := false
	if kind == Histogram || kind == Summary {
		l.group(lines, kind)
	}
	for i := range lines {
		x := &lines[i]
		if x.kind != kind {
			continue // a family has one type
		}
		value, stamp, _ := bytes.Cut(x.value, []byte(" "))
		v, err := strconv.ParseFloat(string(value), 64)
		if err != nil {
			continue
		}
		if kind != Histogram && kind != Summary {
			l.m.Reset(kind)
			l.m.Labels = append(l.m.Labels, x.labels...)
			l.m.Value = v
			if len(stamp) > 0 {
				l.m.TimestampMS, _ = strconv.ParseInt(string(stamp), 10, 64)
			}
			e.Add(&l.m)
			continue
		}
		labels := l.base[x.from:x.to]
		if !open || !bytes.Equal(labels, l.m.Labels) {
			if open {
				e.Add(&l.m)
			}
			open = true
			l.m.Reset(kind)
			l.m.Labels = append(l.m.Labels, labels...)
		}
		l.m.take(x, x.bound, v)
	}
	if open {
		e.Add(&l.m)
	}
}

// group sorts the lines by labels without le and quantile, so that the lines of a metric are
// consecutive: a writer may have grouped them by suffix. The sort is stable.
func (l *Lines) group(lines []line, kind Type) {
	l.base = l.base[:0]
	for i := range lines {
		x := &lines[i]
		x.from = len(l.base)
		x.bound = l.cutBound(x.labels, kind)
		x.to = len(l.base)
	}
	slices.SortStableFunc(lines, func(a, b line) int {
		return bytes.Compare(l.base[a.from:a.to], l.base[b.from:b.to])
	})
}

func (m *Metric) take(x *line, bound, v float64) {
	switch string(x.suffix) {
	case "_sum":
		m.Sum = v
	case "_count":
		m.Count = uint64(v)
	case "_bucket":
		if m.Buckets = append(m.Buckets, Bucket{Upper: bound, Count: uint64(v)}); math.IsInf(bound, 1) {
			m.Count = uint64(v)
		}
	default:
		m.Quantiles = append(m.Quantiles, Quantile{bound, v})
	}
}

// cutBound returns the value of the label le or quantile, +Inf if there is none, and appends the
// other labels to base.
func (l *Lines) cutBound(labels []byte, kind Type) (bound float64) {
	tag := "le"
	if kind == Summary {
		tag = "quantile"
	}
	bound = math.Inf(1)
	for text := labels; ; {
		name, value, rest, ok := NextLabel(text)
		if !ok {
			return bound
		}
		if string(name) == tag {
			if v, err := strconv.ParseFloat(string(value), 64); err == nil {
				bound = v
			}
		} else {
			l.base = append(append(append(append(l.base, name...), `="`...), value...), `",`...)
		}
		text = rest
	}
}
