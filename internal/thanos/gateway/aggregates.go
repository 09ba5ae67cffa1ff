package gateway

import (
	"encoding/binary"
	"fmt"

	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// Aggregated is the encoding of a downsampled chunk. It holds up to five chunks:
//
//	(uvarint(len) | encoding | data)*   len: bytes of data; 0: no encoding and no data follow
const Aggregated = chunkenc.Encoding(0xff)

// Aggregates is a set of aggregates: bit i stands for the i-th chunk in a downsampled chunk.
type Aggregates uint8

// The aggregates in the order in which they are stored.
const (
	Count Aggregates = 1 << iota
	Sum
	Min
	Max
	Counter
)

const aggregateCount = 5

// Aggregate is one of the chunks in a downsampled chunk.
type Aggregate struct {
	Kind     Aggregates // one bit
	Encoding chunkenc.Encoding
	Data     []byte
}

// AppendAggregates appends the wanted chunks of a downsampled chunk, in the order in which
// they are stored. Their data alias the chunk's. Wanted chunks that are not stored are left
// out: downsampled native histograms have no minimum and no maximum.
func AppendAggregates(dst []Aggregate, data []byte, wanted Aggregates) ([]Aggregate, error) {
	for i := range aggregateCount {
		kind := Aggregates(1) << i
		if wanted < kind {
			break // the rest is not wanted
		}
		size, n := binary.Uvarint(data)
		if n <= 0 || size > 0 && size >= uint64(len(data)-n) {
			return dst, fmt.Errorf("%w: downsampled chunk is cut short", ErrCorrupt)
		}
		data = data[n:]
		if size == 0 {
			continue
		}
		if wanted&kind != 0 {
			a := Aggregate{kind, chunkenc.Encoding(data[0]), data[1 : 1+size : 1+size]}
			if !chunkenc.IsValidEncoding(a.Encoding) || a.Encoding == chunkenc.EncNone {
				return dst, fmt.Errorf("%w: aggregate %d has unknown encoding %d", ErrCorrupt, i+1, a.Encoding)
			}
			dst = append(dst, a)
		}
		data = data[1+size:]
	}
	return dst, nil
}

func (a Aggregates) check(data []byte) error {
	var room [aggregateCount]Aggregate
	_, err := AppendAggregates(room[:0], data, a)
	return err
}
