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

// HandlerOptions says what a handler shows. The zero value shows the registered sets.
type HandlerOptions struct {
	Sets                []*Set // nil: the default set and those of RegisterSet
	ProcessMetrics      bool   // and what WriteProcessMetrics writes
	Metadata            bool   // HELP and TYPE in text, whatever ExposeMetadata says; other formats always have them
	CreatedLines        bool   // _created lines in OpenMetrics; protobuf always tells when a metric was made
	MaxRequestsInFlight int    // at once, further ones get 503; 0: 16

	// WriteExtra writes further families in the format that contentType names, without a
	// final # EOF. None of them may be one of the sets'. May be nil.
	WriteExtra func(w io.Writer, contentType string) error
}

// Handler answers scrapes with the registered sets, as NewHandler does.
func Handler(exposeProcessMetrics bool) http.Handler {
	return NewHandler(HandlerOptions{ProcessMetrics: exposeProcessMetrics})
}

// Handler answers scrapes with the metrics of this set, as NewHandler does.
func (s *Set) Handler() http.Handler { return NewHandler(HandlerOptions{Sets: []*Set{s}}) }

// NewHandler answers scrapes in the format that the request likes best: text 0.0.4,
// which is also for those who like nothing that there is, text 1.0.0, OpenMetrics 1.0
// or protobuf; names outside the classic alphabet are escaped as the request asks,
// with underscores if it does not; and all of it is compressed if it allows gzip.
//
// Scrapes that come while a page of the same form is being made share that page. A
// page is whole before its first byte is sent.
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
	scrapes int       // in flight
	running []*flight // being rendered
	free    []*flight // to be used again
}

// flight is one page, rendered by one scrape and sent by those that share it.
type flight struct {
	key   flightKey
	done  sync.RWMutex // held by who renders
	users int          // guarded by the handler's mu
	body  []byte
	err   error
}

type flightKey struct {
	form   exposition.Form
	zipped bool
}

const (
	freeMax = 4
	bodyMax = 8 << 20 // a bigger one is not kept
)

// Write makes a flight take its page.
func (f *flight) Write(p []byte) (int, error) {
	f.body = append(f.body, p...)
	return len(p), nil
}

// Values of headers; the map of an answer borrows them, and nobody changes them.
var (
	varyHeader = []string{"Accept, Accept-Encoding"}
	gzipHeader = []string{"gzip"}
)

// ServeHTTP answers GET and HEAD.
func (h *handler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	header := w.Header()
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		header.Set("Allow", "GET, HEAD")
		http.Error(w, "only GET and HEAD", http.StatusMethodNotAllowed)
		return
	}
	key := flightKey{exposition.Negotiate(req.Header["Accept"]), acceptsGzip(req.Header["Accept-Encoding"])}
	if req.Method != http.MethodHead {
		f, first := h.join(key)
		if f == nil {
			header.Set("Retry-After", "1")
			http.Error(w, fmt.Sprintf("%d scrapes are running already", h.MaxRequestsInFlight), http.StatusServiceUnavailable)
			return
		}
		defer h.leave(f)
		if first {
			h.render(f)
		}
		f.done.RLock() // waits for who renders
		defer f.done.RUnlock()
		if f.err != nil {
			http.Error(w, "metrics: "+f.err.Error(), http.StatusInternalServerError)
			return
		}
		h.head(header, key)
		_, _ = w.Write(f.body) // if it fails whoever asked is gone: nobody to tell
		return
	}
	h.head(header, key)
}

func (h *handler) head(header http.Header, key flightKey) {
	header["Content-Type"] = h.types[key.form]
	header["Vary"] = varyHeader
	if key.zipped {
		header["Content-Encoding"] = gzipHeader
	}
}

// join returns the page that is being made, or a new one, locked, for its first user
// to make; nil if there are too many scrapes.
func (h *handler) join(key flightKey) (f *flight, first bool) {
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
		f = &flight{}
	}
	f.key, f.users, f.err, f.body = key, 1, errPanicked, f.body[:0]
	f.done.Lock()
	h.running = append(h.running, f)
	return f, true
}

// leave is called by every user of a page.
func (h *handler) leave(f *flight) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.scrapes--
	f.users--
	if f.users == 0 && len(h.free) < freeMax && cap(f.body) <= bodyMax {
		h.free = append(h.free, f)
	}
}

// render makes the page, and lets go of those who wait for it whatever happens.
func (h *handler) render(f *flight) {
	defer func() {
		h.mu.Lock()
		h.running = slices.DeleteFunc(h.running, func(other *flight) bool { return other == f })
		h.mu.Unlock()
		f.done.Unlock()
	}()
	if !f.key.zipped {
		f.err = h.page(f, f.key.form)
		return
	}
	zw := takeGzip(f)
	err := h.page(zw, f.key.form)
	if e := zw.Close(); err == nil {
		err = e
	}
	zw.Reset(io.Discard) // f is borrowed
	gzips.Put(zw)
	f.err = err
}

func (h *handler) page(w io.Writer, form exposition.Form) error {
	r := takeRenderer()
	if err := r.render(w, form, &h.HandlerOptions); err != nil {
		return err
	}
	giveRenderer(r)
	if h.WriteExtra != nil {
		if err := h.WriteExtra(w, form.ContentType()); err != nil {
			return err
		}
	}
	_, err := w.Write(form.EndOfPage())
	return err
}

// gzips are compressors, each of which keeps a megabyte.
var gzips sync.Pool

func takeGzip(w io.Writer) *gzip.Writer {
	if zw, ok := gzips.Get().(*gzip.Writer); ok {
		zw.Reset(w)
		return zw
	}
	zw, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // the level is one
	return zw
}

// acceptsGzip tells whether gzip, or else anything, is accepted with a quality above
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
