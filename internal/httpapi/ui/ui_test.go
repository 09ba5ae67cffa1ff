package ui

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func check(t *testing.T, ok bool, format string, args ...any) {
	t.Helper()
	if !ok {
		t.Fatalf(format, args...)
	}
}

func get(h http.Handler, target string, headers ...string) *http.Response {
	r := httptest.NewRequest(http.MethodGet, target, nil)
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func body(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	check(t, err == nil, "read: %v", err)
	return string(b)
}

// assets returns the files that index.html references.
func assets(t *testing.T, h http.Handler) []string {
	t.Helper()
	found := regexp.MustCompile(`(?:src|href)="\./([^"]+)"`).FindAllStringSubmatch(body(t, get(h, "/")), -1)
	check(t, len(found) > 0, "index.html names no file")
	var out []string
	for _, m := range found {
		out = append(out, m[1])
	}
	return out
}

func TestHandler_EveryRouteServesTheIndex(t *testing.T) {
	h := Handler("")
	index := body(t, get(h, "/"))
	check(t, strings.Contains(index, `<div id="app">`), "/ is not the page")
	for _, r := range routes {
		resp := get(h, "/"+r)
		check(t, resp.StatusCode == 200, "/%s: %d", r, resp.StatusCode)
		check(t, resp.Header.Get("Content-Type") == "text/html; charset=utf-8", "/%s: %s", r, resp.Header.Get("Content-Type"))
		check(t, resp.Header.Get("Cache-Control") == "no-cache", "/%s may be cached without revalidation", r)
		check(t, body(t, resp) == index, "/%s is not the index", r)
	}
}

func TestRoutes_EqualTheFrontendRoutes(t *testing.T) {
	source, err := os.ReadFile("../../../ui/src/lib/route.ts")
	check(t, err == nil, "%v", err)
	_, list, _ := strings.Cut(string(source), "ROUTES = [")
	list, _, _ = strings.Cut(list, "]")
	page := []string{"", "graph"} // splitPath reads both as query
	for _, m := range regexp.MustCompile(`"([\w-]+)"`).FindAllStringSubmatch(list, -1) {
		page = append(page, m[1])
	}
	check(t, slices.Equal(page, routes), "page %q, server %q", page, routes)
}

func TestHandler_UnknownPathIs404(t *testing.T) {
	h := Handler("")
	for _, p := range []string{"/api/v1/query", "/assets/none.js", "/query/", "/dist/index.html", "/..", "/assets/", "/assets"} {
		resp := get(h, p)
		check(t, resp.StatusCode == 404, "%s: %d", p, resp.StatusCode)
	}
}

func TestHandler_AssetsAreImmutable(t *testing.T) {
	h := Handler("")
	types := map[string]bool{}
	for _, name := range assets(t, h) {
		resp := get(h, "/"+name)
		check(t, resp.StatusCode == 200, "%s: %d", name, resp.StatusCode)
		types[resp.Header.Get("Content-Type")] = true
		check(t, resp.Header.Get("Content-Type") == contentTypes[path.Ext(name)], "%s: %s", name, resp.Header.Get("Content-Type"))
		immutable := strings.Contains(resp.Header.Get("Cache-Control"), "immutable")
		check(t, immutable == strings.HasPrefix(name, "assets/"), "%s: %s", name, resp.Header.Get("Cache-Control"))
	}
	check(t, types["text/css; charset=utf-8"] && types["text/javascript; charset=utf-8"], "types: %v", types)
}

func TestHandler_EveryFileHasAContentType(t *testing.T) {
	for name, f := range load() {
		check(t, f.contentType != "application/octet-stream", "%s has no content type in the table", name)
		check(t, !strings.HasSuffix(name, ".map"), "%s: source maps are not shipped", name)
	}
}

func TestHandler_PrefixIsStrippedAndRequired(t *testing.T) {
	for _, prefix := range []string{"/a/prom", "a/prom/", "/a/prom/"} {
		h := Handler(prefix)
		check(t, get(h, "/a/prom/graph").StatusCode == 200, "%s: page", prefix)
		check(t, get(h, "/graph").StatusCode == 404, "%s: path without the prefix", prefix)
		check(t, get(h, "/a/promises").StatusCode == 404, "%s: path that only begins alike", prefix)
		resp := get(h, "/a/prom?g0.expr=up")
		check(t, resp.StatusCode == 302 && resp.Header.Get("Location") == "prom/?g0.expr=up", "%s: %d %s", prefix, resp.StatusCode, resp.Header.Get("Location"))
	}
}

func TestHandler_GzipHasTheSameBytes(t *testing.T) {
	h := Handler("/")
	for _, name := range assets(t, h) {
		plain := body(t, get(h, "/"+name))
		resp := get(h, "/"+name, "Accept-Encoding", "br, gzip;q=0.8")
		check(t, resp.Header.Get("Content-Encoding") == "gzip" && resp.Header.Get("Vary") == "Accept-Encoding", "%s: headers %v", name, resp.Header)
		check(t, resp.ContentLength > 0, "%s: no Content-Length", name)
		z, err := gzip.NewReader(resp.Body)
		check(t, err == nil, "%s: %v", name, err)
		unpacked, err := io.ReadAll(z)
		check(t, err == nil && string(unpacked) == plain, "%s: %v, %d bytes, want %d", name, err, len(unpacked), len(plain))
	}
	check(t, get(h, "/", "Accept-Encoding", "gzip;q=0").Header.Get("Content-Encoding") == "", "gzip was refused")
}

func TestHandler_MatchingETagIs304(t *testing.T) {
	h := Handler("")
	for _, encoding := range []string{"identity", "gzip"} {
		tag := get(h, "/", "Accept-Encoding", encoding).Header.Get("ETag")
		resp := get(h, "/", "Accept-Encoding", encoding, "If-None-Match", `"other", W/`+tag)
		check(t, resp.StatusCode == 304 && body(t, resp) == "", "%s: %d", encoding, resp.StatusCode)
		check(t, get(h, "/", "Accept-Encoding", encoding, "If-None-Match", `"other"`).StatusCode == 200, "%s: another tag", encoding)
	}
}

func TestHandler_OnlyGetAndHeadAreAllowed(t *testing.T) {
	h := Handler("")
	for method, want := range map[string]int{"POST": 405, "PUT": 405, "DELETE": 405, "HEAD": 200} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, "/", nil))
		check(t, w.Code == want, "%s: %d", method, w.Code)
		check(t, want != 405 || w.Header().Get("Allow") == "GET, HEAD", "%s: Allow", method)
	}
}

func TestHandler_SecurityHeadersForbidOtherHosts(t *testing.T) {
	h := Handler("")
	for _, p := range []string{"/", "/nothing"} {
		header := get(h, p).Header
		check(t, strings.HasPrefix(header.Get("Content-Security-Policy"), "default-src 'self'"), "%s: policy %q", p, header.Get("Content-Security-Policy"))
		check(t, !strings.Contains(header.Get("Content-Security-Policy"), "http"), "%s: a host in the policy", p)
		check(t, header.Get("X-Content-Type-Options") == "nosniff", "%s: nosniff", p)
		check(t, header.Get("Referrer-Policy") == "same-origin", "%s: referrer", p)
	}
}

func TestHandler_ServesLicencesOfBundledPackages(t *testing.T) {
	text := body(t, get(Handler(""), "/LICENSES.txt"))
	for _, name := range []string{"preact", "uplot", "@prometheus-io/codemirror-promql", "@codemirror/view"} {
		check(t, strings.Contains(text, "\n"+name+" "), "%s is missing", name)
	}
	check(t, !strings.Contains(text, "AGPL"), "an AGPL package is bundled")
}
