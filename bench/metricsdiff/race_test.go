package metricsdiff

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	ours "github.com/ferula-io/ferula/metrics"
)

// Metrics are registered, updated, unregistered and scraped concurrently in every format. On every page no counter decreases,
// no bucket is above the count, and buckets, sum and count are of the same time.
func TestScrape_PagesAreConsistentUnderConcurrentUpdates(t *testing.T) {
	s := ours.NewSet()
	kept := s.NewCounter("kept_total")
	p := s.NewPrometheusHistogramExt("p", []float64{1, 2})
	n := s.NewNativeHistogram("n", ours.NativeHistogramOptions{MaxBuckets: 4, UpperBounds: []float64{1}})
	r := s.NewHistogram("r")
	v := s.NewCounterVec("v_total", "", "i").Limit(30).Expire(time.Millisecond)
	h := ours.NewHandler(ours.HandlerOptions{Sets: []*ours.Set{s}, Metadata: true, CreatedLines: true})
	var stop atomic.Bool
	var wg sync.WaitGroup
	background := func(f func(i int)) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := 0; !stop.Load(); i++ {
				f(i)
			}
		}()
	}
	for range 2 {
		background(func(i int) {
			kept.IncWithExemplar("trace_id", fmt.Sprint(i))
			p.UpdateWithExemplar(2, "trace_id", fmt.Sprint(i))
			n.Update(2)
			r.Update(2)
			v.With(fmt.Sprint(i % 50)).Inc()
			s.GetOrCreateSummaryExt(fmt.Sprintf(`s{i="%d"}`, i%5), 10*time.Millisecond, []float64{.5}).Update(2)
		})
		background(func(i int) {
			s.UnregisterMetric(fmt.Sprintf(`s{i="%d"}`, i%5))
			v.Delete(fmt.Sprint(i % 50))
			s.GetOrCreateGauge(fmt.Sprintf(`{"g é",i="%d"}`, i%20), nil).Inc()
			s.UnregisterMetric(fmt.Sprintf(`{"g é",i="%d"}`, (i+7)%20))
			time.Sleep(100 * time.Microsecond)
		})
	}
	var pages atomic.Int64
	for _, accept := range []string{acceptText, acceptText100 + ";escaping=values", acceptOpenMetrics, acceptProtobuf} {
		last := 0.0
		background(func(int) {
			req := httptest.NewRequest("GET", "/metrics", nil)
			req.Header.Set("Accept", accept)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, req)
			pages.Add(1)
			if accept == acceptProtobuf {
				for _, mf := range familiesOf(t, w.Body.Bytes(), w.Header().Get("Content-Type")) {
					for _, m := range mf.Metric {
						holds(t, mf.GetName(), m, &last)
					}
				}
				return
			}
			holdsInText(t, samples(t, w.Body.Bytes(), w.Header().Get("Content-Type")), &last)
		})
	}
	time.Sleep(500 * time.Millisecond)
	stop.Store(true)
	wg.Wait()
	if pages.Load() < 20 {
		t.Errorf("only %d pages were scraped", pages.Load())
	}
}

func holds(t *testing.T, name string, m *dto.Metric, last *float64) {
	switch {
	case name == "kept_total":
		if m.Counter.GetValue() < *last {
			t.Errorf("kept decreases from %v to %v", *last, m.Counter.GetValue())
		}
		*last = m.Counter.GetValue()
	case m.Histogram != nil:
		count := m.Histogram.GetSampleCount()
		for _, b := range m.Histogram.Bucket {
			if b.GetUpperBound() >= 2.2 && b.GetCumulativeCount() != count || b.GetUpperBound() < 1.8 && b.GetCumulativeCount() != 0 || b.GetCumulativeCount() > count {
				t.Errorf("%s: bucket %v of %d values", name, b, count)
			}
		}
		if m.Histogram.GetSampleSum() != 2*float64(count) {
			t.Errorf("%s: sum %v of %d values", name, m.Histogram.GetSampleSum(), count)
		}
		if total := m.Histogram.GetZeroCount(); len(m.Histogram.PositiveDelta) == 1 && total+uint64(m.Histogram.PositiveDelta[0]) != count {
			t.Errorf("%s: native bucket %d of %d values", name, m.Histogram.PositiveDelta[0], count)
		}
	}
}

func holdsInText(t *testing.T, all map[string]float64, last *float64) {
	kept, ok := all[`{__name__="kept_total"}`]
	if !ok || kept < *last {
		t.Errorf("kept decreases from %v to %v", *last, kept)
	}
	*last = kept
	for _, name := range []string{"p", "n", "r"} {
		count := all[fmt.Sprintf(`{__name__="%s_count"}`, name)]
		if sum := all[fmt.Sprintf(`{__name__="%s_sum"}`, name)]; sum != 2*count {
			t.Errorf("%s: sum %v of %v values", name, sum, count)
		}
		for bucket, v := range all {
			if strings.HasPrefix(bucket, fmt.Sprintf(`{__name__="%s_bucket"`, name)) && (v > count || strings.Contains(bucket, "+Inf") && v != count) {
				t.Errorf("%s: %v of %v values", bucket, v, count)
			}
		}
	}
}
