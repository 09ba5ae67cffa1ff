package storeapi

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec of everything but series
	"google.golang.org/grpc/mem"
)

// Codec is what clients and servers of this package speak: series by hand, all
// else through protobuf's own codec. It calls itself "proto".
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2("proto")} }

// ServerOption makes a grpc.Server speak Codec. The other services of that
// server do not notice.
func ServerOption() grpc.ServerOption { return grpc.ForceServerCodecV2(Codec()) }

type codec struct{ fallback encoding.CodecV2 }

func (c codec) Marshal(v any) (mem.BufferSlice, error)      { return c.fallback.Marshal(v) }
func (c codec) Unmarshal(data mem.BufferSlice, v any) error { return c.fallback.Unmarshal(data, v) }
func (codec) Name() string                                  { return "proto" }
