package fanout

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Resolver looks names up. *net.Resolver is one.
type Resolver interface {
	LookupIPAddr(ctx context.Context, host string) ([]net.IPAddr, error)
	LookupSRV(ctx context.Context, service, proto, name string) (string, []*net.SRV, error)
}

// resolve turns the name of an endpoint into addresses, by what stands before "+":
//
//	dns        the addresses of the host; the port must be given
//	dnssrv     the addresses of the targets of the SRV record, with its ports unless one is given
//	dnssrvnoa  the same targets by name
//
// Without a prefix the name is the address. A name that does not exist is none.
func resolve(ctx context.Context, r Resolver, name string) ([]string, error) {
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
			return nil, fmt.Errorf("endpoint %s: the port is missing", name)
		}
		return hosts(ctx, r, host, port)
	case "dnssrv", "dnssrvnoa":
		_, records, err := r.LookupSRV(ctx, "", "", host)
		if err != nil && !notFound(err) {
			return nil, fmt.Errorf("endpoint %s: %w", name, err)
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
			found, err := hosts(ctx, r, record.Target, to)
			if err != nil {
				return nil, fmt.Errorf("endpoint %s: %w", name, err)
			}
			all = append(all, found...)
		}
		return all, nil
	}
	return nil, fmt.Errorf("endpoint %s: unknown way to look it up %q", name, kind)
}

func hosts(ctx context.Context, r Resolver, host, port string) ([]string, error) {
	ips, err := r.LookupIPAddr(ctx, host)
	if err != nil && !notFound(err) {
		return nil, err
	}
	var all []string
	for _, ip := range ips {
		all = append(all, net.JoinHostPort(ip.String(), port))
	}
	return all, nil
}

func notFound(err error) bool {
	var dns *net.DNSError
	return errors.As(err, &dns) && dns.IsNotFound
}
