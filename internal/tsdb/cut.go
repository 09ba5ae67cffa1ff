package tsdb

import (
	"fmt"
	"math"
	"slices"

	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/tombstones"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/xor"
)

// cuts re-encodes the chunks of one series after the other without the samples of some intervals. The bytes are those
// that Prometheus' chunk querier returns. It reuses its iterators, and for XOR chunks also the chunks.
type cuts struct {
	intervals tombstones.Intervals // of the current series: deleted, or out of range; sorted by start
	some      tombstones.Intervals // the intervals that overlap the current chunk
	arena     []byte               // re-encoded chunks of the current series

	in, out *chunkenc.XORChunk
	empty   []byte // buffer of out
	iter    chunkenc.Iterator
	deleted tsdb.DeletedIterator
}

// undeleted removes the chunks that are deleted completely, in place.
func undeleted[C any](chunks []C, deleted tombstones.Intervals, times func(C) (minMS, maxMS int64)) []C {
	if len(deleted) == 0 {
		return chunks
	}
	return slices.DeleteFunc(chunks, func(c C) bool {
		minMS, maxMS := times(c)
		return tombstones.Interval{Mint: minMS, Maxt: maxMS}.IsSubrange(deleted)
	})
}

// begin begins a series. Its samples are cut in the deleted intervals that overlap mint to maxt, before mint if before
// is set, and behind maxt if behind is set.
func (u *cuts) begin(deleted tombstones.Intervals, mint, maxt int64, before, behind bool) {
	u.intervals, u.arena = u.intervals[:0], u.arena[:0]
	// Intervals.Add would keep them sorted, but it panics if the range ends after the first of several deletions.
	if before {
		u.intervals = append(u.intervals, tombstones.Interval{Mint: math.MinInt64, Maxt: mint - 1})
	}
	for _, interval := range deleted {
		if interval.Maxt >= mint && interval.Mint <= maxt {
			u.intervals = append(u.intervals, interval)
		}
	}
	if behind {
		u.intervals = append(u.intervals, tombstones.Interval{Mint: maxt + 1, Maxt: math.MaxInt64})
	}
}

// overlap collects the intervals that overlap a chunk, and reports whether there are any.
func (u *cuts) overlap(c series.Chunk) bool {
	u.some = u.some[:0]
	for _, interval := range u.intervals {
		if interval.Mint <= c.MaxMS && interval.Maxt >= c.MinMS {
			u.some = append(u.some, interval)
		}
	}
	return len(u.some) > 0
}

// cut re-encodes c without the intervals that overlap it. ok is false if no sample is left. The result's data aliases
// the arena.
func (u *cuts) cut(c series.Chunk) (_ series.Chunk, ok bool, err error) {
	c.Mapped = false
	if c.Encoding == chunkenc.EncXOR {
		if mint, maxt, ok := remaining(u.some); ok {
			start := len(u.arena)
			var first, last int64
			if u.arena, first, last, ok = xor.Trim(u.arena, c.Data, mint, maxt); ok {
				c.MinMS, c.MaxMS, c.Data = first, last, u.arena[start:]
				return c, true, nil
			}
		}
	}
	in, out, err := u.chunks(c)
	if err != nil {
		return c, false, err
	}
	u.iter = in.Iterator(u.iter)
	return u.encode(u.iter, out, c)
}

// remaining returns the time range outside the intervals, inclusive, in ms. ok is false if
// that is not one contiguous range.
func remaining(without tombstones.Intervals) (mint, maxt int64, ok bool) {
	mint, maxt = math.MinInt64, math.MaxInt64
	for _, interval := range without {
		switch {
		case interval.Mint == math.MinInt64 && interval.Maxt < math.MaxInt64:
			mint = max(mint, interval.Maxt+1)
		case interval.Maxt == math.MaxInt64 && interval.Mint > math.MinInt64:
			maxt = min(maxt, interval.Mint-1)
		default:
			return 0, 0, false
		}
	}
	return mint, maxt, mint <= maxt
}

// cutIterator is cut for a chunk c with hidden samples. The parameter it iterates over the visible
// samples of c.
func (u *cuts) cutIterator(it chunkenc.Iterator, c series.Chunk) (_ series.Chunk, ok bool, err error) {
	_, out, err := u.chunks(c)
	if err != nil {
		return c, false, err
	}
	return u.encode(it, out, c)
}

func (u *cuts) encode(from chunkenc.Iterator, out chunkenc.Chunk, c series.Chunk) (_ series.Chunk, ok bool, err error) {
	app, err := out.Appender()
	if err != nil {
		return c, false, err
	}
	u.deleted.Iter, u.deleted.Intervals = from, u.some
	it := &u.deleted
	kind := it.Next()
	if kind == chunkenc.ValNone {
		return c, false, it.Err()
	}
	c.MinMS = it.AtT()
	for next := kind; next != chunkenc.ValNone; next = it.Next() {
		if next != kind {
			return c, false, fmt.Errorf("%w: values of two kinds in a chunk", ErrCorrupt)
		}
		if c.MaxMS, app, err = appendSample(app, it, kind); err != nil {
			return c, false, err
		}
	}
	if err := it.Err(); err != nil {
		return c, false, err
	}
	start := len(u.arena)
	u.arena = append(u.arena, out.Bytes()...)
	c.Data = u.arena[start:]
	if c.Encoding == chunkenc.EncXOR {
		u.empty = out.Bytes()
	}
	return c, true, nil
}

// chunks returns a chunk with the data of c (in) and an empty chunk of the same encoding
// (out).
func (u *cuts) chunks(c series.Chunk) (in, out chunkenc.Chunk, err error) {
	if c.Encoding == chunkenc.EncXOR {
		if u.in == nil {
			u.in, u.out, u.empty = chunkenc.NewXORChunk(), chunkenc.NewXORChunk(), make([]byte, 0, 1024)
		}
		if len(c.Data) < 2 { // the number of samples
			return nil, nil, fmt.Errorf("%w: chunk of %d bytes", ErrCorrupt, len(c.Data))
		}
		u.in.Reset(c.Data)
		u.out.Reset(append(u.empty[:0], 0, 0)) // the number of samples: 0
		return u.in, u.out, nil
	}
	if in, err = chunkenc.FromData(c.Encoding, c.Data); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if len(c.Data) < 3 { // the number of samples and a header
		return nil, nil, fmt.Errorf("%w: chunk of %d bytes", ErrCorrupt, len(c.Data))
	}
	out, err = chunkenc.NewEmptyChunk(c.Encoding)
	return in, out, err
}

func appendSample(app chunkenc.Appender, it *tsdb.DeletedIterator,
	kind chunkenc.ValueType) (int64, chunkenc.Appender, error) {
	switch kind {
	case chunkenc.ValFloat:
		t, v := it.At()
		app.Append(it.AtST(), t, v)
		return t, app, nil
	case chunkenc.ValHistogram:
		t, h := it.AtHistogram(nil)
		_, _, app, err := app.AppendHistogram(nil, it.AtST(), t, h, true)
		return t, app, err
	case chunkenc.ValFloatHistogram:
		t, h := it.AtFloatHistogram(nil)
		_, _, app, err := app.AppendFloatHistogram(nil, it.AtST(), t, h, true)
		return t, app, err
	default:
		return 0, app, fmt.Errorf("%w: value of kind %s", ErrCorrupt, kind)
	}
}
