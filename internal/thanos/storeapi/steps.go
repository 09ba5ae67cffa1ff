package storeapi

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/invariant"
	"github.com/ferula-io/ferula/internal/series"
	floats "github.com/ferula-io/ferula/internal/series/xor"
)

// samplesPerStep is the number of samples that a chunk must have for each step within it to be encoded again. With
// fewer samples the decoding and encoding here would cost more than the client saves.
const samplesPerStep = 3

// joinedSamples is the number of samples at which a joined chunk is complete: Prometheus' chunks have as many.
const joinedSamples = 120

// stepLeastMS is the least step at which chunks may be without a step, so that summaries are looked for: most have 120
// samples.
const stepLeastMS = 10 * 60_000

// stepsFilter removes samples that the steps of a request do not need. What remains of a chunk depends on the request,
// the chunk and those joined with it alone: equal chunks of several stores stay equal, and the client can drop all but
// one of them. Of the chunks that begin in one span of joinMS a store has all or none, if it has whole blocks.
type stepsFilter struct {
	steps  series.Steps
	joinMS int64 // SeriesRequest.JoinMS

	minMS, maxMS int64 // of the request
	within       []series.Chunk
	edges        []byte // the data of chunks that were cut

	points []floats.Point // the needed samples of the chunks that become one
	data   []byte
	chunks []series.Chunk
}

// stepsSummaries are the summaries that are enough for a stepsFilter: of chunks of which it would send one sample. Only if
// no other store may have the same chunks, one may begin before the request's range, where the other would cut it, and
// they may be of several chunks or of parts.
func stepsSummaries(r SeriesRequest) *series.Summaries {
	s := &series.Summaries{Windows: series.Windows{Ends: *r.Steps, MinMS: r.MinMS, MaxMS: r.MaxMS, Whole: true},
		Fits: func(s *series.Summary) bool { return s.Count >= 2*samplesPerStep }}
	if r.JoinMS == JoinAny {
		s.MinMS, s.Fits = math.MinInt64, nil
	}
	return s
}

// stepsFilter returns nil if the request needs all samples, or if the stores behind the source remove samples.
func (s *Server) stepsFilter(r SeriesRequest) *stepsFilter {
	if s.src.Capabilities().ForwardsSteps || r.Steps == nil || r.SkipChunks {
		return nil
	}
	return &stepsFilter{steps: *r.Steps, joinMS: r.JoinMS, minMS: r.MinMS, maxMS: r.MaxMS}
}

// cut returns the chunks without float samples outside the request's range. Prometheus cuts the chunks that a sidecar
// reads from it, so those of a store with the same blocks would differ, and overlap. The result is valid as long as
// the result of thin.
func (f *stepsFilter) cut(chunks []series.Chunk) []series.Chunk {
	edge := func(c series.Chunk) bool {
		return c.Encoding == chunkenc.EncXOR && (c.MinMS < f.minMS || c.MaxMS > f.maxMS)
	}
	if !slices.ContainsFunc(chunks, edge) {
		return chunks
	}
	f.within, f.edges = f.within[:0], f.edges[:0]
	for _, c := range chunks {
		if edge(c) {
			points, err := floats.AppendPoints(f.points[:0], c.Data, floats.Ascending)
			f.points = points[:0]
			if n := len(points); err == nil && n > 0 && points[0].T >= c.MinMS && points[n-1].T <= c.MaxMS {
				from, _ := slices.BinarySearchFunc(points, f.minMS, compareTime)
				to, found := slices.BinarySearchFunc(points, f.maxMS, compareTime)
				if found {
					to++
				}
				if from >= to {
					continue
				}
				start := len(f.edges)
				f.edges = floats.AppendChunk(f.edges, points[from:to])
				c = series.Chunk{MinMS: points[from].T, MaxMS: points[to-1].T, Encoding: c.Encoding, Data: f.edges[start:]}
			}
		}
		f.within = append(f.within, c)
	}
	return f.within
}

func compareTime(p floats.Point, ms int64) int { return cmp.Compare(p.T, ms) }

// thin returns chunks with the needed samples. They keep the time ranges of the whole chunks, so that the client sees
// which chunks overlap. They are valid until the next call of thin, and as long as the given chunks.
func (f *stepsFilter) thin(chunks []series.Chunk) []series.Chunk {
	f.chunks, f.data = f.chunks[:0], f.data[:0]
	from := 0 // points has what is needed of chunks[from:i]
	for i, c := range chunks {
		if i > from && !f.joins(chunks[from:i], c) {
			f.encode(chunks[from:i])
			from = i
		}
		if !f.add(c) {
			f.encode(chunks[from:i])
			f.chunks = append(f.chunks, c)
			from = i + 1
		}
	}
	f.encode(chunks[from:])
	return f.chunks
}

// joins reports whether the needed samples of a chunk may be in one chunk with the samples of the chunks before.
func (f *stepsFilter) joins(before []series.Chunk, c series.Chunk) bool {
	first, last := before[0], before[len(before)-1]
	return f.joinMS > 0 && first.MinMS/f.joinMS == c.MinMS/f.joinMS &&
		len(f.points) < joinedSamples && c.MinMS > last.MaxMS && c.MaxMS-first.MinMS > 0 // or it overflows
}

// add adds the needed samples of a chunk. It returns false if the whole chunk must be sent: because it has no
// floats, because most of its samples are needed, or because it is corrupt, which the client shall report as it does
// without steps.
func (f *stepsFilter) add(c series.Chunk) bool {
	before := len(f.points)
	if series.IsSummarized(c) {
		s, err := c.Summary()
		invariant.Check(err == nil, "summary of a source: %v", err)
		f.points = append(f.points, floats.Point{T: c.MaxMS, F: s.Last})
		f.drop(before)
		return true
	}
	if c.Encoding != chunkenc.EncXOR || len(c.Data) < 2 {
		return false
	}
	samples := int(binary.BigEndian.Uint16(c.Data))
	if within := f.steps.Within(c.MinMS, c.MaxMS, samples); (within+1)*samplesPerStep > samples {
		return false
	}
	points, err := floats.AppendPoints(f.points, c.Data, floats.Ascending)
	f.points = points[:before]
	last := len(points) - 1
	if err != nil || last < before || points[before].T < c.MinMS || points[last].T > c.MaxMS {
		return false
	}
	if points[last].T-points[before].T < 0 { // overflow: no chunk can have the interval between the two
		return false
	}
	f.points = points
	f.drop(before)
	return true
}

// drop removes the points of a chunk, from index i on, that are not needed, and the last one before, which is not needed
// if there is no step between the two.
func (f *stepsFilter) drop(i int) {
	from := max(i-1, 0)
	f.points = f.points[:from+len(lastAtSteps(f.points[from:], f.steps))]
}

// encode appends a chunk with the needed samples of successive chunks, or these chunks as they are if they are not
// longer. The latter may be several times shorter.
func (f *stepsFilter) encode(whole []series.Chunk) {
	if len(whole) == 0 {
		return
	}
	from, bytes := len(f.data), 0
	for _, c := range whole {
		bytes += len(c.Data)
	}
	f.data, f.points = floats.AppendChunk(f.data, f.points), f.points[:0]
	if len(f.data)-from >= bytes && !slices.ContainsFunc(whole, series.IsSummarized) {
		f.data = f.data[:from]
		f.chunks = append(f.chunks, whole...)
		return
	}
	f.chunks = append(f.chunks, series.Chunk{
		MinMS: whole[0].MinMS, MaxMS: whole[len(whole)-1].MaxMS, Encoding: chunkenc.EncXOR,
		Data: f.data[from:len(f.data):len(f.data)],
	})
}

// lastAtSteps keeps, in place, the last point at or before each step, and the last point of all, which may be the
// last one before steps after the chunk. There is at least one point.
func lastAtSteps(points []floats.Point, steps series.Steps) []floats.Point {
	last := len(points) - 1
	kept, skipped := 0, 0
	step := steps.NotBefore(points[0].T)
	for i := 0; i < last && step <= steps.LastMS; {
		// Points and steps usually have one interval each, so as many points as before are between two steps.
		next := i + skipped
		if next >= last || points[next].T > step || points[next+1].T <= step {
			next = lastUntil(points, i, step)
		}
		if next == last {
			break
		}
		points[kept] = points[next]
		kept, skipped, i = kept+1, next-i, next+1
		if step += steps.StepMS; step < points[i].T { // or it overflows
			step = steps.NotBefore(points[i].T)
		}
	}
	points[kept] = points[last]
	return points[:kept+1]
}

// lastUntil returns the index of the last point that is not after a time. points[from] is not after it, and not the
// last of all points.
func lastUntil(points []floats.Point, from int, ms int64) int {
	last := len(points) - 1
	interval := uint64(points[from+1].T - points[from].T)
	i := from + int(min(uint64(ms-points[from].T)/interval, uint64(last-from)))
	if points[i].T > ms {
		i = from
	}
	for i < last && points[i+1].T <= ms {
		i++
	}
	return i
}
