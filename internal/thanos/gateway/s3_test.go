package gateway

import (
	"fmt"
	"io"
	"log/slog"
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
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/thanos-io/objstore/providers/s3"

	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// faults is a proxy before a real S3 server. inject is called for each GET of a part of an
// object; it responds itself and returns true, or changes the response that it is given.
type faults struct {
	mu       sync.Mutex
	inject   func(w http.ResponseWriter, r *http.Request) (done bool)
	body     func(io.ReadCloser) io.ReadCloser
	injected atomic.Int64
}

func (f *faults) set(inject func(http.ResponseWriter, *http.Request) bool, body func(io.ReadCloser) io.ReadCloser) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.inject, f.body = inject, body
	f.injected.Store(0)
}

func (f *faults) get() (func(http.ResponseWriter, *http.Request) bool, func(io.ReadCloser) io.ReadCloser) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.inject, f.body
}

// startS3 runs a real S3 server over a directory with one bucket, and the proxy before it.
func startS3(t *testing.T) (b *s3.Bucket, dir string, f *faults) {
	t.Helper()
	build := func(args ...string) string {
		out, err := exec.Command("../../../test/peers/build.sh", append(args, "versitygw")...).Output()
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(out))
	}
	path := build("-n")
	if wanted := os.Getenv("FERULA_TEST_PEERS") != ""; path == "" && wanted {
		if path = build(); path == "" {
			t.Fatal("versitygw cannot be built")
		}
	}
	if path == "" {
		t.Skip("versitygw is not built: make interop builds it")
	}
	root := t.TempDir()
	dir = filepath.Join(root, "blocks")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	cmd := exec.Command(path, "--port", address, "posix", root)
	cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY=key", "ROOT_SECRET_KEY=secret")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	f = &faults{}
	proxy := httptest.NewServer(f.handler(address))
	t.Cleanup(proxy.Close)
	conf := "{bucket: blocks, endpoint: '" + strings.TrimPrefix(proxy.URL, "http://") + "', access_key: key, secret_key: secret, insecure: true, bucket_lookup_type: path, region: us-east-1}"
	b, err = s3.NewBucket(noLog{}, []byte(conf), "test", func(http.RoundTripper) http.RoundTripper {
		transport := &http.Transport{}
		t.Cleanup(transport.CloseIdleConnections)
		return transport
	})
	if err != nil {
		t.Fatal(err)
	}
	return b, dir, f
}

func (f *faults) handler(address string) http.Handler {
	to := &url.URL{Scheme: "http", Host: address}
	quiet := slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	proxy := &httputil.ReverseProxy{
		ErrorLog: quiet, Transport: &http.Transport{DisableKeepAlives: true},
		Rewrite: func(r *httputil.ProxyRequest) { // the signature is of the host that the client sees
			r.SetURL(to)
			r.Out.Host = r.In.Host
		},
		ModifyResponse: func(r *http.Response) error {
			if _, body := f.get(); body != nil && r.StatusCode == http.StatusPartialContent {
				r.Body = body(r.Body)
			}
			return nil
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inject, _ := f.get()
		if inject != nil && r.Method == http.MethodGet && r.Header.Get("Range") != "" && inject(w, r) {
			return
		}
		proxy.ServeHTTP(w, r)
	})
}

// share returns a function that returns true for a part of its calls, between 0 and 1, and counts these calls in injected.
func (f *faults) share(part float64) func() bool {
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(7, 7))
	return func() bool {
		mu.Lock()
		defer mu.Unlock()
		// The first call returns true, so that at least one fault is injected.
		if f.injected.Load() > 0 && rng.Float64() >= part {
			return false
		}
		f.injected.Add(1)
		return true
	}
}

// cutBody fails after some bytes.
type cutBody struct {
	io.ReadCloser
	left int
}

func (c *cutBody) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := c.ReadCloser.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

// slowBody sends a few bytes at a time.
type slowBody struct{ io.ReadCloser }

func (s slowBody) Read(p []byte) (int, error) {
	time.Sleep(100 * time.Microsecond)
	return s.ReadCloser.Read(p[:min(len(p), 2000)])
}

func reset(w http.ResponseWriter) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.Close()
}

func slowDown(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(http.StatusServiceUnavailable)
	fmt.Fprint(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>`)
}

// twoBlocks writes two blocks with the external labels block="0" and "1".
func twoBlocks(t *testing.T, dir string) (ids []string, want func(r storeapi.SeriesRequest, id string) selected) {
	t.Helper()
	for i := range 2 {
		ids = append(ids, writeBlock(t, dir, 0, 2*hourMS, 150, map[string]string{"block": fmt.Sprint(i)}))
	}
	return ids, func(r storeapi.SeriesRequest, id string) selected {
		return expected(t, dir, []string{id}, map[string]string{"block": fmt.Sprint(slices.Index(ids, id))}, r)
	}
}

// checkResponse checks the series of a response, and that a warning names each block of which
// a series is missing.
func checkResponse(t *testing.T, got selected, warnings []string, want map[string]selected) {
	t.Helper()
	text := strings.Join(warnings, "\n")
	n := 0
	for id, all := range want {
		missing := 0
		for key, chunks := range all {
			slices.Sort(got[key])
			switch list, ok := got[key]; {
			case !ok:
				missing++
			case !slices.Equal(list, chunks):
				t.Fatalf("%s has other chunks than in block %s", key, id)
			default:
				n++
			}
		}
		if missing > 0 && !strings.Contains(text, id) {
			t.Fatalf("%d series of block %s are missing, and no warning names it: %q", missing, id, warnings)
		}
	}
	if n != len(got) {
		t.Fatalf("%d series, of which %d are in the blocks", len(got), n)
	}
}

func TestPeerS3_FaultsGiveAnEqualResponseOrAWarning(t *testing.T) {
	bucket, dir, f := startS3(t)
	ids, want := twoBlocks(t, dir)
	r := storeapi.SeriesRequest{MaxMS: 2 * hourMS, Matchers: match(t, "job=~.+")}
	all := map[string]selected{}
	for _, id := range ids {
		all[id] = want(r, id)
	}
	if len(all[ids[0]]) != 300 {
		t.Fatalf("%d series", len(all[ids[0]]))
	}
	few, many := 0.2, 0.95
	for what, fault := range map[string]struct {
		inject func() func(http.ResponseWriter, *http.Request) bool
		body   func() func(io.ReadCloser) io.ReadCloser
	}{
		"503 for a fifth": {inject: func() func(http.ResponseWriter, *http.Request) bool {
			some := f.share(few)
			return func(w http.ResponseWriter, _ *http.Request) bool {
				if !some() {
					return false
				}
				slowDown(w)
				return true
			}
		}},
		"resets for a fifth": {inject: func() func(http.ResponseWriter, *http.Request) bool {
			some := f.share(few)
			return func(w http.ResponseWriter, _ *http.Request) bool {
				if !some() {
					return false
				}
				reset(w)
				return true
			}
		}},
		"most bodies are cut": {body: func() func(io.ReadCloser) io.ReadCloser {
			some := f.share(many)
			return func(b io.ReadCloser) io.ReadCloser {
				if !some() {
					return b
				}
				return &cutBody{b, 70_000}
			}
		}},
		"all bodies are cut at once": {body: func() func(io.ReadCloser) io.ReadCloser {
			some := f.share(1)
			return func(b io.ReadCloser) io.ReadCloser { some(); return &cutBody{b, 10} }
		}},
		"slow bodies": {body: func() func(io.ReadCloser) io.ReadCloser {
			some := f.share(1)
			return func(b io.ReadCloser) io.ReadCloser { some(); return slowBody{b} }
		}},
	} {
		t.Run(what, func(t *testing.T) {
			var inject func(http.ResponseWriter, *http.Request) bool
			var body func(io.ReadCloser) io.ReadCloser
			f.set(nil, nil)
			s := openStore(t, bucket, Options{})
			if fault.inject != nil {
				inject = fault.inject()
			}
			if fault.body != nil {
				body = fault.body()
			}
			f.set(inject, body)
			got, warnings := s.all(t, r)
			checkResponse(t, got, warnings, all)
			if f.injected.Load() == 0 {
				t.Error("no fault was injected")
			}
			if what == "slow bodies" && len(warnings) > 0 {
				t.Errorf("warnings %q", warnings)
			}
			if what == "all bodies are cut at once" && len(warnings) != 2 {
				t.Errorf("warnings %q", warnings)
			}
			f.set(nil, nil)
			got, warnings = s.all(t, r)
			if len(warnings) > 0 {
				t.Errorf("warnings after the faults: %q", warnings)
			}
			checkResponse(t, got, warnings, all)
		})
	}
}

func TestPeerS3_ABlockThatIsDeletedInMidQueryIsNamed(t *testing.T) {
	bucket, dir, f := startS3(t)
	ids, want := twoBlocks(t, dir)
	s := openStore(t, bucket, Options{})
	r := storeapi.SeriesRequest{MaxMS: 2 * hourMS, Matchers: match(t, "job=~.+")}
	good := map[string]selected{ids[0]: want(r, ids[0])}
	both := map[string]selected{ids[0]: good[ids[0]], ids[1]: want(r, ids[1])}
	var once sync.Once
	f.set(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, ids[1]+"/chunks/") {
			once.Do(func() {
				f.injected.Add(1)
				if err := os.RemoveAll(filepath.Join(dir, ids[1])); err != nil {
					t.Error(err)
				}
			})
		}
		return false
	}, nil)
	got, warnings := s.all(t, r)
	checkResponse(t, got, warnings, both)
	if f.injected.Load() != 1 || len(warnings) != 1 || !strings.Contains(warnings[0], ids[1]) {
		t.Errorf("deleted %d blocks, warnings %q", f.injected.Load(), warnings)
	}
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, still := s.blocks[ulid.MustParse(ids[1])]; still {
		t.Error("the deleted block is served after the next list")
	}
	got, warnings = s.all(t, r)
	if len(warnings) > 0 {
		t.Errorf("warnings after the next list: %q", warnings)
	}
	checkResponse(t, got, warnings, good)
}

// noLog is the provider's logger.
type noLog struct{}

func (noLog) Log(...any) error { return nil }
