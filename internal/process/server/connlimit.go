package server

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

// connLimit limits the connections of an HTTP server over all its listeners. At the limit, a connection that is idle
// between two requests is closed for a new one. Otherwise clients that open as many connections as the limit allows,
// and send nothing, would lock out all other clients until the idle timeout.
type connLimit struct {
	slots chan struct{}
	now   func() time.Time

	mu   sync.Mutex
	idle *list.List // of *limitedConn; the first one is idle for the longest time
}

// newConnLimit returns a limit of max connections, which must be positive.
func newConnLimit(max int) *connLimit {
	return &connLimit{slots: make(chan struct{}, max), now: time.Now, idle: list.New()}
}

// listener returns l within the limit. A slot is taken after a connection is accepted, so
// that a listener without clients holds none.
func (m *connLimit) listener(l net.Listener) net.Listener {
	return &limitedListener{Listener: l, limit: m, closed: make(chan struct{})}
}

// connState is a hook for http.Server.ConnState. It records which connections are idle.
func (m *connLimit) connState(c net.Conn, state http.ConnState) {
	if secure, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = secure.NetConn()
	}
	limited, ok := c.(*limitedConn)
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
func (m *connLimit) notIdle(c *limitedConn) {
	if c.element != nil {
		m.idle.Remove(c.element)
		c.element = nil
	}
}

// evict closes the connection that is idle for the longest time, if it is idle for at least idleMin.
func (m *connLimit) evict() {
	m.mu.Lock()
	var oldest *limitedConn
	if front := m.idle.Front(); front != nil {
		if oldest = front.Value.(*limitedConn); m.now().Sub(oldest.since) < idleMin {
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

type limitedListener struct {
	net.Listener
	limit  *connLimit
	closed chan struct{}
	once   sync.Once
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
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

func (l *limitedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

func (m *connLimit) admitted(c net.Conn) net.Conn {
	return &limitedConn{Conn: c, release: sync.OnceFunc(func() { <-m.slots })}
}

type limitedConn struct {
	net.Conn
	release func()

	since   time.Time     // when it became idle
	element *list.Element // in the list of idle ones; nil: not idle
}

// SetLinger is net.TCPConn's: with 0, Close resets the connection.
func (c *limitedConn) SetLinger(sec int) error {
	if c, ok := c.Conn.(*net.TCPConn); ok {
		return c.SetLinger(sec)
	}
	return nil
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
