package main

import (
	"math"

	"github.com/ferula-io/ferula/metrics"
)

// libraryPage returns a set with every type of metric, with exemplars, units and values that a parser may stumble over.
func libraryPage() *metrics.Set {
	s := metrics.NewSet()
	const help = "Requests with a \"quoted\" \\ path.\nSecond line."
	requests := s.NewCounterVec("judged_requests_total", help, "path", "code")
	requests.With("/a\"b\\c\nd", "200").AddWithExemplar(3, "trace_id", "0af7651916cd43dd")
	requests.With("/ü", "500").Inc()
	s.NewFloatCounter("judged_cpu_seconds_total").Add(0.25)
	s.Describe("judged_cpu_seconds_total", "CPU time.", "seconds")
	values := map[string]float64{"inf": math.Inf(1), "nan": math.NaN(), "small": 5e-324, "negative": -1e300}
	for name, value := range values {
		s.NewGauge(`judged_gauge{value="`+name+`"}`, nil).Set(value)
	}
	classic := s.NewPrometheusHistogram("judged_classic_seconds")
	vmrange := s.NewHistogram("judged_vmrange_seconds")
	native := s.NewNativeHistogram("judged_native_seconds", metrics.NativeHistogramOptions{})
	summary := s.NewSummary("judged_summary_seconds")
	for i := range 100 {
		v := float64(i) / 7
		classic.Update(v)
		vmrange.Update(v)
		native.Update(v)
		summary.Update(v)
	}
	return s
}
