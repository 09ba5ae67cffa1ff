// Package ui serves the web UI at "/": the built files of the directory ui/, embedded from dist.
//
// The response is a file of dist, or index.html for a route of the UI (/query, /targets, …), which the UI
// evaluates in the browser. The prefix without its slash is redirected. Every other path is status 404, so that an
// unregistered API path never returns HTML. The UI addresses its files and the API relative to its own path, which
// has one level. So its files contain no route prefix and are the same under every prefix. The package contains no
// API and no template. Its only state are the compressed files, which are created on first use.
package ui

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ferula-io/ferula/internal/httpbody"
)

// The prefix all: also embeds files whose names begin with "_". A bundler may choose such names.
//
//go:embed all:dist
var dist embed.FS

// routes are the routes of the UI. ui/src/lib/route.ts has the same list; a test compares them.
var routes = []string{"", "graph", "query", "profiles", "targets", "status", "tsdb-status", "flags", "config",
	"stores", "queries", "alerts", "rules", "service-discovery", "alertmanager-discovery", "backtest", "blocks"}

// contentTypes replaces mime.TypeByExtension, whose result depends on files of the host.
var contentTypes = map[string]string{
	".css":  "text/css; charset=utf-8",
	".html": "text/html; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
	".txt":  "text/plain; charset=utf-8",
}

// contentSecurityPolicy restricts the UI to its own server. Neither scripts nor styles may be inline: the editor, whose
// library would insert a style element, is in a shadow tree, where it adopts a constructed style sheet.
const contentSecurityPolicy = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'self'"

// Handler returns the handler of the UI under the path prefix of --web.route-prefix ("" or "/": none).
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
		redirectToSlash(w, r)
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

// redirectToSlash redirects to the path with a trailing slash, which relative URLs need. The target is relative too: a
// reverse proxy may have removed a prefix that only the browser knows.
func redirectToSlash(w http.ResponseWriter, r *http.Request) {
	target := path.Base(r.URL.Path) + "/"
	if r.URL.RawQuery != "" {
		target += "?" + r.URL.RawQuery
	}
	w.Header().Set("Location", target)
	w.WriteHeader(http.StatusFound)
}

// load reads dist. It panics on errors, which are impossible for embedded files.
func load() map[string]*file {
	files := make(map[string]*file)
	err := fs.WalkDir(dist, "dist", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name = strings.TrimPrefix(name, "dist/")
		files[name] = newFile(name)
		return nil
	})
	if err != nil {
		panic("ui: embedded files: " + err.Error())
	}
	return files
}

// file is one file of dist with its response headers.
type file struct {
	contentType  string
	cacheControl string
	etag         string        // without quotes; the compressed file has the suffix "-gzip"
	plain        func() []byte // a copy, which nothing keeps: most processes never show the UI
	compressed   func() []byte // gzip of plain, computed on first use
}

func newFile(name string) *file {
	plain := func() []byte {
		b, err := dist.ReadFile("dist/" + name)
		if err != nil {
			panic("ui: embedded files: " + err.Error())
		}
		return b
	}
	sum := sha256.Sum256(plain())
	f := &file{
		contentType:  cmp.Or(contentTypes[path.Ext(name)], "application/octet-stream"),
		cacheControl: "no-cache", // cached, but revalidated each time: an upgraded server must not show an old UI
		etag:         hex.EncodeToString(sum[:12]),
		plain:        plain,
		compressed:   sync.OnceValue(func() []byte { return compress(plain()) }),
	}
	if strings.HasPrefix(name, "assets/") {
		f.cacheControl = "public, max-age=31536000, immutable" // the name contains the hash of the content
	}
	return f
}

func compress(plain []byte) []byte {
	var b bytes.Buffer
	// No call can fail: the level is valid and writes to a Buffer do not fail.
	z, _ := gzip.NewWriterLevel(&b, gzip.BestCompression)
	_, _ = z.Write(plain)
	_ = z.Close()
	return b.Bytes()
}

func (f *file) serve(w http.ResponseWriter, r *http.Request) {
	read, etag := f.plain, `"`+f.etag+`"`
	header := w.Header()
	header.Set("Content-Type", f.contentType)
	header.Set("Cache-Control", f.cacheControl)
	header.Set("Vary", "Accept-Encoding")
	if httpbody.WeightOf(r.Header.Values("Accept-Encoding"), "gzip") > 0 {
		read, etag = f.compressed, `"`+f.etag+`-gzip"`
		header.Set("Content-Encoding", "gzip")
	}
	header.Set("ETag", etag)
	body := read()
	header.Set("Content-Length", strconv.Itoa(len(body)))           // ServeContent sets none of a compressed body
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body)) // compares If-None-Match with the ETag
}
