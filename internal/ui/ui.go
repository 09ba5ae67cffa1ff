// Package ui serves the page at "/": the built files of the folder ui/, which are embedded from dist.
//
// A request's path comes in; out goes a file of dist, or index.html where the path is one of the page's own addresses
// (/query, /targets, …), which the page then reads by itself. Every other path is 404, so that an API path nobody has
// registered never answers with HTML. The page finds its files and the API relative to its own address, one level deep;
// hence no prefix is ever written into it, and the bytes are the same for everybody. There is no API here, no template
// and no state but the compressed forms, made on first use: their number and size are those of dist.
package ui

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"
)

// all: keeps files whose names begin with "_", as a bundler's may.
//
//go:embed all:dist
var dist embed.FS

// routes are the page's addresses. ui/src/lib/route.ts has the same list; a test compares them.
var routes = []string{"", "query", "graph", "profiles", "targets", "status", "tsdb-status", "flags", "config", "stores"}

// contentTypes is a table of our own, because mime.TypeByExtension answers what the machine's files say.
var contentTypes = map[string]string{
	".css":  "text/css; charset=utf-8",
	".html": "text/html; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
	".txt":  "text/plain; charset=utf-8",
}

// contentSecurityPolicy lets the page reach nothing but its own server. The editor writes its style sheet into the
// document, which needs unsafe-inline for styles; scripts never do.
const contentSecurityPolicy = "default-src 'self'; style-src 'self' 'unsafe-inline'; object-src 'none'; base-uri 'none'; " +
	"form-action 'self'; frame-ancestors 'self'"

// Handler serves the page to requests whose paths begin with prefix ("" or "/" for none), as a server under
// --web.route-prefix receives them.
func Handler(prefix string) http.Handler {
	prefix = strings.TrimRight(prefix, "/") + "/"
	if prefix[0] != '/' {
		prefix = "/" + prefix
	}
	files := load()
	index := files["index.html"]
	for _, r := range routes {
		files[r] = index
	}
	return &handler{prefix: prefix, files: files}
}

type handler struct {
	prefix string
	files  map[string]*file // by path below the prefix; shared immutable
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", contentSecurityPolicy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "same-origin")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		header.Set("Allow", "GET, HEAD")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	if r.URL.Path+"/" == h.prefix {
		redirectBelow(w, r)
		return
	}
	name, ok := strings.CutPrefix(r.URL.Path, h.prefix)
	f := h.files[name]
	if !ok || f == nil {
		http.Error(w, "not found", http.StatusNotFound)
		return
	}
	f.serve(w, r)
}

// redirectBelow adds the slash that relative addresses need. The target is relative too: a proxy in front may have cut
// off a prefix that only the browser knows.
func redirectBelow(w http.ResponseWriter, r *http.Request) {
	target := path.Base(r.URL.Path) + "/"
	if r.URL.RawQuery != "" {
		target += "?" + r.URL.RawQuery
	}
	w.Header().Set("Location", target)
	w.WriteHeader(http.StatusFound)
}

// load reads dist. An error is impossible, for the files are part of the program.
func load() map[string]*file {
	files := make(map[string]*file)
	err := fs.WalkDir(dist, "dist", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		plain, err := dist.ReadFile(name)
		if err != nil {
			return err
		}
		name = strings.TrimPrefix(name, "dist/")
		files[name] = newFile(name, plain)
		return nil
	})
	if err != nil {
		panic("ui: embedded files: " + err.Error())
	}
	return files
}

// file is one file of dist, ready to be sent.
type file struct {
	contentType  string
	cacheControl string
	etag         string // without quotes; the compressed form's has "-gzip" behind it
	plain        []byte
	compressed   func() []byte // nil where compression gains nothing
}

func newFile(name string, plain []byte) *file {
	sum := sha256.Sum256(plain)
	f := &file{
		contentType:  contentTypes[path.Ext(name)],
		cacheControl: "no-cache", // kept, but asked about each time: an upgraded server must not show an old page
		etag:         hex.EncodeToString(sum[:12]),
		plain:        plain,
		compressed:   sync.OnceValue(func() []byte { return compress(plain) }),
	}
	if f.contentType == "" {
		f.contentType = "application/octet-stream"
	}
	if strings.HasPrefix(name, "assets/") {
		f.cacheControl = "public, max-age=31536000, immutable" // the name holds the content's hash
	}
	return f
}

func compress(plain []byte) []byte {
	var b bytes.Buffer
	// Neither call can fail: the level is valid and a Buffer takes everything.
	z, _ := gzip.NewWriterLevel(&b, gzip.BestCompression)
	_, _ = z.Write(plain)
	_ = z.Close()
	return b.Bytes()
}

func (f *file) serve(w http.ResponseWriter, r *http.Request) {
	body, etag := f.plain, `"`+f.etag+`"`
	header := w.Header()
	header.Set("Content-Type", f.contentType)
	header.Set("Cache-Control", f.cacheControl)
	header.Set("Vary", "Accept-Encoding")
	if acceptsGzip(r.Header.Get("Accept-Encoding")) {
		body, etag = f.compressed(), `"`+f.etag+`-gzip"`
		header.Set("Content-Encoding", "gzip")
	}
	header.Set("ETag", etag)
	if matches(r.Header.Get("If-None-Match"), etag) {
		header.Del("Content-Encoding")
		w.WriteHeader(http.StatusNotModified)
		return
	}
	// net/http adds the length and leaves the body out for HEAD. A failed write has nobody left to be told.
	_, _ = w.Write(body)
}

func acceptsGzip(accept string) bool {
	for part := range strings.SplitSeq(accept, ",") {
		coding, params, _ := strings.Cut(strings.TrimSpace(part), ";")
		q := strings.TrimSpace(params)
		if strings.TrimSpace(coding) == "gzip" && q != "q=0" && q != "q=0.0" {
			return true
		}
	}
	return false
}

// matches says whether the client already has what etag names. Proxies may have weakened the tag on its way.
func matches(ifNoneMatch, etag string) bool {
	for part := range strings.SplitSeq(ifNoneMatch, ",") {
		part = strings.TrimPrefix(strings.TrimSpace(part), "W/")
		if part == "*" || part == etag {
			return true
		}
	}
	return false
}
