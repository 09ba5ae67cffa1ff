package exposition

import (
	"bytes"
	"strconv"
	"unicode/utf8"
)

// IsClassicLabel is IsClassic for label names, which have no colons.
func IsClassicLabel[T string | []byte](name T) bool {
	for i := range len(name) {
		if name[i] == ':' {
			return false
		}
	}
	return IsClassic(name)
}

// IsClassic reports whether the name of a metric needs neither quotes nor escaping.
func IsClassic[T string | []byte](name T) bool {
	for i := range len(name) {
		c := name[i]
		if !('a' <= c|0x20 && c|0x20 <= 'z' || c == '_' || c == ':' || i > 0 && '0' <= c && c <= '9') {
			return false
		}
	}
	return len(name) > 0
}

// AppendEscaped appends a name escaped with the scheme. Classic names are unchanged in
// every scheme.
func AppendEscaped(dst, name []byte, scheme Scheme) []byte {
	if scheme == AllowUTF8 || IsClassic(name) {
		return append(dst, name...)
	}
	if scheme == Values {
		dst = append(dst, "U__"...)
	}
	for i := 0; i < len(name); {
		r, n := utf8.DecodeRune(name[i:])
		classic := n == 1 && (IsClassic(name[i:i+1]) || i > 0 && '0' <= r && r <= '9')
		switch {
		case r == '_' && scheme != Underscores:
			dst = append(dst, "__"...)
		case r == '.' && scheme == Dots:
			dst = append(dst, "_dot_"...)
		case classic:
			dst = append(dst, name[i])
		case scheme == Dots:
			dst = append(dst, "__"...)
		case scheme == Values:
			dst = append(strconv.AppendInt(append(dst, '_'), int64(r), 16), '_')
		default:
			dst = append(dst, '_')
		}
		i += n
	}
	return dst
}

// AppendEscapedLabel is AppendEscaped for label names: colons are escaped too.
func AppendEscapedLabel(dst, name []byte, scheme Scheme) []byte {
	if scheme == AllowUTF8 || bytes.IndexByte(name, ':') < 0 {
		return AppendEscaped(dst, name, scheme)
	}
	from := len(dst)
	dst = AppendEscaped(dst, name, scheme)
	for i := from; i < len(dst); i++ {
		if dst[i] == ':' {
			dst[i] = '_'
		}
	}
	return dst
}

// NextLabel splits the first label off a label set without braces. It returns the name without
// quotes and the value without quotes, both still escaped, and the rest of text. All results
// alias text. ok is false if there is no further valid label.
func NextLabel(text []byte) (name, value, rest []byte, ok bool) {
	text = bytes.TrimLeft(text, ", ")
	if len(text) == 0 {
		return nil, nil, nil, false
	}
	if text[0] == '"' {
		n, err := quotedLen(text)
		if err != nil {
			return nil, nil, nil, false
		}
		name, text = text[1:n-1], text[n:]
	} else {
		at := bytes.IndexByte(text, '=')
		if at < 0 {
			return nil, nil, nil, false
		}
		name, text = bytes.TrimSpace(text[:at]), text[at:]
	}
	text = bytes.TrimLeft(text, "= ")
	n, err := quotedLen(text)
	if err != nil {
		return nil, nil, nil, false
	}
	return name, text[1 : n-1], text[n:], true
}

// AppendUnescaped decodes backslash escapes and replaces invalid UTF-8.
func AppendUnescaped(dst, text []byte) []byte {
	from := len(dst)
	for {
		at := bytes.IndexByte(text, '\\')
		if at < 0 || at == len(text)-1 {
			dst = append(dst, text...)
			break
		}
		dst = append(dst, text[:at]...)
		switch c := text[at+1]; c {
		case 'n':
			dst = append(dst, '\n')
		case '\\', '"':
			dst = append(dst, c)
		default:
			dst = append(dst, '\\', c)
		}
		text = text[at+2:]
	}
	if utf8.Valid(dst[from:]) {
		return dst
	}
	return append(dst[:from], bytes.ToValidUTF8(dst[from:], []byte("\uFFFD"))...)
}

// AppendQuoted appends text with backslash escapes, without quotes around it. quotes is false
// only for HELP lines of text format 0.0.4, in which quotes are not escaped.
func AppendQuoted[T string | []byte](dst []byte, text T, quotes bool) []byte {
	for i := range len(text) {
		switch c := text[i]; {
		case c == '\n':
			dst = append(dst, `\n`...)
		case c == '\\' || quotes && c == '"':
			dst = append(dst, '\\', c)
		default:
			dst = append(dst, c)
		}
	}
	return dst
}

// IsClassicName reports whether a valid metric name, with its labels, needs neither quotes nor
// escaping in any scheme.
func IsClassicName(name string) bool {
	before := byte('{')
	for i := 0; i < len(name); i++ {
		c := name[i]
		switch {
		case c == '"':
			n, err := quotedLen(name[i:])
			if err != nil || before != '=' {
				return false // a name in quotes
			}
			i += n - 1
		case c == '.' || c >= 0x80:
			return false
		}
		before = c
	}
	return true
}
