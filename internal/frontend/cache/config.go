package cache

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	instruments "github.com/ferula-io/ferula/metrics"
	promconfig "github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"
)

// configuration is the store of a cache and its options, parsed from the YAML of Thanos'
// --query-range.response-cache-config.
type configuration struct {
	Type      string // IN-MEMORY, MEMCACHED or REDIS
	Memory    MemoryOptions
	Memcached MemcachedOptions
	Redis     RedisOptions
	// Options of the cache; those of the YAML are used unless FromConfig was given others.
	Options

	memoryUnlimited  bool // max_size is 0
	memcachedAnySize bool // max_item_size is 0
	breakerSet       bool // the circuit breaker of Redis is enabled
}

// The store types of a configuration.
const (
	TypeMemory    = "IN-MEMORY"
	TypeMemcached = "MEMCACHED"
	TypeRedis     = "REDIS"
)

// FromConfig returns a cache configured by Thanos' YAML. Fields set in opts take
// precedence. inert lists the configured keys that have no effect, with the reasons.
func FromConfig(text []byte, opts Options, logger *slog.Logger,
	set *instruments.Set) (c *Cache, inert []string, err error) {
	config, inert, err := parseConfig(text, opts)
	if err != nil {
		return nil, nil, err
	}
	var store Store
	switch config.Type {
	case TypeMemory:
		config.Memory.Name = opts.Name
		store, err = NewMemory(config.Memory, set)
	case TypeMemcached:
		store, err = NewMemcached(config.Memcached, logger)
	case TypeRedis:
		store, err = NewRedis(config.Redis, logger)
	}
	if err != nil {
		return nil, nil, err
	}
	if c, err = New(store, config.Options, logger, set); err != nil {
		return nil, nil, errors.Join(err, store.Close())
	}
	return c, inert, nil
}

// parseConfig parses Thanos' YAML. Unknown keys are errors with their lines; all other
// errors are reported at once. inert is as for FromConfig.
func parseConfig(text []byte, opts Options) (config configuration, inert []string, err error) {
	config.Options = opts
	outer, err := strict[yaml.Node](text)
	if err != nil {
		return config, nil, err
	}
	config.Type = strings.ToUpper(outer.Type)
	switch config.Type {
	case TypeMemory:
		err = config.readMemory(text)
	case TypeMemcached:
		err = config.readMemcached(text)
	case TypeRedis:
		err = config.readRedis(text)
	default:
		err = fmt.Errorf("type %q: it must be %s, %s or %s", outer.Type, TypeMemory, TypeMemcached, TypeRedis)
	}
	if err != nil {
		return configuration{}, nil, err
	}
	return config, config.inert(&outer.Config), nil
}

// document is the outer level of the YAML.
type document[T any] struct {
	Type   string `yaml:"type"`
	Config T      `yaml:"config"`
}

// goType matches the Go type of this package in an error of the YAML library.
var goType = regexp.MustCompile(` (?:in type|into) (?:struct \{.*\}|cache\.\S+)`)

// strict decodes a document and rejects unknown keys; an empty one gives the zero value.
func strict[T any](text []byte) (doc document[T], err error) {
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return doc, errors.New(goType.ReplaceAllString(err.Error(), ""))
	}
	return doc, nil
}

// duration is a duration in Prometheus' or Go's syntax.
type duration time.Duration

// UnmarshalYAML accepts 1d as well as 1h30m0s and 0.5s.
func (d *duration) UnmarshalYAML(node *yaml.Node) error {
	if p, err := model.ParseDuration(node.Value); err == nil {
		*d = duration(p)
		return nil
	}
	p, err := time.ParseDuration(node.Value)
	if err != nil {
		return fmt.Errorf("line %d: %q is not a duration", node.Line, node.Value)
	}
	*d = duration(p)
	return nil
}

// binarySize is a size whose KB is 1024 bytes, as Thanos reads max_item_size.
type binarySize int64

// UnmarshalYAML parses a size.
func (s *binarySize) UnmarshalYAML(node *yaml.Node) error {
	n, err := parseSize(node, 1024)
	*s = binarySize(n)
	return err
}

// decimalSize is a size whose KB is 1000 bytes, as Thanos reads max_size.
type decimalSize int64

// UnmarshalYAML parses a size.
func (s *decimalSize) UnmarshalYAML(node *yaml.Node) error {
	n, err := parseSize(node, 1000)
	*s = decimalSize(n)
	return err
}

// parseSize parses a number of bytes with an optional unit: B, KB, KiB, …, TiB. The B is
// optional, and case does not matter.
func parseSize(node *yaml.Node, kilo float64) (int64, error) {
	text := strings.ToLower(strings.TrimSpace(node.Value))
	end := strings.IndexFunc(text, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if end < 0 {
		end = len(text)
	}
	unit := strings.TrimSuffix(strings.TrimSpace(text[end:]), "b")
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseFloat(text[:end], 64)
	if strings.HasSuffix(unit, "i") && len(unit) == 2 {
		unit, kilo = unit[:1], 1024
	}
	power := strings.Index("kmgt", unit) + 1
	if unit == "" {
		power = 0
	}
	for range power {
		n *= kilo
	}
	if err != nil || len(unit) > 1 || (unit != "" && power == 0) || n > 1<<50 {
		return 0, fmt.Errorf("line %d: %q is not a size", node.Line, node.Value)
	}
	return int64(n), nil
}

type memoryYAML struct {
	MaxSize      decimalSize `yaml:"max_size"`
	MaxSizeItems int         `yaml:"max_size_items"`
	Validity     duration    `yaml:"validity"`
}

func (c *configuration) readMemory(text []byte) error {
	doc, err := strict[memoryYAML](text)
	if err != nil {
		return err
	}
	y := doc.Config
	if y.MaxSizeItems < 0 || y.Validity < 0 {
		return errors.New("max_size_items and validity cannot be negative")
	}
	c.TTL = cmp.Or(c.TTL, time.Duration(y.Validity))
	c.memoryUnlimited = y.MaxSize == 0
	c.Memory = MemoryOptions{BytesMax: int64(y.MaxSize), ItemsMax: y.MaxSizeItems}
	c.Memory.BytesMax = cmp.Or(c.Memory.BytesMax, memoryBytesMax)
	// One response must not evict all others, and a part must fit.
	c.PartBytes = cmp.Or(c.PartBytes, int(min(512<<10, max(c.Memory.BytesMax/8, partBytesMin))))
	c.EntryBytesMax = cmp.Or(c.EntryBytesMax, max(c.Memory.BytesMax/4, partBytesMin, int64(c.PartBytes)))
	return nil
}

type breakerYAML struct {
	Enabled             bool     `yaml:"enabled"`
	HalfOpenMaxRequests uint32   `yaml:"half_open_max_requests"`
	OpenDuration        duration `yaml:"open_duration"`
	MinRequests         uint32   `yaml:"min_requests"`
	ConsecutiveFailures uint32   `yaml:"consecutive_failures"`
	FailurePercent      float64  `yaml:"failure_percent"`
}

func (c *configuration) setBreaker(y breakerYAML) {
	if c.breakerSet = y.Enabled; y.Enabled {
		c.BreakerFailures = cmp.Or(c.BreakerFailures, int(y.ConsecutiveFailures))
		c.BreakerBackoff = cmp.Or(c.BreakerBackoff, time.Duration(y.OpenDuration))
	}
}

type memcachedYAML struct {
	Addresses                 []string    `yaml:"addresses"`
	Timeout                   duration    `yaml:"timeout"`
	MaxIdleConnections        int         `yaml:"max_idle_connections"`
	MaxAsyncConcurrency       int         `yaml:"max_async_concurrency"`
	MaxAsyncBufferSize        int         `yaml:"max_async_buffer_size"`
	MaxGetMultiConcurrency    int         `yaml:"max_get_multi_concurrency"`
	MaxItemSize               *binarySize `yaml:"max_item_size"`
	MaxGetMultiBatchSize      int         `yaml:"max_get_multi_batch_size"`
	DNSProviderUpdateInterval duration    `yaml:"dns_provider_update_interval"`
	AutoDiscovery             bool        `yaml:"auto_discovery"`
	SetAsyncCircuitBreaker    breakerYAML `yaml:"set_async_circuit_breaker_config"`
	TLSEnabled                bool        `yaml:"tls_enabled"`
	TLSConfig                 tlsYAML     `yaml:"tls_config"`
	Expiration                duration    `yaml:"expiration"`
}

// expirationDefault is Thanos' default for remote stores.
const expirationDefault = 24 * time.Hour

func (c *configuration) readMemcached(text []byte) error {
	doc, err := strict[memcachedYAML](text)
	if err != nil {
		return err
	}
	y := doc.Config
	var faults []error
	if len(y.Addresses) == 0 {
		faults = append(faults, errors.New("no memcached addresses"))
	}
	faults = append(faults, negative(y))
	tls, err := tlsOf(y.TLSEnabled, y.TLSConfig)
	if err := errors.Join(append(faults, err)...); err != nil {
		return err
	}
	c.TTL = cmp.Or(c.TTL, cmp.Or(time.Duration(y.Expiration), expirationDefault))
	c.Memcached = MemcachedOptions{
		Addresses: y.Addresses, AutoDiscovery: y.AutoDiscovery, UpdateInterval: time.Duration(y.DNSProviderUpdateInterval),
		Timeout: time.Duration(y.Timeout), IdleConnectionsMax: y.MaxIdleConnections, OperationsMax: y.MaxGetMultiConcurrency,
		TLS: tls,
	}
	if y.MaxItemSize != nil {
		c.Memcached.ItemBytesMax = int64(*y.MaxItemSize)
		if *y.MaxItemSize == 0 { // any size, as in Thanos
			c.memcachedAnySize, c.Memcached.ItemBytesMax = true, 1<<40
		}
		c.PartBytes = cmp.Or(c.PartBytes, int(min(512<<10, c.Memcached.ItemBytesMax-2*itemOverheadBytes)))
		if c.PartBytes < partBytesMin {
			return fmt.Errorf("max_item_size: %d bytes: at least %d", c.Memcached.ItemBytesMax, partBytesMin+2*itemOverheadBytes)
		}
	}
	c.Workers = cmp.Or(c.Workers, y.MaxAsyncConcurrency)
	c.QueueMax = cmp.Or(c.QueueMax, y.MaxAsyncBufferSize)
	c.setBreaker(y.SetAsyncCircuitBreaker)
	c.Memcached.ServerFailures, c.Memcached.ServerBackoff = c.BreakerFailures, c.BreakerBackoff
	return nil
}

type redisYAML struct {
	Addr                   string      `yaml:"addr"`
	Prefix                 string      `yaml:"prefix"`
	Username               string      `yaml:"username"`
	Password               string      `yaml:"password"`
	DB                     int         `yaml:"db"`
	DialTimeout            duration    `yaml:"dial_timeout"`
	ReadTimeout            duration    `yaml:"read_timeout"`
	WriteTimeout           duration    `yaml:"write_timeout"`
	MaxGetMultiConcurrency int         `yaml:"max_get_multi_concurrency"`
	GetMultiBatchSize      int         `yaml:"get_multi_batch_size"`
	MaxSetMultiConcurrency int         `yaml:"max_set_multi_concurrency"`
	SetMultiBatchSize      int         `yaml:"set_multi_batch_size"`
	TLSEnabled             bool        `yaml:"tls_enabled"`
	TLSConfig              tlsYAML     `yaml:"tls_config"`
	CacheSize              binarySize  `yaml:"cache_size"`
	MasterName             string      `yaml:"master_name"`
	MaxAsyncBufferSize     int         `yaml:"max_async_buffer_size"`
	MaxAsyncConcurrency    int         `yaml:"max_async_concurrency"`
	SetAsyncCircuitBreaker breakerYAML `yaml:"set_async_circuit_breaker_config"`
	Expiration             duration    `yaml:"expiration"`
	// Accepted by older versions of Thanos.
	PoolSize     int      `yaml:"pool_size"`
	MinIdleConns int      `yaml:"min_idle_conns"`
	IdleTimeout  duration `yaml:"idle_timeout"`
	MaxConnAge   duration `yaml:"max_conn_age"`
}

func (c *configuration) readRedis(text []byte) error {
	doc, err := strict[redisYAML](text)
	if err != nil {
		return err
	}
	y := doc.Config
	var faults []error
	if y.Addr == "" {
		faults = append(faults, errors.New("no redis addr"))
	}
	faults = append(faults, negative(y))
	tls, err := tlsOf(y.TLSEnabled, y.TLSConfig)
	if err := errors.Join(append(faults, err)...); err != nil {
		return err
	}
	c.TTL = cmp.Or(c.TTL, cmp.Or(time.Duration(y.Expiration), expirationDefault))
	c.Redis = RedisOptions{
		Address: y.Addr, MasterName: y.MasterName, Prefix: y.Prefix, Username: y.Username, Password: y.Password,
		Database:    y.DB,
		DialTimeout: time.Duration(y.DialTimeout), ReadTimeout: time.Duration(y.ReadTimeout),
		WriteTimeout:   time.Duration(y.WriteTimeout),
		ConnectionsMax: y.PoolSize, IdleConnectionsMin: y.MinIdleConns, IdleTimeout: time.Duration(y.IdleTimeout),
		ConnectionAgeMax: time.Duration(y.MaxConnAge),
		TLS:              tls,
	}
	c.Redis.ConnectionsMax = cmp.Or(c.Redis.ConnectionsMax, y.MaxGetMultiConcurrency)
	c.Workers = cmp.Or(c.Workers, y.MaxAsyncConcurrency)
	c.QueueMax = cmp.Or(c.QueueMax, y.MaxAsyncBufferSize)
	c.setBreaker(y.SetAsyncCircuitBreaker)
	return nil
}

// negative returns an error that names the keys with negative values, in order; a key without effect may have one.
func negative(section any) error {
	var bad []string
	for field, v := range reflect.ValueOf(section).Fields() {
		if key := field.Tag.Get("yaml"); v.CanInt() && v.Int() < 0 && inertKeys[key] == "" {
			bad = append(bad, key)
		}
	}
	if len(bad) == 0 {
		return nil
	}
	slices.Sort(bad)
	return fmt.Errorf("cannot be negative: %s", strings.Join(bad, ", "))
}

// inertKeys are keys that Thanos honours or accepts and that have no effect here, with the reasons.
var inertKeys = map[string]string{
	"max_get_multi_batch_size":  "parts are fetched one by one, before they are read",
	"get_multi_batch_size":      "parts are fetched one by one, before they are read",
	"max_set_multi_concurrency": "max_async_concurrency limits writes",
	"set_multi_batch_size":      "parts are written one by one",
	"cache_size":                "there is no client-side cache",
	"half_open_max_requests":    "one operation probes a store that failed",
	"min_requests":              "the circuit breaker counts consecutive failures",
	"failure_percent":           "the circuit breaker counts consecutive failures",
	"enabled":                   "the circuit breaker is always there",
}

// inert lists the keys of the configuration that have no effect.
func (c *configuration) inert(node *yaml.Node) []string {
	var found []string
	var walk func(*yaml.Node)
	walk = func(n *yaml.Node) {
		for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			why := inertKeys[key.Value]
			switch {
			case key.Value == "enabled" && c.breakerSet:
				why = ""
			case !c.breakerSet && (key.Value == "open_duration" || key.Value == "consecutive_failures"):
				why = "unless enabled is true the circuit breaker uses its own value"
			}
			if why != "" {
				found = append(found, fmt.Sprintf("line %d: %s: %s", key.Line, key.Value, why))
			}
			walk(value)
		}
	}
	walk(node)
	if c.memoryUnlimited {
		found = append(found, fmt.Sprintf("max_size: a cache cannot be unlimited, the limit is %d MiB",
			c.Memory.BytesMax>>20))
	}
	if c.memcachedAnySize {
		found = append(found, "max_item_size: 0 means no limit, but a part has at most 512 KiB")
	}
	return found
}

type tlsYAML struct {
	CAFile             string `yaml:"ca_file"`
	CertFile           string `yaml:"cert_file"`
	KeyFile            string `yaml:"key_file"`
	ServerName         string `yaml:"server_name"`
	InsecureSkipVerify bool   `yaml:"insecure_skip_verify"`
	MinVersion         string `yaml:"min_version"`
}

var tlsVersions = map[string]promconfig.TLSVersion{
	"": 0, "1.0": tls.VersionTLS10, "1.1": tls.VersionTLS11, "1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13,
}

// tlsOf loads the files of a TLS configuration. It returns nil if TLS is not enabled. A client
// certificate is read again for every connection.
func tlsOf(enabled bool, y tlsYAML) (*tls.Config, error) {
	if !enabled {
		if y != (tlsYAML{}) {
			return nil, errors.New("tls_config without tls_enabled: true")
		}
		return nil, nil
	}
	version, ok := tlsVersions[y.MinVersion]
	if !ok {
		return nil, fmt.Errorf("tls_config: min_version %q: it must be 1.0, 1.1, 1.2 or 1.3", y.MinVersion)
	}
	config, err := promconfig.NewTLSConfig(&promconfig.TLSConfig{
		CAFile: y.CAFile, CertFile: y.CertFile, KeyFile: y.KeyFile, ServerName: y.ServerName,
		InsecureSkipVerify: y.InsecureSkipVerify, MinVersion: version,
	})
	if err != nil {
		return nil, fmt.Errorf("tls_config: %w", err)
	}
	return config, nil
}
