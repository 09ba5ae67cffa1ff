package series

import (
	"fmt"

	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// bucketsMax is the limit of the buckets of one histogram. Buckets of the finest schema for all positive float64 values
// are about half as many.
const bucketsMax = 1 << 20

// Decoder returns the chunk as one of Prometheus' chunks, after it has checked the header. Prometheus' iterators do not
// check the header: they panic if it is absent, and they allocate as many buckets as its spans name before they read
// the first bucket. So every caller that decodes a chunk of another process must use Decoder. Its errors are
// ErrCorrupt. The iterator returns the errors of the bytes after the header.
func (c Chunk) Decoder() (chunkenc.Chunk, error) {
	least := 3 // bytes of the header: the number of samples, and flags
	if c.Encoding == chunkenc.EncXOR {
		least = 2
	}
	if len(c.Data) < least {
		return nil, fmt.Errorf("%w: chunk of %d bytes has no header", ErrCorrupt, len(c.Data))
	}
	switch c.Encoding {
	case chunkenc.EncHistogram, chunkenc.EncFloatHistogram, chunkenc.EncHistogramST, chunkenc.EncFloatHistogramST:
		// Each bucket of the first histogram takes a bit at least.
		if n := bucketsOf(c.Data[3:]); n > min(bucketsMax, 8*uint64(len(c.Data))) {
			return nil, fmt.Errorf("%w: chunk of %d bytes has histograms of %d buckets", ErrCorrupt, len(c.Data), n)
		}
	}
	chunk, err := chunkenc.FromData(c.Encoding, c.Data)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return chunk, nil
}

// Iterator returns the samples of chunks, which may overlap: it returns one of the samples that have the same time.
func Iterator(chunks []Chunk) (chunkenc.Iterator, error) {
	all := make([]chunkenc.Iterator, 0, len(chunks))
	for _, c := range chunks {
		chunk, err := c.Decoder()
		if err != nil {
			return nil, err
		}
		all = append(all, chunk.Iterator(nil))
	}
	if len(all) == 1 {
		return all[0], nil
	}
	return storage.ChainSampleIteratorFromIterators(nil, all), nil
}

// bucketsOf returns how many buckets each histogram of a chunk has. It reads the layout of the histograms, which
// follows the header:
//
//	layout  threshold, 1 byte or 255 and 8 bytes  schema  spans of positive buckets  spans of negative buckets
//	spans   number (length offset)*
//
// All numbers are varbits. If the layout is cut short, bucketsOf counts the buckets up to its end. The iterator then
// returns an error before it allocates buckets.
func bucketsOf(layout []byte) (n uint64) {
	b := bitReader{src: layout}
	if b.bits(8) == 255 {
		b.bits(64)
	}
	b.varbit()
	for range 2 {
		for spans := b.varbit(); spans > 0 && !b.ended; spans-- {
			n += uint64(uint32(b.varbit()))
			b.varbit()
		}
	}
	return n
}

// bitReader reads bits, the highest of each byte first. After the end it reads zeros.
type bitReader struct {
	src   []byte
	at    int // in bits
	ended bool
}

func (b *bitReader) bits(n int) (v uint64) {
	for range n {
		v <<= 1
		if b.at>>3 >= len(b.src) {
			b.ended = true
			continue
		}
		v |= uint64(b.src[b.at>>3] >> (7 - b.at&7) & 1)
		b.at++
	}
	return v
}

// varbit reads a number: up to eight one bits, which tell its size, and then that many bits. It ignores the sign of
// signed numbers.
func (b *bitReader) varbit() uint64 {
	sizes := [...]int{0, 3, 6, 9, 12, 18, 25, 56, 64}
	ones := 0
	for ones < len(sizes)-1 && b.bits(1) == 1 {
		ones++
	}
	return b.bits(sizes[ones])
}
