package proc

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// serveEnv makes the test binary a server that the tests start: see TestMain.
const serveEnv = "FERULA_BENCH_TEST_SERVE"

func TestMain(m *testing.M) {
	if addr := os.Getenv(serveEnv); addr != "" {
		serveForTest(addr)
	}
	os.Exit(m.Run())
}

func serveForTest(mode string) {
	if mode == "die" {
		os.Stderr.WriteString("cannot bind\n")
		os.Exit(3)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/ready", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/debug/pprof/heap", func(w http.ResponseWriter, r *http.Request) {
		runtime.GC()
		io.WriteString(w, "heap profile: 0: 0\n# HeapAlloc = 1\n# TotalAlloc = 3\n# Mallocs = 100\n")
	})
	mux.HandleFunc("/hold", func(w http.ResponseWriter, r *http.Request) {
		b := make([]byte, 64<<20)
		for i := range b {
			b[i] = 1
		}
		for start := time.Now(); time.Since(start) < 50*time.Millisecond; {
		}
		w.Write(b[:1000])
	})
	http.ListenAndServe(os.Args[1], mux)
}

func startForTest(t *testing.T, mode string) (*Server, error) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Start(context.Background(), Spec{
		Name: "test", Path: self, Ready: "/ready", Log: filepath.Join(t.TempDir(), "log"),
		Args: func(addr string) []string { return []string{addr} }, Env: []string{serveEnv + "=" + mode},
	})
}

func TestFieldsOfProcFiles(t *testing.T) {
	status := []byte("Name:\tx\nVmRSS:\t  900 kB\nRssAnon:\t  123 kB\nRssFile:\nThreads:\tmany\n")
	if v, err := field(status, "RssAnon", ":"); v != 123 || err != nil {
		t.Errorf("RssAnon: %d, %v", v, err)
	}
	for _, name := range []string{"RssShmem", "RssFile", "Anon"} {
		if _, err := field(status, name, ":"); !errors.Is(err, ErrMissing) {
			t.Errorf("%s: got %v, want ErrMissing", name, err)
		}
	}
	if _, err := field(status, "Threads", ":"); err == nil {
		t.Error("a word was parsed as a number")
	}
}

func TestSystemCallCountsAreRead(t *testing.T) {
	got, err := parseIO([]byte("rchar: 10\nwchar: 20\nsyscr: 3\nsyscw: 4\nread_bytes: 5\nwrite_bytes: 6\n"))
	if want := (IO{4, 20}); got != want || err != nil {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if got.Sub(IO{1, 1}) != (IO{3, 19}) {
		t.Errorf("difference: %+v", got.Sub(IO{1, 1}))
	}
	if _, err := parseIO([]byte("rchar: 10\n")); !errors.Is(err, ErrMissing) {
		t.Errorf("got %v, want ErrMissing", err)
	}
}

func TestHeapProfilesAreRead(t *testing.T) {
	text := "heap profile: 1: 2 [3: 4] @ heap/1048576\n1: 2 [3: 4] @ 0x1\n\n# runtime.MemStats\n# Alloc = 9\n" +
		"# TotalAlloc = 4096\n# Mallocs = 77\n# Frees = 5\n# HeapAlloc = 12\n# PauseNs = [1 2]\n"
	if got, err := parseMemStat([]byte(text), "Mallocs"); got != 77 || err != nil {
		t.Errorf("got %d, %v, want 77", got, err)
	}
	if _, err := parseMemStat([]byte("# TotalAlloc = 1\n"), "Mallocs"); !errors.Is(err, ErrMissing) {
		t.Errorf("got %v, want ErrMissing", err)
	}
	if _, err := parseMemStat([]byte("# Mallocs = x\n"), "Mallocs"); err == nil {
		t.Error("a word was parsed as a number")
	}
}

func TestCPUOfAProcessCountsFinerThanTicks(t *testing.T) {
	before, err := CPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	self := SelfCPU()
	for start := time.Now(); time.Since(start) < 3*time.Millisecond; {
	}
	after, err := CPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if used := after - before; used <= 0 || used > time.Second {
		t.Errorf("spinning for 3 ms used %v", used)
	}
	if SelfCPU() <= self {
		t.Error("this process' CPU clock does not advance")
	}
	if _, err := CPU(1 << 22); err == nil {
		t.Error("a process that does not exist has a clock")
	}
}

func TestAServerIsMeasuredFromOutside(t *testing.T) {
	ctx := context.Background()
	s, err := startForTest(t, "serve")
	if err != nil {
		t.Fatal(err)
	}
	hold := func() error {
		body, a, err := s.Fetch(ctx, Request{Path: "/hold"})
		if len(body) != 1000 || a.Bytes != 1000 || a.Wire <= 1000 || a.Elapsed < 50*time.Millisecond {
			t.Errorf("response of %d bytes: %+v", len(body), a)
		}
		return err
	}
	grown, err := s.GrowthDuring(ctx, hold)
	if err != nil || grown.Bytes() < 60<<20 {
		t.Errorf("grew by %d bytes, %v, want at least 60 MiB", grown.Bytes(), err)
	}
	before, err := s.IO()
	if err != nil {
		t.Fatal(err)
	}
	if cpu, err := s.CPUDuring(ctx, hold); err != nil || cpu < 20*time.Millisecond || cpu > 5*time.Second {
		t.Errorf("used %v, %v, want about 50 ms", cpu, err)
	}
	after, err := s.IO()
	if got := after.Sub(before); err != nil || got.Writes < 3 || got.WriteBytes < 1000 {
		t.Errorf("system calls: %+v, %v", got, err)
	}
	if n, err := s.MallocsDuring(ctx, hold); err != nil || n != 0 {
		t.Errorf("mallocs: %d, %v, want the canned 0", n, err)
	}
	if _, err := s.Get(ctx, Request{Path: "/nowhere"}, io.Discard); !errors.Is(err, ErrStatus) {
		t.Errorf("got %v, want ErrStatus", err)
	}
	if err := s.Stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
}

func TestAServerThatDiesIsAnErrorWithItsLog(t *testing.T) {
	_, err := startForTest(t, "die")
	if !errors.Is(err, ErrDied) || !strings.Contains(err.Error(), "cannot bind") {
		t.Errorf("got %v, want ErrDied and the log", err)
	}
}

func TestTheClientCountsTheBytesAsTheyWereSent(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", r.Header.Get("Accept-Encoding"))
		io.WriteString(w, strings.Repeat(r.FormValue("a"), 10))
	}))
	defer srv.Close()
	c := NewClient(srv.URL)
	defer c.Close()
	for encoding, want := range map[string]string{"": "identity", "gzip": "gzip"} {
		body, a, err := c.Fetch(context.Background(), Request{Path: "/", Query: map[string][]string{"a": {"&x"}}, Encoding: encoding})
		if err != nil || string(body) != strings.Repeat("&x", 10) || a.Bytes != 20 || a.Encoding != want {
			t.Errorf("encoding %q: %q, %+v, %v", encoding, body, a, err)
		}
	}
}

func TestTimes_GrowWithWork(t *testing.T) {
	user, sys, err := Times(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for begun := SelfCPU(); SelfCPU()-begun < 100*time.Millisecond; {
	}
	user2, sys2, err := Times(os.Getpid())
	if used := user2 + sys2 - user - sys; err != nil || used < 80*time.Millisecond {
		t.Errorf("%v of 100 ms, %v", used, err)
	}
}

func TestTimesDuring_IsThatOfTheServer(t *testing.T) {
	s, err := startForTest(t, "serve")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	}()
	user, sys, err := s.TimesDuring(context.Background(), func() error {
		_, err := s.Get(context.Background(), Request{Path: "/hold"}, io.Discard)
		return err
	})
	if err != nil || user+sys <= 0 || user+sys > 10*time.Second {
		t.Errorf("%v user, %v system, %v", user, sys, err)
	}
	failed := errors.New("failed")
	if _, _, err := s.TimesDuring(context.Background(), func() error { return failed }); !errors.Is(err, failed) {
		t.Errorf("got %v", err)
	}
}
