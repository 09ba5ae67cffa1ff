package metrics

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func text(s *Set) string {
	var b strings.Builder
	s.WritePrometheus(&b)
	return b.String()
}

func check(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\ngot:\n%s\nwant:\n%s", what, got, want)
	}
}

func TestWritePrometheus_EveryType(t *testing.T) {
	s := NewSet()
	s.NewCounter(`c_total{a="b"}`).Add(3)
	s.NewFloatCounter("f_total").Add(1.5)
	s.NewGauge("g", nil).Set(1e9)
	s.NewGauge("g_called", func() float64 { return -0.25 })
	h := s.NewHistogram(`h{a="b"}`)
	h.Update(1.5)
	h.Update(0)
	p := s.NewPrometheusHistogramExt("p", []float64{0.5, 1})
	p.Update(0.5)
	p.Update(7)
	sm := s.NewSummary(`s{a="b"}`)
	sm.Update(1)
	sm.Update(3)
	s.NewHistogram("empty")
	s.NewSummary("empty_too")
	check(t, "page", text(s), `c_total{a="b"} 3
f_total 1.5
g 1000000000
g_called -0.25
h_bucket{a="b",vmrange="0...1.000e-09"} 1
h_bucket{a="b",vmrange="1.468e+00...1.668e+00"} 1
h_sum{a="b"} 1.5
h_count{a="b"} 2
p_bucket{le="0.5"} 1
p_bucket{le="1"} 1
p_bucket{le="+Inf"} 2
p_sum 7.5
p_count 2
s{a="b",quantile="0.5"} 3
s{a="b",quantile="0.9"} 3
s{a="b",quantile="0.97"} 3
s{a="b",quantile="0.99"} 3
s{a="b",quantile="1"} 3
s_sum{a="b"} 4
s_count{a="b"} 2
`)
}

func TestHistogram_RangeTableEqualsTheFormula(t *testing.T) {
	same := func(v float64) {
		if got, want := ranges.bucket(v), bucketByFormula(v); got != want {
			t.Fatalf("%g (%x): bucket %d, by the formula %d", v, math.Float64bits(v), got, want)
		}
	}
	for i := range rangeBuckets + 1 {
		edge := math.Pow(10, float64(i)/bucketsPerDecade+lowestExponent)
		for _, v := range []float64{edge, edge * (1 - 2e-12), edge * (1 + 2e-12)} {
			for range 100 {
				same(v)
				v = math.Nextafter(v, math.Inf(1))
			}
		}
	}
	for v := 1e-12; v < 1e21; v *= 1.00017 {
		same(v)
	}
	for _, v := range []float64{0, math.SmallestNonzeroFloat64, math.MaxFloat64, math.Inf(1), 1e-9, 1e18} {
		same(v)
	}
}

func TestSet_InvalidRegistrationPanicsWithTheName(t *testing.T) {
	s := NewSet()
	s.NewCounter("taken")
	s.NewSummary("windowed")
	for what, c := range map[string]struct {
		name string
		make func()
	}{
		"empty":                {"", func() { s.NewCounter("") }},
		"starts with a digit":  {"9a", func() { s.NewGauge("9a", nil) }},
		"line break":           {`a\nb`, func() { s.NewHistogram("a\nb") }},
		"open brace":           {"a{", func() { s.GetOrCreateSummary("a{") }},
		"unquoted":             {"a{b=c}", func() { s.NewFloatCounter("a{b=c}") }},
		"taken":                {"taken", func() { s.NewCounter("taken") }},
		"taken by another":     {"taken", func() { s.GetOrCreateGauge("taken", nil) }},
		"falling bounds":       {"bounds", func() { s.NewPrometheusHistogramExt("bounds", []float64{2, 1}) }},
		"quantile above 1":     {"above", func() { s.NewSummaryExt("above", time.Minute, []float64{1.5}) }},
		"quantile twice":       {"twice", func() { s.NewSummaryExt("twice", time.Minute, []float64{.5, .5}) }},
		"another window":       {"windowed", func() { s.GetOrCreateSummaryExt("windowed", time.Second, []float64{.5}) }},
		"set with a call back": {"called", func() { s.GetOrCreateGauge("called", func() float64 { return 1 }).Set(1) }},
	} {
		func() {
			defer func() {
				if r := recover(); r == nil || !strings.Contains(fmt.Sprint(r), c.name) {
					t.Errorf("%s: got %v", what, r)
				}
			}()
			c.make()
		}()
	}
	if got := s.ListMetricNames(); len(got) != 3 {
		t.Errorf("a failed registration left something behind: %q", got)
	}
}

func TestUpdate_SpecialValuesDoNotPanic(t *testing.T) {
	s := NewSet()
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1} {
		s.GetOrCreateFloatCounter("f").Add(v)
		s.GetOrCreateGauge("g", nil).Set(v)
		s.GetOrCreateHistogram("h").Update(v)
		s.GetOrCreatePrometheusHistogramExt("p", []float64{1}).Update(v)
		s.GetOrCreateSummary("s").Update(v)
	}
	page := text(s)
	for _, want := range []string{"f NaN\n", "g -1\n", "h_count 1\n", `h_bucket{vmrange="1.000e+18...+Inf"} 1` + "\n", "h_sum +Inf\n", `p_bucket{le="1"} 0` + "\n", "p_count 1\n", "s_count 4\n", "s_sum NaN\n"} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
}

func TestGauge_PanickingCallbackLosesItsLineOnly(t *testing.T) {
	s := NewSet()
	s.NewGauge("a", func() float64 { panic("no") })
	s.NewGauge("b", func() float64 { return 2 })
	check(t, "page", text(s), "b 2\n")
	check(t, "page", text(s), "b 2\n")
}

func TestGauge_CallbackMayRegister(t *testing.T) {
	s := NewSet()
	s.NewGauge("a", func() float64 { return float64(s.GetOrCreateCounter("b").Get()) })
	check(t, "first page", text(s), "a 0\n")
	check(t, "second page", text(s), "a 0\nb 0\n")
}

// failing accepts a number of writes, then fails.
type failing struct{ left, calls int }

func (f *failing) Write(p []byte) (int, error) {
	f.calls++
	if f.left--; f.left < 0 {
		return 0, errors.New("full")
	}
	return len(p), nil
}

func TestWritePrometheus_WriterErrorEndsTheScrape(t *testing.T) {
	s := NewSet()
	for i := range 5000 {
		s.NewCounter(fmt.Sprintf(`some_long_name_total{label="%d"}`, i))
	}
	s.RegisterMetricsWriter(func(w io.Writer) { t.Error("a writer was called after the error") })
	w := &failing{left: 1}
	s.WritePrometheus(w)
	if w.calls != 2 {
		t.Errorf("%d writes, want 2", w.calls)
	}
	s.UnregisterAllMetrics()
	if text(s) != "" {
		t.Error("something is left")
	}
}

func TestWritePrometheus_MetadataOncePerFamily(t *testing.T) {
	ExposeMetadata(true)
	defer ExposeMetadata(false)
	s, other := NewSet(), NewSet()
	s.NewCounter(`a{x="1"}`)
	s.NewCounter(`a{x="2"}`)
	s.NewSummary("empty")
	s.NewSummary("s").Update(1)
	other.NewCounter(`a{x="3"}`)
	check(t, "page", text(s), `# HELP a
# TYPE a counter
a{x="1"} 0
a{x="2"} 0
# HELP s
# TYPE s summary
s{quantile="0.5"} 1
s{quantile="0.9"} 1
s{quantile="0.97"} 1
s{quantile="0.99"} 1
s{quantile="1"} 1
s_sum 1
s_count 1
`)
	RegisterSet(s)
	RegisterSet(other)
	defer UnregisterSet(s, true)
	defer UnregisterSet(other, true)
	for range 2 {
		var b strings.Builder
		WritePrometheus(&b, false)
		if n := strings.Count(b.String(), "# TYPE a counter"); n != 1 || !strings.HasSuffix(b.String(), "s_count 1\na{x=\"3\"} 0\n") {
			t.Errorf("%d times in\n%s", n, b.String())
		}
	}
}

func TestSet_UnregisteredMetricsAreNotWritten(t *testing.T) {
	s := NewSet()
	names := map[string]bool{}
	for i := range 3000 {
		name := fmt.Sprintf(`n{i="%d"}`, i*7919%3000)
		s.NewCounter(name)
		names[name] = true
		if i%3 == 2 {
			gone := fmt.Sprintf(`n{i="%d"}`, (i-1)*7919%3000)
			if !s.UnregisterMetric(gone) || s.UnregisterMetric(gone) {
				t.Fatalf("%s: unregister once and only once", gone)
			}
			delete(names, gone)
		}
		if i%500 == 0 {
			text(s)
		}
	}
	if got := len(s.ListMetricNames()); got != len(names) {
		t.Fatalf("%d names, want %d", got, len(names))
	}
	lines := strings.Split(strings.TrimSpace(text(s)), "\n")
	if len(lines) != len(names) {
		t.Errorf("%d lines, want %d", len(lines), len(names))
	}
	for i, line := range lines {
		if !names[strings.TrimSuffix(line, " 0")] || i > 0 && lines[i-1] >= line {
			t.Fatalf("line %d: %q", i, line)
		}
	}
}

func TestSummary_WindowWithoutUpdatesIsEmpty(t *testing.T) {
	s := NewSet()
	sm := s.NewSummaryExt("s", time.Second, []float64{0.5})
	sm.Update(1)
	check(t, "at once", text(s), "s{quantile=\"0.5\"} 1\ns_sum 1\ns_count 1\n")
	deadline := time.Now().Add(30 * time.Second)
	for strings.Contains(text(s), "quantile") && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	check(t, "later", text(s), "s_sum 1\ns_count 1\n")
	sm.mu.Lock()
	defer sm.mu.Unlock()
	if sm.recent != nil {
		t.Error("samples and timer are still there")
	}
}

// The sorted values of a reservoir that are updated in place equal values that are sorted again.
func TestReservoir_IncrementalSortEqualsFullSort(t *testing.T) {
	a, b := newReservoir(), newReservoir()
	requested := []quantile{{0, ""}, {.25, ""}, {.5, ""}, {.97, ""}, {1, ""}}
	got, want := make([]float64, len(requested)), make([]float64, len(requested))
	x := uint32(1)
	for i := range 20000 {
		x = x*1664525 + 1013904223
		v := float64(x>>20) / 7
		a.add(v)
		b.add(v)
		if i%(1+i/700) == 0 {
			a.quantiles(got, requested)
			b.sorted = b.sorted[:0]
			b.changes = b.changes[:0]
			b.quantiles(want, requested)
			check(t, fmt.Sprint("after ", i), fmt.Sprint(got), fmt.Sprint(want))
		}
	}
}

func TestHistogram_MergeWithItself(t *testing.T) {
	var a, b Histogram
	a.Update(1.5)
	b.Update(1.5)
	b.Update(1e30)
	b.Merge(&a)
	b.Merge(&b)
	total := uint64(0)
	b.VisitNonZeroBuckets(func(_ string, n uint64) { total += n })
	if total != 6 || b.sum != 2*(3+1e30) {
		t.Errorf("%d values, sum %v", total, b.sum)
	}
}

// Buckets, sum and count of one scrape are consistent.
func TestHistogram_ScrapeIsConsistent(t *testing.T) {
	s := NewSet()
	p := s.NewPrometheusHistogramExt("p", []float64{1, 2})
	h := s.NewHistogram("h")
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 2 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for !stop.Load() {
				p.Update(2)
				h.Update(2)
			}
		}()
	}
	for range 300 {
		var le1, le2, all, sum, count, hn, hsum, hcount uint64
		page := text(s)
		for line := range strings.Lines(page) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			into := map[string]*uint64{`p_bucket{le="1"}`: &le1, `p_bucket{le="2"}`: &le2, `p_bucket{le="+Inf"}`: &all, "p_sum": &sum, "p_count": &count,
				`h_bucket{vmrange="1.896e+00...2.154e+00"}`: &hn, "h_sum": &hsum, "h_count": &hcount}[name]
			if into == nil {
				t.Fatalf("unexpected line %q", line)
			}
			fmt.Sscan(value, into)
		}
		if le1 != 0 || le2 != all || all != count || sum != 2*count || hn != hcount || hsum != 2*hcount {
			t.Fatalf("disagrees:\n%s", page)
		}
	}
	stop.Store(true)
	wg.Wait()
}

// Some entries of the sorted part are removed from its front and back, and added entries
// sort before all of them.
func TestSet_PageIsSortedAfterRemovals(t *testing.T) {
	s := NewSet()
	for i := range 20 {
		s.NewCounter(fmt.Sprintf("m%02d", i))
	}
	text(s)
	s.UnregisterMetric("m00")
	s.UnregisterMetric("m19")
	s.NewCounter("a2")
	s.NewCounter("a1")
	lines := strings.Split(text(s), "\n")
	for i := 1; i < len(lines)-1; i++ {
		if lines[i-1] >= lines[i] {
			t.Errorf("%s stands before %s", lines[i-1], lines[i])
		}
	}
}

func TestSpares_SmallValuesOutliveGarbageCollections(t *testing.T) {
	var s spares[page]
	put := map[*page]bool{}
	for range len(s.kept) {
		p := &page{}
		put[p] = true
		s.put(p, true)
	}
	for range 3 { // a sync.Pool drops all values at the second collection
		runtime.GC()
	}
	for range len(s.kept) {
		p := s.get()
		if !put[p] {
			t.Error("a new page, although pages were put")
		}
		delete(put, p)
	}
	if p := s.get(); p == nil {
		t.Error("no page")
	}
}

func TestSpares_LargeValuesAreNotKept(t *testing.T) {
	var s spares[page]
	s.put(&page{}, false)
	for i := range s.kept {
		if s.kept[i].Load() != nil {
			t.Error("a large page is kept for ever")
		}
	}
}

// A label name of OpenMetrics has no colon, and a parser refuses the whole response because of one.
func TestCounter_ExemplarWithAnInvalidLabelNameIsDropped(t *testing.T) {
	for _, name := range []string{"trace:id", "trace id", "1st", "", "träce"} {
		s := NewSet()
		s.NewCounter("requests_total").AddWithExemplar(3, name, "abc")
		if _, page := scraped(s, acceptOpenMetrics); strings.Contains(page, "abc") || !strings.Contains(page, "requests_total 3.0\n") {
			t.Errorf("label name %q: the exemplar was kept, or the counter has no value:\n%s", name, page)
		}
	}
}

// Every valid name can be registered for every type, and the line of the metric begins
// with it.
func FuzzValidName(f *testing.F) {
	for _, seed := range []string{"a", "a{}", `a{b="c"}`, `a{b="\"", c="\\"}`, "a{", "", "a\nb", `a{b="}`, `a{b="",}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if ValidateMetric(name) != nil {
			return
		}
		s := NewSet()
		s.NewCounter(name).Inc()
		if got := text(s); got != name+" 1\n" {
			t.Errorf("got %q", got)
		}
		s = NewSet()
		s.NewSummary(name).Update(1)
		s.GetOrCreateHistogram("other_" + name).Update(1)
		s.GetOrCreatePrometheusHistogram("third_" + name).Update(1)
		if got := text(s); strings.Count(got, "\n") != 7+3+14 {
			t.Errorf("%d lines:\n%s", strings.Count(got, "\n"), got)
		}
	})
}

func TestSetOptions_NamesAndLabelsOfEveryMetric(t *testing.T) {
	s := NewSetWithOptions(SetOptions{Prefix: "app_", Labels: map[string]string{"env": `p"d`, "az": "1", "ü": "x"}})
	s.NewCounter("a_total").Inc()
	s.GetOrCreateCounter(`a_total{path="/"}`).Inc()
	s.GetOrCreateCounter(`a_total{path="/"}`).Inc()
	s.NewGauge(`g{}`, nil).Set(2)
	s.NewFloatCounter(`f_total{b="c", d="e"}`).Add(1.5)
	s.NewCounterFunc("func_total", func() float64 { return 7 })
	s.NewCounter(`{"http.requests",code="200"}`).Inc()
	s.NewHistogram("vm").Update(1)
	s.NewPrometheusHistogramExt(`h{q="in"}`, []float64{1}).Update(0.5)
	sm := s.NewSummaryExt("s", time.Minute, []float64{1})
	sm.Update(3)
	s.NewCounterVec("v_total", "Help.", "code").With("1").Inc()
	s.NewCounterVec("utf8.total", "", "code").With("1").Inc()
	const l = `az="1",env="p\"d","ü"="x"`
	want := strings.ReplaceAll(`{"app_http.requests",@,code="200"} 1
{"app_utf8.total",@,code="1"} 1
app_a_total{@,path="/"} 2
app_a_total{@} 1
app_f_total{@,b="c", d="e"} 1.5
app_func_total{@} 7
app_g{@} 2
app_h_bucket{@,q="in",le="1"} 1
app_h_bucket{@,q="in",le="+Inf"} 1
app_h_sum{@,q="in"} 0.5
app_h_count{@,q="in"} 1
app_s{@,quantile="1"} 3
app_s_sum{@} 3
app_s_count{@} 1
app_v_total{@,code="1"} 1
app_vm_bucket{@,vmrange="8.799e-01...1.000e+00"} 1
app_vm_sum{@} 1
app_vm_count{@} 1
`, "@", l)
	if got := text(s); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, name := range []string{"a_total", `app_a_total{` + l + `,path="/"}`} {
		if !s.UnregisterMetric(name) || s.UnregisterMetric(name) {
			t.Errorf("%s is not unregistered once", name)
		}
	}
	if families := s.Families(); families[len(families)-2].Name != "app_v_total" || families[len(families)-2].Help != "Help." {
		t.Errorf("families: %+v", families)
	}
	s.UnregisterAllMetrics()
	if got := text(s); got != "" {
		t.Errorf("left: %s", got)
	}
}

func TestSetOptions_VectorsExpireOverflowAndDelete(t *testing.T) {
	s := NewSetWithOptions(SetOptions{Prefix: "app_", Labels: map[string]string{"env": "prod"}})
	s.NewCounter("app_x{code=\"1\"}") // app_app_x, which Delete must not mistake for its own
	v := s.NewCounterVec("x", "", "code").Limit(2)
	v.With("1").Inc()
	v.With("2").Inc()
	v.With("3").Inc()
	want := `app_app_x{env="prod",code="1"} 0
app_x{env="prod",code="1"} 1
app_x{env="prod",code="2"} 1
app_x{env="prod",code="overflow"} 1
metrics_vec_overflow_total{env="prod",family="app_x"} 1
`
	if got := text(s); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	v.Delete("1")
	v.DeletePartialMatch(map[string]string{"code": "2"})
	if got := text(s); strings.Contains(got, `app_x{env="prod",code="2"}`) || !strings.Contains(got, "app_app_x") {
		t.Errorf("after Delete:\n%s", got)
	}
	v.Reset()
	if got := text(s); !strings.HasPrefix(got, "app_app_x{env=\"prod\",code=\"1\"} 0\nmetrics_vec") {
		t.Errorf("after Reset:\n%s", got)
	}
	other := NewSetWithOptions(SetOptions{Labels: map[string]string{"family": "f"}})
	o := other.NewCounterVec("y", "", "code").Limit(0)
	o.With("1").Inc()
	if got := text(other); !strings.Contains(got, `metrics_vec_overflow_total{family="y"} 1`) {
		t.Errorf("got\n%s", got)
	}
}

func TestSetOptions_SetsShareFamiliesOnOnePage(t *testing.T) {
	var sets []*Set
	for _, shard := range []string{"1", "2"} {
		s := NewSetWithOptions(SetOptions{Prefix: "db_", Labels: map[string]string{"shard": shard}})
		s.Describe("reads_total", "Reads.", "")
		s.NewCounter("reads_total").Inc()
		sets = append(sets, s)
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("Accept", "application/openmetrics-text;version=1.0.0")
	NewHandler(HandlerOptions{Sets: sets}).ServeHTTP(w, r)
	want := "# HELP db_reads Reads.\n# TYPE db_reads counter\ndb_reads_total{shard=\"1\"} 1.0\ndb_reads_total{shard=\"2\"} 1.0\n# EOF\n"
	if got := w.Body.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestSetOptions_ProgrammingErrorsPanic(t *testing.T) {
	s := NewSetWithOptions(SetOptions{Prefix: "app_", Labels: map[string]string{"env": "prod", "ü": "x"}})
	s.NewCounter("taken")
	for name, f := range map[string]func(){
		"prefix":             func() { NewSetWithOptions(SetOptions{Prefix: "a-"}) },
		"reserved label":     func() { NewSetWithOptions(SetOptions{Labels: map[string]string{"le": "1"}}) },
		"empty label":        func() { NewSetWithOptions(SetOptions{Labels: map[string]string{"": "1"}}) },
		"value":              func() { NewSetWithOptions(SetOptions{Labels: map[string]string{"a": "\xff"}}) },
		"label of the set":   func() { s.NewCounter(`a{b="c",env="x"}`) },
		"quoted label":       func() { s.NewCounter(`{"a.b","ü"="x"}`) },
		"label of a vector":  func() { s.NewGaugeVec("v", "", "env") },
		"quoted of a vector": func() { s.NewGaugeVec("v", "", "ü") },
		"name":               func() { s.NewCounter("a b") },
		"taken":              func() { s.NewCounter("taken") },
		"other type":         func() { s.GetOrCreateGauge("taken", nil) },
	} {
		func() {
			defer func() {
				if reason := recover(); reason == nil || !strings.HasPrefix(fmt.Sprint(reason), "BUG: ") {
					t.Errorf("%s: %v", name, reason)
				}
			}()
			f()
		}()
	}
}

type tried[T any] struct {
	value T
	err   error
}

func try[T any](value T, err error) tried[T] { return tried[T]{value, err} }

// must returns the value. An error ends the test.
func (r tried[T]) must(t testing.TB) T {
	t.Helper()
	noError(t, r.err)
	return r.value
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
