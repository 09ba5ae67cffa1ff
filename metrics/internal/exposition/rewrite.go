package exposition

import (
	"bytes"
	"io"
)

// Rewriter passes pages of text on and gives every name the form that was agreed on:
// escaped, or quoted within the braces. It keeps no more than the beginning of a line.
type Rewriter struct {
	W      io.Writer
	Scheme Scheme
	part   []byte // a line whose end has not come
	out    []byte
	e      Encoder
}

const partMax = 1 << 20 // a longer line is cut

// Write takes text in pieces of any size.
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
	if _, err := r.W.Write(r.out); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (r *Rewriter) line(text []byte) {
	for _, keyword := range [...]string{"# HELP ", "# TYPE "} {
		if len(text) < len(keyword) || string(text[:len(keyword)]) != keyword {
			continue
		}
		family := text[len(keyword):]
		n := len(family)
		if q, err := quotedLen(family); err == nil {
			n = q
		} else if at := bytes.IndexByte(family, ' '); at >= 0 {
			n = at
		}
		r.out = append(r.out, keyword...)
		r.name(bytes.Trim(family[:n], `"`), "\"", "\"")
		r.out = append(append(r.out, family[n:]...), '\n')
		return
	}
	x, ok := parseLine(text)
	if !ok {
		r.out = append(append(r.out, text...), '\n')
		return
	}
	quoted := r.name(x.family, `{"`, `"`)
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

// name tells whether it had to be put in quotes.
func (r *Rewriter) name(name []byte, open, closed string) bool {
	if r.Scheme != AllowUTF8 || IsClassic(name) {
		r.out = AppendEscaped(r.out, name, r.Scheme)
		return false
	}
	r.out = append(append(append(r.out, open...), name...), closed...)
	return true
}
