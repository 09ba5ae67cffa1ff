package cache

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

func TestMemcached_UsesTLS(t *testing.T) {
	first := make(chan byte, 10)
	address := listen(t, func(conn net.Conn) {
		var b [1]byte
		if _, err := io.ReadFull(conn, b[:]); err == nil {
			first <- b[0]
		}
	})
	for want, config := range map[byte]*tls.Config{22: {InsecureSkipVerify: true}, 'g': nil} { // 22 is a handshake
		m, err := NewMemcached(MemcachedOptions{Addresses: []string{address}, TLS: config, Timeout: 10 * time.Second}, quiet)
		check(t, err == nil, "new: %v", err)
		_, _, err = m.Get(context.Background(), "k")
		check(t, err != nil && <-first == want, "%v", err)
		check(t, m.Close() == nil, "close")
	}
}

func TestMemcached_OperationsReleaseTheirPlace(t *testing.T) {
	m, err := NewMemcached(MemcachedOptions{Addresses: []string{"127.0.0.1:1"}, OperationsMax: 1, ServerFailures: 3, ServerBackoff: time.Nanosecond}, quiet)
	check(t, err == nil, "new: %v", err)
	ctx := context.Background()
	fails := func(*memcache.Client) ([]byte, error) { panic("impossible size") }
	for range 4 { // the last one is a probe
		_, err = m.do(ctx, "k", fails)
		check(t, err != nil && strings.Contains(err.Error(), "memcached: client: impossible size"), "panic: %v", err)
		time.Sleep(time.Microsecond)
	}
	m.closed = true
	for range 2 {
		_, err = m.do(ctx, "k", fails)
		check(t, errors.Is(err, ErrUnavailable) && len(m.slots) == 0 && !m.servers[0].breaker.probing, "closed: %v, %d slots", err, len(m.slots))
	}
	m.closed = false
	m.slots <- struct{}{}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err = m.do(ended, "k", fails)
	check(t, errors.Is(err, context.Canceled) && !m.servers[0].breaker.probing, "full: %v", err)
	<-m.slots
	value, err := m.do(ctx, "k", func(*memcache.Client) ([]byte, error) { return []byte("v"), nil })
	check(t, string(value) == "v" && err == nil, "%q, %v", value, err)
	check(t, m.Close() == nil, "close")
}
