package server

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/process"
)

func TestServer_ProtocolsAndTimeouts(t *testing.T) {
	logger := slog.New(slog.DiscardHandler)
	s := WebOptions{ReadTimeout: time.Minute}.Server(http.NotFoundHandler(), logger)
	if s.Protocols == nil || !s.Protocols.HTTP1() || !s.Protocols.UnencryptedHTTP2() {
		t.Errorf("without TLS: %v", s.Protocols)
	}
	if s.ReadTimeout != time.Minute || s.IdleTimeout != time.Minute || s.ReadHeaderTimeout != headerTimeout {
		t.Errorf("%s, %s, %s", s.ReadTimeout, s.IdleTimeout, s.ReadHeaderTimeout)
	}
	if s = (WebOptions{ConfigFile: "web.yml", ReadTimeout: time.Second}).Server(http.NotFoundHandler(), logger); s.Protocols != nil || s.ReadHeaderTimeout != time.Second {
		t.Errorf("with a configuration: %v, %s", s.Protocols, s.ReadHeaderTimeout)
	}
}

// failingListener cannot be closed without an error.
type failingListener struct{ net.Listener }

var errListener = errors.New("the listener fails")

func (l failingListener) Close() error { return errors.Join(errListener, l.Listener.Close()) }

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func TestListeners_CloseClosesAllAndReturnsTheErrors(t *testing.T) {
	one, two := listen(t), listen(t)
	l := Listeners{failingListener{one}, two}
	if err := l.Close(); !errors.Is(err, errListener) {
		t.Error(err)
	}
	if _, err := two.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

func TestServe_ReturnsTheErrorOfAListener(t *testing.T) {
	l := listen(t)
	_ = l.Close()
	o := WebOptions{}.WithDefaults()
	logger := slog.New(slog.DiscardHandler)
	if err := o.Serve(Listeners{l}, o.Server(http.NotFoundHandler(), logger), logger); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// startRequest serves a request that ends when the returned function is called.
func startRequest(t *testing.T, o WebOptions, l net.Listener) (*http.Server, func()) {
	t.Helper()
	running, release := make(chan struct{}), make(chan struct{})
	logger := slog.New(slog.DiscardHandler)
	server := o.Server(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(running)
		<-release
	}), logger)
	served, requested := make(chan error, 1), make(chan struct{})
	go func() { served <- o.Serve(Listeners{l}, server, logger) }()
	go func() {
		defer close(requested)
		if resp, err := http.Get("http://" + l.Addr().String()); err == nil {
			_ = resp.Body.Close()
		}
	}()
	<-running
	return server, func() {
		close(release)
		<-requested
		_ = server.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}

// Without a limit of connections and without a timeout of the drain: values that WithDefaults replaces.
func TestOptions_ZeroConnectionsAreNoLimitAndAZeroDrainFailsWhileARequestRuns(t *testing.T) {
	o := WebOptions{}.WithDefaults()
	o.MaxConnections, o.DrainTimeout = 0, 0
	server, end := startRequest(t, o, listen(t))
	defer end()
	if err := o.Drain(server); err == nil || !strings.Contains(err.Error(), "requests were still running after 0s") {
		t.Error(err)
	}
}

func TestDrain_WithoutATimeoutReturnsTheErrorOfTheListener(t *testing.T) {
	o := WebOptions{DrainTimeout: -1, MaxConnections: -1}.WithDefaults()
	l := failingListener{listen(t)}
	server := o.Server(http.NotFoundHandler(), slog.New(slog.DiscardHandler))
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	resp, err := http.Get("http://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if err := o.Drain(server); !errors.Is(err, errListener) {
		t.Error(err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}

func TestRegisterDebugEndpoints_EachHasItsHandler(t *testing.T) {
	mux := http.NewServeMux()
	WebOptions{}.RegisterDebugEndpoints(mux, "/p", &process.Readiness{})
	for path, want := range map[string]string{
		"heap": "/p/debug/pprof/", "cmdline": "/p/debug/pprof/cmdline", "profile": "/p/debug/pprof/profile",
		"symbol": "/p/debug/pprof/symbol", "trace": "/p/debug/pprof/trace",
	} {
		if _, pattern := mux.Handler(httptest.NewRequest(http.MethodGet, "/p/debug/pprof/"+path, nil)); pattern != want {
			t.Errorf("%s: %s", path, pattern)
		}
	}
	ready := &process.Readiness{}
	mux = http.NewServeMux()
	WebOptions{}.RegisterDebugEndpoints(mux, "", ready)
	ready.Ready()
	w := httptest.NewRecorder()
	if mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/-/ready", nil)); w.Code != http.StatusOK || w.Body.String() != "ferula is ready.\n" {
		t.Errorf("without a note: %d %q", w.Code, w.Body)
	}
}

func TestGuardForwarded_ForwardsWhatItAllowsAndExplainsWhatItRefuses(t *testing.T) {
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { WriteText(w, "done") })
	for path, want := range map[string]string{
		"/api/v1/query": "done", "/prom/api/v1/read": "done", "/api/v1/query/": "a page of another origin may not send this request: ",
		"/-/reload": "a page of another origin may not send this request: ", "/query": "a page of another origin",
	} {
		r := httptest.NewRequest(http.MethodPost, path, nil)
		r.Header.Set("Origin", "http://evil.test")
		w := httptest.NewRecorder()
		if GuardForwarded(OriginGuard(nil), next).ServeHTTP(w, r); !strings.HasPrefix(w.Body.String(), want) {
			t.Errorf("%s: %d %q", path, w.Code, w.Body)
		}
	}
	r := httptest.NewRequest(http.MethodPost, "/-/reload", nil)
	w := httptest.NewRecorder()
	if GuardForwarded(OriginGuard(nil), next).ServeHTTP(w, r); w.Body.String() != "done" {
		t.Errorf("without an origin: %d %q", w.Code, w.Body)
	}
}

func TestExternalURL_OfAnAddressWithoutAPortIsAnError(t *testing.T) {
	if u, err := ExternalURL("", &net.UnixAddr{Name: "/run/ferula.sock", Net: "unix"}); err == nil {
		t.Error(u)
	}
	for given, want := range map[string]string{"prom/x/": "/prom/x", "/": "", `"http://a"`: "quotes", "http://a'": "quotes"} {
		u, err := ExternalURL(given, nil)
		if want == "quotes" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, %v", given, u, err)
			}
		} else if err != nil || u.Path != want {
			t.Errorf("%s: %v, %v", given, u, err)
		}
	}
}
