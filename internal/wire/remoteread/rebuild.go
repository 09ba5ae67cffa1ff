package remoteread

import (
	"fmt"
	"math"
	"slices"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	codec "github.com/ferula-io/ferula/internal/codec/remoteread"
	"github.com/ferula-io/ferula/internal/series"
)

// chunkSamplesMax is where a chunk ends, as in Prometheus' head.
const chunkSamplesMax = 120

// rebuilder makes chunks of one series' samples. Those come in the order of time,
// floats among themselves and histograms among themselves, since the protocol has
// a list for either. Its memory is used again for the next series.
type rebuilder struct {
	data   []byte
	chunks []builtChunk

	kind         chunkenc.ValueType // of the chunk that is open
	xor          *chunkenc.XORChunk
	xorMemory    []byte
	chunk        chunkenc.Chunk
	app          chunkenc.Appender
	samples      int // in it; 0: none is open
	minMS, maxMS int64

	lastFloatMS, lastHistogramMS int64
	interwoven                   bool // one list began before the other had ended
}

// builtChunk is a finished chunk; its data begins at start, and is set at the
// end, since it moves as it grows.
type builtChunk struct {
	series.Chunk
	start int
}

// reset forgets the series.
func (r *rebuilder) reset() {
	r.data, r.chunks = r.data[:0], r.chunks[:0]
	r.kind, r.samples, r.interwoven = chunkenc.ValNone, 0, false
	r.lastFloatMS, r.lastHistogramMS = math.MinInt64, math.MinInt64
}

// bytes is what the series takes so far.
func (r *rebuilder) bytes() int { return len(r.data) + len(r.chunks)*chunkHeadBytes }

// chunkHeadBytes is about what a chunk takes beside its data.
const chunkHeadBytes = 64

func (r *rebuilder) float(t int64, v float64) error {
	if t <= r.lastFloatMS {
		return fmt.Errorf("%w: a sample at %d comes after one at %d", codec.ErrCorrupt, t, r.lastFloatMS)
	}
	r.lastFloatMS = t
	if r.kind != chunkenc.ValFloat || r.samples == chunkSamplesMax {
		if err := r.begin(chunkenc.ValFloat); err != nil {
			return err
		}
	}
	r.app.Append(0, t, v)
	r.added(t)
	return nil
}

func (r *rebuilder) histogram(p *prompb.Histogram) error {
	t := p.Timestamp
	if t <= r.lastHistogramMS {
		return fmt.Errorf("%w: a histogram at %d comes after one at %d", codec.ErrCorrupt, t, r.lastHistogramMS)
	}
	r.lastHistogramMS = t
	if p.IsFloatHistogram() {
		h := p.ToFloatHistogram()
		if err := h.Validate(); err != nil {
			return fmt.Errorf("%w: histogram at %d: %w", codec.ErrCorrupt, t, err)
		}
		return r.floatHistogram(t, h)
	}
	h := p.ToIntHistogram()
	if err := h.Validate(); err != nil {
		return fmt.Errorf("%w: histogram at %d: %w", codec.ErrCorrupt, t, err)
	}
	return r.intHistogram(t, h)
}

func (r *rebuilder) intHistogram(t int64, h *histogram.Histogram) error {
	if r.kind != chunkenc.ValHistogram || r.samples == chunkSamplesMax {
		if err := r.begin(chunkenc.ValHistogram); err != nil {
			return err
		}
	}
	chunk, recoded, app, err := r.app.AppendHistogram(nil, 0, t, h, false)
	if err != nil {
		return fmt.Errorf("%w: histogram at %d: %w", codec.ErrCorrupt, t, err)
	}
	r.took(chunk, recoded, app)
	r.added(t)
	return nil
}

func (r *rebuilder) floatHistogram(t int64, h *histogram.FloatHistogram) error {
	if r.kind != chunkenc.ValFloatHistogram || r.samples == chunkSamplesMax {
		if err := r.begin(chunkenc.ValFloatHistogram); err != nil {
			return err
		}
	}
	chunk, recoded, app, err := r.app.AppendFloatHistogram(nil, 0, t, h, false)
	if err != nil {
		return fmt.Errorf("%w: histogram at %d: %w", codec.ErrCorrupt, t, err)
	}
	r.took(chunk, recoded, app)
	r.added(t)
	return nil
}

// took follows an appender of histograms, which may have written its chunk anew
// with more buckets, or have begun another one because of a counter's reset.
func (r *rebuilder) took(chunk chunkenc.Chunk, recoded bool, app chunkenc.Appender) {
	if chunk != nil {
		if !recoded {
			r.cut()
		}
		r.chunk = chunk
	}
	r.app = app
}

// added counts the sample that was appended.
func (r *rebuilder) added(t int64) {
	if r.samples == 0 {
		r.minMS = t
		if n := len(r.chunks); n > 0 && t <= r.chunks[n-1].MaxMS {
			r.interwoven = true
		}
	}
	r.samples++
	r.maxMS = t
}

// begin opens a chunk of that kind.
func (r *rebuilder) begin(kind chunkenc.ValueType) (err error) {
	r.cut()
	r.kind = kind
	if kind == chunkenc.ValFloat {
		if r.xor == nil {
			r.xor, r.xorMemory = chunkenc.NewXORChunk(), make([]byte, 0, 2048)
		}
		r.xor.Reset(append(r.xorMemory[:0], 0, 0)) // exactly the number of samples: none
		r.chunk = r.xor
	} else if r.chunk, err = chunkenc.NewEmptyChunk(kind.ChunkEncoding(false, false)); err != nil {
		return err
	}
	r.app, err = r.chunk.Appender()
	return err
}

// cut finishes the open chunk, if there is one.
func (r *rebuilder) cut() {
	if r.samples == 0 {
		return
	}
	r.chunks = append(r.chunks, builtChunk{series.Chunk{MinMS: r.minMS, MaxMS: r.maxMS, Encoding: r.chunk.Encoding()}, len(r.data)})
	r.data = append(r.data, r.chunk.Bytes()...)
	if r.kind == chunkenc.ValFloat {
		r.xorMemory = r.chunk.Bytes()
	}
	r.samples = 0
}

// finish appends the series' chunks to dst in the order of time; their data is
// valid until reset.
func (r *rebuilder) finish(dst []series.Chunk) ([]series.Chunk, error) {
	r.cut()
	r.kind = chunkenc.ValNone
	if r.interwoven {
		woven, err := r.weave()
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

// weave brings floats and histograms into one order of time, encoding all anew:
// series that have both are few. Where both have a time the float is taken, as
// Prometheus' client does.
func (r *rebuilder) weave() (*rebuilder, error) {
	floats, histograms := walker{from: r, floats: true}, walker{from: r}
	kindF, kindH := floats.next(), histograms.next()
	out := &rebuilder{}
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

// walker goes through the finished samples of one list.
type walker struct {
	from   *rebuilder
	floats bool
	chunk  int
	iter   chunkenc.Iterator
}

func (w *walker) next() chunkenc.ValueType {
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
		if chunk, err := chunkenc.FromData(c.Encoding, w.from.data[c.start:end]); err == nil { // they are our own
			w.iter = chunk.Iterator(nil)
		}
	}
}
