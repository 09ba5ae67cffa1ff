package httpapi_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"
	"go.uber.org/goleak"

	ferulapromql "github.com/ferula-io/ferula/internal/promql"
)

// The database of all tests has two eras: eraA, around the epoch with negative timestamps,
// is in a block; eraB, with fractions of a second, is in the head.
const (
	eraA       = int64(0)
	eraB       = int64(1_700_000_000_123)
	interval   = int64(15_000)
	pastSteps  = 80  // before the base of an era
	aheadSteps = 240 // from the base on
)

// testEnv is the database with the APIs of ferula and Prometheus.
type testEnv struct {
	dir   string
	db    *tsdb.DB
	reg   *prometheus.Registry
	pairs map[string]pair
	close []func() error
}

// pair is the APIs of ferula and Prometheus with the same options.
type pair struct {
	ours, oracle http.Handler
	parts        parts
}

var (
	sharedEnv *testEnv
	buildEnv  sync.Once
)

// shared returns the test environment, which is created once and read-only.
func shared(t testing.TB) *testEnv {
	t.Helper()
	buildEnv.Do(func() {
		w, err := newTestEnv()
		if err != nil {
			t.Fatalf("building the database: %v", err)
		}
		sharedEnv = w
	})
	if sharedEnv == nil {
		t.Fatal("no database: building it failed in another test")
	}
	return sharedEnv
}

// suite closes the test environment before goleak counts goroutines.
type suite struct{ m *testing.M }

func (s suite) Run() int {
	code := s.m.Run()
	if sharedEnv == nil {
		return code
	}
	for _, end := range sharedEnv.close {
		if err := end(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(suite{m}) }

func newTestEnv() (*testEnv, error) {
	dir, err := os.MkdirTemp("", "ferula-api")
	if err != nil {
		return nil, err
	}
	w := &testEnv{dir: dir, reg: prometheus.NewRegistry(), pairs: map[string]pair{}}
	if w.db, err = openDB(dir, w.reg); err != nil {
		return nil, err
	}
	if err := w.fill(); err != nil {
		return nil, err
	}
	for name, opts := range pairOptions {
		p, err := w.newPair(opts)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		w.pairs[name] = p
	}
	w.close = append(w.close, w.db.Close, func() error { return os.RemoveAll(dir) })
	return w, nil
}

// pairOptions are the options of the compared engines: the defaults, every feature enabled,
// and a low limit of samples.
var pairOptions = map[string]ferulapromql.Options{
	"default": {},
	"features": {
		ExperimentalFunctions:  true,
		ExtendedRangeSelectors: true,
		BinopFillModifiers:     true,
		DelayedNameRemoval:     true,
		PerStepStats:           true,
		TypeAndUnitLabels:      true,
	},
	"small": {MaxSamples: 100},
}

func openDB(dir string, reg prometheus.Registerer) (*tsdb.DB, error) {
	opts := tsdb.DefaultOptions()
	opts.MinBlockDuration = (24 * time.Hour).Milliseconds()
	opts.MaxBlockDuration = opts.MinBlockDuration
	opts.RetentionDuration = 0
	opts.EnableExemplarStorage = true
	opts.MaxExemplars = 1000
	db, err := tsdb.Open(dir, slog.New(slog.DiscardHandler), reg, opts, tsdb.NewDBStats())
	if err != nil {
		return nil, err
	}
	db.DisableCompactions() // blocks must not change during a comparison
	return db, nil
}

func (w *testEnv) fill() error {
	if err := w.fillEra(eraA); err != nil {
		return err
	}
	head := tsdb.NewRangeHead(w.db.Head(), w.db.Head().MinTime(), w.db.Head().MaxTime())
	if err := w.db.CompactHead(head); err != nil {
		return err
	}
	return w.fillEra(eraB)
}

// fillEra appends step by step, as scrapes do.
func (w *testEnv) fillEra(base int64) error {
	all := append(floatSeries(), append(bucketSeries(), append(histogramSeries(), specialSeries()...)...)...)
	for step := int64(-pastSteps); step < aheadSteps; step++ {
		app := w.db.Appender(context.Background())
		for _, s := range all {
			if err := s.append(app, base, step); err != nil {
				return fmt.Errorf("%s at step %d: %w", s.labels, step, err)
			}
		}
		if err := app.Commit(); err != nil {
			return err
		}
	}
	return nil
}

// series generates the samples of one time series.
type series struct {
	labels    labels.Labels
	float     func(step int64) (v float64, ok bool)
	histogram func(step int64) (*histogram.Histogram, *histogram.FloatHistogram)
	exemplars bool
}

func (s series) append(app storage.Appender, base, step int64) error {
	t := base + step*interval
	if s.histogram != nil {
		if h, fh := s.histogram(step); h != nil || fh != nil {
			ref, err := app.AppendHistogram(0, s.labels, t, h, fh)
			if err != nil {
				return err
			}
			return s.appendExemplar(app, ref, t, step)
		}
	}
	if s.float == nil {
		return nil
	}
	v, ok := s.float(step)
	if !ok {
		return nil
	}
	ref, err := app.Append(0, s.labels, t, v)
	if err != nil {
		return err
	}
	return s.appendExemplar(app, ref, t, step)
}

func (s series) appendExemplar(app storage.Appender, ref storage.SeriesRef, t, step int64) error {
	if !s.exemplars || step%20 != 0 {
		return nil
	}
	_, err := app.AppendExemplar(ref, s.labels, exemplar.Exemplar{
		Labels: labels.FromStrings("trace_id", "t"+strconv.FormatInt(step, 16), "odd", "<\"\\\n&\u2028\xff>"),
		Value:  float64(step) * 0.1, Ts: t - 7, HasTs: true,
	})
	return err
}

func always(f func(step int64) float64) func(int64) (float64, bool) {
	return func(step int64) (float64, bool) { return f(step), true }
}

// floatSeries returns counters with resets, gauges, a metric with stale markers and one
// with gaps.
func floatSeries() []series {
	var all []series
	for i, instance := range []string{"a:1", "b:2", "c:3"} {
		for j, job := range []string{"api", "web"} {
			for k, code := range []string{"200", "500"} {
				rate := float64(1+i+3*j) / float64(1+6*k)
				all = append(all, series{
					labels:    labels.FromStrings("__name__", "demo_requests_total", "instance", instance, "job", job, "code", code),
					float:     always(func(step int64) float64 { return rate * float64((step+pastSteps)%(97+int64(i))) }),
					exemplars: k == 0,
				})
			}
			all = append(all, series{
				labels: labels.FromStrings("__name__", "demo_gauge", "instance", instance, "job", job),
				float:  always(func(step int64) float64 { return math.Sin(float64(step)/9+float64(i)) * math.Pow(10, float64(3*j)) }),
			})
		}
	}
	all = append(all,
		series{labels: labels.FromStrings("__name__", "stale_metric", "job", "api"), float: func(step int64) (float64, bool) {
			if step%40 == 20 {
				return math.Float64frombits(value.StaleNaN), true
			}
			return float64(step), step%40 < 20
		}},
		series{labels: labels.FromStrings("__name__", "sparse_metric", "job", "web"), float: func(step int64) (float64, bool) {
			return 1 / float64(step+1000), step%33 == 0
		}},
		series{labels: labels.FromStrings("__name__", "target_info", "instance", "a:1", "job", "api", "version", "1.2.3"), float: always(func(int64) float64 { return 1 })},
		series{labels: labels.FromStrings("__name__", "typed_total", "__type__", "gauge", "__unit__", "bytes"), float: always(func(step int64) float64 { return float64(step) })},
	)
	for i := range 150 {
		all = append(all, series{
			labels: labels.FromStrings("__name__", "many", "i", strconv.Itoa(i)),
			float:  func(step int64) (float64, bool) { return float64(i), step%10 == 0 },
		})
	}
	return all
}

// bucketSeries returns a classic histogram; the buckets of one job are not monotonic.
func bucketSeries() []series {
	var all []series
	for j, job := range []string{"api", "web", "broken"} {
		for k, le := range []string{"0.1", "0.5", "1", "+Inf"} {
			weight := float64(k + 1)
			if j == 2 && k == 2 {
				weight = 1.5
			}
			all = append(all, series{
				labels:    labels.FromStrings("__name__", "demo_latency_seconds_bucket", "job", job, "le", le),
				float:     always(func(step int64) float64 { return weight * float64(step+pastSteps) }),
				exemplars: k == 0,
			})
		}
		all = append(all,
			series{labels: labels.FromStrings("__name__", "demo_latency_seconds_sum", "job", job), float: always(func(step int64) float64 { return 0.3 * float64(step+pastSteps) })},
			series{labels: labels.FromStrings("__name__", "demo_latency_seconds_count", "job", job), float: always(func(step int64) float64 { return 4 * float64(step+pastSteps) })},
		)
	}
	return all
}

// histogramSeries returns native histograms of every kind and series that mix them with
// floats.
func histogramSeries() []series {
	type make func(step int64) (*histogram.Histogram, *histogram.FloatHistogram)
	kinds := map[string]make{
		"native_integer": func(step int64) (*histogram.Histogram, *histogram.FloatHistogram) {
			return tsdbutil.GenerateTestHistogram((step + pastSteps) % 150), nil // resets
		},
		"native_float": func(step int64) (*histogram.Histogram, *histogram.FloatHistogram) {
			return nil, tsdbutil.GenerateTestFloatHistogram(step + pastSteps)
		},
		"native_gauge": func(step int64) (*histogram.Histogram, *histogram.FloatHistogram) {
			return nil, tsdbutil.GenerateTestGaugeFloatHistogram((step + pastSteps) % 31)
		},
		"native_custom": func(step int64) (*histogram.Histogram, *histogram.FloatHistogram) {
			return tsdbutil.GenerateTestCustomBucketsHistogram(step + pastSteps), nil
		},
		"native_nan": func(step int64) (*histogram.Histogram, *histogram.FloatHistogram) {
			fh := tsdbutil.GenerateTestFloatHistogram(step + pastSteps)
			fh.Sum, fh.ZeroThreshold = math.NaN(), math.SmallestNonzeroFloat64
			return nil, fh
		},
		"native_tiny": func(int64) (*histogram.Histogram, *histogram.FloatHistogram) {
			return nil, &histogram.FloatHistogram{
				Schema: -4, Count: 3e-9, Sum: math.Inf(1), ZeroThreshold: 1e-128, ZeroCount: 1e-9,
				PositiveSpans: []histogram.Span{{Offset: -2, Length: 2}}, PositiveBuckets: []float64{2e-9, 0},
				NegativeSpans: []histogram.Span{{Offset: 16, Length: 1}}, NegativeBuckets: []float64{5e-324},
			}
		},
		"native_empty": func(int64) (*histogram.Histogram, *histogram.FloatHistogram) {
			return &histogram.Histogram{}, nil
		},
	}
	var all []series
	for name, f := range kinds {
		for _, job := range []string{"api", "web"} {
			all = append(all, series{labels: labels.FromStrings("__name__", name, "job", job), histogram: f, exemplars: name == "native_integer"})
		}
	}
	return append(all,
		series{
			labels: labels.FromStrings("__name__", "mixed_metric", "job", "api"), float: always(func(step int64) float64 { return float64(step) }),
			histogram: func(step int64) (*histogram.Histogram, *histogram.FloatHistogram) {
				if step%7 < 3 {
					return nil, nil
				}
				return tsdbutil.GenerateTestHistogram(step + pastSteps), nil
			},
		},
		series{labels: labels.FromStrings("__name__", "mixed_metric", "job", "web"), float: always(func(step int64) float64 { return float64(step) })},
	)
}

// specialValues are floats whose encoding has special cases.
var specialValues = map[string]float64{
	"nan": math.NaN(), "inf": math.Inf(1), "-inf": math.Inf(-1), "zero": 0, "-zero": math.Copysign(0, -1),
	"smallest": math.SmallestNonzeroFloat64, "-smallest": -math.SmallestNonzeroFloat64, "subnormal": 2.2250738585072011e-308,
	"normal": 2.2250738585072014e-308, "max": math.MaxFloat64, "-max": -math.MaxFloat64,
	"1e21": 1e21, "below1e21": 999999999999999868928, "-1e21": -1e21, "1e-6": 1e-6, "below1e-6": 9.999999999999999e-7, "1e-7": 1e-7,
	"2^53": 1 << 53, "2^53+1": 1<<53 + 2, "2^63": 1 << 63, "2^64": 1 << 64, "-2^63": -(1 << 63),
	"tenth": 0.1, "third": 1.0 / 3, "pi": math.Pi, "123456.789": 123456.789, "1000000": 1e6, "-42": -42, "1e300": 1e300, "3e-300": 3e-300,
}

// specialLabels are label values that need escaping.
var specialLabels = []string{
	"", " ", `"`, `\`, `\"`, "\n", "\r", "\t", "\b", "\f", "\x00", "\x01\x1f", "\x7f", "<script>&amp;</script>", "\u2028", "\u2029", "a\u2028b",
	"\xff", "a\xc3", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\ufffd", "é", "日本語", "😀", "'", "`", "/", "=", "{}", "},\"values\":[", "]]}", "%41", "+", "a b",
}

// specialSeries returns series with values, label values, label names and metric names
// whose encoding has special cases.
func specialSeries() []series {
	var all []series
	constant := func(v float64) func(int64) (float64, bool) {
		return func(step int64) (float64, bool) { return v, step%8 == 0 }
	}
	for kind, v := range specialValues {
		all = append(all, series{labels: labels.FromStrings("__name__", "special_value", "kind", kind), float: constant(v)})
	}
	all = append(all, series{labels: labels.FromStrings("__name__", "special_value", "kind", "changing"), float: func(step int64) (float64, bool) {
		return math.Pow(-10, float64(step%25)), true
	}})
	for i, v := range specialLabels {
		all = append(all, series{labels: labels.FromStrings("__name__", "odd_label", "n", strconv.Itoa(i), "v", v), float: constant(float64(i))})
	}
	for i, name := range []string{"utf8.metric-name", "метрика", "quo\"te", "back\\slash", "new\nline", "<&>", "broken\xff"} {
		all = append(all, series{labels: labels.FromStrings("__name__", name, "label.with.dots", "v", "日本", "x", "le<>", "\"", "n", strconv.Itoa(i)), float: constant(float64(i))})
	}
	return all
}
