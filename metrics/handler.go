package metrics

import (
	"compress/gzip"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// Handler answers scrapes with what WritePrometheus writes: text of version 0.0.4,
// which every scraper takes, compressed if the request allows gzip.
func Handler(exposeProcessMetrics bool) http.Handler { return page004(writeAll(exposeProcessMetrics)) }

// Handler answers scrapes with the metrics of this set, as the function Handler does.
func (s *Set) Handler() http.Handler { return page004(s.WritePrometheus) }

// page004 is what writes a page.
type page004 func(w io.Writer)

// ServeHTTP answers GET and HEAD.
func (write page004) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "only GET and HEAD", http.StatusMethodNotAllowed)
		return
	}
	header := w.Header()
	header.Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	header.Set("Vary", "Accept-Encoding")
	zipped := acceptsGzip(req.Header.Values("Accept-Encoding"))
	if zipped {
		header.Set("Content-Encoding", "gzip")
	}
	switch {
	case req.Method == http.MethodHead:
	case zipped:
		zw := takeGzip(w)
		write(zw)
		_ = zw.Close()       // whoever asked is gone: nobody to tell
		zw.Reset(io.Discard) // w is borrowed
		gzips.Put(zw)
	default:
		write(w)
	}
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
		for coding := range strings.SplitSeq(header, ",") {
			name, parameters, _ := strings.Cut(coding, ";")
			accepted := true
			if q, ok := strings.CutPrefix(strings.TrimSpace(parameters), "q="); ok {
				quality, err := strconv.ParseFloat(q, 64)
				accepted = err == nil && quality > 0
			}
			switch strings.ToLower(strings.TrimSpace(name)) {
			case "gzip":
				return accepted
			case "*":
				anything = accepted
			}
		}
	}
	return anything
}
