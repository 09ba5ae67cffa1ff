package dnslookup

import (
	"context"
	"net"
	"slices"
	"testing"
)

// zone is a resolver with fixed results.
type zone struct {
	hosts map[string][]string
	srv   map[string][]*net.SRV
	err   error
}

func (z *zone) LookupIPAddr(_ context.Context, host string) ([]net.IPAddr, error) {
	var all []net.IPAddr
	for _, ip := range z.hosts[host] {
		all = append(all, net.IPAddr{IP: net.ParseIP(ip)})
	}
	if all == nil && z.err == nil {
		return nil, &net.DNSError{IsNotFound: true}
	}
	return all, z.err
}

func (z *zone) LookupSRV(_ context.Context, _, _, name string) (string, []*net.SRV, error) {
	if z.srv[name] == nil && z.err == nil {
		return "", nil, &net.DNSError{IsNotFound: true}
	}
	return "", z.srv[name], z.err
}

func TestLookup_ByPrefix(t *testing.T) {
	z := &zone{
		hosts: map[string][]string{
			"store": {"10.0.0.2", "10.0.0.1"}, "one.": {"10.0.0.3"}, "two.": {"10.0.0.4", "fd00::1"}, "six": {"fd00::1", "10.0.0.4", "fd00::2"}, "localhost": {"::1", "127.0.0.1"},
		},
		srv: map[string][]*net.SRV{"_grpc._tcp.stores": {{Target: "one.", Port: 1}, {Target: "two.", Port: 2}}},
	}
	for name, want := range map[string][]string{
		"host:1":                         {"host:1"},
		"dns+store:9":                    {"10.0.0.2:9", "10.0.0.1:9"},
		"dnssrv+_grpc._tcp.stores":       {"10.0.0.3:1", "10.0.0.4:2"},
		"dnssrv+_grpc._tcp.stores:7":     {"10.0.0.3:7", "10.0.0.4:7"},
		"dnssrvnoa+_grpc._tcp.stores":    {"one:1", "two:2"},
		"dns+six:9":                      {"[fd00::1]:9", "[fd00::2]:9"},
		"dnsdualstack+six:9":             {"[fd00::1]:9", "10.0.0.4:9", "[fd00::2]:9"},
		"dns+localhost:9":                {"127.0.0.1:9"},
		"dns+no caller:1":                nil,
		"dnssrvnoa+_grpc._tcp.not.there": nil,
	} {
		if got, err := Lookup(context.Background(), z, name); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v %v, want %v", name, got, err, want)
		}
	}
	for _, name := range []string{"dns+store", "dnsx+store:1"} {
		if _, err := Lookup(context.Background(), z, name); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func TestLookup_FailureIsAnError(t *testing.T) {
	z := &zone{err: &net.DNSError{Err: "server misbehaving", IsTemporary: true}}
	for _, name := range []string{"dns+store:1", "dnssrv+stores", "dnssrvnoa+stores"} {
		if got, err := Lookup(context.Background(), z, name); err == nil || got != nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}
