package ingest

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// protoField is a field of a message: a number, or bytes.
type protoField struct {
	number protowire.Number
	kind   protowire.Type
	n      uint64
	b      []byte
}

// protoFixed is a number of 64 bits that is encoded in 8 bytes.
type protoFixed uint64

// eachField calls f with every field of a message.
func eachField(src []byte, f func(protoField) error) error {
	for len(src) > 0 {
		var got protoField
		var n int
		if got.number, got.kind, n = protowire.ConsumeTag(src); n < 0 {
			return badRequest("invalid protobuf: %v", protowire.ParseError(n))
		}
		src = src[n:]
		switch got.kind {
		case protowire.VarintType:
			got.n, n = protowire.ConsumeVarint(src)
		case protowire.Fixed64Type:
			got.n, n = protowire.ConsumeFixed64(src)
		case protowire.BytesType:
			got.b, n = protowire.ConsumeBytes(src)
		default:
			n = protowire.ConsumeFieldValue(got.number, got.kind, src)
		}
		if n < 0 {
			return badRequest("invalid protobuf: field %d: %v", got.number, protowire.ParseError(n))
		}
		src = src[n:]
		if err := f(got); err != nil {
			return err
		}
	}
	return nil
}

func (f protoField) wrongType() error {
	return badRequest("invalid protobuf: field %d has wire type %d", f.number, f.kind)
}

// set stores a field at the target with its number, counted from 1. Fields without a target are skipped.
func (f protoField) set(targets ...any) error {
	if int(f.number) > len(targets) {
		return nil
	}
	want := protowire.VarintType
	switch targets[f.number-1].(type) {
	case nil:
		return nil
	case func([]byte) error, *[]byte, []byte:
		want = protowire.BytesType
	case *protoFixed:
		want = protowire.Fixed64Type
	}
	if f.kind != want {
		return f.wrongType()
	}
	switch to := targets[f.number-1].(type) {
	case func([]byte) error: // a message
		return to(f.b)
	case *[]byte:
		*to = f.b
	case []byte: // an ID
		if len(f.b) != 0 && len(f.b) != len(to) {
			return badRequest("invalid protobuf: an id has %d bytes, not %d", len(f.b), len(to))
		}
		clear(to)
		copy(to, f.b)
	case *int32:
		*to = protoIndex(f.n)
	case *int64:
		*to = int64(f.n)
	case *uint64:
		*to = f.n
	case *protoFixed:
		*to = protoFixed(f.n)
	}
	return nil
}

// numbers calls f with every element of a repeated number of type kind, packed or not.
func (f protoField) numbers(kind protowire.Type, each func(uint64) error) error {
	if f.kind == kind {
		return each(f.n)
	}
	if f.kind != protowire.BytesType {
		return f.wrongType()
	}
	for b := f.b; len(b) > 0; {
		v, n := protowire.ConsumeVarint(b)
		if kind == protowire.Fixed64Type {
			v, n = protowire.ConsumeFixed64(b)
		}
		if n < 0 {
			return badRequest("invalid protobuf: field %d: %v", f.number, protowire.ParseError(n))
		}
		if err := each(v); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// protoIndex converts a number to an index. A number that does not fit in 31 bits becomes -1, which no table has.
func protoIndex(n uint64) int32 {
	if n > math.MaxInt32 {
		return -1
	}
	return int32(n)
}
