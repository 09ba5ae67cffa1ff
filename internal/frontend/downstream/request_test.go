package downstream

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/ferula-io/ferula/internal/version"
)

// sent is the request that a downstream received.
type sent struct {
	method, uri, body string
	header            http.Header
}

// recorder is a downstream that records its last request.
func recorder(t *testing.T) (url string, last *sent) {
	last = &sent{}
	url = serveHTTP(t, func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		*last = sent{r.Method, r.RequestURI, string(body), r.Header}
	}, nil)
	return url, last
}

func send(t *testing.T, opts Options, r Request) {
	t.Helper()
	resp, err := open(t, opts, r)
	if err != nil {
		t.Fatal(err)
	}
	_, err = readAll(resp, 100)
	checkIs(t, err, nil)
}

func TestOpen_QueryIsSentInTheURLOrAsAForm(t *testing.T) {
	url, last := recorder(t)
	long := strings.Repeat("x", formBytes)
	for _, c := range []struct {
		name, method, path, query string
		body                      []byte
		want, wantBody            string
	}{
		{"short", "", "/api/v1/query_range", "up{}", nil, "GET /api/v1/query_range?query=up%7B%7D", ""},
		{"short, received as a form", "POST", "/api/v1/query", "up", nil, "GET /api/v1/query?query=up", ""},
		{"long", "", "/api/v1/query_range", long, nil, "POST /api/v1/query_range", "query=" + long},
		{"long, received as a form", "POST", "/api/v1/series", long, nil, "POST /api/v1/series", "query=" + long},
		{"long, where no form is taken", "GET", "/api/v1/label/job/values", long, nil, "GET /api/v1/label/job/values?query=" + long, ""},
		{"another form", "POST", "/api/v1/admin/x", "up", nil, "POST /api/v1/admin/x", "query=up"},
		{"something else", "POST", "/api/v1/read", "up", []byte("\x00\x01"), "POST /api/v1/read?query=up", "\x00\x01"},
		{"other methods", "PUT", "/-/reload", "up", nil, "PUT /-/reload?query=up", ""},
		{"escapes stay", "GET", "/api/v1/label/a%2Fb%20/values", "up", nil, "GET /api/v1/label/a%2Fb%20/values?query=up", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			send(t, Options{URL: url}, Request{Method: c.method, Path: c.path, Params: values("query", c.query), Body: c.body})
			check(t, "request", last.method+" "+last.uri, c.want)
			check(t, "body", last.body, c.wantBody)
			check(t, "form", last.header.Get("Content-Type") == "application/x-www-form-urlencoded", c.wantBody != "" && c.body == nil)
			check(t, "header is not sent", len(last.header["Idempotency-Key"]), 0)
		})
	}
}

func TestOpen_KeepsThePathPrefix(t *testing.T) {
	url, last := recorder(t)
	for _, prefix := range []string{"/a%2Fb/prometheus", "/a%2Fb/prometheus/"} {
		send(t, Options{URL: url + prefix}, Request{Path: "/api/v1/query", Params: values("query", "1")})
		check(t, "uri", last.uri, "/a%2Fb/prometheus/api/v1/query?query=1")
	}
}

func TestOpen_RejectsPathsOutsideThePrefix(t *testing.T) {
	for _, path := range []string{"", "api", "/a/../b", "/a/%2e%2e/b", "/..", "/%zz", "/a?b", "/a#b"} {
		_, err := open(t, Options{URL: "http://127.0.0.1:1/prefix"}, Request{Path: path})
		checkIs(t, err, ErrRequest)
	}
}

func TestOpen_ForwardsEndToEndHeaders(t *testing.T) {
	url, last := recorder(t)
	header := http.Header{
		"X-Scope-Orgid": {"a"}, "Thanos-Tenant": {"b", "c"}, "Authorization": {"Bearer x"},
		"Connection": {"close, X-Hop"}, "X-Hop": {"1"}, "Te": {"trailers"}, "Accept-Encoding": {"br"},
		"Content-Length": {"99"}, "Content-Type": {"text/plain"}, "Host": {"elsewhere"},
	}
	before := fmt.Sprint(header)
	send(t, Options{URL: url, Encodings: []string{Zstd, Identity, Gzip}}, Request{Path: "/api/v1/query", Header: header})
	check(t, "the caller's header is left alone", fmt.Sprint(header), before)
	for key, want := range map[string]string{
		"X-Scope-Orgid": "[a]", "Thanos-Tenant": "[b c]", "Authorization": "[Bearer x]", "Accept-Encoding": "[zstd, gzip]",
		"User-Agent": "[" + version.UserAgent() + "]", "X-Hop": "[]", "Te": "[]", "Content-Type": "[]", "Content-Length": "[]", "Connection": "[]",
	} {
		check(t, key, fmt.Sprint(last.header[key]), want)
	}
	send(t, Options{URL: url, UserAgent: "other"}, Request{Path: "/"})
	check(t, "agent", last.header.Get("User-Agent"), "other")
	check(t, "identity is requested", last.header.Get("Accept-Encoding"), "identity")
	send(t, Options{URL: url}, Request{Path: "/", Header: http.Header{"User-Agent": {"Grafana"}}})
	check(t, "forwarded agent", last.header.Get("User-Agent"), "Grafana")
}

func TestOpen_UsesCredentialsOfTheURL(t *testing.T) {
	url, last := recorder(t)
	opts := Options{URL: strings.Replace(url, "://", "://user:pass@", 1)}
	send(t, opts, Request{Path: "/"})
	check(t, "of the URL", last.header.Get("Authorization"), "Basic dXNlcjpwYXNz")
	send(t, opts, Request{Path: "/", Header: http.Header{"Authorization": {"Bearer x"}}})
	check(t, "of the caller", last.header.Get("Authorization"), "Bearer x")
	_, err := New(Options{URL: "ftp://user:pass@host"}, nil, nil)
	check(t, "no password in errors", err != nil && !strings.Contains(err.Error(), "pass"), true)
}

func TestResponse_HasTheDownstreamsHeaders(t *testing.T) {
	url := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Thanos-Stats", "1")
		w.Header().Set("Connection", "X-Hop")
		w.Header().Set("X-Hop", "1")
		body := document(2)
		if r.URL.Path == "/encoded" {
			w.Header().Set("Content-Encoding", Gzip)
			body = encode(t, Gzip, body)
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(body)))
		_, _ = io.WriteString(w, body)
	}, nil)
	for path, length := range map[string]int64{"/encoded": -1, "/plain": int64(len(document(2)))} {
		resp, err := open(t, Options{URL: url}, Request{Path: path})
		if err != nil {
			t.Fatal(err)
		}
		body, err := readAll(resp, 100)
		checkIs(t, err, nil)
		check(t, "body", body, document(2))
		check(t, path+" length", resp.Length, length)
		check(t, path+" delimited", resp.Delimited, true)
		check(t, path+" encoding", resp.Header.Get("Content-Encoding"), "")
		check(t, path+" has a length", resp.Header.Get("Content-Length") != "", length > 0)
		dst := http.Header{"X-Own": {"1"}}
		resp.CopyHeader(dst)
		check(t, "forwarded", dst.Get("X-Thanos-Stats")+dst.Get("X-Own"), "11")
		check(t, "not forwarded", dst.Get("X-Hop")+dst.Get("Connection")+dst.Get("Content-Length"), "")
	}
}

func TestOpen_ResponseToHEADHasNoBody(t *testing.T) {
	url := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", Gzip)
		w.Header().Set("Content-Length", "1000")
	}, nil)
	resp, err := open(t, Options{URL: url}, Request{Method: "HEAD", Path: "/"})
	if err != nil {
		t.Fatal(err)
	}
	body, err := readAll(resp, 100)
	checkIs(t, err, nil)
	check(t, "body", body, "")
	check(t, "encoding", resp.Header.Get("Content-Encoding"), Gzip)
}
