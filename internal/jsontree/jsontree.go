// Package jsontree parses a small JSON text into a tree.
//
// Parse returns a Value whose strings are copies and whose Raw parts alias the input. Methods
// for another kind than that of a Value return the zero value, so that code that reads foreign
// responses needs no chain of checks. The package is for configurations, metadata and lists,
// whose size the caller limits and whose parsing time does not matter; responses with samples
// are parsed by promjson. There is no encoding and no reflection.
package jsontree

import (
	"errors"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// ErrSyntax is wrapped by the errors of Parse.
var ErrSyntax = errors.New("not JSON")

// depthMax limits the nesting of values.
const depthMax = 128

// Kind is the kind of a Value.
type Kind uint8

// The kinds. The zero Value is Absent.
const (
	Absent Kind = iota
	Null
	Bool
	Number
	String
	Array
	Object
)

// Value is one JSON value.
type Value struct {
	Kind Kind
	Raw  []byte // the encoded value, aliases the input

	text     string // of a String (unescaped) or a Number
	elements []Value
	members  []Member
}

// Member is one member of an object.
type Member struct {
	Name  string
	Value Value
}

// Parse parses a text that contains exactly one value.
func Parse(text []byte) (Value, error) {
	p := parser{text: text}
	v, err := p.value(0)
	if err != nil {
		return Value{}, err
	}
	p.space()
	if p.at != len(text) {
		return Value{}, p.syntaxError("the end of the text")
	}
	return v, nil
}

// Get returns the last member with a name; an Absent value if there is none.
func (v Value) Get(name string) Value {
	for i := len(v.members) - 1; i >= 0; i-- {
		if v.members[i].Name == name {
			return v.members[i].Value
		}
	}
	return Value{}
}

// Members returns the members of an object in the order of the input.
func (v Value) Members() []Member { return v.members }

// Elements returns the elements of an array.
func (v Value) Elements() []Value { return v.elements }

// Text returns the string of a String, otherwise "".
func (v Value) Text() string {
	if v.Kind != String {
		return ""
	}
	return v.text
}

// Bool reports whether v is true.
func (v Value) Bool() bool { return v.Kind == Bool && len(v.Raw) == 4 }

// Int returns the integer in v; ok is false for other numbers and kinds.
func (v Value) Int() (n int64, ok bool) {
	if v.Kind != Number {
		return 0, false
	}
	n, err := strconv.ParseInt(v.text, 10, 64)
	return n, err == nil
}

// Float returns the number in v, 0 for other kinds.
func (v Value) Float() float64 {
	if v.Kind != Number {
		return 0
	}
	f, _ := strconv.ParseFloat(v.text, 64) // ±Inf for a number out of range
	return f
}

type parser struct {
	text []byte
	at   int
}

func (p *parser) syntaxError(wanted string) error {
	return fmt.Errorf("%w: byte %d: expected %s", ErrSyntax, p.at, wanted)
}

func (p *parser) space() {
	for p.at < len(p.text) {
		switch p.text[p.at] {
		case ' ', '\t', '\n', '\r':
			p.at++
		default:
			return
		}
	}
}

// next skips space and consumes c. It reports whether c was there.
func (p *parser) next(c byte) bool {
	p.space()
	if p.at < len(p.text) && p.text[p.at] == c {
		p.at++
		return true
	}
	return false
}

func (p *parser) value(depth int) (Value, error) {
	if depth > depthMax {
		return Value{}, fmt.Errorf("%w: byte %d: nested deeper than %d", ErrSyntax, p.at, depthMax)
	}
	p.space()
	if p.at == len(p.text) {
		return Value{}, p.syntaxError("a value")
	}
	start := p.at
	var v Value
	var err error
	switch c := p.text[p.at]; {
	case c == '{':
		v, err = p.object(depth)
	case c == '[':
		v, err = p.array(depth)
	case c == '"':
		v.Kind = String
		v.text, err = p.str()
	case c == '-' || c >= '0' && c <= '9':
		v.Kind = Number
		v.text, err = p.number()
	default:
		v, err = p.literal()
	}
	v.Raw = p.text[start:p.at]
	return v, err
}

func (p *parser) literal() (Value, error) {
	for word, kind := range map[string]Kind{"true": Bool, "false": Bool, "null": Null} {
		if rest := p.text[p.at:]; len(rest) >= len(word) && string(rest[:len(word)]) == word {
			p.at += len(word)
			return Value{Kind: kind}, nil
		}
	}
	return Value{}, p.syntaxError("a value")
}

func (p *parser) object(depth int) (Value, error) {
	v := Value{Kind: Object}
	p.at++
	if p.next('}') {
		return v, nil
	}
	for {
		p.space()
		if p.at == len(p.text) || p.text[p.at] != '"' {
			return v, p.syntaxError("a member's name")
		}
		name, err := p.str()
		if err != nil {
			return v, err
		}
		if !p.next(':') {
			return v, p.syntaxError("a colon")
		}
		member, err := p.value(depth + 1)
		if err != nil {
			return v, err
		}
		v.members = append(v.members, Member{name, member})
		if p.next('}') {
			return v, nil
		}
		if !p.next(',') {
			return v, p.syntaxError("a comma or the end of the object")
		}
	}
}

func (p *parser) array(depth int) (Value, error) {
	v := Value{Kind: Array}
	p.at++
	if p.next(']') {
		return v, nil
	}
	for {
		element, err := p.value(depth + 1)
		if err != nil {
			return v, err
		}
		v.elements = append(v.elements, element)
		if p.next(']') {
			return v, nil
		}
		if !p.next(',') {
			return v, p.syntaxError("a comma or the end of the array")
		}
	}
}

// number consumes a JSON number: no leading zeros, digits on both sides of the point.
func (p *parser) number() (string, error) {
	start := p.at
	p.take("-")
	if p.take("0") == 0 && p.digits() == 0 {
		return "", p.syntaxError("a digit")
	}
	if p.take(".") == 1 && p.digits() == 0 {
		return "", p.syntaxError("a digit")
	}
	if p.take("eE") == 1 {
		p.take("+-")
		if p.digits() == 0 {
			return "", p.syntaxError("a digit")
		}
	}
	return string(p.text[start:p.at]), nil
}

// take consumes the next byte if it is one of these, and returns the number of consumed
// bytes.
func (p *parser) take(these string) int {
	if p.at < len(p.text) {
		for i := range len(these) {
			if p.text[p.at] == these[i] {
				p.at++
				return 1
			}
		}
	}
	return 0
}

func (p *parser) digits() int {
	n := 0
	for p.take("0123456789") == 1 {
		n++
	}
	return n
}

// str consumes a string. Invalid UTF-8 becomes U+FFFD, as in encoding/json.
func (p *parser) str() (string, error) {
	p.at++
	start := p.at
	for p.at < len(p.text) && p.text[p.at] != '"' && p.text[p.at] != '\\' && p.text[p.at] >= ' ' {
		p.at++
	}
	if p.at < len(p.text) && p.text[p.at] == '"' && utf8.Valid(p.text[start:p.at]) {
		p.at++
		return string(p.text[start : p.at-1]), nil
	}
	p.at = start
	var b []byte
	for p.at < len(p.text) {
		switch c := p.text[p.at]; {
		case c == '"':
			p.at++
			return string(b), nil
		case c == '\\':
			r, err := p.escape()
			if err != nil {
				return "", err
			}
			b = utf8.AppendRune(b, r)
		case c < ' ':
			return "", p.syntaxError("no control character in a string")
		default:
			r, size := utf8.DecodeRune(p.text[p.at:])
			b = utf8.AppendRune(b, r)
			p.at += size
		}
	}
	return "", p.syntaxError("the end of the string")
}

var escapes = map[byte]rune{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

func (p *parser) escape() (rune, error) {
	if p.at+1 >= len(p.text) {
		return 0, p.syntaxError("an escape")
	}
	c := p.text[p.at+1]
	if r, ok := escapes[c]; ok {
		p.at += 2
		return r, nil
	}
	r, ok := p.unit()
	if !ok {
		return 0, p.syntaxError("an escape")
	}
	p.at += 6
	if utf16.IsSurrogate(r) {
		if second, ok := p.unit(); ok {
			if pair := utf16.DecodeRune(r, second); pair != utf8.RuneError {
				p.at += 6
				return pair, nil
			}
		}
		return utf8.RuneError, nil
	}
	return r, nil
}

// unit parses \uXXXX at the current offset without consuming it.
func (p *parser) unit() (rune, bool) {
	if p.at+6 > len(p.text) || p.text[p.at] != '\\' || p.text[p.at+1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(p.text[p.at+2:p.at+6]), 16, 32)
	return rune(n), err == nil
}
