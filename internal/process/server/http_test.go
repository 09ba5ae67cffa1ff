package server

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
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
