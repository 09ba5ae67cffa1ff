package metricsdiff

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"

	ours "github.com/ferula-io/ferula/metrics"
)

// The same values yield the same schema, spans and deltas as client_golang's native histograms, while neither has to reduce
// its resolution.
func TestNativeHistogram_MatchesClientGolang(t *testing.T) {
	for _, factor := range []float64{1.005, 1.1, 1.5, 2, 4, 65536} {
		for _, spread := range []float64{0, 0.3, 2, 20} {
			r := rand.New(rand.NewPCG(uint64(spread*10), uint64(factor*1000)))
			s := ours.NewSet()
			o := s.NewNativeHistogram("h", ours.NativeHistogramOptions{BucketFactor: factor, MaxBuckets: 100_000})
			p := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "h", NativeHistogramBucketFactor: factor})
			values := []float64{0, 0, 1, 2, 4, math.Inf(1)}
			if spread == 0 {
				values = nil
			}
			for range int(spread * 300) {
				values = append(values, math.Exp(r.NormFloat64()*spread))
			}
			for _, v := range values {
				o.Update(v)
				p.Observe(v)
			}
			var m dto.Metric
			if err := p.Write(&m); err != nil {
				t.Fatal(err)
			}
			page, contentType := scrape(t, s, acceptProtobuf, ours.HandlerOptions{})
			got, want := familiesOf(t, page, contentType)[0].Metric[0].Histogram, m.Histogram
			got.CreatedTimestamp, want.CreatedTimestamp = nil, nil
			if math.Abs(got.GetSampleSum()-want.GetSampleSum()) < 1e-9*math.Abs(want.GetSampleSum()) {
				got.SampleSum = want.SampleSum
			}
			if !proto.Equal(got, want) {
				t.Errorf("factor %v, spread %v:\ngot  %v\nwant %v", factor, spread, got, want)
			}
		}
	}
}

func TestNativeHistogram_KeepsItsBucketLimit(t *testing.T) {
	s := ours.NewSet()
	h := s.NewNativeHistogram("h", ours.NativeHistogramOptions{MaxBuckets: 20, UpperBounds: []float64{1}})
	for i := range 10_000 {
		h.Update(math.Exp(float64(i%1000)/20 - 20))
	}
	page, contentType := scrape(t, s, acceptProtobuf, ours.HandlerOptions{})
	got := familiesOf(t, page, contentType)[0].Metric[0].Histogram
	total, n := int64(got.GetZeroCount()), int64(0)
	for _, delta := range got.PositiveDelta {
		n += delta
		total += n
	}
	if got.GetSchema() != -2 || len(got.PositiveDelta) > 60 || total != 10_000 || got.GetSampleCount() != 10_000 {
		t.Errorf("schema %d, %d buckets, %d values", got.GetSchema(), len(got.PositiveDelta), total)
	}
	page, _ = scrape(t, s, acceptOpenMetrics, ours.HandlerOptions{})
	if !strings.Contains(string(page), "# TYPE h histogram\nh_bucket{le=\"1.0\"} 4010\nh_bucket{le=\"+Inf\"} 10000\n") {
		t.Errorf("text:\n%s", page)
	}
}

func TestExemplars_AreInOpenMetricsAndProtobuf(t *testing.T) {
	s := ours.NewSet()
	c, f := s.NewCounter(`c_total{a="b"}`), s.NewFloatCounter("f_total")
	p := s.NewPrometheusHistogramExt("p", []float64{1})
	n := s.NewNativeHistogram("n", ours.NativeHistogramOptions{})
	for range 3 {
		c.IncWithExemplar("trace_id", "abc\"\\\n")
		f.AddWithExemplar(0.5, "trace_id", "abc", "span_id", "é")
		p.UpdateWithExemplar(0.5, "trace_id", "low")
		p.UpdateWithExemplar(7, "trace_id", "high")
		n.UpdateWithExemplar(7, "trace_id", "native")
	}
	// These exemplars are invalid and dropped, but the values count.
	c.AddWithExemplar(2, "trace_id", strings.Repeat("x", 200))
	c.AddWithExemplar(2, "odd")
	c.AddWithExemplar(2, "not an id", "x")
	c.AddWithExemplar(2, "trace_id", "\xff")
	c.AddWithExemplar(2)
	page, _ := scrape(t, s, acceptOpenMetrics, ours.HandlerOptions{})
	for _, want := range []string{
		`c_total{a="b"} 13.0 # {trace_id="abc\"\\\n"} 1.0 `, `f_total 1.5 # {trace_id="abc",span_id="é"} 0.5 `,
		`p_bucket{le="1.0"} 3 # {trace_id="low"} 0.5 `, `p_bucket{le="+Inf"} 6 # {trace_id="high"} 7.0 `, `n_bucket{le="+Inf"} 3 # {trace_id="native"} 7.0 `,
	} {
		if !strings.Contains(string(page), want) {
			t.Errorf("no %s in\n%s", want, page)
		}
	}
	page, contentType := scrape(t, s, acceptProtobuf, ours.HandlerOptions{})
	all := familiesOf(t, page, contentType)
	for i, want := range []string{"abc\"\\\n", "abc", "native", "low"} {
		m := all[i].Metric[0]
		var got *dto.Exemplar
		switch {
		case m.Counter != nil:
			got = m.Counter.Exemplar
		case len(m.Histogram.Exemplars) > 0:
			got = m.Histogram.Exemplars[0]
		default:
			got = m.Histogram.Bucket[0].Exemplar
		}
		if fmt.Sprint(got.GetLabel()[0].GetValue()) != want || got.Timestamp == nil {
			t.Errorf("family %d: got %v, want %q", i, got, want)
		}
	}
	page, _ = scrape(t, s, acceptText, ours.HandlerOptions{})
	if strings.Contains(string(page), "trace_id") {
		t.Errorf("text has exemplars:\n%s", page)
	}
}
