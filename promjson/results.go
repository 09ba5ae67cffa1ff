package promjson

import (
	"fmt"
	"iter"
)

// pointsPerPiece is the number of points that are appended before the size of the buffer is
// checked again.
const pointsPerPiece = 256

// BeginMatrix begins the response to a range query, or to a query of a range vector.
func (e *Encoder) BeginMatrix() {
	e.begin("BeginMatrix", `{"resultType":"matrix","result":[`, placeMatrix)
}

// BeginVector begins the response to a query of an instant vector.
func (e *Encoder) BeginVector() {
	e.begin("BeginVector", `{"resultType":"vector","result":[`, placeVector)
}

// Scalar writes the result of a scalar query; ms is its timestamp in milliseconds.
func (e *Encoder) Scalar(ms int64, v float64) {
	if e.begin("Scalar", `{"resultType":"scalar","result":`, placeData) {
		e.b = AppendScalarResult(e.b, ms, v)
	}
}

// Text writes the result of a string query; ms is its timestamp in milliseconds.
func (e *Encoder) Text(ms int64, s string) {
	if e.begin("Text", `{"resultType":"string","result":`, placeData) {
		e.b = AppendStringResult(e.b, ms, s)
	}
}

// Series begins a series of a matrix with its labels, which must be sorted by name. Its
// values (EncodeValues, Columns or ValueSeq) must be added before its histograms (Histogram); either may be absent.
func (e *Encoder) Series(labels iter.Seq2[string, string]) {
	if !e.element("Series", placeMatrix) {
		return
	}
	e.raw(`{"metric":`)
	e.metric(labels)
	e.place, e.array = placeSeries, kindNone
}

// RawSeries is Series with a metric object, {"name":"value",...}, that is copied as it is.
func (e *Encoder) RawSeries(metric []byte) {
	if !e.element("RawSeries", placeMatrix) {
		return
	}
	e.raw(`{"metric":`)
	e.b = append(e.b, metric...)
	e.place, e.array = placeSeries, kindNone
}

// open appends the bytes before the next point of kind k in a series.
func (e *Encoder) open(method string, k kind) bool {
	if e.place != placeSeries || e.array > k {
		e.misplaced(method)
	}
	if e.err != nil {
		return false
	}
	switch {
	case e.array == k:
		e.raw(",")
		return true
	case e.array != kindNone:
		e.raw("]")
	}
	e.array = k
	if k == kindValues {
		e.raw(`,"values":[`)
	} else {
		e.raw(`,"histograms":[`)
	}
	return true
}

// EncodeValues adds values to the series. It may be called several times for one series.
func EncodeValues[P PointLike](e *Encoder, points []P) {
	for len(points) > 0 && e.open("EncodeValues", kindValues) {
		piece := points[:min(len(points), pointsPerPiece)]
		points = points[len(piece):]
		e.b = AppendPoints(e.b, e.steps, piece)
		e.flushIfFull()
	}
}

// Columns adds values to the series: value vs[i] at ts[i], in milliseconds. Columns of
// different lengths are an error.
func (e *Encoder) Columns(ts []int64, vs []float64) {
	if len(ts) != len(vs) && e.err == nil {
		e.err = fmt.Errorf("promjson: %d timestamps and %d values", len(ts), len(vs))
		e.b = e.b[:0]
	}
	for len(ts) > 0 && e.open("Columns", kindValues) {
		n := min(len(ts), pointsPerPiece)
		e.b = AppendColumns(e.b, e.steps, ts[:n], vs[:n])
		ts, vs = ts[n:], vs[n:]
		e.flushIfFull()
	}
}

// ValueSeq adds values to the series: pairs of a timestamp in milliseconds and a value.
func (e *Encoder) ValueSeq(points iter.Seq2[int64, float64]) {
	e.queued = 0
	points(e.yieldPoint)
	e.sendPoints()
}

// addPoint is the yield function of an iterator over points.
func (e *Encoder) addPoint(ms int64, v float64) bool {
	e.points[e.queued] = Point{ms, v}
	if e.queued++; e.queued == len(e.points) {
		e.sendPoints()
	}
	return e.err == nil
}

func (e *Encoder) sendPoints() {
	if e.queued > 0 && e.open("ValueSeq", kindValues) {
		e.b = AppendPoints(e.b, e.steps, e.points[:e.queued])
		e.flushIfFull()
	}
	e.queued = 0
}

// Histogram adds a native histogram to the series; ms is its timestamp in milliseconds. Buckets
// with a count of 0 are omitted, as in Prometheus. For a slice of buckets pass slices.Values of
// it; nil means no buckets.
func (e *Encoder) Histogram(ms int64, count, sum float64, buckets iter.Seq[Bucket]) {
	if e.open("Histogram", kindHistograms) {
		e.histogramPoint(ms, count, sum, buckets)
	}
}

// histogramPoint appends [t,{...}].
func (e *Encoder) histogramPoint(ms int64, count, sum float64, buckets iter.Seq[Bucket]) {
	e.raw("[")
	e.b = AppendTimestamp(e.b, ms)
	e.raw(",")
	e.b = AppendHistogramStart(e.b, count, sum)
	e.parts = 0
	if buckets != nil {
		buckets(e.yieldBucket)
	}
	e.b = AppendHistogramEnd(e.b, e.parts > 0)
	e.raw("]")
	e.flushIfFull()
}

// addBucket is the yield function of an iterator over buckets.
func (e *Encoder) addBucket(b Bucket) bool {
	if b.Count == 0 {
		return e.err == nil
	}
	e.b = AppendBucket(e.b, e.parts == 0, b.Boundaries, b.Lower, b.Upper, b.Count)
	e.parts++
	e.flushIfFull()
	return e.err == nil
}

// Sample adds a float sample to a vector; ms is its timestamp in milliseconds.
func (e *Encoder) Sample(labels iter.Seq2[string, string], ms int64, v float64) {
	if !e.element("Sample", placeVector) {
		return
	}
	e.raw(`{"metric":`)
	e.metric(labels)
	e.raw(`,"value":[`)
	e.b = AppendTimestamp(e.b, ms)
	e.raw(`,"`)
	e.b = AppendFloat(e.b, v)
	e.raw(`"]}`)
}

// HistogramSample adds a native histogram to a vector, see Histogram.
func (e *Encoder) HistogramSample(labels iter.Seq2[string, string], ms int64, count, sum float64,
	buckets iter.Seq[Bucket]) {
	if !e.element("HistogramSample", placeVector) {
		return
	}
	e.raw(`{"metric":`)
	e.metric(labels)
	e.raw(`,"histogram":`)
	e.histogramPoint(ms, count, sum, buckets)
	e.raw("}")
}

// BeginLabelSets begins the response of /series.
func (e *Encoder) BeginLabelSets() { e.begin("BeginLabelSets", "[", placeLabelSets) }

// LabelSet adds the labels of one series, sorted by name.
func (e *Encoder) LabelSet(labels iter.Seq2[string, string]) {
	if e.element("LabelSet", placeLabelSets) {
		e.metric(labels)
	}
}

// BeginStrings begins the response of /labels and /label/NAME/values.
func (e *Encoder) BeginStrings() { e.begin("BeginStrings", "[", placeStrings) }

// AddString adds one label name or label value.
func (e *Encoder) AddString(s string) {
	if e.element("AddString", placeStrings) {
		e.b = AppendString(e.b, s)
	}
}

// BeginExemplars begins the response of /query_exemplars.
func (e *Encoder) BeginExemplars() { e.begin("BeginExemplars", "[", placeExemplars) }

// ExemplarSeries begins a series with its labels. Calls of Exemplar follow.
func (e *Encoder) ExemplarSeries(labels iter.Seq2[string, string]) {
	if !e.element("ExemplarSeries", placeExemplars) {
		return
	}
	e.raw(`{"seriesLabels":`)
	e.metric(labels)
	e.raw(`,"exemplars":[`)
	e.place, e.inner = placeExemplarSeries, 0
}

// Exemplar adds an exemplar to the series; ms is its timestamp in milliseconds.
func (e *Encoder) Exemplar(labels iter.Seq2[string, string], ms int64, v float64) {
	if e.place != placeExemplarSeries {
		e.misplaced("Exemplar")
	}
	if e.err != nil {
		return
	}
	if e.inner > 0 {
		e.raw(",")
	}
	e.inner++
	e.raw(`{"labels":`)
	e.metric(labels)
	e.raw(`,"value":"`)
	e.b = AppendFloat(e.b, v)
	e.raw(`","timestamp":`)
	e.b = AppendTimestamp(e.b, ms)
	e.raw("}")
	e.flushIfFull()
}

// BeginMetadata begins the response of /metadata.
func (e *Encoder) BeginMetadata() { e.begin("BeginMetadata", "{", placeMetadata) }

// Metadata adds the metadata of a family. If targets have different metadata of a family, add
// each in consecutive calls. Families may come in any order; for the bytes of Prometheus, sort them by name.
func (e *Encoder) Metadata(family, metricType, unit, help string) {
	if e.place == placeFamily && string(e.last) == family {
		if e.err == nil {
			e.raw(",")
		}
	} else {
		if !e.element("Metadata", placeMetadata) {
			return
		}
		e.b = AppendString(e.b, family)
		e.raw(":[")
		e.place, e.last = placeFamily, append(e.last[:0], family...)
	}
	if e.err != nil {
		return
	}
	e.raw(`{"type":`)
	e.b = AppendString(e.b, metricType)
	e.raw(`,"unit":`)
	e.b = AppendString(e.b, unit)
	e.raw(`,"help":`)
	e.b = AppendString(e.b, help)
	e.raw("}")
	e.flushIfFull()
}
