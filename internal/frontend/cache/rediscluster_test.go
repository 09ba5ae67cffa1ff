package cache

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// freePort returns a port of the loopback address that nothing listens on.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err == nil, "listen: %v", err)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	check(t, l.Close() == nil, "close")
	return port
}

// startRedisCluster starts a cluster and returns its nodes. Each of them has a part of the
// keys.
func startRedisCluster(t *testing.T, nodes int) []*peer {
	t.Helper()
	ctx := context.Background()
	var all []*peer
	var clients []*redis.Client
	for i := range nodes {
		bus := freePort(t)
		p := startRedis(t, "--cluster-enabled", "yes", "--cluster-port", bus, "--cluster-node-timeout", "15000")
		c := redis.NewClient(&redis.Options{Addr: p.address, DisableIdentity: true})
		t.Cleanup(func() { c.Close() })
		check(t, c.ClusterAddSlotsRange(ctx, i*16384/nodes, (i+1)*16384/nodes-1).Err() == nil, "slots of node %d", i)
		if i > 0 {
			host, port, _ := net.SplitHostPort(p.address)
			check(t, clients[0].Do(ctx, "cluster", "meet", host, port, bus).Err() == nil, "node %d", i)
		}
		all, clients = append(all, p), append(clients, c)
	}
	for i, c := range clients {
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			shards, err := c.ClusterShards(ctx).Result()
			info, _ := c.ClusterInfo(ctx).Result()
			if err == nil && len(shards) == nodes && len(info) > 16 && info[:16] == "cluster_state:ok" {
				break
			}
			check(t, time.Now().Before(deadline), "node %d: %v, %v, %s", i, shards, err, info)
		}
	}
	return all
}

// One address of a cluster is enough, as for a configuration endpoint.
func TestPeerRedis_ClusterIsFoundByOneAddress(t *testing.T) {
	nodes := startRedisCluster(t, 3)
	for _, address := range []string{nodes[0].address, nodes[2].address, nodes[0].address + "," + nodes[1].address} {
		opts := RedisOptions{Address: address, Prefix: address}
		s := redisStore(t, opts)
		asStore(t, s)
		check(t, s.Close() == nil && s.Close() == nil, "close")
		asCache(t, redisStore(t, opts))
	}
	// Each kind of operation may be the first one that is redirected.
	ctx := context.Background()
	for name, operation := range map[string]func(s Store, key string) error{
		"get": func(s Store, key string) error { _, _, err := s.Get(ctx, key); return err },
		"set": func(s Store, key string) error { return s.Set(ctx, key, []byte("x"), time.Minute) },
	} {
		s := redisStore(t, RedisOptions{Address: nodes[1].address})
		for i := range 20 {
			err := operation(s, fmt.Sprint("key", i))
			check(t, err == nil, "%s %d: %v", name, i, err)
		}
		check(t, s.Close() == nil, "close")
		check(t, operation(s, "key") != nil, "%s: after Close", name)
	}
}

// Concurrent operations may all be redirected, before one has replaced the client.
func TestPeerRedis_ClusterIsFoundByConcurrentOperations(t *testing.T) {
	nodes := startRedisCluster(t, 2)
	s := redisStore(t, RedisOptions{Address: nodes[0].address})
	errs := make(chan error, 16)
	for i := range cap(errs) {
		go func() {
			var err error
			for j := 0; j < 20 && err == nil; j++ {
				err = s.Set(context.Background(), fmt.Sprint(i, "-", j), []byte("x"), time.Minute)
			}
			errs <- err
		}()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	check(t, s.Close() == nil, "close")
}
