package server

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve serves handler within a limit of two connections.
func serve(t *testing.T, secure bool, handler http.HandlerFunc) (address string, m *connLimit) {
	t.Helper()
	m = newConnLimit(2)
	server := httptest.NewUnstartedServer(handler)
	server.Config.ConnState = m.connState
	server.Listener = m.listener(server.Listener)
	if secure {
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	return server.Listener.Addr().String(), m
}

// dial opens a connection, without a request.
func dial(t *testing.T, address string, secure bool) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if secure {
		return tls.Client(c, &tls.Config{InsecureSkipVerify: true})
	}
	return c
}

// request sends a request and reads the response.
func request(t *testing.T, c net.Conn) (status int, err error) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		return 0, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

func (m *connLimit) idleConnections() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.idle.Len()
}

func TestLimit_IdleConnectionsGiveWay(t *testing.T) {
	for _, secure := range []bool{false, true} {
		address, m := serve(t, secure, func(http.ResponseWriter, *http.Request) {})
		first, second := dial(t, address, secure), dial(t, address, secure)
		for i, c := range []net.Conn{first, second} {
			if status, err := request(t, c); err != nil || status != 200 {
				t.Fatalf("TLS %v: %d %v", secure, status, err)
			}
			for m.idleConnections() != i+1 { // the server learns it after the client has the response
				time.Sleep(time.Millisecond)
			}
		}
		if status, err := request(t, dial(t, address, secure)); err != nil || status != 200 {
			t.Fatalf("TLS %v: a third connection next to two idle ones: %d %v", secure, status, err)
		}
		if status, err := request(t, second); err != nil || status != 200 {
			t.Errorf("TLS %v: the connection that was idle for less time: %d %v", secure, status, err)
		}
		if _, err := request(t, first); err == nil {
			t.Errorf("TLS %v: the connection that was idle for the longest time is open", secure)
		}
	}
}

func TestLimit_RunningRequestsDoNotGiveWay(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	address, m := serve(t, false, func(http.ResponseWriter, *http.Request) { begun <- struct{}{}; <-end })
	results := make(chan int, 3)
	run := func() {
		c := dial(t, address, false)
		go func() { status, _ := request(t, c); results <- status }()
	}
	run()
	run()
	<-begun
	<-begun
	run()
	for range 5 {
		m.evict() // as the waiting connection does
	}
	select {
	case <-begun:
		t.Fatal("a third request was served next to two running ones, of two allowed")
	default:
	}
	end <- struct{}{}
	go func() { <-begun; end <- struct{}{} }()
	end <- struct{}{}
	for range 3 {
		if status := <-results; status != 200 {
			t.Errorf("status %d", status)
		}
	}
}

func TestLimit_ClosingTheListenerEndsTheWait(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := newConnLimit(1).listener(inner)
	dial(t, inner.Addr().String(), false)
	first, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	waiting := dial(t, inner.Addr().String(), false)
	done := make(chan error, 1)
	go func() { _, err := l.Accept(); done <- err }()
	_ = l.Close()
	if err := <-done; err == nil {
		t.Error("a connection was accepted beyond the limit")
	}
	_ = waiting.Close()
	if err := first.Close(); err != nil {
		t.Error(err)
	}
}

func TestConnLimit_AConnectionCanBeReset(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := newConnLimit(1).listener(tcp)
	defer l.Close()
	client, err := net.Dial("tcp", tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.(interface{ SetLinger(sec int) error }).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%v, want a reset connection", err)
	}
}
