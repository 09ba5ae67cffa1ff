package server

import (
	"bufio"
	"errors"
	"fmt"
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

// serveWeb serves handler with the options until the test ends.
func serveWeb(t *testing.T, o WebOptions, handler http.HandlerFunc) (address string) {
	t.Helper()
	o.ListenAddress = "127.0.0.1:0"
	o = o.WithDefaults()
	listener, err := o.Listen()
	if err != nil {
		t.Fatal(err)
	}
	server := o.Server(handler, slog.New(slog.DiscardHandler))
	done := make(chan error, 1)
	go func() { done <- o.Serve(listener, server, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		_ = server.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return listener[0].Addr().String()
}

// exchangeRaw sends a raw request and reads the response.
func exchangeRaw(t *testing.T, address, request string) (status int, body string) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

func TestOptions_ReadTimeoutDoesNotCutTheResponse(t *testing.T) {
	const readTimeout = time.Second
	address := serveWeb(t, WebOptions{ReadTimeout: readTimeout}, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, "body: "+err.Error(), http.StatusRequestTimeout)
			return
		}
		select { // a query that takes longer than the read timeout
		case <-r.Context().Done():
			http.Error(w, "canceled", 499)
		case <-time.After(2 * readTimeout):
			fmt.Fprintf(w, "read %d bytes", len(body))
		}
	})
	for name, tt := range map[string]struct {
		request string
		status  int
		body    string
	}{
		"GET":                   {"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 200, "read 0 bytes"},
		"POST":                  {"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc", 200, "read 3 bytes"},
		"POST in chunks":        {"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 200, "read 3 bytes"},
		"a body that stalls":    {"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nabc", http.StatusRequestTimeout, "timeout"},
		"headers that stall":    {"GET / HTTP/1.1\r\nHost: localhost\r\n", 0, ""},
		"an empty POST is fine": {"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", 200, "read 0 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, body := exchangeRaw(t, address, tt.request)
			if tt.status == 0 && status == 200 || tt.status != 0 && (status != tt.status || !strings.Contains(body, tt.body)) {
				t.Errorf("%d %q, want %d %q", status, body, tt.status, tt.body)
			}
		})
	}
}

func TestOptions_NegativeMaxConnectionsIsUnlimited(t *testing.T) {
	address := serveWeb(t, WebOptions{MaxConnections: -1}, func(w http.ResponseWriter, _ *http.Request) { WriteText(w, "healthy") })
	for range 600 { // connections that are open and silent
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	if status, body := exchangeRaw(t, address, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"); status != 200 {
		t.Errorf("%d %s", status, body)
	}
}

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
		if got, err := RoutePrefix("web.route-prefix", given, external); err != nil || got != want {
			t.Errorf("%q: %q, %v", given, got, err)
		}
	}
}

// Without the error the routers panic when the server starts.
func TestRoutePrefix_RejectsWhatRoutersReadAsAPattern(t *testing.T) {
	for _, given := range []string{"http://host/x", "/a//b", "/a/../b", "/.", "/{x", "/{x}", "/a b", "/*x", "/a:", "/a:/b"} {
		if got, err := RoutePrefix("web.route-prefix", given, &url.URL{}); err == nil || !strings.Contains(err.Error(), "--web.route-prefix: ") || !strings.Contains(err.Error(), given) {
			t.Errorf("%q: %q, %v", given, got, err)
		}
	}
	if _, err := RoutePrefix("web.route-prefix", "", &url.URL{Path: "/a//b"}); err == nil || !strings.Contains(err.Error(), "--web.external-url: ") {
		t.Error(err)
	}
	for _, good := range []string{"/a.b", "/~x/y-z_1", "/a:b", "/ü", "/a,b;c=d&e+f$"} {
		if _, err := RoutePrefix("web.route-prefix", good, &url.URL{}); err != nil {
			t.Error(err)
		}
		http.NewServeMux().HandleFunc("GET "+good+"/x", func(http.ResponseWriter, *http.Request) {})
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

func TestHostNames_AllowsOnlyNamesOfTheServer(t *testing.T) {
	loopback := []string{"127.0.0.1:9490", "[::1]:9490"}
	for _, tt := range []struct {
		addresses []string
		external  string
		names     []string
		host      string
		want      bool
	}{
		{loopback, "", nil, "127.0.0.1:9490", true},
		{loopback, "", nil, "[::1]:9490", true},
		{loopback, "", nil, "[::1]", true},
		{loopback, "", nil, "[fe80::1%25eth0]:9490", true},
		{loopback, "", nil, "10.1.2.3", true},
		{loopback, "", nil, "localhost:9490", true},
		{loopback, "", nil, "LOCALHOST.:9490", true},
		{loopback, "", nil, "ferula.localhost", true},
		{loopback, "", nil, "", true},
		{loopback, "", nil, "rebind.example:9490", false},
		{loopback, "", nil, "localhost.example", false},
		{loopback, "", nil, "127.0.0.1.example:9490", false},
		{loopback, "", nil, "notlocalhost", false},
		{loopback, "", nil, "%", false},
		{loopback, "", nil, ":9490", false},
		{loopback, "https://Metrics.example/ferula", nil, "metrics.example", true},
		{loopback, "https://metrics.example:8443/ferula", nil, "metrics.example:443", true},
		{loopback, "https://metrics.example/ferula", nil, "other.example", false},
		{loopback, "", []string{"a.example", "b.example:9490"}, "B.example", true},
		{loopback, "", []string{"a.example"}, "b.example", false},
		{loopback, "", []string{AnyHost}, "b.example", true},
		{[]string{"localhost:0"}, "", nil, "rebind.example", false},
		{[]string{"0.0.0.0:9490"}, "", nil, "any.example", true},
		{[]string{":9490"}, "", nil, "any.example", true},
		{[]string{"127.0.0.1:9490", "10.1.2.3:9490"}, "", nil, "any.example", true},
		{[]string{"0.0.0.0:9490"}, "", []string{"a.example"}, "a.example", true},
		{[]string{"0.0.0.0:9490"}, "", []string{"a.example"}, "10.0.0.1", true},
		{[]string{"0.0.0.0:9490"}, "", []string{"a.example"}, "any.example", false},
		{[]string{"metrics.example:9490"}, "", []string{"a.example"}, "metrics.example:9490", true},
	} {
		if got := newHostNames(tt.addresses, tt.external, tt.names).allows(tt.host); got != tt.want {
			t.Errorf("%v, external %q, names %q: host %q allowed: %v, want %v", tt.addresses, tt.external, tt.names, tt.host, got, tt.want)
		}
	}
}

func TestHostNames_WrapRefusesOtherHosts(t *testing.T) {
	served := 0
	h := newHostNames([]string{"127.0.0.1:9490"}, "", nil).wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }))
	for host, status := range map[string]int{"127.0.0.1:9490": 200, "rebind.example:9490": http.StatusMisdirectedRequest, "<b>": http.StatusMisdirectedRequest} {
		r := httptest.NewRequest(http.MethodPost, "/ingest", strings.NewReader("body"))
		r.Host = host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != status || status != 200 && !strings.Contains(w.Body.String(), "--web.allowed-host") {
			t.Errorf("%s: %d %s, want %d", host, w.Code, w.Body, status)
		}
	}
	if served != 1 {
		t.Errorf("%d requests were served, want 1", served)
	}
}

func TestIsLoopback_OnlyForLoopbackAddresses(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:1": true, "127.9.9.9:1": true, "[::1]:1": true, "localhost:1": true, "[::2]:1": false, "127.0.0.1": false, "": false,
		":1": false, "0.0.0.0:1": false, "[::]:1": false, "10.0.0.1:1": false, "example.org:1": false, "localhost.example.org:1": false, "nonsense": false, "dnssrv+_grpc._tcp.localhost": false,
	} {
		if got := IsLoopback(address); got != want {
			t.Errorf("%s: %t", address, got)
		}
	}
}
