package sim

import (
	"fmt"
	"net"
	"os/exec"
	"time"
)

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
