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
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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
	serve, err := app.NewServe(opts)
	if err != nil {
		t.Fatal(err)
	}
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
		Logger: slog.New(slog.NewTextHandler(testLog{t}, nil)),
	}
	if change != nil {
		change(&opts)
	}
	return opts
}

// runServe runs a server until the test ends. It does not wait for readiness.
func runServe(t *testing.T, serve *app.Serve) *server {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- serve.Run(ctx) }()
	stopped := false
	s := &server{t: t, base: "http://" + serve.Addr().String()}
	if addr := serve.GRPCAddr(); addr != nil {
		s.grpc = addr.String()
	}
	s.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(30 * time.Second):
			stacks := make([]byte, 1<<20)
			t.Fatalf("the server did not stop; goroutines:\n%s", stacks[:runtime.Stack(stacks, true)])
			return nil
		}
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Errorf("the server stopped with %v", err)
		}
	})
	return s
}

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
	if err := json.Unmarshal([]byte(body), &response); err != nil {
		s.t.Fatalf("%s: %v in %s", query, err, body)
	}
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
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
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
