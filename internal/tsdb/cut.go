package tsdb

import (
	"fmt"
	"math"

	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/tombstones"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/xor"
)

// cutter re-encodes chunks without the samples of some intervals. The bytes are those that
// Prometheus' chunk querier returns. A cutter reuses its iterators between calls, and for XOR
// chunks also the chunks.
type cutter struct {
	in, out *chunkenc.XORChunk
	empty   []byte // buffer of out
	iter    chunkenc.Iterator
	deleted tsdb.DeletedIterator
}

// cut appends the data of c without the intervals to arena. ok is false if no sample is
// left. The result's data aliases the returned arena.
func (u *cutter) cut(c series.Chunk, without tombstones.Intervals,
	arena []byte) (_ series.Chunk, _ []byte, ok bool, err error) {
	if c.Encoding == chunkenc.EncXOR {
		if mint, maxt, ok := remaining(without); ok {
			start := len(arena)
			var first, last int64
			if arena, first, last, ok = xor.Trim(arena, c.Data, mint, maxt); ok {
				c.MinMS, c.MaxMS, c.Data = first, last, arena[start:]
				return c, arena, true, nil
			}
		}
	}
	in, out, err := u.chunks(c)
	if err != nil {
		return c, arena, false, err
	}
	u.iter = in.Iterator(u.iter)
	return u.encode(u.iter, out, c, without, arena)
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
func (u *cutter) cutIterator(it chunkenc.Iterator, c series.Chunk, without tombstones.Intervals,
	arena []byte) (_ series.Chunk, _ []byte, ok bool, err error) {
	_, out, err := u.chunks(c)
	if err != nil {
		return c, arena, false, err
	}
	return u.encode(it, out, c, without, arena)
}

func (u *cutter) encode(from chunkenc.Iterator, out chunkenc.Chunk, c series.Chunk, without tombstones.Intervals,
	arena []byte) (_ series.Chunk, _ []byte, ok bool, err error) {
	app, err := out.Appender()
	if err != nil {
		return c, arena, false, err
	}
	u.deleted.Iter, u.deleted.Intervals = from, without
	it := &u.deleted
	kind := it.Next()
	if kind == chunkenc.ValNone {
		return c, arena, false, it.Err()
	}
	c.MinMS = it.AtT()
	for next := kind; next != chunkenc.ValNone; next = it.Next() {
		if next != kind {
			return c, arena, false, fmt.Errorf("%w: values of two kinds in a chunk", ErrCorrupt)
		}
		if c.MaxMS, app, err = appendSample(app, it, kind); err != nil {
			return c, arena, false, err
		}
	}
	if err := it.Err(); err != nil {
		return c, arena, false, err
	}
	start := len(arena)
	arena = append(arena, out.Bytes()...)
	c.Data = arena[start:]
	if c.Encoding == chunkenc.EncXOR {
		u.empty = out.Bytes()
	}
	return c, arena, true, nil
}

// chunks returns a chunk with the data of c (in) and an empty chunk of the same encoding
// (out).
func (u *cutter) chunks(c series.Chunk) (in, out chunkenc.Chunk, err error) {
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
