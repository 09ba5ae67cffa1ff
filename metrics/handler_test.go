package metrics

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

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
			page, err := io.ReadAll(body)
			if err != nil {
				t.Fatal(err)
			}
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
		req, err := http.NewRequest(method, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", accept)
		req.Header.Set("Accept-Encoding", coding)
		if resp, err = client.Do(req); err != nil {
			t.Fatal(err)
		}
		body, err = io.ReadAll(resp.Body)
		if _ = resp.Body.Close(); err != nil {
			t.Fatal(err)
		}
		return resp, body
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
