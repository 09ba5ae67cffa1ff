package storeapi

import (
	"errors"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec of everything but series
	"google.golang.org/grpc/mem"

	"github.com/ferula-io/ferula/internal/bufpool"
	"github.com/ferula-io/ferula/internal/invariant"
)

// connBufferBytes is what one read or write on a connection moves: a batch.
const connBufferBytes = 128 << 10

// Codec is what clients and servers of this package speak: series by hand, all
// else through protobuf's own codec. It calls itself "proto".
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2("proto")} }

// GRPCServerOptions make a grpc.Server speak Codec, with buffers that fit. Other
// services of that server do not notice.
func GRPCServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ForceServerCodecV2(Codec()), grpc.ReadBufferSize(connBufferBytes), grpc.WriteBufferSize(connBufferBytes)}
}

// GRPCDialOptions are for the connection of a Client. They are not needed for it to
// work, only to work well.
func GRPCDialOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithReadBufferSize(connBufferBytes), grpc.WithWriteBufferSize(connBufferBytes)}
}

type codec struct{ fallback encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*outFrame); ok {
		return f.take()
	}
	return c.fallback.Marshal(v)
}

// Unmarshal implements encoding.CodecV2. Data is freed by gRPC when it returns.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if f, ok := v.(*inFrame); ok {
		f.copyFrom(data)
		return nil
	}
	return c.fallback.Unmarshal(data, v)
}

// Name implements encoding.CodecV2.
func (codec) Name() string { return "proto" }

// inFrame is a received message, joined in a buffer that is used again. gRPC
// hands a message over in pieces that end anywhere, and takes them back; one copy
// makes them whole, and what is decoded may alias it.
type inFrame struct {
	buf    []byte
	labels []byte // of its series, where these were sent as numbers
}

// keepBytes is the greatest buffer that is kept for others, or for the next
// message when that one is much smaller.
const keepBytes = 1 << 20

// inFrames are frames that nobody reads any more.
var inFrames = sync.Pool{New: func() any { return &inFrame{} }}

func (f *inFrame) free() {
	f.poison()
	if cap(f.buf) <= keepBytes && cap(f.labels) <= keepBytes {
		inFrames.Put(f)
	}
}

// poison shows what still aliases a frame that is not its any more.
func (f *inFrame) poison() {
	if invariant.Enabled {
		for i := range f.buf {
			f.buf[i] = 0xDB
		}
		for i := range f.labels {
			f.labels[i] = 0xDB
		}
	}
}

func (f *inFrame) copyFrom(data mem.BufferSlice) {
	f.poison()
	size := data.Len()
	if cap(f.buf) < size || (cap(f.buf) > keepBytes && size < cap(f.buf)/8) {
		f.buf = make([]byte, 0, size+size/8)
	}
	f.buf, f.labels = f.buf[:0], f.labels[:0]
	for _, piece := range data {
		f.buf = append(f.buf, piece.ReadOnlyData()...)
	}
}

// frames are the buffers of encoded batches. gRPC gives them back when they are
// written; it asks for none.
var frames = framePool{bufpool.New(connBufferBytes+connBufferBytes/4, 2<<20)}

// framePool is a bufpool as gRPC wants it.
type framePool struct{ *bufpool.Pool }

// Get implements mem.BufferPool.
func (p framePool) Get(length int) *[]byte {
	b := p.Pool.Get()
	if cap(*b) < length {
		*b = make([]byte, length)
	}
	*b = (*b)[:length]
	return b
}

var errTaken = errors.New("an encoded batch is sent once only")

// outFrame is an encoded message on its way out. Marshalling hands its buffer
// over; a second time, as a retry or an interceptor that logs would do, fails
// instead of sending what others write by then.
type outFrame struct{ buf *[]byte }

func (f *outFrame) take() (mem.BufferSlice, error) {
	if f.buf == nil {
		return nil, errTaken
	}
	b := mem.NewBuffer(f.buf, frames)
	f.buf = nil
	return mem.BufferSlice{b}, nil
}
