package cache

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// fakeResolver resolves some names; the others do not exist.
type fakeResolver struct {
	mu    sync.Mutex
	hosts map[string][]string
	srv   map[string][]*net.SRV
}

func (r *fakeResolver) LookupIPAddr(_ context.Context, host string) (addrs []net.IPAddr, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ip := range r.hosts[host] {
		addrs = append(addrs, net.IPAddr{IP: net.ParseIP(ip)})
	}
	if len(addrs) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return addrs, nil
}

func (r *fakeResolver) LookupSRV(_ context.Context, service, proto, name string) (string, []*net.SRV, error) {
	if service+proto != "" || r.srv[name] == nil {
		return "", nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
	return name, r.srv[name], nil
}

func (r *fakeResolver) set(host string, ips ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hosts[host] = ips
}

func TestResolve_ByPrefix(t *testing.T) {
	r := &fakeResolver{
		hosts: map[string][]string{"cache": {"10.0.0.2", "10.0.0.1", "fd00::1"}, "node-0.": {"10.1.0.1"}, "node-1.": {"10.1.0.2"}},
		srv:   map[string][]*net.SRV{"_mc._tcp.cache": {{Target: "node-0.", Port: 11}, {Target: "node-1.", Port: 12}}},
	}
	for address, want := range map[string]string{
		"cache:11211":                       "cache:11211",
		"/run/memcached.sock":               "/run/memcached.sock",
		"dns+cache:11211":                   "10.0.0.1:11211 10.0.0.2:11211",
		"dnsdualstack+cache:11211":          "10.0.0.1:11211 10.0.0.2:11211 [fd00::1]:11211",
		"dnssrv+_mc._tcp.cache":             "10.1.0.1:11 10.1.0.2:12",
		"dnssrv+_mc._tcp.cache:99":          "10.1.0.1:99 10.1.0.2:99",
		"dnssrvnoa+_mc._tcp.cache":          "node-0:11 node-1:12",
		"dns+cache":                         "error",
		"dns+nowhere:1":                     "error",
		"dnssrv+nowhere":                    "error",
		"whatever+cache:1":                  "error",
		"dns+cache:11211 dns+cache:11211 a": "10.0.0.1:11211 10.0.0.2:11211 a",
	} {
		b := addressBook{addresses: strings.Fields(address), resolver: r, last: map[string][]string{}}
		servers, err := b.resolve(context.Background())
		got := strings.Join(servers, " ")
		if err != nil {
			got = "error"
		}
		check(t, got == want, "%s: %q instead of %q (%v)", address, got, want, err)
	}
}

func TestResolve_KeepsServersWhileTheirNameFails(t *testing.T) {
	r := &fakeResolver{hosts: map[string][]string{"cache": {"10.0.0.1"}}}
	m, err := NewMemcached(MemcachedOptions{Addresses: []string{"dns+cache:1", "fixed:2"}, Resolver: r, UpdateInterval: time.Millisecond}, quiet)
	check(t, err == nil, "new: %v", err)
	defer m.Close()
	servers := func() (names string) {
		m.mu.RLock()
		defer m.mu.RUnlock()
		for _, s := range m.servers {
			names += s.address + " "
		}
		return names
	}
	becomes := func(want string) {
		t.Helper()
		for range 20_000 {
			if servers() == want {
				return
			}
			time.Sleep(time.Millisecond)
		}
		check(t, false, "%q instead of %q", servers(), want)
	}
	becomes("10.0.0.1:1 fixed:2 ")
	r.set("cache")
	time.Sleep(20 * time.Millisecond)
	becomes("10.0.0.1:1 fixed:2 ")
	r.set("cache", "10.0.0.1", "10.0.0.9")
	becomes("10.0.0.1:1 10.0.0.9:1 fixed:2 ")
	r.set("cache", "10.0.0.9")
	becomes("10.0.0.9:1 fixed:2 ")
}

func TestPick_KeysStayWhenAServerIsAdded(t *testing.T) {
	var servers []*memcachedServer
	m := &Memcached{opts: MemcachedOptions{}.withDefaults(), log: quiet}
	for i := range 5 {
		servers = append(servers, m.newServer(fmt.Sprintf("10.0.0.%d:11211", i)))
	}
	const keys = 10_000
	counts := map[string]int{}
	moved := 0
	for i := range keys {
		key := storeKey(fmt.Sprint(i))
		before := pick(servers[:4], key)
		after := pick(servers, key)
		counts[after.address]++
		if before != after {
			moved++
			check(t, after == servers[4], "a key moved between two that stay")
		}
	}
	check(t, moved > keys/5-400 && moved < keys/5+400, "%d of %d keys moved", moved, keys)
	for address, n := range counts {
		check(t, n > keys/5-400 && n < keys/5+400, "%s has %d of %d keys", address, n, keys)
	}
	check(t, pick(nil, "k") == nil, "picked one of none")
}

func TestResolve_DiscoversClusters(t *testing.T) {
	address := listen(t, func(conn net.Conn) {
		line, _ := bufio.NewReader(conn).ReadString('\n')
		if line == "config get cluster\r\n" {
			fmt.Fprint(conn, "CONFIG cluster 0 57\r\n12\na.example.com|10.0.0.1|11211 |10.0.0.2|11212\n\r\nEND\r\n")
		}
	})
	m, err := NewMemcached(MemcachedOptions{Addresses: []string{address}, AutoDiscovery: true}, quiet)
	check(t, err == nil, "new: %v", err)
	defer m.Close()
	check(t, len(m.servers) == 2 && m.servers[0].address == "10.0.0.2:11212" && m.servers[1].address == "a.example.com:11211", "%d servers", len(m.servers))
	for _, bad := range []string{"", "ERROR\r\n\r\n\r\n", "CONFIG cluster 0 1\r\n1\n", "CONFIG cluster 0 1\r\n1\na|b\n", "CONFIG cluster 0 1\r\n1\na|b|0\n", "CONFIG cluster 0 1\r\n1\na|b|99999\n"} {
		_, err := parseCluster(bufio.NewReader(strings.NewReader(bad)))
		check(t, err != nil, "%q: no error", bad)
	}
}

// listen serves connections until the test ends.
func listen(t *testing.T, serve func(net.Conn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err == nil, "listen: %v", err)
	var wait sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	wait.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, conn)
			mu.Unlock()
			wait.Go(func() {
				defer conn.Close()
				serve(conn)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, conn := range open {
			conn.Close()
		}
		mu.Unlock()
		wait.Wait()
	})
	return l.Addr().String()
}

func TestMemcached_InvalidResponseIsAnError(t *testing.T) {
	for _, text := range []string{
		"VALUE k 0 -5\r\n", "VALUE k 0 3\r\nabcdef\r\nEND\r\n", "VALUE\r\n", "ERROR\r\n", "SERVER_ERROR out of memory\r\n",
		strings.Repeat("x", 10_000), "VALUE k 0 99999999999999999999\r\n", "END", "",
	} {
		address := listen(t, func(conn net.Conn) {
			_, _ = bufio.NewReader(conn).ReadString('\n')
			_, _ = io.WriteString(conn, text)
		})
		m, err := NewMemcached(MemcachedOptions{Addresses: []string{address}, ServerFailures: 100}, quiet)
		check(t, err == nil, "new: %v", err)
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		_, ok, err := m.Get(ctx, "k")
		check(t, !ok && err != nil, "%q: %v %v", text, ok, err)
		err = m.Set(ctx, "k", []byte("x"), 0)
		check(t, err != nil, "%q: set", text)
		cancel()
		check(t, m.Close() == nil, "close")
	}
}

func TestMemcached_FailingServerAffectsItsOwnKeysOnly(t *testing.T) {
	var requests atomic.Int64
	hanging := listen(t, func(conn net.Conn) {
		requests.Add(1)
		_, _ = io.Copy(io.Discard, conn)
	})
	working := listen(t, func(conn net.Conn) {
		for r := bufio.NewReader(conn); ; {
			if _, err := r.ReadString('\n'); err != nil {
				return
			}
			_, _ = io.WriteString(conn, "END\r\n")
		}
	})
	m, err := NewMemcached(MemcachedOptions{Addresses: []string{hanging, working}, ServerFailures: 3, ServerBackoff: time.Hour, Timeout: time.Second}, quiet)
	check(t, err == nil, "new: %v", err)
	defer m.Close()
	var failed, unavailable, missed int
	begin := time.Now()
	for i := range 200 {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		_, _, err := m.Get(ctx, storeKey(fmt.Sprint(i)))
		cancel()
		switch {
		case errors.Is(err, ErrUnavailable):
			unavailable++
		case err != nil:
			failed++
		default:
			missed++
		}
	}
	check(t, failed == 3 && requests.Load() == 3, "%d failures, %d requests", failed, requests.Load())
	check(t, missed > 60 && unavailable > 60, "%d misses on the working server, %d unavailable", missed, unavailable)
	check(t, time.Since(begin) < 30*time.Second, "took %s", time.Since(begin))
}

func TestMemcached_OperationsOnAHangingServerAreBounded(t *testing.T) {
	var open atomic.Int64
	address := listen(t, func(conn net.Conn) {
		open.Add(1)
		_, _ = io.Copy(io.Discard, conn)
	})
	m, err := NewMemcached(MemcachedOptions{Addresses: []string{address}, OperationsMax: 4, ServerFailures: 1000, Timeout: 3 * time.Second}, quiet)
	check(t, err == nil, "new: %v", err)
	var wait sync.WaitGroup
	for i := range 50 {
		wait.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			begin := time.Now()
			_, _, err := m.Get(ctx, fmt.Sprint(i))
			check(t, errors.Is(err, context.DeadlineExceeded), "get: %v", err)
			check(t, time.Since(begin) < 20*time.Second, "took %s", time.Since(begin))
		})
	}
	wait.Wait()
	check(t, open.Load() <= 4, "%d connections", open.Load())
	check(t, m.Close() == nil, "close")
	_, _, err = m.Get(context.Background(), "k")
	check(t, errors.Is(err, ErrUnavailable), "after closing: %v", err)
}

func TestExpiration_MatchesMemcached(t *testing.T) {
	m := &Memcached{opts: MemcachedOptions{Now: func() time.Time { return time.Unix(1_700_000_000, 0) }}}
	for ttl, want := range map[time.Duration]int32{
		0: 0, -1: 0, 1: 1, time.Second: 1, time.Second + 1: 2, 30 * 24 * time.Hour: 2_592_000, 31 * 24 * time.Hour: 1_700_000_000 + 31*86_400, 100 * 365 * 24 * time.Hour: 1<<31 - 1,
	} {
		check(t, m.expiration(ttl) == want, "%s: %d instead of %d", ttl, m.expiration(ttl), want)
	}
}

func TestMemcached_ValueLargerThanAnItemIsRejected(t *testing.T) {
	m, err := NewMemcached(MemcachedOptions{Addresses: []string{"127.0.0.1:1"}, ItemBytesMax: 10_000}, quiet)
	check(t, err == nil, "new: %v", err)
	defer m.Close()
	err = m.Set(context.Background(), "k", make([]byte, 10_000), 0)
	check(t, errors.Is(err, ErrTooLarge), "set: %v", err)
	_, err = NewMemcached(MemcachedOptions{}, quiet)
	check(t, err != nil, "no addresses")
	_, err = NewMemcached(MemcachedOptions{Addresses: []string{"a"}, Timeout: -1}, quiet)
	check(t, err != nil, "a negative time")
	check(t, slices.Equal(m.opts.Addresses, []string{"127.0.0.1:1"}), "%v", m.opts.Addresses)
}
