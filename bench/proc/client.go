package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"
)

// ErrStatus means that a server responded with a status other than 2xx.
var ErrStatus = errors.New("unexpected status")

const (
	drainBufferBytes = 256 << 10
	errorTextBytes   = 500
	connectionsMax   = 64 // that are kept
)

// Request is one request: a GET, or a POST of its body. The zero value of Encoding requests the plain bytes.
type Request struct {
	Path     string
	Query    url.Values
	Encoding string      // Accept-Encoding; empty is identity
	Header   http.Header // further headers
	Body     []byte
}

// Response describes the response to a request, without its body.
type Response struct {
	Status    int           // also that of an ErrStatus
	Header    http.Header   // as the server set it
	Encoding  string        // Content-Encoding
	Bytes     int64         // of the body as it was sent, after compression
	Wire      int64         // read from the connection: body, framing and headers
	FirstByte time.Duration // from sending to the first byte of the body
	Elapsed   time.Duration // from sending to the last byte
}

// Client sends requests to one server and counts the bytes, also those of concurrent requests. It never decompresses.
type Client struct {
	base string
	http *http.Client
	wire atomic.Int64
}

// NewClient returns a client of the server at base, such as http://127.0.0.1:9490.
func NewClient(base string) *Client {
	c := &Client{base: base}
	dialer := net.Dialer{Timeout: 5 * time.Second}
	c.http = &http.Client{Transport: &http.Transport{
		DisableCompression: true,
		ReadBufferSize:     drainBufferBytes,

		MaxIdleConnsPerHost: connectionsMax,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return countingConn{conn, &c.wire}, nil
		},
	}}
	return c
}

// URL returns the server's base URL.
func (c *Client) URL() string { return c.base }

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Get sends r and copies the body to w as it was sent. A status other than 2xx is an error that quotes the body.
func (c *Client) Get(ctx context.Context, r Request, w io.Writer) (Response, error) {
	target := c.base + r.Path
	if len(r.Query) > 0 {
		target += "?" + r.Query.Encode()
	}
	method := http.MethodGet
	if r.Body != nil {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(r.Body))
	if err != nil {
		return Response{}, err
	}
	maps.Copy(req.Header, r.Header)
	req.Header.Set("Accept-Encoding", "identity")
	if r.Encoding != "" {
		req.Header.Set("Accept-Encoding", r.Encoding)
	}
	start, wire := time.Now(), c.wire.Load()
	resp, err := c.http.Do(req)
	if err != nil {
		return Response{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, errorTextBytes)) // quoted in the error only
		return Response{Status: resp.StatusCode}, fmt.Errorf("%s: %w %s: %s", target, ErrStatus, resp.Status, text)
	}
	a := Response{Status: resp.StatusCode, Header: resp.Header, Encoding: resp.Header.Get("Content-Encoding")}
	buffer := make([]byte, drainBufferBytes)
	for {
		n, err := resp.Body.Read(buffer)
		if n > 0 && a.Bytes == 0 {
			a.FirstByte = time.Since(start)
		}
		a.Bytes += int64(n)
		if _, werr := w.Write(buffer[:n]); werr != nil {
			return a, werr
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return a, fmt.Errorf("%s: after %d bytes: %w", target, a.Bytes, err)
		}
	}
	a.Elapsed, a.Wire = time.Since(start), c.wire.Load()-wire
	return a, nil
}

// Fetch sends r and returns the whole body as it was sent.
func (c *Client) Fetch(ctx context.Context, r Request) ([]byte, Response, error) {
	var body bytes.Buffer
	a, err := c.Get(ctx, r, &body)
	return body.Bytes(), a, err
}

// countingConn adds the bytes read to a counter.
type countingConn struct {
	net.Conn
	read *atomic.Int64
}

// Read reads and counts.
func (c countingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.read.Add(int64(n))
	return n, err
}
