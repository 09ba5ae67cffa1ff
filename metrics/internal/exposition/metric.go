package exposition

import "math"

// Type is the type of a family.
type Type uint8

// The types, with their numbers in protobuf.
const (
	Counter Type = iota
	Gauge
	Summary
	Unknown
	Histogram
)

// Ranges is the type of histograms with vmrange buckets. No format has this type: the caller
// encodes such a histogram as three families of type Unknown.
const Ranges Type = 100

// Metric is a consistent snapshot of one metric. The caller appends to its slices; Reset
// empties them for reuse.
type Metric struct {
	Labels      []byte // as in text format, name="value",... without braces
	Type        Type
	Value       float64
	Sum         float64
	Count       uint64
	Buckets     []Bucket // cumulative, with increasing bounds; the bucket +Inf is optional
	Quantiles   []Quantile
	Exemplar    Exemplar   // of a counter
	Exemplars   []Exemplar // of a native histogram, in addition to the exemplars of Buckets
	CreatedMS   int64      // 0: unknown
	TimestampMS int64      // 0: none
	Native      Native
	Ranges      []Range
	LeBuckets   bool   // requested: vmrange histograms become Buckets with fixed bounds; kept by Reset
	texts       []byte // the labels of exemplars
}

// Bucket is a cumulative bucket: it counts all values up to its bound.
type Bucket struct {
	Upper    float64
	Count    uint64
	Exemplar Exemplar
}

// Range is a vmrange bucket, which is not cumulative. VMRange is the value of its label.
type Range struct {
	VMRange string
	Count   uint64
}

// Quantile is one value of a summary.
type Quantile struct{ Phi, Value float64 }

// Exemplar is an exemplar. If AtMS is 0, there is none.
type Exemplar struct {
	from, to int // the labels are texts[from:to] of the metric
	Value    float64
	AtMS     int64
}

// Native holds the buckets of a native histogram. It is valid only if Is is true.
type Native struct {
	Is            bool
	Schema        int32
	ZeroThreshold float64
	ZeroCount     uint64
	Indexes       []int32 // increasing
	Counts        []uint64

	NegativeIndexes []int32 // of the absolute values, increasing
	NegativeCounts  []uint64
}

// Reset empties the metric for reuse.
func (m *Metric) Reset(t Type) {
	n := m.Native
	*m = Metric{
		Type: t, Labels: m.Labels[:0], Buckets: m.Buckets[:0], Quantiles: m.Quantiles[:0], texts: m.texts[:0],
		Ranges: m.Ranges[:0], LeBuckets: m.LeBuckets, Exemplars: m.Exemplars[:0],
		Native: Native{
			Indexes: n.Indexes[:0], Counts: n.Counts[:0],
			NegativeIndexes: n.NegativeIndexes[:0], NegativeCounts: n.NegativeCounts[:0],
		},
	}
}

// CopyFrom copies the sum, count, buckets, quantiles and exemplars of from, which it does not
// retain. m must be empty.
func (m *Metric) CopyFrom(from *Metric) {
	m.Sum, m.Count, m.Exemplar = from.Sum, from.Count, from.Exemplar
	m.Buckets, m.Quantiles = append(m.Buckets, from.Buckets...), append(m.Quantiles, from.Quantiles...)
	m.Exemplars, m.texts = append(m.Exemplars, from.Exemplars...), append(m.texts, from.texts...)
	a, b := &m.Native, &from.Native
	a.Is, a.Schema, a.ZeroThreshold, a.ZeroCount = b.Is, b.Schema, b.ZeroThreshold, b.ZeroCount
	a.Indexes, a.Counts = append(a.Indexes, b.Indexes...), append(a.Counts, b.Counts...)
	a.NegativeIndexes, a.NegativeCounts = append(a.NegativeIndexes, b.NegativeIndexes...),
		append(a.NegativeCounts, b.NegativeCounts...)
}

// NewExemplar returns an exemplar of m. It copies labels, which are encoded as Metric.Labels.
func (m *Metric) NewExemplar(labels []byte, value float64, atMS int64) Exemplar {
	from := len(m.texts)
	m.texts = append(m.texts, labels...)
	return Exemplar{from, len(m.texts), value, atMS}
}

// Encoder appends families to Page. For each family call Begin, Add for each metric, End.
type Encoder struct {
	Form    Form
	Created bool // write _created lines in OpenMetrics
	Page    []byte

	name   []byte // of the family, escaped
	quoted bool   // the name must be in quotes
	kind   Type   // of the family, as written
	labels []byte // of the metric, as OpenMetrics writes them
	began  int    // the offset of the family's protobuf message in Page
	text   []byte // scratch
}

// Begin begins a family; name, help and unit are unescaped. taken reports whether another family
// has the name without _total. In OpenMetrics a counter has type unknown if taken is true or its
// name does not end with _total.
func (e *Encoder) Begin(name, help, unit []byte, t Type, taken bool) {
	e.name, e.kind = AppendEscaped(e.name[:0], name, e.Form.Scheme), t
	e.quoted = !IsClassic(e.name)
	e.began = len(e.Page)
	if e.Form.Format == Protobuf {
		e.beginMessage(help, unit)
		return
	}
	if t == Counter {
		base, ok := trimTotal(e.name)
		if ok && !taken {
			e.name = base
		} else {
			e.kind = Unknown
		}
	}
	e.beginText(help, unit)
}

func trimTotal(name []byte) ([]byte, bool) {
	const total = "_total"
	if n := len(name) - len(total); n > 0 && string(name[n:]) == total {
		return name[:n], true
	}
	return name, false
}

// Add appends a metric, which must have the type of the family.
func (e *Encoder) Add(m *Metric) {
	if e.Form.Format == Protobuf {
		e.addMessage(m)
	} else {
		e.addText(m)
	}
}

// End ends the family.
func (e *Encoder) End() {
	if e.Form.Format == Protobuf {
		e.Page = lengthBefore(e.Page, e.began)
	}
}

// ends reports whether the last bucket is +Inf.
func (m *Metric) ends() bool {
	n := len(m.Buckets)
	return n > 0 && math.IsInf(m.Buckets[n-1].Upper, 1)
}
