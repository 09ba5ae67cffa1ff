package metrics

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// If vmrange buckets were exposed as cumulative buckets, sums over series would be wrong, because
// each series has only the buckets with values. So they are exposed as vmrange buckets, in
// families without a type.
func TestHandler_RangesStayRanges(t *testing.T) {
	s := NewSet()
	s.Describe("h", "Help.", "")
	s.NewHistogram(`h{a="1"}`).Update(1.5)
	s.NewHistogram(`h{a="2"}`).Update(0)
	s.NewHistogram("plain").Update(1.5)
	check(t, "page", get(s.Handler(), acceptOpenMetrics, "").Body.String(), `# HELP h_bucket Help.
# TYPE h_bucket unknown
h_bucket{a="1",vmrange="1.468e+00...1.668e+00"} 1.0
h_bucket{a="2",vmrange="0...1.000e-09"} 1.0
# HELP h_sum Help.
# TYPE h_sum unknown
h_sum{a="1"} 1.5
h_sum{a="2"} 0.0
# HELP h_count Help.
# TYPE h_count unknown
h_count{a="1"} 1.0
h_count{a="2"} 1.0
# TYPE plain_bucket unknown
plain_bucket{vmrange="1.468e+00...1.668e+00"} 1.0
# TYPE plain_sum unknown
plain_sum 1.5
# TYPE plain_count unknown
plain_count 1.0
# EOF
`)
}

// Every histogram has every bound, and each bucket counts exactly the values up to it.
func TestHandler_LeBucketsCanBeSummed(t *testing.T) {
	s := NewSet()
	a, b := s.NewHistogram(`h{a="1"}`), s.NewHistogram(`h{a="2"}`)
	random := rand.New(rand.NewPCG(1, 2))
	var values []float64
	for range 2000 {
		v := math.Pow(10, random.Float64()*30-10)
		values = append(values, v)
		[]*Histogram{a, b}[random.IntN(2)].Update(v)
	}
	page := get(NewHandler(HandlerOptions{Sets: []*Set{s}, LeBuckets: true}), acceptOpenMetrics, "").Body.String()
	sums, series := map[float64]int{}, 0
	for line := range strings.Lines(page) {
		_, rest, ok := strings.Cut(line, `le="`)
		if !ok {
			continue
		}
		var le float64
		var n int
		if _, err := fmt.Sscanf(strings.Replace(rest, `"} `, " ", 1), "%g %d", &le, &n); err != nil {
			t.Fatal(line, err)
		}
		sums[le] += n
		series++
	}
	if series != 2*83 || len(sums) != 83 {
		t.Fatalf("%d buckets with %d bounds, want 166 with 83", series, len(sums))
	}
	for le, n := range sums {
		below := 0
		for _, v := range values {
			if v <= le*(1+1e-3) { // the text of a bound has four digits
				below++
			}
		}
		above := 0
		for _, v := range values {
			if v <= le*(1-1e-3) {
				above++
			}
		}
		if n < above || n > below {
			t.Errorf("le=%g: %d values, want %d to %d", le, n, above, below)
		}
	}
}

func TestSet_RemovedMetricsAreFreedWithoutScrapes(t *testing.T) {
	s := NewSet()
	v := s.NewPrometheusHistogramVec("h", "", []float64{1, 2}, "connection")
	s.NewCounter("kept").Inc()
	for i := range 100_000 {
		name := fmt.Sprint(i)
		v.With(name).Update(1)
		v.Delete(name)
	}
	if n := len(s.metrics); n > 4*removedMax {
		t.Errorf("%d metrics are kept", n)
	}
	check(t, "page", text(s), "kept 1\n")
}

func TestVec_ExpiresWithoutScrapes(t *testing.T) {
	s := NewSet()
	v := s.NewCounterVec("c", "", "a").Expire(time.Millisecond)
	for i := 0; i < 10 || i < 10_000 && len(s.ListMetricNames()) == i; i++ {
		v.With(fmt.Sprint(i)).Inc()
		time.Sleep(time.Millisecond)
	}
	if n := len(s.ListMetricNames()); n > 9_000 {
		t.Errorf("%d members", n)
	}
}

// blocked is a client that reads nothing until the test releases it.
type blocked struct{ began, release chan struct{} }

func (b blocked) Write(p []byte) (int, error) {
	select {
	case b.began <- struct{}{}:
	default:
	}
	<-b.release
	return len(p), nil
}

func TestSet_ClientThatDoesNotReadKeepsNoRemovedMetrics(t *testing.T) {
	s := NewSet()
	s.NewCounter("kept").Inc()
	v := s.NewCounterVec("c", "", "a")
	w := blocked{make(chan struct{}, 1), make(chan struct{})}
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		s.WritePrometheus(w)
	}()
	<-w.began
	for i := range 10_000 {
		name := fmt.Sprint(i)
		v.With(name).Inc()
		v.Delete(name)
	}
	check(t, "page", text(s), "kept 1\n")
	if n := len(s.metrics); n > 4*removedMax {
		t.Errorf("%d metrics are kept", n)
	}
	if n := testing.AllocsPerRun(50, func() { s.WritePrometheus(io.Discard) }); n != 0 && !raceEnabled {
		t.Errorf("%v allocations a scrape", n)
	}
	close(w.release)
	wg.Wait()
	check(t, "after", text(s), "kept 1\n")
}

func TestSet_ManyNewMetricsKeepTheOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	s, names := NewSet(), []string{}
	for range 60 {
		for range random.IntN(60) {
			name := fmt.Sprintf("m%d", random.IntN(5000))
			if !slices.Contains(names, name) {
				names = append(names, name)
				s.NewCounter(name)
			}
		}
		for range random.IntN(40) {
			if len(names) > 0 {
				i := random.IntN(len(names))
				s.UnregisterMetric(names[i])
				names = slices.Delete(names, i, i+1)
			}
		}
		sorted := slices.Sorted(slices.Values(names))
		var want strings.Builder
		for _, name := range sorted {
			want.WriteString(name + " 0\n")
		}
		check(t, "page", text(s), want.String())
	}
}

func TestVec_ReplacesInvalidUTF8(t *testing.T) {
	s := NewSet()
	v := s.NewCounterVec("c", "help \xff", "path")
	v.With("/\xff").Inc()
	v.With("/\xfe").Inc()
	v.With("/\uFFFD").Inc()
	check(t, "page", text(s), "c{path=\"/\uFFFD\"} 3\n")
	if !v.Delete("/\xff") || text(s) != "" {
		t.Error("not deleted")
	}
}

func TestVec_OverflowIsCountedAndCheap(t *testing.T) {
	s := NewSet()
	v := s.NewPrometheusHistogramVec("h", "", []float64{1}, "path").Limit(1)
	v.With("/").Update(1)
	v.With("/a").Update(1)
	values := []string{"/b"}
	if n := testing.AllocsPerRun(98, func() { v.With(values...).Update(1) }); n != 0 {
		t.Errorf("%v allocations a lookup", n)
	}
	page := text(s)
	for _, want := range []string{"h_count{path=\"overflow\"} 100\n", "metrics_vec_overflow_total{family=\"h\"} 100\n", "h_count{path=\"/\"} 1\n"} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
	if !v.Delete("/") {
		t.Fatal("not deleted")
	}
	v.With("/c").Update(1)
	if !strings.Contains(text(s), `h_count{path="/c"} 1`) {
		t.Error("a freed place is not used")
	}
}

func TestVec_ReservedLabelsAreRejected(t *testing.T) {
	for name, f := range map[string]func(s *Set){
		"le":       func(s *Set) { s.NewPrometheusHistogramVec("h", "", []float64{1}, "le") },
		"vmrange":  func(s *Set) { s.NewHistogramVec("h", "", "vmrange") },
		"quantile": func(s *Set) { s.NewSummaryVec("h", "", "quantile") },
		"name":     func(s *Set) { s.NewCounterVec("h", "", "__name__") },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s was accepted", name)
				}
			}()
			f(NewSet())
		}()
	}
}

func TestVec_KeepsTheUnitOfItsFamily(t *testing.T) {
	s := NewSet()
	s.Describe("a_seconds", "Old.", "seconds")
	s.NewGaugeVec("a_seconds", "", "l").With("x").Set(1)
	check(t, "page", get(s.Handler(), acceptOpenMetrics, "").Body.String(),
		"# HELP a_seconds Old.\n# TYPE a_seconds gauge\n# UNIT a_seconds seconds\na_seconds{l=\"x\"} 1.0\n# EOF\n")
}

func TestSet_VectorsWorkAfterUnregisterAllMetrics(t *testing.T) {
	s := NewSet()
	v := s.NewCounterVec("c", "", "l")
	v.With("x").Add(5)
	s.UnregisterAllMetrics()
	check(t, "empty", text(s), "")
	v.With("x").Inc()
	check(t, "page", text(s), "c{l=\"x\"} 1\n")
	v.Reset()
	check(t, "reset", text(s), "")
}

func TestWriters_LastLineWithoutLineBreak(t *testing.T) {
	s := NewSet()
	s.RegisterMetricsWriter(func(w io.Writer) { _, _ = fmt.Fprint(w, "foo 1") })
	s.RegisterMetricsWriter(func(w io.Writer) { _, _ = fmt.Fprint(w, "bar 2\n") })
	const want = "foo 1\nbar 2\n"
	check(t, "WritePrometheus", text(s), want)
	h := s.Handler()
	for range 2 {
		check(t, "handler", get(h, "", "").Body.String(), want)
		check(t, "OpenMetrics", get(h, acceptOpenMetrics, "").Body.String(), "# TYPE bar unknown\nbar 2.0\n# TYPE foo unknown\nfoo 1.0\n# EOF\n")
	}
}

func TestHandler_SummaryOfTwoSetsIsWrittenOnce(t *testing.T) {
	a, b := NewSet(), NewSet()
	a.NewSummaryExt("s", time.Minute, []float64{0.5}).Update(1)
	b.NewSummaryExt("s", time.Minute, []float64{0.5}).Update(2)
	h := NewHandler(HandlerOptions{Sets: []*Set{a, b}})
	check(t, "page", get(h, "", "").Body.String(), "s{quantile=\"0.5\"} 1\ns_sum 1\ns_count 1\n")
}

// Label names, unlike names of metrics, cannot contain colons.
func TestHandler_ColonInLabelNameIsEscaped(t *testing.T) {
	s := NewSet()
	s.NewCounterVec("c:d", "", "a:b").With("x").Inc()
	check(t, "text", get(s.Handler(), "", "").Body.String(), "c:d{a_b=\"x\"} 1\n")
	check(t, "UTF-8", get(s.Handler(), "text/plain;version=1.0.0;escaping=allow-utf-8", "").Body.String(), "c:d{\"a:b\"=\"x\"} 1\n")
	check(t, "OpenMetrics", get(s.Handler(), acceptOpenMetrics, "").Body.String(), "# TYPE c:d unknown\nc:d{a_b=\"x\"} 1.0\n# EOF\n")
}

func TestHandler_WriterGroupsLinesBySuffix(t *testing.T) {
	s := NewSet()
	s.RegisterMetricsWriter(func(w io.Writer) {
		_, _ = io.WriteString(w, `# TYPE h histogram
h_bucket{a="1",le="1"} 1
h_bucket{a="1",le="+Inf"} 2
h_bucket{a="2",le="1"} 3
h_bucket{a="2",le="+Inf"} 4
h_sum{a="1"} 5
h_sum{a="2"} 6
h_count{a="1"} 2
h_count{a="2"} 4
`)
	})
	check(t, "page", get(s.Handler(), acceptOpenMetrics, "").Body.String(), `# TYPE h histogram
h_bucket{a="1",le="1.0"} 1
h_bucket{a="1",le="+Inf"} 2
h_sum{a="1"} 5.0
h_count{a="1"} 2
h_bucket{a="2",le="1.0"} 3
h_bucket{a="2",le="+Inf"} 4
h_sum{a="2"} 6.0
h_count{a="2"} 4
# EOF
`)
}

// counted counts all bytes of a response.
type counted struct{ discard }

func (w *counted) Write(p []byte) (int, error) { w.n += len(p); return len(p), nil }

// A response larger than bodyMax is sent while it is rendered, and needs no memory of its size.
func TestHandler_LargePagesAreStreamed(t *testing.T) {
	if testing.Short() {
		t.Skip("100,000 metrics")
	}
	s := NewSet()
	v := s.NewCounterVec("http_requests_total", "", "path", "instance").Limit(math.MaxInt)
	for i := range 100_000 {
		v.With(fmt.Sprint("/", i), "an-instance-with-a-long-name:9090").Inc()
	}
	var want bytes.Buffer
	s.WritePrometheus(&want)
	h := s.Handler()
	server := httptest.NewServer(h)
	defer server.Close()
	for range 2 {
		resp, err := http.Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || !bytes.Equal(got, want.Bytes()) {
			t.Fatalf("%d bytes, want %d; %v", len(got), want.Len(), err)
		}
	}
	if raceEnabled {
		return // with the race detector sync.Pool drops values at random
	}
	for _, accept := range []string{"", acceptOpenMetrics} {
		w := &counted{discard{header: http.Header{}}}
		req := httptest.NewRequest(http.MethodGet, "/", nil)
		req.Header.Set("Accept", accept)
		h.ServeHTTP(w, req)
		h.ServeHTTP(w, req)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		h.ServeHTTP(w, req)
		runtime.ReadMemStats(&after)
		if grown := after.TotalAlloc - before.TotalAlloc; grown > 1<<20 || w.n < 2*want.Len() {
			t.Errorf("%q: a page of %d bytes allocates %d bytes", accept, w.n/3, grown)
		}
	}
}

// A failure after the first piece aborts the connection: the response must not look complete.
func TestHandler_FailureOfAStreamedPageCutsTheConnection(t *testing.T) {
	s := NewSet()
	line := []byte("x{a=\"" + strings.Repeat("y", 1000) + "\"} 1\n")
	server := httptest.NewServer(NewHandler(HandlerOptions{Sets: []*Set{s}, WriteExtra: func(w io.Writer, _ string) error {
		for n := 0; n < bodyMax+1<<20; n += len(line) {
			if _, err := w.Write(line); err != nil {
				return err
			}
		}
		return fmt.Errorf("failed")
	}}))
	defer server.Close()
	client := http.Client{Transport: &http.Transport{DisableCompression: true}}
	resp, err := client.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if n, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Errorf("%d bytes without an error", n)
	}
}

func TestVec_PartialMatchIterationAndErrors(t *testing.T) {
	s := NewSet()
	v := s.NewCounterVec("c", "", "a", "b c")
	for _, pair := range [][2]string{{"1", "x"}, {"1", "y"}, {"2", "x"}} {
		v.With(pair[0], pair[1]).Inc()
	}
	seen := map[string]uint64{}
	for values, c := range v.All() {
		seen[strings.Join(values, ",")] = c.Get()
	}
	if fmt.Sprint(seen) != "map[1,x:1 1,y:1 2,x:1]" {
		t.Error(seen)
	}
	for range v.All() {
		break
	}
	if n := v.DeletePartialMatch(map[string]string{"a": "1", "none": "x"}); n != 0 {
		t.Errorf("%d deleted", n)
	}
	if n := v.DeletePartialMatch(map[string]string{"a": "1"}); n != 2 {
		t.Errorf("%d deleted", n)
	}
	if n := v.DeletePartialMatch(map[string]string{"b c": "x"}); n != 1 || text(s) != "" {
		t.Errorf("%d deleted; %s", n, text(s))
	}
	if _, err := v.TryWith("one"); err == nil {
		t.Error("no error")
	}
	c, err := v.TryWith("1", "2")
	if err != nil {
		t.Fatal(err)
	}
	c.Inc()
}

func TestCounterFunc_EveryFormat(t *testing.T) {
	s := NewSet()
	s.NewCounterFunc("c_total", func() float64 { return 2.5 })
	s.NewCounterFunc("panics_total", func() float64 { panic("no") })
	check(t, "text", text(s), "c_total 2.5\n")
	check(t, "OpenMetrics", get(s.Handler(), acceptOpenMetrics, "").Body.String(), "# TYPE c counter\nc_total 2.5\n# EOF\n")
}

func TestSummaryVecExt_HasItsQuantiles(t *testing.T) {
	s := NewSet()
	s.NewSummaryVecExt("s", "", time.Minute, []float64{0.25}, "a").With("x").Update(1)
	check(t, "page", text(s), "s{a=\"x\",quantile=\"0.25\"} 1\ns_sum{a=\"x\"} 1\ns_count{a=\"x\"} 1\n")
}

func TestSet_Families(t *testing.T) {
	s := NewSet()
	s.NewCounterVec("c_total", "Help.", "a").With("x")
	s.NewGauge("a", nil)
	s.NewSummary("s")
	if got := fmt.Sprint(s.Families()); got != "[{a gauge  } {c_total counter Help. } {s summary  }]" {
		t.Error(got)
	}
}

func TestSet_VectorsAreThereBeforeTheirMembers(t *testing.T) {
	s := NewSet()
	s.NewCounterVec("b_total", "Help.", "method", "code")
	s.NewSummaryVec("a", "", "x").With("1").Update(1)
	s.Describe("a", "Later.", "bytes")
	if got := fmt.Sprint(s.Vectors()); got != "[{{a summary Later. bytes} [x]} {{b_total counter Help. } [method code]}]" {
		t.Error(got)
	}
	if got := fmt.Sprint(s.ListMetricNames()); strings.Contains(got, "b_total") {
		t.Errorf("a member was made: %s", got)
	}
}

// A counter that starts again is recognised by its created timestamp.
func TestHandler_ResetIsTheCreatedTime(t *testing.T) {
	s := NewSet()
	classic, ranges := s.NewPrometheusHistogram("classic"), s.NewHistogram("ranges")
	s.mu.Lock()
	for i := range s.metrics {
		s.metrics[i].createdMS = 1000 // registered long ago
	}
	s.mu.Unlock()
	created := func() (page string, old int) {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Accept", acceptOpenMetrics)
		NewHandler(HandlerOptions{Sets: []*Set{s}, CreatedLines: true, LeBuckets: true}).ServeHTTP(w, r)
		return w.Body.String(), strings.Count(w.Body.String(), "_created 1.0\n")
	}
	classic.Update(1)
	ranges.Update(1)
	if page, old := created(); old != 2 {
		t.Errorf("before the reset:\n%s", page)
	}
	classic.Reset()
	ranges.Reset()
	classic.Update(1)
	ranges.Update(1)
	if page, old := created(); old != 0 || strings.Count(page, "_created ") != 2 {
		t.Errorf("after the reset:\n%s", page)
	}
}

// The metrics of open files are in the response of every format if the handler has the option.
func TestHandler_OpenFiles(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("counted on Linux")
	}
	for _, option := range []bool{false, true} {
		for _, accept := range []string{"", acceptOpenMetrics} {
			w := httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("Accept", accept)
			NewHandler(HandlerOptions{Sets: []*Set{NewSet()}, OpenFiles: option}).ServeHTTP(w, r)
			if page := w.Body.String(); strings.Contains(page, "process_open_fds ") != option || strings.Contains(page, "process_max_fds ") != option {
				t.Errorf("option %v, accept %q:\n%s", option, accept, page)
			}
		}
	}
}

func TestBuildInfoCollector_HasTheModule(t *testing.T) {
	s := NewSet()
	s.RegisterCollector(BuildInfoCollector())
	if status, page := scraped(s, ""); status != http.StatusOK || !strings.Contains(page, `go_build_info{checksum="`) || !strings.Contains(page, `",path="`) {
		t.Errorf("status %d: %s", status, page)
	}
}
