package storeapi

import (
	"fmt"

	"google.golang.org/grpc"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/storepb"
	pb "github.com/ferula-io/ferula/internal/thanos/storepb/thanospb"
)

const (
	// batchBytes limits a batch of several series to one write. Larger batches are not faster.
	batchBytes = connBufferBytes - 1024
	// seriesBytes is the size at which a series is split into several with the same
	// labels, as Thanos does.
	seriesBytes = 1 << 20
	// decodedBytes limits the bytes of the labels of a batch after the client has decoded them. A delta has a few
	// bytes and is decoded to a label set of hundreds of bytes. Decoding takes a third less time if the result fits in
	// the processor's cache.
	decodedBytes = 512 << 10
)

// batchWriter collects series into messages and sends these. It owns a buffer while a
// batch grows; SendMsg hands the buffer to gRPC.
type batchWriter struct {
	stream    grpc.ServerStream
	seriesMax int                  // maximum of series in a message; 1: no batches
	bytesMax  int                  // limit of one message
	deltas    *storepb.DeltaWriter // nil: labels are sent whole
	frame     outFrame
	count     int            // series in the buffer
	labels    int            // bytes of their label sets
	supported []series.Chunk // memory of supportedChunks
	wanted    series.Aggrs   // aggregates that are sent
	parts     []series.Part  // memory of partsOf
	chunks    []outChunk     // memory of add
}

// outChunk is what is sent of a chunk: parts, and the bytes of its message.
type outChunk struct {
	minMS, maxMS int64
	parts        []series.Part
	size         int
}

// newBatchWriter returns a batchWriter for the response to a request.
func newBatchWriter(stream grpc.ServerStream, in *pb.SeriesRequest) *batchWriter {
	b := &batchWriter{stream: stream, seriesMax: 1, bytesMax: storepb.ResponseBytesMax}
	for _, a := range in.Aggregates {
		b.wanted = b.wanted.With(Aggr(a))
	}
	if in.Extension.GetDeltas() {
		b.deltas = &storepb.DeltaWriter{}
	}
	if n := max(in.ResponseBatchSize, in.Extension.GetBatchSeries()); n > 1 {
		b.seriesMax = int(min(n, 1<<20))
	}
	return b
}

// partsOf returns what is sent of a chunk, which it appends to b.parts. It returns nothing for a downsampled chunk
// without wanted aggregates.
func (b *batchWriter) partsOf(c *series.Chunk) (parts []series.Part, err error) {
	start := len(b.parts)
	b.parts, err = c.AppendParts(b.parts)
	parts = b.parts[start:]
	if c.Encoding == series.Aggregated {
		parts = b.wanted.Of(parts)
	}
	return parts, err
}

// add appends a series, split if it is long.
func (b *batchWriter) add(lset []byte, chunks []series.Chunk) (err error) {
	for i := range chunks {
		if !supported(chunks[i].Encoding) {
			if chunks, err = b.supportedChunks(chunks); err != nil {
				return fmt.Errorf("series %s: %w", labelenc.Text(lset), err)
			}
			break
		}
	}
	for {
		size, n := 0, 0
		b.parts, b.chunks = b.parts[:0], b.chunks[:0]
		for ; n < len(chunks) && (n == 0 || size < seriesBytes); n++ {
			c := &chunks[n]
			parts, err := b.partsOf(c)
			if err != nil {
				return fmt.Errorf("series %s: %w", labelenc.Text(lset), err)
			}
			if len(parts) > 0 {
				body := storepb.ChunkSize(c.MinMS, c.MaxMS, parts)
				b.chunks = append(b.chunks, outChunk{c.MinMS, c.MaxMS, parts, body})
				size += storepb.FieldSize(body)
			}
		}
		buf, err := b.begin(lset, size)
		if err != nil {
			return err
		}
		for i := range b.chunks {
			c := &b.chunks[i]
			buf = storepb.AppendChunk(buf, c.size, c.minMS, c.maxMS, c.parts)
		}
		*b.frame.buf = buf
		b.count++
		b.labels += len(lset)
		if b.count >= b.seriesMax || b.deltas != nil && b.labels >= decodedBytes {
			if err := b.flush(); err != nil {
				return err
			}
		}
		if chunks = chunks[n:]; len(chunks) == 0 {
			return nil
		}
	}
}

// begin appends the head of a series whose chunks take chunksSize bytes.
func (b *batchWriter) begin(lset []byte, chunksSize int) ([]byte, error) {
	if b.deltas != nil {
		if err := b.reserve(b.deltas.SeriesSizeMax(len(lset), chunksSize)); err != nil {
			return nil, err
		}
		return b.deltas.AppendSeries(*b.frame.buf, lset, chunksSize)
	}
	if err := b.reserve(storepb.SeriesSize(len(lset), chunksSize)); err != nil {
		return nil, err
	}
	return storepb.AppendSeriesHead(*b.frame.buf, lset, chunksSize), nil
}

// reserve flushes the batch if size more bytes do not fit into it, and begins a batch if there is
// none.
func (b *batchWriter) reserve(size int) error {
	if b.count > 0 && len(*b.frame.buf)+size > batchBytes {
		if err := b.flush(); err != nil {
			return err
		}
	}
	if b.frame.buf == nil {
		b.frame.buf = frames.Pool.Get()
		switch {
		case b.deltas != nil:
			b.deltas.Begin()
			*b.frame.buf = storepb.AppendDeltaHead(*b.frame.buf)
		case b.seriesMax > 1:
			*b.frame.buf = storepb.AppendHead(*b.frame.buf)
		}
	}
	return nil
}

func (b *batchWriter) flush() error {
	if b.count == 0 {
		return nil
	}
	if len(*b.frame.buf)-storepb.HeadBytes > b.bytesMax {
		return fmt.Errorf("%w: a series of %d bytes exceeds the size of a message", ErrLimit, len(*b.frame.buf))
	}
	switch {
	case b.deltas != nil:
		storepb.SealDeltaBatch(*b.frame.buf)
	case b.seriesMax > 1:
		storepb.SealBatch(*b.frame.buf)
	}
	b.count, b.labels = 0, 0
	return b.stream.SendMsg(&b.frame)
}

// warn sends a warning in a message of its own.
func (b *batchWriter) warn(text string) error {
	b.free()
	b.frame.buf = frames.Pool.Get()
	*b.frame.buf = storepb.AppendWarning(*b.frame.buf, text)
	return b.stream.SendMsg(&b.frame)
}

// free returns an unsent buffer to the pool.
func (b *batchWriter) free() {
	if b.frame.buf != nil {
		frames.Put(b.frame.buf)
		b.frame.buf = nil
	}
	b.count, b.labels = 0, 0
}
