package metrics

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/ferula-io/ferula/metrics/internal/exposition"
)

// Desc is the name, the help and the label names of a family of collected metrics. It is
// immutable. Create it once, not at each scrape.
type Desc struct {
	name   string
	labels []string // in quotes if they are UTF-8 names
	about  description
	err    error // of a scrape that uses it
}

// NewDesc returns the description of a family. Names may be UTF-8. If a name is not valid, or
// a label occurs twice, every metric with this description fails the scrape.
func NewDesc(name, help string, labels ...string) *Desc {
	help = strings.ToValidUTF8(help, "\uFFFD")
	d := &Desc{name: name, about: description{help: help, escaped: string(exposition.AppendQuoted(nil, help, false))}}
	if !isValidUTF8Name(name) {
		d.err = fmt.Errorf("family %q has an invalid name", name)
	}
	for i, label := range labels {
		switch {
		case !isValidUTF8Name(label) || label == "__name__":
			d.err = errors.Join(d.err, fmt.Errorf("family %q: label %q is not valid", name, label))
		case slices.Contains(labels[:i], label):
			d.err = errors.Join(d.err, fmt.Errorf("family %q: label %q is there twice", name, label))
		case !exposition.IsClassicLabel(label):
			label = quoted(label)
		}
		d.labels = append(d.labels, label)
	}
	return d
}

// Sink receives the metrics that a collector produces during one scrape. Label values are in the
// order of the label names of the Desc; bytes that are not UTF-8 are replaced with U+FFFD.
//
// An invalid metric is left out, and fails the scrape with an error that names it. A metric is
// invalid in these cases:
//
//   - it has a wrong number of label values
//   - the set, or an earlier call, has a metric with the same name and label values
//   - its type or help differs from its family
//   - its name is the name of a histogram or summary with a suffix, such as _sum
//   - its buckets or quantiles are not in order
//
// A handler then responds with status 500 and the first 20 errors, so that no scrape response
// silently lacks metrics. WritePrometheus writes the other metrics and logs each error once.
//
// Several goroutines may use a sink until its collector has returned. The sink keeps the names
// of the series for the next scrape: a scrape with the same series, and with descriptions that
// are created once, does not allocate.
type Sink struct {
	mu       sync.Mutex
	set      *Set
	epoch    uint64                  // counts scrapes
	families map[*Desc]*sinkFamily   // of this scrape and the previous one
	byName   map[string]*ConstMetric // by full name, which is name{label="value"}; of this scrape and the previous one
	seen     int                     // number of metrics of this scrape
	seenOf   int                     // number of descriptions of this scrape
	// metrics of the previous scrape, until the method order replaces them with the metrics of this one
	sorted  []entry
	added   []entry   // in this scrape and not in the previous one
	valid   []entry   // entries of sorted that the method finish has not rejected; current only if hadBad
	known   *[]Family // families at the last call of finish; immutable
	changed bool      // known may differ from the families of this scrape
	hadBad  bool      // finish has rejected metrics of this scrape; makes changed true at the start of the next one
	errs    []error
	more    int // number of errors that are not in errs
	text    []byte
}

// sinkFamily is a description within a set.
type sinkFamily struct {
	sink   *Sink
	desc   *Desc
	name   string // as in TYPE lines
	open   string // the part of full names before the labels of the metric
	braces bool   // full names end with a brace
	err    error  // all its metrics are invalid
	epoch  uint64 // of the last scrape with it
}

// Bucket is one cumulative bucket of a collected histogram.
type Bucket struct {
	Upper float64 // inclusive upper bound
	Count uint64  // of all values up to it
}

// Quantile is one quantile of a collected summary.
type Quantile struct {
	Phi   float64 // 0 to 1
	Value float64
}

// NativeBuckets are the buckets of a collected native histogram, see ConstMetric.Native.
type NativeBuckets struct {
	Schema             int32   // -4 to 8: the bounds are powers of 2^(2^-Schema)
	ZeroThreshold      float64 // values up to it, positive and negative, are in ZeroCount
	ZeroCount          uint64
	Positive, Negative []NativeBucket // with increasing indexes
}

// NativeBucket is one bucket of a native histogram: it counts the values above
// (2^(2^-Schema))^(Index-1), up to (2^(2^-Schema))^Index.
type NativeBucket struct {
	Index int32
	Count uint64
}

// Counter adds a counter with the value v.
func (s *Sink) Counter(d *Desc, v float64, labelValues ...string) *ConstMetric {
	m := s.add(d, exposition.Counter, labelValues)
	m.value = v
	return m
}

// Gauge adds a gauge with the value v.
func (s *Sink) Gauge(d *Desc, v float64, labelValues ...string) *ConstMetric {
	m := s.add(d, exposition.Gauge, labelValues)
	m.value = v
	return m
}

// Untyped adds a metric without a type, with the value v.
func (s *Sink) Untyped(d *Desc, v float64, labelValues ...string) *ConstMetric {
	m := s.add(d, exposition.Unknown, labelValues)
	m.value = v
	return m
}

// Histogram adds a histogram of count values. The bounds of the buckets must increase, and their
// cumulative counts must not decrease; the bucket +Inf may be left out. Histogram does not
// retain the buckets.
func (s *Sink) Histogram(d *Desc, count uint64, sum float64, buckets []Bucket, labelValues ...string) *ConstMetric {
	if err := validBuckets(buckets, count); err != nil {
		return s.refuse(d, err)
	}
	m := s.add(d, exposition.Histogram, labelValues)
	x := m.parts()
	x.Count, x.Sum = count, sum
	for _, b := range buckets {
		x.Buckets = append(x.Buckets, exposition.Bucket{Upper: b.Upper, Count: b.Count})
	}
	return m
}

// Summary adds a summary of count values. The quantiles must increase. Summary does not retain
// them.
func (s *Sink) Summary(d *Desc, count uint64, sum float64, quantiles []Quantile, labelValues ...string) *ConstMetric {
	before := math.Inf(-1)
	for _, q := range quantiles {
		if !(q.Phi >= 0 && q.Phi <= 1 && q.Phi > before) {
			return s.refuse(d, fmt.Errorf("quantile %v is outside [0, 1] or not above the one before", q.Phi))
		}
		before = q.Phi
	}
	m := s.add(d, exposition.Summary, labelValues)
	x := m.parts()
	x.Count, x.Sum = count, sum
	for _, q := range quantiles {
		x.Quantiles = append(x.Quantiles, exposition.Quantile{Phi: q.Phi, Value: q.Value})
	}
	return m
}

// Error adds an error to the errors of the scrape, as if the collector returned it. It ignores nil.
func (s *Sink) Error(err error) {
	if err == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail(err)
}

func validBuckets(buckets []Bucket, count uint64) error {
	before := Bucket{Upper: math.Inf(-1)}
	for _, b := range buckets {
		switch {
		case !(b.Upper > before.Upper):
			return fmt.Errorf("bound %v of a bucket is not above the one before", b.Upper)
		case b.Count < before.Count:
			return fmt.Errorf("the bucket of %v has %d values, fewer than the one before", b.Upper, b.Count)
		case b.Count > count || math.IsInf(b.Upper, 1) && b.Count != count:
			return fmt.Errorf("the bucket of %v has %d values of %d", b.Upper, b.Count, count)
		}
		before = b
	}
	return nil
}

// errorsMax is the number of errors of one scrape that are kept; further ones are only counted.
const errorsMax = 20

// fail adds an error. The caller holds mu.
func (s *Sink) fail(err error) {
	if len(s.errs) < errorsMax {
		s.errs = append(s.errs, err)
	} else {
		s.more++
	}
}

// refuse adds an error of a family. It returns a metric that is not exposed.
func (s *Sink) refuse(d *Desc, err error) *ConstMetric {
	s.Error(fmt.Errorf("family %q: %w", d.name, err))
	return &ConstMetric{}
}

// add returns the metric with these label values, for the caller to set its value. An invalid
// metric is not exposed.
func (s *Sink) add(d *Desc, kind exposition.Type, values []string) *ConstMetric {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.families[d]
	if f == nil {
		f = s.newFamily(d)
	}
	isFirst := f.epoch != s.epoch
	if isFirst {
		f.epoch = s.epoch
		s.seenOf++
	}
	switch {
	case f.err != nil:
		if isFirst {
			s.fail(f.err)
		}
		return &ConstMetric{}
	case len(values) != len(d.labels):
		s.fail(fmt.Errorf("family %q has %d labels; got %d values", d.name, len(d.labels), len(values)))
		return &ConstMetric{}
	case isReserved(d.labels, kind):
		if isFirst {
			s.fail(fmt.Errorf("family %q: the label le is reserved in a histogram, and the label quantile in a summary", d.name))
		}
		return &ConstMetric{}
	}
	s.text = append(s.text[:0], f.open...)
	for i, label := range d.labels {
		s.text = appendLabel(s.text, label, values[i])
	}
	if f.braces {
		s.text = append(s.text, '}')
	}
	m := s.byName[string(s.text)]
	switch {
	case m == nil:
		m = &ConstMetric{named: named{string(s.text)}}
		s.byName[m.name] = m
		s.added = append(s.added, entry{m, 0})
	case m.epoch == s.epoch:
		s.fail(fmt.Errorf("metric %s was collected before with the same name and label values", m.name))
		return &ConstMetric{}
	}
	s.seen++
	m.reset(f, kind, s.epoch)
	return m
}

// isReserved reports whether labels contain the label that the type itself has: le of a histogram,
// quantile of a summary.
func isReserved(labels []string, kind exposition.Type) bool {
	switch kind {
	case exposition.Histogram:
		return slices.Contains(labels, "le")
	case exposition.Summary:
		return slices.Contains(labels, "quantile")
	}
	return false
}

// newFamily returns the family of a description, with the prefix and the labels of the set.
func (s *Sink) newFamily(d *Desc) *sinkFamily {
	f := &sinkFamily{sink: s, desc: d, name: d.name, err: d.err}
	s.families[d] = f
	c := s.set.scope
	if c != nil {
		f.name = c.prefix + d.name
		for _, label := range d.labels {
			if f.err == nil && slices.Contains(c.names, unquoted(label)) {
				f.err = fmt.Errorf("family %q has the label %s, as its set has", d.name, label)
			}
		}
	}
	if f.err != nil {
		return f
	}
	classic := exposition.IsClassic(f.name)
	f.open = string(openName(c, f.name))
	f.braces = true
	if classic && len(d.labels) == 0 && strings.HasSuffix(f.open, "{") {
		f.open, f.braces = f.name, false
	}
	if !classic {
		f.name = quoted(f.name)
	}
	// open has the family name and the set's labels. IsClassicName checks all names in it and skips the label values.
	if !exposition.IsClassicName(f.open) || slices.ContainsFunc(d.labels, func(label string) bool {
		return label[0] == '"'
	}) {
		s.set.hasNonClassic.Store(true)
	}
	return f
}

// openName returns the part of a full name before the labels of the metric: the family name, an
// opening brace, and the labels of the set.
func openName(c *scope, name string) []byte {
	b := append([]byte(name), '{')
	if !exposition.IsClassic(name) {
		b = append([]byte{'{'}, quoted(name)...)
	}
	if c != nil && c.labels != "" {
		if b[len(b)-1] != '{' {
			b = append(b, ',')
		}
		b = append(b, c.labels...)
	}
	return b
}

// appendLabel appends a label to b, a full name that is not complete yet.
func appendLabel(b []byte, label, value string) []byte {
	if b[len(b)-1] != '{' {
		b = append(b, ',')
	}
	b = append(append(b, label...), `="`...)
	if !utf8.ValidString(value) {
		value = strings.ToValidUTF8(value, "\uFFFD")
	}
	return append(exposition.AppendQuoted(b, value, true), '"')
}

// ConstMetric is one metric of one scrape. Its methods add optional parts and return the metric:
//
//	sink.Counter(requests, 17, "GET").Created(start).Exemplar(1, now, "trace_id", id)
//
// They must be called before the collector returns.
type ConstMetric struct {
	named
	family      *sinkFamily
	kind        exposition.Type
	epoch       uint64 // of the last scrape with it
	bad         bool   // finish has rejected it
	value       float64
	timestampMS int64
	createdMS   int64
	more        *constParts // of histograms, summaries and exemplars; kept for the next scrape
}

// constParts are the parts that a metric with only a value does not need: buckets, quantiles, sum,
// count and exemplars.
type constParts struct {
	exposition.Metric
	example exemplar // the last exemplar
}

func (c *ConstMetric) reset(f *sinkFamily, kind exposition.Type, epoch uint64) {
	f.sink.changed = f.sink.changed || c.family != f || c.kind != kind
	c.family, c.kind, c.epoch, c.bad = f, kind, epoch, false
	c.value, c.timestampMS, c.createdMS = 0, 0, 0
	if c.more != nil {
		c.more.Reset(kind)
	}
}

func (c *ConstMetric) parts() *exposition.Metric {
	if c.more == nil {
		c.more = &constParts{}
		c.more.Reset(c.kind)
	}
	return &c.more.Metric
}

// Timestamp sets the timestamp of the sample. Without it the time of the scrape applies.
// Prometheus writes no staleness markers for samples with a timestamp, so use it only for values
// that are copied from another system.
func (c *ConstMetric) Timestamp(t time.Time) *ConstMetric {
	c.timestampMS = t.UnixMilli()
	return c
}

// Created sets the time since which a counter, histogram or summary counts. It is exposed in
// protobuf, and in OpenMetrics with HandlerOptions.CreatedLines.
func (c *ConstMetric) Created(t time.Time) *ConstMetric {
	c.createdMS = t.UnixMilli()
	return c
}

// Exemplar sets the exemplar of a counter, or of the bucket of v in a histogram. labels are as
// in Counter.AddWithExemplar; an invalid exemplar is dropped.
func (c *ConstMetric) Exemplar(v float64, at time.Time, labels ...string) *ConstMetric {
	if c.kind != exposition.Counter && c.kind != exposition.Histogram {
		return c
	}
	m, x := c.parts(), &c.more.example
	x.atMS = 0
	if x.set(v, labels); x.atMS == 0 { // set changes atMS only if the labels are valid
		return c
	}
	x.atMS = at.UnixMilli()
	if c.kind == exposition.Counter {
		m.Exemplar = x.read(m)
		return c
	}
	for i := range m.Buckets {
		if v <= m.Buckets[i].Upper {
			m.Buckets[i].Exemplar = x.read(m)
			return c
		}
	}
	if len(m.Buckets) > 0 {
		m.Buckets = append(m.Buckets, exposition.Bucket{Upper: math.Inf(1), Count: m.Count, Exemplar: x.read(m)})
	} else {
		m.Exemplars = append(m.Exemplars, x.read(m))
	}
	return c
}

const (
	nativeSchemaMin = -4
	nativeSchemaMax = 8
	nativeIndexMax  = 1 << 20 // greater than the index of any float64
)

// Native adds native buckets to a histogram, which are exposed in protobuf only. All formats have
// the classic buckets. The scrape fails if c is not a histogram, or if the buckets are invalid or
// count more values than the histogram. Native does not retain the buckets.
func (c *ConstMetric) Native(b NativeBuckets) *ConstMetric {
	if c.family == nil { // its error is already reported
		return c
	}
	if err := c.setNative(b); err != nil {
		c.family.sink.Error(err)
	}
	return c
}

func (c *ConstMetric) setNative(b NativeBuckets) error {
	if c.kind != exposition.Histogram {
		return fmt.Errorf("metric %s is no histogram", c.name)
	}
	if b.Schema < nativeSchemaMin || b.Schema > nativeSchemaMax || !(b.ZeroThreshold >= 0) {
		return fmt.Errorf("metric %s: schema %d or zero threshold %v is not valid", c.name, b.Schema, b.ZeroThreshold)
	}
	m := c.parts()
	left := m.Count
	take := func(n uint64) bool {
		if n > left {
			return false
		}
		left -= n
		return true
	}
	if !take(b.ZeroCount) {
		return fmt.Errorf("metric %s has fewer values than its zero bucket", c.name)
	}
	for _, side := range [...][]NativeBucket{b.Positive, b.Negative} {
		for i, one := range side {
			if one.Index < -nativeIndexMax || one.Index > nativeIndexMax || i > 0 && one.Index <= side[i-1].Index {
				return fmt.Errorf("metric %s: index %d of a native bucket is out of range or not above the one before",
					c.name, one.Index)
			}
			if !take(one.Count) {
				return fmt.Errorf("metric %s has fewer values than its native buckets", c.name)
			}
		}
	}
	n := &m.Native
	n.Is, n.Schema, n.ZeroThreshold, n.ZeroCount = true, b.Schema, b.ZeroThreshold, b.ZeroCount
	n.Indexes, n.Counts = appendNativeBuckets(n.Indexes[:0], n.Counts[:0], b.Positive)
	n.NegativeIndexes, n.NegativeCounts = appendNativeBuckets(n.NegativeIndexes[:0], n.NegativeCounts[:0], b.Negative)
	return nil
}

func appendNativeBuckets(indexes []int32, counts []uint64, buckets []NativeBucket) ([]int32, []uint64) {
	for _, b := range buckets {
		indexes, counts = append(indexes, b.Index), append(counts, b.Count)
	}
	return indexes, counts
}

func (c *ConstMetric) typeName() string {
	switch c.kind {
	case exposition.Counter:
		return "counter"
	case exposition.Gauge:
		return "gauge"
	case exposition.Histogram:
		return "histogram"
	case exposition.Summary:
		return "summary"
	}
	return "untyped"
}

func (c *ConstMetric) appendTo(dst []byte) []byte {
	if c.kind != exposition.Histogram && c.kind != exposition.Summary {
		return c.appendStamped(appendNumber(dst, c.name, c.value))
	}
	m := c.parts()
	for i := range m.Buckets {
		dst = c.appendBucket(dst, m.Buckets[i].Upper, m.Buckets[i].Count)
	}
	if n := len(m.Buckets); c.kind == exposition.Histogram && (n == 0 || !math.IsInf(m.Buckets[n-1].Upper, 1)) {
		dst = c.appendBucket(dst, math.Inf(1), m.Count)
	}
	base, separator := exposition.OpenLabels(c.name)
	for _, q := range m.Quantiles {
		dst = append(append(append(dst, base...), separator...), `quantile="`...)
		dst = c.appendStamped(appendFloat(append(appendFloatText(dst, q.Phi), '"'), "}", q.Value))
	}
	dst = c.appendStamped(appendNumber(exposition.AppendSuffixed(dst, c.name, "_sum"), "", m.Sum))
	return c.appendStamped(appendUint(exposition.AppendSuffixed(dst, c.name, "_count"), "", m.Count))
}

func (c *ConstMetric) appendBucket(dst []byte, upper float64, n uint64) []byte {
	dst = exposition.AppendSuffixed(dst, c.name, "_bucket")
	switch end := len(dst) - 1; {
	case dst[end] != '}':
		dst = append(dst, '{')
	case dst[end-1] == '{':
		dst = dst[:end]
	default:
		dst[end] = ','
	}
	dst = append(dst, `le="`...)
	if math.IsInf(upper, 1) {
		dst = append(dst, "+Inf"...)
	} else {
		dst = appendFloatText(dst, upper)
	}
	return c.appendStamped(appendUint(append(dst, '"'), "}", n))
}

// appendStamped puts the timestamp, if there is one, before the line break that dst ends with.
func (c *ConstMetric) appendStamped(dst []byte) []byte {
	if c.timestampMS == 0 {
		return dst
	}
	dst[len(dst)-1] = ' '
	return append(strconv.AppendInt(dst, c.timestampMS, 10), '\n')
}

func (c *ConstMetric) read(m *exposition.Metric) bool {
	m.Reset(c.kind)
	if c.more != nil {
		m.CopyFrom(&c.more.Metric)
	}
	m.Value, m.TimestampMS, m.CreatedMS = c.value, c.timestampMS, c.createdMS
	return true
}
