package downstream

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
)

// formBytes is the longest encoded query in a URL; a longer one is sent as a form
// where the endpoint takes forms. Servers and proxies commonly refuse request lines
// above 8 KiB.
const formBytes = 4 << 10

// Request is one request to the downstream. Open retains only its Body, and copies of the rest.
type Request struct {
	// Method is GET if empty. The query endpoints take both GET and POST, which are
	// equivalent: a short query is sent as GET, a long one as a form.
	Method string
	// Path is appended to the path of Options.URL. It is escaped, as (*url.URL).EscapedPath returns it.
	Path   string
	Params url.Values
	// Header is forwarded, except hop-by-hop headers and those that this package sets
	// (Accept-Encoding, Content-Length, Host).
	Header http.Header
	// Body, if not nil, is sent as it is, and Params go into the URL. It must not
	// change until the response is closed.
	Body []byte

	// Retries is the maximum number of retries; 0: Options.Retries, or none if the request is not
	// idempotent; negative: none.
	Retries int
}

// queryEndpoints take parameters in a form as well as in the URL. They change nothing, so requests
// to them may be retried whatever their method.
var queryEndpoints = []string{"/query", "/query_range", "/query_explain", "/query_range_explain", "/query_exemplars",
	"/series", "/labels", "/format_query", "/parse_query"}

func isQuery(path string) bool {
	i := strings.LastIndex(path, "/api/v1/")
	return i >= 0 && slices.Contains(queryEndpoints, path[i+len("/api/v1"):])
}

// IsIdempotent reports whether a request may be sent again without harm, even if the downstream
// processed it before: its method only reads, or it is a POST of Params to a query endpoint.
func (r Request) IsIdempotent() bool {
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions:
		return true
	case http.MethodPost:
		return r.Body == nil && isQuery(r.Path)
	default:
		return false
	}
}

// perConnection are the hop-by-hop headers of RFC 9110 section 7.6.1.
var perConnection = []string{
	"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// ownHeaders of a request are set by this package.
var ownHeaders = []string{"Accept-Encoding", "Content-Length", "Host", "Expect"}

// copyEndToEnd copies the headers of src to dst, except the hop-by-hop ones.
func copyEndToEnd(dst, src http.Header) {
	var named []string // headers that Connection names as hop-by-hop
	for _, line := range src["Connection"] {
		for token := range strings.SplitSeq(line, ",") {
			named = append(named, textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(token)))
		}
	}
	for key, values := range src {
		if !slices.Contains(perConnection, key) && !slices.Contains(named, key) {
			dst[key] = slices.Clone(values)
		}
	}
}

// message is a request ready to be sent any number of times.
type message struct {
	method     string
	url        *url.URL
	header     http.Header
	body       []byte
	repeatable bool // changes nothing downstream
}

func (c *Client) message(r Request) (message, error) {
	method := cmp.Or(r.Method, http.MethodGet)
	target, err := c.target(r.Path)
	if err != nil {
		return message{}, err
	}
	m := message{method: method, url: target, header: make(http.Header, len(r.Header)+4)}
	copyEndToEnd(m.header, r.Header)
	for _, key := range ownHeaders {
		delete(m.header, key)
	}
	m.header["Accept-Encoding"] = c.acceptEncoding
	if m.header.Get("User-Agent") == "" {
		m.header["User-Agent"] = c.userAgent
	}
	if user := c.base.User; user != nil && m.header.Get("Authorization") == "" {
		password, _ := user.Password()
		(&http.Request{Header: m.header}).SetBasicAuth(user.Username(), password)
	}

	query := isQuery(target.Path) && (method == http.MethodGet || method == http.MethodPost) && r.Body == nil
	params := r.Params.Encode()
	switch {
	case query && len(params) > formBytes, !query && method == http.MethodPost && r.Body == nil:
		m.method, m.body = http.MethodPost, []byte(params)
		m.header["Content-Type"] = []string{"application/x-www-form-urlencoded"}
	case query:
		m.method, target.RawQuery = http.MethodGet, params
		delete(m.header, "Content-Type")
	default:
		target.RawQuery, m.body = params, r.Body
	}
	m.repeatable = r.IsIdempotent()
	if m.repeatable && m.method == http.MethodPost {
		// For net/http this key marks the request as idempotent: if an idle connection turns out to be
		// dead, net/http sends the request again on a new one. A header without values is not sent.
		m.header["Idempotency-Key"] = nil
	}
	return m, nil
}

// target joins the downstream's URL and an escaped path.
func (c *Client) target(escaped string) (*url.URL, error) {
	path, err := url.PathUnescape(escaped)
	if err != nil {
		return nil, fmt.Errorf("%w: path %q: %w", ErrRequest, escaped, err)
	}
	if !strings.HasPrefix(escaped, "/") || strings.ContainsAny(escaped, "?#") ||
		slices.Contains(strings.Split(path, "/"), "..") {
		return nil, fmt.Errorf("%w: path %q", ErrRequest, escaped)
	}
	u := *c.base
	u.User = nil
	u.RawPath = strings.TrimSuffix(c.base.EscapedPath(), "/") + escaped
	u.Path = strings.TrimSuffix(c.base.Path, "/") + path
	return &u, nil
}

// request returns the http.Request of one try.
func (m *message) request(ctx context.Context) *http.Request {
	r := &http.Request{
		Method: m.method, URL: m.url, Host: m.url.Host, Header: m.header.Clone(),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
	if len(m.body) > 0 {
		r.ContentLength = int64(len(m.body))
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(m.body)), nil }
		r.Body, _ = r.GetBody() // cannot fail
	}
	return r.WithContext(ctx)
}
