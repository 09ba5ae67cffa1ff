// Package e2e tests whole commands over HTTP and gRPC on loopback, with real
// configuration files. Most run inside the test's process; tests of kills, signals
// and flags run the binary. Tests that take long and neither measure times nor change
// the process, run in parallel, after the others. A test whose name begins with
// TestPeer needs another program and is run by `make interop`; the others need only Go.
package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/tsdb"
)

func TestMain(m *testing.M) {
	http.DefaultTransport.(*http.Transport).DisableKeepAlives = true
	goleak.VerifyTestMain(m,
		// Packages that Prometheus' configuration links start these when they are
		// imported.
		goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"),
		goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
		goleak.Cleanup(func(code int) {
			_ = os.RemoveAll(built.dir)
			os.Exit(code)
		}),
	)
}

// built is the ferula binary, which binary() builds once for the package.
var built struct {
	once sync.Once
	dir  string
	err  error
}

// server is a running `ferula serve` in this process.
type server struct {
	t    *testing.T
	base string
	grpc string // address of the gRPC server; "" if it has none
	stop func() error

	ready string // path of the readiness endpoint
}

// startServe runs a server on a free port until the test ends, and waits until
// it is ready.
func startServe(t *testing.T, change func(*app.ServeOptions)) *server {
	t.Helper()
	opts := serveOptions(t, change)
	serve := try(app.NewServe(opts)).must(t)
	s := runServe(t, serve)
	if opts.Web.ConfigFile != "" {
		s.base = "http://eve:apple@" + serve.Addr().String()
	}
	if external, err := url.Parse(opts.Web.ExternalURL); err == nil {
		s.ready = strings.TrimRight(external.Path, "/") + "/-/ready"
	}
	s.waitReady()
	return s
}

// serveOptions returns options for a server on a free port and an empty directory.
func serveOptions(t *testing.T, change func(*app.ServeOptions)) app.ServeOptions {
	t.Helper()
	opts := app.ServeOptions{
		Web:    app.WebOptions{ListenAddress: "127.0.0.1:0"},
		Store:  tsdb.Options{Dir: t.TempDir()},
		Logger: testLogger(t),
	}
	if change != nil {
		change(&opts)
	}
	return opts
}

// runServe runs a server until the test ends. It does not wait for readiness.
func runServe(t *testing.T, serve *app.Serve) *server {
	t.Helper()
	s := &server{t: t, base: "http://" + serve.Addr().String(), stop: run(t, serve.Run)}
	if addr := serve.GRPCAddr(); addr != nil {
		s.grpc = addr.String()
	}
	return s
}

// run runs a part until stop is called, or the test ends.
func run(t *testing.T, part func(context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- part(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(30 * time.Second):
			stacks := make([]byte, 1<<20)
			return fmt.Errorf("it did not stop; goroutines:\n%s", stacks[:runtime.Stack(stacks, true)])
		}
	})
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("it stopped with %v", err)
		}
	})
	return stop
}

// testLogger logs to the test's log.
func testLogger(t *testing.T) *slog.Logger { return slog.New(slog.NewTextHandler(testLog{t}, nil)) }

// testLog writes the server's log to the test's log. The server stops before the test
// ends, so it never logs to a finished test.
type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

func (s *server) waitReady() {
	s.t.Helper()
	eventually(s.t, 60*time.Second, "the server to be ready", func() bool {
		status, _ := s.get(s.ready)
		return status == http.StatusOK
	})
}

// result is what a call returned.
type result[T any] struct {
	v   T
	err error
}

func try[T any](v T, err error) result[T] { return result[T]{v, err} }

// must returns the value. An error ends the test.
func (r result[T]) must(t testing.TB) T {
	t.Helper()
	noError(t, r.err)
	return r.v
}

// noError ends the test if there is an error.
func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually polls until ok returns true, and fails the test after within.
func eventually(t *testing.T, within time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("waited %s for %s", within, what)
}

func (s *server) get(path string) (int, string) {
	s.t.Helper()
	resp, err := http.Get(s.base + path)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatalf("%s: %v", path, err)
	}
	return resp.StatusCode, string(body)
}

// sample is one element of an instant vector.
type sample struct {
	Metric map[string]string `json:"metric"`
	Value  [2]any            `json:"value"`
}

// instant runs an instant query. A response other than 200 is an empty vector.
func (s *server) instant(query string, params ...string) []sample {
	s.t.Helper()
	form := url.Values{"query": {query}}
	for i := 0; i+1 < len(params); i += 2 {
		form.Set(params[i], params[i+1])
	}
	status, body := s.get("/api/v1/query?" + form.Encode())
	if status != http.StatusOK {
		return nil
	}
	var response struct {
		Data struct {
			Result []sample `json:"result"`
		} `json:"data"`
	}
	decode(s.t, body, &response)
	return response.Data.Result
}

func (s *server) value(query string, params ...string) string {
	s.t.Helper()
	v := s.instant(query, params...)
	if len(v) != 1 {
		return ""
	}
	text, _ := v[0].Value[1].(string)
	return text
}

func writeFile(t *testing.T, path, text string) string {
	t.Helper()
	noError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// binary returns the path of the ferula binary, which the first call builds.
func binary(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "ferula-e2e-"); built.err != nil {
			return
		}
		build := exec.Command("go", "build", "-ldflags=-s -w", "-o", built.dir, "../../cmd/ferula")
		if out, err := build.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.dir, "ferula")
}

// needsPeer skips a test whose program is not installed, and fails it if peersWanted.
func needsPeer(t *testing.T, what string, found bool) {
	t.Helper()
	switch {
	case found:
	case peersWanted():
		t.Fatalf("%s is not installed", what)
	default:
		t.Skipf("needs %s: run `make interop`", what)
	}
}

// peersWanted reports whether a missing peer fails the test.
func peersWanted() bool { return os.Getenv("FERULA_TEST_PEERS") != "" }

// request sends a request with headers: names and values in turn, of which empty ones are left out.
func (s *server) request(method, path, body string, header ...string) (status int, text string, got http.Header) {
	s.t.Helper()
	req := try(http.NewRequest(method, s.base+path, strings.NewReader(body))).must(s.t)
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		} else if header[i+1] != "" {
			req.Header.Set(header[i], header[i+1])
		}
	}
	resp := try(http.DefaultClient.Do(req)).must(s.t)
	defer resp.Body.Close()
	return resp.StatusCode, string(try(io.ReadAll(resp.Body)).must(s.t)), resp.Header
}

func (s *server) post(path, contentType, body string) (status int, text string) {
	s.t.Helper()
	status, text, _ = s.request(http.MethodPost, path, body, "Content-Type", contentType)
	return status, text
}

// reload requests a reload of the configuration.
func (s *server) reload() (status int, text string) {
	s.t.Helper()
	return s.post("/-/reload", "", "")
}

// decode decodes the JSON of a response.
func decode(t testing.TB, body string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(body), into); err != nil {
		t.Fatalf("%v in %.500s", err, body)
	}
}

// waitFor waits until the response of a path has each of the texts.
func (s *server) waitFor(path string, texts ...string) {
	s.t.Helper()
	body := ""
	eventually(s.t, 60*time.Second, fmt.Sprintf("%q of %s", texts, path), func() bool {
		_, body = s.get(path)
		return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(body, text) })
	})
}

// waitValue waits until a query has one result with this value.
func (s *server) waitValue(query, want string) {
	s.t.Helper()
	eventually(s.t, 60*time.Second, query+" to be "+want, func() bool { return s.value(query) == want })
}

// freeAddress returns an address that a server can listen on, also after a restart. Its port is below those that systems
// give to outgoing connections and to listeners on port 0, so that none of them takes it before.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 100 {
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 15_000+rand.IntN(15_000))); err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal("no port is free")
	return ""
}

// expect fails the test unless the response of a path has the status, if it is not 0, and each of the texts.
func (s *server) expect(path string, status int, texts ...string) {
	s.t.Helper()
	got, body := s.get(path)
	if status != 0 && got != status {
		s.t.Errorf("%s: %d %.1000s, want %d", path, got, body, status)
	}
	for _, text := range texts {
		if !strings.Contains(body, text) {
			s.t.Errorf("%s: no %q in %d %.5000s", path, text, got, body)
		}
	}
}

// expectValue fails the test unless a query has one result with this value.
func (s *server) expectValue(want, query string, params ...string) {
	s.t.Helper()
	if got := s.value(query, params...); got != want {
		s.t.Errorf("%s is %q, want %q", query, got, want)
	}
}

// mustReload requests a reload that must succeed.
func (s *server) mustReload() {
	s.t.Helper()
	if status, text := s.reload(); status != http.StatusOK {
		s.t.Fatalf("reload: %d %s", status, text)
	}
}

// reloadFails requests a reload that must fail with a text in its error.
func (s *server) reloadFails(want string) {
	s.t.Helper()
	if status, text := s.reload(); status != http.StatusInternalServerError || !strings.Contains(text, want) {
		s.t.Errorf("reload: %d %s, want %q", status, text, want)
	}
}

// serveFile runs a server with a configuration file.
func serveFile(t *testing.T, text string, change func(*app.ServeOptions)) *server {
	t.Helper()
	file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), text)
	return startServe(t, func(o *app.ServeOptions) {
		o.ConfigFile = file
		if change != nil {
			change(o)
		}
	})
}
