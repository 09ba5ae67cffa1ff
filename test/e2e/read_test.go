package e2e

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gogo/protobuf/proto"
	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/prompb"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/tsdb"
)

// writeReadable writes 12 series with one sample per minute for some hours to each
// server, and returns the half-open time range [start, end) in seconds. Values are
// integers, so that sums are exact in any order.
func writeReadable(t *testing.T, hours int, servers ...*server) (start, end int64) {
	t.Helper()
	end = time.Now().Unix() / 60 * 60
	start = end - int64(hours)*3600
	for at := start; at <= end; at += 600 {
		var all []prompb.TimeSeries
		for i := range 12 {
			ts := v1Series(0, 0, "__name__", fmt.Sprintf("read_%d_total", i%3), "i", fmt.Sprint(i), "job", "read", "text", []string{"plain", `"quoted" \`, "two\nlines", "ümläut, 日本"}[i%4])
			ts.Samples = nil
			for s := at; s < min(at+600, end+1); s += 60 {
				ts.Samples = append(ts.Samples, prompb.Sample{Timestamp: s*1000 + int64(i), Value: float64((s/60*7 + int64(i)) % 10_007)})
			}
			all = append(all, ts)
		}
		body := encoded(t, v1(all...))
		for _, s := range servers {
			s.must(v1Type, body)
		}
	}
	return start, end + 1
}

// readArgs are the arguments of `ferula read --url` for the samples of writeReadable.
func readArgs(base string, start, end int64, output string, more ...string) []string {
	return append([]string{"read", "--url=" + base, "--start=" + fmt.Sprint(start), "--end", fmt.Sprint(end), "-o", output, `--match={job="read"}`}, more...)
}

// localArgs are the same with --tsdb.path.
func localArgs(dir string, start, end int64, output string) []string {
	args := readArgs("", start, end, output)
	args[1] = "--tsdb.path=" + dir
	return args
}

// storeArgs are the same with --store.
func storeArgs(address string, start, end int64, output string) []string {
	args := readArgs("", start, end, output)
	args[1] = "--store=" + address
	return args
}

// runRead runs the binary until it exits, and returns exit code, stderr and stdout.
func runRead(t *testing.T, path string, args ...string) (code int, errorOutput string, output []byte) {
	t.Helper()
	cmd := exec.Command(path, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), stderr.String(), stdout.Bytes()
}

func mustRead(t *testing.T, path string, args ...string) string {
	t.Helper()
	code, stderr, _ := runRead(t, path, args...)
	if code != 0 {
		t.Fatalf("exit code %d of %q:\n%s", code, args, stderr)
	}
	return stderr
}

// totals returns the number of samples of a CSV file and their sum.
func totals(t *testing.T, path string) (count int, sum float64) {
	t.Helper()
	f := try(os.Open(path)).must(t)
	defer f.Close()
	records := try(csv.NewReader(f).ReadAll()).must(t)
	for _, r := range records[1:] {
		v := try(strconv.ParseFloat(r[3], 64)).must(t)
		count, sum = count+1, sum+v
	}
	return count, sum
}

// promQLTotals returns the same totals by PromQL.
func (s *server) promQLTotals(start, end int64) (count int, sum float64) {
	s.t.Helper()
	window := fmt.Sprintf(`{job="read"}[%ds]))`, end-start+1)
	number := func(expr string) float64 {
		v, err := strconv.ParseFloat(s.value(expr, "time", fmt.Sprint(end)), 64)
		if err != nil {
			s.t.Fatalf("%s: %v", expr, err)
		}
		return v
	}
	return int(number("sum(count_over_time(" + window)), number("sum(sum_over_time(" + window)
}

func TestRead_ExportsTheSamplesThatPromQLCounts(t *testing.T) {
	path, s := binary(t), startServe(t, idle(t))
	start, end := writeReadable(t, 5, s)
	wantCount, wantSum := s.promQLTotals(start, end)
	if wantCount != 12*301 {
		t.Fatalf("%d samples are stored", wantCount)
	}
	out := filepath.Join(t.TempDir(), "out.csv")
	stderr := mustRead(t, path, readArgs(s.base, start, end, out, "--match=read_1_total", `--match={__name__=~"read_.*"}`)...)
	if count, sum := totals(t, out); count != wantCount || sum != wantSum {
		t.Errorf("%d samples of sum %g, want %d of %g", count, sum, wantCount, wantSum)
	}
	if !strings.Contains(stderr, "3,612 samples of 12 series") {
		t.Errorf("the summary is %q", stderr)
	}
	want := try(os.ReadFile(out)).must(t)
	code, stderr, stdout := runRead(t, path, readArgs(s.base, start, end, "-", "--format=csv", "--no-progress")...)
	if code != 0 || stderr != "" || !bytes.Equal(stdout, want) {
		t.Errorf("standard output: exit code %d, %d bytes, want %d; %s", code, len(stdout), len(want), stderr)
	}
}

func TestRead_InvalidArgumentsAreRefused(t *testing.T) {
	path := binary(t)
	out := filepath.Join(t.TempDir(), "out.csv")
	for _, c := range []struct {
		args   string
		code   int
		stderr string
	}{
		{"read -o " + out, 2, "--match"},
		{"read -o " + out + " --match=up", 1, "no source"},
		{"read -o " + out + " --match=up --url=nonsense", 1, "URL"},
		{"read -o " + out + " --match=up{ --url=http://127.0.0.1:1", 1, "--match"},
		{"read -o " + out + " --match=up --url=http://127.0.0.1:1 --start=yesterday", 2, "yesterday"},
		{"read -o " + out + " --match=up --url=http://127.0.0.1:1 --start=now --end -8h", 1, "ends"},
		{"read -o " + out + ".what --match=up --url=http://127.0.0.1:1", 1, "format"},
		{"read -o - --format=blocks --match=up --url=http://127.0.0.1:1", 1, "standard output"},
		{"read -o " + out + " --match=up --url=http://127.0.0.1:1 --retries=0", 1, "refused"},
		{"read -o " + out + " --match=up --tsdb.path=" + filepath.Dir(out) + "/none", 1, "none"},
		{"read -o " + out + " --match=up --tsdb.path=" + filepath.Dir(out), 1, "neither blocks nor"},
	} {
		code, stderr, _ := runRead(t, path, strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(stderr, c.stderr) {
			t.Errorf("%s: exit code %d, want %d with %q:\n%s", c.args, code, c.code, c.stderr, stderr)
		}
	}
	if entries, err := os.ReadDir(filepath.Dir(out)); err != nil || len(entries) != 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

// limitedProxy forwards a number of requests. Later ones hang or fail with 503.
type limitedProxy struct {
	*httptest.Server
	left    atomic.Int64  // requests to forward
	hang    atomic.Bool   // later requests hang
	reached chan struct{} // receives when a request hangs
}

func newLimitedProxy(t *testing.T, base string) *limitedProxy {
	t.Helper()
	u := try(url.Parse(base)).must(t)
	pass := httputil.NewSingleHostReverseProxy(u)
	p := &limitedProxy{reached: make(chan struct{}, 100)}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case p.left.Add(-1) >= 0:
			pass.ServeHTTP(w, r)
		case p.hang.Load():
			_, _ = io.Copy(io.Discard, r.Body) // without a read the server does not notice a disconnect
			p.reached <- struct{}{}
			<-r.Context().Done()
		default:
			http.Error(w, "the source is down", http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(p.Close)
	return p
}

func TestRead_ResumesAfterAKillAtEveryWindow(t *testing.T) {
	path, s := binary(t), startServe(t, idle(t))
	start, end := writeReadable(t, 5, s)
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain.csv")
	mustRead(t, path, readArgs(s.base, start, end, plain, "--window=1h")...)
	want := try(os.ReadFile(plain)).must(t)
	proxy := newLimitedProxy(t, s.base)
	proxy.hang.Store(true)
	out := filepath.Join(dir, "out.csv")
	args := readArgs(proxy.URL, start, end, out, "--window=1h", "--resume")
	kills := 0
	for done := false; !done; { // each run exports one more window
		proxy.left.Store(1)
		p := launch(t, path, args...)
		select {
		case <-proxy.reached:
			kills++
			_ = p.signal(syscall.SIGKILL)
		case <-p.ended:
			done = true
			noError(t, p.err)
		case <-time.After(30 * time.Second):
			t.Fatal("the run neither sends a request nor exits")
		}
		if kills > 10 {
			t.Fatal("no progress")
		}
	}
	if kills < 5 {
		t.Errorf("only %d runs were killed", kills)
	}
	got, err := os.ReadFile(out)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, want the %d of an uninterrupted run, %v", len(got), len(want), err)
	}
	if _, err := os.Stat(out + ".partial"); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the folder of partial files was not removed")
	}
}

func TestRead_SignalOrDeadSourceLeavesAResumableExport(t *testing.T) {
	path, s := binary(t), startServe(t, idle(t))
	start, end := writeReadable(t, 5, s)
	proxy := newLimitedProxy(t, s.base)
	for _, signal := range []os.Signal{nil, syscall.SIGTERM, os.Interrupt} {
		out := filepath.Join(t.TempDir(), "out.parquet")
		args := readArgs(proxy.URL, start, end, out, "--retries=0")
		proxy.left.Store(2)
		proxy.hang.Store(signal != nil)
		p := launch(t, path, args...)
		if signal != nil {
			select {
			case <-proxy.reached:
				_ = p.signal(signal)
			case <-p.ended:
				t.Fatalf("%v: the run ended before it had sent three requests: %v", signal, p.err)
			case <-time.After(60 * time.Second):
				t.Fatalf("%v: the run neither sends a request nor exits", signal)
			}
		}
		<-p.ended
		if code := p.cmd.ProcessState.ExitCode(); code != 75 || !strings.Contains(p.log.String(), "--resume") {
			t.Errorf("%v: exit code %d: %s", signal, code, p.log)
		}
		if _, err := os.Stat(out); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v: the output file exists", signal)
		}
		if left, err := filepath.Glob(out + ".partial/*.tmp"); err != nil || len(left) != 0 {
			t.Errorf("%v: left %q, %v", signal, left, err)
		}
		proxy.left.Store(1000)
		if text := mustRead(t, path, append(args, "--resume")...); !strings.Contains(text, "2 windows were resumed") || !strings.Contains(text, "3,612 samples") {
			t.Errorf("%v: %s", signal, text)
		}
	}
}

// contents lists path, size, modification time and mode of everything in a directory.
func contents(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			all = append(all, fmt.Sprint(path, info.Size(), info.ModTime(), info.Mode()))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestRead_FolderOfARunningServerIsReadAndNotChanged(t *testing.T) {
	path, dir := binary(t), t.TempDir()
	s := startServe(t, func(o *app.ServeOptions) {
		idle(t)(o)
		o.Store = tsdb.Options{Dir: dir}
	})
	start, end := writeReadable(t, 5, s)
	remote, local := filepath.Join(t.TempDir(), "remote.csv"), filepath.Join(t.TempDir(), "local.csv")
	mustRead(t, path, readArgs(s.base, start, end, remote)...)
	want := try(os.ReadFile(remote)).must(t)
	args := localArgs(dir, start, end, local)
	for _, serving := range []bool{true, false} {
		var before, after []string
		// The server may truncate its WAL meanwhile, so a difference counts only if it occurs
		// in every try.
		for try := 0; try == 0 || serving && try < 10 && !slices.Equal(before, after); try++ {
			before = contents(t, dir)
			mustRead(t, path, args...)
			if got, err := os.ReadFile(local); err != nil || !bytes.Equal(got, want) {
				t.Errorf("serving %t: %d bytes, want the %d that were read remotely, %v", serving, len(got), len(want), err)
			}
			after = contents(t, dir)
		}
		if !slices.Equal(before, after) {
			t.Errorf("serving %t: the folder was\n%s and is\n%s", serving, strings.Join(before, "\n"), strings.Join(after, "\n"))
		}
		noError(t, s.stop())
	}
	// Exported blocks can be read as a directory, too.
	blocks := filepath.Join(t.TempDir(), "blocks")
	mustRead(t, path, localArgs(dir, start, end, blocks)...)
	mustRead(t, path, localArgs(blocks, start, end, local)...)
	if got, err := os.ReadFile(local); err != nil || !bytes.Equal(got, want) {
		t.Errorf("from exported blocks: %d bytes, want %d, %v", len(got), len(want), err)
	}
}

func TestRead_ReadsAStoreAPI(t *testing.T) {
	s, store := grpcServe(t, "scrape_configs: []\n", nil)
	path := binary(t)
	start, end := writeReadable(t, 5, s)
	dir := t.TempDir()
	remote, other := filepath.Join(dir, "remote.parquet"), filepath.Join(dir, "store.parquet")
	mustRead(t, path, readArgs(s.base, start, end, remote)...)
	mustRead(t, path, storeArgs(store, start, end, other)...)
	sameFiles(t, remote, other)
	if code, stderr, _ := runRead(t, path, append(storeArgs(freeAddress(t), start, end, other+".csv"), "--format=csv", "--retries=0")...); code != 1 || !strings.Contains(stderr, "unavailable") {
		t.Errorf("nothing listens: exit code %d: %s", code, stderr)
	}
}

func TestRead_FolderIncludesOutOfOrderSamples(t *testing.T) {
	t.Parallel()
	path, dir := binary(t), t.TempDir()
	config := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "storage: {tsdb: {out_of_order_time_window: 24h}}\nscrape_configs: []\n")
	configure := func(o *app.ServeOptions) { o.Store, o.ConfigFile = tsdb.Options{Dir: dir}, config }
	s := startServe(t, configure)
	start, end := writeReadable(t, 8, s)
	// A compaction of the head would write the out-of-order samples into a block too. None is due for a head of three hours.
	eventually(t, 60*time.Second, "the head to become blocks", func() bool {
		blocks, err := filepath.Glob(filepath.Join(dir, "*", "meta.json"))
		head := s.metric("prometheus_tsdb_head_max_time") - s.metric("prometheus_tsdb_head_min_time")
		return err == nil && len(blocks) >= 2 && head <= float64(3*time.Hour/time.Millisecond)
	})
	noError(t, s.stop())
	s = startServe(t, configure)
	// One series that exists already, and a new one.
	late := []prompb.TimeSeries{
		v1Series(0, 0, "__name__", "read_0_total", "i", "0", "job", "read", "text", "plain"),
		v1Series(0, 0, "__name__", "read_late", "job", "read"),
	}
	for i := range late {
		late[i].Samples = nil
		for n := range int64(10) {
			late[i].Samples = append(late[i].Samples, prompb.Sample{Timestamp: (start+3600+n*60)*1000 + 30_000, Value: float64(n)})
		}
	}
	before, _ := s.promQLTotals(start, end)
	s.writeAll([][]byte{encoded(t, v1(late...))})
	wantCount, wantSum := s.promQLTotals(start, end)
	if wantCount != before+20 {
		t.Fatalf("%d samples, %d before the out-of-order ones", wantCount, before)
	}
	logged, err := filepath.Glob(filepath.Join(dir, "wbl", "0*"))
	if err != nil || len(logged) == 0 {
		t.Fatal("the out-of-order samples are not in the WBL", err)
	}
	if info, err := os.Stat(logged[len(logged)-1]); err != nil || info.Size() == 0 {
		t.Fatal("the out-of-order samples are not in the WBL", err)
	}
	out := t.TempDir()
	for _, serving := range []bool{true, false} {
		for _, name := range []string{"all.csv", "all.jsonl", "all.om", "all.parquet"} {
			remote, local := filepath.Join(out, "remote-"+name), filepath.Join(out, fmt.Sprint("local-", serving, "-", name))
			if serving {
				mustRead(t, path, readArgs(s.base, start, end, remote)...)
			}
			mustRead(t, path, localArgs(dir, start, end, local)...)
			sameFiles(t, remote, local)
		}
		blocks, again := filepath.Join(out, fmt.Sprint("blocks-", serving)), filepath.Join(out, fmt.Sprint("again-", serving, ".csv"))
		mustRead(t, path, localArgs(dir, start, end, blocks)...)
		mustRead(t, path, localArgs(blocks, start, end, again)...)
		if count, sum := totals(t, again); count != wantCount || sum != wantSum {
			t.Errorf("serving %t, blocks: %d samples of sum %g, want %d of %g", serving, count, sum, wantCount, wantSum)
		}
		noError(t, s.stop())
	}
}

func TestRead_SilentSourceEndsByTheTimeout(t *testing.T) {
	path, s := binary(t), startServe(t, idle(t))
	start, end := writeReadable(t, 5, s)
	// A server that accepts connections and never responds.
	mute := try(net.Listen("tcp", "127.0.0.1:0")).must(t)
	defer mute.Close()
	out := filepath.Join(t.TempDir(), "out.csv")
	for want, args := range map[string][]string{
		"server sends nothing for 300ms":    readArgs("http://"+mute.Addr().String(), start, end, out),
		"the store sends no data for 300ms": storeArgs(mute.Addr().String(), start, end, out),
	} {
		code, stderr, _ := runRead(t, path, append(args, "--timeout=300ms", "--retries=1")...)
		if code != 1 || strings.Count(stderr, want) != 2 { // once in the retry's warning, once in the error
			t.Errorf("%s: exit code %d:\n%s", args[1], code, stderr)
		}
	}
	// A server whose first response stops in the middle of the body.
	var requests atomic.Int64
	half := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request, err := http.NewRequestWithContext(r.Context(), r.Method, s.base+r.URL.Path, r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		request.Header = r.Header
		resp, err := http.DefaultClient.Do(request)
		if err != nil {
			return // the client disconnected
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
		if requests.Add(1) == 1 {
			_, _ = w.Write(body[:len(body)/2])
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return
		}
		_, _ = w.Write(body)
	}))
	defer half.Close()
	wantCount, wantSum := s.promQLTotals(start, end)
	stderr := mustRead(t, path, readArgs(half.URL, start, end, out, "--timeout=300ms")...)
	if count, sum := totals(t, out); count != wantCount || sum != wantSum || !strings.Contains(stderr, "sends nothing for 300ms") {
		t.Errorf("%d samples of sum %g, want %d of %g:\n%s", count, sum, wantCount, wantSum, stderr)
	}
}

func TestRead_SortsUnorderedSeries(t *testing.T) {
	result := &prompb.QueryResult{}
	random := rand.New(rand.NewPCG(1, 1))
	for _, i := range random.Perm(3000) {
		one := &prompb.TimeSeries{Labels: []prompb.Label{{Name: "__name__", Value: "m"}, {Name: "i", Value: fmt.Sprintf("%05d", i)}}}
		for at := range int64(60) {
			one.Samples = append(one.Samples, prompb.Sample{Timestamp: 1_000_000 + at*1000, Value: random.Float64()})
		}
		result.Timeseries = append(result.Timeseries, one)
	}
	plain := try(proto.Marshal(&prompb.ReadResponse{Results: []*prompb.QueryResult{result}})).must(t)
	body := snappy.Encode(nil, plain)
	var requests atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.Header().Set("Content-Type", "application/x-protobuf")
		_, _ = w.Write(body)
	}))
	defer server.Close()
	path, dir := binary(t), t.TempDir()
	args := func(output string, more ...string) []string {
		return append([]string{"read", "--url=" + server.URL, "--match=m", "--start=1000", "--end=1100", "-o", output}, more...)
	}
	mustRead(t, path, args(filepath.Join(dir, "memory.csv"))...)
	_, _, piped := runRead(t, path, args("-", "--format=csv")...)
	memory, err := os.ReadFile(filepath.Join(dir, "memory.csv"))
	if err != nil || strings.Count(string(memory), "\n") != 3000*60+1 {
		t.Fatalf("%d bytes, %v", len(memory), err)
	}
	if string(piped) != string(memory) {
		t.Errorf("piped: %d bytes, want %d", len(piped), len(memory))
	}
	if code, stderr, _ := runRead(t, path, args("-", "--format=csv", "--max-sort-bytes=100KiB")...); code != 1 || !strings.Contains(stderr, "--max-sort-bytes") {
		t.Errorf("beyond the limit: %s", stderr)
	}
	// A response that a retry cannot fix is not requested again.
	body = snappy.Encode(nil, append(plain, plain...))
	requests.Store(0)
	if code, stderr, _ := runRead(t, path, args(filepath.Join(dir, "broken.csv"))...); code != 1 || requests.Load() != 1 || !strings.Contains(stderr, "more than one result") {
		t.Errorf("exit code %d after %d requests: %s", code, requests.Load(), stderr)
	}
}

func TestPeerPrometheus_ExportEqualsFerulaServe(t *testing.T) {
	prometheus := startPrometheus(t, "", "")
	ours, path := startServe(t, idle(t)), binary(t)
	start, end := writeReadable(t, 5, ours, prometheus)
	var files [2][]byte
	for i, s := range []*server{ours, prometheus} {
		out := filepath.Join(t.TempDir(), "out.csv")
		mustRead(t, path, readArgs(s.base, start, end, out, "--match=read_1_total")...)
		wantCount, wantSum := s.promQLTotals(start, end)
		if count, sum := totals(t, out); count != wantCount || sum != wantSum || count != 12*301 {
			t.Errorf("%s: %d samples of sum %g, PromQL has %d of %g", s.base, count, sum, wantCount, wantSum)
		}
		var err error
		if files[i], err = os.ReadFile(out); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(files[0], files[1]) {
		t.Errorf("%d bytes from ferula serve, %d from Prometheus", len(files[0]), len(files[1]))
	}
}

// frames is a Python program that reads a Parquet file with each library that the
// documents name, and prints counts and sums.
const frames = `
import sys, duckdb, pandas, polars
path = sys.argv[1]
row = duckdb.sql(f"select count(*), sum(value), count(distinct labels), min(epoch_ms(timestamp)), max(epoch_ms(timestamp)), count(distinct name), count(histogram) from '{path}'").fetchall()[0]
print("duckdb", *row)
print("duckdb label", duckdb.sql(f"select count(*) from '{path}' where labels->>'text' = 'ümläut, 日本'").fetchall()[0][0])
d = pandas.read_parquet(path)
ms = d.timestamp.astype("datetime64[ms, UTC]").astype("int64")
print("pandas", len(d), d.value.sum(), d.labels.nunique(), ms.min(), ms.max(), d.name.nunique(), d.histogram.notna().sum())
p = polars.read_parquet(path)
print("polars", p.height, p["value"].sum(), p["labels"].n_unique(), p["timestamp"].dt.epoch("ms").min(), p["timestamp"].dt.epoch("ms").max(), p["name"].n_unique(), p["histogram"].count())
`

// promtool and Prometheus read exported blocks, promtool makes the same blocks of exported OpenMetrics, and libraries read
// exported Parquet files.
func TestPeerPrometheus_ReadsExportedFiles(t *testing.T) {
	promtool, s, path, dir := peerBinary(t, "promtool"), startServe(t, idle(t)), binary(t), t.TempDir()
	start, end := writeReadable(t, 5, s)
	wantCount, wantSum := s.promQLTotals(start, end)
	export := func(name string) string {
		out := filepath.Join(dir, name)
		mustRead(t, path, readArgs(s.base, start, end, out)...)
		return out
	}
	t.Run("blocks", func(t *testing.T) {
		blocks := export("blocks")
		entries := try(os.ReadDir(blocks)).must(t)
		if len(entries) < 3 {
			t.Fatalf("%d blocks", len(entries))
		}
		for _, entry := range entries {
			if out := tool(t, dir, promtool, "tsdb", "analyze", blocks, entry.Name()); !strings.Contains(out, "Total Series: 12") {
				t.Errorf("promtool tsdb analyze %s: %s", entry.Name(), out)
			}
		}
		served := startPrometheus(t, "", blocks, "--storage.tsdb.retention.time=10y")
		if count, sum := served.promQLTotals(start, end); count != wantCount || sum != wantSum {
			t.Errorf("Prometheus has %d samples of sum %g of the blocks, want %d of %g", count, sum, wantCount, wantSum)
		}
	})
	t.Run("OpenMetrics", func(t *testing.T) {
		blocks, got := filepath.Join(dir, "imported"), filepath.Join(dir, "got.csv")
		tool(t, dir, promtool, "tsdb", "create-blocks-from", "openmetrics", export("out.om"), blocks)
		mustRead(t, path, localArgs(blocks, start, end, got)...)
		sameFiles(t, export("want.csv"), got)
	})
	t.Run("Parquet", func(t *testing.T) {
		python := os.Getenv("FERULA_TEST_PYTHON")
		if python == "" || exec.Command(python, "-c", "import duckdb, pandas, polars, pyarrow").Run() != nil {
			t.Skip("needs FERULA_TEST_PYTHON, a python with duckdb, pandas, polars and pyarrow: run .ci/run")
		}
		rest := fmt.Sprintf("%d %.1f 12 %d %d 3 0\n", wantCount, wantSum, start*1000, (end-1)*1000+11)
		want := "duckdb " + rest + "duckdb label 903\npandas " + rest + "polars " + rest
		if output := tool(t, dir, python, "-c", frames, export("out.parquet")); output != want {
			t.Errorf("the libraries print\n%swant\n%s", output, want)
		}
	})
}

// sameFiles fails the test unless both files have the same content, and some.
func sameFiles(t *testing.T, want, got string) {
	t.Helper()
	a, b := try(os.ReadFile(want)).must(t), try(os.ReadFile(got)).must(t)
	if !bytes.Equal(a, b) || len(a) == 0 {
		t.Errorf("%s has %d bytes, %s %d", got, len(b), want, len(a))
	}
}

func TestPeerThanosSidecar_ExportEqualsItsPrometheus(t *testing.T) {
	prometheus, store := queriedSidecar(t) // with external labels
	path := binary(t)
	start, end := writeReadable(t, 5, prometheus)
	dir := t.TempDir()
	remote, sidecar := filepath.Join(dir, "remote.csv"), filepath.Join(dir, "store.csv")
	mustRead(t, path, readArgs(prometheus.base, start, end, remote)...)
	eventually(t, 60*time.Second, "the sidecar to return samples", func() bool {
		code, stderr, _ := runRead(t, path, storeArgs(store, start, end, sidecar)...)
		return code == 0 && strings.Contains(stderr, "3,612 samples of 12 series")
	})
	a, errA := os.ReadFile(remote)
	b, errB := os.ReadFile(sidecar)
	if errA != nil || errB != nil || !bytes.Equal(a, b) || !strings.Contains(string(a), `""cluster"":""eu""`) {
		t.Errorf("%d bytes from Prometheus, %d from the sidecar, %v, %v", len(a), len(b), errA, errB)
	}
}
