package series

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"

	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// Aggr is the aggregate that samples hold, by its number in StoreAPI.
type Aggr uint8

// Raw samples, and the aggregates that downsampling computes from them.
const (
	Raw Aggr = iota
	Count
	Sum
	Min
	Max
	Counter
)

// String returns the name of the aggregate.
func (a Aggr) String() string {
	if names := [...]string{"raw", "count", "sum", "min", "max", "counter"}; int(a) < len(names) {
		return names[a]
	}
	return fmt.Sprintf("aggregate %d", uint8(a))
}

// Aggregated is the encoding of a downsampled chunk, in which Thanos stores it:
//
//	(uvarint(len) | encoding | data)*   from Count to Counter; len: bytes of data; 0: absent, no encoding and no data follow
//
// All aggregates of a time range are one chunk, because merges drop duplicate chunks: a count must not be combined with
// the sum of another replica.
const Aggregated = chunkenc.Encoding(0xff)

// Part is the samples of one aggregate of a chunk.
type Part struct {
	Aggr     Aggr
	Encoding chunkenc.Encoding
	Data     []byte
}

// PartsMax is the number of aggregates that a downsampled chunk may have.
const PartsMax = int(Counter)

// AppendParts appends the aggregates of a downsampled chunk in ascending order; of another chunk, its samples. Their
// data alias the chunk's.
func (c *Chunk) AppendParts(dst []Part) ([]Part, error) {
	if c.Encoding != Aggregated {
		return append(dst, Part{Raw, c.Encoding, c.Data}), nil
	}
	data := c.Data
	for a := Count; a <= Counter && len(data) > 0; a++ {
		size, n := binary.Uvarint(data)
		if n <= 0 || size > 0 && size >= uint64(len(data)-n) {
			return dst, fmt.Errorf("%w: downsampled chunk is cut short", ErrCorrupt)
		}
		if data = data[n:]; size == 0 {
			continue
		}
		p := Part{a, chunkenc.Encoding(data[0]), data[1 : 1+size : 1+size]}
		if !chunkenc.IsValidEncoding(p.Encoding) || p.Encoding == chunkenc.EncNone {
			return dst, fmt.Errorf("%w: %s of a downsampled chunk has unknown encoding %d", ErrCorrupt, a, p.Encoding)
		}
		dst, data = append(dst, p), data[1+size:]
	}
	return dst, nil
}

// AppendAggregated appends aggregates, which have data and are in ascending order, as the data of one chunk.
func AppendAggregated(dst []byte, parts []Part) []byte {
	next := Count
	for _, p := range parts {
		for ; next < p.Aggr; next++ {
			dst = append(dst, 0)
		}
		dst = append(binary.AppendUvarint(dst, uint64(len(p.Data))), byte(p.Encoding))
		dst = append(dst, p.Data...)
		next++
	}
	return dst
}

// CompareChunks orders chunks by time, and chunks of the same range and encoding by descending bytes, downsampled ones
// by those of the first aggregate that differs. The order decides which of two replicas with the same timestamps wins,
// as in Thanos.
func CompareChunks(a, b Chunk) int {
	if c := cmp.Or(cmp.Compare(a.MinMS, b.MinMS), cmp.Compare(a.MaxMS, b.MaxMS),
		cmp.Compare(a.Encoding, b.Encoding)); c != 0 {
		return c
	}
	if a.Encoding == Aggregated {
		var roomA, roomB [PartsMax]Part
		x, _ := a.AppendParts(roomA[:0]) // the bytes decide about the rest of a corrupt chunk
		y, _ := b.AppendParts(roomB[:0])
		for i := range min(len(x), len(y)) {
			if c := cmp.Or(cmp.Compare(x[i].Aggr, y[i].Aggr), cmp.Compare(x[i].Encoding, y[i].Encoding),
				bytes.Compare(y[i].Data, x[i].Data)); c != 0 {
				return c
			}
		}
	}
	return bytes.Compare(b.Data, a.Data)
}

// Aggrs is a set of aggregates.
type Aggrs uint8

// AggrsOf returns the set of the aggregates in a list.
func AggrsOf(list []Aggr) (set Aggrs) {
	for _, a := range list {
		set = set.With(a)
	}
	return set
}

// With returns the set with one more aggregate.
func (s Aggrs) With(a Aggr) Aggrs { return s | 1<<a }

// Has reports whether the set has an aggregate.
func (s Aggrs) Has(a Aggr) bool { return s>>a&1 == 1 }

// Of removes parts without data, and aggregates that the set does not have, in place.
func (s Aggrs) Of(parts []Part) []Part {
	kept := parts[:0]
	for _, p := range parts {
		if len(p.Data) > 0 && s.Has(p.Aggr) {
			kept = append(kept, p)
		}
	}
	return kept
}

// SamplesOf returns the number of samples in the headers of chunks, and in summaries.
func SamplesOf(chunks []Chunk) (n int) {
	var room [PartsMax]Part
	for i := range chunks {
		if chunks[i].Encoding == Summarized {
			s, _ := chunks[i].Summary()
			n += s.Count
			continue
		}
		parts, _ := chunks[i].AppendParts(room[:0]) // the reader of a corrupt chunk returns the error
		for _, p := range parts {
			if len(p.Data) >= 2 {
				n += int(binary.BigEndian.Uint16(p.Data))
			}
		}
	}
	return n
}
