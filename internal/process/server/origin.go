package server

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/grafana/regexp"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/redact"
)

// OriginGuard rejects state-changing requests that a browser sends for a page of another
// origin: any page can make a browser send a POST to a loopback address. Other clients
// send neither Sec-Fetch-Site nor Origin. external may be nil.
func OriginGuard(external *url.URL) func(http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	if external != nil {
		// A reverse proxy may change the Host header that the origin is compared with. The error means
		// that external is no valid origin. It can be ignored: no browser sends such an origin.
		_ = protection.AddTrustedOrigin(external.Scheme + "://" + external.Host)
	}
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "a page of another origin may not send this request: "+protection.Check(r).Error(),
			http.StatusForbidden)
	}))
	return protection.Handler
}

// readingEndpoints are the endpoints of the Prometheus HTTP API whose POST is read-only.
var readingEndpoints = map[string]bool{
	"query": true, "query_range": true, "query_explain": true, "query_range_explain": true, "query_exemplars": true,
	"series": true, "labels": true, "format_query": true, "parse_query": true, "read": true,
}

// GuardForwarded applies guard to all forwarded requests that are not known to be
// read-only.
func GuardForwarded(guard func(http.Handler) http.Handler, next http.Handler) http.Handler {
	protected := guard(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, endpoint, ok := strings.Cut(r.URL.Path, "/api/v1/"); ok && readingEndpoints[endpoint] {
			next.ServeHTTP(w, r)
			return
		}
		protected.ServeHTTP(w, r)
	})
}

// ExternalURL parses and normalizes an external URL. It derives one from the listen
// address if given is empty. The URL has no password: it is shown in links of alerts, in
// templates and in openapi.yaml.
func ExternalURL(given string, addr net.Addr) (*url.URL, error) {
	if given == "" {
		host, port, err := net.SplitHostPort(addr.String())
		if err != nil {
			return nil, err
		}
		// A server on loopback is not reachable by the host name.
		if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
			if host, err = os.Hostname(); err != nil {
				return nil, err
			}
		}
		given = "http://" + net.JoinHostPort(host, port) + "/"
	}
	if strings.Trim(given, `"'`) != given {
		return nil, errors.New("must not begin or end with quotes")
	}
	u, err := parseURL(given)
	if err != nil {
		return nil, err
	}
	if _, has := u.User.Password(); has {
		u.User = url.User(u.User.Username())
	}
	u.Path = strings.TrimRight(u.Path, "/")
	if u.Path != "" && !strings.HasPrefix(u.Path, "/") {
		u.Path = "/" + u.Path
	}
	return u, nil
}

// RoutePrefix returns "" or "/path" without a trailing slash. given is the value of a flag; "": the path of
// --web.external-url. Routers panic at a path that they read as a pattern, or that no request has.
func RoutePrefix(flag, given string, external *url.URL) (string, error) {
	if given == "" {
		flag, given = "web.external-url", external.Path
	}
	trimmed := strings.Trim(given, "/")
	if trimmed == "" {
		return "", nil
	}
	prefix := "/" + trimmed
	if path.Clean(prefix) != prefix || strings.ContainsAny(prefix, "{}* \t") || strings.Contains(prefix+"/", ":/") {
		return "", hint.Invalid(flag, fmt.Errorf("%q is not the path of a route: it must be like /path, without "+
			"braces, asterisks, spaces, a colon at the end of a part, and empty, . and .. parts", given))
	}
	return prefix, nil
}

// CORSOrigin compiles the pattern of allowed origins; "" allows all.
func CORSOrigin(pattern string) (*regexp.Regexp, error) {
	pattern = cmp.Or(pattern, ".*")
	re, err := regexp.Compile("^(?:" + pattern + ")$")
	if err != nil {
		return nil, hint.Invalid("web.cors.origin", fmt.Errorf("%q: %w", pattern, err))
	}
	return re, nil
}

// HTTPURL parses an http or https URL. Its error has no password.
func HTTPURL(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("%q is not an http or https URL", redact.URL(raw))
	}
	return u, nil
}

// parseURL is url.Parse with an error that does not contain the URL, which may include
// a password.
func parseURL(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	var parsing *url.Error
	if errors.As(err, &parsing) {
		err = parsing.Err
	}
	return u, err
}

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
	return len(addresses) > 0 && !slices.ContainsFunc(addresses, func(a string) bool { return !IsLoopback(a) })
}

// IsLoopback reports whether the host of host:port is localhost or a loopback IP address. It resolves no names.
func IsLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
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
