package blocks

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/prometheus/prometheus/model/histogram"
)

// ValueKind is a kind of sample values.
type ValueKind string

// The kinds.
const (
	Floats15  ValueKind = "floats15"  // 15 significant digits; each series has one of nine orders of magnitude
	Decimals2 ValueKind = "decimals2" // two decimals; each value differs from the previous one by at most 1.00
	Integers  ValueKind = "integers"  // 0 to 999
	Counter   ValueKind = "counter"   // integers that grow by 0 to 99
	Native    ValueKind = "native"    // native histograms of 20 buckets, whose counts grow by 0 to 9
	Buckets   ValueKind = "buckets"   // counters of the buckets of a classic histogram, cumulative; for a Spec with Buckets
)

// source generates the values of one series.
type source struct {
	kind  ValueKind
	rng   *rand.Rand
	scale float64 // Floats15: divisor of its digits
	last  float64 // Decimals2 (in hundredths), Counter and Buckets

	bucket, buckets int // Buckets: number of the bucket, and number of buckets
	counts          [nativeBuckets]int64
}

// sourceOf returns the source of series number i.
func (s Spec) sourceOf(i int) source {
	if s.Buckets == 0 {
		return newSource(s.Values, s.Seed, i)
	}
	from := newSource(s.Values, s.Seed, i/s.Buckets) // all buckets of a histogram see the same observations
	from.bucket, from.buckets = i%s.Buckets, s.Buckets
	return from
}

// SpecSequence returns the first n values of series number i of s.
func SpecSequence(s Spec, i, n int) []float64 {
	from := s.sourceOf(i)
	values := make([]float64, n)
	for j := range values {
		values[j] = from.next()
	}
	return values
}

func newSource(kind ValueKind, seed uint64, series int) source {
	s := source{kind: kind, rng: rand.New(rand.NewPCG(seed, uint64(series)))}
	switch kind {
	case Floats15:
		s.scale = math.Pow10(7 + s.rng.IntN(9))
	case Decimals2:
		s.last = float64(s.rng.IntN(100_000))
	case Integers, Counter, Buckets, Native:
	default:
		panic(fmt.Sprintf("values of kind %q", kind))
	}
	return s
}

func (s *source) next() float64 {
	switch s.kind {
	case Floats15:
		// Neither the first nor the last digit is 0, so that every value has 15 significant digits.
		return float64((1e13+s.rng.Int64N(9e13))*10+1+s.rng.Int64N(9)) / s.scale
	case Decimals2:
		s.last += float64(s.rng.IntN(201) - 100)
		return s.last / 100
	case Integers:
		return float64(s.rng.IntN(1000))
	case Buckets:
		s.last += float64(s.rng.IntN(100) * (s.bucket + 1) / s.buckets)
		return s.last
	default:
		s.last += float64(s.rng.IntN(100))
		return s.last
	}
}

const nativeBuckets = 20

// histogram returns the next value of a Native source.
func (s *source) histogram() *histogram.Histogram {
	h := &histogram.Histogram{
		Schema: 3, ZeroThreshold: 1e-128, PositiveSpans: []histogram.Span{{Offset: -nativeBuckets / 2, Length: nativeBuckets}},
		PositiveBuckets: make([]int64, nativeBuckets),
	}
	before := int64(0)
	for i := range s.counts {
		s.counts[i] += s.rng.Int64N(10)
		h.Count += uint64(s.counts[i])
		h.PositiveBuckets[i], before = s.counts[i]-before, s.counts[i]
	}
	s.last += s.rng.Float64()
	h.Sum = s.last
	return h
}

// Sequence returns n values of a kind, for areas that need no blocks. They equal those of
// SpecSequence for a Spec without Buckets.
func Sequence(kind ValueKind, seed uint64, series, n int) []float64 {
	s := newSource(kind, seed, series)
	values := make([]float64, n)
	for i := range values {
		values[i] = s.next()
	}
	return values
}
