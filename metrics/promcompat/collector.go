package promcompat

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/ferula-io/ferula/metrics"
)

// FromGatherer returns a collector for metrics.Set.RegisterCollector that produces the metrics of
// g. The set then exposes and pushes them with its own metrics, with its prefix and labels, in all
// formats. An exporter that is written for client_golang needs no change:
//
//	registry := prometheus.NewRegistry()
//	registry.MustRegister(exporter) // a prometheus.Collector with constant metrics
//	set.RegisterCollector(promcompat.FromGatherer(registry))
//
// Types, help, created timestamps, timestamps, exemplars and native histograms are kept. Histograms
// with float counts and gauge histograms fail the scrape; client_golang does not create such
// histograms. Errors of g fail the scrape, too.
func FromGatherer(g prometheus.Gatherer) func(sink *metrics.Sink) error {
	s := &source{g: g}
	return s.collect
}

// source produces the metrics of a gatherer.
type source struct {
	g     prometheus.Gatherer
	mu    sync.Mutex
	descs map[string]*metrics.Desc // of the last scrape
}

func (s *source) collect(sink *metrics.Sink) error {
	families, err := s.g.Gather() // may return families with an error
	s.mu.Lock()
	defer s.mu.Unlock()
	used := make(map[string]*metrics.Desc, len(s.descs))
	for _, f := range families {
		for _, m := range f.Metric {
			sink.Error(add(sink, f, m, s.desc(f, m, used)))
		}
	}
	s.descs = used
	return err
}

// desc returns the description of a metric. It reuses the description of the last scrape if there
// is one.
func (s *source) desc(f *dto.MetricFamily, m *dto.Metric, used map[string]*metrics.Desc) *metrics.Desc {
	const separator = 0xff // no name has this byte
	key := append(append([]byte(f.GetName()), separator), f.GetHelp()...)
	for _, pair := range m.Label {
		key = append(append(key, separator), pair.GetName()...)
	}
	d := used[string(key)]
	if d == nil {
		d = s.descs[string(key)]
	}
	if d == nil {
		labels := make([]string, len(m.Label))
		for i, pair := range m.Label {
			labels[i] = pair.GetName()
		}
		d = metrics.NewDesc(f.GetName(), f.GetHelp(), labels...)
	}
	used[string(key)] = d
	return d
}

func add(sink *metrics.Sink, f *dto.MetricFamily, m *dto.Metric, d *metrics.Desc) error {
	values := make([]string, len(m.Label))
	for i, pair := range m.Label {
		values[i] = pair.GetValue()
	}
	var added *metrics.ConstMetric
	switch {
	case f.GetType() == dto.MetricType_COUNTER && m.Counter != nil:
		added = sink.Counter(d, m.Counter.GetValue(), values...)
		addExemplar(added, m.Counter.Exemplar)
		if m.Counter.CreatedTimestamp != nil {
			added.Created(m.Counter.CreatedTimestamp.AsTime())
		}
	case f.GetType() == dto.MetricType_GAUGE && m.Gauge != nil:
		added = sink.Gauge(d, m.Gauge.GetValue(), values...)
	case f.GetType() == dto.MetricType_UNTYPED && m.Untyped != nil:
		added = sink.Untyped(d, m.Untyped.GetValue(), values...)
	case f.GetType() == dto.MetricType_SUMMARY && m.Summary != nil:
		quantiles := make([]metrics.Quantile, len(m.Summary.Quantile))
		for i, q := range m.Summary.Quantile {
			quantiles[i] = metrics.Quantile{Phi: q.GetQuantile(), Value: q.GetValue()}
		}
		added = sink.Summary(d, m.Summary.GetSampleCount(), m.Summary.GetSampleSum(), quantiles, values...)
		if m.Summary.CreatedTimestamp != nil {
			added.Created(m.Summary.CreatedTimestamp.AsTime())
		}
	case f.GetType() == dto.MetricType_HISTOGRAM && m.Histogram != nil:
		if m.Histogram.SampleCountFloat != nil {
			return fmt.Errorf("family %s: histograms with float counts are not supported", f.GetName())
		}
		buckets := make([]metrics.Bucket, len(m.Histogram.Bucket))
		for i, b := range m.Histogram.Bucket {
			buckets[i] = metrics.Bucket{Upper: b.GetUpperBound(), Count: b.GetCumulativeCount()}
		}
		added = sink.Histogram(d, m.Histogram.GetSampleCount(), m.Histogram.GetSampleSum(), buckets, values...)
		if err := addHistogram(added, m.Histogram); err != nil {
			return fmt.Errorf("family %s: %w", f.GetName(), err)
		}
	default:
		return fmt.Errorf("family %s: the type %s is not supported, or a metric has no value of this type", f.GetName(),
			f.GetType())
	}
	if m.TimestampMs != nil {
		added.Timestamp(time.UnixMilli(m.GetTimestampMs()))
	}
	return nil
}

// addHistogram adds the exemplars, the created timestamp and the native buckets of a histogram.
func addHistogram(added *metrics.ConstMetric, h *dto.Histogram) error {
	for _, b := range h.Bucket {
		addExemplar(added, b.Exemplar)
	}
	if h.CreatedTimestamp != nil {
		added.Created(h.CreatedTimestamp.AsTime())
	}
	if h.Schema == nil {
		return nil
	}
	positive, err := nativeBuckets(h.PositiveSpan, h.PositiveDelta)
	if err != nil {
		return err
	}
	negative, err := nativeBuckets(h.NegativeSpan, h.NegativeDelta)
	if err != nil {
		return err
	}
	added.Native(metrics.NativeBuckets{
		Schema: h.GetSchema(), ZeroThreshold: h.GetZeroThreshold(), ZeroCount: h.GetZeroCount(), Positive: positive,
		Negative: negative,
	})
	if len(h.Bucket) == 0 { // otherwise the exemplars are in the buckets
		for _, x := range h.Exemplars {
			addExemplar(added, x)
		}
	}
	return nil
}

var errSpans = errors.New("spans and deltas of a native histogram do not agree")

// nativeBuckets decodes buckets from spans of indexes and deltas of counts.
func nativeBuckets(spans []*dto.BucketSpan, deltas []int64) ([]metrics.NativeBucket, error) {
	buckets := make([]metrics.NativeBucket, 0, len(deltas))
	index, count := int32(0), int64(0)
	for _, span := range spans {
		index += span.GetOffset()
		for range span.GetLength() {
			if len(buckets) == len(deltas) {
				return nil, errSpans
			}
			if count += deltas[len(buckets)]; count < 0 {
				return nil, errSpans
			}
			buckets = append(buckets, metrics.NativeBucket{Index: index, Count: uint64(count)})
			index++
		}
	}
	if len(buckets) < len(deltas) {
		return nil, errSpans
	}
	return buckets, nil
}

func addExemplar(added *metrics.ConstMetric, x *dto.Exemplar) {
	if x == nil {
		return
	}
	at := time.Now()
	if x.Timestamp != nil {
		at = x.Timestamp.AsTime()
	}
	labels := make([]string, 0, 2*len(x.Label))
	for _, pair := range x.Label {
		labels = append(labels, pair.GetName(), pair.GetValue())
	}
	added.Exemplar(x.GetValue(), at, labels...)
}
