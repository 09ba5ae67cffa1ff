package storeapi

import (
	"errors"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec of all messages but series
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/internal/bufpool"
	"github.com/ferula-io/ferula/internal/invariant"
	"github.com/ferula-io/ferula/internal/precheck"
)

// connBufferBytes is the size of one read or write on a connection: a batch.
const connBufferBytes = 128 << 10

// requestElementsMax limits the messages and elements of repeated fields in one request to a
// server. A push of 10,000 profiles with 50 labels each has just as many.
const requestElementsMax = 520_000

// GRPCServerOptions let a grpc.Server use this package's codec, with buffers that fit. They also limit the
// elements of a request (requestElementsMax) for every service of that server.
func GRPCServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ForceServerCodecV2(codec{encoding.GetCodecV2("proto"), requestElementsMax}),
		grpc.ReadBufferSize(connBufferBytes), grpc.WriteBufferSize(connBufferBytes), experimental.BufferPool(received)}
}

// GRPCDialOptions are the options for the connection of a Client. A Client works
// without them, but is slower.
func GRPCDialOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithReadBufferSize(connBufferBytes), grpc.WithWriteBufferSize(connBufferBytes),
		experimental.WithBufferPool(received)}
}

// codec is the codec of clients and servers. It encodes and decodes series by hand and everything else with protobuf's
// own codec.
type codec struct {
	fallback    encoding.CodecV2
	elementsMax int // of a message decoded by fallback; 0: no limit
}

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*outFrame); ok {
		return f.take()
	}
	return c.fallback.Marshal(v)
}

// Unmarshal implements encoding.CodecV2. gRPC frees data when it returns.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if f, ok := v.(*inFrame); ok {
		f.copyFrom(data)
		return nil
	}
	if m, ok := v.(proto.Message); ok && c.elementsMax > 0 && data.Len() > c.elementsMax {
		whole := data.MaterializeToBuffer(mem.DefaultBufferPool())
		defer whole.Free()
		if err := precheck.Message(whole.ReadOnlyData(), m.ProtoReflect().Descriptor(), c.elementsMax); err != nil {
			return err
		}
	}
	return c.fallback.Unmarshal(data, v)
}

// Name implements encoding.CodecV2.
func (codec) Name() string { return "proto" }

// inFrame is a received message in a pooled buffer. gRPC passes a message in pieces, which may
// end anywhere, and frees the pieces when Unmarshal returns. buf is a copy that joins the pieces.
// Decoded series may alias it.
type inFrame struct {
	buf   []byte
	arena []byte // of the Decoder: what does not alias buf
}

// cachedBytesMax is the largest buffer that is pooled, or reused for a next message
// that is much smaller.
const cachedBytesMax = 1 << 20

// inFrames is the pool of released frames.
var inFrames = sync.Pool{New: func() any { return &inFrame{} }}

func (f *inFrame) free() {
	f.poison()
	if cap(f.buf) <= cachedBytesMax && cap(f.arena) <= cachedBytesMax {
		inFrames.Put(f)
	}
}

// poison overwrites a released frame, so that tests find what still aliases it.
func (f *inFrame) poison() {
	if invariant.Enabled {
		for i := range f.buf {
			f.buf[i] = 0xDB
		}
		for i := range f.arena {
			f.arena[i] = 0xDB
		}
	}
}

func (f *inFrame) copyFrom(data mem.BufferSlice) {
	f.poison()
	size := data.Len()
	if cap(f.buf) < size || (cap(f.buf) > cachedBytesMax && size < cap(f.buf)/8) {
		f.buf = make([]byte, 0, size+size/8)
	}
	f.buf, f.arena = f.buf[:0], f.arena[:0]
	for _, piece := range data {
		f.buf = append(f.buf, piece.ReadOnlyData()...)
	}
}

// frames is the pool of buffers for encoded batches. gRPC returns them once they are
// written.
var frames = framePool{bufpool.New(connBufferBytes+connBufferBytes/4, 2<<20)}

// framePool is a bufpool with the interface of gRPC.
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

// smallFrameBytes is the size up to which a message is copied out of its buffer. gRPC queues messages by their
// bytes, so that hundreds of small ones, each in a buffer of a batch, would hold megabytes for every client that
// reads slowly.
const smallFrameBytes = 4 << 10

// smallFrames is the pool of buffers for small messages.
var smallFrames = framePool{bufpool.New(smallFrameBytes, smallFrameBytes)}

// Most bytes of a stream are in DATA frames of these lengths.
const (
	dataFrameBytes    = 16 << 10 // the longest that gRPC sends
	dataFrameMinBytes = 4 << 10  // gRPC has smaller buffers for shorter ones
)

// received is the pool of gRPC's buffers for what it receives.
var received = receivePool{mem.DefaultBufferPool(), framePool{bufpool.New(dataFrameBytes, dataFrameBytes)}}

// receivePool is gRPC's own pool, except that buffers of DATA frames are not cleared before gRPC fills them.
type receivePool struct {
	mem.BufferPool
	data framePool
}

// Get implements mem.BufferPool.
func (p receivePool) Get(length int) *[]byte {
	if length > dataFrameMinBytes && length <= dataFrameBytes {
		return p.data.Get(length)
	}
	return p.BufferPool.Get(length)
}

// Put implements mem.BufferPool.
func (p receivePool) Put(b *[]byte) {
	if cap(*b) == dataFrameBytes {
		p.data.Put(b)
		return
	}
	p.BufferPool.Put(b)
}

var errSentTwice = errors.New("an encoded batch is sent once only")

// outFrame is an encoded message to send. Marshal hands its buffer to gRPC. A second Marshal, by
// a retry or by an interceptor that logs, returns errSentTwice: by then another message may be in
// the buffer.
type outFrame struct{ buf *[]byte }

func (f *outFrame) take() (mem.BufferSlice, error) {
	if f.buf == nil {
		return nil, errSentTwice
	}
	buf := f.buf
	f.buf = nil
	if len(*buf) <= smallFrameBytes {
		small := smallFrames.Get(len(*buf))
		copy(*small, *buf)
		frames.Put(buf)
		return mem.BufferSlice{mem.NewBuffer(small, smallFrames)}, nil
	}
	return mem.BufferSlice{mem.NewBuffer(buf, frames)}, nil
}
