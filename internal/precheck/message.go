package precheck

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// ErrLimit is the error of a message with too many elements.
var ErrLimit = errors.New("too many elements")

// depthMax is the nesting up to which messages are counted. Deeper messages are left to the
// decoder, which has a limit of its own; no message of the APIs nests that deep.
const depthMax = 100

// Message returns ErrLimit if src, a message of type m, has more than limit messages and
// elements of repeated fields. If src is not a valid message, Message counts up to the first
// invalid byte: the decoder stops there, too, and reports what is wrong.
//
// A limit on the bytes of a message does not limit its decoded size: an element of a repeated field can take one or two
// bytes on the wire, and a hundred or more in memory. Message reads only tags, and decodes, copies and retains nothing.
func Message(src []byte, m protoreflect.MessageDescriptor, limit int) error {
	c := counter{left: limit}
	c.message(src, m, 0)
	return limitError(c.left, limit)
}

// JSON returns ErrLimit if src, a message as JSON, has more than limit commas, opening
// braces and opening brackets. Those inside strings count as well.
func JSON(src []byte, limit int) error {
	left := limit
	for _, b := range src {
		if b == ',' || b == '{' || b == '[' {
			left--
		}
	}
	return limitError(left, limit)
}

func limitError(left, limit int) error {
	if left >= 0 {
		return nil
	}
	return fmt.Errorf("%w: the message has more than %d elements", ErrLimit, limit)
}

// counter counts down to zero and below.
type counter struct{ left int }

// message counts the fields of one message. It returns false once the bytes are not
// valid or the limit is exceeded.
func (c *counter) message(src []byte, m protoreflect.MessageDescriptor, depth int) bool {
	fields := m.Fields()
	for len(src) > 0 && c.left >= 0 {
		number, kind, n := protowire.ConsumeTag(src)
		if n < 0 {
			return false
		}
		size := protowire.ConsumeFieldValue(number, kind, src[n:])
		if size < 0 {
			return false
		}
		value := src[n : n+size]
		src = src[n+size:]
		if f := fields.ByNumber(number); f != nil && !c.field(f, kind, value, depth) {
			return false
		}
	}
	return c.left >= 0
}

func (c *counter) field(f protoreflect.FieldDescriptor, kind protowire.Type, value []byte, depth int) bool {
	inner := f.Message()
	switch {
	case inner != nil && kind == protowire.BytesType:
		c.left--
		body, _ := protowire.ConsumeBytes(value) // its length was checked
		if depth < depthMax {
			return c.message(body, inner, depth+1)
		}
	case f.IsList() && kind == protowire.BytesType && f.Kind() != protoreflect.StringKind &&
		f.Kind() != protoreflect.BytesKind:
		c.left -= len(value) // packed, even if the descriptor does not say so; each element has at least one byte
	case f.IsList():
		c.left--
	}
	return c.left >= 0
}
