package remoteread

import (
	"encoding/binary"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// ErrCorrupt is returned for invalid bytes.
var ErrCorrupt = errors.New("corrupt remote read message")

// Wire types of protobuf.
const (
	wireVarint  = 0
	wireFixed64 = 1
	wireBytes   = 2
	wireFixed32 = 5
)

// field is one decoded field of a message.
type field struct {
	number int
	wire   int
	value  uint64 // of varint and fixed-size fields
	bytes  []byte // value of length-delimited fields; aliases the message
}

func nextField(src []byte) (f field, rest []byte, err error) {
	number, wire, n := protowire.ConsumeTag(src)
	if n < 0 {
		return f, nil, fmt.Errorf("%w: truncated or invalid field tag", ErrCorrupt)
	}
	f.number, f.wire, src = int(number), int(wire), src[n:]
	switch f.wire {
	case wireVarint:
		f.value, n = protowire.ConsumeVarint(src)
	case wireFixed64:
		f.value, n = protowire.ConsumeFixed64(src)
	case wireFixed32:
		var v uint32
		v, n = protowire.ConsumeFixed32(src)
		f.value = uint64(v)
	case wireBytes:
		f.bytes, n = protowire.ConsumeBytes(src)
	default:
		return f, nil, fmt.Errorf("%w: field %d has wire type %d", ErrCorrupt, f.number, f.wire)
	}
	if n < 0 {
		return f, nil, fmt.Errorf("%w: field %d is cut short", ErrCorrupt, f.number)
	}
	return f, src[n:], nil
}

// is returns an error unless the field has this wire type.
func (f field) is(wire int) error {
	if f.wire != wire {
		return fmt.Errorf("%w: field %d has wire type %d, not %d", ErrCorrupt, f.number, f.wire, wire)
	}
	return nil
}

// appendVarint appends a varint field, or nothing for 0, as proto3 does.
func appendVarint(dst []byte, number int, v uint64) []byte {
	if v == 0 {
		return dst
	}
	return binary.AppendUvarint(append(dst, byte(number<<3|wireVarint)), v)
}
