package api

import (
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/bufpool"
	"github.com/ferula-io/ferula/internal/httpbody"
	"github.com/ferula-io/ferula/promjson"
)

// flushBytes is the size at which the buffer is written out. net/http makes two write
// calls of one Write to a chunked body; smaller writes cost more CPU than the memory is
// worth.
const flushBytes = 256 << 10

var buffers = bufpool.New(flushBytes+flushBytes/4, 2<<20)

// stream appends JSON to one pooled buffer and writes it out when it is full. Code that
// appends a list calls flushIfFull between elements. err is the first error of a write;
// later writes are skipped.
type stream struct {
	b   []byte
	w   io.Writer
	err error
}

// flushIfFull writes the buffer out if it is full. It reports false after a failed write:
// further output is useless.
func (s *stream) flushIfFull() bool {
	if len(s.b) >= flushBytes {
		s.flush()
	}
	return s.err == nil
}

func (s *stream) flush() {
	if s.err == nil && len(s.b) > 0 {
		_, s.err = s.w.Write(s.b)
	}
	s.b = s.b[:0]
}

// fail ends the response with an error of the server. If bytes were already sent, the
// connection is aborted.
func (s *stream) fail(err error) {
	if s.err == nil {
		s.err = &midStreamError{err}
	}
}

// midStreamError is an error of the server while the response is being written.
type midStreamError struct{ err error }

func (e *midStreamError) Error() string { return e.err.Error() }
func (e *midStreamError) Unwrap() error { return e.err }

func (s *stream) raw(text string)    { s.b = append(s.b, text...) }
func (s *stream) str(text string)    { s.b = promjson.AppendString(s.b, text) }
func (s *stream) integer(n int64)    { s.b = strconv.AppendInt(s.b, n, 10) }
func (s *stream) unsigned(n uint64)  { s.b = strconv.AppendUint(s.b, n, 10) }
func (s *stream) number(v float64)   { s.b = promjson.AppendFloat(s.b, v) }
func (s *stream) quoted(v float64)   { s.raw(`"`); s.number(v); s.raw(`"`) }
func (s *stream) timestamp(ms int64) { s.b = promjson.AppendTimestamp(s.b, ms) }
func (s *stream) boolean(v bool)     { s.b = strconv.AppendBool(s.b, v) }
func (s *stream) rfc3339(t time.Time) {
	s.raw(`"`)
	s.b = t.AppendFormat(s.b, time.RFC3339Nano)
	s.raw(`"`)
}
func (s *stream) field(key, v string) { s.raw(key); s.str(v) }

// comma appends the separator before element i, none before the first.
func (s *stream) comma(i int) {
	if i > 0 {
		s.b = append(s.b, ',')
	}
}

// strings appends an array of strings.
func (s *stream) strings(list []string) {
	s.raw("[")
	for i, text := range list {
		s.comma(i)
		s.str(text)
		if !s.flushIfFull() {
			return
		}
	}
	s.raw("]")
}

// labels appends a label set as an object, sorted by name.
func (s *stream) labels(ls labels.Labels) {
	s.b = append(s.b, '{')
	first := true
	ls.Range(func(l labels.Label) {
		if !first {
			s.b = append(s.b, ',')
		}
		first = false
		s.b = promjson.AppendLabelString(s.b, l.Name)
		s.b = append(s.b, ':')
		s.b = promjson.AppendLabelString(s.b, l.Value)
	})
	s.b = append(s.b, '}')
}

// histogram appends a native histogram without its empty buckets.
func (s *stream) histogram(h *histogram.FloatHistogram) {
	s.b = promjson.AppendHistogramStart(s.b, h.Count, h.Sum)
	found := false
	for it := h.AllBucketIterator(); it.Next(); {
		b := it.At()
		if b.Count == 0 {
			continue
		}
		s.b = promjson.AppendBucket(s.b, !found, promjson.Boundaries(b.LowerInclusive, b.UpperInclusive), b.Lower, b.Upper, b.Count)
		found = true
	}
	s.b = promjson.AppendHistogramEnd(s.b, found)
}

// responseAnnotations are the warnings and infos after the data.
type responseAnnotations struct {
	list  annotations.Annotations
	query string // for the line and column of annotations
}

// append appends them as Prometheus does: at most ten of each, and no key for an empty
// list.
func (n *responseAnnotations) append(s *stream) {
	if n == nil {
		return
	}
	warnings, infos := n.list.AsStrings(n.query, 10, 10)
	if len(warnings) > 0 {
		s.raw(`,"warnings":`)
		s.strings(warnings)
	}
	if len(infos) > 0 {
		s.raw(`,"infos":`)
		s.strings(infos)
	}
}

// respond streams a successful response. The status line is sent with the first full
// buffer or at the end.
func (a *API) respond(w http.ResponseWriter, r *http.Request, resp response) {
	if resp.engine != "" {
		w.Header().Set(engineHeader, resp.engine)
	}
	body := httpbody.New(w, r, "application/json")
	buffer := buffers.Get()
	s := &stream{b: *buffer, w: body}
	s.raw(`{"status":"success","data":`)
	resp.write(s)
	resp.annotations.append(s)
	s.raw(`}`)
	if failure, ok := s.err.(*midStreamError); ok && !body.HeaderSent() { //lint:ignore errorlint set here, never wrapped
		s.b, s.err = s.b[:0], nil
		*buffer = s.b
		buffers.Put(buffer)
		a.respondError(w, queryError(failure.err))
		return
	}
	if s.err == nil && !body.HeaderSent() {
		body.SetLength(len(s.b))
	}
	s.flush()
	if s.err == nil {
		s.err = body.Close()
	}
	*buffer = s.b
	buffers.Put(buffer)
	body.Release()
	if s.err != nil {
		level := slog.LevelInfo                     // the client has disconnected
		if _, own := s.err.(*midStreamError); own { //lint:ignore errorlint set here, never wrapped
			level = slog.LevelError
		}
		a.opts.Logger.Log(r.Context(), level, "Failed to write response", "path", r.URL.Path, "err", s.err)
		// A truncated response must not look complete: abort the connection.
		panic(http.ErrAbortHandler)
	}
}

func (a *API) respondError(w http.ResponseWriter, e *apiError) {
	buffer := buffers.Get()
	s := stream{b: *buffer, w: w}
	s.field(`{"status":"error","errorType":`, string(e.kind))
	s.field(`,"error":`, e.err.Error())
	s.raw(`}`)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(statusOf[e.kind])
	s.flush()
	if s.err != nil {
		a.opts.Logger.Debug("Failed to write error response", "err", s.err)
	}
	*buffer = s.b
	buffers.Put(buffer)
}
