// Package dnslookup resolves the addresses of servers in flags and configurations, with
// the prefixes of Thanos: dns+, dnsdualstack+, dnssrv+ and dnssrvnoa+.
//
// One call is one lookup. When to repeat it, and which servers to use while it fails, is
// up to the callers: the querier and the memcached client keep the last result.
package dnslookup

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
)

// Resolver resolves names. *net.Resolver implements it.
type Resolver interface {
	LookupIPAddr(ctx context.Context, host string) ([]net.IPAddr, error)
	LookupSRV(ctx context.Context, service, proto, name string) (string, []*net.SRV, error)
}

// Lookup returns the addresses of servers by the prefix of name:
//
//	dns+host:port          the addresses of the host, of one family
//	dnsdualstack+host:port its addresses of both families
//	dnssrv+name[:port]     the addresses of the targets of the SRV record, with its ports unless one is given
//	dnssrvnoa+name[:port]  the same targets by name
//
// A name without prefix is an address. A name that does not exist has no addresses.
func Lookup(ctx context.Context, r Resolver, name string) ([]string, error) {
	kind, rest, ok := strings.Cut(name, "+")
	if !ok {
		return []string{name}, nil
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		host, port = rest, ""
	}
	switch kind {
	case "dns", "dnsdualstack":
		if port == "" {
			return nil, errors.New("the port is missing")
		}
		return hosts(ctx, r, host, port, kind == "dnsdualstack")
	case "dnssrv", "dnssrvnoa":
		_, records, err := r.LookupSRV(ctx, "", "", host)
		if err != nil && !notFound(err) {
			return nil, err
		}
		var all []string
		for _, record := range records {
			to := port
			if to == "" {
				to = strconv.Itoa(int(record.Port))
			}
			if kind == "dnssrvnoa" {
				all = append(all, net.JoinHostPort(strings.TrimRight(record.Target, "."), to))
				continue
			}
			found, err := hosts(ctx, r, record.Target, to, false)
			if err != nil {
				return nil, err
			}
			all = append(all, found...)
		}
		return all, nil
	}
	return nil, fmt.Errorf("unknown prefix %q", kind+"+")
}

// hosts returns the addresses of a host, of one family unless both are requested: a host
// with an address of each family is one store and must not be read twice.
func hosts(ctx context.Context, r Resolver, host, port string, both bool) ([]string, error) {
	ips, err := r.LookupIPAddr(ctx, host)
	if err != nil && !notFound(err) {
		return nil, err
	}
	if !both {
		ips = oneFamily(ips)
	}
	var all []string
	for _, ip := range ips {
		all = append(all, net.JoinHostPort(ip.String(), port))
	}
	return all, nil
}

// oneFamily returns the addresses of the family of the first address, because the
// resolver sorts a reachable family first. If the first address is a loopback address, oneFamily
// prefers the IPv4 addresses, because servers listen on 127.0.0.1.
func oneFamily(ips []net.IPAddr) []net.IPAddr {
	is4 := func(ip net.IPAddr) bool { return ip.IP.To4() != nil }
	if len(ips) == 0 {
		return nil
	}
	keep4 := is4(ips[0])
	if ips[0].IP.IsLoopback() {
		keep4 = slices.ContainsFunc(ips, is4)
	}
	return slices.DeleteFunc(slices.Clone(ips), func(ip net.IPAddr) bool { return is4(ip) != keep4 })
}

func notFound(err error) bool {
	var dns *net.DNSError
	return errors.As(err, &dns) && dns.IsNotFound
}
