package fanout

import (
	"errors"
	"fmt"
	"slices"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/xor"
	"github.com/ferula-io/ferula/internal/thanos/dedup"
)

// milliseconds is a timestamp. Without this alias vet would report that Seek has another signature than that of
// io.Seeker.
type milliseconds = int64

func isAggregated(c series.Chunk) bool { return c.Encoding == series.Aggregated }

// track returns an iterator over sorted chunks. The iterator skips samples that are not later than samples of previous
// chunks. pieces means that it also skips samples outside a chunk's time range. replica means that the chunks are of
// one replica, and that the caller will deduplicate the iterator.
func (v *view) track(chunks []series.Chunk, pieces, replica bool, reuse chunkenc.Iterator) chunkenc.Iterator {
	if replica && v.isCounter || v.counters && slices.ContainsFunc(chunks, isAggregated) {
		// Samples outside the range are skipped after the counter adjustment, because a reset before the first sample in
		// range counts, too.
		return &bounded{Iterator: dedup.Counter(&chunkIterator{chunks: chunks, pieces: pieces, minMS: minTime, maxMS: maxTime,
			lastMS: minTime, repeats: true}), minMS: v.minMS, maxMS: v.maxMS}
	}
	it, ok := reuse.(*chunkIterator)
	if !ok {
		it = &chunkIterator{}
	}
	it.chunks, it.pieces, it.minMS, it.maxMS, it.average, it.repeats = chunks, pieces, v.minMS, v.maxMS, v.average, false
	it.begin()
	return it
}

var (
	errNotPaired = errors.New("a downsampled chunk has a count and no sum, or a sum and no count")
	errOutside   = errors.New("samples outside its range")
)

// chunkIterator iterates over the samples of chunks within a range. It reuses its objects
// for every chunk. Float chunks are decoded completely when they are opened; others are
// read sample by sample.
type chunkIterator struct {
	chunks       []series.Chunk // not read yet
	minMS, maxMS int64
	average      bool
	repeats      bool // a sample may have the same timestamp as the previous sample, as at the end of a counter aggregate
	pieces       bool // skip samples outside a chunk's time range; false: they are an error
	cut          bool // the previous chunk was a piece of a counter whose end was not read

	// The current chunk is either in points, if it is a float chunk, or read through current.
	points    []xor.Point // the samples of a float chunk within the range
	i         int         // index of the current sample in points
	current   chunkenc.Iterator
	from, to  int64              // the time range of the chunk that is read through current
	valueType chunkenc.ValueType // of the current sample; ValNone before the first and after the last
	lastMS    int64              // timestamp of the last sample that was read before points, or through current
	err       error

	decoded []xor.Point // the samples of the whole float chunk; points is a subslice
	mean    mean        // the iterator over sums and counts; current points to it
}

func (it *chunkIterator) begin() {
	it.points, it.i, it.current, it.valueType, it.lastMS, it.err = nil, 0, nil, chunkenc.ValNone, minTime, nil
	it.cut = false
}

// Next implements chunkenc.Iterator.
func (it *chunkIterator) Next() chunkenc.ValueType {
	if i := it.i + 1; i < len(it.points) {
		it.i = i
		return chunkenc.ValFloat
	}
	it.valueType = it.advance()
	return it.valueType
}

// advance moves to the first sample after points: the next sample of current, or of the next chunk that has one.
func (it *chunkIterator) advance() chunkenc.ValueType {
	if n := len(it.points); n > 0 {
		it.lastMS = it.points[n-1].T
		it.points, it.i = nil, 0
	}
	for it.err == nil {
		if it.current == nil {
			if !it.open() {
				break
			}
			if len(it.points) > 0 {
				return chunkenc.ValFloat
			}
			continue
		}
		vt := it.current.Next()
		if vt == chunkenc.ValNone {
			if it.err = it.current.Err(); it.err != nil {
				it.err = fmt.Errorf("%w: %w", series.ErrCorrupt, it.err)
			}
			it.current = nil
			continue
		}
		t := it.current.AtT()
		switch {
		case it.pieces && (t < it.from || t > it.to):
			continue
		case t < it.from || t > it.to:
			it.err, it.current = fmt.Errorf("%w: %w", series.ErrCorrupt, errOutside), nil
		case t > it.maxMS:
			it.chunks, it.current = nil, nil
			return chunkenc.ValNone
		case t <= it.lastMS && !it.repeats:
			continue // not later than the last sample of a previous chunk
		case t >= it.minMS:
			it.lastMS = t
			return vt
		}
	}
	return chunkenc.ValNone
}

// open opens the next chunk that overlaps the range. The chunk may still have no sample within the range. open returns
// false after the last chunk and after an error.
func (it *chunkIterator) open() bool {
	for len(it.chunks) > 0 && it.chunks[0].MaxMS < it.minMS {
		it.chunks = it.chunks[1:]
	}
	if len(it.chunks) == 0 || it.chunks[0].MinMS > it.maxMS {
		it.chunks = nil
		return false
	}
	c := it.chunks[0]
	it.chunks = it.chunks[1:]
	if it.err = it.use(c); it.err != nil {
		it.err = fmt.Errorf("%w: chunk from %d to %d: %w", series.ErrCorrupt, c.MinMS, c.MaxMS, it.err)
		return false
	}
	return true
}

// use makes c the current chunk. Of a downsampled chunk it reads the only aggregate, or the sums divided by the counts.
func (it *chunkIterator) use(c series.Chunk) error {
	if c.Encoding != series.Aggregated {
		return it.useOne(c, false)
	}
	var room [series.PartsMax]series.Part
	parts, err := c.AppendParts(room[:0])
	if err != nil {
		return err
	}
	var count, other series.Part // other is the sum, or the only aggregate
	for _, p := range parts {
		if it.average && p.Aggr == series.Count {
			count = p
		} else {
			other = p
		}
	}
	if !it.average {
		return it.useOne(series.Chunk{MinMS: c.MinMS, MaxMS: c.MaxMS, Encoding: other.Encoding, Data: other.Data}, true)
	}
	if count.Encoding == 0 || other.Encoding == 0 {
		return errNotPaired
	}
	if err := it.beginMean(count, other); err != nil {
		return err
	}
	if it.from, it.to = minTime, maxTime; it.pieces {
		it.from, it.to = c.MinMS, c.MaxMS
	}
	return nil
}

// useOne makes c, a chunk of samples or of one aggregate, the current chunk. Samples of a raw chunk outside the
// chunk's time range are an error, unless c is a piece. An aggregate may have such samples.
func (it *chunkIterator) useOne(c series.Chunk, aggregate bool) error {
	switch {
	case c.Encoding == chunkenc.EncXOR:
		order := xor.Ascending
		if it.repeats {
			order = xor.NotDescending
		}
		points, err := xor.AppendPoints(it.decoded[:0], c.Data, order)
		it.decoded = points
		if err != nil {
			return err
		}
		if it.pieces {
			points = it.piece(points, c, aggregate)
		} else if n := len(points); !aggregate && n > 0 && (points[0].T < c.MinMS || points[n-1].T > c.MaxMS) {
			return errOutside
		}
		least := it.minMS
		if !it.repeats && it.lastMS >= least {
			least = it.lastMS + 1 // samples up to lastMS were read from previous chunks
		}
		for len(points) > 0 && points[0].T < least {
			points = points[1:]
		}
		for len(points) > 0 && points[len(points)-1].T > it.maxMS {
			points = points[:len(points)-1]
		}
		it.points, it.i = points, 0
		return nil
	}
	chunk, err := c.Decoder()
	if err != nil {
		return err
	}
	it.current, it.from, it.to = chunk.Iterator(nil), c.MinMS, c.MaxMS
	if aggregate && !it.pieces {
		it.from, it.to = minTime, maxTime
	}
	return nil
}

// decoder returns one aggregate of a downsampled chunk as a chunk with iterators.
func decoder(of series.Part) (chunkenc.Chunk, error) {
	return series.Chunk{Encoding: of.Encoding, Data: of.Data}.Decoder()
}

// beginMean opens the counts and sums of a downsampled chunk.
func (it *chunkIterator) beginMean(count, sum series.Part) error {
	counts, err := decoder(count)
	if err != nil {
		return err
	}
	sums, err := decoder(sum)
	if err != nil {
		return err
	}
	it.mean = mean{Iterator: sums.Iterator(nil), counts: counts.Iterator(nil)}
	it.current = &it.mean
	return nil
}

// Seek implements chunkenc.Iterator.
func (it *chunkIterator) Seek(t milliseconds) chunkenc.ValueType {
	if it.valueType != chunkenc.ValNone && it.AtT() >= t {
		return it.valueType
	}
	if n := len(it.points); n > 0 {
		if it.points[n-1].T >= t {
			for it.i++; it.points[it.i].T < t; it.i++ {
			}
			return it.valueType
		}
		it.i = n - 1 // all samples of this chunk are before t
	}
	for it.current == nil && len(it.chunks) > 1 && it.chunks[0].MaxMS < t {
		it.chunks = it.chunks[1:]
	}
	for {
		if vt := it.Next(); vt == chunkenc.ValNone || it.AtT() >= t {
			return vt
		}
	}
}

// At implements chunkenc.Iterator.
func (it *chunkIterator) At() (int64, float64) {
	if i := it.i; i < len(it.points) {
		return it.points[i].T, it.points[i].F
	}
	if it.current == nil {
		return it.lastMS, 0 // at the end
	}
	return it.current.At()
}

// AtHistogram implements chunkenc.Iterator.
func (it *chunkIterator) AtHistogram(h *histogram.Histogram) (int64, *histogram.Histogram) {
	return it.current.AtHistogram(h)
}

// AtFloatHistogram implements chunkenc.Iterator.
func (it *chunkIterator) AtFloatHistogram(h *histogram.FloatHistogram) (int64, *histogram.FloatHistogram) {
	return it.current.AtFloatHistogram(h)
}

// AtT implements chunkenc.Iterator.
func (it *chunkIterator) AtT() int64 {
	if i := it.i; i < len(it.points) {
		return it.points[i].T
	}
	return it.lastMS
}

// AtST implements chunkenc.Iterator: start timestamps are not sent by stores.
func (it *chunkIterator) AtST() int64 { return 0 }

// Err implements chunkenc.Iterator.
func (it *chunkIterator) Err() error { return it.err }

// mean is an iterator over the sums of a downsampled chunk, divided by the counts of the chunk. Iterator has the sums.
type mean struct {
	chunkenc.Iterator
	counts chunkenc.Iterator
	err    error
}

// Next implements chunkenc.Iterator.
func (m *mean) Next() chunkenc.ValueType {
	vt, counts := m.Iterator.Next(), m.counts.Next()
	switch {
	case vt == chunkenc.ValNone && counts == chunkenc.ValNone:
		if m.err = m.Iterator.Err(); m.err == nil {
			m.err = m.counts.Err()
		}
		return chunkenc.ValNone
	case vt == chunkenc.ValNone || counts != chunkenc.ValFloat || m.Iterator.AtT() != m.counts.AtT():
		m.err = errors.New("sums and counts have different timestamps")
		return chunkenc.ValNone
	case vt == chunkenc.ValHistogram:
		return chunkenc.ValFloatHistogram
	}
	return vt
}

// At implements chunkenc.Iterator.
func (m *mean) At() (int64, float64) {
	t, sum := m.Iterator.At()
	_, n := m.counts.At()
	return t, sum / n
}

// AtFloatHistogram implements chunkenc.Iterator.
func (m *mean) AtFloatHistogram(h *histogram.FloatHistogram) (int64, *histogram.FloatHistogram) {
	t, sum := m.Iterator.AtFloatHistogram(h)
	_, n := m.counts.At()
	return t, sum.Div(n)
}

// Err implements chunkenc.Iterator.
func (m *mean) Err() error { return m.err }

// bounded skips samples outside minMS to maxMS, both inclusive.
type bounded struct {
	chunkenc.Iterator
	minMS, maxMS int64
	begun        bool
}

// Next implements chunkenc.Iterator.
func (b *bounded) Next() chunkenc.ValueType {
	if !b.begun {
		b.begun = true
		return b.within(b.Iterator.Seek(b.minMS))
	}
	return b.within(b.Iterator.Next())
}

// Seek implements chunkenc.Iterator.
func (b *bounded) Seek(t milliseconds) chunkenc.ValueType {
	b.begun = true
	return b.within(b.Iterator.Seek(max(t, b.minMS)))
}

func (b *bounded) within(vt chunkenc.ValueType) chunkenc.ValueType {
	if vt == chunkenc.ValNone || b.AtT() > b.maxMS {
		return chunkenc.ValNone
	}
	return vt
}
