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
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/snappy"
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
	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
	"github.com/ferula-io/ferula/internal/remoteread"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/internal/thanos/storepb"
	pb "github.com/ferula-io/ferula/internal/thanos/storepb/thanospb"
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
	try(tsdb.CreateBlock(goldenSeries(), dir, twoHours.Milliseconds(), slog.New(slog.DiscardHandler))).must(t)
	return dir
}

func goldenPath(name string) string { return filepath.Join("testdata", "golden", name+".json") }

func readGolden(t *testing.T, name string) exchange {
	t.Helper()
	text := try(os.ReadFile(goldenPath(name))).must(t)
	var e exchange
	if err := json.Unmarshal(text, &e); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return e
}

func writeGolden(t *testing.T, name string, e exchange) {
	t.Helper()
	text := try(json.MarshalIndent(e, "", "  ")).must(t)
	noError(t, os.WriteFile(goldenPath(name), append(text, '\n'), 0o600))
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
	l := try(net.Listen("tcp", "127.0.0.1:0")).must(t)
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
	conn := try(grpc.NewClient(server, grpc.WithTransportCredentials(insecure.NewCredentials()))).must(t)
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
	target := try(url.Parse(server)).must(t)
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
	dir := goldenDir(t)
	prom := startPrometheusForSidecar(t, dir)
	recorder := recordGRPC(t, thanosSidecar(t, prom, dir))
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
		query.expect(tt.path, http.StatusOK)
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

// goldenServe runs a server over goldenSeries with the external labels of the peers.
func goldenServe(t *testing.T) *server {
	t.Helper()
	dir := goldenDir(t)
	s, address := grpcServe(t, "global: {external_labels: {cluster: eu, replica: r1}}\nscrape_configs: []\n", func(o *app.ServeOptions) {
		o.Store.Dir, o.Store.Retention = dir, -1
	})
	s.grpc = address
	return s
}

// goldenLines are the known samples, a line per series.
func goldenLines(t *testing.T, external ...string) (lines []string) {
	t.Helper()
	for _, s := range goldenSeries() {
		b := labels.NewBuilder(s.Labels())
		for i := 0; i < len(external); i += 2 {
			b.Set(external[i], external[i+1])
		}
		lines = append(lines, b.Labels().String()+samplesText(s.Iterator(nil)))
	}
	return lines
}

func wireConn(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn := try(grpc.NewClient(address, append(storeapi.GRPCDialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)).must(t)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// wireSeries returns the series of StoreAPI responses as bytes, and the number of warnings
// and hints.
func wireSeries(t *testing.T, responses [][]byte) (series [][]byte, others int) {
	t.Helper()
	for _, r := range responses {
		kind, body, err := storepb.DecodeResponse(r)
		if err != nil {
			t.Fatal(err)
		}
		switch kind {
		case storepb.OneSeries:
			series = append(series, body)
		case storepb.Batch:
			for len(body) > 0 {
				var one []byte
				if one, body, err = storepb.NextSeries(body); err != nil {
					t.Fatal(err)
				}
				series = append(series, one)
			}
		default:
			others++
		}
	}
	return series, others
}

var goldenStoreAPI = []string{"storeapi_info", "storeapi_label_names", "storeapi_label_values", "storeapi_series", "storeapi_series_dedup", "storeapi_series_labels"}

// The responses of serve are those of a Thanos sidecar, byte by byte, with these exceptions:
//   - ferula sends series in a batch where the querier allows it, the sidecar one in a message;
//   - the sidecar hashes chunks, which no querier reads of a raw one;
//   - the sidecar repeats the name of an external label that series have themselves;
//   - serve offers no rules, targets, metadata and status over gRPC;
//   - the sidecar's exemplars have no time range.
func TestGolden_StoreAPIResponsesEqualThoseOfThanos(t *testing.T) {
	conn := wireConn(t, goldenServe(t).grpc)
	for _, name := range goldenStoreAPI {
		e := readGolden(t, name)
		got, err := callWire(t.Context(), conn, e.Method, e.Request)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		switch {
		case strings.HasPrefix(name, "storeapi_series"):
			mine, others := wireSeries(t, got)
			theirs, theirOthers := wireSeries(t, e.Responses)
			if len(theirs) == 0 || len(mine) != len(theirs) || others != theirOthers {
				t.Fatalf("%s: %d series, %d others; Thanos %d series, %d others", name, len(mine), others, len(theirs), theirOthers)
			}
			for i := range mine {
				if want := withoutHashes(t, theirs[i]); !bytes.Equal(mine[i], want) {
					t.Errorf("%s: series %d\n%.600x\nThanos\n%.600x", name, i, mine[i], want)
				}
			}
		case name == "storeapi_info":
			var mine, theirs pb.InfoResponse
			noError(t, unmarshalAll(got[0], &mine))
			noError(t, unmarshalAll(e.Responses[0], &theirs))
			if theirs.Rules == nil || theirs.Targets == nil || theirs.MetricMetadata == nil {
				t.Errorf("Thanos' info %v", &theirs)
			}
			theirs.Rules, theirs.Targets, theirs.MetricMetadata = nil, nil, nil
			mine.Rules = nil // serve's own; the captured sidecar's are those of its Prometheus
			own := try(proto.Marshal(&mine)).must(t)
			theirs.Exemplars.MinTime, theirs.Exemplars.MaxTime = mine.Exemplars.MinTime, mine.Exemplars.MaxTime
			if want, err := proto.Marshal(&theirs); err != nil || !bytes.Equal(own, want) {
				t.Errorf("info %v\nThanos %v", &mine, &theirs)
			}
		case name == "storeapi_label_names":
			twice := []byte("\x0a\x07cluster\x0a\x07cluster")
			if want := bytes.Replace(e.Responses[0], twice, twice[:9], 1); !bytes.Equal(got[0], want) || bytes.Equal(want, e.Responses[0]) {
				t.Errorf("%s: %q\nThanos %q", name, got, e.Responses)
			}
		default:
			if !reflect.DeepEqual(got, e.Responses) {
				t.Errorf("%s: %q\nThanos %q", name, got, e.Responses)
			}
		}
	}
}

// withoutHashes returns a series without the hashes of its chunks, which must be right.
func withoutHashes(t *testing.T, src []byte) []byte {
	t.Helper()
	var s pb.Series
	noError(t, unmarshalAll(src, &s))
	for _, c := range s.Chunks {
		if c.Raw == nil || c.Raw.Hash != xxhash.Sum64(c.Raw.Data) {
			t.Errorf("chunk %v", c)
			continue
		}
		c.Raw.Hash = 0
	}
	out := try(proto.Marshal(&s)).must(t)
	return out
}

// unmarshalAll fails for fields that the message does not define.
func unmarshalAll(src []byte, m proto.Message) error {
	if err := proto.Unmarshal(src, m); err != nil {
		return err
	}
	if unknown := m.ProtoReflect().GetUnknown(); len(unknown) > 0 {
		return fmt.Errorf("unknown fields %x", unknown)
	}
	return nil
}

// The messages of requests define every field that a Thanos querier sends, and encode to its
// bytes.
func TestGolden_StoreAPIRequestsAreUnderstood(t *testing.T) {
	for _, name := range goldenStoreAPI {
		e := readGolden(t, name)
		m := map[string]proto.Message{
			"/thanos.info.Info/Info": &pb.InfoRequest{}, "/thanos.Store/Series": &pb.SeriesRequest{},
			"/thanos.Store/LabelNames": &pb.LabelNamesRequest{}, "/thanos.Store/LabelValues": &pb.LabelValuesRequest{},
		}[e.Method]
		if err := unmarshalAll(e.Request, m); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if again, err := (proto.MarshalOptions{Deterministic: true}).Marshal(m); err != nil || !bytes.Equal(again, e.Request) {
			t.Errorf("%s: %v is %x, Thanos %x, %v", name, m, again, e.Request, err)
		}
	}
}

// replayStoreAPI runs a server that sends golden responses.
func replayStoreAPI(t *testing.T, names ...string) *storeapi.Client {
	t.Helper()
	responses := map[string][][]byte{}
	for _, name := range names {
		e := readGolden(t, name)
		responses[e.Method] = e.Responses
	}
	address := serveWire(t, func(method string, _ []byte, send func([]byte) error) error {
		for _, b := range responses[method] {
			if err := send(b); err != nil {
				return err
			}
		}
		return nil
	})
	return storeapi.NewClient(wireConn(t, address), storeapi.ClientOptions{})
}

func TestGolden_ClientReadsStoreAPIResponsesOfThanos(t *testing.T) {
	client, ctx := replayStoreAPI(t, goldenStoreAPI[:4]...), context.Background()
	info, err := client.Info(ctx)
	if err != nil || info.Component != "sidecar" || info.Store == nil || info.Store.MinMS > goldenStart || len(info.LabelSets) != 1 || info.LabelSets[0].String() != `{cluster="eu", replica="r1"}` {
		t.Errorf("%+v %+v, %v", info, info.Store, err)
	}
	names, warnings, err := client.LabelNames(ctx, storeapi.LabelsRequest{})
	if err != nil || len(warnings) > 0 || !slices.Equal(slices.Compact(names), []string{"__name__", "cluster", "instance", "job", "replica"}) {
		t.Error(names, warnings, err)
	}
	values, warnings, err := client.LabelValues(ctx, storeapi.LabelsRequest{Label: "__name__"})
	if err != nil || len(warnings) > 0 || !slices.Equal(values, []string{"golden_latency", "golden_own", "golden_total"}) {
		t.Error(values, warnings, err)
	}
	set := client.Series(ctx, storeapi.SeriesRequest{MinMS: goldenStart, MaxMS: goldenStart + 5400_000})
	defer set.Close()
	var lines []string
	builder := labels.NewScratchBuilder(8)
	for set.Next() {
		lset := try(labelenc.Labels(set.Labels(), &builder)).must(t)
		line := lset.String()
		for _, c := range set.Chunks() {
			chunk := try(chunkenc.FromData(c.Encoding, slices.Clone(c.Data))).must(t)
			line += samplesText(chunk.Iterator(nil))
		}
		lines = append(lines, line)
	}
	if want := goldenLines(t, "cluster", "eu", "replica", "r1"); set.Err() != nil || !slices.Equal(lines, want) {
		t.Errorf("%v\n%.2000s\nwant\n%.2000s", set.Err(), strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}

var goldenRemoteRead = []string{"remoteread_chunks", "remoteread_samples"}

// The responses of serve are those of Prometheus, byte by byte, except that of samples:
//   - they are compared decompressed, for there is more than one way to compress;
//   - ferula encodes a value of zero, which Prometheus omits.
func TestGolden_RemoteReadResponsesEqualThoseOfPrometheus(t *testing.T) {
	s := goldenServe(t)
	for _, name := range goldenRemoteRead {
		e := readGolden(t, name)
		body, want := s.replay(e), e.Responses[0]
		if name == "remoteread_samples" {
			body, want = withoutZeros(t, unsnappy(t, body)), unsnappy(t, want)
		}
		if len(want) < 500 || !bytes.Equal(body, want) {
			t.Errorf("%s: %.600x\nPrometheus %.600x", name, body, want)
		}
	}
}

// withoutZeros encodes a response as Prometheus does.
func withoutZeros(t *testing.T, src []byte) []byte {
	t.Helper()
	var m prompb.ReadResponse
	noError(t, m.Unmarshal(src))
	out := try(m.Marshal()).must(t)
	return out
}

func unsnappy(t *testing.T, b []byte) []byte {
	t.Helper()
	out := try(snappy.Decode(nil, b)).must(t)
	return out
}

func TestGolden_RemoteReadRequestsAreUnderstood(t *testing.T) {
	for _, name := range goldenRemoteRead {
		raw := unsnappy(t, readGolden(t, name).Request)
		request := try(remoteread.DecodeRequest(raw)).must(t)
		want := &prompb.Query{StartTimestampMs: goldenStart, EndTimestampMs: goldenStart + 5400_000, Matchers: []*prompb.LabelMatcher{{Type: prompb.LabelMatcher_RE, Name: "__name__", Value: "golden_.+"}}}
		if len(request.Queries) != 1 || !reflect.DeepEqual(request.Queries[0], want) {
			t.Errorf("%s: %+v", name, request)
		}
		if again, err := request.Marshal(); err != nil || !bytes.Equal(again, raw) {
			t.Errorf("%s: encoded %x, Prometheus %x, %v", name, again, raw, err)
		}
	}
}

func TestGolden_ClientReadsRemoteReadResponsesOfPrometheus(t *testing.T) {
	want := goldenLines(t, "replica", "r1")
	for i, s := range goldenSeries() {
		if s.Labels().Get("cluster") == "" {
			want[i] = labels.NewBuilder(s.Labels()).Set("cluster", "eu").Set("replica", "r1").Labels().String() + samplesText(s.Iterator(nil))
		}
	}
	for _, name := range goldenRemoteRead {
		e := readGolden(t, name)
		replay := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if name == "remoteread_samples" {
				w.Header().Set("Content-Type", "application/x-protobuf")
				w.Header().Set("Content-Encoding", "snappy")
			} else {
				w.Header().Set("Content-Type", "application/x-streamed-protobuf; proto=prometheus.ChunkedReadResponse")
			}
			_, _ = w.Write(e.Responses[0])
		}))
		defer replay.Close()
		client := remoteread.NewClient(remoteread.ClientOptions{URL: replay.URL})
		q := try(client.RawQuerier(t.Context(), goldenStart, goldenStart+5400_000)).must(t)
		set := series.ToSeriesSet(q.Select(t.Context(), series.SelectOptions{}, labels.MustNewMatcher(labels.MatchRegexp, "__name__", "golden_.+")))
		var lines []string
		for set.Next() {
			it := set.At().Iterator(nil)
			lines = append(lines, set.At().Labels().String()+samplesText(it))
			if it.Err() != nil {
				t.Fatal(it.Err())
			}
		}
		slices.Sort(lines)
		slices.Sort(want)
		if set.Err() != nil || !slices.Equal(lines, want) {
			t.Errorf("%s: %v\n%.2000s\nwant\n%.2000s", name, set.Err(), strings.Join(lines, "\n"), strings.Join(want, "\n"))
		}
		noError(t, q.Close())
	}
}

// goldenClients are the SDKs whose pushes are kept, and the number of requests of each.
var goldenClients = []struct {
	name, peers string
	keep        int
}{
	{"go", "pyroscope-go", 4}, {"python", "pyroscope-io", 1}, {"node", "@pyroscope/nodejs", 2},
}

func pushName(client string, i int) string { return fmt.Sprintf("profiles_push_%s_%d", client, i) }

// pushShape is the part of a push that is the same in two runs of a client: the path, the
// parameters, the headers' names, and the form of the body.
func pushShape(e exchange) string {
	method, query, _ := strings.Cut(e.Method, "?")
	parameters, _ := url.ParseQuery(query)
	var names []string
	for name := range parameters {
		names = append(names, name)
	}
	slices.Sort(names)
	shape := fmt.Sprint(method, names)
	for _, h := range e.Header {
		kind, _, _ := strings.Cut(h, ";") // without the boundary of a form
		shape += " " + kind
	}
	return shape
}

// TestPeerSDK_GoldenPushes records what the SDKs send. Two runs never send the same bytes, so
// a run without -golden compares the shapes.
func TestPeerSDK_GoldenPushes(t *testing.T) {
	for _, c := range goldenClients {
		t.Run(c.name, func(t *testing.T) {
			command := client(t, c.name)
			var mu sync.Mutex
			var pushes []exchange
			base := recordHTTP(t, startServe(t, nil).base, func(e exchange) {
				mu.Lock()
				defer mu.Unlock()
				pushes = append(pushes, e)
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if out, err := exec.CommandContext(ctx, command[0], append(command[1:], base)...).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			mu.Lock()
			defer mu.Unlock()
			if len(pushes) < c.keep {
				t.Fatalf("%d pushes", len(pushes))
			}
			shapes := map[string]bool{}
			for _, e := range pushes {
				shapes[pushShape(e)] = true
			}
			for i := range c.keep {
				if *captureGolden {
					pushes[i].Peers = c.peers + ", this server"
					writeGolden(t, pushName(c.name, i), pushes[i])
				} else if shape := pushShape(readGolden(t, pushName(c.name, i))); !shapes[shape] {
					t.Errorf("the client sent %v, and no %s", shapes, shape)
				}
			}
		})
	}
}

// goldenProfiles runs a server that has the recorded pushes, and returns a range of time, in
// ms, with all of them. The profiles are as old as the recording: the limits allow it.
func goldenProfiles(t *testing.T) (s *server, start, end int64) {
	t.Helper()
	s = startServe(t, func(o *app.ServeOptions) {
		o.Profiles.Limits.Age, o.Profiles.Limits.Future, o.Profiles.Store.Retention = 60*365*24*time.Hour, 60*365*24*time.Hour, -1
	})
	for _, c := range goldenClients {
		for i := range c.keep {
			e := readGolden(t, pushName(c.name, i))
			if body := s.replay(e); !bytes.Equal(body, e.Responses[0]) {
				t.Errorf("%s: the response to %s is %q, committed %q", c.name, e.Method, body, e.Responses[0])
			}
		}
	}
	_, query, _ := strings.Cut(readGolden(t, pushName("node", 0)).Method, "?")
	parameters := try(url.ParseQuery(query)).must(t)
	seconds := try(strconv.ParseInt(parameters.Get("from"), 10, 64)).must(t)
	return s, (seconds - 1800) * 1000, (seconds + 1800) * 1000
}

// replay sends a recorded request, and returns the body of the response.
func (s *server) replay(e exchange) []byte {
	s.t.Helper()
	method, path, _ := strings.Cut(e.Method, " ")
	header := []string{"Accept-Encoding", "identity"}
	for _, h := range e.Header {
		name, value, _ := strings.Cut(h, ": ")
		header = append(header, name, value)
	}
	status, body, _ := s.request(method, path, string(e.Request), header...)
	if status != http.StatusOK {
		s.t.Fatalf("%s: %d %q", e.Method, status, body)
	}
	return []byte(body)
}

// goldenQuery sends a request of Grafana's data source through connect-go, as its backend
// does, and compares or captures the exchange.
func goldenQuery[Req, Res any](t *testing.T, base string, last *exchange, method string, request *Req) *Res {
	t.Helper()
	c := connect.NewClient[Req, Res](http.DefaultClient, base+"/querier.v1.QuerierService/"+method, connect.WithAcceptCompression("gzip", nil, nil))
	response, err := c.CallUnary(t.Context(), connect.NewRequest(request))
	if err != nil {
		t.Fatalf("%s: %v", method, err)
	}
	last.Peers = "connect-go with the requests of Grafana's data source, this server"
	checkCaptured(t, "profiles_"+method, *last)
	return response.Msg
}

// The server accepts the requests of every SDK. Its responses to Grafana's requests are the
// committed bytes. This server has sent these bytes, so the test detects changes, not
// differences from Pyroscope.
func TestGolden_ProfileExchanges(t *testing.T) {
	if _, err := os.Stat(goldenPath(pushName("go", 0))); err != nil && !*captureGolden {
		t.Fatal(err)
	}
	s, start, end := goldenProfiles(t)
	var last exchange
	base := recordHTTP(t, s.base, func(e exchange) { last = e })
	types := goldenQuery[profilepb.ProfileTypesRequest, profilepb.ProfileTypesResponse](t, base, &last, "ProfileTypes", &profilepb.ProfileTypesRequest{Start: start, End: end})
	found := fmt.Sprint(types.ProfileTypes)
	for _, id := range []string{cpuType, "memory:alloc_space:bytes:space:bytes", "goroutines:goroutine:count:goroutine:count", "wall:wall:nanoseconds:wall:nanoseconds"} {
		if !strings.Contains(found, id) {
			t.Errorf("no %s among %s", id, found)
		}
	}
	goldenQuery[profilepb.LabelNamesRequest, profilepb.LabelNamesResponse](t, base, &last, "LabelNames", &profilepb.LabelNamesRequest{Matchers: []string{`{__profile_type__="` + cpuType + `"}`}, Start: start, End: end})
	services := goldenQuery[profilepb.LabelValuesRequest, profilepb.LabelValuesResponse](t, base, &last, "LabelValues", &profilepb.LabelValuesRequest{Name: "service_name", Start: start, End: end})
	if !slices.Equal(services.Names, []string{"go.client", "node.client", "python.client"}) {
		t.Error(services.Names)
	}
	goldenQuery[profilepb.SeriesRequest, profilepb.SeriesResponse](t, base, &last, "Series", &profilepb.SeriesRequest{LabelNames: []string{"service_name", "__profile_type__"}, Start: start, End: end})
	series := goldenQuery[profilepb.SelectSeriesRequest, profilepb.SelectSeriesResponse](t, base, &last, "SelectSeries", &profilepb.SelectSeriesRequest{
		ProfileTypeID: cpuType, LabelSelector: "{}", Start: start, End: end, Step: 15, GroupBy: []string{"service_name"},
	})
	if len(series.Series) != 2 {
		t.Errorf("CPU time of %d services", len(series.Series))
	}
	nodes := int64(64)
	flame := goldenQuery[profilepb.SelectMergeStacktracesRequest, profilepb.SelectMergeStacktracesResponse](t, base, &last, "SelectMergeStacktraces", &profilepb.SelectMergeStacktracesRequest{
		ProfileTypeID: cpuType, LabelSelector: `{service_name="go.client"}`, Start: start, End: end, MaxNodes: &nodes,
	})
	if !slices.Contains(flame.Flamegraph.Names, "main.hotGo") {
		t.Error(flame.Flamegraph.Names)
	}
	goldenQuery[profilepb.DiffRequest, profilepb.DiffResponse](t, base, &last, "Diff", &profilepb.DiffRequest{
		Left:  &profilepb.SelectMergeStacktracesRequest{ProfileTypeID: cpuType, LabelSelector: `{service_name="go.client"}`, Start: start, End: end, MaxNodes: &nodes},
		Right: &profilepb.SelectMergeStacktracesRequest{ProfileTypeID: cpuType, LabelSelector: `{service_name="python.client"}`, Start: start, End: end, MaxNodes: &nodes},
	})
}
