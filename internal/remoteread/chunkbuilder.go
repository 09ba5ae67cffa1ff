package remoteread

import (
	"fmt"
	"math"
	"slices"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/remoteread/wire"
	"github.com/ferula-io/ferula/internal/series"
)

// chunkSamplesMax is the number of samples at which a chunk is cut, as in Prometheus' head.
const chunkSamplesMax = 120

// chunkBuilder encodes the samples of one series as chunks. A series in a response has one list
// of floats and one list of histograms, each sorted by time. So the timestamps of the calls of the
// method float must ascend, and so must those of the method histogram; otherwise the method returns
// ErrCorrupt. After reset the memory is reused for the next series.
type chunkBuilder struct {
	data   []byte
	chunks []builtChunk

	kind         chunkenc.ValueType // of the open chunk
	xor          *chunkenc.XORChunk
	xorMemory    []byte
	chunk        chunkenc.Chunk
	app          chunkenc.Appender
	samples      int // in the open chunk; 0: none is open
	minMS, maxMS int64

	lastFloatMS, lastHistogramMS int64
	overlapping                  bool // a chunk begins before the end of the chunk before: the lists overlap in time
}

// builtChunk is a finished chunk. Its data begins at offset start of chunkBuilder.data. finish
// sets Data, because data moves while it grows.
type builtChunk struct {
	series.Chunk
	start int
}

// reset prepares r for another series.
func (r *chunkBuilder) reset() {
	r.data, r.chunks = r.data[:0], r.chunks[:0]
	r.kind, r.samples, r.overlapping = chunkenc.ValNone, 0, false
	r.lastFloatMS, r.lastHistogramMS = math.MinInt64, math.MinInt64
}

// bytes returns the size of the series so far.
func (r *chunkBuilder) bytes() int { return len(r.data) + len(r.chunks)*chunkHeadBytes }

// chunkHeadBytes estimates the memory of a chunk without its data.
const chunkHeadBytes = 64

func (r *chunkBuilder) float(t int64, v float64) error {
	if t <= r.lastFloatMS {
		return fmt.Errorf("%w: a sample at %d follows one at %d", wire.ErrCorrupt, t, r.lastFloatMS)
	}
	r.lastFloatMS = t
	if r.kind != chunkenc.ValFloat || r.samples == chunkSamplesMax {
		if err := r.begin(chunkenc.ValFloat); err != nil {
			return err
		}
	}
	r.app.Append(0, t, v)
	r.count(t)
	return nil
}

func (r *chunkBuilder) histogram(p *prompb.Histogram) error {
	t := p.Timestamp
	if t <= r.lastHistogramMS {
		return fmt.Errorf("%w: a histogram at %d follows one at %d", wire.ErrCorrupt, t, r.lastHistogramMS)
	}
	r.lastHistogramMS = t
	if p.IsFloatHistogram() {
		h := p.ToFloatHistogram()
		if err := h.Validate(); err != nil {
			return fmt.Errorf("%w: histogram at %d: %w", wire.ErrCorrupt, t, err)
		}
		return r.floatHistogram(t, h)
	}
	h := p.ToIntHistogram()
	if err := h.Validate(); err != nil {
		return fmt.Errorf("%w: histogram at %d: %w", wire.ErrCorrupt, t, err)
	}
	return r.intHistogram(t, h)
}

func (r *chunkBuilder) intHistogram(t int64, h *histogram.Histogram) error {
	if r.kind != chunkenc.ValHistogram || r.samples == chunkSamplesMax {
		if err := r.begin(chunkenc.ValHistogram); err != nil {
			return err
		}
	}
	chunk, recoded, app, err := r.app.AppendHistogram(nil, 0, t, h, false)
	if err != nil {
		return fmt.Errorf("%w: histogram at %d: %w", wire.ErrCorrupt, t, err)
	}
	r.replaceChunk(chunk, recoded, app)
	r.count(t)
	return nil
}

func (r *chunkBuilder) floatHistogram(t int64, h *histogram.FloatHistogram) error {
	if r.kind != chunkenc.ValFloatHistogram || r.samples == chunkSamplesMax {
		if err := r.begin(chunkenc.ValFloatHistogram); err != nil {
			return err
		}
	}
	chunk, recoded, app, err := r.app.AppendFloatHistogram(nil, 0, t, h, false)
	if err != nil {
		return fmt.Errorf("%w: histogram at %d: %w", wire.ErrCorrupt, t, err)
	}
	r.replaceChunk(chunk, recoded, app)
	r.count(t)
	return nil
}

// replaceChunk takes the results of a histogram appender. If recoded is set, chunk is the open chunk,
// encoded again with more buckets. Otherwise chunk is a new chunk, for example after a counter
// reset, or nil if the open chunk was appended to.
func (r *chunkBuilder) replaceChunk(chunk chunkenc.Chunk, recoded bool, app chunkenc.Appender) {
	if chunk != nil {
		if !recoded {
			r.cut()
		}
		r.chunk = chunk
	}
	r.app = app
}

// count counts the sample that was appended.
func (r *chunkBuilder) count(t int64) {
	if r.samples == 0 {
		r.minMS = t
		if n := len(r.chunks); n > 0 && t <= r.chunks[n-1].MaxMS {
			r.overlapping = true
		}
	}
	r.samples++
	r.maxMS = t
}

// begin opens a chunk of the given kind.
func (r *chunkBuilder) begin(kind chunkenc.ValueType) (err error) {
	r.cut()
	r.kind = kind
	if kind == chunkenc.ValFloat {
		if r.xor == nil {
			r.xor, r.xorMemory = chunkenc.NewXORChunk(), make([]byte, 0, 2048)
		}
		r.xor.Reset(append(r.xorMemory[:0], 0, 0)) // the header of a chunk with 0 samples
		r.chunk = r.xor
	} else if r.chunk, err = chunkenc.NewEmptyChunk(kind.ChunkEncoding(false, false)); err != nil {
		return err
	}
	r.app, err = r.chunk.Appender()
	return err
}

// cut finishes the open chunk, if any.
func (r *chunkBuilder) cut() {
	if r.samples == 0 {
		return
	}
	r.chunks = append(r.chunks, builtChunk{series.Chunk{MinMS: r.minMS, MaxMS: r.maxMS, Encoding: r.chunk.Encoding()},
		len(r.data)})
	r.data = append(r.data, r.chunk.Bytes()...)
	if r.kind == chunkenc.ValFloat {
		r.xorMemory = r.chunk.Bytes()
	}
	r.samples = 0
}

// finish appends the series' chunks to dst, sorted by time. Their data is valid until
// reset.
func (r *chunkBuilder) finish(dst []series.Chunk) ([]series.Chunk, error) {
	r.cut()
	r.kind = chunkenc.ValNone
	if r.overlapping {
		woven, err := r.mergeByTime()
		if err != nil {
			return dst, err
		}
		return woven.finish(dst)
	}
	end := len(r.data)
	for i := range slices.Backward(r.chunks) {
		r.chunks[i].Data = r.data[r.chunks[i].start:end:end]
		end = r.chunks[i].start
	}
	for _, c := range r.chunks {
		dst = append(dst, c.Chunk)
	}
	return dst, nil
}

// mergeByTime merges floats and histograms by time and encodes all of them again. Few series have
// both. Of a float and a histogram with equal timestamps it keeps the float, as Prometheus' client does.
func (r *chunkBuilder) mergeByTime() (*chunkBuilder, error) {
	floats, histograms := sampleWalker{from: r, floats: true}, sampleWalker{from: r}
	kindF, kindH := floats.next(), histograms.next()
	out := &chunkBuilder{}
	out.reset()
	for kindF != chunkenc.ValNone || kindH != chunkenc.ValNone {
		var err error
		switch {
		case kindH == chunkenc.ValNone || (kindF != chunkenc.ValNone && floats.iter.AtT() <= histograms.iter.AtT()):
			t, v := floats.iter.At()
			err = out.float(t, v)
			if kindH != chunkenc.ValNone && histograms.iter.AtT() == t {
				kindH = histograms.next()
			}
			kindF = floats.next()
		case kindH == chunkenc.ValHistogram:
			t, h := histograms.iter.AtHistogram(nil)
			err = out.intHistogram(t, h)
			kindH = histograms.next()
		default:
			t, h := histograms.iter.AtFloatHistogram(nil)
			err = out.floatHistogram(t, h)
			kindH = histograms.next()
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// sampleWalker iterates over the samples in the finished chunks of a chunkBuilder: over the floats, or
// over the histograms.
type sampleWalker struct {
	from   *chunkBuilder
	floats bool
	chunk  int
	iter   chunkenc.Iterator
}

func (w *sampleWalker) next() chunkenc.ValueType {
	for {
		if w.iter != nil {
			if kind := w.iter.Next(); kind != chunkenc.ValNone {
				return kind
			}
		}
		if w.chunk == len(w.from.chunks) {
			return chunkenc.ValNone
		}
		c, end := w.from.chunks[w.chunk], len(w.from.data)
		if w.chunk++; w.chunk < len(w.from.chunks) {
			end = w.from.chunks[w.chunk].start
		}
		w.iter = nil
		if (c.Encoding == chunkenc.EncXOR) != w.floats {
			continue
		}
		// always nil: the encoding is known
		if chunk, err := chunkenc.FromData(c.Encoding, w.from.data[c.start:end]); err == nil {
			w.iter = chunk.Iterator(nil)
		}
	}
}
