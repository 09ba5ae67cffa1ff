package promcompat

import (
	"github.com/klauspost/compress/zstd"

	"github.com/ferula-io/ferula/metrics"
)

// zstdWindowBytes bounds the memory of an encoder, and the memory that a scraper needs to decode
// a response.
const zstdWindowBytes = 1 << 20

// Zstd returns the content coding zstd for metrics.HandlerOptions.Compressors. It is in this
// module because package metrics depends on the standard library only.
func Zstd() metrics.Compressor {
	return metrics.Compressor{Coding: "zstd", New: func() metrics.CompressWriter {
		// Without concurrency an encoder has no goroutines, so the pool may drop it without a Close.
		w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(zstdWindowBytes),
			zstd.WithLowerEncoderMem(true))
		if err != nil {
			panic("BUG: " + err.Error()) // the options are valid
		}
		return w
	}}
}
