package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"github.com/ferula-io/ferula/bench/stores"
	"github.com/ferula-io/ferula/bench/streams"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/storepb"
)

// noopCodec copies bytes without decoding them.
type noopCodec struct{}

type message struct{ bytes []byte }

func (noopCodec) Name() string { return "proto" }

func (noopCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.(*message).bytes)}, nil
}

func (noopCodec) Unmarshal(data mem.BufferSlice, v any) error {
	v.(*counted).bytes += data.Len()
	return nil
}

type counted struct{ bytes int }

// messageBytes is the length of a message, as in ferula's StoreAPI.
const messageBytes = 127 << 10

func partsOf(c series.Chunk) []series.Part {
	return []series.Part{{Encoding: c.Encoding, Data: c.Data}}
}

// noop moves the series in encoded messages of 128 KiB, with buffers of that size on both sides.
func noop(t streams.Task, held []stores.Series) (streams.Figures, error) {
	var messages []*message
	total := 0
	buf := storepb.AppendHead(nil)
	flush := func() {
		storepb.SealBatch(buf)
		messages = append(messages, &message{buf})
		total += len(buf)
		buf = storepb.AppendHead(make([]byte, 0, messageBytes))
	}
	for _, s := range held {
		size := 0
		for _, c := range s.Chunks {
			size += storepb.FieldSize(storepb.ChunkSize(c.MinMS, c.MaxMS, partsOf(c)))
		}
		if len(buf)+storepb.SeriesSize(len(s.Labels), size) > messageBytes {
			flush()
		}
		buf = storepb.AppendSeriesHead(buf, s.Labels, size)
		for _, c := range s.Chunks {
			parts := partsOf(c)
			buf = storepb.AppendChunk(buf, storepb.ChunkSize(c.MinMS, c.MaxMS, parts), c.MinMS, c.MaxMS, parts)
		}
	}
	flush()
	handler := func(_ any, stream grpc.ServerStream) error {
		if err := stream.RecvMsg(&counted{}); err != nil {
			return err
		}
		for _, m := range messages {
			if err := stream.SendMsg(m); err != nil {
				return err
			}
		}
		return nil
	}
	register := func(s *grpc.Server) {
		s.RegisterService(&grpc.ServiceDesc{ServiceName: "noop", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{StreamName: "Stream", Handler: handler, ServerStreams: true}}}, struct{}{})
	}
	c, err := connect(t, register, []grpc.ServerOption{grpc.ForceServerCodecV2(noopCodec{}), grpc.ReadBufferSize(128 << 10), grpc.WriteBufferSize(128 << 10)})
	if err != nil {
		return streams.Figures{}, err
	}
	defer c.close()
	once := func() error {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		stream, err := c.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/noop/Stream", grpc.ForceCodecV2(noopCodec{}))
		if err != nil {
			return err
		}
		if err := errors.Join(stream.SendMsg(&message{[]byte{1}}), stream.CloseSend()); err != nil {
			return err
		}
		got := counted{}
		for {
			if err := stream.RecvMsg(&got); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return err
			}
		}
		if got.bytes != total {
			return fmt.Errorf("received %d of %d bytes", got.bytes, total)
		}
		return nil
	}
	return streams.Measure(c.listener, t.Repeats, once)
}
