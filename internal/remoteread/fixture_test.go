package remoteread

import (
	"bytes"
	"context"
	"fmt"
	"hash"
	"hash/fnv"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/gogo/protobuf/proto"
	"github.com/golang/snappy"
	"github.com/prometheus/client_golang/prometheus"
	configutil "github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/storage/remote"
	prometheustsdb "github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"
	"go.uber.org/goleak"

	"github.com/ferula-io/ferula/internal/tsdb"
	"github.com/ferula-io/ferula/metrics"
)

func TestMain(m *testing.M) {
	http.DefaultTransport.(*http.Transport).DisableKeepAlives = true
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"))
}

const (
	hourMS  = int64(3600_000)
	startMS = 1767225600_000 - 1767225600_000%(2*hourMS)
)

// appendable is the common interface of a head and a block writer.
type appendable interface {
	Appender(context.Context) storage.Appender
}

// fill appends n float series and two of histograms, one sample each stepMS from mint
// to maxt, maxt excluded.
func fill(t testing.TB, to appendable, n int, mint, maxt, stepMS int64) {
	t.Helper()
	for at := mint; at < maxt; at += 50 * stepMS {
		app := to.Appender(context.Background())
		add := func(_ storage.SeriesRef, err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		for i := range n {
			lset := labels.FromStrings(labels.MetricName, fmt.Sprintf("m%d", i%4), "instance", fmt.Sprintf("host-%d:9100", i/4), "job", "node")
			switch {
			case i%10 == 0:
				lset = labels.FromStrings(labels.MetricName, fmt.Sprintf("m%d", i%4), "number", fmt.Sprint(i))
			case i%10 == 5:
				lset = labels.FromStrings(labels.MetricName, fmt.Sprintf("m%d", i))
			case i%10 == 7:
				lset = labels.FromStrings(labels.MetricName, fmt.Sprintf("m%d", i%4), "cluster", []string{"aa", "zz"}[i/10%2], "number", fmt.Sprint(i))
			}
			for ts := at; ts < min(maxt, at+50*stepMS); ts += stepMS {
				v := float64(ts%977) + float64(i)/3
				if ts/stepMS%9 == 0 {
					v = math.Copysign(0, float64(i%2)-1)
				}
				add(app.Append(0, lset, ts, v))
			}
		}
		for ts := at; ts < min(maxt, at+50*stepMS); ts += stepMS {
			add(app.AppendHistogram(0, labels.FromStrings(labels.MetricName, "h", "kind", "int"), ts, tsdbutil.GenerateTestHistogram(ts/stepMS%50), nil))
			add(app.AppendHistogram(0, labels.FromStrings(labels.MetricName, "h", "kind", "float"), ts, nil, tsdbutil.GenerateTestFloatHistogram(ts/stepMS%50)))
		}
		if err := app.Commit(); err != nil {
			t.Fatal(err)
		}
	}
}

// block writes a block of n series below dir and returns its directory.
func block(t testing.TB, dir string, n int, mint, maxt, stepMS int64) string {
	t.Helper()
	w, err := prometheustsdb.NewBlockWriter(slog.New(slog.DiscardHandler), dir, 2*hourMS)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	fill(t, w, n, mint, maxt, stepMS)
	id, err := w.Flush(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, id.String())
}

// deleteFrom writes a tombstone to a block.
func deleteFrom(t testing.TB, dir string, mint, maxt int64, m *labels.Matcher) {
	t.Helper()
	b, err := prometheustsdb.OpenBlock(slog.New(slog.DiscardHandler), dir, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.Delete(context.Background(), mint, maxt, m); err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB, dir string) *tsdb.Store {
	t.Helper()
	s, err := tsdb.New(tsdb.Options{Dir: dir, Retention: -1, OutOfOrderWindow: 100 * time.Hour, NoLockfile: true}, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), metrics.NewSet())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// serve runs a server over HTTP until the test ends.
func serve(t testing.TB, from storage.ChunkQueryable, opts Options) string {
	t.Helper()
	return serveHandler(t, NewServer(opts, from, slog.New(slog.DiscardHandler), nil))
}

// serveHandler uses small socket buffers, so that a reader that stalls blocks the server.
func serveHandler(t testing.TB, h http.Handler) string {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		_ = c.(*net.TCPConn).SetWriteBuffer(64 << 10)
		return ctx
	}
	s.Start()
	t.Cleanup(s.Close)
	return s.URL
}

func peerQuery(mint, maxt int64, matchers ...*labels.Matcher) *prompb.Query {
	q, err := remote.ToQuery(mint, maxt, matchers, nil)
	if err != nil {
		panic(err)
	}
	return q
}

// post sends a body and returns the response.
func post(t testing.TB, url string, body []byte) (status int, header http.Header, response []byte) {
	t.Helper()
	resp, err := http.Post(url, "application/x-protobuf", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	response, err = io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, response
}

func encode(t testing.TB, form prompb.ReadRequest_ResponseType, queries ...*prompb.Query) []byte {
	t.Helper()
	plain, err := proto.Marshal(&prompb.ReadRequest{AcceptedResponseTypes: []prompb.ReadRequest_ResponseType{form}, Queries: queries})
	if err != nil {
		t.Fatal(err)
	}
	return snappy.Encode(nil, plain)
}

// readChunks reads chunks with Prometheus' own client.
func readChunks(t testing.TB, address string, q *prompb.Query) storage.SeriesSet {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	client, err := remote.NewReadClient("test", &remote.ClientConfig{
		URL: &configutil.URL{URL: u}, Timeout: model.Duration(time.Minute), ChunkedReadLimit: 50e6,
	})
	if err != nil {
		t.Fatal(err)
	}
	set, err := client.Read(context.Background(), q, false)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// readSamples reads samples, and decodes them with Prometheus' functions.
func readSamples(t testing.TB, address string, queries ...*prompb.Query) []storage.SeriesSet {
	t.Helper()
	status, header, packed := post(t, address, encode(t, prompb.ReadRequest_SAMPLES, queries...))
	if status != http.StatusOK || header.Get("Content-Type") != "application/x-protobuf" || header.Get("Content-Encoding") != "snappy" {
		t.Fatalf("%d %v %.200s", status, header, packed)
	}
	plain, err := snappy.Decode(nil, packed)
	if err != nil {
		t.Fatal(err)
	}
	var response prompb.ReadResponse
	if err := proto.Unmarshal(plain, &response); err != nil {
		t.Fatal(err)
	}
	if len(response.Results) != len(queries) {
		t.Fatalf("%d results of %d queries", len(response.Results), len(queries))
	}
	var sets []storage.SeriesSet
	for _, result := range response.Results {
		sets = append(sets, remote.FromQueryResult(false, result))
	}
	return sets
}

// summary describes a set: counts, and one hash of all labels, timestamps and values.
type summary struct {
	series, samples int
	hash            uint64
	sorted          bool
}

// sum reads a set. widen may change the labels; sum checks the order of the result.
// Series without samples are not counted.
func sum(t testing.TB, set storage.SeriesSet, widen func(labels.Labels) labels.Labels) summary {
	t.Helper()
	type line struct {
		labels labels.Labels
		hash   hash.Hash64
	}
	var lines []line
	out := summary{sorted: true}
	for set.Next() {
		h := fnv.New64a()
		lset, n := widen(set.At().Labels()), 0
		joined := len(lines) > 0 && labels.Equal(lines[len(lines)-1].labels, lset)
		if joined {
			h = lines[len(lines)-1].hash
		} else {
			fmt.Fprint(h, lset)
		}
		it := set.At().Iterator(nil)
		for kind := it.Next(); kind != chunkenc.ValNone; kind = it.Next() {
			n++
			switch kind {
			case chunkenc.ValFloat:
				at, v := it.At()
				fmt.Fprint(h, at, math.Float64bits(v))
			default:
				var fh *histogram.FloatHistogram
				at, fh := it.AtFloatHistogram(fh)
				fh.CounterResetHint = 0 // differs between the response types
				fmt.Fprint(h, at, kind, fh)
			}
		}
		if it.Err() != nil {
			t.Fatal(it.Err())
		}
		out.samples += n
		if n == 0 || joined {
			continue
		}
		if len(lines) > 0 && labels.Compare(lines[len(lines)-1].labels, lset) >= 0 {
			out.sorted = false
		}
		lines = append(lines, line{lset.Copy(), h})
	}
	if set.Err() != nil {
		t.Fatal(set.Err())
	}
	slices.SortFunc(lines, func(a, b line) int { return labels.Compare(a.labels, b.labels) })
	h := fnv.New64a()
	for _, l := range lines {
		fmt.Fprint(h, l.hash.Sum64())
	}
	out.series, out.hash = len(lines), h.Sum64()
	return out
}

func asIs(l labels.Labels) labels.Labels { return l }
