package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gogo/protobuf/proto"
	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/storage/remote"
	prometheustsdb "github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/remoteread"
	"github.com/ferula-io/ferula/internal/series"
)

const hourMS = int64(3600_000)

// pathsStart is the timestamp of the first sample. It is at a block boundary, and recent
// enough that no server refuses the samples as too old.
var pathsStart = time.Now().Add(-16*time.Hour).UnixMilli() / (6 * hourMS) * (6 * hourMS)

// appendFixture appends float series, integer and float histograms, and a series that
// changes between float and histogram, for [mint, maxt).
func appendFixture(t testing.TB, to interface {
	Appender(context.Context) storage.Appender
}, n int, mint, maxt, stepMS int64) {
	t.Helper()
	app := to.Appender(context.Background())
	check := func(_ storage.SeriesRef, err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	// The order is not that of labels, because a head returns series as they were appended.
	for i := n - 1; i >= 0; i-- {
		b := labels.NewScratchBuilder(4)
		b.Add(labels.MetricName, fmt.Sprintf("m%d", i%4))
		if i%5 != 0 {
			b.Add("instance", fmt.Sprintf("host-%d", i/4))
		}
		if i%7 == 0 {
			b.Add("cluster", []string{"aa", "zz"}[i%2])
		}
		b.Add("number", fmt.Sprint(i))
		if i < 4 {
			b.Reset()
			b.Add(labels.MetricName, fmt.Sprintf("m%d", i))
		}
		b.Sort()
		for ts := mint; ts < maxt; ts += stepMS {
			check(app.Append(0, b.Labels(), ts, float64(ts%977)+float64(i)/3))
		}
	}
	for ts := mint; ts < maxt; ts += stepMS {
		check(app.AppendHistogram(0, labels.FromStrings(labels.MetricName, "h", "kind", "int"), ts, tsdbutil.GenerateTestHistogram(ts/stepMS%50), nil))
		check(app.AppendHistogram(0, labels.FromStrings(labels.MetricName, "h", "kind", "float"), ts, nil, tsdbutil.GenerateTestFloatHistogram(ts/stepMS%50)))
		mixed := labels.FromStrings(labels.MetricName, "mixed")
		if ts/stepMS%20 < 10 {
			check(app.Append(0, mixed, ts, float64(ts%101)))
		} else {
			check(app.AppendHistogram(0, mixed, ts, tsdbutil.GenerateTestHistogram(ts/stepMS%30), nil))
		}
	}
	noError(t, app.Commit())
}

// blockIn writes a block and returns its directory.
func blockIn(t testing.TB, dir string, n int, mint, maxt, stepMS int64) string {
	t.Helper()
	w := try(prometheustsdb.NewBlockWriter(slog.New(slog.DiscardHandler), dir, 2*hourMS)).must(t)
	defer w.Close()
	appendFixture(t, w, n, mint, maxt, stepMS)
	id := try(w.Flush(context.Background())).must(t)
	return filepath.Join(dir, id.String())
}

// dataFolder writes a directory with blocks, of which two overlap and one has tombstones,
// a head, and out-of-order samples.
func dataFolder(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	withTombstones := try(prometheustsdb.OpenBlock(slog.New(slog.DiscardHandler), blockIn(t, dir, 30, pathsStart, pathsStart+2*hourMS, 30_000), nil, nil)).must(t)
	noError(t, withTombstones.Delete(context.Background(), pathsStart+hourMS/3, pathsStart+hourMS/2, labels.MustNewMatcher(labels.MatchRegexp, labels.MetricName, "m1|h")))
	_ = withTombstones.Close()
	blockIn(t, dir, 25, pathsStart+2*hourMS, pathsStart+4*hourMS, 30_000)
	blockIn(t, dir, 10, pathsStart+3*hourMS+17, pathsStart+4*hourMS, 70_000)
	opts := prometheustsdb.DefaultOptions()
	opts.OutOfOrderTimeWindow = 100 * hourMS
	db := try(prometheustsdb.Open(dir, slog.New(slog.DiscardHandler), nil, opts, nil)).must(t)
	db.DisableCompactions()
	appendFixture(t, db, 28, pathsStart+4*hourMS, pathsStart+5*hourMS, 30_000)
	appendLate(t, db)
	noError(t, db.Close())
	return dir
}

// appendLate appends samples that are older than the head.
func appendLate(t testing.TB, db *prometheustsdb.DB) {
	t.Helper()
	app := db.Appender(context.Background())
	for i := range 10 {
		for ts := pathsStart + hourMS + 11; ts < pathsStart+2*hourMS; ts += 90_000 {
			try(app.Append(0, labels.FromStrings(labels.MetricName, fmt.Sprintf("m%d", i)), ts, float64(i))).must(t)
		}
	}
	noError(t, app.Commit())
}

// copyOf copies a data directory, since a server locks its own.
func copyOf(t testing.TB, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "data")
	noError(t, os.CopyFS(to, os.DirFS(dir)))
	_ = os.Remove(filepath.Join(to, "lock"))
	return to
}

// content summarizes a response: one hash over all labels, timestamps and values.
type content struct {
	series, samples int
	hash            uint64
}

func contentOf(t testing.TB, set storage.SeriesSet) content {
	t.Helper()
	var lines []string
	var c content
	var it chunkenc.Iterator
	for set.Next() {
		h, n := fnv.New64a(), 0
		it = set.At().Iterator(it)
		for kind := it.Next(); kind != chunkenc.ValNone; kind = it.Next() {
			n++
			if kind == chunkenc.ValFloat {
				at, v := it.At()
				fmt.Fprint(h, at, math.Float64bits(v))
				continue
			}
			var fh *histogram.FloatHistogram
			at, fh := it.AtFloatHistogram(fh)
			fh.CounterResetHint = 0 // differs between chunks and samples
			fmt.Fprint(h, at, kind, fh)
		}
		if it.Err() != nil {
			t.Fatal(it.Err())
		}
		if n == 0 {
			continue // only responses of samples have series without any
		}
		c.samples += n
		lines = append(lines, fmt.Sprint(set.At().Labels(), h.Sum64()))
	}
	if set.Err() != nil {
		t.Fatal(set.Err())
	}
	slices.Sort(lines)
	all := fnv.New64a()
	for _, line := range lines {
		fmt.Fprintln(all, line)
	}
	c.series, c.hash = len(lines), all.Sum64()
	return c
}

// readBy reads with ferula's remote read client.
func readBy(t testing.TB, address string, samplesOnly bool, mint, maxt int64, matchers ...*labels.Matcher) content {
	t.Helper()
	q := try(remoteread.NewClient(remoteread.ClientOptions{URL: address, SamplesOnly: samplesOnly, Timeout: time.Minute}).RawQuerier(t.Context(), mint, maxt)).must(t)
	defer q.Close()
	return contentOf(t, series.ToSeriesSet(q.Select(t.Context(), series.SelectOptions{}, matchers...)))
}

// samplesProxy forwards remote read requests, changed to accept only SAMPLES.
func samplesProxy(t testing.TB, address string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		plain, err := snappy.Decode(nil, body)
		if err != nil {
			t.Error(err)
			return
		}
		var request prompb.ReadRequest
		if err := proto.Unmarshal(plain, &request); err != nil {
			t.Error(err)
			return
		}
		request.AcceptedResponseTypes = []prompb.ReadRequest_ResponseType{prompb.ReadRequest_SAMPLES}
		if plain, err = proto.Marshal(&request); err != nil {
			t.Error(err)
			return
		}
		resp, err := http.Post(address, "application/x-protobuf", bytes.NewReader(snappy.Encode(nil, plain)))
		if err != nil {
			t.Error(err)
			return
		}
		defer resp.Body.Close()
		for _, name := range []string{"Content-Type", "Content-Encoding"} {
			w.Header().Set(name, resp.Header.Get(name))
		}
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestPeerPrometheus_EveryRemoteReadPathReturnsTheSameSamples(t *testing.T) {
	dir := dataFolder(t)
	for name, external := range map[string]string{"no external labels": "", "external labels": "global: {external_labels: {cluster: mm, nn: x}}\n"} {
		t.Run(name, func(t *testing.T) {
			config := external + "storage: {tsdb: {out_of_order_time_window: 100h}}\n"
			file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), config+"scrape_configs: []\n")
			ours := startServe(t, func(o *app.ServeOptions) {
				o.ConfigFile, o.Store.Dir, o.Store.OutOfOrderWindow = file, copyOf(t, dir), 100*time.Hour
			}).base + "/api/v1/read"
			theirs := startPrometheus(t, config, copyOf(t, dir)).base + "/api/v1/read"
			through := func(address string) string {
				return startPrometheus(t, "remote_read: [{url: '"+address+"', read_recent: true}]\n", "").base + "/api/v1/read"
			}
			paths := []struct {
				name, address string
				samples       bool
			}{
				{"ferula's client, ferula, samples", ours, true},
				{"ferula's client, Prometheus, chunks", theirs, false},
				{"ferula's client, Prometheus, samples", theirs, true},
				{"Prometheus' client, ferula, chunks", through(ours), false},
				{"Prometheus' client, ferula, samples", through(samplesProxy(t, ours)), true},
			}
			all := labels.MustNewMatcher(labels.MatchRegexp, labels.MetricName, ".+")
			for _, q := range []struct {
				mint, maxt int64
				matcher    *labels.Matcher
			}{
				{pathsStart - hourMS, pathsStart + 9*hourMS, all},
				{pathsStart + hourMS/3 + 7, pathsStart + 3*hourMS - 1, all},
				{pathsStart + hourMS + 1, pathsStart + hourMS + 30_000, all},
				{pathsStart + 4*hourMS + 10*60_000, pathsStart + 5*hourMS, all}, // only in the head
				{pathsStart, pathsStart + 5*hourMS, labels.MustNewMatcher(labels.MatchEqual, labels.MetricName, "mixed")},
				{pathsStart, pathsStart + 5*hourMS, labels.MustNewMatcher(labels.MatchEqual, "cluster", "zz")},
			} {
				want := readBy(t, ours, false, q.mint, q.maxt, q.matcher)
				if want.samples == 0 {
					t.Errorf("%s from %d to %d: nothing to compare", q.matcher, q.mint, q.maxt)
				}
				for _, path := range paths {
					if got := readBy(t, path.address, path.samples, q.mint, q.maxt, q.matcher); got != want {
						t.Errorf("%s: %s from %d to %d: %+v, want %+v", path.name, q.matcher, q.mint, q.maxt, got, want)
					}
				}
				t.Logf("%s from %d to %d: %+v", q.matcher, q.mint, q.maxt, want)
			}
		})
	}
}

// openFiles returns the number of open files of this process.
func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("needs /proc")
	}
	return len(entries)
}

// heapBytes returns the bytes of live heap objects.
func heapBytes() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// metric returns the value of one of the server's own metrics.
func (s *server) metric(name string) float64 {
	s.t.Helper()
	_, text := s.get("/metrics")
	m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindStringSubmatch(text)
	if m == nil {
		s.t.Fatalf("no metric %s", name)
	}
	v := try(strconv.ParseFloat(m[1], 64)).must(s.t)
	return v
}

// stalledReader sends a remote read request, and reads only the response header and the
// first 1000 bytes of the body.
func stalledReader(t *testing.T, address string, form prompb.ReadRequest_ResponseType, mint, maxt int64) net.Conn {
	t.Helper()
	q := try(remote.ToQuery(mint, maxt, []*labels.Matcher{labels.MustNewMatcher(labels.MatchRegexp, labels.MetricName, ".+")}, nil)).must(t)
	plain := try(proto.Marshal(&prompb.ReadRequest{Queries: []*prompb.Query{q}, AcceptedResponseTypes: []prompb.ReadRequest_ResponseType{form}})).must(t)
	conn := try(net.Dial("tcp", strings.TrimPrefix(address, "http://"))).must(t)
	_ = conn.(*net.TCPConn).SetReadBuffer(4096)
	request, err := http.NewRequest(http.MethodPost, address+"/api/v1/read", strings.NewReader(string(snappy.Encode(nil, plain))))
	if err == nil {
		err = request.Write(conn)
	}
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReaderSize(conn, 16), request)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp, err)
	}
	try(io.CopyN(io.Discard, resp.Body, 1000)).must(t)
	return conn
}

func TestRemoteRead_StalledReadersDuringCompactionReleaseFilesAndMemory(t *testing.T) {
	dir := t.TempDir()
	for i := range int64(3) {
		blockIn(t, dir, 600, pathsStart+2*i*hourMS, pathsStart+2*(i+1)*hourMS, 20_000)
	}
	s := startServe(t, func(o *app.ServeOptions) {
		idle(t)(o)
		o.Store.Dir, o.Store.Retention = dir, 15*24*time.Hour
		o.Read.ConcurrentMax, o.Read.WriteTimeout = 16, 10*time.Second
	})
	all := labels.MustNewMatcher(labels.MatchRegexp, labels.MetricName, "m.|h|mixed")
	address, mint, maxt := s.base+"/api/v1/read", pathsStart, pathsStart+6*hourMS-1
	want := readBy(t, address, false, mint, maxt, all)
	if want.samples < 500_000 {
		t.Fatalf("%+v", want)
	}
	s.metric("prometheus_remote_read_handler_queries") // the first page opens files of /proc
	files, heap := openFiles(t), heapBytes()
	// 8 readers stall and 4 disconnect. New samples extend the head until it and the
	// blocks are compacted, while 4 other readers read everything.
	var conns []net.Conn
	for i := range 12 {
		conn := stalledReader(t, s.base, prompb.ReadRequest_ResponseType(i%2), mint, maxt)
		if i >= 8 {
			conn.Close()
		} else {
			conns = append(conns, conn)
		}
	}
	for hour := range int64(8) {
		at := maxt + 1 + hour*hourMS
		s.writeAll([][]byte{encoded(t, v1(v1Series(at, 1, "__name__", "new")))})
	}
	var readers sync.WaitGroup
	for i := range 4 {
		readers.Go(func() {
			if got := readBy(t, address, i%2 == 0, mint, maxt, all); got != want {
				t.Errorf("with stalled readers: %+v, want %+v", got, want)
			}
		})
	}
	readers.Wait()
	eventually(t, 60*time.Second, "the readers to be disconnected", func() bool { return s.metric("prometheus_remote_read_handler_queries") == 0 })
	eventually(t, 60*time.Second, "the three blocks to be one", func() bool { // plus two of the head
		found, err := filepath.Glob(filepath.Join(dir, "01*"))
		return err == nil && len(found) == 3 && s.metric("prometheus_tsdb_compactions_total") >= 3
	})
	if got := readBy(t, address, false, mint, maxt, all); got != want {
		t.Errorf("after the compaction: %+v, want %+v", got, want)
	}
	for _, conn := range conns {
		_ = conn.Close()
	}
	eventually(t, 60*time.Second, "files to be closed", func() bool { return openFiles(t) <= files+2 })
	if now := heapBytes(); now > heap+16<<20 {
		t.Errorf("%d MiB are live, before %d", now>>20, heap>>20)
	}
}
