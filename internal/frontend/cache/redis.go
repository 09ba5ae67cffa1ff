package cache

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// RedisOptions of a Redis. Zero values take the defaults, which are Thanos'.
type RedisOptions struct {
	// Address is host:port of a server or of any node of a cluster. A comma-separated list
	// names a cluster's nodes, or the sentinels if MasterName is set.
	Address    string
	MasterName string // of the sentinels' master; "": no sentinels
	Prefix     string // of every key
	Username   string
	Password   string
	Database   int

	DialTimeout  time.Duration // 0: 5 s
	ReadTimeout  time.Duration // 0: 3 s
	WriteTimeout time.Duration // 0: 3 s

	ConnectionsMax     int           // 0: 100
	IdleConnectionsMin int           // kept open
	IdleTimeout        time.Duration // after which an idle connection is closed; 0: 30 min
	ConnectionAgeMax   time.Duration // 0: no limit
	TLS                *tls.Config   // nil: none
}

func (o RedisOptions) withDefaults() RedisOptions {
	o.DialTimeout = cmp.Or(o.DialTimeout, 5*time.Second)
	o.ReadTimeout = cmp.Or(o.ReadTimeout, 3*time.Second)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 3*time.Second)
	o.ConnectionsMax = cmp.Or(o.ConnectionsMax, 100)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, 30*time.Minute)
	return o
}

// Redis is a Store on a Redis server, a cluster of them, or one found by sentinels.
//
// The server at a single address is used as a single server until it redirects a key. Only a node of a cluster
// redirects keys. From then on the client finds the nodes of the cluster through that address. So there is no probe,
// which could fail at the start or need a permission.
type Redis struct {
	opts   *redis.UniversalOptions
	prefix string
	logger *slog.Logger

	mu     sync.Mutex
	client redis.UniversalClient
	single *redis.Client // the client of a single server; kept after joinCluster, because its operations may still run
	closed bool
}

var _ Store = (*Redis)(nil)

// NewRedis returns a store on the server. A server that does not respond is not an error.
func NewRedis(opts RedisOptions, logger *slog.Logger) (*Redis, error) {
	opts = opts.withDefaults()
	if opts.Address == "" {
		return nil, errors.New("redis: no address")
	}
	if opts.ConnectionsMax < 0 || opts.IdleConnectionsMin < 0 || opts.Database < 0 {
		return nil, errors.New("redis: limits and the database's number cannot be negative")
	}
	redis.SetLogger(redisLogger{logger}) // the library's logger is global and writes to stderr by default
	r := &Redis{prefix: opts.Prefix, logger: logger, opts: &redis.UniversalOptions{
		Addrs:      strings.Split(opts.Address, ","),
		MasterName: opts.MasterName,
		Username:   opts.Username,
		Password:   opts.Password,
		DB:         opts.Database,

		DialTimeout:           opts.DialTimeout,
		ReadTimeout:           opts.ReadTimeout,
		WriteTimeout:          opts.WriteTimeout,
		ContextTimeoutEnabled: true,
		// A failure is a miss; a retry would delay the query.
		MaxRetries:    -1,
		DialerRetries: 1,

		PoolSize:        opts.ConnectionsMax,
		MinIdleConns:    opts.IdleConnectionsMin,
		ConnMaxIdleTime: opts.IdleTimeout,
		ConnMaxLifetime: opts.ConnectionAgeMax,
		TLSConfig:       opts.TLS,

		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}}
	r.client = redis.NewUniversalClient(r.opts)
	if opts.MasterName == "" {
		r.single, _ = r.client.(*redis.Client)
	}
	return r, nil
}

// do executes an operation. A redirection (MOVED) means that the server is a node of a cluster and
// has not executed the operation. Then do repeats the operation with a client of the cluster.
func (r *Redis) do(operation func(redis.UniversalClient) error) error {
	r.mu.Lock()
	client := r.client
	r.mu.Unlock()
	err := operation(client)
	if _, redirected := redis.IsMovedError(err); redirected && r.joinCluster() {
		r.mu.Lock()
		client = r.client
		r.mu.Unlock()
		err = operation(client)
	}
	return err
}

// joinCluster replaces the client of a single server by a client of its cluster. It returns false if there was no
// single server or the store is closed.
func (r *Redis) joinCluster() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.single == nil || r.closed {
		return false
	}
	if r.client == redis.UniversalClient(r.single) {
		r.logger.Info("Redis server is a node of a cluster, using all nodes", "address", strings.Join(r.opts.Addrs, ","))
		r.client = redis.NewClusterClient(r.opts.Cluster())
	}
	return true
}

// redisLogger forwards the client's messages, which are about lost connections and
// sentinels and have no level.
type redisLogger struct{ logger *slog.Logger }

// Printf logs at debug level, because failures that matter are errors of operations, too.
func (l redisLogger) Printf(ctx context.Context, format string, v ...any) {
	if l.logger.Enabled(ctx, slog.LevelDebug) {
		l.logger.DebugContext(ctx, "Redis client: "+fmt.Sprintf(format, v...))
	}
}

// Get returns the value under key.
func (r *Redis) Get(ctx context.Context, key string) ([]byte, bool, error) {
	var value []byte
	err := r.do(func(client redis.UniversalClient) (err error) {
		value, err = client.Get(ctx, r.prefix+key).Bytes()
		return err
	})
	if errors.Is(err, redis.Nil) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("redis: %w", err)
	}
	return value, true, nil
}

// Set stores value under key.
func (r *Redis) Set(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	err := r.do(func(client redis.UniversalClient) error { return client.Set(ctx, r.prefix+key, value, ttl).Err() })
	if err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	return nil
}

// Local returns false.
func (r *Redis) Local() bool { return false }

// Close closes the connections.
func (r *Redis) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	err := r.client.Close()
	if r.single != nil && r.client != redis.UniversalClient(r.single) {
		err = errors.Join(err, r.single.Close())
	}
	return err
}
