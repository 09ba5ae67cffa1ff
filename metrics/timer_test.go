package metrics

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// The returned duration is the one with which the metric was updated.
func TestTimer_UpdatesEveryMetricOfSingleValues(t *testing.T) {
	s := NewSet()
	g := s.NewGauge("gauge_seconds", nil)
	for name, m := range map[string]Updater{
		"histogram_seconds": s.NewHistogram("histogram_seconds"),
		"classic_seconds":   s.NewPrometheusHistogram("classic_seconds"),
		"summary_seconds":   s.NewSummary("summary_seconds"),
		"gauge_seconds":     UpdaterFunc(g.Set),
	} {
		timer := NewTimer(m)
		timer.start = timer.start.Add(-time.Hour)
		d := timer.ObserveDuration()
		if d < time.Hour || d > 2*time.Hour {
			t.Errorf("%s: %s", name, d)
		}
		suffix := "_sum"
		if name == "gauge_seconds" {
			suffix = ""
		}
		var page bytes.Buffer
		s.WritePrometheus(&page)
		if want := string(appendNumber(nil, name+suffix, d.Seconds())); !strings.Contains(page.String(), want) {
			t.Errorf("no line %s in\n%s", want, page.String())
		}
	}
}

func TestTimer_ExemplarIsThatOfItsBucket(t *testing.T) {
	s := NewSet()
	h := s.NewPrometheusHistogramExt("seconds", []float64{1, 10000})
	timer := NewTimer(h)
	timer.start = timer.start.Add(-time.Hour)
	d := timer.ObserveDurationWithExemplar("trace_id", "abc")
	NewTimer(s.NewSummary("summary")).ObserveDurationWithExemplar("trace_id", "abc") // has none
	_, page := scraped(s, acceptOpenMetrics)
	if d < time.Hour || !strings.Contains(page, `seconds_bucket{le="10000.0"} 1 # {trace_id="abc"} 36`) || !strings.Contains(page, "summary_count 1\n") {
		t.Errorf("%s\n%s", d, page)
	}
}
