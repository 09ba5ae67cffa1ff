package cache

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// peer is a server process that the test started.
type peer struct {
	address string
	command *exec.Cmd
}

// startPeer starts a server on a free loopback port, or skips the test.
func startPeer(t *testing.T, binary string, args func(port string) []string) *peer {
	t.Helper()
	path, err := exec.LookPath(binary)
	if err != nil {
		check(t, os.Getenv("FERULA_TEST_PEERS") == "", "FERULA_TEST_PEERS is set and %s is not here", binary)
		t.Skipf("%s is not here", binary)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err == nil, "listen: %v", err)
	address := l.Addr().String()
	check(t, l.Close() == nil, "close")
	p := &peer{address: address}
	_, port, _ := net.SplitHostPort(address)
	p.command = exec.Command(path, args(port)...)
	p.command.Dir = t.TempDir()
	p.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	check(t, p.command.Start() == nil, "start %s", binary)
	t.Cleanup(p.kill)
	for range 500 {
		if conn, err := net.Dial("tcp", address); err == nil {
			conn.Close()
			return p
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s does not listen", binary)
	return nil
}

func (p *peer) kill() {
	_ = p.command.Process.Kill()
	_ = p.command.Wait()
}

func (p *peer) signal(s syscall.Signal) { _ = p.command.Process.Signal(s) }

func startRedis(t *testing.T, more ...string) *peer {
	return startPeer(t, "redis-server", func(port string) []string {
		return append([]string{"--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"}, more...)
	})
}

func startMemcached(t *testing.T, more ...string) *peer {
	return startPeer(t, "memcached", func(port string) []string {
		args := []string{"-l", "127.0.0.1", "-p", port, "-m", "256"}
		if os.Getuid() == 0 {
			args = append(args, "-u", "root")
		}
		return append(args, more...)
	})
}

func redisStore(t *testing.T, opts RedisOptions) Store {
	t.Helper()
	s, err := NewRedis(opts, quiet)
	check(t, err == nil, "redis: %v", err)
	return s
}

func memcachedStore(t *testing.T, opts MemcachedOptions) Store {
	t.Helper()
	s, err := NewMemcached(opts, quiet)
	check(t, err == nil, "memcached: %v", err)
	return s
}

// asStore checks the contract of Store.
func asStore(t *testing.T, s Store) {
	t.Helper()
	ctx := context.Background()
	_, ok, err := s.Get(ctx, "none")
	check(t, !ok && err == nil, "none: %v %v", ok, err)
	for _, value := range [][]byte{{}, []byte("x"), noise(500 << 10), []byte("\r\nEND\r\n\x00\xff")} {
		check(t, s.Set(ctx, "key", value, time.Minute) == nil, "set")
		got, ok, err := s.Get(ctx, "key")
		check(t, ok && err == nil && bytes.Equal(got, value), "%d bytes of %d, %v, %v", len(got), len(value), ok, err)
	}
	check(t, s.Set(ctx, "ever", []byte("x"), 0) == nil, "set")
	check(t, s.Set(ctx, "short", []byte("x"), time.Second) == nil, "set")
	time.Sleep(2100 * time.Millisecond)
	_, ok, err = s.Get(ctx, "short")
	check(t, !ok && err == nil, "expired: %v %v", ok, err)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, _, err = s.Get(ended, "ever")
	check(t, errors.Is(err, context.Canceled), "after the context has ended: %v", err)
}

// asCache writes and reads responses of all sizes, and joins them.
func asCache(t *testing.T, store Store) {
	t.Helper()
	c := newCache(t, store, Options{TTL: time.Minute, Merge: concatenate, LookupTimeout: 5 * time.Second})
	var all []byte
	for i, body := range [][]byte{response("mix", 2, 10), response("rate", 100, 161), noise(3 << 20), noise(100)} {
		put(t, c, "key with spaces\r\nand lines", int64(i)*100, int64(i)*100+90, 10, body)
		all = append(all, body...)
		got := get(t, c, "key with spaces\r\nand lines", int64(i)*100, int64(i)*100+90)
		check(t, got == fmt.Sprintf("0-%d:%s", i*100+90, all), "response %d of %d bytes: %d bytes", i, len(body), len(got))
	}
	put(t, c, "large", 0, 10, 10, noise(6<<20))
	got := get(t, c, "large", 0, 10)
	check(t, got == "0-10:"+string(noise(6<<20)), "%d bytes", len(got))
}

func TestPeerRedis_StoreAndCache(t *testing.T) {
	p := startRedis(t, "--requirepass", "secret")
	opts := RedisOptions{Address: p.address, Password: "secret", Database: 3, Prefix: "ferula:"}
	s := redisStore(t, opts)
	asStore(t, s)
	check(t, s.Close() == nil, "close")
	asCache(t, redisStore(t, opts))
	opts.Password = "wrong"
	s = redisStore(t, opts)
	_, _, err := s.Get(context.Background(), "k")
	check(t, err != nil, "a wrong password")
	check(t, s.Close() == nil, "close")
}

func TestPeerRedis_FromYAML(t *testing.T) {
	p := startRedis(t)
	c, _, err := FromConfig(fmt.Appendf(nil, "type: REDIS\nconfig: {addr: %q, expiration: 1m}\n", p.address), Options{LookupTimeout: 5 * time.Second}, quiet, nil)
	check(t, err == nil, "%v", err)
	put(t, c, "k", 0, 10, 10, []byte("x"))
	check(t, found(t, c, "k", 0, 10), "not found")
	check(t, c.Close() == nil, "close")
}

func TestPeerMemcached_StoreAndCache(t *testing.T) {
	p := startMemcached(t)
	s := memcachedStore(t, MemcachedOptions{Addresses: []string{p.address}})
	asStore(t, s)
	err := s.Set(context.Background(), "large", make([]byte, 2<<20), 0)
	check(t, errors.Is(err, ErrTooLarge), "2 MiB: %v", err)
	check(t, s.Close() == nil, "close")
	// The result is the same if the server rejects the value.
	s = memcachedStore(t, MemcachedOptions{Addresses: []string{p.address}, ItemBytesMax: 1 << 30})
	err = s.Set(context.Background(), "large", make([]byte, 2<<20), 0)
	check(t, errors.Is(err, ErrTooLarge), "2 MiB: %v", err)
	check(t, s.Close() == nil, "close")
	asCache(t, memcachedStore(t, MemcachedOptions{Addresses: []string{p.address}}))
}

func TestPeerMemcached_ServersShareTheKeys(t *testing.T) {
	peers := []*peer{startMemcached(t), startMemcached(t), startMemcached(t)}
	_, port, _ := net.SplitHostPort(peers[1].address)
	s := memcachedStore(t, MemcachedOptions{Addresses: []string{peers[0].address, "dns+localhost:" + port, peers[2].address}, ServerFailures: 2, ServerBackoff: time.Hour})
	c := newCache(t, s, Options{LookupTimeout: 5 * time.Second})
	const keys = 200
	for i := range keys {
		put(t, c, fmt.Sprint(i), 0, 10, 10, response("mix", 1, 10))
	}
	count := func() (n int) {
		for i := range keys {
			if found(t, c, fmt.Sprint(i), 0, 10) {
				n++
			}
		}
		return n
	}
	check(t, count() == keys, "found %d", count())
	for _, p := range peers {
		p.signal(syscall.SIGSTOP)
		p.signal(syscall.SIGCONT)
	}
	peers[2].kill()
	n := count()
	check(t, n > keys/3 && n < keys, "found %d with one of three servers down", n)
	begin := time.Now()
	check(t, count() == n, "found %d instead of %d", count(), n)
	check(t, time.Since(begin) < 20*time.Second, "took %s", time.Since(begin))
}

// A stopped server process keeps its connections open and does not respond.
func TestPeer_HangingServerCostsABoundedTime(t *testing.T) {
	for name, start := range map[string]func(t *testing.T) (*peer, Store){
		"redis": func(t *testing.T) (*peer, Store) {
			p := startRedis(t)
			return p, redisStore(t, RedisOptions{Address: p.address})
		},
		"memcached": func(t *testing.T) (*peer, Store) {
			p := startMemcached(t)
			return p, memcachedStore(t, MemcachedOptions{Addresses: []string{p.address}, ServerBackoff: 200 * time.Millisecond})
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, store := start(t)
			c := newCache(t, store, Options{BreakerFailures: 3, BreakerBackoff: 200 * time.Millisecond, BreakerBackoffMax: 400 * time.Millisecond})
			put(t, c, "k", 0, 10, 10, response("mix", 5, 10))
			until := func(want bool) {
				t.Helper()
				for deadline := time.Now().Add(20 * time.Second); found(t, c, "k", 0, 10) != want; time.Sleep(10 * time.Millisecond) {
					check(t, time.Now().Before(deadline), "it does not find %v", want)
				}
			}
			until(true)
			p.signal(syscall.SIGSTOP)
			until(false) // a signal takes its time
			begin := time.Now()
			for range 50 {
				check(t, !found(t, c, "k", 0, 10), "found")
			}
			// Three timeouts of 250 ms and some probes.
			check(t, time.Since(begin) < 10*time.Second, "fifty look-ups took %s", time.Since(begin))
			w := c.Writer("other", 100, 110, 10)
			for range 200 {
				_, _ = w.Write(noise(64 << 10))
			}
			w.Commit()
			p.signal(syscall.SIGCONT)
			until(true)
		})
	}
}

func TestPeerRedis_WithSentinel(t *testing.T) {
	p := startRedis(t)
	_, port, _ := net.SplitHostPort(p.address)
	sentinel := startPeer(t, "redis-server", func(sentinelPort string) []string {
		conf := t.TempDir() + "/sentinel.conf"
		text := fmt.Sprintf("port %s\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 %s 1\n", sentinelPort, port)
		check(t, os.WriteFile(conf, []byte(text), 0o600) == nil, "write")
		return []string{conf, "--sentinel"}
	})
	c := newCache(t, redisStore(t, RedisOptions{Address: sentinel.address, MasterName: "main"}), Options{LookupTimeout: 5 * time.Second, SetTimeout: 5 * time.Second})
	put(t, c, "k", 0, 10, 10, []byte("x"))
	got := get(t, c, "k", 0, 10)
	check(t, got == "0-10:x", "got %q", got)
}

// certificate writes a self-signed certificate for 127.0.0.1.
func certificate(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err == nil, "key: %v", err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	check(t, err == nil, "certificate: %v", err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	check(t, err == nil, "key: %v", err)
	certFile, keyFile = filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	check(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600) == nil, "write")
	check(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600) == nil, "write")
	return certFile, keyFile
}

func TestPeerRedis_WithTLS(t *testing.T) {
	cert, key := certificate(t)
	p := startPeer(t, "redis-server", func(port string) []string {
		return []string{"--port", "0", "--tls-port", port, "--bind", "127.0.0.1", "--save", "", "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert}
	})
	for tls, want := range map[string]bool{
		fmt.Sprintf("{ca_file: %s, cert_file: %s, key_file: %s, min_version: '1.2'}", cert, cert, key): true,
		fmt.Sprintf("{insecure_skip_verify: true, cert_file: %s, key_file: %s}", cert, key):            true,
		fmt.Sprintf("{cert_file: %s, key_file: %s}", cert, key):                                        false, // no CA for the server
		fmt.Sprintf("{ca_file: %s}", cert):                                                             false, // no client certificate
	} {
		text := fmt.Sprintf("type: REDIS\nconfig: {addr: '%s', tls_enabled: true, tls_config: %s}\n", p.address, tls)
		c, _, err := FromConfig([]byte(text), Options{LookupTimeout: 5 * time.Second, SetTimeout: 5 * time.Second}, quiet, nil)
		check(t, err == nil, "%v", err)
		put(t, c, tls, 0, 10, 10, []byte("x"))
		check(t, found(t, c, tls, 0, 10) == want, "%s: not %v", tls, want)
		check(t, c.Close() == nil, "close")
	}
}
