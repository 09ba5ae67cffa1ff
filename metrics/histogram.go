package metrics

import (
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/ferula-io/ferula/metrics/internal/exposition"
)

// Histogram counts non-negative values in buckets that need no configuration: 18
// for each power of ten from 1e-9 to 1e18. A bucket with values is written as
//
//	name_bucket{labels,vmrange="1.468e+00...1.668e+00"} 3
//
// with an exclusive lower bound and an inclusive upper bound. The buckets are not
// cumulative; the function prometheus_buckets of MetricsQL converts them to le buckets. A
// histogram without values is not exposed.
//
// OpenMetrics and protobuf have no type for vmrange buckets. In these formats the histogram
// is three families of type unknown: name_bucket, name_sum and name_count. They may be
// summed by vmrange, but PromQL's histogram_quantile needs le. With HandlerOptions.LeBuckets
// these formats have a classic histogram instead. It always has the same 82 buckets, three
// for each power of ten. For Prometheus prefer NewPrometheusHistogram, with bounds of your
// own, or NewNativeHistogram.
//
// The zero Histogram is ready for use but is not registered in a Set.
type Histogram struct {
	named
	mu           sync.Mutex
	decades      [decades]*decade // nil without values
	lower, upper uint64           // counts of values below 1e-9, and of values from 1e18
	count        uint64
	sum          float64
	resetMS      int64  // the time of the last Reset; 0: none
	bucketPrefix string // name_bucket{labels,vmrange="
	sumPrefix    string
	countPrefix  string
}

const (
	decades          = 27
	bucketsPerDecade = 18
	lowestExponent   = -9
	rangeBuckets     = decades * bucketsPerDecade
)

type decade [bucketsPerDecade]uint64

func newHistogram(name string) *Histogram {
	bucket, _ := exposition.WithTag(exposition.Suffixed(name, "_bucket"), `vmrange="`)
	return &Histogram{
		named:        named{name},
		bucketPrefix: bucket,
		sumPrefix:    exposition.Suffixed(name, "_sum"),
		countPrefix:  exposition.Suffixed(name, "_count"),
	}
}

// Update counts v. NaN and negative values are ignored.
func (h *Histogram) Update(v float64) {
	if !(v >= 0) {
		return
	}
	i := ranges.bucket(v)
	h.mu.Lock()
	h.sum += v
	h.count++
	switch {
	case i < 0:
		h.lower++
	case i >= rangeBuckets:
		h.upper++
	default:
		d := h.decades[uint(i)/bucketsPerDecade]
		if d == nil {
			d = new(decade)
			h.decades[uint(i)/bucketsPerDecade] = d
		}
		d[uint(i)%bucketsPerDecade]++
	}
	h.mu.Unlock()
}

// UpdateDuration counts the seconds since start.
func (h *Histogram) UpdateDuration(start time.Time) { h.Update(time.Since(start).Seconds()) }

// Reset removes all values. The created timestamp is the time of the reset from then on.
func (h *Histogram) Reset() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range h.decades {
		if d != nil {
			*d = decade{}
		}
	}
	h.lower, h.upper, h.count, h.sum, h.resetMS = 0, 0, 0, 0, time.Now().UnixMilli()
}

// Merge adds the buckets, sum and count of src. It never holds both locks at once: otherwise
// concurrent merges of a into b and of b into a could deadlock.
func (h *Histogram) Merge(src *Histogram) {
	var copied [decades]decade
	src.mu.Lock()
	for i, d := range src.decades {
		if d != nil {
			copied[i] = *d
		}
	}
	lower, upper, count, sum := src.lower, src.upper, src.count, src.sum
	src.mu.Unlock()

	h.mu.Lock()
	defer h.mu.Unlock()
	h.lower, h.upper, h.count, h.sum = h.lower+lower, h.upper+upper, h.count+count, h.sum+sum
	for i, from := range copied {
		if from == (decade{}) {
			continue
		}
		if h.decades[i] == nil {
			h.decades[i] = new(decade)
		}
		for j, n := range from {
			h.decades[i][j] += n
		}
	}
}

// VisitNonZeroBuckets calls f for every bucket with a count above 0, in increasing order.
// vmrange is "lower...upper": the lower bound is exclusive, the upper one inclusive. f must
// not use the histogram.
func (h *Histogram) VisitNonZeroBuckets(f func(vmrange string, count uint64)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.visit(f)
}

func (h *Histogram) visit(f func(vmrange string, count uint64)) {
	ranges.once.Do(ranges.fill)
	if h.lower > 0 {
		f(lowerRange, h.lower)
	}
	for i, d := range h.decades {
		if d == nil {
			continue
		}
		for j, n := range d {
			if n > 0 {
				f(ranges.texts[i*bucketsPerDecade+j], n)
			}
		}
	}
	if h.upper > 0 {
		f(upperRange, h.upper)
	}
}

func (h *Histogram) typeName() string { return "untyped" }

func (h *Histogram) appendTo(dst []byte) []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.count == 0 {
		return dst
	}
	h.visit(func(vmrange string, n uint64) {
		dst = append(append(append(dst, h.bucketPrefix...), vmrange...), `"} `...)
		dst = append(strconv.AppendUint(dst, n, 10), '\n')
	})
	return appendUint(appendNumber(dst, h.sumPrefix, h.sum), h.countPrefix, h.count)
}

// read returns the vmrange buckets. With LeBuckets it returns cumulative le buckets instead.
// Their bounds are the same for every histogram, so that the buckets may be summed.
func (h *Histogram) read(m *exposition.Metric) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !m.LeBuckets {
		m.Reset(exposition.Ranges)
		m.Count, m.Sum = h.count, h.sum
		h.visit(func(vmrange string, n uint64) {
			m.Ranges = append(m.Ranges, exposition.Range{VMRange: vmrange, Count: n})
		})
		return h.count > 0
	}
	m.Reset(exposition.Histogram)
	m.Count, m.Sum, m.CreatedMS = h.count, h.sum, h.resetMS
	ranges.once.Do(ranges.fill)
	upTo := h.lower
	m.Buckets = append(m.Buckets, exposition.Bucket{Upper: ranges.bounds[0], Count: upTo})
	for i, d := range h.decades {
		for j := range bucketsPerDecade {
			if d != nil {
				upTo += d[j]
			}
			if end := j + 1; end%rangesPerLe == 0 {
				m.Buckets = append(m.Buckets, exposition.Bucket{Upper: ranges.bounds[i*bucketsPerDecade+end], Count: upTo})
			}
		}
	}
	return h.count > 0
}

// rangesPerLe is the number of vmrange buckets in one le bucket: three le buckets a decade, 82 in all.
const rangesPerLe = 6

const (
	lowerRange = "0...1.000e-09"
	upperRange = "1.000e+18...+Inf"
)

// rangeTable finds the bucket of a value and the text of a bucket.
//
// A cell of the table is a sixteenth of an octave, and the uppermost bits of a float select
// it. A bucket is wider than a cell, so a cell contains at most one bound between buckets. A
// value in the cell that is not close to the bound needs no logarithm. For a value within a
// trillionth of the bound, bucketByFormula computes the bucket, so that the table never
// differs from the formula.
type rangeTable struct {
	once   sync.Once
	texts  [rangeBuckets]string
	bounds [rangeBuckets + 1]float64 // as in the texts
	cells  [cellOctaves << cellBits]rangeCell
}

type rangeCell struct {
	below, above float64 // the ends of the trillionth around the bound of the cell; below is +Inf if the cell has no bound
	bucket       int     // the bucket of values less than below; values greater than above are in bucket+1
}

const (
	cellBits    = 4
	cellShift   = 52 - cellBits
	cellOctaves = 90                      // 2^-30 < 1e-9, 2^60 > 1e18
	firstCell   = (1023 - 30) << cellBits // of 2^-30
)

// ranges is filled at the first use of any vmrange histogram.
var ranges = rangeTable{}

// bucket returns the bucket of v, which must not be negative. It returns -1 for values
// below all buckets and rangeBuckets for values above them.
func (t *rangeTable) bucket(v float64) int {
	t.once.Do(t.fill)
	cell := int(math.Float64bits(v)>>cellShift) - firstCell
	if cell < 0 {
		return -1
	}
	if cell >= len(t.cells) {
		return rangeBuckets
	}
	c := &t.cells[cell]
	if v < c.below {
		return c.bucket
	}
	if v > c.above {
		return c.bucket + 1
	}
	return bucketByFormula(v)
}

// bucketByFormula defines the bucket of a value. An exact power of ten, which is a bound,
// belongs to the bucket below it, except 1e-9 and 1e18, which belong to the bucket above.
func bucketByFormula(v float64) int {
	exact := (math.Log10(v) - lowestExponent) * bucketsPerDecade
	if exact < 0 {
		return -1
	}
	if exact >= rangeBuckets {
		return rangeBuckets
	}
	i := int(exact)
	if float64(i) == exact && i > 0 {
		i--
	}
	return i
}

func (t *rangeTable) fill() {
	bound := math.Pow10(lowestExponent)
	text := strconv.FormatFloat(bound, 'e', 3, 64)
	t.bounds[0] = bound
	for i := range t.texts {
		bound *= math.Pow(10, 1.0/bucketsPerDecade)
		next := strconv.FormatFloat(bound, 'e', 3, 64)
		t.texts[i] = text + "..." + next
		t.bounds[i+1], _ = strconv.ParseFloat(next, 64)
		text = next
	}
	for i := range t.cells {
		low := math.Float64frombits(uint64(firstCell+i) << cellShift)
		high := math.Float64frombits(uint64(firstCell+i+1) << cellShift)
		c := rangeCell{below: math.Inf(1), bucket: bucketByFormula(low)}
		if bucketByFormula(high) != c.bucket {
			edge := math.Pow(10, float64(c.bucket+1)/bucketsPerDecade+lowestExponent)
			c.below, c.above = edge*(1-1e-12), edge*(1+1e-12)
		}
		t.cells[i] = c
	}
}
