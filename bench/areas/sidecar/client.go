package sidecar

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"time"

	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
)

// client is a client of one StoreAPI.
type client struct{ conn *grpc.ClientConn }

func dial(address string) (*client, error) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(math.MaxInt32)))
	return &client{conn}, err
}

// raw is a gRPC codec whose messages are bytes.
type raw struct{}

// Marshal implements encoding.Codec.
func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

// Unmarshal implements encoding.Codec. data is valid until it returns.
func (raw) Unmarshal(data []byte, v any) error { return v.(*message).take(data) }

// Name implements encoding.Codec.
func (raw) Name() string { return "proto" }

// message counts the bytes of received messages and passes them to read.
type message struct {
	bytes int64
	read  func([]byte) error
}

func (m *message) take(data []byte) error {
	m.bytes += int64(len(data))
	if m.read == nil {
		return nil
	}
	return m.read(data)
}

// responseStats holds the size and duration of a response.
type responseStats struct {
	messages, bytes int64
	elapsed         time.Duration
}

// drain requests all series and receives all messages. read, if not nil, is called with each of them.
func (c *client) drain(ctx context.Context, q seriesRequest, read func([]byte) error) (a responseStats, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	begun := time.Now()
	stream, err := c.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/thanos.Store/Series")
	if err != nil {
		return a, err
	}
	request := appendRequest(nil, q)
	if err := errors.Join(stream.SendMsg(&request), stream.CloseSend()); err != nil {
		return a, err
	}
	m := &message{read: read}
	for {
		if err := stream.RecvMsg(m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return a, err
		}
		a.messages++
	}
	a.bytes, a.elapsed = m.bytes, time.Since(begun)
	return a, nil
}

// appendRequest appends a request for all series of the metric in batches of 64, as Thanos' querier sends it.
func appendRequest(dst []byte, q seriesRequest) []byte {
	field := func(number protowire.Number, v uint64) {
		dst = protowire.AppendVarint(protowire.AppendTag(dst, number, protowire.VarintType), v)
	}
	field(1, uint64(q.fromMS))
	field(2, uint64(q.toMS))
	var matcher []byte
	matcher = protowire.AppendString(protowire.AppendTag(matcher, 2, protowire.BytesType), "__name__")
	matcher = protowire.AppendString(protowire.AppendTag(matcher, 3, protowire.BytesType), metric)
	dst = protowire.AppendBytes(protowire.AppendTag(dst, 3, protowire.BytesType), matcher)
	if q.labels {
		field(8, 1)
	}
	for _, name := range q.without {
		dst = protowire.AppendString(protowire.AppendTag(dst, 14, protowire.BytesType), name)
	}
	field(16, 64)
	return dst
}

// contents is the digest of a response, independent of its division into messages. With samplesOf it is independent of the
// division into chunks, too: only samples within the range of that request are hashed, because a store may send whole chunks.
type contents struct {
	series, chunks, samples int
	samplesOf               *seriesRequest
	iterator                chunkenc.Iterator // used again for each chunk
	hash                    hash.Hash
	sum                     [sha256.Size]byte
}

func (c *contents) finish() {
	if c.hash != nil {
		c.sum = [sha256.Size]byte(c.hash.Sum(nil))
	}
}

var errMessage = errors.New("unexpected message")

// fields calls each for every field of a protobuf message.
func fields(data []byte, each func(number protowire.Number, v uint64, bytes []byte) error) error {
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return errMessage
		}
		data = data[n:]
		var v uint64
		var b []byte
		switch kind {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(data)
		case protowire.BytesType:
			b, n = protowire.ConsumeBytes(data)
		default:
			n = -1
		}
		if n < 0 {
			return errMessage
		}
		if err := each(number, v, b); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// read decodes one SeriesResponse: a series or a batch of series.
func (c *contents) read(data []byte) error {
	if c.hash == nil {
		c.hash = sha256.New()
	}
	return fields(data, func(number protowire.Number, _ uint64, inner []byte) error {
		switch number {
		case 1:
			return c.one(inner)
		case 4:
			return fields(inner, func(_ protowire.Number, _ uint64, one []byte) error { return c.one(one) })
		}
		return fmt.Errorf("%w: field %d: %q", errMessage, number, inner)
	})
}

func (c *contents) one(data []byte) error {
	c.series++
	return fields(data, func(number protowire.Number, _ uint64, inner []byte) error {
		if number == 1 { // a label
			c.put(1, inner)
			return nil
		}
		c.chunks++
		if c.samplesOf != nil {
			return c.chunk(inner)
		}
		var minMS, maxMS uint64
		return fields(inner, func(number protowire.Number, v uint64, chunk []byte) error {
			switch number {
			case 1:
				minMS = v
			case 2:
				maxMS = v
			case 3:
				c.put(minMS, nil)
				c.put(maxMS, nil)
				return fields(chunk, func(number protowire.Number, v uint64, data []byte) error {
					if number == 2 || number == 1 && v > 0 { // without the optional hash
						c.put(v, data)
					}
					return nil
				})
			default:
				return fmt.Errorf("%w: chunk with field %d", errMessage, number)
			}
			return nil
		})
	})
}

// chunk decodes a chunk with its times, and hashes its samples.
func (c *contents) chunk(data []byte) error {
	return fields(data, func(number protowire.Number, _ uint64, raw []byte) error {
		if number == 1 || number == 2 {
			return nil
		}
		if number != 3 {
			return fmt.Errorf("%w: chunk with field %d", errMessage, number)
		}
		return fields(raw, func(number protowire.Number, v uint64, data []byte) error {
			if number == 1 && v != 0 {
				return fmt.Errorf("%w: chunk of encoding %d", errMessage, v)
			}
			if number != 2 {
				return nil
			}
			decoded, err := chunkenc.FromData(chunkenc.EncXOR, data)
			if err != nil {
				return err
			}
			c.iterator = decoded.Iterator(c.iterator)
			for c.iterator.Next() == chunkenc.ValFloat {
				if ms, v := c.iterator.At(); ms >= c.samplesOf.fromMS && ms <= c.samplesOf.toMS {
					c.samples++
					c.put(uint64(ms), nil)
					c.put(math.Float64bits(v), nil)
				}
			}
			return c.iterator.Err()
		})
	})
}

func (c *contents) put(v uint64, data []byte) {
	var head [16]byte
	binary.BigEndian.PutUint64(head[:], v)
	binary.BigEndian.PutUint64(head[8:], uint64(len(data)))
	c.hash.Write(head[:])
	c.hash.Write(data)
}
