package downstream

import (
	"context"
	"net"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"
)

// watch ends a try if no byte arrives on its connection for the idle timeout while a Read waits. It
// counts the bytes of the connection, because one Read may take many reads of the socket: net/http
// fills a large buffer from a large HTTP chunk.
type watch struct {
	idle time.Duration
	end  func()                      // ends the try
	conn atomic.Pointer[countedConn] // nil: the connection was not made by counted
	sent atomic.Bool                 // the request got a connection

	mu      sync.Mutex
	timer   *time.Timer
	waiting bool      // a Read waits
	until   time.Time // when the try ends unless a byte arrives
	seen    int64     // bytes read from the connection when until was set
}

// countedConn counts the bytes read.
type countedConn struct {
	net.Conn
	bytes atomic.Int64
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.bytes.Add(int64(n))
	return n, err
}

// counted wraps dial so that its connections count the bytes read.
func counted(dial func(ctx context.Context, network, address string) (net.Conn, error)) func(context.Context, string,
	string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &countedConn{Conn: conn}, nil
	}
}

// attach returns a context for the request of the try: once the request gets a connection, the
// watch stores it.
func (w *watch) attach(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		w.sent.Store(true)
		conn := info.Conn
		if secure, ok := conn.(interface{ NetConn() net.Conn }); ok {
			conn = secure.NetConn()
		}
		if own, ok := conn.(*countedConn); ok {
			w.conn.Store(own)
		}
	}})
}

func (w *watch) bytes() int64 {
	if conn := w.conn.Load(); conn != nil {
		return conn.bytes.Load()
	}
	return 0
}

// begin starts the idle timeout of one wait.
func (w *watch) begin() {
	if w.idle <= 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting, w.seen, w.until = true, w.bytes(), time.Now().Add(w.idle)
	if w.timer == nil {
		w.timer = time.AfterFunc(w.idle, w.fire)
	} else {
		w.timer.Reset(w.idle)
	}
}

// done ends the wait.
func (w *watch) done() {
	if w.idle <= 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = false
	w.timer.Stop()
}

// fire ends the try if no byte arrived since until was set. It may run late, after
// the wait has ended or the next one has begun.
func (w *watch) fire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.waiting {
		return
	}
	now := time.Now()
	if bytes := w.bytes(); bytes != w.seen {
		w.seen, w.until = bytes, now.Add(w.idle)
	}
	if left := w.until.Sub(now); left > 0 {
		w.timer.Reset(left)
		return
	}
	w.end()
}
