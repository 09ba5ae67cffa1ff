package cache

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	instruments "github.com/ferula-io/ferula/metrics"
	"github.com/redis/go-redis/v9"
)

func TestFlush_WaitsForPendingWritesUntilItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Cache
		check(t, c.Flush(t.Context()) == nil, "waited for nothing")
		c.pending.Add(1)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		check(t, errors.Is(c.Flush(ctx), context.Canceled), "no error")
		time.AfterFunc(time.Second, func() { c.pending.Add(-1) })
		begun := time.Now()
		check(t, c.Flush(t.Context()) == nil && time.Since(begun) >= time.Second, "did not wait")
	})
}

func TestExtent_ValidWithinItsTTLInBothDirections(t *testing.T) {
	e := head{writtenMS: 1_000_000}
	for _, test := range []struct {
		now  int64
		ttl  time.Duration
		want bool
	}{
		{1_000_000, time.Second, true}, {1_000_999, time.Second, true}, {1_001_000, time.Second, false},
		{999_001, time.Second, true}, {999_000, time.Second, false}, {9_000_000, 0, true}, {9_000_000, -1, true},
	} {
		check(t, e.valid(time.UnixMilli(test.now), test.ttl) == test.want, "%+v", test)
	}
}

func TestNew_LogsTheStatesOfTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		store := newFakeStore()
		c, err := New(store, Options{BreakerFailures: 1, BreakerBackoff: time.Second}, slog.New(slog.NewTextHandler(&log, nil)), nil)
		check(t, err == nil, "new: %v", err)
		store.fail(broken)
		c.Lookup(context.Background(), "k", 0, 10)
		check(t, strings.Contains(log.String(), `level=WARN msg="Cache backend fails: circuit breaker opened" err="connection refused"`), "log: %s", log.String())
		store.fail(nil)
		time.Sleep(time.Second)
		c.Lookup(context.Background(), "k", 0, 10)
		check(t, strings.Contains(log.String(), `level=INFO msg="Cache backend recovered: circuit breaker closed"`), "log: %s", log.String())
		check(t, c.Close() == nil, "close")
	})
}

func TestMemory_NegativeTTLNeverExpires(t *testing.T) {
	m := newMemory(t, MemoryOptions{})
	check(t, m.Set(context.Background(), "k", []byte("x"), -1) == nil, "set")
	_, ok, _ := m.Get(context.Background(), "k")
	check(t, ok, "expired")
	check(t, m.Close() == nil, "close")
	_, ok, _ = m.Get(context.Background(), "k")
	check(t, !ok, "found after Close")
	check(t, m.Set(context.Background(), "k", []byte("x"), 0) == nil, "set after Close")
	m.check(t)
}

func TestParseCluster_HostsAndPorts(t *testing.T) {
	for line, want := range map[string]string{
		"a|10.0.0.1|1":                   "a:1",
		"|10.0.0.1|65535":                "10.0.0.1:65535",
		"|fd00::1|2":                     "[fd00::1]:2",
		"a|b|65536":                      `cluster configuration: port of node "a|b|65536"`,
		"a|b|0":                          `cluster configuration: port of node "a|b|0"`,
		"a|b":                            `cluster configuration: node "a|b"`,
		"a|b|1|2":                        `cluster configuration: node "a|b|1|2"`,
		"":                               "",
		"a|b|1 " + "c|d|2":               "a:1 c:2",
		strings.Repeat("x", 90) + "|b|0": `cluster configuration: port of node "` + strings.Repeat("x", 80) + `"`,
	} {
		servers, err := parseCluster(bufio.NewReader(strings.NewReader("CONFIG cluster 0 1\r\n1\r\n" + line + "\r\n")))
		got := strings.Join(servers, " ")
		if err != nil {
			got = err.Error()
		}
		check(t, got == want, "%q: %s", line, got)
	}
	for text, want := range map[string]string{
		"":                          "cluster configuration: line 1: EOF",
		"CONFIG cluster 0 1\n":      "cluster configuration: line 2: EOF",
		"CONFIG cluster 0 1\n1\na|": "cluster configuration: line 3: EOF",
		"ERROR\n\n\n":               `cluster configuration: "ERROR"`,
	} {
		_, err := parseCluster(bufio.NewReader(strings.NewReader(text)))
		check(t, err != nil && err.Error() == want, "%q: %v", text, err)
	}
}

// stubConn is a connection to a configuration endpoint.
type stubConn struct {
	net.Conn
	r        io.Reader
	deadline time.Time
	fails    string // the method that fails
	closed   bool
}

func (c *stubConn) Read(p []byte) (int, error) { return c.r.Read(p) }

func (c *stubConn) Write(p []byte) (int, error) {
	if c.fails == "write" {
		return 0, errors.New("cannot write")
	}
	return len(p), nil
}

func (c *stubConn) SetDeadline(t time.Time) error {
	c.deadline = t
	if c.fails == "deadline" {
		return errors.New("no deadline")
	}
	return nil
}

func (c *stubConn) Close() error { c.closed = true; return nil }

func TestDiscoverCluster_HasADeadlineAndCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const text = "CONFIG cluster 0 1\n1\na|b|1\n"
		with, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, test := range []struct {
			ctx   context.Context
			fails string
			after time.Duration
		}{{context.Background(), "", 5 * time.Second}, {with, "", time.Minute}, {with, "deadline", time.Minute}, {with, "write", time.Minute}} {
			conn := &stubConn{r: strings.NewReader(text), fails: test.fails}
			servers, err := discoverCluster(test.ctx, func(context.Context, string, string) (net.Conn, error) { return conn, nil }, "c:1")
			check(t, conn.closed && time.Until(conn.deadline) == test.after, "closed %v, until %s", conn.closed, conn.deadline)
			check(t, (err == nil) == (test.fails == "") && (err != nil || len(servers) == 1), "%q: %v, %v", test.fails, servers, err)
		}
		_, err := discoverCluster(with, func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("refused") }, "c:1")
		check(t, err != nil && err.Error() == "refused", "%v", err)
	})
}

func TestResolve_NamesTheAddressThatFails(t *testing.T) {
	b := addressBook{addresses: []string{"dns+nowhere:1", "a:2", "a:2"}, resolver: &fakeResolver{}, last: map[string][]string{"dns+nowhere:1": {"z:1"}}}
	servers, err := b.resolve(context.Background())
	check(t, strings.Join(servers, " ") == "a:2 z:1" && err != nil && strings.HasPrefix(err.Error(), "dns+nowhere:1: "), "%v, %v", servers, err)
	check(t, strings.Join(b.last["a:2"], " ") == "a:2" && strings.Join(b.last["dns+nowhere:1"], " ") == "z:1", "%v", b.last)
}

func TestOneServer_IsASocketIfItHasASlash(t *testing.T) {
	for address, network := range map[oneServer]string{"a:1": "tcp", "/run/a.sock": "unix", "a/b": "unix"} {
		check(t, address.Network() == network && address.String() == string(address), "%s: %s", address, address.Network())
		got, err := address.PickServer("k")
		check(t, err == nil && got == net.Addr(address), "%v, %v", got, err)
		visited := 0
		err = address.Each(func(a net.Addr) error { visited++; return io.EOF })
		check(t, visited == 1 && errors.Is(err, io.EOF), "%d visits, %v", visited, err)
	}
}

func TestMemcached_LogsServersThatCannotBeResolved(t *testing.T) {
	var log bytes.Buffer
	m, err := NewMemcached(MemcachedOptions{Addresses: []string{"dns+nowhere:1"}, Resolver: &fakeResolver{}, UpdateInterval: time.Hour}, slog.New(slog.NewTextHandler(&log, nil)))
	check(t, err == nil && strings.Contains(log.String(), `level=WARN msg="Failed to resolve memcached servers" err="dns+nowhere:1: `), "%v: %s", err, log.String())
	_, _, err = m.Get(context.Background(), "k")
	check(t, errors.Is(err, ErrUnavailable), "no server: %v", err)
	check(t, m.Close() == nil, "close")
	log.Reset()
	m.update(context.Background())
	check(t, len(m.servers) == 0, "an update after Close adds servers")
}

func TestMemcached_ServerThatFailsIsNamedAndLogged(t *testing.T) {
	var log bytes.Buffer
	now := time.Unix(1_700_000_000, 0)
	var works atomic.Bool
	address := listen(t, func(conn net.Conn) {
		for r := bufio.NewReader(conn); ; {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			switch {
			case !works.Load():
				_, _ = io.WriteString(conn, "SERVER_ERROR busy\r\n")
			case strings.HasPrefix(line, "set "):
				_, _ = r.ReadString('\n')
				_, _ = io.WriteString(conn, "SERVER_ERROR object too large for cache\r\n")
			default:
				_, _ = io.WriteString(conn, "END\r\n")
			}
		}
	})
	m, err := NewMemcached(MemcachedOptions{Addresses: []string{address}, ServerFailures: 1, ServerBackoff: time.Second, Timeout: 10 * time.Second, Now: func() time.Time { return now }}, slog.New(slog.NewTextHandler(&log, nil)))
	check(t, err == nil, "new: %v", err)
	ctx := context.Background()
	_, _, err = m.Get(ctx, "k")
	check(t, err != nil && strings.HasPrefix(err.Error(), "memcached: "+address+": "), "get: %v", err)
	check(t, strings.Contains(log.String(), `level=WARN msg="Memcached server fails: circuit breaker opened" server=`+address), "log: %s", log.String())
	works.Store(true)
	_, _, err = m.Get(ctx, "k")
	check(t, errors.Is(err, ErrUnavailable), "open: %v", err)
	now = now.Add(time.Second)
	_, ok, err := m.Get(ctx, "k")
	check(t, !ok && err == nil, "probe: %v, %v", ok, err)
	check(t, strings.Contains(log.String(), `level=INFO msg="Memcached server recovered: circuit breaker closed" server=`+address), "log: %s", log.String())
	err = m.Set(ctx, "k", []byte("x"), 0)
	check(t, errors.Is(err, ErrTooLarge), "set: %v", err)
	_, _, err = m.Get(ctx, "k")
	check(t, err == nil, "a value that is too large opened the breaker: %v", err)
	check(t, m.Close() == nil, "close")
}

func TestNewRedis_RefusesWhatCannotWork(t *testing.T) {
	for _, test := range []struct {
		opts RedisOptions
		want string
	}{
		{RedisOptions{}, "redis: no address"},
		{RedisOptions{Address: "a:1", ConnectionsMax: -1}, "redis: limits and the database's number cannot be negative"},
		{RedisOptions{Address: "a:1", IdleConnectionsMin: -1}, "redis: limits and the database's number cannot be negative"},
		{RedisOptions{Address: "a:1", Database: -1}, "redis: limits and the database's number cannot be negative"},
	} {
		_, err := NewRedis(test.opts, quiet)
		check(t, err != nil && err.Error() == test.want, "%+v: %v", test.opts, err)
	}
}

func TestRedis_ErrorsOfAllOperationsAreNamed(t *testing.T) {
	address := listen(t, func(net.Conn) {})
	r, err := NewRedis(RedisOptions{Address: address}, quiet)
	check(t, err == nil && r.single != nil, "new: %v", err)
	ctx := context.Background()
	_, ok, err := r.Get(ctx, "k")
	check(t, !ok && err != nil && strings.HasPrefix(err.Error(), "redis: "), "get: %v", err)
	err = r.Set(ctx, "k", nil, 0)
	check(t, err != nil && strings.HasPrefix(err.Error(), "redis: "), "set: %v", err)
	check(t, r.Close() == nil && r.Close() == nil, "close")
	check(t, !r.joinCluster(), "joined after Close")
	s, err := NewRedis(RedisOptions{Address: address, MasterName: "main"}, quiet)
	check(t, err == nil && s.single == nil && !s.joinCluster() && s.Close() == nil, "sentinels: %v", err)
}

func TestRedis_JoinsAClusterOnceAndClosesBothClients(t *testing.T) {
	var log bytes.Buffer
	address := listen(t, func(net.Conn) {})
	r, err := NewRedis(RedisOptions{Address: address}, slog.New(slog.NewTextHandler(&log, nil)))
	check(t, err == nil && r.joinCluster(), "join: %v", err)
	joined := r.client
	check(t, r.joinCluster() && r.client == joined, "joined again")
	check(t, strings.Count(log.String(), `level=INFO msg="Redis server is a node of a cluster, using all nodes" address=`+address) == 1, "log: %s", log.String())
	check(t, r.Close() == nil, "close")
	for name, client := range map[string]redis.UniversalClient{"cluster": joined, "single": r.single} {
		err := client.Ping(context.Background()).Err()
		check(t, errors.Is(err, redis.ErrClosed), "the client of the %s is not closed: %v", name, err)
	}
}

func TestRedisLogger_LogsAtDebugOnly(t *testing.T) {
	for level, want := range map[slog.Level]string{slog.LevelDebug: "level=DEBUG msg=\"Redis client: lost 3\"\n", slog.LevelInfo: ""} {
		var log bytes.Buffer
		hideTime := func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}
		redisLogger{slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: level, ReplaceAttr: hideTime}))}.Printf(context.Background(), "lost %d", 3)
		check(t, log.String() == want, "%s: %q", level, log.String())
	}
}

func TestFromConfig_ReturnsTheErrorsOfEveryStage(t *testing.T) {
	for text, want := range map[string]string{
		"type: DISK\n": "DISK",
		"type: MEMCACHED\nconfig: {addresses: [127.0.0.1:1], max_item_size: 4607}\n": "max_item_size: 4607 bytes: at least 4608",
	} {
		c, inert, err := FromConfig([]byte(text), Options{}, quiet, nil)
		check(t, c == nil && inert == nil && err != nil && strings.Contains(err.Error(), want), "%s: %v", text, err)
	}
	c, inert, err := FromConfig([]byte("type: MEMCACHED\nconfig: {addresses: ['dns+127.0.0.1:1']}\n"), Options{TTL: -1}, quiet, nil) // the store must be closed: goleak sees its goroutine
	check(t, c == nil && inert == nil && err != nil && strings.Contains(err.Error(), "TTL -1ns is negative"), "%v", err)
	set := instruments.NewSet()
	c, inert, err = FromConfig([]byte("type: IN-MEMORY\nconfig: {max_size: 0}\n"), Options{Name: "n"}, quiet, set)
	check(t, err == nil && len(inert) == 1 && inert[0] == "max_size: a cache cannot be unlimited, the limit is 256 MiB", "%v, %v", inert, err)
	var page strings.Builder
	set.WritePrometheus(&page)
	check(t, strings.Contains(page.String(), `ferula_frontend_cache_memory_items{cache="n"} 0`), "%s", page.String())
	check(t, c.Close() == nil, "close")
}

func TestParseConfig_NamesTheReasonsOfKeysWithoutEffect(t *testing.T) {
	_, inert, err := parseConfig([]byte("type: REDIS\nconfig:\n  addr: a:1\n  set_async_circuit_breaker_config:\n    enabled: true\n    open_duration: 1s\n    consecutive_failures: 3\n"), Options{})
	check(t, err == nil && len(inert) == 0, "enabled: %v, %v", inert, err)
	_, inert, err = parseConfig([]byte("type: REDIS\nconfig:\n  addr: a:1\n  set_async_circuit_breaker_config:\n    enabled: false\n    open_duration: 1s\n    consecutive_failures: 3\n"), Options{})
	check(t, err == nil && strings.Join(inert, "\n") == "line 5: enabled: the circuit breaker is always there\n"+
		"line 6: open_duration: unless enabled is true the circuit breaker uses its own value\n"+
		"line 7: consecutive_failures: unless enabled is true the circuit breaker uses its own value", "disabled: %v, %v", inert, err)
	_, inert, err = parseConfig([]byte("type: MEMCACHED\nconfig: {addresses: [a:1], max_item_size: 0}\n"), Options{})
	check(t, err == nil && len(inert) == 1 && inert[0] == "max_item_size: 0 means no limit, but a part has at most 512 KiB", "%v, %v", inert, err)
}

func TestParseConfig_RedisLimitsOfConnections(t *testing.T) {
	for text, want := range map[string]int{"": 0, ", max_get_multi_concurrency: 7": 7, ", pool_size: 5, max_get_multi_concurrency: 7": 5} {
		c, _, err := parseConfig([]byte("type: REDIS\nconfig: {addr: 'a:1', min_idle_conns: 2, idle_timeout: 3s, max_conn_age: 4s"+text+"}\n"), Options{})
		check(t, err == nil && c.Redis.ConnectionsMax == want && c.Redis.IdleConnectionsMin == 2 && c.Redis.IdleTimeout == 3*time.Second && c.Redis.ConnectionAgeMax == 4*time.Second && c.TTL == 24*time.Hour, "%s: %+v, %v", text, c.Redis, err)
	}
	c, _, err := parseConfig([]byte("type: REDIS\nconfig: {addr: 'a:1', expiration: 1m, tls_enabled: true, tls_config: {min_version: '1.3'}}\n"), Options{})
	check(t, err == nil && c.TTL == time.Minute && c.Redis.TLS.MinVersion == tls.VersionTLS13, "%+v, %v", c, err)
}
