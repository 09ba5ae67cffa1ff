package role

import (
	"bufio"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// serveWeb serves handler with the options until the test ends.
func serveWeb(t *testing.T, o WebOptions, handler http.HandlerFunc) (address string) {
	t.Helper()
	o.ListenAddress = "127.0.0.1:0"
	o = o.withDefaults()
	listener, err := o.listen()
	if err != nil {
		t.Fatal(err)
	}
	server := o.server(handler, slog.New(slog.DiscardHandler))
	done := make(chan error, 1)
	go func() { done <- o.serve(listener, server, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		_ = server.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
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

func TestWebOptions_ReadTimeoutDoesNotCutTheResponse(t *testing.T) {
	const readTimeout = 200 * time.Millisecond
	address := serveWeb(t, WebOptions{ReadTimeout: readTimeout}, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, "body: "+err.Error(), http.StatusRequestTimeout)
			return
		}
		select { // a query that takes longer than the read timeout
		case <-r.Context().Done():
			http.Error(w, "canceled", 499)
		case <-time.After(5 * readTimeout):
			fmt.Fprintf(w, "read %d bytes", len(body))
		}
	})
	for name, tt := range map[string]struct {
		request string
		status  int
		body    string
	}{
		"GET":                   {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 200, "read 0 bytes"},
		"POST":                  {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", 200, "read 3 bytes"},
		"POST in chunks":        {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 200, "read 3 bytes"},
		"a body that stalls":    {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nabc", http.StatusRequestTimeout, "timeout"},
		"headers that stall":    {"GET / HTTP/1.1\r\nHost: x\r\n", 0, ""},
		"an empty POST is fine": {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 200, "read 0 bytes"},
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

func TestWebOptions_NegativeMaxConnectionsIsUnlimited(t *testing.T) {
	address := serveWeb(t, WebOptions{MaxConnections: -1}, func(w http.ResponseWriter, _ *http.Request) { writeText(w, "healthy") })
	for range 600 { // connections that are open and silent
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	if status, body := exchangeRaw(t, address, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); status != 200 {
		t.Errorf("%d %s", status, body)
	}
}

func TestReadiness_Returns503UntilReadyAndAfterStopping(t *testing.T) {
	g := &readiness{}
	h := g.wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeText(w, "served") }))
	get := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		return w
	}
	if w := get(); w.Code != http.StatusServiceUnavailable {
		t.Errorf("starting: %d", w.Code)
	}
	g.ready()
	if w := get(); w.Code != http.StatusOK || w.Body.String() != "served" {
		t.Errorf("ready: %d", w.Code)
	}
	g.stopping()
	if w := get(); w.Code != http.StatusServiceUnavailable || w.Header().Get("X-Prometheus-Stopping") != "true" {
		t.Errorf("stopping: %d %v", w.Code, w.Header())
	}
	g.ready()
	if w := get(); w.Code != http.StatusServiceUnavailable {
		t.Error("a stopping server became ready again")
	}
}

func TestNewTracing_AcceptsOnlyOTLP(t *testing.T) {
	for text, ok := range map[string]bool{
		"": true,
		"type: OTLP\nconfig: {client_type: http, endpoint: '127.0.0.1:4318', insecure: true, sampler_type: traceidratiobased, sampler_param: '0.5'}": true,
		"type: OTLP\nconfig: {client_type: grpc, endpoint: '127.0.0.1:4317', insecure: true}":                                                        true,
		"type: JAEGER": false,
		"type: OTLP\nconfig: {client_type: pigeon}":                           false,
		"type: OTLP\nconfig: {client_type: http, sampler_type: nonsense}":     false,
		"type: OTLP\nconfig: {client_type: http, nonsense: 1}":                false,
		"type: OTLP\nconfig: {client_type: http, tls_config: {ca_file: /no}}": false,
	} {
		tr, err := newTracing(text, "test")
		if (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
		if err == nil {
			if err := tr.close(); err != nil {
				t.Errorf("%q: close: %v", text, err)
			}
		}
	}
}

func TestReadiness_StartingSetsStoppingHeaderToFalse(t *testing.T) {
	w := httptest.NewRecorder()
	(&readiness{}).wrap(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("X-Prometheus-Stopping") != "false" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
}

func TestRegistry_AbortedResponsesHaveTheirOwnCode(t *testing.T) {
	reg := newRegistry()
	mux := http.NewServeMux()
	mux.HandleFunc("/half", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("half"))
		panic(http.ErrAbortHandler)
	})
	mux.HandleFunc("/none", func(http.ResponseWriter, *http.Request) { panic("a bug") })
	mux.HandleFunc("/whole", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("whole")) })
	server := httptest.NewUnstartedServer(reg.instrumented(mux))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Start()
	defer server.Close()
	for path, code := range map[string]string{"/half": aborted, "/none": aborted, "/whole": "200"} {
		resp, err := server.Client().Get(server.URL + path)
		if err == nil {
			_, err = io.ReadAll(resp.Body)
			_ = resp.Body.Close()
		}
		if (err == nil) != (code == "200") {
			t.Errorf("%s: %v", path, err)
		}
		server.CloseClientConnections() // until then the handler may still count
		for _, of := range []string{aborted, "200", "500"} {
			want := uint64(0)
			if of == code {
				want = 1
			}
			if got := reg.requests.With(path, "GET", of).Get(); got != want {
				t.Errorf("%s: %d requests of code %s, want %d", path, got, of, want)
			}
		}
	}
}

func TestIsLoopback_OnlyForLoopbackAddresses(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:1": true, "127.9.9.9:1": true, "[::1]:1": true, "localhost:1": true,
		":1": false, "0.0.0.0:1": false, "[::]:1": false, "10.0.0.1:1": false, "example.org:1": false, "localhost.example.org:1": false, "nonsense": false,
	} {
		if got := isLoopback(address); got != want {
			t.Errorf("%s: %t", address, got)
		}
	}
}
