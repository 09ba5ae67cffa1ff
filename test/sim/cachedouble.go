package sim

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// cacheFault is a fault of a cacheDouble.
type cacheFault string

const (
	cacheWorks   cacheFault = "works"
	cacheLost    cacheFault = "is lost"          // connections are refused
	cacheStalls  cacheFault = "stalls"           // nothing is sent
	cacheEvicts  cacheFault = "evicts"           // every second value is missing
	cacheGarbage cacheFault = "returns garbage"  // values are changed or truncated
	cacheOther   cacheFault = "returns another"  // returns the value of another key
	cacheEmpty   cacheFault = "restarts empty"   // all values are missing
	cacheBroken  cacheFault = "breaks responses" // the connection ends within a response
)

var cacheFaults = []cacheFault{cacheWorks, cacheLost, cacheStalls, cacheEvicts, cacheGarbage, cacheOther, cacheEmpty, cacheBroken}

// cacheDouble is a memcached or a Redis in memory, with faults that the scenario chooses. It
// implements the commands that the frontend's clients send.
type cacheDouble struct {
	redis   bool
	address string
	serving sync.WaitGroup

	mu       sync.Mutex
	rng      *rand.Rand
	listener net.Listener
	conns    map[net.Conn]bool
	fault    cacheFault
	values   map[string][]byte
}

func newCacheDouble(redis bool, rng *rand.Rand) (*cacheDouble, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	d := &cacheDouble{redis: redis, address: address, rng: rng, values: map[string][]byte{}, conns: map[net.Conn]bool{}}
	return d, d.set(cacheWorks)
}

// config is the frontend's configuration of the cache. The circuit breaker opens for a
// short time only, so that the frontend soon uses the cache again.
func (d *cacheDouble) config() string {
	breaker := "set_async_circuit_breaker_config: {enabled: true, consecutive_failures: 3, open_duration: 100ms}"
	if d.redis {
		return fmt.Sprintf("{type: REDIS, config: {addr: %q, dial_timeout: 300ms, read_timeout: 300ms, write_timeout: 300ms, %s}}", d.address, breaker)
	}
	return fmt.Sprintf("{type: MEMCACHED, config: {addresses: [%q], timeout: 300ms, %s}}", d.address, breaker)
}

// set begins a fault, and ends the previous one.
func (d *cacheDouble) set(fault cacheFault) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = fault
	if fault == cacheEmpty {
		clear(d.values)
	}
	if fault == cacheLost || fault == cacheEmpty {
		for conn := range d.conns {
			conn.Close()
		}
	}
	if fault == cacheLost {
		if d.listener != nil {
			d.listener.Close()
			d.listener = nil
		}
		return nil
	}
	if d.listener != nil {
		return nil
	}
	var err error
	if d.listener, err = net.Listen("tcp", d.address); err != nil {
		return err
	}
	listener := d.listener
	d.serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			d.mu.Lock()
			d.conns[conn] = true
			d.mu.Unlock()
			d.serving.Go(func() { d.serve(conn) })
		}
	})
	return nil
}

// stop closes all connections and waits for their goroutines.
func (d *cacheDouble) stop() {
	if err := d.set(cacheLost); err != nil {
		panic(err) // it only closes connections
	}
	d.serving.Wait()
}

func (d *cacheDouble) serve(conn net.Conn) {
	defer func() {
		conn.Close()
		d.mu.Lock()
		delete(d.conns, conn)
		d.mu.Unlock()
	}()
	in := bufio.NewReader(conn)
	for {
		respond := d.memcached
		if d.redis {
			respond = d.respondRedis
		}
		response, err := respond(in)
		if err != nil {
			return
		}
		d.mu.Lock()
		fault := d.fault
		d.mu.Unlock()
		if fault == cacheStalls {
			continue
		}
		if fault == cacheBroken && len(response) > 20 {
			_, _ = conn.Write(response[:len(response)/2])
			return
		}
		if _, err := conn.Write(response); err != nil {
			return
		}
	}
}

// get returns the value of a key, as the current fault changes it.
func (d *cacheDouble) get(key string) ([]byte, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	value, ok := d.values[key]
	if !ok {
		return nil, false
	}
	switch d.fault {
	case cacheEvicts:
		if d.rng.IntN(2) == 0 {
			delete(d.values, key)
			return nil, false
		}
	case cacheGarbage:
		value = slices.Clone(value)
		if len(value) == 0 || d.rng.IntN(4) == 0 {
			return value[:len(value)/2], true
		}
		value[d.rng.IntN(len(value))] ^= byte(1 + d.rng.IntN(255))
	case cacheOther:
		keys := slices.Sorted(maps.Keys(d.values))
		value = d.values[keys[d.rng.IntN(len(keys))]]
	}
	return value, true
}

func (d *cacheDouble) put(key string, value []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.values[key] = value
}

func (d *cacheDouble) remove(key string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.values[key]
	delete(d.values, key)
	return ok
}

// memcached reads a command of memcached's text protocol and returns the response.
func (d *cacheDouble) memcached(in *bufio.Reader) ([]byte, error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(line)
	if len(fields) == 0 {
		return []byte("ERROR\r\n"), nil
	}
	switch fields[0] {
	case "set", "add":
		n, err := strconv.Atoi(fields[4])
		if err != nil {
			return nil, err
		}
		value := make([]byte, n+2)
		if _, err := io.ReadFull(in, value); err != nil {
			return nil, err
		}
		d.put(fields[1], value[:n])
		return []byte("STORED\r\n"), nil
	case "get", "gets", "gat", "gats":
		keys := fields[1:]
		if strings.HasPrefix(fields[0], "gat") {
			keys = fields[2:]
		}
		var out []byte
		for _, key := range keys {
			if value, ok := d.get(key); ok {
				out = fmt.Appendf(out, "VALUE %s 0 %d 1\r\n%s\r\n", key, len(value), value)
			}
		}
		return append(out, "END\r\n"...), nil
	case "touch":
		d.mu.Lock()
		defer d.mu.Unlock()
		if _, ok := d.values[fields[1]]; ok {
			return []byte("TOUCHED\r\n"), nil
		}
		return []byte("NOT_FOUND\r\n"), nil
	case "delete":
		if d.remove(fields[1]) {
			return []byte("DELETED\r\n"), nil
		}
		return []byte("NOT_FOUND\r\n"), nil
	case "version":
		return []byte("VERSION 1.6.0\r\n"), nil
	default:
		return []byte("ERROR\r\n"), nil
	}
}

// respondRedis reads a command of Redis' protocol and returns the response.
func (d *cacheDouble) respondRedis(in *bufio.Reader) ([]byte, error) {
	var count int
	line, err := in.ReadString('\n')
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Sscanf(line, "*%d", &count); err != nil {
		return nil, err
	}
	args := make([]string, count)
	for i := range args {
		var n int
		line, err := in.ReadString('\n')
		if err != nil {
			return nil, err
		}
		if _, err := fmt.Sscanf(line, "$%d", &n); err != nil {
			return nil, err
		}
		text := make([]byte, n+2)
		if _, err := io.ReadFull(in, text); err != nil {
			return nil, err
		}
		args[i] = string(text[:n])
	}
	switch strings.ToLower(args[0]) {
	case "set", "setex":
		value := args[2]
		if len(args) == 4 && strings.EqualFold(args[0], "setex") {
			value = args[3]
		}
		d.put(args[1], []byte(value))
		return []byte("+OK\r\n"), nil
	case "get", "getex":
		return d.bulk(nil, args[1]), nil
	case "mget":
		out := fmt.Appendf(nil, "*%d\r\n", count-1)
		for _, key := range args[1:] {
			out = d.bulk(out, key)
		}
		return out, nil
	case "exists", "touch", "expire", "pexpire":
		n := 0
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, key := range args[1:] {
			if _, ok := d.values[key]; ok {
				n++
			}
		}
		return fmt.Appendf(nil, ":%d\r\n", n), nil
	case "del", "unlink":
		n := 0
		for _, key := range args[1:] {
			if d.remove(key) {
				n++
			}
		}
		return fmt.Appendf(nil, ":%d\r\n", n), nil
	case "ping":
		return []byte("+PONG\r\n"), nil
	case "select", "auth", "client":
		return []byte("+OK\r\n"), nil
	default: // also for HELLO: the client then uses the older protocol
		return []byte("-ERR unknown command '" + args[0] + "'\r\n"), nil
	}
}

func (d *cacheDouble) bulk(out []byte, key string) []byte {
	value, ok := d.get(key)
	if !ok {
		return append(out, "$-1\r\n"...)
	}
	return fmt.Appendf(out, "$%d\r\n%s\r\n", len(value), value)
}

// realCache is a memcached or a Redis on loopback that is killed and started.
type realCache struct {
	path, kind string
	address    string
	cmd        *exec.Cmd // nil: killed
}

func newRealCache(path, kind string) (*realCache, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	c := &realCache{path: path, kind: kind, address: address}
	return c, c.toggle()
}

// config is the frontend's configuration of the cache.
func (c *realCache) config() string {
	if c.kind == "memcached" {
		return fmt.Sprintf("{type: MEMCACHED, config: {addresses: [%q], timeout: 300ms}}", c.address)
	}
	return fmt.Sprintf("{type: REDIS, config: {addr: %q, dial_timeout: 300ms}}", c.address)
}

// toggle kills the cache, or starts it and waits until it accepts connections.
func (c *realCache) toggle() error {
	if c.cmd != nil {
		c.kill()
		return nil
	}
	host, port, err := net.SplitHostPort(c.address)
	if err != nil {
		return err
	}
	args := []string{"--bind", host, "--port", port, "--save", "", "--appendonly", "no", "--loglevel", "warning"}
	if c.kind == "memcached" {
		args = []string{"-l", host, "-p", port, "-U", "0", "-u", "root"}
	}
	c.cmd = exec.Command(c.path, args...)
	if err := c.cmd.Start(); err != nil {
		return err
	}
	deadline := time.Now().Add(60 * time.Second)
	for {
		conn, err := net.Dial("tcp", c.address)
		if err == nil {
			return conn.Close()
		}
		if time.Now().After(deadline) {
			c.kill()
			return fmt.Errorf("%s does not listen: %w", c.kind, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (c *realCache) kill() {
	if c.cmd == nil {
		return
	}
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
	c.cmd = nil
}
