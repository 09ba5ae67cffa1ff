package downstream

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	instruments "github.com/ferula-io/ferula/metrics"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// check fails the test if got and want differ.
func check[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// checkIs fails the test unless err wraps want; nil wants no error.
func checkIs(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got error %v, want %v", err, want)
	}
}

// open sends r with a client of opts, whose back-off is short unless opts set one.
func open(t testing.TB, opts Options, r Request) (*Response, error) {
	t.Helper()
	return client(t, opts, nil).Open(t.Context(), r)
}

func client(t testing.TB, opts Options, set *instruments.Set) *Client {
	t.Helper()
	if opts.BackoffMin == 0 {
		opts.BackoffMin, opts.BackoffMax = time.Microsecond, time.Millisecond
	}
	if opts.BudgetBurst == 0 {
		opts.BudgetBurst = 1 << 20
	}
	c, err := New(opts, slog.New(slog.DiscardHandler), set)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// readAll reads the body to its end in pieces of size bytes and closes it.
func readAll(r *Response, size int) (string, error) {
	defer r.Body.Close()
	var all bytes.Buffer
	_, err := io.CopyBuffer(struct{ io.Writer }{&all}, r.Body, make([]byte, size))
	return all.String(), err
}

// get requests path and reads the response.
func get(t testing.TB, c *Client, path string) (status int, body string, err error) {
	t.Helper()
	resp, err := c.Open(t.Context(), Request{Path: path})
	if err != nil {
		return 0, "", err
	}
	body, err = readAll(resp, 7)
	return resp.Status, body, err
}

// raw is a server that writes HTTP by hand, so that it can break off anywhere.
type raw struct {
	url      string
	mu       sync.Mutex
	requests map[string]int // by URI
}

// serveRaw calls respond for each request, with the number of earlier requests of the
// same URI, and closes the connection when respond returns.
func serveRaw(t testing.TB, respond func(conn net.Conn, r *http.Request, before int)) *raw {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &raw{url: "http://" + listener.Addr().String(), requests: map[string]int{}}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				r, err := http.ReadRequest(bufio.NewReader(conn))
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, r.Body)
				s.mu.Lock()
				before := s.requests[r.URL.RequestURI()]
				s.requests[r.URL.RequestURI()]++
				s.mu.Unlock()
				respond(conn, r, before)
			})
		}
	})
	t.Cleanup(func() { listener.Close(); running.Wait() })
	return s
}

// count returns the number of requests of a URI.
func (s *raw) count(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[path]
}

// reset makes the end of a connection an RST instead of a FIN.
func reset(conn net.Conn) { _ = conn.(*net.TCPConn).SetLinger(0) }

// gone waits until the client has closed its side.
func gone(conn net.Conn) { _, _ = conn.Read(make([]byte, 1)) }

// document is a small response; its digits keep it from compressing to almost nothing.
func document(series int) string {
	var b strings.Builder
	b.WriteString(`{"status":"success","data":{"resultType":"matrix","result":[`)
	for i := range series {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"metric":{"i":"%d"},"values":[[%d,"%d"]]}`, i, 1700000000+i*7919, i*i*104729)
	}
	b.WriteString(`]}}`)
	return b.String()
}

func encode(t testing.TB, encoding, text string) string {
	t.Helper()
	var b bytes.Buffer
	var w interface {
		io.WriteCloser
		Flush() error
	}
	switch encoding {
	case Identity:
		return text
	case Gzip:
		w = gzip.NewWriter(&b)
	case Snappy:
		w = snappy.NewBufferedWriter(&b)
	case Zstd:
		w, _ = zstd.NewWriter(&b, zstd.WithEncoderConcurrency(1)) // valid options
	default:
		t.Fatalf("no encoder for %s", encoding)
	}
	// Several blocks, so that a part of the bytes decodes to a part of the text.
	for len(text) > 0 {
		n := min(len(text), max(97, len(text)/8))
		_, err := io.WriteString(w, text[:n])
		if err = errors.Join(err, w.Flush()); err != nil {
			t.Fatal(err)
		}
		text = text[n:]
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// wire returns the bytes of a whole response.
func wire(t testing.TB, encoding, framing, text string) string {
	t.Helper()
	body := encode(t, encoding, text)
	var b strings.Builder
	b.WriteString("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
	if encoding != Identity {
		fmt.Fprintf(&b, "Content-Encoding: %s\r\n", encoding)
	}
	switch framing {
	case "content-length":
		fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n%s", len(body), body)
	case "chunked":
		b.WriteString("Transfer-Encoding: chunked\r\n\r\n")
		for len(body) > 0 {
			n := min(len(body), 61)
			fmt.Fprintf(&b, "%x\r\n%s\r\n", n, body[:n])
			body = body[n:]
		}
		b.WriteString("0\r\n\r\n")
	default:
		b.WriteString("Connection: close\r\n\r\n" + body)
	}
	return b.String()
}

// fakeTripper replaces the network, so that tests need no real time.
type fakeTripper func(*http.Request) (*http.Response, error)

func (f fakeTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (f fakeTripper) wrap(http.RoundTripper) http.RoundTripper { return f }

// status is a response without a body.
func status(code int, header ...string) *http.Response {
	resp := &http.Response{StatusCode: code, Header: http.Header{}, Body: http.NoBody, ProtoMajor: 1}
	for i := 0; i < len(header); i += 2 {
		resp.Header.Set(header[i], header[i+1])
	}
	return resp
}

// endless waits for the end of the request's context.
func endless(ctx context.Context) (*http.Response, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

func values(pairs ...string) url.Values {
	v := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		v.Add(pairs[i], pairs[i+1])
	}
	return v
}
