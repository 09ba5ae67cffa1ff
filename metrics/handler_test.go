package metrics

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferula-io/ferula/metrics/internal/exposition"
)

func get(h http.Handler, accept, encoding string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	if encoding != "" {
		req.Header.Set("Accept-Encoding", encoding)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w
}

func TestHandler_CompressesIfAccepted(t *testing.T) {
	s := NewSet()
	s.NewCounter("c_total").Inc()
	for accept, zipped := range map[string]bool{
		"": false, "gzip": true, "deflate, GZIP;q=0.5": true, "gzip;q=0": false, "*": true, "*;q=0": false, "*, gzip;q=0": false, "br": false, "gzip;q=x": false,
	} {
		for range 2 {
			w := get(s.Handler(), "", accept)
			var body io.Reader = w.Body
			if got := w.Header().Get("Content-Encoding") == "gzip"; got != zipped {
				t.Fatalf("%q: compressed: %v", accept, got)
			}
			if zipped {
				var err error
				if body, err = gzip.NewReader(w.Body); err != nil {
					t.Fatal(err)
				}
			}
			page := try(io.ReadAll(body)).must(t)
			check(t, accept, string(page), "c_total 1\n")
			check(t, "type", w.Header().Get("Content-Type"), "text/plain; version=0.0.4; charset=utf-8")
		}
	}
}

// A complete body has a length, in every format and coding. A streamed one has none.
func TestHandler_CompleteBodiesHaveALength(t *testing.T) {
	s := NewSet()
	v := s.NewCounterVec("c_total", "", "i").Limit(1 << 20)
	for i := range 3000 {
		v.With(strconv.Itoa(i)).Inc()
	}
	server := httptest.NewServer(s.Handler())
	defer server.Close()
	client := http.Client{Transport: &http.Transport{DisableCompression: true}}
	defer client.CloseIdleConnections()
	send := func(method, accept, coding string) (resp *http.Response, body []byte) {
		req := try(http.NewRequest(method, server.URL, nil)).must(t)
		req.Header.Set("Accept", accept)
		req.Header.Set("Accept-Encoding", coding)
		resp = try(client.Do(req)).must(t)
		defer resp.Body.Close()
		return resp, try(io.ReadAll(resp.Body)).must(t)
	}
	for name, accept := range requested {
		for _, coding := range []string{"", "gzip"} {
			for range 2 {
				resp, body := send(http.MethodGet, accept, coding)
				if len(body) <= 4096 || resp.ContentLength != int64(len(body)) || len(resp.TransferEncoding) != 0 || resp.Header.Get("Content-Encoding") != coding {
					t.Errorf("%s, coding %q: length %d of %d bytes, %v", name, coding, resp.ContentLength, len(body), resp.TransferEncoding)
				}
			}
		}
	}
	label := strings.Repeat("x", 1<<10)
	for i := range bodyMax >> 10 {
		v.With(label + strconv.Itoa(i)).Inc()
	}
	if resp, body := send(http.MethodGet, "", ""); len(body) <= bodyMax || resp.ContentLength != -1 {
		t.Errorf("streamed: length %d of %d bytes", resp.ContentLength, len(body))
	}
	if resp, body := send(http.MethodHead, "", ""); len(body) != 0 || resp.ContentLength > 0 {
		t.Errorf("HEAD: length %d of %d bytes", resp.ContentLength, len(body))
	}
}

// However many lengths there are, a handler keeps a limited number of header values, and lengths that are close to each
// other need no allocations.
func TestHandler_LengthsAreLimited(t *testing.T) {
	h := NewSet().Handler().(*handler)
	for _, step := range []int{1, 99, 9973} {
		for n := 0; n < 3*blocksMax*lengthsBlock; n += step {
			check(t, "length", strings.Join(h.lengthHeader(n), ", "), strconv.Itoa(n))
		}
		if len(h.lengths) > blocksMax {
			t.Errorf("%d blocks are kept", len(h.lengths))
		}
	}
	n := 0
	if allocs := testing.AllocsPerRun(1000, func() { n++; h.lengthHeader(36_000 + n*7919%500) }); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

func TestHandler_RejectsOtherMethods(t *testing.T) {
	for method, status := range map[string]int{http.MethodHead: 200, http.MethodPost: 405, http.MethodGet: 200} {
		w := httptest.NewRecorder()
		Handler(true).ServeHTTP(w, httptest.NewRequest(method, "/metrics", nil))
		if w.Code != status || (w.Body.Len() > 0) != (method != http.MethodHead) {
			t.Errorf("%s: status %d, %d bytes", method, w.Code, w.Body.Len())
		}
	}
}

const (
	acceptOpenMetrics = "application/openmetrics-text;version=1.0.0"
	acceptProtobuf    = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
)

func TestHandler_NegotiatesTheFormat(t *testing.T) {
	for accept, want := range map[string]string{
		"":                                       "text/plain; version=0.0.4; charset=utf-8",
		"*/*":                                    "text/plain; version=0.0.4; charset=utf-8",
		"application/json":                       "text/plain; version=0.0.4; charset=utf-8",
		"text/plain;version=9.9.9":               "text/plain; version=0.0.4; charset=utf-8",
		"text/plain;version=0.0.4;q=1,*/*;q=0.1": "text/plain; version=0.0.4; charset=utf-8",
		"text/plain;version=1.0.0;escaping=allow-utf-8":                                         "text/plain; version=1.0.0; charset=utf-8; escaping=allow-utf-8",
		"application/openmetrics-text":                                                          "application/openmetrics-text; version=0.0.1; charset=utf-8",
		"text/plain;q=0.5, Application/OpenMetrics-text ; version=1.0.0 ; charset=utf-8;q=0.7":  "application/openmetrics-text; version=1.0.0; charset=utf-8",
		acceptOpenMetrics + ";q=0,text/plain;q=0.1":                                             "text/plain; version=0.0.4; charset=utf-8",
		acceptOpenMetrics + ";q=x,text/plain;q=0.1":                                             "text/plain; version=0.0.4; charset=utf-8",
		acceptOpenMetrics + ";escaping=none":                                                    "application/openmetrics-text; version=1.0.0; charset=utf-8",
		acceptProtobuf + ";escaping=values;q=0.8," + acceptOpenMetrics + ";q=0.7":               "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited; escaping=values",
		"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text": "text/plain; version=0.0.4; charset=utf-8",
		acceptOpenMetrics + ";escaping=allow-utf-8;q=0.7,application/openmetrics-text;version=0.0.1;q=0.6,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.4,*/*;q=0.3": "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=allow-utf-8",
	} {
		check(t, accept, get(NewSet().Handler(), accept, "").Header().Get("Content-Type"), want)
	}
}

func TestHandler_OpenMetricsHasTypesAndEOF(t *testing.T) {
	s := NewSet()
	s.NewCounterVec("requests_total", "All \"of\" them.", "code").With("200").Inc()
	s.NewPrometheusHistogramExt("p", []float64{1}).Update(1)
	s.NewSummary("s").Update(-1)
	s.NewFloatCounter("f_total").Sub(1)
	s.NewCounter(`g{x="1"}`)
	s.NewGauge(`g{x="2"}`, nil)
	s.NewGauge("panics", func() float64 { panic("no") })
	check(t, "page", get(s.Handler(), acceptOpenMetrics, "").Body.String(), `# TYPE f counter
# TYPE g unknown
g{x="1"} 0.0
# TYPE p histogram
p_bucket{le="1.0"} 1
p_bucket{le="+Inf"} 1
p_sum 1.0
p_count 1
# HELP requests All \"of\" them.
# TYPE requests counter
requests_total{code="200"} 1.0
# TYPE s summary
s_count 1
# EOF
`)
}

// If several sets have a family, the response has the family once, and each of its metrics once.
func TestHandler_MergesFamiliesOfSets(t *testing.T) {
	a, b := NewSet(), NewSet()
	a.NewCounter(`c_total{x="1"}`).Add(1)
	b.NewCounter(`c_total{x="2"}`).Add(2)
	b.NewCounter(`c_total{x="1"}`).Add(3)
	a.NewGauge("z", nil)
	h := NewHandler(HandlerOptions{Sets: []*Set{a, b}, Metadata: true})
	check(t, "text", get(h, "", "").Body.String(), "# HELP c_total\n# TYPE c_total counter\nc_total{x=\"1\"} 1\nc_total{x=\"2\"} 2\n# HELP z\n# TYPE z gauge\nz 0\n")
	check(t, "OpenMetrics", get(h, acceptOpenMetrics, "").Body.String(), "# TYPE c counter\nc_total{x=\"1\"} 1.0\nc_total{x=\"2\"} 2.0\n# TYPE z gauge\nz 0.0\n# EOF\n")
}

// discard is a response whose header is reused, unlike one of net/http.
type discard struct {
	header http.Header
	n      int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Write(p []byte) (int, error) { d.n = len(p); return len(p), nil }

var requested = map[string]string{
	"text": "", "text 1.0.0": "text/plain;version=1.0.0;escaping=allow-utf-8", "OpenMetrics": acceptOpenMetrics, "protobuf": acceptProtobuf, "escaped": acceptOpenMetrics + ";escaping=values",
}

func TestHandler_DoesNotAllocateInAnyFormat(t *testing.T) {
	if raceEnabled {
		t.Skip("pools are not themselves under the race detector")
	}
	s := NewSet()
	update := mixed(s, 3000)
	s.NewGauge("dotted.name", nil)
	s.NewGauge(`{"quoted é"}`, nil)
	h := NewHandler(HandlerOptions{Sets: []*Set{s}, ProcessMetrics: true, Metadata: true})
	for name, accept := range requested {
		for _, encoding := range []string{"", "gzip"} {
			req := httptest.NewRequest(http.MethodGet, "/metrics", nil)
			req.Header.Set("Accept", accept)
			req.Header.Set("Accept-Encoding", encoding)
			w := &discard{header: http.Header{}}
			for range 3 {
				update(1)
				h.ServeHTTP(w, req)
			}
			if n := testing.AllocsPerRun(10, func() { h.ServeHTTP(w, req) }); n != 0 || w.n < 1000 {
				t.Errorf("%s %s: %v allocations, %d bytes", name, encoding, n, w.n)
			}
		}
	}
}

// A gauge's callback holds the first scrape until all others have started: they share its body.
func TestHandler_OverlappingScrapesShareAPageAndAreLimited(t *testing.T) {
	s := NewSet()
	calls := 0
	entered, hold := make(chan struct{}), make(chan struct{})
	s.NewGauge("g", func() float64 {
		calls++
		if calls == 1 {
			close(entered)
			<-hold
		}
		return float64(calls)
	})
	h := NewHandler(HandlerOptions{Sets: []*Set{s}, MaxRequestsInFlight: 4}).(*handler)
	var wg sync.WaitGroup
	pages := make([]string, 4)
	scrape := func(i int) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			pages[i] = get(h, "", "").Body.String()
		}()
	}
	scrape(0)
	<-entered
	for i := range 3 {
		scrape(1 + i)
	}
	for users := 0; users < 4; {
		h.mu.Lock()
		users = h.running[0].users
		h.mu.Unlock()
	}
	w := get(h, "", "")
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("a fifth scrape: status %d", w.Code)
	}
	close(hold)
	wg.Wait()
	for _, page := range pages {
		check(t, "shared", page, "g 1\n")
	}
	check(t, "later", get(h, "", "").Body.String(), "g 2\n")
	if h.scrapes != 0 || len(h.running) != 0 {
		t.Errorf("%d scrapes, %d pages are left", h.scrapes, len(h.running))
	}
}

func TestHandler_WriteExtraMayFailOrPanic(t *testing.T) {
	s := NewSet()
	s.NewCounter("c_total")
	mode := ""
	h := NewHandler(HandlerOptions{Sets: []*Set{s}, WriteExtra: func(w io.Writer, contentType string) error {
		switch mode {
		case "fail":
			return errors.New("no more")
		case "panic":
			panic("no more")
		}
		_, err := fmt.Fprintln(w, "#", contentType)
		return err
	}}).(*handler)
	check(t, "page", get(h, acceptOpenMetrics, "").Body.String(), "# TYPE c counter\nc_total 0.0\n# application/openmetrics-text; version=1.0.0; charset=utf-8\n# EOF\n")
	mode = "fail"
	if w := get(h, "", "gzip"); w.Code != 500 || w.Header().Get("Content-Encoding") != "" || !strings.Contains(w.Body.String(), "no more") {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
	mode = "panic"
	func() {
		defer func() { _ = recover() }()
		get(h, "", "")
	}()
	mode = ""
	if w := get(h, "", ""); w.Code != 200 || h.scrapes != 0 {
		t.Errorf("after a panic: status %d, %d scrapes left", w.Code, h.scrapes)
	}
}

// Whatever a registered writer writes, OpenMetrics and protobuf stay valid.
func FuzzLines(f *testing.F) {
	f.Add([]byte("# TYPE a histogram\na_bucket{le=\"1\"} 1\na_sum 2\na_count 3\n"), true)
	f.Add([]byte("{\"a b\",c=\"d\"} 1 2\n# HELP a \\n\na{} NaN\na{x=\"\\"), false)
	f.Fuzz(func(t *testing.T, page []byte, protobuf bool) {
		s := NewSet()
		s.RegisterMetricsWriter(func(w io.Writer) { _, _ = w.Write(page) })
		accept := acceptOpenMetrics
		if protobuf {
			accept = acceptProtobuf
		}
		got := get(s.Handler(), accept, "").Body.Bytes()
		if !protobuf && !bytes.HasSuffix(got, []byte("# EOF\n")) {
			t.Errorf("no end in %q", got)
		}
		get(s.Handler(), "text/plain;version=1.0.0;escaping=values", "")
	})
}

func TestHandler_EscapesNamesInEveryScheme(t *testing.T) {
	for _, c := range [][4]string{
		{"http.requests é_total", "http_requests___total", "http_dot_requests______total", "U__http_2e_requests_20__e9___total"},
		{"plain_name", "plain_name", "plain_name", "plain_name"},
		{"9\xff", "__", "____", "U___39__fffd_"},
	} {
		for i, scheme := range []exposition.Scheme{exposition.Underscores, exposition.Dots, exposition.Values} {
			check(t, c[0], string(exposition.AppendEscaped(nil, []byte(c[0]), scheme)), c[1+i])
		}
		check(t, c[0], string(exposition.AppendEscaped(nil, []byte(c[0]), exposition.AllowUTF8)), c[0])
	}
}

func TestWriteProcessMetrics_Families(t *testing.T) {
	var out bytes.Buffer
	WriteProcessMetrics(&out)
	WriteFDMetrics(&out)
	names := []string{
		"go_gc_duration_seconds", "go_gc_duration_seconds_sum", "go_gc_duration_seconds_count", "go_gc_forced_count", "go_gomaxprocs", "go_goroutines", "go_threads", "go_info",
		"go_memstats_alloc_bytes", "go_memstats_heap_inuse_bytes", "go_memstats_sys_bytes",
	}
	if runtime.GOOS == "linux" {
		names = append(names, "process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds", "process_max_fds", "process_start_time_seconds", "process_virtual_memory_bytes")
	}
	for _, name := range names {
		found := false
		for line := range strings.SplitSeq(out.String(), "\n") {
			found = found || strings.HasPrefix(line, name+" ") || strings.HasPrefix(line, name+"{")
		}
		if !found {
			t.Errorf("no sample of %s", name)
		}
	}
	if strings.Contains(out.String(), "go_goroutines 0\n") || strings.Contains(out.String(), "go_threads 0\n") {
		t.Errorf("no goroutines or threads:\n%s", out.String())
	}
}

func TestHandler_WithoutSetsHasTheRegisteredOnes(t *testing.T) {
	s := NewSet()
	s.NewCounter("of_a_registered_set").Inc()
	RegisterSet(s)
	defer UnregisterSet(s, true)
	GetOrCreateCounter("of_the_default_set").Inc()
	defer UnregisterMetric("of_the_default_set")
	for _, accept := range []string{"", "application/openmetrics-text"} {
		page := get(Handler(false), accept, "").Body.String()
		if !strings.Contains(page, "of_a_registered_set") || !strings.Contains(page, "of_the_default_set") {
			t.Errorf("%q:\n%s", accept, page)
		}
	}
}

// marked is a content coding that adds a mark and does not compress.
type marked struct {
	name string
	w    io.Writer
}

func (m *marked) Reset(w io.Writer)           { m.w = w }
func (m *marked) Write(p []byte) (int, error) { return m.w.Write(p) }
func (m *marked) Close() error                { _, err := io.WriteString(m.w, m.name); return err }

func TestHandler_CompressorsPrecedeGzipIfTheRequestAcceptsThem(t *testing.T) {
	s := NewSet()
	s.NewGauge("g", nil)
	made := 0
	compressor := func(name string) Compressor {
		return Compressor{name, func() CompressWriter { made++; return &marked{name: name} }}
	}
	h := NewHandler(HandlerOptions{Sets: []*Set{s}, Compressors: []Compressor{compressor("zstd"), compressor("br")}})
	for accept, want := range map[string]string{
		"zstd": "zstd", "gzip, zstd": "zstd", "br, zstd": "zstd", "zstd;q=0.5, gzip": "gzip", "zstd;q=0, br": "br", "gzip;q=0.1, ZSTD;q=0.2": "zstd",
		"*": "gzip", "": "", "identity": "", "zstd;q=x": "",
	} {
		w := get(h, "", accept)
		if got := w.Header().Get("Content-Encoding"); got != want || w.Header().Get("Vary") != "Accept, Accept-Encoding" {
			t.Errorf("%q: coding %q, want %q", accept, got, want)
		}
		if body := w.Body.String(); want != "gzip" && body != "g 0\n"+want {
			t.Errorf("%q: %q", accept, body)
		}
	}
	if made > 8 && !raceEnabled {
		t.Errorf("%d writers were made", made)
	}
	s.RegisterCollector(func(*Sink) error { return errors.New("no more") })
	if w := get(h, "", "zstd"); w.Code != 500 || w.Header().Get("Content-Encoding") != "" || !strings.Contains(w.Body.String(), "no more") || strings.Contains(w.Body.String(), "zstd") {
		t.Errorf("an error is status %d, %q: %s", w.Code, w.Header().Get("Content-Encoding"), w.Body)
	}
}

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
		resp := try(http.Get(server.URL)).must(t)
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
	resp := try(client.Get(server.URL)).must(t)
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
	c := try(v.TryWith("1", "2")).must(t)
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
