// Package connlimit limits the connections of an HTTP server over all its listeners.
//
// At the limit, a connection that is idle between two requests is closed for a new one.
// Otherwise clients that open as many connections as the limit allows, and send nothing,
// would lock out all other clients until the idle timeout.
package connlimit

import (
	"container/list"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"
)

// idleMin is the minimum time for which a connection must be idle before it is closed for a
// new one. So a client that sends one request after the other is not disconnected between
// them.
const idleMin = time.Second

// retryEvery is how often a waiting connection looks for an idle one.
const retryEvery = 100 * time.Millisecond

// Limit is the limit of one server. Use New.
type Limit struct {
	slots chan struct{}
	now   func() time.Time

	mu   sync.Mutex
	idle *list.List // of *conn; the first one is idle for the longest time
}

// New returns a limit of max connections, which must be positive.
func New(max int) *Limit {
	return &Limit{slots: make(chan struct{}, max), now: time.Now, idle: list.New()}
}

// Listener returns l within the limit. A slot is taken after a connection is accepted, so
// that a listener without clients holds none.
func (m *Limit) Listener(l net.Listener) net.Listener {
	return &listener{Listener: l, limit: m, closed: make(chan struct{})}
}

// ConnState is a hook for http.Server.ConnState. It records which connections are idle.
func (m *Limit) ConnState(c net.Conn, state http.ConnState) {
	if secure, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = secure.NetConn()
	}
	limited, ok := c.(*conn)
	if !ok {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.notIdle(limited)
	if state == http.StateIdle {
		limited.since, limited.element = m.now(), m.idle.PushBack(limited)
	}
}

// notIdle removes a connection from the idle ones. The caller holds mu.
func (m *Limit) notIdle(c *conn) {
	if c.element != nil {
		m.idle.Remove(c.element)
		c.element = nil
	}
}

// evict closes the connection that is idle for the longest time, if it is idle for at least idleMin.
func (m *Limit) evict() {
	m.mu.Lock()
	var oldest *conn
	if front := m.idle.Front(); front != nil {
		if oldest = front.Value.(*conn); m.now().Sub(oldest.since) < idleMin {
			oldest = nil
		} else {
			m.notIdle(oldest)
		}
	}
	m.mu.Unlock()
	if oldest != nil {
		_ = oldest.Close() // the server sees the error when it reads
	}
}

type listener struct {
	net.Listener
	limit  *Limit
	closed chan struct{}
	once   sync.Once
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	select {
	case l.limit.slots <- struct{}{}:
		return l.limit.admitted(accepted), nil
	default:
	}
	tick := time.NewTicker(retryEvery)
	defer tick.Stop()
	for {
		l.limit.evict()
		select {
		case l.limit.slots <- struct{}{}:
			return l.limit.admitted(accepted), nil
		case <-l.closed:
			return nil, errors.Join(net.ErrClosed, accepted.Close())
		case <-tick.C:
		}
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

func (m *Limit) admitted(c net.Conn) net.Conn {
	return &conn{Conn: c, release: sync.OnceFunc(func() { <-m.slots })}
}

type conn struct {
	net.Conn
	release func()

	since   time.Time     // when it became idle
	element *list.Element // in the list of idle ones; nil: not idle
}

// Close implements net.Conn.
func (c *conn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
