package e2e

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/gogo/protobuf/proto"
	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/storage"
	prometheustsdb "github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"

	role "github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/remoteread"
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
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
}

// blockIn writes a block and returns its directory.
func blockIn(t testing.TB, dir string, n int, mint, maxt, stepMS int64) string {
	t.Helper()
	w, err := prometheustsdb.NewBlockWriter(slog.New(slog.DiscardHandler), dir, 2*hourMS)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	appendFixture(t, w, n, mint, maxt, stepMS)
	id, err := w.Flush(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, id.String())
}

// dataFolder writes a directory with blocks, of which two overlap and one has tombstones,
// a head, and out-of-order samples.
func dataFolder(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	withTombstones, err := prometheustsdb.OpenBlock(slog.New(slog.DiscardHandler), blockIn(t, dir, 30, pathsStart, pathsStart+2*hourMS, 30_000), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := withTombstones.Delete(context.Background(), pathsStart+hourMS/3, pathsStart+hourMS/2, labels.MustNewMatcher(labels.MatchRegexp, labels.MetricName, "m1|h")); err != nil {
		t.Fatal(err)
	}
	_ = withTombstones.Close()
	blockIn(t, dir, 25, pathsStart+2*hourMS, pathsStart+4*hourMS, 30_000)
	blockIn(t, dir, 10, pathsStart+3*hourMS+17, pathsStart+4*hourMS, 70_000)
	opts := prometheustsdb.DefaultOptions()
	opts.OutOfOrderTimeWindow = 100 * hourMS
	db, err := prometheustsdb.Open(dir, slog.New(slog.DiscardHandler), nil, opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	db.DisableCompactions()
	appendFixture(t, db, 28, pathsStart+4*hourMS, pathsStart+5*hourMS, 30_000)
	appendLate(t, db)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// appendLate appends samples that are older than the head.
func appendLate(t testing.TB, db *prometheustsdb.DB) {
	t.Helper()
	app := db.Appender(context.Background())
	for i := range 10 {
		for ts := pathsStart + hourMS + 11; ts < pathsStart+2*hourMS; ts += 90_000 {
			if _, err := app.Append(0, labels.FromStrings(labels.MetricName, fmt.Sprintf("m%d", i)), ts, float64(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
}

// copyOf copies a data directory, since a server locks its own.
func copyOf(t testing.TB, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "data")
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
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
	q, err := remoteread.NewClient(remoteread.ClientOptions{URL: address, SamplesOnly: samplesOnly, Timeout: time.Minute}).Querier(mint, maxt)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	return contentOf(t, q.Select(context.Background(), true, nil, matchers...))
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
			ours := startServe(t, func(o *role.ServeOptions) {
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
