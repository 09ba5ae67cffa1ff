package sim

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"
)

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
