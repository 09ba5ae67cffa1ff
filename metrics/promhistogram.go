package metrics

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/ferula-io/ferula/metrics/internal/exposition"
	"github.com/ferula-io/ferula/metrics/internal/native"
)

// PrometheusHistogramDefaultBuckets are the default upper bounds of a
// PrometheusHistogram. They suit request durations of a web server in seconds.
var PrometheusHistogramDefaultBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// PrometheusHistogram counts non-negative values in cumulative buckets with the given
// upper bounds (a classic histogram). A histogram of NewNativeHistogram counts them in
// native buckets, too. In text format:
//
//	name_bucket{labels,le="0.5"} 3
//	name_bucket{labels,le="+Inf"} 4
//	name_sum{labels} 7.25
//	name_count{labels} 4
//
// The buckets, sum and count of one scrape are consistent with each other.
type PrometheusHistogram struct {
	named
	bounds []float64 // increasing, without +Inf
	lines  []string  // the lines without values: each bucket, +Inf, sum, count

	mu      sync.Mutex
	buckets []uint64 // not cumulative: one for each bound, and one for the values above all bounds
	sum     float64
	resetMS int64 // the time of the last Reset; 0: none

	native   *native.Buckets // nil for a classic histogram
	examples []exemplar      // one for each bucket; nil without exemplars
}

// NativeHistogramOptions configure a native histogram. The zero value has the defaults.
type NativeHistogramOptions struct {
	BucketFactor  float64   // maximum ratio of a bucket's upper to its lower bound; 0: 1.1
	ZeroThreshold float64   // values up to it are in the zero bucket; 0: 2^-128
	MaxBuckets    int       // if more are needed, the resolution is halved; 0: 160
	UpperBounds   []float64 // of the classic buckets, which all formats have; may be empty
}

func newPrometheusHistogram(name string, bounds []float64) *PrometheusHistogram {
	if err := ValidateBuckets(bounds); err != nil {
		panic(fmt.Errorf("BUG: histogram %q: %w", name, err))
	}
	return newBuckets(name, bounds)
}

// newNativeHistogram panics with the name of the histogram if the options are invalid.
func newNativeHistogram(name string, o NativeHistogramOptions) *PrometheusHistogram {
	if o.BucketFactor == 0 {
		o.BucketFactor = 1.1
	}
	if o.ZeroThreshold == 0 {
		o.ZeroThreshold = native.DefaultZeroThreshold
	}
	if o.MaxBuckets == 0 {
		o.MaxBuckets = native.DefaultBucketsMax
	}
	if !(o.BucketFactor > 1) || !(o.ZeroThreshold > 0) || o.MaxBuckets < 0 {
		panic(fmt.Errorf("BUG: native histogram %q: %+v", name, o))
	}
	if len(o.UpperBounds) > 0 {
		if err := ValidateBuckets(o.UpperBounds); err != nil {
			panic(fmt.Errorf("BUG: native histogram %q: %w", name, err))
		}
	}
	// The coarsest schema whose factor, 2^(2^-schema), is at most BucketFactor.
	schema := -math.Floor(math.Log2(math.Log2(o.BucketFactor)))
	h := newBuckets(name, o.UpperBounds)
	h.native = native.New(int32(min(max(schema, native.SchemaMin), native.SchemaMax)), o.ZeroThreshold, o.MaxBuckets)
	return h
}

func newBuckets(name string, bounds []float64) *PrometheusHistogram {
	if last := len(bounds) - 1; last >= 0 && math.IsInf(bounds[last], +1) {
		bounds = bounds[:last]
	}
	h := &PrometheusHistogram{
		named:   named{name},
		bounds:  slices.Clone(bounds),
		buckets: make([]uint64, len(bounds)+1),
		lines:   make([]string, 0, len(bounds)+3),
	}
	prefix, end := exposition.WithTag(exposition.Suffixed(name, "_bucket"), `le="`)
	for _, bound := range bounds {
		h.lines = append(h.lines, prefix+strconv.FormatFloat(bound, 'g', -1, 64)+end)
	}
	h.lines = append(h.lines, prefix+"+Inf"+end, exposition.Suffixed(name, "_sum"), exposition.Suffixed(name, "_count"))
	return h
}

// Update counts v. NaN and negative values are ignored.
func (h *PrometheusHistogram) Update(v float64) {
	if !(v >= 0) {
		return
	}
	bucket := &h.buckets[h.bucket(v)] // the count is the sum of the buckets
	if h.native != nil {
		h.updateNative(bucket, v)
		return
	}
	h.mu.Lock()
	*bucket++
	h.sum += v
	h.mu.Unlock()
}

// updateNative is a function of its own, because a call within Update's lock makes every update slower.
func (h *PrometheusHistogram) updateNative(bucket *uint64, v float64) {
	h.mu.Lock()
	*bucket++
	h.sum += v
	h.native.Add(v)
	h.mu.Unlock()
}

func (h *PrometheusHistogram) bucket(v float64) int {
	i := 0
	for _, bound := range h.bounds {
		if v <= bound {
			break
		}
		i++
	}
	return i
}

// UpdateWithExemplar counts v and replaces the exemplar of its bucket. labels are as in
// Counter.AddWithExemplar.
func (h *PrometheusHistogram) UpdateWithExemplar(v float64, labels ...string) {
	if !(v >= 0) {
		return
	}
	h.Update(v)
	h.mu.Lock()
	if h.examples == nil {
		h.examples = make([]exemplar, len(h.buckets))
	}
	x := &h.examples[h.bucket(v)]
	h.mu.Unlock()
	x.set(v, labels)
}

// UpdateDuration counts the seconds since start.
func (h *PrometheusHistogram) UpdateDuration(start time.Time) {
	h.Update(time.Since(start).Seconds())
}

// Reset removes all values. The created timestamp is the time of the reset from then on.
func (h *PrometheusHistogram) Reset() {
	h.mu.Lock()
	clear(h.buckets)
	h.sum, h.resetMS = 0, time.Now().UnixMilli()
	h.examples = nil
	if h.native != nil {
		h.native.Reset()
	}
	h.mu.Unlock()
}

func (h *PrometheusHistogram) typeName() string { return "histogram" }

func (h *PrometheusHistogram) appendTo(dst []byte) []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	upToHere := uint64(0)
	for i, n := range h.buckets {
		upToHere += n
		dst = appendUint(dst, h.lines[i], upToHere)
	}
	sum := len(h.buckets)
	return appendUint(appendNumber(dst, h.lines[sum], h.sum), h.lines[sum+1], upToHere)
}

func (h *PrometheusHistogram) read(m *exposition.Metric) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	m.Reset(exposition.Histogram)
	m.Sum, m.CreatedMS = h.sum, h.resetMS
	upToHere := uint64(0)
	for i, n := range h.buckets {
		upToHere += n
		b := exposition.Bucket{Upper: math.Inf(1), Count: upToHere}
		if i < len(h.bounds) {
			b.Upper = h.bounds[i]
		}
		if h.examples != nil {
			b.Exemplar = h.examples[i].read(m)
		}
		m.Buckets = append(m.Buckets, b)
	}
	m.Count = upToHere
	if n := h.native; n != nil {
		m.Native.Is, m.Native.Schema, m.Native.ZeroThreshold, m.Native.ZeroCount = true, n.Schema, n.ZeroThreshold, n.Zero
		m.Native.Indexes, m.Native.Counts = append(m.Native.Indexes, n.Indexes...), append(m.Native.Counts, n.Counts...)
	}
	return true
}

// ValidateBuckets returns an error unless upperBounds has at least one bound and the bounds
// strictly increase; NaN is no bound.
func ValidateBuckets(upperBounds []float64) error {
	if len(upperBounds) == 0 {
		return errNoBounds
	}
	if math.IsNaN(upperBounds[0]) {
		return fmt.Errorf("%w: %v", errBoundsNotIncreasing, upperBounds[0])
	}
	for i := range len(upperBounds) - 1 {
		if !(upperBounds[i] < upperBounds[i+1]) { // NaN, too
			return fmt.Errorf("%w: %v before %v", errBoundsNotIncreasing, upperBounds[i], upperBounds[i+1])
		}
	}
	return nil
}

var (
	errNoBounds            = errors.New("a histogram needs at least one upper bound")
	errBoundsNotIncreasing = errors.New("upper bounds must strictly increase")
)

// LinearBuckets returns count upper bounds: start, start+width and so on. It panics if
// count is not positive or the bounds do not increase.
func LinearBuckets(start, width float64, count int) []float64 {
	return generateBuckets(start, count, func(bound float64) float64 { return bound + width })
}

// ExponentialBuckets returns count upper bounds: start, start*factor and so on. It panics
// if count or start is not positive, factor is not above 1 or the bounds do not increase.
func ExponentialBuckets(start, factor float64, count int) []float64 {
	if !(factor > 1 && start > 0) { // NaN, too
		panic(fmt.Errorf("BUG: exponential buckets need a start above 0 and a factor above 1; got %v and %v", start, factor))
	}
	return generateBuckets(start, count, func(bound float64) float64 { return bound * factor })
}

func generateBuckets(bound float64, count int, next func(float64) float64) []float64 {
	bounds := make([]float64, max(count, 0))
	for i := range bounds {
		bounds[i] = bound
		bound = next(bound)
	}
	if err := ValidateBuckets(bounds); err != nil {
		panic(fmt.Errorf("BUG: %w", err))
	}
	return bounds
}
