package server

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"

	"github.com/grafana/regexp"

	"github.com/ferula-io/ferula/internal/hint"
)

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
	u, err := ParseURL(given)
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

// RoutePrefix returns "" or "/path" without a trailing slash.
func RoutePrefix(given string, external *url.URL) string {
	given = cmp.Or(given, external.Path)
	given = strings.Trim(given, "/")
	if given == "" {
		return ""
	}
	return "/" + given
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

// ParseURL is url.Parse with an error that does not contain the URL, which may include
// a password.
func ParseURL(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	var parsing *url.Error
	if errors.As(err, &parsing) {
		err = parsing.Err
	}
	return u, err
}
