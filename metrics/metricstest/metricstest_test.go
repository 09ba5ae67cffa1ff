package metricstest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ferula-io/ferula/metrics"
	"github.com/ferula-io/ferula/metrics/metricstest"
)

// recorder collects failures.
type recorder struct{ errors []string }

func (*recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

func filled() *metrics.Set {
	s := metrics.NewSet()
	s.NewCounter(`jobs_total{kind="a b"}`).Add(2)
	s.NewPrometheusHistogramExt("wait_seconds", []float64{1}).Update(0.5)
	return s
}

func TestValue_ReadsALine(t *testing.T) {
	for line, want := range map[string]float64{`jobs_total{kind="a b"}`: 2, "wait_seconds_sum": 0.5, `wait_seconds_bucket{le="1"}`: 1} {
		if v, ok := metricstest.Value(filled(), line); !ok || v != want {
			t.Errorf("%s: %v %v", line, v, ok)
		}
	}
	if _, ok := metricstest.Value(filled(), "jobs_total"); ok {
		t.Error("found a line that is not there")
	}
}

func TestExpect_ReportsWhatDiffers(t *testing.T) {
	for want, failures := range map[string]int{`jobs_total{kind="a b"}`: 0, "wait_seconds_count": 1, "missing": 1} {
		var r recorder
		metricstest.Expect(&r, filled(), map[string]float64{want: 2})
		if len(r.errors) != failures {
			t.Errorf("%s: %q", want, r.errors)
		}
	}
}

func TestCompare_ComparesWholeFamilies(t *testing.T) {
	const histogram = "# TYPE wait_seconds histogram\nwait_seconds_bucket{le=\"1\"} 1\nwait_seconds_bucket{le=\"+Inf\"} 1\nwait_seconds_sum 0.5\nwait_seconds_count 1\n"
	metricstest.Compare(t, filled(), histogram, "wait_seconds")
	metricstest.Compare(t, filled(), histogram+"\njobs_total{kind=\"a b\"} 2\n")
	var r recorder
	metricstest.Compare(&r, filled(), strings.Replace(histogram, "sum 0.5", "sum 1", 1), "wait_seconds")
	if len(r.errors) != 2 { // one line is missing, another is unexpected
		t.Errorf("%q", r.errors)
	}
}

func TestLint_NamesProblems(t *testing.T) {
	s := filled()
	s.NewCounter("requests")
	s.NewGauge("size_total", nil)
	s.NewGauge("wait_milliseconds", nil)
	s.NewGauge(`Camel{a="1"}`, nil)
	s.NewGauge(`Camel{a="2"}`, nil)
	mails, open := metrics.NewDesc("mails", "", "kind"), metrics.NewDesc("mails_open", "", "kind")
	s.RegisterCollector(func(sink *metrics.Sink) error {
		sink.Counter(mails, 1, "in")
		sink.Counter(mails, 2, "out")
		sink.Gauge(open, 3, "in")
		return nil
	})
	got := fmt.Sprint(metricstest.Lint(s))
	want := "[Camel: names are in snake_case mails: a counter's name ends with _total requests: a counter's name ends with _total " +
		"size_total: only a counter's name ends with _total wait_milliseconds: the base unit of milliseconds is seconds]"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func ExampleValue() {
	s := metrics.NewSet()
	s.NewCounterVec("requests_total", "", "code").With("200").Inc()
	v, ok := metricstest.Value(s, `requests_total{code="200"}`)
	fmt.Println(v, ok)
	// Output: 1 true
}

// If a collector produces a metric twice, WritePrometheus writes only the first one. Expect and
// Compare must fail nevertheless.
func TestExpect_ReportsMistakesOfCollectors(t *testing.T) {
	d := metrics.NewDesc("jobs", "", "kind")
	for mistake, failures := range map[bool]int{false: 0, true: 1} {
		s := metrics.NewSet()
		s.RegisterCollector(func(sink *metrics.Sink) error {
			sink.Gauge(d, 1, "a")
			if mistake {
				sink.Gauge(d, 2, "a")
			}
			return nil
		})
		var expected, compared recorder
		metricstest.Expect(&expected, s, map[string]float64{`jobs{kind="a"}`: 1})
		metricstest.Compare(&compared, s, `jobs{kind="a"} 1`)
		if len(expected.errors) != failures || len(compared.errors) != failures {
			t.Errorf("%q, %q", expected.errors, compared.errors)
		}
	}
}
