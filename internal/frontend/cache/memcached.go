package cache

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/cespare/xxhash/v2"

	"github.com/ferula-io/ferula/internal/dnslookup"
)

// MemcachedOptions of a Memcached. Zero values take the defaults, which are Thanos'.
type MemcachedOptions struct {
	// Addresses of servers: host:port or a socket's path. Those with a prefix dns+,
	// dnsdualstack+, dnssrv+ or dnssrvnoa+ are resolved every UpdateInterval.
	Addresses []string
	// AutoDiscovery treats the addresses as configuration endpoints of a cluster.
	AutoDiscovery  bool
	UpdateInterval time.Duration // 0: 10 s

	Timeout            time.Duration // of a connection's reads and writes; 0: 500 ms
	IdleConnectionsMax int           // to one server; 0: 100
	OperationsMax      int           // concurrent operations; 0: 100
	ItemBytesMax       int64         // larger values are refused; 0: 1 MiB
	TLS                *tls.Config   // nil: none

	ServerFailures   int           // consecutive failures that open a server's breaker; 0: 5
	ServerBackoff    time.Duration // how long the breaker first stays open; 0: 1 s
	ServerBackoffMax time.Duration // ServerBackoff doubles up to this; 0: 30 s

	Resolver dnslookup.Resolver // nil: the system's
	Now      func() time.Time   // nil: time.Now
}

func (o MemcachedOptions) withDefaults() MemcachedOptions {
	o.UpdateInterval = cmp.Or(o.UpdateInterval, 10*time.Second)
	o.Timeout = cmp.Or(o.Timeout, 500*time.Millisecond)
	o.IdleConnectionsMax = cmp.Or(o.IdleConnectionsMax, 100)
	o.OperationsMax = cmp.Or(o.OperationsMax, 100)
	o.ItemBytesMax = cmp.Or(o.ItemBytesMax, 1<<20)
	o.ServerFailures = cmp.Or(o.ServerFailures, 5)
	o.ServerBackoff = cmp.Or(o.ServerBackoff, time.Second)
	o.ServerBackoffMax = cmp.Or(o.ServerBackoffMax, max(30*time.Second, o.ServerBackoff))
	o.Resolver = cmp.Or[dnslookup.Resolver](o.Resolver, net.DefaultResolver)
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Memcached is a Store on memcached servers.
//
// Every server has its own client and circuit breaker: a server that is down affects its own keys only. The client
// takes no context, so an operation runs in a goroutine, and its caller returns when ctx ends. The goroutine ends
// with the connection's deadline. At most OperationsMax such goroutines run.
type Memcached struct {
	opts   MemcachedOptions
	log    *slog.Logger
	dialer dialFunc
	book   addressBook

	mu      sync.RWMutex
	servers []*memcachedServer
	closed  bool

	slots   chan struct{} // OperationsMax slots; a running operation holds one
	cancel  context.CancelFunc
	running sync.WaitGroup
}

var _ Store = (*Memcached)(nil)

type memcachedServer struct {
	address string
	hash    uint64
	client  *memcache.Client
	breaker *breaker
}

// serverGrace: an operation whose deadline expires counts as a failure of the server only if it
// took at least this long.
const serverGrace = 100 * time.Millisecond

// itemOverheadBytes is the size of an item without its value, as memcached counts it.
const itemOverheadBytes = 256

// NewMemcached returns a store on the servers and resolves their addresses. A server
// that cannot be resolved or does not respond is not an error: it may start later.
func NewMemcached(opts MemcachedOptions, logger *slog.Logger) (*Memcached, error) {
	opts = opts.withDefaults()
	if len(opts.Addresses) == 0 {
		return nil, errors.New("memcached: no addresses")
	}
	if opts.Timeout < 0 || opts.UpdateInterval < 0 || opts.IdleConnectionsMax < 0 || opts.OperationsMax < 0 ||
		opts.ItemBytesMax < 0 {
		return nil, errors.New("memcached: times and limits cannot be negative")
	}
	m := &Memcached{opts: opts, log: logger, slots: make(chan struct{}, opts.OperationsMax)}
	m.dialer = (&net.Dialer{Timeout: opts.Timeout}).DialContext
	if opts.TLS != nil {
		m.dialer = (&tls.Dialer{NetDialer: &net.Dialer{Timeout: opts.Timeout}, Config: opts.TLS}).DialContext
	}
	m.book = addressBook{addresses: opts.Addresses, discover: opts.AutoDiscovery, resolver: opts.Resolver, dial: m.dialer,
		last: map[string][]string{}}
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	m.update(ctx)
	if opts.AutoDiscovery || slices.ContainsFunc(opts.Addresses, func(a string) bool { return strings.Contains(a, "+") }) {
		m.running.Go(func() { m.keepUpdating(ctx) })
	}
	return m, nil
}

func (m *Memcached) keepUpdating(ctx context.Context) {
	ticker := time.NewTicker(m.opts.UpdateInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			m.update(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// update resolves the servers and keeps the clients of servers that remain.
func (m *Memcached) update(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	addresses, err := m.book.resolve(ctx)
	if err != nil && !errors.Is(err, context.Canceled) {
		m.log.Warn("Failed to resolve memcached servers", "err", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	next := make([]*memcachedServer, 0, len(addresses))
	for _, address := range addresses {
		at := slices.IndexFunc(m.servers, func(s *memcachedServer) bool { return s.address == address })
		if at < 0 {
			next = append(next, m.newServer(address))
			continue
		}
		next = append(next, m.servers[at])
	}
	for _, old := range m.servers {
		if !slices.Contains(next, old) {
			_ = old.client.Close() // closes idle connections, which have nothing to flush
		}
	}
	m.servers = next
}

func (m *Memcached) newServer(address string) *memcachedServer {
	client := memcache.NewFromSelector(oneServer(address))
	client.Timeout, client.MaxIdleConns, client.DialContext = m.opts.Timeout, m.opts.IdleConnectionsMax, m.dialer
	changed := func(open bool, err error) {
		if open {
			m.log.Warn("Memcached server fails: circuit breaker opened", "server", address, "err", err)
		} else {
			m.log.Info("Memcached server recovered: circuit breaker closed", "server", address)
		}
	}
	return &memcachedServer{
		address: address, hash: xxhash.Sum64String(address), client: client,
		breaker: newBreaker(m.opts.ServerFailures, m.opts.ServerBackoff, m.opts.ServerBackoffMax, m.opts.Now, changed),
	}
}

// oneServer is the selector of a client with one server.
type oneServer string

// Network returns tcp, or unix for a path.
func (s oneServer) Network() string {
	if strings.Contains(string(s), "/") {
		return "unix"
	}
	return "tcp"
}

// String returns the address.
func (s oneServer) String() string { return string(s) }

// PickServer returns the server.
func (s oneServer) PickServer(string) (net.Addr, error) { return s, nil }

// Each calls visit for the server.
func (s oneServer) Each(visit func(net.Addr) error) error { return visit(s) }

// do runs one operation on the server of key.
func (m *Memcached) do(ctx context.Context, key string,
	operation func(*memcache.Client) ([]byte, error)) ([]byte, error) {
	m.mu.RLock()
	server := pick(m.servers, key)
	m.mu.RUnlock()
	if server == nil || !server.breaker.allow() {
		return nil, ErrUnavailable
	}
	select {
	case m.slots <- struct{}{}:
	case <-ctx.Done():
		server.breaker.unknown()
		return nil, ctx.Err()
	}
	type result struct {
		value []byte
		err   error
	}
	results := make(chan result, 1)
	begin := time.Now()
	m.mu.RLock()
	if m.closed {
		m.mu.RUnlock()
		<-m.slots
		server.breaker.unknown()
		return nil, ErrUnavailable
	}
	m.running.Go(func() {
		var r result
		defer func() {
			if p := recover(); p != nil { // the client trusts the sizes that a server sends
				r = result{err: fmt.Errorf("memcached: client: %v", p)}
			}
			<-m.slots
			results <- r
		}()
		r.value, r.err = operation(server.client)
	})
	m.mu.RUnlock()
	var r result
	select {
	case r = <-results:
	case <-ctx.Done():
		r.err = ctx.Err()
	}
	switch {
	case r.err == nil, errors.Is(r.err, memcache.ErrCacheMiss), errors.Is(r.err, ErrTooLarge):
		server.breaker.succeeded()
	case errors.Is(r.err, context.Canceled), ctx.Err() != nil && time.Since(begin) < serverGrace:
		server.breaker.unknown()
	default:
		server.breaker.failed(r.err)
		r.err = fmt.Errorf("memcached: %s: %w", server.address, r.err)
	}
	return r.value, r.err
}

// Get returns the value under key.
func (m *Memcached) Get(ctx context.Context, key string) ([]byte, bool, error) {
	value, err := m.do(ctx, key, func(c *memcache.Client) ([]byte, error) {
		item, err := c.Get(key)
		if err != nil {
			return nil, err
		}
		return item.Value, nil
	})
	if errors.Is(err, memcache.ErrCacheMiss) {
		return nil, false, nil
	}
	return value, err == nil, err
}

// Set stores value under key.
func (m *Memcached) Set(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	if size := int64(len(value) + len(key) + itemOverheadBytes); size > m.opts.ItemBytesMax {
		return fmt.Errorf("memcached: %d bytes, at most %d: %w", size, m.opts.ItemBytesMax, ErrTooLarge)
	}
	item := &memcache.Item{Key: key, Value: value, Expiration: m.expiration(ttl)}
	_, err := m.do(ctx, key, func(c *memcache.Client) ([]byte, error) {
		err := c.Set(item)
		if err != nil && strings.Contains(err.Error(), "object too large") {
			err = fmt.Errorf("%w: %w", ErrTooLarge, err)
		}
		return nil, err
	})
	return err
}

// expiration returns a TTL in memcached's encoding: seconds, or a Unix time for a TTL above
// 30 days.
func (m *Memcached) expiration(ttl time.Duration) int32 {
	const month = 30 * 24 * time.Hour
	switch {
	case ttl <= 0:
		return 0
	case ttl <= month:
		return int32((ttl + time.Second - 1) / time.Second)
	}
	return int32(min(m.opts.Now().Add(ttl).Unix(), 1<<31-1))
}

// Local returns false.
func (m *Memcached) Local() bool { return false }

// Close stops resolving, waits for running operations and closes the connections.
func (m *Memcached) Close() error {
	m.cancel()
	m.mu.Lock()
	servers := m.servers
	m.servers, m.closed = nil, true
	m.mu.Unlock()
	m.running.Wait()
	var errs []error
	for _, s := range servers {
		errs = append(errs, s.client.Close())
	}
	return errors.Join(errs...)
}
