package api

import (
	stdgzip "compress/gzip"
	"fmt"
	"io"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/internal/precheck"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
	"github.com/ferula-io/ferula/promjson/gzip"
)

// elementsMax is the limit of messages and elements of repeated fields in a request. It is
// enough for pushProfilesMax profiles with 50 labels each. Without this limit a push of 300
// KB of gzip decodes to gigabytes.
const elementsMax = 52 * pushProfilesMax

// jsonElementsMax is elementsMax for JSON, in which each label has two fields.
const jsonElementsMax = 2 * elementsMax

// codec decodes requests with generated code, and ignores unknown fields: clients may be newer. Large responses encode
// themselves.
type codec struct {
	name      string
	encode    func(m profilepb.Encoder, dst []byte) []byte
	marshal   func(dst []byte, m proto.Message) ([]byte, error)
	unmarshal func(b []byte, m proto.Message) error
}

// codecs are the handler options for the encodings of messages. Responses are compressed by the writer that also
// compresses responses of metrics: with exemplars it needs a fraction of the CPU of the standard library's.
func codecs() []connect.HandlerOption {
	protobuf := codec{"proto", profilepb.Encoder.AppendProto, proto.MarshalOptions{}.MarshalAppend, unmarshalProto}
	json := codec{"json", profilepb.Encoder.AppendJSON, protojson.MarshalOptions{}.MarshalAppend, unmarshalJSON}
	utf8 := json
	utf8.name = "json; charset=utf-8"
	return []connect.HandlerOption{connect.WithCodec(protobuf), connect.WithCodec(json), connect.WithCodec(utf8),
		connect.WithCompression("gzip", func() connect.Decompressor { return &stdgzip.Reader{} },
			func() connect.Compressor { return gzip.NewWriter(io.Discard) })}
}

func unmarshalProto(b []byte, m proto.Message) error {
	if err := precheck.Message(b, m.ProtoReflect().Descriptor(), elementsMax); err != nil {
		return err
	}
	return proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, m)
}

func unmarshalJSON(b []byte, m proto.Message) error {
	if len(b) == 0 {
		b = []byte("{}") // `curl -d ''` for a request without fields
	}
	if err := precheck.JSON(b, jsonElementsMax); err != nil {
		return err
	}
	return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, m)
}

func (c codec) Name() string { return c.name }

func (c codec) Marshal(m any) ([]byte, error) { return c.MarshalAppend(nil, m) }

// MarshalAppend is an optional method of connect's codecs: connect then reuses buffers.
func (c codec) MarshalAppend(dst []byte, m any) ([]byte, error) {
	switch m := m.(type) {
	case profilepb.Encoder:
		return c.encode(m, dst), nil
	case proto.Message:
		return c.marshal(dst, m)
	}
	return nil, fmt.Errorf("no encoding of %T as %s", m, c.name)
}

func (c codec) Unmarshal(b []byte, m any) error {
	message, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("no encoding of %T as %s", m, c.name)
	}
	return c.unmarshal(b, message)
}
