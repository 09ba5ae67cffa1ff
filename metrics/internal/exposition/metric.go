package exposition

import "math"

// Type is what a family is.
type Type uint8

// The types, by their numbers in protobuf.
const (
	Counter Type = iota
	Gauge
	Summary
	Unknown
	Histogram
)

// TypeNamed is the type that a TYPE line names.
func TypeNamed(text string) Type {
	switch text {
	case "counter":
		return Counter
	case "gauge":
		return Gauge
	case "summary":
		return Summary
	case "histogram":
		return Histogram
	}
	return Unknown
}

// Metric is one metric as it was at one moment. Whoever fills it appends to its
// slices, which Reset empties and keeps.
type Metric struct {
	Labels      []byte // what stands between the braces of its name
	Type        Type
	Value       float64
	Sum         float64
	Count       uint64
	Buckets     []Bucket // cumulative, of rising bounds; +Inf may be left out
	Quantiles   []Quantile
	Exemplar    Exemplar // of a counter
	CreatedMS   int64    // 0: unknown
	TimestampMS int64    // 0: none
	Native      Native
	texts       []byte // the labels of exemplars
}

// Bucket holds all values up to its bound.
type Bucket struct {
	Upper    float64
	Count    uint64
	Exemplar Exemplar
}

// Quantile is one value of a summary.
type Quantile struct{ Phi, Value float64 }

// Exemplar is one value out of many, and where to learn more of it. There is none
// while AtMS is 0.
type Exemplar struct {
	from, to int // its labels in the metric's texts
	Value    float64
	AtMS     int64
}

// Native are the buckets of a native histogram: nothing unless Is.
type Native struct {
	Is            bool
	Schema        int32
	ZeroThreshold float64
	ZeroCount     uint64
	Indexes       []int32 // rising
	Counts        []uint64
}

// Reset empties the metric for another one.
func (m *Metric) Reset(t Type) {
	n := m.Native
	*m = Metric{
		Type: t, Labels: m.Labels[:0], Buckets: m.Buckets[:0], Quantiles: m.Quantiles[:0], texts: m.texts[:0],
		Native: Native{Indexes: n.Indexes[:0], Counts: n.Counts[:0]},
	}
}

// NewExemplar copies the labels, which are text as between the braces of a name.
func (m *Metric) NewExemplar(labels []byte, value float64, atMS int64) Exemplar {
	from := len(m.texts)
	m.texts = append(m.texts, labels...)
	return Exemplar{from, len(m.texts), value, atMS}
}

// Encoder appends families to Page: one begins, its metrics follow, it ends.
type Encoder struct {
	Form    Form
	Created bool // OpenMetrics has lines _created
	Page    []byte

	name   []byte // of the family, escaped
	quoted bool   // the name must be in quotes
	kind   Type
	labels []byte // of the metric, as OpenMetrics writes them
	began  int    // where the family's message begins
	text   []byte
}

// Begin begins a family; name, help and unit are as a person would write them. A
// counter that OpenMetrics cannot show as one, for the lack of _total or because its
// name without it is taken, is unknown there.
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

// Add appends a metric of the family. It must be of the family's type.
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

// ends tells whether the buckets include +Inf.
func (m *Metric) ends() bool {
	n := len(m.Buckets)
	return n > 0 && math.IsInf(m.Buckets[n-1].Upper, 1)
}
