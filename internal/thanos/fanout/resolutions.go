package fanout

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/xor"
)

// The resolutions of downsampled blocks, 5m and 1h. A chunk in a response does not name its
// resolution.
const (
	fineMS   int64 = 300_000
	coarseMS int64 = 3_600_000
)

// span is a time range, inclusive.
type span struct{ minMS, maxMS int64 }

// window returns the time range of the samples that an aggregate at timestamp t contains. It begins at a multiple of
// the resolution and ends at t. Most aggregates are at the last millisecond of an interval: with a resolution of 5m,
// 299,999 ms contains the samples from 0 to 299,999 ms. The last aggregate of a chunk may be at the timestamp of the
// last sample.
func window(t, resolution int64) span {
	offset := t % resolution
	if offset < 0 {
		offset += resolution
	}
	return span{t - offset, t}
}

// mayMix reports whether sorted chunks may contain the same samples at different resolutions. It is a
// cheap check without decoding: if it returns false, distinct need not be computed.
func (v *view) mayMix(chunks []series.Chunk) bool {
	packed, raw, overlaps, resolution := false, false, false, fineMS
	if v.coarse {
		resolution = coarseMS
	}
	last := chunks[0].MinMS - 1 // greatest MaxMS of the previous chunks
	for _, c := range chunks {
		begin := c.MinMS // of a downsampled chunk: start of the window of its first aggregate
		if isAggregated(c) {
			begin, packed = window(begin, resolution).minMS, true
		} else {
			raw = true
		}
		overlaps = overlaps || c.MinMS > chunks[0].MinMS && begin <= last || c.MinMS <= last
		last = max(last, c.MaxMS)
	}
	return overlaps && packed && (raw || v.coarse)
}

// stamped is a downsampled chunk with the timestamps of its aggregates.
type stamped struct {
	chunk      series.Chunk
	points     []xor.Point
	resolution int64 // ms; 0: not known yet
}

// distinct returns the chunks of a series without the samples that a coarser aggregate also contains. It omits raw
// samples within the window of any aggregate, and 5m aggregates that overlap the window of a 1h aggregate.
//
// Example: a raw chunk has samples from 0 to 60 min, and a chunk of 5m aggregates covers 30 to 40 min. distinct returns
// the chunk of aggregates, and two pieces of the raw chunk: from 0 to 30 min and from 40 to 60 min. Each piece has
// the data of the whole raw chunk, and its MinMS and MaxMS are the time range to read.
//
// cut is false if the chunks are returned unchanged. A chunk that cannot be decoded is returned, too: its iterator
// returns the error.
func (v *view) distinct(chunks []series.Chunk) (pieces []series.Chunk, cut bool, err error) {
	if len(chunks) < 2 || !slices.ContainsFunc(chunks, isAggregated) || !v.mayMix(chunks) {
		return chunks, false, nil
	}
	stamps := 0
	var windows, hours []span // of all aggregates, and of the 1h aggregates
	var downsampled []stamped
	for _, c := range chunks {
		if points := appendStamps(nil, c); len(points) > 0 {
			if stamps += len(points); stamps > stampsMax {
				return nil, false, fmt.Errorf("%w: a series has more than %d aggregates", series.ErrCorrupt, stampsMax)
			}
			downsampled = append(downsampled, stamped{c, points, v.resolutionOf(points, c)})
		} else if isAggregated(c) {
			pieces = append(pieces, c)
		}
	}
	resolve(downsampled)
	for _, k := range downsampled {
		for _, p := range k.points {
			if p.T > v.maxMS {
				break // this aggregate is not read, so it replaces no samples
			}
			w := window(p.T, k.resolution)
			if windows = append(windows, w); k.resolution == coarseMS {
				hours = append(hours, w)
			}
		}
	}
	windows, hours = disjoint(windows), disjoint(hours)
	for _, k := range downsampled {
		if k.resolution == coarseMS {
			pieces = k.appendPieces(pieces, nil)
		} else {
			pieces = k.appendPieces(pieces, hours)
		}
	}
	for _, c := range chunks {
		if !isAggregated(c) {
			if pieces = appendOutside(pieces, c, windows); len(pieces) > piecesMax {
				return nil, false, fmt.Errorf("%w: the chunks of a series overlap in more than %d pieces",
					series.ErrCorrupt, piecesMax)
			}
		}
	}
	slices.SortStableFunc(pieces, series.CompareChunks)
	return pieces, true, nil
}

// Limits of the memory of distinct for one series. Two replicas of ten years have two million aggregates.
const (
	stampsMax = 4 << 20
	piecesMax = 1 << 20
)

// from returns the sorted spans that end at or after ms.
func from(spans []span, ms int64) []span {
	i, _ := slices.BinarySearchFunc(spans, ms, func(s span, ms int64) int { return cmp.Compare(s.maxMS, ms) })
	return spans[i:]
}

// resolve sets the resolution of chunks whose timestamps do not determine it. Such a chunk gets the resolution of
// the chunk that ends in the window before its begin. If there is no such chunk, it gets the resolution of the
// previous chunk, and the first chunks get the first known resolution. If no resolution is known it is 1h, so that
// no sample is read twice.
func resolve(chunks []stamped) {
	last := coarseMS
	type end struct{ resolution, nextMS int64 } // resolution of a chunk, and start of the window after its last aggregate
	ends := map[end]int{}                       // index of the last chunk with such an end
	if i := slices.IndexFunc(chunks, func(k stamped) bool { return k.resolution > 0 }); i >= 0 {
		last = chunks[i].resolution
	}
	for i := range chunks {
		if c := &chunks[i]; c.resolution == 0 {
			c.resolution = last
			before := -1
			for _, resolution := range []int64{fineMS, coarseMS} {
				if at, ok := ends[end{resolution, window(c.chunk.MinMS, resolution).minMS}]; ok && at > before {
					before, c.resolution = at, resolution
				}
			}
		}
		last = chunks[i].resolution
		ends[end{last, window(chunks[i].chunk.MaxMS, last).minMS + last}] = i
	}
}

// appendPieces appends the pieces of a downsampled chunk that do not overlap the hidden spans. hidden are the
// windows of coarser aggregates, sorted. A piece ends at a gap between aggregates, because finer samples may be in
// the gap.
func (k stamped) appendPieces(pieces []series.Chunk, hidden []span) []series.Chunk {
	open := false
	for i, p := range k.points {
		w := window(p.T, k.resolution)
		if i == 0 {
			hidden = from(hidden, w.minMS)
		}
		for len(hidden) > 0 && hidden[0].maxMS < w.minMS {
			hidden = hidden[1:]
		}
		if len(hidden) > 0 && hidden[0].minMS <= w.maxMS {
			open = false
			continue
		}
		if !open || w.minMS > k.points[i-1].T+1 {
			c := k.chunk
			c.MinMS = p.T
			pieces, open = append(pieces, c), true
		}
		pieces[len(pieces)-1].MaxMS = p.T
	}
	return pieces
}

// appendOutside appends the pieces of a raw chunk that are outside the hidden spans.
func appendOutside(pieces []series.Chunk, c series.Chunk, hidden []span) []series.Chunk {
	for _, s := range from(hidden, c.MinMS) {
		if s.minMS > c.MaxMS || len(pieces) > piecesMax {
			break
		}
		if s.minMS > c.MinMS {
			before := c
			before.MaxMS = s.minMS - 1
			pieces = append(pieces, before)
		}
		if s.maxMS >= c.MaxMS {
			return pieces
		}
		c.MinMS = max(c.MinMS, s.maxMS+1)
	}
	return append(pieces, c)
}

// resolutionOf returns the resolution of a chunk in ms; 0 if its timestamps do not determine it. All 1h aggregates
// are at the last millisecond of an hour, except the last aggregate of a chunk and the first aggregate of a counter.
// A chunk with another exception has the resolution 5m.
func (v *view) resolutionOf(points []xor.Point, c series.Chunk) int64 {
	if !v.coarse {
		return fineMS
	}
	n := 0
	for _, p := range points {
		switch {
		case p.T < c.MinMS || p.T >= c.MaxMS:
		case window(p.T, coarseMS).minMS != p.T-coarseMS+1:
			if !v.counters || p.T != points[0].T {
				return fineMS
			}
		default:
			n++
		}
	}
	if n == 0 {
		return 0
	}
	return coarseMS
}

// disjoint sorts spans in place, and returns a copy in which adjacent and overlapping spans are
// joined.
func disjoint(spans []span) []span {
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.minMS, b.minMS) })
	all := spans[:0]
	for _, s := range spans {
		if n := len(all); n > 0 && s.minMS <= all[n-1].maxMS+1 {
			all[n-1].maxMS = max(all[n-1].maxMS, s.maxMS)
			continue
		}
		all = append(all, s)
	}
	return slices.Clone(all)
}

// appendStamps appends the timestamps of a downsampled chunk's first aggregate.
func appendStamps(dst []xor.Point, c series.Chunk) []xor.Point {
	if !isAggregated(c) {
		return dst
	}
	var room [series.PartsMax]series.Part
	parts, err := c.AppendParts(room[:0])
	if err != nil || len(parts) == 0 {
		return dst
	}
	one := parts[0]
	if one.Encoding == chunkenc.EncXOR {
		points, err := xor.AppendPoints(dst, one.Data, xor.NotDescending)
		if err != nil {
			return dst
		}
		return points
	}
	chunk, err := decoder(one)
	if err != nil {
		return dst
	}
	for it := chunk.Iterator(nil); it.Next() != chunkenc.ValNone; {
		dst = append(dst, xor.Point{T: it.AtT()})
	}
	return dst
}

// piece returns the points of a chunk within the time range of c.
//
// Of a counter it also makes the point from whose value the counter adjustment continues. dedup.Counter does not
// return a sample at the timestamp of the previous sample, but compares the next sample with it. So piece gives the
// timestamp of the last sample that was read to one point: to the point before the piece, if the piece does not
// begin with its chunk; else to the first point of the piece, if the end of the previous piece was cut off.
func (it *chunkIterator) piece(points []xor.Point, c series.Chunk, aggregate bool) []xor.Point {
	from, to := 0, len(points)
	for from < to && points[from].T < c.MinMS {
		from++
	}
	for to > from && points[to-1].T > c.MaxMS {
		to--
	}
	if from == to || !it.repeats {
		return points[from:to]
	}
	switch later := it.lastMS != minTime; {
	case later && aggregate && from > 0:
		from--
		points[from].T = it.lastMS
	case later && it.cut && points[from].T > it.lastMS:
		points[from].T = it.lastMS
	}
	it.cut = aggregate && to < len(points)
	return points[from:to]
}
