package sim

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"

	"github.com/ferula-io/ferula/test/chunksample"
)

// samples are the values of a response or of the model, by series (see seriesKey) and
// timestamp in milliseconds.
type samples map[string]map[int64]float64

func (s samples) put(series string, ms int64, v float64) {
	if s[series] == nil {
		s[series] = map[int64]float64{}
	}
	s[series][ms] = v
}

func (s samples) has(series string, ms int64, v float64) bool {
	got, ok := s[series][ms]
	return ok && got == v
}

func (s samples) count() int {
	n := 0
	for _, points := range s {
		n += len(points)
	}
	return n
}

// seriesKey returns a label set as text, sorted by name, without the labels in drop.
func seriesKey(labels map[string]string, drop ...string) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		if !slices.Contains(drop, name) {
			parts = append(parts, fmt.Sprintf("%s=%q", name, labels[name]))
		}
	}
	return strings.Join(parts, ",")
}

// dataKey returns the key of a series in the model: its labels without those in drop and, for
// floats, without the metric name.
func dataKey(labels map[string]string, drop []string) string {
	if labels["__name__"] == metricName {
		drop = append(slices.Clone(drop), "__name__")
	}
	return seriesKey(labels, drop...)
}

// model records the samples sent to a storage. A response must have every acknowledged
// sample, and may have samples of requests that ended without a status.
type model struct {
	acked samples
	maybe samples
}

func newModel() *model { return &model{acked: samples{}, maybe: samples{}} }

// maybeCount returns the number of samples that may be stored, because their request ended
// without a status.
func (m *model) maybeCount() int { return m.maybe.count() }

// clone returns a copy that later writes do not change.
func (m *model) clone() *model {
	c := newModel()
	for series, points := range m.acked {
		c.acked[series] = maps.Clone(points)
	}
	for series, points := range m.maybe {
		c.maybe[series] = maps.Clone(points)
	}
	return c
}

// withoutNative returns the model without native histograms.
func (m *model) withoutNative() *model {
	c := m.clone()
	for _, all := range []samples{c.acked, c.maybe} {
		maps.DeleteFunc(all, func(series string, _ map[int64]float64) bool { return strings.Contains(series, nativeName) })
	}
	return c
}

// check compares a response with the model over [minMS, maxMS]. Samples before
// keepFromMS may be missing, because retention may have deleted them.
func (m *model) check(got samples, minMS, maxMS, keepFromMS int64) error {
	for series, points := range m.acked {
		for ms, v := range points {
			if ms < max(minMS, keepFromMS) || ms > maxMS {
				continue
			}
			have, ok := got[series][ms]
			if !ok {
				return fmt.Errorf("acknowledged sample {%s} @%d is missing (the response has %d of %d samples of the series)", series, ms, len(got[series]), len(points))
			}
			if have != v {
				return fmt.Errorf("sample {%s} @%d is %v, but %v was written", series, ms, have, v)
			}
		}
	}
	for series, points := range got {
		for ms, v := range points {
			if !m.acked.has(series, ms, v) && !m.maybe.has(series, ms, v) {
				return fmt.Errorf("sample {%s} @%d %v was never written", series, ms, v)
			}
			if ms < minMS || ms > maxMS {
				return fmt.Errorf("sample {%s} @%d is outside of the range %d to %d", series, ms, minMS, maxMS)
			}
		}
	}
	return nil
}

// profileModel records the total values of pushed profiles by service.
type profileModel struct {
	acked map[string]int64
	maybe map[string][]int64
}

func newProfileModel() *profileModel {
	return &profileModel{acked: map[string]int64{}, maybe: map[string][]int64{}}
}

// check compares the total of a service. A push without a status is stored as a whole
// or not at all.
func (m *profileModel) check(service string, got int64) error {
	sums := map[int64]bool{m.acked[service]: true}
	for _, v := range m.maybe[service] {
		more := map[int64]bool{}
		for sum := range sums {
			more[sum+v] = true
		}
		maps.Copy(sums, more)
	}
	if !sums[got] {
		return fmt.Errorf("profiles of %s sum to %d, but %d was pushed (%d pushes without a status)", service, got, m.acked[service], len(m.maybe[service]))
	}
	return nil
}

// The model holds a native histogram as values of several series: its count, its sum and
// each bucket.
func (s samples) putHistogram(series string, ms int64, h *histogram.FloatHistogram) {
	s.put(series+" count", ms, h.Count)
	s.put(series+" sum", ms, h.Sum)
	for it := h.AllBucketIterator(); it.Next(); {
		if b := it.At(); b.Count != 0 {
			s.put(bucketKey(series, b.Lower, b.Upper), ms, b.Count)
		}
	}
}

func bucketKey(series string, lower, upper float64) string {
	return fmt.Sprintf("%s bucket %g to %g", series, lower, upper)
}

// putHistogramJSON adds a histogram as the API and `ferula read` write it.
func (s samples) putHistogramJSON(series string, ms int64, text []byte) error {
	var h struct {
		Count   string   `json:"count"`
		Sum     string   `json:"sum"`
		Buckets [][4]any `json:"buckets"`
	}
	if err := json.Unmarshal(text, &h); err != nil {
		return fmt.Errorf("histogram %.200s: %w", text, err)
	}
	if _, double := s[series+" count"][ms]; double {
		return fmt.Errorf("histogram {%s} @%d occurs twice", series, ms)
	}
	numbers := []any{h.Count, h.Sum}
	for _, b := range h.Buckets {
		numbers = append(numbers, b[1], b[2], b[3])
	}
	var values []float64
	for _, n := range numbers {
		text, _ := n.(string)
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("histogram: %w", err)
		}
		values = append(values, v)
	}
	s.put(series+" count", ms, values[0])
	s.put(series+" sum", ms, values[1])
	for i := 2; i < len(values); i += 3 {
		s.put(bucketKey(series, values[i], values[i+1]), ms, values[i+2])
	}
	return nil
}

// randomHistogram returns a native histogram with exponential or custom buckets.
func randomHistogram(rng *rand.Rand) *histogram.Histogram {
	h := tsdbutil.GenerateTestHistogram(int64(rng.IntN(50)))
	if rng.IntN(3) == 0 {
		h = tsdbutil.GenerateTestCustomBucketsHistogram(int64(rng.IntN(50)))
	}
	h.Sum = float64(rng.IntN(1_000_000)) / 4
	return h
}

// nativeSeries returns native histograms as remote write sends them: integers or floats.
func nativeSeries(rng *rand.Rand, times []int64) prompb.TimeSeries {
	ts := prompb.TimeSeries{Labels: []prompb.Label{{Name: "__name__", Value: nativeName}, {Name: "kind", Value: pick(rng, "int", "float")}}}
	for _, ms := range times {
		if h := randomHistogram(rng); ts.Labels[1].Value == "int" {
			ts.Histograms = append(ts.Histograms, prompb.FromIntHistogram(ms, h))
		} else {
			ts.Histograms = append(ts.Histograms, prompb.FromFloatHistogram(ms, h.ToFloat(nil)))
		}
	}
	return ts
}

// classicSeries returns the series of a classic histogram: one for each bucket, the count and the
// sum.
func classicSeries(rng *rand.Rand, times []int64) []prompb.TimeSeries {
	bounds := []string{"0.1", "1", "+Inf"}
	series := map[string]map[int64]float64{}
	for _, ms := range times {
		total := 0.0
		for _, le := range bounds {
			total += float64(rng.IntN(100))
			if series[le] == nil {
				series[le] = map[int64]float64{}
			}
			series[le][ms] = total
		}
	}
	var list []prompb.TimeSeries
	for _, le := range bounds {
		list = append(list, floatSeries(classicName+"_bucket", map[string]string{"le": le}, series[le]))
	}
	return append(list, floatSeries(classicName+"_count", nil, series["+Inf"]), floatSeries(classicName+"_sum", nil, series["1"]))
}

// histogramSample is a chunks.Sample with a native histogram.
type histogramSample struct {
	chunksample.Float
	h *histogram.FloatHistogram
}

func (s histogramSample) FH() *histogram.FloatHistogram { return s.h }
func (s histogramSample) Type() chunkenc.ValueType      { return chunkenc.ValFloatHistogram }
func (s histogramSample) Copy() chunks.Sample           { return s }

// chunkSamples returns points sorted by timestamp.
func chunkSamples(points map[int64]float64) []chunks.Sample {
	var list []chunks.Sample
	for _, ms := range sortedKeys(points) {
		list = append(list, chunksample.Float{MS: ms, Value: points[ms]})
	}
	return list
}
