package block

import (
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress"
	"github.com/parquet-go/parquet-go/format"
)

// zstdWriters pools encoders of sections, pageWriters encoders of pages (both *zstd.Encoder), and zstdReaders
// *zstd.Decoder. The garbage collector frees unused elements of these pools.
var zstdWriters, zstdReaders, pageWriters sync.Pool

// An encoder keeps a window of memory, by default of 16 MiB, into which it copies its input. The windows here are
// smaller. Most sections are still shorter than windowBytes, and all pages are shorter than pageWindowBytes.
const (
	windowBytes     = 2 << 20
	pageWindowBytes = 512 << 10
)

func newEncoder() (*zstd.Encoder, error) {
	return zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBetterCompression), zstd.WithEncoderConcurrency(1),
		zstd.WithWindowSize(windowBytes), zstd.WithLowerEncoderMem(true))
}

func newPageEncoder() (*zstd.Encoder, error) {
	return zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithEncoderConcurrency(1),
		zstd.WithWindowSize(pageWindowBytes), zstd.WithLowerEncoderMem(true),
		zstd.WithZeroFrames(true), zstd.WithEncoderCRC(false))
}

// appendCompressed appends a section as zstd.
func appendCompressed(dst, b []byte) ([]byte, error) {
	return encodeAll(&zstdWriters, newEncoder, dst, b)
}

// encodeAll appends b as zstd, with an encoder of the pool or a new one.
func encodeAll(pool *sync.Pool, create func() (*zstd.Encoder, error), dst, b []byte) ([]byte, error) {
	w, ok := pool.Get().(*zstd.Encoder)
	if !ok {
		var err error
		if w, err = create(); err != nil {
			return nil, err
		}
	}
	defer pool.Put(w)
	return w.EncodeAll(b, dst), nil
}

// decompressIn returns the content of b in the memory of dst, if its capacity suffices. If the content has more than
// bytesMax bytes, it returns zstd.ErrDecoderSizeExceeded and allocates no more than bytesMax bytes.
func decompressIn(dst, b []byte, bytesMax int) ([]byte, error) {
	if dst == nil || cap(dst) < bytesMax {
		dst = make([]byte, 0, bytesMax)
	}
	r, ok := zstdReaders.Get().(*zstd.Decoder)
	if !ok {
		var err error
		if r, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(sectionMax),
			zstd.WithDecodeAllCapLimit(true)); err != nil {
			return nil, err
		}
	}
	defer zstdReaders.Put(r)
	return r.DecodeAll(b, dst[:0:bytesMax])
}

// pages compresses the pages of RowsFile, with a smaller window than parquet-go's codec (16 MiB).
type pages struct{}

var _ compress.Codec = pages{}

// String implements compress.Codec.
func (pages) String() string { return parquet.Zstd.String() }

// CompressionCodec implements compress.Codec.
func (pages) CompressionCodec() format.CompressionCodec { return format.Zstd }

// Encode implements compress.Codec.
func (pages) Encode(dst, src []byte) ([]byte, error) {
	return encodeAll(&pageWriters, newPageEncoder, dst[:0], src)
}

// Decode implements compress.Codec.
func (pages) Decode(dst, src []byte) ([]byte, error) { return parquet.Zstd.Decode(dst, src) }
