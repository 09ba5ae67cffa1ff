package promjson

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// maxDepth bounds how deep arrays and objects may be nested in one value.
const maxDepth = 64

// skipper finds the end of one JSON value of any size, which it gets in pieces.
// It accepts exactly JSON, except that it does not check UTF-8. The zero skipper
// expects the first byte of a value.
type skipper struct {
	state   skipState
	number  numberPart // kind of the last byte of the current number
	hex     uint8      // remaining digits of the current \u escape
	key     bool       // The current string is the key of a member.
	objects uint64     // One bit per level, bit 0 is the innermost: 1 for an object, 0 for an array.
	depth   int
	literal string // The unread rest of true, false or null.
}

type skipState uint8

const (
	skipValue    skipState = iota // A value must follow.
	skipFirst                     // A value or ].
	skipFirstKey                  // A key or }.
	skipKey
	skipColon
	skipNext // A comma or the closing bracket.
	skipString
	skipEscape
	skipHex
	skipNumber
	skipLiteral
	skipDone
)

// feed continues the value with b. It returns n, the number of bytes of b that belong to the
// value, whether the value is complete, and the syntax error at b[n] or "". A number is
// complete only after feed has got the byte that follows it.
func (k *skipper) feed(b []byte) (n int, done bool, wrong string) {
	for i := 0; i < len(b); i++ {
		c := b[i]
		switch k.state {
		case skipString:
			i = plainRun(b, i)
			if i == len(b) {
				return i, false, ""
			}
			switch c = b[i]; {
			case c == '"' && k.key:
				k.state, k.key = skipColon, false
			case c == '"':
				k.end()
			case c == '\\':
				k.state = skipEscape
			default:
				return i, false, "a control character in a string"
			}
		case skipEscape:
			if !isEscape(c) {
				return i, false, "an unknown escape"
			}
			k.state = skipString
			if c == 'u' {
				k.state, k.hex = skipHex, 4
			}
		case skipHex:
			if !isHex(c) {
				return i, false, "expected a hexadecimal digit"
			}
			if k.hex--; k.hex == 0 {
				k.state = skipString
			}
		case skipNumber:
			for i < len(b) && k.number.next(b[i]) {
				i++
			}
			if i == len(b) {
				return i, false, ""
			}
			if !k.number.complete() || isNumeric(b[i]) {
				return i, false, "not a number"
			}
			k.end()
			i-- // Read this byte again in the next state.
		case skipLiteral:
			if c != k.literal[0] {
				return i, false, "neither true, false nor null"
			}
			if k.literal = k.literal[1:]; k.literal == "" {
				k.end()
			}
		default:
			if isSpace(c) {
				continue
			}
			if wrong := k.token(c); wrong != "" {
				return i, false, wrong
			}
		}
		if k.state == skipDone {
			return i + 1, true, ""
		}
	}
	return len(b), false, ""
}

// token reads the first byte of a token.
func (k *skipper) token(c byte) string {
	switch k.state {
	case skipFirst:
		if c == ']' {
			return k.close(c)
		}
		return k.value(c)
	case skipFirstKey, skipKey:
		if c == '}' && k.state == skipFirstKey {
			return k.close(c)
		}
		if c != '"' {
			return "expected a key"
		}
		k.state, k.key = skipString, true
	case skipColon:
		if c != ':' {
			return "expected a colon"
		}
		k.state = skipValue
	case skipNext:
		if c != ',' {
			return k.close(c)
		}
		k.state = skipValue
		if k.objects&1 != 0 {
			k.state = skipKey
		}
	default:
		return k.value(c)
	}
	return ""
}

func (k *skipper) value(c byte) string {
	switch {
	case c == '"':
		k.state = skipString
	case c == '-' || c-'0' <= 9:
		k.state, k.number = skipNumber, numberStart
		k.number.next(c)
	case c == '{' || c == '[':
		if k.depth == maxDepth {
			return "nested too deep"
		}
		k.depth++
		k.objects <<= 1
		k.state = skipFirst
		if c == '{' {
			k.objects |= 1
			k.state = skipFirstKey
		}
	case c == 't':
		k.state, k.literal = skipLiteral, "rue"
	case c == 'f':
		k.state, k.literal = skipLiteral, "alse"
	case c == 'n':
		k.state, k.literal = skipLiteral, "ull"
	default:
		return "expected a value"
	}
	return ""
}

func (k *skipper) close(c byte) string {
	want := byte(']')
	if k.objects&1 != 0 {
		want = '}'
	}
	if c != want {
		return "expected a comma or the closing bracket"
	}
	k.objects >>= 1
	k.depth--
	k.end()
	return ""
}

// end marks the current value as complete.
func (k *skipper) end() {
	k.state = skipNext
	if k.depth == 0 {
		k.state = skipDone
	}
}

// plainRun returns the index in b of the first quote, backslash or control character at i
// or later; len(b) if there is none.
func plainRun(b []byte, i int) int {
	for ; len(b)-i >= 8; i += 8 {
		if marks := special(binary.LittleEndian.Uint64(b[i:])); marks != 0 {
			return i + bits.TrailingZeros64(marks)/8
		}
	}
	for i < len(b) && b[i] >= ' ' && b[i] != '"' && b[i] != '\\' {
		i++
	}
	return i
}

func isSpace(c byte) bool {
	return c == ' ' || c == '\n' || c == '\r' || c == '\t'
}

func isNumeric(c byte) bool {
	return c-'0' <= 9 || c == '.' || c == '-' || c == '+' || c == 'e' || c == 'E'
}

func isHex(c byte) bool { return c-'0' <= 9 || c|0x20-'a' <= 5 }

// numberPart is the kind of the last byte of a number.
type numberPart uint8

const (
	numberStart numberPart = iota
	numberMinus
	numberZero // a zero that is the whole integer part
	numberInteger
	numberPoint
	numberFraction
	numberE
	numberSign // of the exponent
	numberExponent
)

// complete reports whether the number may end here.
func (p numberPart) complete() bool {
	return p == numberZero || p == numberInteger || p == numberFraction || p == numberExponent
}

// next advances to c and returns true if the number may continue with c.
func (p *numberPart) next(c byte) bool {
	to := numberStart
	switch digit := c-'0' <= 9; *p {
	case numberStart, numberMinus:
		switch {
		case c == '-' && *p == numberStart:
			to = numberMinus
		case c == '0':
			to = numberZero
		case digit:
			to = numberInteger
		}
	case numberZero, numberInteger:
		switch {
		case digit && *p == numberInteger:
			to = numberInteger
		case c == '.':
			to = numberPoint
		case c|0x20 == 'e':
			to = numberE
		}
	case numberPoint, numberFraction:
		switch {
		case digit:
			to = numberFraction
		case c|0x20 == 'e' && *p == numberFraction:
			to = numberE
		}
	default:
		switch {
		case digit:
			to = numberExponent
		case (c == '-' || c == '+') && *p == numberE:
			to = numberSign
		}
	}
	if to == numberStart {
		return false
	}
	*p = to
	return true
}

func isEscape(c byte) bool {
	switch c {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't', 'u':
		return true
	}
	return false
}

// cursor parses JSON that is complete in memory. Its methods return a syntax error as text,
// and "" without an error. After an error, i is its offset.
type cursor struct {
	b     []byte
	i     int
	times timePrediction // Of a piece of values.
}

// space skips white space and returns the next byte without reading it, or 0 at
// the end.
func (c *cursor) space() byte {
	for ; c.i < len(c.b); c.i++ {
		if !isSpace(c.b[c.i]) {
			return c.b[c.i]
		}
	}
	return 0
}

// expect skips white space and reads want.
func (c *cursor) expect(want byte) (wrong string) {
	if c.space() != want {
		return "expected " + string(rune(want))
	}
	c.i++
	return ""
}

// rawString reads a string and returns the bytes between its quotes, still
// escaped. The result aliases b.
func (c *cursor) rawString() (raw []byte, wrong string) {
	if c.space() != '"' {
		return nil, "expected a string"
	}
	start := c.i + 1
	for i := start; i < len(c.b); i++ {
		i = plainRun(c.b, i)
		if i == len(c.b) {
			break
		}
		switch c.b[i] {
		case '"':
			c.i = i + 1
			return c.b[start:i], ""
		case '\\':
			i++
		default:
			c.i = i
			return nil, "a control character in a string"
		}
	}
	c.i = len(c.b)
	return nil, "a string without an end"
}

// unescaped reads a string and decodes its escapes. The result aliases b if the
// string has none.
func (c *cursor) unescaped() (value []byte, wrong string) {
	value, wrong = c.rawString()
	if wrong == "" && bytes.IndexByte(value, '\\') >= 0 {
		var ok bool
		if value, ok = appendUnescaped(nil, value); !ok {
			return nil, "an unknown escape"
		}
	}
	return value, wrong
}

// skip reads one value of any type.
func (c *cursor) skip() (wrong string) {
	var k skipper
	n, done, wrong := k.feed(c.b[c.i:])
	c.i += n
	if wrong == "" && !done {
		wrong = "a value without an end"
	}
	return wrong
}

// next reads the separator before element n of an array or member n of an object, a comma
// unless n is 0, and returns true. If the closing bracket end follows, it reads that and
// returns false.
func (c *cursor) next(n int, end byte) (more bool, wrong string) {
	got := c.space()
	if got == end {
		c.i++
		return false, ""
	}
	if n > 0 {
		if got != ',' {
			return false, "expected a comma or the closing bracket"
		}
		c.i++
	}
	return true, ""
}

func (c *cursor) error(wrong string) error {
	return &Error{Offset: int64(c.i), Reason: wrong, Err: ErrSyntax}
}
