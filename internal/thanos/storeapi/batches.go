package storeapi

import (
	"fmt"

	"google.golang.org/grpc"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/storepb"
	pb "github.com/ferula-io/ferula/internal/thanos/storepb/thanospb"
)

const (
	// batchBytes limits a batch of several series to one write. Larger batches are not faster.
	batchBytes = connBufferBytes - 1024
	// seriesBytes is the size at which a series is split into several with the same
	// labels, as Thanos does.
	seriesBytes = 1 << 20
	// decodedBytes limits the bytes of the labels of a batch after the client has decoded them. A repeat has a few
	// bytes and is decoded to a label set of hundreds of bytes. Decoding takes a third less time if the result fits in
	// the processor's cache.
	decodedBytes = 512 << 10
)

// batchWriter collects series into messages and sends these. It owns a buffer while a
// batch grows; SendMsg hands the buffer to gRPC.
type batchWriter struct {
	stream    grpc.ServerStream
	seriesMax int // maximum of series in a message; 1: no batches
	bytesMax  int // limit of one message
	labelsMax int // limit of the label sets of a batch, decoded; 0: none
	frame     outFrame
	count     int            // series in the buffer
	labels    int            // bytes of their label sets
	coded     bool           // the buffer holds a batch with symbols
	supported []series.Chunk // memory of supportedChunks

	numbered series.SymbolRefs     // the set, if it has symbol references; nil: no label is sent as a symbol
	deltas   bool                  // labels without symbol references are sent as deltas, not as strings
	symbols  *storepb.SymbolWriter // encodes labels as symbols and as deltas
}

// newBatchWriter returns a batchWriter for the set that serves a request.
func newBatchWriter(stream grpc.ServerStream, in *pb.SeriesRequest, set series.Set) *batchWriter {
	b := &batchWriter{stream: stream, seriesMax: 1, bytesMax: storepb.ResponseBytesMax}
	if from, ok := set.(selection); ok {
		set = from.Set
	}
	if numbered, ok := set.(series.SymbolRefs); ok && in.Extension.GetSymbols() {
		b.numbered = numbered
	}
	if b.deltas = in.Extension.GetDeltas(); b.deltas || b.numbered != nil {
		b.symbols = storepb.NewSymbolWriter()
		if kept := in.Extension.GetKeptBytes(); kept > 0 {
			b.symbols.KeepDeltas(kept)
			b.labelsMax = decodedBytes
		}
	}
	if n := max(in.ResponseBatchSize, in.Extension.GetBatchSeries()); n > 1 {
		b.seriesMax = int(min(n, 1<<20))
	}
	return b
}

// labelNumbers returns the symbol references of the current series' labels; nil if the labels are
// sent as a delta or as strings. Once the symbol table is full, it returns nil for this and all later
// series. If the reader has not requested deltas, it does so also once a series has no references:
// strings need a message of another kind, so it flushes the batch with symbols.
func (b *batchWriter) labelNumbers() ([]uint64, error) {
	if b.numbered == nil {
		return nil, nil
	}
	numbers := b.numbered.LabelRefs()
	full := b.symbols.Full()
	switch {
	case numbers != nil && !full:
		return numbers, nil
	case !b.deltas:
		b.numbered = nil
		return nil, b.flush()
	case full:
		b.numbered = nil
	}
	return nil, nil
}

// add appends a series, split if it is long.
func (b *batchWriter) add(lset []byte, chunks []series.Chunk, spans []storepb.Chunk) (err error) {
	for i := range chunks {
		if chunks[i].Encoding > storepb.EncodingMax || chunks[i].Encoding == 0 {
			if chunks, err = b.supportedChunks(chunks); err != nil {
				return fmt.Errorf("series %s: %w", labelsText(lset), err)
			}
			break
		}
	}
	numbers, err := b.labelNumbers()
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
		b.labels += len(lset)
		if b.count >= b.seriesMax || b.labelsMax > 0 && b.labels >= b.labelsMax {
			if err := b.flush(); err != nil {
				return err
			}
		}
		if chunks, spans = chunks[n:], spans[m:]; len(chunks)+len(spans) == 0 {
			return nil
		}
	}
}

// rawIsNext reports whether the next chunk by time is the first raw chunk, not the first
// span. Both lists are sorted by time. Readers drop a chunk that does not start after the end
// of the chunk before it, so all chunks of a series must be sorted together.
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

// begin appends the head of a series whose chunks take chunksSize bytes.
func (b *batchWriter) begin(lset []byte, numbers []uint64, chunksSize int) ([]byte, error) {
	switch {
	case numbers != nil:
		if err := b.reserve(storepb.SymbolSeriesSizeMax(len(lset), len(numbers), chunksSize)); err != nil {
			return nil, err
		}
		return b.symbols.AppendSeries(*b.frame.buf, lset, numbers, chunksSize)
	case b.deltas:
		if err := b.reserve(b.symbols.DeltaSeriesSizeMax(len(lset), chunksSize)); err != nil {
			return nil, err
		}
		return b.symbols.AppendDeltaSeries(*b.frame.buf, lset, chunksSize)
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
		b.coded = false
		switch {
		case b.numbered != nil || b.deltas:
			b.symbols.Begin()
			b.coded = true
			*b.frame.buf = storepb.AppendSymbolHead(*b.frame.buf)
		case b.seriesMax > 1:
			*b.frame.buf = storepb.AppendHead(*b.frame.buf)
		}
	}
	return nil
}

// flush sends the batch.
func (b *batchWriter) flush() error {
	if b.count == 0 {
		return nil
	}
	if len(*b.frame.buf)-storepb.HeadBytes > b.bytesMax {
		return fmt.Errorf("%w: a series of %d bytes exceeds the size of a message", ErrLimit, len(*b.frame.buf))
	}
	switch {
	case b.coded:
		storepb.SealSymbolBatch(*b.frame.buf)
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
