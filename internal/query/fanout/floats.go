package fanout

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/codec/xor"
	"github.com/ferula-io/ferula/internal/series"
)

var _ series.FloatsSet = (*asyncSeriesSet)(nil)

// AtFloats implements series.FloatsSet.
func (p *asyncSeriesSet) AtFloats() series.Floats { return p.set.current() }

// pointsMax is the limit of samples of a series that are decoded together. Chunks of a constant have
// four samples a byte: the limit of their bytes does not bound their samples.
const pointsMax = 4 << 20

// samplesOf returns how many samples chunks have by their headers.
func samplesOf(chunks []series.Chunk) (n int) {
	for _, c := range chunks {
		if len(c.Data) >= 2 {
			n += int(binary.BigEndian.Uint16(c.Data))
		}
	}
	return n
}

// AppendFloats implements series.Floats. Float chunks of one replica are decoded into to; all others
// go through the iterators that merge and deduplicate. A series with very many samples is left to them, too.
func (s *storedSeries) AppendFloats(to []promql.FPoint, mint, maxt int64) (_ []promql.FPoint, ok bool, err error) {
	if !slices.ContainsFunc(s.chunks, func(c series.Chunk) bool { return c.Encoding != chunkenc.EncXOR }) && !overlap(s.chunks) {
		if samplesOf(s.chunks) > pointsMax {
			return to, false, nil
		}
		to, err = s.appendChunks(to, mint, maxt)
		return to, true, err
	}
	it := s.Iterator(nil)
	for kind := it.Seek(mint); kind != chunkenc.ValNone && it.AtT() <= maxt; kind = it.Next() {
		if kind != chunkenc.ValFloat || len(to) > pointsMax {
			return to, false, nil
		}
		t, f := it.At()
		to = append(to, promql.FPoint{T: t, F: f})
	}
	return to, true, it.Err()
}

// appendChunks does what chunkIterator does for float chunks that do not overlap. It reads the chunks
// that the iterator reads from mint to the first sample after maxt, so that errors are the same.
func (s *storedSeries) appendChunks(to []promql.FPoint, mint, maxt int64) ([]promql.FPoint, error) {
	first := len(to)
	for i, c := range s.chunks {
		if c.MaxMS < s.view.minMS || c.MaxMS < mint && i < len(s.chunks)-1 {
			continue
		}
		if n := len(to); c.MinMS > s.view.maxMS || n > first && to[n-1].T > maxt {
			break
		}
		from, err := len(to), error(nil)
		to, err = xor.AppendPoints(to, c.Data, xor.Ascending)
		n := len(to)
		if err == nil && n > from && (to[from].T < c.MinMS || to[n-1].T > c.MaxMS) {
			err = errOutside
		}
		if err != nil {
			return to, fmt.Errorf("%w: chunk from %d to %d: %w", series.ErrCorrupt, c.MinMS, c.MaxMS, err)
		}
		for n > from && to[n-1].T > s.view.maxMS {
			n--
		}
		skip := from
		for skip < n && to[skip].T < s.view.minMS {
			skip++
		}
		to = append(to[:from], to[skip:n]...)
	}
	return to, nil
}
