package promjson

import "unicode/utf8"

const hexDigits = "0123456789abcdef"

// AppendLabelString appends s, in quotes, as Prometheus writes label names and
// values. It escapes only quotes, backslashes and control characters, and copies every
// other byte, including bytes that are not valid UTF-8.
func AppendLabelString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	if !plainString(s) {
		return appendEscaped(dst, s)
	}
	dst = append(dst, s...)
	return append(dst, '"')
}

// appendEscaped appends s and the closing quote of a label string.
func appendEscaped(dst []byte, s string) []byte {
	start := 0
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' {
			dst = append(dst, s[start:i]...)
			dst = appendEscape(dst, c)
			start = i + 1
		}
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

// plainString reports whether no byte of s needs an escape in a label string.
func plainString(s string) bool {
	n := len(s)
	if n < 8 {
		for i := range n {
			if c := s[i]; c < ' ' || c == '"' || c == '\\' {
				return false
			}
		}
		return true
	}
	marks := special(word(s[n-8:])) // The last word may overlap the previous one.
	for ; len(s) >= 8; s = s[8:] {
		marks |= special(word(s))
	}
	return marks == 0
}

// word returns the first eight bytes of s, little-endian.
func word(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

const (
	lowBits  = 0x0101010101010101
	highBits = 0x8080808080808080
)

// special sets the highest bit of the bytes of w that need an escape in a label
// string. Only the lowest set bit is reliable; bytes above it may be marked wrongly.
func special(w uint64) uint64 {
	quote := w ^ '"'*lowBits
	slash := w ^ '\\'*lowBits
	return ((w-' '*lowBits)&^w | (quote-lowBits)&^quote | (slash-lowBits)&^slash) & highBits
}

// AppendString appends s, in quotes, as Prometheus writes every string that is not
// part of a metric object. In addition to AppendLabelString's escapes, it writes the
// characters <, >, &, U+2028 and U+2029 as \u escapes and each byte that is not valid
// UTF-8 as \ufffd.
func AppendString(dst []byte, s string) []byte {
	return appendString(dst, s, false)
}

// appendString is AppendString. If short is true, backspace and form feed are \b and \f.
func appendString(dst []byte, s string, short bool) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c < ' ' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
				dst = append(dst, s[start:i]...)
				switch {
				case short && c == '\b':
					dst = append(dst, '\\', 'b')
				case short && c == '\f':
					dst = append(dst, '\\', 'f')
				default:
					dst = appendEscape(dst, c)
				}
				start = i + 1
			}
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			dst = append(dst, s[start:i]...)
			dst = append(dst, `\ufffd`...)
			start = i + 1
		case r == '\u2028' || r == '\u2029':
			dst = append(dst, s[start:i]...)
			dst = append(dst, `\u202`...)
			dst = append(dst, hexDigits[r&0xf])
			start = i + size
		}
		i += size
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

// appendEscape appends the escape of an ASCII character, \u0008 and \u000c for
// backspace and form feed.
func appendEscape(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xf])
}
