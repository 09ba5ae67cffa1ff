package storeapi

import (
	"fmt"

	"google.golang.org/grpc"

	"github.com/ferula-io/ferula/internal/codec/storepb"
	pb "github.com/ferula-io/ferula/internal/codec/storepb/thanospb"
	"github.com/ferula-io/ferula/internal/series"
)

const (
	// batchBytes is where a batch ends: more gains nothing, and it fits into one
	// write.
	batchBytes = connBufferBytes - 1024
	// seriesBytes is where a long series is split into several with the same
	// labels, as Thanos does.
	seriesBytes = 1 << 20
)

// batches collects series into messages and sends these. A buffer is borrowed
// while a batch grows, and then belongs to gRPC.
type batches struct {
	stream    grpc.ServerStream
	seriesMax int
	bytesMax  int // of a message
	frame     outFrame
	count     int
	coded     bool           // the buffer is a batch of symbols
	spare     []series.Chunk // for chunks that must be encoded anew

	numbered series.SymbolRefs     // nil: labels are spelled out
	symbols  *storepb.SymbolWriter // of what it numbers
}

// newBatches makes batches for what a request's set gives.
func newBatches(stream grpc.ServerStream, in *pb.SeriesRequest, set series.Set) *batches {
	b := &batches{stream: stream, seriesMax: 1, bytesMax: storepb.ResponseBytesMax}
	if from, ok := set.(selection); ok {
		set = from.Set
	}
	if numbered, ok := set.(series.SymbolRefs); ok && in.Extension.GetSymbols() {
		b.numbered, b.symbols = numbered, storepb.NewSymbolWriter()
	}
	if n := max(in.ResponseBatchSize, in.Extension.GetBatchSeries()); n > 1 {
		b.seriesMax = int(min(n, 1<<20))
	}
	return b
}

// numbers are those of the current series' labels; nil from when there are none,
// or too many.
func (b *batches) numbers() ([]uint64, error) {
	if b.numbered == nil {
		return nil, nil
	}
	numbers := b.numbered.LabelNumbers()
	if numbers == nil || b.symbols.Full() {
		b.numbered = nil
		return nil, b.flush()
	}
	return numbers, nil
}

// add adds a series.
func (b *batches) add(lset []byte, chunks []series.Chunk, spans []storepb.Chunk) (err error) {
	for i := range chunks {
		if chunks[i].Encoding > storepb.EncodingMax || chunks[i].Encoding == 0 {
			if chunks, err = b.known(chunks); err != nil {
				return fmt.Errorf("series %s: %w", textOf(lset), err)
			}
			break
		}
	}
	numbers, err := b.numbers()
	if err != nil {
		return err
	}
	for {
		size, n, m := 0, 0, 0
		for n < len(chunks) || m < len(spans) {
			if n+m > 0 && size >= seriesBytes {
				break
			}
			if rawIsNext(chunks[n:], spans[m:]) {
				c := &chunks[n]
				size += storepb.ChunkSize(c.MinMS, c.MaxMS, uint8(c.Encoding), len(c.Data))
				n++
			} else {
				span := storepb.SpanLen(spans[m:])
				size += storepb.SpanSize(spans[m : m+span])
				m += span
			}
		}
		buf, err := b.begin(lset, numbers, size)
		if err != nil {
			return err
		}
		*b.frame.buf = appendChunks(buf, chunks[:n], spans[:m])
		b.count++
		if b.count >= b.seriesMax {
			if err := b.flush(); err != nil {
				return err
			}
		}
		if chunks, spans = chunks[n:], spans[m:]; len(chunks)+len(spans) == 0 {
			return nil
		}
	}
}

// rawIsNext says whether the next of two lists in order of time is a raw chunk. Readers
// rely on the order of all chunks of a series: what is not after the end of the chunk
// before they leave out.
func rawIsNext(chunks []series.Chunk, spans []storepb.Chunk) bool {
	return len(spans) == 0 || len(chunks) > 0 && chunks[0].MinMS <= spans[0].MinMS
}

func appendChunks(buf []byte, chunks []series.Chunk, spans []storepb.Chunk) []byte {
	for len(chunks)+len(spans) > 0 {
		if rawIsNext(chunks, spans) {
			c := &chunks[0]
			buf = storepb.AppendChunk(buf, c.MinMS, c.MaxMS, uint8(c.Encoding), c.Data)
			chunks = chunks[1:]
			continue
		}
		span := storepb.SpanLen(spans)
		buf = storepb.AppendSpan(buf, spans[:span])
		spans = spans[span:]
	}
	return buf
}

// begin appends the labels of a series whose chunks take that many bytes.
func (b *batches) begin(lset []byte, numbers []uint64, chunksSize int) ([]byte, error) {
	if b.numbered == nil {
		if err := b.room(storepb.SeriesSize(len(lset), chunksSize)); err != nil {
			return nil, err
		}
		return storepb.AppendSeriesHead(*b.frame.buf, lset, chunksSize), nil
	}
	if err := b.room(storepb.RoomFor(len(lset), len(numbers), chunksSize)); err != nil {
		return nil, err
	}
	return b.symbols.AppendSeries(*b.frame.buf, lset, numbers, chunksSize)
}

// room sees to it that there is a buffer with room for size bytes.
func (b *batches) room(size int) error {
	if b.count > 0 && len(*b.frame.buf)+size > batchBytes {
		if err := b.flush(); err != nil {
			return err
		}
	}
	if b.frame.buf == nil {
		b.frame.buf = frames.Pool.Get()
		b.coded = false
		switch {
		case b.numbered != nil:
			b.symbols.Begin()
			b.coded = true
			*b.frame.buf = storepb.AppendSymbolHead(*b.frame.buf)
		case b.seriesMax > 1:
			*b.frame.buf = storepb.AppendHead(*b.frame.buf)
		}
	}
	return nil
}

// flush sends what was collected.
func (b *batches) flush() error {
	if b.count == 0 {
		return nil
	}
	if len(*b.frame.buf)-storepb.HeadBytes > b.bytesMax {
		return fmt.Errorf("%w: a series of %d bytes fits into no message", ErrLimit, len(*b.frame.buf))
	}
	switch {
	case b.coded:
		storepb.SealSymbolBatch(*b.frame.buf)
	case b.seriesMax > 1:
		storepb.SealBatch(*b.frame.buf)
	}
	b.count = 0
	return b.stream.SendMsg(&b.frame)
}

// warn sends a warning, which travels alone.
func (b *batches) warn(text string) error {
	b.free()
	b.frame.buf = frames.Pool.Get()
	*b.frame.buf = storepb.AppendWarning(*b.frame.buf, text)
	return b.stream.SendMsg(&b.frame)
}

// free gives back what was not sent.
func (b *batches) free() {
	if b.frame.buf != nil {
		frames.Put(b.frame.buf)
		b.frame.buf = nil
	}
	b.count = 0
}
