package fanout

import (
	"fmt"
	"slices"
	"sync"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/xor"
	"github.com/ferula-io/ferula/internal/thanos/dedup"
)

var _ series.FloatsSet = (*asyncSeriesSet)(nil)

// AtFloats implements series.FloatsSet.
func (p *asyncSeriesSet) AtFloats() series.Floats { return p.set.current() }

// pointsMax is the limit of samples of a series that are decoded together. It is needed in addition
// to the limit of bytes, because a chunk of a constant value has four samples per byte.
const pointsMax = 4 << 20

// replicas is a pool of buffers, each for the samples of two replicas.
var replicas = sync.Pool{New: func() any { return new([2][]promql.FPoint) }}

// replicaPointsMax is the capacity, in samples, beyond which a buffer is not returned to the pool.
const replicaPointsMax = 1 << 16

// AppendFloats implements series.Floats. Float chunks that do not overlap are decoded into to. The float chunks of two
// replicas are deduplicated as arrays. All other series, such as series with downsampled chunks, are read through the
// iterators, which merge and deduplicate. ok is false if the series has histograms or more than pointsMax samples.
func (s *storedSeries) AppendFloats(to []promql.FPoint, mint, maxt int64) (_ []promql.FPoint, ok bool, err error) {
	if !slices.ContainsFunc(s.chunks, func(c series.Chunk) bool { return c.Encoding != chunkenc.EncXOR }) {
		many := series.SamplesOf(s.chunks) > pointsMax
		switch {
		case overlap(s.chunks) && !many:
			if merged, ok := s.appendReplicas(to); ok {
				return merged, true, nil
			}
		case overlap(s.chunks):
		case many:
			return to, false, nil
		default:
			to, err = s.appendChunks(to, mint, maxt)
			return to, true, err
		}
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

// Summarized implements series.Floats.
func (s *storedSeries) Summarized() []series.Chunk {
	if slices.ContainsFunc(s.chunks, series.IsSummarized) {
		return s.chunks
	}
	return nil
}

// appendReplicas appends the samples of two replicas in the range of the view, deduplicated. It returns false for other
// series. It also returns false on an error, because the iterators return the error at the sample where it occurs.
func (s *storedSeries) appendReplicas(to []promql.FPoint) ([]promql.FPoint, bool) {
	v := s.view
	if !v.replicas || v.chain {
		return to, false
	}
	points := replicas.Get().(*[2][]promql.FPoint)
	defer func() {
		if max(cap(points[0]), cap(points[1])) <= replicaPointsMax {
			replicas.Put(points)
		}
	}()
	points[0], points[1] = points[0][:0], points[1][:0]
	var ends [2]int64 // of the chunks of each replica
	known := 0
	for _, c := range s.chunks { // as split does
		i := 0
		for i < known && ends[i] >= c.MinMS {
			i++
		}
		if i == len(ends) {
			return to, false
		}
		ends[i], known = c.MaxMS, max(known, i+1)
		if !v.isCounter && (c.MaxMS < v.minMS || c.MinMS > v.maxMS) {
			continue
		}
		from, err := len(points[i]), error(nil)
		points[i], err = xor.AppendPoints(points[i], c.Data, xor.Ascending)
		if added := points[i][from:]; err != nil || len(added) > 0 &&
			(added[0].T < c.MinMS || added[len(added)-1].T > c.MaxMS) {
			return to, false
		}
	}
	return dedup.PenaltyFloats(to, points[0], points[1], v.function, v.minMS, v.maxMS), true
}

// appendChunks appends float chunks that do not overlap, as chunkIterator reads them. It reads the same chunks as the
// iterator, from mint to the first sample after maxt, so that errors are the same.
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
		to = append(to[:from], series.Within(to[from:], s.view.minMS, s.view.maxMS)...)
	}
	return to, nil
}
