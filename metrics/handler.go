package metrics

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/ferula-io/ferula/metrics/internal/exposition"
)

// HandlerOptions configure a handler. The zero value exposes the default set and the
// registered sets.
type HandlerOptions struct {
	Sets                []*Set // nil: the default set and those of RegisterSet
	ProcessMetrics      bool   // expose the metrics of WriteProcessMetrics as well
	Metadata            bool   // HELP and TYPE lines in the text formats, regardless of ExposeMetadata; other formats always have them
	CreatedLines        bool   // _created lines in OpenMetrics; protobuf always has the created timestamp
	MaxRequestsInFlight int    // further scrapes get status 503; 0: 16

	// WriteExtra writes further families in the format that contentType names, without a
	// final # EOF. None of them may be one of the sets'. May be nil.
	WriteExtra func(w io.Writer, contentType string) error
}

// Handler returns a handler of the default set and the registered sets, see NewHandler.
func Handler(exposeProcessMetrics bool) http.Handler {
	return NewHandler(HandlerOptions{ProcessMetrics: exposeProcessMetrics})
}

// Handler returns a handler of this set only, see NewHandler.
func (s *Set) Handler() http.Handler { return NewHandler(HandlerOptions{Sets: []*Set{s}}) }

// NewHandler returns a handler for /metrics. It negotiates the format with the Accept
// header: text 0.0.4 (also the fallback), text 1.0.0, OpenMetrics 1.0 or protobuf. It
// escapes UTF-8 names with the requested escaping scheme, by default with underscores,
// and compresses the response if the request accepts gzip. It responds to GET and HEAD.
//
// Scrapes of the same format that overlap share one page. A page is complete before its
// first byte is sent; a failure gets status 500.
func NewHandler(opts HandlerOptions) http.Handler {
	if opts.MaxRequestsInFlight == 0 {
		opts.MaxRequestsInFlight = 16
	}
	h := &handler{HandlerOptions: opts, types: map[exposition.Form][]string{}}
	exposition.Forms(func(f exposition.Form) { h.types[f] = []string{f.ContentType()} })
	return h
}

type handler struct {
	HandlerOptions
	types map[exposition.Form][]string

	mu      sync.Mutex
	scrapes int           // in flight
	running []*sharedPage // in progress
	free    []*sharedPage // for reuse
}

// sharedPage is one page, rendered by one scrape and sent by all scrapes that share it.
type sharedPage struct {
	key   pageKey
	done  sync.RWMutex // locked while the page is rendered
	users int          // guarded by the handler's mu
	body  []byte
	err   error
}

type pageKey struct {
	form   exposition.Form
	zipped bool
}

const (
	freeMax = 4
	bodyMax = 8 << 20 // a larger one is not reused
)

// Write appends to the page.
func (f *sharedPage) Write(p []byte) (int, error) {
	f.body = append(f.body, p...)
	return len(p), nil
}

// Header values; all responses share these slices, which never change.
var (
	varyHeader = []string{"Accept, Accept-Encoding"}
	gzipHeader = []string{"gzip"}
)

// ServeHTTP responds to GET and HEAD.
func (h *handler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	header := w.Header()
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		header.Set("Allow", "GET, HEAD")
		http.Error(w, "only GET and HEAD", http.StatusMethodNotAllowed)
		return
	}
	key := pageKey{exposition.Negotiate(req.Header["Accept"]), acceptsGzip(req.Header["Accept-Encoding"])}
	if req.Method != http.MethodHead {
		f, first := h.join(key)
		if f == nil {
			header.Set("Retry-After", "1")
			http.Error(w, fmt.Sprintf("%d scrapes are already in progress", h.MaxRequestsInFlight), http.StatusServiceUnavailable)
			return
		}
		defer h.leave(f)
		if first {
			h.render(f)
		}
		f.done.RLock() // waits for the renderer
		defer f.done.RUnlock()
		if f.err != nil {
			http.Error(w, "metrics: "+f.err.Error(), http.StatusInternalServerError)
			return
		}
		h.head(header, key)
		_, _ = w.Write(f.body) // an error means that the client has disconnected
		return
	}
	h.head(header, key)
}

func (h *handler) head(header http.Header, key pageKey) {
	header["Content-Type"] = h.types[key.form]
	header["Vary"] = varyHeader
	if key.zipped {
		header["Content-Encoding"] = gzipHeader
	}
}

// join returns the page of this key that is in progress, or a new one, locked, that the
// caller must render; nil if too many scrapes are in progress.
func (h *handler) join(key pageKey) (f *sharedPage, first bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.scrapes >= h.MaxRequestsInFlight {
		return nil, false
	}
	h.scrapes++
	for _, f := range h.running {
		if f.key == key {
			f.users++
			return f, false
		}
	}
	if n := len(h.free); n > 0 {
		f, h.free = h.free[n-1], h.free[:n-1]
	} else {
		f = &sharedPage{}
	}
	f.key, f.users, f.err, f.body = key, 1, errPanicked, f.body[:0]
	f.done.Lock()
	h.running = append(h.running, f)
	return f, true
}

// leave ends the use of a page. Every caller of join must call it.
func (h *handler) leave(f *sharedPage) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.scrapes--
	f.users--
	if f.users == 0 && len(h.free) < freeMax && cap(f.body) <= bodyMax {
		h.free = append(h.free, f)
	}
}

// render renders the page. It unlocks the page for waiting scrapes even after a panic.
func (h *handler) render(f *sharedPage) {
	defer func() {
		h.mu.Lock()
		h.running = slices.DeleteFunc(h.running, func(other *sharedPage) bool { return other == f })
		h.mu.Unlock()
		f.done.Unlock()
	}()
	if !f.key.zipped {
		f.err = h.page(f, f.key.form)
		return
	}
	zw := getGzip(f)
	err := h.page(zw, f.key.form)
	if e := zw.Close(); err == nil {
		err = e
	}
	zw.Reset(io.Discard) // drop the reference to f
	gzips.Put(zw)
	f.err = err
}

func (h *handler) page(w io.Writer, form exposition.Form) error {
	r := getRenderer()
	if err := r.render(w, form, &h.HandlerOptions); err != nil {
		return err
	}
	putRenderer(r)
	if h.WriteExtra != nil {
		if err := h.WriteExtra(w, form.ContentType()); err != nil {
			return err
		}
	}
	_, err := w.Write(form.EndOfPage())
	return err
}

// gzips is a pool of compressors; each has about 1 MiB of memory.
var gzips sync.Pool

func getGzip(w io.Writer) *gzip.Writer {
	if zw, ok := gzips.Get().(*gzip.Writer); ok {
		zw.Reset(w)
		return zw
	}
	zw, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // the level is valid
	return zw
}

// acceptsGzip reports whether Accept-Encoding has gzip, or else *, with a quality above
// zero.
func acceptsGzip(headers []string) bool {
	anything := false
	for _, header := range headers {
		for header != "" {
			var coding string
			coding, header, _ = strings.Cut(header, ",")
			name, parameters, _ := strings.Cut(coding, ";")
			accepted := true
			if q, ok := strings.CutPrefix(strings.TrimSpace(parameters), "q="); ok {
				quality, err := strconv.ParseFloat(q, 64)
				accepted = err == nil && quality > 0
			}
			switch name = strings.TrimSpace(name); {
			case strings.EqualFold(name, "gzip"):
				return accepted
			case name == "*":
				anything = accepted
			}
		}
	}
	return anything
}
