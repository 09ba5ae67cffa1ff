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
	"time"

	"github.com/ferula-io/ferula/metrics/internal/exposition"
)

// HandlerOptions configure a handler. The zero value exposes the default set and the
// registered sets.
type HandlerOptions struct {
	Sets           []*Set // nil: the default set and the sets of RegisterSet
	ProcessMetrics bool   // expose the metrics of WriteProcessMetrics as well, except families that a set has
	// expose the metrics of WriteFDMetrics as well, except families that a set has; each scrape then lists the open files
	OpenFiles bool
	// HELP and TYPE lines in the text formats, regardless of ExposeMetadata; other formats always have them
	Metadata            bool
	LeBuckets           bool // in OpenMetrics and protobuf, expose vmrange histograms as classic histograms, see Histogram
	CreatedLines        bool // _created lines in OpenMetrics; protobuf always has the created timestamp
	MaxRequestsInFlight int  // limit of concurrent scrapes, further ones get status 503; 0: 16

	// Compressors are content codings in addition to gzip, such as zstd (promcompat.Zstd). If
	// a request accepts several codings with the same quality, the first one is used. gzip is
	// the last.
	Compressors []Compressor

	// WriteExtra writes further families in the format of contentType, without a final # EOF.
	// The sets must not have any of these families. May be nil.
	WriteExtra func(w io.Writer, contentType string) error
}

// Compressor is a content coding of responses.
type Compressor struct {
	Coding string                // as in Accept-Encoding, such as "zstd"
	New    func() CompressWriter // returns a writer, which is reset before each use and reused
}

// CompressWriter compresses to the writer of its last Reset. Close writes the remaining
// compressed bytes.
type CompressWriter interface {
	io.WriteCloser
	Reset(w io.Writer)
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
// and compresses the response if the request accepts gzip, or a coding of opts.Compressors.
// It responds to GET and HEAD.
//
// Concurrent scrapes of the same format and content coding share one response body. A body
// of up to 4 MiB (compressed, if it is) is complete before its first byte is sent, so any
// failure, including one in a collector, gets status 500, and the response has a
// Content-Length. A larger body is sent in pieces, unless another scrape shares it; a failure
// after the first piece aborts the connection. A client that does not read for a minute is
// disconnected, unless the server has a WriteTimeout.
func NewHandler(opts HandlerOptions) http.Handler {
	if opts.MaxRequestsInFlight <= 0 {
		opts.MaxRequestsInFlight = 16
	}
	h := &handler{HandlerOptions: opts, types: map[exposition.Form][]string{}}
	for _, c := range opts.Compressors {
		h.codings = append(h.codings, &coding{c.Coding, []string{c.Coding}, sync.Pool{New: func() any { return c.New() }}})
	}
	h.codings = append(h.codings, &gzipCoding)
	exposition.Forms(func(f exposition.Form) { h.types[f] = []string{f.ContentType()} })
	return h
}

type handler struct {
	HandlerOptions
	types   map[exposition.Form][]string
	codings []*coding // in the order of preference

	mu      sync.Mutex
	scrapes int              // requests in flight
	running []*sharedPage    // being rendered; further scrapes may join them
	free    []*sharedPage    // for reuse
	lengths map[int][]string // blocks of lengthsBlock values of Content-Length, by the first length of the block
}

// sharedPage is one response body. One scrape renders it, and all scrapes that share it send it.
type sharedPage struct {
	handler *handler
	client  http.ResponseWriter // of the scrape that renders
	server  *http.Server        // of the scrape that renders; may be nil
	sent    bool                // the body is sent to client while it is rendered
	key     pageKey
	done    sync.RWMutex // locked while the body is rendered
	users   int          // scrapes that share it; guarded by the handler's mu
	body    []byte
	err     error
}

type pageKey struct {
	form   exposition.Form
	coding *coding // nil: none
}

const (
	freeMax = 4
	bodyMax = 4 << 20 // a larger body is sent in pieces, if no other scrape shares it
)

// Write appends to the body. If the body is larger than bodyMax and no other scrape shares it,
// Write sends it instead.
func (f *sharedPage) Write(p []byte) (int, error) {
	if !f.sent && len(f.body)+len(p) > bodyMax && f.handler.unshare(f) {
		f.handler.head(f.client.Header(), f.key)
		f.sent = true
		if err := f.send(f.body); err != nil {
			return 0, err
		}
		f.body = f.body[:0]
	}
	if f.sent {
		if err := f.send(p); err != nil {
			return 0, err
		}
		return len(p), nil
	}
	f.body = append(f.body, p...)
	return len(p), nil
}

// send writes to the client of the scrape that renders.
func (f *sharedPage) send(p []byte) error {
	extendDeadline(f.client, f.server)
	_, err := f.client.Write(p)
	return err
}

const (
	writeTimeout = time.Minute
	smallBody    = 64 << 10 // fits into the buffers of a connection
	pieceBytes   = 1 << 20
)

// extendDeadline gives a client another minute, unless the server has a WriteTimeout.
func extendDeadline(w http.ResponseWriter, server *http.Server) {
	if server != nil && server.WriteTimeout <= 0 {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // not every writer supports it
	}
}

// clearDeadline ends the deadlines of extendDeadline.
func clearDeadline(w http.ResponseWriter, server *http.Server) {
	if server != nil && server.WriteTimeout <= 0 {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
	}
}

// sendBody writes a complete body to a client. It ignores errors, because they mean that the
// client has disconnected.
func sendBody(w http.ResponseWriter, server *http.Server, body []byte) {
	if len(body) <= smallBody {
		_, _ = w.Write(body)
		return
	}
	defer clearDeadline(w, server)
	for len(body) > 0 {
		n := min(len(body), pieceBytes)
		extendDeadline(w, server)
		if _, err := w.Write(body[:n]); err != nil {
			return
		}
		body = body[n:]
	}
}

// unshare removes a body from the bodies that further scrapes may share. It returns false, and
// removes nothing, if another scrape already shares the body.
func (h *handler) unshare(f *sharedPage) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if f.users != 1 || f.client == nil {
		return false
	}
	h.running = slices.DeleteFunc(h.running, func(other *sharedPage) bool { return other == f })
	return true
}

// varyHeader is a header value; all responses share it, and it never changes.
var varyHeader = []string{"Accept, Accept-Encoding"}

// ServeHTTP responds to GET and HEAD.
func (h *handler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	header := w.Header()
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		header.Set("Allow", "GET, HEAD")
		http.Error(w, "only GET and HEAD", http.StatusMethodNotAllowed)
		return
	}
	key := pageKey{exposition.Negotiate(req.Header["Accept"]), h.accepted(req.Header["Accept-Encoding"])}
	if req.Method != http.MethodHead {
		f, first := h.join(key)
		if f == nil {
			header.Set("Retry-After", "1")
			http.Error(w, fmt.Sprintf("%d scrapes are already in progress", h.MaxRequestsInFlight),
				http.StatusServiceUnavailable)
			return
		}
		defer h.leave(f)
		server, _ := req.Context().Value(http.ServerContextKey).(*http.Server)
		if first {
			f.client, f.server = w, server
			h.render(f)
		}
		f.done.RLock() // waits for the renderer
		defer f.done.RUnlock()
		switch {
		case f.err != nil && f.sent:
			panic(http.ErrAbortHandler) // the response must not look complete
		case f.err != nil:
			http.Error(w, "metrics: "+f.err.Error(), http.StatusInternalServerError)
		case f.sent:
			clearDeadline(w, server)
		default:
			h.head(header, key)
			header["Content-Length"] = h.lengthHeader(len(f.body))
			sendBody(w, server, f.body)
		}
		return
	}
	h.head(header, key)
}

func (h *handler) head(header http.Header, key pageKey) {
	header["Content-Type"] = h.types[key.form]
	header["Vary"] = varyHeader
	if key.coding != nil {
		header["Content-Encoding"] = key.coding.header
	}
}

const (
	lengthsBlock = 256 // the lengths of the scrapes of one process are close to each other
	blocksMax    = 32  // blocks that are kept, each of about 6 KiB; one more removes all of them
)

// lengthHeader returns the value of Content-Length. It formats a block of consecutive lengths at once
// and keeps the block. Later scrapes with another length of this block therefore do not allocate. A
// value never changes, because net/http may read it after the handler has returned.
func (h *handler) lengthHeader(bytes int) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := bytes % lengthsBlock
	block := h.lengths[bytes-at]
	if block == nil {
		if h.lengths == nil || len(h.lengths) >= blocksMax {
			h.lengths = map[int][]string{}
		}
		block = decimals(bytes-at, lengthsBlock)
		h.lengths[bytes-at] = block
	}
	return block[at : at+1 : at+1]
}

// decimals returns the decimal numbers from, from+1, ..., with a constant number of allocations.
func decimals(from, count int) []string {
	digits, ends := make([]byte, 0, 8*count), make([]int, count)
	for i := range count {
		digits = strconv.AppendInt(digits, int64(from+i), 10)
		ends[i] = len(digits)
	}
	text, start, all := string(digits), 0, make([]string, count)
	for i, end := range ends {
		all[i], start = text[start:end], end
	}
	return all
}

// join returns the body of this key that is being rendered. If there is none, join returns a new
// body with done locked, and first is true: the caller must render the body. join returns nil if
// too many scrapes are in progress.
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
		f = &sharedPage{handler: h}
	}
	f.key, f.users, f.err, f.body, f.sent = key, 1, errPanicked, f.body[:0], false
	f.done.Lock()
	h.running = append(h.running, f)
	return f, true
}

// leave ends the use of a body. Every caller of join that got a body must call it.
func (h *handler) leave(f *sharedPage) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.scrapes--
	f.users--
	if f.users == 0 {
		f.client, f.server = nil, nil
	}
	if f.users == 0 && len(h.free) < freeMax && cap(f.body) <= 2*bodyMax {
		h.free = append(h.free, f)
	}
}

// render renders the body and unlocks done, also after a panic, for the scrapes that share it.
func (h *handler) render(f *sharedPage) {
	defer func() {
		h.mu.Lock()
		h.running = slices.DeleteFunc(h.running, func(other *sharedPage) bool { return other == f })
		h.mu.Unlock()
		f.done.Unlock()
	}()
	if f.key.coding == nil {
		f.err = h.page(f, f.key.form)
		return
	}
	zw := f.key.coding.get(f)
	err := h.page(zw, f.key.form)
	if e := zw.Close(); err == nil {
		err = e
	}
	f.key.coding.put(zw)
	f.err = err
}

func (h *handler) page(w io.Writer, form exposition.Form) error {
	r := getRenderer()
	if err := r.render(w, form, &h.HandlerOptions); err != nil {
		return err // the renderer is not reused
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

// gzipLevel compresses a scrape response to the size that the default level, 6, has, in half
// the time. Level 1 takes half the time of gzipLevel, and its output is a tenth larger.
const gzipLevel = 5

// coding is a content coding with a pool of its writers; each may have about 1 MiB of memory.
type coding struct {
	name    string
	header  []string // of responses; it never changes
	writers sync.Pool
}

var gzipCoding = coding{"gzip", []string{"gzip"}, sync.Pool{New: func() any {
	zw, _ := gzip.NewWriterLevel(nil, gzipLevel) // the level is valid
	return zw
}}}

// get returns a writer that compresses to w. The caller must put it back after Close.
func (c *coding) get(w io.Writer) CompressWriter {
	zw, _ := c.writers.Get().(CompressWriter) // the pool has no other type
	zw.Reset(w)
	return zw
}

func (c *coding) put(zw CompressWriter) {
	zw.Reset(io.Discard) // drops the reference to the writer
	c.writers.Put(zw)
}

// accepted returns the coding with the highest quality in Accept-Encoding. If several have this
// quality, it returns the first one of h.codings. It returns nil if none is accepted.
func (h *handler) accepted(headers []string) *coding {
	var best *coding
	highest := 0.0
	for _, c := range h.codings {
		if q := qualityOf(headers, c.name); q > highest {
			best, highest = c, q
		}
	}
	return best
}

// qualityOf returns the quality of a coding in Accept-Encoding, 0 if it is not accepted. * is
// taken to mean gzip only, because not every client that sends * can decode other codings.
func qualityOf(headers []string, coding string) float64 {
	anything := 0.0
	for _, header := range headers {
		for header != "" {
			var one string
			one, header, _ = strings.Cut(header, ",")
			name, parameters, _ := strings.Cut(one, ";")
			quality := 1.0
			if q, ok := strings.CutPrefix(strings.TrimSpace(parameters), "q="); ok {
				var err error
				if quality, err = strconv.ParseFloat(q, 64); err != nil {
					quality = 0
				}
			}
			switch name = strings.TrimSpace(name); {
			case strings.EqualFold(name, coding):
				return quality
			case name == "*" && coding == gzipCoding.name:
				anything = quality
			}
		}
	}
	return anything
}
