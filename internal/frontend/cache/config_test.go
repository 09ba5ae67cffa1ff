package cache

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	instruments "github.com/ferula-io/ferula/metrics"
)

const memcachedExample = `type: MEMCACHED
config:
  addresses: [dns+memcached.example.com:11211, "10.0.0.1:11211"]
  timeout: 300ms
  max_idle_connections: 50
  max_item_size: 2MiB
  max_async_concurrency: 7
  max_async_buffer_size: 123
  max_get_multi_concurrency: 33
  max_get_multi_batch_size: 10
  dns_provider_update_interval: 30s
  auto_discovery: false
  set_async_circuit_breaker_config:
    enabled: true
    half_open_max_requests: 10
    open_duration: 3s
    min_requests: 50
    consecutive_failures: 9
    failure_percent: 0.05
  expiration: 1d
`

const redisExample = `type: redis
config:
  addr: "redis-0:6379,redis-1:6379"
  prefix: "f:"
  username: u
  password: p
  db: 3
  dial_timeout: 5s
  read_timeout: 3s
  write_timeout: 2s
  max_get_multi_concurrency: 100
  get_multi_batch_size: 100
  max_set_multi_concurrency: 100
  set_multi_batch_size: 100
  tls_enabled: true
  tls_config:
    server_name: redis
    insecure_skip_verify: true
    min_version: "1.2"
  cache_size: 0
  master_name: main
  max_async_buffer_size: 10000
  max_async_concurrency: 20
  set_async_circuit_breaker_config:
    enabled: false
    half_open_max_requests: 10
    open_duration: 5s
    min_requests: 50
    consecutive_failures: 5
    failure_percent: 0.05
  expiration: 24h0m0s
`

func TestParseConfig_AcceptsThanosConfigurations(t *testing.T) {
	c, inert, err := parseConfig([]byte("\"config\":\n  \"max_size\": \"0\"\n  \"max_size_items\": 2048\n  \"validity\": \"6h\"\n\"type\": \"in-memory\"\n"), Options{})
	check(t, err == nil && c.Type == TypeMemory && c.TTL == 6*time.Hour && c.Memory.ItemsMax == 2048 && c.Memory.BytesMax == 256<<20, "kube-thanos: %+v, %v", c, err)
	check(t, len(inert) == 1 && contains(inert[0], "max_size"), "inert: %v", inert)

	c, inert, err = parseConfig([]byte("type: IN-MEMORY\nconfig:\n  max_size: 1.5GB\n"), Options{})
	check(t, err == nil && c.Memory.BytesMax == 1_500_000_000 && c.TTL == 0 && c.EntryBytesMax == 375_000_000 && c.PartBytes == 512<<10 && len(inert) == 0, "%+v, %v, %v", c, inert, err)

	c, inert, err = parseConfig([]byte(memcachedExample), Options{})
	check(t, err == nil, "memcached: %v", err)
	m := c.Memcached
	check(t, len(m.Addresses) == 2 && m.Timeout == 300*time.Millisecond && m.IdleConnectionsMax == 50 && m.ItemBytesMax == 2<<20 && m.OperationsMax == 33 &&
		m.UpdateInterval == 30*time.Second && m.TLS == nil && m.ServerFailures == 9 && m.ServerBackoff == 3*time.Second, "%+v", m)
	check(t, c.Workers == 7 && c.QueueMax == 123 && c.BreakerFailures == 9 && c.BreakerBackoff == 3*time.Second && c.TTL == 24*time.Hour && c.PartBytes == 512<<10, "%+v", c)
	check(t, strings.Join(keysOf(inert), " ") == "max_get_multi_batch_size half_open_max_requests min_requests failure_percent", "inert: %v", inert)
	check(t, strings.HasPrefix(inert[0], "line 10: "), "inert: %v", inert)

	c, inert, err = parseConfig([]byte(redisExample), Options{})
	check(t, err == nil, "redis: %v", err)
	r := c.Redis
	check(t, r.Address == "redis-0:6379,redis-1:6379" && r.Prefix == "f:" && r.Username == "u" && r.Password == "p" && r.Database == 3 && r.DialTimeout == 5*time.Second &&
		r.ReadTimeout == 3*time.Second && r.WriteTimeout == 2*time.Second && r.MasterName == "main" && r.TLS != nil && r.TLS.ServerName == "redis" && r.TLS.InsecureSkipVerify, "%+v", r)
	check(t, c.TTL == 24*time.Hour && c.Workers == 20 && c.QueueMax == 10_000 && c.BreakerFailures == 0, "%+v", c)
	check(t, len(inert) == 10, "inert: %v", inert)

	c, _, err = parseConfig([]byte("type: MEMCACHED\nconfig: {addresses: [a:1], max_item_size: 0, expiration: 0s}\n"), Options{})
	check(t, err == nil && c.TTL == 24*time.Hour && c.PartBytes == 512<<10 && c.Memcached.ItemBytesMax == 1<<40, "%+v, %v", c, err)
	c, _, err = parseConfig([]byte("type: MEMCACHED\nconfig: {addresses: [a:1], max_item_size: 100KB}\n"), Options{})
	check(t, err == nil && c.PartBytes == 100<<10-2*itemOverheadBytes, "%+v, %v", c, err)
}

func keysOf(inert []string) (keys []string) {
	for _, line := range inert {
		_, rest, _ := strings.Cut(line, ": ")
		key, _, _ := strings.Cut(rest, ":")
		keys = append(keys, key)
	}
	return keys
}

func TestParseConfig_ReportsEveryError(t *testing.T) {
	for text, want := range map[string][]string{
		"":                             {"type"},
		"type: DISK\n":                 {"DISK", "IN-MEMORY"},
		"type: IN-MEMORY\nconfg: {}\n": {"line 2", "confg"},
		"type: IN-MEMORY\nconfig:\n  max_size: 1MB\n  max_sise: 2\n":                                           {"line 4", "max_sise"},
		"type: IN-MEMORY\nconfig:\n  max_size: lots\n":                                                         {"line 3", "lots"},
		"type: IN-MEMORY\nconfig:\n  max_size: -1MB\n":                                                         {"line 3"},
		"type: IN-MEMORY\nconfig:\n  max_size: 1EB\n":                                                          {"line 3"},
		"type: IN-MEMORY\nconfig:\n  validity: 5 parsecs\n":                                                    {"line 3", "parsecs"},
		"type: IN-MEMORY\nconfig:\n  validity: -5s\n":                                                          {"negative"},
		"type: IN-MEMORY\nconfig: [1]\n":                                                                       {"line 2"},
		"type: MEMCACHED\nconfig:\n  timeout: -1s\n  expiration: -1s\n":                                        {"no memcached addresses", "expiration, timeout"},
		"type: MEMCACHED\nconfig:\n  addresses: [a]\n  max_item_size: 1KB\n":                                   {"max_item_size"},
		"type: MEMCACHED\nconfig:\n  addresses: [a]\n  set_async_circuit_breaker_config:\n    enabeld: true\n": {"line 5", "enabeld"},
		"type: REDIS\nconfig:\n  db: -1\n":                                                                     {"no redis addr", "db"},
		"type: REDIS\nconfig:\n  addr: a\n  tls_config: {ca_file: x}\n":                                        {"tls_enabled"},
		"type: REDIS\nconfig:\n  addr: a\n  tls_enabled: true\n  tls_config: {ca_file: /no/such/file}\n":       {"tls_config", "/no/such/file"},
		"type: REDIS\nconfig:\n  addr: a\n  tls_enabled: true\n  tls_config: {cert_file: x}\n":                 {"key_file"},
		"type: REDIS\nconfig:\n  addr: a\n  tls_enabled: true\n  tls_config: {min_version: '9'}\n":             {"min_version"},
		"type: REDIS\nconfig:\n  addr: a\n  addr: b\n":                                                         {"line 4"},
		"\t": {"yaml"},
	} {
		_, _, err := parseConfig([]byte(text), Options{})
		check(t, err != nil, "%q: no error", text)
		for _, word := range want {
			check(t, contains(err.Error(), word), "%q: %q is not in %q", text, word, err)
		}
		check(t, !contains(err.Error(), "YAML") && !contains(err.Error(), "struct"), "%q: Go's types in %q", text, err)
	}
}

func TestParseSize_MatchesThanos(t *testing.T) {
	for text, want := range map[string][2]int64{ // as max_size and as max_item_size
		"0": {0, 0}, "123": {123, 123}, "1KB": {1000, 1024}, "1kb": {1000, 1024}, "1K": {1000, 1024}, "1KiB": {1024, 1024}, "2 MB": {2e6, 2 << 20},
		"1GiB": {1 << 30, 1 << 30}, "0.5GB": {5e8, 1 << 29}, "1TB": {1e12, 1 << 40}, "7B": {7, 7}, "''": {0, 0},
	} {
		doc, err := strict[memoryYAML](fmt.Appendf(nil, "config: {max_size: %s}", text))
		check(t, err == nil && int64(doc.Config.MaxSize) == want[0], "max_size %s: %d, %v", text, doc.Config.MaxSize, err)
		item, err := strict[memcachedYAML](fmt.Appendf(nil, "config: {max_item_size: %s}", text))
		check(t, err == nil && int64(*item.Config.MaxItemSize) == want[1], "max_item_size %s: %v", text, err)
	}
}

func TestFromConfig_ReturnsAWorkingCache(t *testing.T) {
	for _, text := range []string{
		"type: IN-MEMORY\n", "type: IN-MEMORY\nconfig: {max_size: 100KB, validity: 1h}\n",
		"type: MEMCACHED\nconfig: {addresses: ['127.0.0.1:1']}\n", "type: REDIS\nconfig: {addr: '127.0.0.1:1'}\n",
	} {
		c, _, err := FromConfig([]byte(text), Options{Merge: concatenate}, quiet, instruments.NewSet())
		check(t, err == nil, "%s: %v", text, err)
		w := c.Writer("k", 0, 10, 10)
		_, _ = w.Write([]byte("x"))
		w.Commit()
		flush(t, c)
		check(t, found(t, c, "k", 0, 10) == c.local, "%s: found %v", text, !c.local)
		check(t, c.Close() == nil, "close")
	}
	_, _, err := FromConfig([]byte("type: IN-MEMORY\n"), Options{Workers: -1}, quiet, nil)
	check(t, err != nil, "bad options")
}

func TestParseConfig_LoadsTLSFiles(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.pem")
	check(t, os.WriteFile(bad, []byte("no certificate"), 0o600) == nil, "write")
	_, err := tlsOf(true, tlsYAML{CAFile: bad})
	check(t, err != nil && contains(err.Error(), bad), "%v", err)
	_, err = tlsOf(true, tlsYAML{CertFile: bad, KeyFile: bad})
	check(t, err != nil, "no error")
	config, err := tlsOf(false, tlsYAML{})
	check(t, config == nil && err == nil, "%v", err)
}

func FuzzParseConfig(f *testing.F) {
	f.Add(memcachedExample)
	f.Add(redisExample)
	f.Add("type: IN-MEMORY\nconfig: {max_size: 1MB}\n")
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "_file") {
			return // reads files
		}
		_, _, _ = parseConfig([]byte(text), Options{})
	})
}
