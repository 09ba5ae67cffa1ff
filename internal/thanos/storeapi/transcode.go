package storeapi

import (
	"fmt"

	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/storepb"
)

// supported reports whether StoreAPI has the encoding.
func supported(e chunkenc.Encoding) bool {
	return e != chunkenc.EncNone && e <= storepb.EncodingMax || e == series.Aggregated || e == series.Summarized
}

// supportedChunks re-encodes chunks whose encoding has no number in StoreAPI. The new chunks lack
// the start timestamps of the samples, which StoreAPI does not have.
func (b *batchWriter) supportedChunks(chunks []series.Chunk) ([]series.Chunk, error) {
	b.supported = b.supported[:0]
	for i, c := range chunks {
		if supported(c.Encoding) {
			b.supported = append(b.supported, c)
			continue
		}
		var err error
		if b.supported, err = appendSupported(b.supported, c); err != nil {
			return nil, fmt.Errorf("chunk %d: %w", i, err)
		}
	}
	return b.supported, nil
}

// appendSupported appends the samples of c as one chunk, or as several if the layout of
// a histogram changes.
func appendSupported(dst []series.Chunk, c series.Chunk) ([]series.Chunk, error) {
	in, err := c.Decoder()
	if err != nil {
		return dst, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	var out chunkenc.Chunk
	var app chunkenc.Appender
	var minMS, maxMS int64
	end := func() {
		if out != nil {
			dst = append(dst, series.Chunk{MinMS: minMS, MaxMS: maxMS, Encoding: out.Encoding(), Data: out.Bytes()})
		}
	}
	it := in.Iterator(nil)
	for kind := it.Next(); kind != chunkenc.ValNone; kind = it.Next() {
		if out == nil {
			if out, err = chunkenc.NewEmptyChunk(kind.ChunkEncoding(false, false)); err != nil {
				return dst, err
			}
			if app, err = out.Appender(); err != nil {
				return dst, err
			}
			minMS = it.AtT()
		}
		var next chunkenc.Chunk
		recoded := false
		t := it.AtT()
		switch kind {
		case chunkenc.ValFloat:
			_, v := it.At()
			app.Append(0, t, v)
		case chunkenc.ValHistogram:
			_, h := it.AtHistogram(nil)
			next, recoded, app, err = app.AppendHistogram(nil, 0, t, h, false)
		case chunkenc.ValFloatHistogram:
			_, h := it.AtFloatHistogram(nil)
			next, recoded, app, err = app.AppendFloatHistogram(nil, 0, t, h, false)
		}
		if err != nil {
			return dst, err
		}
		if next != nil {
			if !recoded {
				end()
				minMS = t
			}
			out = next
		}
		maxMS = t
	}
	if err := it.Err(); err != nil {
		return dst, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	end()
	return dst, nil
}
