package e2e

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
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
			if status, text, _ := s.write(v1Type, "snappy", body); status/100 != 2 {
				t.Fatalf("%s: %d %s", s.base, status, text)
			}
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
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	records, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records[1:] {
		v, err := strconv.ParseFloat(r[3], 64)
		if err != nil {
			t.Fatal(err)
		}
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
	want, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
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
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
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
	want, err := os.ReadFile(plain)
	if err != nil {
		t.Fatal(err)
	}
	proxy := newLimitedProxy(t, s.base)
	proxy.hang.Store(true)
	out := filepath.Join(dir, "out.csv")
	args := readArgs(proxy.URL, start, end, out, "--window=1h", "--resume")
	kills := 0
	for done := false; !done; { // each run exports one more window
		proxy.left.Store(1)
		cmd := exec.Command(path, args...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case <-proxy.reached:
			kills++
			_ = cmd.Process.Kill()
			<-ended
		case err := <-ended:
			if done = true; err != nil {
				t.Fatal(err, stderr.String())
			}
		case <-time.After(30 * time.Second):
			_ = cmd.Process.Kill()
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
		cmd := exec.Command(path, args...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		if signal != nil {
			select {
			case <-proxy.reached:
				_ = cmd.Process.Signal(signal)
			case err := <-ended:
				t.Fatalf("%v: the run ended before it had sent three requests: %v\n%s", signal, err, stderr.String())
			case <-time.After(60 * time.Second):
				_ = cmd.Process.Kill()
				t.Fatalf("%v: the run neither sends a request nor exits", signal)
			}
		}
		<-ended
		if code := cmd.ProcessState.ExitCode(); code != 75 || !strings.Contains(stderr.String(), "--resume") {
			t.Errorf("%v: exit code %d: %s", signal, code, stderr.String())
		}
		if _, err := os.Stat(out); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v: the output file exists", signal)
		}
		if left, err := filepath.Glob(out + ".partial/*.tmp"); err != nil || len(left) != 0 {
			t.Errorf("%v: left %q, %v", signal, left, err)
		}
		proxy.left.Store(1000)
		stderr.Reset()
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
	want, err := os.ReadFile(remote)
	if err != nil {
		t.Fatal(err)
	}
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
		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
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
	a, errA := os.ReadFile(remote)
	b, errB := os.ReadFile(other)
	if errA != nil || errB != nil || len(a) == 0 || !bytes.Equal(a, b) {
		t.Errorf("%d bytes by remote read, %d from the store, %v, %v", len(a), len(b), errA, errB)
	}
	if code, stderr, _ := runRead(t, path, append(storeArgs(fmt.Sprintf("127.0.0.1:%d", freePort(t)), start, end, other+".csv"), "--format=csv", "--retries=0")...); code != 1 || !strings.Contains(stderr, "unavailable") {
		t.Errorf("nothing listens: exit code %d: %s", code, stderr)
	}
}

func TestRead_SendsHeadersAndCredentials(t *testing.T) {
	path, s := binary(t), startServe(t, idle(t))
	start, end := writeReadable(t, 1, s)
	var got atomic.Pointer[http.Header]
	u, err := url.Parse(s.base)
	if err != nil {
		t.Fatal(err)
	}
	pass := httputil.NewSingleHostReverseProxy(u)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := r.Header.Clone()
		got.Store(&header)
		if user, password, _ := r.BasicAuth(); user != "eve" || password != "apple" {
			http.Error(w, "wrong account", http.StatusUnauthorized)
			return
		}
		pass.ServeHTTP(w, r)
	}))
	defer front.Close()
	out := filepath.Join(t.TempDir(), "out.csv")
	config := writeFile(t, filepath.Join(t.TempDir(), "http.yml"), "basic_auth: {username: eve, password: apple}\n")
	code, stderr, _ := runRead(t, path, readArgs(front.URL, start, end, out)...)
	if code != 1 || !strings.Contains(stderr, "wrong account") {
		t.Errorf("without credentials: exit code %d: %s", code, stderr)
	}
	mustRead(t, path, readArgs(front.URL, start, end, out, "--http.config-file="+config, "--header=X-Scope-OrgID: team-a")...)
	if tenant := got.Load().Get("X-Scope-OrgID"); tenant != "team-a" {
		t.Errorf("the header is %q", tenant)
	}
	if count, sum := totals(t, out); count != 12*61 || math.IsNaN(sum) {
		t.Errorf("%d samples", count)
	}
}
