// Package native counts values in exponential buckets, those of Prometheus' native
// histograms: of schema s, bucket i holds what is above 2^((i-1)/2^s) and up to
// 2^(i/2^s).
//
// In come positive values, out come the buckets that were hit, in rising order. There
// are never more of them than asked for: before one too many, the resolution is
// halved, each two neighbours becoming one; at the coarsest schema the lowest bucket
// falls into the zero bucket instead. Whoever owns a [Buckets] locks it. What is not
// here: negative values, and how buckets are shown.
package native

import (
	"math"
	"slices"
	"sort"
)

// The schemas there are, and the breadth of the zero bucket if none is given, which is
// Prometheus' own.
const (
	SchemaMin            = -4
	SchemaMax            = 8
	DefaultSchema        = 3
	DefaultBucketsMax    = 160
	DefaultZeroThreshold = 0x1p-128
)

// Buckets are the buckets of one histogram.
type Buckets struct {
	Schema        int32
	ZeroThreshold float64 // values up to it fall into the zero bucket
	Zero          uint64
	Indexes       []int32 // rising
	Counts        []uint64

	firstSchema int32
	firstZero   float64
	max         int
	bounds      []float64 // of one octave, [0.5, 1), if the schema is positive
}

// New makes empty buckets of a schema, at most so many besides the zero bucket.
func New(schema int32, zeroThreshold float64, bucketsMax int) *Buckets {
	b := &Buckets{firstSchema: schema, firstZero: zeroThreshold, max: bucketsMax}
	b.Reset()
	return b
}

// Reset forgets all values, and takes the resolution that was asked for again.
func (b *Buckets) Reset() {
	b.Schema, b.ZeroThreshold, b.Zero = b.firstSchema, b.firstZero, 0
	b.Indexes, b.Counts = b.Indexes[:0], b.Counts[:0]
	b.setBounds()
}

func (b *Buckets) setBounds() {
	b.bounds = b.bounds[:0]
	if b.Schema <= 0 {
		return
	}
	n := 1 << b.Schema
	for i := range n {
		b.bounds = append(b.bounds, math.Exp2(float64(i)/float64(n)-1))
	}
}

// Add counts v, which is neither negative nor NaN.
func (b *Buckets) Add(v float64) {
	if v <= b.ZeroThreshold {
		b.Zero++
		return
	}
	index := b.index(v)
	at, there := slices.BinarySearch(b.Indexes, index)
	if there {
		b.Counts[at]++
		return
	}
	for len(b.Indexes) >= b.max {
		b.reduce()
		if v <= b.ZeroThreshold {
			b.Zero++
			return
		}
		index = b.index(v)
		if at, there = slices.BinarySearch(b.Indexes, index); there {
			b.Counts[at]++
			return
		}
	}
	b.Indexes = slices.Insert(b.Indexes, at, index)
	b.Counts = slices.Insert(b.Counts, at, 1)
}

// index is the bucket of v; infinity has one above that of the greatest number.
func (b *Buckets) index(v float64) int32 {
	above := int32(0)
	if math.IsInf(v, 1) {
		v, above = math.MaxFloat64, 1
	}
	fraction, exponent := math.Frexp(v)
	if b.Schema > 0 {
		return int32(sort.SearchFloat64s(b.bounds, fraction)+(exponent-1)*len(b.bounds)) + above
	}
	if fraction == 0.5 {
		exponent--
	}
	offset := 1<<-b.Schema - 1
	return int32((exponent+offset)>>-b.Schema) + above
}

// reduce makes room for one bucket at least.
func (b *Buckets) reduce() {
	if b.Schema == SchemaMin {
		b.ZeroThreshold = math.Ldexp(1, int(b.Indexes[0])<<-SchemaMin)
		b.Zero += b.Counts[0]
		b.Indexes, b.Counts = slices.Delete(b.Indexes, 0, 1), slices.Delete(b.Counts, 0, 1)
		return
	}
	n := 0
	for i, index := range b.Indexes {
		index = (index + 1) >> 1
		if n > 0 && b.Indexes[n-1] == index {
			b.Counts[n-1] += b.Counts[i]
			continue
		}
		b.Indexes[n], b.Counts[n] = index, b.Counts[i]
		n++
	}
	b.Indexes, b.Counts = b.Indexes[:n], b.Counts[:n]
	b.Schema--
	b.setBounds()
}
