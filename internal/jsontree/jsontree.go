// Package jsontree reads a small JSON text as a tree.
//
// Bytes come in whole, a Value goes out whose strings are its own and whose Raw
// parts alias the input; asking a Value for what it is not gives the zero value,
// so that a reader of somebody else's answers needs no ladder of checks. It is
// for configurations, metadata and lists, where the text is bounded by its caller
// and time does not matter: answers with samples go through promjson. There is no
// writing here, and no reflection.
package jsontree

import (
	"errors"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// ErrSyntax is wrapped by what Parse says of a text that is not JSON.
var ErrSyntax = errors.New("not JSON")

// depthMax bounds how deep values may be nested.
const depthMax = 128

// Kind is what a Value is.
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
	Raw  []byte // its text, aliases what was parsed

	text     string // of a String, unescaped; of a Number
	elements []Value
	members  []Member
}

// Member is one member of an object.
type Member struct {
	Name  string
	Value Value
}

// Parse reads a text that holds exactly one value.
func Parse(text []byte) (Value, error) {
	p := parser{text: text}
	v, err := p.value(0)
	if err != nil {
		return Value{}, err
	}
	p.space()
	if p.at != len(text) {
		return Value{}, p.wrong("the end of the text")
	}
	return v, nil
}

// Get is a member of an object, the last of its name; else an absent value.
func (v Value) Get(name string) Value {
	for i := len(v.members) - 1; i >= 0; i-- {
		if v.members[i].Name == name {
			return v.members[i].Value
		}
	}
	return Value{}
}

// Members are those of an object, in the order of the text.
func (v Value) Members() []Member { return v.members }

// Elements are those of an array.
func (v Value) Elements() []Value { return v.elements }

// Text is the string of a String, else "".
func (v Value) Text() string {
	if v.Kind != String {
		return ""
	}
	return v.text
}

// Bool tells whether v is true.
func (v Value) Bool() bool { return v.Kind == Bool && len(v.Raw) == 4 }

// Int is the whole number that v is; ok is false for anything else.
func (v Value) Int() (n int64, ok bool) {
	if v.Kind != Number {
		return 0, false
	}
	n, err := strconv.ParseInt(v.text, 10, 64)
	return n, err == nil
}

// Float is the number that v is, 0 for anything else.
func (v Value) Float() float64 {
	if v.Kind != Number {
		return 0
	}
	f, _ := strconv.ParseFloat(v.text, 64) // beyond the range it is ±Inf, as it should
	return f
}

type parser struct {
	text []byte
	at   int
}

func (p *parser) wrong(wanted string) error {
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

// next skips space and tells whether c follows, which it takes.
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
		return Value{}, p.wrong("a value")
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
		v, err = p.word()
	}
	v.Raw = p.text[start:p.at]
	return v, err
}

func (p *parser) word() (Value, error) {
	for word, kind := range map[string]Kind{"true": Bool, "false": Bool, "null": Null} {
		if rest := p.text[p.at:]; len(rest) >= len(word) && string(rest[:len(word)]) == word {
			p.at += len(word)
			return Value{Kind: kind}, nil
		}
	}
	return Value{}, p.wrong("a value")
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
			return v, p.wrong("a member's name")
		}
		name, err := p.str()
		if err != nil {
			return v, err
		}
		if !p.next(':') {
			return v, p.wrong("a colon")
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
			return v, p.wrong("a comma or the end of the object")
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
			return v, p.wrong("a comma or the end of the array")
		}
	}
}

// number takes what JSON allows: no leading zero, digits around the point.
func (p *parser) number() (string, error) {
	start := p.at
	p.take("-")
	if p.take("0") == 0 && p.digits() == 0 {
		return "", p.wrong("a digit")
	}
	if p.take(".") == 1 && p.digits() == 0 {
		return "", p.wrong("a digit")
	}
	if p.take("eE") == 1 {
		p.take("+-")
		if p.digits() == 0 {
			return "", p.wrong("a digit")
		}
	}
	return string(p.text[start:p.at]), nil
}

// take takes one byte if it is among these.
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

// str takes a string. Bytes that are not valid UTF-8 become U+FFFD, as anywhere.
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
			return "", p.wrong("no control character in a string")
		default:
			r, size := utf8.DecodeRune(p.text[p.at:])
			b = utf8.AppendRune(b, r)
			p.at += size
		}
	}
	return "", p.wrong("the end of the string")
}

var escapes = map[byte]rune{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

func (p *parser) escape() (rune, error) {
	if p.at+1 >= len(p.text) {
		return 0, p.wrong("an escape")
	}
	c := p.text[p.at+1]
	if r, ok := escapes[c]; ok {
		p.at += 2
		return r, nil
	}
	r, ok := p.unit()
	if !ok {
		return 0, p.wrong("an escape")
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

// unit reads \uXXXX at the place, and does not take it.
func (p *parser) unit() (rune, bool) {
	if p.at+6 > len(p.text) || p.text[p.at] != '\\' || p.text[p.at+1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(p.text[p.at+2:p.at+6]), 16, 32)
	return rune(n), err == nil
}
