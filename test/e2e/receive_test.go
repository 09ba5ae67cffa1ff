package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/snappy"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/httpbody"
)

// receivers returns the paths that accept pushed data, with a valid body for each and
// the status of its response.
func receivers(t *testing.T) []struct {
	path, contentType string
	body              []byte
	status            int
} {
	now := time.Now().UnixMilli()
	return []struct {
		path, contentType string
		body              []byte
		status            int
	}{
		{"/api/v1/write", v1Type, encoded(t, v1(v1Series(now, 1, "__name__", "apples"))), http.StatusNoContent},
		{"/ingest?name=shop&format=groups", "text/plain", []byte("main;work 17\n"), http.StatusOK},
		{"/push.v1.PusherService/Push", "application/json", []byte("{}"), http.StatusOK},
		{"/v1development/profiles", "application/json", []byte("{}"), http.StatusOK},
	}
}

// stalledSender opens a connection that sends headers and two bytes of a body.
func stalledSender(t *testing.T, s *server, path, contentType string) net.Conn {
	t.Helper()
	conn := try(net.Dial("tcp", strings.TrimPrefix(s.base, "http://"))).must(t)
	t.Cleanup(func() { conn.Close() })
	try(fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: 30000000\r\n\r\nxx", path, contentType)).must(t)
	return conn
}

func (s *server) resident() float64 { return s.metric("process_resident_memory_bytes") }

func TestServe_StalledSendersDoNotBlockOthers(t *testing.T) {
	dir := t.TempDir()
	file := writeFile(t, dir+"/prometheus.yml", "scrape_configs: []\n")
	p := startProcess(t, binary(t), "serve", "--config.file="+file, "--storage.tsdb.path="+dir+"/data", "--web.listen-address=127.0.0.1:0",
		"--receive.body-timeout=10m", "--no-profiles.self")
	before := p.resident()
	for _, r := range receivers(t) {
		for range 100 {
			stalledSender(t, p.server, r.path, r.contentType)
		}
	}
	client := &http.Client{Timeout: 20 * time.Second}
	for _, r := range receivers(t) {
		for _, c := range []*http.Client{client, {Timeout: 20 * time.Second, Transport: h2cClient(t).Transport}} {
			resp, err := c.Post(p.base+r.path, r.contentType, bytes.NewReader(r.body))
			if err != nil {
				t.Errorf("%s with 100 stalled senders: %v", r.path, err)
				continue
			}
			text, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != r.status {
				t.Errorf("%s with 100 stalled senders: %d %s", r.path, resp.StatusCode, text)
			}
		}
	}
	// 64 KiB for the first read of each body, plus the connections.
	if grown := p.resident() - before; grown > 128<<20 {
		t.Errorf("300 stalled senders hold %.0f bytes", grown)
	}
}

func TestServe_SlowSendersAreCutOffWithAStatus(t *testing.T) {
	s := startServe(t, func(o *app.ServeOptions) {
		idle(t)(o)
		o.Receive.Bodies = httpbody.Options{Grace: 300 * time.Millisecond}
	})
	for _, r := range receivers(t) {
		conn := stalledSender(t, s, r.path, r.contentType)
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%s: %v", r.path, err)
		}
		text, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" || !strings.Contains(string(text), "too slow") {
			t.Errorf("%s: %d %v %s", r.path, resp.StatusCode, resp.Header, text)
		}
		slow, feed := io.Pipe()
		go func() { _, _ = feed.Write([]byte("xx")) }()
		resp, err = h2cClient(t).Post(s.base+r.path, r.contentType, slow)
		if err != nil {
			t.Fatalf("%s over HTTP/2: %v", r.path, err)
		}
		text, _ = io.ReadAll(resp.Body)
		resp.Body.Close()
		feed.Close()
		if resp.StatusCode != http.StatusServiceUnavailable || resp.ProtoMajor != 2 || !strings.Contains(string(text), "too slow") {
			t.Errorf("%s over HTTP/2: %d %s", r.path, resp.StatusCode, text)
		}
	}
	// gRPC returns its status in a trailer.
	slow, feed := io.Pipe()
	defer feed.Close()
	go func() { _, _ = feed.Write([]byte{0, 0}) }()
	resp := try(h2cClient(t).Post(s.base+"/push.v1.PusherService/Push", "application/grpc", slow)).must(t)
	_, _ = io.ReadAll(resp.Body)
	resp.Body.Close()
	if code := resp.Header.Get("Grpc-Status") + resp.Trailer.Get("Grpc-Status"); code != "14" {
		t.Errorf("gRPC: status %q, want 14 (unavailable)", code)
	}
}

// send sends a request with headers as a browser sets them.
func (s *server) send(method, path, contentType string, body []byte, header ...string) (int, string) {
	s.t.Helper()
	status, text, _ := s.request(method, path, string(body), append(header, "Content-Type", contentType)...)
	return status, text
}

func TestServe_WritesOfOtherOriginsAreRefused(t *testing.T) {
	s := startServe(t, func(o *app.ServeOptions) {
		idle(t)(o)
		o.Web.EnableLifecycle = true
		o.Web.ExternalURL = "https://ferula.example.com/"
	})
	foreign := [][]string{
		{"Origin", "https://evil.example"},
		{"Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site"},
		{"Sec-Fetch-Site", "same-site"},
		{"Origin", "null"},
	}
	own := [][]string{
		nil,
		{"Origin", s.base, "Sec-Fetch-Site", "same-origin"},
		{"Origin", s.base},
		{"Origin", "https://ferula.example.com"}, // behind a proxy that changes Host
	}
	routes := receivers(t)
	for _, path := range []string{"/-/reload", "/-/quit"} {
		routes = append(routes, struct {
			path, contentType string
			body              []byte
			status            int
		}{path, "text/plain", nil, http.StatusOK})
	}
	for _, r := range routes {
		methods := []string{http.MethodPost}
		if strings.HasPrefix(r.path, "/-/") {
			methods = append(methods, http.MethodPut)
		}
		for _, method := range methods {
			for _, header := range foreign {
				// Without a Content-Type a browser sends no preflight request.
				if status, text := s.send(method, r.path, "", r.body, header...); status != http.StatusForbidden || !strings.Contains(text, "another origin") {
					t.Errorf("%s %s with %v: %d %s", method, r.path, header, status, text)
				}
			}
			for _, header := range own {
				if r.path == "/-/quit" {
					continue
				}
				if status, text := s.send(method, r.path, r.contentType, r.body, header...); status != r.status {
					t.Errorf("%s %s with %v: %d %s", method, r.path, header, status, text)
				}
			}
		}
	}
	s.expectValue("1", "count(apples)")
	// Queries of other origins are allowed as in Prometheus, by POST, too.
	status, _, header := s.request("POST", "/api/v1/query", "query=apples",
		"Content-Type", "application/x-www-form-urlencoded", "Origin", "https://grafana.example", "Sec-Fetch-Site", "cross-site")
	if status != http.StatusOK || header.Get("Access-Control-Allow-Origin") == "" {
		t.Errorf("a read of another origin: %d %v", status, header)
	}
	if status, text := s.postJSON("querier.v1.QuerierService/LabelNames", map[string]any{}, nil); status != http.StatusOK {
		t.Errorf("the profile API: %d %s", status, text)
	}
}

func TestFrontend_WritesOfOtherOriginsAreNotForwarded(t *testing.T) {
	backend := startServe(t, func(o *app.ServeOptions) {
		idle(t)(o)
		o.Web.EnableLifecycle = true
	})
	front := startFrontend(t, backend.base, nil)
	r := receivers(t)[0]
	for _, path := range []string{r.path, "/-/reload"} {
		if status, text := front.send(http.MethodPost, path, r.contentType, r.body, "Origin", "https://evil.example"); status != http.StatusForbidden {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	if status, text := front.send(http.MethodPost, "/api/v1/query", "application/x-www-form-urlencoded", []byte("query=1"), "Origin", "https://grafana.example", "Sec-Fetch-Site", "cross-site"); status != http.StatusOK {
		t.Errorf("a read: %d %s", status, text)
	}
	if status, text := front.send(http.MethodPost, r.path, r.contentType, r.body); status != r.status {
		t.Errorf("another client: %d %s", status, text)
	}
}

func TestServe_SmallRequestOfManySeriesUsesBoundedMemory(t *testing.T) {
	dir := t.TempDir()
	file := writeFile(t, dir+"/prometheus.yml", "scrape_configs: []\n")
	p := startProcess(t, binary(t), "serve", "--config.file="+file, "--storage.tsdb.path="+dir+"/data", "--web.listen-address=127.0.0.1:0", "--no-profiles.self")
	before := p.resident()
	// Snappy compresses 16 million series without labels to a few hundred kB.
	status, text, _ := p.write(v1Type, "snappy", snappy.Encode(nil, bytes.Repeat([]byte{0x0A, 0}, 16<<20-1)))
	if status != http.StatusRequestEntityTooLarge || !strings.Contains(text, "268435456 bytes") {
		t.Errorf("1.0: %d %s", status, text)
	}
	status, text, _ = p.write(v2Type, "snappy", snappy.Encode(nil, bytes.Repeat([]byte{0x2A, 0}, 16<<20-1)))
	if status != http.StatusRequestEntityTooLarge || !strings.Contains(text, "268435456 bytes") {
		t.Errorf("2.0: %d %s", status, text)
	}
	if grown := p.resident() - before; grown > 256<<20 {
		t.Errorf("two requests hold %.0f bytes", grown)
	}
	lines := strings.Count(p.log.String(), "\n")
	if status, text, _ := p.write(v1Type, "snappy", snappy.Encode(nil, bytes.Repeat([]byte{0x0A, 0}, 32<<10))); status != http.StatusNoContent {
		t.Errorf("32,768 series without labels: %d %s", status, text)
	}
	if more := strings.Count(p.log.String(), "\n") - lines; more < 1 || more > 50 {
		t.Errorf("they caused %d log lines", more)
	}
	p.expect("/metrics", 0, "prometheus_api_remote_write_invalid_labels_samples_total 32768")
}
