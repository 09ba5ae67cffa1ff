package server

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// AnyHost is the name that allows every host.
const AnyHost = "*"

// hostNames are the host names of a server besides IP addresses and localhost. Requests that name another host are
// refused. A browser sends the host of a page's origin as Host. With DNS rebinding the name of a foreign page resolves
// to a loopback address. The browser then treats the page and this server as the same origin, and so does every check
// of Origin and Sec-Fetch-Site. Only the name in Host shows the difference: it is neither an IP address nor a name that
// a user of this machine would type.
type hostNames struct {
	allowed  map[string]bool
	disabled bool
}

// newHostNames returns the names of a server that listens on addresses. external is the URL by which users
// reach it and may be empty. Without names, hosts are checked only if all addresses are loopback
// addresses.
func newHostNames(addresses []string, external string, names []string) *hostNames {
	n := &hostNames{allowed: map[string]bool{}, disabled: len(names) == 0 && !allLoopback(addresses)}
	for _, name := range names {
		n.disabled = n.disabled || name == AnyHost
		n.allowed[normalHost(name)] = true
	}
	if u, err := url.Parse(external); err == nil && u.Host != "" {
		n.allowed[normalHost(u.Host)] = true
	}
	for _, address := range addresses {
		if host, _, err := net.SplitHostPort(address); err == nil && host != "" {
			n.allowed[normalHost(host)] = true
		}
	}
	return n
}

func allLoopback(addresses []string) bool {
	for _, address := range addresses {
		if !isLoopback(address) {
			return false
		}
	}
	return len(addresses) > 0
}

// isLoopback reports whether a listen address is reachable from this machine only.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false // net.Listen returns the error
	}
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

// normalHost returns the name of a host without its port, in lower case.
func normalHost(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// allows reports whether a request with this Host is for this server. A request without
// Host, which HTTP/1.0 permits, is allowed: every browser sends a Host.
func (n *hostNames) allows(host string) bool {
	if n.disabled || host == "" {
		return true
	}
	name := normalHost(host)
	if address, _, _ := strings.Cut(name, "%"); net.ParseIP(address) != nil { // a zone may follow %
		return true
	}
	return name == "localhost" || strings.HasSuffix(name, ".localhost") || n.allowed[name]
}

// wrap responds with status 421 to a request for another host.
func (n *hostNames) wrap(next http.Handler) http.Handler {
	if n.disabled {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !n.allows(r.Host) {
			if r.ProtoMajor == 1 {
				w.Header().Set("Connection", "close") // the body is not read
			}
			w.Header().Set("X-Content-Type-Options", "nosniff")
			http.Error(w, fmt.Sprintf("this server does not have the name %s: "+
				"use an IP address or localhost, or allow the name with --web.allowed-host", strconv.QuoteToASCII(r.Host)),
				http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}
