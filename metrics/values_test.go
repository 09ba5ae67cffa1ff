package metrics

import (
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// mustPanic calls f and fails unless it panics with a text.
func mustPanic(t *testing.T, want string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		var text string
		switch p := recover().(type) {
		case nil:
		case error:
			text = p.Error()
		case string:
			text = p
		}
		if !strings.Contains(text, want) || text == "" {
			t.Errorf("panic %q, want %q", text, want)
		}
	}()
	f()
}

func TestValues_MethodsOfSingleValues(t *testing.T) {
	var c Counter
	c.Inc()
	c.Add(5)
	c.AddInt64(1 << 40)
	c.Dec()
	if c.Get() != 1<<40+5 {
		t.Errorf("counter %d", c.Get())
	}
	c.Set(7)
	c.AddWithExemplar(2, "trace_id", "a")
	c.IncWithExemplar("trace_id", "b")
	if c.Get() != 10 {
		t.Errorf("counter %d", c.Get())
	}
	var f FloatCounter
	f.Add(2.5)
	f.Sub(1)
	f.AddWithExemplar(0.25, "trace_id", "a")
	if f.Get() != 1.75 {
		t.Errorf("float counter %v", f.Get())
	}
	f.Set(0.5)
	if f.Get() != 0.5 {
		t.Errorf("float counter %v", f.Get())
	}
	var g Gauge
	g.Set(3)
	g.Inc()
	g.Inc()
	g.Dec()
	g.Add(-1.5)
	if g.Get() != 2.5 {
		t.Errorf("gauge %v", g.Get())
	}
	called := NewSet().NewGauge("called", func() float64 { return 5 })
	if called.Get() != 5 {
		t.Errorf("gauge with a callback: %v", called.Get())
	}
	mustPanic(t, `Set called on gauge "called"`, func() { called.Set(1) })
	mustPanic(t, `Add called on gauge "called"`, func() { called.Add(1) })
	mustPanic(t, `Add called on gauge "called"`, called.Inc)
	mustPanic(t, `Add called on gauge "called"`, called.Dec)
}

func TestPrometheusHistogram_UpdatesAndReset(t *testing.T) {
	s := NewSet()
	h := s.NewPrometheusHistogramExt("h", []float64{1, 2, math.Inf(1)})
	page := func() string { return text(s) }
	for _, v := range []float64{0, 1, 1.5, 2, 2.5, -1, math.NaN(), math.Inf(-1)} {
		h.Update(v)
	}
	if got, want := page(), "h_bucket{le=\"1\"} 2\nh_bucket{le=\"2\"} 4\nh_bucket{le=\"+Inf\"} 5\nh_sum 7\nh_count 5\n"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	h.UpdateWithExemplar(-1, "a", "b")
	h.UpdateWithExemplar(math.NaN(), "a", "b")
	if h.examples != nil {
		t.Error("a value that is not counted has an exemplar")
	}
	h.UpdateWithExemplar(1.5, "a", "b")
	if len(h.examples) != 3 || h.examples[1].atMS == 0 || h.examples[0].atMS != 0 {
		t.Errorf("%+v", h.examples)
	}
	h.Reset()
	if got, want := page(), "h_bucket{le=\"1\"} 0\nh_bucket{le=\"2\"} 0\nh_bucket{le=\"+Inf\"} 0\nh_sum 0\nh_count 0\n"; got != want || h.examples != nil || h.resetMS == 0 {
		t.Errorf("after Reset: %s", got)
	}
	h.UpdateDuration(time.Now().Add(-time.Hour))
	if h.sum < 3600 || !slices.Equal(h.buckets, []uint64{0, 0, 1}) {
		t.Errorf("%v seconds", h.sum)
	}
	n := s.NewNativeHistogram("n", NativeHistogramOptions{})
	n.Update(1)
	n.Update(0)
	if len(n.native.Indexes) != 1 || n.native.Zero != 1 {
		t.Errorf("%+v", n.native)
	}
	n.Reset()
	if len(n.native.Indexes) != 0 || n.native.Zero != 0 || n.buckets[0] != 0 {
		t.Errorf("after Reset: %+v", n.native)
	}
}

func TestBuckets_BoundsIncrease(t *testing.T) {
	if got := LinearBuckets(1, 2, 3); !slices.Equal(got, []float64{1, 3, 5}) {
		t.Errorf("%v", got)
	}
	if got := ExponentialBuckets(1, 2, 4); !slices.Equal(got, []float64{1, 2, 4, 8}) {
		t.Errorf("%v", got)
	}
	if got := LinearBuckets(1, 0, 1); !slices.Equal(got, []float64{1}) {
		t.Errorf("%v", got)
	}
	for want, f := range map[string]func(){
		"needs at least one upper bound":             func() { LinearBuckets(1, 1, 0) },
		"a histogram needs at least one upper bound": func() { LinearBuckets(1, 1, -1) },
		"1 before 1":                           func() { LinearBuckets(1, 0, 2) },
		"factor above 1; got 1 and 1":          func() { ExponentialBuckets(1, 1, 2) },
		"factor above 1; got 0 and 2":          func() { ExponentialBuckets(0, 2, 2) },
		"BUG: native histogram \"n\": ":        func() { NewSet().NewNativeHistogram("n", NativeHistogramOptions{BucketFactor: 1}) },
		"native histogram \"z\": ":             func() { NewSet().NewNativeHistogram("z", NativeHistogramOptions{ZeroThreshold: -1}) },
		"native histogram \"m\": ":             func() { NewSet().NewNativeHistogram("m", NativeHistogramOptions{MaxBuckets: -1}) },
		"native histogram \"b\": upper bounds": func() { NewSet().NewNativeHistogram("b", NativeHistogramOptions{UpperBounds: []float64{2, 1}}) },
		"BUG: histogram \"p\": upper bounds":   func() { NewSet().NewPrometheusHistogramExt("p", []float64{2, 2}) },
		"1 before NaN":                         func() { NewSet().NewPrometheusHistogramExt("p", []float64{1, math.NaN(), 2}) },
		"strictly increase: NaN":               func() { NewSet().NewPrometheusHistogramExt("p", []float64{math.NaN()}) },
		"\"v\": upper bounds must":             func() { NewSet().NewPrometheusHistogramExt("v", []float64{math.NaN(), 2}) },
		"must strictly increase: NaN":          func() { LinearBuckets(math.NaN(), 1, 2) },
		"got 1 and NaN":                        func() { ExponentialBuckets(1, math.NaN(), 1) },
		"quantile NaN is outside [0, 1]":       func() { NewSet().NewSummaryExt("s", time.Minute, []float64{math.NaN()}) },
	} {
		mustPanic(t, want, f)
	}
	if err := ValidateBuckets([]float64{1}); err != nil {
		t.Error(err)
	}
	if err := ValidateBuckets([]float64{1, 2}); err != nil {
		t.Error(err)
	}
	// The schema is the coarsest whose factor is small enough.
	for factor, want := range map[float64]int32{0: 3, 2: 0, 1.99: 1, 4: -1, 65536: -4, 1e9: -4, 1.0001: 8} {
		if got := newNativeHistogram("n", NativeHistogramOptions{BucketFactor: factor}).native.Schema; got != want {
			t.Errorf("factor %v: schema %d, want %d", factor, got, want)
		}
	}
}

// A FloatCounter has the sum that a float has after the same additions, one after the other,
// whether it is an integer still or not.
func TestFloatCounter_AddsAsAFloat(t *testing.T) {
	inf, big := math.Inf(1), float64(1<<53)
	for i, adds := range [][]float64{
		{1, 2, -5}, {0.1, 1, 0.2, -3, 1e-9}, {1, 0.1, 1, 0.7}, {big - 1, 1, 1, 1, 2, 3}, {-big, -1, -2, -3},
		{1 << 40, 1<<40 + 1, 1 << 60}, {1e300, 1, -1e300}, {3, inf, 1}, {1, math.NaN(), 1},
		{big, big, big, 0.5}, {0, math.Copysign(0, -1)},
	} {
		var c FloatCounter
		want := 0.0
		for _, n := range adds {
			want += n
			if c.Add(n); math.Float64bits(c.Get()) != math.Float64bits(want) {
				t.Errorf("%d: after %v of %v: %v, want %v", i, n, adds, c.Get(), want)
			}
		}
		for want = 7; want < 10; want++ {
			c.Set(want)
			c.Add(0.5)
			if c.Add(-2); c.Get() != want-1.5 {
				t.Errorf("%d: %v after Set, want %v", i, c.Get(), want-1.5)
			}
		}
	}
	// Whole numbers that are added to a float move its mark, which moves back.
	var c FloatCounter
	c.Add(0.5)
	for range 1 << 21 {
		c.Add(1 << 40)
	}
	if got := c.Get(); got != 0x1p61 {
		t.Errorf("%v, want 2^61", got)
	}
}

// No update is lost when whole numbers, fractions and sums above 2^53 are added at the same time.
func TestFloatCounter_ConcurrentUpdatesAreKept(t *testing.T) {
	const n = 2000
	for start, step := range map[float64]float64{0: 0.5, 1 << 53: 1 << 10, -1 << 53: -(1 << 41), 7: 3} {
		for range 20 {
			var c FloatCounter
			c.Add(start)
			var wg sync.WaitGroup
			for range 4 {
				wg.Add(1)
				go func() {
					defer wg.Done()
					for i := range n {
						c.Add(2 * step)
						if i >= n/2 {
							c.Add(step)
						}
						_ = c.Get()
					}
				}()
			}
			wg.Wait()
			if got, want := c.Get(), start+4*(2*n+n/2)*step; got != want {
				t.Fatalf("%v and steps of %v: %v, want %v", start, step, got, want)
			}
		}
	}
}

// A gauge with a callback may not be set, twice either; NaN of any kind may be a value.
func TestGauge_SetWithCallbackPanics(t *testing.T) {
	g := NewSet().NewGauge("g", func() float64 { return 5 })
	for range 2 {
		mustPanic(t, "which has a callback", func() { g.Set(1) })
	}
	if g.Get() != 5 {
		t.Errorf("%v", g.Get())
	}
	plain := NewSet().NewGauge("g", nil)
	plain.Set(math.Float64frombits(hasCallback))
	if plain.Set(1); plain.Get() != 1 {
		t.Errorf("%v", plain.Get())
	}
}

// The functions of the package use the default set.
func TestDefaultSet_FunctionsOfThePackage(t *testing.T) {
	UnregisterAllMetrics()
	defer UnregisterAllMetrics()
	NewCounter("c1").Inc()
	GetOrCreateCounter("c1").Inc()
	NewFloatCounter("c2").Add(0.5)
	GetOrCreateFloatCounter("c2").Add(1)
	NewCounterFunc("c3", func() float64 { return 3 })
	NewGauge("g1", nil).Set(4)
	GetOrCreateGauge("g1", nil).Add(1)
	NewHistogram("h1").Update(1)
	GetOrCreateHistogram("h1").Update(1)
	NewPrometheusHistogram("h2").Update(1)
	GetOrCreatePrometheusHistogram("h2").Update(1)
	NewPrometheusHistogramExt("h3", []float64{1}).Update(1)
	GetOrCreatePrometheusHistogramExt("h3", []float64{1}).Update(1)
	NewNativeHistogram("h4", NativeHistogramOptions{}).Update(1)
	GetOrCreateNativeHistogram("h4", NativeHistogramOptions{}).Update(1)
	NewSummary("s1").Update(1)
	GetOrCreateSummary("s1").Update(1)
	NewSummaryExt("s2", time.Hour, []float64{0.5}).Update(1)
	GetOrCreateSummaryExt("s2", time.Hour, []float64{0.5}).Update(1)
	NewCounterVec("v1", "help", "l").With("a").Inc()
	NewFloatCounterVec("v2", "help", "l").With("a").Add(1)
	NewGaugeVec("v3", "help", "l").With("a").Set(1)
	NewHistogramVec("v4", "help", "l").With("a").Update(1)
	NewPrometheusHistogramVec("v5", "help", []float64{1}, "l").With("a").Update(1)
	NewNativeHistogramVec("v6", "help", NativeHistogramOptions{}, "l").With("a").Update(1)
	NewSummaryVec("v7", "help", "l").With("a").Update(1)
	NewSummaryVecExt("v8", "help", time.Hour, []float64{0.5}, "l").With("a").Update(1)
	NewCounterFuncVec("v9", "help", "l").With("a").SetFunc(func() float64 { return 9 })
	NewGaugeFuncVec("w1", "help", "l").With("a").SetFunc(func() float64 { return 10 })
	RegisterMetricsWriter(func(w io.Writer) { _, _ = io.WriteString(w, "written 11\n") })
	b := text(GetDefaultSet())
	for _, line := range []string{
		"c1 2", "c2 1.5", "c3 3", "g1 5", "h1_count 2", "h2_count 2", "h3_count 2", "h4_count 2", "s1_count 2", "s2_count 2", `s2{quantile="0.5"} 1`, `v1{l="a"} 1`, `v2{l="a"} 1`, `v3{l="a"} 1`, `v4_count{l="a"} 1`,
		`v5_count{l="a"} 1`, `v6_count{l="a"} 1`, `v7_count{l="a"} 1`, `v8_count{l="a"} 1`, `v9{l="a"} 9`, `w1{l="a"} 10`, "written 11",
	} {
		if !strings.Contains("\n"+b, "\n"+line+"\n") {
			t.Errorf("no %s in\n%s", line, b)
		}
	}
	if !slices.Contains(ListMetricNames(), "c1") || !UnregisterMetric("c1") || UnregisterMetric("c1") || slices.Contains(ListMetricNames(), "c1") {
		t.Errorf("%q", ListMetricNames())
	}
	UnregisterAllMetrics()
	if names := ListMetricNames(); len(names) != 0 {
		t.Errorf("%q", names)
	}
}

func TestRegisterSet_SetsAreWrittenInOrderAndOnce(t *testing.T) {
	a, b := NewSet(), NewSet()
	a.NewCounter("a").Inc()
	b.NewCounter("b").Inc()
	for _, s := range []*Set{b, a, b} {
		RegisterSet(s)
	}
	page := func() string {
		var w bytes.Buffer
		WritePrometheus(&w, false)
		return w.String()
	}
	if got := page(); strings.Count(got, "b 1\n") != 1 || !strings.HasSuffix(got, "b 1\na 1\n") || len(RegisteredSets()) != 3 {
		t.Errorf("%s, %d sets", got, len(RegisteredSets()))
	}
	UnregisterSet(b, false)
	if got := page(); strings.Contains(got, "b 1\n") || len(b.ListMetricNames()) != 1 {
		t.Errorf("%s", got)
	}
	UnregisterSet(a, true)
	if got := page(); strings.Contains(got, "a 1\n") || len(a.ListMetricNames()) != 0 || len(RegisteredSets()) != 1 {
		t.Errorf("%s", got)
	}
}

func TestWriteFunctions_LinesOfSingleValues(t *testing.T) {
	write := func() string {
		var b bytes.Buffer
		WriteCounterUint64(&b, "a", 1)
		WriteCounterFloat64(&b, "b", 1.5)
		WriteGaugeUint64(&b, "c", 2)
		WriteGaugeFloat64(&b, "d", 2.5)
		WriteMetadataIfNeeded(&b, `e{f="g"}`, "gauge")
		return b.String()
	}
	if got, want := write(), "a 1\nb 1.5\nc 2\nd 2.5\n"; got != want {
		t.Errorf("%q", got)
	}
	ExposeMetadata(true)
	defer ExposeMetadata(false)
	for _, line := range []string{"# TYPE a counter\na 1\n", "# TYPE b counter\nb 1.5\n", "# TYPE c gauge\nc 2\n", "# TYPE d gauge\nd 2.5\n", "# TYPE e gauge\n"} {
		if !strings.Contains(write(), line) {
			t.Errorf("no %q in %q", line, write())
		}
	}
}

func TestWriteProcessMetrics_OfEachFunction(t *testing.T) {
	for want, write := range map[string]func(io.Writer){"go_goroutines ": WriteGoMetrics, "process_start_time_seconds ": WriteProcMetrics, "process_open_fds ": WriteFDMetrics} {
		var b bytes.Buffer
		write(&b)
		if !strings.Contains("\n"+b.String(), "\n"+want) && !(strings.HasPrefix(want, "process") && b.Len() == 0) {
			t.Errorf("no %s in %.300s", want, b.String())
		}
	}
}

func TestExemplar_LimitsOfItsLabels(t *testing.T) {
	long := strings.Repeat("ä", 126)
	for name, tt := range map[string]struct {
		labels []string
		ok     bool
	}{
		"one": {[]string{"a", "b"}, true}, "as long as allowed": {[]string{"ab", long}, true}, "longer": {[]string{"abc", long}, false}, "no value": {[]string{"a"}, false}, "none": {nil, false},
		"no UTF-8": {[]string{"a", "\xff"}, false}, "another name": {[]string{"a-b", "c"}, false}, "another value": {[]string{"a", "b-c"}, true}, "two": {[]string{"a", "b", "c", "d"}, true}, "three texts": {[]string{"a", "b", "c"}, false},
	} {
		var x exemplar
		x.set(1, tt.labels)
		if (x.atMS != 0) != tt.ok {
			t.Errorf("%s: %+v", name, &x.labels)
		}
	}
}

func TestPushFunctions_PushWhatTheirNamesState(t *testing.T) {
	set := NewSet()
	set.NewCounter("of_the_set").Inc()
	RegisterSet(set)
	defer UnregisterSet(set, true)
	const url = "http://functions.invalid/"
	r, ctx := &scriptedReceiver{statuses: []int{204}}, context.Background()
	plain := &PushOptions{Client: &http.Client{Transport: r}, DisableCompression: true}
	for name, tt := range map[string]struct {
		push         func() error
		set, process bool
	}{
		"all":             {func() error { return PushMetrics(ctx, url, true, plain) }, true, true},
		"without process": {func() error { return PushMetrics(ctx, url, false, plain) }, true, false},
		"a set":           {func() error { return set.PushMetrics(ctx, url, plain) }, true, false},
	} {
		r.bodies = nil
		if err := tt.push(); err != nil || len(r.bodies) != 1 || strings.Contains(r.bodies[0], "of_the_set 1\n") != tt.set || strings.Contains(r.bodies[0], "go_goroutines") != tt.process {
			t.Errorf("%s: %v, %.200q", name, err, r.bodies)
		}
	}
	for name, start := range map[string]func(url string, interval time.Duration) error{
		"InitPush":               func(url string, interval time.Duration) error { return InitPush(url, interval, "", true) },
		"InitPushProcessMetrics": func(url string, interval time.Duration) error { return InitPushProcessMetrics(url, interval, "") },
		"Set.InitPush":           func(url string, interval time.Duration) error { return set.InitPush(url, interval, "") },
		"InitPushWithOptions": func(url string, interval time.Duration) error {
			return InitPushWithOptions(ctx, url, interval, true, nil)
		},
		"Set.InitPushWithOptions": func(url string, interval time.Duration) error {
			return set.InitPushWithOptions(ctx, url, interval, nil)
		},
	} {
		if err := start(url, 0); err == nil || !strings.Contains(err.Error(), "interval must be positive") {
			t.Errorf("%s: %v", name, err)
		}
		if err := start("ftp://x", time.Hour); err == nil {
			t.Errorf("%s: another scheme is accepted", name)
		}
	}
	if err := PushMetrics(ctx, "ftp://x", true, nil); err == nil {
		t.Error("another scheme is accepted")
	}
}

func TestAppendWithLabels_OfEveryLine(t *testing.T) {
	in := "# HELP a b\na 1\nb{c=\"d\"} 2\n{\"e f\",g=\"h\"} 3\n{\"e f\"} 4\n\n   \nnothing\n"
	want := "# HELP a b\na{x=\"y\"} 1\nb{x=\"y\",c=\"d\"} 2\n{\"e f\",x=\"y\",g=\"h\"} 3\n{\"e f\",x=\"y\"} 4\nnothing\n"
	if got := string(appendWithLabels([]byte("> "), []byte(in), `x="y"`)); got != "> "+want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

func TestPush_StatusesAndBackoff(t *testing.T) {
	for status, pushes := range map[int]int{200: 1, 299: 1, 300: 1, 400: 1, 429: 3, 499: 1, 500: 3, 503: 3, 599: 3} {
		r := &scriptedReceiver{statuses: []int{status}}
		err := NewSet().PushMetrics(context.Background(), "http://statuses.invalid/", &PushOptions{Client: &http.Client{Transport: r}, MaxRetries: 2, MinBackoff: 1})
		if len(r.at) != pushes || (err == nil) != (status/100 == 2) {
			t.Errorf("%d: %d requests, %v", status, len(r.at), err)
		}
	}
}

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
		page := text(s)
		if want := string(appendNumber(nil, name+suffix, d.Seconds())); !strings.Contains(page, want) {
			t.Errorf("no line %s in\n%s", want, page)
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

var updateDraws = flag.Bool("update-draws", false, "write draws.bin")

// draws.bin has all draws of the generator, in their order.
func TestDraws_AreThoseOfTheGenerator(t *testing.T) {
	var want []byte
	random, last := uint32(1), uint64(sampleMax)
	end := uint64(drawsMax)
	if raceEnabled && !*updateDraws {
		end = 1 << 22
	}
	for count := uint64(sampleMax) + 1; count <= end; count++ {
		if slot := drawNext(&random, count); slot < sampleMax {
			want = binary.AppendUvarint(want, (count-last)<<drawSlotBits|slot)
			last = count
		}
	}
	if *updateDraws {
		noError(t, os.WriteFile("draws.bin", want, 0o600))
		t.Logf("%d bytes, state %d", len(want), random)
		return
	}
	if got := draws[:min(len(want), len(draws))]; got != string(want) || end == drawsMax && (len(want) != len(draws) || random != drawsState) {
		t.Errorf("draws.bin has %d bytes, the draws up to %d values have %d; the state is %d: go test -run TestDraws -update-draws", len(draws), end, len(want), random)
	}
}

// A reservoir that reads draws.bin has the same sample as one that draws a random number for each
// value, also after the end of the file.
func TestReservoir_SampleIsThatOfADrawForEachValue(t *testing.T) {
	for _, from := range []uint64{0, drawsMax - 1} {
		r, random := newReservoir(), uint32(1)
		if from > 0 { // as after so many values
			for range sampleMax {
				r.add(0)
			}
			for r.accept < drawsMax {
				r.advance()
			}
			r.count = from
			r.add(0) // the last draw of the file, which takes no value
			from, random = drawsMax, drawsState
		}
		want := slices.Clone(r.values)
		source := rand.New(rand.NewPCG(1, 2))
		for count := from + 1; count <= from+20_000; count++ {
			low, high, v := r.min, r.max, source.NormFloat64()
			if count%97 == 0 {
				v = math.NaN()
			}
			if v < low {
				low = v
			}
			if v > high {
				high = v
			}
			if !r.skips(v) {
				r.add(v)
			}
			if len(want) < sampleMax {
				want = append(want, v)
			} else if slot := drawNext(&random, count); slot < sampleMax {
				want[slot] = v
			}
			if r.count != count || r.min != low || r.max != high {
				t.Fatalf("value %d: count %d, min %v, max %v, want %v, %v", count, r.count, r.min, r.max, low, high)
			}
		}
		for i := range want {
			if r.values[i] != want[i] && !(math.IsNaN(want[i]) && math.IsNaN(r.values[i])) {
				t.Fatalf("from %d: value %d of the sample is %v, want %v", from, i, r.values[i], want[i])
			}
		}
	}
}

// After any number of values between two scrapes, sorted has the values of the sample in
// order.
func TestReservoir_SortedAfterAnyNumberOfChanges(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	special := []float64{math.Inf(1), math.Inf(-1), 0, 1, 1, 2, math.NaN()}
	for turn, distinct := range []int{3, 50, 1 << 30, 3, 1 << 30} {
		for _, burst := range []int{1, 15, 16, 17, 18, 60, 200, 256, 257, 400, 1000, 3000} {
			sample := newReservoir()
			for scrape := range 60 {
				for range burst {
					v := float64(r.IntN(distinct)) - 1
					if r.IntN(20) == 0 {
						v = special[r.IntN(len(special)-1+turn/3)] // NaN in the last turns only
					}
					sample.add(v)
				}
				sample.sort()
				want := slices.Clone(sample.values)
				slices.Sort(want)
				if fmt.Sprint(sample.sorted) != fmt.Sprint(want) {
					t.Fatalf("%d distinct values, bursts of %d, scrape %d: not sorted", distinct, burst, scrape)
				}
			}
		}
	}
}
