package app

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/ferula-io/ferula/internal/thanos/gateway"
	"github.com/ferula-io/ferula/internal/tsdb"
)

// unusedAddress returns an address at which nothing listens.
func unusedAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return l.Addr().String()
}

// A process that starts again in the same program, or a test, needs the address.
func TestNew_AFailedStartReleasesTheAddress(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	broken := filepath.Join(t.TempDir(), "prometheus.yml")
	if err := os.WriteFile(broken, []byte("x: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, start := range map[string]func(WebOptions) error{
		"serve": func(w WebOptions) error {
			_, err := NewServe(ServeOptions{ConfigFile: broken, Web: w, Store: tsdb.Options{Dir: t.TempDir()}, Logger: quiet})
			return err
		},
		"query": func(w WebOptions) error {
			_, err := NewQuery(QueryOptions{Web: w, GRPC: GRPCOptions{ListenAddress: "127.0.0.1:99999"}, Logger: quiet})
			return err
		},
		"sidecar": func(w WebOptions) error {
			_, err := NewSidecar(SidecarOptions{Web: w, GRPC: GRPCOptions{ListenAddress: "127.0.0.1:99999"}, PrometheusURL: "http://127.0.0.1:1", TSDBDir: t.TempDir(), Logger: quiet})
			return err
		},
		"store": func(w WebOptions) error {
			_, err := NewStore(StoreOptions{Web: w, GRPC: GRPCOptions{ListenAddress: "127.0.0.1:99999"}, Bucket: "{type: FILESYSTEM, config: {directory: " + t.TempDir() + "}}", Store: gateway.Options{Dir: t.TempDir(), CacheBytes: 4 << 20}, Logger: quiet})
			return err
		},
	} {
		address := unusedAddress(t)
		if err := start(WebOptions{ListenAddress: address}); err == nil {
			t.Errorf("%s starts", name)
			continue
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		_ = l.Close()
	}
}

// Prometheus' page of runtime information has the variable.
func TestSetGCPercent_SetsTheVariable(t *testing.T) {
	t.Setenv("GOGC", "")
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	for percent, want := range map[int]string{-1: "off", 0: "0", 1: "1", 75: "75"} {
		setGCPercent(percent)
		if got := os.Getenv("GOGC"); got != want {
			t.Errorf("%d: %q", percent, got)
		}
		if got := debug.SetGCPercent(100); got != percent {
			t.Errorf("%d: the runtime has %d", percent, got)
		}
	}
}

// The server scrapes itself, loads its configuration again on request, and has the endpoints of
// a Prometheus.
func TestServe_WithoutAConfigurationServesItself(t *testing.T) {
	s, err := NewServe(ServeOptions{Web: WebOptions{ListenAddress: "127.0.0.1:0"}, Store: tsdb.Options{Dir: t.TempDir()}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	r := runRole(t, "serve", s.reg, s.Addr(), s.Run)
	for path, want := range map[string]string{
		"/api/v1/query?query=1%2B1":  `"2"`,
		"/api/v1/status/buildinfo":   `"version"`,
		"/api/v1/status/runtimeinfo": `"GOGC"`,
		"/api/v1/targets":            s.Addr().String(),
		"/-/healthy":                 "healthy",
	} {
		expect(t, r.base+path, want)
	}
	response, err := http.Post(r.base+"/-/reload", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, _ := io.ReadAll(response.Body); response.StatusCode != http.StatusForbidden || !strings.Contains(string(body), "Lifecycle API is not enabled") {
		t.Errorf("%d %s", response.StatusCode, body)
	}
}

// Thanos' clients commonly have no certificates: a warning instead of an error.
func TestQuery_WarnsIfGRPCAcceptsClientsThatHTTPRejects(t *testing.T) {
	file := filepath.Join(t.TempDir(), "web.yml")
	put(t, file, "basic_auth_users: {eve: $2a$04$ZPhz8rfdmpae1mBwsJUU1ugnOw3VCQbDPPYb9UM60sEIvn6WarITe}\n")
	for address, want := range map[string]bool{"0.0.0.0:0": true, "127.0.0.1:0": false} {
		var logged bytes.Buffer
		q, err := NewQuery(QueryOptions{Web: WebOptions{ListenAddress: "127.0.0.1:0", ConfigFile: file}, GRPC: GRPCOptions{ListenAddress: address},
			Logger: slog.New(slog.NewTextHandler(&logged, nil))})
		if err != nil {
			t.Fatal(err)
		}
		if err := q.process.Close(); err != nil {
			t.Error(err)
		}
		if strings.Contains(logged.String(), "The gRPC server accepts clients that the HTTP server rejects") != want {
			t.Errorf("%s: %s", address, logged.String())
		}
	}
}
