package api

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/internal/precheck"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
)

// elementsMax is the limit of messages and elements of repeated fields in a request. It is
// enough for pushProfilesMax profiles with 50 labels each. Without this limit a push of 300
// KB of gzip decodes to gigabytes.
const elementsMax = 52 * pushProfilesMax

// jsonElementsMax is elementsMax for JSON, in which each label has two fields.
const jsonElementsMax = 2 * elementsMax

// protoCodec decodes requests with generated code. Large responses encode themselves.
type protoCodec struct{}

func (protoCodec) Name() string { return "proto" }

func (c protoCodec) Marshal(m any) ([]byte, error) { return c.MarshalAppend(nil, m) }

// MarshalAppend is an optional method of connect's codecs: connect then reuses buffers.
func (protoCodec) MarshalAppend(dst []byte, m any) ([]byte, error) {
	switch m := m.(type) {
	case profilepb.Encoder:
		return m.AppendProto(dst), nil
	case proto.Message:
		return proto.MarshalOptions{}.MarshalAppend(dst, m)
	}
	return nil, fmt.Errorf("no protobuf encoding of %T", m)
}

func (protoCodec) Unmarshal(b []byte, m any) error {
	if m, ok := m.(proto.Message); ok {
		if err := precheck.Message(b, m.ProtoReflect().Descriptor(), elementsMax); err != nil {
			return err
		}
		return proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, m)
	}
	return fmt.Errorf("no protobuf encoding of %T", m)
}

// jsonCodec is protoCodec for protobuf's JSON mapping. It ignores unknown fields, as
// protobuf does: clients may be newer.
type jsonCodec struct{ name string }

func (c jsonCodec) Name() string { return c.name }

func (c jsonCodec) Marshal(m any) ([]byte, error) { return c.MarshalAppend(nil, m) }

// MarshalAppend is an optional method of connect's codecs.
func (jsonCodec) MarshalAppend(dst []byte, m any) ([]byte, error) {
	switch m := m.(type) {
	case profilepb.Encoder:
		return m.AppendJSON(dst), nil
	case proto.Message:
		return protojson.MarshalOptions{}.MarshalAppend(dst, m)
	}
	return nil, fmt.Errorf("no JSON encoding of %T", m)
}

func (jsonCodec) Unmarshal(b []byte, m any) error {
	message, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("no JSON encoding of %T", m)
	}
	if len(b) == 0 {
		b = []byte("{}") // `curl -d ''` for a request without fields
	}
	if err := precheck.JSON(b, jsonElementsMax); err != nil {
		return err
	}
	return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, message)
}
