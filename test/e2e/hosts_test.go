package e2e

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/app"
)

// TestServe_LoopbackHasOnlyItsNames sends the requests of a browser for a page whose name
// resolves to a loopback address.
func TestServe_LoopbackHasOnlyItsNames(t *testing.T) {
	s := startServe(t, func(o *app.ServeOptions) { o.Web.ExternalURL = "http://metrics.example/" })
	port := s.base[strings.LastIndex(s.base, ":"):]
	send := func(method, path, host string) int {
		r, err := http.NewRequest(method, s.base+path, strings.NewReader("a;b 1\n"))
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		r.Header.Set("Origin", "http://"+host)
		r.Header.Set("Sec-Fetch-Site", "same-origin")
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode
	}
	for _, tt := range []struct{ method, path string }{
		{"POST", "/ingest?name=app&format=folded"}, {"POST", "/api/v1/write"}, {"POST", "/-/quit"}, {"GET", "/api/v1/query?query=up"}, {"GET", "/"}, {"GET", "/metrics"},
	} {
		if got := send(tt.method, tt.path, "rebind.example"+port); got != http.StatusMisdirectedRequest {
			t.Errorf("%s %s for another host: %d", tt.method, tt.path, got)
		}
		for _, host := range []string{"localhost" + port, "127.0.0.1" + port, "metrics.example"} {
			if got := send(tt.method, tt.path, host); got == http.StatusMisdirectedRequest {
				t.Errorf("%s %s for %s: %d", tt.method, tt.path, host, got)
			}
		}
	}
	now := strconv.FormatInt(time.Now().Unix()-1, 10)
	if got := send("POST", "/ingest?name=app&from="+now+"&until=now", "localhost"+port); got != http.StatusOK {
		t.Errorf("a push to localhost: %d", got)
	}
}

// TestServe_SlowHeadersDoNotFillTheConnections opens as many connections as are allowed. Their
// clients never end the headers, or never send a second request.
func TestServe_SlowHeadersDoNotFillTheConnections(t *testing.T) {
	t.Parallel()
	const connections = 8
	s := startServe(t, func(o *app.ServeOptions) { o.Web.MaxConnections = connections })
	http.DefaultClient.CloseIdleConnections()
	address := strings.TrimPrefix(s.base, "http://")
	for _, sent := range []string{"GET / HTTP/1.1\r\nHost: localhost\r\n", "", "GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n"} {
		for range connections {
			c, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := io.WriteString(c, sent); err != nil {
				t.Fatal(err)
			}
		}
		client := &http.Client{Timeout: 60 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Get(s.base + "/-/healthy")
		if err != nil {
			t.Fatalf("next to connections that sent %q: %v", sent, err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("next to connections that sent %q: %d", sent, resp.StatusCode)
		}
	}
}
