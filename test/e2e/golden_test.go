package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/remoteread"
	"github.com/ferula-io/ferula/internal/remoteread/wire"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/internal/thanos/storepb"
	pb "github.com/ferula-io/ferula/internal/thanos/storepb/thanospb"
)

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
	conn, err := grpc.NewClient(address, append(storeapi.GRPCDialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
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
			if err := unmarshalAll(got[0], &mine); err != nil {
				t.Fatal(err)
			}
			if err := unmarshalAll(e.Responses[0], &theirs); err != nil {
				t.Fatal(err)
			}
			if theirs.Rules == nil || theirs.Targets == nil || theirs.MetricMetadata == nil {
				t.Errorf("Thanos' info %v", &theirs)
			}
			theirs.Rules, theirs.Targets, theirs.MetricMetadata = nil, nil, nil
			mine.Rules = nil // serve's own; the captured sidecar's are those of its Prometheus
			own, err := proto.Marshal(&mine)
			if err != nil {
				t.Fatal(err)
			}
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
	if err := unmarshalAll(src, &s); err != nil {
		t.Fatal(err)
	}
	for _, c := range s.Chunks {
		if c.Raw == nil || c.Raw.Hash != xxhash.Sum64(c.Raw.Data) {
			t.Errorf("chunk %v", c)
			continue
		}
		c.Raw.Hash = 0
	}
	out, err := proto.Marshal(&s)
	if err != nil {
		t.Fatal(err)
	}
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
		lset, err := labelenc.Labels(set.Labels(), &builder)
		if err != nil {
			t.Fatal(err)
		}
		line := lset.String()
		for _, c := range set.Chunks() {
			chunk, err := chunkenc.FromData(c.Encoding, slices.Clone(c.Data))
			if err != nil {
				t.Fatal(err)
			}
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
		method, path, _ := strings.Cut(e.Method, " ")
		r, err := http.NewRequest(method, s.base+path, bytes.NewReader(e.Request))
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range e.Header {
			key, value, _ := strings.Cut(h, ": ")
			r.Header.Set(key, value)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d %s, %v", name, resp.StatusCode, body, err)
		}
		want := e.Responses[0]
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
	if err := m.Unmarshal(src); err != nil {
		t.Fatal(err)
	}
	out, err := m.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func unsnappy(t *testing.T, b []byte) []byte {
	t.Helper()
	out, err := snappy.Decode(nil, b)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestGolden_RemoteReadRequestsAreUnderstood(t *testing.T) {
	for _, name := range goldenRemoteRead {
		raw := unsnappy(t, readGolden(t, name).Request)
		request, err := wire.DecodeRequest(raw)
		if err != nil {
			t.Fatal(err)
		}
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
		q, err := client.Querier(goldenStart, goldenStart+5400_000)
		if err != nil {
			t.Fatal(err)
		}
		set := q.Select(context.Background(), true, nil, labels.MustNewMatcher(labels.MatchRegexp, "__name__", "golden_.+"))
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
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	}
}
