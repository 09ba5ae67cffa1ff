package httpapi_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/prometheus/promql"
)

var encodings = []string{"identity", "gzip", "zstd"}

// stubPair returns a pair of APIs whose engine returns one result for every query.
func stubPair(t testing.TB, result *promql.Result) (pair, *stubEngine) {
	t.Helper()
	p, engine := shared(t).parts(t), &stubEngine{result: result}
	p.engine, p.reference = engine, engine
	return p.pair(), engine
}

// serve starts a server and a client that neither requests nor decodes compression.
func serve(t testing.TB, h http.Handler) (*httptest.Server, *http.Client) {
	t.Helper()
	server := httptest.NewServer(h)
	transport := &http.Transport{DisableCompression: true}
	t.Cleanup(func() { transport.CloseIdleConnections(); server.Close() })
	return server, &http.Client{Transport: transport}
}

func get(t testing.TB, client *http.Client, server *httptest.Server, a request, encoding string) (*http.Response, []byte, error) {
	t.Helper()
	return getAs(t, client, server.URL, a, encoding, "")
}

// getAs is get with a header Accept, unless it is empty.
func getAs(t testing.TB, client *http.Client, server string, a request, encoding, accept string) (*http.Response, []byte, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server+prefix+a.path+"?"+a.form.Encode(), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"Accept-Encoding": encoding, "Accept": accept} {
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	res, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := decoded(res)
	return res, body, err
}

func decoded(res *http.Response) ([]byte, error) {
	switch res.Header.Get("Content-Encoding") {
	case "gzip":
		z, err := gzip.NewReader(res.Body)
		if err != nil {
			return nil, err
		}
		return io.ReadAll(z)
	case "zstd":
		z, err := zstd.NewReader(res.Body, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		defer z.Close()
		return io.ReadAll(z)
	default:
		return io.ReadAll(res.Body)
	}
}

func TestAPI_ResponseLargerThanTheBufferIsComplete(t *testing.T) {
	const seriesCount, points = 120, 1100
	m := matrix(seriesCount, points)
	for name, value := range map[string]*promql.Result{
		"matrix": {Value: m}, "one long series": {Value: matrix(1, 11_000)}, "vector": {Value: vectorOf(matrix(30_000, 1))}, "string": {Value: promql.String{T: 5, V: strings.Repeat("<&>\"", 200_000)}},
	} {
		p, engine := stubPair(t, value)
		server, client := serve(t, p.ours)
		a := rangeRequest(points)
		want := send(p.oracle, a.request(t)).body
		if len(want) < 300_000 {
			t.Fatalf("%s: %d bytes are not a large response", name, len(want))
		}
		for _, encoding := range encodings {
			res, body, err := get(t, client, server, a, encoding)
			if err != nil || res.StatusCode != http.StatusOK || string(body) != want {
				t.Errorf("%s, %s: status %d, %d bytes, want %d; %v", name, encoding, res.StatusCode, len(body), len(want), err)
			}
			if sent := res.Header.Get("Content-Encoding"); sent != encoding && encoding != "identity" {
				t.Errorf("%s: requested %s, got %q", name, encoding, sent)
			}
		}
		if engine.opened.Load() != 0 {
			t.Errorf("%s: %d queries are not closed", name, engine.opened.Load())
		}
	}
}

func TestAPI_LargeListIsComplete(t *testing.T) {
	both, now := failingPair(t)
	now.failing = failing{count: 20_000}
	server, client := serve(t, both.ours)
	for _, a := range []request{{path: "/series", form: form("match[]", "x")}, {path: "/series", form: form("match[]", "x", "limit", "19999")}, {path: "/series", form: form("match[]", "x", "match[]", "y")}} {
		want := send(both.oracle, a.request(t)).body
		for _, encoding := range encodings {
			if _, body, err := get(t, client, server, a, encoding); err != nil || string(body) != want {
				t.Errorf("%s, %s: %d bytes, want %d; %v", a, encoding, len(body), len(want), err)
			}
		}
	}
}

func TestAPI_SmallResponseHasContentLength(t *testing.T) {
	server, client := serve(t, shared(t).pairs["default"].ours)
	for _, a := range []request{{path: "/query", form: form("query", "1", "time", "5")}, {path: "/query", form: form("query", "nothing")}, {path: "/query", form: form("query", "{")}, {path: "/labels"}, {path: "/status/buildinfo"}} {
		for _, encoding := range append(encodings, "") {
			res, body, err := get(t, client, server, a, encoding)
			if err != nil || res.ContentLength <= 0 || len(res.TransferEncoding) != 0 {
				t.Errorf("%s, %s: length %d, transfer encoding %q; %v", a, encoding, res.ContentLength, res.TransferEncoding, err)
			}
			if small := len(body) < 500; small && (res.Header.Get("Content-Encoding") != "" || res.ContentLength != int64(len(body))) {
				t.Errorf("%s, %s: %d bytes are sent as %q with length %d", a, encoding, len(body), res.Header.Get("Content-Encoding"), res.ContentLength)
			}
		}
	}
}

func TestAPI_AcceptEncodingSelectsTheEncoding(t *testing.T) {
	h := shared(t).pairs["default"].ours
	for _, tt := range []struct {
		headers []string
		want    string
	}{
		{nil, ""}, {[]string{""}, ""}, {[]string{"identity"}, ""}, {[]string{"gzip"}, "gzip"}, {[]string{"zstd"}, "zstd"}, {[]string{"gzip, zstd"}, "zstd"}, {[]string{"GZip"}, "gzip"},
		{[]string{"gzip;q=0"}, ""}, {[]string{"gzip;q=0.0, zstd;q=0"}, ""}, {[]string{"zstd;q=0, gzip"}, "gzip"}, {[]string{"zstd;q=0.1, gzip;q=0.9"}, "gzip"}, {[]string{"zstd;q=0.9, gzip;q=0.1"}, "zstd"}, {[]string{"gzip;q=0.5, zstd;q=0.5"}, "zstd"},
		{[]string{"br, deflate, compress"}, ""}, {[]string{"br;q=1, gzip;q=0.001"}, "gzip"}, {[]string{"*"}, ""}, {[]string{"x-gzip"}, ""}, {[]string{"gzipp"}, ""}, {[]string{"gzip", "zstd"}, "zstd"}, {[]string{"br", "deflate, gzip"}, "gzip"}, {[]string{"gzip;q=0", "gzip"}, "gzip"},
		{[]string{" gzip ; q = 1 "}, "gzip"}, {[]string{"gzip;q=2"}, "gzip"}, {[]string{"gzip;q=-1"}, "gzip"}, {[]string{"gzip;q=NaN"}, "gzip"}, {[]string{"gzip;x=y;q=0"}, ""}, {[]string{",,;,gzip,;q=0"}, "gzip"}, {[]string{strings.Repeat(",", 1<<16) + "zstd"}, "zstd"},
	} {
		got := send(h, request{path: "/query", form: form("query", "many", "time", "600"), header: http.Header{"Accept-Encoding": tt.headers}}.request(t))
		if encoding := got.header.Get("Content-Encoding"); encoding != tt.want || !contains(got.header.Values("Vary"), "Accept-Encoding") {
			t.Errorf("%s: sent as %q, want %q; Vary %q", clip(strings.Join(tt.headers, " | ")), encoding, tt.want, got.header.Values("Vary"))
		}
		res := &http.Response{Header: got.header, Body: io.NopCloser(strings.NewReader(got.body))}
		if body, err := decoded(res); err != nil || !strings.HasSuffix(string(body), `"]}]}}`) {
			t.Errorf("%q: %s, %v", tt.headers, clip(string(body)), err)
		}
	}
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

func TestAPI_StorageErrorBeforeTheFirstBytesIsAnErrorResponse(t *testing.T) {
	both, now := failingPair(t)
	now.failing = failing{count: 1000, selected: errors.New("the disk is gone")}
	server, client := serve(t, both.ours)
	for _, encoding := range encodings {
		res, body, err := get(t, client, server, request{path: "/series", form: form("match[]", "x")}, encoding)
		if want := `{"status":"error","errorType":"execution","error":"the disk is gone"}`; err != nil || res.StatusCode != http.StatusUnprocessableEntity || string(body) != want {
			t.Errorf("%s: got %d %s, %v", encoding, res.StatusCode, clip(string(body)), err)
		}
	}
}

func TestAPI_StorageErrorAfterTheFirstBytesAbortsTheConnection(t *testing.T) {
	both, now := failingPair(t)
	now.failing = failing{count: 30_000, selected: errors.New("the disk is gone")}
	server, client := serve(t, both.ours)
	for _, encoding := range encodings {
		for _, a := range []request{{path: "/series", form: form("match[]", "x")}, {path: "/series", form: form("match[]", "x", "match[]", "y")}} {
			res, body, err := get(t, client, server, a, encoding)
			if !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%s, %s: %d and %d bytes end with %v", a, encoding, res.StatusCode, len(body), err)
			}
		}
	}
	// The next response is complete: the pool contains nothing of the failed one.
	now.failing = failing{count: 2}
	for _, encoding := range encodings {
		_, body, err := get(t, client, server, request{path: "/series", form: form("match[]", "x")}, encoding)
		if want := `{"status":"success","data":[{"__name__":"made_up","i":"00000000"},{"__name__":"made_up","i":"00000001"}]}`; err != nil || string(body) != want {
			t.Errorf("%s: got %s, %v", encoding, clip(string(body)), err)
		}
	}
}

func TestAPI_DisconnectedClientEndsTheResponse(t *testing.T) {
	p, engine := stubPair(t, &promql.Result{Value: matrix(400, 2000)}) // about 25 MB, more than socket buffers hold
	var running atomic.Int64
	ended := make(chan struct{}, 10)
	server, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		running.Add(1)
		defer func() { running.Add(-1); ended <- struct{}{} }()
		p.ours.ServeHTTP(w, r)
	}))
	for _, encoding := range encodings {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(conn, "GET %s%s?%s HTTP/1.1\r\nHost: x\r\nAccept-Encoding: %s\r\n\r\n", prefix, "/query_range", rangeRequest(2000).form.Encode(), encoding); err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReaderSize(conn, 100).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: the handler does not return", encoding)
		}
	}
	if running.Load() != 0 || engine.opened.Load() != 0 || engine.closed.Load() != int64(len(encodings)) {
		t.Errorf("%d handlers run, %d queries are open, Close was called %d times", running.Load(), engine.opened.Load(), engine.closed.Load())
	}
}

// stuckWriter accepts some bytes and then fails.
type stuckWriter struct {
	header      http.Header
	left, after int
	largest     int
	total       int64
}

func (w *stuckWriter) Header() http.Header { return w.header }
func (w *stuckWriter) WriteHeader(int)     {}
func (w *stuckWriter) Write(p []byte) (int, error) {
	w.largest, w.total = max(w.largest, len(p)), w.total+int64(len(p))
	if w.left -= len(p); w.left < 0 {
		w.after++
		return 0, errors.New("gone")
	}
	return len(p), nil
}

func TestAPI_NoWriteAfterAFailedWrite(t *testing.T) {
	p, engine := stubPair(t, &promql.Result{Value: matrix(500, 2000)})
	for _, r := range []request{rangeRequest(2000), asColumns(rangeRequest(2000))} {
		for _, left := range []int{0, 1, 300_000, 3_000_000} {
			w := &stuckWriter{header: http.Header{}, left: left}
			func() {
				defer func() {
					if cause := recover(); cause != http.ErrAbortHandler {
						t.Errorf("after %d bytes: the handler ends with %v, want an abort", left, cause)
					}
				}()
				p.ours.ServeHTTP(w, r.request(t))
			}()
			if w.after != 1 || engine.opened.Load() != 0 {
				t.Errorf("after %d bytes: %d further writes, %d open queries", left, w.after-1, engine.opened.Load())
			}
		}
	}
}

// discard is a client that reads and discards the response.
type discard struct{ stuckWriter }

func newDiscard() *discard { return &discard{stuckWriter{header: http.Header{}, left: 1 << 62}} }

func TestAPI_LargeResponseIsNotHeldInMemory(t *testing.T) {
	const seriesCount, points, allowedBytes = 1000, 1500, 2 << 20
	p, _ := stubPair(t, &promql.Result{Value: matrix(seriesCount, points)})
	for _, c := range []struct {
		form        string
		request     request
		least, most int64 // bytes of the response
	}{
		{"JSON", rangeRequest(points), 45 << 20, 1 << 40},
		{"columns, 8 bytes a sample", asColumns(rangeRequest(points)), 12_000_000, 13_200_000},
	} {
		r := c.request.request(t)
		p.ours.ServeHTTP(newDiscard(), r) // fills the pools
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		w := newDiscard()
		p.ours.ServeHTTP(w, r)
		runtime.ReadMemStats(&after)
		allocated, objects := after.TotalAlloc-before.TotalAlloc, after.Mallocs-before.Mallocs
		if n := int64(w.total); n < c.least || n > c.most {
			t.Errorf("%s: %d bytes in the response", c.form, n)
		}
		if allocated > allowedBytes || objects > seriesCount || w.largest > 1<<20 {
			t.Errorf("%s: %d bytes are allocated in %d objects, %d bytes are written at once", c.form, allocated, objects, w.largest)
		}
	}
}

func TestAPI_PointsAreNotReadAfterTheQueryIsClosed(t *testing.T) {
	m := matrix(30, 1000)
	p, engine := stubPair(t, &promql.Result{Value: m})
	want := send(p.oracle, rangeRequest(1000).request(t)).body
	engine.atEnd = func() {
		for i := range m {
			clear(m[i].Floats)
		}
	}
	if got := send(p.ours, rangeRequest(1000).request(t)).body; got != want {
		t.Error("the response differs from that of points which are not cleared")
	}
}

func TestAPI_LabelValuesAreNotReadAfterTheQuerierIsClosed(t *testing.T) {
	both, now := failingPair(t)
	for _, a := range []request{{path: "/labels"}, {path: "/label/x/values"}, {path: "/label/x/values", form: form("match[]", "x", "match[]", "y")}} {
		memory := make([]byte, 0, 1<<20)
		var list []string
		for i := range 10_000 {
			memory = append(memory, "value"+strconv.Itoa(100_000+i)...)
			list = append(list, unsafe.String(&memory[len(memory)-11], 11))
		}
		var closed int
		now.failing = failing{list: list, closed: func() { closed++; clear(memory) }}
		got := send(both.ours, a.request(t))
		if strings.Count(got.body, "value1") != len(list) || closed != 1 {
			t.Errorf("%s: %s; closed %d times", a, got, closed)
		}
	}
}
