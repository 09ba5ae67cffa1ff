package fanout

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/internal/thanos/storepb"
)

// packedEncoding is the encoding of a downsampled chunk in this package: one chunk has all requested aggregates of one
// time range (storepb.AppendPacked). So series.Chunk needs no aggregates, and the count of one replica is never
// combined with the sum of another replica.
const packedEncoding chunkenc.Encoding = storepb.PackedEncoding

// aggregated is a stream of a store that may have downsampled data.
type aggregated interface {
	AggrChunks() []storeapi.AggrChunk
}

// packer adds packed chunks to the raw chunks of a series. It reuses its memory for the next series.
type packer struct {
	chunks []series.Chunk  // the raw chunks and the packed ones
	data   []byte          // of the packed chunks
	parts  []storepb.Chunk // aggregates of the chunk that is packed
}

// pack returns the raw chunks and the wanted aggregates, sorted. The aggregates of one time range become one chunk.
// samples is the number of samples of these aggregates.
func (p *packer) pack(raw []series.Chunk, aggregates []storeapi.AggrChunk,
	wanted []storeapi.Aggr) (all []series.Chunk, samples int) {
	p.chunks, p.data = append(p.chunks[:0], raw...), p.data[:0]
	for len(aggregates) > 0 {
		span := aggregates[:storeapi.SpanLen(aggregates)]
		aggregates = aggregates[len(span):]
		p.parts = p.parts[:0]
		for _, c := range span {
			if slices.Contains(wanted, c.Aggr) {
				samples += samplesOf([]series.Chunk{c.Chunk})
				p.parts = append(p.parts, storepb.Chunk{Aggr: c.Aggr, Encoding: uint8(c.Encoding), Data: c.Data})
			}
		}
		if len(p.parts) == 0 {
			continue
		}
		start := len(p.data)
		p.data = storepb.AppendPacked(p.data, p.parts)
		end := len(p.data)
		p.chunks = append(p.chunks, series.Chunk{MinMS: span[0].MinMS, MaxMS: span[0].MaxMS, Encoding: packedEncoding,
			Data: p.data[start:end:end]})
	}
	if !slices.IsSortedFunc(p.chunks, compareChunks) {
		slices.SortStableFunc(p.chunks, compareChunks)
	}
	return p.chunks, samples
}

// compareChunks orders chunks by time, and chunks of the same range and encoding by descending bytes.
// The order decides which of two replicas with the same timestamps wins, as in Thanos.
func compareChunks(a, b series.Chunk) int {
	if c := cmp.Or(cmp.Compare(a.MinMS, b.MinMS), cmp.Compare(a.MaxMS, b.MaxMS),
		cmp.Compare(a.Encoding, b.Encoding)); c != 0 {
		return c
	}
	if a.Encoding == packedEncoding {
		return comparePacked(a.Data, b.Data)
	}
	return bytes.Compare(b.Data, a.Data)
}

// comparePacked orders packed chunks of the same time range by their first differing aggregate. It
// ignores the length fields of the packed encoding. If one chunk has fewer aggregates, or is corrupt, the remaining
// bytes decide.
func comparePacked(a, b []byte) int {
	for len(a) > 0 && len(b) > 0 {
		x, restA, errA := storepb.NextPacked(a)
		y, restB, errB := storepb.NextPacked(b)
		if errA != nil || errB != nil {
			break
		}
		if c := cmp.Or(cmp.Compare(x.Aggr, y.Aggr), cmp.Compare(x.Encoding, y.Encoding),
			bytes.Compare(y.Data, x.Data)); c != 0 {
			return c
		}
		a, b = restA, restB
	}
	return bytes.Compare(b, a)
}
