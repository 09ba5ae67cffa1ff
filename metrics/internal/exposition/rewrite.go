package exposition

import (
	"bytes"
	"io"
)

// Rewriter forwards text format to W and escapes UTF-8 names by Scheme. With AllowUTF8 it
// writes them in quotes within the braces. It buffers at most one incomplete line.
type Rewriter struct {
	W      io.Writer
	Scheme Scheme
	part   []byte // an incomplete line
	family []byte // of the lines of Append; empty in Write, which knows no families
	out    []byte
	e      Encoder
}

const partMax = 1 << 20 // bytes of a longer incomplete line are dropped

// Write accepts text in pieces of any size.
func (r *Rewriter) Write(p []byte) (int, error) {
	r.e.Form.Scheme, r.out = r.Scheme, r.out[:0]
	for rest := p; len(rest) > 0; {
		i := bytes.IndexByte(rest, '\n')
		if i < 0 {
			if len(r.part)+len(rest) <= partMax {
				r.part = append(r.part, rest...)
			}
			break
		}
		text := rest[:i]
		if len(r.part) > 0 {
			r.part = append(r.part, text...)
			text = r.part
		}
		r.line(text)
		r.part, rest = r.part[:0], rest[i+1:]
	}
	r.family = r.family[:0]
	if _, err := r.W.Write(r.out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Append appends the rewritten lines of one metric. It rewrites the family name, but not the
// suffix that follows it in a line, such as _sum.
func (r *Rewriter) Append(dst, lines []byte, family string) []byte {
	r.e.Form.Scheme, r.out, r.family = r.Scheme, r.out[:0], append(r.family[:0], family...)
	for len(lines) > 0 {
		n := bytes.IndexByte(lines, '\n')
		r.line(lines[:n])
		lines = lines[n+1:]
	}
	return append(dst, r.out...)
}

func (r *Rewriter) line(text []byte) {
	for _, keyword := range [...]string{"# HELP ", "# TYPE "} {
		if len(text) <= len(keyword) || string(text[:len(keyword)]) != keyword {
			continue
		}
		family := text[len(keyword):]
		n := len(family)
		if family[0] == '"' {
			n, _ = quotedLen(family)
		} else if at := bytes.IndexByte(family, ' '); at >= 0 {
			n = at
		}
		r.out = append(r.out, keyword...)
		r.name(bytes.Trim(family[:n], `"`), nil, "\"")
		r.out = append(append(r.out, family[n:]...), '\n')
		return
	}
	x, ok := parseLine(text)
	if !ok {
		r.out = append(append(r.out, text...), '\n')
		return
	}
	var suffix []byte
	if rest, ok := bytes.CutPrefix(x.family, r.family); ok && len(r.family) > 0 {
		x.family, suffix = r.family, rest
	}
	quoted := r.name(x.family, suffix, `{"`)
	labels := r.e.appendLabels(r.e.labels[:0], x.labels)
	r.e.labels = labels
	switch {
	case len(labels) > 0 && quoted:
		r.out = append(append(r.out, ','), labels...)
	case len(labels) > 0:
		r.out = append(append(r.out, '{'), labels...)
	}
	if len(labels) > 0 || quoted {
		r.out = append(r.out, '}')
	}
	r.out = append(append(append(r.out, ' '), x.value...), '\n')
}

// name appends a name with its suffix, and reports whether the name is quoted. Before a quoted name
// it appends open.
func (r *Rewriter) name(name, suffix []byte, open string) bool {
	if r.Scheme != AllowUTF8 || IsClassic(name) {
		r.out = append(AppendEscaped(r.out, name, r.Scheme), suffix...)
		return false
	}
	r.out = append(append(append(append(r.out, open...), name...), suffix...), '"')
	return true
}
