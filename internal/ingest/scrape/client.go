package scrape

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/mwitkow/go-conntrack"
	commonconfig "github.com/prometheus/common/config"
	"github.com/prometheus/prometheus/config"
)

// client fetches pages over HTTP. It sends plain requests itself: over HTTP/1.1, without TLS, proxy, credentials and
// headers of the configuration. Their connections need neither a goroutine nor a buffer between scrapes. The library's
// client, which has both, sends all other requests.
type client struct {
	*http.Client
	transport *http.Transport // its limits hold for plain requests; nil: no request is plain
	dialer    dialer          // for plain requests

	mu   sync.Mutex
	idle map[string][]*conn // by address, the last one used last
	kept int                // connections in idle
	old  *time.Timer        // closes connections that were idle for long; nil if there are none
}

// dialer connects to an address.
type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// conn is a connection to a target.
type conn struct {
	net.Conn
	address string
	since   time.Time // it is idle

	// Of the request that is running:
	in   *bufio.Reader
	left int64       // bytes that may still be read
	stop func() bool // the end of the context does not end the connection
}

// newClient returns a client for the targets of a job. It connects by dial; nil: over the network, or to a Unix socket
// at the path socket instead of the target's address.
func newClient(cfg *config.ScrapeConfig, dial dialer, socket string) (*client, error) {
	if dial == nil {
		dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			if socket != "" {
				network, address = "unix", socket
			}
			return (&net.Dialer{}).DialContext(ctx, network, address)
		}
	}
	library, err := commonconfig.NewClientFromConfig(cfg.HTTPClientConfig, cfg.JobName,
		commonconfig.WithDialContextFunc(dial))
	if err != nil {
		return nil, fmt.Errorf("error creating HTTP client: %w", err)
	}
	c := &client{Client: library, idle: map[string][]*conn{}}
	// The library's dialer has the same metrics, but also keeps a log of 7 KB for each connection, which nobody reads.
	c.dialer = conntrack.NewDialContextFunc(conntrack.DialWithName(cfg.JobName), conntrack.DialWithDialContextFunc(
		func(ctx context.Context, network, address string) (net.Conn, error) {
			to, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return probed{to}, nil
		}))
	// Whatever else a configuration asks for is in round trippers around the transport.
	if t, ok := library.Transport.(*http.Transport); ok && t.Proxy == nil && !t.DisableKeepAlives {
		c.transport = t
	}
	return c, nil
}

// plain returns the bytes of a request, and the address that they are sent to. There are none if only the library's
// client can send it.
func (c *client) plain(r *http.Request) (head []byte, address string) {
	if c.transport == nil || r.URL.Scheme != "http" || r.URL.User != nil || r.URL.Host == "" {
		return nil, ""
	}
	for _, b := range []byte(r.URL.Host) {
		if b >= 0x80 { // an international name
			return nil, ""
		}
	}
	var b bytes.Buffer
	if err := r.Write(&b); err != nil { // the library's client says why
		return nil, ""
	}
	return bytes.Clone(b.Bytes()), net.JoinHostPort(r.URL.Hostname(), cmp.Or(r.URL.Port(), "80"))
}

// get sends a plain request. The caller closes the body of the response.
func (c *client) get(ctx context.Context, u *url.URL, address string, head []byte) (*http.Response, error) {
	for {
		cn := c.take(address)
		reused := cn != nil
		if reused {
			if _, err := cn.Conn.Read(nil); err != nil { // see probed
				_ = cn.Close()
				continue
			}
		}
		var resp *http.Response
		var err error
		silent := true
		if !reused {
			cn, err = c.dial(ctx, address)
		}
		if err == nil {
			resp, silent, err = c.send(ctx, cn, head)
		}
		if err == nil {
			return resp, nil
		}
		// A target may close a connection at any time.
		if !reused || !silent || ctx.Err() != nil {
			return nil, &url.Error{Op: "Get", URL: u.String(), Err: ended(ctx, err)}
		}
	}
}

func (c *client) dial(ctx context.Context, address string) (*conn, error) {
	// With a deadline the dialer would divide the time between the addresses of a name.
	until, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	to, err := c.dialer(until, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: to, address: address}, nil
}

// ended replaces an error by the reason for which the context has ended, if it has.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// headMax is the limit on the head of a response, with the heads of the informational responses before it.
const headMax = 10 << 20

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 4<<10) }}

// send sends a request over a connection and reads the head of the response. After an error the connection is closed;
// silent means that the target has answered nothing.
func (c *client) send(ctx context.Context, cn *conn, head []byte) (resp *http.Response, silent bool, err error) {
	cn.stop = context.AfterFunc(ctx, func() { _ = cn.SetDeadline(time.Unix(1, 0)) })
	cn.in, cn.left = readers.Get().(*bufio.Reader), headMax
	cn.in.Reset(cn)
	defer func() {
		if err != nil {
			cn.release()
			_ = cn.Close()
		}
	}()
	if _, err := cn.Write(head); err != nil {
		return nil, true, err
	}
	if _, err := cn.in.Peek(1); err != nil {
		return nil, true, err
	}
	for resp == nil || resp.StatusCode/100 == 1 && resp.StatusCode != http.StatusSwitchingProtocols {
		if resp, err = http.ReadResponse(cn.in, nil); err != nil {
			if cn.left <= 0 {
				err = fmt.Errorf("net/http: server response headers exceeded %d bytes; aborted", headMax)
			}
			return nil, false, fmt.Errorf("net/http: HTTP/1.x transport connection broken: %w", err)
		}
	}
	cn.left = math.MaxInt64
	resp.Body = &responseBody{ReadCloser: resp.Body, ctx: ctx, client: c, conn: cn, whole: resp.ContentLength == 0,
		last: resp.Close || resp.StatusCode < http.StatusOK}
	return resp, false, nil
}

func (cn *conn) Read(p []byte) (int, error) {
	if cn.left <= 0 {
		return 0, errors.New("too long")
	}
	n, err := cn.Conn.Read(p[:min(int64(len(p)), cn.left)])
	cn.left -= int64(n)
	return n, err
}

// release ends a request. It says whether the connection can have another one.
func (cn *conn) release() bool {
	in := cn.in
	cn.in = nil
	usable := cn.stop() && in.Buffered() == 0
	in.Reset(nil)
	readers.Put(in)
	return usable
}

// responseBody is the body of a response to a plain request.
type responseBody struct {
	io.ReadCloser
	ctx    context.Context
	client *client
	conn   *conn
	whole  bool // it was read to its end
	last   bool // no request may follow
}

func (b *responseBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.whole = b.whole || err == io.EOF
	if err != nil && err != io.EOF {
		err = ended(b.ctx, err)
	}
	return n, err
}

// Close keeps the connection for another request, if it can have one. It reads nothing.
func (b *responseBody) Close() error {
	if b.conn.release() && b.whole && !b.last && b.client.keep(b.conn) {
		return nil
	}
	return b.conn.Close()
}

// take returns a kept connection to an address, nil if there is none.
func (c *client) take(address string) *conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.idle[address]
	if len(list) == 0 {
		return nil
	}
	last := len(list) - 1
	cn := list[last]
	c.idle[address] = slices.Delete(list, last, last+1)
	c.kept--
	return cn
}

func (c *client) keep(cn *conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.idle[cn.address]
	if len(list) >= c.transport.MaxIdleConnsPerHost || c.kept >= c.transport.MaxIdleConns {
		return false
	}
	cn.since = time.Now()
	c.idle[cn.address] = append(list, cn)
	c.kept++
	if c.old == nil {
		c.old = time.AfterFunc(c.transport.IdleConnTimeout, c.closeOld)
	}
	return true
}

// closeOld closes the connections that no request has used for a while.
func (c *client) closeOld() { c.closeIdle(time.Now().Add(-c.transport.IdleConnTimeout)) }

// CloseIdleConnections closes all connections that no request uses.
func (c *client) CloseIdleConnections() {
	c.Client.CloseIdleConnections()
	c.closeIdle(time.Now())
}

// closeIdle closes the connections that are idle since a time, or for longer.
func (c *client) closeIdle(since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	oldest := time.Now() // of the connections that stay
	for address, list := range c.idle {
		n := 0
		for n < len(list) && !list[n].since.After(since) {
			_ = list[n].Close()
			n++
		}
		if n < len(list) && list[n].since.Before(oldest) {
			oldest = list[n].since
		}
		c.kept -= n
		if c.idle[address] = slices.Delete(list, 0, n); n == len(list) {
			delete(c.idle, address)
		}
	}
	switch {
	case c.old == nil:
	case c.kept > 0:
		c.old.Reset(time.Until(oldest) + c.transport.IdleConnTimeout)
	default:
		c.old.Stop()
		c.old = nil
	}
}

// probed is a connection of which Read(nil) returns an error if the other side has closed it, or has sent something
// that nobody asked for.
type probed struct{ net.Conn }

func (c probed) Read(p []byte) (int, error) {
	if len(p) > 0 {
		return c.Conn.Read(p)
	}
	s, ok := c.Conn.(syscall.Conn)
	if !ok {
		return 0, nil
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return 0, err
	}
	var got error
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, got = syscall.Read(int(fd), b[:])
		return true
	})
	if err == nil && got != syscall.EAGAIN {
		err = net.ErrClosed
	}
	return 0, err
}
