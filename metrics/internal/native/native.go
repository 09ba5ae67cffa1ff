// Package native counts values in the exponential buckets of Prometheus' native
// histograms: with schema s, bucket i has the values v with
// 2^((i-1)/2^s) < v <= 2^(i/2^s).
//
// [Buckets] counts values of 0 and above, and holds the non-empty buckets in increasing order.
// The number of buckets is limited. Before another bucket would exceed the limit, pairs of
// neighbouring buckets are merged, which halves the resolution; at the coarsest schema the
// lowest bucket is merged into the zero bucket instead. A [Buckets] has no lock. Negative
// values and exposition are out of scope.
package native

import (
	"math"
	"slices"
	"sort"
)

// The supported schemas and the defaults, which are the same as in client_golang.
const (
	SchemaMin            = -4
	SchemaMax            = 8
	DefaultSchema        = 3
	DefaultBucketsMax    = 160
	DefaultZeroThreshold = 0x1p-128
)

// Buckets holds the buckets of one histogram.
type Buckets struct {
	Schema        int32
	ZeroThreshold float64 // values up to it are in the zero bucket
	Zero          uint64
	Indexes       []int32 // increasing
	Counts        []uint64

	firstSchema int32     // of New
	firstZero   float64   // zero threshold of New
	max         int       // number of buckets
	bounds      []float64 // the bounds within [0.5, 1), if the schema is positive
}

// New returns empty buckets with a schema and a limit of bucketsMax buckets, not counting
// the zero bucket.
func New(schema int32, zeroThreshold float64, bucketsMax int) *Buckets {
	b := &Buckets{firstSchema: schema, firstZero: zeroThreshold, max: bucketsMax}
	b.Reset()
	return b
}

// Reset removes all values and restores the schema and zero threshold of New.
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

// Add counts v, which must not be negative or NaN.
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

// index returns the bucket of v. Infinity is in the bucket above the greatest finite
// number.
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

// reduce merges buckets: at the coarsest schema the lowest one into the zero bucket,
// otherwise all pairs, which reduces the schema by one. It may have to be called again.
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
