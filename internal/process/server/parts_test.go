package server

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/process"
)

func TestExternalURL_IsNormalized(t *testing.T) {
	loopback := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9090}
	for given, want := range map[string]string{
		"":                       "http://127.0.0.1:9090",
		"http://example.org/":    "http://example.org",
		"http://example.org/a//": "http://example.org/a",
		"http://eve@x/a":         "http://eve@x/a",
		"http://eve:apple@x/a":   "http://eve@x/a",
		"'http://example.org'":   "error: quotes",
		"http://eve:apple@[::1/": "error: missing ']'",
	} {
		u, err := ExternalURL(given, loopback)
		if text, ok := strings.CutPrefix(want, "error: "); ok {
			if err == nil || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "apple") {
				t.Errorf("%q: %v, %v", given, u, err)
			}
		} else if err != nil || u.String() != want {
			t.Errorf("%q: %v, %v, want %s", given, u, err, want)
		}
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if u, err := ExternalURL("", &net.TCPAddr{IP: net.IPv4zero, Port: 1}); err != nil || u.Hostname() != host {
		t.Errorf("all interfaces: %v, %v", u, err)
	}
}

func TestRoutePrefix_DefaultsToThePathOfTheExternalURL(t *testing.T) {
	external := &url.URL{Path: "/prom"}
	for given, want := range map[string]string{"": "/prom", "/": "", "x/y/": "/x/y"} {
		if got := RoutePrefix(given, external); got != want {
			t.Errorf("%q: %q", given, got)
		}
	}
}

func TestCORSOrigin_IsAnchored(t *testing.T) {
	re, err := CORSOrigin("https?://a[.]test")
	if err != nil || !re.MatchString("http://a.test") || re.MatchString("http://a.test.evil") {
		t.Error(re, err)
	}
	if re, err := CORSOrigin(""); err != nil || !re.MatchString("anything") {
		t.Error(re, err)
	}
	if _, err := CORSOrigin("("); err == nil || !strings.Contains(err.Error(), `"("`) {
		t.Error(err)
	}
}

func TestOriginGuard_RejectsOtherOrigins(t *testing.T) {
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { WriteText(w, "done") })
	external, _ := url.Parse("https://public.test/prom")
	for _, tt := range []struct {
		method, path, origin, site string
		status                     int
	}{
		{"POST", "/-/reload", "", "", 200},
		{"POST", "/-/reload", "http://example.com", "", 200}, // the Host of httptest
		{"POST", "/-/reload", "https://public.test", "cross-site", 200},
		{"POST", "/-/reload", "http://evil.test", "", 403},
		{"POST", "/-/reload", "", "cross-site", 403},
		{"GET", "/-/reload", "http://evil.test", "cross-site", 200},
		{"POST", "/api/v1/query", "http://evil.test", "cross-site", 200},
		{"POST", "/api/v1/write", "http://evil.test", "cross-site", 403},
	} {
		r := httptest.NewRequest(tt.method, tt.path, nil)
		if tt.origin != "" {
			r.Header.Set("Origin", tt.origin)
		}
		if tt.site != "" {
			r.Header.Set("Sec-Fetch-Site", tt.site)
		}
		w := httptest.NewRecorder()
		GuardForwarded(OriginGuard(external), next).ServeHTTP(w, r)
		if w.Code != tt.status {
			t.Errorf("%+v: %d %s", tt, w.Code, w.Body)
		}
	}
}

func TestOptions_SecurityReadsTheConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "web.yml")
	for text, want := range map[string]Security{
		"":                           {},
		"basic_auth_users: {eve: x}": {Clients: true},
		`{"tls_server_config": {}}`:  {TLS: true},
		"tls_server_config: {client_auth_type: RequireAnyClientCert}":       {TLS: true, Clients: true},
		"tls_server_config: {client_auth_type: RequestClientCert}":          {TLS: true},
		"tls_server_config: {client_auth_type: RequireAndVerifyClientCert}": {TLS: true, Clients: true},
		"[": {},
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		o := WebOptions{ConfigFile: file}
		if got := o.Security(); got != want {
			t.Errorf("%s: %+v", text, got)
		}
		if scheme := o.Scheme(); (scheme == "https") != want.TLS {
			t.Errorf("%s: %s", text, scheme)
		}
	}
	if got := (WebOptions{ConfigFile: file + "x"}).Security(); got != (Security{}) {
		t.Errorf("no file: %+v", got)
	}
}

func TestOptions_ListenReleasesAllAddressesAfterAnError(t *testing.T) {
	o := WebOptions{ListenAddress: "127.0.0.1:0", MoreAddresses: []string{"127.0.0.1:0"}}
	l, err := o.Listen()
	if err != nil {
		t.Fatal(err)
	}
	free, more := l[0].Addr().String(), l[1].Addr().String()
	again := WebOptions{ListenAddress: "127.0.0.1:0", MoreAddresses: []string{more}}
	if _, err := again.Listen(); err == nil || !strings.Contains(err.Error(), more) {
		t.Errorf("%v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	l, err = WebOptions{ListenAddress: free}.Listen()
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if _, err := (WebOptions{ListenAddress: free, ConfigFile: "/none"}).Listen(); err == nil || !strings.Contains(err.Error(), "/none") {
		t.Errorf("%v", err)
	}
}

// An idle connection is closed when another address needs its slot.
func TestOptions_MaxConnectionsIsOverAllAddresses(t *testing.T) {
	o := WebOptions{ListenAddress: "127.0.0.1:0", MoreAddresses: []string{"127.0.0.1:0"}, MaxConnections: 1}.WithDefaults()
	l, err := o.Listen()
	if err != nil {
		t.Fatal(err)
	}
	logger := slog.New(slog.DiscardHandler)
	server := o.Server(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { WriteText(w, "served") }), logger)
	served := make(chan error, 1)
	go func() { served <- o.Serve(l, server, logger) }()
	first, err := net.Dial("tcp", l[0].Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	request := func(conn net.Conn) {
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
	}
	request(first)
	if n, err := first.Read(make([]byte, 1)); n != 1 || err != nil { // the only slot is taken
		t.Fatal(err)
	}
	defer first.Close()
	second, err := net.Dial("tcp", l[1].Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	request(second)
	if _, err := second.Read(make([]byte, 1)); err != nil {
		t.Errorf("the second connection was not served: %v", err)
	}
	if _, err := io.Copy(io.Discard, first); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the idle connection: %v", err)
	}
	if err := o.Drain(server); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestOptions_DrainCutsRequestsAfterTheTimeout(t *testing.T) {
	if err := drained(t, time.Millisecond); err == nil || !strings.Contains(err.Error(), "still running after 1ms") {
		t.Errorf("%v", err)
	}
	if err := drained(t, -1); err != nil {
		t.Errorf("without a timeout: %v", err)
	}
}

// drained drains a server while it serves a request that does not end, which must fail.
func drained(t *testing.T, timeout time.Duration) error {
	t.Helper()
	o := WebOptions{ListenAddress: "127.0.0.1:0", DrainTimeout: timeout}.WithDefaults()
	l, err := o.Listen()
	if err != nil {
		t.Fatal(err)
	}
	running := make(chan struct{})
	logger := slog.New(slog.DiscardHandler)
	server := o.Server(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(running)
		<-r.Context().Done()
	}), logger)
	served := make(chan error, 1)
	go func() { served <- o.Serve(l, server, logger) }()
	result := make(chan error, 1)
	go func() {
		resp, err := http.Get("http://" + l[0].Addr().String())
		if err == nil {
			_ = resp.Body.Close()
		}
		result <- err
	}()
	<-running
	drained := o.Drain(server)
	if err := <-result; err == nil {
		t.Error("the request succeeded")
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	return drained
}

func TestOptions_DebugEndpointsHaveThePrefix(t *testing.T) {
	mux, ready := http.NewServeMux(), &process.Readiness{Note: func() string { return "A note.\n" }}
	WebOptions{}.RegisterDebugEndpoints(mux, "/p", ready)
	get := func(path string) (int, string) {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code, w.Body.String()
	}
	if code, body := get("/p/-/healthy"); code != 200 || body != "ferula is healthy.\n" {
		t.Errorf("%d %q", code, body)
	}
	if code, _ := get("/p/-/ready"); code != 503 {
		t.Errorf("%d", code)
	}
	ready.Ready()
	if code, body := get("/p/-/ready"); code != 200 || body != "ferula is ready.\nA note.\n" {
		t.Errorf("%d %q", code, body)
	}
	if code, body := get("/p/debug/pprof/goroutine?debug=1"); code != 200 || !strings.Contains(body, "goroutine profile") {
		t.Errorf("%d", code)
	}
	if code, body := get("/p/debug/pprof/cmdline"); code != 200 || body != os.Args[0] {
		t.Errorf("%d %q: the arguments may contain secrets", code, body)
	}
	if code, _ := get("/-/healthy"); code != 404 {
		t.Errorf("without the prefix: %d", code)
	}
}

// Secrets of flags are hidden in CommandLine, and a browser must not take arguments for a page.
func TestOptions_CommandLineIsShownAsText(t *testing.T) {
	mux := http.NewServeMux()
	WebOptions{CommandLine: []string{"ferula", "serve", "--flag=<b>"}}.RegisterDebugEndpoints(mux, "", &process.Readiness{})
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug/pprof/cmdline", nil))
	if w.Body.String() != "ferula\x00serve\x00--flag=<b>" || w.Header().Get("Content-Type") != "text/plain; charset=utf-8" || w.Header().Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%q, %v", w.Body, w.Header())
	}
}
