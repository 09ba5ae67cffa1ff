package cache

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/ferula-io/ferula/internal/dnslookup"
)

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// addressBook resolves the configured addresses to addresses of servers. An address may be the path of a socket or a
// name for dnslookup. With discover, each address is a cluster's configuration endpoint, which lists the servers.
type addressBook struct {
	addresses []string
	discover  bool
	resolver  dnslookup.Resolver
	dial      dialFunc
	last      map[string][]string // the last result, by configured address; used when resolving fails
}

// resolve returns the servers, sorted and without duplicates. For an address that cannot
// be resolved it returns the last known servers, together with the error.
func (b *addressBook) resolve(ctx context.Context) ([]string, error) {
	var servers []string
	var errs []error
	for _, address := range b.addresses {
		found, err := b.resolveOne(ctx, address)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", address, err))
			found = b.last[address]
		}
		b.last[address] = found
		servers = append(servers, found...)
	}
	slices.Sort(servers)
	return slices.Compact(servers), errors.Join(errs...)
}

func (b *addressBook) resolveOne(ctx context.Context, address string) ([]string, error) {
	if b.discover {
		return discoverCluster(ctx, b.dial, address)
	}
	found, err := dnslookup.Lookup(ctx, b.resolver, address)
	if err == nil && len(found) == 0 {
		err = errNoServers // the last known servers stay in use
	}
	return found, err
}

var errNoServers = errors.New("the name has no addresses")

// clusterBytesMax limits a configuration endpoint's response.
const clusterBytesMax = 1 << 20

// discoverCluster queries a configuration endpoint, as in Amazon ElastiCache, for the
// nodes of its cluster.
func discoverCluster(ctx context.Context, dial dialFunc, address string) ([]string, error) {
	conn, err := dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	//lint:ignore errcheck the response was read
	defer conn.Close()
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(5 * time.Second)
	}
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	if _, err := io.WriteString(conn, "config get cluster\r\n"); err != nil {
		return nil, err
	}
	return parseCluster(bufio.NewReader(io.LimitReader(conn, clusterBytesMax)))
}

// parseCluster parses
//
//	CONFIG cluster 0 <bytes>
//	<version>
//	<name>|<ip>|<port> <name>|<ip>|<port> …
func parseCluster(r *bufio.Reader) ([]string, error) {
	var lines [3]string
	for i := range lines {
		line, err := r.ReadString('\n')
		if err != nil {
			return nil, fmt.Errorf("cluster configuration: line %d: %w", i+1, err)
		}
		lines[i] = strings.TrimSpace(line)
	}
	if !strings.HasPrefix(lines[0], "CONFIG cluster ") {
		return nil, fmt.Errorf("cluster configuration: %.40q", lines[0])
	}
	var servers []string
	for node := range strings.FieldsSeq(lines[2]) {
		fields := strings.Split(node, "|")
		if len(fields) != 3 {
			return nil, fmt.Errorf("cluster configuration: node %.80q", node)
		}
		if port, err := strconv.ParseUint(fields[2], 10, 16); err != nil || port == 0 {
			return nil, fmt.Errorf("cluster configuration: port of node %.80q", node)
		}
		host := fields[0]
		if host == "" {
			host = fields[1]
		}
		servers = append(servers, net.JoinHostPort(host, fields[2]))
	}
	return servers, nil
}

// pick returns the server of a key by rendezvous hashing: the server whose address, hashed together
// with the key, has the highest score. When a server is added or removed, only the keys of this
// server move. A modulo would move nearly all keys. A jump hash would move keys of other servers,
// unless the last server is removed.
func pick(servers []*memcachedServer, key string) *memcachedServer {
	var best *memcachedServer
	var highest uint64
	h := xxhash.Sum64String(key)
	for _, s := range servers {
		if score := mix(h ^ s.hash); best == nil || score > highest {
			best, highest = s, score
		}
	}
	return best
}

// mix is the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}
