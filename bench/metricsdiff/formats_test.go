package metricsdiff

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	promlabels "github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"

	ours "github.com/ferula-io/ferula/metrics"
)

const (
	acceptText        = "text/plain;version=0.0.4"
	acceptText100     = "text/plain;version=1.0.0"
	acceptOpenMetrics = "application/openmetrics-text;version=1.0.0"
	acceptProtobuf    = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
)

var escapings = []string{"", ";escaping=allow-utf-8", ";escaping=underscores", ";escaping=dots", ";escaping=values"}

// everything returns a set with all types, and with unusual names, values and help.
func everything() *ours.Set {
	s := ours.NewSet()
	s.NewCounter(`plain_total{a="b"}`).Add(3)
	s.NewCounter("without_suffix").Inc()
	s.NewGauge("clash", nil).Set(1)
	s.NewCounter("clash_total").Add(2)
	s.NewFloatCounter(`spent_seconds_total{path="C:\\x \"q\"", z="é"}`).Add(1.5)
	s.NewGauge("dotted.name", nil).Set(1e21)
	s.NewGauge(`{"quoted name é",l="v","odd label"="x"}`, nil).Set(-0.25)
	s.NewCounter(`{"quoted.requests_total",code="200"}`).Add(7)
	for i, v := range []float64{math.Inf(1), math.Inf(-1), math.NaN(), 0, 123456789, 1e15, 5e-324} {
		s.NewGauge(fmt.Sprintf(`odd{i="%d"}`, i), nil).Set(v)
	}
	h := s.NewHistogram(`ranges{a="b"}`)
	for _, v := range []float64{0, 1.5, 1.6, 100, 1e30} {
		h.Update(v)
	}
	s.NewHistogram("empty")
	s.GetOrCreateCounter(`plain_total{a="b"}`).AddWithExemplar(2, "trace_id", "0123", "note", "é\n") // no quote: prometheus_client does not see that it is escaped
	native := s.NewNativeHistogram("native", ours.NativeHistogramOptions{UpperBounds: []float64{0.5, 2}})
	native.UpdateWithExemplar(1, "trace_id", "4567")
	native.Update(100)
	p := s.NewPrometheusHistogramExt(`bounded{a="b"}`, []float64{0.5, 1, 1e21})
	for _, v := range []float64{0.1, 1, 7, 1e300} {
		p.Update(v)
	}
	s.NewPrometheusHistogramExt(`{"quoted histogram"}`, []float64{1}).Update(2)
	sm := s.NewSummary(`quantiles{a="b"}`)
	sm.Update(1)
	sm.Update(3)
	s.NewSummary(`quantiles{a="c"}`).Update(2)
	v := s.NewCounterVec("described_total", "Help with \\, \" and\nmore lines.", "method", "path")
	v.With("GET", "a\"\\\nb").Inc()
	s.Describe("length_meters", "How long.", "meters")
	s.NewGauge("length_meters", nil).Set(2)
	s.RegisterMetricsWriter(func(w io.Writer) {
		io.WriteString(w, "# HELP foreign A \\\\ foreign one.\n# TYPE foreign histogram\nforeign_bucket{x=\"1\",le=\"1\"} 2\nforeign_bucket{x=\"1\",le=\"+Inf\"} 3\n")
		io.WriteString(w, "foreign_sum{x=\"1\"} 4.5\nforeign_count{x=\"1\"} 3\nsplit_li")
		io.WriteString(w, "ne{a=\"}\"} 1\nuntyped 2 1700000000000\n# a remark\n\nsplit_line{a=\"2\"} 2\n")
	})
	return s
}

func scrape(t testing.TB, s *ours.Set, accept string, o ours.HandlerOptions) (page []byte, contentType string) {
	t.Helper()
	o.Sets = append(o.Sets, s)
	req := httptest.NewRequest("GET", "/metrics", nil)
	req.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	ours.NewHandler(o).ServeHTTP(w, req)
	if w.Code != 200 {
		t.Fatalf("%s: status %d: %s", accept, w.Code, w.Body)
	}
	return w.Body.Bytes(), w.Header().Get("Content-Type")
}

// familiesOf parses a page with Prometheus' expfmt.
func familiesOf(t testing.TB, page []byte, contentType string) []*dto.MetricFamily {
	t.Helper()
	decoder := expfmt.NewDecoder(bytes.NewReader(page), expfmt.Format(contentType))
	var all []*dto.MetricFamily
	seen := map[string]bool{}
	for {
		mf := &dto.MetricFamily{}
		err := decoder.Decode(mf)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v\n%s", contentType, err, page)
		}
		if seen[mf.GetName()] {
			t.Errorf("%s: family %s occurs twice", contentType, mf.GetName())
		}
		seen[mf.GetName()] = true
		all = append(all, mf)
	}
}

// Our protobuf, parsed by Prometheus' library and encoded by it as OpenMetrics, equals our OpenMetrics. This compares our two
// encoders with each other and with a third.
func TestOpenMetrics_EqualsExpfmtOfProtobuf(t *testing.T) {
	s := everything()
	for _, escaping := range escapings {
		got, _ := scrape(t, s, acceptOpenMetrics+escaping, ours.HandlerOptions{CreatedLines: true})
		page, contentType := scrape(t, s, acceptProtobuf+escaping, ours.HandlerOptions{})
		var want bytes.Buffer
		for _, mf := range familiesOf(t, page, contentType) {
			if mf.GetName() == "clash_total" { // OpenMetrics would call it clash, which is another one
				mf.Type = dto.MetricType_UNTYPED.Enum()
				for _, m := range mf.Metric {
					m.Untyped = &dto.Untyped{Value: m.Counter.Value}
				}
			}
			if mf.GetName() == "without_suffix" { // unknown, and those have no such line
				mf.Metric[0].Counter.CreatedTimestamp = nil
			}
			if _, err := expfmt.MetricFamilyToOpenMetrics(&want, mf, expfmt.WithCreatedLines()); err != nil {
				t.Fatal(err)
			}
		}
		want.WriteString("# EOF\n")
		same(t, escaping, milliseconds(string(got)), milliseconds(want.String()))
	}
}

// milliseconds rounds current Unix times in seconds, which expfmt computes less exactly.
func milliseconds(page string) string {
	return regexp.MustCompile(`\b1\.[0-9]+e\+09\b`).ReplaceAllStringFunc(page, func(text string) string {
		seconds, _ := strconv.ParseFloat(text, 64)
		return strconv.FormatFloat(seconds, 'f', 3, 64)
	})
}

func same(t *testing.T, what, got, want string) {
	t.Helper()
	if got == want {
		return
	}
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			t.Errorf("%s: line %d:\ngot  %s\nwant %s", what, i+1, a[i], b[i])
			return
		}
	}
	t.Errorf("%s: %d lines, want %d\n%s", what, len(a), len(b), got)
}

// samples parses a page as Prometheus' scrape does.
func samples(t *testing.T, page []byte, contentType string) map[string]float64 {
	t.Helper()
	p, err := textparse.New(page, contentType, promlabels.NewSymbolTable(), textparse.ParserOptions{KeepClassicOnClassicAndNativeHistograms: true})
	if err != nil {
		t.Fatalf("%s: %v", contentType, err)
	}
	all := map[string]float64{}
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v\n%s", contentType, err, page)
		}
		if entry == textparse.EntryHistogram {
			p.Histogram() // its classic buckets follow
		}
		if entry != textparse.EntrySeries {
			continue
		}
		var l promlabels.Labels
		p.Labels(&l)
		_, _, v := p.Series()
		if _, twice := all[l.String()]; twice {
			t.Errorf("%s: %s occurs twice", contentType, l)
		}
		all[l.String()] = v
	}
}

// Prometheus' scrape parses the same samples from every format, except for ranges, which are buckets in OpenMetrics and
// protobuf.
func TestFormats_HaveTheSameSamples(t *testing.T) {
	s := everything()
	for _, escaping := range escapings {
		var all []map[string]float64
		for _, accept := range []string{acceptText, acceptText100, acceptOpenMetrics, acceptProtobuf} {
			page, contentType := scrape(t, s, accept+escaping, ours.HandlerOptions{Metadata: true})
			got := samples(t, page, contentType)
			for name := range got {
				if strings.Contains(name, "ranges_bucket") {
					delete(got, name)
				}
			}
			all = append(all, got)
		}
		for i, other := range all[1:] {
			for name, v := range all[0] {
				if w, ok := other[canonical(name, other)]; !ok || w != v && !(v != v && w != w) {
					t.Errorf("escaping %q, format %d: %s is %v (%v), in text %v", escaping, i+1, name, w, ok, v)
				}
			}
			if len(other) != len(all[0]) {
				t.Errorf("escaping %q, format %d: %d samples, in text %d", escaping, i+1, len(other), len(all[0]))
			}
		}
	}
}

// canonical finds a name whose bound is written as 1 in one format and 1.0 in another.
func canonical(name string, among map[string]float64) string {
	if _, ok := among[name]; ok {
		return name
	}
	for _, tag := range []string{`le="`, `quantile="`} {
		before, rest, ok := strings.Cut(name, tag)
		if bound, after, _ := strings.Cut(rest, `"`); ok {
			return before + tag + bound + `.0"` + after
		}
	}
	return name
}

// Text is compared with protobuf, both parsed by expfmt: the same families, types, help and numbers of metrics.
func TestText_EqualsProtobuf(t *testing.T) {
	s := everything()
	for _, escaping := range escapings[2:] { // its text parser accepts classic names only
		page, contentType := scrape(t, s, acceptProtobuf+escaping, ours.HandlerOptions{})
		want := familiesOf(t, page, contentType)
		page, _ = scrape(t, s, acceptText+escaping, ours.HandlerOptions{Metadata: true})
		parser := expfmt.NewTextParser(model.LegacyValidation)
		got, err := parser.TextToMetricFamilies(bytes.NewReader(page))
		if err != nil {
			t.Fatalf("%v\n%s", err, page)
		}
		if len(want) < 15 {
			t.Errorf("only %d families", len(want))
		}
		for _, w := range want {
			g := got[w.GetName()]
			if g == nil || g.GetType() != w.GetType() || g.GetHelp() != w.GetHelp() || len(g.Metric) != len(w.Metric) {
				t.Errorf("%s: got %v, want %v", w.GetName(), g, w)
			}
		}
	}
}

// The bounds are those of every histogram, so that Prometheus may sum the buckets.
func TestRanges_LeBucketsAreRead(t *testing.T) {
	s := ours.NewSet()
	h := s.NewHistogram("h")
	for _, v := range []float64{0, 1.5, 1.7, 100, 1e30} {
		h.Update(v)
	}
	page, contentType := scrape(t, s, acceptProtobuf, ours.HandlerOptions{LeBuckets: true})
	got := map[float64]uint64{}
	for _, b := range familiesOf(t, page, contentType)[0].Metric[0].Histogram.Bucket {
		got[b.GetUpperBound()] = b.GetCumulativeCount()
	}
	for le, want := range map[float64]uint64{1e-9: 1, 1: 1, 2.154: 3, 100: 4, 1e18: 4} {
		if got[le] != want {
			t.Errorf("le=%g: %d, want %d; of %v", le, got[le], want, got)
		}
	}
	if len(got) != 82 {
		t.Errorf("%d bounds", len(got))
	}
}
