package promjson

// Which ends belong to a bucket, as the first element of a bucket's array says.
const (
	LeftOpen  = 0 // (lower, upper]
	RightOpen = 1 // [lower, upper)
	BothOpen  = 2 // (lower, upper)
	Closed    = 3 // [lower, upper]
)

// Boundaries is the number for a bucket whose ends belong to it or not.
func Boundaries(lowerInclusive, upperInclusive bool) int {
	switch {
	case lowerInclusive && upperInclusive:
		return Closed
	case lowerInclusive:
		return RightOpen
	case upperInclusive:
		return LeftOpen
	}
	return BothOpen
}

// Bucket is one bucket of a native histogram.
type Bucket struct {
	Boundaries          int // LeftOpen, RightOpen, BothOpen or Closed
	Lower, Upper, Count float64
}

// AppendHistogram appends a native histogram as Prometheus writes it:
//
//	{"count":"5","sum":"18.4","buckets":[[3,"-0.001","0.001","2"],[0,"1","2","3"]]}
//
// Buckets with a count of 0 are left out, and so is "buckets" without any.
func AppendHistogram(dst []byte, count, sum float64, buckets []Bucket) []byte {
	dst = AppendHistogramStart(dst, count, sum)
	written := false
	for i := range buckets {
		b := &buckets[i]
		if b.Count == 0 {
			continue
		}
		dst = AppendBucket(dst, !written, b.Boundaries, b.Lower, b.Upper, b.Count)
		written = true
	}
	return AppendHistogramEnd(dst, written)
}

// AppendHistogramStart begins a histogram for callers that have an iterator and
// no slice of buckets: AppendBucket and AppendHistogramEnd must follow.
func AppendHistogramStart(dst []byte, count, sum float64) []byte {
	dst = append(dst, `{"count":"`...)
	dst = AppendFloat(dst, count)
	dst = append(dst, `","sum":"`...)
	dst = AppendFloat(dst, sum)
	return append(dst, '"')
}

// AppendBucket appends one bucket; first says that it is the histogram's first.
// Prometheus leaves out buckets with a count of 0, so the caller must too.
func AppendBucket(dst []byte, first bool, boundaries int, lower, upper, count float64) []byte {
	if first {
		dst = append(dst, `,"buckets":[[`...)
	} else {
		dst = append(dst, ',', '[')
	}
	dst = append(dst, byte('0'+boundaries), ',', '"')
	dst = AppendFloat(dst, lower)
	dst = append(dst, '"', ',', '"')
	dst = AppendFloat(dst, upper)
	dst = append(dst, '"', ',', '"')
	dst = AppendFloat(dst, count)
	return append(dst, '"', ']')
}

// AppendHistogramEnd ends a histogram; any says that it has had a bucket.
func AppendHistogramEnd(dst []byte, any bool) []byte {
	if any {
		dst = append(dst, ']')
	}
	return append(dst, '}')
}
