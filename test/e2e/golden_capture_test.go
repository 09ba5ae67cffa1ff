package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"

	"github.com/ferula-io/ferula/test/chunksample"
)

// Golden bytes of StoreAPI and remote read are exchanges between real peers over
// goldenSeries. Golden bytes of profiles are requests of real SDKs, and this server's
// responses. `make golden` captures them again into testdata/golden.
var captureGolden = flag.Bool("golden", false, "write the captured exchanges to testdata/golden")

const goldenStart = 1735689600000 // 2025-01-01T00:00:00Z

// exchange is a request and the messages of its response, as they are on the wire, without
// the framing of gRPC and HTTP.
type exchange struct {
	Peers     string   // which programs, client first
	Method    string   // of gRPC, or method and path of HTTP
	Header    []string `json:",omitempty"` // of the request: content type, encoding and version
	Request   []byte
	Responses [][]byte
}

// goldenSeries are a counter of two instances with several chunks, a series with a label of
// the same name as an external one, and a native histogram.
func goldenSeries() []storage.Series {
	floats := func(n int, of func(i int) float64, pairs ...string) storage.Series {
		var points []chunks.Sample
		for i := range n {
			points = append(points, chunksample.Float{MS: goldenStart + int64(i)*15_000, Value: of(i)})
		}
		return storage.NewListSeries(labels.FromStrings(pairs...), points)
	}
	var histograms []chunks.Sample
	for i := range 3 {
		histograms = append(histograms, histogramSample{goldenStart + int64(i)*60_000, tsdbutil.GenerateTestHistogram(int64(i))})
	}
	return []storage.Series{
		storage.NewListSeries(labels.FromStrings("__name__", "golden_latency", "job", "a"), histograms),
		floats(3, func(i int) float64 { return -0.5 * float64(i+1) }, "__name__", "golden_own", "cluster", "own", "job", "a"),
		floats(250, func(i int) float64 { return float64(3 * i) }, "__name__", "golden_total", "instance", "i0", "job", "a"),
		floats(130, func(i int) float64 { return float64(i) / 7 }, "__name__", "golden_total", "instance", "i1", "job", "a"),
	}
}

type histogramSample struct {
	t int64
	h *histogram.Histogram
}

func (s histogramSample) T() int64                      { return s.t }
func (s histogramSample) ST() int64                     { return 0 }
func (s histogramSample) F() float64                    { return 0 }
func (s histogramSample) H() *histogram.Histogram       { return s.h }
func (s histogramSample) FH() *histogram.FloatHistogram { return nil }
func (s histogramSample) Type() chunkenc.ValueType      { return chunkenc.ValHistogram }
func (s histogramSample) Copy() chunks.Sample           { return s }

// goldenDir is a database's directory with one block of goldenSeries.
func goldenDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := tsdb.CreateBlock(goldenSeries(), dir, twoHours.Milliseconds(), slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func goldenPath(name string) string { return filepath.Join("testdata", "golden", name+".json") }

func readGolden(t *testing.T, name string) exchange {
	t.Helper()
	text, err := os.ReadFile(goldenPath(name))
	if err != nil {
		t.Fatal(err)
	}
	var e exchange
	if err := json.Unmarshal(text, &e); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return e
}

func writeGolden(t *testing.T, name string, e exchange) {
	t.Helper()
	text, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(goldenPath(name), append(text, '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
}

// checkCaptured compares an exchange with the committed one, or writes it.
func checkCaptured(t *testing.T, name string, e exchange) {
	t.Helper()
	if *captureGolden {
		writeGolden(t, name, e)
		return
	}
	want := readGolden(t, name)
	if e.Method != want.Method || strings.Join(e.Header, "\n") != strings.Join(want.Header, "\n") || !bytes.Equal(e.Request, want.Request) {
		t.Errorf("%s: request %s %q %x, committed %s %q %x", name, e.Method, e.Header, e.Request, want.Method, want.Header, want.Request)
	}
	if fmt.Sprintf("%x", e.Responses) != fmt.Sprintf("%x", want.Responses) {
		t.Errorf("%s: responses\n%.600x, committed\n%.600x", name, e.Responses, want.Responses)
	}
}

// wireCodec passes messages as bytes.
type wireCodec struct{}

func (wireCodec) Name() string { return "proto" }
func (wireCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (wireCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// grpcRecorder forwards every method to a server, and keeps the last exchange of each.
type grpcRecorder struct {
	address string
	mu      sync.Mutex
	last    map[string]exchange
}

func (r *grpcRecorder) exchange(t *testing.T, method string) exchange {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	e, ok := r.last[method]
	if !ok {
		t.Fatalf("no exchange of %s was recorded", method)
	}
	return e
}

// serveWire runs a gRPC server whose handler gets and sends bytes.
func serveWire(t *testing.T, handle func(method string, request []byte, send func([]byte) error) error) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.ForceServerCodecV2(wireCodec{}), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(stream)
		var request []byte
		if err := stream.RecvMsg(&request); err != nil {
			return err
		}
		return handle(method, request, func(b []byte) error { return stream.SendMsg(&b) })
	}))
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

// callWire sends a request as bytes, and returns the messages of the response.
func callWire(ctx context.Context, conn *grpc.ClientConn, method string, request []byte) (responses [][]byte, err error) {
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method, grpc.ForceCodecV2(wireCodec{}))
	if err != nil {
		return nil, err
	}
	if err := errors.Join(stream.SendMsg(&request), stream.CloseSend()); err != nil {
		return nil, err
	}
	for {
		var b []byte
		if err := stream.RecvMsg(&b); errors.Is(err, io.EOF) {
			return responses, nil
		} else if err != nil {
			return responses, err
		}
		responses = append(responses, b)
	}
}

func recordGRPC(t *testing.T, server string) *grpcRecorder {
	t.Helper()
	conn, err := grpc.NewClient(server, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	r := &grpcRecorder{last: map[string]exchange{}}
	r.address = serveWire(t, func(method string, request []byte, send func([]byte) error) error {
		responses, err := callWire(t.Context(), conn, method, request)
		if err != nil {
			return err
		}
		r.mu.Lock()
		r.last[method] = exchange{Method: method, Request: request, Responses: responses}
		r.mu.Unlock()
		for _, b := range responses {
			if err := send(b); err != nil {
				return err
			}
		}
		return nil
	})
	return r
}

// recordHTTP forwards requests to a server and passes each exchange to record.
func recordHTTP(t *testing.T, server string, record func(exchange)) (base string) {
	t.Helper()
	target, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		e := exchange{Method: r.Method + " " + r.URL.RequestURI(), Request: request}
		for _, name := range []string{"Content-Type", "Content-Encoding", "X-Prometheus-Remote-Read-Version"} {
			if v := r.Header.Get(name); v != "" {
				e.Header = append(e.Header, name+": "+v)
			}
		}
		out := r.Clone(r.Context())
		out.RequestURI, out.URL.Scheme, out.URL.Host, out.Host = "", target.Scheme, target.Host, target.Host
		out.Body = io.NopCloser(bytes.NewReader(request))
		resp, err := http.DefaultTransport.RoundTrip(out)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(err)
		}
		e.Responses = [][]byte{body}
		record(e)
		for _, name := range []string{"Content-Type", "Content-Encoding"} {
			w.Header().Set(name, resp.Header.Get(name))
		}
		w.WriteHeader(resp.StatusCode)
		_, _ = w.Write(body)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// goldenRange contains goldenSeries, in seconds.
func goldenRange() (start, end int64) { return goldenStart / 1000, goldenStart/1000 + 5400 }

func TestPeerThanos_GoldenStoreAPIExchanges(t *testing.T) {
	prom := startPrometheusForSidecar(t, goldenDir(t))
	recorder := recordGRPC(t, thanosSidecar(t, prom))
	query := thanosQuery(t, []string{recorder.address}, "--query.replica-label=replica")
	start, end := goldenRange()
	span := fmt.Sprintf("&start=%d&end=%d", start, end)
	for _, tt := range []struct{ name, method, path string }{
		{"storeapi_info", "/thanos.info.Info/Info", "/api/v1/stores?"},
		{"storeapi_label_names", "/thanos.Store/LabelNames", "/api/v1/labels?match[]={job=\"a\"}" + span},
		{"storeapi_label_values", "/thanos.Store/LabelValues", "/api/v1/label/__name__/values?" + span},
		{"storeapi_series", "/thanos.Store/Series", "/api/v1/query_range?query={__name__=~\"golden_.%2B\",job=\"a\"}&step=60&dedup=false" + span},
		{"storeapi_series_dedup", "/thanos.Store/Series", "/api/v1/query_range?query=sum(golden_total)&step=60&dedup=true" + span},
		{"storeapi_series_labels", "/thanos.Store/Series", "/api/v1/series?match[]={__name__=~\"golden_.%2B\"}" + span},
	} {
		if status, body := query.get(tt.path); status != http.StatusOK {
			t.Fatalf("%s: %d %s", tt.path, status, body)
		}
		e := recorder.exchange(t, tt.method)
		e.Peers = "Thanos 0.42.4 query, sidecar of Prometheus 3.15.0"
		checkCaptured(t, tt.name, e)
	}
}

func TestPeerPrometheus_GoldenRemoteReadExchanges(t *testing.T) {
	prom := startPrometheusForSidecar(t, goldenDir(t))
	var last exchange
	recorded := &server{t: t, base: recordHTTP(t, prom.base, func(e exchange) { last = e })}
	matcher := labels.MustNewMatcher(labels.MatchRegexp, "__name__", "golden_.+")
	start, end := goldenRange()
	for name, form := range map[string]prompb.ReadRequest_ResponseType{
		"remoteread_samples": prompb.ReadRequest_SAMPLES, "remoteread_chunks": prompb.ReadRequest_STREAMED_XOR_CHUNKS,
	} {
		recorded.remoteRead(form, start*1000, end*1000, matcher)
		last.Peers = "Prometheus 3.15.0, client and server"
		checkCaptured(t, name, last)
	}
}
