package storeapi

import (
	"encoding/binary"

	"github.com/prometheus/prometheus/tsdb/chunkenc"

	floats "github.com/ferula-io/ferula/internal/codec/xor"
	"github.com/ferula-io/ferula/internal/series"
)

// samplesPerStep is the number of samples that a chunk must have for each step within it to be encoded again. With fewer
// samples the decoding and encoding here would cost more than the client saves.
const samplesPerStep = 3

// stepsFilter removes samples that the steps of a request do not need. What remains of a chunk depends on the chunk and the
// steps alone: equal chunks of several stores stay equal, and the client can drop all but one of them.
type stepsFilter struct {
	steps  series.Steps
	points []floats.Point
	data   []byte
	chunks []series.Chunk
}

// stepsFilter returns nil if the request needs all samples, or if the stores behind the source remove samples.
func (s *Server) stepsFilter(r SeriesRequest) *stepsFilter {
	if _, forwards := s.src.(StepsForwarder); forwards || r.Steps == nil || r.SkipChunks {
		return nil
	}
	return &stepsFilter{steps: *r.Steps}
}

// thin returns chunks with the needed samples. Their time ranges are those of the whole chunks, so that the client sees
// which chunks overlap. They are valid until the next call of thin, and as long as the given chunks.
func (f *stepsFilter) thin(chunks []series.Chunk) []series.Chunk {
	f.chunks, f.data = f.chunks[:0], f.data[:0]
	for _, c := range chunks {
		if data, ok := f.needed(c); ok {
			c.Data, c.Mapped = data, false
		}
		f.chunks = append(f.chunks, c)
	}
	return f.chunks
}

// needed encodes the needed samples of a chunk. ok is false if the whole chunk must be sent: because it has no floats, because
// most of its samples are needed, or because it is corrupt, which the client shall report as it does without steps.
func (f *stepsFilter) needed(c series.Chunk) (data []byte, ok bool) {
	if c.Encoding != chunkenc.EncXOR || len(c.Data) < 2 {
		return nil, false
	}
	samples := int(binary.BigEndian.Uint16(c.Data))
	if within := f.steps.Within(c.MinMS, c.MaxMS, samples); (within+1)*samplesPerStep > samples {
		return nil, false
	}
	var err error
	f.points, err = floats.AppendPoints(f.points[:0], c.Data, floats.Ascending)
	n := len(f.points)
	if err != nil || n == 0 || f.points[0].T < c.MinMS || f.points[n-1].T > c.MaxMS {
		return nil, false
	}
	if f.points[n-1].T-f.points[0].T < 0 { // overflow: no chunk can have the interval between the two
		return nil, false
	}
	from := len(f.data)
	f.data = floats.AppendChunk(f.data, lastAtSteps(f.points, f.steps))
	if data = f.data[from:len(f.data):len(f.data)]; len(data) >= len(c.Data) {
		f.data = f.data[:from] // it is not sent, and may be several times as long as the chunk
		return nil, false
	}
	return data, true
}

// lastAtSteps keeps, in place, the last point at or before each step, and the last point of all, which may be the last one
// before steps after the chunk. There is at least one point.
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

// lastUntil returns the index of the last point that is not after a time. points[from] is not after it, and not the last of
// all points.
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
